r"""Moments of a nonlinear function of a Gaussian: f(x) with x ~ N(m, v), elementwise.

Every function returns E[f], Var[f] and the slope E[f'] = ∂E[f]/∂m = Cov(f, x)/v (Stein's lemma). For a rectifier,
with α = m/√v, g(α) = α Φ(α) + φ(α) and g(α) − g(−α) = α,

    E[max(x, 0)] = √v g(α),    Var[max(x, 0)] = v [Φ(α) − g(α) g(−α)],    E[f'] = Φ(α),

in which nothing cancels for large |α|. Smooth functions are integrated by Gauss–Hermite quadrature.

Reference: B. J. Frey, G. E. Hinton, "Variational learning in nonlinear Gaussian belief networks", Neural Computation
1999.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

_FEW_NODES, _MANY_NODES = 12, 32
_SMALL_SCALE = 0.3
"""A standard deviation up to which 12 nodes integrate tanh, its square and smoother functions to 1e-8."""


class FunctionMoments(NamedTuple):
    """What is known of f(x).

    Attributes:
        mean: E[f].
        variance: Var[f].
        slope: E[f'].
    """

    mean: Tensor
    variance: Tensor
    slope: Tensor


def rectifier(mean: Tensor, variance: Tensor, negative_slope: float | Tensor = 0.0) -> FunctionMoments:
    """f(x) = max(x, 0) + a·min(x, 0) for a slope a of the negative half."""
    scale = variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt_()
    limit = 37.0 if scale.dtype == torch.float64 else 12.0  # φ(α) beyond is denormal, slow and without effect
    ratio = (mean / scale).clamp_(-limit, limit)
    above = (ratio * -math.sqrt(0.5)).erfc_().mul_(0.5)
    density = torch.addcmul(ratio.new_tensor(-0.5 * math.log(2.0 * math.pi)), ratio, ratio, value=-0.5).exp_()
    part = torch.addcmul(density, ratio, above)  # g(α)
    spread = torch.addcmul(above, part, torch.sub(part, ratio, out=ratio), value=-1.0, out=part)
    first = torch.addcmul(density.mul_(scale), mean, above, out=density)
    if isinstance(negative_slope, float) and negative_slope == 0.0:
        return FunctionMoments(first, spread.mul_(variance).clamp_min_(0.0), above)
    a, b = negative_slope, 1.0 - negative_slope
    ratio_of_variances = a * a + b * (b * spread + 2.0 * a * above)
    return FunctionMoments(a * mean + b * first, (variance * ratio_of_variances).clamp_min_(0.0), a + b * above)


def smooth(function: Callable[[Tensor], Tensor], mean: Tensor, variance: Tensor) -> FunctionMoments:
    """Any function without jumps, by quadrature around its value at the mean, so that little cancels."""
    scale = variance.sqrt()
    few = mean.numel() == 0 or float(scale.amax()) <= _SMALL_SCALE
    center = function(mean)
    first, second, odd = torch.zeros_like(mean), torch.zeros_like(mean), torch.zeros_like(mean)
    for node, weight in _nodes(_FEW_NODES if few else _MANY_NODES):
        difference = function(torch.add(mean, scale, alpha=node)).sub_(center)
        first.add_(difference, alpha=weight)
        odd.add_(difference, alpha=weight * node)
        second.addcmul_(difference, difference, value=weight)
    slope = torch.where(scale > 0, odd / scale, 0.0)
    return FunctionMoments(center + first, second.addcmul_(first, first, value=-1.0).clamp_min_(0.0), slope)


def clamp(mean: Tensor, variance: Tensor, low: float, high: float) -> FunctionMoments:
    """f(x) = min(max(x, a), b) = a + max(x − a, 0) − max(x − b, 0).

    Its variance is Var₁ − Var₂ − 2 E₂ (b − E[f]), by the moments of the two rectifiers.
    """
    first, second = rectifier(mean - low, variance), rectifier(mean - high, variance)
    value = low + first.mean - second.mean
    spread = first.variance - second.variance - 2.0 * second.mean * (high - value)
    return FunctionMoments(value, spread.clamp_min_(0.0), first.slope - second.slope)


@cache
def _nodes(count: int) -> list[tuple[float, float]]:
    """Nodes and weights of Gauss–Hermite quadrature for a standard normal variable."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(count)
    return list(zip(nodes.tolist(), (weights / weights.sum()).tolist(), strict=True))
