"""Partial dependence, individual effects and accumulated local effects against closed forms."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn import inspection
from torch import nn

import credo
from credo import explain
from credo.errors import InputError

from .models import LinearDraws, LogisticDraws, gaussian_rows

DRAWS = np.array([[1.0, 2.0, 0.3], [1.0, 2.5, 0.1], [1.5, 1.2, -0.4], [0.7, 1.9, 0.0]])
X = gaussian_rows(30)
GRID = [-1.0, 0.0, 0.5, 3.0]


def test_linear_model_gives_lines_with_the_posterior_of_the_slope():
    """PD_s(v) = w_sj v + Σ_{k≠j} w_sk x̄_k; centered w_sj (v − x̄_j)."""
    mean = X.mean(axis=0)
    found = explain.partial_dependence(LinearDraws(DRAWS), X, "x1", grid=GRID)
    rest = DRAWS @ mean - DRAWS[:, 1] * mean[1]
    assert found.draws == pytest.approx(DRAWS[:, [1]] * GRID + rest[:, None])
    assert found.mean == pytest.approx(found.draws.mean(axis=0))
    centered = explain.partial_dependence(LinearDraws(DRAWS), X, "x1", grid=GRID, centered=True)
    assert centered.draws == pytest.approx(DRAWS[:, [1]] * (GRID - mean[1]))
    assert centered.draws.std(axis=0) == pytest.approx(DRAWS[:, 1].std() * np.abs(GRID - mean[1]))
    lower, upper = np.quantile(centered.draws, [0.025, 0.975], axis=0)
    assert centered.lower == pytest.approx(lower)
    assert centered.upper == pytest.approx(upper)


def test_network_with_a_known_posterior():
    """Bayes by Backprop of a linear layer: the centered effect has standard deviation s_j |v − x̄_j|.

    From 2,000 draws, whose standard deviation has a relative standard error of 1/√4000 = 1.6 %; 4 of them.
    """
    net = nn.Linear(3, 1)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[1.0, -2.0, 0.5]]))
    model = credo.BayesByBackprop(net, likelihood=credo.Gaussian(noise=0.5), initial_scale=0.3)
    found = explain.partial_dependence(model, torch.tensor(X), "x2", grid=GRID, centered=True, samples=2000)
    distance = np.array(GRID) - X[:, 2].mean()
    spread = np.abs(distance) * 0.3
    assert found.draws.shape == (2000, 4)
    assert found.draws.std(axis=0) == pytest.approx(spread, rel=4 / 4000**0.5)
    assert found.mean == pytest.approx(0.5 * distance, abs=4 * spread.max() / 2000**0.5)
    slopes = found.draws / distance  # of one line per draw, up to float32
    assert slopes == pytest.approx(np.repeat(slopes[:, :1], 4, axis=1), abs=1e-4)


def test_individual_effects_average_to_the_partial_dependence():
    model = LogisticDraws(DRAWS)
    for centered in (False, True):
        found = explain.partial_dependence(model, X, "x1", individual=range(30), centered=centered)
        assert found.individual is not None
        assert found.individual.mean.shape == (20, 30, 2)
        assert found.individual.mean.mean(axis=1) == pytest.approx(found.mean)


def test_individual_effect_is_the_prediction_of_the_row():
    model = LogisticDraws(DRAWS)
    frame = pd.DataFrame(X, columns=["x0", "x1", "x2"], index=[f"row {i}" for i in range(30)])
    found = explain.partial_dependence(model, frame, "x1", grid=[X[7, 1], 9.0], individual=[7], max_rows=5)
    assert found.individual is not None
    p = model.predict_dist(X[[7]])
    assert found.individual.mean[0, 0] == pytest.approx(p.mean[0].numpy())
    assert found.individual.lower[0, 0] == pytest.approx(np.quantile(p.draws[:, 0].numpy(), 0.025, axis=0))
    table = found.individual_to_frame()
    assert list(table) == ["x1", "row", "class", "mean", "lower", "upper"]
    assert set(table["row"]) == {"row 7"}
    centered = explain.partial_dependence(model, X, "x1", grid=[X[7, 1]], individual=[7], centered=True)
    assert centered.individual is not None
    assert centered.individual.mean == pytest.approx(0.0)


def test_two_columns_of_a_linear_model_add():
    found = explain.partial_dependence(LinearDraws(DRAWS), X, ("x0", "x2"), grid=([0.0, 1.0], [0.0, 1.0, 2.0]))
    assert found.mean.shape == (2, 3)
    w = DRAWS.mean(axis=0)
    expected = w[0] * np.array([[0.0], [1.0]]) + w[2] * np.array([0.0, 1.0, 2.0]) + w[1] * X[:, 1].mean()
    assert found.mean == pytest.approx(expected)
    assert list(found.to_frame())[:3] == ["x0", "x2", "mean"]
    assert len(found.to_frame()) == 6
    found.plot()
    assert explain.partial_dependence(LinearDraws(DRAWS), X, ("x0", "x2")).mean.shape == (10, 10)


def test_uncertainty_along_the_column():
    found = explain.partial_dependence(LinearDraws(DRAWS), X, "x1", grid=GRID)
    for v, epistemic in zip(GRID, found.epistemic, strict=True):
        moved = X.copy()
        moved[:, 1] = v
        p = LinearDraws(DRAWS).predict_dist(moved)
        assert epistemic == pytest.approx(float(p.epistemic.sqrt().mean()))
    assert found.aleatoric == pytest.approx([0.5] * 4)


def test_class_probabilities_sum_to_one():
    found = explain.partial_dependence(LogisticDraws(DRAWS), X, "x1", grid=GRID)
    assert found.draws.shape == (4, 4, 2)
    assert found.draws.sum(axis=-1) == pytest.approx(1.0)
    frame = found.to_frame()
    assert frame["class"].tolist() == ["no", "yes"] * 4
    assert frame["mean"].to_numpy() == pytest.approx(found.mean.ravel())


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    n = 80
    frame = pd.DataFrame(
        {
            "size": rng.normal(50.0, 10.0, n),
            "stock": rng.integers(0, 4, n).astype(str),
            "color": rng.choice(["red", "green", "blue"], n),
            "day": pd.date_range("2024-01-01", periods=n).strftime("%Y-%m-%d"),
            "gaps": np.where(rng.random(n) < 0.3, np.nan, rng.normal(size=n)),
            "same": 1.0,
        }
    )
    return frame, frame["size"] + 5.0 * (frame["color"] == "red") + rng.normal(size=n)


@pytest.fixture(scope="module")
def regressor(table):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return credo.Regressor(epochs=30, hidden=(8,), samples=20, random_state=0).fit(*table)


def test_grids_of_every_kind_of_column(table, regressor):
    frame, _ = table
    effects = {name: explain.partial_dependence(regressor, frame, name) for name in frame if name != "same"}
    assert [effects[name].kinds[0] for name in effects] == ["number", "number", "category", "date", "number"]
    low, high = np.quantile(frame["size"], [0.05, 0.95])
    assert effects["size"].grid[0] == pytest.approx(np.linspace(low, high, 20))
    assert effects["stock"].grid[0].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert effects["color"].grid[0].tolist() == frame["color"].value_counts().index.tolist()
    assert effects["day"].grid[0].dtype.kind == "M"
    assert not np.isnan(effects["gaps"].grid[0]).any()
    for effect in effects.values():
        assert effect.draws.shape == (20, len(effect.grid[0]))
        assert not effect.outside.any()
        effect.plot()


def test_effect_of_a_category_is_the_mean_prediction_with_it(table, regressor):
    frame, _ = table
    found = explain.partial_dependence(regressor, frame, "color", grid=["red", "blue"])
    for label, mean in zip(["red", "blue"], found.mean, strict=True):
        assert mean == pytest.approx(regressor.predict(frame.assign(color=label)).mean())


def test_grid_points_outside_the_training_range_are_flagged(table, regressor):
    frame, _ = table
    with pytest.warns(UserWarning, match="1 of 2 grid points of 'size' lies outside the training range"):
        found = explain.partial_dependence(regressor, frame, "size", grid=[50.0, 500.0])
    assert found.outside.tolist() == [False, True]
    assert found.to_frame()["outside"].tolist() == [False, True]
    assert "extrapolations" in found.summary()
    found.plot()


def test_unused_column_is_refused(table, regressor):
    with pytest.raises(InputError, match="left out by the model"):
        explain.partial_dependence(regressor, table[0], "same")


def test_scikit_learn_agrees(table, regressor):
    """scikit-learn computes the same mean effect, without a band."""
    frame, y = table
    theirs = inspection.partial_dependence(regressor, frame, ["size"], kind="both", grid_resolution=5)
    ours = explain.partial_dependence(regressor, frame, "size", grid=theirs["grid_values"][0], individual=range(80))
    assert ours.mean == pytest.approx(theirs["average"][0])
    assert ours.individual is not None
    assert pytest.approx(theirs["individual"][0]) == ours.individual.mean.T
    importance = inspection.permutation_importance(regressor, frame, y, n_repeats=10, random_state=0)
    mine = explain.permutation_importance(regressor, frame, y, score="r2", repeats=10)
    errors = 4 * np.sqrt(importance.importances_std**2 / 10 + np.square(_errors(mine, frame)))
    assert np.abs(importance.importances_mean - _values(mine, frame)).max() <= errors.max()


def _values(importance, frame):
    by_name = dict(zip(importance.names, importance.importance, strict=True))
    return np.array([by_name.get(name, 0.0) for name in frame])


def _errors(importance, frame):
    by_name = dict(zip(importance.names, importance.standard_error, strict=True))
    return np.array([by_name.get(name, 0.0) for name in frame])


def test_scikit_learn_accepts_classifiers(table):
    frame, y = table
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        model = credo.Classifier(epochs=5, hidden=(4,), samples=5, random_state=0).fit(frame, y > y.median())
    theirs = inspection.partial_dependence(model, frame, ["size"], grid_resolution=4)
    ours = explain.partial_dependence(model, frame, "size", grid=theirs["grid_values"][0])
    assert ours.mean[:, 1] == pytest.approx(theirs["average"][0])
    assert inspection.permutation_importance(model, frame, y > y.median(), n_repeats=1).importances_mean.shape == (6,)


def test_accumulated_effects_of_a_linear_model_are_the_centered_line():
    """ALE_s(z) = w_sj (z − x̄_j), exactly, for any number of bins."""
    for bins in (3, 20):
        found = explain.accumulated_local_effects(LinearDraws(DRAWS), X, "x1", bins=bins)
        assert found.draws == pytest.approx(DRAWS[:, [1]] * (found.grid[0] - X[:, 1].mean()))
        assert found.centered
        assert found.epistemic is None
    assert "Accumulated local effects" in found.summary()
    found.plot()


def test_accumulated_effects_of_classes_and_dates(table, regressor):
    found = explain.accumulated_local_effects(LogisticDraws(DRAWS), X, "x1")
    assert found.draws.sum(axis=-1) == pytest.approx(0.0, abs=1e-12)
    frame, _ = table
    dates = explain.accumulated_local_effects(regressor, frame, "day", bins=4)
    assert dates.grid[0].dtype.kind == "M"
    with pytest.raises(InputError, match="no order"):
        explain.accumulated_local_effects(regressor, frame, "color")
    with pytest.raises(InputError, match="fewer than two"):
        explain.accumulated_local_effects(LinearDraws(DRAWS), np.ones((5, 3)), "x1")


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ("x9", {}, "x9"),
        (("x0", "x0"), {}, "two different"),
        (("x0", "x1", "x2"), {}, "two different"),
        ("x0", {"grid": ["a"]}, "kind 'number'"),
        ("x0", {"grid": []}, "sequence of values"),
        ("x0", {"grid": [np.nan]}, "missing"),
        (("x0", "x1"), {"grid": [[0.0]]}, "each of the two"),
        ("x0", {"individual": [30]}, "positions"),
        ("x0", {"individual": -1}, "individual"),
        ("x0", {"centered": 1}, "centered"),
        ("x0", {"level": 0.0}, "level"),
    ],
)
def test_invalid_arguments(columns, options, message):
    with pytest.raises(InputError, match=message):
        explain.partial_dependence(LinearDraws(DRAWS), X, columns, **options)


def test_effects_of_single_rows_must_be_asked_for():
    found = explain.partial_dependence(LinearDraws(DRAWS), X, "x0", grid=[0.0, 1.0])
    with pytest.raises(InputError, match="individual=10"):
        found.individual_to_frame()
    with pytest.raises(InputError, match="label"):
        explain.partial_dependence(LogisticDraws(DRAWS), X, "x0").plot(label="maybe")


@pytest.mark.parametrize("write", [lambda v: f"{v:.2f} %", lambda v: f"{v:.2f}".replace(".", ",")])
def test_numbers_that_are_written_as_text_have_the_effect_of_plain_numbers(write):
    """A column in percent, or with decimal commas, is the same column to the network."""
    rng = np.random.default_rng(0)
    plain = pd.DataFrame({"share": rng.uniform(0, 100, 60).round(2), "other": rng.normal(size=60)})
    texts = plain.assign(share=plain["share"].map(write))
    y = plain["share"] / 10 + plain["other"]
    curves = []
    for table in (plain, texts):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            model = credo.Regressor("map", epochs=3, hidden=(8,), random_state=0).fit(table, y)
        curves.append(explain.partial_dependence(model, table, "share").mean)
    np.testing.assert_allclose(curves[1], curves[0], rtol=1e-9)
