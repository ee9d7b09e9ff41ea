"""SHAP's explainers accept the estimators; ``pip install credo[explain]`` installs SHAP."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest

import credo

shap = pytest.importorskip("shap")

pytestmark = pytest.mark.filterwarnings("ignore")  # those of SHAP and numba about themselves

N, BACKGROUND, SHOWN = 60, 15, 3
OPTIONS = {"epochs": 10, "hidden": (4,), "samples": 8, "random_state": 0}


def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame({"a": rng.normal(size=N), "b": rng.normal(size=N), "c": rng.choice(["u", "v"], N)})


def target(frame: pd.DataFrame) -> pd.Series:
    return 2 * frame["a"] - frame["b"]


def fitted(kind, frame, y):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return kind(**OPTIONS).fit(frame, y)


def epistemic_std(model, names):
    """The epistemic standard deviation as a function of arrays or frames."""
    return lambda X: model.predict_dist(pd.DataFrame(np.asarray(X), columns=names)).epistemic.sqrt().numpy()


def kernel_values(function, background, rows):
    explainer = shap.KernelExplainer(function, background)
    return np.asarray(explainer.shap_values(rows, silent=True)), np.asarray(explainer.expected_value)


EXPLAINERS = {
    "Explainer": lambda f, background, rows: shap.Explainer(f, background)(rows, silent=True),
    "PermutationExplainer": lambda f, background, rows: shap.PermutationExplainer(f, background)(rows, silent=True),
}


@pytest.mark.parametrize("name", EXPLAINERS)
def test_values_of_a_prediction_add_up_to_it(name):
    X = table()[["a", "b"]]
    model = fitted(credo.Regressor, X, target(X))
    for function in (model.predict, epistemic_std(model, ["a", "b"])):
        found = EXPLAINERS[name](function, X[:BACKGROUND], X[:SHOWN])
        assert found.values.shape == (SHOWN, 2)
        assert found.base_values + found.values.sum(axis=1) == pytest.approx(function(X[:SHOWN]), abs=1e-8)


def test_probabilities_of_classes():
    X = table()[["a", "b"]]
    model = fitted(credo.Classifier, X, target(X) > 0)
    found = shap.Explainer(model.predict_proba, X[:BACKGROUND])(X[:SHOWN], silent=True)
    assert found.values.shape == (SHOWN, 2, 2)
    assert found.base_values + found.values.sum(axis=1) == pytest.approx(model.predict_proba(X[:SHOWN]), abs=1e-8)


def test_kernel_explainer_takes_text_columns():
    X = table()
    model = fitted(credo.Regressor, X, target(X) + (X["c"] == "u"))
    for function in (model.predict, epistemic_std(model, list(X))):
        values, base = kernel_values(function, X[:BACKGROUND], X[:SHOWN])
        assert values.shape == (SHOWN, 3)
        assert base + values.sum(axis=1) == pytest.approx(function(X[:SHOWN]), abs=1e-6)


def test_kernel_explainer_takes_arrays():
    X = table()[["a", "b"]].to_numpy()
    model = fitted(credo.Regressor, X, 2 * X[:, 0] - X[:, 1])
    values, base = kernel_values(model.predict, X[:BACKGROUND], X[:SHOWN])
    assert base + values.sum(axis=1) == pytest.approx(model.predict(X[:SHOWN]), abs=1e-6)
