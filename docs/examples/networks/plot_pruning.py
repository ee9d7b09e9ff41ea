r"""
A sparse prior, and pruning by signal-to-noise
==============================================

After Bayes by Backprop every weight has a mean and a scale. Where the data say nothing about a weight, its scale is
large and its mean close to zero. The ratio :math:`|\mu| / \sigma` is therefore a measure of importance that a point
estimate does not have. The prior of Blundell et al. (2015) is a mixture of a wide and a narrow Gaussian,

.. math:: p(w) = \pi\, \mathcal N(w; 0, \sigma_1^2) + (1 - \pi)\, \mathcal N(w; 0, \sigma_2^2),

which lets many weights be close to zero and a few be large.

Look at how many weights can be removed before the accuracy falls.
"""

# %%
# The 8×8 digits, and a network with 7,510 weights.

import copy

import matplotlib.pyplot as plt
import torch
from torch import nn

import credo

digits = credo.datasets.load_digits()
x, y = digits.x_train.flatten(1), digits.y_train
x_test, y_test = digits.x_test.flatten(1), digits.y_test


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))


prior = credo.ScaleMixture(pi=0.25, sigma1=1.0, sigma2=0.01)
model = credo.BayesByBackprop(network(), credo.Categorical(), prior=prior)
model.fit((x, y), epochs=110, batch_size=128, lr=2e-2, seed=0)
point = credo.MAP(network(), credo.Categorical()).fit((x, y), epochs=15, batch_size=128, lr=1e-2, seed=0)

# %%
# The signal-to-noise ratio of all weights, in decibels, and their distribution. The mark is at 90 %.

figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
credo.plots.snr(model, axes[0], cut=0.9)
credo.plots.weight_histogram({"Bayes by Backprop": model, "point estimate": point}, axes[1], bins=80)
axes[1].set(yscale="log")
plt.show()

# %%
# Remove the weights of the lowest ratios, or for the point estimate those of the smallest size. ``prune`` sets them to
# zero in every draw.

FRACTIONS = (0.0, 0.5, 0.75, 0.85, 0.9, 0.95, 0.98)
size = torch.cat([w.detach().abs().flatten() for w in point.net.parameters()])
accuracy = {"by signal-to-noise": [], "point estimate, by size": []}
for fraction in FRACTIONS:
    pruned = copy.deepcopy(model)
    pruned.prune(fraction)
    accuracy["by signal-to-noise"].append(float(credo.metrics.accuracy(pruned.predict(x_test, samples=0), y_test)))
    cut = copy.deepcopy(point)
    with torch.no_grad():
        for w in cut.net.parameters():
            w[w.abs() < size.quantile(fraction)] = 0.0
    accuracy["point estimate, by size"].append(float(credo.metrics.accuracy(cut.predict(x_test), y_test)))

figure, ax = plt.subplots(figsize=(6, 3.5), layout="constrained")
for (name, values), style in zip(accuracy.items(), ("o-", "s--"), strict=True):
    ax.plot([100 * f for f in FRACTIONS], values, style, label=name)
ax.set(xlabel="weights removed (%)", ylabel="test accuracy", ylim=(0, 1.02))
ax.legend(loc="lower left")
plt.show()

# %%
# Where the surviving weights of the first layer are: inputs in the corners of the image, which are always blank, have
# fewer of them left.

pruned = copy.deepcopy(model)
pruned.prune(0.9)
alive = (pruned.net[0].weight != 0).float().sum(0).reshape(8, 8)
figure, axes = plt.subplots(1, 2, figsize=(7, 2.9), layout="constrained")
for ax, image, name in zip(
    axes,
    (alive.detach(), digits.x_train.std(0)[0]),
    ("weights left per pixel", "standard deviation of the pixel"),
    strict=True,
):
    shades = ax.imshow(image, cmap="viridis")
    figure.colorbar(shades, ax=ax)
    ax.set(title=name, xticks=[], yticks=[])
plt.show()

# %%
# By signal-to-noise, 95 % of the weights can be removed for three points of accuracy: 97.3 % before, 94.2 % after.
# Removing the smallest weights of the point estimate costs more than five points at 75 % already (90.7 %), and leaves
# 29.6 % at 95 %. A pixel that is always blank keeps 4.8 of its 100 weights, any other 10.6.

for name, values in accuracy.items():
    print(name + ": " + ", ".join(f"{f:.0%} {v:.1%}" for f, v in zip(FRACTIONS, values, strict=True)))
blank = digits.x_train.std(0)[0] < 0.02
print(f"weights left, of 100: {alive[blank].mean():.1f} per blank pixel, {alive[~blank].mean():.1f} per other pixel")
