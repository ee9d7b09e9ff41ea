r"""
Tables of probabilities, and a rare event
=========================================

All of Bayesian inference is two rules, and for discrete variables they are sums over a table:

.. math:: p(x) = \sum_y p(x, y), \qquad p(y \mid x) = \frac{p(x \mid y)\, p(y)}{p(x)}.

:class:`credo.conjugate.JointTable` and :class:`~credo.conjugate.ConditionalTable` compute with them by name. What
cannot be summed is estimated from draws; :func:`credo.conjugate.expectation` returns the estimate with its standard
error.

Look at the third test in a row, and at the error of an estimate that never saw the event.
"""

# %%
# A disease that one in a thousand has, and a test that is right in 95 % of the cases, either way.

import matplotlib.pyplot as plt
import torch
from torch.distributions import Normal

from credo.conjugate import ConditionalTable, JointTable, bayes, expectation

person = JointTable([0.999, 0.001], ["ill"])
test = ConditionalTable([[0.95, 0.05], [0.05, 0.95]], of="positive", given="ill")
joint = test.times(person)
print(f"positive tests: {joint.marginal('positive').probabilities[1]:.4f} of all")
print(f"ill, given one positive test: {bayes(person, test).probabilities[1, 1]:.4f}")

# %%
# Every independent positive test multiplies the odds by 19. Yesterday's posterior is today's prior.

belief, course = person, [0.001]
for _ in range(5):
    belief = test.times(belief).given(positive=1)
    course.append(float(belief.probabilities[1]))
figure, ax = plt.subplots(figsize=(5.5, 3.2), layout="constrained")
ax.plot(range(6), course, "o-")
ax.axhline(0.95, color="gray", linestyle=":", label="how often the test is right")
ax.set(xlabel="positive tests in a row", ylabel="probability of being ill")
ax.legend()
plt.show()
print("after 0 to 5 positive tests:", ", ".join(f"{value:.3f}" for value in course))

# %%
# Tables can come from data, and variables can be dropped or fixed. Here two of three columns depend on each other only
# through the third: given the season, rain and ice cream are independent.

torch.manual_seed(0)
season = torch.randint(2, (20_000,))  # 0: winter, 1: summer
rain = (torch.rand(20_000) < torch.where(season == 0, 0.6, 0.2)).long()
ice_cream = (torch.rand(20_000) < torch.where(season == 0, 0.1, 0.5)).long()
table = JointTable.from_data(torch.stack([season, rain, ice_cream], 1), names=["season", "rain", "ice_cream"])
for name, part in {"all year": table.marginal("rain", "ice_cream"), "summer": table.given(season=1)}.items():
    dry, wet = part.conditional(of="ice_cream", given="rain").probabilities[:, 1]
    print(f"{name}: ice cream on dry days {dry:.3f}, on wet days {wet:.3f}")

# %%
# A rare event by Monte Carlo: P(z > 4) of a standard normal variable is 3.17·10⁻⁵, and of 10,000 draws none need be
# beyond 4: then the estimate is 0, and its standard error, which can only know what was drawn, is 0 as well. Draws
# from a proposal around 4, weighted by p/q, answer with an error of 2 %.

exact = float(1 - Normal(0.0, 1.0).cdf(torch.tensor(4.0, dtype=torch.float64)))
standard = Normal(torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64))
shifted = Normal(torch.full((), 4.0, dtype=torch.float64), torch.ones((), dtype=torch.float64))
sizes = [100, 300, 1000, 3000, 10_000, 30_000, 100_000]
figure, ax = plt.subplots(figsize=(6, 3.2), layout="constrained")
for name, proposal, color in (("draws of p", None, "#D55E00"), ("draws of q, weighted", shifted, "#0072B2")):
    found = [expectation(lambda z: (z > 4).double(), standard, samples=n, seed=0, proposal=proposal) for n in sizes]
    values = torch.tensor([float(estimate) for estimate in found])
    errors = torch.tensor([float(estimate.standard_error) for estimate in found])
    ax.errorbar(sizes, values / exact, 2 * errors / exact, fmt="o-", color=color, capsize=3, label=name)
    print(f"{name}, 10,000 of them: {values[4]:.3g} ± {errors[4]:.1g}; exact {exact:.3g}")
ax.axhline(1, color="gray", linestyle=":")
ax.set(xscale="log", xlabel="draws", ylabel="estimate / exact", ylim=(-0.5, 3))
ax.legend()
plt.show()

# %%
# One positive test leaves the probability of being ill at 1.9 %, because healthy people are so many more; three bring
# it to 87 %. Over the year ice cream seems to depend on rain (37.5 % on dry days, 19.5 % on wet ones), in summer it
# does not (50.6 % and 49.9 %). Of 10,000 draws of p none was beyond 4; as many draws of q estimate the probability as
# 3.14·10⁻⁵ ± 0.07·10⁻⁵.
