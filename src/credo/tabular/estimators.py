"""``credo.Regressor``: a Bayesian neural network for tables with a quantity as target; and the other estimator."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from credo import calibration
from credo._arguments import check_option
from credo.errors import InputError, LoadError
from credo.likelihoods import Gaussian, Likelihood
from credo.methods.base import Predictor
from credo.methods.sampler import Sampler
from credo.predictive import Predictive, RealPredictive
from credo.predictive.location_scale import GaussianComponents
from credo.seeding import derive
from credo.tabular import stacked
from credo.tabular.base import SCREEN, TableEstimator
from credo.tabular.classifier import Classifier
from credo.tabular.columns import TableRows
from credo.tabular.dialects import Dialect
from credo.tabular.extrapolation import Extrapolation, at_edge, split_noise
from credo.tabular.level_effects import Floats, normal_scores
from credo.tabular.likelihoods import (
    MAX_ROWS,
    MIN_STEPS,
    ShortTraining,
    TargetFamily,
    candidates,
    check_likelihood,
    choose_family,
)
from credo.tabular.methods import TrainingPlan
from credo.tabular.predictions import predict_features
from credo.tabular.several_targets import (
    RegressionTargets,
    correlation_of,
    has_several_targets,
    noise_correlation,
    to_target_units,
)
from credo.tabular.splitting import RowDetails
from credo.tabular.targets import RegressionTarget

__all__ = ["NOISES", "Classifier", "Regressor"]

NOISES = ("auto", "heteroscedastic", "learned")
_DRAWS_FOR_SLOPES = 20
_ROWS_FOR_CORRELATION = 5_000


class Regressor(RegressorMixin, TableEstimator):  # type: ignore[misc]
    """Regression with error bars: Bayesian neural networks whose noise may vary from row to row.

    Columns of numbers, labels and dates, missing values, constant columns and different scales are handled (see
    :class:`credo.tabular.Columns`). The target is standardized internally; predictions are in its own units.

    Args:
        method: ``"auto"``: chosen by the size of the table, see ``notes_``; ``"stacked"`` (networks with wide to narrow
            priors, weighted by held-out rows, see :mod:`credo.tabular.stacked`), ``"hmc"`` (Hamiltonian Monte Carlo),
            ``"bbb"`` (Bayes by Backprop), ``"mc_dropout"``, ``"ensemble"`` (five networks), ``"map"`` (one network, no
            epistemic uncertainty), or the name of a method added by :func:`credo.tabular.register`.
        likelihood: the distribution of the target: ``"gaussian"``; ``"student_t"`` for outliers; ``"log_normal"`` for
            positive numbers; ``"poisson"`` and ``"negative_binomial"`` for counts; ``"beta"`` for shares from 0 to 1,
            both included (see :class:`credo.Beta`). ``"auto"``: Gaussian, unless another one that the values allow has
            a clearly higher likelihood on training rows left out of short trainings, which take about a third of the
            time of ``fit``; with fewer than 500 steps of training they are left out. ``notes_`` says which and why.
        noise: ``"heteroscedastic"``: the noise depends on the row; ``"learned"``: it is the same for all rows;
            ``"auto"``: the former if there are at least 200 rows, and for a stacked ensemble.
        joint_noise: with several targets, whether their noise is correlated, with one correlation matrix for all rows;
            ``False``: it is independent.
        hidden: widths of the hidden layers; ``None``: (128, 128) for ``"stacked"``, (64, 64) for less than 500
            rows; otherwise (50, 50), or (10,) for less than 200 rows.
        activation: the activation function between them, such as ``"relu"`` or ``"tanh"``.
        epochs: passes over the table; ``None``: chosen by the number of rows, 2,000 to 16,000 steps in all, half of
            it for ``"stacked"``, which stops early. If it is given, ``"auto"`` is ``"bbb"``.
        batch_size: rows per step; ``None``: chosen by the number of rows, 128 to 4096.
        lr: learning rate at the start; it decays to 0.
        samples: the number of posterior draws per prediction.
        calibrate: ``None``: no calibration; ``"variance"``: one factor for all standard deviations; ``"quantile"``: an
            isotonic correction of the quantiles; ``"conformal"``: intervals with guaranteed average coverage. Fitted to
            rows held out of training.
        calibration_fraction: the fraction of the rows that is held out for it.
        calibration_folds: calibrate by predictions of each row by a model that is trained on the other folds of so many
            instead: no row is kept from training, which takes as many more fits. ``None``: rows are held out.
        method_options: further arguments of the method, such as ``{"temperature": 2.0}`` or ``{"members": 10}``.
        device: the device for training and prediction, such as ``"cuda"``; ``None``: the CPU.
        progress: whether to show a progress bar; ``None``: only in a terminal.
        random_state: a seed or a random state; with a seed, results are reproducible.

    Attributes:
        columns_: the :class:`credo.tabular.Columns` that encode the table.
        target_: the :class:`credo.tabular.RegressionTarget` that standardizes the target, or several of them.
        noise_correlation_: the correlation of the noise of several targets ``[K, K]``; ``None`` without joint noise.
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

    target_: RegressionTarget | RegressionTargets
    noise_correlation_: NDArray[np.float64] | None
    output_: int | None = None
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
        joint_noise: bool = False,
        hidden: Sequence[int] | None = None,
        activation: str = "relu",
        epochs: int | None = None,
        batch_size: int | None = None,
        lr: float = 0.01,
        samples: int = 100,
        calibrate: str | None = None,
        calibration_fraction: float = 0.2,
        calibration_folds: int | None = None,
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
            calibration_folds=calibration_folds,
            method_options=method_options,
            device=device,
            progress=progress,
            random_state=random_state,
        )
        self.likelihood = likelihood
        self.noise = noise
        self.joint_noise = joint_noise

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
            The means ``[N]``, or ``[N, K]`` of several targets; or a pair (means, standard deviations).
        """
        predictive = self.predict_dist(X)
        mean: NDArray[np.float64] = predictive.mean.numpy()
        return (mean, predictive.std.numpy()) if return_std else mean

    def predict_correlation(self, X: Any) -> NDArray[np.float64]:
        """Predict the correlation of several targets, over noise and posterior draws.

        Args:
            X: a data frame with the columns of training, or an array ``[N, D]``.

        Returns:
            Correlation matrices ``[N, K, K]``.

        Raises:
            InputError: if there is one target only.
        """
        predictive = self.predict_dist(X)
        assert isinstance(predictive, RealPredictive)
        return correlation_of(predictive).numpy()

    def marginal(self, target: str | int) -> Regressor:
        """One of several targets, as a fitted regressor of this target alone.

        It shares the network, and can be evaluated, explained and reported on as any other; it cannot be saved.

        Args:
            target: the name of the target, or its position.

        Returns:
            The regressor, whose predictions have the shape ``[N]``.

        Raises:
            InputError: if there is no such target, or one only.
        """
        check_is_fitted(self, "model_")
        if not isinstance(self.target_, RegressionTargets):
            raise InputError("this model has one target only, and is its own marginal")
        k = self.target_.index(target) if isinstance(target, str) else int(target)
        one = copy.copy(self)
        one.output_, one.target_ = k, self.target_.targets[k]
        one.family_ = TargetFamily("gaussian", one.target_.mean, one.target_.scale)
        one.extrapolation_ = None if self.extrapolation_ is None else self.extrapolation_.of_target(k)
        one.noise_correlation_ = None
        return one

    def _learn_target(self, y: Any, dialect: Dialect) -> RegressionTarget | RegressionTargets:
        self.noise_correlation_ = None
        if has_several_targets(y):
            if self.calibrate is not None or self.likelihood not in ("auto", "gaussian"):
                name = "likelihood" if self.calibrate is None else "calibrate"
                raise InputError(
                    f"{name}={getattr(self, name)!r} is for one target, got {np.shape(y)[1]}: several targets have "
                    "Gaussian noise and are not calibrated; fit one model for each, or leave it out"
                )
            self.family_ = TargetFamily("gaussian", 0.0, 1.0)
            return RegressionTargets.learn(y, dialect)
        target = RegressionTarget.learn(y, dialect)
        self.family_ = TargetFamily("gaussian", target.mean, target.scale)
        return target

    def _encode_target(self, y: Any) -> NDArray[Any]:
        if isinstance(self.target_, RegressionTargets):
            return self.target_.encode(y)
        if self.family_.name != "gaussian":
            return self.family_.encode(self.target_.parse(y))[:, None]
        z = self.target_.encode(y)[:, None]
        if self.target_.constant and z.any():
            raise InputError(
                f"all targets so far are {self.target_.mean:.6g}, so that the scale of the target is unknown: call fit "
                "with different targets"
            )
        return z

    def _scores(self, targets: NDArray[Any]) -> Floats:
        return normal_scores(targets)

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
        if isinstance(self.target_, RegressionTargets):
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
        if len(families) > 1 and plan.steps >= MIN_STEPS:
            compared = training[:: -(-len(training) // MAX_ROWS)]
            some = details.take(compared)
            parts = list(
                {id(part): part for part in self._parts(targets[compared], some, stacked.FOLDS_FOR_MANY_ROWS)}.values()
            )
            train = ShortTraining(
                features[compared],
                values[compared],
                some.weight,
                parts,
                self.activation,
                plan,
                self._noise_varies(plan),
                derive(self.seed_, SCREEN),
            )
            self.family_ = choose_family(families, values[compared], parts, train)
        return self._encode_target(y)

    def _noise_varies(self, plan: TrainingPlan) -> bool:
        check_option(self.noise, "noise", NOISES)
        if self.noise != "auto":
            return self.noise == "heteroscedastic"
        return self.method_ == stacked.NAME or not plan.has_few_rows

    def _network_outputs(self, plan: TrainingPlan) -> tuple[int, Likelihood]:
        outputs = len(self.target_.names)
        if outputs == 1:
            return self.family_.likelihood(self._noise_varies(plan))
        varies = self._noise_varies(plan)
        return (2 * outputs, Gaussian("heteroscedastic")) if varies else (outputs, Gaussian("learned", outputs=outputs))

    def _predict_rows(self, rows: TableRows, predictor: Predictor) -> Predictive:
        features, distance = self.columns_.features(rows), None
        if self.extrapolation_ is not None:
            clipped = self.columns_.clip(rows)
            distance = self.columns_.scaling.distance(rows.values, clipped.values)
            outside = np.flatnonzero(distance.any(axis=1))
            if len(outside):  # their noise is that at the edge of the range, predicted in the same call
                features = np.concatenate([features, self.columns_.features(clipped.take(outside))])
        predictive = predict_features(predictor, features)
        assert isinstance(predictive, RealPredictive)
        components, k = predictive.components, self.output_
        if not isinstance(self.target_, RegressionTargets):
            components = components.map(lambda t: t.squeeze(-1) if k is None else t[..., k])
        elif not isinstance(components, GaussianComponents):
            raise LoadError("several targets need a Gaussian likelihood")
        if isinstance(self.target_, RegressionTarget) and self.target_.constant:  # all draws are the same
            same = components.map(lambda t: torch.zeros_like(t[:1, : len(rows.values)]))
            return RealPredictive(same.rescaled(self.target_.resolution, self.target_.mean))
        if distance is not None:
            assert isinstance(components, GaussianComponents)
            assert self.extrapolation_ is not None
            components = at_edge(components, torch.from_numpy(outside))
            components = split_noise(components, predictive.weights, self.extrapolation_.variance(distance))
        if isinstance(self.target_, RegressionTargets):
            assert isinstance(components, GaussianComponents)
            return RealPredictive(
                to_target_units(components, self.target_, self.noise_correlation_), predictive.weights
            )
        return replace(predictive, components=self.family_.to_target_units(components))

    def _learn_noise(self, rows: TableRows, targets: NDArray[Any]) -> None:
        if not self.joint_noise or not isinstance(self.target_, RegressionTargets):
            return
        some = np.linspace(0, len(targets) - 1, min(len(targets), _ROWS_FOR_CORRELATION)).astype(np.intp)
        predictive = self._predict_rows(rows.take(some), self._predictor())
        assert isinstance(predictive, RealPredictive)
        y = torch.from_numpy(targets[some] * self.target_.scale + self.target_.center)
        self.noise_correlation_ = noise_correlation(predictive, y)

    def _learn_extrapolation(self, rows: TableRows) -> Extrapolation | None:
        """None for other components than Gaussian ones: no variance is added to them outside the range."""
        if self.family_.name not in ("gaussian", "log_normal"):
            return None
        # The mean function: that of the mean weights or, for draws around several modes, the mean of some of them.
        samples = _DRAWS_FOR_SLOPES if isinstance(self.model_, Sampler) else 0
        predictor = self.model_._predictor(samples, self.seed_)
        return Extrapolation.learn(self.columns_, rows, lambda features: predict_features(predictor, features))
