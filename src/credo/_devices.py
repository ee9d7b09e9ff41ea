"""Where torch computes, and how precisely."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from credo.errors import InputError


def check_device(device: str | torch.device | None) -> torch.device:
    """The device of that name, the CPU for ``None``; refused where torch does not know it or it is not there."""
    try:
        return torch.empty(0, device=device or "cpu").device
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        raise InputError(f"device must be one that torch can use here, such as 'cpu', got {device!r}") from error


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """``dtype``, or float32 where it has 16 bits: too few for long sums, and for numbers that learn by small steps."""
    return torch.promote_types(dtype, torch.float32)


def seconds(run: Callable[[], object], device: torch.device) -> float:
    """The time ``run`` takes on ``device``."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start
