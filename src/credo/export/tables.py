"""Export of ``Regressor`` and ``Classifier``: raw columns go in, the predictive distribution comes out."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from credo._arguments import check_integer, check_option
from credo.export.builder import Builder
from credo.export.columns import Preprocessing, add_preprocessing
from credo.export.graphs import ROWS, check_extra, check_inputs, to_graph, write_graph
from credo.export.outputs import OutputChoice, complete, traced_outputs, uniform_weights
from credo.export.predictions import PredictionFunction, as_function, freeze_draws
from credo.predictive import Predictive
from credo.predictive.location_scale import GaussianComponents
from credo.predictive.real import RealPredictive
from credo.seeding import derive
from credo.tabular.base import DRAWS, TableEstimator
from credo.tabular.classifier import Classifier
from credo.tabular.columns import as_frame
from credo.tabular.estimators import Regressor
from credo.tabular.extrapolation import split_noise
from credo.tabular.parsing import is_missing
from credo.tabular.several_targets import check_one_target
from credo.tabular.targets import RegressionTarget
from credo.tabular.validation import check_new

if TYPE_CHECKING:
    from onnx import ModelProto

PRECISIONS = {"float32": torch.float32, "float64": torch.float64}
_FEATURES, _DISTANCE, _OWN, _EDGE = (f"network/input/{name}" for name in ("features", "distance", "own", "edge"))


def export_table(
    estimator: TableEstimator,
    path: str | Path,
    *,
    samples: int | None = None,
    quantiles: Sequence[float] = (0.05, 0.5, 0.95),
    level: float | None = 0.95,
    precision: str = "float64",
) -> None:
    """Write a fitted estimator as an ONNX graph; see :meth:`credo.Regressor.export`.

    Args:
        estimator: a fitted :class:`credo.Regressor` or :class:`credo.Classifier`.
        path: the file.
        samples: the number of draws; ``None``: that of the estimator.
        quantiles: the levels of the output ``quantiles``.
        level: the probability of the interval from ``lower`` to ``upper``; ``None``: without it.
        precision: of the network, ``"float64"`` as in Python, or ``"float32"``.

    Raises:
        InputError: the extra ``onnx`` is not installed, or an argument is not valid.
        UnsupportedError: the prediction needs operations that ONNX does not have.
    """
    check_extra()
    check_is_fitted(estimator, "model_")
    check_one_target(estimator.target_, "export")
    choice, dtype = OutputChoice.check(quantiles, level), PRECISIONS[check_option(precision, "precision", PRECISIONS)]
    samples = estimator.samples if samples is None else check_integer(samples, "samples", minimum=0)
    b = Builder(np.float64, "columns/")
    preprocessing = add_preprocessing(b, estimator.columns_)
    network = _Network.of(estimator, samples, dtype)
    graph = network.trace(choice)
    _join(graph, b, preprocessing, network, dtype)
    if isinstance(estimator, Classifier):
        _add_class(graph, estimator.classes_)
    check_inputs([column.name for column in graph.graph.input], [output.name for output in graph.graph.output])
    write_graph(graph, path, _describe(estimator, samples, choice, precision))


def column_inputs(estimator: TableEstimator, X: Any) -> dict[str, NDArray[Any]]:
    """The inputs of an exported graph for rows of a table.

    Args:
        estimator: the fitted estimator.
        X: a data frame with the columns of training, or an array ``[N, D]``.

    Returns:
        By column: numbers in float64, NaN for gaps, which are read from texts as in training; texts of categories,
        empty for gaps; dates as texts in ISO 8601, empty for gaps.
    """
    columns = estimator.columns_
    table = as_frame(check_new(estimator, X), columns.names)
    parsed = columns.parse(table)
    inputs: dict[str, NDArray[Any]] = dict(zip(parsed.names, parsed.values.T.copy(), strict=True))
    for name in columns.cycles.dates:
        inputs[name] = _iso(inputs[name])
    for encoder in columns.categories:
        cells = table[encoder.name].to_numpy(object)
        inputs[encoder.name] = np.array(["" if is_missing(cell) else str(cell).strip() for cell in cells], dtype=object)
    return inputs


@dataclass(frozen=True, eq=False)
class _Network:
    """The network of an estimator and what follows it, as a function of features.

    Attributes:
        predict: from the inputs below to the prediction in the target's units.
        inputs: examples by name: features, and where variance is added outside the training range the distance from
            it, and the positions among the features of each row and of its values at the edge of the training range.
        example: the prediction of them.
    """

    predict: Callable[..., Predictive]
    inputs: dict[str, Tensor]
    example: Predictive

    @classmethod
    def of(cls, estimator: TableEstimator, samples: int, dtype: torch.dtype) -> _Network:
        model = copy.deepcopy(estimator.model_).cpu()
        predictor = model._predictor(samples, derive(estimator.seed_, DRAWS))
        freeze_draws(predictor, dtype)
        model.to(dtype)
        columns = estimator.columns_
        inputs = {_FEATURES: torch.randn(3, len(columns.feature_names), generator=torch.Generator()).to(dtype)}
        with torch.no_grad():
            function = as_function(predictor, inputs[_FEATURES])
            if isinstance(estimator, Regressor):
                predict = _regression(estimator, function, dtype)
                if _extrapolates(estimator):
                    inputs[_DISTANCE] = torch.zeros(3, len(columns.scaling.names), dtype=dtype)
                    if _noise_varies(function(inputs[_FEATURES])):
                        inputs[_DISTANCE] = inputs[_DISTANCE][:2]
                        inputs |= {_OWN: torch.arange(2), _EDGE: torch.tensor([0, 2])}
            else:
                assert isinstance(estimator, Classifier)
                predict = _classification(estimator, function)
            calibrated = _calibrated(predict, estimator)
            return cls(calibrated, inputs, calibrated(*inputs.values()))

    def trace(self, choice: OutputChoice) -> ModelProto:
        """The graph of the network, with all outputs."""
        uniform = uniform_weights(self.example)
        dimensions = dict.fromkeys(self.inputs, ROWS)
        if _EDGE in self.inputs:
            dimensions[_FEATURES] = "network_rows"
        graph = to_graph(
            lambda *inputs: traced_outputs(self.predict(*inputs), choice, uniform), self.inputs, dimensions
        )
        complete(graph, self.example, choice)
        return graph


def _regression(estimator: Regressor, function: PredictionFunction, dtype: torch.dtype) -> Callable[..., Predictive]:
    """The prediction of a quantity in its own units, as ``Regressor.predict_dist`` computes it."""
    target, family = estimator.target_, estimator.family_
    assert isinstance(target, RegressionTarget)  # one target, as was checked
    extrapolation = estimator.extrapolation_
    slopes = None if extrapolation is None else torch.from_numpy(2.0 * extrapolation.slope_variance).to(dtype)

    def predict(
        features: Tensor, distance: Tensor | None = None, own: Tensor | None = None, edge: Tensor | None = None
    ) -> Predictive:
        predictive = function(features)
        components = predictive.components.map(lambda t: t.squeeze(-1))
        if target.constant:
            same = components.map(lambda t: torch.zeros_like(t[:1]))
            return RealPredictive(same.rescaled(target.resolution, target.mean))  # type: ignore[attr-defined]
        if isinstance(components, GaussianComponents):
            extra = torch.zeros((), dtype=dtype)
            if distance is not None and slopes is not None:
                extra = (distance.square() * slopes).sum(-1)
            if own is not None and edge is not None:
                at_edge = components.map(lambda t: t.index_select(1, edge))
                part = "log_variance" if components.epistemic is None else "noise"
                components = components.map(lambda t: t.index_select(1, own))
                components = replace(components, **{part: getattr(at_edge, part)})
            components = split_noise(components, predictive.weights, extra)
        return replace(predictive, components=family.to_target_units(components))  # type: ignore[arg-type]

    return predict


def _extrapolates(estimator: Regressor) -> bool:
    return (
        estimator.extrapolation_ is not None
        and not estimator.target_.constant
        and bool(estimator.columns_.scaling.names)
    )


def _noise_varies(predictive: Predictive) -> bool:
    """Whether rows have different noise, so that it has to be computed at the edge of the training range too."""
    components = predictive.components
    if not isinstance(components, GaussianComponents):
        return False
    first = components.log_variance[:, :1]
    return not torch.equal(components.log_variance, first.expand_as(components.log_variance))


def _classification(estimator: Classifier, function: PredictionFunction) -> Callable[..., Predictive]:
    """The class probabilities in the order of ``classes_``."""
    return lambda features: estimator._to_classes(function(features))


def _calibrated(predict: Callable[..., Predictive], estimator: TableEstimator) -> Callable[..., Predictive]:
    calibrator = estimator.calibrator_
    return predict if calibrator is None else lambda *inputs: calibrator._apply(predict(*inputs))


def _join(graph: ModelProto, b: Builder, pre: Preprocessing, network: _Network, dtype: torch.dtype) -> None:
    """Put the preprocessing in front of the network; ``graph`` is changed."""
    from onnx import TensorProto, helper

    wide = TensorProto.DOUBLE if dtype == torch.float64 else TensorProto.FLOAT
    features, values = pre.features, dict[str, str]()
    if _DISTANCE in network.inputs:
        values[_DISTANCE] = b("Cast", pre.distance, to=wide)
    if _EDGE in network.inputs:
        from_edge = b("Cast", b("ReduceMax", b("Abs", pre.distance), b.axes(1), keepdims=0), to=TensorProto.BOOL)
        size = b("Shape", from_edge)
        rows = b("Range", np.array(0), b("Squeeze", size, b.axes(0)), np.array(1))
        outside = b("Squeeze", b("NonZero", from_edge), b.axes(0))
        count = b("CumSum", b("Cast", from_edge, to=TensorProto.INT64), np.array(0))
        place = b("Add", count, b("Sub", size, np.array([1])))
        features = b("Concat", features, b("Gather", pre.edge_features, outside), axis=0)
        values |= {_OWN: rows, _EDGE: b("Where", from_edge, place, rows)}
    values[_FEATURES] = b("Cast", features, to=wide)
    for name, value in values.items():
        b.nodes.append(helper.make_node("Identity", [value], [name]))
    nodes = [*b.nodes, *map(copy.deepcopy, graph.graph.node)]  # deleted ones are overwritten
    del graph.graph.node[:], graph.graph.input[:]
    graph.graph.node.extend(nodes)
    graph.graph.input.extend(pre.inputs)
    graph.graph.initializer.extend(b.constants.values())
    graph.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))


def _add_class(graph: ModelProto, classes: NDArray[Any]) -> None:
    """Add the output ``class``, the most probable label."""
    from onnx import helper

    b = Builder(np.float64, "class/")
    labels = classes.astype(object) if classes.dtype.kind in "UO" else classes
    best = b("ArgMax", "probabilities", axis=-1, keepdims=0)
    chosen = b("Gather", labels, best)
    b.nodes.append(helper.make_node("Identity", [chosen], ["class"]))
    kind = b.constants[b.constant(labels)].data_type
    graph.graph.node.extend(b.nodes)
    graph.graph.initializer.extend(b.constants.values())
    graph.graph.output.append(helper.make_tensor_value_info("class", kind, [ROWS]))


def _describe(estimator: TableEstimator, samples: int, choice: OutputChoice, precision: str) -> dict[str, str]:
    columns = estimator.columns_
    dates = columns.cycles.dates
    kinds = {name: "date" if name in dates else "number" for name in columns.scaling.names}
    kinds |= {encoder.name: "category" for encoder in columns.categories}
    description = {
        "estimator": type(estimator).__name__,
        "target": estimator.target_.name,
        "method": estimator.method_,
        "samples": str(samples),
        "precision": precision,
        "columns": json.dumps(kinds),
        "quantiles": json.dumps(list(choice.quantiles)),
        "level": json.dumps(choice.level),
    }
    if isinstance(estimator, Classifier):
        description["classes"] = json.dumps([str(label) for label in estimator.classes_])
    return description


def _iso(days: NDArray[np.float64]) -> NDArray[Any]:
    """Days since 1970 as texts in ISO 8601, empty for NaN."""
    known = np.isfinite(days)
    micro = np.round(np.where(known, days, 0.0) * 8.64e10).astype("datetime64[us]")
    texts = np.datetime_as_string(micro).astype(object)
    texts[~known] = ""
    return texts
