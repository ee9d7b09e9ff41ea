"""Models of small tables, parsed pages, and predictions whose calibration is known."""

from __future__ import annotations

import functools
import warnings
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

import credo
from credo import metrics
from credo.likelihoods import Categorical, Gaussian
from credo.predictive import Predictive
from credo.report.holdout import HoldoutResult, ScoredPredictions
from credo.tabular.base import TableEstimator
from credo.tabular.comparison import Comparison, MethodResult

HOSTILE = '<script>alert("x")</script>'
TRAINED = 120


def fitted(kind: type[TableEstimator], X: Any, y: Any, **options: Any) -> Any:
    """A model trained for a few epochs, without its warnings about the table."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return kind(random_state=0, **({"epochs": 3, "hidden": (8,), "samples": 20} | options)).fit(X, y)


@functools.cache
def table(rows: int = 220) -> pd.DataFrame:
    """Columns of every kind, with hostile names and cells."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=rows)
    return pd.DataFrame(
        {
            HOSTILE: x,
            "missing $x$ & 'q'": np.where(rng.random(rows) < 0.3, np.nan, rng.normal(size=rows)),
            "気温 \x00\x1b \u202e": rng.choice(["<b>bold</b>", "x" * 200, "a$b", "日本語"], rows),
            "day": pd.date_range("2024-01-01", periods=rows),
            "constant": 1,
            "amount": 3.0 * x + rng.normal(size=rows),
            "kind": np.where(x > 0, "<i>up</i>", "down & out"),
        }
    )


@functools.cache
def regressor(**options: Any) -> Any:
    """A fitted model of ``amount``."""
    rows = table()[:TRAINED]
    return fitted(credo.Regressor, rows.drop(columns=["amount", "kind"]), rows["amount"], **options)


@functools.cache
def classifier(**options: Any) -> Any:
    """A fitted model of ``kind``."""
    rows = table()[:TRAINED]
    return fitted(credo.Classifier, rows.drop(columns=["amount", "kind"]), rows["kind"], **options)


def held_out(target: str, rows: int = 100) -> tuple[pd.DataFrame, pd.Series]:
    """Rows that were not used for training."""
    part = table()[TRAINED : TRAINED + rows]
    return part.drop(columns=["amount", "kind"]), part[target]


def numbers(
    rows: int, *, spread: float = 1.0, signal: float = 3.0, epistemic: float = 0.5, seed: int = 0
) -> ScoredPredictions:
    """Targets y = m ± e + a ε, and predictions with ``spread`` times the standard deviations e and a.

    m ~ N(0, signal²) and ε ~ N(0, 1); two draws, m + e and m − e; e² is ``epistemic`` and a² the rest of 1.
    """
    g = torch.Generator().manual_seed(seed)
    mean, offset, noise = torch.randn(3, rows, generator=g, dtype=torch.float64)
    deviations = torch.tensor([[-1.0], [1.0]], dtype=torch.float64).expand(-1, rows)
    drawn = signal * mean + spread * epistemic**0.5 * deviations
    log_variance = torch.full_like(drawn, 2.0 * np.log(spread) + np.log(max(1.0 - epistemic, 1e-12)))
    p = Gaussian("heteroscedastic").predictive(torch.stack([drawn, log_variance], -1))
    sign = 2.0 * (offset > 0) - 1.0
    y = signal * mean + epistemic**0.5 * sign + (1.0 - epistemic) ** 0.5 * noise
    one_number_per_row = p.components.map(lambda t: t.squeeze(-1))
    return ScoredPredictions(replace(p, components=one_number_per_row), y, seed)


def classes(
    rows: int, *, temperature: float = 1.0, scale: float = 2.0, count: int = 3, seed: int = 0
) -> ScoredPredictions:
    """Labels from known probabilities, and predictions that sharpen them (temperature < 1) or blur them (> 1)."""
    g = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(rows, count, generator=g, dtype=torch.float64)
    y = torch.multinomial(logits.softmax(-1), 1, generator=g).squeeze(1)
    return ScoredPredictions(Categorical().predictive((logits / temperature)[None]), y, seed)


def holdout_result(scored: ScoredPredictions) -> HoldoutResult:
    """The predictions with a fitted model of the same kind."""
    rows = pd.DataFrame(np.zeros((len(scored), 2)), columns=["a", "b"])
    names = [f"class {k}" for k in range(scored.mean.shape[1])] if scored.is_classification else None
    return HoldoutResult(_model_of(tuple(names) if names else None), rows, scored, ())


@functools.cache
def _model_of(names: tuple[str, ...] | None) -> Any:
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(60, 2)), columns=["a", "b"])
    if names is None:
        return fitted(credo.Regressor, X, X["a"].rename("y"), epochs=1)
    return fitted(credo.Classifier, X, pd.Series([names[i % len(names)] for i in range(60)], name="y"), epochs=1)


@functools.cache
def comparison(is_classification: bool = False) -> Comparison:
    """Two methods, of which the second is overconfident."""
    right = classes(200) if is_classification else numbers(200)
    wrong = classes(200, temperature=0.3) if is_classification else numbers(200, spread=0.4)
    results = [_result("<good>", right.prediction, right.y), _result("bad & worse", wrong.prediction, right.y)]
    return Comparison("classification" if is_classification else "regression", "<y>", 200, 2, right.y, results)


def _result(name: str, p: Predictive, y: Tensor) -> MethodResult:
    nll = metrics.nll(p, y)
    return MethodResult(name, name.title(), metrics.scores(p, y), [nll, nll], 1.5, p)


class Outline(HTMLParser):
    """The tags of a page with their attributes, in order, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._text: list[str] = []
        self._in_style = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._in_style = tag == "style"

    def handle_endtag(self, tag: str) -> None:
        self._in_style = False

    def handle_data(self, data: str) -> None:
        if not self._in_style:
            self._text.append(data)

    @property
    def text(self) -> str:
        """All visible text, with single spaces."""
        return " ".join("".join(self._text).split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def text_of(html: str) -> str:
    return Outline(html).text
