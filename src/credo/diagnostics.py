r"""Convergence of Markov chains: R-hat, effective sample size, and the standard error of a mean.

All functions take draws ``[chains, draws, ...]`` of anything (parameters, predictions, log densities) and return one
number per quantity, ``[...]``. Chains are split in half, so that a drift within one chain shows too.

Rank normalization replaces draws by z = Φ⁻¹((r − 3/8)/(S + 1/4)), with r their ranks among all S draws (ties get their
mean rank), so that R-hat and effective sample size exist for heavy-tailed quantities as well.

Reference: A. Vehtari, A. Gelman, D. Simpson, B. Carpenter, P.-C. Bürkner, "Rank-normalization, folding, and
localization: an improved R-hat for assessing convergence of MCMC", Bayesian Analysis 16(2), 2021.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from credo.errors import InputError

__all__ = ["effective_sample_size", "effective_sample_size_tail", "r_hat", "standard_error"]

_MIN_DRAWS = 4
_TAILS = (0.05, 0.95)


def r_hat(draws: Tensor) -> Tensor:
    r"""The rank-normalized split R-hat, √(var⁺/W).

    W is the mean variance within the halves of chains, B/n the variance of their n-draw means, and
    var⁺ = (n − 1)/n·W + B/n. Taken for the ranks of the draws (location) and of their distances from the median
    (scale); the larger of the two is returned. It is about 1 if all chains sample one distribution; values above 1.01
    say that they do not, or not for long enough.

    Args:
        draws: ``[chains, draws, ...]``, at least 4 draws per chain.

    Returns:
        R-hat, ``[...]``, in float64; NaN where all draws are equal or some are not finite.

    Raises:
        InputError: the shape is not ``[chains, draws, ...]``.
    """
    flat, shape = _flatten(draws)
    folded = (flat - flat.flatten(1).quantile(0.5, dim=1)[:, None, None]).abs()
    values = torch.maximum(_split_r_hat(_rank_normalized(flat)), _split_r_hat(_rank_normalized(folded)))
    return _unflatten(values, flat, shape)


def effective_sample_size(draws: Tensor) -> Tensor:
    r"""The bulk effective sample size: the number of independent draws that would locate the center equally well.

    S_eff = S/τ with the autocorrelation time τ = 1 + 2 Σ_t ρ_t of the rank-normalized draws. The autocorrelations ρ_t
    combine all chains, ρ_t = 1 − (W − mean of the autocovariances at lag t)/var⁺, and are summed by Geyer's initial
    monotone sequence. Draws that anticorrelate can exceed S, up to S·log₁₀ S.

    Args:
        draws: ``[chains, draws, ...]``, at least 4 draws per chain.

    Returns:
        The effective number of draws of all chains together, ``[...]``, in float64; NaN where all draws are equal.

    Raises:
        InputError: the shape is not ``[chains, draws, ...]``.
    """
    flat, shape = _flatten(draws)
    return _unflatten(_split_size(_rank_normalized(flat)), flat, shape)


def effective_sample_size_tail(draws: Tensor) -> Tensor:
    """The tail effective sample size: the smaller one of the indicators of the 5 % and 95 % quantiles.

    Args:
        draws: ``[chains, draws, ...]``, at least 4 draws per chain.

    Returns:
        The effective number of draws of all chains together, ``[...]``, in float64; NaN where all draws are equal.

    Raises:
        InputError: the shape is not ``[chains, draws, ...]``.
    """
    flat, shape = _flatten(draws)
    sizes = [_split_size((flat <= flat.flatten(1).quantile(q, dim=1)[:, None, None]).to(flat.dtype)) for q in _TAILS]
    return _unflatten(torch.minimum(*sizes), flat, shape)


def standard_error(draws: Tensor) -> Tensor:
    """The Monte Carlo standard error of the mean of all draws, std/√S_eff, with S_eff of the draws themselves.

    Args:
        draws: ``[chains, draws, ...]``, at least 4 draws per chain.

    Returns:
        The standard error, ``[...]``, in float64.

    Raises:
        InputError: the shape is not ``[chains, draws, ...]``.
    """
    flat, shape = _flatten(draws)
    return _unflatten(flat.flatten(1).std(1) / _split_size(flat).sqrt(), flat, shape)


def _flatten(draws: Tensor) -> tuple[Tensor, torch.Size]:
    """Draws as float64 ``[quantities, chains, draws]``, and the shape of the quantities."""
    if not isinstance(draws, Tensor) or draws.dim() < 2:
        found = list(draws.shape) if isinstance(draws, Tensor) else type(draws).__name__
        raise InputError(f"draws must be a tensor of shape [chains, draws, ...], got {found}")
    if draws.shape[0] < 1 or draws.shape[1] < _MIN_DRAWS:
        raise InputError(f"at least one chain of {_MIN_DRAWS} draws is needed, got shape {list(draws.shape)}")
    chains, length = draws.shape[:2]
    return draws.detach().double().reshape(chains, length, -1).permute(2, 0, 1), draws.shape[2:]


def _unflatten(values: Tensor, flat: Tensor, shape: torch.Size) -> Tensor:
    bad = ~flat.isfinite().flatten(1).all(1) | (flat == flat[:, :1, :1]).flatten(1).all(1)
    return values.masked_fill(bad, math.nan).reshape(shape)


def _halves(flat: Tensor) -> Tensor:
    """The two halves of every chain as chains, without the middle draw of an odd number."""
    half = flat.shape[2] // 2
    return torch.cat([flat[:, :, :half], flat[:, :, -half:]], 1)


def _rank_normalized(flat: Tensor) -> Tensor:
    values = flat.flatten(1).contiguous()
    ordered = values.sort(1).values
    below = torch.searchsorted(ordered, values)
    up_to = torch.searchsorted(ordered, values, right=True)
    rank = 0.5 * (below + up_to + 1).double()
    normal: Tensor = torch.special.ndtri((rank - 0.375) / (values.shape[1] + 0.25))
    return normal.view_as(flat)


def _split_r_hat(flat: Tensor) -> Tensor:
    within, total = _variances(_halves(flat))
    return (total / within).sqrt()


def _variances(chains: Tensor) -> tuple[Tensor, Tensor]:
    """W, and var⁺ = (n − 1)/n·W + B/n, of chains ``[quantities, chains, n]``."""
    n = chains.shape[2]
    within = chains.var(2).mean(1)
    return within, (n - 1) / n * within + chains.mean(2).var(1)


def _split_size(flat: Tensor) -> Tensor:
    """The effective sample size of all chains together, from split chains."""
    chains = _halves(flat)
    n = chains.shape[2]
    count = chains.shape[1] * n
    within, total = _variances(chains)
    centered = chains - chains.mean(2, keepdim=True)
    spectrum = torch.fft.rfft(centered, 2 * n)
    covariance = torch.fft.irfft(spectrum.abs().square(), 2 * n)[..., :n].mean(1) / (n - 1)
    correlation = 1.0 - (within[:, None] - covariance) / total[:, None]
    correlation[:, 0] = 1.0
    pairs = correlation[:, : n - n % 2].unflatten(1, (-1, 2)).sum(2)
    is_initial = (pairs > 0).cumprod(1).bool()
    monotone = pairs.cummin(1).values * is_initial
    time: Tensor = (2.0 * monotone.sum(1) - 1.0).clamp_min(1.0 / math.log10(count))
    return count / time
