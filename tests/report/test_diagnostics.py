"""Warnings appear if the targets contradict the predictions, and only then."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from scipy import stats

from credo.report import diagnostics
from credo.report.holdout import LEVELS, ScoredPredictions
from credo.report.page import Diagnostics

from . import cases


def diagnose(scored: ScoredPredictions) -> Diagnostics:
    return diagnostics.diagnose(cases.holdout_result(scored))


def warnings_of(scored: ScoredPredictions) -> str:
    return " ".join(finding.text for finding in diagnose(scored).findings if finding.tone == "warning")


def hints_of(scored: ScoredPredictions) -> str:
    return " ".join(finding.text for finding in diagnose(scored).findings if finding.tone == "hint")


@pytest.mark.parametrize("scored", [cases.numbers(400), cases.classes(400)], ids=["numbers", "classes"])
def test_calibrated_predictions_give_no_warnings(scored: ScoredPredictions) -> None:
    found = diagnose(scored)
    assert found.tone == "good"
    assert found.title == "No problems found"
    assert found.findings[0].tone == "good"
    assert not warnings_of(scored)


def test_narrow_intervals_are_overconfident() -> None:
    scored = cases.numbers(400, spread=0.5)
    text = warnings_of(scored)
    # Φ(±0.98) covers 67 % at a level of 95 %.
    level, observed = next((level, share) for level, share in scored.coverage.items() if f"{level:.0%}"[:-1] in text)
    assert f"{100 * level:.0f} % intervals cover {100 * observed:.0f} % of 400 held-out rows: overconfident" in text
    assert "underconfident" not in text
    assert "Recalibration" in text
    assert diagnose(scored).tone == "warning"


def test_wide_intervals_are_underconfident() -> None:
    text = warnings_of(cases.numbers(400, spread=2.0))
    assert ": underconfident" in text
    assert "overconfident" not in text


def test_few_rows_give_no_calibration_warning() -> None:
    """Five of ten rows outside 80 % intervals are significant; two to four are not."""
    scored = next(
        f
        for seed in range(100)
        if (f := cases.numbers(10, seed=seed)).coverage[0.8] == 0.6  # p = 0.12
    )
    assert "confident" not in warnings_of(scored)
    assert "only 10 held-out rows" in warnings_of(scored)


def test_false_positive_rate_of_intervals() -> None:
    """100 calibrated predictions: each of three tests warns with a probability of 1 %."""
    n_warnings = sum(bool(list(diagnostics._check_coverage(cases.numbers(60, seed=seed)))) for seed in range(100))
    assert n_warnings <= stats.binom.ppf(1 - 1e-4, 100, len(LEVELS) * diagnostics.SIGNIFICANCE)


def test_false_positive_rate_of_probabilities() -> None:
    n_warnings = sum(bool(list(diagnostics._check_reliability(cases.classes(60, seed=seed)))) for seed in range(15))
    assert n_warnings <= stats.binom.ppf(1 - 1e-4, 15, diagnostics.SIGNIFICANCE)


@pytest.mark.parametrize(("rows", "warned"), [(diagnostics.FEW_ROWS - 1, True), (diagnostics.FEW_ROWS, False)])
def test_few_rows_give_a_warning(rows: int, warned: bool) -> None:
    assert ("There are only" in warnings_of(cases.numbers(rows))) is warned


def test_warning_if_no_better_than_the_mean() -> None:
    scored = cases.numbers(200)
    backwards = ScoredPredictions(scored.prediction, -scored.y, 0)
    assert "no better than always predicting the mean" in warnings_of(backwards)
    assert "R²" not in warnings_of(scored)


def test_warning_if_not_significantly_better_than_the_mean() -> None:
    """With one part in 200 of the variance explained, 60 rows cannot tell."""
    scored = next(f for seed in range(50) if (f := cases.numbers(60, signal=0.07, seed=seed)).score("r2").value > 0.0)
    assert "not significantly better than always predicting the mean" in warnings_of(scored)


def test_three_rows_are_too_few_for_r2() -> None:
    assert "from too few rows to show that it is better than always predicting the mean" in warnings_of(
        cases.numbers(3)
    )


def test_equal_targets_give_a_warning() -> None:
    scored = cases.numbers(60, signal=0.0)
    equal = ScoredPredictions(scored.prediction, torch.zeros(60, dtype=torch.float64), 0)
    assert "All held-out targets are equal" in warnings_of(equal)


@pytest.mark.parametrize(("shift", "word"), [(0.5, "low"), (-0.5, "high"), (0.0, None)])
def test_bias_gives_a_warning_with_its_direction(shift: float, word: str | None) -> None:
    """Targets half a standard deviation off, ten standard errors of the mean of 400 rows."""
    scored = cases.numbers(400)
    text = warnings_of(ScoredPredictions(scored.prediction, scored.y + shift, 0))
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


def test_probabilities_too_high_and_too_low() -> None:
    sharp, blurred = cases.classes(300, temperature=0.3), cases.classes(300, temperature=4.0, scale=4.0, seed=1)
    parts = [f.prediction.components.log_p for f in (sharp, blurred)]
    p = replace(sharp.prediction, components=replace(sharp.prediction.components, log_p=torch.cat(parts, 1)))
    text = warnings_of(ScoredPredictions(p, torch.cat([sharp.y, blurred.y]), 0))
    assert "too high for some rows and too low for others" in text


def test_warning_if_no_better_than_the_most_frequent_class() -> None:
    """Every prediction is class 0; most rows are class 1."""
    logits = torch.tensor([[0.2, 0.0, 0.0]], dtype=torch.float64).expand(100, 3)
    p = cases.classes(100).prediction
    p = replace(p, components=replace(p.components, log_p=logits.log_softmax(-1)[None]))
    y = torch.tensor([1] * 60 + [0] * 20 + [2] * 20)
    text = warnings_of(ScoredPredictions(p, y, 0))
    assert "correct for 20 % of rows: no better than always predicting “class 1”, which is correct for 60 %" in text
    assert "most frequent" not in text
    assert "better than" not in warnings_of(cases.classes(400))


def test_warning_if_not_significantly_better_than_the_most_frequent_class() -> None:
    """Two more correct predictions than the most frequent class: McNemar's p = ¼."""
    y = torch.tensor([0] * 60 + [1] * 40)
    logits = torch.zeros(100, 2, dtype=torch.float64)
    logits[:, 0] = 0.5
    logits[60:62, 0] = -0.5
    p = cases.classes(100, count=2).prediction
    p = replace(p, components=replace(p.components, log_p=logits.log_softmax(-1)[None]))
    assert "correct for 62 % of rows: not significantly better" in warnings_of(ScoredPredictions(p, y, 0))


def test_classes_without_rows_are_listed() -> None:
    scored = cases.classes(200, count=4)
    present = scored.y < 2
    part = ScoredPredictions(scored.prediction[present], scored.y[present], 0)
    assert "2 of 4 classes have no held-out rows: “class 2”, “class 3”." in warnings_of(part)


def test_source_of_uncertainty_is_a_hint() -> None:
    assert "80 %, is epistemic: more rows" in hints_of(cases.numbers(200, epistemic=0.8))
    assert "80 %, is aleatoric: more rows will not help much" in hints_of(cases.numbers(200, epistemic=0.2))
    assert "50 % is epistemic and 50 % aleatoric: more rows" in hints_of(cases.numbers(200, epistemic=0.5))
    assert "no epistemic part" in hints_of(cases.numbers(200, epistemic=0.0))
    assert "no epistemic part" in hints_of(cases.classes(200))


def test_model_without_skill_has_no_hint_on_the_source() -> None:
    scored = cases.numbers(200)
    assert "epistemic" not in hints_of(ScoredPredictions(scored.prediction, -scored.y, 0))


def test_unused_data_are_a_hint() -> None:
    made = cases.holdout_result(cases.numbers(60))
    found = replace(made, model=cases.regressor(), notes=("A note.",))
    texts = [finding.text for finding in diagnostics.diagnose(found).findings if finding.tone == "hint"]
    assert "1 of 5 columns could not be used: “constant”." in texts
    assert "A note." in texts


def test_no_recalibration_hint_for_a_calibrated_model() -> None:
    scored = cases.numbers(400, spread=0.5)
    calibrated = replace(cases.holdout_result(scored), model=cases.regressor(calibrate="variance"))
    assert "Recalibration" not in " ".join(finding.text for finding in diagnostics.diagnose(calibrated).findings)


def test_warnings_of_several_methods_have_their_names() -> None:
    good, bad = cases.numbers(400), cases.numbers(400, spread=0.5)
    assert diagnostics.diagnose_methods({"A": good}).tone == "good"
    found = diagnostics.diagnose_methods({"A": good, "B": bad}).findings
    assert [finding.text.split(":")[0] for finding in found] == ["B"]
