r"""Langevin dynamics with gradients of minibatches, many chains in step.

With G a diagonal preconditioner, ε the step size and α the friction, each step is

    v ← (1 − α)·v + ε·G·∇log p̃ + √(2·α·ε·G)·ξ,      w ← w + v,      ξ ~ N(0, 1),

where log p̃ = (N/B)·Σ_batch log p(y | x, w)/T + log p(w) is an unbiased estimate of the log joint density. α = 1 is
stochastic gradient Langevin dynamics. There is no acceptance step: the chain has the posterior as its stationary
distribution up to a bias of order ε, and the noise of the minibatches.

For log p = −½·a·w² on all data, α = 1 and G = 1, the stationary variance is 1/(a·(1 − ε·a/2)) in place of 1/a.

With minibatches too, as E[w²] is the same after a step, it is (1 + ρ)/a for α = 1, and at most that for α < 1, with

    ρ = ε·G·E[g²]/(2·α),      g the gradient of log p̃:

the mean square of a step's drift over that of its noise. A chain with ρ ≫ 1 is stochastic gradient descent: minibatches
decide its spread, not the posterior (Welling & Teh 2011, section 4). E[g²] of each weight is known from the warm-up, so
that G can be limited to ρ ≤ 1.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from credo._arguments import check_bool, check_fraction, check_integer, check_positive
from credo.data import Batch
from credo.methods._flat_stack import Evaluation
from credo.methods._log_joint import Refresh
from credo.methods._sampling import REFRESHED_EVERY, Plan
from credo.seeding import derive, generator

_DECAY, _DAMPING = 0.99, 1e-5
"""Of the running mean of squared gradients, as in Li et al. (2016)."""
_MEMORY = 2.0
"""With a constant step size the mean goes back over the last half of the steps if that is more: 1 − 2/n after n."""
_LARGEST_WIDENING = 1.0
"""ρ: by what part of itself steps may widen the variance of a weight."""
_LARGEST_GRADIENT = 1.0 / math.sqrt(1.0 - _DECAY)
"""In units of √V: with a memory of a hundred steps V is at least 1 − 0.99 of the square of the last gradient."""
_NOISE, _ORDER = 0, 1  # indices of random streams

Estimate = Callable[[Tensor, Batch], Evaluation]
"""From positions ``[K, P]`` and a minibatch to an estimate of the log joint density and its gradient."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """How minibatch samplers step; see :class:`credo.SGLD`.

    Attributes:
        lr: step size per datum: ε = lr/N.
        friction: α; 1 for Langevin dynamics without momentum.
        batch_size: rows per minibatch; ``None``: all.
        preconditioned: whether G follows the gradients.
    """

    lr: float
    friction: float
    batch_size: int | None
    preconditioned: bool

    def __post_init__(self) -> None:
        check_positive(self.lr, "lr")
        if self.friction != 1.0:
            check_fraction(self.friction, "friction")
        if self.batch_size is not None:
            check_integer(self.batch_size, "batch_size", minimum=1)
        check_bool(self.preconditioned, "preconditioned")


class Dynamics:
    """K chains under Langevin dynamics. Chain k draws its noise from the stream (seed, k).

    In a cyclical schedule exploring steps have no noise: they find a mode, which the rest of the cycle samples. G is
    learned in exploring steps, G = 1/(√V + δ) with V a running mean of squared gradients per datum, and held fixed
    while draws are taken, so that it needs no correction. V starts at 1: at a mode, where chains may start, gradients
    say nothing yet of how far the posterior reaches.

    A unit that is inactive in the last hundred steps of the warm-up would get a G of thousands, and large gradients
    when it becomes active. So with a constant step size V goes back over half of the warm-up, and G ≤ 2·α/(lr·N·V),
    which is ρ ≤ 1; a cyclical one becomes small by itself. With both, a gradient counts for at most 10·(√V + δ) per
    datum, the most that a V with a memory of a hundred steps allows in the warm-up.

    Args:
        start: the first positions, ``[K, P]``.
        n_data: N.
        settings: the step size and the friction.
        seed: fixes the random numbers.
        is_cyclical: whether the step size falls to 0 in cycles.

    Attributes:
        position: ``[K, P]``.
        limited: the share of the weights whose G is limited by ρ.
    """

    def __init__(self, start: Tensor, n_data: int, settings: Settings, seed: int, *, is_cyclical: bool = False) -> None:
        self.position = start.detach().clone()
        self.limited = start.new_zeros(())
        self._momentum = torch.zeros_like(self.position)
        self._square, self._weight_of_start, self._learned = torch.ones_like(self.position), 1.0, 0
        self._settings, self._n_data, self._is_cyclical = settings, n_data, is_cyclical
        self._preconditioner = torch.ones_like(self.position)
        self._largest_gradient = torch.full_like(self.position, math.inf)
        self._sources = [generator(start.device, seed, _NOISE, k) for k in range(len(start))]

    def step(self, gradient: Tensor, factor: float, *, is_exploring: bool, has_noise: bool) -> None:
        """Move along ``gradient`` ``[K, P]``, of the log joint density over all data."""
        settings = self._settings
        if settings.preconditioned and is_exploring:
            self._learn(gradient / self._n_data)
        gradient = gradient.clamp(-self._largest_gradient, self._largest_gradient)
        stride = (settings.lr * factor / self._n_data) * self._preconditioner
        self._momentum.mul_(1.0 - settings.friction).addcmul_(stride, gradient)
        if has_noise:
            noise = torch.stack([self._normal(source) for source in self._sources])
            self._momentum.addcmul_(noise, (2.0 * settings.friction * stride).sqrt())
        self.position += self._momentum

    def _learn(self, gradient: Tensor) -> None:
        self._learned += 1
        decay = _DECAY if self._is_cyclical else max(_DECAY, 1.0 - _MEMORY / self._learned)
        self._square.mul_(decay).addcmul_(gradient, gradient, value=1.0 - decay)
        self._weight_of_start *= decay
        typical = self._square.sqrt() + _DAMPING
        self._largest_gradient = (_LARGEST_GRADIENT * self._n_data) * typical
        self._preconditioner = 1.0 / typical
        if self._is_cyclical:
            return
        settings = self._settings
        observed = ((self._square - self._weight_of_start) / (1.0 - self._weight_of_start)).clamp_min(_DAMPING**2)
        limit = (2.0 * _LARGEST_WIDENING * settings.friction / (settings.lr * self._n_data)) / observed
        self.limited = (limit < self._preconditioner).double().mean()
        self._preconditioner = torch.minimum(self._preconditioner, limit)

    def _normal(self, source: torch.Generator) -> Tensor:
        size, dtype = self.position.shape[1], self.position.dtype
        return torch.randn(size, generator=source, device=source.device, dtype=dtype)


def minibatches(data: Batch, size: int | None, seed: int) -> Iterator[Batch]:
    """Minibatches of ``data`` without end: every pass takes its rows in a new order, the last ones left out."""
    rows = len(data.y)
    size = rows if size is None else min(size, rows)
    source = torch.Generator().manual_seed(seed)
    while True:
        if size == rows:
            yield data
            continue
        order = torch.randperm(rows, generator=source).to(data.y.device)
        for start in range(0, rows - size + 1, size):
            chosen = order[start : start + size]
            yield data.map(lambda t, chosen=chosen: t[chosen])  # type: ignore[misc]


def sample(
    estimate: Estimate,
    start: Tensor,
    data: Batch,
    settings: Settings,
    plan: Plan,
    seed: int,
    report: Callable[[int, Mapping[str, float | Tensor]], None],
    refresh: Refresh | None = None,
) -> Tensor:
    """Run all chains on the same minibatches.

    Args:
        estimate: the log joint density.
        start: the first positions, ``[K, P]``.
        data: all rows.
        settings: the step size and the friction.
        plan: which steps explore, and which draws are kept.
        seed: fixes the random numbers.
        report: called after every step.
        refresh: draws unknown variances of the prior, before every tenth step.

    Returns:
        The draws, ``[K, D, P]``.
    """
    dynamics = Dynamics(start, len(data.y), settings, seed, is_cyclical=plan.is_cyclical)
    batches = minibatches(data, settings.batch_size, derive(seed, _ORDER))
    kept: list[Tensor] = []
    for step in range(plan.steps):
        is_exploring = plan.is_exploring(step)
        state = estimate(dynamics.position, next(batches))
        if refresh is not None and step % REFRESHED_EVERY == 0:
            state = refresh(dynamics.position, state)
        has_noise = not (is_exploring and plan.is_cyclical)
        dynamics.step(state.gradient, plan.factor(step), is_exploring=is_exploring, has_noise=has_noise)
        if plan.is_draw(step):
            kept.append(dynamics.position.clone())
        lr = plan.factor(step) * settings.lr
        report(step, {"log_density": state.log_density.mean(), "lr": lr, "limited": dynamics.limited})
    return torch.stack(kept, 1)
