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
    monkeypatch.setattr(automatic, "MIN_GRADIENTS", 60)


def line(rows: int = 40):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, 2))
    return X, X[:, 0] + 0.1 * rng.normal(size=rows)


@pytest.mark.parametrize(("rows", "features", "name"), [(300, 10, "hmc"), (1000, 10, "hmc"), (5000, 10, "bbb")])
def test_chosen_by_the_size_of_the_table(rows, features, name):
    choice = automatic.choose(credo.Regressor(), rows, features, further_rows=False)
    assert choice.method.name == name
    assert f"{rows:,} rows of {features} features" in choice.reason


def test_few_rows_and_classes_are_trained():
    """Where sampling was not found better: see benchmarks/table_defaults.py."""
    assert automatic.choose(credo.Regressor(), 150, 4, further_rows=False).method.name == "bbb"
    assert automatic.choose(credo.Classifier(), 600, 30, further_rows=False).method.name == "bbb"


def test_more_features_or_wider_layers_count_as_rows():
    assert automatic.choose(credo.Regressor(), 1000, 2000, further_rows=False).method.name == "bbb"
    wide = credo.Regressor(hidden=(500, 500))
    assert automatic.choose(wide, 1000, 10, further_rows=False).method.name == "bbb"


@pytest.mark.parametrize("given", [{"epochs": 3}, {"batch_size": 32}, {"method_options": {"temperature": 2.0}}])
def test_arguments_of_training_choose_a_method_that_is_trained(given):
    choice = automatic.choose(credo.Regressor(**given), 300, 3, further_rows=False)
    assert choice.method.name == "bbb"
    assert next(iter(given)) in choice.reason


def test_a_method_that_is_given_is_kept():
    choice = automatic.choose(credo.Classifier("map"), 100, 3, further_rows=False)
    assert choice == (credo.tabular.methods.get("map"), "as requested")


def test_the_choice_is_noted_without_a_warning(short_chains):
    X, y = line(250)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = credo.Regressor(random_state=0).fit(X, y)
    assert model.method_ == "hmc"
    chosen, converged = model.notes_
    assert chosen.startswith("The method is Hamiltonian Monte Carlo, because 250 rows of 2 features are few enough")
    assert "R-hat of the predictions" in converged
    with pytest.raises(AttributeError) as refused:  # scikit-learn's, with ours as its cause
        _ = model.partial_fit
    assert isinstance(refused.value.__cause__, UnsupportedError)
    assert "use method='bbb'" in str(refused.value.__cause__)


def test_first_rows_of_many_are_learned_by_a_method_that_can_go_on(short_chains, monkeypatch):
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
