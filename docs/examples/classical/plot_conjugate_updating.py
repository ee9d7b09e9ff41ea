r"""
Learning as arithmetic: conjugate priors
========================================

A prior is conjugate to a likelihood if the posterior has the same form. Learning is then a sum: a rate of success
:math:`\mu` with a beta prior, after m successes in n trials, has the posterior

.. math:: \mathrm{Beta}(\mu \mid a, b) \;\longrightarrow\; \mathrm{Beta}(\mu \mid a + m,\; b + n - m),

and a normal variable of unknown mean and precision has a normal-gamma posterior. This example asks of the first whether
one page is better than another, and of the second what a handful of measurements is worth.

Look at the second figure: an interval that takes estimates for the truth covers far less than it promises.
"""

# %%
# Two versions of a page are shown to 40 visitors a day each. Their true rates of clicks, 10 % and 14 %, are known here
# and to nobody else. ``update`` adds a day's clicks to the hyperparameters, in any order and in any number of pieces.

import matplotlib.pyplot as plt
import torch
from scipy.stats import t as student
from torch.distributions import Binomial

import credo
from credo.conjugate import BetaBinomial, NormalGamma

torch.manual_seed(0)
RATES, VISITORS, DAYS = torch.tensor([0.10, 0.14], dtype=torch.float64), 40, 30
clicks = Binomial(VISITORS, RATES).sample((DAYS,))  # [days, pages]

prior = BetaBinomial([2.0, 2.0], [18.0, 18.0], trials=VISITORS)  # both are believed to be near 10 %
beliefs = [prior]
for day in clicks:
    beliefs.append(beliefs[-1].update(day[None]))
print(f"day by day:  {beliefs[-1]}\nall at once: {prior.update(clicks)}")

# %%
# The posterior of both rates after 0, 3 and 30 days, and the probability that page B is the better one, by draws from
# the two posteriors.

grid = torch.linspace(0.001, 0.3, 500, dtype=torch.float64)
colors = [credo.plots.OKABE_ITO["blue"], credo.plots.OKABE_ITO["vermilion"]]
better = []
for belief in beliefs:
    draws = belief.posterior.sample((20_000,))
    better.append((draws[:, 1] > draws[:, 0]).double().mean().item())

figure, axes = plt.subplots(1, 4, figsize=(11, 2.9), layout="constrained")
for ax, day in zip(axes[:3], (0, 3, 30), strict=True):
    density = beliefs[day].posterior.log_prob(grid[:, None]).exp()
    for k, color in enumerate(colors):
        ax.plot(grid, density[:, k], color=color, linestyle=("-", "--")[k], label=f"page {'AB'[k]}")
        ax.fill_between(grid, density[:, k], color=color, alpha=0.2)
        ax.axvline(RATES[k], color=color, linestyle=":", linewidth=1)
    ax.set(title=f"after {day} days", xlabel="rate of clicks", yticks=[], ylim=(0, None))
axes[0].set(ylabel="posterior density (dotted: the truth)")
axes[0].legend()
axes[3].plot(better, color="black")
axes[3].axhline(0.5, color="gray", linestyle=":")
axes[3].set(title="P(B is better)", xlabel="days", ylim=(0, 1))
plt.show()

print(f"P(B is better): day 3 {better[3]:.2f}, day 10 {better[10]:.2f}, day 30 {better[30]:.3f}")

# %%
# How many clicks will page B have tomorrow? A binomial with the mean rate forgets that the rate itself is uncertain.
# The predictive distribution integrates over it.

for day in (0, 3, 30):
    p = beliefs[day].predictive
    plain = Binomial(VISITORS, beliefs[day].posterior.mean)
    parts = f"{p.mean[1]:.1f} ± {p.variance[1].sqrt():.2f}, by a binomial ± {plain.variance[1].sqrt():.2f}"
    print(f"after {day} days: clicks on page B tomorrow {parts}")

# %%
# Now measurements: n values of a normal variable whose mean and variance are unknown. The plug-in interval takes the
# estimates for the truth, :math:`\hat\mu \pm 1.96\,\hat\sigma`. The predictive distribution integrates over both, and
# is Student's t. In 4,000 worlds drawn from the prior: how often is a new value inside its 95 % interval, and how wide
# is that?

WORLDS, sizes = 4000, [2, 3, 4, 6, 10, 20, 50]
prior = NormalGamma(*(torch.full((WORLDS,), value) for value in (0.0, 0.1, 2.0, 2.0)))  # one per world
world = prior.likelihood(prior.posterior.sample())
covered = {"plug-in normal": [], "predictive Student t": []}
width = {name: [] for name in covered}
for n in sizes:
    seen, new = world.sample((n,)), world.sample()
    t = prior.update(seen).predictive
    intervals = {
        "plug-in normal": (seen.mean(0), 1.96 * seen.std(0, correction=0)),
        "predictive Student t": (t.loc, student.ppf(0.975, t.df[0]) * t.scale),
    }
    for name, (center, half) in intervals.items():
        covered[name].append(((new - center).abs() < half).double().mean().item())
        width[name].append((2 * half).median().item())

figure, axes = plt.subplots(1, 2, figsize=(9, 3.3), layout="constrained")
for (name, values), style in zip(covered.items(), ("s--", "o-"), strict=True):
    axes[0].plot(sizes, values, style, label=name)
    axes[1].plot(sizes, width[name], style, label=name)
axes[0].axhline(0.95, color="gray", linestyle=":")
axes[0].set(xlabel="measurements", ylabel="coverage of 95 % intervals", xscale="log", ylim=(0.4, 1))
axes[1].set(xlabel="measurements", ylabel="median width", xscale="log", ylim=(0, None))
for ax in axes:
    ax.set_xticks(sizes, [str(n) for n in sizes])
    ax.minorticks_off()
axes[0].legend()
plt.show()

# %%
# Thirty days, as numbers of clicks, are two sums: 130 and 161 clicks were added to the 2 of the prior. After three days
# page A looks better by chance (the probability of B is 0.44), after ten it is even, after thirty it is 0.97. The
# uncertainty of the rate still widens tomorrow's clicks after three days, ± 2.39 beside ± 2.12, and hardly after
# thirty.
#
# Of four measurements the plug-in interval covers 77 % of new values, of two 55 %; Student's t covers between 94.2 %
# and 95.2 % for every size. It pays by being wide where little is known: at two measurements, more than twice as wide.
# Both agree when there are many.

for name, values in covered.items():
    print(name, {n: f"{v:.1%}" for n, v in zip(sizes, values, strict=True)})
