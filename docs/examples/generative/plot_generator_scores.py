r"""
How good are samples? Scores of generative models
=================================================

A generator without a likelihood is judged by its samples. No single number does: some reward copies, some reward blur,
some miss that half of the classes never appear. This example scores four sets of 8×8 digits, of which only one is good:
fresh real digits, blurred ones, copies of ten training images, and digits of two classes only.

Look at which score is fooled by which set.
"""

# %%
# The four sets, 150 images each, and what they are compared with: other real digits.

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.distributions import Categorical
from torch.nn.functional import avg_pool2d

import credo
from credo.generative import evaluation
from credo.information import jensen_shannon

torch.manual_seed(0)
digits = credo.datasets.load_digits(test_fraction=0.5)
real, reference = digits.x_train[:150], digits.x_test[:400]
few = real[:10].repeat(15, 1, 1, 1)
sets = {
    "real": real,
    "blurred": avg_pool2d(real, 3, stride=1, padding=1),
    "ten copies": few + 0.01 * torch.randn(few.shape),
    "two classes": digits.x_train[torch.isin(digits.y_train, torch.tensor([0, 1]))][:150],
}
shown = credo.plots.image_grid(torch.cat([images[:10] for images in sets.values()]), columns=10, gap=1)

# %%
# A small classifier, for the classes of samples and for features of them.

torch.manual_seed(0)
body = nn.Sequential(nn.Flatten(), nn.Linear(64, 50), nn.ReLU())
classifier = credo.MAP(nn.Sequential(body, nn.Linear(50, 10)), credo.Categorical())
classifier.fit((digits.x_train, digits.y_train), epochs=40, batch_size=128, lr=1e-2, seed=0)
with torch.no_grad():
    reference_features = body(reference)
    features = {name: body(images) for name, images in sets.items()}

# %%
# Fréchet distance of features (lower is better), log likelihood of real digits under a Parzen window (higher), the
# distance of a sample to its nearest neighbor (that of real digits is right), and the balance of classes.

expected = torch.full((10,), 0.1)
rows = {}
for name, images in sets.items():
    parzen = evaluation.parzen_log_likelihood(images, reference[:200], validation=reference[200:])
    classes = evaluation.mode_coverage(images, classifier)
    balance = float(jensen_shannon(Categorical(classes.counts / classes.counts.sum()), Categorical(expected)))
    rows[name] = {
        "Fréchet distance": evaluation.frechet_distance(features[name], reference_features),
        "Parzen log likelihood": parzen.mean,
        "nearest neighbor": evaluation.nearest_distance(images),
        "JSD of classes": balance,
    }
    print(f"{name}: " + ", ".join(f"{key} {value:.3g}" for key, value in rows[name].items()))

# %%

figure, axes = plt.subplots(1, 4, figsize=(13, 2.8), layout="constrained")
for ax, key in zip(axes, rows["real"], strict=True):
    ax.bar(list(rows), [row[key] for row in rows.values()], color=["#009E73", "#56B4E9", "#E69F00", "#D55E00"])
    ax.set(title=key)
    ax.tick_params(axis="x", labelrotation=20)
plt.show()

# %%
# The Fréchet distance separates the real digits from the rest, 0.4 to more than 9, but takes ten copies for better
# than blurred digits of all classes. The Parzen window prefers the blurred ones. Copies are found by the distance to
# the nearest neighbor, 0.1 in place of 1.4; that two classes are all there is, only by the balance of classes. Use
# several.
