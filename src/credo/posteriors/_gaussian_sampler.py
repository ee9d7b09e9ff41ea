"""Draws of a Gaussian by number, with independent weights or with a few directions that they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from credo.functional import Draw, Sampler
from credo.kernels import DRAWN_TOGETHER, accepts, gaussian_draws
from credo.seeding import derive, standard_normal

_ALIGNMENT = 32
"""Draws of a tensor begin at multiples of so many numbers: kernels read 128 bytes at a time."""


def gaussian_sampler(mean: Mapping[str, Tensor], scale: Mapping[str, Tensor], seed: int, antithetic: bool) -> Sampler:
    r"""A function that returns draws :math:`w_s = \mu + \sigma\,\varepsilon_s` by their numbers.

    Antithetic draws come in pairs :math:`w_{2k} = \mu + \sigma\,\varepsilon_k` and
    :math:`w_{2k+1} = \mu - \sigma\,\varepsilon_k`, with half the random numbers.

    Args:
        mean: μ by name.
        scale: σ by name, in at least the precision of μ.
        seed: of the noise; draw s has the stream (seed, s), or (seed, ⌊s/2⌋) of its pair.
        antithetic: whether draws come in pairs.

    Returns:
        ``sampler(numbers)``; the draws of one call lie in the memory of the call before.
    """
    kinds = {(tensor.device, tensor.dtype) for tensor in (*mean.values(), *scale.values())}
    if len(kinds) == 1 and accepts([next(iter(scale.values())).new_empty(0)]):
        return RowSampler(mean, scale, seed, antithetic)
    wide = {name: mean[name].to(scale[name].dtype) for name in mean}
    likes = list(scale.values())
    memory: list[Tensor] = []
    pair_memory: list[list[Tensor]] = []
    held: dict[int, list[Tensor]] = {}

    def shift(noise: Sequence[Tensor], sign: float, out: Sequence[Tensor]) -> Draw:
        return {
            name: torch.addcmul(wide[name], scale[name], epsilon, value=sign, out=into).to(mean[name].dtype)
            for name, epsilon, into in zip(mean, noise, out, strict=True)
        }

    @torch.no_grad()
    def draw(numbers: Sequence[int]) -> list[Draw]:
        if not antithetic:
            noises = standard_normal(likes, [(seed, s) for s in numbers], memory)
            return [shift(noise, 1.0, noise) for noise in noises]
        pairs = list(dict.fromkeys(s // 2 for s in numbers))
        if list(held) != pairs:  # both draws of a pair, one after the other, need its noise once
            held.clear()
            held.update(zip(pairs, standard_normal(likes, [(seed, k) for k in pairs], memory), strict=True))
        while len(pair_memory) < len(numbers):
            pair_memory.append([torch.empty_like(like) for like in likes])
        signs = [1.0 if s % 2 == 0 else -1.0 for s in numbers]
        return [shift(held[s // 2], sign, out) for s, sign, out in zip(numbers, signs, pair_memory, strict=False)]

    return draw


class RowSampler:
    r"""Draws on a GPU that lie behind each other, by one kernel; it can be recorded in a CUDA graph.

    Args:
        mean: μ by name, float32, all on one GPU.
        scale: σ by name, likewise.
        seed: of the noise.
        antithetic: whether draws come in pairs.

    Attributes:
        parameters: all means and all scales.
        seed: of the random numbers.
        kind: what the draws depend on besides numbers in tensors.
    """

    def __init__(self, mean: Mapping[str, Tensor], scale: Mapping[str, Tensor], seed: int, antithetic: bool) -> None:
        self._shapes, self._antithetic = {name: value.shape for name, value in mean.items()}, antithetic
        self.parameters = [*mean.values(), *scale.values()]
        self.seed = derive(seed)
        self.kind = (antithetic, *self._shapes.items())
        self._memory: GaussianMemory | None = None

    def __call__(self, numbers: Sequence[int]) -> list[Draw]:
        """The draws of ``numbers``; they lie in the memory of the call before."""
        if self._memory is None or self._memory.size < len(numbers):
            self._memory = None  # so that its memory can be used again
            self._memory = self.make_memory(len(numbers), self.parameters[0].device)
            self._memory.load(self)
        self._memory.fill(torch.tensor(numbers).to(self.parameters[0].device, non_blocking=True))
        return self._memory.draws[: len(numbers)]

    def make_memory(self, size: int, device: torch.device) -> GaussianMemory:
        """Memory for ``size`` draws, as :class:`credo.evaluation.captured.CapturedDraws` needs it."""
        return GaussianMemory(self._shapes, size, self._antithetic, device)


class GaussianMemory:
    """K draws of a Gaussian, the mean, scale and seed they depend on, and their numbers, at fixed addresses.

    All draws of a tensor are adjacent, so that they can be stacked without a copy.

    Args:
        shapes: of the tensors, by name.
        size: K.
        antithetic: whether draws come in pairs.
        device: a GPU.

    Attributes:
        size: K.
        draws: K draws.
    """

    def __init__(self, shapes: Mapping[str, torch.Size], size: int, antithetic: bool, device: torch.device) -> None:
        counts = [shape.numel() for shape in shapes.values()]
        padded = [_round_up(count, _ALIGNMENT) for count in counts]
        whole = [_round_up(count, DRAWN_TOGETHER) for count in counts]
        self.size, self._antithetic = size, antithetic
        self._numbers = torch.arange(size, device=device)
        self._seed = torch.zeros((), dtype=torch.int64, device=device)
        self._parameters = torch.zeros(2, sum(whole), device=device)
        self._rows = torch.empty(size * sum(padded), device=device)
        self._table = _make_table(size, padded).to(device)
        self._views = [
            part[:count].view(shape)
            for row in self._parameters
            for part, count, shape in zip(row.split(whole), counts, shapes.values(), strict=True)
        ]
        parts = self._rows.split([size * width for width in padded])
        stacked = [
            part.view(size, width)[:, :count].view(size, *shape)
            for part, width, count, shape in zip(parts, padded, counts, shapes.values(), strict=True)
        ]
        columns = zip(*(tensor.unbind() for tensor in stacked), strict=True)
        self.draws: list[Draw] = [dict(zip(shapes, weights, strict=True)) for weights in columns]

    @torch.no_grad()
    def load(self, sampler: RowSampler, samples: int | None = None) -> None:
        """Take over the mean, scale and seed of ``sampler``, whatever the number of draws."""
        torch._foreach_copy_(self._views, sampler.parameters)
        self._seed.fill_(sampler.seed)

    def choose(self, first: int) -> None:
        """Let the next draws be ``first`` to ``first`` + K − 1."""
        torch.arange(first, first + self.size, out=self._numbers)

    def fill(self, numbers: Tensor | None = None) -> None:
        """Compute the draws of ``numbers``, int64 on the device, at most K; ``None``: those chosen before."""
        numbers = self._numbers if numbers is None else numbers
        mean, scale = self._parameters
        gaussian_draws(mean, scale, self._seed, numbers, self._table, self._rows, self._antithetic)


def _make_table(size: int, padded: Sequence[int]) -> Tensor:
    """For every block of weights, see :func:`credo.kernels.gaussian_draws`: place, distance of draws, length."""
    rows, start = [], 0
    for width in padded:
        first = range(0, width, DRAWN_TOGETHER)
        rows += [(start + place, width, min(width - place, DRAWN_TOGETHER)) for place in first]
        start += size * width
    return torch.tensor(rows, dtype=torch.int64).view(-1, 3)


def _round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def low_rank_sampler(
    mean: Mapping[str, Tensor], scale: Mapping[str, Tensor], columns: Mapping[str, Tensor], factor: float, seed: int
) -> Sampler:
    r"""A function that returns draws :math:`w_s = \mu + \sigma\,\varepsilon_s + c\,\sum_k z_{sk} u_k` by their numbers.

    Args:
        mean: μ by name.
        scale: σ by name, in at least the precision of μ.
        columns: u, ``[K, *shape]`` by name, in the precision of σ.
        factor: c.
        seed: of the noise; draw s has the stream (seed, s).

    Returns:
        ``sampler(numbers)``; the draws of one call lie in the memory of the call before.
    """
    wide = {name: mean[name].to(scale[name].dtype) for name in mean}
    first = next(iter(columns.values()))
    likes = [*scale.values(), first.new_empty(len(first))]
    memory: list[Tensor] = []

    def shift(noise: Sequence[Tensor], along: Tensor) -> Draw:
        draw = {}
        for name, epsilon in zip(mean, noise, strict=True):
            moved = torch.addcmul(wide[name], scale[name], epsilon, out=epsilon)
            moved += torch.tensordot(along.to(moved), columns[name], 1)
            draw[name] = moved.to(mean[name].dtype)
        return draw

    @torch.no_grad()
    def draw(numbers: Sequence[int]) -> list[Draw]:
        noises = standard_normal(likes, [(seed, s) for s in numbers], memory)
        return [shift(noise[:-1], factor * noise[-1]) for noise in noises]

    return draw
