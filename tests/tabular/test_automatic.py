"""``method="auto"``: what it is for which table, and what is said about it."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import credo
from credo.errors import InputError, UnsupportedError
from credo.tabular import automatic, sampled


@pytest.fixture
def short_chains(monkeypatch):
    """Chains that take no time, and are of no use."""
    for name, value in {"WARMUP": 10, "DRAWS": 6, "STARTING_STEPS": 10, "MAX_GRADIENTS": 60}.items():
        monkeypatch.setattr(sampled, name, value)


def line(rows: int = 40):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, 2))
    return X, X[:, 0] + 0.1 * rng.normal(size=rows)


@pytest.mark.parametrize(("rows", "name"), [(10, "bbb"), (49, "bbb"), (50, "stacked"), (100_000, "stacked")])
def test_chosen_by_the_size_of_the_table(rows, name):
    for estimator in (credo.Regressor(), credo.Classifier()):
        choice = automatic.choose(estimator, rows, further_rows=False)
        assert choice.method.name == name
        assert f"{rows:,} rows" in choice.reason


@pytest.mark.parametrize("given", [{"epochs": 3}, {"batch_size": 32}, {"method_options": {"temperature": 2.0}}])
def test_arguments_of_training_choose_a_method_that_is_trained(given):
    choice = automatic.choose(credo.Regressor(**given), 300, further_rows=False)
    assert choice.method.name == "bbb"
    assert next(iter(given)) in choice.reason


def test_a_method_that_is_given_is_kept():
    choice = automatic.choose(credo.Classifier("map"), 100, further_rows=False)
    assert choice == (credo.tabular.methods.get("map"), "as requested")


def test_convergence_is_noted_without_a_warning(short_chains):
    X, y = line(250)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = credo.Regressor("hmc", random_state=0).fit(X, y)
    assert model.method_ == "hmc"
    converged, *_ = model.notes_
    assert "R-hat of the predictions" in converged
    with pytest.raises(AttributeError) as refused:  # scikit-learn's, with ours as its cause
        _ = model.partial_fit
    assert isinstance(refused.value.__cause__, UnsupportedError)
    assert "use method='bbb'" in str(refused.value.__cause__)


def test_first_rows_of_many_are_learned_by_a_method_that_can_go_on(monkeypatch):
    monkeypatch.setattr(credo.tabular.methods, "MIN_STEPS", 5)
    monkeypatch.setattr(credo.tabular.methods, "STEPS_PER_ROW", 0)
    X, y = line()
    model = credo.Regressor(random_state=0).partial_fit(X, y)
    assert model.method_ == "bbb"
    assert "partial_fit" in model.notes_[0]
    assert model.partial_fit(X[:5], y[:5]).method_ == "bbb"


@pytest.mark.parametrize("given", [{"epochs": 3}, {"batch_size": 32}])
def test_a_sampler_has_no_epochs(given):
    with pytest.raises(InputError, match=f"{next(iter(given))} does not apply"):
        credo.Regressor("hmc", **given).fit(*line())


def test_unknown_names_are_refused():
    with pytest.raises(InputError, match="did you mean 'auto'"):
        credo.Regressor("auot").fit(*line())
