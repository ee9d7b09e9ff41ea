"""Runs: holdout, scores, saving and loading."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch

import credo
from credo.errors import InputError, LoadError
from credo.tabular.predictions import to_frame
from credo.tabular.runs import (
    FILES,
    Run,
    choose_task,
    drop_columns,
    evaluate,
    fit_run,
    labeled_rows,
    load_model,
    open_run,
)
from tabular.hostile import TARGET, good_columns


def frame(rows=60):
    return pd.DataFrame(good_columns(rows))


@pytest.fixture(autouse=True)
def _quick_report(monkeypatch):
    def render(model, x, y, *, evaluation=None, **options):
        return f"<p>{len(x)} rows, {options}</p>"

    monkeypatch.setattr("credo.report.render", render)


@pytest.fixture(scope="module")
def run():
    return fit_run(frame(), TARGET, method="map", epochs=2, seed=3, source="data.csv")


def test_held_out_rows_are_not_trained_on(monkeypatch):
    seen = []
    fit = credo.Regressor.fit

    def spy(self, x, y, **details):
        seen.append(x.assign(**{TARGET: y}))
        return fit(self, x, y, **details)

    monkeypatch.setattr(credo.Regressor, "fit", spy)
    run = fit_run(frame(), TARGET, method="map", epochs=1)
    both = pd.concat([seen[0], run.holdout]).sort_values("z", ignore_index=True)
    pd.testing.assert_frame_equal(both, frame().sort_values("z", ignore_index=True))
    assert (len(run.holdout), run.record["trained_rows"], run.record["held_out_rows"]) == (12, 48, 12)


def test_scores_are_those_of_the_held_out_rows(run):
    rows = labeled_rows(run.holdout, run.model.target_)
    scores = credo.metrics.scores(run.model.predict_dist(rows.X), torch.tensor(rows.y.to_numpy()), seed=3)
    assert [score.name for score in run.scores] == [score.name for score in scores]
    for ours, wanted in zip(run.scores, scores, strict=True):
        assert (ours.value, ours.lower, ours.upper) == pytest.approx((wanted.value, wanted.lower, wanted.upper))


def test_run_round_trip(run, tmp_path):
    run.save(tmp_path / "run")
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == sorted(FILES)
    back = open_run(tmp_path / "run")
    pd.testing.assert_frame_equal(back.holdout, run.holdout, check_exact=True)
    assert back.record == run.record
    assert back.scores == run.scores
    x = frame().drop(columns=TARGET)
    assert torch.equal(back.model.predict_dist(x).mean, run.model.predict_dist(x).mean)
    assert back.report() == (tmp_path / "run" / "report.html").read_text()
    assert "12 rows, {'source': 'data.csv', 'split': 'at random', 'seed': 3}" in back.report()


def test_saved_holdout_rows_encode_identically(tmp_path):
    """Also durations, truth values, dates with a zone and text that needs quotes."""
    given = frame().assign(
        lag=pd.to_timedelta(np.arange(60) * 1.37, unit="h"),
        flag=[True, False, None] * 20,
        day=pd.date_range("2024-01-01", periods=60, tz="Europe/Berlin"),
        text=['a, "b"', "c\nd", " NA"] * 20,
    )
    with pytest.warns(UserWarning, match="."):
        run = fit_run(given, TARGET, method="map", epochs=1)
    run.save(tmp_path / "run")
    x, back = (labeled_rows(f, run.model.target_).X for f in (run.holdout, open_run(tmp_path / "run").holdout))
    np.testing.assert_array_equal(run.model.columns_.encode(back), run.model.columns_.encode(x))


def test_rows_without_a_target_are_left_out():
    given = frame()
    given.loc[:9, TARGET] = None
    with pytest.warns(UserWarning, match="because the target is missing: 10 of 50 rows"):
        run = fit_run(given, TARGET, method="map", epochs=1)
    assert (run.record["trained_rows"], run.record["held_out_rows"]) == (40, 10)
    assert run.holdout[TARGET].notna().all()


def test_too_few_targets_raise():
    given = frame()
    given.loc[8:, TARGET] = None
    with pytest.raises(InputError, match="is known in 8 rows, but at least 10 are needed"):
        fit_run(given, TARGET)


def test_errors_refer_to_rows_of_the_table():
    given = frame()
    given.loc[57, TARGET] = np.inf
    with pytest.raises(InputError, match="row 57, counted from 0"):
        fit_run(given, TARGET)


def test_single_row_class_is_trained_on():
    given = frame().assign(**{TARGET: ["rare", *"ab" * 29, "a"]})
    with pytest.warns(UserWarning, match="classes with a single row: 'rare'"):
        run = fit_run(given, TARGET, method="map", epochs=1, holdout=0.5)
    assert run.model.classes_.tolist() == ["a", "b", "rare"]
    assert len(run.holdout) == 30
    assert [score.name for score in run.scores][:2] == ["nll", "accuracy"]


def test_undefined_scores_round_trip(tmp_path):
    """One held-out row: R² is undefined, and JSON has no NaN."""
    run = fit_run(frame(12), TARGET, method="map", epochs=1, holdout=0.05)
    run.save(tmp_path / "run")
    values = {score.name: score.value for score in open_run(tmp_path / "run").scores}
    assert np.isnan(values["r2"])
    assert np.isfinite(values["nll"])


def test_run_without_held_out_rows(tmp_path):
    run = fit_run(frame(), TARGET, method="map", epochs=1, holdout=0.0)
    assert (run.scores, len(run.holdout), run.record["trained_rows"]) == ([], 0, 60)
    run.save(tmp_path / "run")
    assert open_run(tmp_path / "run").holdout.empty
    with pytest.raises(InputError, match="no rows were held out"):
        open_run(tmp_path / "run").report()


def test_repeated_index_uses_every_row_once():
    given = pd.concat([frame(30), frame(30)])
    with pytest.warns(UserWarning, match="8 of 12 held-out rows also occur in training, equal in every column"):
        run = fit_run(given, TARGET, method="map", epochs=1)
    assert (run.record["trained_rows"], run.record["held_out_rows"]) == (48, 12)


@pytest.mark.parametrize(
    ("y", "task", "reason"),
    [
        ([1.5, 2.5, 3.5], "regression", "because 'y' holds numbers, 3 different values in 3 rows"),
        (["1.5", "2.5"], "regression", "because 'y' holds numbers, 2 different values in 2 rows"),
        (["a", "b", None], "classification", "because 'y' holds text, 2 different values in 2 rows"),
        ([0, 1] * 10, "classification", "because 'y' holds integers, 2 different values in 20 rows"),
        ([True, False, None], "classification", "because 'y' holds booleans, 2 different values in 2 rows"),
    ],
)
def test_choose_task_gives_a_reason(y, task, reason):
    column = pd.Series(y, name="y")
    assert choose_task(column) == (task, reason)
    assert choose_task(column, "regression") == ("regression", "as requested")
    with pytest.raises(InputError, match="unknown task 'clasification': did you mean 'classification'"):
        choose_task(column, "clasification")


def test_dropping_unknown_columns_raises():
    assert list(drop_columns(frame(), ["x"], TARGET).columns) == ["z", "color", TARGET]
    with pytest.raises(InputError, match="unknown column to drop 'colors': did you mean 'color'"):
        drop_columns(frame(), ["colors"], TARGET)
    with pytest.raises(InputError, match="not dropped"):
        drop_columns(frame(), [TARGET], TARGET)
    with pytest.raises(InputError, match="must be a column of the table"):
        drop_columns(frame(), [], "price")


def test_labeled_rows_leaves_out_missing_targets(run):
    given = frame(20)
    given.loc[:3, TARGET] = None
    with pytest.warns(UserWarning, match="4 of 20 rows"):
        rows = labeled_rows(given, run.model.target_)
    assert len(rows.X) == len(rows.y) == 16
    assert {score.name for score in evaluate(run.model, rows, level=0.5).scores} >= {"nll", "coverage"}
    with pytest.raises(InputError, match="no column 'y'"):
        labeled_rows(given.drop(columns=TARGET), run.model.target_)
    with pytest.raises(InputError, match="missing in every row"):
        labeled_rows(given.assign(y=None), run.model.target_)


def test_loading_other_models_raises(run, tmp_path):
    run.model.model_.save(tmp_path / "network")
    with pytest.raises(LoadError, match="holds a MAP of a network, not a model of a table"):
        load_model(tmp_path / "network")
    with pytest.raises(LoadError, match="does not exist"):
        load_model(tmp_path / "nothing")
    run.model.save(tmp_path / "model")
    assert isinstance(load_model(tmp_path / "model"), credo.Regressor)
    with pytest.raises(LoadError, match=r"run\.json does not exist"):
        open_run(tmp_path / "model")


@pytest.mark.parametrize("content", [{}, {"scores": []}])
def test_damaged_record_raises(run, tmp_path, content):
    run.save(tmp_path / "run")
    (tmp_path / "run" / "run.json").write_text(json.dumps(content))
    with pytest.raises(LoadError, match="does not describe a run"):
        open_run(tmp_path / "run")


def test_run_predictions_as_a_frame(run):
    assert isinstance(run, Run)
    x = run.holdout.drop(columns=TARGET)
    assert len(to_frame(run.model.predict_dist(x), run.model.target_)) == 12


def test_held_out_rows_are_of_other_groups_or_later():
    table = frame().assign(who=lambda t: np.arange(len(t)) // 5, when=lambda t: np.arange(len(t))[::-1])
    run = fit_run(table, TARGET, method="map", epochs=1, group="who", drop=["when"])
    groups = table["who"].to_numpy()
    held_out = run.record["rows_held_out"]
    assert not set(groups[held_out]) & set(np.delete(groups, held_out))
    assert "who" not in run.model.columns_.names
    assert "who" not in run.holdout
    assert run.record["split"] == "by groups ('who'): no group is both trained on and tested"
    later = fit_run(table, TARGET, method="map", epochs=1, time="when", drop=["who"])
    assert later.record["rows_held_out"] == list(range(round(0.2 * len(table))))
    assert "when" in later.model.columns_.names
    for options, sentence in (({"group": "whoo"}, "whoo"), ({"time": TARGET}, "cannot be the time")):
        with pytest.raises(InputError, match=sentence):
            fit_run(table, TARGET, method="map", epochs=1, **options)
