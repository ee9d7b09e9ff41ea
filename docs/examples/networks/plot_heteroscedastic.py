r"""
Two kinds of uncertainty on one curve
=====================================

The variance of a prediction has two parts, by the law of total variance,

.. math:: \operatorname{Var}[y] = \underbrace{\mathbb E_w\left[\sigma^2(x, w)\right]}_{\text{aleatoric}}
    + \underbrace{\operatorname{Var}_w\left[f(x, w)\right]}_{\text{epistemic}}.

The first is noise in the data and stays, however many of them there are. The second is what the model does not know
yet. Here the network outputs the mean and the log variance for every input, so that the noise may depend on x, and the
posterior is sampled by Hamiltonian Monte Carlo.

Look at the right of the curve, where the noise is large, and beyond the data, where the function is unknown; then at
what ten times as many data change.
"""

# %%
# The noise grows from 0.05 on the left to 0.4 on the right, and is known, so that the estimate can be checked.

import matplotlib.pyplot as plt
import torch
from torch import nn

import credo

few, many = credo.datasets.heteroscedastic_sine(60, seed=0), credo.datasets.heteroscedastic_sine(600, seed=1)
grid = few.x_grid

# %%
# ``"heteroscedastic"`` reads the two outputs of the network as ``[mean, log variance]``.


def fit(curve: credo.datasets.Curve) -> credo.Predictive:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, 12), nn.Tanh(), nn.Linear(12, 2))
    model = credo.HMC(net, credo.Gaussian("heteroscedastic"), chains=4, warmup=150, draws=100, leapfrog_steps=20)
    return model.fit((curve.x, curve.y), seed=0).predict(grid, samples=400, seed=0)


predictions = {"60 points": (few, fit(few)), "600 points": (many, fit(many))}

# %%
# The inner band is the epistemic part, the outer edge the 95 % interval of new observations.

figure, axes = plt.subplots(1, 2, figsize=(9.5, 3.5), sharey=True, layout="constrained")
for ax, (name, (curve, p)) in zip(axes, predictions.items(), strict=True):
    credo.plots.predictive_bands(grid, p, ax, data=(curve.x, curve.y))
    ax.plot(grid, curve.function(grid), color="#D55E00", linestyle="--", linewidth=1)
    ax.set(title=name, xlabel="x", ylim=(-2.5, 2.5))
axes[0].set(ylabel="y")
plt.show()

# %%
# The two parts as standard deviations.

figure, axes = plt.subplots(1, 2, figsize=(9.5, 3.2), sharey=True, layout="constrained")
for ax, (name, (curve, p)) in zip(axes, predictions.items(), strict=True):
    ax.plot(grid, p.aleatoric.sqrt(), color="#E69F00", label="aleatoric")
    ax.plot(grid, p.epistemic.sqrt(), color="#0072B2", label="epistemic")
    ax.plot(grid, curve.noise(grid), "k:", label="true noise")
    ax.axvspan(-2, 2, color="gray", alpha=0.1, label="range of the data")
    ax.set(title=name, xlabel="x", ylim=(0, 1.0))
axes[0].set(ylabel="standard deviation")
axes[0].legend(ncols=2)
plt.show()

# %%
# Inside the data the noise is found where it is small, 0.07 at x = -1.5, and with 600 points where it is large, 0.39
# for a true 0.38 at x = 1.5. There the epistemic part falls from 0.13 to 0.04 with ten times as many data, about as
# :math:`1/\sqrt{10}`; the aleatoric part does not. Outside, at x = 2.5, the epistemic part stays larger, 0.38 and 0.16.
# The estimate of the noise is an extrapolation there too: the model has no separate error bar for it. The chains are
# short, so that R-hat is above 1.05 and credo says so.

for name, (curve, p) in predictions.items():
    for where in (-1.5, 1.5, 2.5):
        i = int((grid[:, 0] - where).abs().argmin())
        parts = f"aleatoric {p.aleatoric[i].sqrt().item():.2f}, epistemic {p.epistemic[i].sqrt().item():.2f}"
        print(f"{name}, x = {where}: {parts} (true noise {curve.noise(grid)[i].item():.2f})")
