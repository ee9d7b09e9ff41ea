r"""
How many components? Bayesian PCA
=================================

PCA keeps as many components as it is told. Bayesian PCA gives every column of the loadings a precision of its own,

.. math:: x \sim N(W z + \mu,\, \tau^{-1} I), \qquad w_k \sim N(0, \alpha_k^{-1} I),

and a column that the data do not need is driven to zero: its precision grows without limit.

Look at what happens to the extra columns, and at how many rows it takes to see a weak one.
"""

# %%
# Twelve columns that vary in three directions, the third of them weakly, and noise.

import matplotlib.pyplot as plt
import numpy as np

from credo.decomposition import PCA, BayesianPCA, ProbabilisticPCA

rng = np.random.default_rng(0)
directions = np.linalg.qr(rng.normal(size=(12, 3)))[0].T
STRENGTH = np.array([3.0, 2.0, 0.8])


def rows(n: int) -> np.ndarray:
    return (rng.normal(size=(n, 3)) * STRENGTH) @ directions + 0.5 * rng.normal(size=(n, 12))


X, X_new = rows(200), rows(2000)
model = BayesianPCA().fit(X)
print(f"components kept of {len(model.alpha_)}: {model.n_components_}")
print(f"noise: standard deviation {np.sqrt(model.noise_variance_):.3f}, truth 0.5")

# %%
# Left: the variances of PCA, which say nothing about where signal ends. Middle: the precisions α, with a gap of many
# orders of magnitude. Right: the loadings, a row for each component.

figure, axes = plt.subplots(1, 3, figsize=(11, 3), layout="constrained")
axes[0].plot(range(1, 13), PCA().fit(X).explained_variance_, "o-")
axes[0].axhline(0.25, color="gray", linestyle=":", label="noise")
axes[0].set(xlabel="component", ylabel="variance", title="PCA", yscale="log")
axes[0].legend()
axes[1].plot(range(1, 12), model.alpha_, "o-")
axes[1].set(xlabel="component", ylabel="precision", title="Bayesian PCA", yscale="log")
shades = axes[2].imshow(model.components_, cmap="RdBu", vmin=-1.5, vmax=1.5)
axes[2].set(xlabel="column", ylabel="component", yticks=range(model.n_components_), title="loadings")
figure.colorbar(shades, ax=axes[2], shrink=0.6)
plt.show()

# %%
# The other way to choose: probabilistic PCA with every number of components, judged by new rows. It needs them;
# Bayesian PCA does not.

scores = [ProbabilisticPCA(k).fit(X).score(X_new) for k in range(1, 9)]
figure, ax = plt.subplots(figsize=(5.5, 3), layout="constrained")
ax.plot(range(1, 9), scores, "o-", label="probabilistic PCA")
ax.axhline(model.score(X_new), color="#D55E00", linestyle="--", label="Bayesian PCA")
ax.set(xlabel="components", ylabel="log likelihood per new row")
ax.legend()
plt.show()
print(f"best number by new rows: {1 + int(np.argmax(scores))}")

# %%
# With fewer rows the weak direction cannot be told from noise, and is left out; with more it is found every time.

for n in (15, 30, 60, 120, 240):
    found = [BayesianPCA().fit(rows(n)).n_components_ for _ in range(10)]
    print(f"{n} rows: components kept in ten tables {found}")

# %%
# Three of eleven components are kept from 200 rows; the precisions of the others are beyond 10⁸. New rows agree: the
# log likelihood of probabilistic PCA is highest with three. With 15 rows the weak direction, whose variance is 2.6
# times that of the noise, is found in two tables of ten, with 60 in all.
