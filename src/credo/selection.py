"""Which parameters of a network are Bayesian, and whether the network can be wrapped at all."""

from __future__ import annotations

import fnmatch
import sys
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import TypeVar

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from credo.errors import InputError, UnsupportedError, unknown_name

T = TypeVar("T")

_NORMALIZATIONS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


def is_compiled(net: object) -> bool:
    """Whether ``net`` came from ``torch.compile``; torch's compiler is not loaded to find out."""
    return "torch._dynamo" in sys.modules and isinstance(net, torch._dynamo.eval_frame.OptimizedModule)


def check_network(net: object) -> nn.Module:
    """Return ``net`` if it can have a posterior; otherwise the error says why not and what to do."""
    if not isinstance(net, nn.Module):
        raise InputError(f"net must be a torch.nn.Module, got {type(net).__name__}")
    if isinstance(net, torch.jit.ScriptModule):
        raise UnsupportedError(
            "net is a torch.jit module, whose parameters cannot be replaced by draws: pass the Python network that it "
            "was made from"
        )
    if is_compiled(net):
        raise UnsupportedError(
            "net is already compiled, and noise cannot enter a compiled network: wrap the plain network, "
            "then compile the training step with fit(compile=True) or torch.compile(model)"
        )
    for name, module in net.named_modules():
        if parametrize.is_parametrized(module):
            raise UnsupportedError(
                f"{name or 'net'} is parametrised (torch.nn.utils.parametrize); bake it in first with "
                "torch.nn.utils.parametrize.remove_parametrizations"
            )
    if next(net.parameters(), None) is None:
        raise InputError(f"{type(net).__name__} has no trainable parameters, so there is nothing to be uncertain about")
    for name, parameter in net.named_parameters():
        if is_lazy(parameter):
            raise InputError(f"{name!r} has no shape yet: call the lazy network once on a batch, then wrap it")
    check_has_values(net)
    return net


def check_has_values(net: nn.Module) -> None:
    """Raise ``InputError`` for a network that was built on the meta device and has not been given values."""
    for name, tensor in chain(net.named_parameters(), net.named_buffers()):
        if tensor.is_meta:
            raise InputError(
                f"{name!r} of {type(net).__name__} is on the meta device and has no values: give the network some "
                "first, net.to_empty(device='cpu') and net.load_state_dict(...), or build it on another device"
            )


def select(net: nn.Module, patterns: str | Sequence[str] = "*", argument: str = "bayesian") -> list[str]:
    """Names of the Bayesian parameters; see :func:`match_parameters`. Complex parameters raise an error."""
    chosen = match_parameters(net, patterns, argument)
    for name in chosen:
        if net.get_parameter(name).is_complex():
            raise UnsupportedError(
                f"{name!r} is complex, and posteriors over complex weights are not offered; leave it deterministic by "
                f"naming the others, such as {argument}='head.*'"
            )
    return chosen


def as_json(patterns: str | Sequence[str]) -> str | list[str]:
    """Name patterns as a card holds them."""
    return patterns if isinstance(patterns, str) else list(patterns)


def match_parameters(net: nn.Module, patterns: str | Sequence[str] = "*", argument: str = "bayesian") -> list[str]:
    """Names of the trainable parameters that ``patterns`` choose; a tied parameter under its first name only.

    ``"*"`` chooses every trainable parameter except the scales and shifts of normalization layers. Any other
    pattern chooses exactly what it fits: ``"head.*"``, ``"*.weight"``, ``"norm1"`` (a module name stands for
    all its parameters). ``argument`` is the name of the patterns in errors.
    """
    wanted = [patterns] if isinstance(patterns, str) else list(patterns) if isinstance(patterns, Sequence) else []
    if not wanted or not all(isinstance(pattern, str) for pattern in wanted):
        raise InputError(
            f"{argument} must be a name pattern or a list of them, such as '*' or 'head.*', got {patterns!r}"
        )
    trainable = {name: p for name, p in net.named_parameters() if p.requires_grad}
    if not trainable:
        raise InputError(
            "the network has no trainable parameters; unfreeze some with requires_grad_(True), or give one that has"
        )
    aliases = _aliases(net)
    normalizations = _normalization_parameters(net)
    chosen: set[str] = set()
    for pattern in wanted:
        if pattern == "*":
            chosen.update(name for name in trainable if name not in normalizations)
            continue
        fitting = {
            name
            for name in trainable
            if any(
                fnmatch.fnmatchcase(alias, pattern) or fnmatch.fnmatchcase(alias, f"{pattern}.*")
                for alias in aliases[name]
            )
        }
        if not fitting:
            frozen = [n for n, p in net.named_parameters() if not p.requires_grad and fnmatch.fnmatchcase(n, pattern)]
            if frozen:
                raise InputError(
                    f"{argument}={pattern!r} fits only frozen parameters ({', '.join(frozen[:3])}); "
                    "unfreeze them with requires_grad_(True), or choose others"
                )
            modules = [name for name, _ in net.named_modules() if name]
            raise unknown_name("parameter or module pattern", pattern, [*trainable, *modules])
        chosen |= fitting
    if not chosen:
        raise InputError(
            f"{argument}={patterns!r} leaves nothing to be Bayesian: the only trainable parameters belong to "
            "normalization layers; name them to include them"
        )
    return [name for name in trainable if name in chosen]


def match_one(values: Mapping[str, T], name: str, names: Collection[str]) -> T:
    """The value of the first pattern in ``values`` that fits ``name``, after checking that every pattern fits one.

    Args:
        values: by name pattern.
        name: the parameter to find a value for.
        names: all parameters there are.
    """
    for pattern in values:
        if not fnmatch.filter(names, pattern):
            raise unknown_name("parameter pattern", pattern, names)
    for pattern, value in values.items():
        if fnmatch.fnmatchcase(name, pattern):
            return value
    raise InputError(f"no pattern fits {name!r}; end the mapping with a '*' entry for the rest")


def parameter_owners(net: nn.Module, names: Sequence[str]) -> dict[str, tuple[nn.Module, str]]:
    """For every parameter name, the module that holds it and the attribute it is held under."""
    found = {}
    for name in names:
        path, _, attribute = name.rpartition(".")
        found[name] = (net.get_submodule(path), attribute)
    return found


def tied_parameters(net: nn.Module) -> set[str]:
    """First names of the parameters that stand under more than one name."""
    return {name for name, names in _aliases(net).items() if len(names) > 1}


def _aliases(net: nn.Module) -> dict[str, list[str]]:
    first: dict[int, str] = {}
    names: dict[str, list[str]] = {}
    for name, parameter in net.named_parameters(remove_duplicate=False):
        names.setdefault(first.setdefault(id(parameter), name), []).append(name)
    return names


def _normalization_parameters(net: nn.Module) -> set[str]:
    found: set[str] = set()
    for path, module in net.named_modules():
        own = dict(module.named_parameters(recurse=False))
        foreign_norm = type(module).__name__.endswith("Norm") and all(p.dim() <= 1 for p in own.values())
        if isinstance(module, _NORMALIZATIONS) or foreign_norm:
            found.update(f"{path}.{name}" if path else name for name in own)
    return found
