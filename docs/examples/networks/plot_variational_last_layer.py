r"""
A variational last layer: uncertainty without sampling
======================================================

Most of a network computes features :math:`\varphi(x)`; only the last layer turns them into an answer. If only that
layer is Bayesian, everything is in closed form. With :math:`q(\theta) = \mathcal N(\bar\theta, S)` and Gaussian noise,
the expected log likelihood is

.. math:: \mathbb E_q\left[\log p(y \mid x, \theta)\right] =
    \log \mathcal N\left(y; \bar\theta^\top \varphi, \sigma^2\right)
    - \frac{\varphi^\top S \varphi}{2 \sigma^2},

so that neither training nor prediction draws anything.

Look at the gap and at the edges of the data: which of the error bars open there, and do they open far enough?
"""

# %%
# A damped oscillation, measured on two intervals.

import matplotlib.pyplot as plt
import torch
from torch import nn

import credo

generator = torch.Generator().manual_seed(0)
x = torch.cat([-2.5 + 2 * torch.rand(40, 1, generator=generator), 1 + 1.5 * torch.rand(40, 1, generator=generator)])


def truth(t: torch.Tensor) -> torch.Tensor:
    return torch.exp(-0.2 * t) * torch.sin(1.8 * t)


y = truth(x) + 0.1 * torch.randn(80, 1, generator=generator)
grid = torch.linspace(-3.5, 3.5, 200)[:, None]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))


# %%
# Two forms of the covariance S, and a point estimate to compare with. The features are a point estimate in all three,
# kept small by weight decay.

LIKELIHOOD = {"noise": "learned", "initial": 0.1}
models = {
    "point estimate": credo.MAP(network(), credo.Gaussian(**LIKELIHOOD)),
    "dense covariance": credo.VariationalLastLayer(network(), credo.Gaussian(**LIKELIHOOD)),
    "diagonal covariance": credo.VariationalLastLayer(network(), credo.Gaussian(**LIKELIHOOD), covariance="diagonal"),
}
for model in models.values():
    model.fit((x, y), epochs=700, batch_size=80, lr=1e-2, weight_decay=1e-4, seed=0)

# %%
# ``samples="moments"`` is the exact predictive distribution, without draws.

figure, axes = plt.subplots(1, 3, figsize=(11, 3.3), sharey=True, layout="constrained")
predictions = {name: model.predict(grid, samples="moments") for name, model in models.items()}
for ax, (name, p) in zip(axes, predictions.items(), strict=True):
    credo.plots.predictive_bands(grid, p, ax, data=(x, y))
    ax.plot(grid, truth(grid), "--", color="#D55E00", linewidth=1)
    ax.set(title=name, xlabel="time", ylim=(-3, 3))
axes[0].set(ylabel="displacement")
plt.show()

# %%
# Given the features, Bayesian linear regression has the exact posterior :math:`S^{-1} = I + \Phi^\top \Phi / \sigma^2`.
# The dense posterior should have found it by gradients.

model = models["dense covariance"]
sigma = float(model.likelihood.scale)


def features(t: torch.Tensor) -> torch.Tensor:
    return torch.cat([model.net[:-1](t), torch.ones(len(t), 1)], 1).detach().double()  # the last one is for the bias


S = (torch.eye(65, dtype=torch.float64) + features(x).T @ features(x) / sigma**2).inverse()
exact = torch.einsum("ni,ij,nj->n", features(grid), S, features(grid)).sqrt()
figure, ax = plt.subplots(figsize=(6.5, 3.2), layout="constrained")
ax.plot(grid, exact, color="black", linewidth=3, alpha=0.3, label="exact, given the features")
for name, line in {"dense covariance": "-", "diagonal covariance": "--"}.items():
    ax.plot(grid, predictions[name].epistemic.sqrt(), line, label=name)
ax.plot(x, torch.full_like(x, 0.01), "|", color="gray", label="data")
ax.set(xlabel="time", ylabel="epistemic standard deviation", yscale="log", ylim=(None, 1))
ax.legend(loc="upper center", ncols=2)
plt.show()

# %%
# The dense posterior has found 0.83 to 1.00 of the exact standard deviation everywhere on the curve. Its epistemic part
# is 0.034 at the data, 0.139 in the gap and 0.159 at the right edge. With independent weights it is larger where there
# are data, 0.054, because errors of one weight cannot be made up for by another.
#
# At both edges the true curve leaves the band: a last layer can only combine features that it has, and those are a
# point estimate. For extrapolation, compare with a posterior over all weights.

for name in ("dense covariance", "diagonal covariance"):
    spread = predictions[name].epistemic.sqrt()[:, 0]
    at = [float(spread[int((grid[:, 0] - t).abs().argmin())]) for t in (-1.5, 0.25, 3.5)]
    print(f"{name}: epistemic std {at[0]:.3f} at the data, {at[1]:.3f} in the gap, {at[2]:.3f} beyond; ", end="")
    print(f"noise {models[name].likelihood.scale:.3f} (true 0.1)")
ratio = predictions["dense covariance"].epistemic.sqrt()[:, 0] / exact
print(f"dense relative to exact: {ratio.min():.2f} to {ratio.max():.2f}")
