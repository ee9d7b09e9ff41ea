"""Posteriors q(w | θ): distributions over the weights, given the data."""

from credo.posteriors.base import Posterior
from credo.posteriors.mean_field import MeanField

__all__ = ["MeanField", "Posterior"]
