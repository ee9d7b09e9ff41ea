"""Rows outside the training range: the variance added to their predictions, and warnings about them.

Outside the range a network continues with about the slope it has at the edge, even if the true function does not. The
only information about the slope there is how much it varies inside the range.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from credo._text import counted, listed, quoted
from credo.predictive import Predictive
from credo.predictive.components import average
from credo.predictive.location_scale import GaussianComponents
from credo.tabular.columns import Columns, TableRows

_STEP = 0.2  # of the finite differences, in standard deviations of a column
_MAX_ROWS, _MAX_PREDICTIONS = 1000, 100_000
_MAX_FEATURES = 1_000_000  # in memory at a time


@dataclass(frozen=True, eq=False)
class Extrapolation:
    """The variance that is added to a prediction outside the training range, because the slope may change at the edge.

    Let f(x) be the mean and σ(x) the noise that the mean weights predict, or the draws of a sampler on average, and
    d_j(x) the distance of column j from its training range, in standard deviations. The slope beyond the edge and the
    slope at the edge are modeled as two independent draws from the slopes at the training rows, whose difference has
    twice their variance:

        v(x) = 2 Σ_j s_j² d_j(x)²,    s_j² = Var_i ∂f/∂x_j (x_i) + mean_i (∂σ/∂x_j (x_i))².

    The second term accounts for noise that varies inside the range and is held constant outside. v is 0 inside the
    range, grows with the square of the distance, and is 0 everywhere for a linear function with constant noise; the
    uncertainty about its slope is part of the posterior. This is a heuristic, not a theorem: it does not account for a
    function that changes only outside the range, and columns are treated one by one, so that a new combination of
    values, each inside its range, adds nothing.

    Attributes:
        rows: the number of rows of the training table.
        slope_variance: s² per column of numbers or dates ``[C]``, in the standardized units of the target; for several
            targets ``[C, K]``.
    """

    rows: int
    slope_variance: NDArray[np.float64]

    @classmethod
    def learn(
        cls, columns: Columns, rows: TableRows, predict: Callable[[NDArray[np.float32]], Predictive]
    ) -> Extrapolation:
        """Estimate the slopes at the training rows, or at a thousand of them.

        Args:
            columns: the columns of the table.
            rows: the training rows.
            predict: from features ``[N, D]`` to the prediction ``[N, K]``.

        Returns:
            The variances of slopes from central differences over a fifth of a standard deviation, one-sided at the ends
            of the range.
        """
        total, width = rows.values.shape
        n_rows = min(total, _MAX_ROWS, max(_MAX_PREDICTIONS // max(2 * width, 1), 2))
        sample = rows.take(np.linspace(0, total - 1, n_rows).astype(np.intp))
        scaling = columns.scaling
        step = 0.5 * _STEP * scaling.std * scaling.width
        lower, upper = (columns.clip(sample._replace(values=sample.values + shift)) for shift in (-step, step))
        run = scaling.distance(upper.values, lower.values).T
        column, row = np.nonzero(run > 0.0)
        features, below, above = map(columns.features, (columns.clip(sample), lower, upper))
        own = scaling.feature_columns
        slopes: list[NDArray[np.float64]] = []
        for part in _parts(len(column), features.shape[1]):
            moved = np.zeros((len(column[part]), features.shape[1]), dtype=bool)
            moved[:, : len(own)] = own == column[part, None]
            low, high = (predict(np.where(moved, end[row[part]], features[row[part]])) for end in (below, above))
            rise = [high.mean - low.mean, high.aleatoric.sqrt() - low.aleatoric.sqrt()]
            slopes.append(torch.stack(rise, dim=1).numpy() / run[column[part], row[part], None, None])
        slope_variance = np.zeros((width, slopes[0].shape[2] if slopes else 1))
        if slopes:
            starts = np.flatnonzero(np.diff(column, prepend=-1))
            for j, of_column in zip(column[starts], np.split(np.concatenate(slopes), starts[1:]), strict=True):
                slope_variance[j] = of_column[:, 0].var(axis=0) + np.square(of_column[:, 1]).mean(axis=0)
        return cls(total, slope_variance.squeeze(1) if slope_variance.shape[1] == 1 else slope_variance)

    def variance(self, distance: NDArray[np.float64]) -> Tensor:
        """v(x), in the standardized units of the target.

        Args:
            distance: d ``[N, C]`` in standard deviations, 0 where a value is inside the range.

        Returns:
            The variances ``[N]``, or ``[N, K]`` of several targets.
        """
        return torch.from_numpy(2.0 * np.square(distance) @ self.slope_variance)

    def of_target(self, k: int) -> Extrapolation:
        """That of the k-th of several targets."""
        return Extrapolation(self.rows, self.slope_variance[:, k])

    def merge(self, other: Extrapolation) -> Extrapolation:
        """The average of both, weighted by their numbers of rows."""
        rows = self.rows + other.rows
        total = self.rows * self.slope_variance + other.rows * other.slope_variance
        return Extrapolation(rows, total / rows)

    def get_config(self) -> dict[str, object]:
        """The attributes as JSON values."""
        return {"rows": self.rows, "slope_variance": self.slope_variance.tolist()}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Extrapolation:
        """The inverse of :meth:`get_config`."""
        return cls(config["rows"], np.array(config["slope_variance"], dtype=np.float64))


def at_edge(components: GaussianComponents, outside: Tensor) -> GaussianComponents:
    """Give rows outside the training range the noise at its edge.

    Args:
        components: the Gaussians of S draws ``[S, N + M]``: of N rows, then of M of them with values moved to the edge.
        outside: the positions of these M rows among the N.

    Returns:
        The Gaussians of the N rows ``[S, N]``.
    """
    rows = components.mean.shape[1] - len(outside)
    if not len(outside):
        return components
    own = components.map(lambda t: t[:, :rows].clone())
    if components.noise is None or components.epistemic is None or own.noise is None or own.epistemic is None:
        own.log_variance[:, outside] = components.log_variance[:, rows:]
        return own
    own.noise[:, outside] = components.noise[:, rows:]
    return replace(own, log_variance=(own.noise + own.epistemic).log())


def split_noise(components: GaussianComponents, weights: Tensor | None, extra: Tensor) -> GaussianComponents:
    """Count as aleatoric only the noise on which all draws agree; the rest of the variance is epistemic.

    Draw s predicts the noise variance exp(l_s) for a row. With exp(mean_s l_s), the geometric mean over the draws, its
    aleatoric part is min(exp(l_s), exp(mean_s l_s)), and the excess is uncertainty about the noise. The predictive
    density does not change, except for the variance ``extra`` that is added to every draw.

    Args:
        components: the Gaussians of S draws ``[S, N]``.
        weights: the weights of the draws ``[S]``; ``None``: all are equal.
        extra: v(x) of :class:`Extrapolation` ``[N]``.

    Returns:
        The same Gaussians with both parts of their variance ``[S, N]``.
    """
    if components.epistemic is not None:  # both parts are known, as those of a distilled network
        epistemic = components.epistemic + extra
        return GaussianComponents(
            components.mean, (components.noise_variance + epistemic).log(), components.noise_variance, epistemic
        )
    variance = components.variance
    shared = average(components.log_variance, weights).exp()
    noise = torch.minimum(variance, shared)
    epistemic = variance - noise + extra
    return GaussianComponents(components.mean, (noise + epistemic).log(), noise, epistemic)


@dataclass
class OutsideRange:
    """A count of rows outside the training range.

    Attributes:
        rows: the number of rows outside in at least one column.
        columns: the number of rows per column.
    """

    rows: int = 0
    columns: Counter[str] = field(default_factory=Counter)

    def add(self, flags: pd.DataFrame) -> None:
        """Add the rows of ``flags`` ``[N, C]``, true where a value is outside."""
        self.rows += int(flags.any(axis=1).sum())
        self.columns.update({str(name): int(count) for name, count in flags.sum().items() if count})

    def sentences(self) -> list[str]:
        """One sentence, or none if all rows are inside."""
        if not self.rows:
            return []
        verb = "lies" if self.rows == 1 else "lie"
        names = [quoted(name) for name in self.columns]
        if len(names) > 1:
            names = [f"{quoted(name)} ({count:,})" for name, count in self.columns.most_common()]
        where = f"{counted(self.rows, 'row')} {verb} outside the training range in {listed(names)}"
        return [f"{where}: predictions there are extrapolations."]


def _parts(total: int, width: int) -> list[slice]:
    """Slices of ``total`` rows of ``width`` features each, such that the features of a slice take little memory."""
    size = max(_MAX_FEATURES // max(width, 1), 1)
    return [slice(start, start + size) for start in range(0, total, size)]
