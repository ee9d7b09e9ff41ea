r"""Scale and KL of a mean-field Gaussian against a Gaussian prior, in few passes over the weights.

With σ = softplus(ρ):

    KL = Σ [ log s − log σ + (σ² + (μ − m)²) / (2s²) − ½ ]
    ∂KL/∂μ = (μ − m)/s²        ∂KL/∂ρ = σ'(ρ)·σ/s² − σ'(ρ)/σ,   σ'(ρ) = 1/(1 + e^{−ρ})

The derivative is written out because a training step spends much of its time here, and because σ'(ρ)/σ tends
to 1 for ρ → −∞ while both its factors leave the floating-point range: floored at the same number, their ratio
keeps the right limit.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.autograd.function import once_differentiable
from torch.distributions import Distribution, Normal, kl_divergence

from credo import kernels
from credo._arguments import check_option
from credo.errors import UnsupportedError
from credo.priors import AdaptiveNormal, move_prior
from credo.scale_mixture import Mixture, ScaleMixture

SMALL = 2**15
"""Below this number of elements, the calls of the operations cost more than the numbers."""
_KL_CHOICES = ("auto", "analytic", "sampled")


class Group(NamedTuple):
    """Parameter tensors under one Gaussian prior that are computed together: small ones, or a single one."""

    names: list[str]
    prior: Distribution
    squared: bool = False
    """Whether σ²/2 is wanted instead of σ."""


class KLPlan(NamedTuple):
    """How σ and the KL of a posterior are computed."""

    groups: list[Group]
    others: list[tuple[str, Distribution, str]]
    """Name, prior and kind of KL of the tensors that have no closed form of two Gaussians."""
    squared: Container[str]
    """The parameters of which σ²/2 is wanted instead of σ."""


def make_plan(
    sizes: Mapping[str, int], priors: Mapping[str, Distribution], kinds: Mapping[str, str], squared: Container[str]
) -> KLPlan:
    """Group the tensors whose KL has the closed form of two Gaussians.

    Args:
        sizes: the number of elements, of tensors that are not pruned.
        priors: the prior of every parameter.
        kinds: ``"analytic"`` or ``"sampled"`` for every parameter.
        squared: the parameters of which σ²/2 is wanted instead of σ.

    Returns:
        The plan.
    """
    plan = KLPlan([], [], squared)
    small: dict[tuple[int, bool], Group] = {}
    for name, kind in kinds.items():
        prior, square = priors[name], name in squared
        if kind != "analytic" or not isinstance(prior, Normal | AdaptiveNormal) or name not in sizes:
            plan.others.append((name, prior, kind))
            continue
        is_small = prior.batch_shape == () and sizes[name] < SMALL
        if is_small and (id(prior), square) in small:
            small[id(prior), square].names.append(name)
            continue
        plan.groups.append(Group([name], prior, square))
        if is_small:
            small[id(prior), square] = plan.groups[-1]
    return plan


def scales_and_kl(
    means: Sequence[Tensor],
    rhos: Sequence[Tensor],
    prior_mean: Tensor | None,
    prior_scale: Tensor,
    squared: bool = False,
) -> tuple[Sequence[Tensor], Tensor]:
    """σ = softplus(ρ) of every tensor, and KL(N(mean, σ²) ‖ N(prior_mean, prior_scale²)) summed over all elements.

    Args:
        means: μ of every tensor.
        rhos: ρ of every tensor.
        prior_mean: ``None`` stands for zero and saves the passes that subtract it.
        prior_scale: a scalar, or one value per element of the tensor, or of all tensors in a row.
        squared: return σ²/2 instead of σ.

    Returns:
        σ or σ²/2 of every tensor, and the KL in nats.
    """
    if torch.compiler.is_compiling():  # a compiler fuses the formula and its derivative by itself
        scale, kl = _formula(joined(means), joined(rhos), prior_mean, prior_scale)
        return _parted(half_square(scale) if squared else scale, means), kl
    if prior_mean is None and prior_scale.dim() == 0 and kernels.accepts([*means, *rhos, prior_scale]):
        *values, kl = _FusedScalesAndKL.apply(prior_scale, squared, *means, *rhos)  # type: ignore[no-untyped-call]
        return values, kl
    *values, kl = _ScalesAndKL.apply(prior_mean, prior_scale, squared, *means, *rhos)  # type: ignore[no-untyped-call]
    return values, kl


def _formula(mean: Tensor, rho: Tensor, prior_mean: Tensor | None, prior_scale: Tensor) -> tuple[Tensor, Tensor]:
    scale = F.softplus(rho).clamp_min_(torch.finfo(rho.dtype).tiny)
    offset = mean if prior_mean is None else mean - prior_mean
    if prior_scale.dim() == 0:
        constant = mean.numel() * (prior_scale.log() - 0.5)
        square = _sum_of_squares(scale) + _sum_of_squares(offset)
        kl = constant - scale.log().sum() + 0.5 * square / prior_scale.square()
    else:
        square = scale.square().addcmul_(offset, offset)
        kl = (prior_scale.log() - scale.log() + 0.5 * (square / prior_scale.square() - 1.0)).sum()
    return scale, kl


class _ScalesAndKL(torch.autograd.Function):
    @staticmethod
    def forward(  # with its context: torch inspects a separate setup_context at every call, slower than the numbers
        ctx: Any, prior_mean: Tensor | None, prior_scale: Tensor, squared: bool, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        means, rhos = tensors[: len(tensors) // 2], tensors[len(tensors) // 2 :]
        mean, rho = joined(means), joined(rhos)
        scale, kl = _formula(mean, rho, prior_mean, prior_scale)
        ctx.squared = squared
        ctx.likes = means
        ctx.save_for_backward(prior_mean, prior_scale, mean, rho, scale)
        return (*_parted(half_square(scale) if squared else scale, means), kl)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        prior_mean, prior_scale, mean, rho, scale = ctx.saved_tensors
        grad_values, grad_kl = joined(grads[:-1]), grads[-1]
        pull = grad_kl / prior_scale.square()
        grad_mean = (mean if prior_mean is None else mean - prior_mean) * pull
        slope = torch.sigmoid(rho).clamp_min_(torch.finfo(rho.dtype).tiny)
        grad_scale = (grad_values + pull).mul_(scale) if ctx.squared else torch.addcmul(grad_values, scale, pull)
        grad_rho = grad_scale.addcdiv_(-grad_kl, scale).mul_(slope)
        return (None, None, None, *_parted(grad_mean, ctx.likes), *_parted(grad_rho, ctx.likes))


class _FusedScalesAndKL(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, prior_scale: Tensor, squared: bool, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.squared = squared
        ctx.save_for_backward(prior_scale, *tensors)
        middle = len(tensors) // 2
        values, kl = kernels.scales_and_kl(tensors[:middle], tensors[middle:], prior_scale, squared)
        return (*values, kl)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        prior_scale, *tensors = ctx.saved_tensors
        middle = len(tensors) // 2
        grad_means, grad_rhos = kernels.scales_and_kl_backward(
            tensors[:middle], tensors[middle:], prior_scale, ctx.squared, grads[:-1], grads[-1]
        )
        return (None, None, *grad_means, *grad_rhos)


def sampled_kl(q: Normal, prior: Distribution, samples: int, weight: Tensor | None) -> Tensor:
    """log q(w) − log p(w) elementwise, a mean over draws w = μ + σ·ε, with log q = −log σ − ε²/2 − log √2π.

    Args:
        q: N(μ, σ²).
        prior: p.
        samples: number of draws.
        weight: a draw to use instead; one in fewer bits than μ has lost its noise by rounding and is not used.

    Returns:
        Of the shape of μ, in nats.
    """
    if weight is None or weight.dtype != q.loc.dtype:
        noise = torch.randn((samples, *q.loc.shape), dtype=q.loc.dtype, device=q.loc.device)
        weight = torch.addcmul(q.loc, q.scale, noise)
    else:
        weight = weight.unsqueeze(0)
        noise = ((weight - q.loc) / q.scale).detach()
    log_q = -q.scale.log() - noise.square().mean(0).mul_(0.5).add_(0.5 * math.log(2.0 * math.pi))
    return log_q - prior.log_prob(weight).mean(0)


def fused_mixture_kl(mean: Tensor, rho: Tensor, prior: Distribution, weight: Tensor | None) -> Tensor | None:
    """log q(w) − log p(w) under a scale mixture, summed over all elements; ``None`` where no kernel can compute it.

    Args:
        mean: μ, in the precision of ρ.
        rho: ρ.
        prior: of all elements.
        weight: a draw w; ``None``: a fresh one.

    Returns:
        A scalar in nats, differentiable with respect to μ and ρ.
    """
    if not isinstance(prior, ScaleMixture) or prior.dim is not None or torch.compiler.is_compiling():
        return None
    draw = None if weight is None or weight.dtype != rho.dtype else weight.detach()
    if not kernels.accepts([mean, rho, *([] if draw is None else [draw])]):
        return None
    given = torch.randn_like(rho) if draw is None else draw
    return _FusedMixtureKL.apply(mean, rho, given, draw is not None, prior.constants)  # type: ignore[no-any-return, no-untyped-call]


class _FusedMixtureKL(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mean: Tensor, rho: Tensor, draw: Tensor, is_weight: bool, prior: Mixture) -> Tensor:
        ctx.save_for_backward(mean, rho, draw)
        ctx.is_weight, ctx.prior = is_weight, prior
        return kernels.mixture_kl(mean, rho, draw, is_weight, prior)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        mean, rho, draw = ctx.saved_tensors
        grads = kernels.mixture_kl_backward(mean, rho, draw, ctx.is_weight, ctx.prior, grad)
        return (*grads, None, None, None)


def half_square(scale: Tensor) -> Tensor:
    """σ²/2, in one pass."""
    return torch.addcmul(scale.new_zeros(()), scale, scale, value=0.5)


def gaussian_penalty(weights: Sequence[Tensor], scale: float) -> Tensor:
    """−log p(w) under a centered Gaussian of scale s, Σ [ w²/(2s²) + log s + ½ log 2π ].

    Args:
        weights: parameter tensors.
        scale: s.

    Returns:
        A scalar in nats, differentiable.
    """
    if torch.compiler.is_compiling():
        return _penalty(weights, scale)
    return _GaussianPenalty.apply(scale, *weights)  # type: ignore[no-any-return, no-untyped-call]


def _penalty(weights: Sequence[Tensor], scale: float) -> Tensor:
    small = [weight for weight in weights if weight.numel() < SMALL]
    squares = [_sum_of_squares(weight) for weight in weights if weight.numel() >= SMALL]
    squares += [_sum_of_squares(joined(small))] if small else []
    count = sum(weight.numel() for weight in weights)
    total = squares[0] if len(squares) == 1 else torch.stack(squares).sum()
    return total * (0.5 / scale**2) + count * (math.log(scale) + 0.5 * math.log(2.0 * math.pi))


class _GaussianPenalty(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scale: float, *weights: Tensor) -> Tensor:
        ctx.save_for_backward(*weights)
        ctx.scale = scale
        return _penalty(weights, scale)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return (None, *torch._foreach_mul(ctx.saved_tensors, grad / ctx.scale**2))


def joined(tensors: Sequence[Tensor]) -> Tensor:
    """One tensor as it is, or several as one long vector."""
    return tensors[0] if len(tensors) == 1 else _flatten_dense_tensors(tensors)


def _parted(flat: Tensor, likes: Sequence[Tensor]) -> Sequence[Tensor]:
    """What :func:`joined` made of tensors of the shapes of ``likes``, apart again."""
    return [flat] if len(likes) == 1 else _unflatten_dense_tensors(flat, likes)


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
