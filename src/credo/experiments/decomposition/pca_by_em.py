"""EM for PCA (Bishop 12.12)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from credo.decomposition import PCA
from credo.em import EMFit, Expectation, fit_em
from credo.experiments.registry import Result, Row, RunConfig, experiment
from credo.plots.style import DATA, MUTED, OKABE_ITO

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POINTS = 60
STANDARD_DEVIATIONS = (1.4, 0.45)
TILT = math.radians(35.0)
START = math.radians(-40.0)
ROD, END, AXIS = OKABE_ITO["vermilion"], OKABE_ITO["sky"], OKABE_ITO["green"]


@dataclass(frozen=True, eq=False)
class Springs:
    """The points, and the position on the rod to which the spring of each is attached.

    Attributes:
        x: centered points ``[N, 2]``.
        z: positions ``[N]``, in units of the length of the rod.
    """

    x: Tensor
    z: Tensor

    def energy(self, rod: Tensor) -> float:
        """Half the squared length of all springs for the rod ``[2]``."""
        return 0.5 * float((self.x - torch.outer(self.z, rod)).square().sum())


@experiment(
    "pca-by-em",
    title="EM for PCA: a rod on springs",
    reference="Bishop, Pattern Recognition and Machine Learning, 2006, Figure 12.12",
    figures=["steps"],
)
def run(config: RunConfig) -> Result:
    """EM for PCA as a rod on springs: the E-step moves the ends of the springs, the M-step turns the rod.

    The book's figure. For probabilistic PCA with a noise variance that goes to 0, the two steps of EM are

        E:  Z = X̃W(WᵀW)⁻¹,    M:  W = X̃ᵀZ(ZᵀZ)⁻¹

    (12.58, 12.59). First the points are projected onto the principal subspace; then the subspace rotates to be closest
    to the points, each of which keeps its position on it. The book draws points in a plane, a rod in a random
    direction, and the rod after every step until it lies along the first principal component. It gives no numbers.

    What is run. These steps through ``credo.em.fit_em``, with minus half the squared length of all springs as the
    bound, from a rod nearly orthogonal to the first component. The table has the angle between the rod and that
    component after the first M-steps, and compares the end with ``credo.decomposition.PCA``. The data are 60 points of
    a correlated Gaussian with mean 0; the book does not state its own.
    """
    x = _points(config.seed)
    rods: list[Tensor] = []
    springs: list[Springs] = []

    def record(_: int, rod: Tensor, expectation: Expectation[Springs]) -> None:
        rods.append(rod)
        springs.append(expectation.statistics)

    fit = fit_em(
        lambda _: torch.tensor([math.cos(START), math.sin(START)], dtype=torch.float64),
        lambda rod: _e_step(x, rod),
        _m_step,
        rows=len(x),
        tolerance=1e-12,
        callback=record,
    )
    pca = PCA(device=config.device).fit(x.numpy())
    axis = torch.from_numpy(pca.components_[0])
    return Result(_rows(fit, rods, axis, pca), {"steps": _figure(x, rods, springs, pca)})


def _e_step(x: Tensor, rod: Tensor) -> Expectation[Springs]:
    """Move the ends along the rod so that the springs are shortest."""
    springs = Springs(x, x @ rod / rod.square().sum())
    return Expectation(springs, -springs.energy(rod))


def _m_step(springs: Springs) -> Tensor:
    """Rotate and stretch the rod so that the springs are shortest."""
    return springs.z @ springs.x / springs.z.square().sum()


def _points(seed: int) -> Tensor:
    """Points ``[N, 2]`` with mean 0, with ``STANDARD_DEVIATIONS`` along and across a tilted line."""
    generator = torch.Generator().manual_seed(seed)
    draws = torch.randn(POINTS, 2, generator=generator, dtype=torch.float64) * torch.tensor(STANDARD_DEVIATIONS)
    rotation = torch.tensor([[math.cos(TILT), math.sin(TILT)], [-math.sin(TILT), math.cos(TILT)]], dtype=torch.float64)
    x = draws @ rotation
    return x - x.mean(0)


def _angle(rod: Tensor, axis: Tensor) -> float:
    """The angle between two lines, in degrees."""
    across = float(rod[0] * axis[1] - rod[1] * axis[0])
    return math.degrees(math.atan2(abs(across), abs(float(rod @ axis))))


def _rows(fit: EMFit[Tensor, Springs], rods: list[Tensor], axis: Tensor, pca: PCA) -> tuple[Row, ...]:
    minimum = 0.5 * (POINTS - 1) * float(pca.explained_variance_[1])
    return (
        *(Row(f"angle to the first component after {k} M-steps, degrees", (_angle(rods[k], axis),)) for k in range(4)),
        Row("the same at the end", (_angle(rods[-1], axis),)),
        Row("M-steps", (float(fit.n_iter),)),
        Row("energy of the springs at the end / the minimum, by PCA", (-fit.bound / minimum,)),
    )


def _figure(x: Tensor, rods: list[Tensor], springs: list[Springs], pca: PCA) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    figure = Figure(figsize=(7.4, 5.4), layout="constrained")
    panels = figure.subplots(2, 3, sharex=True, sharey=True).flatten()
    _components(panels[0], x, pca)
    # After an M-step the springs are still attached at the positions of the previous E-step.
    stages = (
        ("(b) start, first E-step", 0, 0),
        ("(c) first M-step", 1, 0),
        ("(d) second E-step", 1, 1),
        ("(e) second M-step", 2, 1),
        ("(f) third E-step", 2, 2),
    )
    for ax, (title, rod, e_step) in zip(panels[1:], stages, strict=True):
        _stage(ax, title, springs[e_step], rods[rod])
    half = 1.1 * float(x.abs().max())
    for ax in panels:
        ax.set(xlim=(-half, half), ylim=(-half, half), aspect="equal", xticks=[-2, 0, 2], yticks=[-2, 0, 2])
    handles = [
        Line2D([], [], color=DATA, marker="o", markersize=3.0, linestyle="", label="points"),
        Line2D([], [], color=AXIS, linewidth=2.0, label="principal components, one standard deviation"),
        Line2D([], [], color=ROD, linewidth=1.6, label="rod, the span of W"),
        Line2D([], [], color=MUTED, marker="o", markersize=3.0, markerfacecolor=END, label="spring, attached at Wz"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4)
    return figure


def _components(ax: Axes, x: Tensor, pca: PCA) -> None:
    _dots(ax, x, DATA)
    for axis, variance in zip(pca.components_, pca.explained_variance_, strict=True):
        end = axis * math.sqrt(variance)
        style = {
            "arrowstyle": "-|>",
            "color": AXIS,
            "linewidth": 2.0,
            "mutation_scale": 9.0,
            "shrinkA": 0,
            "shrinkB": 0,
        }
        ax.annotate("", end, (0.0, 0.0), arrowprops=style, zorder=4)
    ax.set(title="(a) data")


def _stage(ax: Axes, title: str, springs: Springs, rod: Tensor) -> None:
    from matplotlib.collections import LineCollection

    ends = torch.outer(springs.z, rod)
    segments = torch.stack([springs.x, ends], 1).tolist()
    ax.add_collection(LineCollection(segments, colors=MUTED, linewidths=0.5))
    ax.axline((0.0, 0.0), (float(rod[0]), float(rod[1])), color=ROD, linewidth=1.6)
    _dots(ax, springs.x, DATA)
    _dots(ax, ends, END)
    ax.set(title=title)


def _dots(ax: Axes, points: Tensor, color: str) -> None:
    ax.scatter(points[:, 0], points[:, 1], s=9.0, c=color, linewidths=0.0, zorder=3)
