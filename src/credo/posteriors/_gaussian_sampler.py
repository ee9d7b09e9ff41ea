"""Draws of a Gaussian with independent weights, by number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from credo.functional import Draw, Sampler
from credo.seeding import standard_normal


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
