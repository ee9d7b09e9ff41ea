r"""
Missing values with error bars: probabilistic PCA
=================================================

PCA finds the directions in which a table varies. Probabilistic PCA says the same as a model with a latent variable,

.. math:: z \sim \mathcal N(0, I), \qquad x \mid z \sim \mathcal N(W z + \mu,\; \sigma^2 I),

and a model can do what a projection cannot: compute with the values that are there, and say of the others where they
lie and how sure it is. EM maximizes the likelihood of the observed values alone; nothing is filled in beforehand.

Look at the images: what was removed, what comes back, and where the model is unsure.
"""

# %%
# Handwritten digits of 8×8 pixels, a table of 64 columns. Of each image 40 % of the pixels are removed at random, in
# training rows as well as in test rows.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.impute import SimpleImputer

import credo
from credo.decomposition import ProbabilisticPCA

digits = credo.datasets.load_digits()
train, test = (images.flatten(1).numpy().astype(float) for images in (digits.x_train, digits.x_test))
rng = np.random.default_rng(0)
train_seen, test_seen = train.copy(), test.copy()
train_seen[rng.random(train.shape) < 0.4] = np.nan
test_seen[rng.random(test.shape) < 0.4] = np.nan
missing = np.isnan(test_seen)

# %%
# ``method="em"`` accepts NaN. How many components? A further tenth of the observed pixels of the training rows is
# hidden and predicted: ``predict_missing`` returns the conditional mean and standard deviation of every missing value
# given the observed ones of its row, and so a density of what was hidden.

hidden = ~np.isnan(train_seen) & (rng.random(train.shape) < 0.1)
partly = np.where(hidden, np.nan, train_seen)


def log_density(k: int) -> float:
    filled = ProbabilisticPCA(k, method="em", tol=1e-2, random_state=0).fit(partly).predict_missing(partly)
    mean, std = filled.mean[hidden], filled.std[hidden]
    return float(np.mean(-0.5 * np.log(2 * np.pi * std**2) - 0.5 * ((train[hidden] - mean) / std) ** 2))


numbers = [2, 5, 10, 15, 20, 25]
density = [log_density(k) for k in numbers]
best = numbers[int(np.argmax(density))]
print({k: round(value, 3) for k, value in zip(numbers, density, strict=True)})

model = ProbabilisticPCA(best, method="em", tol=1e-3, random_state=0).fit(train_seen)
filled = model.predict_missing(test_seen)
means = SimpleImputer().fit(train_seen).transform(test_seen)

# %%
# Six test images: the original, what is left of it (removed pixels in blue), the mean of the column, the prediction,
# and its standard deviation.

show = [0, 3, 5, 9, 13, 21]
rows = {"original": test, "observed": test_seen, "column mean": means, "predicted": filled.mean, "std": filled.std}
figure, axes = plt.subplots(5, 6, figsize=(6.6, 5.6), layout="constrained")
gray = plt.get_cmap("gray_r").with_extremes(bad="#9ecae1")
for line, (name, images) in zip(axes, rows.items(), strict=True):
    for ax, i in zip(line, show, strict=True):
        image = images[i].reshape(8, 8)
        drawn = ax.imshow(image, cmap="magma" if name == "std" else gray, vmin=0, vmax=0.35 if name == "std" else 1)
        ax.set(xticks=[], yticks=[])
    line[0].set_ylabel(name)
figure.colorbar(drawn, ax=axes[4], label="std")
plt.show()

# %%
# Are the error bars right? Pixels are grouped by the standard deviation that was predicted for them. The largest
# errors should be where the model expects them, and as large as it expects.

errors, std = (filled.mean - test)[missing], filled.std[missing]
edges = np.quantile(std, np.linspace(0, 1, 11))
group = np.clip(np.searchsorted(edges, std) - 1, 0, 9)
predicted = [std[group == g].mean() for g in range(10)]
observed = [np.sqrt(np.mean(errors[group == g] ** 2)) for g in range(10)]
figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
axes[0].plot(predicted, observed, "o-", color="#0072B2")
axes[0].axline((0.1, 0.1), slope=1, color="gray", linestyle=":")
axes[0].set(xlabel="predicted standard deviation", ylabel="root mean square error")
axes[1].hist(errors / std, np.linspace(-5, 5, 61), density=True, color="#0072B2", alpha=0.6, label="error / std")
line = np.linspace(-5, 5, 200)
axes[1].plot(line, np.exp(-0.5 * line**2) / np.sqrt(2 * np.pi), "k--", label="N(0, 1)")
axes[1].set(xlabel="error in standard deviations", yticks=[])
axes[1].legend()
plt.show()

# %%
# Fifteen components predict hidden pixels best. The error of the removed pixels falls from 0.275, by the mean of the
# column, to 0.194. The error bars rank the errors, from 0.00 in the tenth of the pixels with the smallest to 0.30 in
# that with the largest; but they are too narrow where it matters, 0.22 instead of 0.30, and too wide where nothing
# happens, 0.11 instead of 0.00. That is the model's one noise for all 64 pixels: the corners of the images are always
# empty. 69.6 % of the errors are within one standard deviation, as they should be; 90.0 % within two.

within = np.abs(errors / std)
print(f"{best} components: {model.n_iter_} steps of EM, noise {np.sqrt(model.noise_variance_):.3f}")
print(f"error of removed pixels: mean of the column {np.sqrt(np.mean((means - test)[missing] ** 2)):.3f}, ", end="")
print(f"probabilistic PCA {np.sqrt(np.mean(errors**2)):.3f}, expected by the model {np.sqrt(np.mean(std**2)):.3f}")
print(f"within 1 std {np.mean(within < 1):.1%} (normal: 68.3 %), within 2 std {np.mean(within < 2):.1%} (95.4 %)")
print("predicted and observed, by tenths:", [f"{p:.2f}/{o:.2f}" for p, o in zip(predicted, observed, strict=True)])
