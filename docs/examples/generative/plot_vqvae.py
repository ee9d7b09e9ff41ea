r"""
Images as four words: the VQ-VAE
================================

The codes of a VAE are numbers. Those of a VQ-VAE are words: each vector that the encoder outputs is replaced by the
nearest of K vectors of a codebook,

.. math:: k = \arg\min_k \lVert f(x) - e_k \rVert, \qquad \hat x = g(e_k),

so that an image becomes a few integers. Here a digit of 8×8 pixels becomes four words out of 32: 20 bits at most.

Look at the words themselves in the second figure, and at how the error falls with the size of the codebook.
"""

# %%
# The encoder outputs four vectors of eight numbers, each of which is replaced by a word; the decoder takes the four
# vectors of the words.

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn

import credo
from credo.generative import VQVAE

digits = credo.datasets.load_digits()
test = digits.x_test


def fit(codes: int) -> VQVAE:
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32), nn.Unflatten(1, (8, 4)))
    decoder = nn.Sequential(nn.Flatten(), nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 64), nn.Unflatten(1, (1, 8, 8)))
    model = VQVAE(encoder, decoder, latent=8, codes=codes, likelihood=credo.Gaussian(noise=0.2))
    return model.fit(digits.x_train, epochs=30, batch_size=64, lr=3e-3, seed=0)


models = {codes: fit(codes) for codes in (2, 8, 32)}
model = models[32]

# %%
# Test images, their words, and what the decoder makes of the words alone.

words = model.encode(test)  # [450, 4]
figure, axes = plt.subplots(3, 8, figsize=(9.5, 3.8), layout="constrained")
for i, column in enumerate(axes.T):
    column[0].imshow(test[i, 0], cmap="gray_r", vmin=0, vmax=1)
    column[1].imshow(words[i].reshape(2, 2), cmap="tab20", vmin=0, vmax=31)
    for (row, col), word in np.ndenumerate(words[i].reshape(2, 2).numpy()):
        column[1].text(col, row, str(word), ha="center", va="center")
    column[2].imshow(model.decode(words[i : i + 1])[0, 0], cmap="gray_r", vmin=0, vmax=1)
    for ax in column:
        ax.set(xticks=[], yticks=[])
for ax, name in zip(axes[:, 0], ("image", "words", "decoded"), strict=True):
    ax.set_ylabel(name)
plt.show()

# %%
# What does a word mean? Here each of the 32 words takes the place of the first word of one image, with the other three
# as they are.

variants = words[5:6].repeat(32, 1)
variants[:, 0] = torch.arange(32)
decoded = nn.functional.pad(model.decode(variants)[:, 0], (1, 1, 1, 1))
decoded = decoded.reshape(2, 16, 10, 10).permute(0, 2, 1, 3).reshape(20, 160)
figure, ax = plt.subplots(figsize=(9.5, 1.5), layout="constrained")
ax.imshow(decoded, cmap="gray_r", vmin=0, vmax=1)
ax.set(xticks=[], yticks=[])
plt.show()

# %%
# A language of such words, with one frequency for each word and position, is too simple: the four words of a digit
# depend on each other, and samples from it are often not digits. The number of bits per image is the entropy of the
# words under that language.

figure, axes = plt.subplots(1, 2, figsize=(9, 2.9), layout="constrained")
error, perplexity, bits = {}, {}, {}
for codes, fitted in models.items():
    error[codes] = (fitted.reconstruct(test) - test).square().mean().sqrt().item()
    perplexity[codes] = fitted.perplexity(test)
    bits[codes] = -(fitted.prior * fitted.prior.log2()).sum(-1).sum().item()
axes[0].plot(list(bits.values()), list(error.values()), "o-")
for codes in models:
    axes[0].annotate(f"K = {codes}", (bits[codes], error[codes]), xytext=(5, 5), textcoords="offset points")
axes[0].set(xlabel="bits per image", ylabel="root mean square error", ylim=(0, None), xlim=(0, 24))
samples = nn.functional.pad(model.sample(20, seed=0)[:, 0], (1, 1, 1, 1))
samples = samples.reshape(2, 10, 10, 10).permute(0, 2, 1, 3).reshape(20, 100)
axes[1].imshow(samples, cmap="gray_r", vmin=0, vmax=1)
axes[1].set(xticks=[], yticks=[], title="samples with independent words")
plt.show()

# %%
# With 32 words nearly all are in use (30.6 in even use), an image takes 14.2 bits, and the decoder draws it from them
# with an error of 0.165. Eight words take 9.3 bits for an error of 0.178; two words, 3.0 bits and 0.232. To replace the
# first word of an image changes a few strokes and leaves the figure: a word is not a letter. Of the samples, whose
# words are drawn one by one, some are digits and some are none: how words go together is what a language model of them
# would have to learn.

for codes in models:
    used = f"words in even use {perplexity[codes]:.1f}"
    print(f"K = {codes}: error {error[codes]:.3f}, {used}, {bits[codes]:.1f} bits per image")
