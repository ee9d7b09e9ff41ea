"""What methods that draw from the posterior have in common: chains, their starts, and what becomes of the draws."""

from __future__ import annotations

import dataclasses
import inspect
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Never, Self

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from typing_extensions import override

from credo import data as data_
from credo._arguments import check_integer, check_option, check_positive
from credo._embeddings import padding_rows, without_padding
from credo._notices import notify
from credo.errors import InputError, UnsupportedError, unknown_name
from credo.functional import Forward
from credo.likelihoods import Likelihood
from credo.methods._fold_chains import fit_models, joint_target
from credo.methods._initialization import reinitialize
from credo.methods._log_joint import LogJoint, log_density, maximize
from credo.methods._sampling import (
    DrawnLikelihood,
    Plan,
    Run,
    SamplingReport,
    check_densities,
    check_is_deterministic,
    convergence,
    merge,
)
from credo.methods.network import NetworkMethod, NetworkPredictor
from credo.posteriors.empirical import Empirical
from credo.priors import Normal, Prior, move_priors, resolve, to_config
from credo.priors import from_config as prior_from_config
from credo.seeding import check_seed, derive, seeded
from credo.selection import as_json, select
from credo.stacking import Stack
from credo.training.monitoring import ProgressBar
from credo.training.options import as_fit
from credo.training.supervised import SupervisedTask, Terms

_INITS = ("optimized", "prior", "network")
_OPTIMIZER_LR = 0.02
_ROWS = 4096
_HISTORY_ENTRIES = 100

Report = Callable[[int, Mapping[str, float | Tensor]], None]
"""Called after every transition with its number, counted from 0, and what happened in it."""


class Sampler(NetworkMethod):
    r"""A method whose posterior is a set of draws, by several chains at once.

    Arguments and attributes are those of :class:`credo.HMC`. A sampler adds :meth:`_run`.
    """

    posterior: Empirical
    likelihood_posterior: Empirical | None
    _derived = frozenset({"_priors_here"})

    def __init__(
        self,
        net: nn.Module,
        likelihood: Likelihood | None,
        prior: Prior | None,
        *,
        chains: int,
        plan: Plan,
        init: str,
        init_steps: int = 500,
        noise_prior: Prior | None,
        bayesian: str | Sequence[str],
        temperature: float,
        forward: Forward | None,
    ) -> None:
        super().__init__(net, likelihood, forward)
        check_is_deterministic(self.likelihood)
        self._chains = check_integer(chains, "chains", minimum=1)
        self._plan = plan
        self._init = check_option(init, "init", _INITS)
        self._init_steps = check_integer(init_steps, "init_steps", minimum=0)
        self.temperature = check_positive(temperature, "temperature")
        self.prior: Prior = Normal(0.0, 1.0) if prior is None else prior
        self._noise_prior: Prior = Normal(0.0, 1.0) if noise_prior is None else noise_prior
        resolve(self._noise_prior, {}, "noise_prior")  # which parameters the likelihood has is known in fit
        self._bayesian = bayesian
        weights = {name: net.get_parameter(name).detach() for name in select(net, bayesian)}
        self._priors = check_densities(resolve(self.prior, {name: w.shape for name, w in weights.items()}))
        self.posterior = Empirical.without_draws(weights)
        self._report: SamplingReport | None = None
        self._adopt_likelihood()
        self._derive()

    @abstractmethod
    def _run(self, target: LogJoint, start: Tensor, seeds: Sequence[int], report: Report) -> Run:
        """Run the chains.

        Args:
            target: the log density of all chains.
            start: the first positions, ``[K, P]``.
            seeds: fix the random numbers; more than one if the chains are those of several data sets.
            report: to be called after every transition.

        Returns:
            Draws and statistics.
        """

    def _settings(self) -> dict[str, object]:
        """What JSON can hold of the arguments that a sampler adds to those of all."""
        return {}

    @override
    def terms(self, x: Any, y: Tensor, sample_weight: Tensor | None = None) -> Terms:
        """−log p(y | x, w) per row and −log p(w) at the network's own weights; their sum is the potential energy.

        Args:
            x: inputs, rows along dim 0.
            y: targets.
            sample_weight: ``[B]``, multiplies the log likelihood of each row.

        Returns:
            Both in nats and differentiable.
        """
        return self._point_terms(x, y, sample_weight)

    @override
    def kl(self) -> Tensor:
        noise = move_priors(self._noise_priors(), self.device, self.dtype)
        padding = padding_rows(self.net)
        parts = [
            log_density(prior, without_padding(self.net.get_parameter(name), padding.get(name), prior))
            for name, prior in self._priors_here.items()
        ]
        parts += [log_density(prior, self.likelihood.get_parameter(name)) for name, prior in noise.items()]
        return -torch.stack(parts).sum()

    @override
    def elbo(self, data: Any, samples: int = 10, seed: int | None = None) -> Never:
        """Not available: a set of draws has no density.

        Args:
            data: as for :meth:`fit`.
            samples: number of weight draws.
            seed: for the draws.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(
            f"draws have no density, so {type(self).__name__} has no evidence lower bound; compare models by "
            "predict(x).log_prob(y)"
        )

    def _unknown_option(self, key: str) -> InputError:
        """The error for an option of ``fit`` that chains do not have: it says where it belongs."""
        name = type(self).__name__
        if key in inspect.signature(type(self)).parameters:
            return InputError(f"{name}.fit takes no {key!r}: pass it to the constructor, {name}(net, {key}=...)")
        if key == "epochs":
            return InputError(
                f"{name}.fit takes no 'epochs': the length of chains is set by {name}(net, warmup=..., draws=...)"
            )
        return unknown_name(f"option of {name}.fit", key, ["device", "seed", "progress"])

    @as_fit
    def fit(
        self,
        data: Any,
        *,
        device: str | torch.device | None = None,
        seed: int | None = None,
        progress: bool | None = None,
        **options: Any,
    ) -> Self:
        """Run the chains on all data, from new starts; earlier draws are replaced.

        Args:
            data: a DataLoader, a Dataset, or a tuple of tensors or arrays ``(x, y)`` or ``(x, y, sample_weight)``,
                rows along dim 0.
            device: where to sample; ``None``: where the network is.
            seed: makes the run reproducible; torch's random state is left as it was.
            progress: whether to show a progress bar; ``None``: only in a terminal.
            **options: those of methods that are trained by gradient do not apply, and raise ``InputError``.

        Returns:
            The model itself.

        Raises:
            InputError: data or options do not match the model; it is unchanged.
            UnsupportedError: the network draws random numbers or keeps state, or has fewer than 32 bits.
            DivergenceError: the log density is NaN or infinite where chains start, or chains diverge; the model is
                unchanged.
        """
        for key in options:
            raise self._unknown_option(key)
        if torch.finfo(self.dtype).bits < 32:
            raise UnsupportedError(
                f"{type(self).__name__} needs a network in float32 or float64, got {self.dtype}; use net.float()"
            )
        fit_models([self], [data], [check_seed(seed)], device=device, progress=progress)
        assert self._report is not None
        for notice in self._report.notices():
            notify(notice)
        return self

    def outputs(self, x: Any) -> Tensor:
        """The network's outputs for every draw, in the order of the chains, for :mod:`credo.diagnostics` and plots.

        Args:
            x: inputs, rows along dim 0.

        Returns:
            The outputs, ``[chains, draws, B, ...]``.
        """
        count = math.prod(self.posterior.shape)
        flat = NetworkPredictor(self, count, 0).outputs(x)
        place = torch.tensor(self.posterior.order(count, 0), device=flat.device).argsort()
        by_chain: Tensor = flat[place].unflatten(0, self.posterior.shape)
        return by_chain

    @override
    def summary(self) -> str:
        report = ["not sampled yet: call fit"] if self._report is None else self._report.lines()
        return "\n".join([super().summary(), "", *report])

    def _load(self, data: Any, task: SupervisedTask[Any]) -> list[data_.Batch]:
        """All data in large batches on the device, after a check that they match the model."""
        dataset = task.make_dataset(data)
        batches = merge(list(data_.batches(dataset, _ROWS, self.device, self.dtype)), _ROWS)
        self.n_data = sum(len(batch.y) for batch in batches)
        task.setup(batches[0])
        self._adopt_likelihood()
        for batch in batches:
            task.check_data(batch, dataset)
        self._inspect(batches[0].x)
        return batches

    def _log_joint(self, batches: list[data_.Batch]) -> LogJoint:
        return joint_target([self], [batches])

    def _start(self, target: LogJoint, seed: int) -> Tensor:
        """The first positions of the chains, ``[K, P]``; that of chain k depends on (seed, k)."""
        return self._improve(target, self._first_positions(target, seed))

    def _first_positions(self, target: LogJoint, seed: int) -> Tensor:
        """Positions to start from, or to improve, ``[K, P]``; that of chain k depends on (seed, k)."""
        if self._init == "prior":
            starts = []
            for k in range(self._chains):
                with seeded(derive(seed, k), self.device):
                    starts.append(target.sample_prior())
            return torch.stack(starts)
        stack = Stack(self.net, self._chains, names=self.posterior.names())
        noise = {n: p.detach().expand(self._chains, *p.shape) for n, p in self.likelihood.named_parameters()}
        if self._init == "network":
            return target.flatten(stack.initial_weights(), noise)
        try:
            return target.flatten(stack.initial_weights(reinitialize, seed), noise)
        except UnsupportedError as error:
            raise UnsupportedError(
                f"chains cannot start at new weights ({str(error).split(',')[0]}); use init='network' or init='prior'"
            ) from error

    def _improve(self, target: LogJoint, start: Tensor) -> Tensor:
        """The first positions, ``[K, P]``, after optimization if that is asked for."""
        return maximize(target, start, self._init_steps, _OPTIMIZER_LR) if self._init == "optimized" else start

    def _reporter(self, bar: ProgressBar) -> Report:
        """Writes the history and shows the progress."""
        self.history = []
        every = max(1, self._plan.steps // _HISTORY_ENTRIES)

        def report(transition: int, metrics: Mapping[str, float | Tensor]) -> None:
            if (transition + 1) % every == 0:
                self.history.append({"iteration": transition, **{name: float(v) for name, v in metrics.items()}})
                phase = "warm-up" if self._plan.is_exploring(transition) else "draws"
                bar.update(transition + 1, "  ".join(f"{k} {v:.3g}" for k, v in metrics.items()), phase)

        return report

    @torch.no_grad()
    def _keep(self, target: LogJoint, run: Run) -> None:
        """Store the draws; put the one of the highest density into the network and the likelihood."""
        weights, noise = target.split(run.draws)
        for name, row in padding_rows(self.net).items():
            if name in weights:
                weights[name][:, :, row] = self.net.get_parameter(name)[row]
        best = divmod(int(run.log_density.argmax()), run.log_density.shape[1])
        for values, module in ((weights, self.net), (noise, self.likelihood)):
            for name, value in values.items():
                parameter = module.get_parameter(name)
                values[name] = value.to(parameter.dtype)
                parameter.copy_(value[best])
        self.posterior.replace(weights)
        if self.likelihood_posterior is not None:
            self.likelihood_posterior.replace(noise)

    def _diagnose(self, run: Run, x: Any | None) -> None:
        """Build the report that :meth:`summary` shows.

        Args:
            run: the draws.
            x: inputs to diagnose the convergence on; ``None``: convergence is not diagnosed.
        """
        posteriors = (
            [self.posterior] if self.likelihood_posterior is None else [self.posterior, self.likelihood_posterior]
        )
        self._report = SamplingReport(
            chains=self._chains,
            draws=self.posterior.shape[1],
            details={name: str(value) for name, value in run.details.items()},
            divergences=run.divergences.tolist(),
            transitions=self._plan.draws * self._plan.cycles * self._plan.thinning,
            predictions={} if x is None else convergence([self.outputs(x)]),
            parameters={}
            if x is None
            else convergence(draws for posterior in posteriors for draws in posterior.by_chain().values()),
        )

    def _predictor(self, samples: int | str, seed: int | None) -> NetworkPredictor:
        base = check_seed(seed) if samples else 0
        predictor = NetworkPredictor(self, samples, base)
        if isinstance(samples, int) and samples and self.likelihood_posterior is not None:
            weights, own = self.posterior.shape, self.likelihood_posterior.shape
            if weights != own:
                raise InputError(
                    "posterior and likelihood_posterior must have the same draws, as each weight vector has its own "
                    f"noise, got {weights} and {own} chains and draws: thin both"
                )
            noise = self.likelihood_posterior.sample(samples, seed=base)
            predictor._likelihood = DrawnLikelihood(self.likelihood, noise)
        return predictor

    def _adopt_likelihood(self) -> None:
        """Begin the draws of the likelihood's parameters anew, if they are those of another likelihood."""
        own = {name: parameter.detach() for name, parameter in self.likelihood.named_parameters()}
        current = getattr(self, "likelihood_posterior", None)
        if current is None or current.names() != list(own):
            self.likelihood_posterior = Empirical.without_draws(own) if own else None

    def _noise_priors(self) -> dict[str, Distribution]:
        shapes = {name: parameter.shape for name, parameter in self.likelihood.named_parameters()}
        return check_densities(resolve(self._noise_prior, shapes)) if shapes else {}

    def _follow_parameters(self) -> None:
        """Move the priors to the device of the parameters."""
        self._priors_here = move_priors(self._priors, self.device, self.dtype)

    def _describe_parameter(self, name: str) -> str:
        return f"sampled (prior {self._priors[name]!r})"

    @override
    def extra_repr(self) -> str:
        """The prior and the chains.

        Returns:
            What ``repr`` shows beside the submodules.
        """
        plan = self._plan
        count = {"chains": self._chains, "warmup": plan.warmup * plan.cycles, "draws": plan.draws * plan.cycles}
        return f"prior={self.prior!r}, " + ", ".join(f"{name}={value}" for name, value in count.items())

    def _own_config(self) -> dict[str, object]:
        return {
            "prior": to_config(self.prior),
            "chains": self._chains,
            "warmup": self._plan.warmup * self._plan.cycles,
            "draws": self._plan.draws * self._plan.cycles,
            "init": self._init,
            "noise_prior": to_config(self._noise_prior),
            "bayesian": as_json(self._bayesian),
            "temperature": self.temperature,
            **self._settings(),
        }

    @classmethod
    def _from_config(cls, config: dict[str, Any], net: Any, **overrides: Any) -> Self:
        noise_prior = config.get("noise_prior")
        if noise_prior is None:
            notify("the custom noise_prior of the saved run is not restored; N(0, 1) takes its place")
        built = None if noise_prior is None else prior_from_config(noise_prior)
        return super()._from_config({**config, "noise_prior": built}, net, **overrides)

    def _describe_training(self) -> dict[str, object]:
        report = None if self._report is None else dataclasses.asdict(self._report)
        return {**super()._describe_training(), "sampling": report}

    def _restore_training(self, card: object) -> None:
        super()._restore_training(card)
        self._report = SamplingReport.from_card(card.get("sampling") if isinstance(card, dict) else None)
