"""Distillation: any posterior into one small network that outputs its predictive distribution in a single pass."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from credo import architectures
from credo import data as data_
from credo._arguments import check_fraction, check_integer, check_positive
from credo._text import counted
from credo.errors import InputError, UnsupportedError
from credo.likelihoods.split import SplitCategorical, SplitGaussian, SplitLikelihood, SplitMixture
from credo.methods._last_layer import find_last_linear
from credo.methods.base import Method
from credo.methods.deep_ensemble import DeepEnsemble
from credo.methods.distilled import Distilled
from credo.methods.network import NetworkMethod
from credo.predictive import ClassPredictive, Predictive
from credo.seeding import check_seed, derive
from credo.tabular.base import DRAWS, TableEstimator
from credo.tabular.columns import TableRows
from credo.tabular.estimators import Regressor
from credo.tabular.extrapolation import split_noise
from credo.tabular.predictions import predict_features
from credo.tabular.validation import check_new

__all__ = ["distill"]

_STEPS = 10_000
_AUGMENTATION = 8  # inputs per row, at most
_AUGMENTED_ROWS = 50_000  # in all, about
_CANDIDATES = 80  # random rows, of which the nearest is taken
_ROWS = 1_000  # of the teacher's predictions at a time
_SINGLE = "map"
"""The ``method_`` of an estimator with one network."""


def distill(
    model: Method | TableEstimator,
    data: Any,
    *,
    net: nn.Module | None = None,
    extra: Any = None,
    samples: int = 100,
    components: int = 3,
    augmentation: int | None = None,
    held_out: float = 0.1,
    epochs: int | None = None,
    batch_size: int = 128,
    lr: float = 0.01,
    seed: int | None = 0,
) -> Any:
    r"""Distill a posterior into one network that outputs the predictive distribution in a single pass.

    The student outputs a mixture of Gaussians for a real target, or probabilities, and how its uncertainty is divided.
    It is fitted to the teacher's predictions by

        KL(p_t ‖ p) + w · (g(a_t/a) + g(e_t/e)),    g(r) = (r − 1 − log r)/2,

    with aleatoric and epistemic variance a and e, or by KL(p_t ‖ p) + H_t KL(ρ_t ‖ ρ) for classes with an epistemic
    share ρ of the entropy H; see :class:`~credo.likelihoods.split.SplitMixture`,
    :class:`~credo.likelihoods.split.SplitGaussian` (several real targets) and
    :class:`~credo.likelihoods.split.SplitCategorical`. Labels are not used. What is lost, KL(teacher ‖ student) of the
    predictive distributions on rows held out of training, is in ``student.distillation["kl"]`` and in the card that
    ``save`` writes. Bayesian dark knowledge (Balan et al. 2015) fits the mean prediction only.

    Args:
        model: the teacher: a fitted method, or a :class:`credo.Regressor` or :class:`credo.Classifier`.
        data: inputs ``[N, ...]``, or a tuple whose first entry they are; for an estimator a table.
        net: the student's network; ``None``: a copy of the teacher's with a wider last layer, from its weights.
        extra: further inputs, such as unlabeled ones.
        samples: the number of the teacher's draws; that of an estimator is its own.
        components: K, the number of Gaussians of the student's mixture for one real target: ``net`` has 2K + 1 outputs.
            With 1, and for several targets, it outputs [mean, log aleatoric variance, log epistemic variance]. For C
            classes it has C + 1 outputs.
        augmentation: further inputs per row, which the teacher predicts as well: in turn on the line to another row,
            and near the row. ``None``: 8, or fewer where there would be more than 50,000 in all.
        held_out: the share of rows on which the loss is measured.
        epochs: passes over rows and further inputs; ``None``: about 10,000 steps.
        batch_size: rows per step.
        lr: learning rate at the start; it decays to 0.
        seed: of everything random.

    Returns:
        A :class:`credo.methods.Distilled`, or an estimator of the same class around one.

    Raises:
        InputError: there are too few rows, or an argument is not valid.
        UnsupportedError: the teacher's targets are neither real nor classes, or its network has no linear last layer.

    Example:
        >>> student = credo.distill(model, x)
        >>> student.predict(x_new).std, student.distillation["kl"]

    References:
        A. K. Balan, V. Rathod, K. Murphy, M. Welling. Bayesian dark knowledge. NeurIPS 2015.
        A. Malinin, B. Mlodozeniec, M. Gales. Ensemble distribution distillation. ICLR 2020.
    """
    if augmentation is not None:
        check_integer(augmentation, "augmentation", minimum=0)
    check_fraction(held_out, "held_out")
    check_positive(lr, "lr")
    check_integer(components, "components", minimum=1)
    check_integer(batch_size, "batch_size", minimum=1)
    if epochs is not None:
        check_integer(epochs, "epochs", minimum=1)
    plan = _Plan(components, augmentation, held_out, epochs, batch_size, lr, check_seed(seed))
    if isinstance(model, TableEstimator):
        return _distill_table(model, data, net, extra, plan)
    if not isinstance(model, Method):
        raise InputError(f"model must be a method, a Regressor or a Classifier of credo, got {type(model).__name__}")
    teacher: Any = model
    predictor = teacher._predictor(check_integer(samples, "samples", minimum=0), derive(plan.seed, 1))
    x, more = (_inputs(part, teacher) for part in (data, extra))
    with torch.no_grad():
        return _fit(predictor, teacher, net, x, more, plan, teacher.dtype)


@dataclasses.dataclass(frozen=True)
class _Plan:
    """The arguments of :func:`distill` that say how a student is trained."""

    components: int
    augmentation: int | None
    held_out: float
    epochs: int | None
    batch_size: int
    lr: float
    seed: int

    def likelihood(self, example: Predictive) -> SplitLikelihood:
        """The likelihood of the student of a teacher that predicts ``example``."""
        if isinstance(example, ClassPredictive):
            return SplitCategorical()
        single = example.mean.ndim == 2 and example.mean.shape[1] == 1
        return SplitMixture(self.components) if single and self.components > 1 else SplitGaussian()

    def augmented(self, rows: Tensor, stream: torch.Generator) -> Tensor:
        """``rows`` and some further inputs for each: in turn near it, and on the line to another row."""
        times = self.augmentation
        if times is None:
            times = min(_AUGMENTATION, max(0, _AUGMENTED_ROWS // len(rows) - 1))
        if not times or not rows.is_floating_point():
            return rows
        parts = [rows]
        for i in range(times):
            other = _near(rows, stream) if i % 2 else _any(rows, stream)
            # near a row of a table, each column has its own weight: a box between the two rows, and a little around
            shape = rows.shape if i % 2 and rows.ndim == 2 else (len(rows), *[1] * (rows.ndim - 1))
            weight = torch.rand(shape, generator=stream).to(rows)
            parts.append(rows + (1.5 * weight - 0.25 if i % 2 else weight) * (other - rows))
        return torch.cat(parts)


def _any(rows: Tensor, stream: torch.Generator) -> Tensor:
    """Another row for each of ``rows``."""
    return rows[torch.randperm(len(rows), generator=stream).to(rows.device)]


def _near(rows: Tensor, stream: torch.Generator) -> Tensor:
    """A row close to each of ``rows``: the nearest of some random ones."""
    found, least = rows, torch.full((len(rows),), math.inf, dtype=rows.dtype, device=rows.device)
    for _ in range(_CANDIDATES):
        other = _any(rows, stream)
        distance = (other - rows).flatten(1).square().sum(1)
        closer = (distance < least) & (distance > 0)
        found = torch.where(closer.view(-1, *[1] * (rows.ndim - 1)), other, found)
        least = torch.where(closer, distance, least)
    return found


def _fit(
    teach: Callable[[Tensor], Predictive],
    model: Method,
    net: nn.Module | None,
    x: Tensor | None,
    extra: Tensor | None,
    plan: _Plan,
    dtype: torch.dtype,
) -> Distilled:
    """Train a student on the predictions of ``teach``, and measure what is lost on held-out rows."""
    if x is None:
        raise InputError("data must be the inputs to distill from, such as those of training, got None")
    count = math.ceil(plan.held_out * len(x))
    if len(x) - count < 2:
        raise InputError(
            f"distilling needs more inputs than {counted(len(x), 'row')}: pass more of them, labels are not needed"
        )
    stream = torch.Generator().manual_seed(derive(plan.seed, 2))
    order = torch.randperm(len(x), generator=stream)
    test, rows = x[order[:count]], x[order[count:]]
    rows = rows if extra is None else torch.cat([rows, extra])
    rows = plan.augmented(rows, stream)
    likelihood = plan.likelihood(teach(test[:2]))
    targets = torch.cat([likelihood.targets(teach(part)) for part in rows.split(_ROWS)])
    net = _student_network(model, likelihood.n_outputs(targets)) if net is None else net
    student = Distilled(net.to(x.device, dtype), likelihood)
    epochs = plan.epochs or math.ceil(_STEPS / math.ceil(len(rows) / plan.batch_size))
    with torch.enable_grad():
        student.fit(
            (rows.to(student.dtype), targets.to(student.dtype)),
            epochs=epochs,
            batch_size=plan.batch_size,
            lr=plan.lr,
            seed=derive(plan.seed, 3),
            progress=False,
        )
    lost = []
    for part in test.split(_ROWS):
        teacher, own = teach(part).cpu(), student.predict(part.to(student.dtype)).cpu()
        lost.append(likelihood.kl(teacher, own.double() if teacher.draws.dtype == torch.float64 else own))
    kl = torch.cat(lost).double()
    student.distillation = {
        "teacher": type(model).__name__,
        "kl": float(kl.mean()),
        "standard_error": float(kl.std() / math.sqrt(len(kl))) if len(kl) > 1 else None,
        "held_out_rows": len(kl),
        "rows": len(rows),
        "epochs": epochs,
    }
    return student


def _student_network(model: Method, outputs: int) -> nn.Module:
    """A network like the teacher's with ``outputs`` outputs, which starts at its weights where they fit."""
    teacher = model.members[0] if isinstance(model, DeepEnsemble) else model
    assert isinstance(teacher, NetworkMethod)
    found = architectures.describe(teacher.net)
    if found is None or not {"out_features", "classes"} & found["config"].keys():
        if teacher._forward is not None:
            raise UnsupportedError("the teacher calls its network by a forward of its own: pass the student's, net=...")
        return _with_outputs(copy.deepcopy(teacher.net).requires_grad_(True), outputs)
    changed = {"out_features": outputs, "classes": outputs, "constants": 0, "dropout": None}
    config = {**found["config"], **{key: value for key, value in changed.items() if key in found["config"]}}
    student = architectures.build(found["name"], config).to(teacher.dtype)
    old, own = teacher.net.state_dict(), student.state_dict()
    student.load_state_dict(
        {name: old[name] if name in old and old[name].shape == t.shape else t for name, t in own.items()}
    )
    return student


def _with_outputs(net: nn.Module, outputs: int) -> nn.Module:
    """``net`` with a last linear layer of ``outputs`` outputs; the first are those that it had."""
    path = find_last_linear(net, None)
    old = net.get_submodule(path)
    assert isinstance(old, nn.Linear)
    new = nn.Linear(old.in_features, outputs).to(old.weight)
    with torch.no_grad():
        known = min(old.out_features, outputs)
        new.weight[:known] = old.weight[:known]
        if old.bias is not None:
            new.bias[:known] = old.bias[:known]
    if not path:
        return new
    parent, _, key = path.rpartition(".")
    net.get_submodule(parent).register_module(key, new)
    return net


def _distill_table(estimator: TableEstimator, data: Any, net: nn.Module | None, extra: Any, plan: _Plan) -> Any:
    """An estimator like ``estimator`` whose network is distilled."""
    columns = estimator.columns_
    predictor = estimator.model_._predictor(estimator.samples, derive(estimator.seed_, DRAWS))
    splits = isinstance(estimator, Regressor) and estimator.extrapolation_ is not None

    def teach(features: Tensor) -> Predictive:
        predictive = predict_features(predictor, features.numpy())
        if not splits:
            return predictive
        none = torch.zeros((), dtype=torch.float64)
        components: Any = predictive.components
        return dataclasses.replace(predictive, components=split_noise(components, predictive.weights, none))

    def features(table: Any) -> Tensor | None:
        if table is None:
            return None
        rows: TableRows = columns.read(check_new(estimator, table))
        return torch.from_numpy(np.asarray(columns.features(rows), dtype=np.float64))

    with torch.no_grad():
        student = _fit(teach, estimator.model_, net, features(data), features(extra), plan, torch.float32)
    found = copy.copy(estimator)
    found.model_ = student.double()
    found.method_reason_ = f"distilled from {estimator.method_}, at a loss of {student.distillation['kl']:.4f} nats"
    found.method_ = _SINGLE
    return found


def _inputs(data: Any, model: Method) -> Tensor | None:
    """The inputs of ``data`` as one tensor."""
    if data is None:
        return None
    x = data[0] if isinstance(data, tuple | list) else data
    x = data_.prepare_input(x, model.device, model.dtype)
    if not isinstance(x, Tensor):
        raise UnsupportedError("inputs must be one tensor or array: a network with several inputs is not distilled")
    return x
