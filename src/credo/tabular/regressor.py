"""``credo.Regressor``: a number, and how far it may be off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from torch import Tensor

from credo import calibration
from credo.errors import InputError, unknown_name
from credo.likelihoods import Gaussian, Likelihood
from credo.methods.base import Predictor
from credo.predictive import Predictive, RealPredictive
from credo.predictive.components import RealComponents
from credo.predictive.location_scale import GaussianComponents
from credo.tabular.base import TableEstimator, predict_features
from credo.tabular.columns import TableRows
from credo.tabular.extrapolation import Extrapolation, split_noise
from credo.tabular.recipes import Plan
from credo.tabular.targets import RegressionTarget

NOISES = ("auto", "heteroscedastic", "learned")


class Regressor(RegressorMixin, TableEstimator):  # type: ignore[misc]
    """Regression on a table with error bars: a Bayesian network whose noise may differ from row to row.

    Columns of numbers, words and dates, missing values, constant columns and wide scales are taken as they come (see
    :class:`credo.tabular.Columns`). Targets are standardized inside; every answer is in their own units.

        p = credo.Regressor().fit(X, y).predict_dist(X_new)
        p.mean, p.interval(0.95), p.epistemic, p.aleatoric

    Args:
        method: ``"bbb"`` (Bayes by Backprop), ``"mc_dropout"``, ``"ensemble"`` (five networks) or ``"map"`` (one
            network, no epistemic part).
        noise: ``"heteroscedastic"``, a noise of its own for every row; ``"learned"``, one for all; or ``"auto"``, the
            former from 200 rows on, because fewer cannot tell how the noise varies.
        hidden: widths of the hidden layers; by default (50, 50), and (10,) for fewer than 200 rows.
        activation: between them, such as ``"relu"`` or ``"tanh"``.
        epochs: passes over the table; by default by its size (:meth:`credo.tabular.recipes.Plan.make`).
        batch_size: rows a step; by default by the size of the table.
        lr: learning rate at the start; it decays to 0.
        samples: posterior draws a prediction is a mixture of.
        calibrate: ``None``; ``"variance"``, one factor on all error bars; ``"quantile"``, an isotonic correction of
            the quantiles; or ``"conformal"``, intervals that are right whatever the model. Learned from rows that are
            held out of training.
        calibration_fraction: how many of the rows that is.
        method_options: further arguments of the method, such as ``{"temperature": 2.0}`` or ``{"members": 10}``.
        device: where to train and predict, such as ``"cuda"``.
        progress: show a bar; ``None``: where there is a terminal.
        random_state: makes everything reproducible.

    Attributes:
        columns_: how the table becomes features.
        target_: how the target is standardized.
        model_: the trained method, a :class:`credo.Method`.
        calibrator_: the fitted calibrator, or ``None``.
        notes_: sentences about what was left out, converted and imputed.
        history_: one entry an epoch.
    """

    target_: RegressionTarget

    def __init__(
        self,
        method: str = "bbb",
        *,
        noise: str = "auto",
        hidden: Sequence[int] | None = None,
        activation: str = "relu",
        epochs: int | None = None,
        batch_size: int | None = None,
        lr: float = 0.01,
        samples: int = 100,
        calibrate: str | None = None,
        calibration_fraction: float = 0.2,
        method_options: Mapping[str, Any] | None = None,
        device: str | None = None,
        progress: bool | None = False,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        super().__init__(
            method,
            hidden=hidden,
            activation=activation,
            epochs=epochs,
            batch_size=batch_size,
            lr=lr,
            samples=samples,
            calibrate=calibrate,
            calibration_fraction=calibration_fraction,
            method_options=method_options,
            device=device,
            progress=progress,
            random_state=random_state,
        )
        self.noise = noise

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The mean of every row, ``[N]``; with ``return_std=True``, as scikit-learn has it, a pair (mean, std)."""
        predictive = self.predict_dist(X)
        mean: NDArray[np.float64] = predictive.mean.numpy()
        return (mean, predictive.std.numpy()) if return_std else mean

    @staticmethod
    def restore_target(config: Mapping[str, Any]) -> RegressionTarget:
        """The target of a saved estimator."""
        return RegressionTarget.from_config(config)

    def _learn_target(self, y: Any) -> RegressionTarget:
        return RegressionTarget.learn(y)

    def _encode_target(self, y: Any) -> NDArray[Any]:
        z = self.target_.standardize(y)[:, None]
        if self.target_.constant and z.any():
            raise InputError(
                f"every target so far was {self.target_.mean:.6g}, so the scale of the target is not known: call fit "
                "with rows whose targets differ"
            )
        return z

    def _truth(self, targets: NDArray[Any]) -> Tensor:
        return torch.from_numpy(self.target_.unstandardize(targets[:, 0].astype(np.float64)))

    def _outputs(self, plan: Plan) -> tuple[int, Likelihood]:
        if self.noise not in NOISES:
            raise unknown_name("noise", self.noise, NOISES)
        varies = not plan.has_few_rows if self.noise == "auto" else self.noise == "heteroscedastic"
        return (2, Gaussian(noise="heteroscedastic")) if varies else (1, Gaussian(noise="learned"))

    def _in_units(self, predictive: Predictive, rows: TableRows, predictor: Predictor) -> Predictive:
        assert isinstance(predictive, RealPredictive)
        components = predictive.components.map(lambda t: t.squeeze(-1))
        if self.target_.constant:  # all draws are alike
            same = components.map(lambda t: torch.zeros_like(t[:1]))
            return RealPredictive(same.rescaled(self.target_.resolution, self.target_.mean))
        if isinstance(components, GaussianComponents):
            components = self._extrapolate(components, predictive.weights, rows, predictor)
        return replace(predictive, components=components.rescaled(self.target_.scale, self.target_.mean))

    def _extrapolate(
        self, components: GaussianComponents, weights: Tensor | None, rows: TableRows, predictor: Predictor
    ) -> RealComponents:
        """Outside the training range the noise is that at its edge, and the uncertainty about the mean grows."""
        assert self.extrapolation_ is not None
        nearest = self.columns_.nearest(rows)
        distance = self.columns_.scaling.distance(rows.values, nearest.values)
        outside: NDArray[np.bool] = np.any(distance, axis=1)
        if outside.any():
            at_edge = predict_features(predictor, self.columns_.features(nearest.take(outside))).components
            assert isinstance(at_edge, GaussianComponents)
            log_variance = components.log_variance.clone()
            log_variance[:, torch.from_numpy(outside)] = at_edge.log_variance.squeeze(-1)
            components = replace(components, log_variance=log_variance)
        return split_noise(components, weights, self.extrapolation_.variance(distance))

    def _learn_extrapolation(self, rows: TableRows) -> Extrapolation:
        mean_weights = self.model_._predictor(0, None)
        return Extrapolation.learn(self.columns_, rows, lambda features: predict_features(mean_weights, features))

    @property
    def _calibrators(self) -> dict[str, type[calibration.Calibrator]]:
        return {
            "variance": calibration.VarianceScaling,
            "quantile": calibration.QuantileRecalibration,
            "conformal": calibration.SplitConformal,
        }
