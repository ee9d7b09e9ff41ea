r"""
Proper scores: what punishes a wrong error bar
==============================================

Three forecasters predict the same numbers. All have the same mean; one states the right spread, one half of it, one
twice of it. The RMSE cannot tell them apart. A *proper* score can: its expectation is best for the distribution that
the data have. For a density the common ones are the negative log likelihood and the CRPS,

.. math:: \text{NLL} = -\log p(y), \qquad \text{CRPS} = \int (F(t) - 1\{y \le t\})^2\, \mathrm{d}t,

the second in the unit of the target, and finite for any forecast.

Look at which forecaster each number prefers, and at what the histogram of :math:`F(y)` says about the reason.
"""

# %%
# Observations with noise 1 around a known curve, and three predictions of them. A
# :class:`~credo.Gaussian` likelihood turns outputs of a network, ``[draws, rows, 1]``, into a prediction; here the
# "network" is the truth.

import matplotlib.pyplot as plt
import torch

import credo

generator = torch.Generator().manual_seed(0)
x = torch.rand(1000, 1, generator=generator) * 6
mean = torch.sin(x) * 3
y = mean + torch.randn(1000, 1, generator=generator)
forecasts = {f"spread {noise:g}": credo.Gaussian(noise=noise).predictive(mean[None]) for noise in (0.5, 1.0, 2.0)}

# %%
# Point scores are equal, proper scores are not. Coverage and width have to be read together.

for name, p in forecasts.items():
    print(
        f"{name}: RMSE {credo.metrics.rmse(p, y):.3f}, NLL {credo.metrics.nll(p, y):.3f}, "
        f"CRPS {credo.metrics.crps(p, y):.3f}, 90 % intervals cover {credo.metrics.coverage(p, y, 0.9):.1%} "
        f"at a width of {credo.metrics.width(p, 0.9):.2f}"
    )

# %%
# The probability integral transform :math:`u = F(y)` is uniform for a calibrated forecast. A ∪ says that it is too
# narrow, a ∩ that it is too wide. The band holds 95 % of the bars of a calibrated one.

figure, axes = plt.subplots(1, 3, figsize=(10, 3), sharey=True, layout="constrained")
for ax, (name, p) in zip(axes, forecasts.items(), strict=True):
    credo.plots.pit_histogram(p, y, ax)
    u = credo.metrics.pit(p, y)
    ax.set(title=f"{name}: {((u < 0.05) | (u > 0.95)).double().mean():.0%} in the outer tenth")
plt.show()

# %%
# The same as a curve: how many targets lie below the predicted quantile of each level. Its mean distance from the
# diagonal is the quantile calibration error.

figure, ax = plt.subplots(figsize=(4.5, 4.2), layout="constrained")
ax.plot([0, 1], [0, 1], ":", color="gray")
for name, p in forecasts.items():
    curve = credo.metrics.calibration_curve(p, y)
    error = credo.metrics.quantile_calibration_error(p, y)
    ax.plot(curve.nominal, curve.observed, "o-", markersize=3, label=f"{name}, error {error:.3f}")
ax.set(xlabel="level of the quantile", ylabel="share of targets below it")
ax.legend()
plt.show()

# %%
# A sharp look at "proper": the expected score of a Gaussian forecast as a function of the spread that it states. Both
# have their minimum at the true one. The log likelihood punishes a spread that is too small without limit, the CRPS
# never by more than the absolute error.

spreads = torch.linspace(0.2, 3.0, 29)
scores = {"NLL": credo.metrics.nll, "CRPS": credo.metrics.crps}
figure, axes = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
for ax, (name, score) in zip(axes, scores.items(), strict=True):
    values = torch.tensor([score(credo.Gaussian(noise=float(s)).predictive(mean[None]), y) for s in spreads])
    ax.plot(spreads, values)
    ax.axvline(1.0, color="gray", linestyle=":")
    ax.set(xlabel="stated spread", ylabel=name, title=f"lowest at {spreads[values.argmin()]:.1f}")
plt.show()

# %%
# A table of all of them, with confidence intervals, is one call.

for score in credo.metrics.scores(forecasts["spread 1"], y):
    print(f"{score.label}: {score.value:.3g} ({score.lower:.3g} to {score.upper:.3g})")

# %%
# The RMSE is 0.975 for all three. The forecaster with the right spread has the lowest NLL, 1.394 (2.127 and 1.731 for
# the others), and the lowest CRPS, 0.549 (0.590 and 0.647), although its 90 % intervals are twice as wide as those of
# the first. The two scores disagree about the losers: the log likelihood holds confidence against a forecaster, the
# CRPS vagueness.
