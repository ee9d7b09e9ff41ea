r"""IVON: variational learning with natural gradients, at about the price of Adam."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import Unpack, override

from credo import data as data_
from credo import kernels
from credo._arguments import check_integer, check_option, check_positive
from credo._devices import at_least_float32
from credo.errors import InputError
from credo.functional import Forward
from credo.likelihoods import Likelihood
from credo.methods._free_energy import FreeEnergyTask
from credo.methods._newton_kernels import shifted_weights
from credo.methods._newton_steps import NewtonSteps, Noise, Weight, check_gaussian
from credo.methods._noisy_forward import ESTIMATORS, NoisyForward
from credo.methods.network import NetworkMethod
from credo.posteriors.mean_field import MeanField
from credo.priors import Normal, Prior, move_priors, resolve, to_config
from credo.selection import as_json, select
from credo.training.options import FitKeywords, with_fit_options
from credo.training.supervised import Terms
from credo.training.warmup import Warmup

_LEARNING_RATE = 0.3
_LARGEST_LAYER = 2**16
"""The weights of a layer up to which ``estimator="auto"`` draws outputs instead: its arithmetic costs little."""


class IVON(NetworkMethod):
    r"""A posterior N(m, σ²) with independent weights, by the improved variational online Newton method.

    It minimizes the same free energy as :class:`credo.BayesByBackprop`, by natural-gradient steps. With weights
    θ = m + σ·ε drawn once per minibatch, ĝ the gradient of the negative log likelihood per row, the prior N(m₀, s²), N
    data and δ = 1/(N·s²), a step is

        ĥ = ĝ·(θ − m)/σ²
        g ← β₁·g + (1 − β₁)·ĝ
        h ← β₂·h + (1 − β₂)·ĥ + ½·(1 − β₂)²·(h − ĥ)²/(h + δ)
        m ← m − α·f·(g/(1 − β₁ᵗ) + δ·(m − m₀))/(h + δ)
        σ ← 1/√(N·(h + δ))

    The Hessian h is estimated from the gradient and the noise, so that a step needs one backward pass; the last term of
    its update keeps h + δ positive. Parameters without a posterior, such as a learned noise level, are trained by Adam.

    Five things are not in the paper, whose α, h₀ and clipping are chosen for every task.

    - The factor f = min(1, r/√v) of a parameter tensor is a trust region. In units of σ a weight moves by α times
      u = N·σ·ĝ, whose variance at the optimum would be 1 if the other weights were known; but u has the noise of all
      draws and of the minibatch, and steps of a fixed α diverge. With v the running mean of u² over the steps, as for
      g, and over the tensor, ĝ moves it by at most α·r·σ in the root mean square. The optimum is the same, as f scales
      likelihood and prior alike. In the first fit β₂ is at most 1 − 1/(t + 10), so that h is an average of the
      estimates so far instead of h₀.
    - Minibatches of B rows give u a variance of about N/(c·B), c as below. In steps of f = r/√v a mean then walks at
      random around its optimum, with the variance α·r·√(c·N/B)/2 in units of σ² at c = 1, and the logarithm of σ²,
      which averages over 1/(1 − β₂) steps, has a variance of up to (1 − β₂)·N/(2·B). Both are at most ½: α is at most
      √(B/(c·N))/r, if there is a trust region, and β₂ at least 1 − B/N, so that a minibatch counts in h for no more
      than its share of the data. Otherwise layers of a network on many rows amplify each other's noise.
    - The KL is brought in gradually, by a weight c that rises from 0 to 1 (``kl_warmup``): N/c takes the place of N,
      and c·δ that of δ. Otherwise the noise grows to that of the prior before the means have learned anything, and
      layers are given up.
    - In small Linear layers the outputs are drawn instead of the weights (``estimator``), and every row has noise of
      its own. There ĥ = (∂ℓ/∂σ)/σ, ℓ the negative log likelihood, which is the same where weights are drawn.
    - The prior may have a precision per tensor or group that is found on the way, see ``prior``.

    :meth:`loss` is the free energy with all of its gradients, for an optimizer of your own; the steps above are those
    of :meth:`fit`. There the KL has no part in the gradient, and is computed once per epoch.

    Args:
        net: any ``nn.Module``; it is not rewritten.
        likelihood: p(y | f(x)); ``None`` follows from the target's dtype.
        prior: p(w), a :class:`credo.Normal`, or one whose scales are learned (empirical Bayes):
            :class:`credo.AdaptiveNormal` or :class:`credo.HierarchicalNormal`, with the best s for the posterior as it
            stands in every step; or a mapping from name patterns to them. For small tables a learned one fits better.
        bayesian: name pattern or patterns of the parameters to cover; ``"*"`` is all trainable ones but the affine
            parameters of normalization layers.
        initial_scale: σ at the start, which sets h₀ = c/(N·σ²) − c·δ.
        estimator: how noise enters in training, as for :class:`credo.BayesByBackprop`. ``"auto"`` is its ``"auto"`` for
            Linear layers of up to 65,536 weights, and ``"weight"``, as in the paper, for all others.
        kl_warmup: number of training steps over which c rises linearly to 1; ``None``: the first half of the first
            :meth:`fit`; 0: none, as in the paper.
        betas: β₁ of the gradient and β₂ of the Hessian, which forgets where it started in about 1/(1 − β₂) steps. The
            default is for runs of a few thousand steps; the paper has 0.99999 for runs of hundreds of thousands. β₂ is
            raised to 1 − B/N where that is more.
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
    _derived = frozenset({"_noisy_forward", "_priors_here", "_noise", "_rows", "_is_newton_step"})
    _noise: dict[str, Noise]
    """The noise of the last forward pass of a training step, by parameter."""
    _rows: int
    """The number of rows in the minibatch of a training step."""
    _is_newton_step: bool

    def __init__(
        self,
        net: nn.Module,
        likelihood: Likelihood | None = None,
        prior: Prior | None = None,
        *,
        bayesian: str | Sequence[str] = "*",
        initial_scale: float = 0.01,
        estimator: str = "auto",
        kl_warmup: int | None = None,
        betas: tuple[float, float] = (0.9, 0.99),
        temperature: float = 1.0,
        trust_radius: float | None = 1.0,
        clip_radius: float | None = None,
        forward: Forward | None = None,
    ) -> None:
        super().__init__(net, likelihood, forward)
        self.estimator = check_option(estimator, "estimator", ESTIMATORS)
        self._kl_warmup = None if kl_warmup is None else check_integer(kl_warmup, "kl_warmup", minimum=0)
        self.temperature = check_positive(temperature, "temperature")
        self._betas = _check_betas(betas)
        self._trust_radius = None if trust_radius is None else check_positive(trust_radius, "trust_radius")
        self._clip_radius = None if clip_radius is None else check_positive(clip_radius, "clip_radius")
        names = select(net, bayesian)
        self.prior: Prior = Normal(0.0, 1.0) if prior is None else prior
        self._priors = resolve(self.prior, {name: net.get_parameter(name).shape for name in names})
        for name, own in self._priors.items():
            check_gaussian(name, own)
        self.posterior = MeanField(net, names, initial_scale)
        self._bayesian, self._initial_scale = bayesian, float(initial_scale)
        self._warmup = Warmup(kl_warmup or 0).to(self.device)
        self._derive()

    @override
    def terms(self, x: Any, y: Tensor, sample_weight: Tensor | None = None) -> Terms:
        self._resolve_likelihood(y)
        if not torch.compiler.is_compiling():
            self._prepare(x)
        if self._is_newton_step:
            drawn = self._noisy_forward.weight_sampled
            by_kernel = drawn if self._can_draw_by_kernel(drawn) else ()
            scale = {name: self.posterior._scale(name) for name in self.posterior.names() if name not in by_kernel}
            scale = {name: value.detach() if name in drawn else value for name, value in scale.items()}
            self._noise = {name: Noise(value.detach(), None) for name, value in scale.items()}
            kl: Tensor = torch.zeros((), dtype=at_least_float32(self.dtype), device=self.device)
        else:
            scale, kl = self.posterior.scale(), self.kl()
        output, _ = self._noisy_forward(x, scale)
        return Terms(self._weighted_nll(self.likelihood.log_prob(output, y), sample_weight), kl)

    def _draw(self, names: Sequence[str], scale: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One draw θ of the named weights, whose distance from m is kept for a step."""
        means = {name: self.net.get_parameter(name) for name in names}
        if any(name not in scale for name in names):
            return self._draw_by_kernel(means)
        shifts = {name: scale[name] * torch.randn_like(scale[name]) for name in names}
        if self._is_newton_step:
            self._noise |= {name: Noise(scale[name], shift) for name, shift in shifts.items()}
        return {name: (mean.to(shifts[name].dtype) + shifts[name]).to(mean.dtype) for name, mean in means.items()}

    def _can_draw_by_kernel(self, names: Sequence[str]) -> bool:
        """Whether one kernel can compute σ, σ·ε and θ."""
        if torch.compiler.is_compiling() or self.posterior.masks() or not names:
            return False
        return kernels.accepts([t for name in names for t in (self.net.get_parameter(name), self.posterior._rho(name))])

    def _draw_by_kernel(self, means: Mapping[str, Tensor]) -> dict[str, Tensor]:
        rhos = [self.posterior._rho(name) for name in means]
        noise = torch.randn(sum(rho.numel() for rho in rhos), device=self.device).split([rho.numel() for rho in rhos])
        shifts = [part.view(rho.shape) for part, rho in zip(noise, rhos, strict=True)]
        self._noise |= {name: Noise(None, shift) for name, shift in zip(means, shifts, strict=True)}
        drawn: dict[str, Tensor] = {}
        for (name, mean), rho, shift in zip(means.items(), rhos, shifts, strict=True):
            drawn[name] = _Shifted.apply(mean, rho.detach(), shift)  # type: ignore[no-untyped-call]
        return drawn

    def _prepare(self, x: Any) -> None:
        """Update the private replica; check on the first batch that the network uses the weights passed to it."""
        self._noisy_forward.replica.sync_from_network()
        self._inspect(x, training=True)
        self._noisy_forward.plan(x)

    @override
    def kl(self) -> Tensor:
        priors = self._priors_here
        return torch.stack([self.posterior.kl_of(name, priors[name], "analytic") for name in priors]).sum()

    def _kl_factor(self) -> float | Tensor:
        return 1.0 if self._kl_warmup == 0 else self._warmup()

    @with_fit_options
    def fit(self, data: Any, **options: Unpack[FitKeywords]) -> Self:
        """Train on data; a model that was fitted before continues from its weights and their scales.

        The learning rate α is 0.3 unless it is given; 1 would be a whole Newton step, and is fast in short runs. It is
        lowered where minibatches are a small part of the data, see the class. It is not divided by an initial Hessian,
        as the paper suggests for the units of stochastic gradient descent: multiply such a rate by h₀ + δ.
        Parameters trained by Adam have the learning rate α/30.

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
        return f"Bayesian ({self._noisy_forward.describe(name)}, prior {self._priors[name]!r})"

    @override
    def extra_repr(self) -> str:
        """The prior, the estimators and the settings of the steps.

        Returns:
            What ``repr`` shows beside the submodules.
        """
        return (
            f"prior={self.prior!r}, estimator={self.estimator!r}, betas={self._betas}, temperature={self.temperature:g}"
        )

    def _own_config(self) -> dict[str, object]:
        return {
            "prior": to_config(self.prior),
            "bayesian": as_json(self._bayesian),
            "initial_scale": self._initial_scale,
            "estimator": self.estimator,
            "kl_warmup": self._kl_warmup,
            "betas": list(self._betas),
            "temperature": self.temperature,
            "trust_radius": self._trust_radius,
            "clip_radius": self._clip_radius,
        }

    def _follow_parameters(self) -> None:
        """Move the priors to the device of the parameters."""
        self._priors_here = move_priors(self._priors, self.device, at_least_float32(self.dtype))

    def _derive(self) -> None:
        """Build the forward pass of training, and the priors on the network's device."""
        self._follow_parameters()
        largest = _LARGEST_LAYER if self.estimator == "auto" else None
        names = self.posterior.names()
        self._noisy_forward = NoisyForward(self.net, self._forward, names, self._draw, self.estimator, largest)
        self._noise, self._rows, self._is_newton_step = {}, 0, False


class _Shifted(torch.autograd.Function):
    """θ = m + σ·ε as a function of m; ε is overwritten by σ·ε."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, rho: Tensor, noise: Tensor) -> Tensor:
        return shifted_weights(mean, rho, noise)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return grad, None, None


class _NewtonTask(FreeEnergyTask[IVON]):
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
        return NewtonSteps(groups, [Weight(name, mean, rhos[mean]) for name, mean in means.items()], lr, model)

    def training_step(
        self, loss: Callable[..., Tensor], batch: data_.Batch, n_data: int, arguments: Mapping[str, Any]
    ) -> Tensor:
        """The negative log likelihood per row under drawn weights, whose noise is kept for the step."""
        self.model._is_newton_step, self.model._rows = True, len(batch.y)
        try:
            return super().training_step(loss, batch, n_data, arguments)
        finally:
            self.model._is_newton_step = False

    def on_step_end(self, optimizer: str) -> None:
        """Forget the noise."""
        self.model._noise = {}

    @torch.no_grad()
    def epoch_metrics(self, means: Mapping[str, float]) -> dict[str, float]:
        """The KL is that of the end of the epoch."""
        return super().epoch_metrics({**means, "kl": float(self.model.kl())})


def _check_betas(betas: object) -> tuple[float, float]:
    if (
        not isinstance(betas, tuple | list)
        or len(betas) != 2
        or not all(isinstance(beta, int | float) and 0.0 <= beta < 1.0 for beta in betas)
    ):
        raise InputError(f"betas must be two numbers from 0 to below 1, got {betas!r}")
    return float(betas[0]), float(betas[1])
