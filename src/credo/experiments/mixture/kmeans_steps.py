"""The steps of k-means on Old Faithful (Bishop 9.1 and 9.2)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from credo._devices import check_device
from credo._rows import Rows
from credo.em import fit_em
from credo.experiments._shared import eruptions, standardize
from credo.experiments.registry import Result, Row, RunConfig, experiment
from credo.mixture._lloyd import Lloyd, TableScale, nearest_centers
from credo.plots.style import MUTED, OKABE_ITO

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

START = ((-1.5, 1.0), (1.5, -1.0))
COLORS = (OKABE_ITO["vermilion"], OKABE_ITO["blue"])
E_COLOR, M_COLOR = OKABE_ITO["blue"], OKABE_ITO["vermilion"]
PANELS = 9
AXIS_LIMIT = 2.4


@dataclass(frozen=True)
class HalfStep:
    """The state of k-means after an E-step or an M-step.

    Attributes:
        name: ``"E"`` or ``"M"``.
        iteration: number of the iteration, from 1.
        centers: ``[2, 2]``.
        labels: the cluster of every eruption, ``[N]``.
        cost: J.
    """

    name: str
    iteration: int
    centers: Tensor
    labels: Tensor
    cost: float


@experiment(
    "kmeans-steps",
    title="k-means on Old Faithful: the cost after every half step",
    reference="Bishop, Pattern Recognition and Machine Learning, 2006, Figures 9.1 and 9.2",
    figures=["cost", "stages"],
)
def run(config: RunConfig) -> Result:
    """k-means on the eruptions of Old Faithful: the cost J after every E-step and every M-step.

    What the book shows. K = 2 clusters of the 272 eruptions, each variable standardized, from a poor start. J falls in
    every half step, and the algorithm has converged after the third M-step (Figure 9.2). The nine panels of Figure 9.1
    show how the centers move to the two groups.

    What is run. The same with the steps of ``credo.mixture.KMeans``, from centers at opposite corners, (−1.5, 1) and
    (1.5, −1): the book draws its start but does not give it in numbers. A smoke run draws two groups of the same kind
    instead of reading the data. Nothing else is random.
    """
    x = torch.from_numpy(standardize(eruptions(config)))
    stages = _stages(x, config.device)
    converged = next(
        s for s in stages if s.name == "E" and s.iteration > 1 and torch.equal(s.labels, _previous_labels(stages, s))
    )
    last = stages[-1]
    sizes = last.labels.bincount(minlength=2).tolist()
    rows = [
        Row(
            "M-steps until the assignments no longer change",
            (float(converged.iteration - 1),),
            3.0,
            "caption of Figure 9.2",
            "the book gives its start as a picture only",
        ),
        Row("J at the end", (last.cost,)),
        Row("J / N at the end, in variances of a column", (last.cost / len(x) / 2.0,)),
        *(Row(f"eruptions in cluster {k + 1}", (float(size),)) for k, size in enumerate(sizes)),
        *(Row(f"J after {s.name}-step {s.iteration}", (s.cost,)) for s in stages[:5]),
    ]
    return Result(tuple(rows), {"cost": _cost_figure(stages), "stages": _stages_figure(x, stages)})


def _stages(x: Tensor, device: str | None) -> list[HalfStep]:
    """All half steps; the last one changes nothing."""
    rows = Rows((x.numpy(),), check_device(device), lambda chunk: chunk)
    scale = TableScale.from_rows(rows)
    steps, visited = Lloyd(rows, scale), []
    start = torch.tensor(START, dtype=torch.float64, device=rows.device) - scale.mean
    fit_em(
        lambda _: start,
        steps.e_step,
        steps.m_step,
        rows=len(x),
        tolerance=0.0,
        callback=lambda _, centers, __: visited.append((centers + scale.mean).cpu()),
    )
    stages = []
    for i, (before, after) in enumerate(pairwise(visited), 1):
        labels, distances = nearest_centers(x, before)
        stages.append(HalfStep("E", i, before, labels, float(distances.sum())))
        stages.append(HalfStep("M", i, after, labels, float((x - after[labels]).square().sum())))
    return stages


def _previous_labels(stages: list[HalfStep], step: HalfStep) -> Tensor:
    """The labels of the iteration before that of ``step``."""
    return next(s.labels for s in stages if s.iteration == step.iteration - 1)


def _cost_figure(stages: list[HalfStep]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6, 3.2), layout="constrained")
    ax = figure.subplots()
    place = [s.iteration - (0.5 if s.name == "E" else 0.0) for s in stages]
    ax.plot(place, [s.cost for s in stages], color=MUTED, linewidth=1.0, zorder=1)
    for name, color, marker in (("E", E_COLOR, "o"), ("M", M_COLOR, "s")):
        at, cost = zip(*((i, s.cost) for i, s in zip(place, stages, strict=True) if s.name == name), strict=True)
        ax.scatter(at, cost, color=color, marker=marker, s=30, zorder=2, label=f"after an {name}-step")
    ax.set(xlabel="iteration", ylabel="cost J", ylim=(0.0, None), xticks=range(1, stages[-1].iteration + 1))
    ax.legend()
    return figure


def _stages_figure(x: Tensor, stages: list[HalfStep]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 7.2), layout="constrained")
    panels = figure.subplots(3, 3, sharex=True, sharey=True).ravel()
    _draw(panels[0], x, torch.tensor(START, dtype=torch.float64), None)
    panels[0].set_title("start")
    for ax, stage in zip(panels[1:], stages, strict=False):
        _draw(ax, x, stage.centers, stage.labels)
        if stage.name == "E":
            _draw_boundary(ax, stage.centers)
        ax.set_title(f"{stage.name}-step {stage.iteration}")
    for ax in panels[len(stages) + 1 : PANELS]:
        ax.set_axis_off()
    panels[0].set(xlim=(-AXIS_LIMIT, AXIS_LIMIT), ylim=(-AXIS_LIMIT, AXIS_LIMIT), xticks=(-2, 0, 2), yticks=(-2, 0, 2))
    figure.supxlabel("length of the eruption, standardized")
    figure.supylabel("time until the next, standardized")
    return figure


def _draw(ax: Axes, x: Tensor, centers: Tensor, labels: Tensor | None) -> None:
    groups = [(x, MUTED)] if labels is None else [(x[labels == k], COLORS[k]) for k in range(2)]
    for rows, color in groups:
        ax.scatter(rows[:, 0], rows[:, 1], s=7, color=color, alpha=0.5, linewidths=0.0)
    for center, color in zip(centers, COLORS, strict=True):
        ax.scatter(center[0], center[1], marker="X", s=110, color=color, edgecolors="white", linewidths=1.2, zorder=3)
    ax.set_aspect("equal")


def _draw_boundary(ax: Axes, centers: Tensor) -> None:
    """Draw the line of equal distance from both centers."""
    middle, normal = centers.mean(0), centers[1] - centers[0]
    along = torch.stack([-normal[1], normal[0]]) / normal.norm()
    ends = torch.stack([middle - 10.0 * along, middle + 10.0 * along])
    ax.plot(ends[:, 0], ends[:, 1], color=OKABE_ITO["purple"], linewidth=1.2)
