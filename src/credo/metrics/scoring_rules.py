"""Strictly proper scoring rules: the negative log likelihood and the continuous ranked probability score."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from credo._special import ndtr
from credo.metrics._statistics import mean
from credo.metrics._targets import Values, check_real, check_real_targets, check_targets, mean_outputs
from credo.predictive import ExactGaussianPredictive, Predictive, RealPredictive
from credo.predictive.components import RealComponents, average, quadrature
from credo.predictive.location_scale import GaussianComponents
from credo.predictive.real import chunk_size

# Exact types: a recalibrated prediction has the components of its base, but another distribution.
_PLAIN_MIXTURES = (RealPredictive, ExactGaussianPredictive)
_NODES = 128  # per target, of the numerical integral
_QUANTILE_LEVELS = ndtr(torch.linspace(-4.5, 4.5, 33, dtype=torch.float64)).tolist()


def nll(p: Predictive, y: Values) -> float:
    """Return the mean over rows of −log p(y) in nats, the negative log likelihood; lower is better.

    A strictly proper score: only the true distribution minimizes its expectation. The outputs, pixels or tokens of a
    row count together, as in ``p.log_prob``, so it grows with their number. Densities depend on the unit of y: compare
    models on one data set, not data sets.

    Args:
        p: the prediction of B rows.
        y: their targets, in the shape of ``p.log_prob``.

    Returns:
        The score.

    Raises:
        InputError: if ``y`` does not match the prediction.
    """
    return mean(row_nll(p, check_targets(p, y, "nll"))).value


@torch.no_grad()
def row_nll(p: Predictive, y: Tensor) -> Tensor:
    """Return −log p(y) of every row, ``[B]``."""
    return mean_outputs(-p.log_prob(y))


def crps(p: Predictive, y: Values) -> float:
    """Return the continuous ranked probability score, averaged over all targets; in the unit of y, lower is better.

        CRPS(F, y) = ∫ (F(t) − 1{y ≤ t})² dt = E|X − y| − ½ E|X − X'|,    X, X' ~ F independent.

    A strictly proper score that needs no density; if F is a point, it is the absolute error. Each output of a row is
    scored separately.

    For a mixture of Gaussians there is a closed form (Grimit et al. 2006) in the mean distance A(μ, σ²) = E|N(μ, σ²)|:

        CRPS = Σ_s w_s A(m_s − y, σ_s²) − ½ Σ_{s,r} w_s w_r A(m_s − m_r, σ_s² + σ_r²),
        A(μ, σ²) = μ erf(μ/√2σ) + σ √(2/π) exp(−μ²/2σ²),

    at a cost of S²/2 per target for S draws. Any other prediction is integrated from its cdf: a sum over the counts, or
    a quadrature with an error below 3·10⁻⁴ standard deviations of a target.

    Args:
        p: the prediction of real or count-valued targets.
        y: the targets, in the shape of ``p.mean``.

    Returns:
        The score.

    Raises:
        InputError: if ``p`` is a prediction of classes or ``y`` does not match it.

    References:
        T. Gneiting, A. E. Raftery. Strictly proper scoring rules, prediction, and estimation. JASA 2007.
        E. P. Grimit, T. Gneiting, V. J. Berrocal, N. A. Johnson. The continuous ranked probability score for circular
        variables and its application to mesoscale forecast ensemble verification. Q. J. R. Meteorol. Soc. 2006.
    """
    return mean(row_crps(p, check_real_targets(p, y, "crps"))).value


@torch.no_grad()
def row_crps(p: Predictive, y: Tensor) -> Tensor:
    """Return the CRPS of every row, averaged over its outputs, ``[B]``."""
    components = check_real(p, "crps")
    if type(p) in _PLAIN_MIXTURES and isinstance(components, GaussianComponents):
        return mean_outputs(_gaussian_mixture(components, p.weights, y))
    return mean_outputs(_integrated(p, components, y))


def _gaussian_mixture(components: GaussianComponents, weights: Tensor | None, y: Tensor) -> Tensor:
    draws = len(components.mean)
    means, variances = (t.double().flatten(1) for t in (components.mean, components.variance))
    w = means.new_full((draws,), 1 / draws) if weights is None else weights.double()
    first, second = torch.triu_indices(draws, draws, 1, device=means.device)
    pair_weights = w[first] * w[second]
    size = chunk_size(means.device, len(first))
    scores = []
    for m, v, target in zip(means.split(size, 1), variances.split(size, 1), y.flatten().split(size), strict=True):
        to_target = average(_mean_distance(m - target, v), w)
        between_draws = pair_weights @ _mean_distance(m[first] - m[second], v[first] + v[second])
        within_draws = w.square() @ v.sqrt() / math.sqrt(math.pi)
        scores.append(to_target - between_draws - within_draws)
    return torch.cat(scores).view(y.shape)


def _mean_distance(mean: Tensor, variance: Tensor) -> Tensor:
    """E|X| for X ~ N(mean, variance)."""
    scale = variance.sqrt()
    z = mean / scale
    return mean * torch.erf(z / math.sqrt(2)) + scale * math.sqrt(2 / math.pi) * torch.exp(-0.5 * z.square())


def _integrated(p: Predictive, components: RealComponents, y: Tensor) -> Tensor:
    """∫ (F(t) − 1{y ≤ t})² dt from the cdf, in chunks of rows, in the shape of ``y``."""
    size = chunk_size(components.parameter.device, y[0].numel() * max(p.n_draws, _NODES))
    starts = range(0, len(y), size)
    return torch.cat([_integral(p[start : start + size], y[start : start + size]) for start in starts])


def _integral(p: Predictive, y: Tensor) -> Tensor:
    components = check_real(p, "crps")
    # The integrand jumps at y, so y is a node; a sum over counts jumps from the count before it.
    jump = torch.stack([y - 1, y] if components.discrete else [y]).to(components.parameter)
    nodes = torch.cat([_nodes(p, components), jump]).sort(0).values
    points, areas = quadrature(nodes, components.discrete)
    total = torch.zeros(y.shape, dtype=torch.float64, device=y.device)
    for point, area in zip(points, areas, strict=True):
        total += area * (p.cdf(point) - (point >= y).to(point.dtype)).double().square()
    return total


def _nodes(p: Predictive, components: RealComponents) -> Tensor:
    """Where the cdf is evaluated, ``[K, B, ...]``: every relevant count, or points where the components have mass.

    A prediction that is not the plain mixture of its components can extend further than they do: its quantiles are
    added.
    """
    grid = components.grid(_NODES)
    if not components.discrete:
        grid = grid[:: max(len(grid) // _NODES, 1)]
    return grid if type(p) in _PLAIN_MIXTURES else torch.cat([grid, p.quantile(_QUANTILE_LEVELS)])
