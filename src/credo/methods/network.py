"""What the methods with one network have in common: the loss, training, prediction, and what is saved."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.data import DataLoader, Dataset

from credo import architectures
from credo import data as data_
from credo._arguments import check_integer
from credo._notices import notify
from credo.errors import InputError, LoadError
from credo.functional import Evaluator, Forward, Replica
from credo.likelihoods import Gaussian, Likelihood, infer_likelihood, likelihood_from_config
from credo.methods.base import Method, Predictor
from credo.nests import take_rows
from credo.posteriors.base import Posterior
from credo.predictive import Predictive
from credo.priors import from_config as prior_from_config
from credo.probing import ROWS, check_reach
from credo.seeding import check_seed, repeatable, seeded
from credo.selection import check_network
from credo.training import evaluation
from credo.training.contract import Trainable

_VALIDATION_SAMPLES = 10


class Terms(NamedTuple):
    """The two parts of a loss, each differentiable."""

    nll: Tensor
    """Negative log likelihood per datum, in nats."""
    kl: Tensor
    """What the weights cost, in nats over the whole data: KL(q ‖ p), or −log p(w) for a point estimate."""


class NetworkMethod(Trainable, Method):
    r"""A method with one network, one likelihood and one posterior, trained by gradient.

    The loss per datum is

        loss = −(1/T)·mean_rows log p(y | x, w) + c·KL/n_data,

    with c = 1 unless a KL weighting or warm-up says otherwise. A datum is one row of dim 0; its log likelihood
    sums over its outputs. ``n_data`` is the size of the whole training set, over all processes.
    """

    posterior: Posterior
    last_terms: Terms | None = None
    temperature: float = 1.0
    kl_weighting: str | Callable[[int, int], float] = "uniform"
    _inspected: frozenset[bool] = frozenset()
    derived: ClassVar[frozenset[str]] = frozenset()
    """Attributes that :meth:`derive` builds; copies and pickles leave them out."""

    def __init__(self, net: nn.Module, likelihood: Likelihood | None, forward: Forward | None) -> None:
        super().__init__()
        if likelihood is not None and not isinstance(likelihood, Likelihood):
            raise InputError(
                "likelihood must be a credo likelihood such as credo.Gaussian() or credo.Categorical(), an object and "
                f"not a class, got {getattr(likelihood, '__name__', type(likelihood).__name__)}"
            )
        self.net = check_network(net)
        self.likelihood: Likelihood = likelihood or Gaussian(noise="learned")
        self.likelihood_is_open = likelihood is None
        self.likelihood.to(self.device)
        self.call = forward
        self.n_data: int | None = None
        self.history = []

    def derive(self) -> None:
        """Build what follows from the rest: private replicas, hooks."""
        self.follow_parameters()

    def follow_parameters(self) -> None:
        """Take what is no parameter or buffer to the parameters' device and dtype, after they moved."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.follow_parameters()
        return self

    def __getstate__(self) -> dict[str, Any]:
        left_out = self.derived | {"last_terms", "_inspected"}
        state: dict[str, Any] = super().__getstate__()  # type: ignore[no-untyped-call]
        return {key: value for key, value in state.items() if key not in left_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.last_terms = None
        self.derive()

    def inspect(self, x: Any, training: bool = False) -> None:
        """On a first batch, raise ``UnsupportedError`` where the network would not compute with weights given to it.

        Args:
            x: a batch.
            training: look in training mode, and also for checkpointing, which would run parts of it again in the
                backward pass, without those weights.
        """
        if training in self._inspected:
            return
        probe = Replica(self.net, self.call, own_buffers=True)
        for module in probe.net.modules():
            module.training &= training and not isinstance(module, _NormBase)
        repeatable(lambda: check_reach(probe, take_rows(x, ROWS), backward=training), self.device)
        self._inspected |= {training}

    @abstractmethod
    def terms(self, x: Any, y: Tensor, sample_weight: Tensor | None = None) -> Terms:
        """Negative log likelihood per datum and complexity in nats, for one batch."""

    @abstractmethod
    def kl(self) -> Tensor:
        """What the weights cost, in nats; needs no forward pass."""

    def kl_weight(self, batch: tuple[int, int] | None) -> float:
        """c for minibatch (i, M), counted from 1; the mean over an epoch is 1."""
        return 1.0

    def forward(  # type: ignore[override]
        self,
        x: Any,
        y: Tensor,
        n_data: int | None = None,
        *,
        sample_weight: Tensor | None = None,
        batch: tuple[int, int] | None = None,
        kl_weight: float | Tensor | None = None,
    ) -> Tensor:
        """The loss per datum, differentiable.

        Args:
            x: inputs, rows along dim 0.
            y: targets.
            n_data: the number of data in the whole training set; known after ``fit``.
            sample_weight: ``[B]``, multiplies each row's log likelihood.
            batch: (i, M), this is minibatch i of M, counted from 1; used by KL weightings that need it.
            kl_weight: c itself, instead of ``batch``.
        """
        n_data = n_data if n_data is not None else self.n_data
        if n_data is None or n_data < 1:
            raise InputError(
                f"n_data must be the number of data in the whole training set, got {n_data}: "
                "the KL is shared between all of them; pass n_data=len(dataset)"
            )
        terms = self.terms(x, y, sample_weight)
        self.last_terms = Terms(terms.nll.detach(), terms.kl.detach())
        weight = self.kl_weight(batch) if kl_weight is None else kl_weight
        return terms.nll / self.temperature + (weight * self.warmup() / n_data) * terms.kl

    def warmup(self) -> float | Tensor:
        """A factor on the KL that rises to 1 early in training; counts this training step."""
        return 1.0

    def nll(self, x: Any, y: Tensor, sample_weight: Tensor | None = None) -> Tensor:
        """Negative log likelihood per datum, from one pass as in training."""
        return self.terms(x, y, sample_weight).nll

    def predictor(self, samples: int, seed: int | None) -> NetworkPredictor:
        """What predicts with fixed draws."""
        return NetworkPredictor(self, samples, seed)

    @torch.no_grad()
    def elbo(self, data: Any, samples: int = 10, seed: int | None = None) -> float:
        """The evidence lower bound of ``data`` in nats, at temperature 1: E_q[log p(D | w)] − KL(q ‖ p)."""
        check_integer(samples, "samples", minimum=1)
        with seeded(seed, self.device):
            kl = float(self.kl())
        return self.expected_log_likelihood(data, samples, seed) - kl

    @torch.no_grad()
    def expected_log_likelihood(self, data: Any, samples: int = 10, seed: int | None = None) -> float:
        """E_q[log p(D | w)] in nats over all of ``data``, by ``samples`` weight draws.

        With a ``seed``, what the likelihood and a shuffling loader draw is determined by it too.
        """
        predictor = self.predictor(samples, seed)
        total = 0.0
        with evaluation.noise_seeded(seed, self.device):
            for x, y, weight in data_.batches(data, 4096, self.device, self.dtype):
                self.resolve_likelihood(y)
                outputs = predictor.outputs(x)
                rows = torch.stack([self.likelihood.log_prob(output, y) for output in outputs]).mean(0)
                total += float((rows if weight is None else rows * weight).double().sum())
        return total

    def resolve_likelihood(self, y: Tensor) -> None:
        """Choose the likelihood from the target's dtype, once, where none was given."""
        if not self.likelihood_is_open:
            return
        inferred = infer_likelihood(y)
        if type(inferred) is not type(self.likelihood):
            self.likelihood = inferred.to(y.device)
        self.likelihood_is_open = False
        if not torch.compiler.is_compiling():
            dtype = str(y.dtype).removeprefix("torch.")
            notify(
                f"likelihood {self.likelihood!r} follows from the {dtype} target; pass likelihood= to choose another"
            )

    def reported(self) -> Mapping[str, Tensor]:
        """NLL and KL."""
        assert self.last_terms is not None
        return self.last_terms._asdict()

    def resolve(self, batch: data_.Batch) -> None:
        """Choose the likelihood where it was left open."""
        self.resolve_likelihood(batch.y)

    def check_data(self, batch: data_.Batch, dataset: Dataset[Any] | DataLoader[Any]) -> None:
        """Raise ``InputError`` for what does not fit the network or the likelihood by shape, dtype or value."""
        evaluation.check_data(self, batch, dataset)

    def undo_set_up(self) -> Callable[[], None]:
        """A function that puts back the likelihood and the number of data."""
        before = (self.likelihood, self.likelihood_is_open, self.n_data)

        def undo() -> None:
            self.likelihood, self.likelihood_is_open, self.n_data = before

        return undo

    def loss_options(self, player: str, i: int, batches: int | None) -> dict[str, Any]:
        """The weight of the KL on minibatch ``i``, where it is not the same on all."""
        if self.kl_weighting == "uniform":
            return {}
        if batches is None:
            raise InputError("this KL weighting needs to know the number of batches, but the loader has no length")
        return {"kl_weight": torch.full((), self.kl_weight((i, batches)), device=self.device)}

    def explain(self, batch: data_.Batch) -> None:
        """Raise a sentence where the minibatch does not fit the network or the likelihood."""
        evaluation.check_batch(self, batch)

    @torch.no_grad()
    def probe(self, batch: data_.Batch) -> Tensor:
        """A loss of the mean weights."""
        output = self.predictor(0, None).outputs(batch.x)[0]
        return self.likelihood.log_prob(output, batch.y).sum() + self.kl()

    def entry(self, means: Mapping[str, float]) -> dict[str, float]:
        """NLL per datum, KL and ELBO in nats."""
        assert self.n_data is not None
        return {**means, "elbo": -self.n_data * means["nll"] - means["kl"]}

    def headline(self, entry: Mapping[str, float]) -> str:
        """NLL, KL and ELBO, and the ELBO of held-out data."""
        shown = f"NLL {entry['nll']:.4g}  KL {entry['kl']:.4g}  ELBO {entry['elbo']:.5g}"
        return f"{shown}  held-out ELBO {entry['validation_elbo']:.4g}" if "validation_elbo" in entry else shown

    def held_out_scores(self, held_out: Dataset[Any] | DataLoader[Any], seed: int) -> dict[str, float]:
        """Mean log predictive density and ELBO per held-out datum."""
        assert self.n_data is not None
        return evaluation.score(self, held_out, _VALIDATION_SAMPLES, seed, self.n_data)

    def parameter_groups(self, weight_decay: float = 0.0) -> list[dict[str, Any]]:
        """Parameter groups for an optimizer; ``weight_decay`` reaches the network's weights only, never scales.

        Without weight decay all parameters are one group, which a fused optimizer updates in one kernel.
        """
        if weight_decay == 0.0:
            return [{"params": [p for p in self.parameters() if p.requires_grad], "weight_decay": 0.0}]
        weights = [p for p in self.net.parameters() if p.requires_grad]
        known = {id(p) for p in weights}
        others = [p for p in self.parameters() if p.requires_grad and id(p) not in known]
        groups: list[dict[str, Any]] = [{"params": weights, "weight_decay": weight_decay}]
        return [*groups, {"params": others, "weight_decay": 0.0}] if others else groups

    def summary(self) -> str:
        """Which parameters are Bayesian, and how, a line each."""
        bayesian = set(self.posterior.names())
        lines = []
        for name, parameter in self.net.named_parameters():
            other = "deterministic" if parameter.requires_grad else "frozen"
            kind = self.kind_of(name) if name in bayesian else other
            lines.append(f"{name:<40} {list(parameter.shape)!s:<20} {kind}")
        total = sum(p.numel() for p in self.net.parameters())
        covered = sum(p.numel() for name, p in self.net.named_parameters() if name in bayesian)
        return "\n".join([*lines, f"{covered:,} of {total:,} parameters are Bayesian"])

    def kind_of(self, name: str) -> str:
        """What :meth:`summary` says of a parameter that the posterior covers."""
        return "Bayesian"

    def network_card(self) -> dict[str, object]:
        """The network's class, and how to build it where it comes from ``credo.architectures``."""
        return {**describe_network(self.net), "custom_forward": self.call is not None}

    def get_config(self) -> dict[str, object]:
        """The likelihood, and what the method adds."""
        return {"likelihood": None if self.likelihood_is_open else self.likelihood.get_config(), **self.own_config()}

    @abstractmethod
    def own_config(self) -> dict[str, object]:
        """What JSON can hold of the arguments that are this method's own."""

    @classmethod
    def from_config(cls, config: dict[str, Any], net: Any, **overrides: Any) -> Self:
        """Build the method again, with the network and what JSON could not hold."""
        arguments = {**config, **overrides}
        for key, build in (("likelihood", likelihood_from_config), ("prior", prior_from_config)):
            if isinstance(arguments.get(key), dict) and key not in overrides:
                arguments[key] = build(arguments[key])
        if "prior" in config and arguments["prior"] is None:
            raise LoadError("its prior is not one that JSON can hold; pass it: credo.load(path, net, prior=...)")
        return cls(net, **arguments)

    @property
    def device(self) -> torch.device:
        """Where the network lives."""
        return next(self.net.parameters(), torch.empty(0)).device

    @property
    def dtype(self) -> torch.dtype:
        """The floating-point type of the network's parameters."""
        return next((p.dtype for p in self.net.parameters() if p.is_floating_point()), torch.get_default_dtype())

    def weighted_nll(self, log_likelihood: Tensor, sample_weight: Tensor | None) -> Tensor:
        """−mean over rows of the (weighted) log likelihood ``[B]``; 0 for an empty batch."""
        if sample_weight is not None:
            if sample_weight.shape != log_likelihood.shape:
                raise InputError(
                    f"sample_weight must have one number a row, shape {list(log_likelihood.shape)}, "
                    f"got {list(sample_weight.shape)}"
                )
            log_likelihood = log_likelihood * sample_weight
        return -log_likelihood.sum() / max(log_likelihood.shape[0], 1)


class NetworkPredictor(Predictor):
    """Predicts with one network, its posterior and its likelihood."""

    def __init__(self, method: NetworkMethod, samples: int, seed: int | None) -> None:
        check_integer(samples, "samples", minimum=0)
        self._method = method
        self._likelihood = method.likelihood
        posterior = method.posterior
        base = check_seed(seed if samples else 0)

        def build() -> Replica:
            replica = Replica(method.net, method.call, own_buffers=True)
            replica.net.eval()
            return replica

        if samples == 0:
            point = posterior.point()
            self._evaluate = Evaluator(build, lambda network, draw, x: network(draw, x), lambda _: [point], 1, base)
        else:
            draw = posterior.sampler(base)
            self._evaluate = Evaluator(build, posterior.call, draw, samples, base, posterior.vectorizable)

    def outputs(self, x: Any, batch_size: int | None = None) -> Tensor:
        """The network's outputs ``[S, B, ...]``."""
        if batch_size is not None and batch_size < 1:
            raise InputError(f"batch_size must be at least 1, got {batch_size}")
        x = data_.prepare_input(x, self._method.device, self._method.dtype)
        self._method.inspect(x)
        return self._evaluate(x, batch_size)

    @torch.no_grad()
    def __call__(self, x: Any, batch_size: int | None = None) -> Predictive:
        """The predictive distribution for the rows of ``x``."""
        if self._method.likelihood_is_open:
            raise InputError(
                "it is not known yet what the network's output means: fit the model first, or say so with "
                "likelihood=credo.Categorical(), credo.Gaussian(...), ..."
            )
        return self._likelihood.predictive(self.outputs(x, batch_size))


def describe_network(net: nn.Module) -> dict[str, object]:
    """The network's class and size, and its recipe where it comes from ``credo.architectures``."""
    card: dict[str, object] = {"class": type(net).__name__, "parameters": sum(p.numel() for p in net.parameters())}
    recipe = architectures.describe(net)
    return card if recipe is None else {**card, "architecture": recipe}
