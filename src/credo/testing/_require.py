"""The assertions that conformance checks are made of. ``assert`` would be silent under ``python -O``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from credo.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

STANDARD_ERRORS = 5.0
"""How far a Monte Carlo mean may lie from its expectation: a chance of 6e-7 for a Gaussian."""
_ROUNDING = 256
"""Units in the last place, of the largest number in a tensor, that a different order of summation may cost."""


def require(condition: bool, sentence: str) -> None:
    """Raise an ``AssertionError`` that says ``sentence`` unless ``condition`` holds."""
    if not condition:
        raise AssertionError(sentence)


def require_equal(actual: Tensor, expected: Tensor, sentence: str) -> None:
    """Two tensors agree to the last bit."""
    require(actual.shape == expected.shape, f"{sentence}; shapes {list(actual.shape)} and {list(expected.shape)}")
    require(actual.dtype == expected.dtype, f"{sentence}; dtypes {actual.dtype} and {expected.dtype}")
    if not torch.equal(actual, expected):
        raise AssertionError(f"{sentence}; they differ by up to {_distance(actual, expected):.3g}")


def require_close(actual: Tensor, expected: Tensor, sentence: str) -> None:
    """Two tensors agree to rounding."""
    require(actual.shape == expected.shape, f"{sentence}; shapes {list(actual.shape)} and {list(expected.shape)}")
    if actual.numel() == 0:
        return
    size = max(1.0, float(expected.detach().abs().max()))
    tolerance = _ROUNDING * torch.finfo(expected.dtype).eps * size
    distance = _distance(actual, expected)
    require(distance <= tolerance, f"{sentence}; they differ by up to {distance:.3g}, rounding allows {tolerance:.3g}")


def require_input_error(call: Callable[[], object], sentence: str) -> None:
    """``call`` raises an :class:`~credo.errors.InputError`."""
    try:
        call()
    except InputError:
        return
    except Exception as error:
        raise AssertionError(f"{sentence}; it raised {type(error).__name__}: {error}") from error
    raise AssertionError(f"{sentence}; it raised nothing")


@contextmanager
def undisturbed(what: str, *modules: nn.Module) -> Iterator[None]:
    """The block leaves weights, buffers, flags and hooks of ``modules`` and torch's random state to the last bit."""
    before = [_fingerprint(module) for module in modules]
    state = torch.get_rng_state()
    yield
    require(torch.equal(state, torch.get_rng_state()), f"{what} with a seed must leave torch's random state alone")
    for module, (tensors, values, settings) in zip(modules, before, strict=True):
        now, _, settings_now = _fingerprint(module)
        for name in tensors.keys() | now.keys():
            require(name in now and name in tensors, f"{what} must not add or remove parameters or buffers: {name!r}")
            require(now[name] is tensors[name], f"{what} must not put another tensor in the place of {name!r}")
            require_equal(now[name].detach(), values[name], f"{what} must not change {name!r}")
        for name, setting in settings.items():
            require(
                settings_now.get(name) == setting,
                f"{what} must leave train/eval flags and hooks alone, but changed those of {name or 'the model'!r}",
            )


def _fingerprint(module: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, tuple[object, ...]]]:
    tensors: dict[str, Tensor] = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    values = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    settings: dict[str, tuple[object, ...]] = {
        name: (part.training, tuple(part._forward_hooks), tuple(part._forward_pre_hooks), tuple(part._modules))
        for name, part in module.named_modules()
    }
    return tensors, values, settings


def _distance(a: Tensor, b: Tensor) -> float:
    if a.is_floating_point():
        return float((a.detach().double() - b.detach().double()).abs().nan_to_num(nan=float("inf")).max())
    return float((a != b).sum())
