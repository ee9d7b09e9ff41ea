r"""
Hamiltonian Monte Carlo, and how to see that it has converged
=============================================================

Hamiltonian Monte Carlo needs no assumption about the form of the posterior: it draws from it. A chain is a ball that
rolls without friction on the surface :math:`-\log p(w, \mathcal D)` and is kicked from time to time. For a small
network it is the reference for every approximation. But draws are only as good as the chains: diagnostics come first,
predictions second.

Look at the traces. The same chains agree on the function and disagree on the weights, and only the first matters.
"""

# %%
# Thirty points of a function with a step, and a network with ten hidden units.

import matplotlib.pyplot as plt
import torch
from torch import nn

import credo

generator = torch.Generator().manual_seed(1)
x = (torch.rand(30, 1, generator=generator) * 4 - 2).sort(dim=0).values
y = torch.tanh(4 * x) + 0.3 * x + 0.15 * torch.randn(30, 1, generator=generator)
grid = torch.linspace(-3.5, 3.5, 150)[:, None]

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(1, 10), nn.Tanh(), nn.Linear(10, 1))

# %%
# Four chains run as one batch. The first half of the transitions, the warm-up, adapts step sizes and is thrown away.
# The size of the noise is sampled with the weights. A second run is far too short, to see what the diagnostics say.

model = credo.HMC(net, credo.Gaussian("learned"), chains=4, warmup=200, draws=200, leapfrog_steps=32)
model.fit((x, y), seed=0)
print(model.summary())

short = credo.HMC(net, credo.Gaussian("learned"), chains=4, warmup=4, draws=12, leapfrog_steps=2, init="prior")
short.fit((x, y), seed=0)

# %%
# R-hat compares the variance between chains with the variance within them, :math:`\hat R =
# \sqrt{\widehat{\mathrm{var}}^+ / W}`, and is 1 when all chains sample the same distribution. The hidden units of a
# network can be exchanged without changing its function, so that chains need not agree on any weight. Judge the
# predictions.

outputs = model.outputs(torch.tensor([[0.3]]))[:, :, 0, 0]  # [chains, draws]
weight = model.posterior.by_chain()["0.weight"][:, :, 0, 0]
figure, axes = plt.subplots(2, 1, figsize=(7, 4.4), sharex=True, layout="constrained")
for ax, values, name in zip(axes, (outputs, weight), ("$f(0.3)$", "a weight of the first layer"), strict=True):
    ax.plot(values.T, linewidth=0.7)
    ax.set(ylabel=name, title=f"$\\hat R$ = {credo.diagnostics.r_hat(values):.3f}")
axes[1].set(xlabel="draw after warm-up (one color per chain)")
plt.show()

# %%
# R-hat and the effective sample size of every prediction on the grid.

figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
for name, fitted in {"200 + 200 transitions": model, "4 + 12 transitions": short}.items():
    functions = fitted.outputs(grid)[..., 0]
    axes[0].plot(grid, credo.diagnostics.r_hat(functions), label=name)
    axes[1].plot(grid, credo.diagnostics.effective_sample_size(functions), label=name)
axes[0].axhline(1.01, color="gray", linestyle=":", label="1.01")
axes[0].set(xlabel="x", ylabel=r"$\hat R$ of $f(x)$", yscale="log")
axes[0].set_yticks([1, 1.5, 2, 3], ["1", "1.5", "2", "3"], minor=False)
axes[0].minorticks_off()
axes[1].set(xlabel="x", ylabel="effective sample size of $f(x)$", yscale="log")
axes[0].legend()
plt.show()

# %%
# Now the prediction.

p = model.predict(grid, samples=400, seed=0)
ax = credo.plots.predictive_bands(grid, p, data=(x, y))
ax.set(xlabel="x", ylabel="y")
plt.show()

# %%
# The posterior of the noise is part of the answer: 0.18 ± 0.03, where 0.15 is true. For f(0.3), R-hat is 1.005 and the
# 800 draws are worth 366 independent ones, although R-hat of the weights is up to 2.3. Far outside the data, R-hat of f
# is above 1.01: a longer run would help there. The short run has R-hat up to 4.1, and credo warned about it.

noise = model.likelihood_posterior.by_chain()["log_scale"].exp()
size = credo.diagnostics.effective_sample_size(outputs)
print(f"noise {noise.mean():.3f} ± {noise.std():.3f} (true 0.15)")
print(f"f(0.3): R-hat {credo.diagnostics.r_hat(outputs):.3f}, {size:.0f} effective of {outputs.numel()} draws")
print(f"short run: R-hat up to {credo.diagnostics.r_hat(short.outputs(grid)).max():.1f}")
print(f"epistemic std at x = 0: {p.epistemic[75].sqrt().item():.2f}, at x = 3.5: {p.epistemic[-1].sqrt().item():.2f}")
