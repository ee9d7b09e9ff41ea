"""Information and divergence, in closed form where it is known and by Monte Carlo with its standard error elsewhere."""

from credo._estimate import Estimate
from credo.information.fitting import Direction, Fit, fit_q
from credo.information.measures import cross_entropy, entropy, jensen_shannon, kl, self_information
from credo.information.mutual import mutual_information

__all__ = [
    "Estimate",
    "self_information",
    "entropy",
    "cross_entropy",
    "kl",
    "jensen_shannon",
    "mutual_information",
    "Direction",
    "Fit",
    "fit_q",
]
