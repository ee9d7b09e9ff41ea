"""Scaling of the predictive spread."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from torch import Tensor

from credo._arguments import check_positive
from credo.calibration._search import minimize, negative_log_likelihood
from credo.calibration.base import Calibrator, check_continuous
from credo.errors import InputError
from credo.predictive import Predictive
from credo.predictive.real import RealPredictive

LARGEST = 1e4


class VarianceScaling(Calibrator):
    """One factor for all predictive standard deviations: temperature scaling for real targets (Levi et al. 2022).

    Every row's distribution is stretched about its own mean, y ↦ m̄ + s(y − m̄): the means of the draws and their noise
    alike. The mean stays; the variance, the aleatoric and the epistemic one, is s² times what it was; the mutual
    information stays. ``fit`` finds the s between 1e-4 and 1e4 that minimizes the negative log likelihood of the
    held-out targets under the mixture. For a single Gaussian that is s² = mean of (y − m)²/σ², known to within a
    factor of 1 ± 1/√(2n).

    Only for components with a location and a scale (Gaussian, Student-t); any number of outputs, all with the same s.

    Args:
        factor: s, where it is known; else ``fit`` finds it.

    Reference: D. Levi, L. Gispan, N. Giladi, E. Fetaya. Evaluating and calibrating uncertainty prediction in regression
    tasks. Sensors 22(15), 2022 (arXiv 2019).
    """

    least_rows: ClassVar[int] = 10

    def __init__(self, factor: float | None = None) -> None:
        self.factor = None if factor is None else check_positive(factor, "factor")

    def get_config(self) -> dict[str, object]:
        """``{"name", "factor"}``."""
        return {"name": self._name, "factor": self.factor}

    def _check(self, predictive: Predictive) -> None:
        check_continuous(predictive, self._name)

    def _learn(self, predictive: RealPredictive, y: Tensor) -> None:
        self.factor = best_factor(predictive, y)

    def _apply(self, predictive: RealPredictive) -> RealPredictive:
        return scaled(predictive, self._learned(self.factor))


def best_factor(predictive: RealPredictive, y: Tensor) -> float:
    """The factor of the spread under which the targets are most probable."""
    factor = minimize(lambda s: negative_log_likelihood(scaled(predictive, s), y), LARGEST)
    if not 1.01 / LARGEST < factor < LARGEST / 1.01:
        more = "less" if factor < 1 else "more"
        raise InputError(
            f"to fit the held-out targets, the predictive std would have to be {more} than {factor:.2g} times what it "
            "is: check that y is in the units of the prediction, and that these are not the training rows."
        )
    return factor


def scaled(predictive: RealPredictive, factor: float) -> RealPredictive:
    """The predictions with every row stretched about its own mean."""
    stretched = predictive.components.rescaled(factor, (1.0 - factor) * predictive.mean)
    return replace(predictive, components=stretched)
