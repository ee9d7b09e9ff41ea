"""Functions drawn from the posterior of nine Gaussian basis functions.

What the book shows. For the data and the model of Figure 3.8, after N = 1, 2, 4 and 25 points, functions drawn from
the posterior over the weights: they agree where there are data and nowhere else, and error bars do not show that the
values of one function at neighboring inputs hang together. It gives no numbers.

What is run. The same. The table has the spread of the drawn functions over [0, 1] and at the newest point, beside what
the closed form says, and the correlation of a function's values a tenth apart.

What differs. As in bishop-3-8; the data are the same as there.
"""

from __future__ import annotations

import numpy as np

from credo.experiments._sine import at_random, grid
from credo.experiments.bishop_3_8 import STAGES, model, panel
from credo.experiments.registry import Effort, Result, Row, Setting, experiment
from credo.plots.style import EPISTEMIC
from credo.seeding import derive

SHOWN = 6
DRAWS: dict[Effort, int] = {"full": 5000, "quick": 5000, "smoke": 200}


@experiment(
    title="Functions drawn from the posterior of nine Gaussian basis functions",
    reference="Bishop, Pattern Recognition and Machine Learning, 2006, Figure 3.9",
    figures=["functions"],
)
def run(setting: Setting) -> Result:
    """Draw functions at four stages of one data set."""
    from matplotlib.figure import Figure

    data = at_random(max(STAGES), np.random.default_rng(setting.seed))
    x = grid(201)
    figure = Figure(figsize=(7.2, 5.6), layout="constrained")
    panels = figure.subplots(2, 2, sharex=True, sharey=True)
    rows: list[Row] = []
    for n, ax in zip(STAGES, panels.flat, strict=True):
        learned = model().set_params(random_state=derive(setting.seed, n) % 2**32).fit(data.x[:n], data.y[:n])
        functions = learned.sample_y(x, DRAWS[setting.effort])
        exact = learned.predict_dist(x).epistemic.sqrt().mean().item()
        together = np.corrcoef(functions[90], functions[110])[0, 1]
        rows += [
            Row(f"N = {n}: std of the drawn functions, mean over [0, 1]", (float(functions.std(axis=1).mean()),)),
            Row(f"N = {n}: the same in closed form", (exact,)),
            Row(f"N = {n}: correlation of f(0.45) and f(0.55)", (float(together),)),
        ]
        for k, function in enumerate(functions[:, :SHOWN].T):
            ax.plot(x[:, 0], function, color=EPISTEMIC, linewidth=0.9, label="draws" if k == 0 else None)
        panel(ax, data.first(n))
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return Result(tuple(rows), {"functions": figure})
