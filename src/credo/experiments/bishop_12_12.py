"""EM for PCA as a rod on springs: the E-step lets the ends of the springs slide, the M-step lets the rod turn.

The book's figure. For probabilistic PCA with a noise variance that goes to 0, the two steps of EM are

    E:  Z = X̃W(WᵀW)⁻¹,    M:  W = X̃ᵀZ(ZᵀZ)⁻¹

(12.58, 12.59): first the points are projected onto the principal subspace, at right angles; then the subspace turns to
be closest to the points, each of which holds on to its place on it. The book draws points in a plane, a rod in a random
direction, and the rod after every step until it lies along the first principal component. It gives no numbers.

What is run. These steps through ``credo.em.fit_em``, where minus half the squared length of all springs is the bound,
which no step lowers, from a rod nearly at right angles to the first component. The table has the angle between the rod
and that component after every M-step drawn, and compares the end with ``credo.decomposition.PCA``. The data are 60
points of a correlated Gaussian with mean 0; those of the book are not stated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from credo.decomposition import PCA
from credo.em import EMFit, Expectation, fit_em
from credo.experiments.registry import Result, Row, Setting, experiment
from credo.plots.style import DATA, MUTED, OKABE_ITO

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POINTS = 60
STANDARD_DEVIATIONS = (1.4, 0.45)
TILT = math.radians(35.0)
START = math.radians(-40.0)
ROD, FOOT, AXIS = OKABE_ITO["vermilion"], OKABE_ITO["sky"], OKABE_ITO["green"]


@dataclass(frozen=True, eq=False)
class Springs:
    """What an E-step leaves: the points, and where on the rod each is fastened.

    Attributes:
        x: ``[N, 2]``, centered.
        z: ``[N]``, in units of the length of the rod.
    """

    x: Tensor
    z: Tensor

    def energy(self, rod: Tensor) -> float:
        """Half the squared length of all springs, with the rod ``[2]`` as given."""
        return 0.5 * float((self.x - torch.outer(self.z, rod)).square().sum())


@experiment(
    title="EM for PCA: a rod on springs",
    reference="Bishop, Pattern Recognition and Machine Learning, 2006, Figure 12.12",
    figures=["steps"],
)
def run(setting: Setting) -> Result:
    """Climb, keep every step, and draw the first ones."""
    x = _points(setting.seed)
    rods: list[Tensor] = []
    springs: list[Springs] = []

    def keep(_: int, rod: Tensor, expectation: Expectation[Springs]) -> None:
        rods.append(rod)
        springs.append(expectation.statistics)

    fit = fit_em(
        lambda _: torch.tensor([math.cos(START), math.sin(START)], dtype=torch.float64),
        lambda rod: e_step(x, rod),
        m_step,
        rows=len(x),
        tolerance=1e-12,
        callback=keep,
    )
    pca = PCA(device=setting.device).fit(x.numpy())
    axis = torch.from_numpy(pca.components_[0])
    return Result(_rows(fit, rods, axis, pca), {"steps": _figure(x, rods, springs, pca)})


def e_step(x: Tensor, rod: Tensor) -> Expectation[Springs]:
    """Let the ends slide along the rod to where the springs are shortest."""
    springs = Springs(x, x @ rod / rod.square().sum())
    return Expectation(springs, -springs.energy(rod))


def m_step(springs: Springs) -> Tensor:
    """Let the rod turn, and stretch, to where the springs are shortest."""
    return springs.z @ springs.x / springs.z.square().sum()


def _points(seed: int) -> Tensor:
    """Points with the mean 0 and the standard deviations above along and across a tilted line, ``[N, 2]``."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(POINTS, 2, generator=generator, dtype=torch.float64) * torch.tensor(STANDARD_DEVIATIONS)
    turn = torch.tensor([[math.cos(TILT), math.sin(TILT)], [-math.sin(TILT), math.cos(TILT)]], dtype=torch.float64)
    x = drawn @ turn
    return x - x.mean(0)


def _angle(rod: Tensor, axis: Tensor) -> float:
    """Between two lines, in degrees."""
    across = float(rod[0] * axis[1] - rod[1] * axis[0])
    return math.degrees(math.atan2(abs(across), abs(float(rod @ axis))))


def _rows(fit: EMFit[Tensor, Springs], rods: list[Tensor], axis: Tensor, pca: PCA) -> tuple[Row, ...]:
    least = 0.5 * (POINTS - 1) * float(pca.explained_variance_[1])
    return (
        *(Row(f"angle to the first component after {k} M-steps, degrees", (_angle(rods[k], axis),)) for k in range(4)),
        Row("the same at the end", (_angle(rods[-1], axis),)),
        Row("M-steps", (float(fit.n_iter),)),
        Row("energy of the springs at the end / the least, by PCA", (-fit.bound / least,)),
    )


def _figure(x: Tensor, rods: list[Tensor], springs: list[Springs], pca: PCA) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    figure = Figure(figsize=(7.4, 5.4), layout="constrained")
    panels = figure.subplots(2, 3, sharex=True, sharey=True).flatten()
    _components(panels[0], x, pca)
    # after an M-step the springs still hold the places of the E-step before it
    stages = (
        ("(b) start, first E-step", 0, 0),
        ("(c) first M-step", 1, 0),
        ("(d) second E-step", 1, 1),
        ("(e) second M-step", 2, 1),
        ("(f) third E-step", 2, 2),
    )
    for ax, (title, rod, hold) in zip(panels[1:], stages, strict=True):
        _stage(ax, title, springs[hold], rods[rod])
    half = 1.1 * float(x.abs().max())
    for ax in panels:
        ax.set(xlim=(-half, half), ylim=(-half, half), aspect="equal", xticks=[-2, 0, 2], yticks=[-2, 0, 2])
    handles = [
        Line2D([], [], color=DATA, marker="o", markersize=3.0, linestyle="", label="points"),
        Line2D([], [], color=AXIS, linewidth=2.0, label="principal components, one standard deviation"),
        Line2D([], [], color=ROD, linewidth=1.6, label="rod, the span of W"),
        Line2D([], [], color=MUTED, marker="o", markersize=3.0, markerfacecolor=FOOT, label="spring, fastened at Wz"),
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

    feet = torch.outer(springs.z, rod)
    ends_of_springs = torch.stack([springs.x, feet], 1).tolist()
    ax.add_collection(LineCollection(ends_of_springs, colors=MUTED, linewidths=0.5))
    ax.axline((0.0, 0.0), (float(rod[0]), float(rod[1])), color=ROD, linewidth=1.6)
    _dots(ax, springs.x, DATA)
    _dots(ax, feet, FOOT)
    ax.set(title=title)


def _dots(ax: Axes, points: Tensor, color: str) -> None:
    ax.scatter(points[:, 0], points[:, 1], s=9.0, c=color, linewidths=0.0, zorder=3)
