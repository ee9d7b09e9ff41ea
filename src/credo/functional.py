"""A network called with drawn weights: on a private replica, vectorised over draws or in a loop.

Nothing here touches the user's network. A :class:`Replica` has its own module tree, flags, hooks and (for
prediction) buffers, and shares only the parameters, so that two threads can predict at once and an exception
leaves nothing behind.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils import _pytree as pytree

from credo._notices import notify
from credo.errors import CredoError, InputError, UnsupportedError
from credo.seeding import derive, seeded

Forward: TypeAlias = Callable[[nn.Module, Any], Any]
Draw: TypeAlias = dict[str, Tensor]
Sampler: TypeAlias = Callable[[Sequence[int]], list[Draw]]

_ROW_BYTES = 16 * 2**20
_STACK_BYTES = 128 * 2**20
_LARGEST_CHUNK_OF_ROWS = 4096
_WORK_WORTH_A_LOOP = 2**23
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
        shared: list[Tensor] = list(net.parameters()) if own_buffers else [*net.parameters(), *net.buffers()]
        memo: dict[int, Any] = {id(tensor): tensor for tensor in shared}
        try:
            twin = copy.deepcopy(net, memo)
        except Exception as error:
            raise UnsupportedError(
                f"the network cannot be copied ({error}); every attribute of it must work with copy.deepcopy"
            ) from error
        self.caller = Caller(twin, forward)
        self._pairs = list(zip(twin.modules(), net.modules(), strict=True))
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

    def pull(self) -> None:
        """Take over parameters, buffers, flags and plain settings as they now are in the user's network.

        Also undoes what ``functional_call`` leaves in a module that is registered under two names: its draw.
        """
        for own, theirs in self._pairs:
            for key, value in vars(theirs).items():
                if value is None or isinstance(value, bool | int | float | str):
                    own.__dict__[key] = value
            own._parameters.update(theirs._parameters)
            own._buffers.update(theirs._buffers)

    def push_buffers(self) -> None:
        """Give the user's network the buffers that a forward replaced instead of changing in place."""
        for own, theirs in self._pairs:
            if own._buffers:
                theirs._buffers.update(own._buffers)

    def remembers(self) -> bool:
        """Whether a forward pass left something behind: a changed buffer, a cached value."""
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
    """Evaluates a network for many draws; vectorised where that works and pays, else in a loop.

    Args:
        build: makes a private network, ready to predict.
        call: ``call(replica, draw, x)``, the output for one draw.
        sampler: gives the draws of some numbers.
        samples: how many draws, S.
        seed: governs what the network itself draws, if it does.
        vectorise: try to evaluate several draws at once.
    """

    def __init__(
        self,
        build: Callable[[], Replica],
        call: Callable[[Replica, Draw, Any], Tensor],
        sampler: Sampler,
        samples: int,
        seed: int,
        vectorise: bool = True,
    ) -> None:
        self._build, self._call, self._sampler = build, call, sampler
        self.samples, self.seed = samples, seed
        self._replica = build()
        self._remembers = False
        first = sampler([0])[0].values()
        self._bytes_per_draw = sum(t.numel() * t.element_size() for t in first)
        self._numbers_per_draw = sum(t.numel() for t in first)
        self._kept: list[Draw] = []
        self._vectorise = vectorise and samples > 1
        self._convolves = any(isinstance(m, _CONVOLUTIONS) for m in self._replica.net.modules())

    @torch.no_grad()
    def __call__(self, x: Any, batch_size: int | None = None) -> Tensor:
        """Outputs ``[S, B, ...]`` for the rows of ``x``; the result does not depend on ``batch_size``."""
        parts = list(split_rows(x, batch_size or default_batch_size(x)))
        device = next((t.device for t in pytree.tree_leaves(x) if isinstance(t, Tensor)), torch.device("cpu"))
        with seeded(self.seed, device):
            if not (self._vectorise and self._pays(parts[0])):
                return self._looped(parts)
            reason = "it keeps state from call to call"
            try:
                outputs = self._stacked(parts)
                if not self._replica.remembers():
                    return outputs
            except CredoError:
                raise
            except Exception as error:  # a missing batching rule, an in-place buffer, a data-dependent branch
                reason = str(error).strip().split("\n")[0][:160]
            self._vectorise = False
            self._replica = self._build()
            outputs = self._looped(parts)
        notify(f"prediction loops over draws, because the network cannot be vectorised: {reason}")
        return outputs

    def _pays(self, x: Any) -> bool:
        """Whether the network is small enough that calling it S times costs more than stacking its weights."""
        if self._convolves:
            return False
        on_cpu = all(t.device.type == "cpu" for t in pytree.tree_leaves(x) if isinstance(t, Tensor))
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
        """One draw on one part; a network that remembers its last call is replaced by a fresh one after each."""
        torch.manual_seed(derive(self.seed, s))
        output = self._call(self._replica, draw, x)
        if _shares_memory(output, draw):
            output = output.clone()
        if self._remembers or (s == 0 and self._replica.remembers()):
            self._remembers = True
            self._replica = self._build()
        return output

    def _stacked(self, parts: Sequence[Any]) -> Tensor:
        row_bytes = max(input_bytes(part) for part in parts)
        evaluate = vmap(lambda weights, x: self._call(self._replica, weights, x), in_dims=(0, None))
        outputs = []
        for _, draws in self._groups(max(1, 4 * _ROW_BYTES // max(row_bytes, 1))):
            stack = {name: torch.stack([draw[name] for draw in draws]) for name in draws[0]}
            outputs.append(_concatenate([evaluate(stack, part) for part in parts], dim=1))
        return torch.cat(outputs)


def count_rows(x: Any) -> int:
    """The number of data in ``x``: dim 0 of its first tensor."""
    for leaf in pytree.tree_leaves(x):
        if isinstance(leaf, Tensor):
            if leaf.dim() == 0:
                raise InputError("x must have rows along dim 0, got a tensor without dimensions")
            return leaf.shape[0]
    raise InputError(
        f"x must be a tensor or array, or a tuple or mapping of tensors, got {type(x).__name__}; "
        "turn a list into numpy.asarray(x), a Dataset into a DataLoader"
    )


def rows_agree(x: Any) -> bool:
    """Whether every tensor in ``x`` has the same number of rows."""
    rows = count_rows(x)
    return all(t.dim() > 0 and t.shape[0] == rows for t in pytree.tree_leaves(x) if isinstance(t, Tensor))


def input_bytes(x: Any) -> int:
    """The size of all tensors in ``x``."""
    return sum(t.numel() * t.element_size() for t in pytree.tree_leaves(x) if isinstance(t, Tensor))


def default_batch_size(x: Any) -> int:
    """Rows to put through a network at once: up to 4096, fewer where a row is large."""
    rows = count_rows(x)
    per_row = input_bytes(x) / max(rows, 1)
    return int(min(_LARGEST_CHUNK_OF_ROWS, max(1, _ROW_BYTES // max(per_row, 1))))


def split_rows(x: Any, size: int) -> Iterator[Any]:
    """``x`` in pieces of at most ``size`` rows; in one piece where its tensors do not agree on the rows."""
    rows = count_rows(x)
    if rows <= size or not rows_agree(x):
        yield x
        return
    for start in range(0, rows, size):
        stop = start + size
        yield pytree.tree_map(lambda t: t[start:stop] if isinstance(t, Tensor) else t, x)  # noqa: B023


def map_tensors(function: Callable[[Tensor], Tensor], x: Any) -> Any:
    """Apply ``function`` to every tensor inside ``x``."""
    return pytree.tree_map(lambda t: function(t) if isinstance(t, Tensor) else t, x)


def _concatenate(parts: Sequence[Tensor], dim: int = 0) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=dim)


def _shares_memory(output: Tensor, draw: Draw) -> bool:
    """Whether ``output`` is a view of the draw itself, which the next draw may overwrite."""
    storage = output.untyped_storage().data_ptr()
    return any(weight.untyped_storage().data_ptr() == storage for weight in draw.values())


def take_rows(x: Any, count: int) -> Any:
    """The first ``count`` rows of ``x``."""
    return next(itertools.islice(split_rows(x, count), 1))
