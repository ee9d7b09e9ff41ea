r"""Bayes by Backprop: a mean-field Gaussian posterior, found by minimizing the variational free energy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from credo._arguments import check_integer
from credo._devices import at_least_float32
from credo._notices import notify
from credo.data import Batch
from credo.errors import InputError, unknown_name
from credo.functional import Forward, Replica
from credo.likelihoods import Likelihood
from credo.methods._convergence import convergence_notes
from credo.methods._noise_hooks import NoiseHooks, noisy_layers
from credo.methods._planning import plan_estimators
from credo.methods.network import NetworkMethod, Terms
from credo.nests import count_rows
from credo.posteriors.mean_field import MeanField, choose_kl
from credo.priors import Normal, Prior, all_moved, resolve, to_config
from credo.selection import select, tied
from credo.training.optimizers import STEPS, NaturalAdam, relative_step

_ESTIMATORS = ("auto", "weight", "local", "flipout")
_WEIGHTINGS = ("uniform", "blundell")


class BayesByBackprop(NetworkMethod):
    r"""A posterior q(w | θ) = N(μ, σ²) over the weights of any network, by variational inference.

    Minimizes the variational free energy

        F(θ) = KL(q(w | θ) ‖ p(w)) − (1/T)·E_q[log p(D | w)]

    by stochastic gradients through w = μ + softplus(ρ)·ε. The network's own parameters are μ, so pretrained
    weights are where the search starts, and frozen parameters stay as they are.

    Args:
        net: any ``nn.Module``; it is not rewritten.
        likelihood: p(y | f(x)); ``None`` follows from the target's dtype.
        prior: p(w), any univariate torch distribution, or a mapping from name patterns to them.
        bayesian: name pattern or patterns of the parameters to cover; ``"*"`` is all trainable ones but the
            affine parameters of normalization layers.
        initial_scale: σ at the start.
        estimator: how noise enters in training. ``"weight"`` draws the weights once a batch. ``"local"`` draws
            the outputs of Linear and convolution layers; for convolutions and tokens that is a published
            approximation, which loses the correlation between positions. ``"flipout"`` decorrelates the rows of
            a batch by random signs and is exact in distribution. ``"auto"`` is local where that is exact and
            Flipout elsewhere. Layers that are neither are weight-sampled in every case.
        kl: ``"analytic"`` (SGVB B), ``"sampled"`` (SGVB A), or ``"auto"``: closed form where known.
        kl_weighting: how the KL is spread over the M minibatches of an epoch: ``"uniform"``; ``"blundell"``,
            π_i = 2^(M−i)/(2^M − 1); or ``callable(i, M)`` giving π_i, whose sum over i = 1…M should be 1.
        kl_warmup: number of training steps over which the KL's weight rises linearly to 1, so that no unit is given up
            before it has learned anything; ``None``: the first half of the first :meth:`fit`, and none in a loop of
            your own.
        temperature: T; below 1 a cold posterior, above 1 a remedy for over-fitting.
        samples: Monte Carlo draws per training step.
        forward: ``callable(net, x)`` for networks with unusual inputs or outputs.

    References: C. Blundell, J. Cornebise, K. Kavukcuoglu, D. Wierstra, "Weight uncertainty in neural networks",
    ICML 2015. D. P. Kingma, M. Welling, "Auto-encoding variational Bayes", ICLR 2014 (the two estimators).
    """

    posterior: MeanField
    derived = frozenset({"_replica", "_hooks", "_planned", "_priors_here"})
    steps: Tensor
    warmup_steps: Tensor
    _steps_of_run: int | None = None
    _planned: bool

    def __init__(
        self,
        net: nn.Module,
        likelihood: Likelihood | None = None,
        prior: Prior | None = None,
        *,
        bayesian: str | Sequence[str] = "*",
        initial_scale: float = 0.01,
        estimator: str = "auto",
        kl: str = "auto",
        kl_weighting: str | Callable[[int, int], float] = "uniform",
        kl_warmup: int | None = None,
        temperature: float = 1.0,
        samples: int = 1,
        forward: Forward | None = None,
    ) -> None:
        super().__init__(net, likelihood, forward)
        if estimator not in _ESTIMATORS:
            raise unknown_name("estimator", estimator, _ESTIMATORS)
        if not callable(kl_weighting) and kl_weighting not in _WEIGHTINGS:
            raise unknown_name("kl_weighting", kl_weighting, _WEIGHTINGS)
        if not (temperature > 0 and math.isfinite(temperature)):
            raise InputError(f"temperature must be positive and finite, got {temperature}")
        if kl_warmup is not None:
            check_integer(kl_warmup, "kl_warmup", minimum=0)
        check_integer(samples, "samples", minimum=1)
        names = select(net, bayesian)
        self.prior: Prior = Normal(0.0, 1.0) if prior is None else prior
        self._priors = resolve(self.prior, {name: net.get_parameter(name).shape for name in names})
        self._kl_kinds = choose_kl(kl, self._priors)
        self.posterior = MeanField(net, names, initial_scale)
        self.estimator, self.kl_kind = estimator, kl
        self.kl_weighting, self.kl_warmup = kl_weighting, kl_warmup
        self.temperature, self.samples = float(temperature), samples
        self.bayesian = bayesian
        self.initial_scale = initial_scale
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64, device=self.device))
        self.register_buffer("warmup_steps", torch.full((), kl_warmup or 0, dtype=torch.int64, device=self.device))
        self.derive()

    def terms(self, x: Any, y: Tensor, sample_weight: Tensor | None = None) -> Terms:
        """Negative log likelihood per datum and KL in nats, from ``samples`` draws."""
        self.resolve_likelihood(y)
        if not torch.compiler.is_compiling():
            self.prepare(x)
        priors = self._priors_here
        scale, kl = self.posterior.scale_and_kl(priors, self._kl_kinds)
        to_sample = [name for name, kind in self._kl_kinds.items() if kind == "sampled"]
        nll = []
        for _ in range(self.samples):
            output, drawn = self._noisy_forward(x, scale)
            nll.append(self.weighted_nll(self.likelihood.log_prob(output, y), sample_weight))
            kl += [
                self.posterior.kl_of(name, priors[name], "sampled", weight=drawn.get(name)) / self.samples
                for name in to_sample
            ]
        return Terms(torch.stack(nll).mean(), torch.stack(kl).sum())

    def prepare(self, x: Any) -> None:
        """Bring the private replica up to date; at the first batch decide how the noise of each layer enters."""
        if self.posterior.is_pruned:
            self.posterior.enforce_pruning()
        self._replica.pull()
        self.inspect(x, training=True)
        if self._planned or not self._hooks.plan:
            return
        probe = Replica(self.net, self.call, own_buffers=True)
        self._hooks.plan = plan_estimators(probe, list(self._hooks.plan), self.estimator, x)
        self._planned = True
        if self.estimator == "local":
            approximate = [
                path or "the network itself"
                for path in self._hooks.plan
                if not isinstance(self.net.get_submodule(path), nn.Linear)
            ]
            if approximate:
                notify(
                    "estimator='local' treats positions of a convolution as independent, an approximation, in "
                    f"{', '.join(approximate)}; 'auto' and 'flipout' are exact there"
                )

    def kl(self) -> Tensor:
        """KL(q ‖ p) in nats, summed over all Bayesian weights."""
        priors = self._priors_here
        return torch.stack([self.posterior.kl_of(n, priors[n], kind) for n, kind in self._kl_kinds.items()]).sum()

    def kl_weight(self, batch: tuple[int, int] | None) -> float:
        """c = M·π_i for minibatch (i, M); 1 where the weighting is uniform or no minibatch is given."""
        if self.kl_weighting == "uniform" or batch is None:
            return 1.0
        i, m = batch
        if not 1 <= i <= m:
            raise InputError(f"batch must be (i, M) with 1 ≤ i ≤ M, got {batch}")
        if callable(self.kl_weighting):
            return m * float(self.kl_weighting(i, m))
        return m * 2.0**-i / (1.0 - 2.0**-m)

    def prune(self, fraction: float) -> int:
        """Set the ``fraction`` of weights with the lowest |μ|/σ to zero for good; returns how many are zero."""
        return self.posterior.prune(fraction)

    def kind_of(self, name: str) -> str:
        """How the noise of a parameter enters, and its prior."""
        path = name.rpartition(".")[0]
        how = self._hooks.plan[path] if self._hooks.covers(name) else "weight"
        if how == "auto":
            linear = isinstance(self.net.get_submodule(path), nn.Linear)
            how = "local on [B, D], else flipout" if linear else "flipout"
        return f"Bayesian ({how}, prior {self._priors[name]!r})"

    def extra_repr(self) -> str:
        """The prior and the estimators."""
        return (
            f"prior={self.prior!r}, estimator={self.estimator!r}, kl={self.kl_kind!r}, temperature={self.temperature:g}"
        )

    def own_config(self) -> dict[str, object]:
        """What JSON can hold of the arguments."""
        return {
            "bayesian": self.bayesian if isinstance(self.bayesian, str) else list(self.bayesian),
            "prior": to_config(self.prior),
            "estimator": self.estimator,
            "kl": self.kl_kind,
            "kl_weighting": "custom" if callable(self.kl_weighting) else self.kl_weighting,
            "kl_warmup": self.kl_warmup,
            "temperature": self.temperature,
            "samples": self.samples,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], net: Any, **overrides: Any) -> Self:
        """Build the method again."""
        if config.get("kl_weighting") == "custom":
            notify("the custom kl_weighting of the saved run is not restored; 'uniform' takes its place")
            config = {**config, "kl_weighting": "uniform"}
        return super().from_config(config, net, **overrides)

    def _noisy_forward(self, x: Any, scale: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """The output under one draw, and the weights that were drawn for it.

        Hooks reduce the variance of gradients; where none are wanted, drawing the weights is cheaper and also
        right for fused inference kernels that bypass hooks.
        """
        use_hooks = torch.is_grad_enabled()
        drawn = [name for name in scale if not (use_hooks and self._hooks.covers(name))]
        weights = self.posterior.rsample(drawn, scale)
        self._hooks.begin(count_rows(x), scale if use_hooks else {})
        try:
            output = self._replica(weights, x)
        finally:
            self._hooks.end()
        if not torch.compiler.is_compiling():
            self._replica.push_state()
        return output, weights

    def follow_parameters(self) -> None:
        """Take the priors to where the parameters are."""
        self._priors_here = all_moved(self._priors, self.device, at_least_float32(self.dtype))

    def warmup(self) -> float | Tensor:
        """min(1, steps/warm-up), counting this training step."""
        if self.kl_warmup == 0:
            return 1.0
        if self.training and torch.is_grad_enabled():
            self.steps = self.steps + 1  # in place, a compiled backward would see the next step's number
        return torch.where(self.steps < self.warmup_steps, self.steps / self.warmup_steps, 1.0)

    def before_training(self, steps: int | None) -> None:
        """Let the KL come in over the first half of the first training run, unless told otherwise."""
        self._steps_of_run = steps
        if self.kl_warmup is None and not self.steps and steps is not None:
            self.warmup_steps.fill_(steps // 2)

    def undo_set_up(self) -> Callable[[], None]:
        """As it was also in when the KL comes in."""
        undo, before = super().undo_set_up(), int(self.warmup_steps)

        def undo_all() -> None:
            undo()
            self.warmup_steps.fill_(before)

        return undo_all

    def after_training(self, batch: Batch) -> None:
        """Say where the posterior has not arrived, and what to do about it."""
        for sentence in convergence_notes(self):
            notify(sentence)

    def default_optimizer(self, groups: list[dict[str, Any]], lr: float) -> Optimizer:
        """Adam in the posterior's own units."""
        return NaturalAdam(groups, self.posterior.scale_parameters(), lr, relative_step(self._steps_of_run))

    def default_epochs(self, batches: int | None) -> int:
        """Enough for 2,000 steps: a posterior needs them, however few the data are."""
        least = super().default_epochs(batches)
        return least if not batches else max(least, math.ceil(STEPS / batches))

    def derive(self) -> None:
        """Build the replica that training runs on, with its hooks, and the priors on the network's device."""
        self.follow_parameters()
        names = self.posterior.names()
        layers = noisy_layers(self.net, names, tied(self.net)) if self.estimator != "weight" else {}
        holders = {name.rpartition(".")[0] for name in names}
        self._replica = Replica(self.net, self.call, own_buffers=False)
        self._hooks = NoiseHooks(self._replica, list(layers), holders, self.estimator)
        self._planned = False
