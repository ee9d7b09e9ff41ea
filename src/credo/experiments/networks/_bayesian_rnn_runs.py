"""One training run of ``bayesian-rnn``: a method, a cell and a seed, measured as a record that JSON can hold."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

import credo
from credo._arguments import check_option
from credo.architectures import LanguageModel
from credo.datasets.files import Words
from credo.errors import InputError
from credo.experiments.networks._records import Record, rounded
from credo.seeding import seeded
from credo.sequence import (
    CarriedState,
    TokenStream,
    dynamic_evaluation,
    entropy_gap,
    perplexity,
    perplexity_bound,
)
from credo.training.optimizers import adam

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from credo.methods import NetworkMethod
    from credo.priors import Prior

METHODS = ("plain", "dropout", "bayes", "sharpened")
CELLS = ("lstm", "gru")
PRUNED = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)
DYNAMIC_RATES = (0.1, 0.3, 1.0, 3.0)
"""Learning rates of dynamic evaluation, of which the first tokens of the validation part choose one."""
DYNAMIC_TOKENS = 10_000
EVALUATION_LENGTH = 100
"""Steps of a minibatch where nothing is learned."""


@dataclass(frozen=True)
class Schedule:
    """How long a method is trained, after Zaremba et al. (2014): a constant learning rate, then a geometric decay.

    Attributes:
        epochs: passes over the text.
        constant_epochs: passes before the decay.
        decay: factor on the learning rate per epoch.
    """

    epochs: int
    constant_epochs: int
    decay: float


SCHEDULES = {
    "plain": Schedule(13, 4, 0.5),
    "dropout": Schedule(40, 16, 0.87),
    "bayes": Schedule(40, 16, 0.87),
    "sharpened": Schedule(40, 16, 0.87),
}
"""An LSTM without regularization is trained for a short time, before it overfits; the others for 40 epochs in place of
the 70 of the paper, whose learning rate is constant for 20 and then decays by 0.9."""


@dataclass(frozen=True)
class Variant:
    """One row of the paper's Table 1.

    Attributes:
        method: ``"plain"``; ``"dropout"``, variational dropout; ``"bayes"``, Bayes by Backprop; or ``"sharpened"``,
            with posterior sharpening.
        cell: ``"lstm"`` or ``"gru"``.
    """

    method: str
    cell: str = "lstm"

    @property
    def name(self) -> str:
        """Such as ``"bayes-lstm"``."""
        return f"{self.method}-{self.cell}"

    @property
    def is_bayesian(self) -> bool:
        """Whether it is trained by Bayes by Backprop."""
        return self.method in ("bayes", "sharpened")

    @classmethod
    def parse(cls, name: str) -> Self:
        """The variant of a :attr:`name`."""
        method, _, cell = name.partition("-")
        if method not in METHODS or cell not in CELLS:
            raise InputError(f"a row must have a name such as plain-lstm or bayes-gru, got {name!r}")
        return cls(method, cell)


@dataclass(frozen=True)
class Settings:
    """The hyper-parameters of a run.

    Attributes:
        width: units of a layer.
        layers: number of layers.
        batch_size: rows of the text that are read in parallel.
        length: steps of truncated backpropagation through time.
        epochs: passes over the text; ``None``: those of the method in ``SCHEDULES``.
        constant_epochs: passes before the learning rate decays; ``None`` likewise.
        decay: factor on the learning rate per epoch after them; ``None`` likewise.
        optimizer: ``"sgd"``, ``"adam"``, or ``"natural"`` for the default of the library.
        lr: learning rate at the start.
        gradient_clip: maximum norm of the gradient.
        tied: whether the output layer has the weights of the embedding; the papers' networks have their own.
        dropout: drop rate of the inputs of every layer, under variational dropout.
        recurrent_dropout: drop rate of the hidden states.
        word_dropout: drop rate of words.
        pi: weight of the wide component of the prior.
        sigma1: standard deviation of the wide component.
        sigma2: standard deviation of the narrow component.
        initial_scale: σ at the start; ``None``: drawn between fractions of the prior's standard deviation, ¼ and ½ for
            recurrent layers, ½ and 1 for others.
        temperature: T of Bayes by Backprop.
        sharpening: σ₀.
        draws: number of draws for perplexities and entropies at the end.
    """

    width: int = 650
    layers: int = 2
    batch_size: int = 20
    length: int = 35
    epochs: int | None = None
    constant_epochs: int | None = None
    decay: float | None = None
    optimizer: str = "sgd"
    lr: float = 1.0
    gradient_clip: float = 5.0
    tied: bool = False
    dropout: float = 0.35
    recurrent_dropout: float = 0.2
    word_dropout: float = 0.2
    pi: float = 0.25
    sigma1: float = math.exp(-1)
    sigma2: float = math.exp(-7)
    initial_scale: float | None = None
    temperature: float = 1.0
    sharpening: float = 0.02
    draws: int = 10

    def schedule(self, method: str) -> Schedule:
        """The length of the training of a method."""
        default = SCHEDULES[method]
        return Schedule(
            default.epochs if self.epochs is None else self.epochs,
            default.constant_epochs if self.constant_epochs is None else self.constant_epochs,
            default.decay if self.decay is None else self.decay,
        )


class OutOfTimeError(Exception):
    """The training was stopped at a checkpoint, from which the next call goes on."""


@dataclass(frozen=True)
class Interruption:
    """Where a training run may stop and go on later.

    Attributes:
        checkpoint: folder of its checkpoints.
        deadline: time of ``time.monotonic`` after which it stops at the next checkpoint.
        every: epochs between checkpoints.
    """

    checkpoint: Path
    deadline: float = math.inf
    every: int = 2

    def check_time(self, progress: str) -> None:
        """Raise ``OutOfTimeError`` after the deadline."""
        if time.monotonic() > self.deadline:
            raise OutOfTimeError(progress)


def measure(
    variant: Variant,
    data: Words,
    settings: Settings,
    seed: int,
    device: str | None = None,
    interruption: Interruption | None = None,
) -> Record:
    """Train one network and measure it.

    Args:
        variant: the method and the cell.
        data: the text.
        settings: the hyper-parameters.
        seed: of the initial weights, the training and the draws.
        device: device to train on; ``None`` is the CPU.
        interruption: where to store checkpoints, and when to stop.

    Returns:
        Perplexities of the validation part after every epoch and at the end, and of the test part, by the mean
        weights, by draws and with dynamic evaluation, and the bound under sharpening; the entropies of the test part
        and of its reverse; the perplexity of the validation part for each pruned fraction.

    Raises:
        OutOfTimeError: if the training was stopped.
    """
    with warnings.catch_warnings():  # that cuDNN copies drawn weights into one piece at every call, which costs little
        warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")
        return _measure(variant, data, settings, seed, device, interruption)


def _measure(
    variant: Variant,
    data: Words,
    settings: Settings,
    seed: int,
    device: str | None,
    interruption: Interruption | None,
) -> Record:
    train, valid, test = (part.to(device or "cpu") for part in (data.train, data.valid, data.test))
    with seeded(seed, torch.device("cpu")):
        model = build(variant, len(data.vocabulary), settings)
    seconds = _train(model, variant, train, valid, settings, seed, device, interruption)
    record: Record = {
        "variant": variant.name,
        "seed": seed,
        "settings": {**asdict(settings), **asdict(settings.schedule(variant.method))},
        "test_tokens": len(test),
        "valid_by_epoch": [rounded(entry["valid_perplexity"]) for entry in model.history],
        "train_nll_by_epoch": [rounded(entry["nll"] / settings.length) for entry in model.history],
        "valid": perplexity(model, as_it_is(valid)),
        "test": perplexity(model, as_it_is(test)),
        "dynamic": _dynamic_evaluation(model, valid, test, settings),
        "entropy": _entropies(model, test, settings, seed),
        "train_seconds": round(seconds, 1),
        "trained_by": model._training_path,
    }
    if variant.method != "plain":
        record["test_draws"] = perplexity(model, _in_rows(test, settings), settings.draws, seed)
    if variant.method == "sharpened":
        streams = {"valid": valid, "test": test}
        record["bound"] = {
            part: perplexity_bound(model, TokenStream(text, settings.batch_size, settings.length), 0, seed)
            for part, text in streams.items()
        }
    if isinstance(model, credo.BayesByBackprop):
        record["pruned"] = {}
        for fraction in PRUNED:  # weights that are pruned stay the lowest of the ranking
            model.prune(fraction)
            record["pruned"][f"{fraction:g}"] = perplexity(model, as_it_is(valid))
    return record


def as_it_is(text: Tensor) -> TokenStream:
    """The text as one row, from its first token to its last."""
    return TokenStream(text, batch_size=1, length=EVALUATION_LENGTH)


def build(variant: Variant, vocabulary: int, settings: Settings) -> NetworkMethod:
    """The untrained model of a variant."""
    rates = {}
    if variant.method == "dropout":
        rates = {key: getattr(settings, key) for key in ("dropout", "recurrent_dropout", "word_dropout")}
    net = CarriedState(LanguageModel(vocabulary, settings.width, settings.layers, variant.cell, settings.tied, **rates))
    likelihood = credo.Categorical()
    if variant.method == "plain":
        return credo.MAP(net, likelihood, credo.Normal(0.0, 1e3))
    if variant.method == "dropout":
        return credo.MCDropout(net, likelihood, length_scale=0.0)
    model = credo.BayesByBackprop(
        net,
        likelihood,
        _prior(settings),
        bayesian="*weight*",
        initial_scale=settings.initial_scale or settings.sigma1,
        estimator="weight",
        kl_warmup=0,
        temperature=settings.temperature,
        sharpening=settings.sharpening if variant.method == "sharpened" else None,
    )
    if settings.initial_scale is None:
        _draw_scales(model, math.sqrt(settings.pi * settings.sigma1**2 + (1.0 - settings.pi) * settings.sigma2**2))
    return model


def _prior(settings: Settings) -> Prior:
    """The weights of an input of a layer, or of a word, are wide or narrow together, as in the authors' code."""
    mixture = partial(credo.ScaleMixture, settings.pi, settings.sigma1, settings.sigma2)
    return {"*embedding*": mixture(dim=-1), "*": mixture(dim=-2)}


@torch.no_grad()
def _draw_scales(model: credo.BayesByBackprop, prior_scale: float) -> None:
    """Draw ρ uniformly between those of two fractions of the prior's standard deviation, as the authors' code does."""
    for name, parameter in model.net.named_parameters():
        rho = model.posterior.scale_parameters().get(parameter)
        if rho is not None:
            high = prior_scale / 2 if ".layers." in name else prior_scale
            rho.uniform_(*(math.log(math.expm1(scale)) for scale in (high / 2, high)))


def _train(
    model: NetworkMethod,
    variant: Variant,
    train: Tensor,
    valid: Tensor,
    settings: Settings,
    seed: int,
    device: str | None,
    interruption: Interruption | None,
) -> float:
    """Train in place and return the seconds of all epochs."""
    schedule = settings.schedule(variant.method)
    held_out = _in_rows(valid, settings)

    def note_perplexity(model: NetworkMethod, entry: dict[str, float]) -> None:
        entry["valid_perplexity"] = perplexity(model, held_out)

    options: dict[str, Any] = {}
    if interruption is not None:
        options = {"checkpoint": interruption.checkpoint, "checkpoint_every": interruption.every, "resume": True}
    model.fit(
        TokenStream(train, settings.batch_size, settings.length),
        epochs=schedule.epochs,
        lr=settings.lr,
        optimizer=_optimizer(settings),
        schedule=partial(learning_rate, schedule=schedule, interruption=interruption),
        gradient_clip=settings.gradient_clip,
        on_epoch_end=note_perplexity,
        device=device,
        seed=seed,
        progress=False,
        **options,
    )
    return sum(entry["seconds"] for entry in model.history)


def learning_rate(progress: float, schedule: Schedule, interruption: Interruption | None = None) -> float:
    """The factor on the learning rate after ``progress`` of the training, from 0 to 1.

    Args:
        progress: the fraction of the training.
        schedule: the epochs and the decay.
        interruption: where to stop the training if it is time to: at the first step after a checkpoint.

    Raises:
        OutOfTimeError: to stop the training.
    """
    epoch = math.floor(progress * schedule.epochs + 1e-6)
    is_first_step = abs(progress * schedule.epochs - epoch) < 1e-6
    if interruption is not None and epoch and is_first_step and epoch % interruption.every == 0:
        interruption.check_time(f"{epoch} of {schedule.epochs} epochs are done")
    return schedule.decay ** max(0, epoch + 1 - schedule.constant_epochs)


def _optimizer(settings: Settings) -> Callable[..., Optimizer] | None:
    known: dict[str, Callable[..., Optimizer] | None] = {"sgd": torch.optim.SGD, "adam": adam, "natural": None}
    return known[check_option(settings.optimizer, "optimizer", tuple(known))]


def _in_rows(text: Tensor, settings: Settings) -> TokenStream:
    """The text in as many rows as in training, which is faster and hardly different."""
    return TokenStream(text, settings.batch_size, EVALUATION_LENGTH)


def _dynamic_evaluation(model: NetworkMethod, valid: Tensor, test: Tensor, settings: Settings) -> dict[str, float]:
    """The test perplexity with dynamic evaluation, at the rate that is best for the validation part."""

    def evaluate(text: Tensor, rate: float) -> float:
        scores = dynamic_evaluation(model, TokenStream(text, batch_size=1, length=settings.length), rate)
        return math.exp(-float(scores.mean()))

    found = {rate: evaluate(valid[:DYNAMIC_TOKENS], rate) for rate in DYNAMIC_RATES}
    best = min(found, key=lambda rate: found[rate])
    return {"rate": best, "test": evaluate(test, best)}


def _entropies(model: NetworkMethod, test: Tensor, settings: Settings, seed: int) -> dict[str, dict[str, float]]:
    """The entropies of the text and of its reverse, by the mean weights and by draws."""
    numbers = {"mean weights": 0} | ({} if isinstance(model, credo.MAP) else {"draws": settings.draws})
    return {
        name: entropy_gap(
            model, test, samples, seed, batch_size=settings.batch_size, length=EVALUATION_LENGTH
        )._asdict()
        for name, samples in numbers.items()
    }
