"""Scores as a page shows them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from credo.metrics import Score
from credo.report.page import Tile
from credo.report.wording import decimals_of, fixed, number, percent

_SHARES = ("accuracy", "coverage")


def heading(score: Score) -> str:
    """What it is called, to open a line with."""
    return score.label[0].upper() + score.label[1:]


def meaning(score: Score) -> str:
    """What it says, in a line of its own."""
    return score.meaning[0].upper() + score.meaning[1:]


def value(score: Score, beside: Sequence[Score] = ()) -> str:
    """The score itself, with as many decimals as it has for other methods ``beside`` it."""
    return _shown(score.value, (score, *beside))


def bounds(score: Score, beside: Sequence[Score] = ()) -> str:
    """The ends of its 95 % interval."""
    if math.isnan(score.lower):
        return "undefined"
    return f"{_shown(score.lower, (score, *beside))} to {_shown(score.upper, (score, *beside))}"


def better(score: Score) -> str:
    """Which way is better, in a word or two."""
    return score.better if score.level is None or score.better != "level" else f"near {percent(score.level)}"


def tile(score: Score, label: str) -> Tile:
    """The score, large."""
    return Tile(label, value(score), f"95 % interval {bounds(score)}")


def _shown(x: float, scores: Sequence[Score]) -> str:
    """A number of one of ``scores``, with the decimals that the largest of them asks for."""
    if scores[0].name in _SHARES:
        return percent(x)
    sizes = [abs(v) for score in scores for v in (score.value, score.lower, score.upper) if math.isfinite(v)]
    largest = max(sizes, default=0.0)
    return fixed(x, decimals_of(largest)) if 1e-3 <= largest < 1e7 else number(x)
