"""Nodes of an ONNX graph written as calls, one after the other."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto

Value = str
"""The name of a value in the graph."""

Operand = str | NDArray[Any] | float


class Builder:
    """Collects the nodes of a graph.

    ``b("Add", x, 1.5)`` adds a node and returns the name of its output. Operands are names of values, arrays, which
    become constants of the graph, or floats, which become constants of its type.

    Args:
        dtype: of constants that are given as floats.
        prefix: of the names of new values.
        parent: the builder of the graph around a subgraph, with which it shares names and constants.
    """

    def __init__(self, dtype: Any, prefix: str = "", parent: Builder | None = None) -> None:
        self.nodes: list[NodeProto] = []
        self.dtype = np.dtype(dtype)
        self._prefix: str = prefix if parent is None else parent._prefix
        self.constants: dict[str, TensorProto] = {} if parent is None else parent.constants
        self._numbers: Iterator[int] = itertools.count() if parent is None else parent._numbers
        self._by_content: dict[Any, str] = {} if parent is None else parent._by_content

    def __call__(self, kind: str, *operands: Operand, domain: str = "", **attributes: Any) -> Value:
        """Add a node with one output."""
        return self.several(kind, 1, *operands, domain=domain, **attributes)[0]

    def several(self, kind: str, outputs: int, *operands: Operand, domain: str = "", **attributes: Any) -> list[Value]:
        """Add a node with several outputs."""
        from onnx import helper

        names = [self.fresh(kind) for _ in range(outputs)]
        inputs = [operand if isinstance(operand, str) else self.constant(operand) for operand in operands]
        self.nodes.append(helper.make_node(kind, inputs, names, domain=domain, **attributes))
        return names

    def fresh(self, kind: str) -> Value:
        """A name that no other value has."""
        return f"{self._prefix}{kind}_{next(self._numbers)}"

    def inner(self) -> Builder:
        """A builder of a subgraph."""
        return Builder(self.dtype, parent=self)

    def constant(self, value: NDArray[Any] | float | Sequence[int]) -> Value:
        """The name of a constant; equal ones are stored once."""
        from onnx import numpy_helper

        array = np.asarray(value, dtype=self.dtype) if isinstance(value, float) else np.asarray(value)
        content = tuple(array.ravel().tolist()) if array.dtype == object else array.tobytes()
        key = (array.dtype.str, array.shape, content)
        if key not in self._by_content:
            name = self.fresh("constant")
            self.constants[name] = numpy_helper.from_array(array, name)
            self._by_content[key] = name
        return self._by_content[key]

    def axes(self, *axes: int) -> NDArray[np.int64]:
        """Axes as the operand that operators expect."""
        return np.array(axes, dtype=np.int64)

    def subgraph(self, name: str, inputs: Sequence[ValueInfoProto], outputs: Sequence[Value]) -> GraphProto:
        """The nodes as a subgraph, whose outputs have no declared types."""
        from onnx import helper

        declared = [helper.make_empty_tensor_value_info(output) for output in outputs]
        return helper.make_graph(self.nodes, name, list(inputs), declared)


def element_type(dtype: Any) -> int:
    """The number of a NumPy dtype in ONNX."""
    from onnx import helper

    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
