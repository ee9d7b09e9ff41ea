r"""
Prediction in one pass: moments instead of draws
================================================

A hundred draws of the weights cost a hundred forward passes, and their mean still has Monte Carlo noise. With
independent Gaussian weights, mean and variance of a linear layer are known,

.. math:: \mathbb E[a_j] = \sum_i \mathbb E[h_i] \mu_{ij}, \qquad
    \operatorname{Var}[a_j] = \sum_i \left( \operatorname{Var}[h_i] (\mu_{ij}^2 + \sigma_{ij}^2)
    + \mathbb E[h_i]^2 \sigma_{ij}^2 \right),

and those of a rectifier of a Gaussian are in closed form too. ``samples="moments"`` carries both through the network in
one pass.

Look at the error against a prediction with very many draws, over the time it takes.
"""

# %%
# Diabetes: ten measurements and a progression, predicted by a network with two hidden layers.

import time

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_diabetes
from torch import nn

import credo

X, target = load_diabetes(return_X_y=True, scaled=True)
x = torch.tensor(X, dtype=torch.float32) * len(X) ** 0.5
y = torch.tensor((target - target.mean()) / target.std(), dtype=torch.float32)[:, None]

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(10, 50), nn.ReLU(), nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 1))
model = credo.BayesByBackprop(net, credo.Gaussian("learned"))
model.fit((x[:350], y[:350]), epochs=400, batch_size=350, lr=1e-2, seed=0)
x_test, y_test = x[350:], y[350:]

# %%
# The reference has 4,000 draws.

reference = model.predict(x_test, samples=4_000, seed=100)
moments = model.predict(x_test, samples="moments")

figure, axes = plt.subplots(1, 2, figsize=(8.5, 3.8), layout="constrained")
hundred = model.predict(x_test, samples=100, seed=0)
for ax, quantity, name in zip(axes, ("mean", "epistemic"), ("predictive mean", "epistemic variance"), strict=True):
    true = getattr(reference, quantity)
    ax.plot(true, getattr(hundred, quantity), ".", color="#E69F00", label="100 draws")
    ax.plot(true, getattr(moments, quantity), "x", color="#0072B2", markersize=4, label="moments")
    ax.axline((float(true.mean()),) * 2, slope=1, color="gray", linewidth=0.7)
    ax.set(xlabel=f"{name}, 4,000 draws", ylabel=name)
axes[0].legend()
plt.show()

# %%
# Error and time of both. The error of draws falls as :math:`1/\sqrt S`; that of moments is fixed: it comes from the
# assumption that activations are Gaussian and, in deeper layers, nearly independent.


def error(p: credo.Predictive) -> tuple[float, float]:
    """Root mean square errors of the mean and of the epistemic std, relative to the mean epistemic std."""
    unit = reference.epistemic.sqrt().mean()
    mean = (p.mean - reference.mean).square().mean().sqrt() / unit
    spread = (p.epistemic.sqrt() - reference.epistemic.sqrt()).square().mean().sqrt() / unit
    return float(mean), float(spread)


def seconds(samples: int | str) -> float:
    times = []
    for _ in range(5):
        start = time.process_time()
        model.predict(x_test, samples=samples, seed=0)
        times.append(time.process_time() - start)
    return sorted(times)[2]


SAMPLES = (10, 30, 100, 300, 1000)
errors = {s: torch.tensor([error(model.predict(x_test, samples=s, seed=k)) for k in range(5)]).mean(0) for s in SAMPLES}
cost = {s: seconds(s) for s in (*SAMPLES, "moments")}
figure, axes = plt.subplots(1, 2, figsize=(8.5, 3.4), sharey=True, layout="constrained")
for i, (ax, name) in enumerate(zip(axes, ("mean", "epistemic std"), strict=True)):
    ax.plot([1e3 * cost[s] for s in SAMPLES], [errors[s][i] for s in SAMPLES], "o-", color="#E69F00", label="draws")
    for s in SAMPLES:
        ax.annotate(f"{s}", (1e3 * cost[s], errors[s][i]), textcoords="offset points", xytext=(4, 4), fontsize=8)
    ax.plot(1e3 * cost["moments"], error(moments)[i], "X", color="#0072B2", markersize=9, label="moments")
    ax.set(xscale="log", yscale="log", xlabel="CPU time (ms)", title=f"error of the {name}")
axes[0].set(ylabel="error / epistemic std")
axes[0].legend()
plt.show()

# %%
# The error of the moments is 0.019 epistemic standard deviations for the mean and 0.022 for the spread, less than that
# of 1,000 draws (0.037 and 0.027), in the time of 10 to 30 draws. Part of it is the noise of the reference itself,
# which is about 0.016 with 4,000 draws. The log likelihood agrees to three digits.

print(f"moments: error of the mean {error(moments)[0]:.3f}, of the epistemic std {error(moments)[1]:.3f}")
for s in SAMPLES:
    print(f"{s} draws: error of the mean {errors[s][0]:.3f}, of the epistemic std {errors[s][1]:.3f}")
print(f"NLL: moments {credo.metrics.nll(moments, y_test):.4f}, 4,000 draws {credo.metrics.nll(reference, y_test):.4f}")
