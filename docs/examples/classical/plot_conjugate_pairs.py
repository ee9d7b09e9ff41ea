r"""
Counts, labels and vectors: the other conjugate pairs
=====================================================

Learning with a conjugate prior is counting. Beside shares of successes (:doc:`plot_conjugate_updating`), credo has
pairs for counts, for labels, and for numbers and vectors with known or unknown spread. All have ``update``,
``posterior``, ``predictive`` and ``log_evidence``, in closed form.

Look at the predictive distributions. Where data are few they are wider than the best fit, which is what a decision
needs.
"""

# %%
# **Counts.** Calls in the first five minutes of a shift, and how many lines the next minutes need. The predictive
# distribution of a Gamma–Poisson pair is negative binomial, wider than the Poisson distribution of the best fit.

import matplotlib.pyplot as plt
import torch
from torch.distributions import Poisson

from credo.conjugate import (
    BetaBernoulli,
    DirichletCategorical,
    GammaPoisson,
    NormalKnownVariance,
    NormalWishart,
)

calls = GammaPoisson(shape=1, rate=0.5).update([2, 5, 1, 4, 3])
counts = torch.arange(15, dtype=torch.float64)
predictive = calls.predictive.log_prob(counts).exp()
best_fit = Poisson(torch.tensor(3.0, dtype=torch.float64)).log_prob(counts).exp()
figure, ax = plt.subplots(figsize=(6, 3), layout="constrained")
ax.bar(counts - 0.2, predictive, 0.4, label="predictive")
ax.bar(counts + 0.2, best_fit, 0.4, label="Poisson, best fit", color="#E69F00")
ax.set(xlabel="calls in the next minute", ylabel="probability")
ax.legend()
plt.show()
print(f"{calls}; more than 7 calls: {1 - predictive[:8].sum():.3f}, by the best fit {1 - best_fit[:8].sum():.3f}")

# %%
# **Labels.** Twelve letters of an unknown text, over an alphabet of 26. A letter that did not occur is not impossible.

text = [ord(letter) - ord("a") for letter in "bayesianbeli"]
letters = DirichletCategorical(torch.full((26,), 0.5)).update(text)
probabilities = letters.predictive.probs
print(f"next letter e: {probabilities[4]:.3f}, z, which has not occurred: {probabilities[25]:.4f}")

# %%
# **A number with known noise.** A scale that is off by a standard deviation of 0.5 g weighs a coin of about 7 ± 1 g
# three times: precisions add up.

coin = NormalKnownVariance(mean=7.0, variance=1.0, noise_variance=0.25).update([7.9, 7.4, 7.6])
print(f"weight {float(coin.posterior.mean):.2f} ± {float(coin.posterior.stddev):.2f} g")

# %%
# **Vectors with unknown mean and covariance.** The predictive distribution of a Normal–Wishart pair is a Student t:
# with six points its contours are far wider than those of the fitted Gaussian, and with 200 they agree.

torch.manual_seed(0)
points = torch.randn(200, 2, dtype=torch.float64) @ torch.tensor([[1.0, 0.8], [0.0, 0.6]], dtype=torch.float64)
prior = NormalWishart([0.0, 0.0], mean_precision=0.1, degrees_of_freedom=3, inverse_scale=[[3.0, 0.0], [0.0, 3.0]])
axis = torch.linspace(-4, 4, 80, dtype=torch.float64)
grid = torch.stack(torch.meshgrid(axis, axis, indexing="xy"), -1)
figure, axes = plt.subplots(1, 2, figsize=(8, 3.8), sharey=True, layout="constrained")
for ax, n in zip(axes, (6, 200), strict=True):
    fitted = torch.distributions.MultivariateNormal(points[:n].mean(0), points[:n].T.cov(correction=0))
    densities = {"predictive": prior.update(points[:n]).predictive, "best fit": fitted}
    for (name, density), color in zip(densities.items(), ("#0072B2", "#E69F00"), strict=True):
        log_density = density.log_prob(grid)
        inside = log_density.exp() * (axis[1] - axis[0]) ** 2
        order = inside.flatten().sort(descending=True).values
        threshold = order[(order.cumsum(0) < 0.95).sum()] / (axis[1] - axis[0]) ** 2
        ax.contour(axis, axis, log_density.exp(), levels=[float(threshold)], colors=color)
        ax.plot([], [], color=color, label=f"{name}, 95 %")
    ax.plot(*points[:n].T, "k.", markersize=4)
    ax.set(title=f"{n} points")
axes[0].legend(loc="upper left")
plt.show()

# %%
# **Evidence.** Which of two explanations of the same ten tosses is better: a coin of unknown bias, or a fair one? The
# evidence integrates the bias out and needs no held-out tosses.

for tosses in ([1, 1, 0, 1, 0, 1, 0, 0, 1, 0], [1, 1, 1, 1, 0, 1, 1, 1, 1, 1]):
    unknown = float(BetaBernoulli(1, 1).log_evidence(tosses))
    fair = len(tosses) * float(torch.tensor(0.5).log())
    print(f"{sum(tosses)} heads of 10: log evidence of an unknown bias {unknown:.2f}, of a fair coin {fair:.2f}")

# %%
# More than seven calls have a probability of 1.8 % in place of 1.2 %, a z of 2 % in place of 0, and the contour
# around six points is about twice as far out as that of the best fit. For five heads of ten the fair coin is the
# better explanation, by one nat, although the other contains it: a bias that was not needed has its price. For nine
# heads it loses by two.
