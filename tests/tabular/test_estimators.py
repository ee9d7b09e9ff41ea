"""``Regressor`` and ``Classifier``: scikit-learn's checks, known results, saving, errors."""

from __future__ import annotations

import json
import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import credo
from credo import metrics
from credo.errors import InputError, LoadError, UnsupportedError
from credo.tabular import methods

METHODS = [name for name in methods.names() if methods.get(name).has_epochs]  # samplers: test_sampled.py
QUALITY_CHECKS = ("check_classifiers_classes", "check_classifiers_train", "check_regressors_train")
QUICK = {"epochs": 20, "samples": 20, "random_state": 0}


EXPECTED_FAILURES = {
    "check_sample_weight_equivalence_on_dense_data": (
        "A row of weight 2 has the loss of the row twice, but one place among the minibatches and one noise, so "
        "that the predictions of two trainings are close and not equal."
    ),
    "check_class_weight_classifiers": "class_weight='balanced' reweights training; probabilities stay calibrated.",
}


@parametrize_with_checks(
    [credo.Regressor(epochs=60, samples=20), credo.Classifier(epochs=60, samples=20)],
    expected_failed_checks=lambda estimator: EXPECTED_FAILURES,
)
@pytest.mark.filterwarnings("ignore")  # the checks warn by themselves, and of notes on their odd tables
def test_scikit_learn_contract(estimator, check):
    """Three checks demand a minimum quality of the predictions; for the interface two epochs are enough."""
    check(estimator if check.func.__name__ in QUALITY_CHECKS else clone(estimator).set_params(epochs=2))


def people(rows: int = 200, seed: int = 0) -> tuple[pd.DataFrame, pd.Series]:
    """Numbers, words, gaps, a constant and a wide scale, and a target that depends on two of them."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": rng.integers(18, 80, rows).astype(float),
            "town": rng.choice(["Aa", "Bb", "Cc"], rows),
            "wealth": rng.lognormal(10.0, 3.0, rows),
            "planet": "earth",
        }
    )
    y = 0.05 * frame["age"] + 2.0 * (frame["town"] == "Bb") + rng.normal(0.0, 0.2, rows)
    frame.loc[::17, "age"] = np.nan
    return frame, y.rename("height")


@pytest.fixture(scope="module")
def fitted() -> credo.Regressor:
    frame, y = people()
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        model = credo.Regressor(epochs=200, random_state=0).fit(frame, y)
    assert any("planet" in str(note.message) for note in noted)
    return model


@pytest.mark.parametrize("method", METHODS)
def test_every_method_fits_mixed_columns_with_missing_values(method):
    frame, y = people(300)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        model = credo.Regressor(method, epochs=150, random_state=0).fit(frame[:250], y[:250])
    p = model.predict_dist(frame[250:])
    truth = torch.tensor(y[250:].to_numpy())
    # the target's std is 1.3 and the noise 0.2
    assert metrics.rmse(p, truth) < 0.5
    assert metrics.coverage(p, truth) > 0.7
    assert model.score(frame[250:], y[250:]) > 0.8


@pytest.mark.parametrize("method", METHODS)
def test_every_method_classifies(method):
    x, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    epochs = 1000 if method == "bbb" else 200  # the complexity term needs time to let the data speak
    model = credo.Classifier(method, epochs=epochs, random_state=0).fit(x[::2], names[::2])
    assert model.score(x[1::2], names[1::2]) > 0.9
    probabilities = model.predict_proba(x[1::2])
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, rtol=1e-12)
    assert list(model.classes_) == ["setosa", "versicolor", "virginica"]
    np.testing.assert_array_equal(model.classes_[probabilities.argmax(axis=1)], model.predict(x[1::2]))


def test_predictions_are_in_the_targets_own_units(fitted):
    frame, y = people()
    kelvin = 1e6 + 1e3 * y
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        scaled = credo.Regressor(epochs=200, random_state=0).fit(frame, kelvin)
    plain, other = fitted.predict_dist(frame), scaled.predict_dist(frame)
    # targets are standardized to float32, which differs in the seventh digit of their own size
    np.testing.assert_allclose(other.mean, 1e6 + 1e3 * plain.mean, rtol=0.0, atol=5.0)
    np.testing.assert_allclose(other.std, 1e3 * plain.std, rtol=0.02)
    np.testing.assert_allclose(other.variance, other.epistemic + other.aleatoric, rtol=1e-12)


def test_return_std(fitted):
    frame, _ = people(30, seed=1)
    mean, std = fitted.predict(frame, return_std=True)
    p = fitted.predict_dist(frame)
    np.testing.assert_array_equal(mean, fitted.predict(frame))
    np.testing.assert_array_equal(mean, p.mean)
    np.testing.assert_array_equal(std, p.std)
    assert mean.shape == std.shape == (30,)


@settings(max_examples=15)
@given(order=st.permutations(range(25)), size=st.integers(1, 25))
def test_prediction_does_not_depend_on_other_rows(fitted, order, size):
    frame, _ = people(25, seed=2)
    everything = fitted.predict_dist(frame)
    rows = list(order)[:size]
    some = fitted.predict_dist(frame.iloc[rows])
    np.testing.assert_allclose(some.mean, everything.mean[rows], rtol=1e-10)
    np.testing.assert_allclose(some.interval(0.9).upper, everything.interval(0.9).upper[rows], rtol=1e-9)


@settings(max_examples=15)
@given(levels=st.tuples(st.floats(0.02, 0.98), st.floats(0.02, 0.98)))
def test_intervals_are_nested(fitted, levels):
    frame, _ = people(20, seed=3)
    p = fitted.predict_dist(frame)
    inner, outer = p.interval(min(levels)), p.interval(max(levels))
    assert bool((outer.lower <= inner.lower + 1e-9).all())
    assert bool((inner.upper <= outer.upper + 1e-9).all())


def test_columns_are_matched_by_name_and_new_ones_warn(fitted):
    frame, _ = people(20, seed=4)
    expected = fitted.predict(frame)
    np.testing.assert_array_equal(fitted.predict(frame[frame.columns[::-1]]), expected)
    with pytest.warns(UserWarning, match="shoe"):
        np.testing.assert_array_equal(fitted.predict(frame.assign(shoe=42.0)), expected)
    with pytest.raises(InputError, match=r"'age'.*did you mean 'Age'"):
        fitted.predict(frame.rename(columns={"age": "Age"}))
    with pytest.warns(UserWarning, match="Atlantis"):
        fitted.predict(frame.assign(town="Atlantis"))


def test_stream_equals_predict_dist(fitted):
    frame, _ = people(40, seed=5)
    chunks = list(fitted.stream([frame[:7], frame[7:]]))
    np.testing.assert_allclose(torch.cat([p.mean for p in chunks]), fitted.predict(frame), rtol=1e-10)


def test_same_seed_gives_same_model_and_keeps_global_random_state():
    x, y = load_diabetes(return_X_y=True)
    before = torch.get_rng_state()
    first, second = (credo.Regressor(**QUICK).fit(x[:60], y[:60]).predict(x[60:80]) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("method", METHODS)
def test_saved_and_pickled_estimators_predict_the_same(tmp_path, method):
    frame, y = people(80)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        model = credo.Regressor(method, **QUICK).fit(frame, y)
    model.save(tmp_path / "run")
    for copy in (credo.load(tmp_path / "run"), pickle.loads(pickle.dumps(model))):
        assert isinstance(copy, credo.Regressor)
        np.testing.assert_array_equal(copy.predict(frame), model.predict(frame))
        assert copy.get_params() == model.get_params()
        assert copy.notes_ == model.notes_
        with pytest.raises(InputError, match="town"):
            copy.predict(frame.drop(columns="town"))


def test_saved_classifiers_keep_their_labels_and_calibration(tmp_path):
    x, y = load_breast_cancer(return_X_y=True)
    model = credo.Classifier(calibrate="temperature", **QUICK).fit(x, y == 1)
    model.save(tmp_path / "run")
    copy = credo.load(tmp_path / "run")
    np.testing.assert_array_equal(copy.predict_proba(x), model.predict_proba(x))
    assert copy.predict(x).dtype == bool
    assert copy.calibrator_.temperature == model.calibrator_.temperature != 1.0


def test_damaged_card_raises(tmp_path):
    x, y = load_diabetes(return_X_y=True)
    credo.Regressor(**QUICK).fit(x[:40], y[:40]).save(tmp_path / "run")
    card = json.loads((tmp_path / "run" / "card.json").read_text())
    for damage in ({"class": "Exploit"}, {"columns": {}}, {"seed": "x"}, {"target": None}, {"parameters": {"oops": 1}}):
        (tmp_path / "run" / "card.json").write_text(json.dumps(card | {"estimator": card["estimator"] | damage}))
        with pytest.raises(LoadError):
            credo.load(tmp_path / "run")


@pytest.mark.parametrize("calibrate", ["variance", "quantile", "conformal"])
def test_calibration_uses_held_out_rows(calibrate):
    x, y = load_diabetes(return_X_y=True)
    model = credo.Regressor("map", calibrate=calibrate, calibration_fraction=0.3, **QUICK).fit(x[:350], y[:350])
    assert model.model_.n_data == pytest.approx(0.9 * 0.7 * 350, abs=1)
    p, truth = model.predict_dist(x[350:]), torch.tensor(y[350:])
    # of 92 rows an interval that is right covers 95 % ± 2.3 %, and the calibration set is as small
    assert 0.85 < metrics.coverage(p, truth) <= 1.0


def test_partial_fit_reduces_uncertainty_and_keeps_old_rows():
    """On a straight line, a second half of the data must halve the epistemic variance or so."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1.0, 1.0, (400, 1))
    y = 2.0 * x[:, 0] + rng.normal(0.0, 0.5, 400)
    settings = {"hidden": (), "epochs": 200, "random_state": 0}
    first = credo.Regressor(**settings).fit(x[:200], y[:200])
    both = clone(first).partial_fit(x[:200], y[:200]).partial_fit(x[200:], y[200:])
    everything = credo.Regressor(**settings).fit(x, y)
    before, after, exact = (m.predict_dist(x) for m in (first, both, everything))
    ratio = (after.epistemic.mean() / before.epistemic.mean()).item()
    # exactly 1/2 for a known noise; the noise itself is learned here, and 100 draws know a variance to 14 %
    assert 0.3 < ratio < 0.8
    np.testing.assert_allclose(after.mean, exact.mean, atol=0.15)


def test_partial_fit_needs_a_posterior():
    assert hasattr(credo.Regressor("bbb"), "partial_fit")
    assert not hasattr(credo.Regressor("map"), "partial_fit")
    with pytest.raises(AttributeError) as raised:
        _ = credo.Regressor("map").partial_fit
    assert isinstance(raised.value.__cause__, UnsupportedError)


def test_partial_fit_with_given_classes():
    x, y = load_iris(return_X_y=True)
    model = credo.Classifier(epochs=400, random_state=0)
    model.partial_fit(x[:60], y[:60], classes=[0, 1, 2]).partial_fit(x[60:], y[60:])
    assert model.predict_proba(x).shape == (150, 3)
    assert model.score(x, y) > 0.6


def test_small_networks_train_on_one_thread_which_is_restored(monkeypatch):
    seen, fit = [], credo.MAP.fit

    def watched(model, *data, **options):
        seen.append(torch.get_num_threads())
        return fit(model, *data, **options)

    monkeypatch.setattr(credo.MAP, "fit", watched)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        x, y = load_diabetes(return_X_y=True)
        credo.Regressor("map", **QUICK).fit(x[:40], y[:40])
        credo.Regressor("map", hidden=(4096, 64), epochs=1, random_state=0).fit(x[:40], y[:40])
        assert seen == [1, 2]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_works_inside_scikit_learns_tools():
    x, y = load_diabetes(return_X_y=True)
    x, y = x[:120], y[:120]
    quick = credo.Regressor(**QUICK)
    assert len(cross_val_score(make_pipeline(StandardScaler(), quick), x, y, cv=2)) == 2
    search = GridSearchCV(quick, {"hidden": [(5,), (20,)]}, cv=2).fit(x, y)
    assert search.best_estimator_.predict(x).shape == (120,)
    assert clone(quick).get_params() == quick.get_params()


def test_registered_method_can_be_used():
    build = lambda spec: credo.MAP(spec.network(), spec.likelihood)  # noqa: E731
    methods.register(methods.TabularMethod("wide_map", "MAP, wide prior", build))
    try:
        x, y = load_diabetes(return_X_y=True)
        assert credo.Regressor("wide_map", **QUICK).fit(x[:50], y[:50]).predict(x[:3]).shape == (3,)
    finally:
        methods._METHODS.pop("wide_map")


def test_rows_without_a_target_are_left_out_of_a_data_frame():
    frame, y = people(60)
    y.iloc[:10] = np.nan
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        model = credo.Regressor("map", **QUICK).fit(frame, y)
    assert any("10 of 60 rows" in str(note.message) for note in noted)
    assert np.isfinite(model.predict(frame)).all()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"method": "bb"}, "bbb"),
        ({"calibrate": "temperature"}, "variance"),
        ({"calibrate": "variance", "calibration_fraction": 0.0}, "calibration_fraction"),
        ({"calibrate": "quantile", "calibration_fraction": 0.1}, "add rows"),
    ],
)
def test_bad_arguments_raise(arguments, words):
    x, y = load_diabetes(return_X_y=True)
    with pytest.raises(InputError, match=words):
        credo.Regressor(**(QUICK | arguments)).fit(x[:60], y[:60])


def test_bad_targets_raise():
    frame, y = people(40)
    with pytest.raises(InputError, match="Classifier"):
        credo.Regressor(**QUICK).fit(frame, frame["town"])
    with pytest.raises(InputError, match="Regressor"):
        credo.Classifier(**QUICK).fit(frame, y)
    with pytest.raises(InputError, match="one class"):
        credo.Classifier(**QUICK).fit(frame, frame["planet"])


@pytest.mark.slow
@pytest.mark.parametrize("rows", [10, 40])
def test_error_bars_of_few_rows_have_the_scale_of_the_target(rows):
    x, y = load_diabetes(return_X_y=True)
    p = credo.Regressor(random_state=0).fit(x[:rows], y[:rows]).predict_dist(x[300:])
    lower, upper = p.interval(0.95)
    # a model that knows nothing would say ± 1.96 std of the target, 302 in all
    assert (upper - lower).median() < 2.0 * 2.0 * 1.96 * y.std()
    assert metrics.coverage(p, y[300:]) > 0.9


def test_noise_and_hidden_depend_on_the_number_of_rows():
    x, y = load_diabetes(return_X_y=True)
    few, many = (credo.Regressor("map", epochs=1, random_state=0).fit(x[:n], y[:n]) for n in (150, 300))
    assert (few.model_.likelihood.noise, many.model_.likelihood.noise) == ("learned", "heteroscedastic")
    assert (few.model_.net.config["hidden"], many.model_.net.config["hidden"]) == ([10], [50, 50])
    forced = credo.Regressor("map", noise="heteroscedastic", epochs=1, hidden=(7,)).fit(x[:50], y[:50])
    assert forced.model_.likelihood.noise == "heteroscedastic"
    assert forced.model_.net.config["hidden"] == [7]


@pytest.mark.parametrize(
    "wrong", [{"hidden": (0,)}, {"hidden": 50}, {"lr": -1.0}, {"epochs": 0}, {"batch_size": 0}, {"noise": "loud"}]
)
def test_failed_fit_leaves_the_estimator_unchanged(wrong):
    x, y = load_diabetes(return_X_y=True)
    model = credo.Regressor(**QUICK).fit(x[:50], y[:50])
    before = model.predict(x[:5])
    model.set_params(**wrong)
    with pytest.raises(InputError):
        model.fit(10.0 * x[:40] + 5.0, 100.0 * y[:40])
    np.testing.assert_array_equal(model.predict(x[:5]), before)
    if not set(wrong) & {"hidden", "noise"}:  # further rows go on with the network there is
        with pytest.raises(InputError):
            model.partial_fit(x[:40], y[:40])
        np.testing.assert_array_equal(model.predict(x[:5]), before)
    fresh = credo.Regressor(**(QUICK | wrong))
    with pytest.raises(InputError):
        fresh.fit(x[:50], y[:50])
    with pytest.raises(NotFittedError):
        fresh.predict(x[:5])


def test_given_classes_are_reset_after_a_failed_call():
    frame, _ = people(40)
    model = credo.Classifier("bbb", **QUICK)
    with pytest.raises(ValueError, match="y"):
        model.partial_fit(frame, None, classes=["x", "y", "z"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        assert list(model.fit(frame, list("ab" * 20)).classes_) == ["a", "b"]


def test_estimator_can_be_saved_after_partial_fit(tmp_path):
    x, y = load_diabetes(return_X_y=True)
    options = {"bayesian": "*weight", "estimator": "flipout", "temperature": 2.0}
    model = credo.Regressor(method_options=options, **QUICK).partial_fit(x[:40], y[:40]).partial_fit(x[40:80], y[40:80])
    assert (model.model_.estimator, model.model_.temperature) == ("flipout", 2.0)
    assert all(name.endswith("weight") for name in model.model_.posterior.names())
    model.save(tmp_path / "run")
    copy = credo.load(tmp_path / "run")
    np.testing.assert_array_equal(copy.predict(x), model.predict(x))
    copy.partial_fit(x[80:120], y[80:120])


def test_integer_column_names():
    x, y = load_diabetes(return_X_y=True)
    frame = pd.DataFrame(x[:60])
    model = credo.Regressor("map", **QUICK).fit(frame, y[:60])
    np.testing.assert_array_equal(model.predict(frame[frame.columns[::-1]]), model.predict(frame))


def test_targets_may_be_lists_with_missing_values():
    frame, y = people(60)
    for estimator, targets in (
        (credo.Regressor("map", **QUICK), [float("nan"), *y[1:]]),
        (credo.Classifier("map", **QUICK), [None, *frame["town"][1:]]),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            assert len(estimator.fit(frame, targets).predict(frame)) == 60
