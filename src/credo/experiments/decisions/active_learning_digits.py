"""Active learning of digits: BALD against rows at random (Gal et al. 2017)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

import credo
from credo._threads import one_thread
from credo.architectures import MLP
from credo.datasets import Images
from credo.decisions import ActiveLearner
from credo.experiments._shared import handwritten_digits
from credo.experiments.registry import Budget, Result, Row, RunConfig, experiment
from credo.seeding import derive, generator

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ACQUISITIONS = {"BALD": "bald", "random": "random"}
INITIAL, BATCH = 20, 10
LENGTH_SCALE, LEARNING_RATE, MINIBATCH = 0.1, 3e-3, 32
"""Chosen by the error of networks trained on 100 and 400 images at random, on 2,000 other training images."""
TARGET = 0.05
"""The error rate to reach."""


@dataclass(frozen=True)
class Settings:
    """The size of a run.

    Attributes:
        labels: number of labels at the end.
        steps: gradient steps in each round, rounded to whole passes over the labeled images.
        candidates: images of the pool that are scored in each round.
        draws: posterior draws, for scores and test errors.
        test: number of test images; ``None``: all.
        convolutional: whether the network is convolutional, for 28×28 images, or dense.
    """

    labels: int
    steps: int
    candidates: int
    draws: int
    test: int | None = None
    convolutional: bool = False


SETTINGS: dict[Budget, Settings] = {
    "full": Settings(labels=1000, steps=400, candidates=5000, draws=25, convolutional=True),
    "quick": Settings(labels=150, steps=400, candidates=1000, draws=50),
    "smoke": Settings(labels=30, steps=1, candidates=100, draws=5),
}


@experiment(
    "active-learning-digits",
    title="Active learning of digits: BALD and images at random",
    reference="Gal, Islam & Ghahramani, Deep Bayesian active learning with image data, ICML 2017, section 5.1 and "
    "Figure 1 (arXiv:1703.02910)",
    figures=["error"],
)
def run(config: RunConfig) -> Result:
    """The test error of digits against the number of labels, chosen by BALD and at random.

    The paper's claim. From 20 labeled images of MNIST, with 10 more in each round, a network with MC dropout reaches a
    given test error with far fewer labels if BALD chooses them than if they are chosen at random.

    What is run. The same rounds, each from scratch, up to 1,000 labels or until the test error is 5 %, with a
    convolutional network on MNIST in the full run. The first 20 images are the same for both, two of each digit. In
    each round a random part of the pool is scored, 5,000 images with 25 draws. The table has the error after the last
    round, and the number of labels after which the error was first 5 % or less; where it was not, the next number of
    labels, with a note.

    What differs. The network pools after each of its convolutions of 16 and 32 filters, where that of the paper pools
    once, after two of 32: an eighth of the operations, so that a round takes a few seconds on one core. One prior for
    all rounds, where the paper chooses the weight decay on validation images in each; 400 steps of Adam with a cosine
    in each round. The paper needs 335 labels by BALD and 835 at random for an error of 5 %. The quick and the smoke run
    have the 8×8 digits of scikit-learn and a dense network with two hidden layers and dropout after each.
    """
    images = handwritten_digits(config)
    settings = SETTINGS[config.budget]
    curves = {}
    for name, acquisition in ACQUISITIONS.items():
        config.report(name)
        curves[name] = error_curve(acquisition, images, settings, config.seed, config.device)
    return Result(tuple(_rows(curves)), {"error": figure(curves)})


def error_curve(
    acquisition: str, images: Images, settings: Settings, seed: int, device: str | None = None
) -> list[dict[str, float]]:
    """Label images by one acquisition function, from two images of each digit.

    Args:
        acquisition: as for :class:`credo.decisions.ActiveLearner`.
        images: the pool and the test images.
        settings: the size of the run.
        seed: determines the first images, the training and the draws.
        device: device to train on; ``None`` is the CPU.

    Returns:
        The number of ``labels`` and the test error, ``score``, of every round, up to that with an error of ``TARGET``.
    """
    pool, x_test = _standardized(images.x_train, images.x_test[: settings.test])
    y_test = images.y_test[: settings.test]

    def error(model: Any) -> float:
        p = model.predict(x_test, samples=settings.draws, seed=seed)
        return float((p.mode.cpu() != y_test).double().mean())

    def fit_options(labels: int) -> dict[str, Any]:
        steps_per_epoch = math.ceil(labels / MINIBATCH)
        epochs = max(1, settings.steps // steps_per_epoch)
        return {"epochs": epochs, "lr": LEARNING_RATE, "batch_size": MINIBATCH, "device": device}

    def network() -> credo.Method:
        net = _convolutional() if settings.convolutional else _dense(pool[0].numel())
        return credo.MCDropout(net, likelihood=credo.Categorical(), length_scale=LENGTH_SCALE)

    learner = ActiveLearner(
        network,
        pool,
        acquisition,
        BATCH,
        samples=settings.draws,
        candidates=settings.candidates,
        fit_options=fit_options,
        score=error,
        seed=seed,
    )
    first = _first_rows(images.y_train, seed)
    with one_thread(device is None):
        learner.teach(first, images.y_train[first])
        while len(learner.labeled) < settings.labels and learner.history[-1]["score"] > TARGET:
            learner.run(images.y_train, min(len(learner.labeled) + BATCH, settings.labels))
    return learner.history


def _dense(pixels: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), MLP(pixels, (256, 256), 10, dropout=0.5))


def _convolutional() -> nn.Module:
    """Two convolutions of 5×5, each with pooling, and 128 units; dropout of the paper's rates after both parts."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, 10),
    )


def _standardized(pool: Tensor, x_test: Tensor) -> tuple[Tensor, Tensor]:
    """Images with the mean 0 and the standard deviation 1 over all pixels of the pool."""
    std, mean = torch.std_mean(pool)
    return (pool - mean) / std, (x_test - mean) / std


def _first_rows(labels: Tensor, seed: int) -> Tensor:
    """Two rows of each of ten digits, at random."""
    order = torch.randperm(len(labels), generator=generator(torch.device("cpu"), derive(seed, 0)))
    shuffled = labels[order]
    return torch.cat([order[shuffled == digit][: INITIAL // 10] for digit in range(10)])


def _rows(curves: dict[str, list[dict[str, float]]]) -> list[Row]:
    rows = []
    for name, history in curves.items():
        last = int(history[-1]["labels"])
        reached = [entry["labels"] for entry in history if entry["score"] <= TARGET]
        labels = reached[0] if reached else last + BATCH
        note = "" if reached else f"not reached with {last} labels"
        rows.append(Row(f"{name}: test error with {last} labels, %", (100 * history[-1]["score"],)))
        rows.append(Row(f"{name}: labels to an error of 5 %", (labels,), note=note))
    return rows


def figure(curves: dict[str, list[dict[str, float]]]) -> Figure:
    """Draw the test error against the number of labels.

    Args:
        curves: the rounds by the name of the acquisition function.
    """
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(6.4, 4.2), layout="constrained")
    ax = drawn.subplots()
    for name, history in curves.items():
        ax.plot([entry["labels"] for entry in history], [100 * entry["score"] for entry in history], label=name)
    ax.axhline(100 * TARGET, color="0.6", linewidth=0.8, zorder=0)
    ax.set_xlabel("labels")
    ax.set_ylabel("test error, %")
    ax.set_ylim(bottom=0)
    ax.legend()
    return drawn
