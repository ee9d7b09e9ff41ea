r"""
Codes with a meaning: InfoGAN
=============================

The noise of a GAN has no meaning: turning one of its numbers changes everything a little. InfoGAN adds codes c, and
asks that they can be read off the samples again, by maximizing a bound on the mutual information,

.. math:: I(c;\, G(z, c)) \;\ge\; \mathbb E_{c,\, x = G(z, c)}\left[\log Q(c \mid x)\right] + H(c).

Nobody says what the codes should mean. Here the data are points on three arms, and there is one code with three values
and one that is continuous.

Look at the samples by code: the first chooses the arm, the second the place on it.
"""

# %%
# Three bent arms, without labels.

import math

import matplotlib.pyplot as plt
import torch

import credo
from credo.architectures import MLP
from credo.generative import InfoGAN
from credo.generative.infogan import Codes

generator = torch.Generator().manual_seed(0)
N = 2048
arm = torch.randint(0, 3, (N,), generator=generator)
place = torch.rand(N, generator=generator)
angle = 2 * math.pi * arm / 3 + 0.6 * place
radius = 0.7 + place
x = torch.stack([radius * angle.cos(), radius * angle.sin()], 1) + 0.08 * torch.randn(N, 2, generator=generator)

# %%
# The generator takes one number of noise, the class as one-hot, and the continuous code; the discriminator outputs a
# logit, three logits for the class and a mean for the code.

torch.manual_seed(0)
model = InfoGAN(
    MLP(1 + 3 + 1, (64, 64), 2),
    MLP(2, (64, 64), 1 + 3 + 1),
    noise=1,
    categorical=(3,),
    continuous=1,
    continuous_weight=1.0,
    generator_lr=1e-3,
    discriminator_lr=1e-3,
)
model.fit(x, epochs=100, batch_size=256, seed=0)

# %%
# Samples by class and by continuous code; and the codes that the model reads off the data.

COLORS = [credo.plots.OKABE_ITO[name] for name in ("blue", "vermilion", "green")]
n = 600
figure, axes = plt.subplots(1, 4, figsize=(12, 3.3), sharex=True, sharey=True, layout="constrained")
axes[0].plot(*x.T, ".", color="gray", markersize=2)
axes[0].set(title="data")
for k in range(3):
    samples = model.sample(n, seed=k, codes=Codes(categorical=k))
    axes[1].plot(*samples.T, ".", color=COLORS[k], markersize=2, label=f"class {k}")
axes[1].set(title="samples by class")
axes[1].legend(markerscale=4)
code = torch.rand(3 * n, 1, generator=generator) * 2 - 1
samples = model.sample(3 * n, seed=0, codes=Codes(continuous=code))
drawn = axes[2].scatter(*samples.T, c=code[:, 0], s=3, cmap="viridis")
axes[2].set(title="samples by continuous code")
best = model.infer_codes(x).best
axes[3].scatter(*x.T, c=best.continuous[:, 0], s=3, cmap="viridis", vmin=-1, vmax=1)
axes[3].set(title="codes read off the data")
figure.colorbar(drawn, ax=axes[3], label="continuous code")
for ax in axes:
    ax.set(aspect="equal", xlabel="$x_1$")
plt.show()

# %%
# Does the class of the model agree with the arm, and the code with the place on it? And how the information grew
# during training: that about the class is at most log 3.

share = torch.stack([torch.bincount(best.categorical[arm == k, 0], minlength=3) for k in range(3)]).float()
share = share / share.sum(1, keepdim=True)
figure, axes = plt.subplots(1, 3, figsize=(11, 3), layout="constrained")
axes[0].imshow(share, cmap="Blues", vmin=0, vmax=1)
for i in range(3):
    for j in range(3):
        color = "white" if share[i, j] > 0.5 else "black"
        axes[0].text(j, i, f"{share[i, j]:.2f}", ha="center", va="center", color=color)
axes[0].set(xlabel="class of the code", ylabel="arm", xticks=range(3), yticks=range(3))
for k in range(3):
    axes[1].plot(
        place[arm == k], best.continuous[arm == k, 0], ".", color=COLORS[int(share[k].argmax())], markersize=1.5
    )
axes[1].set(xlabel="place on the arm", ylabel="continuous code")
axes[2].plot([epoch["categorical_information"] for epoch in model.history], color="black")
axes[2].axhline(math.log(3), color="gray", linestyle=":")
axes[2].set(xlabel="epoch", ylabel="information about the class (nats)", ylim=(0, 1.2))
plt.show()

# %%
# The information about the class is 1.095 of the possible 1.099 nats, and its three values are the three arms, in every
# one of the 2,048 points; which value belongs to which arm is chance. The continuous code follows the place on the arm,
# with correlations of 0.86, -0.97 and -0.89; its direction is chance as well, and differs between arms. Samples are
# thinner than the data: the noise has been left with little to do.

print(f"information about the class: {model.history[-1]['categorical_information']:.3f} of {math.log(3):.3f} nats")
print(f"agreement of class and arm: {share.amax(1).mean():.1%}")
for k in range(3):
    r = torch.corrcoef(torch.stack([place[arm == k], best.continuous[arm == k, 0]]))[0, 1]
    print(f"arm {k}: correlation of place and code {r:.3f}")
