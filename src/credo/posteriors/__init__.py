"""Posteriors q(w | θ): distributions over the weights, given the data."""

from credo.posteriors.base import Posterior
from credo.posteriors.empirical import Empirical
from credo.posteriors.low_rank import LowRankGaussian
from credo.posteriors.mean_field import MeanField

__all__ = ["Empirical", "LowRankGaussian", "MeanField", "Posterior"]
