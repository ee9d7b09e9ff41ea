"""Success probabilities with a beta prior: Bernoulli and binomial observations."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Size, Tensor
from torch.distributions import Bernoulli, Beta, Binomial, Distribution, constraints
from torch.distributions.constraints import Constraint
from typing_extensions import override

from credo._arguments import check_integer
from credo._special import log_dirichlet_categorical, log_dirichlet_multinomial, log_multinomial_given_sum
from credo.conjugate.base import ConjugatePair, TensorLike, broadcast_hyperparameters, check_not_empty, to_counts


@dataclass(frozen=True, eq=False, repr=False, init=False)
class _BetaPair(ConjugatePair):
    """μ ~ Beta(a, b) and m ~ Binomial(n, μ); a Bernoulli variable is binomial with n = 1."""

    a: Tensor
    b: Tensor

    @property
    @abstractmethod
    def _n_trials(self) -> int: ...

    @property
    def posterior(self) -> Beta:
        """Beta(μ | a, b)."""
        return Beta(self.a, self.b)

    def _read(self, data: TensorLike) -> Tensor:
        return to_counts(data, self.a.shape, self.a.device, maximum=self._n_trials)

    def _update(self, data: Tensor) -> Self:
        successes, failures = self._outcomes(data).sum(0).unbind(-1)
        return replace(self, a=self.a + successes, b=self.b + failures)

    def _log_evidence(self, data: Tensor) -> Tensor:
        counts, concentration = self._outcomes(data), torch.stack([self.a, self.b], -1)
        if self._n_trials == 1:
            return log_dirichlet_categorical(concentration, counts.sum(0))
        return log_dirichlet_multinomial(concentration, counts.sum(0)) + log_multinomial_given_sum(counts)

    def _outcomes(self, data: Tensor) -> Tensor:
        """Successes and failures per observation, ``[N, ..., 2]``."""
        return torch.stack([data, self._n_trials - data], -1)


@dataclass(frozen=True, eq=False, repr=False, init=False)
class BetaBernoulli(_BetaPair):
    """μ ~ Beta(a, b) and x ~ Bernoulli(μ). Data are 0 or 1, ``[N, ...]``.

        p(μ | x₁ … x_N) = Beta(a + Σx, b + N − Σx),    p(x = 1) = a / (a + b)

    Args:
        a: prior number of ones, positive, ``[...]``.
        b: prior number of zeros, positive, ``[...]``; broadcasts with ``a``.

    Raises:
        InputError: if a hyperparameter is not positive and finite, or the shapes do not broadcast.

    References:
        C. M. Bishop. Pattern Recognition and Machine Learning. 2006, section 2.1.1.

    Example:
        >>> from credo.conjugate import BetaBernoulli
        >>> BetaBernoulli(2, 2).update([1, 0, 1, 1])
        BetaBernoulli(a=5, b=3)
    """

    def __init__(self, a: TensorLike, b: TensorLike) -> None:
        self._store(**broadcast_hyperparameters(("a", "b"), a=a, b=b))

    @property
    def _n_trials(self) -> int:
        return 1

    @property
    def predictive(self) -> Bernoulli:
        """Bernoulli(x | a / (a + b)) (Bishop 2.20)."""
        return Bernoulli(logits=self.a.log() - self.b.log())

    @override
    def likelihood(self, parameters: Tensor) -> Bernoulli:
        return Bernoulli(parameters)

    @staticmethod
    def maximum_likelihood(data: TensorLike) -> Bernoulli:
        """Estimate μ by the share of ones (Bishop 2.7).

        Args:
            data: zeros and ones, ``[N, ...]``.

        Returns:
            Bernoulli(x | Σx / N).

        Raises:
            InputError: if there are no rows, or values other than 0 and 1.
        """
        return Bernoulli(check_not_empty(to_counts(data, maximum=1)).mean(0))


@dataclass(frozen=True, eq=False, repr=False, init=False)
class BetaBinomial(_BetaPair):
    """μ ~ Beta(a, b) and m ~ Binomial(n, μ). Data are numbers of successes from 0 to n, ``[N, ...]``.

        p(μ | m₁ … m_N) = Beta(a + Σm, b + Nn − Σm)

    Args:
        a: prior number of successes, positive, ``[...]``.
        b: prior number of failures, positive, ``[...]``; broadcasts with ``a``.
        trials: n, the same for every observation.

    Raises:
        InputError: if a hyperparameter is not positive and finite, or the shapes do not broadcast.

    References:
        C. M. Bishop. Pattern Recognition and Machine Learning. 2006, section 2.1.

    Example:
        >>> from credo.conjugate import BetaBinomial
        >>> BetaBinomial(1, 1, trials=10).update([7, 8])
        BetaBinomial(a=16, b=6, trials=10)
    """

    trials: int

    def __init__(self, a: TensorLike, b: TensorLike, trials: int) -> None:
        trials = check_integer(trials, "trials", minimum=1)
        self._store(**broadcast_hyperparameters(("a", "b"), a=a, b=b), trials=trials)

    @property
    def _n_trials(self) -> int:
        return self.trials

    @property
    def predictive(self) -> BetaBinomialDistribution:
        """The number of successes in n new trials."""
        return BetaBinomialDistribution(self.a, self.b, self.trials)

    @override
    def likelihood(self, parameters: Tensor) -> Binomial:
        return Binomial(self.trials, parameters)

    @staticmethod
    def maximum_likelihood(data: TensorLike, trials: int) -> Binomial:
        """Estimate μ by the share of successes.

        Args:
            data: numbers of successes, ``[N, ...]``.
            trials: n, the number of trials per observation.

        Returns:
            Binomial(m | n, Σm / Nn).

        Raises:
            InputError: if there are no rows, or values other than integers from 0 to n.
        """
        trials = check_integer(trials, "trials", minimum=1)
        return Binomial(trials, check_not_empty(to_counts(data, maximum=trials)).mean(0) / trials)


class BetaBinomialDistribution(Distribution):
    """m ~ Binomial(n, μ) with μ ~ Beta(a, b) integrated out.

    Args:
        a: ``[...]``.
        b: ``[...]``; broadcasts with ``a``.
        total_count: n.
        validate_args: whether torch checks arguments and values; ``None`` for torch's default.

    Example:
        >>> import torch
        >>> from credo.conjugate import BetaBinomialDistribution
        >>> BetaBinomialDistribution(torch.tensor(1.0), torch.tensor(3.0), total_count=8).mean
        tensor(2.)
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {"a": constraints.positive, "b": constraints.positive}
    a: Tensor
    b: Tensor

    def __init__(self, a: Tensor, b: Tensor, total_count: int, validate_args: bool | None = None) -> None:
        self.a, self.b = torch.broadcast_tensors(a, b)
        self.total_count = total_count
        super().__init__(self.a.shape, validate_args=validate_args)

    @constraints.dependent_property(is_discrete=True, event_dim=0)
    def support(self) -> Constraint:
        """0, 1 … n."""
        return constraints.integer_interval(0, self.total_count)

    @property
    def mean(self) -> Tensor:
        """n a/(a + b)."""
        return self.total_count * self.a / (self.a + self.b)

    @property
    def variance(self) -> Tensor:
        """The variance of a binomial with this mean, times (a + b + n)/(a + b + 1)."""
        concentration = self.a + self.b
        inflation = (concentration + self.total_count) / (concentration + 1.0)
        return self.mean * self.b / concentration * inflation

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draw μ from the beta distribution, then the number of successes.

        Args:
            sample_shape: shape of independent draws.

        Returns:
            Draws, ``[*sample_shape, ...]``.
        """
        with torch.no_grad():
            probs = Beta(self.a, self.b).sample(Size(sample_shape))
            counts: Tensor = Binomial(self.total_count, probs).sample()
        return counts

    def log_prob(self, value: Tensor) -> Tensor:
        """log C(n, m) + log B(a + m, b + n − m) − log B(a, b).

        Args:
            value: m, which broadcasts with the batch shape.

        Returns:
            The log probability of each value.
        """
        if self._validate_args:
            self._validate_sample(value)
        counts = torch.stack([value, self.total_count - value], -1).to(self.a.dtype)
        return log_dirichlet_multinomial(torch.stack([self.a, self.b], -1), counts)
