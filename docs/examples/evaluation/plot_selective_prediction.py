r"""
Selective prediction: when to say nothing
=========================================

A model that may abstain can be more reliable than one that may not: it answers where it is certain and hands the rest
to a person. The risk–coverage curve shows the error rate among the rows it answers. To use it, a threshold has to be
chosen, and a promise made. :class:`credo.decisions.SelectivePredictor` chooses the largest coverage such that

.. math:: P\left( R(t) \le r \right) \ge 1 - \delta, \qquad R(t) = P(\text{error} \mid u(x) < t),

by an exact binomial bound on held-out rows.

Look at how much has to be given up for a stricter promise, and at whether it is kept on the test rows.
"""

# %%
# Digits under heavy noise, so that errors are common.

import matplotlib.pyplot as plt
import torch
from torch import nn

import credo

digits = credo.datasets.load_digits(test_fraction=0.7)
generator = torch.Generator().manual_seed(0)


def noisy(images: torch.Tensor) -> torch.Tensor:
    return (images + 0.3 * torch.randn(images.shape, generator=generator)).flatten(1)


x_train, x_other = noisy(digits.x_train), noisy(digits.x_test)
held_out, test = slice(0, 500), slice(500, None)

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
model = credo.MCDropout(net, credo.Categorical(), p=0.3)
model.fit((x_train, digits.y_train), epochs=100, batch_size=128, lr=1e-2, seed=0)
p_held_out, y_held_out = model.predict(x_other[held_out], seed=0), digits.y_test[held_out]
p, y = model.predict(x_other[test], seed=0), digits.y_test[test]
wrong = (p.mode != y).float()
print(f"{len(y)} test rows, error rate without abstention {wrong.mean():.1%}")

# %%
# Which uncertainty ranks the errors best? The lower the curve, the better.

scores = {name: credo.decisions.uncertainty(p, name) for name in ("entropy", "variation_ratio", "mutual_information")}
scores = {name.replace("_", " "): values for name, values in scores.items()}
ax = credo.plots.risk_coverage(wrong, scores, label="error rate of the rows that are answered")
plt.show()

# %%
# Promises from 15 % down to 2 %, each with δ = 5 %. If no threshold can be promised, nothing is answered.

promises = (0.15, 0.12, 0.10, 0.07, 0.05, 0.02)
coverage, risk, bound = [], [], []
for r in promises:
    selective = credo.decisions.SelectivePredictor(risk=r, delta=0.05, score="variation_ratio")
    selective.fit(p_held_out, y_held_out)
    accepted = selective.accept(p)
    coverage.append(float(accepted.float().mean()))
    risk.append(float(wrong[accepted].mean()))
    bound.append(selective.bound)
    errors = f"error rate of the answers {risk[-1]:.1%}" if coverage[-1] else "no threshold"
    print(f"promise {r:.0%}: answers {coverage[-1]:.1%}, {errors}")

figure, axes = plt.subplots(1, 2, figsize=(8.5, 3.3), layout="constrained")
axes[0].plot(promises, risk, "o-", label="on the test rows")
axes[0].plot(promises, bound, "s--", color="#E69F00", label="bound from the held-out rows")
axes[0].plot([0, 0.15], [0, 0.15], ":", color="gray", label="promise")
axes[0].set(xlabel="promised error rate", ylabel="error rate of the answers")
axes[0].legend()
axes[1].plot(promises, coverage, "o-")
axes[1].set(xlabel="promised error rate", ylabel="share of rows that are answered", ylim=(0, 1))
plt.show()

# %%
# The images that are handed to a person, under a promise of 5 %, most uncertain first.

selective = credo.decisions.SelectivePredictor(risk=0.05, delta=0.05, score="variation_ratio").fit(
    p_held_out, y_held_out
)
rejected = (~selective.accept(p)).nonzero()[:, 0]
rejected = rejected[credo.decisions.uncertainty(p, "variation_ratio")[rejected].argsort(descending=True)]
figure, axes = plt.subplots(1, 8, figsize=(9, 1.6), layout="constrained")
for ax, row in zip(axes, rejected[:8].tolist(), strict=True):
    ax.imshow(x_other[test][row].reshape(8, 8), cmap="gray_r", vmin=0, vmax=1)
    ax.set(xticks=[], yticks=[])
    ax.set_title(f"{int(y[row])}, says {int(p.mode[row])}", fontsize=9)
plt.show()

# %%
# Without abstention 17.7 % of the answers are wrong. For a promise of 10 % the model answers 73.0 % of the rows, and
# 7.4 % of these answers are wrong; for 5 % it answers 61.2 %, with 3.0 % errors. Among the rows that it hands over, 41
# % would have been wrong. All promises are kept with a margin, which is the price of the 95 % certainty, and for 2 %
# the 500 held-out rows are not enough to promise anything. One minus the highest probability (the variation ratio)
# ranks errors best here; the mutual information, which leaves out the noise in the images, does worst.

print(f"errors among the rejected rows: {wrong[rejected].mean():.0%}, among the answered: {risk[4]:.1%}")
