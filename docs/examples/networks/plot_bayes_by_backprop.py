r"""
Bayes by Backprop on a curve with a gap
=======================================

A network with one setting of its weights is equally confident everywhere. Bayes by Backprop learns a Gaussian
:math:`q(w) = \mathcal N(\mu, \operatorname{diag}(\sigma^2))` over the weights by minimizing

.. math:: F = \mathrm{KL}\left(q(w) \,\|\, p(w)\right) - \mathbb E_{q(w)}\left[\log p(\mathcal D \mid w)\right],

so that every draw of the weights is one function that explains the data. Where there are no data, the functions differ.

Look at the gap in the middle: the epistemic uncertainty grows there, the noise does not. Compare it with the network
trained without a posterior.
"""

# %%
# A noisy sine with a gap in its middle.

import matplotlib.pyplot as plt
import torch
from torch import nn

import credo

data = credo.datasets.sine_with_gap(seed=0)
x, y = data.x, data.y
grid = torch.linspace(float(x.min()) - 0.5, float(x.max()) + 0.5, 200)[:, None]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 1))


# %%
# Any network will do, and it is not changed: its parameters are the means :math:`\mu`, and the posterior adds the
# scales :math:`\sigma`. The noise is known here; ``Gaussian("learned")`` learns it with the weights.

model = credo.BayesByBackprop(network(), credo.Gaussian(noise=0.1), prior=credo.Normal(0.0, 1.0))
model.fit((x, y), epochs=2000, batch_size=len(x), lr=3e-2, seed=0)
p = model.predict(grid, samples=200, seed=0)

point = credo.MAP(network(), credo.Gaussian(noise=0.1))
point.fit((x, y), epochs=500, batch_size=len(x), lr=1e-2, seed=0)

# %%
# The bands are the epistemic and the total uncertainty, at 95 %.

figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True, layout="constrained")
credo.plots.predictive_bands(grid, point.predict(grid), axes[0], data=(x, y))
credo.plots.predictive_bands(grid, p, axes[1], data=(x, y))
axes[0].set(title="one setting of the weights")
axes[1].set(title="Bayes by Backprop")
plt.show()

# %%
# Draws of the posterior are functions: each uses the same weights for all inputs.

ax = credo.plots.draws(grid, p, n=20)
ax.plot(x, y, ".", color="black", markersize=3)
plt.show()

# %%
# Inside the data and in the gap:

for name, where in {"at the data": x, "in the gap": torch.tensor([[0.1]])}.items():
    q = model.predict(where, samples=200, seed=0)
    print(f"{name}: epistemic std {q.epistemic.mean().sqrt():.3f}, noise {q.aleatoric.mean().sqrt():.3f}")
