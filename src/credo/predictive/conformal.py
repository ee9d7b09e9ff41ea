"""Predictions whose intervals come from the residuals of held-out rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from credo.errors import InputError
from credo.predictive.adjusted import AdjustedPredictive
from credo.predictive.base import Interval
from credo.predictive.real import RealPredictive, check_level

_OUTWARDS = 4.0  # units in the last place by which ends are rounded outwards; a cast to the dtype takes half of one


@dataclass(frozen=True, eq=False, repr=False)
class ConformalPredictive(AdjustedPredictive):
    """A prediction with conformal intervals: all but ``interval`` is that of ``base``.

        interval(level) = mean ± s_(k) · std,    k = ⌈(n + 1) · level⌉,

    s_(k) the k-th smallest of the n scores |y − mean|/std of held-out rows; see
    :class:`~credo.calibration.SplitConformal`. Only ``interval`` carries the guarantee; ``quantile`` and ``cdf`` are
    the model's own, and need not agree with it.

    A target whose score ties with s_(k) belongs inside, and where targets are discrete that may be most of them. So the
    ends are worked out in float64 and rounded outwards, by four units in the last place of the prediction, which also
    covers what a network's output changes with the size of its batch.
    """

    scores: tuple[float, ...] = field(kw_only=True)

    @property
    def adjustment(self) -> tuple[float, ...]:
        """The scores, in rising order."""
        return self.scores

    @property
    def variance(self) -> Tensor:
        """That of ``base``, ``[B, ...]``."""
        return self.base.variance

    @property
    def aleatoric(self) -> Tensor:
        """That of ``base``, ``[B, ...]``."""
        return self.base.aleatoric

    @property
    def epistemic(self) -> Tensor:
        """That of ``base``, ``[B, ...]``."""
        return self.base.epistemic

    @property
    def entropy(self) -> Tensor:
        """That of ``base``, ``[B, ...]``."""
        return self.base.entropy

    def cdf(self, y: Tensor) -> Tensor:
        """That of ``base``, ``[B, ...]``."""
        return self.base.cdf(y)

    def quantile(self, q: float | Sequence[float] | Tensor) -> Tensor:
        """That of ``base``, ``[B, ...]`` or ``[K, B, ...]``."""
        return self.base.quantile(q)

    def interval(self, level: float = 0.95) -> Interval:
        """Holds a new target with probability ``level`` or more, whatever the model is worth.

        At most 1/(n + 1) more where no scores tie, as those of real targets do not; more where targets are discrete.
        """
        check_level(level)
        mean, std = self._precise.mean, self._precise.std
        half_width = self._score(level) * std
        half_width = half_width + _OUTWARDS * torch.finfo(self.draws.dtype).eps * (mean.abs() + half_width)
        lower, upper = (end.to(self.draws.dtype) for end in (mean - half_width, mean + half_width))
        return Interval(lower.clamp(min=0) if self.components.discrete else lower, upper)

    @cached_property
    def _precise(self) -> RealPredictive:
        return self.base.double()

    def _score(self, level: float) -> float:
        n = len(self.scores)
        rank = _ceil((n + 1) * level)
        if rank > n:
            raise InputError(
                f"an interval of level {level:g} needs {_ceil(level / (1 - level))} held-out rows or more, and "
                f"SplitConformal was fitted to {n}: ask for at most {n / (n + 1):.3g}, or hold out more rows."
            )
        return self.scores[rank - 1]


def _ceil(x: float) -> int:
    """⌈x⌉, where rounding does not count: 100 · 0.55 is 55."""
    return math.ceil(round(x, 9))
