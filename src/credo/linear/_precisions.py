"""What is believed of a precision: it is given, or a Gamma prior says how the data may decide it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch.distributions import Gamma, kl_divergence

WEAKEST = 1e-12
"""The shape of a hyperprior where none is given: the weight of 2·10⁻¹² observations, about the rounding of a sum."""


@dataclass(frozen=True)
class PrecisionBelief:
    """q(τ) of a precision τ, by what the variational bound needs of it.

    Attributes:
        mean: E[τ].
        log_mean: E[log τ].
        divergence: KL(q ‖ p) from the prior, in nats.
    """

    mean: float
    log_mean: float
    divergence: float


class PrecisionPrior(ABC):
    """What is believed of a precision τ before the data."""

    @property
    @abstractmethod
    def known(self) -> float | None:
        """τ where it is given."""

    @property
    @abstractmethod
    def observations(self) -> tuple[float, float]:
        """The number of squares N(0, τ⁻¹)² that the prior counts for, and their sum."""

    @abstractmethod
    def mode(self, count: float, squares: float) -> float:
        """The log τ, as τ, that maximizes ½·count·log τ − ½·squares·τ + log p(log τ)."""

    @abstractmethod
    def log_density(self, precision: float) -> float:
        """log p(log τ)."""

    @abstractmethod
    def posterior(self, count: float, squares: float) -> PrecisionBelief:
        """The belief after ``count`` squares N(0, τ⁻¹)² that sum to ``squares``."""


@dataclass(frozen=True)
class GivenPrecision(PrecisionPrior):
    """τ is known."""

    value: float

    @property
    def known(self) -> float:
        """τ."""
        return self.value

    @property
    def observations(self) -> tuple[float, float]:
        """None: the data decide nothing."""
        return 0.0, 0.0

    def mode(self, count: float, squares: float) -> float:
        """The known τ, whatever the data."""
        return self.value

    def log_density(self, precision: float) -> float:
        """0: nothing is to be weighed."""
        return 0.0

    def posterior(self, count: float, squares: float) -> PrecisionBelief:
        """The known τ, whatever the data."""
        return PrecisionBelief(self.value, math.log(self.value), 0.0)


@dataclass(frozen=True)
class GammaPrecision(PrecisionPrior):
    """τ ~ Gam(a, b), with mean a/b; as a → 0 and b → 0 it is flat in log τ.

    Attributes:
        shape: a; it weighs as much as 2a observations.
        rate: b; half the sum of their squares.
    """

    shape: float
    rate: float

    @property
    def known(self) -> None:
        """Nothing."""
        return None

    @property
    def observations(self) -> tuple[float, float]:
        """2a and 2b."""
        return 2.0 * self.shape, 2.0 * self.rate

    def mode(self, count: float, squares: float) -> float:
        """(count + 2a) / (squares + 2b)."""
        return (count + 2.0 * self.shape) / (squares + 2.0 * self.rate)

    def log_density(self, precision: float) -> float:
        """Log Gam(τ | a, b) + log τ."""
        scaled = self.rate * precision
        return self.shape * math.log(scaled) - scaled - math.lgamma(self.shape)

    def posterior(self, count: float, squares: float) -> PrecisionBelief:
        """Gam(a + count/2, b + squares/2)."""
        q = _gamma(self.shape + 0.5 * count, self.rate + 0.5 * squares)
        log_mean = torch.digamma(q.concentration) - q.rate.log()
        return PrecisionBelief(float(q.mean), float(log_mean), float(kl_divergence(q, _gamma(self.shape, self.rate))))


def precision_prior(given: float | None, prior: tuple[float, float] | None, usual: float) -> PrecisionPrior:
    """What is believed of a precision that is given, or has a Gamma prior, or neither: then about its usual size."""
    if given is not None:
        return GivenPrecision(float(given))
    return GammaPrecision(WEAKEST, WEAKEST / usual) if prior is None else GammaPrecision(*prior)


def _gamma(shape: float, rate: float) -> Gamma:
    a, b = torch.tensor([shape, rate], dtype=torch.float64)
    return Gamma(a, b, validate_args=False)
