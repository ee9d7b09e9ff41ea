"""Information and divergence measures, in closed form or by Monte Carlo with a standard error."""

from credo._estimate import Estimate
from credo.information.distances import chi_squared, total_variation
from credo.information.fitting import Direction, Fit, fit_q
from credo.information.measures import (
    cross_entropy,
    entropy,
    jensen_shannon,
    kl,
    mutual_information,
    self_information,
)

__all__ = [
    "Estimate",
    "self_information",
    "entropy",
    "cross_entropy",
    "kl",
    "jensen_shannon",
    "total_variation",
    "chi_squared",
    "mutual_information",
    "Direction",
    "Fit",
    "fit_q",
]
