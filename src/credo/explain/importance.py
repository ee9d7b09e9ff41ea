"""Permutation importance: how much worse predictions are without a column, and how certain that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from credo import plots
from credo._arguments import check_fraction, check_option
from credo._estimate import format_estimate
from credo._text import counted, listed
from credo.errors import InputError
from credo.explain._draws import band_over_draws, draw_weights, mean_over_draws
from credo.explain._permutations import (
    Groups,
    Permuted,
    Statistic,
    check_groups,
    correlated_sets,
    influence,
    permute,
    standard_error,
)
from credo.explain._rows import ModelRows
from credo.predictive import ClassPredictive

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = NDArray[np.float64]

SCORES = {"log_score": "the log score (nats)", "r2": "R²", "accuracy": "the accuracy"}
"""The scores whose fall is measured, and how they are printed."""


@dataclass(frozen=True, eq=False)
class PermutationImportance:
    """The importance of G columns, or groups of them; see :func:`permutation_importance`.

    Attributes:
        names: of the columns or groups, in the order of the table ``[G]``.
        score: the score whose fall is measured.
        base: the mean score of the rows as they are.
        importance: its fall when a column is permuted ``[G]``; below 0 only by chance.
        standard_error: over the choice of rows and permutations ``[G]``.
        draws: the importance under each posterior draw by itself ``[S, G]``.
        weights: of the draws ``[S]``; ``None`` is uniform.
        level: the probability of the epistemic band.
        rows: the number of rows.
        correlated: E sets of columns with a high rank correlation that are not in one group.
        correlated_importance: the importance of each set, its columns permuted together ``[E]``.
        correlated_error: its standard error ``[E]``.

    Example:
        >>> importance = credo.explain.permutation_importance(model, X_test, y_test)
        >>> print(importance.summary())
        >>> importance.plot()
    """

    names: tuple[str, ...]
    score: str
    base: float
    importance: Floats
    standard_error: Floats
    draws: Floats
    weights: Floats | None
    level: float
    rows: int
    correlated: tuple[tuple[str, ...], ...]
    correlated_importance: Floats
    correlated_error: Floats

    @property
    def lower(self) -> Floats:
        """The lower end of the epistemic band over the draws ``[G]``; NaN for a model without draws."""
        return self._band[0]

    @property
    def upper(self) -> Floats:
        """The upper end of the epistemic band over the draws ``[G]``."""
        return self._band[1]

    @cached_property
    def _band(self) -> tuple[Floats, Floats]:
        lower, upper = band_over_draws(self.draws, self.weights, self.level)
        return lower, upper

    @property
    def order(self) -> NDArray[np.intp]:
        """The positions of the columns, the most important first ``[G]``."""
        order: NDArray[np.intp] = np.argsort(-self.importance, kind="stable")
        return order

    @property
    def above_next(self) -> Floats:
        """The posterior probability that a column is more important than the next one of :attr:`order` ``[G]``.

        The fraction of draws in which it is: near 1 the ranking of the two is certain, near ½ it is not. NaN for the
        last column, and for a model without draws.
        """
        probability = np.full(len(self.names), np.nan)
        if len(self.draws) > 1:
            ordered = self.draws[:, self.order]
            probability[self.order[:-1]] = mean_over_draws(ordered[:, :-1] > ordered[:, 1:], self.weights)
        return probability

    def to_frame(self) -> pd.DataFrame:
        """The importance as a data frame, the most important column first.

        Returns:
            One row per column or group: ``column``, ``importance``, ``standard_error``, the ends ``lower`` and
            ``upper`` of the epistemic band, and ``above_next``.
        """
        frame = pd.DataFrame(
            {
                "column": self.names,
                "importance": self.importance,
                "standard_error": self.standard_error,
                "lower": self.lower,
                "upper": self.upper,
                "above_next": self.above_next,
            }
        )
        return frame.iloc[self.order].reset_index(drop=True)

    def plot(self, ax: Axes | None = None, *, max_columns: int = 15) -> Axes:
        """Plot the importance with its standard error and its epistemic band, by :func:`credo.plots.importance`.

        Args:
            ax: the axes to draw on; ``None``: those of a new figure.
            max_columns: the maximum number of columns, the most important ones.

        Returns:
            The axes.
        """
        shown = self.order[:max_columns]
        band = None if len(self.draws) == 1 else (self.lower[shown], self.upper[shown])
        return plots.importance(
            [self.names[j] for j in shown],
            self.importance[shown],
            ax,
            error=self.standard_error[shown],
            band=band,
            level=self.level,
            label=f"fall of {SCORES[self.score]}",
        )

    def summary(self) -> str:
        """The importance in words and numbers.

        Returns:
            Some sentences and a table, in lines.
        """
        label = SCORES[self.score]
        lines = [
            f"Permutation importance on {counted(self.rows, 'row')}: the fall of {label}, {self.base:.4g} for the "
            "rows as they are, when the values of a column are permuted.",
            self.to_frame().to_string(index=False, float_format=lambda value: f"{value:.4g}"),
        ]
        if len(self.draws) == 1:
            lines.append("The model has one function and no draws, so that there is no epistemic band.")
        if self.correlated:
            lines.append(self.correlation_summary())
        return "\n".join(lines)

    def correlation_summary(self) -> str:
        """The importance of correlated columns together, in words.

        Returns:
            One line per set of correlated columns.
        """
        together = zip(self.correlated, self.correlated_importance, self.correlated_error, strict=True)
        return "\n".join(
            f"{listed(names)} are correlated: the model may use one in place of the other, and each alone looks less "
            f"important. Permuted together, their importance is {format_estimate(value, error)}."
            for names, value, error in together
        )


def permutation_importance(
    model: Any,
    X: Any,
    y: Any,
    *,
    columns: Sequence[str] | None = None,
    groups: Groups = None,
    score: str = "log_score",
    repeats: int = 5,
    level: float = 0.95,
    samples: int | None = None,
    max_rows: int | None = 1000,
    seed: int = 0,
) -> PermutationImportance:
    """How much worse the predictions of a model are if the values of a column are permuted among the rows.

        I_j = E_i[ s(y_i, p(· | x_i)) ] − E_{i,k}[ s(y_i, p(· | x_i with x_j from row k)) ],    k ≠ i

    s is the log score log p(y | x) of the mixture over the posterior draws, the squared error relative to the variance
    of the targets (so that I_j is the fall of R²), or whether the class is right. The standard error is that of the
    choice of the rows: I_j is a U-statistic, in which every row counts as receiver i and as donor k.

    The *epistemic band* contains ``level`` of the importances I_js that the draws have, each scored by itself with the
    same permutations: where the bands of two columns overlap, more training rows could change their ranking. A single
    draw is more certain of itself than the mixture, so that the log score falls further under most draws than under
    the mixture, above all if there are few training rows.

    For a linear model y = wᵀx + ε with independent columns, ε ~ N(0, σ²) and known w, I_j = w_j² Var(x_j)/σ² in nats.

    Permuting a column by itself makes rows that do not occur if it is correlated with others: the model is evaluated
    where it had no data, and of two columns that contain the same both look unimportant. ``correlated`` names such
    columns, with the importance of all of them together; ``groups`` permutes them together. To ask what the model would
    predict *without* a column, fit it without.

    Args:
        model: a fitted :class:`credo.Regressor` or :class:`credo.Classifier`; or, for arrays, a :class:`credo.Method`
            with one output per row, or an estimator with ``predict_dist``.
        X: rows as the model takes them, ``[N, D]``, preferably not those of training.
        y: their targets ``[N]``; rows without one are left out.
        columns: the columns to permute; ``None``: all that the model uses.
        groups: columns to permute together, by the name of the group; ``"correlated"``: columns of numbers and dates
            that a chain of rank correlations of at least 0.7 connects; ``None``: each by itself.
        score: ``"log_score"``, ``"r2"`` (numbers) or ``"accuracy"`` (classes).
        repeats: permutations per column; N − 1 of them use every pair of rows.
        level: the probability of the epistemic band.
        samples: the number of draws; ``None``: that of the estimator, or 100 of a network.
        max_rows: the maximum number of rows, chosen at random; ``None``: all.
        seed: of the permutations and the choice of rows.

    Returns:
        The importance of every column.

    Raises:
        InputError: if the rows do not match the model, or an argument is not valid.

    References:
        L. Breiman. Random forests. Machine Learning 2001.
        A. Fisher, C. Rudin, F. Dominici. All models are wrong, but many are useful: learning a variable's importance by
        studying an entire class of prediction models simultaneously. JMLR 2019.

    Example:
        >>> importance = credo.explain.permutation_importance(model, X_test, y_test)
        >>> importance.to_frame()
    """
    rows = ModelRows(model, X, y, samples=samples, max_rows=max_rows, seed=seed)
    checked = check_groups(rows, groups, columns)
    sets = correlated_sets(rows, checked)
    permuted = permute(rows, checked, repeats, seed, importance_statistics(rows, score), sets)
    return importance_from(rows, permuted, score, level)


def importance_statistics(rows: ModelRows, score: str) -> dict[str, Statistic]:
    """The scores per row under the mixture and under each draw, as statistics of a prediction."""
    check_option(score, "score", SCORES)
    is_classification = isinstance(rows.prediction, ClassPredictive)
    if score == ("r2" if is_classification else "accuracy"):
        suited = "'accuracy' or 'log_score'" if is_classification else "'r2' or 'log_score'"
        raise InputError(f"score={score!r} does not suit the target of the model: use {suited}")
    y = rows.y
    if score == "log_score":
        return {
            "score": lambda p: p.log_prob(y),
            "score by draw": lambda p: p.components.row_log_prob(y).mean(1),
        }
    if score == "accuracy":
        return {
            "score": lambda p: p.mode == y,
            "score by draw": lambda p: (p.components.mode == y).double().mean(1),
        }
    variance = y.var(correction=0)
    if not variance > 0:
        raise InputError("score='r2' needs targets that are not all the same: use score='log_score'")
    return {
        "score": lambda p: 1 - (p.mean - y).square() / variance,
        "score by draw": lambda p: 1 - (p.draws - y).square().mean(1) / variance,
    }


def importance_from(rows: ModelRows, permuted: Permuted, score: str, level: float) -> PermutationImportance:
    """The result from the statistics of :func:`importance_statistics`."""
    check_fraction(level, "level")
    fall = permuted.before["score"] - permuted.after["score"]
    by_draw = permuted.before["score by draw"] - permuted.after["score by draw"].mean(axis=1)
    value, error = fall.mean(axis=(1, 2)), standard_error(influence(fall, permuted.donors))
    n = len(permuted.groups)
    return PermutationImportance(
        names=tuple(permuted.groups),
        score=score,
        base=float(permuted.before["score"].mean()),
        importance=value[:n],
        standard_error=error[:n],
        draws=by_draw[:n].T.copy(),
        weights=draw_weights(rows.prediction),
        level=level,
        rows=len(rows),
        correlated=permuted.sets,
        correlated_importance=value[n:],
        correlated_error=error[n:],
    )
