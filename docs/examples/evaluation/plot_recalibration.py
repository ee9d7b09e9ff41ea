r"""
Recalibration of numbers: one factor, or a whole curve
======================================================

The error bars of a regression are wrong in two ways: all too narrow or too wide, or of the wrong shape. Held-out rows
can correct both. :class:`credo.calibration.VarianceScaling` stretches every predictive distribution by one factor s,
the temperature scaling of regression. :class:`credo.calibration.QuantileRecalibration` learns which share of targets
really lies below the predicted quantile of each level, and corrects the levels:

.. math:: F_\text{new}(y) = R(F(y)), \qquad R(u) = P(F(Y) \le u).

Look at which of them can do something about skewed noise, and at what that costs.
"""

# %%
# Noise that is skewed, and a network with Gaussian noise that was fixed at a third of its size: too narrow and of the
# wrong shape at once.

import matplotlib.pyplot as plt
import torch
from torch import nn

import credo

generator = torch.Generator().manual_seed(0)


def rows(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.rand(n, 1, generator=generator) * 4 - 2
    skewed = -torch.rand(n, 1, generator=generator).log() - 1  # exponential, with mean 0 and standard deviation 1
    return x, torch.sin(2 * x) + 0.5 * skewed


train, held_out, test = rows(400), rows(300), rows(4000)

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(1, 50), nn.Tanh(), nn.Linear(50, 1))
model = credo.Laplace(net, credo.Gaussian(noise=0.17), structure="full")
model.fit(train, epochs=200, batch_size=400, lr=1e-2, seed=0)

# %%
# Each calibrator is fitted to the predictions of held-out rows, and then called with new predictions.

p_held_out, p = model.predict(held_out[0]), model.predict(test[0])
scaling = credo.calibration.VarianceScaling().fit(p_held_out, held_out[1])
quantiles = credo.calibration.QuantileRecalibration().fit(p_held_out, held_out[1])
predictions = {"as fitted": p, "variance scaling": scaling(p), "quantile recalibration": quantiles(p)}
print(f"factor of the spread: {scaling.factor:.2f}")

# %%
# Levels :math:`F(y)` of the test rows. They are uniform only after the second correction.

figure, axes = plt.subplots(1, 3, figsize=(10, 3), layout="constrained")
for ax, (name, q) in zip(axes, predictions.items(), strict=True):
    credo.plots.pit_histogram(q, test[1], ax)
    ax.set(title=name)
plt.show()

# %%
# The predictive density of one row, beside the noise that it really has.

figure, ax = plt.subplots(figsize=(6, 3.2), layout="constrained")
y_axis = torch.linspace(-1.5, 3.0, 400)
row = model.predict(torch.zeros(1, 1))
densities = {"as fitted": row, "variance scaling": scaling(row), "quantile recalibration": quantiles(row)}
for name, q in densities.items():
    cdf = torch.stack([q.cdf(value.reshape(1, 1)).reshape(()) for value in y_axis])
    ax.plot((y_axis[1:] + y_axis[:-1]) / 2, cdf.diff() / y_axis.diff(), label=name)
truth = torch.where(y_axis > -0.5, torch.exp(-(y_axis + 0.5) / 0.5) / 0.5, 0.0)
ax.plot(y_axis, truth, "k--", linewidth=1, label="truth")
ax.set(xlabel="y at x = 0", ylabel="density")
ax.legend()
plt.show()

# %%
# The scores of the test rows.

for name, q in predictions.items():
    print(
        f"{name}: NLL {credo.metrics.nll(q, test[1]):.3f}, CRPS {credo.metrics.crps(q, test[1]):.3f}, "
        f"quantile calibration error {credo.metrics.quantile_calibration_error(q, test[1]):.3f}, "
        f"90 % intervals cover {credo.metrics.coverage(q, test[1], 0.9):.1%}"
    )

# %%
# One factor of 3.2 brings the NLL from 3.63 down to 0.76 and the coverage from 44 % to 94 %, but the density is still
# symmetric. Corrected by levels it has the sharp left edge of the truth, an NLL of 0.50, and a calibration error of
# 0.023 in place of 0.082. The steps in the density are the price: each of its 14 pieces was learned from about 20
# rows.
