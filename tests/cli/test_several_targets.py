"""Several targets on the command line: fit, predict, evaluate, explain and report."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest


@pytest.fixture
def run(call, tmp_path, quick_report):
    """A run of two targets, and its table; one network, so that explanations have no band."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    noise = rng.normal(0, 0.1, (60, 2))
    frame = pd.DataFrame({"u": X[:, 0], "v": X[:, 1], "price": X[:, 0] + noise[:, 0], "rent": X[:, 1] + noise[:, 1]})
    frame.to_csv("data.csv", index=False)
    words = ("--target", "price,rent", "--joint-noise", "--method", "map", "--epochs", 5)
    result = call("fit", "data.csv", *words)
    assert result.exit_code == 0, result.output
    for text in ("of 2 targets", "target price", "target rent", "credo report run --target price"):
        assert text in result.stdout
    return tmp_path / "run"


def test_prediction_has_the_columns_of_each_target(call, run):
    result = call("predict", "run", "data.csv", "--out", "out.csv")
    assert result.exit_code == 0, result.output
    found = pd.read_csv("out.csv")
    assert len(found) == 60
    columns = ("mean", "std", "epistemic", "aleatoric", "lower", "upper")
    expected = [f"{name}_{column}" for name in ("price", "rent") for column in columns]
    assert list(found) == [*expected, "correlation_price_rent"]
    assert found["correlation_price_rent"].abs().max() <= 1


def test_one_target_is_evaluated_explained_and_reported(call, run, quick_report):
    result = call("evaluate", "run", "data.csv", "--target", "rent", "--json")
    assert result.exit_code == 0, result.output
    assert {score["name"] for score in json.loads(result.stdout)["scores"]} >= {"nll", "rmse"}
    result = call("explain", "run", "--data", "data.csv", "--target", "price")
    assert result.exit_code == 0, result.output
    assert "nan" not in result.stdout
    assert "of draws" not in result.stdout
    assert call("report", "run", "--target", "rent", "--out", "rent.html").exit_code == 0
    assert quick_report[-1][0][0].target_.name == "rent"
    for words in (("report", "run"), ("evaluate", "run", "data.csv"), ("explain", "run", "--target", "rnet")):
        result = call(*words)
        assert result.exit_code == 1
        assert "choose one of the targets 'price', 'rent'" in " ".join(result.stderr.split())


def test_unknown_and_repeated_targets_are_refused(call, run):
    result = call("fit", "data.csv", "--target", "price,rnet", "--out", "other")
    assert result.exit_code == 1
    assert "rent" in result.stderr
    result = call("fit", "data.csv", "--target", "price,price", "--out", "other")
    assert "twice" in result.stderr
