"""Posterior predictive distributions: what every model of credo returns from ``predict``."""

from credo.predictive.base import Interval, Predictive
from credo.predictive.calibrated import CalibratedPredictive, ConformalPredictive
from credo.predictive.classes import ClassPredictive
from credo.predictive.real import ExactGaussianPredictive, RealPredictive
from credo.predictive.recalibrated import RecalibratedPredictive

__all__ = [
    "CalibratedPredictive",
    "ClassPredictive",
    "ConformalPredictive",
    "ExactGaussianPredictive",
    "Interval",
    "Predictive",
    "RealPredictive",
    "RecalibratedPredictive",
]
