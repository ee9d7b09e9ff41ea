r"""Kernels for GPUs, in Triton: what a mean-field Gaussian does to every weight in a training step, in few passes.

A step of Bayes by Backprop computes σ = softplus(ρ), the KL to a centered Gaussian prior, their derivatives and an
update of Adam for every weight. Each is a chain of elementwise operations, which PyTorch runs one by one, each reading
and writing all weights. Here each chain is one kernel.

Triton comes with PyTorch for CUDA. Where it is missing, or cannot compile, :func:`is_available` is ``False`` and the
same formulas run as operations of PyTorch.

Reference: P. Tillet, H. T. Kung, D. Cox, "Triton: an intermediate language and compiler for tiled neural network
computations", MAPL 2019.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

try:
    import triton  # type: ignore[import-not-found,unused-ignore]
    import triton.language as tl  # type: ignore[import-not-found,unused-ignore]
except ImportError:
    triton = None

_BLOCK = 1024


@functools.cache
def is_available() -> bool:
    """Whether the kernels can be compiled here; tried once, on a single weight."""
    device = "cpu" if _is_interpreted() else "cuda"
    if triton is None or (device == "cuda" and not torch.cuda.is_available()):
        return False
    one = torch.ones(1, device=device)
    try:
        scales_and_kl([one], [one], one[0], squared=False)
    except Exception:  # whatever Triton or a missing C compiler raises
        return False
    return True


def accepts(tensors: Sequence[Tensor]) -> bool:
    """Whether the kernels can work on ``tensors``: contiguous, in float32, on one GPU."""
    device = tensors[0].device
    if device.type != ("cpu" if _is_interpreted() else "cuda"):
        return False
    same = all(t.device == device and t.dtype == torch.float32 and t.is_contiguous() for t in tensors)
    return same and is_available()


def scales_and_kl(
    means: Sequence[Tensor], rhos: Sequence[Tensor], prior_scale: Tensor, squared: bool
) -> tuple[list[Tensor], Tensor]:
    """σ or σ²/2 of every tensor, and KL(N(μ, σ²) ‖ N(0, s²)) summed over all elements.

    Args:
        means: μ of every tensor.
        rhos: ρ of every tensor.
        prior_scale: s, a scalar tensor.
        squared: return σ²/2 instead of σ.

    Returns:
        The values of every tensor, and the KL in nats.
    """
    values = [torch.empty_like(rho) for rho in rhos]
    blocks = [_count_blocks(rho) for rho in rhos]
    partial = prior_scale.new_empty(sum(blocks))
    with _on_device(partial):
        for mean, rho, value, part in zip(means, rhos, values, partial.split(blocks), strict=True):
            _scale_and_kl_kernel[len(part),](mean, rho, prior_scale, value, part, rho.numel(), squared, _BLOCK)
    return values, partial.sum()


def scales_and_kl_backward(
    means: Sequence[Tensor],
    rhos: Sequence[Tensor],
    prior_scale: Tensor,
    squared: bool,
    grad_values: Sequence[Tensor],
    grad_kl: Tensor,
) -> tuple[list[Tensor], list[Tensor]]:
    """The derivative of :func:`scales_and_kl`.

    Args:
        means: μ of every tensor.
        rhos: ρ of every tensor.
        prior_scale: s.
        squared: as in the forward pass.
        grad_values: the gradient of the values.
        grad_kl: that of the KL, a scalar tensor.

    Returns:
        The gradients of μ and of ρ.
    """
    grad_means, grad_rhos = ([torch.empty_like(rho) for rho in rhos] for _ in range(2))
    lists = (means, rhos, grad_values, grad_means, grad_rhos)
    with _on_device(prior_scale):
        for mean, rho, grad_value, grad_mean, grad_rho in zip(*lists, strict=True):
            _scale_and_kl_backward_kernel[_count_blocks(rho),](
                mean,
                rho,
                prior_scale,
                grad_value.contiguous(),
                grad_kl,
                grad_mean,
                grad_rho,
                rho.numel(),
                squared,
                _BLOCK,
            )
    return grad_means, grad_rhos


class AdamState(NamedTuple):
    """A parameter, its gradient, and what Adam keeps of it."""

    parameter: Tensor
    grad: Tensor
    first_moment: Tensor
    second_moment: Tensor


class AdamSettings(NamedTuple):
    """What a parameter group says; the learning rate and the number of steps are scalar tensors."""

    lr: Tensor
    step: Tensor
    betas: tuple[float, float]
    eps: float
    weight_decay: float


def natural_adam(
    mean: AdamState, rho: AdamState, mean_settings: AdamSettings, rho_settings: AdamSettings, ratio: float
) -> None:
    """A step of Adam for ρ, and then one for μ that is longer by max(1, ratio·σ).

    Args:
        mean: of μ; updated in place.
        rho: of ρ; updated in place.
        mean_settings: for μ.
        rho_settings: for ρ; the same number of steps.
        ratio: the relative step over the learning rate, see :class:`credo.training.optimizers.NaturalAdam`.
    """
    with _on_device(mean.parameter):
        _natural_adam_kernel[_count_blocks(mean.parameter),](
            *mean._replace(grad=mean.grad.contiguous()),
            *rho._replace(grad=rho.grad.contiguous()),
            mean_settings.lr,
            rho_settings.lr,
            mean_settings.step,
            ratio,
            mean_settings.weight_decay,
            rho_settings.weight_decay,
            *mean_settings.betas,
            *(math.log(beta) for beta in mean_settings.betas),
            mean_settings.eps,
            mean.parameter.numel(),
            _BLOCK,
        )


def _count_blocks(tensor: Tensor) -> int:
    return max(1, -(-tensor.numel() // _BLOCK))


def _on_device(tensor: Tensor) -> Any:
    return torch.cuda.device_of(tensor)


def _is_interpreted() -> bool:
    """Whether Triton runs its kernels in Python, on the CPU, as tests can ask for."""
    return os.environ.get("TRITON_INTERPRET") == "1"


if triton is not None:

    @triton.jit
    def _softplus(x):  # type: ignore[no-untyped-def]
        """log(1 + eˣ), accurate where eˣ is small: with u the rounded 1 + e, log(1 + e) = e·log(u)/(u − 1)."""
        e = tl.exp(-tl.abs(x))
        u = 1.0 + e
        rounded = u - 1.0
        tail = tl.where(rounded == 0.0, e, e * (tl.log(u) / tl.where(rounded == 0.0, 1.0, rounded)))
        return tl.maximum(x, 0.0) + tail

    @triton.jit  # type: ignore[untyped-decorator]
    def _scale_and_kl_kernel(  # type: ignore[no-untyped-def]
        mean, rho, prior_scale, value, partial, n, SQUARED: tl.constexpr, BLOCK: tl.constexpr
    ):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = i < n
        m = tl.load(mean + i, inside, 0.0)
        s = tl.load(prior_scale)
        sigma = tl.maximum(_softplus(tl.load(rho + i, inside, 0.0)), 1.1754943508222875e-38)
        if SQUARED:
            tl.store(value + i, 0.5 * sigma * sigma, inside)
        else:
            tl.store(value + i, sigma, inside)
        kl = tl.log(s) - tl.log(sigma) + 0.5 * ((sigma * sigma + m * m) / (s * s) - 1.0)
        tl.store(partial + tl.program_id(0), tl.sum(tl.where(inside, kl, 0.0), 0))

    @triton.jit  # type: ignore[untyped-decorator]
    def _scale_and_kl_backward_kernel(  # type: ignore[no-untyped-def]
        mean,
        rho,
        prior_scale,
        grad_value,
        grad_kl,
        grad_mean,
        grad_rho,
        n,
        SQUARED: tl.constexpr,
        BLOCK: tl.constexpr,
    ):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = i < n
        r = tl.load(rho + i, inside, 0.0)
        g = tl.load(grad_value + i, inside, 0.0)
        c = tl.load(grad_kl)
        s = tl.load(prior_scale)
        pull = c / (s * s)
        sigma = tl.maximum(_softplus(r), 1.1754943508222875e-38)
        e = tl.exp(-tl.abs(r))
        slope = tl.maximum(tl.where(r >= 0.0, 1.0, e) / (1.0 + e), 1.1754943508222875e-38)
        grad_sigma = (g + pull) * sigma if SQUARED else g + sigma * pull
        tl.store(grad_mean + i, tl.load(mean + i, inside, 0.0) * pull, inside)
        tl.store(grad_rho + i, (grad_sigma - c / sigma) * slope, inside)

    @triton.jit
    def _adam_change(p, grad, first, second, lr, decay, beta1, beta2, eps, correction1, correction2, i, inside):  # type: ignore[no-untyped-def]
        """−lr·m̂/(√v̂ + ε), with both moments updated."""
        g = tl.load(grad + i, inside, 0.0) + decay * p
        m = beta1 * tl.load(first + i, inside, 0.0) + (1.0 - beta1) * g
        v = beta2 * tl.load(second + i, inside, 0.0) + (1.0 - beta2) * g * g
        tl.store(first + i, m, inside)
        tl.store(second + i, v, inside)
        return -(lr / correction1) * m / (tl.sqrt(v) / tl.sqrt(correction2) + eps)

    @triton.jit  # type: ignore[untyped-decorator]
    def _natural_adam_kernel(  # type: ignore[no-untyped-def]
        mean,
        grad_mean,
        first_mean,
        second_mean,
        rho,
        grad_rho,
        first_rho,
        second_rho,
        lr_mean,
        lr_rho,
        step,
        ratio,
        decay_mean,
        decay_rho,
        beta1,
        beta2,
        log_beta1,
        log_beta2,
        eps,
        n,
        BLOCK: tl.constexpr,
    ):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = i < n
        t = tl.load(step).to(tl.float64)
        correction1 = (1.0 - tl.exp(t * log_beta1)).to(tl.float32)
        correction2 = (1.0 - tl.exp(t * log_beta2)).to(tl.float32)
        r = tl.load(rho + i, inside, 0.0)
        m = tl.load(mean + i, inside, 0.0)
        r += _adam_change(
            r,
            grad_rho,
            first_rho,
            second_rho,
            tl.load(lr_rho),
            decay_rho,
            beta1,
            beta2,
            eps,
            correction1,
            correction2,
            i,
            inside,
        )
        tl.store(rho + i, r, inside)
        change = _adam_change(
            m,
            grad_mean,
            first_mean,
            second_mean,
            tl.load(lr_mean),
            decay_mean,
            beta1,
            beta2,
            eps,
            correction1,
            correction2,
            i,
            inside,
        )
        tl.store(mean + i, m + tl.maximum(ratio * _softplus(r), 1.0) * change, inside)
