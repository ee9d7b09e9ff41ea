"""Special functions that keep their digits where the textbook's formula cancels: large arguments, and both tails."""

from __future__ import annotations

import math

import torch
from torch import Tensor

STIRLING_FROM = 16.0
"""Where the first term that the series leaves out, 691/360360 x⁻¹¹, is below a rounding error of float64."""
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188)
_NEAR = 0.1
_NEAR_TERMS = tuple(1 / (2 * j + 1) for j in range(1, 9))
"""Of the deviance: for |v| < 0.1 the first term left out, v¹⁶/19 of the first, is below a rounding error of float64."""


def ndtr(z: Tensor) -> Tensor:
    """Φ(z) = ½ erfc(−z/√2), with all its digits in the lower tail too; torch's own is ½(1 + erf(z/√2))."""
    return 0.5 * torch.erfc(-math.sqrt(0.5) * z)


def log_rising(start: Tensor, steps: Tensor) -> Tensor:
    """log Γ(x + n) − log Γ(x) for x > 0 and n ≥ 0: the log of x(x+1)…(x+n−1) for a whole n.

    For a large x both terms are Stirling's series, whose leading parts are subtracted on paper:

        (x − ½) log(1 + n/x) + n log(x + n) − n + r(x + n) − r(x)
    """
    large = start.clamp(min=STIRLING_FROM)
    end = large + steps
    leading = (large - 0.5) * torch.log1p(steps / large) + steps * end.log() - steps
    series = leading + _stirling_remainder(end) - _stirling_remainder(large)
    return torch.where(start < STIRLING_FROM, torch.lgamma(start + steps) - torch.lgamma(start), series)


def log_poisson(count: Tensor, log_rate: Tensor, rate: Tensor) -> Tensor:
    """log Poisson(k | λ) for k = 0, 1, 2, …, in the dtype of its arguments and with the gradient k − λ in log λ.

    The textbook's k log λ − λ − log k! is the difference of numbers of the size of k log k. From k = 16 on Stirling's
    series for k! takes the large parts away on paper (Loader 2000):

        −D(k, λ) − ½ log 2πk − r(k),    D(k, λ) = k log(k/λ) + λ − k

    What is left of the error comes from rounding k and λ themselves: (k − λ)/λ times half a unit in their last place.

    Args:
        count: k.
        log_rate: log λ, which says more than λ where that underflows.
        rate: λ.

    References:
        C. Loader. Fast and accurate computation of binomial probabilities. 2000.
    """
    small, large = count.clamp(max=STIRLING_FROM), count.clamp(min=STIRLING_FROM)
    few = torch.where(small > 0, small * log_rate, 0.0) - rate - torch.lgamma(small + 1.0)
    deviance = _deviance(large, rate, large - rate, log_rate)
    many = -deviance - 0.5 * (2.0 * math.pi * large).log() - _stirling_remainder(large)
    return torch.where(count < STIRLING_FROM, few, many)


def log_negative_binomial(count: Tensor, shape: Tensor, scale: Tensor) -> Tensor:
    """The log probability of k ~ Poisson(λ) with λ ~ Gamma(a, scale s), the mean a·s, for any a > 0 and s ≥ 0.

        log Γ(a + k)/(Γ(a) k!) − a log(1 + s) − k log(1 + 1/s)

    as it stands where k or a is small, so that none of the terms is large beside the result. Otherwise the large parts
    are taken away on paper, as for the binomial with N = a + k that it is (Loader 2000; D and r as in ``log_poisson``):

        log a/N + r(N) − r(a) − r(k) − D(a, N/(1+s)) − D(k, Ns/(1+s)) − ½ log 2πak/N

    Args:
        count: k.
        shape: a.
        scale: s.
    """
    small_k, large_k = count.clamp(max=STIRLING_FROM), count.clamp(min=STIRLING_FROM)
    small_a, large_a = shape.clamp(max=STIRLING_FROM), shape.clamp(min=STIRLING_FROM)
    few = log_rising(shape, small_k) - torch.lgamma(small_k + 1.0)
    loose = log_rising(large_k, small_a) - large_k.log() - torch.lgamma(small_a)
    ways = torch.where(count < STIRLING_FROM, few, loose)
    direct = ways - shape * torch.log1p(scale) - torch.where(count > 0, count * torch.log1p(1.0 / scale), 0.0)

    total, excess = large_a + large_k, (large_a * scale - large_k) / (1.0 + scale)
    expected_a, expected_k = total / (1.0 + scale), total * (scale / (1.0 + scale))
    remainders = _stirling_remainder(total) - _stirling_remainder(large_a) - _stirling_remainder(large_k)
    deviances = _deviance(large_a, expected_a, excess) + _deviance(large_k, expected_k, -excess)
    log_square = (2.0 * math.pi * large_k).log() + (total / large_a).log()
    saddle = remainders - deviances - 0.5 * log_square
    return torch.where((count < STIRLING_FROM) | (shape < STIRLING_FROM), direct, saddle)


def _deviance(x: Tensor, mean: Tensor, excess: Tensor, log_mean: Tensor | None = None) -> Tensor:
    """D(x, m) = x log(x/m) + m − x for x > 0, where ``excess`` is x − m, as exactly as it is known.

    With v = (x − m)/(x + m), log(x/m) = 2 artanh v, so that near m

        D = (x − m) v + 2x (v³/3 + v⁵/5 + …),

    a sum without cancellation.
    """
    regular = (mean > torch.finfo(mean.dtype).tiny) & mean.isfinite()
    m = torch.where(regular, mean, 1.0)  # elsewhere whatever has a gradient
    v = torch.where(regular, excess, x) / (x + m)
    near = v.abs() < _NEAR
    v = torch.where(near, v, 0.0)
    square, series = v.square(), torch.zeros_like(v)
    for coefficient in reversed(_NEAR_TERMS):
        series = square * (coefficient + series)
    log_ratio = torch.where(regular, (x / m).log(), x.log() - (mean.log() if log_mean is None else log_mean))
    return torch.where(near, torch.where(near, excess, 0.0) * v + 2.0 * x * v * series, x * log_ratio - excess)


def _stirling_remainder(x: Tensor) -> Tensor:
    """r(x) = log Γ(x) − [(x − ½) log x − x + ½ log 2π]."""
    inverse, total = x.reciprocal(), torch.zeros_like(x)
    for coefficient in reversed(_STIRLING):
        total = total * inverse.square() + coefficient
    return total * inverse
