"""The Dirichlet distribution over three probabilities, at concentrations 0.1, 1 and 10.

What the book shows. Its density above the simplex of (μ₁, μ₂, μ₃), for all αₖ = 0.1, 1 and 10: heaped up along the
edges, flat, and a hill in the middle.

What is run. The same densities, as surfaces; and below them draws from each, which show what an infinite density at
the corners means: one of three probabilities is nearly 1.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributions import Dirichlet

from credo.experiments.registry import Effort, Result, Row, Setting, experiment
from credo.plots.style import DATA, EPISTEMIC
from credo.seeding import derive, seeded

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CONCENTRATIONS = (0.1, 1.0, 10.0)
CORNERS = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.5, math.sqrt(3.0) / 2.0]], dtype=torch.float64)
DRAWS: dict[Effort, int] = {"full": 100_000, "quick": 100_000, "smoke": 2000}
SHOWN = 500
STEPS = 60
"""Cells along an edge of the surface, which is evaluated at their centers: at an edge α < 1 has no finite density."""
CEILING = 25.0


@experiment(
    title="The Dirichlet distribution over the simplex, α = 0.1, 1 and 10",
    reference="C. M. Bishop. Pattern Recognition and Machine Learning. 2006, Figure 2.5",
    figures=["simplex"],
)
def run(setting: Setting) -> Result:
    """Draw from each distribution, and show its density."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 5.4), layout="constrained")
    halves: Any = figure.subfigures(2, 1)
    above, below = halves
    above.supylabel("density")
    below.supylabel(f"{SHOWN} draws")
    rows: list[Row] = []
    for column, alpha in enumerate(CONCENTRATIONS):
        distribution = Dirichlet(torch.full((3,), alpha, dtype=torch.float64))
        with seeded(derive(setting.seed, column), torch.device("cpu")):
            draws = distribution.sample(torch.Size([DRAWS[setting.effort]]))
        _surface(above.add_subplot(1, 3, column + 1, projection="3d"), alpha, distribution)
        _cloud(below.add_subplot(1, 3, column + 1), draws[:SHOWN])
        largest = draws.amax(1)
        exact = distribution.stddev[0].item()
        rows += [
            Row(f"α = {alpha:g}: standard deviation of μ₁", (draws[:, 0].std().item(),), note=f"{exact:.4f} exactly"),
            Row(
                f"α = {alpha:g}: mean of the largest probability",
                (largest.mean().item(),),
                note="11/18 = 0.611 exactly" if alpha == 1.0 else "",
            ),
            Row(
                f"α = {alpha:g}: share of draws with a probability above 0.95",
                ((largest > 0.95).double().mean().item(),),
            ),
        ]
    return Result(tuple(rows), {"simplex": figure})


def _surface(ax: Any, alpha: float, distribution: Dirichlet) -> None:
    """The density above the simplex, cut off at the ceiling."""
    mu, triangles = _grid()
    height = distribution.log_prob(mu).exp().clamp(max=CEILING)
    x, y = (mu @ CORNERS).T.numpy()
    ax.computed_zorder = False  # which would draw the outline of the simplex over the surface
    ax.plot(*torch.cat([CORNERS, CORNERS[:1]]).T.numpy(), 0.0, color=DATA, linewidth=0.8)
    ax.plot_trisurf(
        x,
        y,
        height.numpy(),
        triangles=triangles.numpy(),
        cmap="viridis",
        linewidth=0.0,
        antialiased=False,
        vmin=0.0,
        vmax=CEILING,
        zorder=3.0,
    )
    ax.set(title=f"αₖ = {alpha:g}", zlim=(0.0, CEILING), xticks=[], yticks=[], zticks=[0, 10, 20])
    ax.view_init(elev=28, azim=-60)
    ax.set_box_aspect((1.0, 0.87, 0.75), zoom=1.1)


def _grid() -> tuple[Tensor, Tensor]:
    """Points inside the simplex, ``[P, 3]``, and the triangles between them, ``[T, 3]``."""
    steps = STEPS - 1
    points = [(i, j) for i in range(steps + 1) for j in range(steps + 1 - i)]
    index = {point: k for k, point in enumerate(points)}
    upright = [(index[i, j], index[i + 1, j], index[i, j + 1]) for i, j in points if i + j < steps]
    turned = [(index[i + 1, j], index[i + 1, j + 1], index[i, j + 1]) for i, j in points if i + j < steps - 1]
    first, second = torch.tensor(points, dtype=torch.float64).unbind(1)
    mu = (torch.stack([first, second, steps - first - second], 1) + 1.0 / 3.0) / STEPS
    return mu, torch.tensor(upright + turned)


def _cloud(ax: Axes, draws: Tensor) -> None:
    ax.add_patch(_triangle())
    x, y = (draws @ CORNERS).T.numpy()
    ax.scatter(x, y, s=5.0, color=EPISTEMIC, alpha=0.5, linewidth=0.0)
    for corner, name, (dx, dy) in zip(
        CORNERS.tolist(), ("μ₁", "μ₂", "μ₃"), ((-9.0, -5.0), (9.0, -5.0), (0.0, 8.0)), strict=True
    ):
        ax.annotate(name, corner, (dx, dy), textcoords="offset points", ha="center", va="center")
    ax.set(aspect="equal", xlim=(-0.08, 1.08), ylim=(-0.08, 0.96))
    ax.set_axis_off()


def _triangle() -> Any:
    from matplotlib.patches import Polygon

    return Polygon(CORNERS.tolist(), fill=False, edgecolor=DATA, linewidth=0.8)
