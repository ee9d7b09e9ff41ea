"""One step of Bayesian inference about a coin: prior, likelihood, posterior.

What the book shows. The prior Beta(2, 2), the likelihood of a single head, and the posterior Beta(3, 2), each as a
function of the probability μ of heads.

What is run. The same with ``credo.conjugate.BetaBernoulli``; the table has the numbers behind the three curves.
Nothing is random, so every seed gives the same.
"""

from __future__ import annotations

import torch
from torch import Tensor

from credo.conjugate import BetaBernoulli
from credo.experiments.registry import Result, Row, Setting, experiment
from credo.plots.style import OKABE_ITO


@experiment(
    title="One step of Bayesian inference: Beta(2, 2) and a head make Beta(3, 2)",
    reference="C. M. Bishop. Pattern Recognition and Machine Learning. 2006, Figure 2.3",
    figures=["step"],
)
def run(setting: Setting) -> Result:
    """Update the prior with one head."""
    from matplotlib.figure import Figure

    del setting
    prior, data = BetaBernoulli(2, 2), [1]
    after = prior.update(data)
    mu = torch.linspace(0.0, 1.0, 501, dtype=torch.float64)[1:-1]
    curves: dict[str, tuple[Tensor, str, str]] = {
        "prior": (prior.posterior.log_prob(mu).exp(), "Beta(μ | 2, 2)", "blue"),
        "likelihood": (prior.likelihood(mu).log_prob(torch.ones_like(mu)).exp(), "p(x = 1 | μ) = μ", "vermilion"),
        "posterior": (after.posterior.log_prob(mu).exp(), "Beta(μ | 3, 2)", "blue"),
    }
    figure = Figure(figsize=(8.0, 2.6), layout="constrained")
    panels = figure.subplots(1, len(curves), sharex=True, sharey=True)
    for ax, (name, (density, formula, color)) in zip(panels, curves.items(), strict=True):
        ax.plot(mu.numpy(), density.numpy(), color=OKABE_ITO[color])
        ax.fill_between(mu.numpy(), density.numpy(), color=OKABE_ITO[color], alpha=0.12, linewidth=0.0)
        ax.set(title=name, xlabel="μ", xlim=(0.0, 1.0), ylim=(0.0, 2.0), xticks=(0.0, 0.5, 1.0), yticks=(0, 1, 2))
        ax.text(0.04, 1.88, formula, va="top")
    for ax, sign in zip(panels[:-1], ("×", "∝"), strict=True):
        ax.annotate(sign, (1.08, 0.5), xycoords="axes fraction", ha="center", va="center", fontsize=16)
    rows = (
        Row("posterior a", (after.a.item(),), 3.0, "caption of Figure 2.3"),
        Row("posterior b", (after.b.item(),), 2.0, "caption of Figure 2.3"),
        Row("posterior mean, the probability that the next is a head", (after.predictive.mean.item(),)),
        Row("posterior mode", (after.posterior.mode.item(),)),
        Row("evidence p(x = 1) under the prior", (prior.log_evidence(data).exp().item(),)),
    )
    return Result(rows, {"step": figure})
