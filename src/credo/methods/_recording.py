"""A function of tensors as the list of its tensor operations, without the Python code that called them.

A small network costs more to call than to compute: modules, ``vmap`` and autograd take about half of the time. What
they call in the end is a list of operations, the same for all inputs of one shape, as long as the function does not
branch on values. This is what ``make_fx`` of ``torch.fx`` does; written down from the calls alone it takes a tenth of
the time.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

Function = Callable[..., tuple[Tensor, ...]]

_RESHAPING = (torch.ops.aten.view.default, torch.ops.aten.expand.default, torch.ops.aten._unsafe_view.default)


def record(function: Function, *arguments: Tensor) -> Function:
    """``function`` for tensors of the shapes of ``arguments``.

    Args:
        function: returns detached tensors; must not depend on the values of its arguments in any other way than
            through tensor operations, nor read them.
        arguments: what to call it with.

    Returns:
        A function with the same results, which tensors other than its arguments enter as they are now.

    Raises:
        RuntimeError: the function reads a value.
    """
    tape = _Tape(arguments)
    with tape:
        results = function(*arguments)
    return tape.finish(results)


class _Tape(TorchDispatchMode):
    """Writes every operation that reaches the dispatcher into a graph."""

    def __init__(self, arguments: tuple[Tensor, ...]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._graph = fx.Graph()
        self._constants: dict[str, Tensor] = {}
        self._kept: list[Tensor] = []
        self._nodes: dict[int, fx.Node] = {}
        for i, argument in enumerate(arguments):
            self._name(argument, self._graph.placeholder(f"argument_{i}"))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.data_dependent_output in func.tags:
            raise RuntimeError(f"{func} reads a value, which a recording cannot")
        out = func(*args, **kwargs)
        if func.namespace == "profiler":
            return out
        if isinstance(out, Tensor) and args and _returns_its_input(func, args, out):
            self._name(out, self._node(args[0]))
            return out
        written = pytree.tree_map_only(Tensor, self._node, (args, kwargs))
        node = self._graph.call_function(func, *written)
        if isinstance(out, Tensor):
            self._name(out, node)
        else:
            for i, part in enumerate(out or ()):
                if isinstance(part, Tensor):
                    self._name(part, self._graph.call_function(operator.getitem, (node, i)))
        return out

    def finish(self, results: tuple[Tensor, ...]) -> fx.GraphModule:
        """What was recorded, as a function that returns ``results``."""
        self._graph.output(tuple(self._node(result) for result in results))
        self._graph.eliminate_dead_code()
        return fx.GraphModule(self._constants, self._graph)

    def _name(self, tensor: Tensor, node: fx.Node) -> None:
        self._kept.append(tensor)  # while it lives, its id is its own
        self._nodes[id(tensor)] = node

    def _node(self, tensor: Tensor) -> fx.Node:
        if id(tensor) not in self._nodes:
            name = f"constant_{len(self._constants)}"
            self._constants[name] = tensor.detach()
            self._name(tensor, self._graph.get_attr(name))
        return self._nodes[id(tensor)]


def _returns_its_input(func: Any, args: Any, out: Tensor) -> bool:
    """Whether an operation changes nothing: ``vmap`` and autograd leave many of them."""
    before = args[0]
    if not isinstance(before, Tensor) or before.shape != out.shape or before.dtype != out.dtype:
        return False
    return (
        func is torch.ops.aten.detach.default
        or (func is torch.ops.aten.mul.Scalar and args[1] == 1)
        or func in _RESHAPING
    )
