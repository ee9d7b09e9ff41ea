"""A network called with drawn weights, on a private replica.

Nothing here touches the user's network. A :class:`Replica` has its own module tree, flags, hooks and (for
prediction) buffers, and shares only the parameters, so that two threads can predict at once and an exception
leaves nothing behind.
"""

from __future__ import annotations

import copy
import weakref
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _NormBase

from credo._embeddings import find_embeddings, padding_rows
from credo.errors import InputError, UnsupportedError
from credo.nests import tensors

Forward: TypeAlias = Callable[[nn.Module, Any], Any]
Draw: TypeAlias = dict[str, Tensor]
Sampler: TypeAlias = Callable[[Sequence[int]], list[Draw]]

_REGISTRIES = frozenset({*vars(nn.Module()), "forward"})
"""What every module keeps about itself: parameters, buffers, hooks, flags."""
_PLAIN = (bool, int, float, str, type(None))


def stack_draws(draws: Sequence[Draw]) -> Draw:
    """The draws as one, ``[K, *shape]`` by name; no copy where they already lie one behind the other.

    Args:
        draws: K draws of the same names and shapes.

    Returns:
        Views of the first draw's memory, or new tensors.
    """
    return {name: _stack([draw[name] for draw in draws]) for name in draws[0]}


def _stack(parts: list[Tensor]) -> Tensor:
    first = parts[0]
    if len(parts) > 1:
        gap = parts[1].storage_offset() - first.storage_offset()
        storage = first.untyped_storage().data_ptr()
        if gap > 0 and all(
            part.untyped_storage().data_ptr() == storage and part.storage_offset() == first.storage_offset() + k * gap
            for k, part in enumerate(parts)
        ):
            return first.as_strided((len(parts), *first.shape), (gap, *first.stride()))
    return torch.stack(parts)


def default_forward(net: nn.Module, x: Any) -> Any:
    """Call ``net`` on a tensor, on a mapping as keyword arguments, or on a tuple as positional ones."""
    if isinstance(x, Mapping):
        return net(**x)
    if isinstance(x, tuple | list):
        return net(*x)
    return net(x)


class Carrier(nn.Module):
    """A module that goes on, in every call, from the state in which the call before ended.

    Attributes:
        checks_rows: whether rows may only go on from a state of as many rows; not where a network is tried on a few.
    """

    checks_rows = True

    @abstractmethod
    def get_carried(self) -> Any:
        """The state between calls."""

    @abstractmethod
    def set_carried(self, state: Any) -> None:
        """Go on from a state that :meth:`get_carried` returned."""


@contextmanager
def outside_inference_mode() -> Iterator[None]:
    """Leave torch's inference mode, whose tensors cannot be differentiated and do not tell what changes them.

    Code that is being compiled, in which the mode cannot be asked for, stays in it.
    """
    if not torch.compiler.is_compiling() and torch.is_inference_mode_enabled():
        with torch.inference_mode(False), torch.no_grad():
            yield
    else:
        yield


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


def describe_modules(net: nn.Module) -> Hashable:
    """What a forward pass depends on besides tensors: the types of the modules and their plain settings."""
    return hash(
        tuple(
            (type(module), *((key, value) for key, value in vars(module).items() if isinstance(value, _PLAIN)))
            for module in net.modules()
        )
    )


def complete_weights(layer: nn.RNNBase, drawn: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All weights of a recurrent layer on a GPU, if some are ``drawn``: copies of the others.

    cuDNN wants them in one block of memory, and torch moves them there, own parameters too: a captured step would go on
    from the values that they had before.

    Args:
        layer: the layer.
        drawn: by name inside the layer.

    Returns:
        By name; ``drawn`` itself on a CPU, or if it has none or all.
    """
    own = dict(layer.named_parameters(recurse=False))
    if not drawn or len(drawn) == len(own) or not next(iter(own.values())).is_cuda:
        return dict(drawn)
    return {name: drawn[name] if name in drawn else parameter.clone() for name, parameter in own.items()}


def restore_flat_weights(layers: Iterable[nn.RNNBase]) -> None:
    """Let recurrent layers list their own weights; ``functional_call`` leaves those of the call, with their graph.

    Args:
        layers: on which ``functional_call`` has ended.
    """
    for layer in layers:
        layer._flat_weights = [getattr(layer, name) for name in layer._flat_weights_names]
        layer._flat_weight_refs = [weakref.ref(weight) for weight in layer._flat_weights if weight is not None]


class Replica:
    """A private copy of a network's module tree over the network's own parameters.

    Embeddings need care. The vector at ``padding_idx`` is no parameter, since no gradient reaches it: drawn weights get
    the network's own one. ``max_norm`` scales weights in place where they are looked up: prediction scales a copy.
    Gradients are those of the loss: dense, as those of a KL are, where ``sparse`` is set, and not divided by
    frequencies where ``scale_grad_by_freq`` is.

    So do batch norms. The running statistics r of torch learn from every forward pass, r ← (1 − m)r + mb with momentum
    m. If a training step has S of them, one per draw, the momentum is 1 − (1 − m)^(1/S): what was learned before
    counts 1 − m after the step, as with one pass, and the rest is shared by the draws.

    Args:
        net: the user's network.
        forward: how to call it.
        own_buffers: clone the buffers (prediction), or share them (training, where batch norm must learn).
        passes: S, the number of forward passes in a training step.

    Attributes:
        plan: what a posterior has found out about the network, such as where it drops units.
        has_used_draw: set by a posterior whose draw is no weight, in a forward pass that starts to depend on it.
    """

    def __init__(self, net: nn.Module, forward: Forward | None, *, own_buffers: bool, passes: int = 1) -> None:
        memo: dict[int, Any] = {id(parameter): parameter for parameter in net.parameters()}
        embeddings = find_embeddings(net)
        if own_buffers:
            memo |= {id(m.weight): _clone(m.weight) for m in embeddings.values() if m.max_norm is not None}
        for tensor in plain_tensors(net):  # a forward pass may have left tensors with a graph, which cannot be copied
            if not own_buffers or tensor.grad_fn is not None:
                memo[id(tensor)] = tensor.detach().clone() if own_buffers else tensor.detach()
        if not own_buffers:
            memo |= {id(buffer): buffer for buffer in net.buffers()}
        try:
            with outside_inference_mode():
                for module in net.modules():
                    if id(module) not in memo and (leaf := _copy_leaf(module, memo)) is not None:
                        memo[id(module)] = leaf
                twin = copy.deepcopy(net, memo)
        except Exception as error:
            raise UnsupportedError(
                f"the network cannot be copied ({error}); every attribute of it must work with copy.deepcopy"
            ) from error
        for carrier in (module for module in twin.modules() if own_buffers and isinstance(module, Carrier)):
            carrier.checks_rows = False
        self.caller = Caller(twin, forward)
        self.plan: Any = None
        self.has_used_draw = False
        self._pairs = list(zip(twin.modules(), net.modules(), strict=True))
        self._recurrent = {path: m for path, m in twin.named_modules() if isinstance(m, nn.RNNBase)}
        self._padded = padding_rows(net) if embeddings else {}
        self._passes = passes
        self._adapted = [
            pair for pair in self._pairs if isinstance(pair[1], nn.Embedding | nn.EmbeddingBag | _NormBase)
        ]
        self._adapt_settings()
        self._foreign = [pair for pair in self._pairs if not type(pair[0]).__module__.startswith("torch.nn.")]
        self._found = self._state() if own_buffers else []

    @property
    def net(self) -> nn.Module:
        """The private module tree."""
        return self.caller.net

    def __call__(self, weights: Mapping[str, Tensor], x: Any) -> Tensor:
        """The output for ``x`` with ``weights`` in place of the parameters of those names."""
        named = {f"net.{name}": weight for name, weight in weights.items()}
        for path, layer in self._recurrent.items():
            prefix = f"net.{path}." if path else "net."
            drawn = {name.removeprefix(prefix): weight for name, weight in named.items() if name.startswith(prefix)}
            named |= {prefix + name: weight for name, weight in complete_weights(layer, drawn).items()}
        for name, row in self._padded.items():
            if name in weights:
                weight, own = weights[name], self.net.get_parameter(name).detach()[row : row + 1]
                named[f"net.{name}"] = torch.cat([weight[:row], own.to(weight.dtype), weight[row + 1 :]])
                self.has_used_draw = True  # elsewhere in memory than the draw, where its use would be seen
        try:
            return functional_call(self.caller, named, (x,)) if named else self.caller(x)  # type: ignore[no-any-return]
        finally:
            restore_flat_weights(self._recurrent.values())

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
        self._adapt_settings()

    def _adapt_settings(self) -> None:
        for own, theirs in self._adapted:
            own.__dict__.update(_adapted_settings(theirs, self._passes))

    def sync_to_network(self) -> None:
        """Copy buffers and plain attributes that a forward pass changed to the user's network."""
        for own, theirs in self._pairs:
            if own._buffers:
                theirs._buffers.update(own._buffers)
        for own, theirs in self._foreign:
            adapted = {key: vars(theirs)[key] for key in _adapted_settings(theirs, self._passes)}
            _copy_state(own, theirs)
            theirs.__dict__.update(adapted)

    def copy_buffers(self) -> None:
        """Give own buffers the values of the user's network, in the memory where they are."""
        pairs = [(own._buffers[key], theirs._buffers[key]) for own, theirs in self._pairs for key in own._buffers]
        found = [(mine, yours) for mine, yours in pairs if mine is not None and yours is not None]
        if found:
            torch._foreach_copy_([mine for mine, _ in found], [yours for _, yours in found])

    @contextmanager
    def preserve_buffers(self) -> Iterator[None]:
        """Undo at the end of the block what forward passes in it do to buffers: a carried state, batch statistics."""
        with preserve_buffers([own for own, _ in self._pairs]):
            yield

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


@contextmanager
def preserve_buffers(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Undo at the end of the block what forward passes in it do to buffers: a carried state, batch statistics.

    Buffers are the same tensors afterwards, so that a captured step can go on writing to them.

    Args:
        modules: the modules that hold the buffers.
    """
    before = [
        (module, {name: (b, None if b is None else b.clone()) for name, b in module._buffers.items()})
        for module in modules
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for module, buffers in before:
                for name, (buffer, values) in buffers.items():
                    module._buffers[name] = buffer
                    if buffer is not None and values is not None:
                        buffer.copy_(values)


def plain_tensors(net: nn.Module) -> Iterator[Tensor]:
    """The tensors that modules keep as plain attributes, also inside lists and mappings.

    Args:
        net: with all modules inside it.

    Yields:
        The tensors.
    """
    for module in net.modules():
        for key, value in vars(module).items():
            if key not in _REGISTRIES and not _is_plain(value):
                yield from tensors(value)


def _clone(parameter: Tensor) -> nn.Parameter:
    return nn.Parameter(parameter.detach().clone(), requires_grad=parameter.requires_grad)


def _is_plain(value: Any) -> bool:
    return isinstance(value, _PLAIN) or (isinstance(value, tuple) and all(isinstance(v, _PLAIN) for v in value))


def _adapted_settings(layer: nn.Module, passes: int) -> dict[str, Any]:
    """The settings that a replica has in place of the layer's own."""
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        return {"sparse": False, "scale_grad_by_freq": False}
    if isinstance(layer, _NormBase) and layer.momentum is not None:
        return {"momentum": 1.0 - (1.0 - layer.momentum) ** (1.0 / passes)} if passes > 1 else {}
    return {}


def _copy_state(source: nn.Module, target: nn.Module) -> None:
    """Give ``target`` the numbers, words and tensors without a graph that ``source`` keeps as plain attributes."""
    for key, value in vars(source).items():
        is_state = isinstance(value, bool | int | float | str) or (
            isinstance(value, Tensor) and not value.requires_grad
        )
        if is_state and key not in _REGISTRIES and target.__dict__.get(key) is not value:
            target.__dict__[key] = value


def _copy_leaf(module: nn.Module, memo: dict[int, Any]) -> nn.Module | None:
    """What ``copy.deepcopy`` makes of a layer of torch without hooks, in a tenth of its time; ``None``: not one."""
    if not type(module).__module__.startswith("torch.nn.modules.") or module._modules:
        return None
    state: dict[str, Any] = {}
    for key, value in vars(module).items():
        if _is_plain(value):
            state[key] = value
        elif key in ("_parameters", "_buffers"):
            state[key] = {name: memo[id(t)] if id(t) in memo else copy.deepcopy(t, memo) for name, t in value.items()}
        elif isinstance(value, dict | set) and not value:
            state[key] = type(value)()
        else:
            return None
    twin = nn.Module.__new__(type(module))
    twin.__dict__.update(state)
    return twin
