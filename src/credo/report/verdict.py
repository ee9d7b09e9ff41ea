"""What to make of predictions: warnings where what came true speaks against them beyond what chance explains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import torch
from scipy import stats

from credo._text import counted, listed
from credo.metrics.classification import LabeledPredictions, calibration_gap
from credo.report.evidence import Evidence
from credo.report.forecast import Forecast
from credo.report.page import Finding, Verdict
from credo.report.wording import interval, name, number, percent, rows

MOST = 0.6
"""A part of the uncertainty that is larger than this is most of it."""

SIGNIFICANCE = 0.01
"""How often each test may warn of predictions without fault."""

FEW_ROWS = 50
"""With fewer rows than this every score is rough."""

_SIMULATIONS, _FEWEST_SIMULATIONS, _WORK = 1000, 100, 10_000_000
_BINS = 15  # those of the score


def judge(evidence: Evidence) -> Verdict:
    """All findings on the held-out rows, warnings first."""
    unskilled = list(_on_skill(evidence))
    warnings = [Finding("warning", s) for s in (*_on_few_rows(evidence), *unskilled, *_on_uncertainty(evidence))]
    source = _on_source(evidence.forecast) if not unskilled else ()
    hints = [Finding("hint", sentence) for sentence in (*source, *_on_data(evidence))]
    if warnings:
        return Verdict("Read with care", [*warnings, *hints])
    baseline = "the most frequent class" if evidence.classes else "the average"
    all_clear = (
        f"On {rows(len(evidence.forecast))} the stated uncertainty agrees with the errors as far as chance allows to "
        f"tell, and the predictions are better than {baseline}."
    )
    return Verdict("Nothing speaks against these predictions", [Finding("good", all_clear), *hints])


def judge_several(forecasts: Mapping[str, Forecast]) -> Verdict:
    """Which of several methods, by their names, state an uncertainty that is too small or too large."""
    warnings = [
        Finding("warning", f"{method}: {sentence}")
        for method, forecast in forecasts.items()
        for sentence in _on_confidence(forecast)
    ]
    if warnings:
        return Verdict("Not all error bars can be taken at their word", warnings)
    all_clear = "For every method the stated uncertainty agrees with the errors as far as chance allows to tell."
    return Verdict("All error bars can be taken at their word", [Finding("good", all_clear)])


def _on_few_rows(evidence: Evidence) -> Iterator[str]:
    forecast = evidence.forecast
    if len(forecast) < FEW_ROWS:
        yield f"There are only {rows(len(forecast))}: every number on this page is rough."
    if evidence.classes:
        yield from _on_absent_classes(forecast, evidence.classes)


def _on_skill(evidence: Evidence) -> Iterator[str]:
    """Whether the model is worth more than the simplest guess."""
    if evidence.classes:
        return _on_majority(evidence.forecast, evidence.classes)
    return _on_explained_variance(evidence.forecast)


def _on_uncertainty(evidence: Evidence) -> Iterator[str]:
    if not evidence.classes:
        yield from _on_bias(evidence.forecast)
    remedy = "" if evidence.model.calibrator_ is not None else " Recalibration on further rows would correct that."
    for sentence in _on_confidence(evidence.forecast):
        yield sentence + remedy


def _on_explained_variance(forecast: Forecast) -> Iterator[str]:
    score = forecast.score("r2")
    if np.isnan(score.value):
        yield "All held-out targets are equal, so that nothing can be said about how much is explained."
    elif score.value <= 0.0:
        yield f"R² is {number(score.value)}: no better than always predicting the mean."
    elif np.isnan(score.lower):
        yield f"R² is {number(score.value)}, of too few rows to say whether that beats always predicting the mean."
    elif score.lower <= 0.0:
        yield (
            f"R² is {number(score.value)}, with a 95 % interval of {interval(score.lower, score.upper)}: not shown to "
            "be better than always predicting the mean."
        )


def _on_bias(forecast: Forecast) -> Iterator[str]:
    """A t test of the errors' mean."""
    errors = (forecast.mean - forecast.y).numpy()
    offset = float(errors.mean())
    if len(errors) > 2 and errors.std() > 0 and stats.ttest_1samp(errors, 0.0).pvalue < SIGNIFICANCE:
        direction = "high" if offset > 0 else "low"
        yield f"Predictions are too {direction} by {number(abs(offset))} on average, more than chance explains."


def _on_confidence(forecast: Forecast) -> Iterator[str]:
    """Whether the stated uncertainty is too small or too large."""
    return _on_reliability(forecast) if forecast.is_of_classes else _on_coverage(forecast)


def _on_coverage(forecast: Forecast) -> Iterator[str]:
    """A binomial test at every level; of the levels that fail on one side, the one least like chance speaks."""
    count = len(forecast)
    failed = []
    for level, observed in forecast.coverage.items():
        p_value = stats.binomtest(round(observed * count), count, level).pvalue
        if p_value < SIGNIFICANCE:
            failed.append((p_value, level, observed))
    for fault, on_this_side in (
        ("overconfident. Errors are larger than stated.", [case for case in failed if case[2] < case[1]]),
        ("underconfident. Intervals could be narrower.", [case for case in failed if case[2] > case[1]]),
    ):
        for _, level, observed in sorted(on_this_side)[:1]:
            yield f"{percent(level)} intervals cover {percent(observed)} of {rows(count)}: {fault}"


def _on_majority(forecast: Forecast, classes: list[str]) -> Iterator[str]:
    """McNemar's exact test of the answers against always giving the most frequent class."""
    answers = forecast.answers
    common = int(answers.label.bincount().argmax())
    lucky, correct = (answers.label == common).double(), answers.correct
    share, accuracy = float(lucky.mean()), float(correct.mean())
    gained, lost = int((correct > lucky).sum()), int((correct < lucky).sum())
    told = f"The right class is named for {percent(accuracy)} of rows"
    baseline = f"better than always answering {name(classes[common])}, which is right for {percent(share)}"
    if gained <= lost and share < 1.0:
        yield f"{told}: no {baseline}."
    elif gained + lost and stats.binomtest(gained, gained + lost, alternative="greater").pvalue > 0.05:
        yield f"{told}: not shown to be {baseline}."


def _on_absent_classes(forecast: Forecast, classes: list[str]) -> Iterator[str]:
    absent = [name(label) for k, label in enumerate(classes) if not bool((forecast.y == k).any())]
    if absent:
        verb, pronoun = ("has", "it") if len(absent) == 1 else ("have", "them")
        yield (
            f"{len(absent)} of {len(classes)} classes {verb} no held-out row: {listed(absent, 3)}. Nothing on this "
            f"page is about {pronoun}."
        )


def _on_reliability(forecast: Forecast) -> Iterator[str]:
    """The calibration error against those of labels that really come from the stated probabilities."""
    answers = forecast.answers
    observed, limit = forecast.score("ece").value, _largest_by_chance(answers, forecast.seed)
    if observed <= limit:
        return
    confidence, accuracy = float(answers.confidence.mean()), float(answers.correct.mean())
    offset = confidence - accuracy
    told = f"ECE {number(observed, 2)}, where chance explains {number(limit, 2)}"
    if abs(offset) < 0.5 * observed:
        yield f"The model is too sure of some answers and not sure enough of others ({told})."
    else:
        fault = "overconfident" if offset > 0 else "underconfident"
        yield (
            f"The model is {percent(confidence)} sure on average and right for {percent(accuracy)} of "
            f"{rows(len(forecast))}: {fault} ({told})."
        )


def _largest_by_chance(answers: LabeledPredictions, seed: int) -> float:
    """The calibration error that probabilities without fault exceed in :data:`SIGNIFICANCE` of all cases."""
    stream = torch.Generator().manual_seed(seed)
    simulations = min(max(_WORK // len(answers.label), _FEWEST_SIMULATIONS), _SIMULATIONS)
    gaps = []
    for _ in range(simulations):
        label = torch.multinomial(answers.probability, 1, generator=stream).squeeze(1)
        gaps.append(calibration_gap(replace(answers, label=label), _BINS, "width").value)
    return float(np.quantile(gaps, 1.0 - SIGNIFICANCE))


def _on_source(forecast: Forecast) -> Iterator[str]:
    """Whether more rows would help."""
    share = forecast.epistemic_share
    if np.isnan(share):
        return
    if not forecast.has_epistemic_part:
        yield (
            "This method has no epistemic part: it does not know what it has not seen, and inside the training range "
            "says nothing about rows unlike those of training."
        )
    elif 1.0 - MOST < share < MOST:
        yield (
            f"Of the uncertainty, {percent(share)} is epistemic and {percent(1.0 - share)} aleatoric: more rows to "
            "learn from would help, and so would better columns."
        )
    elif share >= MOST:
        yield f"Most of the uncertainty, {percent(share)}, is epistemic: more rows to learn from would help."
    else:
        yield (
            f"Most of the uncertainty, {percent(1.0 - share)}, is aleatoric: more rows will not help much, better "
            "columns might."
        )


def _on_data(evidence: Evidence) -> Iterator[str]:
    if evidence.left_out:
        names = listed([name(column) for column in evidence.left_out], 3)
        total = counted(len(evidence.model.columns_.names), "column")
        yield f"{len(evidence.left_out):,} of {total} could not be used: {names}."
    yield from evidence.model.target_.notes
    yield from evidence.remarks
