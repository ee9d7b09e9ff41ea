"""The binomial distribution, from tosses of a bent coin.

What the book shows. A histogram of Bin(m | N, μ) for N = 10 and μ = 0.25; its mean is Nμ and its variance Nμ(1 − μ).

What is run. The exact distribution, and beside it the numbers of heads in simulated runs of ten tosses, whose
frequencies should lie within their error bars. The figure in the book has the exact bars alone.
"""

from __future__ import annotations

import torch
from torch.distributions import Bernoulli, Binomial

from credo._estimate import Estimate
from credo.experiments.registry import Effort, Result, Row, Setting, experiment
from credo.plots.style import DATA, OKABE_ITO
from credo.seeding import seeded

TOSSES, HEADS = 10, 0.25
RUNS: dict[Effort, int] = {"full": 10_000, "quick": 10_000, "smoke": 1000}


@experiment(
    title="The binomial distribution, N = 10 and μ = 0.25",
    reference="C. M. Bishop. Pattern Recognition and Machine Learning. 2006, Figure 2.1",
    figures=["histogram"],
)
def run(setting: Setting) -> Result:
    """Toss the coins, and compare their counts with the distribution."""
    from matplotlib.figure import Figure

    exact = Binomial(TOSSES, torch.tensor(HEADS, dtype=torch.float64))
    values = torch.arange(TOSSES + 1, dtype=torch.float64)
    probabilities = exact.log_prob(values).exp()
    with seeded(setting.seed, torch.device("cpu")):
        tosses = Bernoulli(exact.probs).sample(torch.Size([RUNS[setting.effort], TOSSES]))
    counts = tosses.sum(1)
    seen = Estimate.from_samples((counts[:, None] == values).double())

    figure = Figure(figsize=(4.6, 3.0), layout="constrained")
    ax = figure.subplots()
    ax.bar(values.numpy(), probabilities.numpy(), color=OKABE_ITO["sky"], label="Bin(m | 10, 0.25)")
    ax.errorbar(
        values.numpy(),
        seen.value.numpy(),
        yerr=2.0 * seen.standard_error.numpy(),
        fmt="o",
        color=DATA,
        markersize=3.0,
        linewidth=1.0,
        label=f"{len(counts):,} simulated runs, ± 2 standard errors",
    )
    ax.set(xlabel="heads in ten tosses, m", ylabel="probability", xticks=range(TOSSES + 1), ylim=(0.0, 0.35))
    ax.legend(loc="upper right")
    rows = (
        Row("mean", (counts.mean().item(),), exact.mean.item(), "equation 2.11"),
        Row("variance", (counts.var().item(),), exact.variance.item(), "equation 2.12"),
        Row("most frequent m", (seen.value.argmax().item(),), probabilities.argmax().item(), "Figure 2.1"),
        Row("total variation between frequencies and probabilities", (_distance(seen.value, probabilities),)),
    )
    return Result(rows, {"histogram": figure})


def _distance(p: torch.Tensor, q: torch.Tensor) -> float:
    return 0.5 * (p - q).abs().sum().item()
