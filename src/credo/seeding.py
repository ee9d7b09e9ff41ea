"""Random streams that depend on what is drawn, not on when: every stream is a function of a seed and indices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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


def standard_normal(likes: Sequence[Tensor], seed: int, *indices: int) -> list[Tensor]:
    """Standard normal noise of the shapes, dtypes and devices of ``likes``, from the stream ``indices`` of ``seed``."""
    kinds = list(dict.fromkeys((like.device, like.dtype) for like in likes))
    noise: dict[int, Tensor] = {}
    for k, (device, dtype) in enumerate(kinds):
        members = [i for i, like in enumerate(likes) if (like.device, like.dtype) == (device, dtype)]
        sizes = [likes[i].numel() for i in members]
        flat = torch.empty(sum(sizes), device=device, dtype=dtype)
        _fill_with_normal(flat, seed, *indices, k)
        noise.update({i: part.view(likes[i].shape) for i, part in zip(members, flat.split(sizes), strict=True)})
    return [noise[i] for i in range(len(likes))]


def _fill_with_normal(flat: Tensor, *stream: int) -> None:
    """Fill a vector from a stream.

    Torch's CPU generator is serial, and for a large network it would cost a third of the forward pass. So a long
    vector is filled in blocks, each with a stream of its own, on as many threads as torch uses; the result does not
    depend on their number.
    """
    blocks = flat.split(_BLOCK) if flat.device.type == "cpu" else (flat,)
    seeds = np.random.SeedSequence(stream).generate_state(len(blocks), np.uint64)

    def fill(block: Tensor, seed: np.uint64) -> None:
        block.normal_(generator=torch.Generator(flat.device).manual_seed(int(seed) & _LARGEST_SEED))

    if len(blocks) == 1 or torch.get_num_threads() == 1:
        for block, seed in zip(blocks, seeds, strict=True):
            fill(block, seed)
    else:
        with ThreadPoolExecutor(torch.get_num_threads()) as threads:
            list(threads.map(fill, blocks, seeds))


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
