"""
Error bars for a table
======================

:class:`credo.Regressor` fits a Bayesian network to a table and returns a distribution for every row. This example
predicts the progression of diabetes from ten measurements, compares the error bars with what happened to patients that
the model has not seen, and shows where the uncertainty comes from.

Look at the last figure: three quarters of the variance are aleatoric. More patients would remove the rest at most;
other measurements might remove more.
"""

# %%
# The table has 442 patients. A quarter of them is held out.

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split

import credo

X, y = load_diabetes(return_X_y=True, as_frame=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)

model = credo.Regressor(epochs=667, random_state=0).fit(X_train, y_train)
p = model.predict_dist(X_test)
truth = torch.tensor(y_test.to_numpy())

# %%
# ``p`` is a :class:`credo.Predictive`, a distribution for every row. The bars are 95 % intervals: the patients outside
# them are drawn in another color, and should be one in twenty.

ax = credo.plots.predicted_vs_observed(p, truth)
ax.set(xlabel="predicted progression", ylabel="observed progression")
plt.show()

# %%
# Scores of the held-out rows, each with a confidence interval. Coverage is the first one to read: the share of patients
# inside their 95 % interval.

for score in credo.metrics.scores(p, truth):
    print(f"{score.label}: {score.value:.3g} ({score.lower:.3g} to {score.upper:.3g})")

# %%
# The variance of every prediction has two parts. ``epistemic`` comes from the weights, which the training rows do not
# determine; ``aleatoric`` is the noise that the model sees in the rows themselves.

ax = credo.plots.uncertainty_parts(p)
plt.show()

share = (p.epistemic / p.variance).mean()
print(f"epistemic share of the variance: {share:.0%}")

# %%
# A row unlike those of training gets a wider error bar. Here the body mass index of every patient is moved to a value
# that no patient of the training set has.

far = X_test.assign(bmi=X_train["bmi"].max() + 0.3)
print(f"rows outside the range of training: {model.outside_range(far)['bmi'].sum()} of {len(far)}")
print(f"mean standard deviation: {p.std.mean():.0f} before, {model.predict_dist(far).std.mean():.0f} after")
