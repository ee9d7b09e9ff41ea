"""Intervals with a guarantee, whatever the model is worth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from torch import Tensor

from credo.calibration.base import Calibrator, check_one_output, check_real
from credo.errors import InputError
from credo.predictive import Predictive
from credo.predictive.conformal import ConformalPredictive
from credo.predictive.real import RealPredictive


class SplitConformal(Calibrator):
    """Split conformal intervals with normalized scores (Vovk et al. 2005; Lei et al. 2018).

    The score of a row is |y − mean|/std. With n held-out scores, the interval of any level is

        mean ± s_(k) · std,    k = ⌈(n + 1) · level⌉,    s_(k) the k-th smallest score.

    If held-out and new rows are exchangeable (say, independent draws from one population), a new score is as likely
    to have any rank among the n + 1, so the interval holds its target with probability at least ``level``, and, where
    scores do not tie, at most ``level + 1/(n + 1)``. That is true of any model, and on average over the rows and over
    the choice of held-out rows; it is not promised for every kind of row, and not where the data drift. Scores of
    discrete targets tie, and then the probability may be far above ``level``, never below: scores and ends are worked
    out in float64, and the ends rounded outwards, so that no target is lost to rounding.

    A level needs n ≥ level/(1 − level) rows, 19 for 0.95; ``interval`` says so where there are fewer.

    The interval is centered at the mean, not at the median: the guarantee holds for either, and the mean is the
    prediction that is shown, is known without a search and is what ``std`` is taken about. The variance must be finite.
    One output per row, ``[B]`` or ``[B, 1]``; real targets or counts. The result is a
    :class:`~credo.predictive.conformal.ConformalPredictive`, of which all but ``interval`` is the model's.

    Args:
        scores: the scores of held-out rows, where they are known; else ``fit`` finds them.

    References:
        V. Vovk, A. Gammerman, G. Shafer. Algorithmic learning in a random world. Springer 2005.
        J. Lei, M. G'Sell, A. Rinaldo, R. J. Tibshirani, L. Wasserman. Distribution-free predictive inference for
        regression. Journal of the American Statistical Association 113(523), 2018.
    """

    least_rows: ClassVar[int] = 19

    def __init__(self, scores: Sequence[float] | None = None) -> None:
        self.scores = None if scores is None else _checked(scores)

    def get_config(self) -> dict[str, object]:
        """``{"name", "scores"}``."""
        return {"name": self._name, "scores": None if self.scores is None else list(self.scores)}

    def _check(self, predictive: Predictive) -> None:
        real = check_real(predictive, self._name)
        check_one_output(real, self._name)
        if bool(real.variance.isinf().any()):
            raise InputError(
                f"{self._name} measures errors in standard deviations, which are infinite here (a Student-t with "
                "2 degrees of freedom or fewer): use QuantileRecalibration."
            )

    def _learn(self, predictive: RealPredictive, y: Tensor) -> None:
        p = predictive.double()
        self.scores = _checked(((y - p.mean).abs() / p.std).flatten().tolist())

    def _apply(self, predictive: RealPredictive) -> ConformalPredictive:
        return ConformalPredictive(predictive.components, predictive.weights, scores=self._learned(self.scores))


def _checked(scores: Sequence[float]) -> tuple[float, ...]:
    values = np.sort(np.asarray(scores, dtype=np.float64))
    if values.ndim != 1 or not np.isfinite(values).all() or (values < 0).any():
        raise InputError("scores must be a list of finite numbers of at least 0.")
    return tuple(values.tolist())
