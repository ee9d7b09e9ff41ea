"""Clustering and mixture models."""

from credo.mixture.gaussian_mixture import GaussianMixture
from credo.mixture.kmeans import KMeans
from credo.mixture.variational import VariationalGaussianMixture

__all__ = ["GaussianMixture", "KMeans", "VariationalGaussianMixture"]
