"""Recalibration: predictions corrected by what held-out rows show about their errors.

    calibrator = credo.calibration.VarianceScaling().fit(model.predict(x_held_out), y_held_out)
    p = calibrator(model.predict(x_new))

For classes: ``TemperatureScaling``. For real targets: ``VarianceScaling`` (one factor), ``QuantileRecalibration`` (also
the shape of the distribution), ``SplitConformal`` (intervals with a guarantee; also for counts). With models of
cross-validation folds instead of held-out rows: ``CrossConformalRegressor``, ``CrossConformalClassifier``.
"""

from credo.calibration.base import Calibrator
from credo.calibration.conformal import SplitConformal
from credo.calibration.cross_conformal import CrossConformalClassifier, CrossConformalRegressor
from credo.calibration.quantile import QuantileRecalibration
from credo.calibration.scaling import TemperatureScaling, VarianceScaling

__all__ = [
    "Calibrator",
    "CrossConformalClassifier",
    "CrossConformalRegressor",
    "QuantileRecalibration",
    "SplitConformal",
    "TemperatureScaling",
    "VarianceScaling",
]
