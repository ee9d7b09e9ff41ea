"""What was predicted and how well, in words and in the few numbers that matter most."""

from __future__ import annotations

from credo.report import scorecard
from credo.report.evidence import Evidence
from credo.report.forecast import LEVEL, Forecast
from credo.report.page import Tile
from credo.report.wording import name, number, percent, rows


def title(evidence: Evidence) -> str:
    """The page's heading where none is given."""
    return f"Predicting {name(evidence.target)}" if evidence.target else "Predicting the target"


def headline(evidence: Evidence) -> str:
    """How good the predictions are, in the target's own unit."""
    forecast, classes = evidence.forecast, evidence.classes
    return _of_classes(forecast, classes) if classes else _of_numbers(forecast, evidence.training_mean)


def tiles(evidence: Evidence) -> list[Tile]:
    """The scores that a reader should not miss."""
    forecast = evidence.forecast
    return _class_tiles(forecast) if forecast.is_of_classes else _number_tiles(forecast)


def _of_numbers(forecast: Forecast, training_mean: float) -> str:
    error = forecast.score("rmse").value
    by_average = float((forecast.y - training_mean).square().mean().sqrt())
    return (
        f"Typically off by {number(error, 2)} (RMSE {number(error)}; always predicting the mean would be off by "
        f"{number(by_average)}). {percent(LEVEL)} intervals cover {percent(forecast.score('coverage').value)} of "
        f"{rows(len(forecast))}."
    )


def _of_classes(forecast: Forecast, classes: list[str]) -> str:
    answers = forecast.answers
    counts = answers.label.bincount()
    common = int(counts.argmax())
    accuracy, luck = float(answers.correct.mean()), float(counts[common]) / len(forecast)
    return (
        f"The right class is named for {percent(accuracy)} of {rows(len(forecast))} (always answering "
        f"{name(classes[common])} would be right for {percent(luck)}). On average the model is "
        f"{percent(float(answers.confidence.mean()))} sure of its answer."
    )


def _number_tiles(forecast: Forecast) -> list[Tile]:
    return [
        scorecard.tile(forecast.score("rmse"), "Typical error (RMSE)"),
        scorecard.tile(forecast.score("r2"), "Variance explained (R²)"),
        scorecard.tile(forecast.score("coverage"), f"Inside {percent(LEVEL)} intervals"),
        scorecard.tile(forecast.score("width"), f"Width of {percent(LEVEL)} intervals"),
    ]


def _class_tiles(forecast: Forecast) -> list[Tile]:
    confidence = percent(float(forecast.answers.confidence.mean()))
    return [
        scorecard.tile(forecast.score("accuracy"), "Right answers"),
        Tile("Stated confidence", confidence, "should equal the right answers"),
        scorecard.tile(forecast.score("ece"), "Calibration error (ECE)"),
        scorecard.tile(forecast.score("nll"), "Surprise (NLL)"),
    ]
