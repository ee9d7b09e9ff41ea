"""Permutation importance against closed forms, its standard error, groups, and what it returns."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

import credo
from credo import explain
from credo.errors import InputError
from credo.explain._permutations import influence, standard_error

from .models import SIGMA, LinearDraws, LogisticDraws, gaussian_rows

WEIGHTS = np.array([[1.0, -0.5, 0.0], [0.8, -0.7, 0.1], [1.1, -0.2, -0.1], [0.9, -0.6, 0.2]])


def linear_data(rows=40, seed=0):
    x = gaussian_rows(rows, seed=seed)
    y = x @ [1.0, -0.5, 0.0] + SIGMA * np.random.default_rng(seed + 100).normal(size=rows)
    return x, y


def closed_form(w, x, y):
    """(w_j² Var x_j + w_j Cov(e, x_j)) / σ² for every column, e = y − wᵀx, with sample covariances.

    With row i's column from row k the squared error grows by w_j²Δ² + 2 e_i w_j Δ, Δ = x_ij − x_kj. Over all pairs
    i ≠ k the mean of Δ² is 2 Var x_j, and that of e_i Δ is Cov(e, x_j); the log score falls by 1/(2σ²) of it.
    """
    e = y - x @ w
    covariance = np.array([np.cov(e, column)[0, 1] for column in x.T])
    return (w**2 * x.var(axis=0, ddof=1) + w * covariance) / SIGMA**2


def test_linear_model_has_the_closed_form():
    """All pairs of rows are used, so that there is no Monte Carlo error."""
    x, y = linear_data()
    w = WEIGHTS[0]
    found = explain.permutation_importance(LinearDraws(w[None]), x, y, repeats=len(x) - 1)
    assert found.importance == pytest.approx(closed_form(w, x, y), abs=1e-10)
    assert found.names == ("x0", "x1", "x2")
    assert found.importance[2] == found.standard_error[2] == 0.0  # a column that the model does not use


def test_every_draw_has_the_closed_form():
    x, y = linear_data()
    found = explain.permutation_importance(LinearDraws(WEIGHTS), x, y, repeats=len(x) - 1)
    assert found.draws == pytest.approx(np.stack([closed_form(w, x, y) for w in WEIGHTS]), abs=1e-10)
    lower, upper = np.quantile(found.draws, [0.025, 0.975], axis=0)
    assert found.lower == pytest.approx(lower)
    assert found.upper == pytest.approx(upper)


def test_mixture_is_scored_as_a_mixture():
    x, y = linear_data(12)
    model = LinearDraws(WEIGHTS)
    found = explain.permutation_importance(model, x, y, repeats=11)
    falls = []
    for i in range(12):
        for k in range(12):
            if i != k:
                moved = x[[i]].copy()
                moved[0, 1] = x[k, 1]
                p = [model.predict_dist(rows).log_prob(torch.as_tensor(y[[i], None])) for rows in (x[[i]], moved)]
                falls.append(float(p[0] - p[1]))
    assert found.importance[1] == pytest.approx(np.mean(falls), abs=1e-10)


def test_r2_falls_by_twice_the_explained_variance():
    x, y = linear_data()
    w = WEIGHTS[0]
    found = explain.permutation_importance(LinearDraws(w[None]), x, y, score="r2", repeats=len(x) - 1)
    assert found.importance == pytest.approx(2 * SIGMA**2 * closed_form(w, x, y) / y.var(), abs=1e-10)
    assert found.base == pytest.approx(1 - np.mean((y - x @ w) ** 2) / y.var())


def test_accuracy_counts_classes():
    """The sign of x decides; with the other row's sign both rows are wrong, so that the accuracy falls from 1 to 0."""
    model = LogisticDraws(np.array([[3.0, 0.0]]))
    x = np.array([[1.0, 0.3], [-1.0, 0.7]])
    found = explain.permutation_importance(model, x, ["yes", "no"], score="accuracy")
    assert found.base == 1.0
    assert found.importance.tolist() == [1.0, 0.0]
    assert found.draws.tolist() == [[1.0, 0.0]]


def test_column_without_effect_in_truth_is_within_its_standard_error():
    """The model uses a column that the targets do not depend on: w² Var x + w Cov(e, x) is 0 on average.

    4 standard errors.
    """
    x = gaussian_rows(400, seed=3)
    y = x[:, 0] + SIGMA * np.random.default_rng(4).normal(size=400)
    found = explain.permutation_importance(LinearDraws(np.array([[1.0, 0.2, 0.0]])), x, y)
    assert abs(found.importance[1]) < 4 * found.standard_error[1]
    assert found.importance[0] > 10 * found.standard_error[0]


def test_standard_error_is_the_spread_over_data_sets():
    """500 data sets of 60 rows, all pairs: the standard deviation of a standard deviation is 1/√1000 = 3 % of it.

    4 of these, and 1/60 for the terms that the projection leaves out.
    """
    rng = np.random.default_rng(0)
    n, w = 60, 0.7
    order = np.arange(n)
    donors = np.stack([np.roll(order, -shift) for shift in range(1, n)])
    estimates, errors = [], []
    for _ in range(500):
        x, e = rng.normal(size=(2, n))
        delta = x - x[donors]
        fall = 0.5 * (w**2 * delta**2 + 2 * e * w * delta)[None]
        estimates.append(fall.mean())
        errors.append(standard_error(influence(fall, donors))[0])
    ratio = np.std(estimates) / np.sqrt(np.mean(np.square(errors)))
    assert abs(ratio - 1) < 4 * 0.0316 + 1 / n


def test_few_repeats_give_a_standard_error_that_is_not_too_small():
    """With 2 repeats the noise of pairs is counted twice: the error may be too large, by at most √2."""
    rng = np.random.default_rng(1)
    n, donors = 60, np.stack([np.roll(np.arange(60), -shift) for shift in (1, 7)])
    estimates, errors = [], []
    for _ in range(500):
        x, e = rng.normal(size=(2, n))
        delta = x - x[donors]
        fall = 0.5 * (delta**2 + 2 * e * delta)[None]
        estimates.append(fall.mean())
        errors.append(standard_error(influence(fall, donors))[0])
    ratio = np.std(estimates) / np.sqrt(np.mean(np.square(errors)))
    assert 2**-0.5 - 4 * 0.0316 < ratio < 1 + 4 * 0.0316 + 1 / n


def test_groups_are_permuted_together():
    """Two copies of a column with weights a and b act as one column with weight a + b."""
    x, _ = linear_data()
    x[:, 1] = x[:, 0]
    y = x @ [1.0, 0.5, 0.0] + SIGMA * np.random.default_rng(5).normal(size=len(x))
    model = LinearDraws(np.array([[1.0, 0.5, 0.3]]))
    expected = closed_form(np.array([1.5, 0.3]), x[:, [0, 2]], y)
    for groups in ({"both": ["x0", "x1"]}, "correlated"):
        found = explain.permutation_importance(model, x, y, groups=groups, repeats=len(x) - 1)
        assert found.importance == pytest.approx(expected, abs=1e-10)
        assert found.correlated == ()
    assert found.names == ("x0 + x1", "x2")
    alone = explain.permutation_importance(model, x, y, repeats=len(x) - 1)
    assert alone.correlated == (("x0", "x1"),)
    assert alone.correlated_importance == pytest.approx(expected[:1], abs=1e-10)
    assert alone.correlated_error[0] == pytest.approx(found.standard_error[0])
    assert "x0, x1 are correlated" in alone.summary()


def test_importance_does_not_depend_on_other_columns_asked_for():
    x, y = linear_data()
    model = LinearDraws(WEIGHTS)
    everything = explain.permutation_importance(model, x, y)
    one = explain.permutation_importance(model, x, y, columns=["x1"])
    assert one.importance[0] == everything.importance[1]
    again = explain.permutation_importance(model, x, y)
    assert np.array_equal(everything.importance, again.importance)


def test_table_is_sorted_and_says_how_certain_the_ranking_is():
    x, y = linear_data(200)
    found = explain.permutation_importance(LinearDraws(WEIGHTS), x, y)
    frame = found.to_frame()
    assert list(frame) == ["column", "importance", "standard_error", "lower", "upper", "above_next"]
    assert frame["importance"].is_monotonic_decreasing
    first, second = frame["column"][:2]
    by_draw = dict(zip(found.names, found.draws.T, strict=True))
    assert frame["above_next"][0] == np.mean(by_draw[first] > by_draw[second])
    assert np.isnan(frame["above_next"].iloc[-1])
    assert frame.iloc[0]["column"] in found.summary()


def test_model_without_draws_has_no_band():
    x, y = linear_data()
    found = explain.permutation_importance(LinearDraws(WEIGHTS[:1]), x, y)
    assert np.isnan([found.lower, found.upper, found.above_next]).all()
    assert "no epistemic band" in found.summary()
    found.plot()


def test_rows_without_target_are_left_out_and_others_chosen():
    x, y = linear_data()
    y[:30] = np.nan
    found = explain.permutation_importance(LinearDraws(WEIGHTS), x, y)
    assert found.rows == 10
    assert explain.permutation_importance(LinearDraws(WEIGHTS), x, y, max_rows=5).rows == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"score": "r3"}, "r2"),
        ({"score": "accuracy"}, "does not suit"),
        ({"columns": ["x7"]}, "x7"),
        ({"columns": "x1"}, "list of names"),
        ({"groups": "all"}, "correlated"),
        ({"groups": {"a": ["x0"], "b": ["x0", "x1"]}}, "choose one"),
        ({"groups": {"x2": ["x0", "x1"]}}, "another name"),
        ({"repeats": 0}, "repeats"),
        ({"level": 1.0}, "level"),
        ({"max_rows": 1}, "max_rows"),
        ({"seed": -1}, "seed"),
    ],
)
def test_invalid_arguments(options, message):
    x, y = linear_data(8)
    with pytest.raises(InputError, match=message):
        explain.permutation_importance(LinearDraws(WEIGHTS), x, y, **options)


def test_invalid_models_and_rows():
    x, y = linear_data(8)
    with pytest.raises(InputError, match="predict_dist"):
        explain.permutation_importance(object(), x, y)
    with pytest.raises(InputError, match="same number of rows"):
        explain.permutation_importance(LinearDraws(WEIGHTS), x, y[:5])
    with pytest.raises(InputError, match="at least 2 rows"):
        explain.permutation_importance(LinearDraws(WEIGHTS), x[:1], y[:1])
    with pytest.raises(InputError, match="not all the same"):
        explain.permutation_importance(LinearDraws(WEIGHTS), x, np.ones(8), score="r2")


def test_targets_that_are_numbers_are_in_the_units_of_the_predictions() -> None:
    """A target written in percent is read from text; numbers, such as those a report has, need not be read."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=40)
    y = 20 + 5 * x
    written = pd.Series([f"{value:.6f} %" for value in y], name="share")
    with pytest.warns(UserWarning, match="in %"):
        model = credo.Regressor("map", epochs=1, random_state=0).fit(pd.DataFrame({"x": x}), written)
    found = [explain.permutation_importance(model, pd.DataFrame({"x": x}), given, seed=0) for given in (written, y)]
    np.testing.assert_allclose(*(one.to_frame()["importance"] for one in found), rtol=1e-4)
