"""Random streams that depend on what is drawn, not on when: every stream is a function of a seed and indices."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from credo.errors import InputError

_LARGEST_SEED = 2**63 - 1
_BLOCK = 2**18


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


def reseed(seed: int, device: torch.device) -> None:
    """Seed the default generators of the CPU and of ``device``; ``torch.manual_seed`` would reset every GPU."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)


def standard_normal(like: Tensor, seed: int, *indices: int) -> Tensor:
    """Standard normal noise of the shape, dtype and device of ``like``, from the stream ``indices`` of ``seed``.

    Torch's CPU generator is serial, and for a large network it would cost a third of the forward pass. So a large
    tensor is filled in blocks, each with a stream of its own, on as many threads as torch uses; the result does not
    depend on their number.
    """
    noise = torch.empty_like(like, requires_grad=False, memory_format=torch.contiguous_format)
    blocks = [noise] if noise.device.type != "cpu" else noise.view(-1).split(_BLOCK)
    seeds = np.random.SeedSequence((seed, *indices)).generate_state(max(len(blocks), 1), np.uint64)

    def fill(block: Tensor, block_seed: np.uint64) -> None:
        block.normal_(generator=torch.Generator(noise.device).manual_seed(int(block_seed) & _LARGEST_SEED))

    if len(blocks) <= 1 or torch.get_num_threads() == 1:
        for block, block_seed in zip(blocks, seeds, strict=False):
            fill(block, block_seed)
    else:
        with ThreadPoolExecutor(torch.get_num_threads()) as threads:
            list(threads.map(fill, blocks, seeds))
    return noise


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
        reseed(check_seed(seed), device)
        yield
