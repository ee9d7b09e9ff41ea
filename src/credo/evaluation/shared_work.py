"""Work that all draws share: what a forward pass computes before it uses its draw is computed once.

A Bayesian head on a frozen network, or dropout in front of the last layer: until the first drawn weight or mask, every
draw computes the same. The rule is one of time, not of data flow: a module whose call ends before the first use of the
draw cannot depend on it. Its output is kept and returned in the passes that follow, and its forward does not run again.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from credo.functional import Caller, Replica
from credo.nests import tensors
from credo.seeding import WatchMode

_SHAREABLE = (Tensor, bool, int, float, complex, str, type(None))


class SharedWorkError(Exception):
    """Raised where a forward pass cannot go on from what an earlier one computed."""


class _AllRecorded(BaseException):
    """Ends a forward pass of which no more is needed; no error, so that the network does not handle it as one."""


class SharedWork:
    """Records the outputs that do not depend on the draw in one forward pass, and gives them to later ones.

    A pass of another batch than the recorded one computes everything itself. In-place operations are followed by the
    version counters of the outputs: one that would be applied again, to an output that holds its result already, makes
    sharing impossible.

    Args:
        replica: the network; its modules are wrapped while a pass runs.
        calls: the calls that can be shared, if an earlier pass has shown which.

    Attributes:
        calls: the module calls that can be shared: their numbers in the order in which they begin, and the places of
            their modules in ``modules()``.
        largest: bytes of the largest tensor that the recorded pass computed; only if the calls were not known.
    """

    def __init__(self, replica: Replica, calls: frozenset[tuple[int, int]] | None = None) -> None:
        self._replica = replica
        self.calls: frozenset[tuple[int, int]] = calls or frozenset()
        self._places = {module: place for place, module in enumerate(replica.net.modules())}
        self._is_known = calls is not None
        self._shared: dict[int, tuple[nn.Module, Any]] = {}
        self._versions: list[tuple[Tensor, int]] = []
        self._batch: list[Tensor] = []
        self.largest = 0

    def record(self, run: Callable[[], Tensor], draw: Mapping[str, Tensor]) -> Tensor:
        """The output of ``run``, a forward pass with ``draw``; keeps what does not depend on the draw."""
        return self._record(run, draw, math.inf)

    def record_only(self, run: Callable[[], Tensor], draw: Mapping[str, Tensor]) -> None:
        """As :meth:`record`, but the pass ends with the last of the :attr:`calls`."""
        self._record(run, draw, len(self.calls))

    def _record(self, run: Callable[[], Tensor], draw: Mapping[str, Tensor], missing: float) -> Tensor:
        output = torch.empty(0)
        calls: list[_ModuleCall] = []
        watch = _DrawWatch(self._replica, draw)
        self._replica.has_used_draw = False

        def enter(module: nn.Module, forward: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
            nonlocal missing
            if isinstance(module, Caller):  # what happens outside, such as moving a seed to the device, is no use
                self._batch = tensors(args[0])
                with nullcontext() if self._is_known else watch:
                    return forward(*args, **kwargs)
            call, number = _ModuleCall(module), len(calls)
            calls.append(call)
            output = forward(*args, **kwargs)
            can_share = not self._replica.has_used_draw
            if self._is_known:
                can_share = can_share and (number, self._places.get(module)) in self.calls
            call.end(output, len(calls), can_share)
            missing -= call.can_share
            if missing == 0:
                raise _AllRecorded
            return output

        with self._wrapped(enter), suppress(_AllRecorded):
            output = run()
        self.largest = watch.largest
        self._keep(calls)
        if not self._is_known:
            self.calls = frozenset(
                (number, self._places[call.module]) for number, call in enumerate(calls) if call.can_share
            )
        return output

    def reuse(self, run: Callable[[], Tensor]) -> Tensor:
        """The output of ``run``, a forward pass with any draw, or with many under vmap."""
        count, is_same_batch = -1, False

        def enter(module: nn.Module, forward: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
            nonlocal count, is_same_batch
            if isinstance(module, Caller):
                batch = tensors(args[0])
                is_same_batch = len(batch) == len(self._batch) and all(map(operator.is_, batch, self._batch))
            elif is_same_batch:
                count += 1
                if count in self._shared:
                    expected, output = self._shared[count]
                    if module is not expected:
                        raise SharedWorkError
                    return output
            return forward(*args, **kwargs)

        with self._wrapped(enter):
            output = run()
        if any(tensor._version != version for tensor, version in self._versions):
            raise SharedWorkError
        return output

    def modules(self) -> Iterator[nn.Module]:
        """The modules that do not run again, and those inside them."""
        for module, _ in self._shared.values():
            yield from module.modules()

    def is_worthwhile(self) -> bool:
        """Whether anything with parameters is shared."""
        return any(True for module, _ in self._shared.values() for _ in module.parameters())

    def _keep(self, calls: list[_ModuleCall]) -> None:
        """Keep the outermost calls that can be shared, by their number in a pass that does not enter them."""
        self._shared, last_version = {}, {}
        number = position = 0
        while position < len(calls):
            call = calls[position]
            if call.can_share:
                self._shared[number] = (call.module, call.output)
                last_version.update({tensor.untyped_storage().data_ptr(): (tensor, v) for tensor, v in call.versions})
            position = call.stop if call.can_share else position + 1
            number += 1
        self._versions = list(last_version.values())
        if any(tensor._version != version for tensor, version in self._versions):
            self._shared, self._versions = {}, []

    @contextmanager
    def _wrapped(self, enter: Callable[..., Any]) -> Iterator[None]:
        """Let every module's forward be called by ``enter(module, forward, ...)``."""
        before = [(module, vars(module).get("forward")) for module in self._replica.caller.modules()]
        for module, _ in before:
            vars(module)["forward"] = partial(enter, module, module.forward)
        try:
            yield
        finally:
            for module, forward in before:
                if forward is None:
                    del vars(module)["forward"]
                else:
                    vars(module)["forward"] = forward


class _ModuleCall:
    """One call of a module: its place in the order of calls, and its output if that can be shared."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.output: Any = None
        self.stop = 0
        self.can_share = False
        self.versions: list[tuple[Tensor, int]] = []

    def end(self, output: Any, stop: int, can_share: bool) -> None:
        """``stop``: the number of calls until this one ended; those inside it come before."""
        self.stop = stop
        leaves = pytree.tree_leaves(output)
        found = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        is_plain = all(isinstance(leaf, _SHAREABLE) for leaf in leaves)
        self.can_share = can_share and is_plain and all(_has_version(tensor) for tensor in found)
        if self.can_share:
            self.output = output
            self.versions = [(tensor, tensor._version) for tensor in found]


class _DrawWatch(WatchMode):
    """Sees the first operation that computes with a drawn tensor, whoever calls it, or that draws random numbers."""

    def __init__(self, replica: Replica, draw: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._replica = replica
        self._storages = {tensor.untyped_storage().data_ptr() for tensor in draw.values() if tensor.numel()}
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self._replica.has_used_draw:
            self._replica.has_used_draw = torch.Tag.nondeterministic_seeded in func.tags or any(
                self._is_drawn(leaf) for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)
            )
        result = func(*args, **kwargs)
        is_view = any(value.alias_info is not None for value in func._schema.returns)
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, Tensor) and not is_view:
                self.largest = max(self.largest, leaf.numel() * leaf.element_size())
        return result

    def _is_drawn(self, tensor: Tensor) -> bool:
        return tensor.layout != torch.strided or tensor.untyped_storage().data_ptr() in self._storages


def _has_version(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided and not tensor.is_inference()
