"""Where torch computes, and how precisely."""

from __future__ import annotations

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
