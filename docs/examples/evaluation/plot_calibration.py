"""
Calibration: is an event of 80 % true 80 times of 100?
======================================================

A network that is trained for a long time becomes too confident: of the predictions it makes with 95 %, fewer than 95 %
are right. A posterior over its weights can err on the other side. This example trains a point estimate and a Bayesian
network on noisy handwritten digits with few labels, draws their reliability, and tries to correct both with temperature
scaling on held-out rows.

Look at the distance from the diagonal, and at the ECE, which is its mean.
"""

# %%
# 150 labels, some rows for the correction, and the rest of the 1,797 digits to test with.

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn

import credo

images, labels = load_digits(return_X_y=True)
generator = torch.Generator().manual_seed(0)
order = torch.randperm(len(labels), generator=generator)
x, y = torch.tensor(images, dtype=torch.float32)[order] / 16, torch.tensor(labels)[order]
noisy = x + 0.35 * torch.randn(x.shape, generator=generator)
train, held_out, test = slice(0, 150), slice(150, 400), slice(400, None)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))


# %%
# The point estimate has one setting of its weights; Bayes by Backprop averages the probabilities over 100 draws.

point = credo.MAP(network(), credo.Categorical(), prior=credo.Normal(0.0, 10.0))
point.fit((noisy[train], y[train]), epochs=300, batch_size=50, lr=1e-2, seed=0)
bayes = credo.BayesByBackprop(network(), credo.Categorical(), prior=credo.Normal(0.0, 1.0))
bayes.fit((noisy[train], y[train]), epochs=2000, batch_size=150, lr=1e-2, seed=0)

# %%
# :class:`credo.calibration.TemperatureScaling` divides the logits by one number, learned on rows that the model has not
# seen. It works on any prediction.

predictions = {}
for name, model in {"point estimate": point, "Bayes by Backprop": bayes}.items():
    scaling = credo.calibration.TemperatureScaling().fit(model.predict(noisy[held_out], seed=0), y[held_out])
    predictions[name] = model.predict(noisy[test], seed=0)
    predictions[f"{name}, scaled"] = scaling(predictions[name])

# %%
# On the horizontal axis the probability of the predicted class, on the vertical one how often it was right. Below the
# diagonal a model is too confident, above it not confident enough.

figure, axes = plt.subplots(2, 2, figsize=(7, 7), sharex=True, sharey=True, layout="constrained")
for ax, (name, p) in zip(axes.flat, predictions.items(), strict=True):
    credo.plots.reliability(p, y[test], ax, bins=10)
    ax.set(title=name)
plt.show()

# %%
# Accuracy, the calibration error, and the log loss, which scores both. The point estimate is corrected by its
# temperature. The Bayesian network, which was not confident enough, is not: its draws disagree, and a temperature for
# each of them cannot make them agree. Its ECE was half of the point estimate's before any correction.

for name, p in predictions.items():
    accuracy, ece = credo.metrics.accuracy(p, y[test]), credo.metrics.ece(p, y[test], bins=10)
    print(f"{name}: accuracy {accuracy:.1%}, ECE {ece:.3f}, NLL {-p.log_prob(y[test]).mean():.3f}")
