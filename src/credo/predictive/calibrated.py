"""Predictions corrected by a calibrator: their common base, and predictions with conformal intervals."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor
from typing_extensions import override

from credo._arguments import check_fraction
from credo.errors import InputError
from credo.predictive.base import Interval, Predictive
from credo.predictive.components import RealComponents
from credo.predictive.real import RealPredictive

_OUTWARDS = 4.0  # units in the last place by which ends are rounded outwards; a cast to the dtype takes half of one


@dataclass(frozen=True, eq=False, repr=False)
class CalibratedPredictive(Predictive):
    """A prediction of real or count-valued targets to which a calibrator has applied one correction for all rows.

    ``components``, ``weights`` and ``draws`` are those of the uncorrected prediction ``base``. Rows can be selected and
    concatenated. A mixture of corrected predictions is not the correction of their mixture, so it raises
    ``InputError``.

    Args:
        components: those of the uncorrected prediction.
        weights: of the draws, ``[S]``; ``None`` is uniform.

    Example:
        >>> calibrator = credo.calibration.SplitConformal().fit(model.predict(x_held_out), y_held_out)
        >>> p = calibrator(model.predict(x))
        >>> p.interval(0.9), p.base.interval(0.9)
    """

    components: RealComponents

    @property
    @abstractmethod
    def adjustment(self) -> object:
        """The correction, comparable by ``==``."""

    @cached_property
    def base(self) -> RealPredictive:
        """The uncorrected prediction."""
        return RealPredictive(self.components, self.weights)

    @cached_property
    def _base_in_float64(self) -> RealPredictive:
        return self.base.double()

    @property
    @override
    def mutual_information(self) -> Tensor:
        """I[y; f] of ``base``, ``[B, ...]``: a strictly increasing map of the targets does not change it."""
        return self.base.mutual_information

    @property
    @override
    def mode(self) -> Tensor:
        """Raises ``UnsupportedError``: only for classes."""
        return self.base.mode

    def __repr__(self) -> str:
        return f"{type(self).__name__}(draws={self.n_draws}, rows={len(self)}, {self.components.name})"


@dataclass(frozen=True, eq=False, repr=False)
class ConformalPredictive(CalibratedPredictive):
    """A prediction with conformal intervals; everything except ``interval`` is that of ``base``.

        interval(level) = mean ± s_(k) · std,    k = ⌈(n + 1) · level⌉,

    s_(k) the k-th smallest of the n scores |y − mean|/std of held-out rows; see
    :class:`~credo.calibration.SplitConformal`. Only ``interval`` has the guarantee; ``quantile`` and ``cdf`` are those
    of the model and can differ from it.

    Targets whose score ties with s_(k) are inside the interval; for discrete targets these can be most of them.
    Therefore the ends are computed in float64 and rounded outwards by four units in the last place of the prediction,
    which also covers the changes of a network's output with the batch size.

    Args:
        components: those of the uncorrected prediction.
        weights: of the draws, ``[S]``; ``None`` is uniform.
        scores: the scores of held-out rows, ascending.

    Example:
        >>> calibrator = credo.calibration.SplitConformal().fit(model.predict(x_held_out), y_held_out)
        >>> calibrator(model.predict(x)).interval(0.9)
    """

    scores: tuple[float, ...] = field(kw_only=True)

    @property
    @override
    def adjustment(self) -> tuple[float, ...]:
        """The scores, ascending."""
        return self.scores

    @property
    @override
    def variance(self) -> Tensor:
        """The variance of ``base``, ``[B, ...]``."""
        return self.base.variance

    @property
    @override
    def aleatoric(self) -> Tensor:
        """The aleatoric part of ``base``, ``[B, ...]``."""
        return self.base.aleatoric

    @property
    @override
    def epistemic(self) -> Tensor:
        """The epistemic part of ``base``, ``[B, ...]``."""
        return self.base.epistemic

    @property
    @override
    def entropy(self) -> Tensor:
        """The entropy of ``base``, ``[B, ...]``."""
        return self.base.entropy

    @override
    def cdf(self, y: Tensor) -> Tensor:
        return self.base.cdf(y)

    @override
    def quantile(self, q: float | Sequence[float] | Tensor) -> Tensor:
        return self.base.quantile(q)

    @override
    def interval(self, level: float = 0.95) -> Interval:
        """Return an interval that contains a new target with probability at least ``level``, for any model.

        The probability is at most 1/(n + 1) higher if no scores tie, as for real targets, and can be higher for
        discrete ones.

        Args:
            level: the probability, strictly between 0 and 1.

        Returns:
            The ends, ``[B, ...]`` each.

        Raises:
            InputError: if ``level`` is not between 0 and 1, or needs more held-out rows than there are scores.
        """
        level = check_fraction(level, "level")
        mean, std = self._base_in_float64.mean, self._base_in_float64.std
        half_width = self._score(level) * std
        half_width = half_width + _OUTWARDS * torch.finfo(self.draws.dtype).eps * (mean.abs() + half_width)
        lower, upper = (end.to(self.draws.dtype) for end in (mean - half_width, mean + half_width))
        first, last = self.components.support
        return Interval(lower.clamp(first, last), upper.clamp(first, last))

    def _score(self, level: float) -> float:
        n = len(self.scores)
        rank = _ceil((n + 1) * level)
        if rank > n:
            raise InputError(
                f"an interval of level {level:g} needs at least {_ceil(level / (1 - level))} held-out rows, but "
                f"SplitConformal was fitted to {n}: use a level of at most {n / (n + 1):.3g}, or hold out more rows."
            )
        return self.scores[rank - 1]


def _ceil(x: float) -> int:
    """⌈x⌉, ignoring rounding errors: 100 · 0.55 is 55."""
    return math.ceil(round(x, 9))
