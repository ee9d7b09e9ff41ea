"""A Gaussian approximation by either direction of the KL divergence (Bishop 10.2 and 10.3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, MixtureSameFamily, MultivariateNormal

from credo.experiments.registry import Budget, Result, Row, RunConfig, experiment
from credo.information import Fit, fit_q, kl, mutual_information
from credo.plots.style import OKABE_ITO

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DRAWS: dict[Budget, int] = {"full": 1_000_000, "quick": 100_000, "smoke": 10_000}
Q_COLOR = OKABE_ITO["vermilion"]

CENTER = (0.5, 0.5)
VARIANCE_ALONG, VARIANCE_ACROSS = 0.04, 0.004
CORRELATED_COLOR = OKABE_ITO["green"]

MEANS = ((-1.25, -1.25), (1.25, 1.25))
COVARIANCE = ((0.55, -0.2), (-0.2, 0.55))
BIMODAL_COLOR = OKABE_ITO["sky"]
BIMODAL_LIMIT = 3.7


@experiment(
    "kl-directions-correlated",
    title="A product of Gaussians for a correlated one: KL(q ‖ p) against KL(p ‖ q)",
    reference="Bishop, Pattern Recognition and Machine Learning, 2006, Figure 10.2",
    figures=["contours"],
)
def correlated(config: RunConfig) -> Result:
    """A product of two Gaussians as an approximation of a correlated one, by either direction of the divergence.

    The book's figure. Contours at 1, 2 and 3 standard deviations of a Gaussian p(z) over two correlated variables, and
    of the product q(z₁)q(z₂) that minimizes (a) KL(q ‖ p), as variational inference does, and (b) KL(p ‖ q). Both have
    the right mean. (a) has the precisions Λ₁₁ and Λ₂₂ of p, so that its variances are the conditional ones, and (b) has
    the marginals of p. The book gives no numbers.

    What is run. ``fit_q`` in both directions for a Gaussian with standard deviations 0.2 along the diagonal and 0.063
    across, so that ρ = 0.82; the book does not state its own. For two variables both divergences are the mutual
    information −½ log(1 − ρ²). The table also compares the closed form of (a) with a numerical search that treats p as
    a general density, and with a Monte Carlo estimate of the divergence.
    """
    p, draws = _correlated_gaussian(), DRAWS[config.budget]
    reverse, forward = fit_q(p, "diagonal", "reverse"), fit_q(p, "diagonal", "forward")
    searched = fit_q(_as_mixture(p), "diagonal", "reverse", seed=config.seed)
    estimate = kl(reverse.distribution, _as_mixture(p), samples=draws, seed=config.seed)
    information = mutual_information(p)
    precisions = reverse.distribution.variance.reciprocal()
    errors = searched.distribution.variance.reciprocal() / p.precision_matrix.diagonal() - 1.0
    rows = (
        Row("KL(q ‖ p) of (a), nats", (float(reverse.divergence),)),
        Row("KL(p ‖ q) of (b), nats", (float(forward.divergence),)),
        Row("mutual information −½ log(1 − ρ²), nats", (float(information),), note="the exact value of both"),
        Row(
            "KL(q ‖ p) of (a) by Monte Carlo, less the closed form, in standard errors",
            (((estimate.value - information.value) / estimate.standard_error).item(),),
            note=f"{draws:,} draws",
        ),
        Row("KL(q ‖ p) of (b), nats", (float(kl(forward.distribution, p)),)),
        Row("KL(p ‖ q) of (a), nats", (float(kl(p, reverse.distribution)),)),
        Row("precision of z₁ in (a)", (precisions[0].item(),)),
        Row("Λ₁₁ of p", (p.precision_matrix[0, 0].item(),), note="the exact precision in (a)"),
        Row("largest relative error of the precisions in (a) by numerical search", (errors.abs().max().item(),)),
        Row("variance of z₁ in (a) / in p", ((reverse.distribution.variance / p.variance)[0].item(),), note="1 − ρ²"),
        Row("variance of z₁ in (b) / in p", ((forward.distribution.variance / p.variance)[0].item(),)),
    )
    titles = {"(a) least KL(q ‖ p)": reverse.distribution, "(b) least KL(p ‖ q)": forward.distribution}
    return Result(rows, {"contours": _correlated_figure(p, titles)})


@experiment(
    "kl-directions-bimodal",
    title="One Gaussian for two modes: KL(p ‖ q) against KL(q ‖ p)",
    reference="Bishop, Pattern Recognition and Machine Learning, 2006, Figure 10.3",
    figures=["contours"],
)
def bimodal(config: RunConfig) -> Result:
    """One Gaussian for two modes: the minimum of KL(p ‖ q) covers both, that of KL(q ‖ p) covers one.

    The book's figure. Contours of a mixture p of two Gaussians, and of the single Gaussian q that (a) minimizes
    KL(p ‖ q), (b) is found by a numerical minimization of KL(q ‖ p), and (c) is another local minimum of KL(q ‖ p). The
    book gives no numbers.

    What is run. ``fit_q`` with a full covariance, for a mixture of two equal parts; the book does not state its own.
    (a) has the mean and the covariance of p, in closed form. (b) and (c) are searches that start at the one mean and at
    the other. By symmetry their divergences are equal; for modes infinitely far apart they would be log 2 = 0.693 nats.
    The table has both divergences of all three: (a) has the lowest KL(p ‖ q), and (b) and (c) the lowest KL(q ‖ p).
    There is a third, higher minimum of KL(q ‖ p) that covers both modes; for modes closer together it is the lowest.
    """
    p, draws, seed = _bimodal_mixture(), DRAWS[config.budget], config.seed
    fits = {
        "(a) least KL(p ‖ q)": fit_q(p, "full", "forward"),
        "(b) least KL(q ‖ p)": fit_q(p, "full", "reverse", start=MEANS[0], seed=seed),
        "(c) another minimum": fit_q(p, "full", "reverse", start=MEANS[1], seed=seed),
    }
    rows: list[Row] = []
    for name, fit in fits.items():
        rows += _bimodal_rows(name[:3], p, fit, draws, seed)
    covering = fit_q(p, "full", "reverse", starts=1, seed=seed)
    rows.append(Row("KL(q ‖ p) at the minimum that covers both modes, nats", (covering.minima[0],)))
    return Result(tuple(rows), {"contours": _bimodal_figure(p, fits)})


def _correlated_gaussian() -> MultivariateNormal:
    """N(z | μ, Σ) with principal axes along the diagonals."""
    half_sum, half_difference = (VARIANCE_ALONG + VARIANCE_ACROSS) / 2, (VARIANCE_ALONG - VARIANCE_ACROSS) / 2
    covariance = torch.tensor([[half_sum, half_difference], [half_difference, half_sum]], dtype=torch.float64)
    return MultivariateNormal(torch.tensor(CENTER, dtype=torch.float64), covariance)


def _as_mixture(p: MultivariateNormal) -> MixtureSameFamily:
    """The same density as a mixture of one component, whose divergences have no closed form."""
    components = MultivariateNormal(p.loc[None], p.covariance_matrix[None])
    return MixtureSameFamily(Categorical(torch.ones(1, dtype=torch.float64)), components)


def _bimodal_mixture() -> MixtureSameFamily:
    """½ N(z | −μ, Σ) + ½ N(z | μ, Σ)."""
    means, covariance = torch.tensor(MEANS, dtype=torch.float64), torch.tensor(COVARIANCE, dtype=torch.float64)
    return MixtureSameFamily(Categorical(torch.ones(2, dtype=torch.float64)), MultivariateNormal(means, covariance))


def _bimodal_rows(panel: str, p: MixtureSameFamily, fit: Fit, draws: int, seed: int) -> list[Row]:
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
        Row(f"{panel} KL(q ‖ p) by numerical search, nats", (searched,)),
        Row(f"{panel} KL(q ‖ p) by Monte Carlo, less that of the search, in standard errors", (z,)),
    ]


def _correlated_figure(p: MultivariateNormal, fits: Mapping[str, Distribution]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.6, 3.7), layout="constrained")
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    levels, limits = [1.0, 2.0, 3.0], (-0.1, 1.1)
    for ax, (title, q) in zip(panels, fits.items(), strict=True):
        _contours(ax, p, p.mean, levels, limits, colors=CORRELATED_COLOR, linestyles="-", linewidths=1.3)
        _contours(ax, q, q.mean, levels, limits, colors=Q_COLOR, linestyles="--", linewidths=1.3)
        ax.set(title=title, xlabel="$z_1$", aspect="equal", xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
    panels[0].set(ylabel="$z_2$", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    p_line = {"color": CORRELATED_COLOR, "label": "p, correlated, at 1, 2 and 3 standard deviations"}
    _add_legend(figure, p_line, "q, a product of two Gaussians")
    return figure


def _bimodal_figure(p: MixtureSameFamily, fits: dict[str, Fit]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 3.4), layout="constrained")
    panels = figure.subplots(1, 3, sharex=True, sharey=True)
    levels, limits = [0.5, 1.0, 1.5, 2.0, 2.5], (-BIMODAL_LIMIT, BIMODAL_LIMIT)
    for ax, (name, fit) in zip(panels, fits.items(), strict=True):
        q, mode = fit.distribution, p.component_distribution.mean[0]
        _contours(ax, p, mode, levels, limits, colors=BIMODAL_COLOR, linestyles="-", linewidths=2.4)
        _contours(ax, q, q.mean, levels, limits, colors=Q_COLOR, linestyles="--", linewidths=1.1)
        ax.set(title=name, xlabel="$z_1$", aspect="equal")
    panels[0].set(ylabel="$z_2$", xlim=limits, ylim=limits)
    p_line = {"color": BIMODAL_COLOR, "linewidth": 2.4, "label": "p, a mixture of two Gaussians"}
    _add_legend(figure, p_line, "q, one Gaussian")
    return figure


def _add_legend(figure: Figure, p_line: dict[str, Any], q_label: str) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], **p_line), Line2D([], [], color=Q_COLOR, linestyle="--", label=q_label)]
    figure.legend(handles=handles, loc="outside lower center", ncols=2)


def _contours(
    ax: Axes, density: Distribution, mode: Tensor, levels: list[float], limits: tuple[float, float], **style: Any
) -> None:
    """Draw where a density is e^{−r²/2} of that at ``mode``, for each level r, in standard deviations of a Gaussian."""
    line = torch.linspace(*limits, 300, dtype=torch.float64)
    x, y = torch.meshgrid(line, line, indexing="xy")
    log_height = density.log_prob(torch.stack([x, y], -1)) - density.log_prob(mode)
    distance = (-2.0 * log_height).clamp(min=0.0).sqrt()
    ax.contour(x, y, distance, levels=levels, **style)
