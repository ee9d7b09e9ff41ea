"""The scales of the posterior in each direction, from draws and gradients, or from the curvature at one place."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from credo.methods._flat_stack import Target

_SHRINKAGE, _FLOOR = 5.0, 1e-3
_PROBES, _DISTANCE = 32, 1e-3


class RunningVariance:
    """Welford's mean and variance of a vector per chain, ``[K, P]``."""

    def __init__(self, like: Tensor) -> None:
        self._count = 0
        self._mean, self._squares = torch.zeros_like(like), torch.zeros_like(like)

    def update(self, value: Tensor) -> None:
        """Add one vector per chain."""
        self._count += 1
        delta = value - self._mean
        self._mean += delta / self._count
        self._squares += delta * (value - self._mean)

    def variance(self) -> Tensor:
        """The variances, shrunk as in Stan: (n·var + 5·10⁻³·v)/(n + 5), v the geometric mean of the variances."""
        n = self._count
        variance = self._squares / max(n - 1, 1)
        typical = variance.clamp_min(torch.finfo(variance.dtype).tiny).log().mean(1, keepdim=True).exp()
        return (n * variance + _SHRINKAGE * _FLOOR * typical) / (n + _SHRINKAGE)


class RunningScale:
    r"""Scales s that make the posterior as similar as possible to a standard normal distribution, ``[K, P]``.

    For a normal q with standard deviations s, the scaled gradient s·∇log p is −(q − μ)/s. The expected squared
    difference of the two, s²·Var[∇log p] + Var[q]/s² − 2, is least at s⁴ = Var[q]/Var[∇log p]: between the marginal and
    the conditional standard deviations.
    """

    def __init__(self, like: Tensor) -> None:
        self._position, self._gradient = RunningVariance(like), RunningVariance(like)

    def update(self, position: Tensor, gradient: Tensor) -> None:
        """Add one position per chain, and the gradient there."""
        self._position.update(position)
        self._gradient.update(gradient)

    def scale(self) -> Tensor:
        """s, ``[K, P]``."""
        return (self._position.variance() / self._gradient.variance()).pow(0.25)


def curvature_scale(target: Target, position: Tensor, seed: int | Sequence[int]) -> Tensor:
    """Scales to begin with, 1/√|H_ii|, H the Hessian of the log density at ``position``; ``[K, P]``.

    H_ii = E[z_i·(Hz)_i] for random signs z, with Hz from the gradients on both sides, at the price of 64 gradients. Far
    below the geometric mean, |H_ii| is lifted to a thousandth of it. Several seeds are those of as many models, each
    with an equal number of chains, which share the signs.
    """
    sources = [torch.Generator().manual_seed(s) for s in ([seed] if isinstance(seed, int) else seed)]
    repeats = len(position) // len(sources)
    total = torch.zeros_like(position)
    for _ in range(_PROBES):
        drawn = [2 * torch.randint(2, position.shape[1:], generator=source) - 1 for source in sources]
        signs = torch.stack(drawn).repeat_interleave(repeats, 0).to(position)
        ahead, behind = (target(position + side * _DISTANCE * signs).gradient for side in (1.0, -1.0))
        total += signs * (ahead - behind) / (2.0 * _DISTANCE)
    curvature = (total / _PROBES).nan_to_num(1.0, 1.0, 1.0).abs()
    typical = curvature.clamp_min(torch.finfo(curvature.dtype).tiny).log().mean(1, keepdim=True).exp()
    return (curvature + _FLOOR * typical).rsqrt()
