"""Was the belief worth holding? Scores of predictions against the targets that came.

Every function takes a :class:`~credo.Predictive` and its targets and returns a number; ``scores`` returns the standard
set for the kind of target, with confidence intervals and what each means.
"""

from credo.metrics.classification import Reliability, accuracy, brier, ece, reliability
from credo.metrics.detection import Detection, aupr, auroc, fpr95, misclassification
from credo.metrics.likelihood import nll
from credo.metrics.ranked_probability import crps
from credo.metrics.regression import (
    CalibrationCurve,
    calibration_curve,
    coverage,
    pit,
    quantile_calibration_error,
    r2,
    rmse,
    width,
)
from credo.metrics.selective import RiskCoverage, aurc, risk_coverage
from credo.metrics.summary import DESCRIPTIONS, Description, Score, scores

__all__ = [
    "scores",
    "Score",
    "Description",
    "DESCRIPTIONS",
    "nll",
    "rmse",
    "r2",
    "crps",
    "coverage",
    "width",
    "pit",
    "calibration_curve",
    "CalibrationCurve",
    "quantile_calibration_error",
    "accuracy",
    "brier",
    "ece",
    "reliability",
    "Reliability",
    "auroc",
    "aupr",
    "fpr95",
    "Detection",
    "misclassification",
    "risk_coverage",
    "RiskCoverage",
    "aurc",
]
