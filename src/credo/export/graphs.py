"""From a function of tensors to an ONNX graph, and from a graph to a file."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from credo._files import atomic_file
from credo._version import __version__
from credo.errors import InputError, UnsupportedError, missing_extra

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto

OPSET = 20
"""The first version of ONNX's operators that can match texts against a pattern."""
ROWS = "rows"
"""The name of the dimension that counts rows."""
_INPUT, _OUTPUT = "credo_input_", "credo_output_"
_MAX_BYTES = 2**31 - 2**20  # of a file of protocol buffers


def check_extra() -> None:
    """Raise ``InputError`` unless the libraries of the extra ``onnx`` are installed."""
    try:
        import onnx
        import onnxscript
    except ImportError as error:
        raise missing_extra("export", "onnx", error) from error
    assert onnx
    assert onnxscript


class Traced(nn.Module):
    """A function of tensors that returns tensors by name, as a module."""

    def __init__(self, function: Callable[..., Mapping[str, Tensor]]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The outputs in the order of their names."""
        return tuple(self._function(*inputs).values())


def to_graph(
    function: Callable[..., Mapping[str, Tensor]],
    inputs: Mapping[str, Tensor],
    dimensions: Mapping[str, str] | None = None,
) -> ModelProto:
    """Trace a function.

    Args:
        function: takes tensors in the order of ``inputs`` and returns tensors by name.
        inputs: examples of at least two rows, by name.
        dimensions: the name of the first dimension of each input; those of the same name are equal. ``None``: all are
            ``rows``.

    Returns:
        The graph, with inputs and outputs of these names.

    Raises:
        UnsupportedError: the function uses operations that ONNX does not have.
    """
    dims = {name: torch.export.Dim(name) for name in dict.fromkeys((dimensions or {ROWS: ROWS}).values())}
    names = dimensions or dict.fromkeys(inputs, ROWS)
    shapes = (tuple({0: dims[names[name]]} for name in inputs),)
    with torch.no_grad():
        outputs = list(function(*inputs.values()))
        try:
            with _silence():
                traced = torch.export.export(
                    Traced(function), tuple(inputs.values()), dynamic_shapes=shapes, strict=False
                )
                program = torch.onnx.export(
                    traced,
                    dynamo=True,
                    input_names=[_INPUT + name for name in inputs],
                    output_names=[_OUTPUT + name for name in outputs],
                    opset_version=OPSET,
                    verbose=False,
                    custom_translation_table={
                        torch.ops.aten.scalar_tensor.default: _scalar_tensor,
                        torch.ops.aten.new_full.default: _new_full,
                    },
                )
        except Exception as error:  # torch raises whatever the operation that it fails on raises
            reason = str(error).strip().splitlines() or [type(error).__name__]
            raise UnsupportedError(
                f"the prediction cannot be written as an ONNX graph: {reason[0][:300]}; use a network of other "
                "layers, or distill the model into one: credo.distill"
            ) from error
    assert program is not None
    model = program.model_proto
    _rename(model.graph, _final_name)
    return model


def _scalar_tensor(s: float, dtype: int = 1, layout: str = "", device: str = "", pin_memory: bool = False) -> Any:
    """A number as a constant of its type; torch itself writes numbers of a trace in single precision."""
    from onnx import helper
    from onnxscript import opset20

    return opset20.Constant(value=helper.make_tensor("", dtype, [], [s]))


def _new_full(like: Any, size: Any, fill_value: float, pin_memory: bool = False) -> Any:
    """A constant number, such as the noise of a likelihood, in the type of ``like``; see :func:`_scalar_tensor`."""
    from onnx import TensorProto
    from onnxscript import opset20

    number = opset20.CastLike(_scalar_tensor(fill_value, TensorProto.DOUBLE), like)
    return opset20.Expand(number, size) if len(size) else number


def _final_name(name: str) -> str:
    """Names of inputs and outputs as they were given; others, which torch may have called alike, in a space apart."""
    for prefix in (_INPUT, _OUTPUT):
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return f"network/{name}"


def write_graph(model: ModelProto, path: str | Path, description: Mapping[str, str]) -> None:
    """Check a graph and write it to a file, with what is known about it.

    Args:
        model: the graph.
        path: the file; it is written completely or not at all.
        description: texts by name, which ONNX Runtime shows as ``get_modelmeta().custom_metadata_map``.

    Raises:
        InputError: the graph is larger than a file of ONNX can be.
    """
    import onnx

    if model.ByteSize() > _MAX_BYTES:
        raise InputError(
            f"the graph takes {model.ByteSize() / 2**30:.1f} GiB, and an ONNX file at most 2: export fewer draws "
            "(samples=...), or distill the model: credo.distill"
        )
    onnx.helper.set_model_props(model, {"credo": __version__, **description})
    model.producer_name, model.producer_version = "credo", __version__
    onnx.checker.check_model(model)
    with atomic_file(path) as part:
        part.write_bytes(model.SerializeToString())


def _rename(graph: GraphProto, new: Callable[[str], str]) -> None:
    """Rename the values of a graph and its subgraphs; empty names are absent values."""
    for node in graph.node:
        node.input[:] = [new(name) if name else name for name in node.input]
        node.output[:] = [new(name) if name else name for name in node.output]
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _rename(attribute.g, new)
    for value in (*graph.input, *graph.output, *graph.initializer):
        value.name = new(value.name)
    del graph.value_info[:]


def check_inputs(names: Sequence[str], outputs: Sequence[str]) -> None:
    """Raise ``InputError`` if an input has the name of an output."""
    taken = sorted(set(names) & set(outputs))
    if taken:
        raise InputError(f"inputs have the names of outputs, {', '.join(taken)}: rename these columns before training")


@contextmanager
def _silence() -> Iterator[None]:
    """No warnings of torch about its own code, and about libraries that are not used."""
    registration: Any = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = registration.level
    registration.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        registration.setLevel(level)
