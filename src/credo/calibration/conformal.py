"""Split conformal intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from torch import Tensor
from typing_extensions import override

from credo.calibration.base import Calibrator, check_one_output, check_real
from credo.errors import InputError
from credo.predictive import ConformalPredictive, Predictive, RealPredictive


class SplitConformal(Calibrator):
    """Split conformal intervals with normalized scores (Vovk et al. 2005; Lei et al. 2018).

    The score of a row is |y − mean|/std. With n held-out scores, the interval of any level is

        mean ± s_(k) · std,    k = ⌈(n + 1) · level⌉,    s_(k) the k-th smallest score.

    If held-out and new rows are exchangeable (for example, independent samples of one population), a new score has
    every rank among the n + 1 with equal probability. So the interval contains its target with probability at least
    ``level`` and, if scores do not tie, at most ``level + 1/(n + 1)``. This holds for any model, on average over the
    rows and over the choice of held-out rows; not for every kind of row, and not under distribution shift. Scores of
    discrete targets tie, and then the probability can be far above ``level``, but not below: scores and ends are
    computed in float64, and the ends rounded outwards, so that no target is lost to rounding.

    A level needs n ≥ level/(1 − level) rows, 19 for 0.95; with fewer, ``interval`` raises ``InputError``.

    The interval is centered at the mean, not at the median: the guarantee holds for either, and ``std`` is the
    deviation from the mean. The variance must be finite. One output per row, ``[B]`` or ``[B, 1]``; real targets or
    counts. The result is a :class:`~credo.predictive.ConformalPredictive`; everything except its ``interval`` is that
    of the model.

    Args:
        scores: the scores of held-out rows, if they are known; ``None``: ``fit`` computes them.

    Raises:
        InputError: if the scores are negative or not finite.

    Example:
        >>> calibrator = credo.calibration.SplitConformal().fit(model.predict(x_held_out), y_held_out)
        >>> calibrator(model.predict(x_new)).interval(0.9)

    References:
        V. Vovk, A. Gammerman, G. Shafer. Algorithmic learning in a random world. Springer 2005.
        J. Lei, M. G'Sell, A. Rinaldo, R. J. Tibshirani, L. Wasserman. Distribution-free predictive inference for
        regression. Journal of the American Statistical Association 113(523), 2018.
    """

    min_rows: ClassVar[int] = 19

    def __init__(self, scores: Sequence[float] | None = None) -> None:
        self.scores = None if scores is None else _check_scores(scores)

    @override
    def get_config(self) -> dict[str, object]:
        return {"name": self._name, "scores": None if self.scores is None else list(self.scores)}

    def _check(self, predictive: Predictive) -> None:
        real = check_real(predictive, self._name)
        check_one_output(real, self._name)
        if bool(real.variance.isinf().any()):
            raise InputError(
                f"{self._name} measures errors in standard deviations, which are infinite here (a Student-t with "
                "at most 2 degrees of freedom): use QuantileRecalibration."
            )

    def _learn(self, predictive: RealPredictive, y: Tensor) -> None:
        p = predictive.double()
        self.scores = _check_scores(((y - p.mean).abs() / p.std).flatten().tolist())

    def _apply(self, predictive: RealPredictive) -> ConformalPredictive:
        return ConformalPredictive(predictive.components, predictive.weights, scores=self._learned(self.scores))


def _check_scores(scores: Sequence[float]) -> tuple[float, ...]:
    values = np.sort(np.asarray(scores, dtype=np.float64))
    if values.ndim != 1 or not np.isfinite(values).all() or (values < 0).any():
        raise InputError("scores must be a list of finite numbers of at least 0.")
    return tuple(values.tolist())
