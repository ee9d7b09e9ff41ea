"""Where torch computes."""

from __future__ import annotations

import torch

from credo.errors import InputError


def check_device(device: str | torch.device | None) -> torch.device:
    """The device of that name, the CPU for ``None``; refused where torch does not know it or it is not there."""
    try:
        return torch.empty(0, device=device or "cpu").device
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        raise InputError(f"device must be one that torch can use here, such as 'cpu', got {device!r}") from error
