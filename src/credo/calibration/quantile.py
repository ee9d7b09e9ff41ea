"""Recalibration of quantiles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from credo._arguments import check_positive
from credo.calibration.base import Calibrator, check_continuous, check_one_output
from credo.calibration.scaling import best_factor, scale_spread
from credo.predictive import Predictive, RealPredictive, RecalibratedPredictive
from credo.predictive.recalibrated import LevelMap

_MARGIN = 1e-12  # minimum distance of a knot from 0 and 1; the resolution of float64 near 1 is 1e-16


class QuantileRecalibration(Calibrator):
    """The levels of predicted quantiles, corrected to the fraction of targets below them (Kuleshov et al. 2018).

    With F_i the predictive cdf of row i, the levels u_i = F_i(y_i) of held-out targets are uniform if the model is
    calibrated. Otherwise the distribution function R of the levels makes it so: R∘F_i is the calibrated cdf. From n of
    them,

        R(u_(k)) = k/(n + 1),    u_(k) the k-th smallest,

    because a new level has any rank among the n + 1 with equal probability. Isotonic regression of k/(n + 1) on the
    levels would keep all n points, and so a noisy density R'. Here R is linear between the knots of ⌈2 n^{1/3}⌉ pieces,
    the optimal rate of a histogram, with (0, 0) and (1, 1) at the ends. The ranks of the knots are spaced as
    (1 − cos πt)/2, closest near 0 and 1, where intervals end. So R is strictly increasing, extreme quantiles are
    finite, and beyond the outermost knots the density is a multiple of the model's. A piece costs about 1/(2n) nats of
    log likelihood, 0.03 in total for 200 rows: with fewer rows, :class:`~credo.calibration.VarianceScaling` is often
    the better choice.

    Before that, the spread is scaled by the factor of ``VarianceScaling``. If it were far too small, most u_i would be
    0 or 1 to rounding, and no map of levels could correct them.

    For real targets with one output per row, ``[B]`` or ``[B, 1]``. The result is a
    :class:`~credo.predictive.RecalibratedPredictive`.

    Args:
        factor: the factor of the spread; ``None``: ``fit`` finds it.
        predicted: the knots of R, from 0 to 1; ``None``: ``fit`` finds them.
        observed: the values of R at the knots, from 0 to 1; ``None``: ``fit`` finds them.

    Raises:
        InputError: if the factor is not positive or the levels are not strictly increasing from 0 to 1.

    Example:
        >>> calibrator = credo.calibration.QuantileRecalibration().fit(model.predict(x_held_out), y_held_out)
        >>> calibrator(model.predict(x_new)).quantile(0.9)

    Reference: V. Kuleshov, N. Fenner, S. Ermon. Accurate uncertainties for deep learning using calibrated regression.
    ICML 2018.
    """

    min_rows: ClassVar[int] = 50

    def __init__(
        self,
        factor: float | None = None,
        predicted: Sequence[float] | None = None,
        observed: Sequence[float] | None = None,
    ) -> None:
        self.factor = None if factor is None else check_positive(factor, "factor")
        known = predicted is not None or observed is not None
        self.levels = LevelMap(predicted or (), observed or ()) if known else None

    @override
    def get_config(self) -> dict[str, object]:
        return {
            "name": self._name,
            "factor": self.factor,
            "predicted": None if self.levels is None else list(self.levels.predicted),
            "observed": None if self.levels is None else list(self.levels.observed),
        }

    def _check(self, predictive: Predictive) -> None:
        check_one_output(check_continuous(predictive, self._name), self._name)

    def _learn(self, predictive: RealPredictive, y: Tensor) -> None:
        self.factor = best_factor(predictive, y)
        cdf = scale_spread(predictive.double(), self.factor).cdf(y)
        self.levels = _fit_level_map(cdf.flatten().cpu().numpy())

    def _apply(self, predictive: RealPredictive) -> RecalibratedPredictive:
        base = scale_spread(predictive, self._learned(self.factor))
        return RecalibratedPredictive(base.components, base.weights, levels=self._learned(self.levels))


def _fit_level_map(levels: NDArray[np.float64]) -> LevelMap:
    """Return R, the distribution function of the predictive levels ``[n]`` of held-out targets; see the class."""
    from scipy.stats import rankdata

    n = len(levels)
    inside = levels.clip(_MARGIN, 1 - _MARGIN)
    observed_at = rankdata(inside) / (n + 1)  # equal levels share their mean rank, as in isotonic regression
    pieces = math.ceil(2 * n ** (1 / 3))
    ranks = (n + 1) * (1 - np.cos(np.pi * np.arange(1, pieces) / pieces)) / 2
    chosen = np.argsort(inside)[ranks.round().astype(int).clip(1, n) - 1]
    knots = sorted({(inside[i], observed_at[i]) for i in chosen})
    predicted, observed = zip((0.0, 0.0), *knots, (1.0, 1.0), strict=True)
    return LevelMap(predicted, observed)
