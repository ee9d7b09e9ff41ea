r"""Hamiltonian Monte Carlo of many chains in step: transitions, and the adaptation of their settings in warm-up.

In coordinates scaled by the posterior standard deviations s, the Hamiltonian is H(q, z) = −log p(q) + ½‖z‖² with
q̇ = s·z and ż = s·∇log p(q), integrated by the leapfrog scheme with step ε.

Warm-up adapts, per chain, the step size ε (dual averaging of the acceptance rate; Hoffman & Gelman 2014) and the
scales s (from the variances of draws and gradients in windows of doubling length), and for all chains together the
length of trajectories, by stochastic gradient ascent on ChEES (Hoffman, Radul & Sountsov 2021),

    ChEES = ¼·E[(‖q' − E q‖² − ‖q − E q‖²)²],

the expected change of the squared distance from the center. All chains make the same number of steps, so that they
run as one batch; No-U-Turn trees would not. The number is uniform between 1 and its maximum, by a quasi-random
sequence, so that no period of the dynamics can trap a chain. The center of a chain is the running mean of its own
draws, not that of all chains: the chains of a network are in different modes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from credo.methods._flat_stack import Evaluation, Target
from credo.methods._log_joint import Refresh
from credo.methods._scales import RunningScale
from credo.methods._streams import Streams

_DIVERGENT = 1000.0
_FIRST_STEP_SIZE = 0.1
_FAST_START, _FIRST_WINDOW, _FAST_END = 75, 25, 50
_STEPS_AT_START = 16


class Progress(NamedTuple):
    """What happened in one transition of all chains.

    Attributes:
        iteration: its number, from 0; the first ``warmup`` ones are the warm-up.
        log_density: mean over chains after the transition.
        acceptance: mean acceptance probability.
        step_size: geometric mean of ε.
        steps: leapfrog steps.
    """

    iteration: int
    log_density: float
    acceptance: float
    step_size: float
    steps: int


class HamiltonianRun(NamedTuple):
    """The result of sampling.

    Attributes:
        draws: ``[K, D, P]``.
        log_density: ``[K, D]``, float64.
        acceptance: mean acceptance probability after warm-up, ``[K]``.
        divergences: number of divergent transitions after warm-up, ``[K]``.
        step_size: ε, ``[K]``.
        max_steps: the largest number of leapfrog steps of a trajectory.
    """

    draws: Tensor
    log_density: Tensor
    acceptance: Tensor
    divergences: Tensor
    step_size: Tensor
    max_steps: int


class Transition(NamedTuple):
    """One transition: positions before and proposed, momentum there; acceptance; energy errors over 1,000 (``[K]``)."""

    start: Tensor
    proposal: Tensor
    momentum: Tensor
    acceptance: Tensor
    divergent: Tensor


class Chains:
    """The positions of K chains, and their transitions.

    Args:
        target: the log density.
        start: the first positions, ``[K, P]``.
        seed: fixes the random numbers of each chain, see :class:`Streams`.
        refresh: changes what the target depends on beside the position, between transitions.
    """

    def __init__(
        self, target: Target, start: Tensor, seed: int | Sequence[int], refresh: Refresh | None = None
    ) -> None:
        self.target, self._refresh = target, refresh
        self.position = start.detach().clone()
        self.state = target(self.position)
        self._streams = Streams(start.device, seed, len(start))

    def transition(self, step_size: Tensor, scale: Tensor, steps: int) -> Transition:
        """Propose the end of a trajectory of ``steps`` leapfrog steps; accept it with probability min(1, e^−ΔH).

        Args:
            step_size: ε, ``[K]``.
            scale: s, ``[K, P]``.
            steps: the number of leapfrog steps.
        """
        start, size = self.position, self.position.shape[1]
        if self._refresh is not None:
            self.state = self._refresh(self.position, self.state)
        momentum, uniform = self._streams.normal(size, start.dtype), self._streams.uniform()
        before = energy(self.state, momentum)
        proposal, ended, momentum = leapfrog(self.target, start, self.state, momentum, step_size, scale, steps)
        log_ratio = (before - energy(ended, momentum)).nan_to_num(nan=-math.inf, posinf=-math.inf)
        accepted = (uniform.log() < log_ratio).unsqueeze(1)
        self.position = torch.where(accepted, proposal, start)
        self.state = Evaluation(
            torch.where(accepted.squeeze(1), ended.log_density, self.state.log_density),
            torch.where(accepted, ended.gradient, self.state.gradient),
        )
        return Transition(start, proposal, momentum, log_ratio.clamp_max(0.0).exp(), log_ratio < -_DIVERGENT)


def leapfrog(
    target: Target, position: Tensor, state: Evaluation, momentum: Tensor, step_size: Tensor, scale: Tensor, steps: int
) -> tuple[Tensor, Evaluation, Tensor]:
    """Follow the dynamics for ``steps`` steps; reversible, and preserves volume.

    Args:
        target: the log density.
        position: q, ``[K, P]``.
        state: the target at q.
        momentum: z, ``[K, P]``.
        step_size: ε, ``[K]``.
        scale: s, ``[K, P]``.
        steps: their number.

    Returns:
        Position, target and momentum at the end.
    """
    stride = step_size.to(position.dtype).unsqueeze(1) * scale
    momentum = torch.addcmul(momentum, stride, state.gradient, value=0.5)
    for i in range(steps):
        position = torch.addcmul(position, stride, momentum)
        state = target(position)
        momentum = torch.addcmul(momentum, stride, state.gradient, value=1.0 if i < steps - 1 else 0.5)
    return position, state, momentum


def energy(state: Evaluation, momentum: Tensor) -> Tensor:
    """H(q, z) = −log p(q) + ½‖z‖², ``[K]``, in float64."""
    return 0.5 * momentum.double().square().sum(1) - state.log_density


class DualAveraging:
    """Step sizes whose acceptance rate approaches a target, by Nesterov's dual averaging of log ε.

    Args:
        step_size: where to start, ``[K]``.
        acceptance: the target.
    """

    def __init__(self, step_size: Tensor, acceptance: float) -> None:
        self._target, self._center = acceptance, step_size.log()
        self._error = torch.zeros_like(step_size)
        self._mean = torch.zeros_like(step_size)
        self._count = 0
        self.current = step_size
        """ε for the next transition, ``[K]``."""

    def update(self, acceptance: Tensor) -> None:
        """Record the acceptance probabilities of a transition, ``[K]``."""
        self._count += 1
        t = self._count
        self._error += (self._target - acceptance - self._error) / (t + 10.0)
        log_step = self._center - math.sqrt(t) / 0.05 * self._error
        self._mean += t**-0.75 * (log_step - self._mean)
        self.current = log_step.exp()

    def averaged(self) -> Tensor:
        """ε for use after warm-up, ``[K]``."""
        return self._mean.exp() if self._count else self.current


class TrajectoryLength:
    """The length of trajectories that maximizes ChEES, by Adam on its logarithm; the same for all chains.

    It starts at π, half a period of a Gaussian whose standard deviations are known.

    Args:
        position: the first positions, ``[K, P]``.
    """

    def __init__(self, position: Tensor) -> None:
        self._center, self._count = position.clone(), 0
        self._square, self._log, self._mean = 0.0, math.log(math.pi), math.log(math.pi)

    @property
    def current(self) -> float:
        """The longest trajectory, in units of the posterior standard deviations."""
        return math.exp(self._log)

    def averaged(self) -> float:
        """The length for use after warm-up: a mean that gives more weight to late iterations."""
        return math.exp(self._mean)

    def update(self, move: Transition, position: Tensor, scale: Tensor, length: Tensor, maximum: float) -> None:
        """One step of gradient ascent.

        Args:
            move: the transition.
            position: where the chains are after it, ``[K, P]``.
            scale: s, ``[K, P]``.
            length: the lengths of the trajectories of this transition, ``[K]``.
            maximum: the length from which on it does not grow.
        """
        self._count += 1
        self._center += (position - self._center) * (2.0 / (self._count + 1.0))
        before, after = ((q - self._center) / scale for q in (move.start, move.proposal))
        change = (after.square().sum(1) - before.square().sum(1)).double()
        gradient = length.double() * change * (after * move.momentum).sum(1).double()
        weight = torch.where(gradient.isfinite(), move.acceptance, 0.0)
        total = float(weight.sum())
        if total > 0.0:
            slope = float((gradient.nan_to_num(0.0, 0.0, 0.0) * weight).sum()) / total
            self._square += (1.0 - 0.95) * (slope * slope - self._square)
            corrected = self._square / (1.0 - 0.95**self._count)
            if slope < 0.0 or self.current < maximum:
                self._log += 0.025 * slope / (math.sqrt(corrected) + 1e-12)
        self._mean += (self._log - self._mean) * min(1.0, 8.0 / (self._count + 7.0))


def sample(
    target: Target,
    start: Tensor,
    *,
    warmup: int,
    draws: int,
    seed: int | Sequence[int],
    scale: Tensor | None = None,
    acceptance: float = 0.8,
    steps: int | None = None,
    largest_steps: int = 256,
    report: Callable[[Progress], None] | None = None,
    refresh: Refresh | None = None,
) -> HamiltonianRun:
    """Run all chains.

    Args:
        target: the log density.
        start: the first positions, ``[K, P]``.
        warmup: transitions that adapt the settings, and are not kept.
        draws: transitions that are kept.
        seed: fixes the random numbers, see :class:`Streams`.
        scale: s at the start, ``[K, P]``; ``None``: 1.
        acceptance: the acceptance rate that step sizes are adapted to.
        steps: the largest number of leapfrog steps of a trajectory; ``None``: adapted.
        largest_steps: no adapted number is above it.
        report: called after every transition.
        refresh: called before every transition, see :class:`Chains`.

    Returns:
        Draws and statistics.
    """
    chains = Chains(target, start, seed, refresh)
    copies = len(start)
    scale = torch.ones_like(start) if scale is None else scale
    tuner = DualAveraging(torch.full((copies,), _FIRST_STEP_SIZE, dtype=torch.float64, device=start.device), acceptance)
    length, adapted = TrajectoryLength(start), RunningScale(start)
    first, ends = windows(warmup)
    kept = start.new_empty(copies, draws, start.shape[1])
    log_density = torch.empty(copies, draws, dtype=torch.float64, device=start.device)
    total = torch.zeros(copies, dtype=torch.float64, device=start.device)
    divergences = torch.zeros(copies, dtype=torch.int64, device=start.device)
    maximum = steps or 1
    for i in range(warmup + draws):
        warming = i < warmup
        if i == warmup:
            tuner.current = tuner.averaged()
        step_size = tuner.current
        typical = float(step_size.log().mean().exp())
        if steps is None and i <= warmup:
            wanted = (length.current if warming else length.averaged()) / typical
            maximum = max(1, min(math.ceil(wanted), largest_steps if i >= first else _STEPS_AT_START))
        number = max(1, math.ceil(van_der_corput(i + 1) * maximum))
        move = chains.transition(step_size, scale, number)
        if warming:
            tuner.update(move.acceptance)
            if first <= i < ends[-1]:
                adapted.update(chains.position, chains.state.gradient)
            if i >= first:
                length.update(move, chains.position, scale, number * step_size, largest_steps * typical)
            if i + 1 in ends:
                scale, adapted = adapted.scale(), RunningScale(start)
                tuner = DualAveraging(tuner.averaged(), acceptance)
        else:
            kept[:, i - warmup], log_density[:, i - warmup] = chains.position, chains.state.log_density
            total += move.acceptance
            divergences += move.divergent
        if report is not None:
            mean_density = float(chains.state.log_density.mean())
            report(Progress(i, mean_density, float(move.acceptance.mean()), typical, number))
    return HamiltonianRun(kept, log_density, total / max(draws, 1), divergences, tuner.current, maximum)


def windows(warmup: int) -> tuple[int, list[int]]:
    """The first iteration of the windows in which scales are estimated, and their ends; as in Stan.

    A first part lets chains reach the bulk, a last one adapts the step size to the last scales; between them windows
    double, and the last takes what is left. A warm-up below 150 has one window, after 15 % and before the last 10 % (at
    least 10); one below 50 adapts the step size alone.
    """
    if warmup < 50:
        return warmup, []
    first, size, last = _FAST_START, _FIRST_WINDOW, warmup - _FAST_END
    if warmup < _FAST_START + _FIRST_WINDOW + _FAST_END:
        first, last = int(0.15 * warmup), warmup - max(10, int(0.1 * warmup))
        return first, [last]
    ends, end = [], first
    while end < last:
        end = last if end + 3 * size > last else end + size
        ends.append(end)
        size *= 2
    return first, ends


def van_der_corput(i: int) -> float:
    """Number ``i`` of a quasi-random sequence in (0, 1): the binary digits of i mirrored at the point."""
    return int(f"{i:b}"[::-1], 2) / (1 << i.bit_length())
