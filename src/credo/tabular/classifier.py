"""``credo.Classifier``: a class, and how sure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from torch import Tensor

from credo import calibration
from credo.likelihoods import Categorical, Likelihood
from credo.methods.base import Predictor
from credo.predictive import Predictive
from credo.tabular.base import TableEstimator
from credo.tabular.columns import TableRows
from credo.tabular.recipes import Plan
from credo.tabular.targets import ClassTarget


class Classifier(ClassifierMixin, TableEstimator):  # type: ignore[misc]
    """Classification of a table with probabilities that can be taken at their word.

    Columns of numbers, words and dates, missing values, constant columns and wide scales are taken as they come (see
    :class:`credo.tabular.Columns`).

        p = credo.Classifier().fit(X, y).predict_dist(X_new)
        p.mean, p.entropy, p.epistemic, p.aleatoric

    The arguments are those of :class:`credo.Regressor` without ``noise``, and ``calibrate`` is ``None`` or
    ``"temperature"``.

    Attributes:
        classes_: the labels, in the order of the columns of ``predict_proba``.
        columns_: how the table becomes features.
        model_: the trained method, a :class:`credo.Method`.
        calibrator_: the fitted calibrator, or ``None``.
        notes_: sentences about what was left out, converted and imputed.
        history_: one entry an epoch.
    """

    target_: ClassTarget
    _announced: Sequence[Any] | None = None

    @property
    def classes_(self) -> NDArray[Any]:
        """The labels, in ascending order."""
        return self.target_.classes

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class of every row, ``[N]``."""
        probabilities = self.predict_proba(X)
        return self.target_.decode(probabilities.argmax(axis=1))

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """The probability of every class, ``[N, K]``, in the order of ``classes_``."""
        probabilities: NDArray[np.float64] = self.predict_dist(X).mean.numpy()
        return probabilities

    @staticmethod
    def restore_target(config: Mapping[str, Any]) -> ClassTarget:
        """The target of a saved estimator."""
        return ClassTarget.from_config(config)

    def _learn_target(self, y: Any) -> ClassTarget:
        announced, self._announced = self._announced, None
        return ClassTarget.learn(y) if announced is None else ClassTarget("", np.unique(announced))

    def _announce_classes(self, classes: Sequence[Any] | None) -> None:
        self._announced = classes

    def _encode_target(self, y: Any) -> NDArray[Any]:
        return self.target_.encode(y)

    def _truth(self, targets: NDArray[Any]) -> Tensor:
        return torch.from_numpy(targets)

    def _outputs(self, plan: Plan) -> tuple[int, Likelihood]:
        return len(self.target_.classes), Categorical()

    def _in_units(self, predictive: Predictive, rows: TableRows, predictor: Predictor) -> Predictive:
        return predictive

    def _learn_extrapolation(self, rows: TableRows) -> None:
        """None: probabilities go on as the network does."""

    @property
    def _calibrators(self) -> dict[str, type[calibration.Calibrator]]:
        return {"temperature": calibration.TemperatureScaling}
