"""The named outputs of an exported prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from credo._arguments import check_fraction
from credo.errors import InputError, UnsupportedError
from credo.export.builder import Builder, Value, element_type
from credo.export.graphs import ROWS
from credo.export.quantiles import MixtureNodes, add_quantiles, add_recalibrated_moments, as_mixture
from credo.predictive import Predictive
from credo.predictive.calibrated import ConformalPredictive
from credo.predictive.classes import ClassPredictive
from credo.predictive.components import RealComponents
from credo.predictive.recalibrated import RecalibratedPredictive

if TYPE_CHECKING:
    from onnx import ModelProto

_LOCATION, _SCALE = "mixture_location", "mixture_scale"


@dataclass(frozen=True)
class OutputChoice:
    """What a graph outputs beside the moments.

    Attributes:
        quantiles: the levels of the quantiles; none: there is no such output.
        level: the probability of the interval; ``None``: there is no such output.
    """

    quantiles: tuple[float, ...] = (0.05, 0.5, 0.95)
    level: float | None = 0.95

    @classmethod
    def check(cls, quantiles: object, level: float | None) -> OutputChoice:
        """The choice, or ``InputError`` for levels that are not between 0 and 1."""
        if isinstance(quantiles, str) or not isinstance(quantiles, Sequence):
            raise InputError(f"quantiles must be levels such as (0.05, 0.5, 0.95), got {quantiles!r}")
        levels = tuple(check_fraction(q, "quantiles") for q in quantiles)
        return cls(levels, None if level is None else check_fraction(level, "level"))

    def levels(self, predictive: Predictive) -> list[float]:
        """The levels whose quantiles are needed: those of the output, then those of the interval."""
        has_own = self.level is None or isinstance(predictive, ConformalPredictive)
        ends = [] if has_own or self.level is None else [(1 - self.level) / 2, (1 + self.level) / 2]
        return [*self.quantiles, *ends]


def uniform_weights(predictive: Predictive) -> Tensor:
    """1/S for each of S draws, as a constant: torch would write the number 1/S of a trace in single precision."""
    return torch.full((predictive.n_draws,), 1.0 / predictive.n_draws, dtype=predictive.draws.dtype)


def traced_outputs(predictive: Predictive, choice: OutputChoice, uniform: Tensor) -> dict[str, Tensor]:
    """What is computed by PyTorch's operations, to be completed by :func:`complete`.

    Args:
        predictive: the prediction of B rows.
        choice: the quantiles and the interval.
        uniform: what :func:`uniform_weights` returned before the trace.

    Returns:
        For classes ``probabilities``, ``entropy`` and ``mutual_information``; otherwise ``mean`` and the variances
        ``epistemic`` and ``aleatoric``, the interval if it is conformal, and the mixture if quantiles are needed.
    """
    if isinstance(predictive, ClassPredictive):
        if predictive.weights is None and predictive.n_draws > 1:
            predictive = replace(predictive, weights=uniform)
        return {
            "probabilities": predictive.mean,
            "entropy": predictive.entropy,
            "mutual_information": predictive.mutual_information,
        }
    moments = predictive.base if isinstance(predictive, RecalibratedPredictive) else predictive
    outputs = {"mean": moments.mean, "epistemic": moments.epistemic, "aleatoric": moments.aleatoric}
    if choice.level is not None and isinstance(predictive, ConformalPredictive):
        lower, upper = predictive.interval(choice.level)
        outputs |= {"lower": lower, "upper": upper}
    if choice.levels(predictive) or isinstance(predictive, RecalibratedPredictive):
        assert isinstance(predictive.components, RealComponents)
        mixture = as_mixture(predictive.components)
        shape = torch.broadcast_shapes(mixture.location.shape, mixture.scale.shape)
        outputs |= {_LOCATION: mixture.location.expand(shape) + 0.0, _SCALE: mixture.scale.expand(shape) + 0.0}
    return outputs


def complete(model: ModelProto, predictive: Predictive, choice: OutputChoice) -> None:
    """Add standard deviations, quantiles and recalibration to a graph of :func:`traced_outputs`.

    Args:
        model: the graph, which is changed.
        predictive: the prediction of a few rows.
        choice: the quantiles and the interval.
    """
    if isinstance(predictive, ClassPredictive):
        return
    graph = model.graph
    b = Builder(np.float64 if predictive.draws.dtype == torch.float64 else np.float32, "outputs/")
    found = {output.name: output for output in graph.output}
    mean, epistemic, aleatoric = (_hidden(model, name) for name in ("mean", "epistemic", "aleatoric"))
    outputs: dict[str, Value] = {}
    if _LOCATION in found:
        components = predictive.components
        assert isinstance(components, RealComponents)
        mixture, draws = as_mixture(components), predictive.n_draws
        weights = np.full(draws, 1.0 / draws) if predictive.weights is None else predictive.weights.numpy()
        nodes = MixtureNodes(mixture.family, _LOCATION, _SCALE, weights, mixture.location.ndim)
        levels = choice.levels(predictive)
        if isinstance(predictive, RecalibratedPredictive):
            if mixture.is_log:
                raise UnsupportedError(
                    "recalibrated log-normal targets cannot be exported: use calibrate='variance' or 'conformal'"
                )
            mean, epistemic, aleatoric = add_recalibrated_moments(
                b, nodes, predictive.levels, mean, epistemic, aleatoric
            )
            levels = _inverse_levels(predictive, levels)
        outputs = _add_levels(b, nodes, levels, choice, mixture.is_log)
    for name, variance in {"epistemic": epistemic, "aleatoric": aleatoric}.items():
        outputs[name] = b("Sqrt", variance)
    outputs = {"mean": mean, "std": b("Sqrt", b("Add", epistemic, aleatoric))} | outputs
    shape = [ROWS, *predictive.mean.shape[1:]]
    shapes = {name: [*shape, len(choice.quantiles)] if name == "quantiles" else shape for name in outputs}
    _replace_outputs(model, b, outputs, shapes)


def _add_levels(
    b: Builder, nodes: MixtureNodes, levels: Sequence[float], choice: OutputChoice, is_log: bool
) -> dict[str, Value]:
    """The outputs ``quantiles``, ``lower`` and ``upper``."""
    if not levels:
        return {}
    found = add_quantiles(b, nodes, levels)
    if is_log:
        found = b("Exp", found)
    outputs, count = {}, len(choice.quantiles)
    if count:
        order = [*range(1, nodes.dims), 0]
        outputs["quantiles"] = b("Transpose", b("Gather", found, np.arange(count)), perm=order)
    if len(levels) > count:
        outputs |= {name: b("Gather", found, np.array(count + i)) for i, name in enumerate(("lower", "upper"))}
    return outputs


def _inverse_levels(predictive: RecalibratedPredictive, levels: Sequence[float]) -> list[float]:
    inverse = predictive.levels.inverse(torch.tensor(levels, dtype=torch.float64))
    limits = torch.finfo(torch.float64)
    return [float(level) for level in inverse.clamp(limits.tiny, 1 - limits.eps / 2)]


def _hidden(model: ModelProto, name: str) -> Value:
    """The value of an output, under another name."""
    hidden = f"traced_{name}"
    for node in model.graph.node:
        node.output[:] = [hidden if output == name else output for output in node.output]
        node.input[:] = [hidden if value == name else value for value in node.input]
    for initializer in model.graph.initializer:
        if initializer.name == name:
            initializer.name = hidden
    return hidden


def _replace_outputs(
    model: ModelProto, b: Builder, outputs: dict[str, Value], shapes: Mapping[str, Sequence[str | int]]
) -> None:
    """Add the nodes of ``b``, and declare ``outputs``; of those of the graph, a conformal interval is kept."""
    from onnx import helper

    graph = model.graph
    kept = [output for output in graph.output if output.name in ("lower", "upper")]
    for name, value in outputs.items():
        b.nodes.append(helper.make_node("Identity", [value], [name]))
    graph.node.extend(b.nodes)
    graph.initializer.extend(b.constants.values())
    del graph.output[:]
    kind = element_type(b.dtype)
    graph.output.extend([*(helper.make_tensor_value_info(name, kind, shapes[name]) for name in outputs), *kept])
