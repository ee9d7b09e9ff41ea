"""What is known of Gaussians and their mixtures in closed form: moments and marginals."""

from __future__ import annotations

from functools import singledispatch
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import (
    Distribution,
    Independent,
    LowRankMultivariateNormal,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
)


class Moments(NamedTuple):
    """A mean ``[..., D]`` and a covariance ``[..., D, D]``."""

    mean: Tensor
    covariance: Tensor


@singledispatch
def as_multivariate_normal(p: Distribution) -> MultivariateNormal | None:
    """A Gaussian over vectors ``[D]``, however it is written, with a covariance matrix; ``None`` for anything else."""
    return None


@as_multivariate_normal.register
def _(p: MultivariateNormal) -> MultivariateNormal:
    return p


@as_multivariate_normal.register
def _(p: LowRankMultivariateNormal) -> MultivariateNormal:
    return MultivariateNormal(p.loc, covariance_matrix=p.covariance_matrix, validate_args=False)


@as_multivariate_normal.register(Independent)
def _(p: Independent[Any]) -> MultivariateNormal | None:
    if not isinstance(p.base_dist, Normal) or p.reinterpreted_batch_ndims != 1:
        return None
    return MultivariateNormal(p.mean, scale_tril=torch.diag_embed(p.base_dist.scale), validate_args=False)


@singledispatch
def moments(p: Distribution) -> Moments | None:
    """Mean and covariance of a distribution over vectors, where they are known."""
    gaussian = as_multivariate_normal(p)
    return None if gaussian is None else Moments(gaussian.mean, gaussian.covariance_matrix)


@moments.register(Independent)
def _(p: Independent[Any]) -> Moments | None:
    if p.base_dist.event_shape or p.reinterpreted_batch_ndims != 1:
        return None
    try:
        return Moments(p.mean, torch.diag_embed(p.variance))
    except NotImplementedError:
        return None


@moments.register
def _(p: MixtureSameFamily) -> Moments | None:
    """E[x] = Σ_k π_k μ_k and Cov[x] = Σ_k π_k (Σ_k + (μ_k − E[x])(μ_k − E[x])ᵀ)."""
    parts = moments(p.component_distribution)
    if parts is None:
        return None
    weights = p.mixture_distribution.probs.unsqueeze(-1)
    mean = (weights * parts.mean).sum(-2)
    offset = parts.mean - mean.unsqueeze(-2)
    spread = parts.covariance + offset.unsqueeze(-1) * offset.unsqueeze(-2)
    return Moments(mean, (weights.unsqueeze(-1) * spread).sum(-3))


@singledispatch
def marginal(p: Distribution, index: Tensor) -> Distribution | None:
    """The distribution of the coordinates ``index`` of a Gaussian vector or a mixture of such; else ``None``."""
    gaussian = as_multivariate_normal(p)
    if gaussian is None:
        return None
    covariance = gaussian.covariance_matrix[..., index[:, None], index]
    return MultivariateNormal(gaussian.mean[..., index], covariance_matrix=covariance, validate_args=False)


@marginal.register
def _(p: MixtureSameFamily, index: Tensor) -> Distribution | None:
    components = marginal(p.component_distribution, index)
    return None if components is None else MixtureSameFamily(p.mixture_distribution, components, validate_args=False)
