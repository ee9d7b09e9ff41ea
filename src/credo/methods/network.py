"""Methods with one network: the loss, prediction and serialization."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from typing_extensions import override

from credo import data as data_
from credo import io
from credo._arguments import check_integer
from credo._notices import notify
from credo.errors import InputError, LoadError
from credo.evaluation import Evaluator, Findings
from credo.functional import Caller, Forward, Replica
from credo.likelihoods import Gaussian, Likelihood, infer_likelihood, likelihood_from_config
from credo.methods.base import Method, Predictor, check_samples, describing_input
from credo.model import Model
from credo.moments import MomentEvaluator
from credo.nests import first_rows
from credo.posteriors.base import Posterior
from credo.predictive import Predictive
from credo.priors import from_config as prior_from_config
from credo.probing import ROWS, check_weights_are_used
from credo.seeding import check_seed, reproducible, seeded
from credo.selection import check_network
from credo.training.optimizers import weight_decay_groups
from credo.training.supervised import SupervisedTask, Terms, likelihood_noise


class NetworkMethod(Method):
    r"""A method with one network, one likelihood and one posterior, trained by gradient.

    The loss per datum is

        loss = −(1/T)·mean_rows log p(y | x, w) + c·KL/n_data,

    with c = 1 except under a KL weighting or warm-up. A datum is one row of dim 0; its log likelihood sums over its
    outputs. ``n_data`` is the size of the whole training set, over all processes.

    Args:
        net: the network; its parameters are the means of the posterior.
        likelihood: p(y | f(x)); ``None``: chosen from the dtype of the targets.
        forward: ``callable(net, x)`` for networks with unusual inputs or outputs, or ``None``.

    Attributes:
        posterior: the distribution over the weights.
        temperature: T.
    """

    posterior: Posterior
    temperature: float = 1.0
    _last_terms: Terms | None = None
    _inspected: frozenset[bool] = frozenset()
    _derived: ClassVar[frozenset[str]] = frozenset()
    """Attributes that :meth:`_derive` builds; copies and pickles leave them out."""

    def __init__(self, net: nn.Module, likelihood: Likelihood | None, forward: Forward | None) -> None:
        super().__init__()
        if likelihood is not None and not isinstance(likelihood, Likelihood):
            raise InputError(
                "likelihood must be a credo likelihood such as credo.Gaussian() or credo.Categorical(), an object and "
                f"not a class, got {getattr(likelihood, '__name__', type(likelihood).__name__)}"
            )
        if isinstance(net, Model):
            raise InputError(
                f"net is a {type(net).__name__} already; pass the plain network, and the method of an ensemble as base="
            )
        self.net = check_network(net)
        self.likelihood: Likelihood = likelihood or Gaussian(noise="learned")
        self._likelihood_is_open = likelihood is None
        self.likelihood.to(self.device)
        self._forward = forward
        self._findings = Findings()

    def _derive(self) -> None:
        """Build what follows from the rest, such as private replicas and hooks."""
        self._follow_parameters()

    def _follow_parameters(self) -> None:
        """Move what is neither parameter nor buffer to the device and dtype of the parameters."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._follow_parameters()
        return self

    def __getstate__(self) -> dict[str, Any]:
        left_out = self._derived | {"_last_terms", "_inspected", "_findings"}
        state: dict[str, Any] = super().__getstate__()  # type: ignore[no-untyped-call]
        return {key: value for key, value in state.items() if key not in left_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._last_terms = None
        self._findings = Findings()
        self._derive()

    def _inspect(self, x: Any, training: bool = False) -> None:
        """On a first batch, raise ``UnsupportedError`` if the network does not compute with the weights passed to it.

        Args:
            x: a batch.
            training: check in training mode, and also for checkpointing, which would run parts of the network again in
                the backward pass, without those weights.
        """
        if training in self._inspected:
            return
        probe = Replica(self.net, self._forward, own_buffers=True)
        for module in probe.net.modules():
            module.training &= training and not isinstance(module, _NormBase)
        reproducible(
            lambda: check_weights_are_used(probe, probe.net, first_rows(x, ROWS), backward=training), self.device
        )
        self._inspected |= {training}

    @abstractmethod
    def terms(self, x: Any, y: Tensor, sample_weight: Tensor | None = None) -> Terms:
        """The two parts of the loss of a minibatch.

        Args:
            x: inputs, rows along dim 0.
            y: targets.
            sample_weight: ``[B]``, multiplies the log likelihood of each row.

        Returns:
            Negative log likelihood per row and KL, both in nats and differentiable.
        """

    def _point_terms(self, x: Any, y: Tensor, sample_weight: Tensor | None) -> Terms:
        """The terms at the network's own weights."""
        self._resolve_likelihood(y)
        output = Caller(self.net, self._forward)(x)
        return Terms(self._weighted_nll(self.likelihood.log_prob(output, y), sample_weight), self.kl())

    @abstractmethod
    def kl(self) -> Tensor:
        """KL(q ‖ p) of the weights, or −log p(w) for a point estimate; needs no forward pass.

        Returns:
            A scalar in nats, differentiable.
        """

    def _training_task(self) -> SupervisedTask[Any]:
        return SupervisedTask(self)

    def _prepare(self, x: Any) -> None:
        """Do on a batch what must not happen inside a compiled step."""

    def _kl_weight(self, batch: tuple[int, int] | None) -> float | None:
        """c for minibatch i of M, counted from 1, whose mean over an epoch is 1; ``None``: 1 for all."""
        return None

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
        """The loss per row, differentiable.

        Args:
            x: inputs, rows along dim 0.
            y: targets.
            n_data: the number of data in the whole training set; known after ``fit``.
            sample_weight: ``[B]``, multiplies the log likelihood of each row.
            batch: (i, M) for minibatch i of M, counted from 1; used by a KL weighting by minibatch.
            kl_weight: c itself, instead of ``batch``.

        Returns:
            The loss in nats, a scalar.
        """
        n_data = n_data if n_data is not None else self.n_data
        if n_data is None or n_data < 1:
            raise InputError(
                f"n_data must be the number of data in the whole training set, got {n_data}: "
                "the KL is shared between all of them; pass n_data=len(dataset)"
            )
        terms = self.terms(x, y, sample_weight)
        self._last_terms = Terms(terms.nll.detach(), terms.kl.detach())
        weight = self._kl_weight(batch) if kl_weight is None else kl_weight
        factor = (1.0 if weight is None else weight) * self._kl_factor()
        nll = terms.nll if self.temperature == 1.0 else terms.nll / self.temperature
        return nll + (factor / n_data) * terms.kl

    def _kl_factor(self) -> float | Tensor:
        """A factor on the KL during warm-up; counts this training step."""
        return 1.0

    def nll(self, x: Any, y: Tensor, sample_weight: Tensor | None = None) -> Tensor:
        """The negative log likelihood of a minibatch, from one pass as in training.

        Args:
            x: inputs, rows along dim 0.
            y: targets.
            sample_weight: ``[B]``, multiplies the log likelihood of each row.

        Returns:
            A scalar in nats per row, differentiable.
        """
        return self.terms(x, y, sample_weight).nll

    def _predictor(self, samples: int | str, seed: int | None) -> NetworkPredictor:
        """Predicts with ``samples`` fixed draws, or by moments."""
        return NetworkPredictor(self, samples, seed)

    @override
    @torch.no_grad()
    def elbo(self, data: Any, samples: int = 10, seed: int | None = None) -> float:
        check_integer(samples, "samples", minimum=1)
        with seeded(seed, self.device):
            kl = float(self.kl())
        predictor = self._predictor(samples, seed)
        total = 0.0
        with likelihood_noise(seed, self.device):
            for x, y, weight in data_.batches(data, 4096, self.device, self.dtype):
                self._resolve_likelihood(y)
                outputs = predictor.outputs(x)
                rows = torch.stack([self.likelihood.log_prob(output, y) for output in outputs]).mean(0)
                total += float((rows if weight is None else rows * weight).double().sum())
        return total - kl

    def _resolve_likelihood(self, y: Tensor) -> None:
        """Choose the likelihood from the dtype of the targets, if none was given."""
        if not self._likelihood_is_open:
            return
        inferred = infer_likelihood(y)
        if type(inferred) is not type(self.likelihood):
            self.likelihood = inferred.to(y.device)
        self._likelihood_is_open = False
        if not torch.compiler.is_compiling():
            dtype = str(y.dtype).removeprefix("torch.")
            notify(
                f"likelihood {self.likelihood!r} follows from the {dtype} targets; pass likelihood= to choose another"
            )

    def _check_likelihood_is_known(self) -> None:
        """Raise ``InputError`` if the likelihood follows from targets that were not seen yet."""
        if self._likelihood_is_open:
            raise InputError(
                "the likelihood is not known yet: fit the model first, or pass likelihood=credo.Categorical(), "
                "credo.Gaussian(...), ..."
            )

    @override
    def parameter_groups(self, weight_decay: float = 0.0) -> list[dict[str, Any]]:
        return weight_decay_groups(self, [self.net], weight_decay)

    @override
    def summary(self) -> str:
        bayesian = set(self.posterior.names())
        lines = []
        for name, parameter in self.net.named_parameters():
            other = "deterministic" if parameter.requires_grad else "frozen"
            kind = self._describe_parameter(name) if name in bayesian else other
            lines.append(f"{name:<40} {list(parameter.shape)!s:<20} {kind}")
        total = sum(p.numel() for p in self.net.parameters())
        covered = sum(p.numel() for name, p in self.net.named_parameters() if name in bayesian)
        lines.append(f"{covered:,} of {total:,} parameters are Bayesian")
        return "\n".join(lines if self._training_path is None else [*lines, f"trained by {self._training_path}"])

    def _describe_parameter(self, name: str) -> str:
        """The description of a Bayesian parameter in :meth:`summary`."""
        return "Bayesian"

    def _describe_networks(self) -> dict[str, object]:
        return {**io.describe_network(self.net), "custom_forward": self._forward is not None}

    def _get_config(self) -> dict[str, object]:
        return {"likelihood": None if self._likelihood_is_open else self.likelihood.get_config(), **self._own_config()}

    @abstractmethod
    def _own_config(self) -> dict[str, object]:
        """What JSON can hold of the arguments that this method adds."""

    @classmethod
    def _check_sizes(cls, config: dict[str, Any], tensors: Mapping[str, Tensor]) -> None:
        super()._check_sizes(config, tensors)
        io.check_count(config.get("bayesian"), max(io.LARGEST_UNBACKED_SIZE, len(tensors)))

    @classmethod
    def _from_config(cls, config: dict[str, Any], net: Any, **overrides: Any) -> Self:
        arguments = {**config, **overrides}
        for key, build in (("likelihood", likelihood_from_config), ("prior", prior_from_config)):
            if isinstance(arguments.get(key), dict) and key not in overrides:
                arguments[key] = build(arguments[key])
        if "prior" in config and arguments["prior"] is None:
            raise LoadError("its prior could not be described in JSON; pass it: credo.load(path, net, prior=...)")
        return cls(net, **arguments)

    def _weighted_nll(self, log_likelihood: Tensor, sample_weight: Tensor | None) -> Tensor:
        """−mean over rows of the weighted log likelihood ``[B]``; 0 for an empty batch."""
        if sample_weight is not None:
            if sample_weight.shape != log_likelihood.shape:
                raise InputError(
                    f"sample_weight must have one number per row, shape {list(log_likelihood.shape)}, "
                    f"got {list(sample_weight.shape)}"
                )
            log_likelihood = log_likelihood * sample_weight
        return -(log_likelihood.mean() if log_likelihood.shape[0] else log_likelihood.sum())


class NetworkPredictor(Predictor):
    """Predicts with one network, its posterior and its likelihood."""

    def __init__(self, method: NetworkMethod, samples: int | str, seed: int | None) -> None:
        samples = check_samples(samples)
        self._method = method
        self._likelihood = method.likelihood
        posterior = method.posterior
        base = check_seed(seed if samples not in (0, "moments") else 0)
        self._evaluate: Evaluator | MomentEvaluator

        def build() -> Replica:
            replica = Replica(method.net, method._forward, own_buffers=True)
            replica.net.eval()
            return replica

        if isinstance(samples, str):
            self._evaluate = MomentEvaluator(build, posterior)
        elif samples == 0:
            point = posterior.point()
            self._evaluate = Evaluator(build, None, lambda _: [point], 1, base, Findings())
        else:
            sampler = posterior.sampler(base)
            self._evaluate = Evaluator(build, posterior, sampler, samples, base, method._findings, method.net)

    def outputs(self, x: Any, batch_size: int | None = None, vectorize: str = "auto") -> Tensor:
        """The network's outputs ``[S, B, ...]``."""
        if batch_size is not None:
            check_integer(batch_size, "batch_size", minimum=1)
        x = data_.prepare_input(x, self._method.device, self._method.dtype)
        with describing_input(x):
            self._method._inspect(x)
            if isinstance(self._evaluate, MomentEvaluator):
                return self._evaluate(x, batch_size)
            return self._evaluate(x, batch_size, vectorize)

    @torch.no_grad()
    def __call__(self, x: Any, batch_size: int | None = None, vectorize: str = "auto") -> Predictive:
        """The predictive distribution for the rows of ``x``."""
        self._method._check_likelihood_is_known()
        return self._likelihood.predictive(self.outputs(x, batch_size, vectorize))
