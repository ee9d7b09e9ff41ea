"""Rows outside the training range: the variance of their predictions, and sentences that report them.

Outside the range a network continues with about the slope it has at the edge, whether or not the truth does. The only
evidence about the slope there is how much it varies inside.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from credo.predictive import Predictive
from credo.predictive.components import average
from credo.predictive.location_scale import ExactGaussianComponents, GaussianComponents
from credo.tabular.columns import Columns, TableRows
from credo.tabular.wording import counted, listed, quoted

_STEP = 0.2  # of the differences that slopes are measured by, in standard deviations of a column
_MOST_ROWS, _MOST_PREDICTIONS = 1000, 100_000


@dataclass(frozen=True, eq=False)
class Extrapolation:
    """The variance that is added to a prediction outside the training range, because the slope may change at the edge.

    Let f(x) be the mean and σ(x) the noise that the mean weights predict, and d_j(x) the distance of column j from its
    training range, in standard deviations. The slope beyond the edge and the slope at the edge are modeled as two
    independent draws from the slopes at the training rows, whose difference has twice their variance:

        v(x) = 2 Σ_j s_j² d_j(x)²,    s_j² = Var_i ∂f/∂x_j (x_i) + mean_i (∂σ/∂x_j (x_i))².

    The second term stands for a noise that varies inside the range and is held constant outside. v is 0 inside the
    range, grows with the square of the distance, and is 0 everywhere for a straight line with constant noise; the
    uncertainty about the slope of that line is the posterior's own. This is a heuristic of credo, not a theorem: it
    knows nothing of a truth that changes only outside the range, and columns are taken one by one, so that a
    combination of values that training did not have, each of them inside its range, adds nothing.

    Attributes:
        rows: of the training table.
        slopes: s² by column of numbers or dates ``[C]``, in the network's units of the target.
    """

    rows: int
    slopes: NDArray[np.float64]

    @classmethod
    def learn(
        cls, columns: Columns, rows: TableRows, predict: Callable[[NDArray[np.float32]], Predictive]
    ) -> Extrapolation:
        """Measure slopes at the training rows, or at a thousand of them.

        Args:
            columns: of the table.
            rows: of training.
            predict: from features ``[N, D]`` to what the mean weights predict, ``[N, 1]``.

        Returns:
            Slopes by central differences over a fifth of a standard deviation, one-sided at the ends of the range.
        """
        total, width = rows.values.shape
        most = min(_MOST_ROWS, max(_MOST_PREDICTIONS // max(2 * width, 1), 2))
        chosen = np.linspace(0, total - 1, min(total, most)).astype(np.intp)
        some = rows.take(chosen)
        scaling = columns.scaling
        step = 0.5 * _STEP * scaling.std * scaling.width
        slopes = np.zeros(width)
        for j in np.flatnonzero(scaling.varies).tolist():
            lower, upper = (_moved(columns, some, j, sign * step[j]) for sign in (-1.0, 1.0))
            run = scaling.distance(upper.values, lower.values)[:, j]
            low, high = (predict(columns.features(end.take(run > 0.0))) for end in (lower, upper))
            run = run[run > 0.0]
            if len(run):
                rise = (high.mean - low.mean)[:, 0].numpy() / run
                swell = (high.aleatoric.sqrt() - low.aleatoric.sqrt())[:, 0].numpy() / run
                slopes[j] = rise.var() + np.square(swell).mean()
        return cls(total, slopes)

    def variance(self, distance: NDArray[np.float64]) -> Tensor:
        """v(x), in the network's units of the target.

        Args:
            distance: d ``[N, C]`` in standard deviations, 0 where a value lies inside.

        Returns:
            ``[N]``.
        """
        return torch.from_numpy(2.0 * np.square(distance) @ self.slopes)

    def joined(self, other: Extrapolation) -> Extrapolation:
        """The average of both, weighted by their numbers of rows."""
        rows = self.rows + other.rows
        return Extrapolation(rows, (self.rows * self.slopes + other.rows * other.slopes) / rows)

    def get_config(self) -> dict[str, object]:
        """The attributes as JSON holds them."""
        return {"rows": self.rows, "slopes": self.slopes.tolist()}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Extrapolation:
        """The inverse of :meth:`get_config`."""
        return cls(config["rows"], np.array(config["slopes"], dtype=np.float64))


def split_noise(components: GaussianComponents, weights: Tensor | None, beyond: Tensor) -> ExactGaussianComponents:
    """Count as aleatoric only the noise that all draws agree on; the rest of the variance is epistemic.

    Draw s predicts the noise variance exp(l_s) for a row. With the level exp(mean_s l_s), the geometric mean over the
    draws, its aleatoric part is min(exp(l_s), exp(mean_s l_s)), and what exceeds the level is uncertainty about the
    noise. The predictive density does not change, except for the variance ``beyond`` that is added to every draw.

    Args:
        components: of S draws, ``[S, N]``.
        weights: of the draws ``[S]``, or ``None`` where all are equal.
        beyond: v(x) of :class:`Extrapolation`, ``[N]``.

    Returns:
        The same Gaussians with both parts of their variance, ``[S, N]``.
    """
    variance = components.variance
    level = average(components.log_variance, weights).exp()
    noise = torch.minimum(variance, level)
    epistemic = variance - noise + beyond
    return ExactGaussianComponents(components.mean, (noise + epistemic).log(), noise, epistemic)


@dataclass
class OutsideRange:
    """A count of rows outside the training range.

    Attributes:
        rows: outside in one column or more.
        columns: the number of rows by column.
    """

    rows: int = 0
    columns: Counter[str] = field(default_factory=Counter)

    def add(self, flags: pd.DataFrame) -> None:
        """Count rows by ``flags`` ``[N, C]``, true where a value is outside."""
        self.rows += int(flags.any(axis=1).sum())
        self.columns.update({str(name): int(count) for name, count in flags.sum().items() if count})

    def sentences(self) -> list[str]:
        """One, or none where all rows are inside."""
        if not self.rows:
            return []
        verb = "lies" if self.rows == 1 else "lie"
        names = [quoted(name) for name in self.columns]
        if len(names) > 1:
            names = [f"{quoted(name)} ({count:,})" for name, count in self.columns.most_common()]
        told = f"{counted(self.rows, 'row')} {verb} outside the training range in {listed(names)}"
        return [f"{told}: what is predicted there is an extrapolation."]


def _moved(columns: Columns, rows: TableRows, j: int, step: float) -> TableRows:
    """``rows`` with column ``j`` moved by ``step``, but not out of its range."""
    values = rows.values.copy()
    values[:, j] += step
    return columns.nearest(rows._replace(values=values))
