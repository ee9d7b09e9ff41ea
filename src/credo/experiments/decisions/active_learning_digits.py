"""Active learning of digits: BALD against rows at random (Gal et al. 2017)."""

from __future__ import annotations

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
LENGTH_SCALE = 0.1
"""A wide prior: with the default of 1, the dense network is not able to fit a few images."""
TARGET = 0.05
"""The error rate to reach."""


@dataclass(frozen=True)
class Settings:
    """The size of a run.

    Attributes:
        labels: number of labels at the end.
        epochs: passes over the labeled images in each round.
        candidates: images of the pool that are scored in each round.
        draws: posterior draws, for scores and test errors.
        test: number of test images; ``None``: all.
        convolutional: whether the network is that of the paper, for 28×28 images, or a dense one.
    """

    labels: int
    epochs: int
    candidates: int
    draws: int
    test: int | None = None
    convolutional: bool = False


SETTINGS: dict[Budget, Settings] = {
    "full": Settings(labels=1000, epochs=100, candidates=10_000, draws=50, convolutional=True),
    "quick": Settings(labels=150, epochs=300, candidates=1000, draws=50),
    "smoke": Settings(labels=30, epochs=1, candidates=100, draws=5),
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

    What is run. The same rounds, each from scratch, up to 1,000 labels or until the error is 5 %, with the
    convolutional network of the paper on MNIST in the full run. The first 20 images are the same for both, two of each
    digit. In each round a random part of the pool is scored, 10,000 images with 50 draws. The table has the error after
    the last round, and the number of labels after which the error was first 5 % or less; where it was not, the next
    number of labels, with a note.

    What differs. One prior for all rounds, where the paper chooses the weight decay on validation images, and Adam with
    a cosine. The quick and the smoke run have the 8×8 digits of scikit-learn and a dense network with two hidden layers
    and dropout after each. Its prior was widened, and the number of steps raised, by looking at errors on these digits
    with one seed: with the default length scale of 1, or with 60 steps, it underfits, and BALD was worse than random
    images.
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
    test = slice(settings.test)

    def error(model: Any) -> float:
        p = model.predict(images.x_test[test], samples=settings.draws, seed=seed)
        return float((p.mode.cpu() != images.y_test[test]).double().mean())

    def network() -> credo.Method:
        net = _convolutional() if settings.convolutional else _dense(images.x_train[0].numel())
        return credo.MCDropout(net, likelihood=credo.Categorical(), length_scale=LENGTH_SCALE)

    learner = ActiveLearner(
        network,
        images.x_train,
        acquisition,
        BATCH,
        samples=settings.draws,
        candidates=settings.candidates,
        fit_options={"epochs": settings.epochs, "lr": 1e-3, "batch_size": 128, "device": device},
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
    """The network of the paper: two convolutions of 32 filters of 4×4, pooling, and 128 units, with dropout."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 4),
        nn.ReLU(),
        nn.Conv2d(32, 32, 4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(32 * 11 * 11, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, 10),
    )


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
