"""q(w | θ): what is believed of the weights after the data."""

from credo.posteriors.base import Posterior
from credo.posteriors.mean_field import MeanField

__all__ = ["MeanField", "Posterior"]
