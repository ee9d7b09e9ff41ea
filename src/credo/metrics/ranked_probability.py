"""The continuous ranked probability score."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from credo._special import ndtr
from credo.metrics._statistics import mean
from credo.metrics._targets import Values, by_row, real_targets, require_real
from credo.predictive import Predictive
from credo.predictive.components import RealComponents, average, quadrature
from credo.predictive.exact import ExactGaussianPredictive
from credo.predictive.gaussian import GaussianComponents
from credo.predictive.real import CPU_WORK, DEVICE_WORK, RealPredictive

# The exact types: a recalibrated prediction has the components it was made from, but a distribution of its own.
PLAIN = (RealPredictive, ExactGaussianPredictive)
_NODES = 128  # per target, of the numerical integral
_REACH = ndtr(torch.linspace(-4.5, 4.5, 33, dtype=torch.float64)).tolist()


def crps(p: Predictive, y: Values) -> float:
    """The continuous ranked probability score, averaged over all targets; in the unit of y, lower is better.

        CRPS(F, y) = ∫ (F(t) − 1{y ≤ t})² dt = E|X − y| − ½ E|X − X'|,    X, X' ~ F independent.

    A strictly proper score that also exists where a density does not, and the absolute error where F is a point. Each
    output of a row is scored on its own.

    A mixture of Gaussians has it in closed form (Grimit et al. 2006), in the mean distance A(μ, σ²) = E|N(μ, σ²)|:

        CRPS = Σ_s w_s A(m_s − y, σ_s²) − ½ Σ_{s,r} w_s w_r A(m_s − m_r, σ_s² + σ_r²),
        A(μ, σ²) = μ erf(μ/√2σ) + σ √(2/π) exp(−μ²/2σ²),

    at a cost of S²/2 per target for S draws. Any other prediction is integrated from its cdf: a sum over the counts, or
    a quadrature that errs by less than 3·10⁻⁴ standard deviations of a target.

    Args:
        p: the prediction of real or count-valued targets.
        y: the targets, in the shape of ``p.mean``.

    References:
        T. Gneiting, A. E. Raftery. Strictly proper scoring rules, prediction, and estimation. JASA 2007.
        E. P. Grimit, T. Gneiting, V. J. Berrocal, N. A. Johnson. The continuous ranked probability score for circular
        variables and its application to mesoscale forecast ensemble verification. Q. J. R. Meteorol. Soc. 2006.
    """
    return mean(row_crps(p, real_targets(p, y, "crps"))).value


@torch.no_grad()
def row_crps(p: Predictive, y: Tensor) -> Tensor:
    """The score of every row, averaged over its outputs, ``[B]``."""
    components = require_real(p, "crps")
    if type(p) in PLAIN and isinstance(components, GaussianComponents):
        return by_row(_gaussian_mixture(components, p.weights, y))
    return by_row(_integrated(p, components, y))


def _gaussian_mixture(components: GaussianComponents, weights: Tensor | None, y: Tensor) -> Tensor:
    draws = len(components.mean)
    means, variances = (t.double().flatten(1) for t in (components.mean, components.variance))
    w = means.new_full((draws,), 1 / draws) if weights is None else weights.double()
    first, second = torch.triu_indices(draws, draws, 1, device=means.device)
    pair_weights = w[first] * w[second]
    size = max(_work(components) // max(len(first), 1), 1)
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
    """∫ (F(t) − 1{y ≤ t})² dt by the cdf alone, some rows at a time, in the shape of ``y``."""
    size = max(_work(components) // (y[0].numel() * max(p.n_draws, _NODES)), 1)
    starts = range(0, len(y), size)
    return torch.cat([_integral(p[start : start + size], y[start : start + size]) for start in starts])


def _integral(p: Predictive, y: Tensor) -> Tensor:
    components = require_real(p, "crps")
    # The integrand jumps at y, so y is a node; a sum over counts jumps from the count before it.
    jump = torch.stack([y - 1, y] if components.discrete else [y]).to(components.parameter)
    nodes = torch.cat([_nodes(p, components), jump]).sort(0).values
    points, areas = quadrature(nodes, components.discrete)
    total = torch.zeros(y.shape, dtype=torch.float64, device=y.device)
    for point, area in zip(points, areas, strict=True):
        total += area * (p.cdf(point) - (point >= y).to(point.dtype)).double().square()
    return total


def _nodes(p: Predictive, components: RealComponents) -> Tensor:
    """Where the cdf is looked at, ``[K, B, ...]``: every count that matters, or points where the components have mass.

    A prediction that is not simply the mixture of its components may reach further than they do: its own quantiles.
    """
    grid = components.grid(_NODES)
    if not components.discrete:
        grid = grid[:: max(len(grid) // _NODES, 1)]
    return grid if type(p) in PLAIN else torch.cat([grid, p.quantile(_REACH)])


def _work(components: RealComponents) -> int:
    return CPU_WORK if components.parameter.device.type == "cpu" else DEVICE_WORK
