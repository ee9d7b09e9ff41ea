r"""Microcanonical Langevin dynamics of many chains in step, and the adaptation of their settings in warm-up.

A particle moves with constant speed through d dimensions. In coordinates scaled by the posterior standard deviations s,
with direction u, ‖u‖ = 1, and log density log p,

    q̇ = s·u,      u̇ = (I − u·uᵀ)·s·∇log p(q)/(d − 1),

whose time average is the posterior. The equations are integrated by the leapfrog scheme with step ε; the direction is
partly refreshed after each step, u ← (u + ν·z)/‖u + ν·z‖ with z standard normal and ν² = (e^(2ε/L) − 1)/d, so that it
is forgotten after a distance of L. There is no acceptance step: the bias is controlled by the step size, through the
variance of the energy error per step and dimension, Var[ΔE]/d, which is held at a small value. Steps at which the
energy rises by ten standard deviations of that, and by 10 at least, would almost never be accepted: they are not made.

Warm-up has three parts: the step size (40 %), the step size and the scales s (40 %), after which L = √d, and the step
size for these scales together with L = 0.4·ε·τ, τ the mean autocorrelation time of the parameters in steps (20 %). From
the middle of the third part on, the step size is the one whose errors had the wanted variance on average since then:
it still changes after warm-up, less and less, because chains may find places where the density is steeper.

References: J. Robnik, G. B. De Luca, E. Silverstein, U. Seljak, "Microcanonical Hamiltonian Monte Carlo", JMLR 24,
2023. J. Robnik, U. Seljak, "Fluctuation without dissipation: microcanonical Langevin Monte Carlo", AABI 2024.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from credo import diagnostics
from credo.errors import UnsupportedError
from credo.methods._flat_stack import Evaluation, Target
from credo.methods._log_joint import Refresh
from credo.methods._sampling import REFRESHED_EVERY, Plan
from credo.methods._scales import RunningScale
from credo.methods._streams import Streams

_FIRST_STEP_SIZE = 0.25
_SCALE_FROM, _LENGTH_FROM = 0.4, 0.8
_MEMORY, _TRUST = 150.0, 1.5
"""Steps that a step size is averaged over, and the width, in logarithms, of the errors that it trusts."""
_LARGEST_RATIO = 2.0**6
"""What a squared error counts for at most, in units of its target: a single one at most halves the step size."""
_LARGEST_ERROR = 10.0
_AUTOCORRELATIONS, _DIMENSIONS = 0.4, 64
_MIN_STEPS = 100


class MicrocanonicalRun(NamedTuple):
    """The result of sampling.

    Attributes:
        draws: ``[K, D, P]``.
        log_density: ``[K, D]``, float64.
        divergences: number of steps after warm-up that were not made, ``[K]``.
        step_size: ε, ``[K]``.
        length: L, ``[K]``.
        energy_error: Var[ΔE]/d of the steps made after warm-up, ``[K]``.
    """

    draws: Tensor
    log_density: Tensor
    divergences: Tensor
    step_size: Tensor
    length: Tensor
    energy_error: Tensor


class Particles:
    """Positions and directions of K chains.

    Args:
        target: the log density.
        start: the first positions, ``[K, P]``, P at least 2.
        seed: fixes the random numbers of each chain, see :class:`Streams`.
        refresh: changes what the target depends on beside the position, between steps.
        largest_error: the rise of the energy above which a step is not made.

    Attributes:
        made: whether the last step of each chain was made, ``[K]``.
    """

    def __init__(
        self,
        target: Target,
        start: Tensor,
        seed: int | Sequence[int],
        refresh: Refresh | None = None,
        largest_error: float = math.inf,
    ) -> None:
        if start.shape[1] < 2:
            raise UnsupportedError("MCLMC moves through two or more dimensions, and this model has one; use credo.HMC")
        self.target, self._refresh, self._count = target, refresh, 0
        self._largest_error = largest_error
        self.position = start.detach().clone()
        self.state = target(self.position)
        self.made = torch.ones(len(start), dtype=torch.bool, device=start.device)
        self._streams = Streams(start.device, seed, len(start))
        self.direction = _unit(self._normal())

    def step(self, step_size: Tensor, scale: Tensor, length: Tensor) -> Tensor:
        """One leapfrog step and a partial refreshment; after a step that is not made the direction is a new one.

        Args:
            step_size: ε, ``[K]``.
            scale: s, ``[K, P]``.
            length: L, ``[K]``.

        Returns:
            The energy errors ΔE, ``[K]``, float64; NaN for steps that are not finite.
        """
        if self._refresh is not None and self._count % REFRESHED_EVERY == 0:
            self.state = self._refresh(self.position, self.state)
        self._count += 1
        dimensions = self.position.shape[1]
        size = step_size.to(self.position.dtype).unsqueeze(1)
        direction, first = kick(self.direction, scale * self.state.gradient, 0.5 * size)
        position = torch.addcmul(self.position, size * scale, direction)
        state = self.target(position)
        direction, second = kick(direction, scale * state.gradient, 0.5 * size)
        error = first + second - (state.log_density - self.state.log_density)
        finite = error.isfinite() & state.gradient.isfinite().all(1)
        self.made = finite & (error <= self._largest_error)
        made = self.made.unsqueeze(1)
        self.position = torch.where(made, position, self.position)
        self.state = Evaluation(
            torch.where(self.made, state.log_density, self.state.log_density),
            torch.where(made, state.gradient, self.state.gradient),
        )
        noise = self._normal()
        strength = ((2.0 * step_size / length).expm1() / dimensions).sqrt().to(noise.dtype).unsqueeze(1)
        self.direction = _unit(torch.where(made, torch.addcmul(direction, strength, noise), noise))
        return torch.where(finite, error, math.nan)

    def _normal(self) -> Tensor:
        return self._streams.normal(self.position.shape[1], self.position.dtype)


def kick(direction: Tensor, gradient: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
    r"""The direction after a time under a constant force, in closed form.

    With e = ∇log p/‖∇log p‖, δ = size·‖∇log p‖/(d − 1) and ζ = e^(−δ),

        u' ∝ e·(1 − ζ)·(1 + ζ + u·e·(1 − ζ)) + 2·ζ·u,      ΔK = (d − 1)·(δ − log 2 + log(1 + u·e + (1 − u·e)·ζ²)).

    Args:
        direction: u, ``[K, P]``.
        gradient: ``[K, P]``, in scaled coordinates.
        size: the time, ``[K, 1]``.

    Returns:
        u' and the change of the kinetic energy ΔK, ``[K]``, float64.
    """
    dimensions = direction.shape[1]
    norm = gradient.norm(dim=1, keepdim=True)
    force = gradient / norm.clamp_min(torch.finfo(norm.dtype).tiny)
    cosine = (direction * force).sum(1, keepdim=True)
    delta = size * norm / (dimensions - 1)
    zeta = (-delta).exp()
    turned = force * ((1.0 - zeta) * (1.0 + zeta + cosine * (1.0 - zeta))) + 2.0 * zeta * direction
    delta, cosine, zeta = delta.double(), cosine.double().clamp(-1.0, 1.0), zeta.double()
    change = delta - math.log(2.0) + (1.0 + cosine + (1.0 - cosine) * zeta.square()).log()
    return _unit(turned), (dimensions - 1) * change.squeeze(1)


class StepSize:
    """Step sizes whose energy error has a given variance per dimension: Var[ΔE]/d is proportional to ε⁶.

    Each step measures the ratio ξ = ΔE²/(d·target), at most 64; ε⁻⁶ is an average of ξ/ε⁶ over about 150 steps, where
    errors that are far from their target, such as those far from the bulk, count less. Where a step is unstable, ξ does
    not follow ε⁶ and may be 10¹⁰: without the limit, one such step made ε tens of times too small for the thousands of
    steps that it takes to be forgotten.

    Args:
        like: positions, ``[K, P]``.
        target: Var[ΔE]/d.
    """

    def __init__(self, like: Tensor, target: float) -> None:
        self._scale = like.shape[1] * target
        self.current = torch.full((len(like),), _FIRST_STEP_SIZE * math.sqrt(like.shape[1]), dtype=torch.float64)
        self.current = self.current.to(like.device)
        self._sum, self._weight = torch.zeros_like(self.current), torch.zeros_like(self.current)
        self._total, self._count = torch.zeros_like(self.current), torch.zeros_like(self.current)
        self._limit = torch.full_like(self.current, math.inf)

    def update(self, error: Tensor) -> None:
        """Record the energy errors of a step, ``[K]``; NaN makes a step size shrink."""
        ratio = (error.square() / self._scale + 1e-8).clamp(max=_LARGEST_RATIO)
        weight = torch.exp(-0.5 * (ratio.log() / (6.0 * _TRUST)).square()).nan_to_num(0.0)
        decay = (_MEMORY - 1.0) / (_MEMORY + 1.0)
        self._sum = decay * self._sum + weight * (ratio / self.current.pow(6)).nan_to_num(0.0)
        self._weight = decay * self._weight + weight
        self._total = self._total + (ratio / self.current.pow(6)).nan_to_num(0.0)
        self._count = self._count + error.isfinite()
        adapted = (self._sum / self._weight.clamp_min(1e-12)).pow(-1.0 / 6.0)
        failed = ~error.isfinite()
        self._limit = torch.where(failed, 0.8 * self.current, self._limit)
        self.current = torch.where(failed | (self._weight == 0.0), self.current, adapted).minimum(self._limit)

    def restart_average(self) -> None:
        """Forget the errors so far in :meth:`averaged`: those of the first steps, at sizes far from the final one."""
        self._total, self._count = torch.zeros_like(self.current), torch.zeros_like(self.current)

    def averaged(self) -> Tensor:
        """ε for use after warm-up, ``[K]``: from all errors since a restart, which rare large ones dominate."""
        return (self._total / self._count.clamp_min(1.0)).pow(-1.0 / 6.0).minimum(self._limit)


def sample(
    target: Target,
    start: Tensor,
    plan: Plan,
    *,
    seed: int | Sequence[int],
    scale: Tensor | None = None,
    energy_error: float = 5e-4,
    report: Callable[[int, Mapping[str, float | Tensor]], None] | None = None,
    refresh: Refresh | None = None,
) -> MicrocanonicalRun:
    """Run all chains.

    Args:
        target: the log density.
        start: the first positions, ``[K, P]``.
        plan: the steps of warm-up, and which draws are kept.
        seed: fixes the random numbers, see :class:`Streams`.
        scale: s at the start, ``[K, P]``; ``None``: 1.
        energy_error: Var[ΔE]/d that step sizes are adapted to.
        report: called after every step.
        refresh: called before every tenth step, see :class:`Particles`.

    Returns:
        Draws and statistics.
    """
    dimensions = start.shape[1]
    largest = _LARGEST_ERROR * max(1.0, math.sqrt(dimensions * energy_error))
    particles = Particles(target, start, seed, refresh, largest)
    scale = torch.ones_like(start) if scale is None else scale
    step_size = StepSize(start, energy_error)
    length = torch.full_like(step_size.current, math.sqrt(dimensions))
    adapted, path = RunningScale(start), []
    second, third = int(_SCALE_FROM * plan.warmup), int(_LENGTH_FROM * plan.warmup)
    kept, log_density = [], []
    divergences = torch.zeros(len(start), dtype=torch.int64, device=start.device)
    squares = torch.zeros_like(step_size.current)
    for i in range(plan.steps):
        error = particles.step(step_size.current, scale, length)
        step_size.update(error)
        if i < plan.warmup:
            if second <= i < third:
                adapted.update(particles.position, particles.state.gradient)
            elif i >= third:
                path.append(particles.position[:, :: max(1, dimensions // _DIMENSIONS)].clone())
            if i == third - 1 and third - second >= _MIN_STEPS:
                scale = adapted.scale()
                step_size = StepSize(start, energy_error)
            if i == (third + plan.warmup) // 2:
                step_size.restart_average()
            if i == plan.warmup - 1 and len(path) >= _MIN_STEPS:
                step_size.current = step_size.averaged()
                length = _AUTOCORRELATIONS * step_size.current * autocorrelation_time(torch.stack(path, 1))
        else:
            step_size.current = step_size.averaged()
            divergences += ~particles.made
            squares += torch.where(particles.made, error, 0.0).square()
        if plan.is_draw(i):
            kept.append(particles.position.clone())
            log_density.append(particles.state.log_density)
        if report is not None:
            report(i, {"log_density": particles.state.log_density.mean(), "step_size": step_size.current.mean()})
    variance = squares / ((plan.steps - plan.warmup - divergences).clamp(min=1.0) * dimensions)
    return MicrocanonicalRun(
        torch.stack(kept, 1), torch.stack(log_density, 1), divergences, step_size.current, length, variance
    )


def autocorrelation_time(path: Tensor) -> Tensor:
    """Steps per effective draw of each chain, ``[K]``, the mean over the parameters of ``[K, steps, P]``."""
    times = []
    for chain in path:
        effective = diagnostics.effective_sample_size(chain.unsqueeze(0))
        times.append((len(chain) / effective).nanmean().clamp(1.0, len(chain)))
    return torch.stack(times).to(path.device)


def _unit(vector: Tensor) -> Tensor:
    unit: Tensor = vector / vector.norm(dim=1, keepdim=True)
    return unit
