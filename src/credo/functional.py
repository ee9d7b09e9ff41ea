"""A network called with drawn weights: on a private replica, vectorized over draws or in a loop.

Nothing here touches the user's network. A :class:`Replica` has its own module tree, flags, hooks and (for
prediction) buffers, and shares only the parameters, so that two threads can predict at once and an exception
leaves nothing behind.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from credo._notices import notify
from credo.errors import CredoError, InputError, UnsupportedError
from credo.nests import count_rows, default_batch_size, input_bytes, split_rows, tensors
from credo.probing import trace_rows
from credo.seeding import NoRandomness, RandomnessError, derive, reproducible, seeded

Forward: TypeAlias = Callable[[nn.Module, Any], Any]
Draw: TypeAlias = dict[str, Tensor]
Sampler: TypeAlias = Callable[[Sequence[int]], list[Draw]]

_INPUT_BYTES_PER_CHUNK = 64 * 2**20
_STACK_BYTES = 128 * 2**20
_WORK_WORTH_A_LOOP = 2**23
_REGISTRIES = frozenset({*vars(nn.Module()), "forward"})
"""What every module keeps about itself: parameters, buffers, hooks, flags."""
_PLAIN = (bool, int, float, str, type(None))
_CONVOLUTIONS = (nn.modules.conv._ConvNd,)


def default_forward(net: nn.Module, x: Any) -> Any:
    """Call ``net`` on a tensor, on a mapping as keyword arguments, or on a tuple as positional ones."""
    if isinstance(x, Mapping):
        return net(**x)
    if isinstance(x, tuple | list):
        return net(*x)
    return net(x)


class Caller(nn.Module):
    """A network together with the way it is called; always returns one tensor."""

    def __init__(self, net: nn.Module, forward: Forward | None) -> None:
        super().__init__()
        self.net = net
        self.call = forward or default_forward

    def forward(self, x: Any) -> Tensor:
        """The network's output as a tensor; a model-output object gives its ``logits``."""
        output = self.call(self.net, x)
        if isinstance(output, Tensor):
            return output
        logits = getattr(output, "logits", None)
        if isinstance(logits, Tensor):
            return logits
        raise InputError(
            f"the network returned a {type(output).__name__}, not a tensor; say which part is the output, "
            "for example forward=lambda net, x: net(x)[0]"
        )


class Replica:
    """A private copy of a network's module tree over the network's own parameters.

    Args:
        net: the user's network.
        forward: how to call it.
        own_buffers: clone the buffers (prediction), or share them (training, where batch norm must learn).
    """

    def __init__(self, net: nn.Module, forward: Forward | None, *, own_buffers: bool) -> None:
        memo: dict[int, Any] = {id(parameter): parameter for parameter in net.parameters()}
        for tensor in _plain_tensors(net):  # a forward pass may have left tensors with a graph, which cannot be copied
            if not own_buffers or tensor.grad_fn is not None:
                memo[id(tensor)] = tensor.detach().clone() if own_buffers else tensor.detach()
        if not own_buffers:
            memo |= {id(buffer): buffer for buffer in net.buffers()}
        try:
            twin = copy.deepcopy(net, memo)
        except Exception as error:
            raise UnsupportedError(
                f"the network cannot be copied ({error}); every attribute of it must work with copy.deepcopy"
            ) from error
        self.caller = Caller(twin, forward)
        self.plan: Any = None
        self._pairs = list(zip(twin.modules(), net.modules(), strict=True))
        self._foreign = [pair for pair in self._pairs if not type(pair[0]).__module__.startswith("torch.nn.")]
        self._found = self._state() if own_buffers else []

    @property
    def net(self) -> nn.Module:
        """The private module tree."""
        return self.caller.net

    def __call__(self, weights: Mapping[str, Tensor], x: Any) -> Tensor:
        """The output for ``x`` with ``weights`` in place of the parameters of those names."""
        if not weights:
            return self.caller(x)  # type: ignore[no-any-return]
        named = {f"net.{name}": weight for name, weight in weights.items()}
        return functional_call(self.caller, named, (x,))  # type: ignore[no-any-return]

    def sync_from_network(self) -> None:
        """Take over parameters, buffers, flags and plain settings as they now are in the user's network.

        Also undoes what ``functional_call`` leaves in a module that is registered under two names: its draw.
        """
        for own, theirs in self._pairs:
            for key, value in vars(theirs).items():
                if isinstance(value, _PLAIN):
                    own.__dict__[key] = value
            own._parameters.update(theirs._parameters)
            own._buffers.update(theirs._buffers)
        for own, theirs in self._foreign:
            _copy_state(theirs, own)

    def sync_to_network(self) -> None:
        """Copy buffers and plain attributes that a forward pass changed to the user's network."""
        for own, theirs in self._pairs:
            if own._buffers:
                theirs._buffers.update(own._buffers)
        for own, theirs in self._foreign:
            _copy_state(own, theirs)

    def is_stateful(self) -> bool:
        """Whether a forward pass changed the state: a buffer or a cached value."""
        return self._state() != self._found

    def _state(self) -> list[tuple[dict[str, int], dict[str, tuple[int, int]]]]:
        """What a forward pass may change, by identity and, for buffers, version."""
        return [
            (
                {k: id(v) for k, v in vars(own).items() if k[0] != "_" and k not in ("training", "forward")},
                {k: (id(b), b._version) for k, b in own._buffers.items() if b is not None},
            )
            for own, _ in self._pairs
        ]


class Evaluator:
    """Evaluates a network for many draws; vectorized where that works and pays, else in a loop.

    Args:
        build: makes a private network, ready to predict.
        call: ``call(replica, draw, x)``, the output for one draw.
        sampler: gives the draws of some numbers.
        samples: how many draws, S.
        seed: governs what the network itself draws, if it does.
        vectorize: try to evaluate several draws at once.
    """

    def __init__(
        self,
        build: Callable[[], Replica],
        call: Callable[[Replica, Draw, Any], Tensor],
        sampler: Sampler,
        samples: int,
        seed: int,
        vectorize: bool = True,
    ) -> None:
        self._build, self._call, self._sampler = build, call, sampler
        self.samples, self.seed = samples, seed
        self._replica = build()
        self._is_stateful = False
        first = sampler([0])[0].values()
        self._bytes_per_draw = sum(t.numel() * t.element_size() for t in first)
        self._numbers_per_draw = sum(t.numel() for t in first)
        self._kept: list[Draw] = []
        self._vectorize = vectorize and samples > 1
        self._convolves = any(isinstance(m, _CONVOLUTIONS) for m in self._replica.net.modules())
        self._draws_itself: bool | None = None
        self._independent_rows: bool | None = None

    @torch.no_grad()
    def __call__(self, x: Any, batch_size: int | None = None) -> Tensor:
        """Outputs ``[S, B, ...]`` for the rows of ``x``; the result does not depend on ``batch_size``."""
        parts = list(split_rows(x, batch_size or default_batch_size(x)))
        if batch_size is None and len(parts) > 1 and not self._has_independent_rows(parts[0]):
            parts = [x]
        if not (self._vectorize and self._pays(parts[0])):
            return self._looped(parts)
        reason = "it keeps state from call to call"
        try:
            outputs = self._stacked(parts)
            if not self._replica.is_stateful():
                return outputs
        except CredoError:
            raise
        except Exception as error:  # a missing batching rule, an in-place buffer, a data-dependent branch
            reason = str(error).strip().split("\n")[0][:160]
        self._vectorize = False
        self._replica = self._build()
        outputs = self._looped(parts)
        notify(f"prediction loops over draws, because the network cannot be vectorized: {reason}")
        return outputs

    def _has_independent_rows(self, x: Any) -> bool:
        """Whether rows along dim 0 are predicted independently, so that a batch may be split."""
        if self._independent_rows is None:
            network = self._build()

            def run(part: Any) -> tuple[Tensor, list[Tensor]]:
                return reproducible(lambda: network({}, part), tensors(part)[0].device), []

            trace = trace_rows(run, x)
            self._independent_rows = trace is not None and trace.input_dim == 0
        return self._independent_rows

    def _pays(self, x: Any) -> bool:
        """Whether the network is small enough that calling it S times costs more than stacking its weights."""
        if self._convolves:
            return False
        on_cpu = all(t.device.type == "cpu" for t in tensors(x))
        return not on_cpu or count_rows(x) * self._numbers_per_draw <= _WORK_WORTH_A_LOOP

    def _groups(self, size: int) -> Iterator[tuple[int, list[Draw]]]:
        """The draws in groups of at most ``size``, each with the number of its first; all are kept if they fit."""
        at_once = max(1, _STACK_BYTES // max(self._bytes_per_draw, 1))
        if self.samples <= at_once and not self._kept:
            self._kept = self._sampler(range(self.samples))
        size = min(size, at_once)
        for start in range(0, self.samples, size):
            stop = min(start + size, self.samples)
            yield start, self._kept[start:stop] or self._sampler(range(start, stop))

    def _looped(self, parts: Sequence[Any]) -> Tensor:
        outputs = []
        for start, draws in self._groups(self.samples):
            for s, draw in enumerate(draws, start):
                outputs.append(_concatenate([self._evaluate(s, draw, part) for part in parts]))
        return torch.stack(outputs)

    def _evaluate(self, s: int, draw: Draw, x: Any) -> Tensor:
        """One draw on one part; a stateful network is replaced by a fresh copy after each call."""
        output = self._run(s, draw, x)
        if _shares_memory(output, draw):
            output = output.clone()
        if self._is_stateful or (s == 0 and self._replica.is_stateful()):
            self._is_stateful = True
            self._replica = self._build()
        return output

    def _run(self, s: int, draw: Draw, x: Any) -> Tensor:
        """The output of draw ``s``; where the network draws random numbers itself, they are a function of the seed."""
        if not self._draws_itself:
            try:
                with nullcontext() if self._draws_itself is False else NoRandomness():  # type: ignore[no-untyped-call]
                    output = self._call(self._replica, draw, x)
            except RandomnessError:
                self._draws_itself = True
                self._replica = self._build()
            else:
                self._draws_itself = False
                return output
        with seeded(derive(self.seed, s), tensors(x)[0].device):
            return self._call(self._replica, draw, x)

    def _stacked(self, parts: Sequence[Any]) -> Tensor:
        row_bytes = max(input_bytes(part) for part in parts)
        evaluate = vmap(lambda weights, x: self._call(self._replica, weights, x), in_dims=(0, None))
        outputs = []
        for _, draws in self._groups(max(1, _INPUT_BYTES_PER_CHUNK // max(row_bytes, 1))):
            stack = {name: torch.stack([draw[name] for draw in draws]) for name in draws[0]}
            outputs.append(_concatenate([evaluate(stack, part) for part in parts], dim=1))
        return torch.cat(outputs)


def _plain_tensors(net: nn.Module) -> Iterator[Tensor]:
    """The tensors that modules keep as plain attributes, also inside lists and mappings."""
    for module in net.modules():
        for key, value in vars(module).items():
            if key not in _REGISTRIES:
                yield from tensors(value)


def _copy_state(source: nn.Module, target: nn.Module) -> None:
    """Give ``target`` the numbers, words and tensors without a graph that ``source`` keeps as plain attributes."""
    for key, value in vars(source).items():
        is_state = isinstance(value, bool | int | float | str) or (
            isinstance(value, Tensor) and not value.requires_grad
        )
        if is_state and key not in _REGISTRIES and target.__dict__.get(key) is not value:
            target.__dict__[key] = value


def _concatenate(parts: Sequence[Tensor], dim: int = 0) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=dim)


def _shares_memory(output: Tensor, draw: Draw) -> bool:
    """Whether ``output`` is a view of the draw itself, which the next draw may overwrite."""
    storage = output.untyped_storage().data_ptr()
    return any(weight.untyped_storage().data_ptr() == storage for weight in draw.values())
