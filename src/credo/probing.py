"""How a network treats a batch, found out by running it on a few rows.

A network does not declare which dimension of an activation counts the rows, whether rows see each other, or whether
drawn weights reach the computation at all. Changing one row and watching what changes with it does.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.overrides import TorchFunctionMode

from credo.errors import UnsupportedError
from credo.nests import map_tensors, tensors
from credo.seeding import RandomnessError

ROWS = 3
"""Rows of the batch that a network is tried on: enough for a first, a last and one between."""
_FURTHER_DIMS = 2


_STANCE = threading.RLock()
"""torch's stance is one for the whole process: threads that changed it in turns would restore each other's."""


@contextmanager
def eager() -> Iterator[None]:
    """Run compiled parts of a network as plain Python inside the block, so that it can be watched."""
    if "torch._dynamo" not in sys.modules:
        yield
        return
    with _STANCE, torch.compiler.set_stance("force_eager"):
        yield


class RowDim(NamedTuple):
    """Where the rows are in a tensor.

    Attributes:
        dim: the dimension that counts them.
        order: ``"only"`` where it counts nothing else; ``"major"`` where it counts the m parts of the first row, then
            those of the second, …; ``"minor"`` where it counts the first part of all rows, then the second, …
    """

    dim: int
    order: str = "only"

    def split(self, shape: Sequence[int], rows: int) -> tuple[list[int], list[int]] | None:
        """A view of a tensor of ``shape`` with the rows in a dimension of their own, and that view for one row.

        ``None`` where ``shape`` does not have that many rows there.
        """
        if rows == 0 or self.dim >= len(shape) or shape[self.dim] % rows:
            return None
        parts = shape[self.dim] // rows
        before, after = list(shape[: self.dim]), list(shape[self.dim + 1 :])
        if parts == 1:
            return list(shape), [*before, 1, *after]
        if self.order == "only":
            return None
        if self.order == "major":
            return [*before, rows, parts, *after], [*before, 1, parts, *after]
        return [*before, parts, rows, *after], [*before, parts, 1, *after]


class RowTrace(NamedTuple):
    """Where the rows of a batch are found.

    Attributes:
        input_dim: the dimension of the inputs that counts them.
        output: where they are in the output.
        inside: where they are in each tensor that was watched; ``None`` for tensors that no row changes.
    """

    input_dim: int
    output: RowDim
    inside: list[RowDim | None]


def trace_rows(run: Callable[[Any], tuple[Tensor, Sequence[Tensor]]], x: Any) -> RowTrace | None:
    """Find the rows of a batch, or ``None`` where each output depends on several: then there is one datum, the batch.

    A row is a slice of the inputs that changes a slice of the output and nothing else. Rows along dim 0, the contract
    of the library, are tried first, then other dimensions, for networks with time in front.

    Args:
        run: from a batch to the output and the tensors to watch, in the same order each time; must not be random.
        x: a batch, a tensor or a nest of tensors.
    """
    leaves = tensors(x)
    dims = min(leaf.dim() - int(leaf.is_floating_point()) for leaf in leaves)  # the last dim of numbers is no row
    for dim in range(max(1, min(1 + _FURTHER_DIMS, dims))):
        sizes = {leaf.shape[dim] if leaf.dim() and leaf.layout == torch.strided else -1 for leaf in leaves}
        if len(sizes) > 1 or sizes <= {0, -1} or (dim > 0 and sizes == {1}):
            continue  # a single row along dim 0 is repeated below; other dimensions stay as they are
        trace = _trace_along(run, map_tensors(few_rows, x) if dim == 0 else x, dim)
        if trace is not None:
            return trace
    return None


def check_weights_are_used(
    call: Callable[[dict[str, Tensor], Any], Tensor], net: nn.Module, x: Any, backward: bool
) -> None:
    """Raise ``UnsupportedError`` if a forward pass does not compute with the weights it is called with.

    A forward that is a lambda or a compiled function over the original modules keeps using *their* parameters, however
    the network is copied or called. So does a function under gradient checkpointing when a backward pass runs it again.

    Args:
        call: calls a copy of the network with weights by name.
        net: the copy.
        x: a batch.
        backward: whether a backward pass will follow.
    """
    own = dict(net.named_parameters())
    names = {id(parameter): name for name, parameter in own.items()}
    given = {name: p.detach().requires_grad_() for name, p in own.items() if p.is_floating_point() or p.is_complex()}
    try:
        with torch.enable_grad(), eager(), _WatchCheckpoints() as watch:
            output = call(given, map_tensors(Tensor.detach, x))  # x may itself be an output, as of an encoder
    except RandomnessError:
        raise
    except Exception:  # whatever it is, the call that this one is a rehearsal for will meet it too
        return
    nodes = list(_graph(output))
    if backward and (watch.seen or any(node.name() == "CheckpointFunctionBackward" for node in nodes)):
        raise UnsupportedError(
            "the network uses gradient checkpointing, which would recompute activations with other weights than the "
            "forward pass drew; switch it off in the network"
        )
    leaves = (getattr(node, "variable", None) for node in nodes)
    missed = sorted(
        names.get(id(leaf), "a parameter of another network") for leaf in leaves if isinstance(leaf, nn.Parameter)
    )
    if missed:
        raise UnsupportedError(
            f"weights given to the network do not reach its computation, which uses {', '.join(missed[:3])} itself: "
            "its forward holds on to modules that are not its own, as a lambda over self does in a copy of it, or "
            "net.forward = torch.compile(net.forward). Make forward a method of the class, build each network of an "
            "ensemble by a factory, and compile the training step with fit(compile=True)"
        )


@torch.no_grad()
def order_of_calls(run: Callable[[Any], Tensor], net: nn.Module, paths: Sequence[str], x: Any) -> list[str]:
    """The modules of a network in the order in which a forward pass calls them; those it does not call are left out.

    Args:
        run: calls the network.
        net: the network that is called.
        paths: the modules to watch.
        x: a batch.

    Returns:
        Paths, one per call.
    """
    called: list[str] = []
    handles = [
        net.get_submodule(path).register_forward_pre_hook(lambda *_, path=path: called.append(path)) for path in paths
    ]
    try:
        with eager():
            run(x)
    finally:
        for handle in handles:
            handle.remove()
    return called


def _trace_along(run: Callable[[Any], tuple[Tensor, Sequence[Tensor]]], x: Any, dim: int) -> RowTrace | None:
    before, rows = run(x), tensors(x)[0].shape[dim]
    changed = []
    for index in (0, rows - 1):
        moved = map_tensors(partial(_perturb, dim=dim, index=index), x)
        output, inside = run(moved)
        if len(inside) != len(before[1]):
            return None
        changed.append([_difference(a, b) for a, b in zip([before[0], *before[1]], [output, *inside], strict=True)])
    found = [_find_row_dim(first, last, rows) for first, last in zip(*changed, strict=True)]
    output_dim = found[0]
    if output_dim is None and not changed[0][0].any() and not changed[1][0].any() and dim == 0:
        output_dim = RowDim(0)  # nothing can be seen to change: the contract holds
        if before[0].dim() == 0 or before[0].shape[0] != rows:
            return None
    return None if output_dim is None else RowTrace(dim, output_dim, found[1:])


def _find_row_dim(first: Tensor, last: Tensor, rows: int) -> RowDim | None:
    """Where the rows are, given what changes with the first row and what with the last."""
    if not (first.any() or last.any()):
        return None
    for dim, size in enumerate(first.shape):
        if size == 0 or size % rows:
            continue
        places = [(i, 0) for i in _places(first, dim)] + [(i, rows - 1) for i in _places(last, dim)]
        if all(i // (size // rows) == row for i, row in places):
            return RowDim(dim, "only" if size == rows else "major")
        if all(i % rows == row for i, row in places):
            return RowDim(dim, "minor")
    return None


def _places(changed: Tensor, dim: int) -> list[int]:
    others = [d for d in range(changed.dim()) if d != dim]
    found: list[int] = (changed.any(dim=others) if others else changed).nonzero()[:, 0].tolist()
    return found


def _difference(a: Tensor, b: Tensor) -> Tensor:
    """Which elements differ by more than rounding; all of them where the shapes do."""
    if a.shape != b.shape:
        return torch.ones(a.shape, dtype=torch.bool, device=a.device)
    if not a.is_floating_point() or a.numel() == 0:
        return a != b
    size = a.nan_to_num(0.0, 0.0, 0.0).abs().amax()
    return ~((a - b).abs() <= 16 * torch.finfo(a.dtype).eps * size) & ~(a.isnan() & b.isnan())


def few_rows(tensor: Tensor) -> Tensor:
    """The first :data:`ROWS` rows, repeated where there are too few."""
    return tensor[torch.arange(ROWS, device=tensor.device) % tensor.shape[0]]


def _perturb(tensor: Tensor, dim: int, index: int) -> Tensor:
    """``tensor`` with slice ``index`` along ``dim`` changed, to values like those it holds."""
    row = tensor.select(dim, index)
    neighbor = tensor.select(dim, 1)
    if tensor.is_floating_point() or tensor.is_complex():
        source = torch.Generator().manual_seed(index)
        noise = torch.rand(row.shape, generator=source).to(row.device, row.dtype) + 0.5
        candidates = [(row + neighbor) / 2, row * (1.0 + 0.1 * noise), row + 0.1 * noise]
    elif tensor.dtype == torch.bool:
        return tensor
    else:
        candidates = [row.flatten().roll(1).view(row.shape), neighbor]
    new = next((c for c in candidates if not torch.equal(c, row)), row)
    moved = tensor.clone()
    moved.select(dim, index).copy_(new)
    return moved


class _WatchCheckpoints(TorchFunctionMode):
    """Sees operations inside ``torch.utils.checkpoint.checkpoint``, which keeps saved tensors back by hooks."""

    seen = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
        self.seen |= hooks is not None and "_checkpoint_hook" in getattr(hooks[0], "__qualname__", "")
        return func(*args, **(kwargs or {}))


def _graph(output: Tensor) -> Iterator[Node]:
    """The nodes of the graph that ``output`` was computed by."""
    stack = [] if output.grad_fn is None else [output.grad_fn]
    seen = set(stack)
    while stack:
        node = stack.pop()
        yield node
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                stack.append(following)
