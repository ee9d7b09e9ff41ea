"""Figures of explanations: what they draw, and shapes that do not match."""

from __future__ import annotations

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest

from credo import plots
from credo.errors import InputError

NAMES = ["age", "a name that is much longer than its axis", "price in $"]
DATES = np.array(["2024-01-01", "2024-02-01", "2024-03-01"], dtype="datetime64[ns]")


@pytest.fixture(autouse=True)
def agg():
    mpl.use("Agg")
    yield
    plt.close("all")


def labels(ax):
    return ax.get_legend_handles_labels()[1]


def test_importance_has_a_dot_and_a_bar_per_column():
    ax = plots.importance(NAMES, [3.0, 2.0, 1.0], error=[0.1, 0.2, 0.3], band=([2.0, 1.0, 0.0], [4.0, 3.0, 2.0]))
    assert [bar.get_width() for bar in ax.patches] == [2.0, 2.0, 2.0]
    assert ax.yaxis_inverted()
    assert [label.get_text() for label in ax.get_yticklabels()] == [
        "age",
        "a name that is much longer th…",
        r"price in \$",
    ]
    assert sorted(labels(ax)) == ["prediction ± 2 SE", "single draws, 95%"]
    ax.figure.canvas.draw()
    assert labels(plots.importance(["a"], [1.0])) == ["prediction"]


def test_shares_of_both_parts():
    ax = plots.uncertainty_shares(NAMES, [0.5, 0.2, 0.1], [0.1, 0.2, 0.3], epistemic_error=[0.1, 0.1, 0.1])
    assert len(ax.patches) == 6
    assert labels(ax) == ["epistemic", "aleatoric"]
    assert ax.get_xlim()[0] == 0.0


@pytest.mark.parametrize("grid", [[1.0, 2.0, 3.0], DATES, np.array(["u", "v", "w"], dtype=object)])
def test_effect_over_numbers_dates_and_categories(grid):
    rows = np.arange(6.0).reshape(3, 2)
    ax = plots.column_effect(
        grid, [1.0, 2.0, 3.0], band=([0.0, 1.0, 2.0], [2.0, 3.0, 4.0]), individual=rows, xlabel="x$", ylabel="y"
    )
    assert labels(ax) == ["95% of the draws", "mean"]
    assert ax.get_xlabel() == r"x\$"
    ax.figure.canvas.draw()


def test_effect_outside_the_range_is_dotted_and_without_draws_has_no_band():
    nothing = np.full(3, np.nan)
    ax = plots.column_effect([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], band=(nothing, nothing), outside=[False, False, True])
    assert labels(ax) == ["outside the training range", "mean"]
    assert not ax.collections


def test_ticks_of_a_short_grid_are_its_values():
    ax = plots.column_effect([0.0, 1.0], [2.0, 3.0])
    assert [label.get_text() for label in ax.get_xticklabels()] == ["0", "1"]


def test_several_effects_on_the_same_axes():
    ax = plots.column_effect([1.0, 2.0], [0.2, 0.3], name="no", observed=[1.0, 1.5, 2.0])
    plots.column_effect([1.0, 2.0], [0.8, 0.7], ax, name="yes", color=1)
    assert labels(ax) == ["no", "yes"]


def test_map_of_two_columns():
    values = np.arange(6.0).reshape(2, 3)
    ax = plots.effect_map(["u", "v"], [1.0, 2.0, 3.0], values, outside=values > 4, xlabel="a", ylabel="b")
    assert [label.get_text() for label in ax.get_xticklabels()] == ["u", "v"]
    assert np.array_equal(np.asarray(ax.collections[0].get_array()).reshape(3, 2), values.T)
    assert plots.effect_map([1.0, 2.0, 3.0], ["u", "v"], values.T).get_yticklabels()[0].get_text() == "u"


@pytest.mark.parametrize(
    "draw",
    [
        lambda: plots.importance([], []),
        lambda: plots.importance(["a"], [1.0, 2.0]),
        lambda: plots.importance(["a"], [1.0], band=([0.0], [1.0, 2.0])),
        lambda: plots.uncertainty_shares(["a"], [1.0], [1.0, 2.0]),
        lambda: plots.column_effect([1.0, 2.0], [1.0]),
        lambda: plots.column_effect([1.0, 2.0], [1.0, 2.0], individual=[[1.0]]),
        lambda: plots.column_effect([1.0, 2.0], [1.0, 2.0], outside=[True]),
        lambda: plots.column_effect([1.0, 2.0], [1.0, 2.0], color=-1),
        lambda: plots.effect_map([1.0, 2.0], [1.0], [[1.0, 2.0]]),
    ],
)
def test_shapes_that_do_not_match(draw):
    with pytest.raises(InputError):
        draw()
