"""``credo.Regressor``: a Bayesian neural network for tables with a quantity as target; and the other estimator."""

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
from credo._arguments import check_option
from credo.errors import InputError
from credo.likelihoods import Likelihood
from credo.methods.base import Predictor
from credo.methods.sampler import Sampler
from credo.predictive import Predictive, RealPredictive
from credo.predictive.components import RealComponents
from credo.predictive.location_scale import GaussianComponents
from credo.seeding import derive
from credo.tabular.base import SCREEN, TableEstimator
from credo.tabular.classifier import Classifier
from credo.tabular.columns import TableRows
from credo.tabular.dialects import Dialect
from credo.tabular.extrapolation import Extrapolation, split_noise
from credo.tabular.likelihoods import (
    MIN_STEPS,
    ShortTraining,
    TargetFamily,
    candidates,
    check_likelihood,
    choose_family,
)
from credo.tabular.methods import TrainingPlan, hidden_layers
from credo.tabular.predictions import predict_features
from credo.tabular.splitting import RowDetails
from credo.tabular.targets import RegressionTarget

__all__ = ["NOISES", "Classifier", "Regressor"]

NOISES = ("auto", "heteroscedastic", "learned")
_DRAWS_FOR_SLOPES = 20


class Regressor(RegressorMixin, TableEstimator):  # type: ignore[misc]
    """Regression with error bars: a Bayesian neural network whose noise may vary from row to row.

    Columns of numbers, labels and dates, missing values, constant columns and different scales are handled (see
    :class:`credo.tabular.Columns`). The target is standardized internally; predictions are in its own units.

    Args:
        method: ``"auto"``: chosen by the size of the table, see ``notes_``; ``"hmc"`` (Hamiltonian Monte Carlo),
            ``"bbb"`` (Bayes by Backprop), ``"mc_dropout"``, ``"ensemble"`` (five networks), ``"map"`` (one network, no
            epistemic uncertainty), or the name of a method added by :func:`credo.tabular.register`.
        likelihood: the distribution of the target: ``"gaussian"``; ``"student_t"`` for outliers; ``"log_normal"`` for
            positive numbers; ``"poisson"`` and ``"negative_binomial"`` for counts; ``"beta"`` for shares from 0 to 1,
            both included (see :class:`credo.Beta`). ``"auto"``: Gaussian, unless another one that the values allow has
            a clearly higher likelihood on training rows left out of short trainings, which take a few percent of the
            time of ``fit``; with fewer than 1,000 steps of training they are left out. ``notes_`` says which and why.
        noise: ``"heteroscedastic"``: the noise depends on the row; ``"learned"``: it is the same for all rows;
            ``"auto"``: the former if there are at least 200 rows.
        hidden: widths of the hidden layers; ``None``: (50, 50), or (10,) for fewer than 200 rows.
        activation: the activation function between them, such as ``"relu"`` or ``"tanh"``.
        epochs: passes over the table; ``None``: chosen by the number of rows, 2,000 to 16,000 steps in all. If it is
            given, ``"auto"`` is ``"bbb"``, as samplers have no epochs.
        batch_size: rows per step; ``None``: chosen by the number of rows, 128 to 4096.
        lr: learning rate at the start; it decays to 0.
        samples: the number of posterior draws per prediction.
        calibrate: ``None``: no calibration; ``"variance"``: one factor for all standard deviations; ``"quantile"``: an
            isotonic correction of the quantiles; ``"conformal"``: intervals with guaranteed average coverage. Fitted to
            rows held out of training.
        calibration_fraction: the fraction of the rows that is held out for it.
        method_options: further arguments of the method, such as ``{"temperature": 2.0}`` or ``{"members": 10}``.
        device: the device for training and prediction, such as ``"cuda"``; ``None``: the CPU.
        progress: whether to show a progress bar; ``None``: only in a terminal.
        random_state: a seed or a random state; with a seed, results are reproducible.

    Attributes:
        columns_: the :class:`credo.tabular.Columns` that encode the table.
        target_: the :class:`credo.tabular.RegressionTarget` that standardizes the target.
        family_: the likelihood of the target, by its name, and how targets are encoded for it.
        method_: the name of the method, where ``"auto"`` chose it.
        method_reason_: why, half a sentence.
        model_: the trained method, a :class:`credo.Method`.
        calibrator_: the fitted calibrator, or ``None``.
        notes_: sentences about the method that was chosen, the convergence of its chains, and what was left out,
            converted and imputed.
        history_: the metrics of training, one entry per epoch, or per transition of chains.

    Example:
        >>> import numpy as np
        >>> import credo
        >>> X = np.linspace(0.0, 1.0, 50)[:, None]
        >>> model = credo.Regressor(epochs=20, random_state=0).fit(X, 2.0 * X[:, 0])
        >>> p = model.predict_dist(X[:3])
        >>> lower, upper = p.interval(0.95)
        >>> p.mean.shape, p.epistemic.shape, p.aleatoric.shape
        (torch.Size([3]), torch.Size([3]), torch.Size([3]))
    """

    target_: RegressionTarget
    family_: TargetFamily
    _target_class = RegressionTarget
    _calibrators = {  # noqa: RUF012
        "variance": calibration.VarianceScaling,
        "quantile": calibration.QuantileRecalibration,
        "conformal": calibration.SplitConformal,
    }

    def __init__(
        self,
        method: str = "auto",
        *,
        likelihood: str = "auto",
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
        self.likelihood = likelihood
        self.noise = noise

    @property
    def notes_(self) -> list[str]:
        """Sentences about what was left out, converted and imputed, and about the likelihood."""
        return [*super().notes_, *([self.family_.note] if self.family_.note else [])]

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Predict the mean.

        Args:
            X: a data frame with the columns of training, or an array ``[N, D]``.
            return_std: whether to return the standard deviation as well, as in scikit-learn.

        Returns:
            The means ``[N]``, or a pair (means, standard deviations).
        """
        predictive = self.predict_dist(X)
        mean: NDArray[np.float64] = predictive.mean.numpy()
        return (mean, predictive.std.numpy()) if return_std else mean

    def _learn_target(self, y: Any, dialect: Dialect) -> RegressionTarget:
        target = RegressionTarget.learn(y, dialect)
        self.family_ = TargetFamily("gaussian", target.mean, target.scale)
        return target

    def _encode_target(self, y: Any) -> NDArray[Any]:
        if self.family_.name != "gaussian":
            return self.family_.encode(self.target_.parse(y))[:, None]
        z = self.target_.encode(y)[:, None]
        if self.target_.constant and z.any():
            raise InputError(
                f"all targets so far are {self.target_.mean:.6g}, so that the scale of the target is unknown: call fit "
                "with different targets"
            )
        return z

    def _decode_target(self, targets: NDArray[Any]) -> Tensor:
        return self.family_.decode(targets[:, 0])

    def _choose_likelihood(
        self,
        y: Any,
        targets: NDArray[Any],
        features: NDArray[Any],
        training: NDArray[np.intp],
        details: RowDetails,
        plan: TrainingPlan,
    ) -> NDArray[Any]:
        if check_likelihood(self.likelihood) == "gaussian" or self.target_.constant:
            return targets
        values = self.target_.parse(y)
        chosen = candidates(values[training]) if self.likelihood == "auto" else [self.likelihood]
        if self.calibrate in ("variance", "quantile"):
            possible = [name for name in chosen if name in ("gaussian", "student_t", "log_normal")]
            if not possible:
                raise InputError(
                    f"calibrate={self.calibrate!r} stretches the distribution of real targets, which likelihood="
                    f"{self.likelihood!r} does not have: use calibrate='conformal'"
                )
            chosen = possible
        families = [TargetFamily.learn(name, values, self.target_.mean, self.target_.scale) for name in chosen]
        self.family_ = families[0]
        if len(families) > 1:
            seed = derive(self.seed_, SCREEN)
            varies = self._noise_varies(plan)
            weight = None if details.weight is None else details.weight[training]
            train = ShortTraining(
                features[training],
                values[training],
                weight,
                hidden_layers(self.hidden, plan.rows),
                self.activation,
                plan,
                varies,
                seed,
            )
            if train.steps >= MIN_STEPS:
                self.family_ = choose_family(families, values[training], details.take(training), seed, train)
        return self._encode_target(y)

    def _noise_varies(self, plan: TrainingPlan) -> bool:
        check_option(self.noise, "noise", NOISES)
        return not plan.has_few_rows if self.noise == "auto" else self.noise == "heteroscedastic"

    def _network_outputs(self, plan: TrainingPlan) -> tuple[int, Likelihood]:
        return self.family_.likelihood(self._noise_varies(plan))

    def _to_target_units(self, predictive: Predictive, rows: TableRows, predictor: Predictor) -> Predictive:
        assert isinstance(predictive, RealPredictive)
        components = predictive.components.map(lambda t: t.squeeze(-1))
        if self.target_.constant:  # all draws are the same
            same = components.map(lambda t: torch.zeros_like(t[:1]))
            return RealPredictive(same.rescaled(self.target_.resolution, self.target_.mean))
        if isinstance(components, GaussianComponents):
            components = self._extrapolate(components, predictive.weights, rows, predictor)
        return replace(predictive, components=self.family_.to_target_units(components))

    def _extrapolate(
        self, components: GaussianComponents, weights: Tensor | None, rows: TableRows, predictor: Predictor
    ) -> RealComponents:
        """Outside the training range, use the noise at its edge and increase the epistemic variance."""
        assert self.extrapolation_ is not None
        clipped = self.columns_.clip(rows)
        distance = self.columns_.scaling.distance(rows.values, clipped.values)
        outside: NDArray[np.bool] = np.any(distance, axis=1)
        if outside.any():
            at_edge = predict_features(predictor, self.columns_.features(clipped.take(outside))).components
            assert isinstance(at_edge, GaussianComponents)
            log_variance = components.log_variance.clone()
            log_variance[:, torch.from_numpy(outside)] = at_edge.log_variance.squeeze(-1)
            components = replace(components, log_variance=log_variance)
        return split_noise(components, weights, self.extrapolation_.variance(distance))

    def _learn_extrapolation(self, rows: TableRows) -> Extrapolation | None:
        """None for other components than Gaussian ones: no variance is added to them outside the range."""
        if self.family_.name not in ("gaussian", "log_normal"):
            return None
        # The mean function: that of the mean weights or, for draws around several modes, the mean of some of them.
        samples = _DRAWS_FOR_SLOPES if isinstance(self.model_, Sampler) else 0
        predictor = self.model_._predictor(samples, self.seed_)
        return Extrapolation.learn(self.columns_, rows, lambda features: predict_features(predictor, features))
