"""The estimator section of a card and the record of a run: damaged ones raise."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import credo
from credo.errors import InputError, LoadError
from credo.tabular.runs import fit_run, open_run
from credo.tabular.saving import describe, restore
from tabular.hostile import MIXED_ROWS, TARGET, mixed_frame

Change = Callable[[dict[str, Any]], Any]


def _fit(kind, target, **options):
    with pytest.warns(UserWarning, match="."):
        return kind("map", epochs=1, random_state=0, **options).fit(mixed_frame(), target)


@pytest.fixture(scope="module")
def regressor():
    y = pd.Series(np.linspace(0.0, 1.0, MIXED_ROWS) ** 2, name=TARGET)
    return _fit(credo.Regressor, y, calibrate="variance", calibration_fraction=0.5, hidden=(3,))


@pytest.fixture(scope="module")
def classifier():
    return _fit(credo.Classifier, pd.Series(["low", "middle", "high"] * (MIXED_ROWS // 3), name=TARGET))


def at(*path: Any, to: Any) -> Change:
    """Put ``to`` where ``path`` leads."""

    def change(section: Any) -> None:
        *parents, last = path
        for key in parents:
            section = section[key]
        section[last] = to

    return change


SECTIONS: dict[str, Change] = {
    "no class": lambda s: s.pop("class"),
    "another class": at("class", to="Forecaster"),
    "class as list": at("class", to=["Regressor"]),
    "the other class": at("class", to="Classifier"),
    "unknown section": at("surprise", to=1),
    "no columns": lambda s: s.pop("columns"),
    "columns as list": at("columns", to=[]),
    "negative seed": at("seed", to=-1),
    "seed as text": at("seed", to="0"),
    "seed as float": at("seed", to=0.5),
    "endless seed": at("seed", to=2**64),
    "named as number": at("named", to=1),
    "parameters as list": at("parameters", to=[]),
    "unknown parameter": at("parameters", "exec", to="import os"),
    "endless samples": at("parameters", "samples", to=10**12),
    "negative samples": at("parameters", "samples", to=-1),
    "samples as truth": at("parameters", "samples", to=True),
    "endless depth": at("parameters", "hidden", to=[1] * 100_000),
    "hidden as text": at("parameters", "hidden", to="abc"),
    "hidden as number": at("parameters", "hidden", to=50),
    "negative width of a layer": at("parameters", "hidden", to=[-1]),
    "epochs as text": at("parameters", "epochs", to="many"),
    "endless rate": at("parameters", "lr", to=1e308),
    "unknown noise": at("parameters", "noise", to="loud"),
    "whole fraction": at("parameters", "calibration_fraction", to=1.0),
    "device as number": at("parameters", "device", to=3),
    "options as list": at("parameters", "method_options", to=[]),
    "zero scale of the target": at("target", "scale", to=0),
    "negative scale of the target": at("target", "scale", to=-1.0),
    "huge scale of the target": at("target", "scale", to=1e308),
    "scale as text": at("target", "scale", to="1"),
    "no scale": at("target", "scale", to=None),
    "huge mean": at("target", "mean", to=1e308),
    "target without a name": lambda s: s["target"].pop("name"),
    "notes as text": at("target", "notes", to="abc"),
    "names as text": at("columns", "names", to="abc"),
    "a name twice": lambda s: s["columns"]["names"].append("plain"),
    "negative width": at("columns", "scaling", "width", 0, to=-1),
    "zero width": at("columns", "scaling", "width", 0, to=0.0),
    "missing width": at("columns", "scaling", "width", 0, to=None),
    "one width": at("columns", "scaling", "width", to=[1.0]),
    "width as number": at("columns", "scaling", "width", to=1.0),
    "nested width": at("columns", "scaling", "width", 0, to=[1.0]),
    "zero std": at("columns", "scaling", "std", 0, to=0.0),
    "huge median": at("columns", "scaling", "median", 0, to=1e308),
    "flag as number": at("columns", "scaling", "varies", 0, to=1),
    "one feature less": at("columns", "scaling", "varies", 0, to=False),
    "one feature more": at("columns", "scaling", "has_missing", 0, to=True),
    "scaling of another column": at("columns", "scaling", "names", 0, to="absent"),
    "unknown period": at("columns", "cycles", "periods", 0, to="moon"),
    "one period": at("columns", "cycles", "periods", to=["day"]),
    "cycle of another column": at("columns", "cycles", "columns", 0, to="plain"),
    "dates of another column": at("columns", "cycles", "dates", to=["absent"]),
    "nothing kept": at("columns", "categories", 0, "kept", to=[]),
    "kept as text": at("columns", "categories", 0, "kept", to="abc"),
    "kept numbers": at("columns", "categories", 0, "kept", to=[1, 2]),
    "kept twice": lambda s: s["columns"]["categories"][0]["kept"].append(s["columns"]["categories"][0]["kept"][0]),
    "another category": at("columns", "categories", 0, "name", to="absent"),
    "a category less": lambda s: s["columns"]["categories"].pop(),
    "with_invalid_values as text": at("columns", "with_invalid_values", to="dirty"),
    "summary of numbers": at("columns", "summaries", 0, to=[1]),
    "summary without a kind": lambda s: s["columns"]["summaries"][0].pop("kind"),
    "missing beyond all": at("columns", "summaries", 0, "missing", to=2.0),
    "calibrator as text": at("calibrator", to="VarianceScaling"),
    "unknown calibrator": at("calibrator", "name", to="os.system"),
    "negative factor": at("calibrator", "factor", to=-1.0),
    "calibrator of classes": at("calibrator", to={"name": "TemperatureScaling", "temperature": 1.0}),
}


@pytest.mark.parametrize("change", SECTIONS.values(), ids=SECTIONS)
def test_damaged_regressor_section_raises(regressor, change):
    section = json.loads(json.dumps(describe(regressor)))
    assert restore(section, regressor.model_).seed_ == regressor.seed_
    change(section)
    with pytest.raises(LoadError) as caught:
        restore(section, regressor.model_)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert 30 < len(sentence) < 500


CLASSES: dict[str, Change] = {
    "one class": at("target", "classes", to=["low"]),
    "a class more": lambda s: s["target"]["classes"].append("other"),
    "a class twice": at("target", "classes", to=["low", "low", "high"]),
    "classes as text": at("target", "classes", to="abc"),
    "nested classes": at("target", "classes", to=[["a"], ["b"], ["c"]]),
    "classes of objects": at("target", "dtype", to="O"),
    "classes of records": at("target", "dtype", to="i4,i4"),
    "endless labels": at("target", "dtype", to="<U1000000000"),
    "dtype as number": at("target", "dtype", to=3),
    "classes of other types": at("target", "classes", to=["low", 2, None]),
    "numbers as classes": at("target", "dtype", to="<i8"),
    "the other class": at("class", to="Regressor"),
    "calibrator of numbers": at("calibrator", to={"name": "VarianceScaling", "factor": 1.0}),
    "noise": at("parameters", "noise", to="auto"),
}


@pytest.mark.parametrize("change", CLASSES.values(), ids=CLASSES)
def test_damaged_classifier_section_raises(classifier, change):
    section = json.loads(json.dumps(describe(classifier)))
    assert restore(section, classifier.model_).classes_.tolist() == ["high", "low", "middle"]
    change(section)
    with pytest.raises(LoadError):
        restore(section, classifier.model_)


def test_parameters_that_cannot_be_loaded_raise_at_save(regressor, tmp_path):
    model = credo.Regressor("map", epochs=1, samples=10**12).fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 2.0])
    with pytest.raises(InputError, match=r"samples must be an integer from 0 to 100,000, got 1000000000000"):
        model.save(tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_numpy_parameters_round_trip(tmp_path):
    """As a grid search gives them."""
    model = credo.Regressor("map", epochs=np.int64(1), samples=np.int64(7), lr=np.float32(0.5), progress=np.False_)
    model.fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 2.0]).save(tmp_path / "run")
    parameters = credo.load(tmp_path / "run").get_params()
    assert {name: parameters[name] for name in ("epochs", "samples", "lr", "progress")} == {
        "epochs": 1,
        "samples": 7,
        "lr": 0.5,
        "progress": False,
    }


@pytest.fixture(scope="module")
def stored_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stored")
    frame = mixed_frame()[["plain", "word"]].assign(**{TARGET: np.linspace(0.0, 1.0, MIXED_ROWS)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("credo.report.render", lambda *rows, **options: "")
        for seed in (0, 1):
            fit_run(frame, TARGET, method="map", epochs=1, seed=seed).save(folder / f"run{seed}")
    return folder


RECORDS: dict[str, Change] = {
    "no scores": lambda r: r.pop("scores"),
    "unknown entry": at("surprise", to=1),
    "rows that are none": at("rows_held_out", 0, to=-1),
    "rows as text": at("rows_held_out", to="abc"),
    "a row of text": at("rows_held_out", 0, to="0"),
    "a row twice": lambda r: at("rows_held_out", 0, to=r["rows_held_out"][1])(r),
    "a row less": lambda r: r["rows_held_out"].pop(),
    "no rows": lambda r: r.update(rows_held_out=[], held_out_rows=0),
    "another count": at("held_out_rows", to=10**9),
    "another task": at("task", to="classification"),
    "another target": at("target", to="price"),
    "negative seed": at("seed", to=-1),
    "unknown score": at("scores", 0, "name", to="luck"),
    "score as text": at("scores", 0, "value", to="1"),
    "scores as text": at("scores", to="abc"),
    "negative seconds": at("seconds", to=-1.0),
    "no digests": lambda r: r.pop("digests"),
    "another digest": at("digests", "holdout.csv", to="0" * 64),
}


@pytest.mark.parametrize("change", RECORDS.values(), ids=RECORDS)
def test_damaged_run_record_raises(stored_run, tmp_path, change):
    run = Path(shutil.copytree(stored_run / "run0", tmp_path / "run"))
    record = json.loads((run / "run.json").read_text())
    change(record)
    (run / "run.json").write_text(json.dumps(record))
    with pytest.raises(LoadError) as caught:
        open_run(run)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("name", ["model.safetensors", "card.json", "holdout.csv", "run.json"])
def test_files_of_different_runs_raise(stored_run, tmp_path, name):
    run = Path(shutil.copytree(stored_run / "run0", tmp_path / "run"))
    shutil.copy(stored_run / "run1" / name, run / name)
    with pytest.raises(LoadError, match="are not of the same run"):
        open_run(run)


def test_cards_of_credo_0_1_have_the_method_of_their_parameters(tmp_path):
    credo.Regressor("map", epochs=1, random_state=0).fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 2.0]).save(tmp_path / "run")
    card = json.loads((tmp_path / "run" / "card.json").read_text())
    assert (card["estimator"].pop("method"), card["estimator"].pop("method_reason")) == ("map", "as requested")
    (tmp_path / "run" / "card.json").write_text(json.dumps(card))
    assert credo.load(tmp_path / "run").method_ == "map"
