"""``credo.Classifier``: a Bayesian neural network for tables with a class as target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from torch import Tensor

from credo import calibration
from credo._text import listed, quoted
from credo.errors import InputError
from credo.likelihoods import Categorical, Likelihood, Ordinal
from credo.methods.base import Predictor
from credo.predictive import Predictive
from credo.predictive.classes import CategoricalComponents
from credo.tabular.base import TableEstimator
from credo.tabular.columns import TableRows
from credo.tabular.dialects import Dialect
from credo.tabular.level_effects import Floats, class_scores, normal_scores
from credo.tabular.methods import TrainingPlan
from credo.tabular.predictions import predict_features
from credo.tabular.splitting import RowDetails
from credo.tabular.targets import ClassTarget


class Classifier(ClassifierMixin, TableEstimator):  # type: ignore[misc]
    """Classification with calibrated probabilities: a Bayesian neural network for tables.

    Columns of numbers, labels and dates, missing values, constant columns and different scales are handled (see
    :class:`credo.tabular.Columns`).

    Args:
        method: ``"auto"``: chosen by the size of the table, see ``notes_``; ``"stacked"`` (networks with wide to narrow
            priors, weighted by held-out rows, see :mod:`credo.tabular.stacked`), ``"hmc"`` (Hamiltonian Monte Carlo),
            ``"bbb"`` (Bayes by Backprop), ``"mc_dropout"``, ``"ensemble"`` (five networks), ``"map"`` (one network, no
            epistemic uncertainty), or the name of a method added by :func:`credo.tabular.register`.
        ordered: whether classes have an order, such as grades: the cumulative logit likelihood :class:`credo.Ordinal`.
            ``True``: the ascending order of the labels; a list: all labels, from lowest to highest.
        class_weight: ``None``, or ``"balanced"``: in training every class counts as much as any other, however rare,
            and the probabilities are corrected back to the frequencies of the classes. To predict rare classes more
            often, use a threshold on ``predict_proba``, or ``sample_weight``, which is not corrected.
        hidden: widths of the hidden layers; ``None``: (128, 128) for ``"stacked"``, (64, 64) for less than 500
            rows; otherwise (50, 50), or (10,) for less than 200 rows.
        activation: the activation function between them, such as ``"relu"`` or ``"tanh"``.
        epochs: passes over the table; ``None``: chosen by the number of rows, 2,000 to 16,000 steps in all, half of
            it for ``"stacked"``, which stops early. If it is given, ``"auto"`` is ``"bbb"``.
        batch_size: rows per step; ``None``: chosen by the number of rows, 128 to 4096.
        lr: learning rate at the start; it decays to 0.
        samples: the number of posterior draws per prediction.
        calibrate: ``None``: no calibration; ``"temperature"``: one temperature for all logits, fitted to rows held out
            of training.
        calibration_fraction: the fraction of the rows that is held out for it.
        calibration_folds: calibrate by predictions of each row by a model that is trained on the other folds of so many
            instead: no row is kept from training, which takes as many more fits. ``None``: rows are held out.
        method_options: further arguments of the method, such as ``{"temperature": 2.0}`` or ``{"members": 10}``.
        device: the device for training and prediction, such as ``"cuda"``; ``None``: the CPU.
        progress: whether to show a progress bar; ``None``: only in a terminal.
        random_state: a seed or a random state; with a seed, results are reproducible.

    Attributes:
        classes_: the labels, in the order of the columns of ``predict_proba``.
        columns_: the :class:`credo.tabular.Columns` that encode the table.
        target_: the :class:`credo.tabular.ClassTarget` that encodes the labels.
        method_: the name of the method, where ``"auto"`` chose it.
        method_reason_: why, half a sentence.
        model_: the trained method, a :class:`credo.Method`.
        calibrator_: the fitted calibrator, or ``None``.
        notes_: sentences about what was left out, converted and imputed.
        history_: the metrics of training, one entry per epoch.

    Example:
        >>> import numpy as np
        >>> import credo
        >>> X = np.linspace(0.0, 1.0, 50)[:, None]
        >>> model = credo.Classifier(epochs=20, random_state=0).fit(X, np.where(X[:, 0] > 0.5, "high", "low"))
        >>> model.predict_proba(X[:3]).shape
        (3, 2)
        >>> model.predict_dist(X[:3]).mutual_information.shape
        torch.Size([3])
    """

    target_: ClassTarget
    _target_class = ClassTarget
    class_weights_: NDArray[np.float64] | None
    _calibrators = {"temperature": calibration.TemperatureScaling}  # noqa: RUF012
    _given_classes: Sequence[Any] | None = None

    def __init__(
        self,
        method: str = "auto",
        *,
        ordered: bool | Sequence[Any] = False,
        class_weight: str | None = None,
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
        self.ordered = ordered
        self.class_weight = class_weight

    @property
    def classes_(self) -> NDArray[Any]:
        """The labels, in ascending order."""
        return self.target_.classes

    def predict(self, X: Any) -> NDArray[Any]:
        """Predict the most probable class.

        Args:
            X: a data frame with the columns of training, or an array ``[N, D]``.

        Returns:
            The labels ``[N]``.
        """
        positions = self.predict_proba(X).argmax(axis=1)
        return self.target_.decode(positions)

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Predict the probability of each class.

        Args:
            X: a data frame with the columns of training, or an array ``[N, D]``.

        Returns:
            The probabilities ``[N, K]``, in the order of ``classes_``.
        """
        probabilities: NDArray[np.float64] = self.predict_dist(X).mean.numpy()
        return probabilities

    def _learn_target(self, y: Any, dialect: Dialect) -> ClassTarget:
        given, self._given_classes = self._given_classes, None
        return ClassTarget.learn(y, dialect) if given is None else ClassTarget("", np.unique(given))

    def _set_classes(self, classes: Sequence[Any] | None) -> None:
        self._given_classes = classes

    def _encode_target(self, y: Any) -> NDArray[Any]:
        return np.argsort(self._order())[self.target_.encode(y)]

    def _scores(self, targets: NDArray[Any]) -> Floats:
        if self.ordered is not False:
            return normal_scores(targets[:, None])
        return class_scores(targets, len(self.target_.classes))

    def _decode_target(self, targets: NDArray[Any]) -> Tensor:
        return torch.from_numpy(self._order()[targets])

    def _weigh(self, targets: NDArray[Any], details: RowDetails, learn: bool) -> RowDetails:
        weight = np.ones(len(targets)) if details.weight is None else details.weight.astype(np.float64)
        if learn:
            self.class_weights_ = self._balance(np.bincount(targets, weight, minlength=len(self.target_.classes)))
        if self.class_weights_ is None:
            return details
        return replace(details, weight=(weight * self.class_weights_[targets]).astype(np.float32))

    def _balance(self, total: NDArray[Any]) -> NDArray[np.float64] | None:
        """N/(K n_c) for the total weight n_c of each of K classes, 1 for a class without rows."""
        if self.class_weight is None:
            return None
        if self.class_weight != "balanced":
            raise InputError(
                f"class_weight must be 'balanced' or None, got {self.class_weight!r}: it does not change "
                "probabilities; to count classes differently, pass sample_weight to fit"
            )
        mean = total.sum() / np.count_nonzero(total)
        return np.where(total > 0, mean / np.where(total > 0, total, 1.0), 1.0)

    def _network_outputs(self, plan: TrainingPlan) -> tuple[int, Likelihood]:
        classes = len(self.target_.classes)
        return (classes, Categorical()) if self.ordered is False else (1, Ordinal(classes))

    def _predict_rows(self, rows: TableRows, predictor: Predictor) -> Predictive:
        return self._to_classes(predict_features(predictor, self.columns_.features(rows)))

    def _to_classes(self, predictive: Predictive) -> Predictive:
        """The prediction of the network without the weights of classes, in the order of ``classes_``."""
        assert isinstance(predictive.components, CategoricalComponents)
        components, order = predictive.components, self._order()
        if self.class_weights_ is not None:
            log_p = components.log_p - torch.from_numpy(np.log(self.class_weights_)).to(components.log_p)
            components = replace(components, log_p=log_p.log_softmax(-1))
        if not np.array_equal(order, np.arange(len(order))):  # in the order of classes_, which is another one
            components = CategoricalComponents(components.log_p[..., torch.from_numpy(np.argsort(order))])
        return replace(predictive, components=components)

    def _order(self) -> NDArray[np.int64]:
        """The positions of the classes from lowest to highest; as they are, if they have no order."""
        classes = self.target_.classes
        if isinstance(self.ordered, bool):
            return np.arange(len(classes))
        order = self.target_.encode(list(self.ordered))
        if len(order) != len(classes) or len(set(order)) != len(order):
            raise InputError(
                f"ordered must hold every class once, from lowest to highest: {listed([quoted(c) for c in classes])}"
            )
        return order

    def _learn_extrapolation(self, rows: TableRows) -> None:
        """None: class probabilities are not changed outside the range."""
