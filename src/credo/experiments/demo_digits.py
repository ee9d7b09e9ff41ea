"""The demo's classification: 8×8 digits, the same digits rotated, and letters, by four methods."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

import credo
from credo import plots
from credo.architectures import MLP
from credo.datasets import letters, load_digits, rotate
from credo.experiments.recipe import Recipe

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from credo.predictive import Predictive

ROTATION = 30.0
ANGLES = torch.linspace(0.0, 180.0, 37)


@dataclass(frozen=True)
class DigitsRow:
    """One method on the digits; entropies are means, in nats.

    Attributes:
        method: its name.
        accuracy: share of test digits named rightly.
        nll: mean negative log probability of the test digits' classes, in nats.
        rotated_accuracy: accuracy on the test digits turned by 30°.
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


def network(dropout: float | None = None) -> nn.Module:
    """The network of all four methods, small enough for a mean-field posterior to have room beside 1,347 images."""
    return nn.Sequential(nn.Flatten(), MLP(64, (200,), 10, dropout=dropout))


def recipes() -> list[Recipe]:
    """Four methods with the same network, likelihood and standard normal prior (MC dropout's default length scale)."""
    return [
        Recipe(
            name="MAP",
            build=lambda: credo.MAP(network(), likelihood=credo.Categorical()),
            epochs=60,
            lr=3e-3,
            batch_size=64,
        ),
        Recipe(
            name="Bayes by Backprop",
            build=lambda: credo.BayesByBackprop(
                network(), likelihood=credo.Categorical(), prior=credo.Normal(0.0, 1.0)
            ),
            epochs=150,
            lr=1e-2,
            batch_size=64,
        ),
        Recipe(
            name="MC dropout",
            build=lambda: credo.MCDropout(network(dropout=0.5), likelihood=credo.Categorical()),
            epochs=100,
            lr=3e-3,
            batch_size=64,
        ),
        Recipe(
            name="Deep ensemble",
            build=lambda: credo.DeepEnsemble(network(), members=5, base=credo.MAP, likelihood=credo.Categorical()),
            epochs=60,
            lr=3e-3,
            batch_size=64,
        ),
    ]


def run(seed: int, effort: float, samples: int, report: Callable[[str], None]) -> DigitsResult:
    """Train every recipe, measure it on three kinds of images, and draw what it believes."""
    data, foreign = load_digits(seed=seed), letters(450, seed=seed)
    rotated = rotate(data.x_test, ROTATION)
    # Half a turn makes a 9 of a 6: in between a classifier should not be sure.
    six = data.x_test[data.y_test == 6][:1]
    turning = rotate(six.expand(len(ANGLES), -1, -1, -1), ANGLES)
    rows, entropies, turns = [], {}, {}
    for recipe in recipes():
        report(f"digits: {recipe.name}")
        trained = recipe.train(data.x_train, data.y_train, seed=seed, effort=effort)
        plain, turned, strange, turns[recipe.name] = (
            trained.method.predict(x, samples=samples, seed=seed) for x in (data.x_test, rotated, foreign, turning)
        )
        rows.append(_measure(recipe.name, trained.seconds, data.y_test, plain, turned, strange))
        entropies[recipe.name] = {"test digits": plain.entropy, "letters": strange.entropy}
    return DigitsResult(rows, {"rotated": _turn_figure(turning, turns), "entropy": _entropy_figure(entropies)})


def _turn_figure(images: Tensor, turns: dict[str, Predictive]) -> Figure:
    from matplotlib.figure import Figure

    leading = [c for predictive in turns.values() for c in plots.leading_classes(predictive, 3)]
    shown = sorted(c for c, _ in Counter(leading).most_common(4))
    figure = Figure(figsize=(9.6, 5.6), layout="constrained")
    for ax, (name, predictive) in zip(_grid(figure), turns.items(), strict=True):
        plots.rotated_digit(images, ANGLES, predictive, ax, classes=shown)
        ax.set_title(name, y=1.25)
        ax.label_outer()
    _legend(figure, "class ")
    return figure


def _entropy_figure(entropies: dict[str, dict[str, Tensor]]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 4.6), layout="constrained")
    for ax, (name, groups) in zip(_grid(figure), entropies.items(), strict=True):
        plots.uncertainty_histogram(groups, ax, bins=16, limits=(0.0, math.log(10)))
        ax.set_title(name)
        ax.label_outer()
    _legend(figure)
    return figure


def _grid(figure: Figure) -> list[Axes]:
    return list(figure.subplots(2, 2, sharex=True, sharey=True).flat)


def _legend(figure: Figure, prefix: str = "") -> None:
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, [prefix + label for label in labels], loc="outside lower center", ncols=len(labels))


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
