r"""
Priors over weights, and what they do
=====================================

A prior over weights is a prior over functions, and a bet on which weights are needed. credo takes any univariate
torch distribution, or one per parameter by name; four have classes of their own: :class:`~credo.Normal`,
:class:`~credo.LaplacePrior`, :class:`~credo.ScaleMixture` and :class:`~credo.AdaptiveNormal`, which learns a scale
for every parameter tensor.

Look at the functions before there are any data, and at the weights after.
"""

# %%
# Functions drawn from three priors: a network of 50 units, with weights drawn and no training.

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.distributions import StudentT

import credo

grid = torch.linspace(-2, 2, 200)[:, None]
priors = {
    "Normal(0, 1)": credo.Normal(0.0, 1.0),
    "LaplacePrior(0, 1)": credo.LaplacePrior(0.0, 1.0),
    "Student t, 2 degrees": StudentT(2.0),
    "ScaleMixture": credo.ScaleMixture(pi=0.3, sigma1=2.0, sigma2=0.05),
}
figure, axes = plt.subplots(1, 4, figsize=(13, 2.8), layout="constrained")
for ax, (name, prior) in zip(axes, priors.items(), strict=True):
    torch.manual_seed(0)
    for _ in range(5):
        first, bias, last = (prior.sample(shape) for shape in ((50,), (50,), (50,)))
        ax.plot(grid, torch.tanh(grid * first + bias) @ last / 50**0.5, linewidth=1)
    ax.set(title=name, xlabel="x")
plt.show()

# %%
# Ten inputs, of which two matter, and the best weights (MAP) of a network under each prior. A prior that is narrow at
# 0 sets weights to it.

generator = torch.Generator().manual_seed(0)
x = torch.randn(200, 10, generator=generator)
y = torch.sin(2 * x[:, :1]) + x[:, 1:2] + 0.1 * torch.randn(200, 1, generator=generator)
x_new = torch.randn(1000, 10, generator=generator)
y_new = torch.sin(2 * x_new[:, :1]) + x_new[:, 1:2] + 0.1 * torch.randn(1000, 1, generator=generator)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 30), nn.Tanh(), nn.Linear(30, 1))


choices = {
    "Normal(0, 1)": credo.Normal(0.0, 1.0),
    "LaplacePrior(0, 0.1)": credo.LaplacePrior(0.0, 0.1),
    "ScaleMixture": credo.ScaleMixture(pi=0.2, sigma1=1.0, sigma2=0.02),
    "by layer": {
        "0.weight": credo.LaplacePrior(0.0, 0.05),
        "*.bias": credo.Normal(0.0, 1.0),
        "*": credo.Normal(0.0, 0.5),
    },
}
models = {}
for name, prior in choices.items():
    model = credo.MAP(network(), credo.Gaussian(0.1), prior=prior)
    models[name] = model.fit((x, y), epochs=1500, batch_size=200, lr=2e-2, seed=0)
    p = model.predict(x_new)
    zero = float((model.net[0].weight.abs() < 0.01).float().mean())
    print(f"{name}: RMSE of new rows {credo.metrics.rmse(p, y_new):.3f}, {zero:.0%} of the first layer below 0.01")

# %%
# The weights of the first layer, an input per row, on one scale.

figure, axes = plt.subplots(1, 4, figsize=(12, 2.6), sharey=True, layout="constrained")
for ax, (name, model) in zip(axes, models.items(), strict=True):
    shades = ax.imshow(model.net[0].weight.detach().abs().T, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    ax.set(title=name, xlabel="hidden unit")
axes[0].set(ylabel="input")
figure.colorbar(shades, ax=axes, label="|weight|")
plt.show()

# %%
# The loss while training, under two of them: the likelihood, and what the weights cost under the prior.

figure, axes = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
for ax, name in zip(axes, ("Normal(0, 1)", "LaplacePrior(0, 0.1)"), strict=True):
    credo.plots.training_curves(models[name].history, ax)
    ax.set(title=name)
plt.show()

# %%
# A scale that nobody has to choose: :class:`credo.AdaptiveNormal` learns one for every parameter tensor, here around
# weights that are trained already.

adaptive = credo.Laplace(
    models["Normal(0, 1)"].net, credo.Gaussian(0.1), prior=credo.AdaptiveNormal(), structure="kron"
)
adaptive.fit((x, y), epochs=0)
for name, precision in zip(adaptive.posterior.names(), adaptive.posterior.prior_precision, strict=True):
    print(f"{name}: prior scale {precision**-0.5:.2f}")

# %%
# Under the Gaussian prior every input keeps a weight of some size, and new rows are predicted with an error of 0.459.
# The Laplace prior and the scale mixture leave three quarters of the weights of the first layer below 0.01, with
# errors of 0.210 and 0.231. A sparse first layer under Gaussian others does best, 0.157: that only inputs are
# superfluous is the better guess.
