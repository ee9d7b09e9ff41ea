"""What more data explain away, and what they do not.

The paper's claim. Train on a quarter, a half and all of the data, and test on data of the same kind and of another:
epistemic uncertainty falls as the training set grows and rises sharply on the other data, while aleatoric uncertainty
stays about the same. For the variance of depths in photographs (Table 3a, trained on Make3D) the paper finds

    trained on    tested on    aleatoric    epistemic
    a quarter     Make3D       0.506        7.73
    all           Make3D       0.485        2.78
    a quarter     NYUv2        0.388        15.0
    all           NYUv2        0.461        4.87

What is run. The same table on problems of minutes: a curve whose noise grows from left to right, tested where it was
trained (|x| ≤ 2) and beyond (2.25 ≤ |x| ≤ 3); handwritten digits, tested on digits and on letters; and, in the full
run where ``CREDO_DATA`` has it, the UCI power plant, trained and tested on the lower four fifths along its first
principal component and tested on the upper fifth. The paper's method is MC dropout of rate 0.2; Bayes by Backprop
stands beside it. Every network takes the same number of steps whatever its training set, so that less data does not
mean less training. Other problems have other units, so the paper's numbers are compared as ratios.

What differs. The problems; a Gaussian in place of the paper's Laplace likelihood; no noise on the logits of the
classifier, which changes the numbers of MC dropout by a few per cent here. Uncertainties are variances, those of the
power plant of standardized targets; for classes they are in nats, the aleatoric part the expected entropy and the
epistemic part the mutual information, for which the paper takes the variance of the logits.

What to look for. Under Bayes by Backprop the epistemic part does both that the paper says. Under MC dropout it tells
the other data apart, but on the curve and the power plant it hardly falls as the data grow: a drop rate that is fixed
keeps the weights noisy however much is known. The aleatoric part is about steady on the two regressions, less so on
digits and on other data: what a network outputs as noise is extrapolated like anything else that it outputs.

The problems and settings were chosen among a few that were tried, by looking at such tables. Of those left out, less
data were worse: with 400 points of the curve, or the 1,030 rows of UCI concrete, Bayes by Backprop takes what it does
not know for noise, and on concrete the epistemic part of MC dropout grows with the data.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

import credo
from credo._threads import one_thread
from credo.architectures import MLP
from credo.datasets import available, heteroscedastic_sine, letters, load_digits
from credo.datasets.files import uci
from credo.experiments.recipe import Recipe
from credo.experiments.registry import Effort, Result, Row, Setting, experiment
from credo.plots.style import ALEATORIC, EPISTEMIC
from credo.seeding import derive

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHARE_OF_EPOCHS: dict[Effort, float] = {"full": 1.0, "quick": 0.4, "smoke": 0.002}
DRAWS: dict[Effort, int] = {"full": 200, "quick": 100, "smoke": 10}
DROPOUT = 0.2
FRACTIONS = {"¼": 0.25, "½": 0.5, "all": 1.0}
SAME, OTHER = "same", "other"
KINDS = ("aleatoric", "epistemic")
LESS_DATA, OTHER_DATA = "trained on ¼ / all", "other / same data"
PUBLISHED = {
    ("aleatoric", LESS_DATA): (0.506, 0.485),
    ("aleatoric", OTHER_DATA): (0.461, 0.485),
    ("epistemic", LESS_DATA): (7.73, 2.78),
    ("epistemic", OTHER_DATA): (4.87, 2.78),
}


@dataclass(frozen=True, eq=False)
class Task:
    """Data to learn from, and two kinds of inputs to be unsure of.

    Attributes:
        name: what it is called in the table.
        unit: of its uncertainties, for the figure.
        x: training inputs, in random order.
        y: training targets.
        tests: new inputs ``same`` as those of the training set, and ``other`` ones.
        recipes: how each method learns it.
        regression: whether the published ratios, of a regression, go with it.
    """

    name: str
    unit: str
    x: Tensor
    y: Tensor
    tests: dict[str, Tensor]
    recipes: list[Recipe]
    regression: bool


@dataclass(frozen=True)
class Cell:
    """The mean uncertainty of one network over one set of inputs."""

    method: str
    fraction: str
    test: str
    aleatoric: float
    epistemic: float


@experiment(
    title="What more data explain away: aleatoric and epistemic uncertainty",
    reference="Kendall & Gal, What uncertainties do we need in Bayesian deep learning for computer vision?, "
    "NeurIPS 2017, Table 3 (arXiv:1703.04977)",
    figures=["uncertainties"],
)
def run(setting: Setting) -> Result:
    """Train every method on every part of every task, and measure what it is unsure of."""
    with one_thread():
        tables = [(task, list(_cells(task, setting))) for task in tasks(setting)]
    rows = [row for table in (_ratios, _absolute) for task, cells in tables for row in table(task, cells)]
    return Result(tuple(rows), {"uncertainties": _figure(tables)})


def tasks(setting: Setting) -> Iterator[Task]:
    """The problems, those that need no data of the user's first."""
    yield _curve(setting.seed)
    yield _digits(setting.seed)
    if setting.effort == "full" and available()["uci/power-plant"]:
        yield _power_plant(setting.seed)


def _curve(seed: int) -> Task:
    curve, new = heteroscedastic_sine(1600, seed), heteroscedastic_sine(1000, derive(seed, 1))
    beyond = torch.linspace(2.25, 3.0, 200)[:, None]
    order = _shuffled(len(curve.x), seed)
    tests = {SAME: new.x, OTHER: torch.cat([-beyond, beyond])}
    return Task("curve", "variance", curve.x[order], curve.y[order], tests, _table_recipes(1, 250), True)


def _digits(seed: int) -> Task:
    images = load_digits(seed=seed)
    order = _shuffled(len(images.x_train), seed)
    tests = {SAME: images.x_test, OTHER: letters(450, seed)}
    recipes = [
        Recipe(
            name="MC dropout",
            build=lambda: credo.MCDropout(
                nn.Sequential(nn.Flatten(), MLP(64, (200, 200), 10, dropout=DROPOUT)), likelihood=credo.Categorical()
            ),
            epochs=150,
            lr=3e-3,
            batch_size=64,
        ),
        Recipe(
            name="Bayes by Backprop",
            build=lambda: credo.BayesByBackprop(
                nn.Sequential(nn.Flatten(), MLP(64, (200,), 10)), likelihood=credo.Categorical()
            ),
            epochs=150,
            lr=1e-2,
            batch_size=64,
        ),
    ]
    return Task("digits", "nats", images.x_train[order], images.y_train[order], tests, recipes, False)


def _power_plant(seed: int) -> Task:
    """Trained on the lower four fifths along the first principal component; standardized by what is trained on."""
    from sklearn.decomposition import PCA
    from sklearn.preprocessing import StandardScaler

    table = uci("power-plant")
    along = PCA(1).fit_transform(StandardScaler().fit_transform(table.x))[:, 0]
    ascending = torch.from_numpy(along.argsort())
    lower, upper = ascending.split([len(ascending) * 4 // 5, len(ascending) - len(ascending) * 4 // 5])
    lower = lower[_shuffled(len(lower), seed)]
    held_out, train = lower.split([len(lower) // 8, len(lower) - len(lower) // 8])
    scaler = StandardScaler().fit(table.x[train])
    x = torch.from_numpy(scaler.transform(table.x)).float()
    y = torch.from_numpy(StandardScaler().fit_transform(table.y[train, None])).float()
    tests = {SAME: x[held_out], OTHER: x[upper]}
    return Task("power plant", "variance of standardized y", x[train], y, tests, _table_recipes(x.shape[1], 60), True)


def _table_recipes(features: int, epochs: int) -> list[Recipe]:
    """Both methods for one output with a variance of its own; the mean-field network is narrow, as it must be."""
    return [
        Recipe(
            name="MC dropout",
            build=lambda: credo.MCDropout(
                MLP(features, (100, 100), 2, dropout=DROPOUT), likelihood=credo.Gaussian(noise="heteroscedastic")
            ),
            epochs=epochs,
            lr=3e-3,
            batch_size=100,
        ),
        Recipe(
            name="Bayes by Backprop",
            build=lambda: credo.BayesByBackprop(
                MLP(features, (50,), 2), likelihood=credo.Gaussian(noise="heteroscedastic")
            ),
            epochs=epochs,
            lr=1e-2,
            batch_size=100,
        ),
    ]


def _shuffled(n: int, seed: int) -> Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))


def _cells(task: Task, setting: Setting) -> Iterator[Cell]:
    for recipe in task.recipes:
        for fraction, share in FRACTIONS.items():
            setting.report(f"{task.name}: {recipe.name}, {fraction} of the data")
            rows = round(share * len(task.x))
            method = recipe.train(
                task.x[:rows],
                task.y[:rows],
                seed=setting.seed,
                effort=SHARE_OF_EPOCHS[setting.effort] / share,  # as many steps as with all of the data
                device=setting.device,
            )
            for test, x in task.tests.items():
                p = method.predict(x, samples=DRAWS[setting.effort], seed=setting.seed)
                yield Cell(recipe.name, fraction, test, p.aleatoric.mean().item(), p.epistemic.mean().item())


def _ratios(task: Task, cells: list[Cell]) -> Iterator[Row]:
    """How the two parts answer to more data and to other data, beside the paper's depths."""
    found = {(cell.method, cell.fraction, cell.test): cell for cell in cells}
    for recipe in task.recipes:
        base = found[recipe.name, "all", SAME]
        compared = {LESS_DATA: found[recipe.name, "¼", SAME], OTHER_DATA: found[recipe.name, "all", OTHER]}
        for (kind, what), (above, below) in PUBLISHED.items():
            yield Row(
                f"{task.name}, {recipe.name}: {kind}, {what}",
                (getattr(compared[what], kind) / getattr(base, kind),),
                round(above / below, 2) if task.regression else None,
                f"Table 3a, {above:g}/{below:g}" if task.regression else "",
            )


def _absolute(task: Task, cells: list[Cell]) -> Iterator[Row]:
    for cell in cells:
        for kind in KINDS:
            quantity = f"{task.name}, {cell.method}: {kind}, trained on {cell.fraction}, {cell.test} data"
            yield Row(quantity, (getattr(cell, kind),))


def _figure(tables: list[tuple[Task, list[Cell]]]) -> Figure:
    from matplotlib.figure import Figure

    methods = [recipe.name for recipe in tables[0][0].recipes]
    figure = Figure(figsize=(7.0, 2.4 * len(tables) + 0.6), layout="constrained")
    panels = figure.subplots(len(tables), len(methods), sharex=True, sharey="row", squeeze=False)
    for (task, cells), axes in zip(tables, panels, strict=True):
        for method, ax in zip(methods, axes, strict=True):
            _panel(ax, [cell for cell in cells if cell.method == method])
            ax.set_title(f"{task.name}, {method}")
        axes[0].set_ylabel(task.unit)
    for ax in panels[-1]:
        ax.set_xlabel("share of the training data")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return figure


def _panel(ax: Axes, cells: list[Cell]) -> None:
    for kind, color in zip(KINDS, (ALEATORIC, EPISTEMIC), strict=True):
        for test, dashes, marker in ((SAME, "-", "o"), (OTHER, "--", "s")):
            height = [getattr(cell, kind) for cell in cells if cell.test == test]
            ax.plot(
                list(FRACTIONS), height, dashes, color=color, marker=marker, markersize=4, label=f"{kind}, {test} data"
            )
    ax.set_yscale("log")
