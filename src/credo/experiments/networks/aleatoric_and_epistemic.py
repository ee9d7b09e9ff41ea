"""Aleatoric and epistemic uncertainty with more data and with other data (Kendall & Gal 2017, Table 3)."""

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
from credo.experiments._shared import add_legend
from credo.experiments.networks._training import TrainingConfig
from credo.experiments.registry import Budget, Result, Row, RunConfig, experiment
from credo.plots.style import ALEATORIC, EPISTEMIC
from credo.seeding import derive

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

EPOCH_FRACTION: dict[Budget, float] = {"full": 1.0, "quick": 0.4, "smoke": 0.002}
DRAWS: dict[Budget, int] = {"full": 200, "quick": 100, "smoke": 10}
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
class Problem:
    """Training data, and two kinds of test inputs.

    Attributes:
        name: name in the table.
        unit: unit of the uncertainties, for the figure.
        x: training inputs, in random order.
        y: training targets.
        tests: new inputs, of the ``same`` kind as the training set and of an ``other`` kind.
        methods: the methods and their training options.
        regression: whether to compare with the published ratios, which are those of a regression.
    """

    name: str
    unit: str
    x: Tensor
    y: Tensor
    tests: dict[str, Tensor]
    methods: list[TrainingConfig]
    regression: bool


@dataclass(frozen=True)
class Uncertainty:
    """The mean uncertainty of one network over one set of inputs."""

    method: str
    fraction: str
    test: str
    aleatoric: float
    epistemic: float


@experiment(
    "aleatoric-and-epistemic",
    title="Aleatoric and epistemic uncertainty, by the size of the training set and on other data",
    reference="Kendall & Gal, What uncertainties do we need in Bayesian deep learning for computer vision?, "
    "NeurIPS 2017, Table 3 (arXiv:1703.04977)",
    figures=["uncertainties"],
)
def run(config: RunConfig) -> Result:
    """How aleatoric and epistemic uncertainty change with the size of the training set, and on other data.

    The paper's claim. Train on a quarter, a half and all of the data, and test on data of the same kind and of another:
    epistemic uncertainty falls as the training set grows and rises sharply on the other data, while aleatoric
    uncertainty stays about the same. For the variance of depths in photographs (Table 3a, trained on Make3D) the paper
    finds

        trained on    tested on    aleatoric    epistemic
        a quarter     Make3D       0.506        7.73
        all           Make3D       0.485        2.78
        a quarter     NYUv2        0.388        15.0
        all           NYUv2        0.461        4.87

    What is run. The same table on small problems: a curve whose noise grows from left to right, tested where it was
    trained (|x| ≤ 2) and outside (2.25 ≤ |x| ≤ 3); handwritten digits, tested on digits and on letters; and, in the
    full run if ``CREDO_DATA`` has it, the UCI power plant, trained and tested on the lower four fifths along its first
    principal component and tested on the upper fifth. The paper's method is MC dropout of rate 0.2; Bayes by Backprop
    is added. Every network takes the same number of steps for every size of the training set, so that less data does
    not mean less training. The problems have different units, so the paper's numbers are compared as ratios.

    What differs. The problems; a Gaussian in place of the paper's Laplace likelihood; no noise on the logits of the
    classifier, which changes the numbers of MC dropout by a few percent here. Uncertainties are variances, for the
    power plant of standardized targets. For classes they are in nats, the aleatoric part the expected entropy and the
    epistemic part the mutual information, where the paper uses the variance of the logits.

    What to look for. Under Bayes by Backprop the epistemic part behaves as in the paper. Under MC dropout it separates
    the other data, but on the curve and the power plant it hardly falls as the data grow. That is a property of dropout
    with a fixed rate, not of the problems: the loss per datum contains the variance of the drawn functions averaged
    over the data, which has a limit that depends on the rate and the width, not on the number of data. The experiment
    ``epistemic-by-data-size`` derives and shows it. The aleatoric part is about constant on the two regressions, less
    so on digits and on other data: the predicted noise is extrapolated like any other output of the network.

    The problems and settings were chosen among a few that were tried, by looking at such tables. Problems with less
    data were worse: with 400 points of the curve, or the 1,030 rows of UCI concrete, Bayes by Backprop explains its
    errors as noise, and on concrete the epistemic part of MC dropout grows with the data.
    """
    with one_thread():
        tables = [(problem, list(_uncertainties(problem, config))) for problem in _problems(config)]
    rows = [row for table in (_ratios, _absolute) for problem, cells in tables for row in table(problem, cells)]
    return Result(tuple(rows), {"uncertainties": _figure(tables)})


def _problems(config: RunConfig) -> Iterator[Problem]:
    """The problems; the last one needs a data file."""
    yield _curve(config.seed)
    yield _digits(config.seed)
    if config.budget == "full" and available()["uci/power-plant"]:
        yield _power_plant(config.seed)


def _curve(seed: int) -> Problem:
    curve, new = heteroscedastic_sine(1600, seed), heteroscedastic_sine(1000, derive(seed, 1))
    beyond = torch.linspace(2.25, 3.0, 200)[:, None]
    order = _shuffled(len(curve.x), seed)
    tests = {SAME: new.x, OTHER: torch.cat([-beyond, beyond])}
    return Problem("curve", "variance", curve.x[order], curve.y[order], tests, _regression_methods(1, 250), True)


def _digits(seed: int) -> Problem:
    images = load_digits(seed=seed)
    order = _shuffled(len(images.x_train), seed)
    tests = {SAME: images.x_test, OTHER: letters(450, seed)}
    methods = [
        TrainingConfig(
            name="MC dropout",
            build=lambda: credo.MCDropout(
                nn.Sequential(nn.Flatten(), MLP(64, (200, 200), 10, dropout=DROPOUT)), likelihood=credo.Categorical()
            ),
            epochs=150,
            lr=3e-3,
            batch_size=64,
        ),
        TrainingConfig(
            name="Bayes by Backprop",
            build=lambda: credo.BayesByBackprop(
                nn.Sequential(nn.Flatten(), MLP(64, (200,), 10)), likelihood=credo.Categorical()
            ),
            epochs=150,
            lr=1e-2,
            batch_size=64,
        ),
    ]
    return Problem("digits", "nats", images.x_train[order], images.y_train[order], tests, methods, False)


def _power_plant(seed: int) -> Problem:
    """The lower four fifths along the first principal component for training; standardized by the training rows."""
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
    return Problem(
        "power plant", "variance of standardized y", x[train], y, tests, _regression_methods(x.shape[1], 60), True
    )


def _regression_methods(features: int, epochs: int) -> list[TrainingConfig]:
    """Both methods with a heteroscedastic output; the mean-field network is narrow."""
    return [
        TrainingConfig(
            name="MC dropout",
            build=lambda: credo.MCDropout(
                MLP(features, (100, 100), 2, dropout=DROPOUT), likelihood=credo.Gaussian(noise="heteroscedastic")
            ),
            epochs=epochs,
            lr=3e-3,
            batch_size=100,
        ),
        TrainingConfig(
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


def _uncertainties(problem: Problem, config: RunConfig) -> Iterator[Uncertainty]:
    for training in problem.methods:
        for fraction, share in FRACTIONS.items():
            config.report(f"{problem.name}: {training.name}, {fraction} of the data")
            rows = round(share * len(problem.x))
            method = training.train(
                problem.x[:rows],
                problem.y[:rows],
                seed=config.seed,
                epoch_fraction=EPOCH_FRACTION[config.budget] / share,  # the number of steps for all of the data
                device=config.device,
            )
            for test, x in problem.tests.items():
                p = method.predict(x, samples=DRAWS[config.budget], seed=config.seed)
                yield Uncertainty(training.name, fraction, test, p.aleatoric.mean().item(), p.epistemic.mean().item())


def _ratios(problem: Problem, cells: list[Uncertainty]) -> Iterator[Row]:
    """The change of both parts with more data and on other data, beside the paper's."""
    found = {(cell.method, cell.fraction, cell.test): cell for cell in cells}
    for training in problem.methods:
        base = found[training.name, "all", SAME]
        compared = {LESS_DATA: found[training.name, "¼", SAME], OTHER_DATA: found[training.name, "all", OTHER]}
        for (kind, what), (above, below) in PUBLISHED.items():
            yield Row(
                f"{problem.name}, {training.name}: {kind}, {what}",
                (getattr(compared[what], kind) / getattr(base, kind),),
                round(above / below, 2) if problem.regression else None,
                f"Table 3a, {above:g}/{below:g}" if problem.regression else "",
            )


def _absolute(problem: Problem, cells: list[Uncertainty]) -> Iterator[Row]:
    for cell in cells:
        for kind in KINDS:
            quantity = f"{problem.name}, {cell.method}: {kind}, trained on {cell.fraction}, {cell.test} data"
            yield Row(quantity, (getattr(cell, kind),))


def _figure(tables: list[tuple[Problem, list[Uncertainty]]]) -> Figure:
    from matplotlib.figure import Figure

    methods = [training.name for training in tables[0][0].methods]
    figure = Figure(figsize=(7.0, 2.4 * len(tables) + 0.6), layout="constrained")
    panels = figure.subplots(len(tables), len(methods), sharex=True, sharey="row", squeeze=False)
    for (problem, cells), axes in zip(tables, panels, strict=True):
        for method, ax in zip(methods, axes, strict=True):
            _panel(ax, [cell for cell in cells if cell.method == method])
            ax.set_title(f"{problem.name}, {method}")
        axes[0].set_ylabel(problem.unit)
    for ax in panels[-1]:
        ax.set_xlabel("share of the training data")
    add_legend(figure, panels[0, 0])
    return figure


def _panel(ax: Axes, cells: list[Uncertainty]) -> None:
    for kind, color in zip(KINDS, (ALEATORIC, EPISTEMIC), strict=True):
        for test, dashes, marker in ((SAME, "-", "o"), (OTHER, "--", "s")):
            height = [getattr(cell, kind) for cell in cells if cell.test == test]
            ax.plot(
                list(FRACTIONS), height, dashes, color=color, marker=marker, markersize=4, label=f"{kind}, {test} data"
            )
    ax.set_yscale("log")
