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

_aten = torch.ops.aten


def outer_products(a: Tensor, b: Tensor) -> Tensor:
    """``bmm`` of columns ``[K, n, 1]`` and rows ``[K, 1, m]``, as a broadcast product."""
    return a * b


def matrix_vector_products(a: Tensor, b: Tensor) -> Tensor:
    """``bmm`` of matrices ``[K, n, p]`` and columns ``[K, p, 1]``, as rows times transposed matrices."""
    return torch.bmm(b.mT, a.mT).mT


_ALLOCATING = (_aten.bmm.default, _aten.mm.default, _aten.add_.Tensor, outer_products, matrix_vector_products)
"""Operations whose results are new memory, or a change to such a result that nothing else reads."""
_IN_PLACE = {
    _aten.relu.default: _aten.relu_.default,
    _aten.tanh.default: _aten.tanh_.default,
    _aten.sigmoid.default: _aten.sigmoid_.default,
}
_INTO_GRADIENT = {
    _aten.threshold_backward.default: _aten.threshold_backward.grad_input,
    _aten.tanh_backward.default: _aten.tanh_backward.grad_input,
    _aten.sigmoid_backward.default: _aten.sigmoid_backward.grad_input,
}
"""Elementwise operations that can write over their first argument."""
_KIND = "kind"
"""Under which a node keeps the shape and dtype of its result."""

_RESHAPING = (_aten.view.default, _aten.expand.default, _aten._unsafe_view.default)


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
        node = self._graph.call_function(_faster(func, args), *written)
        if isinstance(out, Tensor):
            node.meta[_KIND] = (out.shape, out.dtype)
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
        for node in self._graph.nodes:
            _write_in_place(node)
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


def _faster(func: Any, args: Any) -> Any:
    """A function with the results of ``func``: on a CPU ``bmm`` takes 4 to 12 times as long where a size is 1.

    These are the products of a last layer with one output: 0.33, 0.38 and 0.46 of the 1.4 ms that all products of a
    gradient took, for 8 chains of 8-50-1 on 927 rows.
    """
    if func is not _aten.bmm.default or args[0].device.type != "cpu":
        return func
    if args[0].shape[2] == 1:
        return outer_products
    return matrix_vector_products if args[1].shape[2] == 1 else func


def _write_in_place(node: fx.Node) -> None:
    """Let an elementwise operation write over the product of matrices that nothing else reads.

    The numbers are the same. Results of a hidden layer for all chains are a few MB, more than a processor's cache, and
    new memory costs as much as the operation.
    """
    if node.target is _aten.add.Tensor and not node.kwargs and len(node.args) == 2:
        for written, other in (node.args, node.args[::-1]):
            if _is_free(written, node):
                node.target, node.args = _aten.add_.Tensor, (written, other)
                return
    elif node.target in _IN_PLACE and _is_free(node.args[0], node):
        node.target = _IN_PLACE[node.target]
    elif node.target in _INTO_GRADIENT and _is_free(node.args[0], node):
        node.target = _INTO_GRADIENT[node.target]
        node.kwargs = {**node.kwargs, "grad_input": node.args[0]}


def _is_free(argument: Any, node: fx.Node) -> bool:
    """Whether ``argument`` is new memory of the kind of the result of ``node``, and read by ``node`` alone."""
    return (
        isinstance(argument, fx.Node)
        and argument.target in _ALLOCATING
        and len(argument.users) == 1
        and argument.meta[_KIND] == node.meta.get(_KIND)
    )


def _returns_its_input(func: Any, args: Any, out: Tensor) -> bool:
    """Whether an operation changes nothing: ``vmap`` and autograd leave many of them."""
    before = args[0]
    if not isinstance(before, Tensor) or before.shape != out.shape or before.dtype != out.dtype:
        return False
    return func is _aten.detach.default or (func is _aten.mul.Scalar and args[1] == 1) or func in _RESHAPING
