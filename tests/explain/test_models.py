"""Every kind of model can be explained, with the same draws for all rows, and all results agree with each other."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import credo
from credo import explain
from credo.errors import InputError
from credo.explain._rows import ModelRows
from credo.gaussian_process import GaussianProcessRegressor
from credo.linear import BayesianLinearRegression, BayesianLogisticRegression

from .models import LinearDraws, gaussian_rows

OPTIONS = {"epochs": 3, "hidden": (6,), "samples": 6, "random_state": 0}


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=50), "b": rng.normal(size=50), "word": rng.choice(["u", "v"], 50)})
    return frame, 2 * frame["a"] + (frame["word"] == "u")


def fitted(model, frame, y):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return model.fit(frame, y)


@pytest.mark.parametrize("method", ["bbb", "mc_dropout", "ensemble", "map"])
def test_draws_of_every_method_are_functions(table, method):
    """The same row among others, in another order and in another call has the same value under every draw.

    Up to the rounding of float64, because sums of products are ordered by the number of rows.
    """
    frame, y = table
    model = fitted(credo.Regressor(method, **OPTIONS), frame, y)
    rows = ModelRows(model, frame, samples=None, max_rows=None, seed=0)
    one, all_reversed = rows.predict([frame[7:8], frame[::-1]])
    torch.testing.assert_close(one.draws[:, 0], rows.prediction.draws[:, 7], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(all_reversed.draws.flip(1), rows.prediction.draws, rtol=1e-12, atol=1e-12)
    found = explain.explain_model(model, frame, y, effects=1)
    assert found.importance is not None
    assert np.isnan(found.importance.lower).all() == (method == "map")
    assert len(found.effects[0].draws) == model.predict_dist(frame).n_draws


def test_batches_do_not_change_the_predictions(table, monkeypatch):
    frame, y = table
    model = fitted(credo.Regressor(**OPTIONS), frame, y)
    together = explain.permutation_importance(model, frame, y)
    monkeypatch.setattr("credo.explain._rows._BATCH_ROWS", 1)
    assert explain.permutation_importance(model, frame, y).importance == pytest.approx(together.importance, abs=1e-12)


def test_all_at_once_is_the_same_as_one_by_one(table):
    frame, y = table
    model = fitted(credo.Classifier(**OPTIONS), frame, y > 1)
    found = explain.explain_model(model, frame, y > 1, columns=["word"], individual=3)
    assert found.importance is not None
    alone = explain.permutation_importance(model, frame, y > 1)
    assert np.array_equal(found.importance.importance, alone.importance)
    shares = explain.uncertainty_importance(model, frame)
    assert np.array_equal(found.uncertainty.epistemic.share, shares.epistemic.share)
    effect = explain.partial_dependence(model, frame, "word")
    assert np.array_equal(found.effects[0].draws, effect.draws)
    assert "Permutation importance" in found.summary()
    assert len(found.plot_effects().axes) == 1
    without = explain.explain_model(model, frame, effects=3)
    assert without.importance is None
    assert [effect.columns[0] for effect in without.effects] == [
        without.uncertainty.names[j] for j in without.uncertainty.order
    ]
    assert len(without.plot_effects().axes) == 4


def test_number_of_draws_can_be_chosen(table):
    frame, y = table
    model = fitted(credo.Regressor(**OPTIONS), frame, y)
    found = explain.permutation_importance(model, frame, y, samples=3)
    assert len(found.draws) == 3
    assert model.samples == 6


def test_estimator_without_column_names_takes_arrays_and_frames(table):
    frame, y = table
    x = frame[["a", "b"]].to_numpy()
    model = fitted(credo.Regressor(**OPTIONS), x, y.to_numpy())
    of_array = explain.permutation_importance(model, x, y.to_numpy())
    of_frame = explain.permutation_importance(model, pd.DataFrame(x, columns=["p", "q"]), y)
    assert of_array.names == of_frame.names == ("x0", "x1")
    assert np.array_equal(of_array.importance, of_frame.importance)


def test_warnings_are_given_once(table):
    frame, y = table
    model = fitted(credo.Regressor(**OPTIONS), frame, y)
    strange = frame.assign(word="never seen")
    with pytest.warns(UserWarning, match="never seen") as caught:
        explain.uncertainty_importance(model, strange)
    assert len(caught) <= 2  # for the rows as they are, and for all permutations


def test_calibrated_model_is_explained_by_its_draws(table):
    frame, y = (pd.concat([part] * 3, ignore_index=True) for part in table)
    for calibrate in ("quantile", "conformal", "variance"):
        model = fitted(credo.Regressor(calibrate=calibrate, calibration_fraction=0.45, **OPTIONS), frame, y)
        found = explain.partial_dependence(model, frame, "a")
        assert np.isfinite(found.draws).all()
        assert np.isfinite(explain.permutation_importance(model, frame, y).importance).all()


def test_networks_on_arrays():
    x = gaussian_rows(30).astype(np.float32)
    y = torch.tensor(x[:, :1])
    model = credo.BayesByBackprop(nn.Linear(3, 1), likelihood=credo.Gaussian(noise=0.5))
    found = explain.explain_model(model, x, y, samples=5)
    assert found.importance is not None
    assert found.importance.draws.shape == (5, 3)
    classes = credo.MAP(nn.Linear(3, 4), likelihood=credo.Categorical())
    effect = explain.partial_dependence(classes, x, "x1")
    assert effect.classes == ("0", "1", "2", "3")
    assert effect.mean.sum(axis=-1) == pytest.approx(1.0)
    two = credo.Bernoulli()
    binary = explain.partial_dependence(credo.BayesByBackprop(nn.Linear(3, 1), likelihood=two), x, "x1", samples=4)
    assert binary.draws.shape == (4, 20, 2)
    with pytest.raises(InputError, match="one target per row"):
        explain.partial_dependence(credo.MAP(nn.Linear(3, 2), likelihood=credo.Gaussian(noise=1.0)), x, "x1")


def test_classical_estimators():
    """Posteriors in closed form have no draws, and so no band; the mean effect of a linear model is its weight."""
    x = gaussian_rows(40)
    y = x @ [1.0, -1.0, 0.0] + 0.1 * np.random.default_rng(5).normal(size=40)  # the evidence needs noise
    linear = BayesianLinearRegression().fit(x, y)
    effect = explain.partial_dependence(linear, x, "x0", grid=[0.0, 1.0])
    assert effect.mean[1] - effect.mean[0] == pytest.approx(linear.coef_[0])
    assert np.isnan(effect.lower).all()
    assert "no epistemic band" in effect.summary()
    assert explain.permutation_importance(GaussianProcessRegressor().fit(x, y), x, y).importance[0] > 0
    logistic = BayesianLogisticRegression().fit(x, y > 0)
    assert explain.permutation_importance(logistic, x, y > 0, score="accuracy").importance[0] > 0


def test_column_that_is_missing_everywhere(table):
    frame, y = table
    model = fitted(credo.Regressor(**OPTIONS), frame.assign(b=frame["b"].where(frame["a"] > 0)), y)
    with pytest.raises(InputError, match="missing in all"):
        explain.partial_dependence(model, frame.assign(b=np.nan), "b")


def test_plots_of_names_with_dollar_signs():
    x = pd.DataFrame(gaussian_rows(10), columns=["$a$b", "x" * 60, "c"])
    model = LinearDraws(np.array([[1.0, 2.0, 3.0], [1.0, 2.5, 3.0]]))
    for ax in (
        explain.partial_dependence(model, x, "$a$b").plot(),
        explain.partial_dependence(model, x, ["$a$b", "c"]).plot(),
        explain.uncertainty_importance(model, x).plot(),
    ):
        ax.figure.canvas.draw()
