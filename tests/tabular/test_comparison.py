"""Comparison of methods: folds, paired differences and the verdict."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest
import torch

import credo
from credo.errors import InputError
from credo.metrics import Score
from credo.predictive import ClassPredictive, RealPredictive
from credo.predictive.classes import CategoricalComponents
from credo.predictive.location_scale import GaussianComponents
from credo.tabular import methods as registry
from credo.tabular.comparison import FILES, Comparison, Gap, MethodResult, _default_methods, compare
from tabular.hostile import TARGET, good_columns

ROWS = 400


def result(name: str, nll: torch.Tensor) -> MethodResult:
    """A method whose −log p(0) of every row is ``nll``: a Gaussian of unit variance, as far from 0 as that takes."""
    mean = (2 * (nll - 0.5 * math.log(2 * math.pi))).sqrt()
    p = RealPredictive(GaussianComponents(mean[None], torch.zeros_like(mean)[None]))
    value = float(nll.mean())
    return MethodResult(name, name.upper(), [Score("nll", value, value, value)], [value], 1.0, p)


def comparison(*results: MethodResult) -> Comparison:
    rows = len(results[0].predictive)
    return Comparison("regression", "y", rows, 5, torch.zeros(rows, dtype=torch.float64), list(results))


def hard_and_easy(rows: int = ROWS) -> torch.Tensor:
    """−log p of rows that differ far more than methods do."""
    return 2.0 + 3.0 * torch.rand(rows, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def noise(scale: float, rows: int = ROWS) -> torch.Tensor:
    values = torch.randn(rows, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return scale * (values - values.mean()) / values.std()


def test_differences_are_paired_row_by_row():
    base = hard_and_easy()
    compared = comparison(result("a", base + 0.05 + noise(0.1)), result("b", base))
    (gap,) = compared.gaps
    assert compared.best.name == "b"
    assert (gap.name, gap.title) == ("a", "A")
    assert gap.mean == pytest.approx(0.05)
    assert gap.standard_error == pytest.approx(0.1 / math.sqrt(ROWS))
    # Unpaired, the rows' own spread would hide it.
    assert gap.mean < 2 * float(base.std()) / math.sqrt(ROWS)
    assert gap.is_clear


def test_verdict_for_a_clear_difference():
    base = hard_and_easy()
    compared = comparison(
        result("a", base), result("b", base + 0.5 + noise(0.2)), result("c", base + 0.05 + noise(0.1))
    )
    assert compared.verdict == (
        "A predicts best, beyond what chance explains. Behind it in mean log likelihood, in nats per row: "
        "C by 0.0500 ± 0.0050; B by 0.500 ± 0.010 (± standard error of the paired differences over 400 rows)."
    )


def test_verdict_for_an_unclear_difference():
    base = hard_and_easy()
    compared = comparison(
        result("a", base), result("b", base + 0.01 + noise(0.2)), result("c", base + 0.05 + noise(0.1))
    )
    assert compared.verdict == (
        "A comes out first, but that may be chance: it is less than 2 standard errors ahead of B. Behind it in mean "
        "log likelihood, in nats per row: B by 0.010 ± 0.010; C by 0.0500 ± 0.0050 (± standard error of the paired "
        "differences over 400 rows)."
    )


def test_verdict_for_equal_predictions():
    base = hard_and_easy()
    compared = comparison(result("a", base), result("b", base))
    assert not compared.gaps[0].is_clear
    assert "ahead of B" in compared.verdict
    assert "B by 0.00 ± 0.00" in compared.verdict


def test_verdict_for_a_single_method():
    assert comparison(result("a", hard_and_easy())).verdict == (
        "Only A was tried, so there is nothing to compare it with."
    )


def test_zero_probability_gives_an_infinite_gap():
    y = torch.tensor([0, 1])

    def of_classes(name, probabilities):
        p = ClassPredictive(CategoricalComponents(torch.tensor(probabilities, dtype=torch.float64).log()[None]))
        nll = -float(p.log_prob(y).mean())
        return MethodResult(name, name, [Score("nll", nll, nll, nll)], [nll], 1.0, p)

    sure, fair = of_classes("sure", [[1.0, 0.0], [1.0, 0.0]]), of_classes("fair", [[0.5, 0.5], [0.5, 0.5]])
    compared = Comparison("classification", "y", 2, 2, y, [sure, fair])
    assert compared.best.name == "fair"
    assert compared.gaps[0].is_clear
    assert "sure by infinity, because it gave a target zero probability" in compared.verdict
    assert json.dumps(compared.record()["best"]) == '"fair"'


def test_undefined_score_is_not_best():
    good, bad = result("good", hard_and_easy()), result("bad", hard_and_easy() + math.nan)
    assert comparison(bad, good).best.name == "good"


@pytest.mark.parametrize(
    ("gap", "words"),
    [
        (Gap("a", "A", 0.123456, 0.0123), "A by 0.123 ± 0.012"),
        (Gap("a", "A", 123.456, 20.5), "A by 123 ± 20"),
        (Gap("a", "A", 0.5, math.nan), "A by 0.50 ± nan"),
    ],
)
def test_gap_is_rounded_to_its_standard_error(gap, words):
    assert str(gap) == words


def frame(rows=40):
    return pd.DataFrame(good_columns(rows))


def test_rows_are_predicted_by_models_not_trained_on_them(monkeypatch):
    log = []
    fit, predict_dist = credo.Regressor.fit, credo.Regressor.predict_dist

    def spy_fit(self, x, y):
        log.append((self.method, set(x.index), set()))
        return fit(self, x, y)

    def spy_predict(self, x):
        log[-1][2].update(x.index)
        return predict_dist(self, x)

    monkeypatch.setattr(credo.Regressor, "fit", spy_fit)
    monkeypatch.setattr(credo.Regressor, "predict_dist", spy_predict)
    compare(frame(), TARGET, task="regression", methods=["map", "bbb"], folds=4, epochs=1)
    assert [method for method, *_ in log] == ["map"] * 4 + ["bbb"] * 4
    for _, trained, tested in log:
        assert trained | tested == set(range(40))
        assert not trained & tested
    for k in range(4):
        assert log[k][2] == log[4 + k][2]
    assert set().union(*(tested for *_, tested in log[:4])) == set(range(40))


def test_predictions_are_in_table_order():
    told = []
    compared = compare(frame(), TARGET, task="regression", methods=["map"], folds=4, epochs=1, progress=told.append)
    (result,) = compared.results
    # What the targets went through, a standardization in float32, moves them by 2⁻²⁴ of their spread.
    np.testing.assert_allclose(compared.y, frame()[TARGET], rtol=1e-6, atol=1e-6)
    assert (compared.n_rows, compared.folds, len(result.predictive), len(result.fold_nll)) == (40, 4, 40, 4)
    pooled = credo.metrics.nll(result.predictive, compared.y)
    assert result.nll == pytest.approx(pooled)
    assert np.mean(result.fold_nll) == pytest.approx(pooled)  # folds of equal size
    assert told == [*(f"MAP, one network, fold {k} of 4" for k in (1, 2, 3, 4)), "MAP, one network, scores"]


def test_same_seed_gives_same_comparison():
    a, b, c = (
        compare(frame(), TARGET, task="regression", methods=["map"], folds=2, epochs=1, seed=seed).results[0].nll
        for seed in (1, 1, 2)
    )
    assert a == b != c


def test_single_row_classes_and_missing_targets_are_left_out():
    y = ["rare", None, *"ab" * 19]
    with pytest.warns(UserWarning, match=".") as caught:
        compared = compare(frame().assign(y=y), TARGET, task="classification", methods=["map"], folds=3, epochs=1)
    said = [str(warning.message) for warning in caught]
    assert len(said) == len(set(said)) == 3
    assert any("target is missing: 1 of 40 rows" in note for note in said)
    assert any("Left out of the comparison" in note and "'rare'" in note for note in said)
    assert compared.n_rows == 38
    assert compared.y.tolist() == [0, 1] * 19
    assert compared.results[0].predictive.mean.shape == (38, 2)


def test_samplers_are_compared_by_default_if_the_table_is_small_and_no_epochs_are_given():
    trained = [name for name in registry.names() if registry.get(name).has_epochs]
    assert set(_default_methods(500, None)) == {*trained, "hmc"}
    assert _default_methods(50_000, None) == _default_methods(500, 3) == trained


def test_notes_are_issued_once():
    given = frame().assign(c=7, g=[None, *range(39)], color=["once", *["red", "blue", "green"] * 13])
    with pytest.warns(UserWarning, match=".") as caught:
        compare(given, TARGET, task="regression", methods=["map", "bbb"], folds=3, epochs=1)
    said = [str(warning.message) for warning in caught]
    assert len(said) == len({note.partition(":")[0] for note in said})
    assert any("all values are the same: 'c'" in note for note in said)


def test_comparison_is_saved_to_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("credo.report.render_comparison", lambda compared: "<p>page</p>")
    compared = compare(frame(), TARGET, task="regression", methods=["map", "bbb"], folds=2, epochs=1)
    compared.save(tmp_path / "compare")
    assert sorted(path.name for path in (tmp_path / "compare").iterdir()) == sorted(FILES)
    record = json.loads((tmp_path / "compare" / "compare.json").read_text())
    assert record["verdict"] == compared.verdict
    assert record["gaps"][0]["mean"] == pytest.approx(compared.gaps[0].mean)
    assert [len(entry["fold_nll"]) for entry in record["results"]] == [2, 2]
    (tmp_path / "compare" / "compare.json").unlink()
    with pytest.raises(InputError, match="holds other things"):
        compared.save(tmp_path / "compare")


def test_comparison_page_is_html():
    compared = compare(frame(), TARGET, task="regression", methods=["map", "bbb"], folds=2, epochs=1)
    assert credo.report.render_comparison(compared).lower().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"methods": ["bb"]}, "did you mean 'bbb'"),
        ({"target": "Y"}, "unknown target 'Y'"),
        ({"folds": 30}, "folds must be between 2 and 20, half of the rows, got 30"),
        ({"folds": 1}, "got 1"),
        ({"task": "classification"}, "continuous"),
    ],
)
def test_bad_arguments_raise_before_training(options, words):
    arguments = {"target": TARGET, "task": "regression", "epochs": 1} | options
    with pytest.raises(InputError, match=words):
        compare(frame(), arguments.pop("target"), **arguments)


def test_too_few_frequent_classes_raise():
    with (
        pytest.raises(InputError, match="fewer than two classes with at least two rows"),
        pytest.warns(UserWarning, match="."),
    ):
        compare(frame(3).assign(y=["a", "a", "b"]), TARGET, task="classification", epochs=1)
