r"""Kernels for GPUs, in Triton: the draw of weights and the step of IVON, in few passes over the weights.

The step is a chain of some thirty elementwise operations, which PyTorch runs one by one. Here a first kernel sums the
squares of the gradients in units of σ, a second one computes the trust region of every tensor from them, and a third
one takes the step.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import math
from collections.abc import Sequence
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from credo.kernels import BLOCK, count_blocks, on_device


def shifted_weights(mean: Tensor, rho: Tensor, noise: Tensor) -> Tensor:
    """μ + σ·ε, in one pass.

    Args:
        mean: μ.
        rho: ρ.
        noise: ε; overwritten by σ·ε.

    Returns:
        The weights.
    """
    weight = torch.empty_like(mean)
    with on_device(mean):
        _triton().shifted_weights[count_blocks(mean),](mean, rho, noise, weight, noise, mean.numel(), BLOCK)
    return weight


class NewtonState(NamedTuple):
    """A tensor under IVON, and what is known of it in a step.

    Attributes:
        mean: m; updated in place.
        rho: ρ; updated in place.
        grad: ĝ.
        noise: θ − m if ``is_shift``, else the gradient of ρ.
        is_shift: see ``noise``.
        momentum: the running mean of ĝ; updated in place.
        center: m₀ of the prior.
        precision: 1/s² of the prior.
    """

    mean: Tensor
    rho: Tensor
    grad: Tensor
    noise: Tensor
    is_shift: bool
    momentum: Tensor
    center: float
    precision: float


class NewtonSettings(NamedTuple):
    """What the tensors under IVON share; all but numbers are scalar tensors.

    Attributes:
        lr: α.
        step: number of steps, with this one.
        warmup_steps: those of the warm-up of the KL.
        warmup_length: its length.
        n_data: N.
        betas: β₁ and β₂.
        prior_steps: the number of steps that the initial Hessian counts for.
        trust_radius: the largest step of a tensor in units of σ; infinite: no limit.
        clip_radius: the largest change of a weight; infinite: no limit.
    """

    lr: Tensor
    step: Tensor
    warmup_steps: Tensor
    warmup_length: Tensor
    n_data: int
    betas: tuple[float, float]
    prior_steps: float
    trust_radius: float
    clip_radius: float


def newton_step(
    states: Sequence[NewtonState], squares: Tensor, places: tuple[Tensor, Tensor], settings: NewtonSettings
) -> None:
    """A step of :class:`credo.IVON`, see there.

    Args:
        states: the tensors.
        squares: v of every tensor, ``[T]``; updated in place.
        places: from :func:`newton_places`.
        settings: what they share.
    """
    blocks = [count_blocks(state.rho) for state in states]
    partial, limits = squares.new_empty(sum(blocks)), torch.empty_like(squares)
    beta1 = settings.betas[0]
    log_beta1 = math.log(beta1) if beta1 > 0.0 else -math.inf
    warmup = settings.warmup_steps, settings.warmup_length
    with on_device(squares):
        for state, part in zip(states, partial.split(blocks), strict=True):
            _triton().newton_squares[len(part),](state.rho, state.grad, part, state.rho.numel(), BLOCK)
        _triton().newton_limits[len(states),](
            partial,
            *places,
            squares,
            limits,
            settings.step,
            *warmup,
            settings.n_data,
            beta1,
            log_beta1,
            settings.trust_radius,
            max(blocks),
            BLOCK,
        )
        for state, limit, count in zip(states, limits.unbind(), blocks, strict=True):
            _triton().newton_step[count,](
                state.mean,
                state.rho,
                state.grad,
                state.noise,
                state.momentum,
                limit,
                settings.lr,
                settings.step,
                *warmup,
                settings.n_data,
                *settings.betas,
                log_beta1,
                settings.prior_steps,
                state.center,
                state.precision,
                settings.clip_radius,
                state.rho.numel(),
                state.is_shift,
                BLOCK,
            )


def newton_places(tensors: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Where the blocks of every tensor begin, ``[T + 1]``, and the numbers of elements, ``[T]``, on their device."""
    starts = [0, *itertools.accumulate(count_blocks(tensor) for tensor in tensors)]
    device = tensors[0].device
    sizes = torch.tensor([float(max(1, tensor.numel())) for tensor in tensors], dtype=torch.float32, device=device)
    return torch.tensor(starts, dtype=torch.int32, device=device), sizes


@functools.cache
def _triton() -> ModuleType:
    """The kernels; Triton takes long to import."""
    return importlib.import_module("credo.methods._triton_newton")
