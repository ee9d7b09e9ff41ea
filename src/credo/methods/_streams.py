"""Random numbers of many chains, each from a stream of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from credo.seeding import generator

_STEPS_AT_ONCE = 64


class Streams:
    """Random numbers of K chains. Chain k draws from the stream (seed, k), however many other chains there are.

    On a GPU, where every call of a generator is the launch of a kernel, each chain draws the numbers of 64 steps at
    once.

    Args:
        device: where the numbers are drawn.
        seed: a number; or several, for chains of as many models in one batch: those of model f have ``seed[f]``.
        chains: K, a multiple of the number of seeds.
    """

    def __init__(self, device: torch.device, seed: int | Sequence[int], chains: int) -> None:
        seeds = [seed] if isinstance(seed, int) else list(seed)
        self._sources = [generator(device, s, k) for s in seeds for k in range(chains // len(seeds))]
        self._device, self._at_once = device, 1 if device.type == "cpu" else _STEPS_AT_ONCE
        self._drawn: dict[object, list[Tensor]] = {}

    def normal(self, size: int, dtype: torch.dtype) -> Tensor:
        """Standard normal numbers, ``[K, size]``."""

        def draw(source: torch.Generator, steps: int) -> Tensor:
            return torch.randn(steps, size, generator=source, device=self._device, dtype=dtype)

        return self._next(("normal", size, dtype), draw)

    def uniform(self) -> Tensor:
        """A number between 0 and 1 per chain, ``[K]``, in float64."""

        def draw(source: torch.Generator, steps: int) -> Tensor:
            return torch.rand(steps, generator=source, device=self._device, dtype=torch.float64)

        return self._next("uniform", draw)

    def gamma(self, name: str, concentration: float, shape: torch.Size) -> Tensor:
        """Numbers from Gamma(concentration, 1), ``[K, *shape]``, in float64.

        Args:
            name: what they are for; the concentration and the shape are always the same for it.
            concentration: the parameter of the distribution.
            shape: of one chain.
        """

        def draw(source: torch.Generator, steps: int) -> Tensor:
            like = torch.full((steps, *shape), concentration, dtype=torch.float64, device=self._device)
            return torch._standard_gamma(like, generator=source)

        return self._next(("gamma", name), draw)

    def _next(self, kind: object, draw: Callable[[torch.Generator, int], Tensor]) -> Tensor:
        """The numbers of the next step, ``[K, ...]``; ``draw`` returns those of some steps of one chain."""
        if not self._drawn.get(kind):
            numbers = torch.stack([draw(source, self._at_once) for source in self._sources], 1)
            self._drawn[kind] = list(numbers.unbind())[::-1]
        return self._drawn[kind].pop()
