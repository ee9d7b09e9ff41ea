r"""IVON: variational learning with natural gradients, at about the price of Adam."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.distributions import Normal as TorchNormal
from torch.optim import Adam, Optimizer
from typing_extensions import Unpack, override

from credo import data as data_
from credo._arguments import check_positive
from credo._devices import at_least_float32
from credo.errors import InputError, UnsupportedError
from credo.functional import Forward, Replica
from credo.likelihoods import Likelihood
from credo.methods.network import NetworkMethod
from credo.posteriors.mean_field import MeanField
from credo.priors import Normal, Prior, move_priors, resolve, to_config
from credo.selection import select
from credo.training.optimizers import STEPS
from credo.training.options import FitKeywords, with_fit_options
from credo.training.supervised import SupervisedTask, Terms

_LEARNING_RATE = 0.3
_ADAM_RATE = 1e-2
"""The learning rate of parameters that are not Bayesian, as a fraction of that of the others."""
_PRIOR_STEPS = 10
"""The number of steps that the initial Hessian counts for."""


class IVON(NetworkMethod):
    r"""A posterior N(m, σ²) with independent weights, by the improved variational online Newton method.

    It minimizes the same free energy as :class:`credo.BayesByBackprop`, by natural-gradient steps. With weights
    θ = m + σ·ε drawn once per minibatch, ĝ the gradient of the negative log likelihood per row, the prior N(m₀, s²), N
    data and δ = 1/(N·s²), a step is

        ĥ = ĝ·(θ − m)/σ²
        g ← β₁·g + (1 − β₁)·ĝ
        h ← β₂·h + (1 − β₂)·ĥ + ½·(1 − β₂)²·(h − ĥ)²/(h + δ)
        m ← m − α·c·(g/(1 − β₁ᵗ) + δ·(m − m₀))/(h + δ)
        σ ← 1/√(N·(h + δ))

    The Hessian h is estimated from the gradient and the noise, so that a step needs one backward pass; the last term of
    its update keeps h + δ positive. Parameters without a posterior, such as a learned noise level, are trained by Adam.

    Two things are not in the paper, whose α, h₀ and clipping are chosen for every task. The factor c = min(1, r/√v) of
    a parameter tensor is a trust region. In units of σ a weight moves by α times u = N·σ·ĝ, whose variance at the
    optimum would be 1 if the other weights were known; but u has the noise of all draws and of the minibatch, and
    steps of a fixed α diverge. With v the running mean of u² over the steps, as for g, and over the tensor, ĝ moves it
    by at most α·r·σ in the root mean square. The optimum is the same, as c scales likelihood and prior alike. And in
    the first fit β₂ is at most 1 − 1/(t + 10), so that h is an average of the estimates so far instead of h₀.

    :meth:`loss` is the free energy with all of its gradients, for an optimizer of your own; the steps above are those
    of :meth:`fit`. There the KL has no part in the gradient, and is computed once per epoch.

    Args:
        net: any ``nn.Module``; it is not rewritten.
        likelihood: p(y | f(x)); ``None`` follows from the target's dtype.
        prior: p(w), a :class:`credo.Normal` with one scale per parameter tensor, or a mapping from name patterns to
            them.
        bayesian: name pattern or patterns of the parameters to cover; ``"*"`` is all trainable ones but the affine
            parameters of normalization layers.
        initial_scale: σ at the start, which sets h₀ = 1/(N·σ²) − δ.
        betas: β₁ of the gradient and β₂ of the Hessian, which forgets where it started in about 1/(1 − β₂) steps. The
            default is for runs of a few thousand steps; the paper has 0.99999 for runs of hundreds of thousands.
        temperature: T; below 1 a cold posterior.
        trust_radius: r, the largest step of a parameter tensor in units of σ, divided by α; ``None``: no limit.
        clip_radius: the largest change of a weight in a step, divided by α; ``None``: no limit.
        forward: ``callable(net, x)`` for networks with unusual inputs or outputs.

    Example:
        >>> model = credo.IVON(net, credo.Categorical()).fit((x, y), epochs=20)
        >>> model.predict(x_new).epistemic

    Reference: Y. Shen, N. Daheim, B. Cong, P. Nickl, G. M. Marconi, C. Bazan, R. Yokota, I. Gurevych, D. Cremers,
    M. E. Khan, T. Möllenhoff, "Variational learning is effective for large deep networks", ICML 2024.
    """

    posterior: MeanField
    _derived = frozenset({"_replica", "_priors_here", "_drawn", "_is_newton_step"})
    _drawn: dict[str, tuple[Tensor, Tensor]]
    """σ and θ − m of the last forward pass of a training step."""
    _is_newton_step: bool

    def __init__(
        self,
        net: nn.Module,
        likelihood: Likelihood | None = None,
        prior: Prior | None = None,
        *,
        bayesian: str | Sequence[str] = "*",
        initial_scale: float = 0.01,
        betas: tuple[float, float] = (0.9, 0.99),
        temperature: float = 1.0,
        trust_radius: float | None = 1.0,
        clip_radius: float | None = None,
        forward: Forward | None = None,
    ) -> None:
        super().__init__(net, likelihood, forward)
        self.temperature = check_positive(temperature, "temperature")
        self._betas = _check_betas(betas)
        self._trust_radius = None if trust_radius is None else check_positive(trust_radius, "trust_radius")
        self._clip_radius = None if clip_radius is None else check_positive(clip_radius, "clip_radius")
        names = select(net, bayesian)
        self.prior: Prior = Normal(0.0, 1.0) if prior is None else prior
        self._priors = resolve(self.prior, {name: net.get_parameter(name).shape for name in names})
        self._moments = {name: _prior_moments(name, own) for name, own in self._priors.items()}
        self.posterior = MeanField(net, names, initial_scale)
        self._bayesian, self._initial_scale = bayesian, float(initial_scale)
        self._derive()

    @override
    def terms(self, x: Any, y: Tensor, sample_weight: Tensor | None = None) -> Terms:
        self._resolve_likelihood(y)
        if not torch.compiler.is_compiling():
            self._prepare(x)
        if self._is_newton_step:
            scale = {name: value.detach() for name, value in self.posterior.scale().items()}
            kl: Tensor = torch.zeros((), dtype=at_least_float32(self.dtype), device=self.device)
        else:
            scale, kl = self.posterior.scale(), self.kl()
        noise = {name: value * torch.randn_like(value) for name, value in scale.items()}
        weights = {}
        for name, shift in noise.items():
            mean = self.net.get_parameter(name)
            weights[name] = (mean.to(shift.dtype) + shift).to(mean.dtype)
        self._drawn = {name: (scale[name], noise[name]) for name in noise} if self._is_newton_step else {}
        output = self._replica(weights, x)
        if not torch.compiler.is_compiling():
            self._replica.sync_to_network()
        return Terms(self._weighted_nll(self.likelihood.log_prob(output, y), sample_weight), kl)

    def _prepare(self, x: Any) -> None:
        """Update the private replica; check on the first batch that the network uses the weights passed to it."""
        self._replica.sync_from_network()
        self._inspect(x, training=True)

    @override
    def kl(self) -> Tensor:
        priors = self._priors_here
        return torch.stack([self.posterior.kl_of(name, priors[name], "analytic") for name in priors]).sum()

    @with_fit_options
    def fit(self, data: Any, **options: Unpack[FitKeywords]) -> Self:
        """Train on data; a model that was fitted before continues from its weights and their scales.

        The learning rate α is 0.3 unless it is given; 1 would be a whole Newton step, and is fast in short runs. It is
        not divided by an initial Hessian, as the paper suggests for the units of stochastic gradient descent: multiply
        such a rate by h₀ + δ.
        Parameters trained by Adam have the learning rate α/100.

        Args:
            data: a DataLoader, a Dataset, or a tuple of tensors or arrays ``(x, y)`` or ``(x, y, sample_weight)``,
                rows along dim 0.
            **options: see :class:`credo.training.FitOptions`; ``optimizer`` and ``weight_decay`` do not apply.

        Returns:
            The model itself.

        Raises:
            InputError: data or options do not match the model; it is unchanged.
            DivergenceError: the loss became NaN or infinite; the model is as after its last good epoch.
        """
        options.setdefault("lr", _LEARNING_RATE)
        return super().fit(data, **options)

    def _training_task(self) -> _NewtonTask:
        return _NewtonTask(self)

    def _describe_parameter(self, name: str) -> str:
        return f"Bayesian (prior {self._priors[name]!r})"

    @override
    def extra_repr(self) -> str:
        """The prior and the settings of the steps.

        Returns:
            What ``repr`` shows beside the submodules.
        """
        return f"prior={self.prior!r}, betas={self._betas}, temperature={self.temperature:g}"

    def _own_config(self) -> dict[str, object]:
        return {
            "prior": to_config(self.prior),
            "bayesian": self._bayesian if isinstance(self._bayesian, str) else list(self._bayesian),
            "initial_scale": self._initial_scale,
            "betas": list(self._betas),
            "temperature": self.temperature,
            "trust_radius": self._trust_radius,
            "clip_radius": self._clip_radius,
        }

    def _follow_parameters(self) -> None:
        """Move the priors to the device of the parameters."""
        self._priors_here = move_priors(self._priors, self.device, at_least_float32(self.dtype))

    def _derive(self) -> None:
        """Build the replica that training runs on, and the priors on the network's device."""
        self._follow_parameters()
        self._replica = Replica(self.net, self._forward, own_buffers=False)
        self._drawn, self._is_newton_step = {}, False


class _Weight(NamedTuple):
    """A parameter with a posterior, as the optimizer sees it."""

    name: str
    mean: Tensor
    rho: Tensor
    prior_mean: float
    prior_precision: float


class _Newton(Adam):
    """The steps of IVON for weights with a posterior, and Adam's for other parameters.

    With σ² = 1/(N·(h + δ)), the update of h is σ ← σ·√(2/(1 + k²)), k = β₂ + (1 − β₂)·(N·ĝ·(θ − m) + σ²/s²). Nothing in
    a step waits for the device, and all tensors are updated in place, so that it can be captured.

    Args:
        groups: parameter groups.
        weights: the parameters with a posterior.
        lr: α.
        model: holds the noise of the last forward pass, and the settings.
    """

    def __init__(self, groups: Sequence[dict[str, Any]], weights: Sequence[_Weight], lr: float, model: IVON) -> None:
        covered = {id(tensor) for weight in weights for tensor in (weight.mean, weight.rho)}
        others = [p for group in groups for p in group["params"] if id(p) not in covered]
        split = [{"params": [weight.mean for weight in weights], "lr": lr}]
        super().__init__([*split, {"params": others, "lr": _ADAM_RATE * lr}] if others else split)
        self._weights, self._model = list(weights), model
        self._prior_steps = math.inf if model.history else float(_PRIOR_STEPS)

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
        self._take_newton_step([weight for weight in self._weights if weight.mean.grad is not None])
        for weight in self._weights:
            weight.mean.grad = None  # so that Adam passes it over
        super().step()
        return loss

    def _take_newton_step(self, weights: list[_Weight]) -> None:
        model, group = self._model, self.param_groups[0]
        (beta1, beta2), n_data = model._betas, model.n_data
        if not weights or n_data is None:
            return
        means, rhos = [w.mean for w in weights], [w.rho for w in weights]
        precisions = [w.prior_precision for w in weights]
        gradients = [w.mean.grad.to(w.rho.dtype) for w in weights]  # type: ignore[union-attr]
        scales, noise = (list(parts) for parts in zip(*(model._drawn[w.name] for w in weights), strict=True))
        momenta, squares, steps = self._state_of(weights)
        torch._foreach_add_(steps, 1.0)
        weight_of_new = (1.0 / (steps[0] + self._prior_steps)).clamp(min=1.0 - beta2)

        standardized = torch._foreach_mul(gradients, scales)
        torch._foreach_mul_(standardized, float(n_data))
        torch._foreach_lerp_(squares, [u.square().mean() for u in standardized], 1.0 - beta1)

        growth = torch._foreach_mul(gradients, noise)
        torch._foreach_mul_(growth, float(n_data))
        ratios = torch._foreach_mul(scales, scales)
        torch._foreach_mul_(ratios, precisions)
        torch._foreach_add_(growth, ratios)
        torch._foreach_sub_(growth, 1.0)
        torch._foreach_mul_(growth, weight_of_new)
        torch._foreach_add_(growth, 1.0)
        torch._foreach_mul_(growth, growth)
        torch._foreach_add_(growth, 1.0)
        torch._foreach_sqrt_(growth)
        torch._foreach_mul_(scales, math.sqrt(2.0))
        torch._foreach_div_(scales, growth)
        torch._foreach_copy_(rhos, _inverse_softplus(scales))

        debiasing = 1.0 / (1.0 - beta1 ** steps[0])
        torch._foreach_lerp_(momenta, gradients, 1.0 - beta1)
        changes = torch._foreach_mul(momenta, n_data * debiasing)
        centered = torch._foreach_sub([w.mean.to(w.rho.dtype) for w in weights], [w.prior_mean for w in weights])
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
        torch._foreach_mul_(changes, group["lr"])
        torch._foreach_sub_(means, [c.to(m.dtype) for c, m in zip(changes, means, strict=True)])

    def _state_of(self, weights: Sequence[_Weight]) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
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


class _NewtonTask(SupervisedTask[IVON]):
    """Takes the steps of IVON."""

    def check_keywords(self, keywords: FitKeywords) -> None:
        """Raise ``InputError`` for another optimizer, or weight decay beside that of the prior."""
        if keywords.get("optimizer") is not None:
            raise InputError("IVON is an optimizer of its own: leave out optimizer=, or use credo.BayesByBackprop")
        if keywords.get("weight_decay"):
            raise InputError(
                "the prior of IVON is its weight decay: pass prior=credo.Normal(0, s) instead of weight_decay"
            )
        if keywords.get("accumulate", 1) != 1:
            raise InputError("IVON draws one set of weights per step: leave accumulate out")

    def check_device_count(self, devices: int) -> None:
        """Raise ``InputError`` for several processes, whose noise would have to be combined."""
        if devices > 1:
            raise InputError("IVON trains in one process: devices=1")

    def default_optimizer(self, groups: list[dict[str, Any]], lr: float) -> Optimizer:
        """The steps of IVON."""
        model, rhos = self.model, self.model.posterior.scale_parameters()
        means = {name: model.net.get_parameter(name) for name in model.posterior.names()}
        weights = [_Weight(name, mean, rhos[mean], *model._moments[name]) for name, mean in means.items()]
        return _Newton(groups, weights, lr, model)

    def default_epochs(self, batches: int | None) -> int:
        """Enough for 2,000 steps, in which the Hessian becomes known."""
        minimum = super().default_epochs(batches)
        return minimum if not batches else max(minimum, math.ceil(STEPS / batches))

    def training_step(
        self, loss: Callable[..., Tensor], batch: data_.Batch, n_data: int, arguments: Mapping[str, Any]
    ) -> Tensor:
        """The negative log likelihood per row under drawn weights, whose noise is kept for the step."""
        self.model._is_newton_step = True
        try:
            return super().training_step(loss, batch, n_data, arguments)
        finally:
            self.model._is_newton_step = False

    def on_step_end(self, optimizer: str) -> None:
        """Forget the noise."""
        self.model._drawn = {}

    @torch.no_grad()
    def epoch_metrics(self, means: Mapping[str, float]) -> dict[str, float]:
        """The KL is that of the end of the epoch."""
        return super().epoch_metrics({**means, "kl": float(self.model.kl())})


def _inverse_softplus(scales: list[Tensor]) -> list[Tensor]:
    """ρ = σ + log(1 − e^(−σ)), so that softplus(ρ) = σ."""
    rhos = list(torch._foreach_neg(scales))
    torch._foreach_expm1_(rhos)
    torch._foreach_neg_(rhos)
    torch._foreach_log_(rhos)
    torch._foreach_add_(rhos, scales)
    return rhos


def _check_betas(betas: object) -> tuple[float, float]:
    if not isinstance(betas, tuple | list) or len(betas) != 2 or not all(0.0 <= beta < 1.0 for beta in betas):
        raise InputError(f"betas must be two numbers from 0 to below 1, got {betas!r}")
    return float(betas[0]), float(betas[1])


def _prior_moments(name: str, prior: Distribution) -> tuple[float, float]:
    """The mean m₀ and the precision 1/s² of a Gaussian prior."""
    if not isinstance(prior, TorchNormal):
        raise UnsupportedError(
            f"the prior of {name!r} is a {type(prior).__name__}, but IVON needs a Gaussian one: use credo.Normal"
        )
    if prior.scale.numel() != 1 or prior.loc.numel() != 1:
        raise UnsupportedError(f"the prior of {name!r} must have one mean and one scale for all weights of the tensor")
    return float(prior.loc), 1.0 / float(prior.scale) ** 2
