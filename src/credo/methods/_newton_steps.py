"""The steps of IVON: natural-gradient steps of the means and of the scales of a Gaussian posterior."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Distribution, Normal
from torch.optim import Adam

from credo import kernels
from credo.errors import UnsupportedError
from credo.hierarchical import HierarchicalNormal
from credo.methods._newton_kernels import NewtonSettings, NewtonState, newton_places, newton_step
from credo.posteriors.mean_field import MeanField
from credo.priors import AdaptiveNormal
from credo.training.warmup import Warmup

_ADAM_RATE = 1.0 / 30.0
"""The learning rate of parameters that are not Bayesian, as a fraction of that of the others."""
_PRIOR_STEPS = 10
"""The number of steps that the initial Hessian counts for."""


class Noise(NamedTuple):
    """The noise of one parameter tensor in the last forward pass.

    Attributes:
        scale: σ; ``None``: weights were drawn by a kernel that did not keep it.
        shift: θ − m, if weights were drawn; ``None``: the noise was that of outputs, and ρ has a gradient.
    """

    scale: Tensor | None
    shift: Tensor | None


class NewtonModel(Protocol):
    """What the steps use of a model."""

    history: list[dict[str, float]]
    n_data: int | None
    _betas: tuple[float, float]
    _trust_radius: float | None
    _clip_radius: float | None
    _noise: dict[str, Noise]
    _rows: int
    _priors_here: dict[str, Distribution]
    _warmup: Warmup
    posterior: MeanField


class Weight(NamedTuple):
    """A parameter with a posterior, as the optimizer sees it."""

    name: str
    mean: Tensor
    rho: Tensor


class NewtonSteps(Adam):
    """The steps of IVON for weights with a posterior, and Adam's for other parameters.

    With σ² = c/(N·(h + c·δ)), the update of h is σ ← σ·√(2/(1 + k²)), k = β₂ + (1 − β₂)·(N·σ²·ĥ/c + σ²/s²). When the
    weight of the KL rises from c to c' for the next step, h stays as it is, and 1/σ² ← r/σ² + (1 − r)/s², r = c/c'.
    Nothing in a step waits for the device, and all tensors are updated in place, so that it can be captured.

    Args:
        groups: parameter groups.
        weights: the parameters with a posterior.
        lr: α.
        model: holds the noise of the last forward pass, the priors and the settings.
    """

    def __init__(
        self, groups: Sequence[dict[str, Any]], weights: Sequence[Weight], lr: float, model: NewtonModel
    ) -> None:
        covered = {id(tensor) for weight in weights for tensor in (weight.mean, weight.rho)}
        others = [p for group in groups for p in group["params"] if id(p) not in covered]
        split = [{"params": [weight.mean for weight in weights], "lr": lr}]
        super().__init__([*split, {"params": others, "lr": _ADAM_RATE * lr}] if others else split)
        self._weights, self._model = list(weights), model
        self._prior_steps = math.inf if model.history else float(_PRIOR_STEPS)
        self._constants = _constant_moments([model._priors_here[weight.name] for weight in weights])
        self._is_warming = bool(model._warmup.steps < model._warmup.length)
        self._places: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one step.

        Args:
            closure: evaluates the loss again, as for any torch optimizer.

        Returns:
            The loss, if a closure was given.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._take_newton_step([i for i, weight in enumerate(self._weights) if weight.mean.grad is not None])
        for weight in self._weights:
            weight.mean.grad, weight.rho.grad = None, None  # so that Adam passes it over
        super().step()
        return loss

    def _take_newton_step(self, present: list[int]) -> None:
        model, n_data = self._model, self._model.n_data
        if not present or n_data is None:
            return
        weights = [self._weights[i] for i in present]
        if self._take_fused_step(present, weights, n_data):
            return
        beta1, beta2 = self._betas_for(n_data)
        means, rhos = [w.mean for w in weights], [w.rho for w in weights]
        wide = [model.posterior._under(model._priors_here[w.name], w.name, w.mean.to(w.rho.dtype)) for w in weights]
        gradients = [w.mean.grad.to(w.rho.dtype) for w in weights]  # type: ignore[union-attr]
        noise = [model._noise[w.name] for w in weights]
        scales = [F.softplus(w.rho) if o.scale is None else o.scale for w, o in zip(weights, noise, strict=True)]
        centers, precisions = self._prior_moments(present, wide, scales)
        momenta, squares, steps = self._state_of(weights)
        torch._foreach_add_(steps, 1.0)
        weight_of_new = (1.0 / (steps[0] + self._prior_steps)).clamp(min=1.0 - beta2)
        now, following = self._kl_weights()
        count = n_data / now

        standardized = torch._foreach_mul(gradients, scales)
        torch._foreach_mul_(standardized, count)
        torch._foreach_lerp_(squares, [u.square().mean() for u in standardized], 1.0 - beta1)

        growth = _scaled_curvatures(gradients, rhos, scales, noise)
        torch._foreach_mul_(growth, count)
        ratios = torch._foreach_mul(scales, scales)
        torch._foreach_mul_(ratios, precisions)
        torch._foreach_add_(growth, ratios)
        torch._foreach_sub_(growth, 1.0)
        torch._foreach_mul_(growth, weight_of_new)
        torch._foreach_add_(growth, 1.0)
        torch._foreach_mul_(growth, growth)
        torch._foreach_add_(growth, 1.0)
        if isinstance(now, Tensor):
            torch._foreach_mul_(growth, now / following)
            torch._foreach_mul_(ratios, 2.0 - 2.0 * now / following)
            torch._foreach_add_(growth, ratios)
        torch._foreach_sqrt_(growth)
        torch._foreach_mul_(scales, math.sqrt(2.0))
        torch._foreach_div_(scales, growth)
        torch._foreach_copy_(rhos, _inverse_softplus(scales))

        debiasing = 1.0 / (1.0 - beta1 ** steps[0])
        torch._foreach_lerp_(momenta, gradients, 1.0 - beta1)
        changes = torch._foreach_mul(momenta, n_data / following * debiasing)
        centered = torch._foreach_sub(wide, centers)
        torch._foreach_mul_(centered, precisions)
        torch._foreach_add_(changes, centered)
        torch._foreach_mul_(changes, scales)
        torch._foreach_mul_(changes, scales)
        if model._trust_radius is not None:
            limits = [(model._trust_radius / (square * debiasing).sqrt()).clamp(max=1.0) for square in squares]
            torch._foreach_mul_(changes, limits)
        if model._clip_radius is not None:
            torch._foreach_clamp_max_(changes, model._clip_radius)
            torch._foreach_clamp_min_(changes, -model._clip_radius)
        torch._foreach_mul_(changes, self._rate(n_data, now))
        torch._foreach_sub_(means, [c.to(m.dtype) for c, m in zip(changes, means, strict=True)])

    def _take_fused_step(self, present: list[int], weights: list[Weight], n_data: int) -> bool:
        """Take the step by kernels; ``False`` where they cannot."""
        model = self._model
        noises = [model._noise[w.name].shift for w in weights]
        noises = [w.rho.grad if noise is None else noise for w, noise in zip(weights, noises, strict=True)]
        tensors = [t for w, noise in zip(weights, noises, strict=True) for t in (w.mean, w.rho, w.mean.grad, noise)]
        if self._constants is None or any(t is None for t in tensors) or not kernels.accepts(tensors):  # type: ignore[arg-type]
            return False
        if any(model.posterior._under(model._priors_here[w.name], w.name, w.mean) is not w.mean for w in weights):
            return False  # a padding vector
        momenta, squares, steps = self._state_of(weights)
        torch._foreach_add_(steps, 1.0)
        lr, device = self._rate(n_data, self._kl_weights()[0]), squares[0].device
        settings = NewtonSettings(
            lr if isinstance(lr, Tensor) else torch.full((), lr, device=device),
            steps[0],
            model._warmup.steps,
            model._warmup.length,
            n_data,
            self._betas_for(n_data),
            self._prior_steps,
            math.inf if model._trust_radius is None else model._trust_radius,
            math.inf if model._clip_radius is None else model._clip_radius,
        )
        states = [
            NewtonState(w.mean, w.rho, w.mean.grad, noise, model._noise[w.name].shift is not None, momentum, *prior)  # type: ignore[arg-type]
            for w, noise, momentum, prior in zip(
                weights, noises, momenta, [self._constants[i] for i in present], strict=True
            )
        ]
        if tuple(present) not in self._places:
            self._places[tuple(present)] = newton_places([w.rho for w in weights])
        together = torch.stack(squares)
        newton_step(states, together, self._places[tuple(present)], settings)
        torch._foreach_copy_(squares, together.unbind())
        return True

    def _betas_for(self, n_data: int) -> tuple[float, float]:
        """β₁ and β₂, raised so that a minibatch counts in h for no more than its share of the data."""
        beta1, beta2 = self._model._betas
        return beta1, max(beta2, 1.0 - self._model._rows / n_data)

    def _rate(self, n_data: int, kl_weight: float | Tensor) -> float | Tensor:
        """α, lowered so that the noise of minibatches in the means has at most the variance σ²/2."""
        lr: float | Tensor = self.param_groups[0]["lr"]
        if self._model._trust_radius is None:
            return lr
        limit = (self._model._rows / n_data / kl_weight) ** 0.5 / self._model._trust_radius
        if isinstance(limit, Tensor):
            return limit.clamp(max=lr)
        return lr.clamp(max=limit) if isinstance(lr, Tensor) else min(lr, limit)

    def _kl_weights(self) -> tuple[Tensor, Tensor] | tuple[float, float]:
        """c of this step and of the next one, at least one step's worth; numbers where there is no warm-up."""
        if not self._is_warming:
            return 1.0, 1.0
        done, length = self._model._warmup.steps, self._model._warmup.length
        return (done.clamp(min=1) / length).clamp(max=1.0), ((done + 1) / length).clamp(max=1.0)

    def _prior_moments(self, present: list[int], means: list[Tensor], scales: list[Tensor]) -> tuple[Any, Any]:
        """m₀ and 1/s² of the priors: lists of numbers, or of tensors that broadcast against the weights."""
        if self._constants is not None:
            return [self._constants[i][0] for i in present], [self._constants[i][1] for i in present]
        centers, precisions = [], []
        for i, mean, scale in zip(present, means, scales, strict=True):
            prior = self._model._priors_here[self._weights[i].name]
            if isinstance(prior, AdaptiveNormal | HierarchicalNormal):
                centers.append(torch.zeros_like(mean))
                precisions.append(prior.best_scale(mean, scale).pow(-2))
            else:
                assert isinstance(prior, Normal)
                centers.append(prior.loc)
                precisions.append(prior.scale.pow(-2))
        return centers, precisions

    def _state_of(self, weights: Sequence[Weight]) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """The averages of gradients, those of their squares in units of σ, and the numbers of steps, zero at first."""
        for weight in weights:
            if not self.state[weight.mean]:
                self.state[weight.mean] = {
                    "momentum": torch.zeros_like(weight.rho),
                    "square": torch.zeros((), dtype=weight.rho.dtype, device=weight.rho.device),
                    "step": torch.zeros((), dtype=torch.float32, device=weight.rho.device),
                }
        states = [self.state[weight.mean] for weight in weights]
        momenta, squares, steps = ([state[name] for state in states] for name in ("momentum", "square", "step"))
        return momenta, squares, steps


def check_gaussian(name: str, prior: Distribution) -> None:
    """Raise ``UnsupportedError`` if the prior of a parameter has no precision."""
    if not isinstance(prior, Normal | AdaptiveNormal | HierarchicalNormal):
        raise UnsupportedError(
            f"the prior of {name!r} is a {type(prior).__name__}, but IVON needs a Gaussian one: use credo.Normal, "
            "credo.AdaptiveNormal or credo.HierarchicalNormal"
        )


def _constant_moments(priors: Sequence[Distribution]) -> list[tuple[float, float]] | None:
    """m₀ and 1/s² as numbers, which need no tensors in a step; ``None`` if a prior is learned or has several."""
    if not all(isinstance(prior, Normal) and prior.loc.numel() == prior.scale.numel() == 1 for prior in priors):
        return None
    return [(float(prior.loc), float(prior.scale) ** -2) for prior in priors if isinstance(prior, Normal)]


def _scaled_curvatures(
    gradients: list[Tensor], rhos: list[Tensor], scales: list[Tensor], noise: list[Noise]
) -> list[Tensor]:
    """σ²·ĥ: ĝ·(θ − m) where weights were drawn, else σ·∂ℓ/∂σ, from the gradient of ρ and dσ/dρ = 1 − e^(−σ)."""
    drawn = {i: own.shift for i, own in enumerate(noise) if own.shift is not None}
    products = torch._foreach_mul([gradients[i] for i in drawn], list(drawn.values())) if drawn else ()
    found = dict(zip(drawn, products, strict=True))
    for i, scale in enumerate(scales):
        if noise[i].shift is None:
            slope = rhos[i].grad
            found[i] = torch.zeros_like(scale) if slope is None else scale * slope / -torch.expm1(-scale)
    return [found[i] for i in range(len(noise))]


def _inverse_softplus(scales: list[Tensor]) -> list[Tensor]:
    """ρ = σ + log(1 − e^(−σ)), so that softplus(ρ) = σ."""
    rhos = list(torch._foreach_neg(scales))
    torch._foreach_expm1_(rhos)
    torch._foreach_neg_(rhos)
    torch._foreach_log_(rhos)
    torch._foreach_add_(rhos, scales)
    return rhos
