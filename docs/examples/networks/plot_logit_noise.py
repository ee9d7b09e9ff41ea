r"""
Noise in the labels: a classifier that knows where it is
========================================================

Some labels are wrong, and more of them in some places than in others. A classifier can be given a noise of its own,
learned from the data: the network outputs logits and their log variance, and the class is drawn from noisy logits,

.. math:: p(y \mid x, w) = \mathbb E_{\varepsilon \sim \mathcal N(0, I)}\left[\operatorname{softmax}\left(z(x) +
    e^{s(x)/2}\, \varepsilon\right)_y\right]

(Kendall and Gal 2017). The noise is integrated out within every weight draw. It belongs to the aleatoric part of the
entropy; what the draws disagree on is epistemic.

Look at the maps: one kind of uncertainty is where labels are noisy, the other where there are no data. Then at the
bars: is the noise needed for that?
"""

# %%
# Two moons. In the left half of the plane, 30 % of the labels are drawn at random; in the right half all are right.

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import make_moons
from torch import nn

import credo


def sample(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    points, clean = make_moons(n, noise=0.12, random_state=seed)
    x, clean = torch.tensor(points, dtype=torch.float32), torch.tensor(clean)
    generator = torch.Generator().manual_seed(seed)
    wrong = (torch.rand(n, generator=generator) < 0.3) & (x[:, 0] < 0.5)
    return x, torch.where(wrong, torch.randint(0, 2, (n,), generator=generator), clean), clean


x, y, _ = sample(400, seed=0)
x_test, y_test, clean_test = sample(4000, seed=1)


def fit(logit_noise: bool) -> credo.MCDropout:
    torch.manual_seed(0)
    outputs = 4 if logit_noise else 2
    net = nn.Sequential(nn.Linear(2, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, outputs))
    likelihood = credo.Categorical(logit_noise=logit_noise, noise_samples=32)
    model = credo.MCDropout(net, likelihood, p=0.1)
    return model.fit((x, y), epochs=150, batch_size=100, lr=1e-2, seed=0)


models = {"plain logits": fit(False), "noisy logits": fit(True)}

# %%
# The parts of the entropy on the plane, in nats (at most log 2), for the model with noisy logits.

line_x, line_y = torch.linspace(-2.5, 3.5, 90), torch.linspace(-2, 2.5, 80)
grid = torch.cartesian_prod(line_x, line_y)
p = models["noisy logits"].predict(grid, samples=100, seed=0)
maps = {
    "aleatoric (expected entropy)": p.aleatoric,
    "epistemic (mutual information)": p.epistemic,
    "p(upper moon)": p.mean[:, 0],
}

figure, axes = plt.subplots(1, 3, figsize=(11.5, 3.2), sharey=True, layout="constrained")
for ax, (name, values) in zip(axes, maps.items(), strict=True):
    color = "coolwarm" if name.startswith("p") else "viridis"
    drawn = ax.pcolormesh(line_x, line_y, values.reshape(90, 80).T, cmap=color, shading="nearest")
    ax.scatter(*x.T, c=y, cmap="coolwarm_r", s=5, edgecolors="white", linewidths=0.2)
    ax.axvline(0.5, color="white", linestyle=":", linewidth=1)
    ax.set(title=name, xlabel="$x_1$")
    figure.colorbar(drawn, ax=ax)
axes[0].set(ylabel="$x_2$")
plt.show()

# %%
# On 4,000 new points, by half of the plane. The observed labels are noisy too; the expected log loss of a model that
# knew everything is the entropy of the labels, 0.42 nats on the left (p = 0.15 of being wrong) and nearly 0 on the
# right.

left = x_test[:, 0] < 0.5
results = {}
for name, model in models.items():
    p = model.predict(x_test, samples=100, seed=0)
    for half, rows in {"left": left, "right": ~left}.items():
        loss = -p.mean[rows].gather(1, y_test[rows, None]).log().mean()
        right = (p.mean[rows].argmax(1) == clean_test[rows]).float().mean()
        aleatoric, epistemic = p.aleatoric[rows].mean(), p.epistemic[rows].mean()
        results[name, half] = (loss.item(), aleatoric.item(), epistemic.item(), right.item())

figure, ax = plt.subplots(figsize=(8.5, 3.2), layout="constrained")
for k, (_, aleatoric, epistemic, _) in enumerate(results.values()):
    ax.bar(k, aleatoric, color="#E69F00", label="aleatoric" if k == 0 else None)
    ax.bar(k, epistemic, bottom=aleatoric, color="#0072B2", label="epistemic" if k == 0 else None)
ax.set_xticks(range(4), [f"{name},\n{half} half" for name, half in results])
ax.axhline(0.423, xmax=0.25, color="black", linestyle=":")
ax.axhline(0.423, xmin=0.5, xmax=0.75, color="black", linestyle=":", label="entropy of the labels")
ax.set(ylabel="mean entropy (nats)")
ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
plt.show()

# %%
# In the left half, where 15 % of the labels are wrong, the aleatoric part is 0.50, in the right half 0.20, and 99 % of
# the true classes are found in both: the wrong labels are taken for what they are. The epistemic part is larger on the
# right, 0.09 beside 0.04, where the moons end, and largest in the corners of the plane where no data are.
#
# And the noise of the logits? It changes nothing here: log losses are 0.480 and 0.481 on the left, 0.107 and 0.109 on
# the right. Two classes need no more than one probability, which plain logits can output as well. The noise is of use
# where a network would have to be certain to fit the rest, as at the borders of objects in images; see it as a part to
# try, and the log loss as the judge. The
# whole is too uncertain, 0.54 nats on the left where the labels have 0.42: the price of dropout.

for (name, half), (loss, aleatoric, epistemic, right) in results.items():
    parts = f"aleatoric {aleatoric:.3f}, epistemic {epistemic:.3f}"
    print(f"{name}, {half}: log loss {loss:.3f}, {parts}, true class found {right:.1%}")
