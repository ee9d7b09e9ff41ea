"""All explanations of a model at once, from one pass over permuted rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from credo._arguments import check_integer
from credo.explain._permutations import Groups, check_groups, correlated_sets, permute
from credo.explain._rows import ModelRows
from credo.explain.dependence import partial_dependence
from credo.explain.effects import ColumnEffect
from credo.explain.importance import PermutationImportance, importance_from, importance_statistics
from credo.explain.uncertainty import UNCERTAINTY_STATISTICS, UncertaintyImportance, uncertainty_from
from credo.predictive import ClassPredictive

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PANEL = (3.4, 2.6)  # width and height in inches
_PANELS_PER_ROW = 2


@dataclass(frozen=True, eq=False)
class ModelExplanation:
    """What a model uses, what it is uncertain about, and what its most important columns do.

    Attributes:
        importance: the importance of the columns; ``None`` without targets.
        uncertainty: which columns drive the uncertainty.
        effects: the partial dependence on some columns, the most important first.

    Example:
        >>> explanation = credo.explain.explain_model(model, X_test, y_test)
        >>> print(explanation.summary())
        >>> explanation.plot_effects().savefig("effects.png")
    """

    importance: PermutationImportance | None
    uncertainty: UncertaintyImportance
    effects: tuple[ColumnEffect, ...]

    def summary(self) -> str:
        """The importance and the drivers of the uncertainty in words and numbers.

        Returns:
            Some sentences and tables, in lines.
        """
        first = [] if self.importance is None else [self.importance.summary()]
        return "\n\n".join([*first, self.uncertainty.summary()])

    def plot_effects(self) -> Figure:
        """Plot the effects side by side.

        Returns:
            The figure, one panel per column.
        """
        import matplotlib.pyplot as plt

        wide = min(len(self.effects), _PANELS_PER_ROW)
        high = math.ceil(len(self.effects) / wide)
        figure, axes = plt.subplots(
            high, wide, figsize=(wide * _PANEL[0], high * _PANEL[1]), layout="constrained", squeeze=False
        )
        for ax, effect in zip(axes.flat, self.effects, strict=False):
            effect.plot(ax)
        for ax in axes.flat[len(self.effects) :]:
            ax.set_axis_off()
        return figure


def explain_model(
    model: Any,
    X: Any,
    y: Any = None,
    *,
    columns: Sequence[str] | None = None,
    groups: Groups = None,
    score: str | None = None,
    effects: int = 4,
    individual: int = 0,
    repeats: int = 5,
    level: float = 0.95,
    samples: int | None = None,
    max_rows: int | None = 1000,
    seed: int = 0,
) -> ModelExplanation:
    """Compute :func:`permutation_importance`, :func:`uncertainty_importance` and :func:`partial_dependence` together.

    Importance and uncertainty share their permuted rows, which takes half the time of two calls.

    Args:
        model: as in :func:`permutation_importance`.
        X: rows as the model takes them, ``[N, D]``, preferably not those of training.
        y: their targets ``[N]``; ``None``: without the importance, which needs them.
        columns: the columns whose effects are computed; ``None``: the most important ones, or without targets those
            that drive the uncertainty most; of a group, the first.
        groups: columns to permute together, as in :func:`permutation_importance`.
        score: of the importance; ``None``: ``"r2"`` for numbers and ``"log_score"`` for classes.
        effects: the number of columns whose effects are computed if ``columns`` is ``None``.
        individual: the number of single rows in each effect.
        repeats: permutations per column.
        level: the probability of the epistemic bands.
        samples: the number of draws; ``None``: that of the estimator, or 100 of a network.
        max_rows: the maximum number of rows, chosen at random; ``None``: all.
        seed: of the permutations and the choice of rows.

    Returns:
        All three.

    Raises:
        InputError: if the rows do not match the model, or an argument is not valid.

    Example:
        >>> explanation = credo.explain.explain_model(model, X_test, y_test)
        >>> explanation.importance.to_frame(), explanation.uncertainty.to_frame()
    """
    check_integer(effects, "effects", minimum=0)
    rows = ModelRows(model, X, y, samples=samples, max_rows=max_rows, seed=seed)
    chosen = None if columns is None else rows.check_names(columns)
    score = score or ("log_score" if isinstance(rows.prediction, ClassPredictive) else "r2")
    statistics = {} if y is None else importance_statistics(rows, score)
    checked = check_groups(rows, groups, None)
    sets = [] if y is None else correlated_sets(rows, checked)
    permuted = permute(rows, checked, repeats, seed, statistics | UNCERTAINTY_STATISTICS, sets)
    importance = None if y is None else importance_from(rows, permuted, score, level)
    uncertainty = uncertainty_from(rows, permuted)
    if chosen is None:
        order = uncertainty.order if importance is None else importance.order
        first_of_group = [members[0] for members in checked.values()]
        chosen = [first_of_group[j] for j in order[:effects]]
    found = (
        partial_dependence(
            model, X, name, individual=individual, level=level, samples=samples, max_rows=max_rows, seed=seed
        )
        for name in chosen
    )
    return ModelExplanation(importance, uncertainty, tuple(found))
