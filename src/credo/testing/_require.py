"""Assertions for the conformance checks. ``assert`` would do nothing under ``python -O``."""

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
"""The maximum deviation of a Monte Carlo mean; the probability of more is 6e-7 for a Gaussian."""
_ROUNDING = 256
"""The maximum rounding error by another order of summation, in units in the last place of the largest value."""


def require(condition: bool, message: str) -> None:
    """Raise ``AssertionError(message)`` unless ``condition`` is true."""
    if not condition:
        raise AssertionError(message)


def require_equal(actual: Tensor, expected: Tensor, message: str) -> None:
    """Raise ``AssertionError`` unless two tensors are bitwise equal."""
    require(actual.shape == expected.shape, f"{message}; shapes {list(actual.shape)} and {list(expected.shape)}")
    require(actual.dtype == expected.dtype, f"{message}; dtypes {actual.dtype} and {expected.dtype}")
    if not torch.equal(actual, expected):
        raise AssertionError(f"{message}; they differ by up to {_distance(actual, expected):.3g}")


def require_close(actual: Tensor, expected: Tensor, message: str) -> None:
    """Raise ``AssertionError`` unless two tensors are equal up to rounding."""
    require(actual.shape == expected.shape, f"{message}; shapes {list(actual.shape)} and {list(expected.shape)}")
    if actual.numel() == 0:
        return
    size = max(1.0, float(expected.detach().abs().max()))
    tolerance = _ROUNDING * torch.finfo(expected.dtype).eps * size
    distance = _distance(actual, expected)
    require(distance <= tolerance, f"{message}; they differ by up to {distance:.3g}, rounding allows {tolerance:.3g}")


def require_input_error(call: Callable[[], object], message: str) -> None:
    """Raise ``AssertionError`` unless ``call`` raises an :class:`~credo.errors.InputError`."""
    try:
        call()
    except InputError:
        return
    except Exception as error:
        raise AssertionError(f"{message}; it raised {type(error).__name__}: {error}") from error
    raise AssertionError(f"{message}; it raised nothing")


@contextmanager
def require_unchanged(what: str, *modules: nn.Module) -> Iterator[None]:
    """Raise ``AssertionError`` if the block changes parameters, buffers, flags or hooks, or torch's random state."""
    before = [_snapshot(module) for module in modules]
    state = torch.get_rng_state()
    yield
    require(torch.equal(state, torch.get_rng_state()), f"{what} with a seed must not change torch's random state")
    for module, (tensors, values, settings) in zip(modules, before, strict=True):
        now, _, settings_now = _snapshot(module)
        for name in tensors.keys() | now.keys():
            require(name in now and name in tensors, f"{what} must not add or remove parameters or buffers: {name!r}")
            require(now[name] is tensors[name], f"{what} must not replace the tensor {name!r}")
            require_equal(now[name].detach(), values[name], f"{what} must not change {name!r}")
        for name, setting in settings.items():
            require(
                settings_now.get(name) == setting,
                f"{what} must not change train/eval flags and hooks, but changed those of {name or 'the model'!r}",
            )


def _snapshot(module: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, tuple[object, ...]]]:
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
