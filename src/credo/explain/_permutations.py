"""Rows with the values of a column permuted, and means over pairs of rows with their standard errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from credo._arguments import check_fraction, check_integer
from credo.errors import InputError
from credo.explain._rows import ModelRows
from credo.predictive import Predictive
from credo.seeding import derive

Floats = NDArray[np.float64]
Statistic = Callable[[Predictive], Any]
Groups = Mapping[str, Sequence[str]] | str | None

CORRELATED = 0.7
"""Columns whose absolute rank correlation is at least this are called correlated."""

_ORDERS = 2  # random stream; 0 and 1 are those of ModelRows


@dataclass(frozen=True, eq=False)
class Permuted:
    """Statistics of predictions before and after the values of each group of columns are permuted.

    Attributes:
        groups: the columns of each of the G groups, by name.
        sets: E further sets of columns that were permuted together.
        donors: the row whose values each row gets, ``[R, N]``, in R repeats, the same for all groups.
        before: each statistic of the rows as they are, ``[...]``.
        after: each statistic after the permutation, ``[G + E, R, ...]``.
    """

    groups: dict[str, tuple[str, ...]]
    sets: tuple[tuple[str, ...], ...]
    donors: NDArray[np.intp]
    before: dict[str, Floats]
    after: dict[str, Floats]


def permute(
    rows: ModelRows,
    groups: Mapping[str, tuple[str, ...]],
    repeats: int,
    seed: int,
    statistics: Mapping[str, Statistic],
    sets: Sequence[tuple[str, ...]] = (),
) -> Permuted:
    """Compute ``statistics`` of the predictions, before and after each group of columns is permuted.

    In a random cyclic order of the N rows every row gets the values of the one k places ahead, with another k per
    repeat: no row keeps its values, and no pair of rows occurs twice. N − 1 repeats use every pair.

    Args:
        rows: the model and its rows.
        groups: columns that are permuted together, by name.
        repeats: R; at most N − 1 are made.
        seed: of the order.
        statistics: functions of a prediction, by name; they return a tensor.
        sets: further sets of columns to permute together.
    """
    rng = np.random.default_rng(derive(seed, _ORDERS))
    n = len(rows)
    order = rng.permutation(n)
    shifts = 1 + rng.permutation(n - 1)[: check_integer(repeats, "repeats", minimum=1)]
    donors = np.empty((len(shifts), n), dtype=np.intp)
    for donor, shift in zip(donors, shifts, strict=True):
        donor[order] = np.roll(order, -shift)

    together = [*groups.values(), *sets]

    def frames() -> Iterator[pd.DataFrame]:
        for columns in together:
            for donor in donors:
                yield rows.frame.assign(**{name: rows.frame[name].to_numpy()[donor] for name in columns})

    before = {name: _to_array(statistic(rows.prediction)) for name, statistic in statistics.items()}
    collected: dict[str, list[Floats]] = {name: [] for name in statistics}
    for prediction in rows.predict(frames()):
        for name, statistic in statistics.items():
            collected[name].append(_to_array(statistic(prediction)))
    shape = (len(together), len(donors))
    after = {name: np.stack(values).reshape(*shape, *values[0].shape) for name, values in collected.items()}
    return Permuted(dict(groups), tuple(sets), donors, before, after)


def influence(values: Floats, donors: NDArray[np.intp]) -> Floats:
    """The influence of each row on a mean over pairs of rows, for its standard error.

    For values m_ik of a row i with the column of row k, the mean θ over pairs is a U-statistic, and row i acts on it as
    receiver and as donor (Hájek projection):

        ψ_i = (m̄_i· − θ) + (m̄_·i − θ),    Var θ̂ ≈ Var ψ / N.

    Args:
        values: m ``[G, R, N]``, by receiver.
        donors: the donors ``[R, N]``.

    Returns:
        ψ ``[G, N]``, with mean 0 over the rows.
    """
    given = np.zeros_like(values)
    for repeat, donor in enumerate(donors):
        given[:, repeat, donor] = values[:, repeat]
    both = values.mean(axis=1) + given.mean(axis=1)
    centered: Floats = both - both.mean(axis=1, keepdims=True)
    return centered


def standard_error(influences: Floats) -> Floats:
    """√(Var ψ / N) of influences ``[..., N]``, ``[...]``."""
    error: Floats = influences.std(axis=-1, ddof=1) / np.sqrt(influences.shape[-1])
    return error


def check_groups(rows: ModelRows, groups: Groups, columns: Sequence[str] | None) -> dict[str, tuple[str, ...]]:
    """The columns of each group by name; a column without a group is a group of its own.

    Args:
        rows: the model and its rows.
        groups: columns to permute together, by name; ``"correlated"``: those of :func:`correlated_columns`.
        columns: the columns to permute; ``None``: all that the model uses.
    """
    if isinstance(columns, str):
        raise InputError(f"columns must be a list of names, got {columns!r}: write [{columns!r}]")
    chosen = rows.check_names(rows.names if columns is None else columns)
    if isinstance(groups, str):
        if groups != "correlated":
            raise InputError(f"groups must be a mapping from names to columns, or 'correlated', got {groups!r}")
        groups = {_name(group): group for group in correlated_columns(rows, chosen)}
    found: dict[str, tuple[str, ...]] = {}
    group_of: dict[str, str] = {}
    for name, members in (groups or {}).items():
        for column in rows.check_names([members] if isinstance(members, str) else members):
            if column in group_of:
                raise InputError(f"column {column!r} is in the groups {group_of[column]!r} and {name!r}: choose one")
            group_of[column] = str(name)
        found[str(name)] = tuple(column for column, group in group_of.items() if group == str(name))
    singles = {column: (column,) for column in chosen if column not in group_of}
    repeated = found.keys() & singles.keys()
    if repeated:
        raise InputError(f"the group {min(repeated)!r} has the name of a column that is not in it: choose another name")
    wanted = {name: members for name, members in found.items() if members}
    order = {column: position for position, column in enumerate(chosen)}
    return dict(sorted((wanted | singles).items(), key=lambda item: min(order.get(c, len(order)) for c in item[1])))


def correlated_sets(rows: ModelRows, groups: Mapping[str, tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The sets of :func:`correlated_columns` that no group contains."""
    found = correlated_columns(rows, [name for members in groups.values() for name in members])
    return [names for names in found if not any(set(members) >= set(names) for members in groups.values())]


def correlated_columns(
    rows: ModelRows, columns: Sequence[str] | None = None, threshold: float = CORRELATED
) -> list[tuple[str, ...]]:
    """Sets of two or more columns of numbers or dates that a chain of high rank correlations connects.

    Args:
        rows: the model and its rows.
        columns: the columns to look at; ``None``: all that the model uses.
        threshold: the absolute Spearman correlation from which two columns are connected.
    """
    from scipy.sparse.csgraph import connected_components

    check_fraction(threshold, "threshold")
    names = [name for name in (rows.names if columns is None else columns) if rows.kind(name) != "category"]
    if len(names) < 2:
        return []
    correlation = pd.DataFrame(rows.numbers(names)).corr("spearman", min_periods=3).to_numpy()
    _, labels = connected_components(np.abs(np.nan_to_num(correlation)) >= threshold, directed=False)
    sets = [tuple(names[j] for j in np.flatnonzero(labels == label)) for label in np.unique(labels)]
    return [members for members in sets if len(members) > 1]


def _name(columns: Sequence[str]) -> str:
    """The name of a group: both of its columns, or the first of several."""
    return " + ".join(columns if len(columns) == 2 else [columns[0], f"{len(columns) - 1} more"])


def _to_array(values: Any) -> Floats:
    return np.asarray(values.detach().double().cpu().numpy(), dtype=np.float64)
