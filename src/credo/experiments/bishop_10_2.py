"""A product of two Gaussians in place of a correlated one, by either direction of the divergence.

The book's figure. Contours at 1, 2 and 3 standard deviations of a Gaussian p(z) over two correlated variables, and of
the product q(z₁)q(z₂) that minimizes (a) KL(q ‖ p), as variational inference does, and (b) KL(p ‖ q). Both have the
right mean; (a) has the precisions Λ₁₁ and Λ₂₂ of p, so that its variances are those of one variable where the other is
known, and (b) has the marginals of p. The book gives no numbers.

What is run. ``fit_q`` in both directions for a Gaussian with standard deviations 0.2 along the diagonal and 0.063
across, so that ρ = 0.82; the book does not state its own. For two variables both divergences are the mutual
information −½ log(1 − ρ²). The table also compares the closed form of (a) with a numerical search that is not told
that p is Gaussian, and with a Monte Carlo estimate of the divergence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, MixtureSameFamily, MultivariateNormal

from credo.experiments.registry import Effort, Result, Row, Setting, experiment
from credo.information import Direction, fit_q, kl, mutual_information
from credo.plots.style import OKABE_ITO

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CENTER = (0.5, 0.5)
VARIANCE_ALONG, VARIANCE_ACROSS = 0.04, 0.004
DRAWS: dict[Effort, int] = {"full": 1_000_000, "quick": 100_000, "smoke": 10_000}
TITLES: dict[Direction, str] = {"reverse": "(a) least KL(q ‖ p)", "forward": "(b) least KL(p ‖ q)"}
P_COLOR, Q_COLOR = OKABE_ITO["green"], OKABE_ITO["vermilion"]


@experiment(
    title="A product of Gaussians for a correlated one: KL(q ‖ p) against KL(p ‖ q)",
    reference="Bishop, Pattern Recognition and Machine Learning, 2006, Figure 10.2",
    figures=["contours"],
)
def run(setting: Setting) -> Result:
    """Fit the product both ways, compare with the closed forms, and draw the contours."""
    p = correlated_gaussian()
    reverse, forward = fit_q(p, "diagonal", "reverse"), fit_q(p, "diagonal", "forward")
    searched = fit_q(_disguised(p), "diagonal", "reverse", seed=setting.seed)
    drawn = kl(reverse.distribution, _disguised(p), samples=DRAWS[setting.effort], seed=setting.seed)
    information = mutual_information(p)
    precisions = reverse.distribution.variance.reciprocal()
    missed = searched.distribution.variance.reciprocal() / p.precision_matrix.diagonal() - 1.0
    draws = DRAWS[setting.effort]
    rows = [
        Row("KL(q ‖ p) of (a), nats", (float(reverse.divergence),)),
        Row("KL(p ‖ q) of (b), nats", (float(forward.divergence),)),
        Row("mutual information −½ log(1 − ρ²), nats", (float(information),), note="what both should be"),
        Row(
            "KL(q ‖ p) of (a) by Monte Carlo, less the closed form, in standard errors",
            (((drawn.value - information.value) / drawn.standard_error).item(),),
            note=f"{draws:,} draws",
        ),
        Row("KL(q ‖ p) of (b), nats", (float(kl(forward.distribution, p)),)),
        Row("KL(p ‖ q) of (a), nats", (float(kl(p, reverse.distribution)),)),
        Row("precision of z₁ in (a)", (precisions[0].item(),)),
        Row("Λ₁₁ of p", (p.precision_matrix[0, 0].item(),), note="what the precision in (a) should be"),
        Row(
            "largest relative error of the precisions in (a) where they are searched for", (missed.abs().max().item(),)
        ),
        Row("variance of z₁ in (a) / in p", ((reverse.distribution.variance / p.variance)[0].item(),), note="1 − ρ²"),
        Row("variance of z₁ in (b) / in p", ((forward.distribution.variance / p.variance)[0].item(),)),
    ]
    return Result(
        tuple(rows), {"contours": _figure(p, {fit.direction: fit.distribution for fit in (reverse, forward)})}
    )


def correlated_gaussian() -> MultivariateNormal:
    """N(z | μ, Σ) with principal axes along the diagonals."""
    half_sum, half_difference = (VARIANCE_ALONG + VARIANCE_ACROSS) / 2, (VARIANCE_ALONG - VARIANCE_ACROSS) / 2
    covariance = torch.tensor([[half_sum, half_difference], [half_difference, half_sum]], dtype=torch.float64)
    return MultivariateNormal(torch.tensor(CENTER, dtype=torch.float64), covariance)


def _disguised(p: MultivariateNormal) -> MixtureSameFamily:
    """The same density as a mixture of one, whose divergences have no closed form."""
    components = MultivariateNormal(p.loc[None], p.covariance_matrix[None])
    return MixtureSameFamily(Categorical(torch.ones(1, dtype=torch.float64)), components)


def _figure(p: MultivariateNormal, fits: dict[Direction, Distribution]) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    figure = Figure(figsize=(6.6, 3.7), layout="constrained")
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    for ax, (direction, q) in zip(panels, fits.items(), strict=True):
        _contours(ax, p, P_COLOR, "-")
        _contours(ax, q, Q_COLOR, "--")
        ax.set(title=TITLES[direction], xlabel="$z_1$", aspect="equal", xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
    panels[0].set(ylabel="$z_2$", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    handles = [
        Line2D([], [], color=P_COLOR, label="p, correlated, at 1, 2 and 3 standard deviations"),
        Line2D([], [], color=Q_COLOR, linestyle="--", label="q, a product of two Gaussians"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2)
    return figure


def _contours(ax: Axes, gaussian: Distribution, color: str, dash: str) -> None:
    """Where a Gaussian density has fallen to e^{−r²/2} of its height, r = 1, 2, 3 standard deviations from the mean."""
    line = torch.linspace(-0.1, 1.1, 300, dtype=torch.float64)
    x, y = torch.meshgrid(line, line, indexing="xy")
    log_height = gaussian.log_prob(torch.stack([x, y], -1)) - gaussian.log_prob(gaussian.mean)
    distance: Tensor = (-2.0 * log_height).clamp(min=0.0).sqrt()
    ax.contour(x, y, distance, levels=[1.0, 2.0, 3.0], colors=color, linestyles=dash, linewidths=1.3)
