"""Clusters and mixtures: which of K sources a row came from."""

from credo.mixture.gaussian_mixture import GaussianMixture
from credo.mixture.kmeans import KMeans
from credo.mixture.variational import VariationalGaussianMixture

__all__ = ["GaussianMixture", "KMeans", "VariationalGaussianMixture"]
