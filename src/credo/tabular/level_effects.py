r"""Columns of words with many levels: how far each level is from the others, as random intercepts of a mixed model.

A column of thousands of words, such as towns or products, is too wide for one feature per word, and most of its words
are rare. Its levels then have features from the target: with normal scores (or classes) z of the rows, the other
features and their piecewise linear codes x, and the level l_c(i) of row i in each such column c,

.. math:: z_i = \mu + x_i^\top\beta + \sum_c u_{c, l_c(i)} + \varepsilon_i, \qquad
    u_{cl} \sim N(0, \tau_c^2), \quad \varepsilon_i \sim N(0, \sigma^2).

Given the rest of the model, the effect of a level with n rows of mean residual r̄ has the posterior

.. math:: E[u] = \frac{n}{n + \lambda}\,\bar r, \qquad \mathrm{Var}[u] = \frac{\tau^2\lambda}{n + \lambda}, \qquad
    \lambda = \sigma^2 / \tau^2,

so that rare levels are shrunk to 0, and unseen ones are 0 with variance τ². Mean and standard deviation, both over τ,
are the features: the first is where a level is, the second how little is known of it, by which a network can widen its
noise. β, u and the variances are found in turn (backfitting; the variances by the method of moments).

A row must not see its own target in its features. So the features of training rows come from the other parts of the
rows, as those of new rows come from all of them; with groups these are of other groups, and with times earlier.

References: S. R. Searle, G. Casella, C. E. McCulloch, *Variance Components*, Wiley 1992. D. Micci-Barreca, "A
preprocessing scheme for high-cardinality categorical attributes", SIGKDD Explorations 2001. F. Pargent et al.,
"Regularized target encoding outperforms traditional methods in supervised machine learning with high cardinality
features", Computational Statistics 2022.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import rankdata

from credo.architectures.tabular import PiecewiseLinear
from credo.tabular.parsing import to_labels
from credo.tabular.splitting import RowDetails, Rows, split_folds

if TYPE_CHECKING:
    from credo.tabular.columns import Columns, TableRows
    from credo.tabular.encoders import Labels

Floats = NDArray[np.float64]

MAX_LEVELS = 100_000
"""The most frequent levels, which have effects of their own."""
MAX_SCORES = 30
"""With more classes, levels have no effects."""
_FOLDS, _ITERATIONS, _MAX_FEATURES, _BINS = 10, 8, 1_000, 8
_RIDGE = 1.0


@dataclass(frozen=True)
class LevelEffects:
    """The effects of the levels of a column of words, by which they are encoded.

    Attributes:
        labels: the L levels, in alphabetical order.
        mean: T posterior means of each, over τ ``[L, T]``.
        deviation: their posterior standard deviation over τ ``[L]``, from 0 to 1; that of unseen levels is 1.
    """

    labels: tuple[str, ...]
    mean: tuple[tuple[float, ...], ...]
    deviation: tuple[float, ...]

    @property
    def table(self) -> NDArray[np.float32]:
        """The features of each level, then those of unseen and missing ones ``[L + 1, T + 1]``."""
        features = np.column_stack([np.array(self.mean), np.array(self.deviation)])
        unseen = np.append(np.zeros(len(self.mean[0])), 1.0)
        return np.vstack([features, unseen]).astype(np.float32)

    def feature_names(self, column: str) -> tuple[str, ...]:
        """T for the effects, one for how little is known of them."""
        count = len(self.mean[0])
        names = [f"{column} (effect)"] if count == 1 else [f"{column} (effect {t + 1})" for t in range(count)]
        return (*names, f"{column} (effect unknown)")

    def encode(self, labels: Labels) -> NDArray[np.float32]:
        """The features ``[N, T + 1]``."""
        places = [-1 if label is None else self._place.get(label, -1) for label in labels]
        features: NDArray[np.float32] = self.table[np.array(places, dtype=np.intp)]
        return features

    def get_config(self) -> dict[str, object]:
        """The attributes as JSON values."""
        return {
            "labels": list(self.labels),
            "mean": [list(of_level) for of_level in self.mean],
            "deviation": list(self.deviation),
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """The inverse of :meth:`get_config`."""
        return cls(tuple(config["labels"]), tuple(map(tuple, config["mean"])), tuple(config["deviation"]))

    @cached_property
    def _place(self) -> dict[str, int]:
        return {label: place for place, label in enumerate(self.labels)}


class _Part(NamedTuple):
    """Rows to learn from: levels ``[N]`` of each column (−1: none), other features ``[N, D]``, scores, weights."""

    levels: list[NDArray[np.intp]]
    x: Floats
    scores: Floats
    weight: Floats

    def take(self, rows: Rows) -> _Part:
        return _Part([level[rows] for level in self.levels], self.x[rows], self.scores[rows], self.weight[rows])


class _Effects(NamedTuple):
    """Posterior means of the levels of a column ``[L, T]`` and their standard deviation ``[L]``, both over τ."""

    mean: Floats
    deviation: Floats

    def features(self, level: NDArray[np.intp]) -> Floats:
        """The features ``[N, T + 1]`` of levels ``[N]``, −1 for unseen ones."""
        known = np.column_stack([self.mean, self.deviation])
        return np.asarray(np.vstack([known, np.append(np.zeros(self.mean.shape[1]), 1.0)])[level])


def normal_scores(targets: NDArray[Any]) -> Floats:
    """Quantities as quantiles of a standard normal distribution by their ranks, so that outliers do not count more.

    Args:
        targets: ``[N, T]``.

    Returns:
        Scores ``[N, T]``.
    """
    ranks = rankdata(targets, axis=0)
    return np.asarray(ndtri((ranks - 0.5) / len(targets)))


def class_scores(targets: NDArray[Any], classes: int) -> Floats:
    """Classes as centered 0/1 columns of variance 1, one for two classes.

    Args:
        targets: integers ``[N]``.
        classes: their number C.

    Returns:
        Scores ``[N, C]`` or ``[N, 1]``; ``[N, 0]`` for more than 30 classes.
    """
    chosen = np.arange(classes) if classes > 2 else np.ones(1)
    is_class = (targets[:, None] == chosen[: MAX_SCORES if classes <= MAX_SCORES else 0]).astype(np.float64)
    return np.asarray((is_class - is_class.mean(0)) / np.maximum(is_class.std(0), 1e-9))


def add_effects(
    columns: Columns,
    rows: TableRows,
    table: pd.DataFrame,
    scores: Floats,
    details: RowDetails,
    training: Rows,
    seed: int,
) -> tuple[Columns, TableRows]:
    """Learn the effects of levels, and compute the features that rows have without their own targets.

    Args:
        columns: the columns of the table.
        rows: its N rows.
        table: the table itself.
        scores: of the targets ``[N, T]``.
        details: weights, groups or times of the rows.
        training: the rows to learn from; the others have the features of new rows.
        seed: of the parts.

    Returns:
        Columns and rows with further features; the same as before, if no column has more levels than features, or the
        effects of all levels are 0.
    """
    wide = [c for c, category in enumerate(columns.categories) if category.has_many_levels and scores.shape[1]]
    if not wide:
        return columns, rows
    labels = [to_labels(table[category.name]) for category in columns.categories]
    levels, names = zip(*(_number(labels[c]) for c in wide), strict=True)
    weight = np.ones(len(scores)) if details.weight is None else details.weight.astype(np.float64)
    features = _additive(columns.features(rows), training)
    part, sizes = _Part(list(levels), features, scores, weight).take(training), [len(of_column) for of_column in names]
    learned = _fit(part, sizes)
    inside = [effects.features(np.full(len(training), -1)) for effects in learned]
    taken = details.take(training)
    for test in split_folds(len(training), min(_FOLDS, len(training)), seed, None, taken):
        of_part = _fit(part.take(taken.training_rows(test)), sizes)
        for values, effects, level in zip(inside, of_part, part.levels, strict=True):
            values[test] = effects.features(level[test])
    categories, used = list(columns.categories), {}
    blocks = [category.encode(of_column) for category, of_column in zip(categories, labels, strict=True)]
    for c, of_column, effects, of_training, level in zip(wide, names, learned, inside, levels, strict=True):
        if not effects.mean.any() or not of_training[:, :-1].any():  # none, or none that a training row would have
            continue
        values = effects.features(level)
        values[training] = of_training
        mean, deviation = effects.mean.tolist(), effects.deviation.tolist()
        categories[c] = replace(
            categories[c], effects=LevelEffects(tuple(of_column), tuple(map(tuple, mean)), tuple(deviation))
        )
        blocks[c] = np.hstack([blocks[c], values.astype(np.float32)])
        used[categories[c].name] = categories[c].treatment
    summaries = tuple(replace(s, treatment=used.get(s.name, s.treatment)) for s in columns.summaries)
    cycles = rows.other_features[:, : len(columns.cycles.feature_names)]
    with_effects = replace(columns, categories=tuple(categories), summaries=summaries)
    return with_effects, rows._replace(other_features=np.hstack([cycles, *blocks]))


def _additive(features: NDArray[np.float32], training: Rows) -> Floats:
    """Features and the piecewise linear codes of those that are numbers, up to a thousand in all."""
    features = features[:, :_MAX_FEATURES]
    numbers = [j for j, column in enumerate(features[training].T) if len(np.unique(column)) > 2]
    numbers = numbers[: (_MAX_FEATURES - features.shape[1]) // _BINS]
    encoding = PiecewiseLinear(len(numbers), _BINS)
    encoding.fit(torch.from_numpy(features[training]), numbers)
    return np.hstack([features, encoding(torch.from_numpy(features)).numpy()]).astype(np.float64)


def _number(labels: Labels) -> tuple[NDArray[np.intp], list[str]]:
    """The level of each row, −1 if it is missing or too rare to be stored, and the levels in alphabetical order."""
    level, names = pd.factorize(np.array(labels, dtype=object), sort=True)
    level = np.asarray(level, dtype=np.intp)
    if len(names) <= MAX_LEVELS:
        return level, list(names)
    rows = np.bincount(level[level >= 0], minlength=len(names))
    kept = np.sort(np.argsort(-rows, kind="stable")[:MAX_LEVELS])
    place = np.full(len(names) + 1, -1)  # the last one is that of missing labels
    place[kept] = np.arange(len(kept))
    return place[level], list(names[kept])


def _fit(part: _Part, sizes: list[int]) -> list[_Effects]:
    """The effects of the levels of each column, by backfitting."""
    w, x = part.weight[:, None], np.column_stack([part.x, np.ones(len(part.x))])
    gram = x.T @ (w * x) + _RIDGE * np.eye(x.shape[1])
    own = [np.zeros_like(part.scores) for _ in sizes]  # the part of the scores that the levels explain
    effects = [_Effects(np.zeros((size, part.scores.shape[1])), np.ones(size)) for size in sizes]
    for _ in range(_ITERATIONS):
        linear = x @ np.linalg.solve(gram, x.T @ (w * (part.scores - sum(own))))
        for c, (level, size) in enumerate(zip(part.levels, sizes, strict=True)):
            residual = part.scores - linear - (sum(own) - own[c])
            effects[c], own[c] = _shrink(level, size, residual, part.weight)
    return effects


def _shrink(level: NDArray[np.intp], size: int, residual: Floats, weight: Floats) -> tuple[_Effects, Floats]:
    """The posterior of the effects of one column given the rest, and their means per row ``[N, T]``."""
    known = level >= 0
    level, residual, weight = level[known], residual[known], weight[known]
    n = np.bincount(level, weight, minlength=size)
    total = np.column_stack([np.bincount(level, weight * r, minlength=size) for r in residual.T])
    mean = total / np.maximum(n, 1e-12)[:, None]
    within = (weight[:, None] * np.square(residual - mean[level])).sum(0)
    noise = within / max(n.sum() - np.count_nonzero(n), 1.0)
    center = total.sum(0) / max(n.sum(), 1e-12)
    between = (n[:, None] * np.square(mean - center)).sum(0)
    spread = between - max(np.count_nonzero(n) - 1, 0) * noise
    variance = np.maximum(spread / max(n.sum() - np.square(n).sum() / max(n.sum(), 1e-12), 1e-12), 0.0)
    variance = np.where(variance > 1e-6 * noise, variance, 0.0)
    scale = np.where(variance > 0.0, np.sqrt(variance), 1.0)
    left = noise / np.maximum(n[:, None] * variance + noise, 1e-12)  # λ/(n + λ)
    shrunk = np.where(variance > 0.0, (1.0 - left) * mean, 0.0)
    effects = _Effects(shrunk / scale, np.sqrt(left.mean(1)))
    explained = np.zeros((len(known), residual.shape[1]))
    explained[known] = shrunk[level]
    return effects, explained
