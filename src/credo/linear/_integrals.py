"""Class probabilities and log likelihoods averaged over Gaussian logits, which have no closed form."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.quasirandom import SobolEngine

from credo._special import ndtr

_WIDE = 2.0
"""The standard deviation of a logit from which its density is smoother than the sigmoid."""
_NARROW_STEP, _NARROW_REACH = 0.4, 20
_WIDE_STEP, _WIDE_REACH = 0.75, 32
SIGMOID_NODES = 2 * _NARROW_REACH + 2 * _WIDE_REACH + 2
"""Points of the two rules for two classes."""
SOFTMAX_NODES = 512
"""Points of the rule for more."""


def expected_sigmoid(mean: Tensor, variance: Tensor) -> Tensor:
    """E σ(f) for f ~ N(m, v), to an error below 1e-9, ``[...]``.

    The trapezoidal rule on the whole line converges exponentially, the faster the farther the integrand's poles are
    from it. Those of the sigmoid come close where the Gaussian is wide, and then σ is taken as the distribution
    function of a logistic variable ℓ, whose density has its poles at ±iπ whatever m and v are:

        E σ(m + s z) = ∫ σ(m + s z) φ(z) dz = ∫ σ′(ℓ) Φ((m − ℓ) / s) dℓ,    s² = v

    Reference:
        L. N. Trefethen, J. A. C. Weideman. The exponentially convergent trapezoidal rule. SIAM Review 2014.
    """
    scale, mean = variance.sqrt().unsqueeze(-1), mean.unsqueeze(-1)
    z, weights = _normal_rule(mean)
    narrow = (mean + scale.clamp_max(_WIDE) * z).sigmoid() @ weights
    logistic, density = _logistic_rule(mean)
    wide = ndtr((mean - logistic) / scale.clamp_min(_WIDE)) @ density
    return torch.where(scale.squeeze(-1) > _WIDE, wide, narrow)


def expected_softplus(mean: Tensor, variance: Tensor) -> Tensor:
    """E log(1 + e^f) for f ~ N(m, v), to an error below 1e-9 of 1 + |m| + √v, ``[...]``.

    By the rules of :func:`expected_sigmoid`. For the wide one, log(1 + e^f) is the mean of max(f − ℓ, 0) over a
    logistic variable ℓ, and E max(f − ℓ, 0) = s (uΦ(u) + φ(u)) with u = (m − ℓ)/s.
    """
    scale, mean = variance.sqrt().unsqueeze(-1), mean.unsqueeze(-1)
    z, weights = _normal_rule(mean)
    narrow = F.softplus(mean + scale.clamp_max(_WIDE) * z) @ weights
    logistic, density = _logistic_rule(mean)
    spread = scale.clamp_min(_WIDE)
    u = (mean - logistic) / spread
    heights = torch.exp(-0.5 * u.square()) / math.sqrt(2.0 * math.pi)
    wide = (spread * (u * ndtr(u) + heights)) @ density
    return torch.where(scale.squeeze(-1) > _WIDE, wide, narrow)


def expected_softmax(mean: Tensor, covariance: Tensor, contrasts: Tensor) -> Tensor:
    """E softmax(Gz) for z ~ N(m, V), ``[b, K]``, by quasi-Monte Carlo.

    All rows have one fixed set of scrambled Sobol points, so that the probabilities of a row do not depend on the rows
    beside it.

    Args:
        mean: m, ``[b, C]``.
        covariance: V, ``[b, C, C]``.
        contrasts: G, ``[K, C]``.
    """
    return _logits(mean, covariance, contrasts).softmax(-1).mean(1)


def expected_logsumexp(mean: Tensor, covariance: Tensor, contrasts: Tensor) -> Tensor:
    """E log Σ_k exp(Gz)_k for z ~ N(m, V), ``[b]``, as :func:`expected_softmax`."""
    return _logits(mean, covariance, contrasts).logsumexp(-1).mean(1)


def _logits(mean: Tensor, covariance: Tensor, contrasts: Tensor) -> Tensor:
    """Gz at points z spread as N(m, V), ``[b, SOFTMAX_NODES, K]``."""
    # V is singular where a row of features is 0; what keeps it from failing there is far below the rule's own error
    jitter = 1e-12 * (1.0 + covariance.diagonal(dim1=-2, dim2=-1))
    factor: Tensor = torch.linalg.cholesky(covariance + torch.diag_embed(jitter))
    z = mean[:, None] + _normal_points(mean.shape[-1], mean) @ factor.mT
    return z @ contrasts.mT


def _normal_rule(like: Tensor) -> tuple[Tensor, Tensor]:
    """Points and weights for a mean over N(0, 1)."""
    z = _NARROW_STEP * _counts(_NARROW_REACH, like)
    return z, torch.softmax(-0.5 * z.square(), 0)


def _logistic_rule(like: Tensor) -> tuple[Tensor, Tensor]:
    """Points and weights for a mean over a logistic variable."""
    points = _WIDE_STEP * _counts(_WIDE_REACH, like)
    density = points.sigmoid() * (-points).sigmoid()
    return points, density / density.sum()


def _counts(reach: int, like: Tensor) -> Tensor:
    return torch.arange(-reach, reach + 1, dtype=like.dtype, device=like.device)


def _normal_points(dimension: int, like: Tensor) -> Tensor:
    """``[SOFTMAX_NODES, dimension]`` points spread as a standard normal."""
    uniform = SobolEngine(dimension, scramble=True, seed=0).draw(SOFTMAX_NODES, dtype=torch.float64)
    points: Tensor = torch.special.ndtri(uniform.clamp(1e-9, 1.0 - 1e-9))
    return points.to(like)
