"""The demo's classification: 8×8 digits, the same digits rotated, and letters, by four methods."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

import credo
from credo import plots
from credo.architectures import LeNet
from credo.datasets import Images, letters, load_digits, rotate
from credo.experiments.recipe import Recipe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from credo.predictive import Predictive

ROTATION = 60.0
ANGLES = torch.linspace(0.0, 180.0, 37)


@dataclass(frozen=True)
class DigitsRow:
    """One method on the digits; entropies are means, in nats.

    Attributes:
        method: its name.
        accuracy: share of test digits named rightly.
        nll: mean negative log probability of the test digits' classes, in nats.
        rotated_accuracy: accuracy on the test digits turned by 60°.
        rotated_nll: their negative log probability.
        entropy: of the prediction for test digits.
        rotated_entropy: for the turned ones.
        foreign_entropy: for letters.
        auroc: probability that a letter has more entropy than a test digit.
        seconds: training time.
    """

    method: str
    accuracy: float
    nll: float
    rotated_accuracy: float
    rotated_nll: float
    entropy: float
    rotated_entropy: float
    foreign_entropy: float
    auroc: float
    seconds: float


@dataclass(frozen=True)
class DigitsResult:
    """The rows of the table, and the figures by name."""

    rows: list[DigitsRow]
    figures: dict[str, Figure]


def recipes() -> list[Recipe]:
    """Four methods, the same network in all."""
    return [
        Recipe(
            name="MAP",
            build=lambda: credo.MAP(LeNet(size=8), likelihood=credo.Categorical()),
            epochs=15,
            lr=1e-3,
            batch_size=64,
        ),
        Recipe(
            name="Bayes by Backprop",
            build=lambda: credo.BayesByBackprop(
                LeNet(size=8), likelihood=credo.Categorical(), prior=credo.Normal(0.0, 0.1)
            ),
            epochs=30,
            lr=3e-3,
            batch_size=64,
        ),
        Recipe(
            name="MC dropout",
            build=lambda: credo.MCDropout(LeNet(size=8, dropout=0.3), likelihood=credo.Categorical(), p=None),
            epochs=25,
            lr=1e-3,
            batch_size=64,
        ),
        Recipe(
            name="Deep ensemble",
            build=lambda: credo.DeepEnsemble(LeNet(size=8), members=5, likelihood=credo.Categorical()),
            epochs=15,
            lr=1e-3,
            batch_size=64,
        ),
    ]


def run(seed: int, effort: float, samples: int, report: Callable[[str], None]) -> DigitsResult:
    """Train every recipe, measure it on three kinds of images, and draw what it believes."""
    from matplotlib.figure import Figure

    data, foreign = load_digits(seed=seed), letters(450, seed=seed)
    rotated = rotate(data.x_test, ROTATION)
    turning = rotate(data.x_test[_showcase(data)].expand(len(ANGLES), -1, -1, -1), ANGLES)
    chosen = recipes()
    turns = Figure(figsize=(9.6, 5.4), layout="constrained")
    entropies = Figure(figsize=(9.6, 4.6), layout="constrained")
    turn_panels = turns.subplots(2, 2, sharex=True, sharey=True).flat
    entropy_panels = entropies.subplots(2, 2, sharex=True, sharey=True).flat
    rows = []
    for recipe, turn_panel, entropy_panel in zip(chosen, turn_panels, entropy_panels, strict=True):
        report(f"digits: {recipe.name}")
        trained = recipe.train(data.x_train, data.y_train, seed=seed, effort=effort)
        plain, turned, strange, path = (
            trained.method.predict(x, samples=samples, seed=seed) for x in (data.x_test, rotated, foreign, turning)
        )
        rows.append(_measure(recipe.name, trained.seconds, data.y_test, plain, turned, strange))
        plots.rotated_digit(turning, ANGLES, path, turn_panel, names=data.classes)
        plots.uncertainty_histogram(
            {"test digits": plain.entropy, f"turned {ROTATION:.0f}°": turned.entropy, "letters": strange.entropy},
            entropy_panel,
            limits=(0.0, math.log(10)),
        )
        entropy_panel.set_title(recipe.name)
    return DigitsResult(rows, {"rotated": turns, "entropy": entropies})


def _showcase(data: Images) -> slice:
    """The first test image of a 1, the digit that is first itself, then nothing, then itself again."""
    first = int((data.y_test == 1).nonzero()[0, 0])
    return slice(first, first + 1)


def _measure(
    name: str, seconds: float, y: Tensor, plain: Predictive, turned: Predictive, strange: Predictive
) -> DigitsRow:
    from sklearn.metrics import roc_auc_score

    is_foreign = torch.cat([torch.zeros(len(plain.entropy)), torch.ones(len(strange.entropy))])
    return DigitsRow(
        method=name,
        accuracy=_accuracy(plain, y),
        nll=-plain.log_prob(y).mean().item(),
        rotated_accuracy=_accuracy(turned, y),
        rotated_nll=-turned.log_prob(y).mean().item(),
        entropy=plain.entropy.mean().item(),
        rotated_entropy=turned.entropy.mean().item(),
        foreign_entropy=strange.entropy.mean().item(),
        auroc=float(roc_auc_score(is_foreign.numpy(), torch.cat([plain.entropy, strange.entropy]).numpy())),
        seconds=seconds,
    )


def _accuracy(predictive: Predictive, y: Tensor) -> float:
    return (predictive.mean.argmax(-1) == y).float().mean().item()
