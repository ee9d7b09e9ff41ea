r"""
What a column does, alone and with another
==========================================

Three questions to a fitted table: which columns does it need, what does one of them do, and do two of them act
together? Permutation importance, partial dependence and its map answer them, each with an epistemic band: the spread
over posterior draws, which more rows would reduce.

Look at the lines of single rows. If they are not parallel, the mean effect hides an interaction.
"""

# %%
# Bike hires, made up so that the truth is known: warm days are good, unless it is humid. Holidays have no effect, and
# the noise grows with the temperature.

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import credo

rng = np.random.default_rng(0)
N = 400
X = pd.DataFrame(
    {
        "temperature": rng.uniform(0, 35, N),
        "humidity": rng.uniform(20, 100, N),
        "wind": rng.gamma(3, 2, N),
        "day": rng.choice(["holiday", "workday"], N, p=[0.1, 0.9]),
    }
)
muggy = X["temperature"] * np.maximum(X["humidity"] - 60, 0) / 40
y = 50 + 8 * X["temperature"] - 8 * muggy - 3 * X["wind"] + rng.normal(0, 5 + X["temperature"])
model = credo.Regressor(method="ensemble", hidden=(30,), epochs=150, random_state=0).fit(X[:300], y[:300])

# %%
# Importance: by how many nats the log score of new rows falls when a column is permuted.

found = credo.explain.permutation_importance(model, X[300:], y[300:], samples=30)
print(found.to_frame().round(3).to_string())

# %%
# The effect of the temperature: the mean with its band, and twenty single days. They fan out.

effect = credo.explain.partial_dependence(model, X, "temperature", individual=20, samples=30)
joint = credo.explain.partial_dependence(model, X, ["temperature", "humidity"], samples=30)
figure, axes = plt.subplots(1, 3, figsize=(13, 3.4), layout="constrained")
credo.plots.column_effect(
    effect.grid[0],
    effect.mean,
    axes[0],
    band=(effect.lower, effect.upper),
    individual=effect.individual.mean,
    observed=X["temperature"],
    xlabel="temperature",
    ylabel="bikes",
)
credo.plots.effect_map(
    joint.grid[0], joint.grid[1], joint.mean, axes[1], xlabel="temperature", ylabel="humidity", label="bikes"
)
drivers = credo.explain.uncertainty_importance(model, X, samples=30)
credo.plots.uncertainty_shares(drivers.names, drivers.epistemic.share, drivers.aleatoric.share, axes[2])
plt.show()

# %%
# Permuting the temperature costs 17.7 nats per row, the humidity 3.1, the wind 0.27, and the day nothing. The mean
# effect of the temperature rises; single days fan out, and the map shows why: above a humidity of 60 % warmth does
# not help. The temperature also decides where the noise is large, as the table was made.
