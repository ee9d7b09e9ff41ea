"""Whether a variational posterior has arrived, judged at the end of its training."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from credo.training.optimizers import STEPS

if TYPE_CHECKING:
    from credo.methods.bayes_by_backprop import BayesByBackprop

_UNMOVED = 0.25
"""Change of log σ, in the median, below which a posterior counts as unmoved."""
_RISE = 0.1
"""Gain of the ELBO, relative to its size, that counts as still rising."""
_FEW_STEPS = 1000
"""In fewer, a learning rate that falls to 0 ends the rise before the posterior does."""
_FEWEST_EPOCHS = 5


def convergence_notes(model: BayesByBackprop) -> list[str]:
    """Sentences on what speaks against convergence; none where nothing does.

    Args:
        model: the method, after ``fit``.

    Returns:
        What was found, each with what to do.
    """
    notes = []
    scale = torch.cat([s.detach().flatten() for s in model.posterior.scale().values()])
    scale = scale[scale > 0]  # those of pruned weights are 0
    steps = model._steps_of_run
    longer = "train longer" if not steps else f"train longer, epochs={_longer(len(model.history), steps)}"
    if len(scale) and float((scale / model.initial_scale).log().abs().median()) < _UNMOVED:
        notes.append(
            f"the posterior has hardly moved from where it started: σ is {float(scale.median()):.3g} in the median, "
            f"initial_scale {model.initial_scale:.3g}, so the epistemic part is what was put in; {longer}, or raise lr"
        )
    rise = _relative_rise([entry["elbo"] for entry in model.history], few_steps=bool(steps and steps < _FEW_STEPS))
    if rise > _RISE:
        notes.append(
            f"the ELBO was still rising when training ended, by {rise:.0%} lately; {longer} for a posterior that has "
            "converged"
        )
    return notes


def _relative_rise(elbo: list[float], few_steps: bool) -> float:
    """How much the bound rose at the end: over the last fifth of the epochs, or the last half of few steps."""
    if len(elbo) < _FEWEST_EPOCHS:
        return 0.0
    length = max(1, len(elbo) // 5)
    end = sum(elbo[-length:]) / length
    earlier = elbo[len(elbo) // 2 - 1 : len(elbo) // 2] if few_steps else elbo[-2 * length : -length]
    return (end - sum(earlier) / len(earlier)) / max(abs(end), 1e-12)


def _longer(epochs: int, steps: int) -> int:
    """Twice as many epochs, or as many as enough steps take."""
    return max(2 * epochs, math.ceil(STEPS * epochs / steps))
