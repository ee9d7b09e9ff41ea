r"""Bayes by Backprop: a Gaussian posterior, found by minimizing the variational free energy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import override

from credo._arguments import check_integer, check_option, check_positive
from credo._devices import at_least_float32
from credo._notices import notify
from credo.errors import InputError, LoadError, UnsupportedError
from credo.functional import Carrier, Forward, preserve_buffers
from credo.likelihoods import Likelihood
from credo.methods._free_energy import FreeEnergyTask, convergence_notes
from credo.methods._noisy_forward import ESTIMATORS, NoisyForward
from credo.methods._sharpening import Sharpening
from credo.methods.network import NetworkMethod
from credo.nests import count_rows
from credo.posteriors._gaussian_kl import KLPlan, choose_kl
from credo.posteriors.low_rank import LowRankGaussian
from credo.posteriors.mean_field import MeanField
from credo.priors import Normal, Prior, move_priors, resolve, to_config
from credo.selection import as_json, select
from credo.training.optimizers import NaturalAdam, relative_step
from credo.training.supervised import Terms
from credo.training.warmup import Warmup

_WEIGHTINGS = ("uniform", "blundell")


class BayesByBackprop(NetworkMethod):
    r"""A Gaussian posterior q(w | θ) over the weights of any network, by variational inference.

    Minimizes the variational free energy

        F(θ) = KL(q(w | θ) ‖ p(w)) − (1/T)·E_q[log p(D | w)]

    by stochastic gradients through w = μ + σ·ε, with σ = softplus(ρ). The network's own parameters are μ, so pretrained
    weights are where the search starts, and frozen parameters stay as they are. With ``rank=R``, weights depend on each
    other through R directions, w = μ + σ·ε + U·z and q = N(μ, diag(σ²) + U·Uᵀ), see
    :class:`credo.posteriors.LowRankGaussian`.

    Args:
        net: any ``nn.Module``; it is not rewritten.
        likelihood: p(y | f(x)); ``None`` follows from the target's dtype.
        prior: p(w), any univariate torch distribution, or a mapping from name patterns to them.
        bayesian: name pattern or patterns of the parameters to cover; ``"*"`` is all trainable ones but the
            affine parameters of normalization layers.
        initial_scale: σ at the start.
        rank: R, the number of columns of U, which are R further numbers per weight; 0: independent weights. The
            estimators are for σ·ε; z is drawn once per batch.
        estimator: how noise enters in training. ``"weight"`` draws the weights once per batch. ``"local"`` draws
            the outputs of Linear and convolution layers; for convolutions and tokens that is a published
            approximation, which loses the correlation between positions. ``"flipout"`` decorrelates the rows of
            a batch by random signs and is exact in distribution. ``"auto"`` is, for Linear layers, local where that is
            exact and Flipout elsewhere; convolutions are weight-sampled, for Flipout would cost a second convolution,
            and in the same time more steps gain more. Layers that are neither are weight-sampled in every case.
        kl: ``"analytic"`` (SGVB B), ``"sampled"`` (SGVB A), or ``"auto"``: closed form where known.
        kl_weighting: how the KL is spread over the M minibatches of an epoch: ``"uniform"``; ``"blundell"``,
            π_i = 2^(M−i)/(2^M − 1); or ``callable(i, M)`` giving π_i, whose sum over i = 1…M should be 1.
        kl_warmup: number of training steps over which the KL's weight rises linearly to 1, so that no unit is given up
            before it has learned anything; ``None``: the first half of the first :meth:`fit`, and none in a loop of
            your own.
        temperature: T; below 1 a cold posterior, above 1 a remedy for over-fitting.
        samples: Monte Carlo draws per training step; the running statistics of batch norms learn from all of them, in
            one step of their momentum.
        sharpening: σ₀ of posterior sharpening (Fortunato et al. 2017): in training and in :meth:`nll` every minibatch
            has weights of its own, a learned gradient step away from those that are drawn, and the NLL includes what
            that costs, ‖step‖²/(2σ₀²) per minibatch. Needs ``estimator="weight"`` or ``"auto"``, which is then the
            same. Predictions, which have no targets to step towards, use the weights that are drawn.
        forward: ``callable(net, x)`` for networks with unusual inputs or outputs.

    Example:
        >>> model = credo.BayesByBackprop(net, credo.Categorical()).fit((x, y), epochs=20)
        >>> p = model.predict(x_new)
        >>> p.mean, p.epistemic, p.aleatoric

    References: C. Blundell, J. Cornebise, K. Kavukcuoglu, D. Wierstra, "Weight uncertainty in neural networks",
    ICML 2015. D. P. Kingma, M. Welling, "Auto-encoding variational Bayes", ICLR 2014 (the two estimators). M. Tomczak,
    S. Swaroop, R. E. Turner, "Efficient low rank Gaussian variational inference for neural networks", NeurIPS 2020.
    """

    posterior: MeanField | LowRankGaussian
    _derived = frozenset({"_noisy_forward", "_carriers", "_priors_here", "_kl_plan", "_kl_planned_for"})
    _kl_plan: KLPlan | None
    _kl_planned_for: tuple[frozenset[str], bool]

    def __init__(
        self,
        net: nn.Module,
        likelihood: Likelihood | None = None,
        prior: Prior | None = None,
        *,
        bayesian: str | Sequence[str] = "*",
        initial_scale: float = 0.01,
        rank: int = 0,
        estimator: str = "auto",
        kl: str = "auto",
        kl_weighting: str | Callable[[int, int], float] = "uniform",
        kl_warmup: int | None = None,
        temperature: float = 1.0,
        samples: int = 1,
        sharpening: float | None = None,
        forward: Forward | None = None,
    ) -> None:
        super().__init__(net, likelihood, forward)
        self.estimator = check_option(estimator, "estimator", ESTIMATORS)
        if sharpening is not None:
            if estimator in ("local", "flipout"):
                raise InputError(f"sharpening needs drawn weights: use estimator='weight', not {estimator!r}")
            self.estimator = "weight"
        self.temperature = check_positive(temperature, "temperature")
        self._samples = check_integer(samples, "samples", minimum=1)
        if not callable(kl_weighting):
            check_option(kl_weighting, "kl_weighting", _WEIGHTINGS)
        if kl_warmup is not None:
            check_integer(kl_warmup, "kl_warmup", minimum=0)
        names = select(net, bayesian)
        self.prior: Prior = Normal(0.0, 1.0) if prior is None else prior
        self._priors = resolve(self.prior, {name: net.get_parameter(name).shape for name in names})
        self._kl_kinds = choose_kl(kl, self._priors)
        self._rank = check_integer(rank, "rank", minimum=0)
        self.posterior = (
            LowRankGaussian(net, names, rank, initial_scale) if rank else MeanField(net, names, initial_scale)
        )
        self._sharpening = None if sharpening is None else Sharpening(net, names, sharpening)
        self._kl, self._kl_weighting, self._kl_warmup = kl, kl_weighting, kl_warmup
        self._bayesian, self._initial_scale = bayesian, initial_scale
        self._warmup = Warmup(kl_warmup or 0).to(self.device)
        self._derive()

    @override
    def terms(self, x: Any, y: Tensor, sample_weight: Tensor | None = None) -> Terms:
        self._resolve_likelihood(y)
        if not torch.compiler.is_compiling():
            self._prepare(x)
        plan = self._kl_plan if torch.is_grad_enabled() else None
        plan = plan or self.posterior.plan(self._priors_here, self._kl_kinds)
        scale, kl = self.posterior.scale_and_kl(plan)
        nll = []
        for s in range(self._samples):
            # All draws go on from the same carried state; the next minibatch goes on from that of the last one.
            is_kept = self._carriers and s + 1 < self._samples
            with preserve_buffers(self._carriers) if is_kept else nullcontext():
                if self._sharpening is None:
                    output, drawn = self._noisy_forward(x, scale, plan.squared)
                    nll.append(self._weighted_nll(self.likelihood.log_prob(output, y), sample_weight))
                else:
                    loss, drawn = self._sharpened_nll(self._sharpening, x, y, sample_weight, scale)
                    nll.append(loss)
            kl += [
                self.posterior.kl_of(name, prior, kind, weight=drawn.get(name)) / self._samples
                for name, prior, kind in plan.others
                if kind == "sampled"
            ]
        return Terms(_sum(nll) / self._samples if self._samples > 1 else nll[0], _sum(kl))

    def _prepare(self, x: Any) -> None:
        """Update the private replica; on the first batch choose the estimator of each layer."""
        is_pruned = isinstance(self.posterior, MeanField) and self.posterior.is_pruned
        if isinstance(self.posterior, MeanField) and is_pruned:
            self.posterior.enforce_pruning()
        self._noisy_forward.replica.sync_from_network()
        self._inspect(x, training=True)
        self._noisy_forward.plan(x)
        squared = self._noisy_forward.hooks.squared
        if self._kl_plan is None or self._kl_planned_for != (squared, is_pruned):
            self._kl_plan = self.posterior.plan(self._priors_here, self._kl_kinds, squared)
            self._kl_planned_for = (squared, is_pruned)

    @override
    def kl(self) -> Tensor:
        priors = self._priors_here
        terms = [self.posterior.kl_of(n, priors[n], kind) for n, kind in self._kl_kinds.items()]
        if isinstance(self.posterior, LowRankGaussian):
            terms.append(self.posterior.total_correlation())
        return torch.stack(terms).sum()

    def _training_task(self) -> _BackpropTask:
        return _BackpropTask(self)

    def _kl_weight(self, batch: tuple[int, int] | None) -> float | None:
        """c = M·π_i for minibatch i of M; ``None`` if the weighting is uniform."""
        if self._kl_weighting == "uniform":
            return None
        if batch is None:
            return 1.0
        i, m = batch
        if not 1 <= i <= m:
            raise InputError(f"batch must be (i, M) with 1 ≤ i ≤ M, got {batch}")
        if callable(self._kl_weighting):
            return m * float(self._kl_weighting(i, m))
        return m * 2.0**-i / (1.0 - 2.0**-m)

    def prune(self, fraction: float) -> int:
        """Set the weights with the lowest signal-to-noise ratio |μ|/σ to zero, permanently.

        Args:
            fraction: the fraction of the Bayesian weights, from 0 to 1.

        Returns:
            The number of weights that are zero now.

        Raises:
            UnsupportedError: the weights depend on each other, ``rank`` is not 0.
        """
        if not isinstance(self.posterior, MeanField):
            raise UnsupportedError(
                f"pruning ranks weights one by one, but those of a posterior with rank={self._rank} depend on each "
                "other; use rank=0 to prune"
            )
        return self.posterior.prune(fraction)

    def _describe_parameter(self, name: str) -> str:
        """The estimator and the prior of a parameter."""
        shared = f", rank {self._rank}" if self._rank else ""
        return f"Bayesian ({self._noisy_forward.describe(name)}{shared}, prior {self._priors[name]!r})"

    @override
    def extra_repr(self) -> str:
        """The prior and the estimators.

        Returns:
            What ``repr`` shows beside the submodules.
        """
        return f"prior={self.prior!r}, estimator={self.estimator!r}, kl={self._kl!r}, temperature={self.temperature:g}"

    @classmethod
    def _check_sizes(cls, config: dict[str, Any], tensors: Mapping[str, Tensor]) -> None:
        super()._check_sizes(config, tensors)
        held = [len(value) for name, value in tensors.items() if ".factor." in f".{name}" and value.dim()]
        if config.get("rank", 0) not in (held or [0]):
            raise LoadError(f"has rank {config.get('rank')!r:.100}, but no tensor of that many columns")

    def _own_config(self) -> dict[str, object]:
        """What JSON can hold of the arguments."""
        return {
            "bayesian": as_json(self._bayesian),
            "prior": to_config(self.prior),
            "initial_scale": self._initial_scale,
            "rank": self._rank,
            "estimator": self.estimator,
            "kl": self._kl,
            "kl_weighting": "custom" if callable(self._kl_weighting) else self._kl_weighting,
            "kl_warmup": self._kl_warmup,
            "temperature": self.temperature,
            "samples": self._samples,
            "sharpening": None if self._sharpening is None else self._sharpening.scale,
        }

    @classmethod
    def _from_config(cls, config: dict[str, Any], net: Any, **overrides: Any) -> Self:
        if config.get("kl_weighting") == "custom":
            notify("the custom kl_weighting of the saved run is not restored; 'uniform' takes its place")
            config = {**config, "kl_weighting": "uniform"}
        return super()._from_config(config, net, **overrides)

    def _sharpened_nll(
        self, sharpening: Sharpening, x: Any, y: Tensor, sample_weight: Tensor | None, scale: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The NLL per row under weights of the minibatch's own, with their KL, and the shared weights they are near."""
        replica, hooks = self._noisy_forward.replica, self._noisy_forward.hooks

        def nll(weights: Mapping[str, Tensor]) -> Tensor:
            log_likelihood = self.likelihood.log_prob(replica(weights, x), y)
            return self._weighted_nll(log_likelihood, sample_weight)

        shared = self.posterior.rsample(self.posterior.names(), scale)
        rows = count_rows(x)
        hooks.begin(rows, {})
        try:
            with replica.preserve_buffers():
                own, divergence = sharpening(shared, lambda weights: nll(weights) * rows, self.posterior.masks())
            loss = nll(own) + divergence / max(rows, 1)
        finally:
            hooks.end()
        replica.sync_to_network()
        return loss, shared

    def _follow_parameters(self) -> None:
        """Move the priors to the device of the parameters."""
        self._priors_here = move_priors(self._priors, self.device, at_least_float32(self.dtype))
        self._kl_plan = None

    def _kl_factor(self) -> float | Tensor:
        return 1.0 if self._kl_warmup == 0 else self._warmup()

    def _derive(self) -> None:
        """Build the replica that training runs on, with its hooks, and the priors on the network's device."""
        self._follow_parameters()
        posterior = self.posterior
        self._noisy_forward = NoisyForward(
            self.net, self._forward, posterior.names(), posterior.rsample, self.estimator, passes=self._samples
        )
        self._carriers = [m for m in self._noisy_forward.replica.net.modules() if isinstance(m, Carrier)]


def _sum(terms: list[Tensor]) -> Tensor:
    return terms[0] if len(terms) == 1 else torch.stack(terms).sum()


class _BackpropTask(FreeEnergyTask[BayesByBackprop]):
    """Trains to convergence by default: steps in units of σ, and enough of them."""

    def default_optimizer(self, groups: list[dict[str, Any]], lr: float) -> Optimizer:
        """Adam in units of the posterior's standard deviations."""
        posterior = self.model.posterior
        factors = posterior.factor.parameters() if isinstance(posterior, LowRankGaussian) else ()
        return NaturalAdam(groups, posterior.scale_parameters(), lr, relative_step(self._steps), factors)

    def on_train_end(self) -> None:
        """Notify if the posterior has not converged."""
        model = self.model
        scales = model.posterior.scale().values()
        for note in convergence_notes(scales, model._initial_scale, model.history, self._steps):
            notify(note)
