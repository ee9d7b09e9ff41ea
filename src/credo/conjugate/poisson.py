"""Event rates with a gamma prior: Poisson observations."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from torch import Tensor
from torch.distributions import Gamma, NegativeBinomial, Poisson
from typing_extensions import override

from credo._special import log_multinomial, log_negative_binomial
from credo.conjugate.base import ConjugatePair, TensorLike, broadcast_hyperparameters, check_not_empty, to_counts


@dataclass(frozen=True, eq=False, repr=False, init=False)
class GammaPoisson(ConjugatePair):
    """λ ~ Gamma(a, b) and x ~ Poisson(λ). Data are counts, ``[N, ...]``.

        p(λ | x₁ … x_N) = Gamma(a + Σx, b + N)

    Args:
        shape: a, the prior number of events, positive, ``[...]``.
        rate: b, the prior number of observations, positive, ``[...]``; broadcasts with ``shape``.

    Raises:
        InputError: if a hyperparameter is not positive and finite, or the shapes do not broadcast.

    References:
        A. Gelman et al. Bayesian Data Analysis. 3rd edition, 2013, section 2.6.

    Example:
        >>> from credo.conjugate import GammaPoisson
        >>> GammaPoisson(3, 2).update([4, 0, 5])
        GammaPoisson(shape=12, rate=5)
    """

    shape: Tensor
    rate: Tensor

    def __init__(self, shape: TensorLike, rate: TensorLike) -> None:
        self._store(**broadcast_hyperparameters(("shape", "rate"), shape=shape, rate=rate))

    @property
    def posterior(self) -> Gamma:
        """Gamma(λ | a, b)."""
        return Gamma(self.shape, self.rate)

    @property
    def predictive(self) -> NegativeBinomial:
        """The negative binomial with mean a/b and variance (a/b)(1 + 1/b)."""
        return _PreciseNegativeBinomial(self.shape, logits=-self.rate.log())

    @override
    def likelihood(self, parameters: Tensor) -> Poisson:
        return Poisson(parameters)

    @staticmethod
    def maximum_likelihood(data: TensorLike) -> Poisson:
        """Estimate λ by the mean count.

        Args:
            data: counts, ``[N, ...]``.

        Returns:
            Poisson(x | Σx / N).

        Raises:
            InputError: if there are no rows, or values other than integers of at least 0.
        """
        return Poisson(check_not_empty(to_counts(data)).mean(0))

    def _read(self, data: TensorLike) -> Tensor:
        return to_counts(data, self.shape.shape, self.shape.device)

    def _update(self, data: Tensor) -> Self:
        return replace(self, shape=self.shape + data.sum(0), rate=self.rate + len(data))

    def _log_evidence(self, data: Tensor) -> Tensor:
        """The sum of the data is negative binomial; given their sum, the data are multinomial with equal shares."""
        equal_shares = data.new_tensor(1.0 / max(len(data), 1))
        given_sum = log_multinomial(data.movedim(0, -1), equal_shares)
        return log_negative_binomial(data.sum(0), self.shape, len(data) / self.rate) + given_sum


class _PreciseNegativeBinomial(NegativeBinomial):
    """torch's negative binomial with a log probability that does not cancel for large ``total_count``."""

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        odds = self.logits.exp()
        return log_negative_binomial(value.to(odds.dtype), self.total_count, odds)
