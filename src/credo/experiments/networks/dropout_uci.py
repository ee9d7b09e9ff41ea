"""MC dropout on the UCI regression tables (Gal & Ghahramani 2016, Table 1)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import credo
from credo import metrics
from credo._threads import one_thread
from credo.architectures import MLP
from credo.datasets.files import Table, uci
from credo.experiments._shared import add_legend
from credo.experiments.networks._training import TrainingConfig
from credo.experiments.registry import Budget, Result, Row, RunConfig, experiment
from credo.plots.style import CYCLE, TRUTH

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from credo.methods.base import Method


_Data = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Features and targets in their own units."""


class Scores(NamedTuple):
    """Two numbers of the test part of a split, or of a published table, in the units of the target."""

    log_likelihood: float
    rmse: float


PUBLISHED = {
    "bostonHousing": Scores(-2.46, 2.97),
    "concrete": Scores(-3.04, 5.23),
    "energy": Scores(-1.99, 1.66),
    "kin8nm": Scores(0.95, 0.10),
    "naval-propulsion-plant": Scores(3.80, 0.01),
    "power-plant": Scores(-2.80, 4.02),
    "protein-tertiary-structure": Scores(-2.89, 4.36),
    "wine-quality-red": Scores(-0.93, 0.62),
    "yacht": Scores(-1.55, 1.11),
}
SOURCE = "Table 1"
WIDE = "protein-tertiary-structure"
"""The table whose network has 100 units in place of 50."""
RATES = (0.005, 0.01, 0.05, 0.1)
"""The drop rates to choose from, those of the authors' code."""
LENGTH_SCALE = 0.01
HELD_OUT = 0.2
BATCH_SIZE = 128
LEARNING_RATE = 0.01


@dataclass(frozen=True)
class Plan:
    """What one budget runs.

    Attributes:
        tables: names of the tables; none: a synthetic one.
        splits: number of splits of each, at most.
        epochs: passes over the training part.
        draws: number of draws of a prediction.
    """

    tables: tuple[str, ...] = tuple(PUBLISHED)
    splits: int = 20
    epochs: int = 400
    draws: int = 1000


PLANS: dict[Budget, Plan] = {
    "full": Plan(),
    "quick": Plan(("bostonHousing", "concrete", "yacht"), splits=3, draws=200),
    "smoke": Plan((), splits=1, epochs=2, draws=5),
}


@experiment(
    "dropout-uci",
    title="MC dropout on UCI regression tables: log likelihood and RMSE",
    reference="Gal & Ghahramani, Dropout as a Bayesian approximation, ICML 2016, Table 1 (arXiv:1506.02142)",
    figures=["scores"],
)
def run(config: RunConfig) -> Result:
    """One hidden layer with dropout on nine regression tables, with the splits of Hernández-Lobato & Adams.

    The paper's claim. Averaged over dropout masks, the predictions of an ordinary network have a lower error and a
    higher log likelihood than those of variational inference and of probabilistic backpropagation.

    What is run. A network with one layer of 50 rectified units (100 for protein) and dropout before both layers of
    weights, length scale 0.01, 400 epochs, on the 20 splits (5 of protein) that the paper uses. The drop rate is the
    one of 0.005, 0.01, 0.05 and 0.1 with the highest log likelihood on a fifth of the training part; the network is
    then trained on the whole of it. The quick run has the first three splits of three tables.

    What differs. The noise, a grid in the paper, is learned with the weights. We train with Adam and a learning rate
    that decays to zero, and draw 1,000 masks, the paper 10,000.

    What to look for. The table has the mean over splits with its standard error. The published standard errors are
    between 0.00 and 0.06 nats.
    """
    plan = PLANS[config.budget]
    tables = {name: uci(name) for name in plan.tables} or {"synthetic": _synthetic(config.seed)}
    found: dict[str, list[Scores]] = {}
    with one_thread(config.device is None):
        for name, table in tables.items():
            splits = range(min(plan.splits, len(table.test_rows)))
            config.report(f"{name}, {len(splits)} splits")
            found[name] = [_score(name, table, split, plan, config) for split in splits]
    rows = [row for name, scores in found.items() for row in _rows(name, scores)]
    return Result(tuple(rows), {"scores": _figure(found)})


def _synthetic(seed: int, rows: int = 60) -> Table:
    """A table for smoke runs, with one split."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, 3))
    y = 10.0 + 2.0 * np.sin(x[:, 0]) + x[:, 1] + 0.1 * random.normal(size=rows)
    return Table(x, y, np.arange(rows // 5, dtype=np.int32)[None])


def _score(name: str, table: Table, index: int, plan: Plan, config: RunConfig) -> Scores:
    """Choose the drop rate inside the training part of a split, train on all of it, and score the test part."""
    seed = 1000 * config.seed + index
    split = table.split(index)
    order = np.random.default_rng(seed).permutation(len(split.y_train))
    held_out, kept = np.split(order, [round(HELD_OUT * len(order))])
    units = 100 if name == WIDE else 50

    def score(rate: float, train: _Data, test: _Data) -> Scores:
        data = _Standardized.of(*train)
        training = TrainingConfig(
            name=name,
            build=lambda: credo.MCDropout(
                MLP(train[0].shape[1], (units,)), credo.Gaussian(noise="learned"), p=rate, length_scale=LENGTH_SCALE
            ),
            epochs=plan.epochs,
            lr=LEARNING_RATE,
            batch_size=BATCH_SIZE,
        )
        method = training.train(data.x, data.y, seed=seed, device=config.device)
        return data.score(method, *test, plan.draws, seed)

    inner, outer = (split.x_train[kept], split.y_train[kept]), (split.x_train[held_out], split.y_train[held_out])
    chosen = max(RATES, key=lambda rate: score(rate, inner, outer).log_likelihood)
    return score(chosen, (split.x_train, split.y_train), (split.x_test, split.y_test))


@dataclass(frozen=True, eq=False)
class _Standardized:
    """Training data of mean 0 and standard deviation 1, and how other data become theirs."""

    x: Tensor
    y: Tensor
    center: NDArray[np.float64]
    scale: NDArray[np.float64]
    target_center: float
    target_scale: float

    @classmethod
    def of(cls, x: NDArray[np.float64], y: NDArray[np.float64]) -> _Standardized:
        spread = x.std(0)
        center, scale = x.mean(0), np.where(spread > 0.0, spread, 1.0)
        place = (center, scale, float(y.mean()), float(y.std()))
        return cls(_tensor((x - center) / scale), _tensor((y - place[2]) / place[3])[:, None], *place)

    def score(self, method: Method, x: NDArray[np.float64], y: NDArray[np.float64], draws: int, seed: int) -> Scores:
        """The mean log likelihood and the RMSE of new data, in the units of the target."""
        inputs = _tensor((x - self.center) / self.scale).to(method.device)
        predictive = method.predict(inputs, samples=draws, seed=seed).cpu()
        truth = _tensor((y - self.target_center) / self.target_scale)[:, None]
        likelihood = -metrics.nll(predictive, truth) - math.log(self.target_scale)
        return Scores(likelihood, self.target_scale * metrics.rmse(predictive, truth))


def _tensor(values: NDArray[np.float64]) -> Tensor:
    return torch.from_numpy(values.astype(np.float32))


def _rows(name: str, scores: list[Scores]) -> Iterator[Row]:
    published = PUBLISHED.get(name)
    source = SOURCE if published else ""
    likelihoods, errors = tuple(s.log_likelihood for s in scores), tuple(s.rmse for s in scores)
    yield Row(f"{name}: test log likelihood, nats", likelihoods, published and published.log_likelihood, source)
    yield Row(f"{name}: test RMSE", errors, published and published.rmse, source)


def _figure(found: dict[str, list[Scores]]) -> Figure:
    """Ours with two standard errors beside the published values: the log likelihood, and the RMSE relative to them."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 1.6 + 0.4 * len(found)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for place, (name, scores) in enumerate(found.items()):
        ours, published = np.array(scores), PUBLISHED.get(name)
        unit = published.rmse if published else float(ours[:, 1].mean())
        _draw(left, place, ours[:, 0], published and published.log_likelihood)
        _draw(right, place, ours[:, 1] / unit, published and 1.0)
    left.set_yticks(range(len(found)), list(found))
    left.set_ylim(len(found) - 0.5, -0.5)
    left.set_xlabel("test log likelihood, nats")
    right.set_xlabel("test RMSE, relative to the published")
    add_legend(figure, left)
    return figure


def _draw(ax: Axes, place: int, values: NDArray[np.float64], published: float | None) -> None:
    """One line of a panel: the mean over splits with two standard errors, and the published value."""
    error = 2.0 * float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    label = "ours ± 2 standard errors" if place == 0 else None
    ax.errorbar(values.mean(), place, xerr=error, fmt="o", color=CYCLE[0], capsize=3, label=label)
    if published is not None:
        ax.plot(published, place, "D", color=TRUTH, markersize=5, label="published" if place == 0 else None)
