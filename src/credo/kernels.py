r"""Kernels for GPUs, in Triton: what a mean-field Gaussian does to every weight in a training step, in few passes.

A step of Bayes by Backprop computes σ = softplus(ρ), the KL to a centered Gaussian prior, their derivatives and an
update of Adam for every weight. Each is a chain of elementwise operations, which PyTorch runs one by one, each reading
and writing all weights. Here each chain is one kernel.

Draws of weights for predictions are another: all weights of all draws, with their random numbers, in one kernel.

Triton comes with PyTorch for CUDA. Where it is missing, or cannot compile, :func:`is_available` is ``False`` and the
same formulas run as operations of PyTorch.

References:
    P. Tillet, H. T. Kung, D. Cox. Triton: an intermediate language and compiler for tiled neural network computations.
    MAPL 2019.
    J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw. Parallel random numbers: as easy as 1, 2, 3. SC 2011.
"""

from __future__ import annotations

import functools
import importlib
import math
import os
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from credo.scale_mixture import Mixture

BLOCK = 1024
"""Elements that a program computes."""
_QUADS, _DRAWS_PER_PROGRAM = 512, 4
DRAWN_TOGETHER = 4 * _QUADS
"""Weights that a program of :func:`gaussian_draws` computes: Philox returns four random numbers at a time."""


@functools.cache
def is_available() -> bool:
    """Whether the kernels can be compiled here; tried once, on a single weight."""
    if not _is_interpreted() and not torch.cuda.is_available():
        return False
    one = torch.ones(1, device="cpu" if _is_interpreted() else "cuda")
    try:
        scales_and_kl([one], [one], one[0], squared=False)
    except Exception:  # there is no Triton, or whatever it or a missing C compiler raises
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
    blocks = [count_blocks(rho) for rho in rhos]
    partial = prior_scale.new_empty(sum(blocks))
    with on_device(partial):
        for mean, rho, value, part in zip(means, rhos, values, partial.split(blocks), strict=True):
            _triton().scale_and_kl[len(part),](mean, rho, prior_scale, value, part, rho.numel(), squared, BLOCK)
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
    with on_device(prior_scale):
        for mean, rho, grad_value, grad_mean, grad_rho in zip(*lists, strict=True):
            _triton().scale_and_kl_backward[count_blocks(rho),](
                mean,
                rho,
                prior_scale,
                grad_value.contiguous(),
                grad_kl,
                grad_mean,
                grad_rho,
                rho.numel(),
                squared,
                BLOCK,
            )
    return grad_means, grad_rhos


def mixture_kl(mean: Tensor, rho: Tensor, draw: Tensor, is_weight: bool, prior: Mixture) -> Tensor:
    """log q(w) − log p(w) summed over all elements, for w = μ + σ·ε under a scale mixture.

    Args:
        mean: μ.
        rho: ρ.
        draw: ε, or w if ``is_weight``.
        is_weight: whether ``draw`` is w.
        prior: of all elements.

    Returns:
        A scalar in nats, whose expectation over ε is the KL.
    """
    partial = rho.new_empty(count_blocks(rho))
    with on_device(rho):
        _triton().mixture_kl[len(partial),](mean, rho, draw, partial, *prior, rho.numel(), is_weight, BLOCK)
    return partial.sum()


def mixture_kl_backward(
    mean: Tensor, rho: Tensor, draw: Tensor, is_weight: bool, prior: Mixture, grad: Tensor
) -> tuple[Tensor, Tensor]:
    """The derivative of :func:`mixture_kl`, with ε held constant.

    Args:
        mean: μ.
        rho: ρ.
        draw: as in the forward pass.
        is_weight: as in the forward pass.
        prior: as in the forward pass.
        grad: the gradient of the KL, a scalar tensor.

    Returns:
        The gradients of μ and of ρ.
    """
    grad_mean, grad_rho = torch.empty_like(mean), torch.empty_like(rho)
    with on_device(rho):
        _triton().mixture_kl_backward[count_blocks(rho),](
            mean, rho, draw, grad, grad_mean, grad_rho, *prior, rho.numel(), is_weight, BLOCK
        )
    return grad_mean, grad_rho


def add_noise(output: Tensor, half_variance: Tensor, noise: Tensor) -> Tensor:
    """y + √(2h)·ε, in one pass; ``noise`` becomes ε/√(2h), which the derivative needs.

    Args:
        output: y.
        half_variance: h.
        noise: ε; overwritten.

    Returns:
        Of the shape of y.
    """
    result = torch.empty_like(output)
    with on_device(output):
        _triton().add_noise[count_blocks(output),](output, half_variance, noise, result, output.numel(), BLOCK)
    return result


def gaussian_draws(
    mean: Tensor, scale: Tensor, seed: Tensor, numbers: Tensor, table: Tensor, out: Tensor, antithetic: bool
) -> None:
    r"""Draws :math:`w_s = \mu + \sigma\,\varepsilon_s` of many tensors, in one pass.

    ε of draw s at place i are functions of the seed, s and i alone: a Philox generator with the seed as its key, and
    ⌊i/4⌋ and s as its counter. Antithetic draws 2k and 2k + 1 have the noise of stream k, with opposite signs. All that
    changes from call to call lies in tensors, so that a call can be recorded in a CUDA graph.

    Args:
        mean: μ, ``[n]``, n a multiple of :data:`DRAWN_TOGETHER`.
        scale: σ, ``[n]``.
        seed: a scalar, int64.
        numbers: s of every draw, ``[K]``, int64.
        table: for every :data:`DRAWN_TOGETHER` weights, the place in ``out`` of the first in the first draw, the
            distance to its place in the next draw, and how many of them there are, ``[n / DRAWN_TOGETHER, 3]``, int64.
        out: where the draws are written.
        antithetic: whether draws come in pairs.
    """
    grid = len(table), -(-len(numbers) // _DRAWS_PER_PROGRAM)
    with on_device(out):
        _triton().gaussian_draws[grid](
            mean, scale, seed, numbers, table, out, len(numbers), antithetic, _DRAWS_PER_PROGRAM, _QUADS
        )


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
    with on_device(mean.parameter):
        _triton().natural_adam[count_blocks(mean.parameter),](
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
            BLOCK,
        )


@functools.cache
def _triton() -> ModuleType:
    """The kernels; Triton takes long to import."""
    return importlib.import_module("credo._triton_kernels")


def count_blocks(tensor: Tensor) -> int:
    """The number of programs for a tensor."""
    return max(1, -(-tensor.numel() // BLOCK))


def on_device(tensor: Tensor) -> Any:
    """A context in which kernels run on the device of a tensor."""
    return torch.cuda.device_of(tensor)


def _is_interpreted() -> bool:
    """Whether Triton runs its kernels in Python, on the CPU, as tests can ask for."""
    return os.environ.get("TRITON_INTERPRET") == "1"
