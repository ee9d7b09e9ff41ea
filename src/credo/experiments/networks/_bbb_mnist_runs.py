"""One training run of ``bbb-mnist``: a method, a width and a seed, measured as a record that JSON can hold."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor, nn

import credo
from credo.architectures import MLP
from credo.datasets import Images, load_digits
from credo.datasets.files import images
from credo.errors import InputError
from credo.experiments.networks._records import Record, density, hold_out_last, rounded
from credo.seeding import seeded
from credo.training.optimizers import adam

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from credo.methods import NetworkMethod

PIXEL_SCALE = 255 / 126
"""The paper divides pixels from 0 to 255 by 126; ours are in [0, 1]."""
DROPOUT, INPUT_DROPOUT = 0.5, 0.2
LEARNING_RATES = {"sgd": 0.05, "dropout": 0.05, "gaussian": 1e-3, "mixture": 1e-3}
BAYESIAN = ("gaussian", "mixture")
PRUNED = (0.5, 0.75, 0.95, 0.98)
WEIGHT_RANGE, WEIGHT_BINS = 0.3, 120
SNR_RANGE, SNR_BINS = (-40.0, 30.0), 140
"""In decibels, 10·log₁₀(|μ|/σ)."""


@dataclass(frozen=True)
class Variant:
    """One row of the paper's Table 1.

    Attributes:
        family: ``"sgd"``, ``"dropout"``, or Bayes by Backprop with a ``"gaussian"`` or ``"mixture"`` prior.
        units: width of the two hidden layers.
        temperature: T of Bayes by Backprop.
    """

    family: str
    units: int
    temperature: float = 1.0

    @property
    def name(self) -> str:
        """Such as ``"mixture-1200-T1"`` or ``"sgd-400"``."""
        tempered = f"-T{self.temperature:g}" if self.is_bayesian else ""
        return f"{self.family}-{self.units}{tempered}"

    @property
    def is_bayesian(self) -> bool:
        """Whether it is trained by Bayes by Backprop."""
        return self.family in BAYESIAN

    @classmethod
    def parse(cls, name: str) -> Self:
        """The variant of a :attr:`name`."""
        found = re.fullmatch(r"(?:(sgd|dropout)-(\d+)|(gaussian|mixture)-(\d+)-T(\d+(?:\.\d+)?))", name)
        if found is None:
            raise InputError(f"a row must have a name such as sgd-400 or mixture-1200-T1, got {name!r}")
        family, units, bayesian, bayesian_units, temperature = found.groups()
        if family:
            return cls(family, int(units))
        return cls(bayesian, int(bayesian_units), float(temperature))


@dataclass(frozen=True)
class Settings:
    """The hyper-parameters of a run.

    Attributes:
        epochs: passes over the training images.
        batch_size: images per step.
        lr: learning rate; ``None``: that of the family in ``LEARNING_RATES``.
        decay_from: fraction of the training after which the learning rate falls to 0 along a cosine.
        momentum: of stochastic gradient descent.
        optimizer: of Bayes by Backprop, ``"adam"`` or ``"natural"`` for the default of the library.
        estimator: as for :class:`credo.BayesByBackprop`.
        samples: draws per step.
        kl_warmup: steps over which the KL's weight rises; ``None``: the first half of the training.
        initial_rho: ρ at the start, σ = softplus(ρ).
        pi: weight of the wide component of the scale mixture.
        sigma1: standard deviation of the wide component.
        sigma2: standard deviation of the narrow component.
        prior_scale: standard deviation of the Gaussian prior.
        draws: number of draws for the errors at the end.
    """

    epochs: int = 200
    batch_size: int = 128
    lr: float | None = None
    decay_from: float = 0.5
    momentum: float = 0.9
    optimizer: str = "adam"
    estimator: str = "auto"
    samples: int = 1
    kl_warmup: int | None = 0
    initial_rho: float = -5.0
    pi: float = 0.5
    sigma1: float = 1.0
    sigma2: float = math.exp(-6)
    prior_scale: float = math.exp(-2)
    draws: int = 100


def load(smoke: bool = False, seed: int = 0, hold_out: int = 0) -> Images:
    """MNIST, or 8×8 digits for a smoke run, as rows of pixels on the paper's scale.

    Args:
        smoke: whether to load the digits of scikit-learn.
        seed: of their split.
        hold_out: number of training images at the end that take the place of the test images, to choose settings.
    """
    data = load_digits(seed=seed) if smoke else images("mnist")
    data = hold_out_last(data, hold_out)
    x_train, x_test = (x.flatten(1) * PIXEL_SCALE for x in (data.x_train, data.x_test))
    return Images(x_train, data.y_train, x_test, data.y_test, data.classes)


def measure(variant: Variant, data: Images, settings: Settings, seed: int, device: str | None = None) -> Record:
    """Train one network and measure it.

    Args:
        variant: the method and the width.
        data: rows of pixels.
        settings: the hyper-parameters.
        seed: of the initial weights, the training and the draws.
        device: device to train on; ``None`` is the CPU.

    Returns:
        The numbers of misclassified test images, of the mixture over draws and of the mean weights, after every epoch
        (mean weights) and for each pruned fraction; densities of weights and of signal-to-noise ratios; the seconds of
        training, with the errors after its epochs.
    """
    x, y = data.x_test.to(device or "cpu"), data.y_test.to(device or "cpu")
    with seeded(seed, torch.device("cpu")):
        model = _build(variant, x.shape[1], len(data.classes), settings)

    def note_error(model: NetworkMethod, entry: dict[str, float]) -> None:
        entry["wrong"] = _count_wrong(model, x, y, 0, seed)

    start = time.perf_counter()
    model.fit(
        (data.x_train, data.y_train),
        epochs=settings.epochs,
        batch_size=settings.batch_size,
        lr=LEARNING_RATES[variant.family] if settings.lr is None else settings.lr,
        optimizer=_optimizer(variant, settings),
        schedule=partial(late_cosine, decay_from=settings.decay_from),
        on_epoch_end=note_error,
        device=device,
        seed=seed,
        progress=False,
    )
    seconds = time.perf_counter() - start
    record: Record = {
        "variant": variant.name,
        "seed": seed,
        "settings": asdict(settings),
        "test_images": len(y),
        "wrong_by_epoch": [int(entry["wrong"]) for entry in model.history],
        **_errors(model, x, y, settings.draws, seed),
        "nll": rounded(-model.predict(x, samples=settings.draws, seed=seed).log_prob(y).double().mean().item()),
        "weights": _weight_density(model, seed),
        "train_seconds": round(seconds, 1),
        "trained_by": model._training_path,
    }
    if isinstance(model, credo.BayesByBackprop):
        record["snr"] = _snr_density(model)
        record["pruned"] = {}
        for fraction in PRUNED:  # weights that are pruned stay the lowest of the ranking
            model.prune(fraction)
            record["pruned"][f"{fraction:g}"] = _errors(model, x, y, settings.draws, seed)
    return record


def late_cosine(progress: float, decay_from: float) -> float:
    """1 up to ``decay_from`` of the training, then a cosine to 0."""
    if progress <= decay_from:
        return 1.0
    return 0.5 * (1.0 + math.cos(math.pi * (progress - decay_from) / (1.0 - decay_from)))


def _build(variant: Variant, pixels: int, classes: int, settings: Settings) -> NetworkMethod:
    hidden, likelihood = (variant.units, variant.units), credo.Categorical()
    if variant.family == "sgd":
        return credo.MAP(MLP(pixels, hidden, classes), likelihood, credo.Normal(0.0, 1e3))
    if variant.family == "dropout":
        net = nn.Sequential(nn.Dropout(INPUT_DROPOUT), MLP(pixels, hidden, classes, dropout=DROPOUT))
        return credo.MCDropout(net, likelihood, length_scale=0.0)
    prior: torch.distributions.Distribution = (
        credo.Normal(0.0, settings.prior_scale)
        if variant.family == "gaussian"
        else credo.ScaleMixture(settings.pi, settings.sigma1, settings.sigma2)
    )
    return credo.BayesByBackprop(
        MLP(pixels, hidden, classes),
        likelihood,
        prior,
        initial_scale=math.log1p(math.exp(settings.initial_rho)),
        estimator=settings.estimator,
        kl_warmup=settings.kl_warmup,
        temperature=variant.temperature,
        samples=settings.samples,
    )


def _optimizer(variant: Variant, settings: Settings) -> Callable[..., Optimizer] | None:
    if not variant.is_bayesian:
        return partial(torch.optim.SGD, momentum=settings.momentum)
    return adam if settings.optimizer == "adam" else None


def _errors(model: NetworkMethod, x: Tensor, y: Tensor, draws: int, seed: int) -> dict[str, int]:
    return {"wrong": _count_wrong(model, x, y, draws, seed), "wrong_mean_weights": _count_wrong(model, x, y, 0, seed)}


def _count_wrong(model: NetworkMethod, x: Tensor, y: Tensor, draws: int, seed: int) -> int:
    return int((model.predict(x, samples=draws, seed=seed).mode != y).sum())


def _weight_density(model: NetworkMethod, seed: int) -> list[float]:
    """The density of all weights on a grid from −``WEIGHT_RANGE`` to it: of one draw, or of the network itself."""
    is_bayesian = isinstance(model, credo.BayesByBackprop)
    tensors = model.posterior.sample(1, seed).values() if is_bayesian else model.net.parameters()
    weights = torch.cat([w.detach().flatten() for w in tensors])
    counts = torch.histc(weights, WEIGHT_BINS, -WEIGHT_RANGE, WEIGHT_RANGE)
    return density(counts, len(weights), 2 * WEIGHT_RANGE / WEIGHT_BINS)


def _snr_density(model: credo.BayesByBackprop) -> list[float]:
    """The density of 10·log₁₀(|μ|/σ) of all weights; the ends of the grid include what lies beyond."""
    low, high = SNR_RANGE
    assert isinstance(model.posterior, credo.MeanField)
    ratios = torch.cat([ratio.flatten() for ratio in model.posterior.snr().values()])
    counts = torch.histc((10.0 * ratios.log10()).clamp(low, high), SNR_BINS, low, high)
    return density(counts, len(ratios), (high - low) / SNR_BINS)
