"""Where a network drops units, found out by running a few rows.

Which calls of a forward pass are dropout that training switches on, and where the rows are in what they drop. Only
dropout is switched on: everything else stays in evaluation mode.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from credo.errors import InputError, UnsupportedError
from credo.functional import Replica
from credo.nests import first_rows, tensors
from credo.posteriors._dropout_calls import DropoutCalls, DropoutRequest, drop_branch
from credo.posteriors._layered_rnn import LayeredRNN, drops_between_layers
from credo.probing import ROWS, RowDim, eager, trace_rows
from credo.seeding import reproducible

_STOCHASTIC_DEPTH = ("DropPath", "StochasticDepth")
NO_DROPOUT = (
    "the network drops nothing: it has no dropout layer with a rate above 0; pass p=0.1 to put dropout before every "
    "weight layer, or add nn.Dropout to the network"
)


class DropoutCall(NamedTuple):
    """One dropout call of a forward pass.

    Attributes:
        on: whether training switches it on.
        rows: where the rows are in what it drops, or ``None``: then every element has a mask of its own.
        parts: how many parts of a row that dimension counts.
    """

    on: bool
    rows: RowDim | None
    parts: int = 1


class DropoutPlan(NamedTuple):
    """The dropout of a network.

    Attributes:
        calls: in the order of a forward pass.
        input_dim: the dimension of the inputs that counts the rows; ``None`` where rows see each other.
        output: where the rows are in the output.
        switched: the modules that make their calls in training mode alone, counted in the order of ``modules()``.
        fold: where a batch becomes one of all draws: ``"dropout"``, in the first dropout call; ``"input"``;
            ``"never"``; ``None``: not tried yet.
    """

    calls: list[DropoutCall]
    input_dim: int | None
    output: RowDim | None
    switched: list[int]
    fold: str | None = None


def apply_plan(network: Replica, plan: DropoutPlan) -> None:
    """Leave ``network`` as :func:`plan_dropout` does, by a plan that it found before."""
    _make_visible(network.net)
    for i, module in enumerate(network.net.modules()):
        module.training = i in plan.switched
    network.plan = plan


def plan_dropout(network: Replica, x: Any) -> DropoutPlan:
    """Find the dropout of a network, and leave ``network`` ready to be called under :class:`SharedMasks`.

    A dropout call counts if it is on in training mode. Most modules make their calls in evaluation mode as well, there
    with a flag that says off, and can stay in it; a module that makes them in training mode alone is put there.
    """
    _make_visible(network.net)
    probe = Replica(network.net, network.caller.call, own_buffers=True)
    modules = list(probe.net.modules())
    small = first_rows(x, ROWS)
    plain = _record(probe, small, eval_mode=True)
    try:
        trained = _record(Replica(network.net, network.caller.call, own_buffers=True), small, eval_mode=False)
        wanted = Counter(call.module for call in trained.calls if call.on and call.p > 0)
    except Exception:  # a network that wants targets in training mode, say
        wanted = Counter(call.module for call in plain.calls if call.p > 0)
    if not wanted:
        raise InputError(NO_DROPOUT)
    offered = Counter(call.module for call in plain.calls if call.p > 0)
    switched = [i for i in wanted if offered[i] != wanted[i]]
    for net in (probe.net, network.net):
        for i, module in enumerate(net.modules()):
            module.training = i in switched
    found = _record(probe, small)
    if not torch.allclose(found.output, plain.output, rtol=1e-3, atol=1e-5, equal_nan=True):
        names = {i: name for i, (name, _) in enumerate(probe.net.named_modules())}
        raise UnsupportedError(
            f"in training mode {', '.join(names[i] or type(modules[i]).__name__ for i in switched)} does more than "
            "dropout, so dropout alone cannot be switched on; use nn.Dropout layers instead of calls that depend on "
            "self.training"
        )

    sizes: list[torch.Size] = []

    def run(batch: Any) -> tuple[Tensor, list[Tensor]]:
        record = _record(probe, batch)
        sizes[:] = [call.x.shape for call in record.calls]
        return record.output, [call.x for call in record.calls]

    trace = trace_rows(run, x)
    switched_on = [call.module in wanted and call.p > 0 for call in found.calls]
    if trace is None:
        return DropoutPlan([DropoutCall(on, None) for on in switched_on], None, None, switched)
    rows = ROWS if trace.input_dim == 0 else tensors(x)[0].shape[trace.input_dim]
    calls = [
        DropoutCall(on, row_dim, 1 if row_dim is None else size[row_dim.dim] // rows)
        for on, row_dim, size in zip(switched_on, trace.inside, sizes, strict=True)
    ]
    return DropoutPlan(calls, trace.input_dim, trace.output, switched)


class _Call(NamedTuple):
    """A dropout call as it was seen: who made it, counted in the order of ``modules()``, and with what."""

    module: int
    p: float
    on: bool
    x: Tensor


class _Record(NamedTuple):
    output: Tensor
    calls: list[_Call]


class _Recorder(DropoutCalls):
    """Drops nothing and takes note of every call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[_Call] = []
        self.callers: list[int] = []

    def answer(self, request: DropoutRequest) -> Tensor:
        """The activation as it is."""
        caller = self.callers[-1] if self.callers else -1
        self.calls.append(_Call(caller, request.p, request.on, request.x.detach().clone()))
        return request.x


@torch.no_grad()
def _record(network: Replica, x: Any, eval_mode: bool | None = None) -> _Record:
    """The output without dropout and the calls that were made; ``eval_mode=None`` leaves the modules' flags alone."""
    for module in network.net.modules():
        if eval_mode is not None:
            module.training = not eval_mode and not isinstance(module, _NormBase | nn.RReLU)

    def run() -> _Record:
        watched = _announced(network.net, (recorder := _Recorder()).callers)
        with network.preserve_buffers(), eager(), recorder, watched:
            return _Record(network({}, x), recorder.calls)

    return reproducible(run, tensors(x)[0].device)


@contextmanager
def _announced(net: nn.Module, callers: list[int]) -> Iterator[None]:
    """Keep in ``callers`` the modules whose forward is running, the innermost last."""

    def enter(i: int) -> Callable[..., None]:
        return lambda *_: callers.append(i)

    def leave(*_: Any) -> None:
        callers.pop()

    handles = []
    for i, module in enumerate(net.modules()):
        handles.append(module.register_forward_pre_hook(enter(i)))
        handles.append(module.register_forward_hook(leave, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _make_visible(net: nn.Module) -> None:
    """Let dropout that no function call shows be one: inside fused recurrent kernels, and of whole branches."""
    for module in net.modules():
        forward: Callable[..., Any] | None = None
        if isinstance(module, nn.RNNBase) and drops_between_layers(module):
            forward = LayeredRNN(module)
        elif type(module).__name__.endswith(_STOCHASTIC_DEPTH):
            forward = _DropPath(float(getattr(module, "drop_prob", getattr(module, "p", None)) or 0.0))
        if forward is not None:
            vars(module)["forward"] = forward


class _DropPath:
    """Stochastic depth: a branch is dropped as a whole, for all rows or for none.

    Reference: G. Huang, Y. Sun, Z. Liu, D. Sedra, K. Q. Weinberger, "Deep networks with stochastic depth", ECCV 2016.
    """

    def __init__(self, p: float) -> None:
        self._p = p

    def __call__(self, x: Tensor, *_: Any) -> Tensor:
        """``x``, or zeros."""
        return drop_branch(x, self._p)
