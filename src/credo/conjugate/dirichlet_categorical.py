"""Classes: how often each occurs, from the labels seen."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from torch import Tensor
from torch.distributions import Categorical, Dirichlet

from credo.conjugate._arguments import (
    Numbers,
    numbers,
    require_concentration,
    require_rows,
    require_whole,
    whole_observations,
)
from credo.conjugate._special import log_sequence_probability
from credo.conjugate.base import ConjugatePair


@dataclass(frozen=True, eq=False, repr=False, init=False)
class DirichletCategorical(ConjugatePair):
    """μ ~ Dir(α) and x ~ Categorical(μ). Data are labels from 0 to K − 1, ``[N, ...]``.

        p(μ | x₁ … x_N) = Dir(α + m),    p(x = k) = αₖ / Σα

    with the number mₖ of labels k.

    Attributes:
        concentration: α: labels of each class seen, or believed to have been seen, ``[..., K]``.

    References:
        C. M. Bishop. Pattern Recognition and Machine Learning. 2006, section 2.2.1.
    """

    concentration: Tensor

    def __init__(self, concentration: Numbers) -> None:
        (concentration,) = numbers(concentration=concentration)
        require_concentration(concentration)
        self._store(concentration=concentration)

    @property
    def posterior(self) -> Dirichlet:
        """Dir(μ | α)."""
        return Dirichlet(self.concentration)

    @property
    def predictive(self) -> Categorical:
        """Categorical(x | α / Σα)."""
        return Categorical(logits=self.concentration.log())

    def likelihood(self, parameters: Tensor) -> Categorical:
        """Categorical(x | μ)."""
        return Categorical(parameters)

    @staticmethod
    def maximum_likelihood(data: Numbers, classes: int) -> Categorical:
        """Categorical(x | m / N) (Bishop 2.33) of ``data [N, ...]``, labels from 0 to ``classes`` − 1."""
        require_whole(classes=classes)
        return Categorical(_counts(require_rows(whole_observations(data, highest=classes - 1)), classes))

    def _read(self, data: Numbers) -> Tensor:
        *batch, classes = self.concentration.shape
        return whole_observations(data, batch, self.concentration.device, highest=classes - 1)

    def _update(self, data: Tensor) -> Self:
        return replace(self, concentration=self.concentration + _counts(data, self.concentration.shape[-1]))

    def _log_evidence(self, data: Tensor) -> Tensor:
        return log_sequence_probability(self.concentration, _counts(data, self.concentration.shape[-1]))


def _counts(labels: Tensor, classes: int) -> Tensor:
    """How many of ``labels [N, ...]`` are of each class, ``[..., K]``."""
    rows = labels.movedim(0, -1)
    return rows.new_zeros(*rows.shape[:-1], classes).scatter_add(-1, rows.long(), rows.new_ones(rows.shape))
