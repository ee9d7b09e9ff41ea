"""Draws of a Gaussian by number, with independent weights or with a few directions that they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from credo.functional import Draw, Sampler
from credo.seeding import derive, standard_normal

_ALIGNMENT = 32
"""Numbers between the beginnings of two tensors in a row: kernels read 128 bytes at a time."""
_PHILOX_STRIDE = 2**32
"""More random numbers than a thread of a GPU draws for one row."""


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
    kinds = {(tensor.device.type, tensor.dtype) for tensor in (*mean.values(), *scale.values())}
    if len(kinds) == 1 and next(iter(kinds))[0] == "cuda" and not antithetic:
        return _adjacent_sampler(mean, scale, seed)
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


def _adjacent_sampler(mean: Mapping[str, Tensor], scale: Mapping[str, Tensor], seed: int) -> Sampler:
    """Draws on a GPU as the rows of one matrix, so that a few kernels compute them and stacking them copies nothing.

    The noise of draw s is that of a Philox generator from an offset of its own.
    """
    padded = [-(-value.numel() // _ALIGNMENT) * _ALIGNMENT for value in mean.values()]
    like = next(iter(scale.values()))
    flat_mean, flat_scale = (like.new_zeros(sum(padded)) for _ in range(2))
    for flat, parts in ((flat_mean, mean), (flat_scale, scale)):
        for target, part in zip(flat.split(padded), parts.values(), strict=True):
            target[: part.numel()] = part.reshape(-1)
    generator = torch.Generator(like.device).manual_seed(derive(seed))
    memory: list[Tensor] = []

    @torch.no_grad()
    def draw(numbers: Sequence[int]) -> list[Draw]:
        if not memory or len(memory[0]) < len(numbers):
            memory[:] = [like.new_empty(len(numbers), sum(padded))]
        rows = memory[0][: len(numbers)]
        for s, row in zip(numbers, rows.unbind(), strict=True):
            generator.set_offset(s * _PHILOX_STRIDE)
            row.normal_(generator=generator)
        torch.addcmul(flat_mean, flat_scale, rows, out=rows)
        columns = zip(rows.split(padded, dim=1), mean.values(), strict=True)
        shaped = [part[:, : value.numel()].view(len(rows), *value.shape) for part, value in columns]
        return [dict(zip(mean, weights, strict=True)) for weights in zip(*(t.unbind() for t in shaped), strict=True)]

    return draw


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
