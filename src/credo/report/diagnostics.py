"""Tests of predictions against held-out targets: warnings if the data contradict them more than chance explains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import torch
from scipy import stats

from credo._text import counted, listed
from credo.metrics.classification import LabeledPredictions, calibration_gap
from credo.report.formatting import format_number, format_percent, format_range, format_rows, quote
from credo.report.holdout import HoldoutResult, ScoredPredictions
from credo.report.page import Diagnostics, Finding

MAJORITY = 0.6
"""A part of the uncertainty of at least this share is called most of it."""

SIGNIFICANCE = 0.01
"""The probability that a test warns of predictions that are calibrated."""

FEW_ROWS = 50
"""With fewer rows than this, every score is a rough estimate."""

_MAX_SIMULATIONS, _MIN_SIMULATIONS, _MAX_SIMULATED_ROWS = 1000, 100, 10_000_000
_BINS = 15  # as in metrics.ece


def diagnose(result: HoldoutResult) -> Diagnostics:
    """Return all findings on the held-out rows, warnings first."""
    skill_warnings = list(_check_skill(result))
    warnings = [
        Finding("warning", text) for text in (*_check_rows(result), *skill_warnings, *_check_uncertainty(result))
    ]
    source = _describe_source(result.scored) if not skill_warnings else ()
    hints = [Finding("hint", text) for text in (*source, *_describe_data(result))]
    if warnings:
        return Diagnostics("Use these predictions with caution", [*warnings, *hints])
    baseline = "the most frequent class" if result.classes else "the mean"
    text = (
        f"On {format_rows(len(result.scored))}, the predicted uncertainty is consistent with the errors, and the "
        f"predictions are better than always predicting {baseline}."
    )
    return Diagnostics("No problems found", [Finding("good", text), *hints])


def diagnose_methods(scored_by_method: Mapping[str, ScoredPredictions]) -> Diagnostics:
    """Return warnings for each method, by name, whose uncertainty is too small or too large."""
    warnings = [
        Finding("warning", f"{method}: {text}")
        for method, scored in scored_by_method.items()
        for text in _check_calibration(scored)
    ]
    if warnings:
        return Diagnostics("Some methods are not calibrated", warnings)
    text = "For every method, the predicted uncertainty is consistent with the errors."
    return Diagnostics("No calibration problems found", [Finding("good", text)])


def _check_rows(result: HoldoutResult) -> Iterator[str]:
    scored = result.scored
    if len(scored) < FEW_ROWS:
        yield f"There are only {format_rows(len(scored))}: all numbers in this report are rough estimates."
    if result.classes:
        yield from _check_absent_classes(scored, result.classes)


def _check_skill(result: HoldoutResult) -> Iterator[str]:
    """Compare the model with a constant prediction."""
    if result.classes:
        return _check_majority(result.scored, result.classes)
    return _check_explained_variance(result.scored)


def _check_uncertainty(result: HoldoutResult) -> Iterator[str]:
    if not result.classes:
        yield from _check_bias(result.scored)
    remedy = "" if result.model.calibrator_ is not None else " Recalibration on additional rows would correct this."
    for text in _check_calibration(result.scored):
        yield text + remedy


def _check_explained_variance(scored: ScoredPredictions) -> Iterator[str]:
    score = scored.score("r2")
    if np.isnan(score.value):
        yield "All held-out targets are equal, so R² is undefined."
    elif score.value <= 0.0:
        yield f"R² is {format_number(score.value)}: no better than always predicting the mean."
    elif np.isnan(score.lower):
        yield (
            f"R² is {format_number(score.value)}, from too few rows to show that it is better than always predicting "
            "the mean."
        )
    elif score.lower <= 0.0:
        yield (
            f"R² is {format_number(score.value)}, with a 95 % interval of {format_range(score.lower, score.upper)}: "
            "not significantly better than always predicting the mean."
        )


def _check_bias(scored: ScoredPredictions) -> Iterator[str]:
    """A t test of the mean error."""
    errors = (scored.mean - scored.y).numpy()
    bias = float(errors.mean())
    if len(errors) > 2 and errors.std() > 0 and stats.ttest_1samp(errors, 0.0).pvalue < SIGNIFICANCE:
        direction = "high" if bias > 0 else "low"
        yield f"Predictions are too {direction} by {format_number(abs(bias))} on average, more than chance explains."


def _check_calibration(scored: ScoredPredictions) -> Iterator[str]:
    """Test whether the predicted uncertainty is too small or too large."""
    return _check_reliability(scored) if scored.is_classification else _check_coverage(scored)


def _check_coverage(scored: ScoredPredictions) -> Iterator[str]:
    """A binomial test at every level; of those that fail on one side, the one with the smallest p-value is reported."""
    count = len(scored)
    failed = []
    for level, observed in scored.coverage.items():
        p_value = stats.binomtest(round(observed * count), count, level).pvalue
        if p_value < SIGNIFICANCE:
            failed.append((p_value, level, observed))
    for fault, on_this_side in (
        ("overconfident. Errors are larger than predicted.", [case for case in failed if case[2] < case[1]]),
        ("underconfident. Intervals could be narrower.", [case for case in failed if case[2] > case[1]]),
    ):
        for _, level, observed in sorted(on_this_side)[:1]:
            yield (
                f"{format_percent(level)} intervals cover {format_percent(observed)} of {format_rows(count)}: {fault}"
            )


def _check_majority(scored: ScoredPredictions, classes: list[str]) -> Iterator[str]:
    """McNemar's exact test against always predicting the most frequent class."""
    predictions = scored.class_predictions
    majority = int(predictions.label.bincount().argmax())
    baseline_correct, correct = (predictions.label == majority).double(), predictions.correct
    share, accuracy = float(baseline_correct.mean()), float(correct.mean())
    gained, lost = int((correct > baseline_correct).sum()), int((correct < baseline_correct).sum())
    opening = f"The predicted class is correct for {format_percent(accuracy)} of rows"
    baseline = f"better than always predicting {quote(classes[majority])}, which is correct for {format_percent(share)}"
    if gained <= lost and share < 1.0:
        yield f"{opening}: no {baseline}."
    elif gained + lost and stats.binomtest(gained, gained + lost, alternative="greater").pvalue > 0.05:
        yield f"{opening}: not significantly {baseline}."


def _check_absent_classes(scored: ScoredPredictions, classes: list[str]) -> Iterator[str]:
    absent = [quote(label) for k, label in enumerate(classes) if not bool((scored.y == k).any())]
    if absent:
        verb, pronoun = ("has", "it") if len(absent) == 1 else ("have", "them")
        yield (
            f"{len(absent)} of {len(classes)} classes {verb} no held-out rows: {listed(absent, 3)}. This report does "
            f"not evaluate {pronoun}."
        )


def _check_reliability(scored: ScoredPredictions) -> Iterator[str]:
    """Compare the calibration error with that of labels drawn from the predicted probabilities."""
    predictions = scored.class_predictions
    observed, limit = scored.score("ece").value, _calibration_error_limit(predictions, scored.seed)
    if observed <= limit:
        return
    confidence, accuracy = float(predictions.confidence.mean()), float(predictions.correct.mean())
    gap = confidence - accuracy
    ece = f"ECE {format_number(observed, 2)}, by chance at most {format_number(limit, 2)}"
    if abs(gap) < 0.5 * observed:
        yield f"The confidence is too high for some rows and too low for others ({ece})."
    else:
        fault = "overconfident" if gap > 0 else "underconfident"
        yield (
            f"The mean confidence is {format_percent(confidence)} and the accuracy {format_percent(accuracy)} on "
            f"{format_rows(len(scored))}: {fault} ({ece})."
        )


def _calibration_error_limit(predictions: LabeledPredictions, seed: int) -> float:
    """Return the calibration error that calibrated probabilities exceed with probability :data:`SIGNIFICANCE`."""
    generator = torch.Generator().manual_seed(seed)
    simulations = min(max(_MAX_SIMULATED_ROWS // len(predictions.label), _MIN_SIMULATIONS), _MAX_SIMULATIONS)
    gaps = []
    for _ in range(simulations):
        label = torch.multinomial(predictions.probability, 1, generator=generator).squeeze(1)
        gaps.append(calibration_gap(replace(predictions, label=label), _BINS, "width").value)
    return float(np.quantile(gaps, 1.0 - SIGNIFICANCE))


def _describe_source(scored: ScoredPredictions) -> Iterator[str]:
    """Say whether more rows would help."""
    share = scored.epistemic_share
    if np.isnan(share):
        return
    if not scored.has_epistemic_part:
        yield (
            "This method has no epistemic part: inside the training range, its uncertainty does not show which rows "
            "are unlike the training rows."
        )
    elif 1.0 - MAJORITY < share < MAJORITY:
        yield (
            f"Of the uncertainty, {format_percent(share)} is epistemic and {format_percent(1.0 - share)} aleatoric: "
            "more rows for training would help, and so would better columns."
        )
    elif share >= MAJORITY:
        yield f"Most of the uncertainty, {format_percent(share)}, is epistemic: more rows for training would help."
    else:
        yield (
            f"Most of the uncertainty, {format_percent(1.0 - share)}, is aleatoric: more rows will not help much, "
            "better columns might."
        )


def _describe_data(result: HoldoutResult) -> Iterator[str]:
    if result.unused_columns:
        names = listed([quote(column) for column in result.unused_columns], 3)
        total = counted(len(result.model.columns_.names), "column")
        yield f"{len(result.unused_columns):,} of {total} could not be used: {names}."
    yield from result.model.target_.notes
    yield from result.notes
