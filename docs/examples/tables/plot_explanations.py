r"""
Explanations with error bars
============================

Which columns does a model use, and what do they do to the prediction? A network that fits the training rows answers; so
does another one that fits them as well, and differently. :mod:`credo.explain` computes every explanation under each
posterior draw, so that it comes with an epistemic band: where that is wide, the data have not decided.

Look at the effects at the edges of the data, and at what two columns that hold the same are worth.
"""

# %%
# A made-up table of apartments, so that the truth is known: the price depends on the area (with a bend), on the floor,
# and on the distance to the center. ``rooms`` follows the area and has no effect of its own; ``color`` has none at all.

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import credo

rng = np.random.default_rng(0)
N = 500
area = rng.gamma(9.0, 8.0, N)
rooms = np.clip(np.round(area / 25 + rng.normal(0, 0.35, N)), 1, None)
X = pd.DataFrame(
    {
        "area": area,
        "rooms": rooms,
        "floor": rng.integers(0, 12, N),
        "distance": rng.exponential(4.0, N),
        "color": rng.choice(["white", "gray", "blue"], N),
    }
)


def area_effect(area: np.ndarray) -> np.ndarray:
    return 3.0 * np.minimum(area, 90) + 1.2 * np.maximum(area - 90, 0)


y = 60 + area_effect(area) + 4 * X["floor"] - 8 * X["distance"] + rng.normal(0, 15 + 2 * X["distance"], N)
X_train, X_test, y_train, y_test = X[:300], X[300:], y[:300], y[300:]

model = credo.Regressor(hidden=(30,), epochs=667, random_state=0).fit(X_train, y_train)

# %%
# Importance: by how much the score of held-out rows falls when the values of a column are permuted. ``rooms`` and
# ``area`` are correlated; the summary says what they are worth together.

explanation = credo.explain.explain_model(model, X_test, y_test, effects=3, score="r2", samples=30, repeats=3)
print(explanation.summary())

# %%

figure, axes = plt.subplots(1, 2, figsize=(10.5, 3.2), layout="constrained")
explanation.importance.plot(axes[0])
explanation.uncertainty.plot(axes[1])
plt.show()

# %%
# Effects: the mean prediction as one column is moved, with the band of 95 % of the posterior draws. The true effect of
# the area is drawn in black, up to a constant.

figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
effects = {}
for ax, column in zip(axes, ("area", "distance", "rooms"), strict=True):
    effects[column] = credo.explain.accumulated_local_effects(model, X_test, column, samples=30)
    effects[column].plot(ax)
grid = np.asarray(effects["area"].grid[0], float)
truth = area_effect(grid)
axes[0].plot(grid, truth + np.mean(effects["area"].mean - truth), "k--", linewidth=1)
plt.show()

# %%
# R² falls by 1.14 without the area, by 0.50 without the distance and by 0.07 without the floor; ``color`` and ``rooms``
# are worth nothing; permuted together, area and rooms are worth 1.11, no more than the area alone. The effect of the
# area follows the true bend at 90 (dashed). Its band is 2 wide in the middle of the data and 30 at the ends. That of
# ``rooms`` lies between -4 and 1, with a band of up to 28 around it: the model does not use the column, and the data
# would allow an effect of either sign.
#
# One column drives the uncertainty: the distance, with nearly all of the variation of both parts. The aleatoric part
# grows with it because the table was made with more noise far out; the epistemic part because few apartments lie there.

for column, effect in effects.items():
    width = effect.upper - effect.lower
    low, high = effect.mean.min(), effect.mean.max()
    print(f"{column}: effect from {low:.0f} to {high:.0f}, width of the band {width.min():.0f} to {width.max():.0f}")
