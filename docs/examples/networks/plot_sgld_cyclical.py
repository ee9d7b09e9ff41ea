r"""
SGLD with a cyclical step size: visiting several modes
======================================================

Stochastic gradient Langevin dynamics adds noise to gradient descent, so that the weights become draws from the
posterior,

.. math:: w \leftarrow w + \varepsilon\, \nabla \log \tilde p(w, \mathcal D) + \sqrt{2 \varepsilon}\, \xi, \qquad
    \xi \sim \mathcal N(0, I),

with the gradient of a minibatch. A chain with small steps stays in the mode where it began. The cyclical schedule of
Zhang et al. (2020) lets the step size fall as a cosine, again and again: each cycle begins with steps large enough to
leave a mode and ends with draws from the next.

Look at the function draws by cycle: within a cycle they are alike, between cycles they differ.
"""

# %%
# A curve with two ends and nothing between, fitted by one chain, once with a constant step and once with six cycles.
# Both make the same number of steps and keep the same number of draws.

import matplotlib.pyplot as plt
import torch
from torch import nn

import credo

generator = torch.Generator().manual_seed(0)
x = torch.cat([-1.6 + 0.7 * torch.rand(25, 1, generator=generator), 0.9 + 0.7 * torch.rand(25, 1, generator=generator)])
y = torch.sin(3 * x) + 0.05 * torch.randn(50, 1, generator=generator)
grid = torch.linspace(-2.2, 2.2, 150)[:, None]

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(1, 30), nn.Tanh(), nn.Linear(30, 30), nn.Tanh(), nn.Linear(30, 1))
CYCLES = 6
OPTIONS = {"chains": 1, "warmup": 900, "draws": 60, "thinning": 10, "batch_size": 32}
models = {
    "constant step": credo.SGLD(net, credo.Gaussian(0.05), lr=5e-4, **OPTIONS),
    "six cycles": credo.SGLD(net, credo.Gaussian(0.05), lr=2e-2, cycles=CYCLES, **OPTIONS),
}
for model in models.values():
    model.fit((x, y), seed=0)

# %%
# The schedule: :math:`\varepsilon_t = \tfrac{\varepsilon_0}{2}\left[\cos(\pi\, t / T) + 1\right]` within a cycle of T
# steps. Its first part runs without noise, its second part draws.

steps = OPTIONS["warmup"] + OPTIONS["draws"] * OPTIONS["thinning"]
length = steps // CYCLES
t = torch.arange(steps)
size = 0.5 * 2e-2 * (torch.cos(torch.pi * (t % length) / length) + 1)
is_drawing = (t % length) >= OPTIONS["warmup"] // CYCLES
figure, ax = plt.subplots(figsize=(7, 2.3), layout="constrained")
ax.plot(t, size, color="gray", linewidth=1, label="finds a mode")
ax.plot(t, size.where(is_drawing, torch.nan), color="#0072B2", linewidth=3, label="draws")
ax.set(xlabel="step", ylabel="step size", ylim=(0, 0.028))
ax.legend(loc="upper center", ncols=2)
plt.show()

# %%
# Draws as functions, one color for each sixth of the chain, in order.

figure, axes = plt.subplots(1, 2, figsize=(9.5, 3.5), sharey=True, layout="constrained")
colors = plt.get_cmap("viridis")
for ax, (name, model) in zip(axes, models.items(), strict=True):
    functions = model.outputs(grid)[0, ..., 0]  # [draws, grid]
    for i, function in enumerate(functions[::2]):
        ax.plot(grid, function, color=colors(i // 5 / 5), linewidth=0.7, alpha=0.8)
    ax.plot(x, y, "k.", markersize=3)
    ax.set(title=name, xlabel="x", ylim=(-2.5, 2.5))
axes[0].set(ylabel="y")
plt.show()

# %%
# The spread of the draws, within each sixth of the chain and between the sixths. In the gap it is 0.076 within a sixth
# for both chains. Between sixths the constant step has about the same, 0.084, and the cycles 0.169: each has found
# another way to cross the gap. An ensemble of six networks would have only the second part, a chain in one mode only
# the first.

for name, model in models.items():
    functions = model.outputs(torch.tensor([[0.0], [2.2]]))[0, ..., 0].reshape(CYCLES, -1, 2)
    within, between = functions.var(1).mean(0).sqrt(), functions.mean(1).var(0).sqrt()
    for i, place in enumerate(("in the gap", "outside")):
        print(f"{name}, {place}: std within a sixth {within[i]:.3f}, between sixths {between[i]:.3f}")
