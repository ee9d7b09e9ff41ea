"""How each method is trained on a table: network, prior and length of training, the same for all tables.

A registered method can be used by :class:`credo.Regressor`, :class:`credo.Classifier` and the command line. The
settings of Bayes by Backprop were chosen by the log likelihood of held-out parts of the *training* folds of nine
regression tables (``benchmarks/uci.py``), without their test folds; those for few rows on parts of scikit-learn's
diabetes, iris and wine tables. For classes, ``benchmarks/classifier_defaults.py`` compares hyperpriors and temperatures
inside training folds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from credo._arguments import check_integer
from credo._threads import one_thread
from credo.architectures import MLP
from credo.errors import InputError, UnsupportedError, unknown_name
from credo.likelihoods import Categorical, Gaussian, Likelihood, Ordinal
from credo.methods import MAP, BayesByBackprop, DeepEnsemble, MCDropout
from credo.methods.base import Method
from credo.posteriors import MeanField
from credo.priors import AdaptiveNormal, Normal
from credo.training.optimizers import adam

FEW_ROWS = 200
"""With fewer rows the default network is narrow, and the noise is the same for all rows."""

HIDDEN, HIDDEN_FOR_FEW_ROWS = (50, 50), (10,)
MIN_STEPS, MAX_STEPS, STEPS_PER_ROW = 2_000, 16_000, 60
MIN_BATCH_SIZE, MAX_BATCH_SIZE, BATCHES_PER_EPOCH = 128, 4096, 320
MIN_PRODUCTS_FOR_THREADS = 2**24
"""Per step; below, threads cost more time than they save."""

Rows = tuple[NDArray[Any], ...]
"""Features ``[N, D]`` and encoded targets ``[N, K]`` or ``[N]``, and the weights of rows ``[N]`` if they have any."""


@dataclass(frozen=True)
class TrainingPlan:
    """The length of training on a table and its batches.

    Attributes:
        rows: the number of rows of the training table.
        epochs: passes over it.
        batch_size: rows per step.
        lr: learning rate at the start.
    """

    rows: int
    epochs: int
    batch_size: int
    lr: float

    @classmethod
    def make(
        cls,
        rows: int,
        epochs: int | None = None,
        batch_size: int | None = None,
        lr: float = 0.01,
        step_factor: float = 1.0,
    ) -> TrainingPlan:
        """Fill in what is not given.

        By default batches have 128 rows up to 80,000 rows, then there are about 320 per epoch; there are 60 steps per
        row, between 2,000 and 16,000 in all, times ``step_factor``.
        """
        epochs = None if epochs is None else check_integer(epochs, "epochs", minimum=1)
        batch_size = None if batch_size is None else check_integer(batch_size, "batch_size", minimum=1)
        if batch_size is None:
            doublings = math.floor(math.log2(max(rows / BATCHES_PER_EPOCH, 1.0)))
            batch_size = min(max(2**doublings, MIN_BATCH_SIZE), MAX_BATCH_SIZE)
        if epochs is None:
            steps = min(max(STEPS_PER_ROW * rows, MIN_STEPS), MAX_STEPS)
            epochs = math.ceil(step_factor * steps / math.ceil(rows / batch_size))
        return cls(rows, epochs, batch_size, lr)

    @property
    def has_few_rows(self) -> bool:
        """Whether there are fewer than :data:`FEW_ROWS` rows."""
        return self.rows < FEW_ROWS

    @property
    def steps(self) -> int:
        """The total number of optimizer steps."""
        return self.epochs * math.ceil(self.rows / self.batch_size)


def hidden_layers(given: object, rows: int, method: TabularMethod) -> tuple[int, ...]:
    """The widths of the hidden layers: those that are given, or the default of the method for this number of rows."""
    if given is None and method.hidden is not None:
        return method.hidden(rows) if callable(method.hidden) else method.hidden
    if given is None:
        return HIDDEN_FOR_FEW_ROWS if rows < FEW_ROWS else HIDDEN
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise InputError(f"hidden must be the widths of the hidden layers, such as (50, 50), got {given!r}")
    return tuple(given)


@dataclass(frozen=True)
class NetworkSpec:
    """What a method builds its model from.

    Attributes:
        in_features: the number of features of the encoded table.
        outputs: the number of outputs of the network.
        likelihood: p(y | outputs).
        hidden: widths of the hidden layers.
        activation: the activation function between them.
        plan: the plan of the training.
        features: the encoded rows of training ``[N, D]``, for networks with knots at their quantiles; ``None``: none.
    """

    in_features: int
    outputs: int
    likelihood: Likelihood
    hidden: tuple[int, ...]
    activation: str
    plan: TrainingPlan
    features: NDArray[Any] | None = None

    def network(self, dropout: float | None = None, constants: int = 0) -> MLP:
        """A linear function plus a multilayer perceptron, with random initial weights."""
        return MLP(
            self.in_features,
            self.hidden,
            self.outputs,
            activation=self.activation,
            dropout=dropout,
            skip=bool(self.hidden),
            constants=constants,
        )


class Train(Protocol):
    """Trains a model on the rows of a table."""

    def __call__(
        self,
        model: Any,
        rows: Rows,
        plan: TrainingPlan,
        *,
        validation: Rows | None,
        held_out: Sequence[NDArray[np.intp]],
        seed: int,
        device: str | None,
        progress: bool | None,
    ) -> None:
        """Train ``model``, which the method built, in place.

        Args:
            model: the untrained model.
            rows: the rows to train on.
            plan: the plan of the training.
            validation: rows by whose log likelihood training is stopped early; ``None``: it is not.
            held_out: the parts of ``rows``, as positions, that networks hold out in turn, for a method with ``folds``.
            seed: of everything random.
            device: the device; ``None``: where the model is.
            progress: whether to show a progress bar; ``None``: only in a terminal.
        """


def train_in_epochs(
    model: Any,
    rows: Rows,
    plan: TrainingPlan,
    *,
    validation: Rows | None,
    held_out: Sequence[NDArray[np.intp]],
    seed: int,
    device: str | None,
    progress: bool | None,
) -> None:
    """Train by gradient descent on minibatches.

    Args:
        model: the untrained model.
        rows: features and encoded targets, and weights if rows have them.
        plan: epochs, batch size and learning rate.
        validation: rows by whose log likelihood training is stopped early; ``None``: it is not.
        held_out: not used.
        seed: of everything random.
        device: where to train; ``None``: where the model is.
        progress: whether to show a progress bar; ``None``: only in a terminal.
    """
    stopping = {"validation": validation, "monitor": "log_likelihood", "patience": max(plan.epochs // 5, 5)}
    with one_thread(sum(p.numel() for p in model.parameters()) * plan.batch_size < MIN_PRODUCTS_FOR_THREADS):
        model.fit(
            rows,
            epochs=plan.epochs,
            batch_size=plan.batch_size,
            lr=plan.lr,
            optimizer=adam,  # the defaults of plan and lr were chosen with it
            seed=seed,
            device=device,
            progress=progress,
            **({} if validation is None else stopping),
        )


@dataclass(frozen=True)
class TabularMethod:
    """A method and its settings for tables.

    Attributes:
        name: its name in ``method=``.
        title: its name in tables and reports.
        build: returns the untrained model for a :class:`NetworkSpec`; further keywords are the user's
            ``method_options``.
        step_factor: the number of training steps, relative to the default of :class:`TrainingPlan`.
        early_stopping: whether a tenth of the rows is held out and training stops when their log likelihood no longer
            rises, as a point estimate needs; a posterior is regularized by its KL term.
        posterior_as_prior: from a trained model to one whose prior is its posterior, for ``partial_fit``; ``None`` if
            the method has none.
        train: trains the model.
        hidden: widths of the hidden layers, or a function from the number of rows to them, if the user gives none;
            ``None``: (50, 50), or (10,) for less than 200 rows.
        folds: from encoded targets to the number of parts that networks hold out in turn; ``None``: none is held out.
        has_epochs: whether ``epochs``, ``batch_size`` and ``lr`` apply; a sampler uses all rows in every step.

    Example:
        >>> from credo.methods import MAP
        >>> from credo.tabular import TabularMethod, register
        >>> def build(spec, **options):
        ...     return MAP(spec.network(), spec.likelihood, **options)
        >>> register(TabularMethod("my_map", "MAP without early stopping", build))
    """

    name: str
    title: str
    build: Callable[..., Method]
    step_factor: float = 1.0
    early_stopping: bool = False
    posterior_as_prior: Callable[[Any], Method] | None = None
    train: Train = train_in_epochs
    hidden: tuple[int, ...] | Callable[[int], tuple[int, ...]] | None = None
    folds: Callable[[NDArray[Any]], int] | None = None
    has_epochs: bool = True


_METHODS: dict[str, TabularMethod] = {}


def register(method: TabularMethod) -> None:
    """Register a method under its name, or replace the one registered under it.

    Args:
        method: the method and its settings.
    """
    _METHODS[method.name] = method


def names() -> list[str]:
    """The names of the registered methods."""
    return list(_METHODS)


def get(name: str) -> TabularMethod:
    """The method registered under ``name``."""
    if name not in _METHODS:
        raise unknown_name("method", name, _METHODS)
    return _METHODS[name]


def _bayes_by_backprop(spec: NetworkSpec, **options: Any) -> BayesByBackprop:
    """Bayes by Backprop with a learned prior scale per layer and a KL warm-up, without which layers are pruned early.

    With few rows the prior scale is determined by its hyperprior, which is narrow for regression, where it sets the
    width of the error bars. A noise that is the same for all rows is one of the weights: its log variance has a
    posterior like the others, which ``partial_fit`` uses as its prior. For classes, with more than a few rows, the
    temperature is 0.5: the log loss inside training folds is lower (``benchmarks/classifier_defaults.py``).
    """
    is_class = isinstance(spec.likelihood, Categorical | Ordinal)
    narrow = spec.plan.has_few_rows and not is_class
    shared_noise = isinstance(spec.likelihood, Gaussian) and spec.likelihood.noise == "learned"
    likelihood = Gaussian(noise="heteroscedastic") if shared_noise else spec.likelihood
    prior = AdaptiveNormal(rate=0.3 if narrow else 3.0)
    settings: dict[str, Any] = {
        "prior": {"constants.*": Normal(0.0, 2.0), "*": prior} if shared_noise else prior,
        "kl_warmup": round(0.6 * spec.plan.steps),
        "temperature": 0.5 if is_class and not spec.plan.has_few_rows else 1.0,
    }
    patterns = options.get("bayesian", "*")
    if shared_noise and patterns != "*":
        options = options | {"bayesian": [*([patterns] if isinstance(patterns, str) else patterns), "constants.*"]}
    return BayesByBackprop(
        spec.network(constants=spec.outputs if shared_noise else 0), likelihood, **(settings | options)
    )


def _continue_bayes_by_backprop(old: BayesByBackprop) -> BayesByBackprop:
    """The old posterior is the prior and the start of training; parameters without a posterior are frozen."""
    if not isinstance(old.posterior, MeanField):
        raise UnsupportedError(
            "partial_fit uses the old posterior as a prior for every weight by itself, which a posterior with rank > 0 "
            "is not; use rank=0, or fit on all data"
        )
    mean, scale = old.posterior.mean(), {name: s.detach() for name, s in old.posterior.scale().items()}
    prior = {name: Normal(mean[name].clone(), scale[name].clone()) for name in mean}
    for name, parameter in old.net.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and name in mean)
    new = BayesByBackprop(
        old.net,
        old.likelihood,
        prior,
        bayesian=list(mean),
        estimator=old.estimator,
        kl=old._kl,
        kl_weighting=old._kl_weighting,
        temperature=old.temperature,
        samples=old._samples,
        forward=old._forward,
    )
    assert isinstance(new.posterior, MeanField)
    new.posterior.rho.load_state_dict(old.posterior.rho.state_dict())
    return new


def _mc_dropout(spec: NetworkSpec, *, p: float = 0.05, **options: Any) -> MCDropout:
    return MCDropout(spec.network(dropout=p), spec.likelihood, **options)


def _map(spec: NetworkSpec, **options: Any) -> MAP:
    return MAP(spec.network(), spec.likelihood, **options)


def _ensemble(spec: NetworkSpec, *, members: int = 5, **options: Any) -> DeepEnsemble:
    return DeepEnsemble(spec.network, members, likelihood=spec.likelihood, **options)


register(TabularMethod("bbb", "Bayes by Backprop", _bayes_by_backprop, posterior_as_prior=_continue_bayes_by_backprop))
register(TabularMethod("mc_dropout", "MC dropout", _mc_dropout, step_factor=0.5, early_stopping=True))
register(TabularMethod("ensemble", "Deep ensemble", _ensemble, step_factor=0.25, early_stopping=True))
register(TabularMethod("map", "MAP, one network", _map, step_factor=0.25, early_stopping=True))
