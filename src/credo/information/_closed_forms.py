"""Closed forms that torch lacks: moments, marginals and divergences of Gaussians and mixtures, exponents of tails."""

from __future__ import annotations

import math
from functools import singledispatch
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import (
    Cauchy,
    Distribution,
    Exponential,
    FisherSnedecor,
    Gamma,
    Gumbel,
    HalfCauchy,
    HalfNormal,
    Independent,
    Laplace,
    LowRankMultivariateNormal,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
    Pareto,
    StudentT,
    Weibull,
)

from credo._special import ndtr


class MeanAndCovariance(NamedTuple):
    """A mean ``[..., D]`` and a covariance ``[..., D, D]``."""

    mean: Tensor
    covariance: Tensor


@singledispatch
def to_multivariate_normal(p: Distribution) -> MultivariateNormal | None:
    """Convert a Gaussian over vectors ``[D]`` in any parameterization; ``None`` for other distributions."""
    return None


@to_multivariate_normal.register
def _(p: MultivariateNormal) -> MultivariateNormal:
    return p


@to_multivariate_normal.register
def _(p: LowRankMultivariateNormal) -> MultivariateNormal:
    return MultivariateNormal(p.loc, covariance_matrix=p.covariance_matrix, validate_args=False)


@to_multivariate_normal.register(Independent)
def _(p: Independent[Any]) -> MultivariateNormal | None:
    if not isinstance(p.base_dist, Normal) or p.reinterpreted_batch_ndims != 1:
        return None
    return MultivariateNormal(p.mean, scale_tril=torch.diag_embed(p.base_dist.scale), validate_args=False)


@singledispatch
def mean_and_covariance(p: Distribution) -> MeanAndCovariance | None:
    """Mean and covariance of a distribution over vectors; ``None`` if they are not known."""
    gaussian = to_multivariate_normal(p)
    return None if gaussian is None else MeanAndCovariance(gaussian.mean, gaussian.covariance_matrix)


@mean_and_covariance.register(Independent)
def _(p: Independent[Any]) -> MeanAndCovariance | None:
    if p.base_dist.event_shape or p.reinterpreted_batch_ndims != 1:
        return None
    try:
        return MeanAndCovariance(p.mean, torch.diag_embed(p.variance))
    except NotImplementedError:
        return None


@mean_and_covariance.register
def _(p: MixtureSameFamily) -> MeanAndCovariance | None:
    """E[x] = Σ_k π_k μ_k and Cov[x] = Σ_k π_k (Σ_k + (μ_k − E[x])(μ_k − E[x])ᵀ)."""
    components = mean_and_covariance(p.component_distribution)
    if components is None:
        return None
    weights = p.mixture_distribution.probs.unsqueeze(-1)
    mean = (weights * components.mean).sum(-2)
    offset = components.mean - mean.unsqueeze(-2)
    spread = components.covariance + offset.unsqueeze(-1) * offset.unsqueeze(-2)
    return MeanAndCovariance(mean, (weights.unsqueeze(-1) * spread).sum(-3))


@singledispatch
def marginal(p: Distribution, index: Tensor) -> Distribution | None:
    """The distribution of the coordinates ``index`` of a Gaussian vector or a mixture of Gaussians; else ``None``."""
    gaussian = to_multivariate_normal(p)
    if gaussian is None:
        return None
    covariance = gaussian.covariance_matrix[..., index[:, None], index]
    return MultivariateNormal(gaussian.mean[..., index], covariance_matrix=covariance, validate_args=False)


@marginal.register
def _(p: MixtureSameFamily, index: Tensor) -> Distribution | None:
    components = marginal(p.component_distribution, index)
    return None if components is None else MixtureSameFamily(p.mixture_distribution, components, validate_args=False)


def gaussian_pair(p: Distribution, q: Distribution) -> tuple[MultivariateNormal, MultivariateNormal] | None:
    """Two Gaussians over numbers or vectors as Gaussians over vectors; ``None`` for other distributions."""
    first, second = (_as_vector(d) if isinstance(d, Normal) else to_multivariate_normal(d) for d in (p, q))
    return None if first is None or second is None else (first, second)


def _as_vector(p: Normal) -> MultivariateNormal:
    return MultivariateNormal(p.loc.unsqueeze(-1), scale_tril=p.scale[..., None, None], validate_args=False)


def gaussian_chi_squared(p: MultivariateNormal, q: MultivariateNormal) -> Tensor:
    """χ²(P ‖ Q) = exp(δᵀS⁻¹δ − ½ log(|S| |Σ_p| / |Σ_q|²)) − 1, S = 2Σ_q − Σ_p; infinite unless S is positive definite.

    It is exp(D₂) − 1, with the Rényi divergence of order 2 (Gil, Alajaji & Linder 2013).
    """
    offset = (p.loc - q.loc).unsqueeze(-1)
    factor, failed = torch.linalg.cholesky_ex(2.0 * q.covariance_matrix - p.covariance_matrix)
    is_finite = failed == 0
    identity = torch.eye(offset.shape[-2], dtype=offset.dtype, device=offset.device)
    factor = torch.where(is_finite[..., None, None], factor, identity)
    quadratic = torch.linalg.solve_triangular(factor, offset, upper=False).square().sum((-2, -1))
    log_det, log_det_p, log_det_q = (
        2.0 * t.diagonal(dim1=-2, dim2=-1).log().sum(-1) for t in (factor, p.scale_tril, q.scale_tril)
    )
    value = (quadratic - 0.5 * (log_det + log_det_p - 2.0 * log_det_q)).clamp(min=0.0).expm1()
    return torch.where(is_finite, value, torch.inf)


def gaussian_total_variation(p: MultivariateNormal, q: MultivariateNormal) -> Tensor | None:
    """The total variation of numbers, or of vectors with one covariance, erf(√(δᵀΣ⁻¹δ/8)); ``None`` for others.

    For numbers, in units of q and relative to it, p is N(d, r²). The densities are equal at the roots of
    (r² − 1)z² + 2dz − d² − 2r² log r, and the total variation is |P − Q| of the interval between them.
    """
    if p.event_shape == (1,):
        d, r = ((p.loc - q.loc) / q.scale_tril[..., 0]).squeeze(-1), (p.scale_tril / q.scale_tril)[..., 0, 0]
        a, log_r = (r - 1.0) * (r + 1.0), r.log()
        sign = torch.where(d < 0.0, -1.0, 1.0)
        half = -(d + sign * r * (d.square() + 2.0 * a * log_r).clamp(min=0.0).sqrt())
        roots = half / a, -(d.square() + 2.0 * r.square() * log_r) / half  # without cancellation; one is ∞ for r = 1
        first, second = (ndtr(z) - ndtr((z - d) / r) for z in roots)
        return torch.where(half == 0.0, 0.0, (second - first).abs())
    if not torch.equal(*torch.broadcast_tensors(p.covariance_matrix, q.covariance_matrix)):
        return None
    offset = (p.loc - q.loc).unsqueeze(-1)
    distance = torch.linalg.solve_triangular(p.scale_tril, offset, upper=False).square().sum((-2, -1))
    return torch.erf((distance / 8.0).sqrt())


class Exponents(NamedTuple):
    """An exponent for x → −∞ and one for x → ∞, of the batch shape ``[...]``."""

    lower: Tensor
    upper: Tensor


def is_infinite_in_tails(p: Distribution, q: Distribution) -> Tensor | None:
    """Where E_p[−log q(x)] is infinite because of its tails, which no finite number of draws shows.

    It is infinite if P(|x| > t) decreases as t^−ν and −log q(x) increases as |x|^k with k ≥ ν.

    Returns:
        Booleans of the batch shape; ``None`` if the exponents are not known.
    """
    tails, growth = _tail_exponents(p), _growth_exponents(q)
    if tails is None or growth is None:
        return None
    lower, upper = (tail.isfinite() & (k >= tail) for tail, k in zip(tails, growth, strict=True))
    return lower | upper


@singledispatch
def _tail_exponents(p: Distribution) -> Exponents | None:
    """ν of P(x < −t) and of P(x > t), ∞ for lighter tails; ``None`` if not known."""
    return None


_tail_exponents.register(StudentT, lambda p: Exponents(p.df, p.df))
_tail_exponents.register(Cauchy, lambda p: _constant(p.scale, 1.0, 1.0))
_tail_exponents.register(HalfCauchy, lambda p: _constant(p.scale, math.inf, 1.0))
_tail_exponents.register(Pareto, lambda p: Exponents(torch.full_like(p.alpha, math.inf), p.alpha))
_tail_exponents.register(FisherSnedecor, lambda p: Exponents(torch.full_like(p.df2, math.inf), 0.5 * p.df2))
_tail_exponents.register(MixtureSameFamily, lambda p: _smallest(p, _tail_exponents(p.component_distribution)))


@_tail_exponents.register(Independent)
def _(p: Independent[Any]) -> Exponents | None:
    parts = _tail_exponents(p.base_dist)
    dims = tuple(range(-p.reinterpreted_batch_ndims, 0))
    return parts if parts is None or not dims else Exponents(*(side.amin(dims) for side in parts))


@singledispatch
def _growth_exponents(q: Distribution) -> Exponents | None:
    """k of −log q(x) as x → −∞ and as x → ∞, ∞ if it increases faster; ``None`` if not known.

    0 beyond an end of the support: there draws show that the expectation is infinite.
    """
    return None


_growth_exponents.register(Normal, lambda q: _constant(q.scale, 2.0, 2.0))
_growth_exponents.register(HalfNormal, lambda q: _constant(q.scale, 2.0, 2.0))
_growth_exponents.register(MultivariateNormal, lambda q: _constant(q.loc[..., 0], 2.0, 2.0))
_growth_exponents.register(LowRankMultivariateNormal, lambda q: _constant(q.loc[..., 0], 2.0, 2.0))
_growth_exponents.register(Laplace, lambda q: _constant(q.scale, 1.0, 1.0))
_growth_exponents.register(Exponential, lambda q: _constant(q.rate, 0.0, 1.0))
_growth_exponents.register(Gamma, lambda q: _constant(q.rate, 0.0, 1.0))
_growth_exponents.register(Weibull, lambda q: Exponents(torch.zeros_like(q.scale), q.concentration))
_growth_exponents.register(Gumbel, lambda q: _constant(q.scale, math.inf, 1.0))
_growth_exponents.register(MixtureSameFamily, lambda q: _smallest(q, _growth_exponents(q.component_distribution)))


def _constant(like: Tensor, lower: float, upper: float) -> Exponents:
    return Exponents(torch.full_like(like, lower), torch.full_like(like, upper))


def _smallest(mixture: MixtureSameFamily, components: Exponents | None) -> Exponents | None:
    """The exponents of a mixture: those of its heaviest component with positive weight."""
    if components is None:
        return None
    absent = mixture.mixture_distribution.probs == 0.0
    return Exponents(*(torch.where(absent, math.inf, side).amin(-1) for side in components))
