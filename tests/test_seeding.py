"""Counter-based Bernoulli draws, and what counts as random."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from credo.seeding import NoRandomness, RandomnessError, bernoulli

N = 2**16


def reference(seed: int, stream: int, size: int) -> list[int]:
    """SplitMix64 in Python integers, as its paper has it."""
    mask, weyl = 2**64 - 1, 0x9E3779B97F4A7C15

    def mix(z: int) -> int:
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)

    start = mix((seed + stream * weyl) & mask)
    return [mix((start + i * weyl) & mask) for i in range(1, size + 1)]


def test_bits_are_those_of_splitmix() -> None:
    seeds = [0, 5, 2**63 - 1]
    for p in (0.1, 0.5, 0.9):
        expected = [[(z >> 11) < p * 2**53 for z in reference(seed, 7, 40)] for seed in seeds]
        assert bernoulli(torch.tensor(seeds), 7, 40, p).tolist() == expected


@pytest.mark.parametrize("p", [0.02, 0.5, 0.9])
def test_draws_have_their_rate_and_are_independent(p: float) -> None:
    """Rates of rows and columns, and products of neighbors in the row, in the next row, stream and seed.

    A mean of n indicators of rate q has standard error √(q(1 − q)/n); five are allowed.
    """
    seeds = torch.arange(16)
    draws = bernoulli(seeds, 1, N // 16, p).double()
    other = bernoulli(seeds, 2, N // 16, p).double()
    pairs = {
        "rate": (draws, p),
        "along a row": (draws[:, 1:] * draws[:, :-1], p * p),
        "along a row, lag 7": (draws[:, 7:] * draws[:, :-7], p * p),
        "next seed": (draws[1:] * draws[:-1], p * p),
        "next stream": (draws * other, p * p),
    }
    for name, (values, rate) in pairs.items():
        error = math.sqrt(rate * (1 - rate) / values.numel())
        assert abs(float(values.mean()) - rate) < 5 * error, name
    by_row = (draws.mean(1) - p) / math.sqrt(p * (1 - p) / draws.shape[1])
    assert float(by_row.abs().max()) < 5


def test_a_shorter_row_is_the_beginning_of_a_longer_one() -> None:
    seeds = torch.tensor(np.random.default_rng(0).integers(2**62, size=5))
    assert torch.equal(bernoulli(seeds, 3, 100, 0.4)[:, :31], bernoulli(seeds, 3, 31, 0.4))
    assert torch.equal(bernoulli(seeds, 3, 100, 0.4)[2:3], bernoulli(seeds[2:3], 3, 100, 0.4))


def test_attention_is_random_if_it_drops_something() -> None:
    """Its kernels are marked as random, whatever their rate."""
    x = torch.randn(2, 4, 5, 8)
    attention = torch.nn.functional.scaled_dot_product_attention
    with NoRandomness():
        assert attention(x, x, x).shape == x.shape
        for draw in (lambda: attention(x, x, x, dropout_p=0.1), lambda: torch.rand(3)):
            with pytest.raises(RandomnessError):
                draw()
