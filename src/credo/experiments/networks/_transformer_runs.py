"""One training run of ``bayesian-transformers``: a task, a method and a seed, measured as a record for JSON."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

import credo
from credo.architectures import TransformerLanguageModel, VisionTransformer
from credo.datasets.files import Words
from credo.experiments.networks._images import Data, measure_images
from credo.experiments.networks._records import Record, rounded
from credo.experiments.networks._training import progress_reporter
from credo.predictive.classes import CategoricalComponents, ClassPredictive
from credo.seeding import seeded

if TYPE_CHECKING:
    from credo.methods.base import Method
    from credo.predictive import Predictive

METHODS = ("map", "dropout", "bbb", "ivon", "ensemble")
IGNORED = -100
"""The label of tokens that are only context."""
SHOWN_TOKENS = 24
EVALUATION_TOKENS = 2048
"""Tokens per batch of a prediction."""


@dataclass(frozen=True)
class Settings:
    """The hyper-parameters of one task.

    Attributes:
        width: size of the vectors.
        layers: number of blocks.
        heads: number of heads of the attention.
        epochs: passes over the training data.
        batch_size: sequences or images per step.
        lr: learning rate at the start of its cosine.
        ivon_lr: that of IVON, whose steps are relative to the curvature.
        length: tokens per sequence; for images, height and width of a patch.
        dropout: drop rate of MC dropout.
        prior_scale: standard deviation of the Gaussian prior of Bayes by Backprop.
        ivon_prior_scale: that of IVON.
        temperature: T of both.
        members: networks of the ensemble.
        draws: number of draws of a prediction.
    """

    width: int
    layers: int
    heads: int
    epochs: int
    batch_size: int
    lr: float
    length: int
    ivon_lr: float = 0.3
    dropout: float = 0.1
    prior_scale: float = 0.1
    ivon_prior_scale: float = 0.1
    temperature: float = 0.1
    members: int = 3
    draws: int = 10


class Windows(NamedTuple):
    """Sequences of a text, ``[N, T]``: inputs, and the tokens one step later, ``IGNORED`` where scored before."""

    x: Tensor
    y: Tensor


def training_windows(text: Tensor, length: int) -> Windows:
    """Sequences that follow each other; the last tokens that do not fill one are left out."""
    windows = text.unfold(0, length + 1, length)
    return Windows(windows[:, :-1], windows[:, 1:])


def overlapping_windows(text: Tensor, length: int) -> Windows:
    """Sequences that begin half a length apart, so that all tokens but the first are scored after half a length."""
    half = length // 2
    windows = text.unfold(0, length + 1, half)
    y = windows[:, 1:].clone()
    y[1:, : length - half] = IGNORED
    return Windows(windows[:, :-1], y)


def measure_language(
    method: str, words: Words, settings: Settings, seed: int, device: str | None, report: Callable[[str], None]
) -> Record:
    """Train a language model and measure its perplexity.

    Args:
        method: one of ``METHODS``.
        words: the text.
        settings: the hyper-parameters.
        seed: of the initial weights, the training and the draws.
        device: device to train on; ``None`` is the CPU.
        report: called with status messages.

    Returns:
        Perplexities of the validation and the test part, and both uncertainties of the first tokens of the test part.
    """

    def network(dropout: float | None = None) -> nn.Module:
        return TransformerLanguageModel(
            len(words.vocabulary),
            settings.width,
            settings.layers,
            settings.heads,
            context=settings.length,
            dropout=dropout,
        )

    data = training_windows(words.train, settings.length)
    likelihood = credo.Categorical(ignore_index=IGNORED)
    model, record = _train(method, network, likelihood, data, settings, seed, device, report)
    parts = {part: overlapping_windows(getattr(words, part), settings.length) for part in ("valid", "test")}
    for part, windows in parts.items():
        record[part] = rounded(perplexity(model, windows, settings.draws, seed))
    record["test_mean_weights"] = rounded(perplexity(model, parts["test"], 0, seed))
    first = model.predict(parts["test"].x[:1], samples=settings.draws, seed=seed).cpu()
    record["tokens"] = [words.vocabulary[token] for token in parts["test"].y[0, :SHOWN_TOKENS].tolist()]
    for name in ("aleatoric", "epistemic"):
        record[name] = [rounded(value) for value in getattr(first, name)[0, :SHOWN_TOKENS].tolist()]
    return record


def perplexity(model: Method, windows: Windows, samples: int, seed: int) -> float:
    """exp of the mean NLL of a token, whose probability is the mean over draws.

    Args:
        model: a trained method.
        windows: the text; tokens that are ``IGNORED`` do not count.
        samples: number of draws; 0: the mean weights.
        seed: for the draws.
    """
    rows = max(1, EVALUATION_TOKENS // windows.x.shape[1])
    total = 0.0
    predictions = model.stream((part for part in windows.x.split(rows)), samples, seed)
    for p, y in zip(predictions, windows.y.split(rows), strict=True):
        assert isinstance(p.components, CategoricalComponents)
        tokens = ClassPredictive(p.components.mixture(p.weights))
        total -= float(tokens.log_prob(y.to(tokens.mean.device)).double().sum())
    return math.exp(total / int((windows.y != IGNORED).sum()))


def measure_vision(
    method: str, data: Data, settings: Settings, seed: int, device: str | None, report: Callable[[str], None]
) -> Record:
    """Train a vision transformer and measure its errors, its calibration, and its entropy on other images.

    Args:
        method: one of ``METHODS``.
        data: digits and other images.
        settings: the hyper-parameters.
        seed: of the initial weights, the training and the draws.
        device: device to train on; ``None`` is the CPU.
        report: called with status messages.

    Returns:
        Errors, NLL and calibration error on the test images, and how well the entropy separates others from digits.
    """
    digits = data.digits
    channels, size, _ = digits.x_train.shape[1:]

    def network(dropout: float | None = None) -> nn.Module:
        return VisionTransformer(
            len(digits.classes),
            channels,
            size,
            settings.length,
            settings.width,
            settings.layers,
            settings.heads,
            dropout=dropout,
        )

    likelihood = credo.Categorical()
    windows = Windows(digits.x_train, digits.y_train)
    model, record = _train(method, network, likelihood, windows, settings, seed, device, report)

    def predict(x: Tensor, draws: int = settings.draws) -> Predictive:
        return model.predict(x.to(device or "cpu"), samples=draws, seed=seed).cpu()

    return record | measure_images(predict(digits.x_test), data, predict)


def build(method: str, network: Callable[..., nn.Module], likelihood: credo.Categorical, settings: Settings) -> Method:
    """The untrained method.

    Args:
        method: one of ``METHODS``.
        network: makes the network, given a drop rate or nothing.
        likelihood: of the targets.
        settings: the hyper-parameters.
    """
    if method == "ensemble":
        return credo.DeepEnsemble(network, members=settings.members, likelihood=likelihood)
    if method == "dropout":
        return credo.MCDropout(network(settings.dropout), likelihood)
    if method == "map":
        return credo.MAP(network(), likelihood)
    if method == "bbb":
        prior = credo.Normal(0.0, settings.prior_scale)
        return credo.BayesByBackprop(network(), likelihood, prior, temperature=settings.temperature)
    prior = credo.Normal(0.0, settings.ivon_prior_scale)
    return credo.IVON(network(), likelihood, prior, temperature=settings.temperature)


def _train(
    method: str,
    network: Callable[..., nn.Module],
    likelihood: credo.Categorical,
    data: Windows,
    settings: Settings,
    seed: int,
    device: str | None,
    report: Callable[[str], None],
) -> tuple[Method, Record]:
    """The trained method, and the beginning of its record."""
    with seeded(seed, torch.device("cpu")):
        model = build(method, network, likelihood, settings)
    start = time.perf_counter()
    model.fit(
        (data.x, data.y),
        epochs=settings.epochs,
        batch_size=settings.batch_size,
        lr=settings.ivon_lr if method == "ivon" else settings.lr,
        device=device,
        seed=seed,
        progress=False,
        on_epoch_end=None if method == "ensemble" else progress_reporter(report, method, settings.epochs),
    )
    return model, {
        "method": method,
        "seed": seed,
        "settings": asdict(settings),
        "train_seconds": round(time.perf_counter() - start, 1),
    }
