"""Warnings appear where what came true speaks against the predictions, and nowhere else."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from scipy import stats

from credo.report import verdict
from credo.report.forecast import LEVELS, Forecast
from credo.report.page import Verdict

from . import cases


def judged(forecast: Forecast) -> Verdict:
    return verdict.judge(cases.evidence(forecast))


def warnings_of(forecast: Forecast) -> str:
    return " ".join(finding.text for finding in judged(forecast).findings if finding.tone == "warning")


def hints_of(forecast: Forecast) -> str:
    return " ".join(finding.text for finding in judged(forecast).findings if finding.tone == "hint")


@pytest.mark.parametrize("forecast", [cases.numbers(400), cases.classes(400)], ids=["numbers", "classes"])
def test_predictions_without_fault_are_said_to_be_so(forecast: Forecast) -> None:
    found = judged(forecast)
    assert found.tone == "good"
    assert found.title == "Nothing speaks against these predictions"
    assert found.findings[0].tone == "good"
    assert not warnings_of(forecast)


def test_intervals_too_narrow_are_overconfident() -> None:
    forecast = cases.numbers(400, spread=0.5)
    text = warnings_of(forecast)
    # Φ(±0.98) holds 67 % where 95 % were promised.
    level, observed = next((level, share) for level, share in forecast.coverage.items() if f"{level:.0%}"[:-1] in text)
    assert f"{100 * level:.0f} % intervals cover {100 * observed:.0f} % of 400 held-out rows: overconfident" in text
    assert "underconfident" not in text
    assert "Recalibration" in text
    assert judged(forecast).tone == "warning"


def test_intervals_too_wide_are_underconfident() -> None:
    text = warnings_of(cases.numbers(400, spread=2.0))
    assert ": underconfident" in text
    assert "overconfident" not in text


def test_what_few_rows_show_may_be_chance() -> None:
    """Half of ten rows outside 80 % intervals is rare; two or three are not, and are not called a fault."""
    forecast = next(
        f
        for seed in range(100)
        if (f := cases.numbers(10, seed=seed)).coverage[0.8] == 0.6  # p = 0.12
    )
    assert "confident" not in warnings_of(forecast)
    assert "only 10 held-out rows" in warnings_of(forecast)


def test_intervals_are_blamed_no_oftener_than_their_tests_say() -> None:
    """100 predictions without fault: each of three tests may err in 1 % of cases."""
    blamed = sum(bool(list(verdict._on_coverage(cases.numbers(60, seed=seed)))) for seed in range(100))
    assert blamed <= stats.binom.ppf(1 - 1e-4, 100, len(LEVELS) * verdict.SIGNIFICANCE)


def test_probabilities_are_blamed_no_oftener_than_their_test_says() -> None:
    blamed = sum(bool(list(verdict._on_reliability(cases.classes(60, seed=seed)))) for seed in range(15))
    assert blamed <= stats.binom.ppf(1 - 1e-4, 15, verdict.SIGNIFICANCE)


@pytest.mark.parametrize(("rows", "warned"), [(verdict.FEW_ROWS - 1, True), (verdict.FEW_ROWS, False)])
def test_few_rows_are_warned_of(rows: int, warned: bool) -> None:
    assert ("There are only" in warnings_of(cases.numbers(rows))) is warned


def test_no_better_than_the_mean() -> None:
    forecast = cases.numbers(200)
    backwards = Forecast(forecast.p, -forecast.y, 0)
    assert "no better than always predicting the mean" in warnings_of(backwards)
    assert "R²" not in warnings_of(forecast)


def test_hardly_better_than_the_mean() -> None:
    """With one part in 200 of the variance explained, 60 rows cannot tell."""
    forecast = next(f for seed in range(50) if (f := cases.numbers(60, signal=0.07, seed=seed)).score("r2").value > 0.0)
    assert "not shown to be better than always predicting the mean" in warnings_of(forecast)


def test_three_rows_are_too_few_to_beat_the_mean() -> None:
    assert "of too few rows to say whether that beats always predicting the mean" in warnings_of(cases.numbers(3))


def test_equal_targets_explain_nothing() -> None:
    forecast = cases.numbers(60, signal=0.0)
    equal = Forecast(forecast.p, torch.zeros(60, dtype=torch.float64), 0)
    assert "All held-out targets are equal" in warnings_of(equal)


@pytest.mark.parametrize(("shift", "word"), [(0.5, "low"), (-0.5, "high"), (0.0, None)])
def test_a_bias_is_told_with_its_direction(shift: float, word: str | None) -> None:
    """Targets half a standard deviation off, ten standard errors of the mean of 400 rows."""
    forecast = cases.numbers(400)
    text = warnings_of(Forecast(forecast.p, forecast.y + shift, 0))
    assert ("Predictions are too" in text) is (word is not None)
    assert word is None or f"too {word} by" in text


def test_sharpened_probabilities_are_overconfident() -> None:
    text = warnings_of(cases.classes(400, temperature=0.3))
    assert ": overconfident (ECE" in text
    assert "underconfident" not in text


def test_blurred_probabilities_are_underconfident() -> None:
    text = warnings_of(cases.classes(400, temperature=4.0))
    assert ": underconfident (ECE" in text
    assert "overconfident" not in text


def test_probabilities_wrong_on_both_sides() -> None:
    sharp, blurred = cases.classes(300, temperature=0.3), cases.classes(300, temperature=4.0, scale=4.0, seed=1)
    parts = [f.p.components.log_p for f in (sharp, blurred)]
    p = replace(sharp.p, components=replace(sharp.p.components, log_p=torch.cat(parts, 1)))
    text = warnings_of(Forecast(p, torch.cat([sharp.y, blurred.y]), 0))
    assert "too sure of some answers and not sure enough of others" in text


def test_no_better_than_the_most_frequent_class() -> None:
    """Every answer is class 0; most rows are class 1."""
    logits = torch.tensor([[0.2, 0.0, 0.0]], dtype=torch.float64).expand(100, 3)
    p = cases.classes(100).p
    p = replace(p, components=replace(p.components, log_p=logits.log_softmax(-1)[None]))
    y = torch.tensor([1] * 60 + [0] * 20 + [2] * 20)
    text = warnings_of(Forecast(p, y, 0))
    assert "named for 20 % of rows: no better than always answering “class 1”, which is right for 60 %" in text
    assert "most frequent" not in text
    assert "better than" not in warnings_of(cases.classes(400))


def test_hardly_better_than_the_most_frequent_class() -> None:
    """Two answers more than the most frequent class has rows: McNemar's p = ¼."""
    y = torch.tensor([0] * 60 + [1] * 40)
    logits = torch.zeros(100, 2, dtype=torch.float64)
    logits[:, 0] = 0.5
    logits[60:62, 0] = -0.5
    p = cases.classes(100, count=2).p
    p = replace(p, components=replace(p.components, log_p=logits.log_softmax(-1)[None]))
    assert "named for 62 % of rows: not shown to be better" in warnings_of(Forecast(p, y, 0))


def test_classes_without_rows_are_named() -> None:
    forecast = cases.classes(200, count=4)
    present = forecast.y < 2
    part = Forecast(forecast.p[present], forecast.y[present], 0)
    assert "2 of 4 classes have no held-out row: “class 2”, “class 3”." in warnings_of(part)


def test_where_the_uncertainty_comes_from_is_a_hint() -> None:
    assert "80 %, is epistemic: more rows" in hints_of(cases.numbers(200, epistemic=0.8))
    assert "80 %, is aleatoric: more rows will not help much" in hints_of(cases.numbers(200, epistemic=0.2))
    assert "50 % is epistemic and 50 % aleatoric: more rows" in hints_of(cases.numbers(200, epistemic=0.5))
    assert "no epistemic part" in hints_of(cases.numbers(200, epistemic=0.0))
    assert "no epistemic part" in hints_of(cases.classes(200))


def test_a_model_without_skill_says_nothing_of_the_source() -> None:
    forecast = cases.numbers(200)
    assert "epistemic" not in hints_of(Forecast(forecast.p, -forecast.y, 0))


def test_data_that_could_not_be_used_is_a_hint() -> None:
    made = cases.evidence(cases.numbers(60))
    found = replace(made, model=cases.regressor(), remarks=("A remark.",))
    texts = [finding.text for finding in verdict.judge(found).findings if finding.tone == "hint"]
    assert "1 of 5 columns could not be used: “constant”." in texts
    assert "A remark." in texts


def test_no_recalibration_is_advised_to_a_calibrated_model() -> None:
    forecast = cases.numbers(400, spread=0.5)
    calibrated = replace(cases.evidence(forecast), model=cases.regressor(calibrate="variance"))
    assert "Recalibration" not in " ".join(finding.text for finding in verdict.judge(calibrated).findings)


def test_several_methods_are_judged_by_name() -> None:
    good, bad = cases.numbers(400), cases.numbers(400, spread=0.5)
    assert verdict.judge_several({"A": good}).tone == "good"
    found = verdict.judge_several({"A": good, "B": bad}).findings
    assert [finding.text.split(":")[0] for finding in found] == ["B"]
