"""The effect of a column on the predictions: its values, its epistemic band, and the effects for single rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from credo import plots
from credo._text import counted, listed, quoted
from credo.errors import InputError, unknown_name
from credo.explain._draws import band_over_draws, mean_over_draws

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = NDArray[np.float64]

_MAX_CLASSES = 5  # in one figure


@dataclass(frozen=True, eq=False)
class IndividualEffects:
    """The effect of a column for R single rows (individual conditional expectations), each with its epistemic band.

    Attributes:
        rows: the labels of the rows in the index of ``X`` ``[R]``.
        mean: the predicted mean ``[G, R]``, for two columns ``[G, H, R]``; for classes ``[..., R, K]``.
        lower: the lower end of the epistemic band, in the shape of ``mean``.
        upper: the upper end.

    Example:
        >>> effect = credo.explain.partial_dependence(model, X_test, "age", individual=10)
        >>> effect.individual.mean
    """

    rows: NDArray[Any]
    mean: Floats
    lower: Floats
    upper: Floats


@dataclass(frozen=True, eq=False)
class ColumnEffect:
    """The effect of one column, or of two together, on the predictions; see :func:`partial_dependence`.

    Attributes:
        method: ``"partial dependence"`` or ``"accumulated local effects"``.
        columns: one name or two.
        kinds: the kind of each column: ``"number"``, ``"date"`` or ``"category"``.
        grid: the values of each column at which the effect was computed, ``[G]`` and ``[H]``.
        draws: the effect under each posterior draw, ``[S, G]`` or ``[S, G, H]``; for classes ``[..., K]``.
        weights: of the draws ``[S]``; ``None`` is uniform.
        epistemic: the mean epistemic part of the uncertainty of the rows, ``[G]`` or ``[G, H]``: a standard deviation,
            or nats for classes; ``None`` for accumulated local effects.
        aleatoric: the mean aleatoric part.
        outside: whether a grid point is outside the training range, ``[G]`` or ``[G, H]``.
        observed: the values of each column in the rows, ``[N]``.
        individual: the effects for single rows; ``None`` if there are none.
        centered: whether effects are relative to the mean prediction of each draw.
        level: the probability of the epistemic band.
        target: the name of the target.
        classes: the names of the K classes; empty for numbers.

    Example:
        >>> effect = credo.explain.partial_dependence(model, X_test, "age")
        >>> effect.mean, effect.lower, effect.upper
        >>> effect.plot()
    """

    method: str
    columns: tuple[str, ...]
    kinds: tuple[str, ...]
    grid: tuple[NDArray[Any], ...]
    draws: Floats
    weights: Floats | None
    epistemic: Floats | None
    aleatoric: Floats | None
    outside: NDArray[np.bool]
    observed: tuple[NDArray[Any], ...]
    individual: IndividualEffects | None
    centered: bool
    level: float
    target: str
    classes: tuple[str, ...]

    @property
    def mean(self) -> Floats:
        """The effect, the mean over the draws: ``[G]`` or ``[G, H]``; for classes ``[..., K]``."""
        return mean_over_draws(self.draws, self.weights)

    @property
    def lower(self) -> Floats:
        """The lower end of the epistemic band, in the shape of ``mean``; NaN for a model without draws."""
        return self._band[0]

    @property
    def upper(self) -> Floats:
        """The upper end of the epistemic band, in the shape of ``mean``."""
        return self._band[1]

    @cached_property
    def _band(self) -> tuple[Floats, Floats]:
        lower, upper = band_over_draws(self.draws, self.weights, self.level)
        return lower, upper

    def to_frame(self) -> pd.DataFrame:
        """The effect as a data frame.

        Returns:
            One row per grid point, and per class if there are classes: the values of the columns, ``class``, ``mean``,
            ``lower`` and ``upper`` of the epistemic band, ``epistemic`` and ``aleatoric``, and ``outside``.
        """
        frame = self._grid_frame(())
        parts = {"epistemic": self.epistemic, "aleatoric": self.aleatoric}
        values = {name: part for name, part in parts.items() if part is not None} | {"outside": self.outside}
        copies = max(len(self.classes), 1)
        effect = {"mean": self.mean.ravel(), "lower": self.lower.ravel(), "upper": self.upper.ravel()}
        return frame.assign(**effect, **{name: np.repeat(part.ravel(), copies) for name, part in values.items()})

    def individual_to_frame(self) -> pd.DataFrame:
        """The effects for single rows as a data frame.

        Returns:
            One row per grid point and row of the table, and per class if there are classes: the values of the columns,
            ``row``, ``class``, ``mean``, and ``lower`` and ``upper`` of the epistemic band.

        Raises:
            InputError: if there are none.
        """
        if self.individual is None:
            raise InputError("there are no effects for single rows: call partial_dependence with individual=10")
        frame = self._grid_frame(self.individual.rows)
        ends = {name: getattr(self.individual, name).ravel() for name in ("mean", "lower", "upper")}
        return frame.assign(**ends)

    def plot(self, ax: Axes | None = None, *, label: str | None = None) -> Axes:
        """Plot the effect with its epistemic band, or as a map for two columns.

        By :func:`credo.plots.column_effect` and :func:`credo.plots.effect_map`. Thin lines are single rows; marks at
        the bottom are deciles of the values in the rows; a dashed line is outside the training range.

        Args:
            ax: the axes to draw on; ``None``: those of a new figure.
            label: the class to plot; ``None``: the last of two classes, or the five of more whose probabilities change
                most; a map shows the first of them.

        Returns:
            The axes.

        Raises:
            InputError: if there is no such class.
        """
        shown = self._shown_classes(label)
        if len(self.columns) == 2:
            values = self.mean if shown is None else self.mean[..., shown[0]]
            return plots.effect_map(
                self.grid[0],
                self.grid[1],
                values,
                ax,
                xlabel=self.columns[0],
                ylabel=self.columns[1],
                label=self._label(shown),
                outside=self.outside,
            )
        mean, band = self.mean, (self.lower, self.upper)
        for position, k in enumerate([None] if shown is None else shown):
            single = self.individual if position == 0 and (shown is None or len(shown) == 1) else None
            ax = plots.column_effect(
                self.grid[0],
                mean if k is None else mean[:, k],
                ax,
                band=band if k is None else (band[0][:, k], band[1][:, k]),
                level=self.level,
                individual=None if single is None else (single.mean if k is None else single.mean[..., k]),
                observed=self.observed[0] if position == 0 else None,
                outside=self.outside,
                name=None if k is None or shown is None or len(shown) == 1 else self.classes[k],
                color=position,
                xlabel=self.columns[0],
                ylabel=self._label(shown),
            )
        assert ax is not None
        return ax

    def summary(self) -> str:
        """The effect in words and numbers.

        Returns:
            Some sentences and a table, in lines.
        """
        names = " and ".join(map(quoted, self.columns))
        relative = ", relative to the mean prediction of each draw" if self.centered else ""
        lines = [
            f"{self.method.capitalize()} of {quoted(self.target)} on {names}{relative}, with a band that contains "
            f"{self.level:.0%} of the posterior draws.",
            self.to_frame().to_string(index=False, float_format=lambda value: f"{value:.4g}"),
        ]
        if len(self.draws) == 1:
            lines.append("The model has one function and no draws, so that there is no epistemic band.")
        return "\n".join([*lines, *outside_sentences(self.columns, self.outside)])

    def _grid_frame(self, rows: Any) -> pd.DataFrame:
        """The grid points, times the rows, times the classes, in the order of the values."""
        axes: dict[str, Any] = dict(zip(self.columns, self.grid, strict=True))
        axes |= {"row": rows} if len(rows) else {}
        axes |= {"class": list(self.classes)} if self.classes else {}
        return pd.MultiIndex.from_product(axes.values(), names=axes.keys()).to_frame(index=False)

    def _shown_classes(self, label: str | None) -> list[int] | None:
        if not self.classes:
            return None
        if label is not None:
            if label not in self.classes:
                raise unknown_name("label", label, self.classes)
            return [self.classes.index(label)]
        if len(self.classes) == 2:
            return [1]
        ranges = np.ptp(self.mean.reshape(-1, len(self.classes)), axis=0)
        most = np.argsort(-ranges, kind="stable")
        return [int(most[0])] if len(self.columns) == 2 else sorted(map(int, most[:_MAX_CLASSES]))

    def _label(self, shown: list[int] | None) -> str:
        if shown is None:
            return f"change of {self.target}" if self.centered else f"mean prediction of {self.target}"
        of = f" of {self.classes[shown[0]]}" if len(shown) == 1 else ""
        return f"{'change of the probability' if self.centered else 'mean probability'}{of}"


def outside_sentences(columns: tuple[str, ...], outside: NDArray[np.bool]) -> list[str]:
    """A sentence about grid points outside the training range, or none."""
    count = int(outside.sum())
    if not count:
        return []
    verb = "lies" if count == 1 else "lie"
    where = f"{count:,} of {counted(outside.size, 'grid point')} of {listed([quoted(name) for name in columns])}"
    return [
        f"{where} {verb} outside the training range: effects there are extrapolations, and their band is that of the "
        "draws alone."
    ]
