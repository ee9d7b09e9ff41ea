r"""
What a mean-field posterior cannot see: correlated weights
==========================================================

When two inputs are nearly the same, the data fix the sum of their weights and say nothing about the difference. The
exact posterior is a long, narrow, tilted ellipse. Mean-field inference, with independent weights, can only fit the part
of it that stands upright. The low-rank family

.. math:: q(w) = \mathcal N\left(\mu,\; \operatorname{diag}(\sigma^2) + U U^\top\right), \qquad
    U \in \mathbb R^{P \times R},

adds R directions in which weights move together. For linear regression the exact posterior is known, and all three can
be compared with it.

Look at the ellipses, and at the price: the error bar of a prediction along the direction that is not determined.
"""

# %%
# Two inputs with correlation 0.98, and y = x₁ + x₂ with noise.

import matplotlib.pyplot as plt
import torch
from matplotlib.patches import Ellipse
from torch import Tensor, nn

import credo

generator = torch.Generator().manual_seed(0)
common, own = torch.randn(60, 1, generator=generator), torch.randn(60, 2, generator=generator)
x = 0.99 * common + 0.14 * own
noise = 0.5
y = x.sum(1, keepdim=True) + noise * torch.randn(60, 1, generator=generator)
print(f"correlation of the inputs: {torch.corrcoef(x.T)[0, 1]:.3f}")

# %%
# The exact posterior under the prior N(0, 1) is :math:`\mathcal N(m, S)` with :math:`S^{-1} = I + X^\top X / \sigma^2`
# and :math:`m = S X^\top y / \sigma^2`.

precision = torch.eye(2) + x.T @ x / noise**2
exact_covariance = precision.inverse()
exact_mean = (exact_covariance @ x.T @ y / noise**2)[:, 0]

# %%
# A network with one linear layer and no bias is the same model.


def fit(rank: int) -> credo.BayesByBackprop:
    torch.manual_seed(0)
    model = credo.BayesByBackprop(nn.Linear(2, 1, bias=False), credo.Gaussian(noise), rank=rank)
    return model.fit((x, y), epochs=1600, batch_size=60, lr=2e-2, seed=0)


models = {"mean field (rank 0)": fit(0), "low rank (rank 1)": fit(1)}

# %%
# Ellipses contain 95 % of each posterior.


def ellipse(mean: Tensor, covariance: Tensor, **style: object) -> Ellipse:
    values, vectors = torch.linalg.eigh(covariance)
    radii = (5.991 * values).sqrt()
    angle = torch.rad2deg(torch.atan2(vectors[1, 1], vectors[0, 1]))
    return Ellipse(mean.tolist(), 2 * float(radii[1]), 2 * float(radii[0]), angle=float(angle), fill=False, **style)


STYLES = {"mean field (rank 0)": ("#D55E00", "--"), "low rank (rank 1)": ("#0072B2", "-")}
figure, ax = plt.subplots(figsize=(5.2, 4.6), layout="constrained")
ax.add_patch(ellipse(exact_mean, exact_covariance, color="black", linewidth=3, alpha=0.35, label="exact"))
covariances = {"exact": exact_covariance}
for name, model in models.items():
    draws = model.posterior.sample(4000, seed=0)["weight"][:, 0]
    covariances[name] = draws.T.cov()
    mean = model.posterior.mean()["weight"][0]
    color, line = STYLES[name]
    ax.add_patch(ellipse(mean, covariances[name], color=color, linestyle=line, linewidth=1.8, label=name))
ax.plot(1, 1, "k+", markersize=10, label="true weights")
ax.set(xlabel="$w_1$", ylabel="$w_2$", xlim=(-0.6, 2.6), ylim=(-0.6, 2.6), aspect="equal")
ax.legend()
plt.show()

# %%
# The error bar of f at points on a circle. Along (1, 1) the data decide; along (1, -1) hardly any data lie.

angle = torch.linspace(0, torch.pi, 181)
circle = torch.stack([angle.cos(), angle.sin()], 1)
figure, ax = plt.subplots(figsize=(6.5, 3.4), layout="constrained")
for name, covariance in covariances.items():
    color, line = STYLES.get(name, ("black", "-"))
    width, alpha = (3, 0.35) if name == "exact" else (1.8, 1)
    deviation = torch.einsum("ni,ij,nj->n", circle, covariance, circle).sqrt()
    ax.plot(angle.rad2deg(), deviation, color=color, linestyle=line, linewidth=width, alpha=alpha, label=name)
ax.set(xlabel="direction of x (degrees)", ylabel="epistemic std of $f(x)$", xticks=range(0, 181, 45), ylim=(0, None))
ax.legend()
plt.show()

# %%
# Both have the exact mean. Along (1, -1) the exact standard deviation is 0.50; mean field has 0.07, the low-rank family
# 0.44. The ELBO is a bound of the log evidence, -43.53, and its distance to it is the KL divergence from the exact
# posterior: 1.65 nats for mean field, 0.01 for rank 1. The family with one direction contains the exact posterior of
# two weights, and training nearly finds it.

for name, model in models.items():
    print(f"{name}: ELBO {model.elbo((x, y), samples=200, seed=0):.2f}")
marginal = torch.distributions.MultivariateNormal(torch.zeros(60), x @ x.T + noise**2 * torch.eye(60))
print(f"log evidence {marginal.log_prob(y[:, 0]):.2f}")
direction = torch.tensor([1.0, -1.0]) / 2**0.5
for name, covariance in covariances.items():
    print(f"{name}: std along (1, -1)/√2 is {(direction @ covariance @ direction).sqrt():.3f}")
