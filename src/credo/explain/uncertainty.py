"""Which columns drive the uncertainty of the predictions, without any labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from credo import plots
from credo._text import counted
from credo.explain._draws import aleatoric_part, epistemic_part
from credo.explain._permutations import Groups, Permuted, Statistic, check_groups, influence, permute, standard_error
from credo.explain._rows import ModelRows
from credo.predictive import ClassPredictive

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = NDArray[np.float64]

UNCERTAINTY_STATISTICS: Final[dict[str, Statistic]] = {"epistemic": epistemic_part, "aleatoric": aleatoric_part}
"""The two parts of the uncertainty per row, as statistics of a prediction."""

_MIN_VARIATION = 1e-6  # of a part relative to its mean, as standard deviations; below, it counts as constant


@dataclass(frozen=True, eq=False)
class PartImportance:
    """How G columns, or groups of them, drive one part of the uncertainty; see :func:`uncertainty_importance`.

    Attributes:
        share: T_j, the share of the variance of this part over the rows that needs the column ``[G]``; 0 if the part
            is the same for all rows.
        standard_error: of the share, over the choice of rows and permutations ``[G]``.
        change: Δ_j, the relative change of the mean of this part when the column is permuted ``[G]``.
        mean: the mean of this part over the rows, a standard deviation or an entropy in nats.
        std: its standard deviation over the rows; 0 if it counts as constant.

    Example:
        >>> credo.explain.uncertainty_importance(model, X_test).epistemic.share
    """

    share: Floats
    standard_error: Floats
    change: Floats
    mean: float
    std: float


@dataclass(frozen=True, eq=False)
class UncertaintyImportance:
    """The columns that drive the uncertainty; see :func:`uncertainty_importance`.

    Attributes:
        names: of the columns or groups, in the order of the table ``[G]``.
        epistemic: of the uncertainty about the function, which more training rows reduce.
        aleatoric: of the noise.
        unit: "standard deviation" for numbers, "entropy (nats)" for classes.
        rows: the number of rows.

    Example:
        >>> drivers = credo.explain.uncertainty_importance(model, X_test)
        >>> print(drivers.summary())
        >>> drivers.plot()
    """

    names: tuple[str, ...]
    epistemic: PartImportance
    aleatoric: PartImportance
    unit: str
    rows: int

    @property
    def order(self) -> NDArray[np.intp]:
        """The positions of the columns by their larger share of the two parts, the largest first ``[G]``."""
        return np.argsort(-np.maximum(self.epistemic.share, self.aleatoric.share), kind="stable")

    def to_frame(self) -> pd.DataFrame:
        """The shares as a data frame, the largest first.

        Returns:
            One row per column or group: ``column``, and of both parts the share, its ``_error`` and the ``_change``.
        """
        columns: dict[str, Any] = {"column": self.names}
        for name, part in (("epistemic", self.epistemic), ("aleatoric", self.aleatoric)):
            columns |= {name: part.share, f"{name}_error": part.standard_error, f"{name}_change": part.change}
        return pd.DataFrame(columns).iloc[self.order].reset_index(drop=True)

    def plot(self, ax: Axes | None = None, *, max_columns: int = 15) -> Axes:
        """Plot both shares with their standard errors, by :func:`credo.plots.uncertainty_shares`.

        Args:
            ax: the axes to draw on; ``None``: those of a new figure.
            max_columns: the maximum number of columns, those with the largest shares.

        Returns:
            The axes.
        """
        shown = self.order[:max_columns]
        return plots.uncertainty_shares(
            [self.names[j] for j in shown],
            self.epistemic.share[shown],
            self.aleatoric.share[shown],
            ax,
            epistemic_error=self.epistemic.standard_error[shown],
            aleatoric_error=self.aleatoric.standard_error[shown],
        )

    def summary(self) -> str:
        """The shares in words and numbers.

        Returns:
            Some sentences and a table, in lines.
        """
        lines = [
            f"Shares of the variation of the {self.unit} over {counted(self.rows, 'row')} that need a column.",
            self.to_frame().to_string(index=False, float_format=lambda value: f"{value:.3g}"),
        ]
        for name, part in (("epistemic", self.epistemic), ("aleatoric", self.aleatoric)):
            if not part.std:
                lines.append(f"The {name} {self.unit} is the same for all rows, {part.mean:.4g}: no column drives it.")
        return "\n".join(lines)


def uncertainty_importance(
    model: Any,
    X: Any,
    *,
    columns: Sequence[str] | None = None,
    groups: Groups = None,
    repeats: int = 5,
    samples: int | None = None,
    max_rows: int | None = 1000,
    seed: int = 0,
) -> UncertaintyImportance:
    """Which columns decide where the model is uncertain, for the epistemic and the aleatoric part.

    Let u(x) be the epistemic or the aleatoric part of the uncertainty of a row: the standard deviation √p.epistemic or
    √p.aleatoric of a number, or the mutual information or expected entropy of a class. The share of column j is the
    total-effect index of Sobol', estimated by permutations (Jansen 1999):

        T_j = E_{i,k}[ (u(x_i) − u(x_i with x_j from row k))² ] / (2 Var_i u(x_i)),    k ≠ i

    For independent columns it is the share of the variance of u over the rows that remains if all other columns are
    known: 0 for a column that u does not depend on, and 1 if u depends on no other. Shares of columns that act together
    add up to more than 1. The relative change of the mean is

        Δ_j = ( E_{i,k} u(x_i with x_j from row k) − E_i u(x_i) ) / E_i u(x_i).

    It is above 0 where permuted rows are less like those of training than the rows are; this is common if columns
    are correlated, and then T_j contains it and can exceed 1. ``groups`` permutes such columns together. No targets are
    needed. Standard deviations and not variances, because a few very uncertain rows would otherwise decide alone.

    Args:
        model: as in :func:`permutation_importance`.
        X: rows as the model takes them, ``[N, D]``.
        columns: the columns to permute; ``None``: all that the model uses.
        groups: columns to permute together, as in :func:`permutation_importance`.
        repeats: permutations per column.
        samples: the number of draws; ``None``: that of the estimator, or 100 of a network.
        max_rows: the maximum number of rows, chosen at random; ``None``: all.
        seed: of the permutations and the choice of rows.

    Returns:
        The shares of every column.

    Raises:
        InputError: if the rows do not match the model, or an argument is not valid.

    References:
        M. J. W. Jansen. Analysis of variance designs for model output. Computer Physics Communications 1999.
        A. Saltelli et al. Variance based sensitivity analysis of model output. Computer Physics Communications 2010.

    Example:
        >>> drivers = credo.explain.uncertainty_importance(model, X_test)
        >>> drivers.to_frame()
    """
    rows = ModelRows(model, X, samples=samples, max_rows=max_rows, seed=seed)
    permuted = permute(rows, check_groups(rows, groups, columns), repeats, seed, UNCERTAINTY_STATISTICS)
    return uncertainty_from(rows, permuted)


def uncertainty_from(rows: ModelRows, permuted: Permuted) -> UncertaintyImportance:
    """The result from the statistics of :data:`UNCERTAINTY_STATISTICS`."""
    epistemic, aleatoric = (
        _part(permuted.before[name], permuted.after[name][: len(permuted.groups)], permuted.donors)
        for name in UNCERTAINTY_STATISTICS
    )
    unit = "entropy (nats)" if isinstance(rows.prediction, ClassPredictive) else "standard deviation"
    return UncertaintyImportance(tuple(permuted.groups), epistemic, aleatoric, unit, len(rows))


def _part(before: Floats, after: Floats, donors: NDArray[np.intp]) -> PartImportance:
    """T and Δ of ``before [N]`` and ``after [G, R, N]``; the error is that of a ratio of two means."""
    mean, variance = float(before.mean()), float(before.var(ddof=1))
    none = np.zeros(len(after))
    change = after.mean(axis=(1, 2)) / mean - 1.0 if mean > 0.0 else none
    if not variance > (_MIN_VARIATION * mean) ** 2:
        return PartImportance(none, none, change, mean, 0.0)
    half_squares = 0.5 * np.square(after - before)
    share = half_squares.mean(axis=(1, 2)) / variance
    of_variance = np.square(before - mean) - np.square(before - mean).mean()
    influences = (influence(half_squares, donors) - share[:, None] * of_variance) / variance
    return PartImportance(share, standard_error(influences), change, mean, variance**0.5)
