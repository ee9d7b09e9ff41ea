r"""
A plane of digits: the variational auto-encoder
===============================================

A variational auto-encoder explains every image x by a few numbers z. A decoder gives p(x | z), an encoder approximates
the posterior of the code, and both are trained by the bound

.. math:: \log p(x) \ge \mathbb E_{q(z \mid x)}\left[\log p(x \mid z)\right] - \mathrm{KL}\left(q(z \mid x) \parallel
    \mathcal N(0, I)\right).

The first term wants codes from which the image can be drawn, the second wants them to look like noise. With two numbers
the whole space of codes can be shown.

Look at the second figure: where one digit becomes another.
"""

# sphinx_gallery_thumbnail_number = 2

# %%
# The handwritten digits of scikit-learn, 8×8 pixels.

import matplotlib.pyplot as plt
import torch
from matplotlib.patches import Ellipse
from torch import nn

import credo
from credo.generative import VAE

digits = credo.datasets.load_digits()


def fit(latent: int) -> VAE:
    torch.manual_seed(0)
    model = VAE("dense", latent=latent, shape=(1, 8, 8), hidden=(128,), likelihood=credo.Gaussian(0.2))
    return model.fit(digits.x_train, epochs=40, batch_size=64, lr=3e-3, seed=0)


plane = fit(2)

# %%
# The codes of test images, each at the mean of its q(z | x). The model has seen no labels; colors are for us. Ellipses
# show two standard deviations of q for some of them: how well the image determines its code.

q = plane.encode(digits.x_test)
figure, ax = plt.subplots(figsize=(6.4, 5.2), layout="constrained")
points = ax.scatter(*q.mean.T, c=digits.y_test, cmap="tab10", s=9, vmin=-0.5, vmax=9.5)
for mean, std in zip(q.mean[:30], q.stddev[:30], strict=True):
    ax.add_patch(Ellipse(mean.tolist(), *(4 * std).tolist(), fill=False, color="black", alpha=0.4))
figure.colorbar(points, ticks=range(10), label="digit")
ax.set(xlabel="$z_1$", ylabel="$z_2$", aspect="equal")
plt.show()

# %%
# The plane itself: images decoded on a grid that is evenly spaced in probability under the prior.

images = nn.functional.pad(plane.manifold(12)[:, 0], (1, 1, 1, 1))  # [144, 10, 10]
figure, ax = plt.subplots(figsize=(5, 5), layout="constrained")
ax.imshow(images.reshape(12, 12, 10, 10).permute(0, 2, 1, 3).reshape(120, 120), cmap="gray_r", vmin=0, vmax=1)
ax.set(xticks=[], yticks=[], xlabel="$z_1$", ylabel="$z_2$")
plt.show()

# %%
# How many numbers does a digit need? The bound of test images, with its two terms, for more latent variables, and the
# importance-weighted estimate of log p(x), which is closer to it. A latent variable that is not used costs nothing:
# its q is the prior. It counts as used here if its mean varies between images, with a variance above 0.05.

models = {2: plane, **{latent: fit(latent) for latent in (5, 10)}}
bound, likelihood, used = {}, {}, {}
for latent, model in models.items():
    bound[latent] = model.elbo(digits.x_test, samples=20, seed=0).mean().item()
    likelihood[latent] = model.log_likelihood(digits.x_test, samples=100, seed=0).mean().item()
    used[latent] = int((model.encode(digits.x_test).mean.var(0) > 0.05).sum())

figure, axes = plt.subplots(1, 2, figsize=(9.5, 3.2), layout="constrained", width_ratios=(1, 1.3))
axes[0].plot(list(models), list(bound.values()), "o-", label="ELBO")
axes[0].plot(list(models), list(likelihood.values()), "s--", label="log p(x), 100 draws")
axes[0].set(xlabel="latent variables", ylabel="nats per test image", xticks=list(models))
axes[0].legend()
shown = torch.cat([digits.x_test[:10], *(model.reconstruct(digits.x_test[:10]) for model in models.values())])
rows = nn.functional.pad(shown[:, 0], (1, 1, 1, 1)).reshape(4, 10, 10, 10).permute(0, 2, 1, 3).reshape(40, 100)
axes[1].imshow(rows, cmap="gray_r", vmin=0, vmax=1)
axes[1].set(xticks=[], yticks=[4.5, 14.5, 24.5, 34.5], yticklabels=["data", "2", "5", "10"])
axes[1].set(title="reconstructions")
plt.show()

# %%
# Without labels, the plane has a place for most digits: 0, 2, 4, 6 and 7 lie apart, 1, 5 and 8 share the middle. Two
# numbers are not enough: the bound rises from 6.92 nats with two latent variables to 16.12 with five, and all five are
# used. From five to ten it gains 0.63 more, and reconstructions hardly change. The bound is below log p(x) by 1.3 to
# 1.6 nats, the price of a Gaussian q(z | x).

for latent in models:
    print(
        f"{latent} latent variables: ELBO {bound[latent]:.2f}, log p(x) {likelihood[latent]:.2f}, in use {used[latent]}"
    )
