"""One Gaussian for two modes: the least KL(p ‖ q) spans them, the least KL(q ‖ p) takes one.

The book's figure. Contours of a mixture p of two Gaussians, and of the single Gaussian q that (a) minimizes KL(p ‖ q),
(b) is found by a numerical minimization of KL(q ‖ p), and (c) is another local minimum of KL(q ‖ p). The book gives no
numbers.

What is run. ``fit_q`` with a full covariance, for a mixture of two equal parts; the book does not state its own. (a)
has the mean and the covariance of p, in closed form. (b) and (c) are searched for from the one mean and from the other,
and by symmetry their divergences are equal: were the modes infinitely far apart, they would be log 2 = 0.693 nats. The
table has both divergences of all three: (a) has the least KL(p ‖ q), and (b) and (c) the least KL(q ‖ p). There is a
third minimum of KL(q ‖ p), a higher one, that spans both modes; bring the modes closer, and it becomes the lowest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.distributions import Categorical, Distribution, MixtureSameFamily, MultivariateNormal

from credo.experiments.registry import Effort, Result, Row, Setting, experiment
from credo.information import Fit, fit_q, kl
from credo.plots.style import OKABE_ITO

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MEANS = ((-1.25, -1.25), (1.25, 1.25))
COVARIANCE = ((0.55, -0.2), (-0.2, 0.55))
DRAWS: dict[Effort, int] = {"full": 1_000_000, "quick": 100_000, "smoke": 10_000}
P_COLOR, Q_COLOR = OKABE_ITO["sky"], OKABE_ITO["vermilion"]
EDGE = 3.7


@experiment(
    title="One Gaussian for two modes: KL(p ‖ q) against KL(q ‖ p)",
    reference="Bishop, Pattern Recognition and Machine Learning, 2006, Figure 10.3",
    figures=["contours"],
)
def run(setting: Setting) -> Result:
    """Fit the Gaussian in both directions and from both modes, measure both divergences, and draw the contours."""
    p, draws, seed = bimodal(), DRAWS[setting.effort], setting.seed
    fits = {
        "(a) least KL(p ‖ q)": fit_q(p, "full", "forward"),
        "(b) least KL(q ‖ p)": fit_q(p, "full", "reverse", start=MEANS[0], seed=seed),
        "(c) another minimum": fit_q(p, "full", "reverse", start=MEANS[1], seed=seed),
    }
    rows: list[Row] = []
    for name, fit in fits.items():
        rows += _measure(name[:3], p, fit, draws, seed)
    spanning = fit_q(p, "full", "reverse", starts=1, seed=seed)
    rows.append(Row("KL(q ‖ p) at the minimum that spans both modes, nats", (spanning.minima[0],)))
    return Result(tuple(rows), {"contours": _figure(p, fits)})


def bimodal() -> MixtureSameFamily:
    """½ N(z | −μ, Σ) + ½ N(z | μ, Σ)."""
    means, covariance = torch.tensor(MEANS, dtype=torch.float64), torch.tensor(COVARIANCE, dtype=torch.float64)
    return MixtureSameFamily(Categorical(torch.ones(2, dtype=torch.float64)), MultivariateNormal(means, covariance))


def _measure(panel: str, p: MixtureSameFamily, fit: Fit, draws: int, seed: int) -> list[Row]:
    q = fit.distribution
    forward, reverse = kl(p, q, samples=draws, seed=seed), kl(q, p, samples=draws, seed=seed)
    distance = (q.mean - p.component_distribution.mean).norm(dim=-1).min().item()
    rows = [
        Row(f"{panel} KL(p ‖ q), nats", (float(forward),), note=f"± {forward.standard_error.item():.1g}"),
        Row(f"{panel} KL(q ‖ p), nats", (float(reverse),), note=f"± {reverse.standard_error.item():.1g}"),
        Row(f"{panel} distance of the mean of q from the nearest mean in p", (distance,)),
    ]
    if fit.direction == "forward":
        return rows
    searched = fit.minima[0]
    z = ((reverse.value - searched) / reverse.standard_error).item()
    return [
        *rows,
        Row(f"{panel} KL(q ‖ p) as the search has it, nats", (searched,)),
        Row(f"{panel} KL(q ‖ p) by Monte Carlo, less what the search has, in standard errors", (z,)),
    ]


def _figure(p: MixtureSameFamily, fits: dict[str, Fit]) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    figure = Figure(figsize=(8.4, 3.4), layout="constrained")
    panels = figure.subplots(1, 3, sharex=True, sharey=True)
    for ax, (name, fit) in zip(panels, fits.items(), strict=True):
        _contours(ax, p, p.component_distribution.mean[0], P_COLOR, "-", 2.4)
        _contours(ax, fit.distribution, fit.distribution.mean, Q_COLOR, "--", 1.1)
        ax.set(title=name, xlabel="$z_1$", aspect="equal")
    panels[0].set(ylabel="$z_2$", xlim=(-EDGE, EDGE), ylim=(-EDGE, EDGE))
    handles = [
        Line2D([], [], color=P_COLOR, linewidth=2.4, label="p, a mixture of two Gaussians"),
        Line2D([], [], color=Q_COLOR, linestyle="--", label="q, one Gaussian"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2)
    return figure


def _contours(ax: Axes, density: Distribution, top: torch.Tensor, color: str, dash: str, width: float) -> None:
    """Where a density has fallen to e^{−r²/2} of its height at ``top``: r standard deviations of a Gaussian."""
    line = torch.linspace(-EDGE, EDGE, 300, dtype=torch.float64)
    x, y = torch.meshgrid(line, line, indexing="xy")
    log_height = density.log_prob(torch.stack([x, y], -1)) - density.log_prob(top)
    distance = (-2.0 * log_height).clamp(min=0.0).sqrt()
    ax.contour(x, y, distance, levels=[0.5, 1.0, 1.5, 2.0, 2.5], colors=color, linestyles=dash, linewidths=width)
