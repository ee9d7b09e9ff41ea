"""Random streams that depend on what is drawn, not on when: every stream is a function of a seed and indices."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any, Self, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from credo.errors import InputError

Result = TypeVar("Result")

_LARGEST_SEED = 2**63 - 1
_BLOCK = 2**18
_WEYL = -0x61C8864680B583EB
"""2⁶⁴ divided by the golden ratio, as a signed integer: the step of the sequence that SplitMix64 hashes."""


class _GeneratorLock:
    """A lock on torch's default generators, of which a process has one set.

    While one thread draws from them for a seed of its own, others that want to do so wait, and the stream that the
    user's own random numbers come from goes on in a generator of its own.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._thread: int | None = None
        self._outer: torch.Generator | None = None

    @contextmanager
    def take(self) -> Iterator[None]:
        """Lock the CPU's default generator; afterwards its stream continues as if nothing had been drawn."""
        with self.lock:
            state, outermost = torch.get_rng_state(), self._thread is None
            if outermost:
                self._outer = torch.Generator()
                self._outer.set_state(state)
                self._thread = threading.get_ident()
            try:
                yield
            finally:
                if outermost:
                    assert self._outer is not None
                    state = self._outer.get_state()
                    self._thread = self._outer = None
                torch.set_rng_state(state)

    def outer_generator(self) -> torch.Generator | None:
        """The generator with the user's stream while another thread holds the lock; ``None``: the default generator."""
        return None if self._thread in (None, threading.get_ident()) else self._outer


_GENERATORS = _GeneratorLock()


def check_seed(seed: int | None) -> int:
    """Return ``seed``, or a fresh one from torch's default generator where it is ``None``."""
    if seed is None:
        return int(torch.randint(_LARGEST_SEED, (), dtype=torch.int64, generator=_GENERATORS.outer_generator()))
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed <= _LARGEST_SEED:
        raise InputError(f"seed must be None or an integer from 0 to 2**63 - 1, got {seed!r}")
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


def standard_normal(
    likes: Sequence[Tensor], streams: Sequence[tuple[int, ...]], memory: list[Tensor]
) -> list[list[Tensor]]:
    """For every stream, standard normal noise of the shapes, dtypes and devices of ``likes``.

    The noise lies in ``memory``, which grows as needed; noise of an earlier call with it is overwritten.

    Torch's CPU generator is serial, and for a large network it would cost a third of the forward pass. So long
    vectors are filled in blocks, each with a stream of its own, on as many threads as torch uses; the result does not
    depend on their number.
    """
    kinds = list(dict.fromkeys((like.device, like.dtype) for like in likes))
    work: list[tuple[Tensor, int]] = []
    noises: list[list[Tensor]] = []
    for stream in streams:
        noise: dict[int, Tensor] = {}
        for k, (device, dtype) in enumerate(kinds):
            members = [i for i, like in enumerate(likes) if (like.device, like.dtype) == (device, dtype)]
            sizes = [likes[i].numel() for i in members]
            if len(memory) == len(noises) * len(kinds) + k:
                memory.append(torch.empty(sum(sizes), device=device, dtype=dtype))
            flat = memory[len(noises) * len(kinds) + k]
            blocks = flat.split(_BLOCK) if device.type == "cpu" else (flat,)
            seeds = np.random.SeedSequence((*stream, k)).generate_state(len(blocks), np.uint64)
            work += [(block, int(seed) & _LARGEST_SEED) for block, seed in zip(blocks, seeds, strict=True)]
            noise.update({i: part.view(likes[i].shape) for i, part in zip(members, flat.split(sizes), strict=True)})
        noises.append([noise[i] for i in range(len(likes))])

    def fill(task: tuple[Tensor, int]) -> None:
        block, seed = task
        block.normal_(generator=torch.Generator(block.device).manual_seed(seed))

    if any(block.numel() == _BLOCK for block, _ in work) and torch.get_num_threads() > 1:
        with ThreadPoolExecutor(torch.get_num_threads()) as threads:
            list(threads.map(fill, work))
    else:
        for task in work:
            fill(task)
    return noises


def bernoulli(seeds: Tensor, stream: int, size: int, p: float) -> Tensor:
    r"""Independent draws that are 1 with probability p; element i of row k is a function of ``seeds[k]`` and i alone.

    A counter-based generator: one operation on all rows at once, the same numbers on every device,

    .. math:: z_{ki} = h(h(s_k + t\,\gamma) + i\,\gamma),

    with t the stream and h the output function of SplitMix64; an element is 1 where the 53 upper bits of z, read as a
    fraction, are below p.

    Args:
        seeds: ``[K]``, int64.
        stream: t, for different draws with the same seeds.
        size: elements per row, n.
        p: the probability of a 1.

    Returns:
        ``[K, n]``, bool.

    Reference: G. L. Steele, D. Lea, C. H. Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
    """
    start = _mix(seeds + _signed(stream * _WEYL))
    counter = torch.arange(1, size + 1, device=seeds.device) * _WEYL
    return _shift(_mix(start.unsqueeze(1) + counter), 11) < round(p * 2**53)


def hashed(seed: int | Tensor, numbers: Tensor) -> Tensor:
    """Unrelated seeds, one for each of ``numbers``, as 64-bit integers."""
    return _mix(seed + (numbers + 1) * _WEYL)


def _mix(z: Tensor) -> Tensor:
    """The output function of SplitMix64, on 64-bit integers that wrap around."""
    z = (z ^ _shift(z, 30)) * -0x40A7B892E31B1A47
    z = (z ^ _shift(z, 27)) * -0x6B2FB644ECCEEE15
    return z ^ _shift(z, 31)


def _shift(z: Tensor, bits: int) -> Tensor:
    """A logical shift to the right; torch's own repeats the sign bit."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    """``value`` modulo 2⁶⁴, as a signed 64-bit integer."""
    return (value + 2**63) % 2**64 - 2**63


@contextmanager
def seeded(seed: int | None, device: torch.device) -> Iterator[None]:
    """Seed torch's default generators inside the block; restore their states afterwards.

    With ``seed=None`` nothing is touched. A ``Generator`` argument would be the plainer tool, but it breaks
    ``torch.compile(fullgraph=True)``, and layers such as ``nn.Dropout`` take none. So a block has the generators to
    itself: threads take turns.
    """
    if seed is None:
        yield
        return
    with _GENERATORS.take():
        cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        try:
            reseed(check_seed(seed), device)
            yield
        finally:
            if cuda is not None:
                torch.cuda.set_rng_state(cuda, device)


@contextmanager
def resumed(state: Tensor) -> Iterator[None]:
    """Let the CPU's default generator continue from ``state`` inside the block; restore its own state afterwards."""
    with _GENERATORS.take():
        torch.set_rng_state(state)
        yield


def reproducible(function: Callable[[], Result], device: torch.device) -> Result:
    """Call ``function`` such that it returns the same every time; torch's random state is left as it was.

    If it draws random numbers, it is called again inside :func:`seeded`, which may have to wait.
    """
    try:
        with NoRandomness():
            return function()
    except RandomnessError:
        with seeded(0, device):
            return function()


class RandomnessError(Exception):
    """Raised inside :class:`NoRandomness` by an operation that would draw random numbers."""


class WatchMode(TorchDispatchMode):
    """A mode that sees every operation.

    Torch keeps its compiler out of modes, and imports it for that at the first operation, which takes a second and
    40 MB. Where it has not been imported, there is nothing to keep out.
    """

    def __new__(cls, *_: Any) -> Self:
        """Make a mode that the compiler does not look into, if there is one."""
        kind: Any = cls
        return object.__new__(_without_compiler(kind) if "torch._dynamo" in sys.modules else kind)  # type: ignore[no-any-return]

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


@cache
def _without_compiler(mode: type[WatchMode]) -> Any:
    skipped: Any = torch._disable_dynamo(mode.__torch_dispatch__)  # type: ignore[attr-defined]
    return type(mode.__name__, (mode,), {"__torch_dispatch__": skipped})


class NoRandomness(WatchMode):
    """Raises :class:`RandomnessError` before any operation that draws from torch's default generators."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        is_random = torch.Tag.nondeterministic_seeded in func.tags and kwargs.get("generator") is None
        if is_random and _dropout_rate(func, args, kwargs) != 0.0:
            raise RandomnessError
        return func(*args, **kwargs)


def _dropout_rate(func: Any, args: Any, kwargs: Any) -> Any:
    """The rate of an operation that may drop something, as attention; ``None`` for others."""
    given = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | kwargs
    defaults = {argument.name: argument.default_value for argument in func._schema.arguments}
    return (defaults | given).get("dropout_p")
