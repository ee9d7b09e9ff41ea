"""The report: complete, self-contained, accessible, and safe for any data."""

from __future__ import annotations

import base64
import re
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
import torch

import credo
from credo import calibration, report
from credo.errors import InputError
from credo.report import page as page_module
from credo.report.holdout import evaluate_holdout
from credo.report.page import POLICY
from credo.tabular.runs import LabeledRows, evaluate

from . import cases

SECTIONS = ["metrics", "calibration", "uncertainty", "drivers", "rows", "observed", "data", "training", "glossary"]


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return {
        "numbers": report.render(cases.regressor(), *cases.held_out("amount"), source="<table>.csv"),
        "classes": report.render(cases.classifier(), *cases.held_out("kind")),
    }


@pytest.fixture
def without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty figures for tests of the text, because drawing takes most of the time."""
    monkeypatch.setattr(page_module, "_draw_svg", lambda plot, width, height: b"")


@pytest.fixture(params=["numbers", "classes"])
def page(request: pytest.FixtureRequest, pages: dict[str, str]) -> str:
    return pages[request.param]


def test_order_of_sections(page: str) -> None:
    outline = cases.Outline(page)
    assert [attributes["id"] for attributes in outline.all("section")] == SECTIONS
    links = [attributes["href"] for attributes in outline.all("a")]
    assert links == [f"#{anchor}" for anchor in SECTIONS]


def test_policy_precedes_the_content(page: str) -> None:
    metas = cases.Outline(page).all("meta")
    assert [sorted(meta)[0] for meta in metas][:2] == ["charset", "content"]
    assert metas[1] == {"http-equiv": "Content-Security-Policy", "content": POLICY}
    assert page.index("Content-Security-Policy") < page.index("<title>") < page.index("<style>")
    assert "'none'" in POLICY
    assert "script" not in POLICY


def test_headings_are_in_order(page: str) -> None:
    levels = [int(tag[1]) for tag, _ in cases.Outline(page).tags if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(deeper <= level + 1 for level, deeper in pairwise(levels))


def test_page_is_accessible(page: str) -> None:
    outline = cases.Outline(page)
    assert outline.all("html")[0]["lang"] == "en"
    assert "width=device-width" in str([a["content"] for a in outline.all("meta") if a.get("name") == "viewport"])
    assert all(attributes.get("scope") in ("col", "row") for attributes in outline.all("th"))
    assert len(outline.all("table")) == len(outline.all("caption"))
    for image in outline.all("img"):
        alt = image["alt"] or ""
        assert len(alt) > 40
        assert re.search(r"\d", alt), f"no number in {alt!r}"
    for region in [a for tag, a in outline.tags if a.get("role") == "region"]:
        assert region["aria-label"]
        assert region["tabindex"] == "0"  # can be scrolled by keyboard


def test_page_is_self_contained(page: str) -> None:
    assert not re.search(r"https?://|url\(|@import|<script|<link|<iframe|\son\w+=", page)
    sources = [str(attributes["src"]) for _, attributes in cases.Outline(page).tags if "src" in attributes]
    assert sources
    assert all(source.startswith("data:image/svg+xml;base64,") for source in sources)


def test_text_contrast(pages: dict[str, str]) -> None:
    """At least 4.5 to 1 in light and in dark mode, as WCAG 2 requires of text."""
    for scheme in re.findall(r":root \{[^}]*--page[^}]*\}", pages["numbers"]):
        color = dict(re.findall(r"--([\w-]+): (#\w{6})", scheme))
        for ink, sheet in (
            *((ink, sheet) for ink in ("ink", "quiet") for sheet in ("sheet", "tile", "warning-sheet", "good-sheet")),
            *(("accent", "sheet"), ("warning", "warning-sheet"), ("good", "good-sheet"), ("quiet", "page")),
        ):
            light, dark = sorted((_luminance(color[ink]), _luminance(color[sheet])), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 4.5, f"{ink} on {sheet}"


def test_figures_are_valid_svg(page: str) -> None:
    for image in cases.Outline(page).all("img"):
        svg = base64.b64decode(str(image["src"]).split(",")[1])
        assert ElementTree.fromstring(svg).tag.endswith("svg")


def test_data_are_escaped(page: str) -> None:
    outline = cases.Outline(page)
    assert cases.HOSTILE[:20] in outline.text
    assert {"script", "b", "i"}.isdisjoint(tag for tag, attributes in outline.tags if tag != "b")
    assert outline.all("b") == [] or "Warning." in outline.text
    assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e]", page)
    page.encode("utf-8")


def test_summary_is_in_the_unit_of_the_target(pages: dict[str, str]) -> None:
    model, (X, y) = cases.regressor(), cases.held_out("amount")
    p, truth = model.predict_dist(X), torch.tensor(y.to_numpy())
    text = cases.text_of(pages["numbers"])
    assert f"(RMSE {credo.metrics.rmse(p, truth):.2f}; always predicting the mean gives" in text
    assert f"95 % intervals cover {credo.metrics.coverage(p, truth):.0%}".replace("%.", " %")[:-1] in text
    assert "Predicting “amount”" in text
    assert "<table>.csv" in text
    assert "trained on 120 rows" in text


def test_scores_are_those_of_the_library(pages: dict[str, str]) -> None:
    model, (X, y) = cases.classifier(), cases.held_out("kind")
    p, truth = model.predict_dist(X), torch.from_numpy(model.target_.encode(y))
    text = cases.text_of(pages["classes"])
    for score in credo.metrics.scores(p, truth):
        assert score.meaning[1:] in text
    assert f"{credo.metrics.accuracy(p, truth):.0%}".replace("%", " %") in text
    assert f"{credo.metrics.nll(p, truth):.3f}"[:4] in text


def test_report_is_deterministic(pages: dict[str, str]) -> None:
    assert report.render(cases.regressor(), *cases.held_out("amount"), source="<table>.csv") == pages["numbers"]


@pytest.mark.usefixtures("without_figures")
def test_report_on_an_existing_evaluation_is_the_same() -> None:
    model, (X, y) = cases.regressor(), cases.held_out("amount")
    page = report.render(model, X, y)
    for level in (0.95, 0.5):  # the scores of another level are not used
        assert report.render(model, X, y, evaluation=evaluate(model, LabeledRows(X, y), level)) == page


def test_loaded_model_gives_the_same_report(tmp_path: Path, pages: dict[str, str]) -> None:
    cases.classifier().save(tmp_path / "run")
    assert report.render(credo.load(tmp_path / "run"), *cases.held_out("kind")) == pages["classes"]


@pytest.mark.usefixtures("without_figures")
@pytest.mark.parametrize("method", ["mc_dropout", "ensemble", "map"])
def test_every_method(method: str) -> None:
    text = cases.text_of(report.render(cases.regressor(method=method), *cases.held_out("amount")))
    assert credo.tabular.methods.get(method).title in text
    assert ("this method does not estimate the uncertainty of the model itself" in text) is (method == "map")


@pytest.mark.parametrize("calibrate", ["variance", "quantile", "conformal"])
def test_calibrated_numbers(calibrate: str) -> None:
    model = cases.regressor(calibrate=calibrate, calibration_fraction=0.45)
    text = cases.text_of(report.render(model, *cases.held_out("amount")))
    assert type(model.calibrator_).__name__ in text
    assert ("without the conformal correction, which changes the intervals only" in text) is (calibrate == "conformal")


@pytest.mark.usefixtures("without_figures")
def test_calibrated_classes() -> None:
    text = cases.text_of(report.render(cases.classifier(calibrate="temperature"), *cases.held_out("kind")))
    assert "TemperatureScaling" in text


@pytest.mark.usefixtures("without_figures")
def test_miscalibrated_model_gives_a_warning() -> None:
    model, (X, y) = cases.fitted(credo.Regressor, *_trained("amount")), cases.held_out("amount")
    right = calibration.VarianceScaling().fit(model.predict_dist(X), torch.tensor(y.to_numpy()))
    assert right.factor is not None
    for factor, fault in ((0.3, "overconfident"), (1.0, None), (3.0, "underconfident")):
        model.calibrator_ = calibration.VarianceScaling(factor * right.factor)
        text = cases.text_of(report.render(model, X, y))
        assert re.findall(r"held-out rows: (\w+confident)", text) == [fault] * (fault is not None)


@pytest.mark.parametrize("form", [list, np.asarray, pd.DataFrame, torch.tensor])
def test_targets_in_any_form(form: Any) -> None:
    X, y = cases.held_out("amount", 1)
    found = evaluate_holdout(cases.regressor(), X, form(y.to_numpy()), 0)
    assert found.scored.y.tolist() == pytest.approx(y.tolist())


@pytest.mark.parametrize(("target", "rows"), [("amount", 1), ("amount", 2), ("kind", 1)])
def test_few_rows(target: str, rows: int) -> None:
    model = cases.regressor() if target == "amount" else cases.classifier()
    assert "There are only" in cases.text_of(report.render(model, *cases.held_out(target, rows)))


def test_many_classes_with_long_names() -> None:
    names = [f"{'très ' * k}long 名前 $ {k}" for k in range(20)]
    rng = np.random.default_rng(0)
    label = rng.integers(20, size=300)
    X = pd.DataFrame({"a": label + 0.1 * rng.normal(size=300), "b": rng.normal(size=300)})
    y = pd.Series([names[k] for k in label], name="n" * 300)
    model = cases.fitted(credo.Classifier, X[:150], y[:150], epochs=20)
    html = report.render(model, X[150:], y[150:])
    assert "All 20 classes" in html
    assert max(map(len, cases.text_of(html).split())) < 120


def test_many_columns_are_capped() -> None:
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(60, 2000)), columns=[f"column_{j}" for j in range(2000)])
    model = cases.fitted(credo.Regressor, X[:40], X[:40]["column_0"].rename("y"), epochs=1, hidden=(2,))
    html = report.render(model, X[40:], X[40:]["column_0"])
    text = cases.text_of(html)
    assert "The first 60 of 2,000 training columns" in text
    assert "column_59" in text
    assert "column_1500" not in text
    assert len(html) < 500_000


def test_report_on_many_rows_is_small() -> None:
    X, _ = cases.held_out("amount")
    many = pd.concat([X] * 10, ignore_index=True)
    y = pd.Series(np.random.default_rng(0).normal(size=len(many)))
    assert len(report.render(cases.regressor(), many, y)) < 1_500_000


@pytest.mark.usefixtures("without_figures")
def test_missing_cells_and_row_names(pages: dict[str, str]) -> None:
    X, y = cases.held_out("amount")
    named = X.set_axis([f"customer {i}" for i in range(len(X))], axis=0)
    text = cases.text_of(report.render(cases.regressor(), named, y.to_numpy()))
    assert re.search(r"customer \d+", text)
    assert " missing " in cases.text_of(pages["numbers"])


@pytest.mark.usefixtures("without_figures")
def test_arrays_without_column_names() -> None:
    A = np.random.default_rng(0).normal(size=(120, 3))
    model = cases.fitted(credo.Regressor, A[:60], A[:60, 0])
    text = cases.text_of(report.render(model, A[60:], A[60:, 0]))
    assert "Predicting the target" in text
    assert " x2 " in text
    assert " x2 " in cases.text_of(report.render(model, pd.DataFrame(A[60:], columns=list("abc")), A[60:, 0]))


@pytest.mark.usefixtures("without_figures")
def test_notes_about_the_rows() -> None:
    X, y = cases.held_out("amount")
    word = next(column for column in X if "気温" in column)
    X, y = X.assign(**{word: ["never seen", *X[word][1:]]}), y.copy()
    y.iloc[-2:] = np.nan
    text = cases.text_of(report.render(cases.regressor(), X, y))
    assert "Categories that training did not have count as other" in text
    assert "because the target is missing: 2 held-out rows" in text
    assert "98 held-out rows" in text


@pytest.mark.usefixtures("without_figures")
def test_title_and_source() -> None:
    text = cases.text_of(report.render(cases.classifier(), *cases.held_out("kind"), title="<My> title", source="a b"))
    assert text.startswith("<My> title <My> title a b")


def test_bad_arguments_raise() -> None:
    X, y = cases.held_out("amount")
    with pytest.raises(InputError, match=r"must be a fitted credo\.Regressor or credo\.Classifier, got MLP"):
        report.render(credo.architectures.MLP(2), X, y)
    with pytest.raises(ValueError, match="not fitted"):
        report.render(credo.Regressor(), X, y)
    with pytest.raises(InputError, match="same number of rows, got 100 and 99"):
        report.render(cases.regressor(), X, y[1:])
    with pytest.raises(InputError, match=r"one value per row, got shape \[100, 2\]"):
        report.render(cases.regressor(), X, np.zeros((100, 2)))
    with pytest.raises(InputError, match="got none in 100 rows"):
        report.render(cases.regressor(), X, np.full(100, np.nan))
    evaluation = evaluate(cases.regressor(), LabeledRows(X, y))
    with pytest.raises(InputError, match="must be about the 99 rows with a target, got 100"):
        report.render(cases.regressor(), X[1:], y[1:], evaluation=evaluation)
    with pytest.raises(InputError, match="seed"):
        report.render(cases.regressor(), X, y, seed=-1)
    with pytest.raises(InputError, match="none of the 2 classes of training"):
        report.render(cases.classifier(), X, ["other"] * 100)


def test_diverged_model_raises() -> None:
    model = cases.fitted(credo.Regressor, *_trained("amount"))
    with torch.no_grad():
        next(model.model_.net.parameters()).fill_(torch.nan)
    with pytest.raises(InputError, match="predicts NaN or infinity for 100 of 100 rows"):
        report.render(model, *cases.held_out("amount"))


@pytest.mark.usefixtures("without_figures")
def test_write_leaves_no_partial_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.html"
    X, y = cases.held_out("kind")
    assert report.write(path, cases.classifier(), X, y, title="first") == path
    assert path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    with pytest.raises(InputError, match="same number of rows"):
        report.write(path, cases.classifier(), X, y[1:])
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]
    assert "first" in path.read_text(encoding="utf-8")
    with pytest.raises(InputError, match="folder"):
        report.write(tmp_path, cases.classifier(), X, y)


def _luminance(color: str) -> float:
    """Relative luminance of #rrggbb, as WCAG 2 defines it."""
    channels = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _trained(target: str) -> tuple[Any, Any]:
    rows = cases.table()[: cases.TRAINED]
    return rows.drop(columns=["amount", "kind"]), rows[target]
