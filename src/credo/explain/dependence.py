"""Partial dependence and accumulated local effects, under every posterior draw."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from credo._arguments import check_bool, check_fraction, check_integer
from credo.errors import InputError
from credo.explain._draws import (
    aleatoric_part,
    band_over_draws,
    draw_weights,
    drawn_means,
    epistemic_part,
    mean_over_draws,
)
from credo.explain._grids import GRID_SIZE, check_grids, observed_values, outside_range, to_cells
from credo.explain._rows import ModelRows
from credo.explain.effects import ColumnEffect, IndividualEffects, outside_sentences
from credo.seeding import derive

Floats = NDArray[np.float64]

_INDIVIDUALS = 3  # random stream; 0 and 1 are those of ModelRows


def partial_dependence(
    model: Any,
    X: Any,
    columns: str | Sequence[str],
    *,
    grid: Any = None,
    individual: int | Sequence[int] = 0,
    centered: bool = False,
    level: float = 0.95,
    samples: int | None = None,
    max_rows: int | None = 1000,
    seed: int = 0,
) -> ColumnEffect:
    """The mean prediction as a function of one column or of two, with an epistemic band, and for single rows.

        PD_s(v) = (1/N) Σ_i E[ y | f_s(x_i with x_j = v) ],    PD(v) = Σ_s w_s PD_s(v)

    Every draw f_s is one function for all rows and grid points: PD_s is a curve, and the band contains ``level`` of
    these curves at each v. It is the uncertainty about the mean effect, which more training rows reduce; it contains
    neither noise nor the differences between rows. The terms of the sum are the individual conditional expectations
    (ICE) of single rows, with a band each: if they are not parallel, the column interacts with others.

    With ``centered``, the mean prediction of each draw for the rows as they are is subtracted (for a single row, its
    own prediction), and with it the uncertainty about the overall level: for a linear model the effect is
    w_j (v − x̄_j), with the standard deviation of w_j times the distance from the mean.

    Setting a column to v in every row makes rows that do not occur if the column is correlated with others; then see
    :func:`accumulated_local_effects`. Grid points outside the training range are flagged, with a warning; the band
    does not contain the variance that :class:`credo.Regressor` adds to predictions there.

    Args:
        model: a fitted :class:`credo.Regressor` or :class:`credo.Classifier`; or, for arrays, a :class:`credo.Method`
            with one output per row, or an estimator with ``predict_dist``.
        X: rows as the model takes them, ``[N, D]``.
        columns: the name of a column (of an array: ``"x0"``, ``"x1"`` and so on), or two names.
        grid: the values of the column; for two columns a pair of them. ``None``: all different values if there are at
            most 20, otherwise 20 evenly spaced between the 5 % and the 95 % quantile; the 30 most frequent categories;
            half as many for two columns.
        individual: single rows to compute the effect for: their positions in ``X``, or a number of them, chosen at
            random.
        centered: whether to subtract the mean prediction of each draw.
        level: the probability of the epistemic band.
        samples: the number of draws; ``None``: that of the estimator, or 100 of a network.
        max_rows: the maximum number of rows to average over, chosen at random; ``None``: all.
        seed: of the choice of rows.

    Returns:
        The effect at every grid point.

    Raises:
        InputError: if the rows do not match the model, there is no such column, or an argument is not valid.

    References:
        J. H. Friedman. Greedy function approximation: a gradient boosting machine. Annals of Statistics 2001.
        A. Goldstein, A. Kapelner, J. Bleich, E. Pitkin. Peeking inside the black box: visualizing statistical learning
        with plots of individual conditional expectation. JCGS 2015.

    Example:
        >>> effect = credo.explain.partial_dependence(model, X_test, "age", individual=20)
        >>> effect.to_frame()
        >>> effect.plot()
    """
    check_fraction(level, "level")
    check_bool(centered, "centered")
    rows = ModelRows(model, X, samples=samples, max_rows=max_rows, seed=seed)
    names = rows.check_names([columns] if isinstance(columns, str) else columns)
    if len(set(names)) != len(names) or len(names) not in (1, 2):
        raise InputError(f"columns must be the name of one column, or two different names, got {columns!r}")
    grids = check_grids(rows, names, grid)
    single = rows.pick(_individuals(rows, individual, seed))
    n, frame = len(rows), pd.concat([rows.frame, single]).reset_index(drop=True)
    points = list(itertools.product(*grids))
    average, of_single, parts = [], [], []
    for p in rows.predict(frame.assign(**dict(zip(names, point, strict=True))) for point in points):
        functions = drawn_means(p)
        average.append(functions[:, :n].mean(1))
        of_single.append(functions[:, n:])
        parts.append(torch.stack([epistemic_part(p[:n]).mean(), aleatoric_part(p[:n]).mean()]))
    average_draws, single_draws = torch.stack(average, 1), torch.stack(of_single, 1)
    if centered:
        (as_they_are,) = rows.predict([frame])
        functions = drawn_means(as_they_are)
        average_draws = average_draws - functions[:, :n].mean(1)[:, None]
        single_draws = single_draws - functions[:, None, n:]
    shape = tuple(map(len, grids))
    uncertainty = torch.stack(parts, 1).double().numpy().reshape(2, *shape)
    outside = outside_range(rows, names, grids)
    for sentence in outside_sentences(tuple(names), outside):
        warnings.warn(sentence, UserWarning, stacklevel=2)
    weights = draw_weights(rows.prediction)
    return ColumnEffect(
        method="partial dependence",
        columns=tuple(names),
        kinds=tuple(map(rows.kind, names)),
        grid=tuple(grids),
        draws=_shaped(average_draws, shape),
        weights=weights,
        epistemic=uncertainty[0],
        aleatoric=uncertainty[1],
        outside=outside,
        observed=tuple(observed_values(rows, name) for name in names),
        individual=_summarize(_shaped(single_draws, shape), weights, level, single.index) if len(single) else None,
        centered=centered,
        level=level,
        target=rows.target,
        classes=rows.classes,
    )


def accumulated_local_effects(
    model: Any,
    X: Any,
    column: str,
    *,
    bins: int = GRID_SIZE,
    level: float = 0.95,
    samples: int | None = None,
    max_rows: int | None = 1000,
    seed: int = 0,
) -> ColumnEffect:
    """The effect of a column of numbers or dates without new combinations of values, with an epistemic band.

    The column is cut into bins with about as many rows each; within a bin, the rows move from one edge to the other,
    and the mean changes are accumulated:

        ALE_s(z_k) = Σ_{m ≤ k} (1/N_m) Σ_{i in bin m} ( g_s(x_i, z_m) − g_s(x_i, z_{m−1}) ) − c_s

    g_s(x, v) = E[y | f_s(x with x_j = v)], and c_s is such that the mean over the rows is 0, with straight lines within
    the bins. Rows stay near their own value, so that the model is not evaluated far from the data, as
    :func:`partial_dependence` does if columns are correlated.
    For a linear model both agree, up to the constant.

    Args:
        model: as in :func:`partial_dependence`.
        X: rows as the model takes them, ``[N, D]``; those where the column is missing are left out.
        column: the name of a column of numbers or dates.
        bins: the maximum number of bins.
        level: the probability of the epistemic band.
        samples: the number of draws; ``None``: that of the estimator, or 100 of a network.
        max_rows: the maximum number of rows, chosen at random; ``None``: all.
        seed: of the choice of rows.

    Returns:
        The effect at the edges of the bins, relative to its mean over the rows.

    Raises:
        InputError: if the column is one of categories or constant, or an argument is not valid.

    References:
        D. W. Apley, J. Zhu. Visualizing the effects of predictor variables in black box supervised learning models.
        JRSS B 2020.

    Example:
        >>> credo.explain.accumulated_local_effects(model, X_test, "age").plot()
    """
    check_fraction(level, "level")
    check_integer(bins, "bins", minimum=1)
    rows = ModelRows(model, X, samples=samples, max_rows=max_rows, seed=seed)
    (name,) = rows.check_names([column])
    if rows.kind(name) == "category":
        raise InputError(f"column {name!r} holds categories, which have no order: use partial_dependence")
    values = rows.numbers([name])[:, 0]
    known = np.isfinite(values)
    values, frame = values[known], rows.frame[known]
    edges = (
        np.unique(np.quantile(values, np.linspace(0, 1, bins + 1), method="inverted_cdf")) if len(values) else values
    )
    if len(edges) < 2:
        raise InputError(f"column {name!r} has fewer than two different values in these rows, so that it has no effect")
    bin_of = np.clip(np.searchsorted(edges, values, side="left"), 1, len(edges) - 1)
    cells = to_cells(edges, rows.kind(name))
    low, high = (
        drawn_means(p).double().numpy()
        for p in rows.predict(frame.assign(**{name: cells[bin_of - 1 + end]}) for end in (0, 1))
    )
    change = np.stack([(high - low)[:, bin_of == k].mean(axis=1) for k in range(1, len(edges))], axis=1)
    accumulated = np.concatenate([np.zeros_like(change[:, :1]), np.cumsum(change, axis=1)], axis=1)
    part = (values - edges[bin_of - 1]) / np.diff(edges)[bin_of - 1]
    part = part.reshape(-1, *[1] * (change.ndim - 2))
    at_rows = (1 - part) * accumulated[:, bin_of - 1] + part * accumulated[:, bin_of]
    accumulated -= at_rows.mean(axis=1, keepdims=True)
    return ColumnEffect(
        method="accumulated local effects",
        columns=(name,),
        kinds=(rows.kind(name),),
        grid=(cells,),
        draws=accumulated,
        weights=draw_weights(rows.prediction),
        epistemic=None,
        aleatoric=None,
        outside=outside_range(rows, [name], [cells]),
        observed=(to_cells(values, rows.kind(name)),),
        individual=None,
        centered=True,
        level=level,
        target=rows.target,
        classes=rows.classes,
    )


def _individuals(rows: ModelRows, individual: int | Sequence[int], seed: int) -> list[int]:
    """Positions in ``X``, all of the chosen rows if a number is given."""
    if isinstance(individual, Sequence | np.ndarray):
        return list(individual)
    count = check_integer(individual, "individual", minimum=0)
    order = np.random.default_rng(derive(seed, _INDIVIDUALS)).permutation(rows.total)
    return [int(position) for position in np.sort(order[:count])]


def _shaped(draws: Tensor, shape: tuple[int, ...]) -> Floats:
    """Values ``[S, points, ...]`` with the grid as dimensions."""
    return np.asarray(draws.double().numpy().reshape(len(draws), *shape, *draws.shape[2:]), dtype=np.float64)


def _summarize(draws: Floats, weights: Floats | None, level: float, rows: Any) -> IndividualEffects:
    lower, upper = band_over_draws(draws, weights, level)
    return IndividualEffects(np.asarray(rows), mean_over_draws(draws, weights), lower, upper)
