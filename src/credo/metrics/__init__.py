"""Metrics for probabilistic predictions.

Every function takes a :class:`~credo.Predictive` and its targets and returns a number; ``scores`` returns the standard
set for the kind of target, with confidence intervals and descriptions.
"""

from credo.metrics.classification import Reliability, accuracy, brier, ece, reliability
from credo.metrics.ranking import (
    Detection,
    RiskCoverage,
    aupr,
    aurc,
    auroc,
    ause,
    fpr95,
    misclassification,
    risk_coverage,
)
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
from credo.metrics.scoring_rules import crps, nll
from credo.metrics.segmentation import (
    SegmentationScores,
    accuracy_by_kept,
    class_accuracy,
    mean_iou,
    segmentation_scores,
)
from credo.metrics.summary import DESCRIPTIONS, Score, ScoreDescription, scores

__all__ = [
    "scores",
    "Score",
    "ScoreDescription",
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
    "ause",
    "segmentation_scores",
    "SegmentationScores",
    "mean_iou",
    "class_accuracy",
    "accuracy_by_kept",
]
