"""Where the members of an ensemble start: anew, or near a network that is trained already."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from credo.errors import InputError, UnsupportedError

_NOISE = 0.1
"""Of :func:`perturb`, relative to the root mean square of a tensor."""


@torch.no_grad()
def reinitialize(net: nn.Module) -> None:
    """Give every trainable parameter a new random start, by its module's own ``reset_parameters``.

    Args:
        net: the network, changed in place; its frozen parameters keep their values.
    """
    frozen = {name: p.detach().clone() for name, p in net.named_parameters() if not p.requires_grad}
    for path, module in reversed(list(net.named_modules())):  # a module's own reset has the last word over its parts
        reset = _reset_of(module)
        if not any(p.requires_grad for p in module.parameters(recurse=reset is not None)):
            continue
        if reset is None:
            raise UnsupportedError(
                f"{path or type(net).__name__} holds parameters but has no reset_parameters, so copies of it "
                "cannot start apart; pass a factory, DeepEnsemble(lambda: MyNet(), ...), or init='perturb'"
            )
        reset()
    for name, value in frozen.items():
        net.get_parameter(name).copy_(value)


@torch.no_grad()
def perturb(net: nn.Module) -> None:
    """Add Gaussian noise to every trainable parameter, a tenth of its root mean square.

    Args:
        net: the network, changed in place.
    """
    for parameter in net.parameters():
        if parameter.requires_grad:
            size = parameter.abs().square().mean().sqrt()
            parameter.add_(_NOISE * size * torch.randn_like(parameter))


def check_is_fresh(net: nn.Module) -> None:
    """Raise ``InputError`` if weights that :func:`reinitialize` would replace are not as torch initializes them.

    Args:
        net: the network.
    """
    parts_of_others: set[nn.Module] = set()
    for path, module in net.named_modules():
        if _reset_of(module) is not None:
            parts_of_others.update(m for m in module.modules() if m is not module)
        own = {name: p.detach() for name, p in module.named_parameters(recurse=False) if p.requires_grad}
        if own and module not in parts_of_others and not _looks_fresh(module, own):
            raise InputError(
                f"the weights of {path or type(net).__name__} are trained, or initialized by hand, and members of an "
                "ensemble start apart: say init='fresh' to initialize each anew, init='perturb' to start each near "
                "these weights, or pass a factory that makes a network"
            )


def _reset_of(module: nn.Module) -> Any:
    reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
    return reset if callable(reset) else None


def _looks_fresh(module: nn.Module, own: dict[str, Tensor]) -> bool:
    """Whether parameters lie where torch's initialization of their module can have put them; unknown modules pass."""
    if isinstance(module, _NormBase | nn.LayerNorm | nn.GroupNorm | nn.RMSNorm):
        tracked = getattr(module, "num_batches_tracked", None)
        starts = {"weight": 1.0, "bias": 0.0}
        return not tracked and all(bool((value == starts.get(name, value)).all()) for name, value in own.items())
    bound = _largest_start(module)
    if bound is None and isinstance(module, nn.Embedding | nn.EmbeddingBag):  # standard normal; eight standard errors
        size, mean_square = module.weight.numel(), float(module.weight.detach().double().square().mean())
        return abs(mean_square - 1.0) < 8.0 * math.sqrt(2.0 / size) + 1.0 / module.num_embeddings
    if bound is None:
        return True
    is_constant = any(
        value.dim() > 1 and value.numel() > 1 and bool((value == value.flatten()[0]).all()) for value in own.values()
    )
    return not is_constant and all(
        float(value.abs().max()) <= bound * (1.001 + torch.finfo(value.dtype).eps)
        for value in own.values()
        if value.numel()
    )


def _largest_start(module: nn.Module) -> float | None:
    """The bound of the uniform distribution that a layer draws its parameters from: its ``start_bound``, or torch's."""
    own: Any = getattr(module, "start_bound", None)
    if own is not None:
        return float(own)
    if isinstance(module, nn.Linear):
        return 1.0 / math.sqrt(max(module.in_features, 1))
    if isinstance(module, nn.modules.conv._ConvNd):
        fan_in = module.weight.shape[1] * math.prod(module.kernel_size)
        return 1.0 / math.sqrt(max(fan_in, 1))
    if isinstance(module, nn.RNNBase | nn.RNNCellBase):
        return 1.0 / math.sqrt(max(module.hidden_size, 1))
    return None
