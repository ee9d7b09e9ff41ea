r"""
Laplace: error bars after training, and what to keep of the Hessian
===================================================================

The Laplace approximation fits a Gaussian to the posterior at its maximum :math:`w^*`. Its precision is the curvature
there,

.. math:: q(w) = \mathcal N\left(w^*, (H + \delta I)^{-1}\right), \qquad H = \sum_n J_n^\top \Lambda_n J_n,

one pass over the data after ordinary training, with the Jacobians :math:`J_n` of the network. H has as many entries as
the number of weights squared, so approximations keep only a part of it.

Look at the boundary between the classes: in the trained network it is equally sharp everywhere, while the uncertainty
of the full approximation grows with the distance from the data. Then compare what the approximations of H make of it.
"""

# %%
# Two moons, and a network trained by maximum a posteriori.

import time

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import make_moons
from torch import nn

import credo

points, labels = make_moons(150, noise=0.15, random_state=0)
x, y = torch.tensor(points, dtype=torch.float32), torch.tensor(labels)

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(2, 30), nn.Tanh(), nn.Linear(30, 30), nn.Tanh(), nn.Linear(30, 2))
point = credo.MAP(net, credo.Categorical())
point.fit((x, y), epochs=400, batch_size=len(x), lr=1e-2, seed=0)

# %%
# ``epochs=0`` leaves the trained weights as they are and computes the curvature only. Each structure is fitted to the
# same network.

STRUCTURES = {
    "full": {"structure": "full"},
    "Kronecker": {"structure": "kron"},
    "low rank (20)": {"structure": "low_rank", "rank": 20},
    "diagonal": {"structure": "diag"},
    "last layer, full": {"structure": "full", "parameters": "last_layer"},
}
models = {}
for name, options in STRUCTURES.items():
    start = time.process_time()
    models[name] = credo.Laplace(net, credo.Categorical(), **options).fit((x, y), epochs=0)
    print(f"{name}: {time.process_time() - start:.2f} s")

# %%
# The predictive entropy, from 0 (dark) to log 2 (bright). Predictions are those of the network linearized at
# :math:`w^*`, whose outputs are Gaussian with covariance :math:`J (H + \delta I)^{-1} J^\top`.

side = torch.linspace(-4, 5, 60), torch.linspace(-4, 4, 60)
grid = torch.cartesian_prod(*side)
figure, axes = plt.subplots(2, 3, figsize=(9, 5.4), sharex=True, sharey=True, layout="constrained")
for ax, (name, model) in zip(axes.flat, {"trained network (MAP)": point, **models}.items(), strict=True):
    entropy = model.predict(grid, samples=64, seed=0).entropy.reshape(60, 60).T
    image = ax.contourf(*side, entropy, levels=torch.linspace(0, 0.7, 15).tolist(), cmap="viridis")
    ax.scatter(*x.T, c=y, cmap="coolwarm", s=6, edgecolors="white", linewidths=0.3)
    ax.set(title=name, xlabel="$x_1$" if ax in axes[1] else None, ylabel="$x_2$" if ax in axes[:, 0] else None)
figure.colorbar(image, ax=axes, label="predictive entropy (nats)")
plt.show()

# %%
# In the corners of the map, where no training point is near, the entropy is 0.06 nats for the trained network, and 0.31
# with the full matrix; Kronecker factors (0.29) and 20 eigenvectors (0.31) come close to that. The diagonal ignores
# that errors of one weight are made up for by others, and is uncertain of the training points themselves: 0.57 nats,
# where the full matrix has 0.21. The last layer alone hardly differs from the trained network here, 0.07 in the
# corners: with two classes that its features separate, it has little left to be uncertain about.

corners = torch.tensor([[-4.0, -4.0], [-4.0, 4.0], [5.0, -4.0], [5.0, 4.0]])
for name, model in {"MAP": point, **models}.items():
    far, near = model.predict(corners, samples=512, seed=0), model.predict(x, samples=512, seed=0)
    print(f"{name}: entropy in the corners {far.entropy.mean():.2f}, at the data {near.entropy.mean():.2f} nats")

# %%
# The same curvature gives the evidence :math:`\log p(\mathcal D \mid \delta)`, which chooses the scale of the prior
# without held-out data: 2.04 raises it from -42.0 to -36.0.

model = models["full"]
before = model.log_marginal_likelihood()
model.optimize_prior()
scale = float(model.posterior.prior_precision[0]) ** -0.5
print(f"log evidence {before:.1f} with prior scale 1, {model.log_marginal_likelihood():.1f} with {scale:.2f}")
