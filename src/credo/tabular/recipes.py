"""How a table is learned by each method: the network, the prior and the length of training, chosen once for all tables.

A method is known to :class:`credo.Regressor`, :class:`credo.Classifier` and the command line once its recipe is
registered; nothing else needs to change. The settings of Bayes by Backprop were chosen by the log likelihood of
held-out parts of the *training* folds of nine regression tables (``benchmarks/uci.py``), whose test folds were not
looked at; those for few rows on parts of scikit-learn's diabetes, iris and wine tables. For classes,
``benchmarks/classifier_defaults.py`` compares hyperpriors and temperatures inside training folds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from credo.architectures import MLP
from credo.errors import InputError, unknown_name
from credo.likelihoods import Categorical, Gaussian, Likelihood
from credo.methods import MAP, BayesByBackprop, DeepEnsemble, MCDropout
from credo.methods.base import Method
from credo.priors import AdaptiveNormal, Normal

FEW_ROWS = 200
"""Fewer rows support a narrow network only, and cannot tell how the noise varies from row to row."""

WIDTHS, WIDTHS_FOR_FEW_ROWS = (50, 50), (10,)
MOST_STEPS, FEWEST_STEPS, STEPS_PER_ROW = 16_000, 2_000, 60
SMALLEST_BATCH, LARGEST_BATCH, BATCHES_PER_EPOCH = 128, 4096, 320


@dataclass(frozen=True)
class Plan:
    """How long to train on a table, and in what steps.

    Attributes:
        rows: in the training table.
        epochs: passes over it.
        batch_size: rows a step.
        lr: learning rate at the start.
    """

    rows: int
    epochs: int
    batch_size: int
    lr: float

    @classmethod
    def make(
        cls, rows: int, epochs: int | None = None, batch_size: int | None = None, lr: float = 0.01, effort: float = 1.0
    ) -> Plan:
        """The plan for a table of ``rows``, with what was not said filled in.

        Batches of 128 rows up to 80,000 rows, then about 320 an epoch; 60 steps for every row, between 2,000 and
        16,000 of them, times ``effort``: enough for a small table, and no more than that for a large one.
        """
        given: dict[str, object] = {"epochs": epochs, "batch_size": batch_size}
        for name, value in given.items():
            if value is not None and (isinstance(value, bool) or not isinstance(value, Integral) or int(value) < 1):
                raise InputError(f"{name} must be an integer of at least 1, or None, got {value!r}")
        if batch_size is None:
            doublings = math.floor(math.log2(max(rows / BATCHES_PER_EPOCH, 1.0)))
            batch_size = min(max(2**doublings, SMALLEST_BATCH), LARGEST_BATCH)
        if epochs is None:
            steps = min(max(STEPS_PER_ROW * rows, FEWEST_STEPS), MOST_STEPS)
            epochs = math.ceil(effort * steps / math.ceil(rows / batch_size))
        return cls(rows, epochs, batch_size, lr)

    @property
    def has_few_rows(self) -> bool:
        """Whether there are too few rows for a wide network."""
        return self.rows < FEW_ROWS

    @property
    def steps(self) -> int:
        """Steps of training in all."""
        return self.epochs * math.ceil(self.rows / self.batch_size)


@dataclass(frozen=True)
class Task:
    """What a recipe builds a model for.

    Attributes:
        in_features: columns of the encoded table.
        outputs: numbers the network outputs.
        likelihood: p(y | outputs).
        hidden: widths of the hidden layers.
        activation: between them.
        plan: of the training.
    """

    in_features: int
    outputs: int
    likelihood: Likelihood
    hidden: tuple[int, ...]
    activation: str
    plan: Plan

    def network(self, dropout: float | None = None, constants: int = 0) -> MLP:
        """A straight line plus a multilayer perceptron, initialized at random."""
        return MLP(
            self.in_features,
            self.hidden,
            self.outputs,
            activation=self.activation,
            dropout=dropout,
            skip=bool(self.hidden),
            constants=constants,
        )


@dataclass(frozen=True)
class Recipe:
    """A method, as it learns tables.

    Attributes:
        name: what ``method=`` calls it.
        title: what tables and reports call it.
        build: the untrained model for a task; further keywords are the user's ``method_options``.
        effort: how many of a plan's steps it needs.
        stops_early: whether a tenth of the rows is held out of training to end it when their log likelihood no
            longer rises, as a point estimate needs; a posterior's complexity term does that without.
        carry_over: from a trained model to one whose prior is its posterior, or ``None`` where there is none.
    """

    name: str
    title: str
    build: Callable[..., Method]
    effort: float = 1.0
    stops_early: bool = False
    carry_over: Callable[[Any], Method] | None = None


_RECIPES: dict[str, Recipe] = {}


def register(recipe: Recipe) -> None:
    """Make a method known under its name, or change the recipe of a known one."""
    _RECIPES[recipe.name] = recipe


def names() -> list[str]:
    """The methods that tables can be learned by."""
    return list(_RECIPES)


def get(name: str) -> Recipe:
    """The recipe called ``name``."""
    if name not in _RECIPES:
        raise unknown_name("method", name, _RECIPES)
    return _RECIPES[name]


def _bayes_by_backprop(task: Task, **options: Any) -> BayesByBackprop:
    """Every layer finds its own prior scale, and the KL comes in slowly, so that no layer is given up at the start.

    Where few rows leave the scale to its hyperprior, that must be narrow for quantities, whose error bars it becomes.
    A noise that is the same for all rows is one of the weights: its log variance has a posterior like the others, which
    further rows continue from.
    """
    narrow = task.plan.has_few_rows and not isinstance(task.likelihood, Categorical)
    one_noise = isinstance(task.likelihood, Gaussian) and task.likelihood.noise == "learned"
    likelihood = Gaussian(noise="heteroscedastic") if one_noise else task.likelihood
    prior = AdaptiveNormal(rate=0.3 if narrow else 3.0)
    settings: dict[str, Any] = {
        "prior": {"constants.*": Normal(0.0, 2.0), "*": prior} if one_noise else prior,
        "kl_warmup": round(0.6 * task.plan.steps),
    }
    chosen = options.get("bayesian", "*")
    if one_noise and chosen != "*":
        options = options | {"bayesian": [*([chosen] if isinstance(chosen, str) else chosen), "constants.*"]}
    return BayesByBackprop(task.network(constants=int(one_noise)), likelihood, **(settings | options))


def _continue_bayes_by_backprop(old: BayesByBackprop) -> BayesByBackprop:
    """The old posterior is the prior, and where the search starts; parameters without a posterior stay as they are."""
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
    new.posterior.rho.load_state_dict(old.posterior.rho.state_dict())
    return new


def _mc_dropout(task: Task, *, p: float = 0.05, **options: Any) -> MCDropout:
    return MCDropout(task.network(dropout=p), task.likelihood, **options)


def _map(task: Task, **options: Any) -> MAP:
    return MAP(task.network(), task.likelihood, **options)


def _ensemble(task: Task, *, members: int = 5, **options: Any) -> DeepEnsemble:
    return DeepEnsemble(task.network, members, likelihood=task.likelihood, **options)


register(Recipe("bbb", "Bayes by Backprop", _bayes_by_backprop, carry_over=_continue_bayes_by_backprop))
register(Recipe("mc_dropout", "MC dropout", _mc_dropout, effort=0.5, stops_early=True))
register(Recipe("ensemble", "Deep ensemble", _ensemble, effort=0.25, stops_early=True))
register(Recipe("map", "MAP, one network", _map, effort=0.25, stops_early=True))
