"""Class probabilities with a Dirichlet prior: categorical and multinomial observations."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Size, Tensor
from torch.distributions import Categorical, Dirichlet, Distribution, Multinomial, constraints
from torch.distributions.constraints import Constraint
from typing_extensions import override

from credo._arguments import check_integer
from credo._special import log_dirichlet_categorical, log_dirichlet_multinomial, log_multinomial_given_sum
from credo.conjugate.base import (
    ConjugatePair,
    TensorLike,
    check_all_positive,
    check_not_empty,
    to_counts,
    to_tensors,
)
from credo.errors import InputError


@dataclass(frozen=True, eq=False, repr=False, init=False)
class _DirichletPair(ConjugatePair):
    """μ ~ Dir(α) over the probabilities of K classes; the data enter through the total counts of the classes."""

    concentration: Tensor

    @property
    def posterior(self) -> Dirichlet:
        """Dir(μ | α)."""
        return Dirichlet(self.concentration)

    @abstractmethod
    def _class_counts(self, data: Tensor) -> Tensor:
        """Total counts of the classes over all rows, ``[..., K]``."""

    def _update(self, data: Tensor) -> Self:
        return replace(self, concentration=self.concentration + self._class_counts(data))


@dataclass(frozen=True, eq=False, repr=False, init=False)
class DirichletCategorical(_DirichletPair):
    """μ ~ Dir(α) and x ~ Categorical(μ). Data are labels from 0 to K − 1, ``[N, ...]``.

        p(μ | x₁ … x_N) = Dir(α + m),    p(x = k) = αₖ / Σα

    with mₖ the number of labels k. One-hot vectors xₙ ``[N, K]``, with p(x | μ) = ∏ₖ μₖ^xₖ, are counts of one trial:
    pass them to ``DirichletMultinomial(α, trials=1)``, which gives the same posterior and evidence.

    Args:
        concentration: α, the prior number of labels of each class, positive, ``[..., K]``.

    Raises:
        InputError: if ``concentration`` is not positive and finite, or has no class dimension.

    References:
        C. M. Bishop. Pattern Recognition and Machine Learning. 2006, section 2.2.1.

    Example:
        >>> from credo.conjugate import DirichletCategorical
        >>> DirichletCategorical([1, 1, 1]).update([2, 0, 2, 2])
        DirichletCategorical(concentration=[2, 1, 4])
    """

    def __init__(self, concentration: TensorLike) -> None:
        self._store(concentration=_to_concentration(concentration))

    @property
    def predictive(self) -> Categorical:
        """Categorical(x | α / Σα)."""
        return Categorical(logits=self.concentration.log())

    @override
    def likelihood(self, parameters: Tensor) -> Categorical:
        return Categorical(parameters)

    @staticmethod
    def maximum_likelihood(data: TensorLike, classes: int) -> Categorical:
        """Estimate μ by the shares of the labels (Bishop 2.33).

        Args:
            data: labels from 0 to ``classes`` − 1, ``[N, ...]``; for one-hot vectors ``[N, K]`` use
                ``DirichletMultinomial.maximum_likelihood(data, trials=1)``.
            classes: K, the number of classes.

        Returns:
            Categorical(x | m / N).

        Raises:
            InputError: if there are no rows, or other values than labels.
        """
        classes = check_integer(classes, "classes", minimum=1)
        return Categorical(_count_labels(check_not_empty(to_counts(data, maximum=classes - 1)), classes))

    def _read(self, data: TensorLike) -> Tensor:
        *batch, classes = self.concentration.shape
        return to_counts(data, batch, self.concentration.device, maximum=classes - 1)

    def _class_counts(self, data: Tensor) -> Tensor:
        return _count_labels(data, self.concentration.shape[-1])

    def _log_evidence(self, data: Tensor) -> Tensor:
        return log_dirichlet_categorical(self.concentration, self._class_counts(data))


@dataclass(frozen=True, eq=False, repr=False, init=False)
class DirichletMultinomial(_DirichletPair):
    """μ ~ Dir(α) and m ~ Multinomial(n, μ). Data are counts of K classes that sum to n, ``[N, ..., K]``.

        p(μ | m₁ … m_N) = Dir(α + Σm)

    Args:
        concentration: α, the prior number of trials with each outcome, positive, ``[..., K]``.
        trials: n, the same for every observation.

    Raises:
        InputError: if ``concentration`` is not positive and finite, or has no class dimension, or ``trials`` is not
            a positive integer.

    References:
        C. M. Bishop. Pattern Recognition and Machine Learning. 2006, section 2.2.1.

    Example:
        >>> from credo.conjugate import DirichletMultinomial
        >>> DirichletMultinomial([1, 1, 1], trials=5).update([[5, 0, 0], [2, 2, 1]])
        DirichletMultinomial(concentration=[8, 3, 2], trials=5)
    """

    trials: int

    def __init__(self, concentration: TensorLike, trials: int) -> None:
        trials = check_integer(trials, "trials", minimum=1)
        self._store(concentration=_to_concentration(concentration), trials=trials)

    @property
    def predictive(self) -> DirichletMultinomialDistribution:
        """The counts of n new trials."""
        return DirichletMultinomialDistribution(self.concentration, self.trials)

    @override
    def likelihood(self, parameters: Tensor) -> Multinomial:
        return Multinomial(self.trials, parameters)

    @staticmethod
    def maximum_likelihood(data: TensorLike, trials: int) -> Multinomial:
        """Estimate μ by the shares of the counts.

        Args:
            data: counts that sum to n, ``[N, ..., K]``.
            trials: n, the number of trials per observation.

        Returns:
            Multinomial(m | n, Σm / Nn).

        Raises:
            InputError: if there are no rows, or counts that do not sum to n.
        """
        trials = check_integer(trials, "trials", minimum=1)
        return Multinomial(trials, check_not_empty(_check_total(to_counts(data), trials)).mean(0))

    def _read(self, data: TensorLike) -> Tensor:
        return _check_total(to_counts(data, self.concentration.shape, self.concentration.device), self.trials)

    def _class_counts(self, data: Tensor) -> Tensor:
        return data.sum(0)

    def _log_evidence(self, data: Tensor) -> Tensor:
        return log_dirichlet_multinomial(self.concentration, data.sum(0)) + log_multinomial_given_sum(data)


class DirichletMultinomialDistribution(Distribution):
    """m ~ Multinomial(n, μ) with μ ~ Dir(α) integrated out.

    Args:
        concentration: α, ``[..., K]``.
        total_count: n.
        validate_args: whether torch checks arguments and values; ``None`` for torch's default.

    Example:
        >>> import torch
        >>> from credo.conjugate import DirichletMultinomialDistribution
        >>> DirichletMultinomialDistribution(torch.tensor([1.0, 3.0]), total_count=8).mean
        tensor([2., 6.])
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "concentration": constraints.independent(constraints.positive, 1)
    }

    def __init__(self, concentration: Tensor, total_count: int, validate_args: bool | None = None) -> None:
        self.concentration = concentration
        self.total_count = total_count
        super().__init__(concentration.shape[:-1], concentration.shape[-1:], validate_args=validate_args)

    @constraints.dependent_property(is_discrete=True, event_dim=1)
    def support(self) -> Constraint:
        """Counts that sum to n."""
        return constraints.multinomial(self.total_count)

    @property
    def mean(self) -> Tensor:
        """nα/Σα."""
        return self.total_count * self.concentration / self.concentration.sum(-1, keepdim=True)

    @property
    def variance(self) -> Tensor:
        """The variance of a multinomial with this mean, times (Σα + n)/(Σα + 1)."""
        total = self.concentration.sum(-1, keepdim=True)
        inflation = (total + self.total_count) / (total + 1.0)
        return self.mean * (1.0 - self.concentration / total) * inflation

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draw μ from the Dirichlet distribution, then the counts.

        Args:
            sample_shape: shape of independent draws.

        Returns:
            Draws, ``[*sample_shape, ..., K]``.
        """
        with torch.no_grad():
            probs = Dirichlet(self.concentration).sample(Size(sample_shape))
            counts: Tensor = Multinomial(self.total_count, probs).sample()
        return counts

    def log_prob(self, value: Tensor) -> Tensor:
        """log n!/∏m! + Σ [log Γ(α + m) − log Γ(α)] − [log Γ(Σα + n) − log Γ(Σα)].

        Args:
            value: m, ``[..., K]``.

        Returns:
            The log probability, ``[...]``; −∞ for counts that do not sum to n.
        """
        if self._validate_args:
            self._validate_sample(value)
        counts = value.to(self.concentration.dtype)
        log_prob = log_dirichlet_multinomial(self.concentration, counts)
        return log_prob.where(counts.sum(-1) == self.total_count, -math.inf)


def _to_concentration(values: TensorLike) -> Tensor:
    (concentration,) = to_tensors(concentration=values)
    if concentration.ndim == 0 or concentration.shape[-1] == 0:
        raise InputError(f"concentration must have one number per class, shape [..., K], got {concentration.tolist()}")
    check_all_positive(concentration=concentration)
    return concentration


def _count_labels(labels: Tensor, classes: int) -> Tensor:
    """The number of ``labels [N, ...]`` of each class, ``[..., K]``."""
    rows = labels.movedim(0, -1)
    return rows.new_zeros(*rows.shape[:-1], classes).scatter_add(-1, rows.long(), rows.new_ones(rows.shape))


def _check_total(counts: Tensor, trials: int) -> Tensor:
    wrong = counts.sum(-1) != trials
    if bool(wrong.any()):
        raise InputError(f"data must be counts that sum to {trials} trials, got {counts[wrong][0].tolist()}")
    return counts
