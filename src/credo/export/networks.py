"""Export of methods with a network: inputs of the network go in, the predictive distribution comes out."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from credo import data as data_
from credo.errors import InputError
from credo.export.graphs import check_extra, check_inputs, to_graph, write_graph
from credo.export.outputs import OutputChoice, complete, traced_outputs, uniform_weights
from credo.export.predictions import as_function
from credo.methods.base import Method
from credo.nests import count_rows, map_tensors
from credo.seeding import check_seed

_MIN_ROWS = 2


def export_network(
    method: Method,
    path: str | Path,
    x: Any,
    *,
    samples: int | str = 100,
    seed: int | None = 0,
    quantiles: Sequence[float] = (0.05, 0.5, 0.95),
    level: float | None = 0.95,
) -> None:
    """Write a method's prediction as an ONNX graph; see :meth:`credo.Method.export`.

    Args:
        method: a fitted method.
        path: the file.
        x: a few rows of inputs, for their names, shapes and types.
        samples: the number of draws.
        seed: of the draws.
        quantiles: the levels of the output ``quantiles``.
        level: the probability of the interval from ``lower`` to ``upper``; ``None``: without it.

    Raises:
        InputError: the extra ``onnx`` is not installed, or an argument is not valid.
        UnsupportedError: the prediction needs operations that ONNX does not have.
    """
    check_extra()
    choice, seed = OutputChoice.check(quantiles, level), check_seed(seed)
    method = _on_cpu(method)
    x = data_.prepare_input(x, method.device, method.dtype)
    if count_rows(x) < _MIN_ROWS:
        raise InputError(f"x must hold at least {_MIN_ROWS} rows as an example, got {count_rows(x)}")
    x = map_tensors(lambda t: t[:_MIN_ROWS].clone(), x)
    predictor = method._predictor(samples, seed)
    with torch.no_grad():
        predictor(x)  # what the method checks on a first batch
        function = as_function(predictor, x)
        example = function(x)
        uniform = uniform_weights(example)
    leaves, structure = pytree.tree_flatten(x)
    inputs = dict(zip(_names(x), leaves, strict=True))

    def outputs(*leaves: Tensor) -> dict[str, Tensor]:
        return traced_outputs(function(pytree.tree_unflatten(leaves, structure)), choice, uniform)

    graph = to_graph(outputs, inputs)
    complete(graph, example, choice)
    check_inputs(list(inputs), [output.name for output in graph.graph.output])
    description = {
        "method": type(method).__name__,
        "samples": str(samples),
        "seed": str(seed),
        "quantiles": json.dumps(list(choice.quantiles)),
        "level": json.dumps(choice.level),
    }
    write_graph(graph, path, description)


def _on_cpu(method: Method) -> Method:
    """The method, or a copy on the CPU, where graphs are traced."""
    return method if method.device.type == "cpu" else copy.deepcopy(method).cpu()


def _names(x: Any) -> list[str]:
    """The names of the inputs: keys of a mapping; ``x``, or ``x0``, ``x1`` and so on."""
    if isinstance(x, Mapping):
        return [str(key) for key in x]
    count = len(pytree.tree_leaves(x))
    return ["x"] if count == 1 else [f"x{i}" for i in range(count)]
