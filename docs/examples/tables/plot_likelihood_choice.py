r"""
Which distribution? ``likelihood="auto"``
=========================================

A prediction is a distribution, and its shape is an assumption: Gaussian, with outliers (Student t), positive
(log-normal), a count, a share. :class:`credo.Regressor` compares those that the values of the target allow, by short
trainings on halves of the training rows, and replaces the Gaussian only where another is better by more than two
standard errors. What it chose, and by how much, is in ``notes_``.

Look at the histograms of the probability integral transform: flat is right.
"""

# %%
# Three targets of the same two columns, whose distributions are known because they are made up.

import matplotlib.pyplot as plt
import numpy as np
import torch

import credo

rng = np.random.default_rng(0)
N = 900
X = rng.uniform(-1, 1, (N, 2))
f = np.sin(2 * X[:, 0]) + X[:, 1]
targets = {
    "with outliers": f + 0.3 * rng.standard_t(2.0, N),
    "positive, skewed": np.exp(f + 0.6 * rng.normal(size=N)),
    "counts": rng.poisson(np.exp(f)).astype(float),
}

# %%
# Each is fitted twice, with a Gaussian and with ``"auto"``; by one small network (``"map"``), because this is about the
# shape of the noise.

train, test = slice(0, 600), slice(600, N)
chosen, loss, transforms = {}, {}, {}
for name, y in targets.items():
    truth = torch.tensor(y[test])
    for likelihood in ("gaussian", "auto"):
        model = credo.Regressor("map", likelihood=likelihood, hidden=(20,), epochs=200, random_state=0)
        model.fit(X[train], y[train])
        p = model.predict_dist(X[test])
        chosen[name, likelihood] = model.family_.name
        loss[name, likelihood] = credo.metrics.nll(p, truth)
        transforms[name, likelihood] = p, truth
        if likelihood == "auto":
            print(f"{name}: {model.family_.note}")

# %%
# The probability integral transform F(y) of held-out targets is uniform if the predicted distributions are right. For
# counts it is randomized within the step of F.

figure, axes = plt.subplots(2, 3, figsize=(10, 4.8), sharey=True, layout="constrained")
for column, name in zip(axes.T, targets, strict=True):
    for ax, likelihood in zip(column, ("gaussian", "auto"), strict=True):
        credo.plots.pit_histogram(*transforms[name, likelihood], ax)
        label = chosen[name, likelihood].replace("_", " ")
        ax.set(title=f"{name}: {label}", xlabel="", ylabel="")
        ax.title.set_fontsize(9)
axes[0, 0].set(ylabel="likelihood='gaussian'")
axes[1, 0].set(ylabel="likelihood='auto'")
plt.show()

# %%
# The three choices are the distributions that the data were made with, each better by 0.34 to 0.37 nats per row, far
# beyond two standard errors. On held-out rows the log loss falls from 1.374 to 0.857 with outliers, from 1.390 to 0.970
# for the skewed target, and from 1.487 to 1.306 for the counts. The Gaussian had its coverage (90 to 91 % of 90 %
# intervals) by being wide: for the target with outliers, 2.21 instead of 1.61, which covers 86 %. Its histograms show
# what the coverage hides: too many rows in the middle, and none below where the target cannot go.

for name in targets:
    p, truth = transforms[name, "auto"]
    q, _ = transforms[name, "gaussian"]
    covered = [credo.metrics.coverage(predictive, truth, 0.9) for predictive in (q, p)]
    width = [credo.metrics.width(predictive, 0.9) for predictive in (q, p)]
    print(
        f"{name}: {chosen[name, 'auto']}, log loss {loss[name, 'gaussian']:.3f} -> {loss[name, 'auto']:.3f}, ", end=""
    )
    print(f"90 % intervals cover {covered[0]:.0%} -> {covered[1]:.0%}, width {width[0]:.2f} -> {width[1]:.2f}")
