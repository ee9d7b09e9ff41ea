"""Recalibration: what held-out rows teach about how far a prediction can be trusted.

    calibrator = credo.calibration.VarianceScaling().fit(model.predict(x_held_out), y_held_out)
    p = calibrator(model.predict(x_new))

Classes: ``TemperatureScaling``. Real targets: ``VarianceScaling`` (one factor), ``QuantileRecalibration`` (the shape of
the distribution too), ``SplitConformal`` (intervals with a guarantee; also for counts).
"""

from credo.calibration.base import Calibrator
from credo.calibration.conformal import SplitConformal
from credo.calibration.quantile import QuantileRecalibration
from credo.calibration.temperature import TemperatureScaling
from credo.calibration.variance import VarianceScaling

__all__ = ["Calibrator", "QuantileRecalibration", "SplitConformal", "TemperatureScaling", "VarianceScaling"]
