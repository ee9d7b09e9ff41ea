"""Conformal intervals and sets from cross-validation: coverage by simulation, and the formulas by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator

import credo
from credo.calibration import CrossConformalClassifier, CrossConformalRegressor
from credo.errors import InputError


class Line(BaseEstimator):
    """A straight line with the same, far too small noise everywhere: the model is wrong in both."""

    def fit(self, X, y):
        self.coef_ = np.polyfit(X[:, 0], y, 1)
        return self

    def predict_dist(self, X):
        return credo.Gaussian(0.1).predictive(torch.tensor(np.polyval(self.coef_, X[:, 0]))[None])


class Frequencies(BaseEstimator):
    """Class probabilities that are wrong: sharper than they should be, from the sign of the first column."""

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        self.bias_ = float(np.mean(y == self.classes_[1])) - 0.5
        return self

    def predict_dist(self, X):
        z = 6.0 * (X[:, 0] + self.bias_)
        return credo.Categorical().predictive(torch.tensor(np.column_stack([-z, z, 0.2 * X[:, 1]]))[None])


def rows(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A curve whose noise depends on the group: 0.2 in group a, and 1 in the rarer group b."""
    X = rng.uniform(-2, 2, (n, 1))
    groups = np.where(rng.random(n) < 0.3, "b", "a")
    return X, X[:, 0] ** 2 + np.where(groups == "b", 1.0, 0.2) * rng.normal(size=n), groups


def simulate(level: float, by_group: bool, repeats: int = 150, n: int = 100) -> dict[str, list[float]]:
    covered: dict[str, list[float]] = {"all": [], "a": [], "b": []}
    for seed in range(repeats):
        rng = np.random.default_rng(seed)
        X, y, groups = rows(rng, n)
        new, truth, new_groups = rows(rng, 200)
        model = CrossConformalRegressor(Line(), folds=5).fit(X, y, groups if by_group else None)
        lower, upper = model.predict_interval(new, level, new_groups if by_group else None)
        inside = (lower.numpy() <= truth) & (truth <= upper.numpy())
        covered["all"].append(inside.mean())
        for group in "ab":
            covered[group].append(inside[new_groups == group].mean())
    return covered


def lowest(values: list[float]) -> float:
    """The mean and three standard errors."""
    return float(np.mean(values) + 3 * np.std(values) / np.sqrt(len(values)))


@pytest.mark.parametrize("level", [0.8, 0.9])
def test_marginal_coverage_with_a_wrong_model(level: float) -> None:
    """On average over 150 training sets of 100 rows: at least the level, up to 3 standard errors of the simulation."""
    covered = simulate(level, by_group=False)
    assert lowest(covered["all"]) >= level
    assert np.mean(covered["all"]) < level + 0.05  # and not by infinite intervals
    assert lowest(covered["b"]) < level  # which groups need


def test_coverage_in_every_group() -> None:
    """At least the level in both groups, up to 3 standard errors; the rarer group has about 30 rows."""
    covered = simulate(0.8, by_group=True)
    assert min(lowest(covered["a"]), lowest(covered["b"])) >= 0.8
    assert max(np.mean(covered["a"]), np.mean(covered["b"])) < 0.9


def test_intervals_are_those_of_the_formula() -> None:
    rng = np.random.default_rng(0)
    X, y, _ = rows(rng, 40)
    model = CrossConformalRegressor(Line(), folds=4).fit(X, y)
    mean = np.stack([m.predict_dist(X[:3]).mean.numpy() for m in model.models_])[model.fold_]
    low, high = np.sort(mean - 0.1 * model.scores_[:, None], 0), np.sort(mean + 0.1 * model.scores_[:, None], 0)
    lower, upper = model.predict_interval(X[:3], 0.9)
    np.testing.assert_allclose(lower, low[int(0.1 * 41) - 1])
    np.testing.assert_allclose(upper, high[int(np.ceil(0.9 * 41)) - 1])
    own = [m.predict_dist(X[[i]]).mean for i, m in enumerate(model.models_[k] for k in model.fold_)]
    np.testing.assert_allclose(model.scores_, np.abs(y - np.array(own).ravel()) / 0.1)


def test_sets_of_classes_cover() -> None:
    """Three classes: at least 0.85 on average over 100 training sets of 90 rows, up to 3 standard errors."""
    covered, sizes = [], []
    for seed in range(100):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(290, 2))
        logits = np.column_stack([-X[:, 0], X[:, 0], 0.5 * X[:, 1]])
        y = np.array(["x", "y", "z"])[(logits + rng.gumbel(size=logits.shape)).argmax(1)]
        model = CrossConformalClassifier(Frequencies(), folds=5).fit(X[:90], y[:90])
        inside = model.predict_set(X[90:], 0.85)
        covered.append(inside[np.arange(200), np.searchsorted(model.classes_, y[90:])].mean())
        sizes.append(inside.sum(1).mean())
    assert lowest(covered) >= 0.85
    assert np.mean(covered) < 0.93
    assert np.mean(sizes) < 2.9
    assert bool(inside.any(1).all())


def test_estimators_of_tables_can_be_used() -> None:
    X, y, groups = rows(np.random.default_rng(0), 80)
    conformal = CrossConformalRegressor(credo.Regressor("map", epochs=2, random_state=0), folds=2).fit(X, y)
    assert conformal.predict_interval(X[:5], 0.9).lower.shape == (5,)
    classes = CrossConformalClassifier(credo.Classifier("map", epochs=2, random_state=0), folds=2).fit(X, groups)
    assert classes.predict_set(X[:5], 0.9).shape == (5, 2)


def test_errors_are_sentences() -> None:
    X, y, groups = rows(np.random.default_rng(0), 30)
    model = CrossConformalRegressor(Line(), folds=3).fit(X, y, groups)
    with pytest.raises(InputError, match="needs at least 19 rows"):
        model.predict_interval(X, 0.95, groups)
    with pytest.raises(InputError, match="was not in fit"):
        model.predict_interval(X, 0.5, np.full(30, "c"))
    with pytest.raises(InputError, match="needed here"):
        model.predict_interval(X, 0.5)
    with pytest.raises(InputError, match="at most the number of rows"):
        CrossConformalRegressor(Line(), folds=31).fit(X, y)
    with pytest.raises(InputError, match="rows of the class"):
        CrossConformalClassifier(Frequencies(), folds=20).fit(X, groups)
