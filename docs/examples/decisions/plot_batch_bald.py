r"""
Which ten rows to label together: BatchBALD
===========================================

Labels are often ordered in batches. Taking the ten rows with the highest mutual information wastes most of them: ten
near-copies of one uncertain row have ten high scores, and one answer settles all. BatchBALD asks what a *set* of labels
would teach together,

.. math:: I[y_1, \dots, y_n; f] = H[y_1, \dots, y_n] - \sum_i \mathbb E_f\, H[y_i \mid f],

and grows the set greedily.

Look at where the two batches lie.
"""

# %%
# Three classes in the plane, with few labels, and a pool that holds one crowded, uncertain cluster.

import matplotlib.pyplot as plt
import torch
from torch import nn

import credo

generator = torch.Generator().manual_seed(0)
centers = torch.tensor([[-2.0, 0.0], [2.0, 0.0], [0.0, 2.5]])
labels = torch.arange(3).repeat_interleave(4)
points = centers[labels] + 0.5 * torch.randn(12, 2, generator=generator)
spread_out = torch.rand(150, 2, generator=generator) * 7 - torch.tensor([3.5, 2.5])
crowd = torch.tensor([0.0, -1.2]) + 0.08 * torch.randn(50, 2, generator=generator)
pool = torch.cat([spread_out, crowd])

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(2, 10), nn.Tanh(), nn.Linear(10, 3))
model = credo.HMC(net, credo.Categorical(), prior=credo.Normal(0.0, 2.0), chains=4, warmup=100, draws=100)
model.fit((points, labels), seed=0)
p = model.predict(pool, samples=200, seed=0)

# %%
# Ten rows by each rule. :func:`credo.decisions.uncertainty` has the score of single rows,
# :func:`credo.decisions.batch_bald` the joint one.

scores = credo.decisions.uncertainty(p, "mutual_information")
top = scores.argsort(descending=True)[:10]
batch = credo.decisions.batch_bald(p, 10, seed=0)
chosen = {"highest scores": top, "BatchBALD": batch.rows}

figure, axes = plt.subplots(1, 2, figsize=(9, 3.8), sharey=True, layout="constrained")
for ax, (name, rows) in zip(axes, chosen.items(), strict=True):
    dots = ax.scatter(*pool.T, c=scores, s=12, cmap="viridis")
    for label, marker in zip(range(3), "os^", strict=True):
        ax.plot(*points[labels == label].T, "k" + marker, markersize=5, fillstyle="none")
    ax.plot(*pool[rows].T, "o", color="#D55E00", markersize=9, fillstyle="none", markeredgewidth=1.6)
    ax.set(title=name)
figure.colorbar(dots, ax=axes, label="mutual information, nats")
plt.show()

# %%
# What the labels of each batch would teach together. The joint information of any set comes from the same function,
# asked for all of its rows.


def joint_information(rows: torch.Tensor) -> list[float]:
    found = credo.decisions.batch_bald(model.predict(pool[rows], samples=200, seed=0), len(rows), seed=0)
    return found.information.tolist()


figure, ax = plt.subplots(figsize=(5.5, 3.2), layout="constrained")
for name, rows in chosen.items():
    ax.plot(range(1, 11), joint_information(rows), "o-", label=name)
ax.set(xlabel="rows of the batch", ylabel="joint information, nats")
ax.legend()
plt.show()
in_crowd = {name: int((rows >= 150).sum()) for name, rows in chosen.items()}
for name, rows in chosen.items():
    print(
        f"{name}: sum of the single scores {scores[rows].sum():.2f} nats, together {joint_information(rows)[-1]:.2f}, "
        f"{in_crowd[name]} rows from the crowd"
    )

# %%
# Six of the ten highest scores come from the crowd, where one label would have settled most of the others: their
# scores add up to 7.07 nats, but together the ten labels carry 2.74. BatchBALD takes one row of the crowd and nine
# elsewhere. Its scores add up to less, 5.99, and its labels carry 4.27 nats together, more than half as much again.
