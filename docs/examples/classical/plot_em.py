r"""
EM for a model of your own
==========================

Counts with too many zeros: some rows are zero because nothing can happen there, others by chance. Which is which was
not recorded. With the class known, fitting would be counting; EM alternates between guessing the class and counting,

.. math:: \gamma_n = \frac{(1 - \pi)\, [x_n = 0]}{(1 - \pi)\, [x_n = 0] + \pi\, \mathrm{Pois}(x_n \mid \lambda)},
   \qquad \lambda = \frac{\sum_n x_n}{\sum_n (1 - \gamma_n)}, \qquad \pi = 1 - \bar \gamma.

:func:`credo.em.fit_em` is the loop; the model is the two steps. It checks what the theory promises: the bound never
falls.

Look at the bound, and at what happens with a wrong M-step.
"""

# %%
# 500 counts: 35 % of the rows are closed and can only be zero, the others have 2.5 events on average.

import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import poisson

import credo
from credo.em import Expectation, fit_em

rng = np.random.default_rng(0)
PI, RATE = 0.65, 2.5
counts = np.where(rng.random(500) < PI, rng.poisson(RATE, 500), 0)
print(f"{np.mean(counts == 0):.0%} zeros; a Poisson distribution of the same mean has {np.exp(-counts.mean()):.0%}")

# %%
# The E-step returns what the M-step needs and the bound at the present parameters: here the log likelihood, since the
# posterior of the class is exact.


def e_step(parameters: tuple[float, float]) -> Expectation:
    pi, rate = parameters
    open_row = pi * poisson.pmf(counts, rate)
    closed = (1 - pi) * (counts == 0)
    return Expectation(closed / (closed + open_row), float(np.log(closed + open_row).sum()))


def m_step(closed: np.ndarray) -> tuple[float, float]:
    return float(1 - closed.mean()), float(counts.sum() / (1 - closed).sum())


def start(k: int) -> tuple[float, float]:
    return 0.2 + 0.2 * k, float(counts.max())


fit = fit_em(start, e_step, m_step, rows=len(counts), tolerance=1e-8, restarts=3)
pi, rate = fit.parameters
print(f"share of open rows {pi:.3f} (truth {PI}), rate {rate:.3f} (truth {RATE}), after {fit.n_iter} steps")

# %%
# The bound over the steps, and the fitted distribution.

axis = np.arange(10)
figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
axes[0].plot(fit.bounds, "o-", markersize=3)
axes[0].set(xlabel="step", ylabel="log likelihood, nats")
axes[1].bar(axis, np.bincount(counts, minlength=10)[:10] / len(counts), color="lightgray", label="data")
mixed = pi * poisson.pmf(axis, rate) + (1 - pi) * (axis == 0)
axes[1].plot(axis, mixed, "o-", label="with closed rows")
axes[1].plot(axis, poisson.pmf(axis, counts.mean()), "s--", color="#E69F00", label="Poisson")
axes[1].set(xlabel="count", ylabel="probability")
axes[1].legend()
plt.show()

# %%
# An M-step with a mistake, here the rate of the rows that are not zero, does not maximize the bound of the E-step.
# From the fitted parameters it can only fall. The loop says so, in place of a wrong answer.


def wrong_m_step(closed: np.ndarray) -> tuple[float, float]:
    return float(1 - closed.mean()), float(counts[counts > 0].mean())


try:
    fit_em(lambda k: fit.parameters, e_step, wrong_m_step)
except credo.errors.BoundError as error:
    print(f"BoundError: {error}")

# %%
# After ten steps 60 % of the rows are open, with a rate of 2.35; the truth is 65 % and 2.5. The first step does most
# of the work. The Poisson distribution of the same mean has 24 % zeros where the data have 46 %.
