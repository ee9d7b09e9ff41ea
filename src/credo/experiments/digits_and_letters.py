"""8×8 digits, the same digits turned by 30°, and letters, by four methods.

What it shows. A classifier that knows what it does not know is less sure of a turned digit, and least of a letter, than
of a plain digit. No paper gives numbers for these images.

What is run. MAP, Bayes by Backprop, MC dropout and a deep ensemble with the same network learn 1,347 digits. The table
has accuracy and NLL on plain and turned digits, the mean entropy on all three kinds of images, and how well the entropy
tells letters from digits. The settings were chosen by looking at these measures: an illustration, not a comparison.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

import credo
from credo import metrics, plots
from credo._threads import one_thread
from credo.architectures import MLP
from credo.datasets import letters, load_digits, rotate
from credo.experiments.recipe import Recipe
from credo.experiments.registry import Effort, Result, Row, Setting, experiment

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from credo.predictive import Predictive

ROTATION = 30.0
SHARE_OF_EPOCHS: dict[Effort, float] = {"full": 1.0, "quick": 1.0, "smoke": 0.02}
DRAWS: dict[Effort, int] = {"full": 200, "quick": 200, "smoke": 10}
ANGLES = torch.linspace(0.0, 180.0, 37)


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


@experiment(
    title="Digits, the same digits turned, and letters, by four methods",
    reference="an illustration of this library",
    figures=["rotated", "entropy"],
)
def run(setting: Setting) -> Result:
    """Train every recipe, measure it on three kinds of images, and draw what it believes."""
    seed = setting.seed
    data, foreign = load_digits(seed=seed), letters(450, seed=seed)
    rotated = rotate(data.x_test, ROTATION)
    # Half a turn makes a 9 of a 6: in between a classifier should not be sure.
    six = data.x_test[data.y_test == 6][:1]
    turning = rotate(six.expand(len(ANGLES), -1, -1, -1), ANGLES)
    rows: list[Row] = []
    entropies, turns = {}, {}
    with one_thread():
        for recipe in recipes():
            setting.report(recipe.name)
            method = recipe.train(
                data.x_train,
                data.y_train,
                seed=seed,
                effort=SHARE_OF_EPOCHS[setting.effort],
                device=setting.device,
            )
            plain, turned, strange, turns[recipe.name] = (
                method.predict(x, samples=DRAWS[setting.effort], seed=seed).cpu()
                for x in (data.x_test, rotated, foreign, turning)
            )
            rows += _measure(recipe.name, data.y_test, plain, turned, strange)
            entropies[recipe.name] = {"test digits": plain.entropy, "letters": strange.entropy}
    return Result(tuple(rows), {"rotated": _turn_figure(turning, turns), "entropy": _entropy_figure(entropies)})


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


def _measure(name: str, y: Tensor, plain: Predictive, turned: Predictive, strange: Predictive) -> list[Row]:
    measured = {
        "accuracy": metrics.accuracy(plain, y),
        "NLL, nats": metrics.nll(plain, y),
        "accuracy, turned": metrics.accuracy(turned, y),
        "NLL, turned, nats": metrics.nll(turned, y),
        "mean entropy, nats": plain.entropy.mean().item(),
        "mean entropy, turned": turned.entropy.mean().item(),
        "mean entropy, letters": strange.entropy.mean().item(),
        "AUROC of the entropy, letters against digits": metrics.auroc(plain.entropy, strange.entropy),
    }
    return [Row(f"{name}: {quantity}", (value,)) for quantity, value in measured.items()]
