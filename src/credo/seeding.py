"""Random streams that depend on what is drawn, not on when: every stream is a function of a seed and indices."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from credo.errors import InputError

_LARGEST_SEED = 2**63 - 1


def check_seed(seed: int | None) -> int:
    """Return ``seed``, or a fresh one from torch's default generator where it is ``None``."""
    if seed is None:
        return int(torch.randint(_LARGEST_SEED, (), dtype=torch.int64))
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed <= _LARGEST_SEED:
        raise InputError(f"seed must be None or a whole number from 0 to 2**63 - 1, got {seed!r}")
    return int(seed)


def derive(seed: int, *indices: int) -> int:
    """The seed of the stream ``indices`` of ``seed``; different indices give unrelated streams."""
    state = np.random.SeedSequence((seed, *indices)).generate_state(1, np.uint64)
    return int(state[0]) & _LARGEST_SEED


def generator(device: torch.device, seed: int, *indices: int) -> torch.Generator:
    """A generator on ``device`` for the stream ``indices`` of ``seed``."""
    return torch.Generator(device=device).manual_seed(derive(seed, *indices))


@contextmanager
def seeded(seed: int | None, device: torch.device) -> Iterator[None]:
    """Seed torch's default generators inside the block and put their states back after it.

    With ``seed=None`` nothing is touched. A ``Generator`` argument would be the plainer tool, but it breaks
    ``torch.compile(fullgraph=True)``, and layers such as ``nn.Dropout`` take none.
    """
    if seed is None:
        yield
        return
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(check_seed(seed))
        yield
