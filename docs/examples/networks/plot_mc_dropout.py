r"""
MC dropout of a network that is trained already
===============================================

Many networks contain dropout, and it is switched off for predictions. Left on, it draws a thinned network every time.
Gal & Ghahramani (2016) read these draws as samples of an approximate posterior :math:`q(w)`, so that

.. math:: p(y \mid x, \mathcal D) \approx \frac1S \sum_{s=1}^S p(y \mid x, w_s), \qquad
    w_s = \operatorname{diag}(z_s)\, W,
    \quad z_s \sim \mathrm{Bernoulli}(1 - p).

The network below is trained by a plain PyTorch loop that knows nothing about credo. :class:`credo.MCDropout` takes it
as it is, without retraining.

Look at the patients whose draws disagree. A single pass of the network would give one of these dots, with no sign of
the others.
"""

# %%
# 569 tumors with 30 measurements each. The network learns from 200 of them.

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch import nn

import credo

X, malignant = load_breast_cancer(return_X_y=True)
malignant = 1 - malignant  # scikit-learn has 0 for malignant
X_train, X_test, y_train, y_test = train_test_split(X, malignant, train_size=200, stratify=malignant, random_state=0)
scaler = StandardScaler().fit(X_train)
x_train, x_test = (torch.tensor(scaler.transform(part), dtype=torch.float32) for part in (X_train, X_test))
y_train, y_test = torch.tensor(y_train), torch.tensor(y_test)

torch.manual_seed(0)
net = nn.Sequential(
    *(nn.Linear(30, 64), nn.ReLU(), nn.Dropout(0.3)),
    *(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.3)),
    nn.Linear(64, 2),
)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2, weight_decay=1e-3)
for _ in range(150):
    loss = nn.functional.cross_entropy(net(x_train), y_train)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

# %%
# One line makes it Bayesian. In a draw the same units are dropped for all rows, so that a draw is one function.
# ``samples=0`` is the ordinary prediction, without dropout.

model = credo.MCDropout(net, credo.Categorical())
p = model.predict(x_test, samples=200, seed=0)
plain = model.predict(x_test, samples=0)

# %%
# Six patients, at the quantiles 0, 0.5, 0.8, 0.9, 0.95 and 1 of the uncertainty. Each dot is the probability under one
# draw. The diamond is their mean and the cross the network without dropout.

ranks = torch.tensor([0.0, 0.5, 0.8, 0.9, 0.95, 1.0]) * (len(x_test) - 1)
rows = p.mutual_information.argsort()[ranks.round().long()]
generator = torch.Generator().manual_seed(0)
figure, ax = plt.subplots(figsize=(7, 3.6), layout="constrained")
for place, row in enumerate(rows.tolist()):
    draws = p.draws[:, row, 1]
    jitter = 0.25 * (torch.rand(len(draws), generator=generator) - 0.5)
    ax.plot(place + jitter, draws, ".", color="#0072B2", markersize=3, alpha=0.4, label="draws" if not place else None)
    ax.plot(place, p.mean[row, 1], "D", color="black", markersize=6, label="mean of the draws" if not place else None)
    ax.plot(place + 0.25, plain.mean[row, 1], "x", color="#D55E00", label="without dropout" if not place else None)
truths = ["benign" if y_test[row] == 0 else "malignant" for row in rows]
ax.set_xticks(range(6), [f"{t}\n{p.mutual_information[r]:.3f} nats" for t, r in zip(truths, rows, strict=True)])
ax.set(ylabel="probability of malignant", xlabel="true diagnosis, and mutual information of label and weights")
ax.legend(loc="center left")
plt.show()

# %%
# Is the uncertainty worth anything? Send the most uncertain patients to a second reader, and count the errors among the
# rest.

wrong = (p.mode != y_test).float()
ax = credo.plots.risk_coverage(
    wrong, {"entropy": p.entropy, "mutual information": p.mutual_information}, label="error rate"
)
ax.set(xlabel="fraction of patients that the network decides")
plt.show()

# %%
# The accuracy, 94.0 %, does not change. The log loss falls from 0.226 to 0.168, because the mean of draws that disagree
# is closer to 1/2 than the single network is. Of the 22 errors, 16 are in the most uncertain tenth of the patients.
#
# One thing MC dropout does not do: its uncertainty is set by the drop rate and does not shrink with more data. See
# :class:`credo.ConcreteDropout` for rates that are learned.

for name, prediction in {"without dropout": plain, "200 draws": p}.items():
    accuracy = credo.metrics.accuracy(prediction, y_test)
    print(f"{name}: accuracy {accuracy:.1%}, NLL {credo.metrics.nll(prediction, y_test):.3f}")
most = p.entropy.argsort(descending=True)[: len(y_test) // 10]
print(f"errors: {int(wrong.sum())} of {len(y_test)}, {int(wrong[most].sum())} of them in the most uncertain tenth")
