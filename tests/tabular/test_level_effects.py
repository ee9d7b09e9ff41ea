"""Words with many levels: random intercepts in closed form, without a row's own target, saved and exported."""

import warnings

import numpy as np
import pandas as pd
import pytest

import credo
from credo.tabular import Columns
from credo.tabular.level_effects import _fit, _Part, add_effects, class_scores, normal_scores
from credo.tabular.splitting import RowDetails

LEVELS = 200


def _table(rows, levels=LEVELS, seed=0):
    """Rows of a column of words, with effects of variance 1, a slope of 2 and noise of variance 1/4."""
    rng = np.random.default_rng(seed)
    effect, level, x = rng.normal(size=levels), rng.integers(levels, size=rows), rng.normal(size=rows)
    frame = pd.DataFrame({"x": x, "town": [f"t{i}" for i in level]})
    return frame, effect[level] + 2.0 * x + 0.5 * rng.normal(size=rows), effect, level


def _add(frame, scores, details=None, training=None):
    columns, rows = Columns.learn_and_read(frame)
    details = RowDetails.read(len(frame)) if details is None else details
    training = np.arange(len(frame)) if training is None else training
    return columns, *add_effects(columns, rows, frame, scores, details, training, seed=0)


def test_effects_of_a_balanced_table_are_shrunken_means():
    levels, each = 50, 4
    level = np.repeat(np.arange(levels), each)
    z = np.random.default_rng(0).normal(size=(levels, 1)).repeat(each, 0) + np.random.default_rng(1).normal(
        size=(levels * each, 1)
    )
    z = z - z.mean()
    [found] = _fit(_Part([level], np.zeros((len(z), 0)), z, np.ones(len(z))), [levels])
    by_level = z.reshape(levels, each)
    noise = by_level.var(1, ddof=1).mean()
    variance = by_level.mean(1).var(ddof=1) - noise / each
    expected = each / (each + noise / variance) * by_level.mean(1)
    np.testing.assert_allclose(found.mean[:, 0] * np.sqrt(variance), expected, atol=5e-3)
    np.testing.assert_allclose(found.deviation**2, noise / variance / (each + noise / variance), rtol=1e-2)


def test_effects_beside_a_slope_are_nearly_as_good_as_with_known_variances():
    frame, y, effect, level = _table(2_000)
    n = np.bincount(level, minlength=LEVELS)
    residual = np.bincount(level, y - 2.0 * frame["x"], minlength=LEVELS)
    oracle = residual / (n + 0.25)
    [found] = _fit(_Part([level], frame[["x"]].to_numpy(), y[:, None], np.ones(len(y))), [LEVELS])
    own = found.mean[:, 0] * effect.std()
    assert np.square(own - effect).mean() < 1.2 * np.square(oracle - effect).mean()


def test_training_rows_do_not_see_their_own_targets():
    frame, _, _, _ = _table(1_000, levels=400)
    scores = np.random.default_rng(5).normal(size=(1_000, 1))
    scores += np.random.default_rng(6).normal(size=(400, 1))[frame["town"].str[1:].astype(int)]
    other = scores.copy()
    chosen = np.arange(0, 1_000, 197)  # other targets of these rows do not change their own features
    for row in chosen:
        other[row] += 3.0
        _, columns, before = _add(frame, scores)
        _, _, after = _add(frame, other)
        assert columns.categories[0].effects is not None
        np.testing.assert_array_equal(before.other_features[row, -2:], after.other_features[row, -2:])
        other[row] = scores[row]


def test_features_of_earlier_rows_do_not_depend_on_later_targets():
    frame, y, _, _ = _table(1_000)
    details = RowDetails.read(1_000, None, None, np.arange(1_000.0))
    later = np.where(np.arange(1_000) < 700, y, 0.5 * y)
    _, columns, before = _add(frame, y[:, None], details)
    _, _, after = _add(frame, later[:, None], details)
    assert columns.categories[0].effects is not None
    np.testing.assert_array_equal(before.other_features[:700, -2:], after.other_features[:700, -2:])
    assert (before.other_features[-100:, -2:] != after.other_features[-100:, -2:]).any()


def test_rows_that_are_not_trained_on_are_encoded_as_new_ones():
    frame, y, _, _ = _table(1_000)
    training = np.arange(800)
    _, columns, rows = _add(frame, y[:, None], training=training)
    np.testing.assert_array_equal(rows.other_features[800:], columns.read(frame[800:]).other_features)
    assert (rows.other_features[:800] != columns.read(frame[:800]).other_features).any()


def test_no_effects_where_no_row_would_have_any():
    frame, y, _, _ = _table(1_000)
    details = RowDetails.read(1_000, None, frame["town"])  # every level is in one group, so none is known elsewhere
    before, columns, rows = _add(frame, y[:, None], details)
    assert columns.categories[0].effects is None
    assert rows.other_features.shape[1] == len(before.categories[0].feature_names)
    few = frame.assign(town=frame["town"].str[:2])
    _, columns, _ = _add(few, y[:, None])
    assert columns.categories[0].effects is None


def test_scores():
    np.testing.assert_allclose(normal_scores(np.array([[3.0], [1e9], [-5.0]]))[:, 0], [0.0, 0.9674, -0.9674], atol=1e-4)
    assert class_scores(np.array([0, 1, 1, 0]), 2).tolist() == [[-1.0], [1.0], [1.0], [-1.0]]
    assert class_scores(np.array([0, 1, 2, 0]), 3).shape == (4, 3)
    assert class_scores(np.arange(40), 40).shape == (40, 0)


@pytest.mark.parametrize("kind", ["regression", "classes", "several"])
def test_saved_and_loaded(tmp_path, kind):
    frame, y, _, _ = _table(600, levels=60)
    if kind == "regression":
        model = credo.Regressor("map", likelihood="gaussian", epochs=5, random_state=0).fit(frame, y)
    elif kind == "several":
        model = credo.Regressor("map", epochs=5, random_state=0).fit(frame, np.column_stack([y, -y]))
    else:
        model = credo.Classifier("map", epochs=5, random_state=0).fit(frame, np.digitize(y, [-1.0, 1.0]))
    effects = model.columns_.categories[0].effects
    assert len(effects.mean[0]) == {"regression": 1, "classes": 3, "several": 2}[kind]
    assert "effects of 60 levels" in model.columns_.summary()[1].treatment
    model.save(tmp_path / "run")
    new = frame.assign(town=[None, "nowhere", *frame["town"][2:]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        expected, found = model.predict_dist(new).mean, credo.load(tmp_path / "run").predict_dist(new).mean
    assert (expected == found).all()


def test_effects_lower_the_error_where_levels_differ():
    frame, y, _, _ = _table(1_500)
    known = np.isin(frame["town"], frame["town"][:1_000]) & (np.arange(1_500) >= 1_000)
    new, y_new = frame[known], y[known]
    model = credo.Regressor("map", likelihood="gaussian", epochs=60, random_state=0).fit(frame[:1_000], y[:1_000])
    error = np.square(model.predict(new) - y_new).mean()
    assert error < 0.6  # the noise is 1/4, and without the effects of towns another 1


def test_exported(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    frame, y, _, _ = _table(600, levels=60)
    frame["town"] = ["007" if t == "t7" else t for t in frame["town"]]  # numbers are compared as numbers
    model = credo.Regressor("map", likelihood="gaussian", epochs=5, random_state=0).fit(frame, y)
    model.export(tmp_path / "model.onnx")
    new = frame[:50].assign(town=[None, "nowhere", " " + frame["town"][2], *frame["town"][3:50]])
    session = runtime.InferenceSession(tmp_path / "model.onnx")
    [mean] = session.run(["mean"], credo.export.column_inputs(model, new))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        np.testing.assert_allclose(mean, model.predict_dist(new).mean, atol=1e-9)
