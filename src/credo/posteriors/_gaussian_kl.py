r"""KL between a mean-field Gaussian and a Gaussian prior, in few passes over the weights.

With σ = softplus(ρ):

    KL = Σ [ log s − log σ + (σ² + (μ − m)²) / (2s²) − ½ ]
    ∂KL/∂μ = (μ − m)/s²        ∂KL/∂ρ = σ'(ρ)·(σ/s² − 1/σ),   σ'(ρ) = 1 − e^{−σ}

The derivative is written out because it is cheaper than the graph, and because σ'(ρ)/σ tends to 1 for
ρ → −∞, where its two factors leave the floating-point range one after the other.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_EXPONENTIAL_BELOW = -37.0
"""Below this ρ, softplus(ρ) = e^ρ to the last digit of a float64."""


def gaussian_kl(mean: Tensor, rho: Tensor, prior_mean: Tensor, prior_scale: Tensor) -> Tensor:
    """KL(N(mean, softplus(rho)²) ‖ N(prior_mean, prior_scale²)), summed over all elements."""
    return _GaussianKL.apply(mean, rho, prior_mean, prior_scale)  # type: ignore[no-any-return, no-untyped-call]


class _GaussianKL(torch.autograd.Function):
    @staticmethod
    def forward(mean: Tensor, rho: Tensor, prior_mean: Tensor, prior_scale: Tensor) -> Tensor:
        scale = F.softplus(rho)
        log_scale = torch.where(rho < _EXPONENTIAL_BELOW, rho, scale.log())
        square = scale.square().addcmul_(mean - prior_mean, mean - prior_mean)
        return (prior_scale.log() - log_scale + 0.5 * (square / prior_scale.square() - 1.0)).sum()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        mean, rho, prior_mean, prior_scale = ctx.saved_tensors
        precision = prior_scale.square().reciprocal()
        grad_mean = (mean - prior_mean) * precision * grad
        scale = F.softplus(rho)
        slope = -torch.expm1(-scale)
        ratio = torch.where(rho < _EXPONENTIAL_BELOW, torch.ones_like(rho), slope / scale)
        grad_rho = (slope * scale * precision - ratio) * grad
        return grad_mean, grad_rho, None, None
