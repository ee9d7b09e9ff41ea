r"""Adam in the posterior's own units.

The distance between two Gaussians N(μ, σ²) that are close together is that of the Fisher metric, dμ²/σ² + 2·(d log σ)²:
how far a mean may move in one step, and how much a scale may change, is a matter of σ, not of the network. With Adam's
moments m̂ and v̂ of the gradient, the learning rate η, σ = softplus(ρ) and one relative step r for both,

    Δμ = −max(η, r·σ)·m̂/(√v̂ + ε),      Δρ = −max(η, r)·m̂/(√v̂ + ε).

A weight that matters, whose σ is small, moves by η as under plain Adam; one that does not, whose σ has grown, follows
at the pace of its σ. Otherwise a posterior that starts at σ = 0.01 takes thousands of steps to a prior of scale 1.

Reference: M. E. Khan, D. Nielsen, V. Tangkaratt, W. Lin, Y. Gal, A. Srivastava, "Fast and scalable Bayesian deep
learning by weight-perturbation in Adam", ICML 2018, whose natural-gradient steps are measured in units of σ² instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim import Optimizer

RELATIVE_STEP, STEPS = 0.1, 2000
"""r for runs of up to so many steps; chosen among 0.03, 0.1, 0.3 on validation data (``benchmarks/convergence.py``)."""


def relative_step(steps: int | None) -> float:
    """r for a run of ``steps``: longer ones go as far in smaller steps, so that they wander less."""
    return RELATIVE_STEP * min(1.0, STEPS / max(steps or STEPS, 1))


def adam(groups: Iterable[dict[str, Any]], lr: float) -> Optimizer:
    """Adam, fused where the parameters' device has a fused kernel."""
    groups = list(groups)
    parameters = [p for group in groups for p in group["params"]]
    return torch.optim.Adam(groups, lr=lr, fused=_can_fuse(parameters))


class NaturalAdam(torch.optim.Adam):
    """Adam whose steps are at least a tenth of the posterior's standard deviation at the start of the schedule.

    Args:
        groups: parameter groups, in which means and scales stand together or apart.
        scales: ρ of every mean.
        lr: learning rate, the smallest step.
        relative_step: r; see :func:`relative_step` for the default of a run.
    """

    def __init__(
        self,
        groups: Sequence[dict[str, Any]],
        scales: Mapping[Tensor, Tensor],
        lr: float = 1e-3,
        relative_step: float = RELATIVE_STEP,
    ) -> None:
        of_scales = {id(rho) for rho in scales.values()}
        split: list[dict[str, Any]] = []
        for group in groups:
            own = {**group, "lr": group.get("lr", lr)}
            rhos = {**own, "lr": max(own["lr"], relative_step)}
            split.append({**own, "params": [p for p in group["params"] if id(p) not in of_scales]})
            split.append({**rhos, "params": [p for p in group["params"] if id(p) in of_scales]})
        split = [group for group in split if group["params"]]
        parameters = [p for group in split for p in group["params"]]
        super().__init__(split, lr=lr, fused=_can_fuse(parameters))
        self._steps = [
            (mean, scales[mean], relative_step / group["lr"])
            for group in split
            for mean in group["params"]
            if mean in scales
        ]

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step of Adam, stretched to the posterior's units where they are larger."""
        before = [mean.clone() for mean, _, _ in self._steps]
        loss: float | None = super().step(closure)
        for (mean, rho, ratio), old in zip(self._steps, before, strict=True):
            stretch = F.softplus(rho).mul_(ratio).clamp_min_(1.0).to(mean.dtype)
            torch.lerp(old, mean, stretch, out=mean)
        return loss


def _can_fuse(parameters: Iterable[Tensor]) -> bool:
    return all(p.device.type in ("cpu", "cuda") and p.is_floating_point() for p in parameters)
