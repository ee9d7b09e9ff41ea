r"""Scale and KL of a mean-field Gaussian against a Gaussian prior, in few passes over the weights.

With σ = softplus(ρ):

    KL = Σ [ log s − log σ + (σ² + (μ − m)²) / (2s²) − ½ ]
    ∂KL/∂μ = (μ − m)/s²        ∂KL/∂ρ = σ'(ρ)·σ/s² − σ'(ρ)/σ,   σ'(ρ) = 1/(1 + e^{−ρ})

The derivative is written out because a training step spends much of its time here, and because σ'(ρ)/σ tends
to 1 for ρ → −∞ while both its factors leave the floating-point range: floored at the same number, their ratio
keeps the right limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Distribution, Normal, kl_divergence

from credo._arguments import check_option
from credo.errors import UnsupportedError
from credo.priors import move_prior

_KL_CHOICES = ("auto", "analytic", "sampled")


def scale_and_kl(mean: Tensor, rho: Tensor, prior_mean: Tensor | None, prior_scale: Tensor) -> tuple[Tensor, Tensor]:
    """σ = softplus(ρ), and KL(N(mean, σ²) ‖ N(prior_mean, prior_scale²)) summed over all elements.

    ``prior_mean=None`` stands for zero and saves the passes that subtract it.
    """
    if torch.compiler.is_compiling():  # a compiler fuses the formula and its derivative by itself
        return _formula(mean, rho, prior_mean, prior_scale)
    return _ScaleAndKL.apply(mean, rho, prior_mean, prior_scale)  # type: ignore[no-any-return, no-untyped-call]


def _formula(mean: Tensor, rho: Tensor, prior_mean: Tensor | None, prior_scale: Tensor) -> tuple[Tensor, Tensor]:
    scale = F.softplus(rho).clamp_min(torch.finfo(rho.dtype).tiny)
    offset = mean if prior_mean is None else mean - prior_mean
    if prior_scale.dim() == 0:
        constant = mean.numel() * (prior_scale.log() - 0.5)
        square = _sum_of_squares(scale) + _sum_of_squares(offset)
        kl = constant - scale.log().sum() + 0.5 * square / prior_scale.square()
    else:
        square = scale.square().addcmul_(offset, offset)
        kl = (prior_scale.log() - scale.log() + 0.5 * (square / prior_scale.square() - 1.0)).sum()
    return scale, kl


class _ScaleAndKL(torch.autograd.Function):
    @staticmethod
    def forward(  # with its context: torch inspects a separate setup_context at every call, slower than the numbers
        ctx: Any, mean: Tensor, rho: Tensor, prior_mean: Tensor | None, prior_scale: Tensor
    ) -> tuple[Tensor, Tensor]:
        scale, kl = _formula(mean, rho, prior_mean, prior_scale)
        ctx.save_for_backward(mean, rho, prior_mean, prior_scale, scale)
        return scale, kl

    @staticmethod
    def backward(ctx: Any, grad_scale: Tensor, grad_kl: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        mean, rho, prior_mean, prior_scale, scale = ctx.saved_tensors
        pull = grad_kl / prior_scale.square()
        grad_mean = (mean if prior_mean is None else mean - prior_mean) * pull
        slope = torch.sigmoid(rho).clamp_min_(torch.finfo(rho.dtype).tiny)
        grad_rho = torch.addcmul(grad_scale, scale, pull).addcdiv_(-grad_kl, scale).mul_(slope)
        return grad_mean, grad_rho, None, None


def _sum_of_squares(values: Tensor) -> Tensor:
    flat = values.reshape(-1)
    return torch.dot(flat, flat)


def has_closed_form(prior: Distribution) -> bool:
    """Whether KL(Normal ‖ prior) is known in closed form."""
    probe = Normal(torch.zeros(()), torch.ones(()), validate_args=False)
    try:
        kl_divergence(probe, move_prior(prior, torch.device("cpu")))
    except NotImplementedError:
        return False
    return True


def choose_kl(kind: str, priors: Mapping[str, Distribution]) -> dict[str, str]:
    """``"analytic"`` or ``"sampled"`` for every parameter, from the option and the priors."""
    check_option(kind, "kl", _KL_CHOICES)
    chosen = {}
    for name, prior in priors.items():
        known = kind != "sampled" and has_closed_form(prior)
        if kind == "analytic" and not known:
            raise UnsupportedError(
                f"kl='analytic', but KL(Normal ‖ {type(prior).__name__}) of {name!r} has no known closed form; "
                "use kl='auto' or kl='sampled'"
            )
        chosen[name] = "analytic" if known else "sampled"
    return chosen
