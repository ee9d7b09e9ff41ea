"""Special functions and log probabilities without cancellation, for large arguments and in both tails."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

_STIRLING_MINIMUM = 16.0  # from here on the first omitted term, 691/360360 x⁻¹¹, is below a rounding error of float64
_STIRLING_COEFFICIENTS = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188)
_SERIES_MAXIMUM = 0.1  # up to here the first omitted term of the deviance, v¹⁶/19 of the first, is below rounding
_WHITE_DIMENSIONS = 16
_SERIES_COEFFICIENTS = tuple(1 / (2 * j + 1) for j in range(1, 9))


def ndtr(z: Tensor) -> Tensor:
    """Φ(z) = ½ erfc(−z/√2), accurate in the lower tail too, where torch's ½(1 + erf(z/√2)) cancels."""
    return 0.5 * torch.erfc(-math.sqrt(0.5) * z)


@lru_cache
def normal_quantile(q: float) -> float:
    """Φ⁻¹(q) of one number."""
    return float(torch.special.ndtri(torch.tensor(q, dtype=torch.float64)))


def log_rising(start: Tensor, steps: Tensor) -> Tensor:
    """Log of the rising factorial, log Γ(x + n) − log Γ(x) for x > 0 and n ≥ 0.

    For an integer n it is log x(x+1)…(x+n−1). For a large x both terms are Stirling's series, whose leading parts are
    subtracted analytically:

        (x − ½) log(1 + n/x) + n log(x + n) − n + r(x + n) − r(x)

    Args:
        start: x, ``[...]``.
        steps: n, ``[...]``.

    Returns:
        ``[...]``, in the dtype of the arguments.
    """
    large = start.clamp(min=_STIRLING_MINIMUM)
    end = large + steps
    leading = (large - 0.5) * torch.log1p(steps / large) + steps * end.log() - steps
    series = leading + _stirling_remainder(end) - _stirling_remainder(large)
    return torch.where(start < _STIRLING_MINIMUM, torch.lgamma(start + steps) - torch.lgamma(start), series)


def log_poisson(count: Tensor, log_rate: Tensor, rate: Tensor) -> Tensor:
    """log Poisson(k | λ) for k = 0, 1, 2, …, in the dtype of its arguments and with the gradient k − λ in log λ.

    The formula k log λ − λ − log k! is a difference of numbers of the size of k log k. From k = 16 on the large parts
    of Stirling's series for k! are subtracted analytically (Loader 2000):

        −D(k, λ) − ½ log 2πk − r(k),    D(k, λ) = k log(k/λ) + λ − k

    The remaining error comes from rounding k and λ themselves: (k − λ)/λ times half a unit in their last place.

    Args:
        count: k, ``[...]``.
        log_rate: log λ, ``[...]``; used where λ underflows.
        rate: λ, ``[...]``.

    Returns:
        ``[...]``.

    References:
        C. Loader. Fast and accurate computation of binomial probabilities. 2000.
    """
    small, large = count.clamp(max=_STIRLING_MINIMUM), count.clamp(min=_STIRLING_MINIMUM)
    few = torch.where(small > 0, small * log_rate, 0.0) - rate - torch.lgamma(small + 1.0)
    deviance = _deviance(large, rate, large - rate, log_rate)
    many = -deviance - 0.5 * (2.0 * math.pi * large).log() - _stirling_remainder(large)
    return torch.where(count < _STIRLING_MINIMUM, few, many)


def log_negative_binomial(count: Tensor, shape: Tensor, scale: Tensor) -> Tensor:
    """The log probability of k ~ Poisson(λ) with λ ~ Gamma(a, scale s), the mean a·s, for any a > 0 and s ≥ 0.

        log Γ(a + k)/(Γ(a) k!) − a log(1 + s) − k log(1 + 1/s)

    This formula is used where k or a is small: no term is then large compared with the result. Otherwise the large
    parts are subtracted analytically, as for a binomial with N = a + k (Loader 2000; D and r as in ``log_poisson``):

        log a/N + r(N) − r(a) − r(k) − D(a, N/(1+s)) − D(k, Ns/(1+s)) − ½ log 2πak/N

    Args:
        count: k, ``[...]``.
        shape: a, ``[...]``.
        scale: s, ``[...]``.

    Returns:
        ``[...]``.
    """
    small_k, large_k = count.clamp(max=_STIRLING_MINIMUM), count.clamp(min=_STIRLING_MINIMUM)
    small_a, large_a = shape.clamp(max=_STIRLING_MINIMUM), shape.clamp(min=_STIRLING_MINIMUM)
    few = log_rising(shape, small_k) - torch.lgamma(small_k + 1.0)
    loose = log_rising(large_k, small_a) - large_k.log() - torch.lgamma(small_a)
    ways = torch.where(count < _STIRLING_MINIMUM, few, loose)
    direct = ways - shape * torch.log1p(scale) - torch.where(count > 0, count * torch.log1p(1.0 / scale), 0.0)

    total, excess = large_a + large_k, (large_a * scale - large_k) / (1.0 + scale)
    expected_a, expected_k = total / (1.0 + scale), total * (scale / (1.0 + scale))
    remainders = _stirling_remainder(total) - _stirling_remainder(large_a) - _stirling_remainder(large_k)
    deviances = _deviance(large_a, expected_a, excess) + _deviance(large_k, expected_k, -excess)
    log_square = (2.0 * math.pi * large_k).log() + (total / large_a).log()
    saddle = remainders - deviances - 0.5 * log_square
    return torch.where((count < _STIRLING_MINIMUM) | (shape < _STIRLING_MINIMUM), direct, saddle)


def log_beta(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """The log density of Beta(a, b) at x, for 0 < x < 1 and any a, b > 0.

        (a − 1) log x + (b − 1) log(1 − x) − log Γ(a) − log Γ(b) + log Γ(a + b)

    This formula is used where a or b is small: no term is then large compared with the result. Otherwise the large
    parts are subtracted analytically, as for a binomial (Loader 2000; n = a + b, D and r as in ``log_poisson``):

        −D(a, nx) − D(b, n(1 − x)) + ½ log ab/(2πn) + r(n) − r(a) − r(b) − log x(1 − x)

    Args:
        x: ``[...]``.
        a: ``[...]``.
        b: ``[...]``.

    Returns:
        ``[...]``.
    """
    log_x, log_rest = x.log(), torch.log1p(-x)
    small, large = torch.minimum(a, b), torch.maximum(a, b)
    few = small.clamp(max=_STIRLING_MINIMUM)
    direct = (a - 1.0) * log_x + (b - 1.0) * log_rest + log_rising(large, few) - torch.lgamma(few)

    large_a, large_b = a.clamp(min=_STIRLING_MINIMUM), b.clamp(min=_STIRLING_MINIMUM)
    total = large_a + large_b
    excess = large_a * (1.0 - x) - large_b * x
    deviances = _deviance(large_a, total * x, excess) + _deviance(large_b, total * (1.0 - x), -excess)
    remainders = _stirling_remainder(total) - _stirling_remainder(large_a) - _stirling_remainder(large_b)
    log_square = large_a.log() + (large_b / total).log() - math.log(2.0 * math.pi)
    saddle = 0.5 * log_square - deviances + remainders - log_x - log_rest
    return torch.where(small < _STIRLING_MINIMUM, direct, saddle)


def log_multinomial(counts: Tensor, probs: Tensor) -> Tensor:
    """The log probability of counts under a multinomial, as a ratio of Poisson probabilities near their modes.

        n!/∏ₖ mₖ! ∏ₖ pₖ^mₖ = ∏ₖ Poisson(mₖ | npₖ) / Poisson(n | n),    n = Σₖ mₖ

    Args:
        counts: m, ``[..., K]``.
        probs: p, which broadcasts with ``counts``.

    Returns:
        ``[...]``.
    """
    total = counts.sum(-1)
    rates = total.unsqueeze(-1) * probs
    return log_poisson(counts, rates.log(), rates).sum(-1) - log_poisson(total, total.log(), total)


def log_multinomial_given_sum(counts: Tensor) -> Tensor:
    """The log probability of rows of multinomial counts given their sum over rows, for any class probabilities.

    With n the total of a row and M the sum over N rows it is ∏ᵢ n!/∏ₖ mᵢₖ! over (Nn)!/∏ₖ Mₖ!. It is evaluated at
    the class probabilities M/Nn, where every factor is near its mode.

    Args:
        counts: m, ``[N, ..., K]``.

    Returns:
        ``[...]``.
    """
    pooled = counts.sum(0)
    probs = pooled / pooled.sum(-1, keepdim=True).clamp(min=1.0)
    return log_multinomial(counts, probs).sum(0) - log_multinomial(pooled, probs)


def log_dirichlet_categorical(concentration: Tensor, counts: Tensor) -> Tensor:
    """The log probability of a sequence of labels with these counts, for class probabilities μ ~ Dir(α).

    log ∫ ∏ₖ μₖ^mₖ Dir(μ | α) dμ = Σₖ [log Γ(αₖ + mₖ) − log Γ(αₖ)] − [log Γ(Σα + Σm) − log Γ(Σα)]

    Args:
        concentration: α, ``[..., K]``.
        counts: m, ``[..., K]``.

    Returns:
        ``[...]``.
    """
    return log_rising(concentration, counts).sum(-1) - log_rising(concentration.sum(-1), counts.sum(-1))


def log_dirichlet_multinomial(concentration: Tensor, counts: Tensor) -> Tensor:
    """The log probability of the counts m in any order: that of one sequence times (Σm)!/∏ₖ mₖ!.

    Independent negative binomials with one scale s, given their sum, are Dirichlet-multinomial for any s. With
    s = Σm/Σα all are near their means, and no term is large compared with the result:

        Σₖ log NB(mₖ | αₖ, s) − log NB(Σm | Σα, s)

    Args:
        concentration: α, ``[..., K]``.
        counts: m, ``[..., K]``.

    Returns:
        ``[...]``.
    """
    total, strength = counts.sum(-1), concentration.sum(-1)
    scale = total / strength
    separate = log_negative_binomial(counts, concentration, scale.unsqueeze(-1)).sum(-1)
    return separate - log_negative_binomial(total, strength, scale)


def sobol_normal(n_points: int, dimension: int, seed: int = 0, margin: float = 1e-9) -> Tensor:
    """Standard normal quasi-random points: a scrambled Sobol sequence through the inverse of Φ.

    Beyond the dimension that Sobol sequences support, the points are pseudo-random.

    Args:
        n_points: number of points; a power of 2 keeps the sequence balanced.
        dimension: D.
        seed: seed of the scrambling.
        margin: distance from 0 and 1 that the uniform points are clamped to.

    Returns:
        Points ``[n_points, D]`` in float64 on the CPU.
    """
    if dimension > SobolEngine.MAXDIM:
        return torch.randn(n_points, dimension, generator=torch.Generator().manual_seed(seed)).double()
    uniform = SobolEngine(dimension, scramble=True, seed=seed).draw(n_points, dtype=torch.float64)
    points: Tensor = torch.special.ndtri(uniform.clamp(margin, 1.0 - margin))
    return points


@lru_cache(maxsize=16)
def normal_points(n_points: int, dimension: int) -> Tensor:
    """:func:`sobol_normal` with mean 0 and variance 1 in every dimension, and no covariances in up to 16 dimensions.

    Of 100 points in two dimensions the variance would be 10 % too large, the same in every integral by them.

    Args:
        n_points: number of points; a single one is 0.
        dimension: D.

    Returns:
        Points ``[n_points, D]`` in float64 on the CPU.
    """
    points = sobol_normal(n_points, dimension)
    points -= points.mean(0)
    if not _is_white(n_points, dimension):
        return points / points.square().mean(0).sqrt() if n_points > 1 else points
    root = torch.linalg.cholesky(points.T @ points / n_points)
    white: Tensor = torch.linalg.solve_triangular(root, points.T, upper=False).T
    return white


def gaussian_points(mean: Tensor, root: Tensor, n_points: int) -> Tensor:
    """Quasi-random points of Gaussians; those of each have exactly its mean and, if there are several, its variances.

    Args:
        mean: ``[B, K]``.
        root: R of the covariance R·Rᵀ, ``[B, K, K]``; or standard deviations, ``[B, K]``.
        n_points: S.

    Returns:
        The points, ``[S, B, K]``.
    """
    points = normal_points(n_points, mean.shape[1]).to(mean)
    if root.dim() == 2:
        return mean + points[:, None] * root
    noise = torch.einsum("bkl,sl->sbk", root, points)
    if n_points > 1 and not _is_white(n_points, mean.shape[1]):  # covariances of the points change the variances
        found = noise.square().mean(0).clamp_min(torch.finfo(noise.dtype).tiny)
        noise *= (root.square().sum(-1) / found).sqrt()
    return mean + noise


def _is_white(n_points: int, dimension: int) -> bool:
    """Whether :func:`normal_points` have no covariances: where they are many, and their dimensions few."""
    return dimension <= _WHITE_DIMENSIONS and n_points > 2 * dimension


def _deviance(x: Tensor, mean: Tensor, excess: Tensor, log_mean: Tensor | None = None) -> Tensor:
    """D(x, m) = x log(x/m) + m − x for x > 0, where ``excess`` is x − m to full precision.

    With v = (x − m)/(x + m), log(x/m) = 2 artanh v, so that near m

        D = (x − m) v + 2x (v³/3 + v⁵/5 + …),

    a sum without cancellation.
    """
    regular = (mean > torch.finfo(mean.dtype).tiny) & mean.isfinite()
    m = torch.where(regular, mean, 1.0)  # any value with a finite gradient where m is unusable
    v = torch.where(regular, excess, x) / (x + m)
    near = v.abs() < _SERIES_MAXIMUM
    v = torch.where(near, v, 0.0)
    square, series = v.square(), torch.zeros_like(v)
    for coefficient in reversed(_SERIES_COEFFICIENTS):
        series = square * (coefficient + series)
    log_ratio = torch.where(regular, (x / m).log(), x.log() - (mean.log() if log_mean is None else log_mean))
    return torch.where(near, torch.where(near, excess, 0.0) * v + 2.0 * x * v * series, x * log_ratio - excess)


def _stirling_remainder(x: Tensor) -> Tensor:
    """r(x) = log Γ(x) − [(x − ½) log x − x + ½ log 2π]."""
    inverse, total = x.reciprocal(), torch.zeros_like(x)
    for coefficient in reversed(_STIRLING_COEFFICIENTS):
        total = total * inverse.square() + coefficient
    return total * inverse
