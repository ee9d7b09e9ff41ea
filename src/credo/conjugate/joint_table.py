"""Joint tables of discrete variables: marginals, conditionals and Bayes' rule."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from credo.conjugate.base import TensorLike, to_counts, to_tensors
from credo.errors import InputError, unknown_name

_SUM_TOLERANCE = 1e-9  # allowed distance of a sum of probabilities from 1: rounding of typed decimals, not mistakes


@dataclass(frozen=True, eq=False, init=False)
class JointTable:
    """p(x₀, x₁, …) of discrete variables; the value of a variable is an index along its axis.

    Args:
        probabilities: ``[I, J, ...]``, at least 0 with sum 1; kept in float64.
        names: of the variables, one per axis; ``None`` for ``x0``, ``x1``, ….

    Raises:
        InputError: if the probabilities do not sum to 1, or the names do not match the axes.

    References:
        C. M. Bishop. Pattern Recognition and Machine Learning. 2006, section 1.2.

    Example:
        >>> from credo.conjugate import JointTable
        >>> table = JointTable.from_counts([[3, 1], [1, 3]], ["weather", "traffic"])
        >>> table.given(weather=0).probabilities.tolist()
        [0.75, 0.25]
    """

    probabilities: Tensor
    names: tuple[str, ...]

    def __init__(self, probabilities: TensorLike, names: Sequence[str] | None = None) -> None:
        (table,) = to_tensors(probabilities=probabilities)
        object.__setattr__(self, "names", _name_axes(table, names))
        object.__setattr__(self, "probabilities", _normalize(table, table.sum()))

    @classmethod
    def from_counts(cls, counts: TensorLike, names: Sequence[str] | None = None) -> JointTable:
        """The relative frequencies of counts, which maximize the likelihood.

        Args:
            counts: ``[I, J, ...]``, at least 0 and not all 0.
            names: of the variables, one per axis; ``None`` for ``x0``, ``x1``, ….

        Returns:
            The table of ``counts`` divided by their sum.

        Raises:
            InputError: if a count is negative, or all are 0.
        """
        (table,) = to_tensors(counts=counts)
        if bool((table < 0.0).any()) or not bool(table.any()):
            raise InputError("counts must be at least 0 and not all 0")
        return cls(table / table.sum(), names)

    @classmethod
    def from_data(
        cls, data: TensorLike, names: Sequence[str] | None = None, sizes: Sequence[int] | None = None
    ) -> JointTable:
        """The relative frequencies of rows.

        Args:
            data: integers of at least 0, one variable per column, ``[N, V]``.
            names: of the variables; ``None`` for ``x0``, ``x1``, ….
            sizes: number of values of each variable; ``None`` for one more than the largest in the data.

        Returns:
            A table with one axis per column.

        Raises:
            InputError: if the data are not ``[N, V]`` integers, or ``sizes`` are too small.
        """
        rows = to_counts(data).long()
        if rows.ndim != 2 or 0 in rows.shape:
            raise InputError(f"data must have rows and one variable per column, shape [N, V], got {list(rows.shape)}")
        largest = rows.amax(0).tolist()
        sizes = [value + 1 for value in largest] if sizes is None else list(sizes)
        if len(sizes) != rows.shape[1] or any(value >= size for value, size in zip(largest, sizes, strict=True)):
            raise InputError(f"sizes must be above the largest value of each column, {largest}, got {sizes}")
        strides = torch.tensor([math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))], device=rows.device)
        counts = torch.bincount((rows * strides).sum(1), minlength=math.prod(sizes))
        return cls.from_counts(counts.reshape(sizes), names)

    def marginal(self, *names: str) -> JointTable:
        """Sum over all other variables (the sum rule).

        Args:
            names: variables to keep.

        Returns:
            p(names), with the axes in the order of ``names``.

        Raises:
            InputError: if a name is unknown or repeated, or none is given.
        """
        kept = self._axes(names)
        others = [axis for axis in range(len(self.names)) if axis not in kept]
        summed = self.probabilities.sum(others) if others else self.probabilities
        return JointTable(summed.permute(*(sorted(kept).index(axis) for axis in kept)), names)

    def conditional(self, of: str | Sequence[str], given: str | Sequence[str]) -> ConditionalTable:
        """Divide by the marginal of the variables in ``given``.

        Args:
            of: one or more variables.
            given: one or more other variables.

        Returns:
            p(of | given), for every value of the variables in ``given``.

        Raises:
            InputError: if a name is unknown or repeated, or a value in ``given`` has probability 0.
        """
        of, given = _to_tuple(of), _to_tuple(given)
        _check_of(of)
        joint = self.marginal(*given, *of).probabilities
        totals = joint.sum(tuple(range(len(given), joint.ndim)), keepdim=True)
        impossible = (totals == 0.0).nonzero()
        if len(impossible):
            raise _zero_probability(dict(zip(given, impossible[0].tolist(), strict=False)))
        return ConditionalTable(joint / totals, of, given)

    def given(self, **observed: int) -> JointTable:
        """Condition on observed values, as in ``table.given(weather=0)``.

        Args:
            **observed: value of each observed variable.

        Returns:
            p(the other variables | observed).

        Raises:
            InputError: if a name or value is unknown, all variables are observed, or the values have probability 0.
        """
        rest = tuple(name for name in self.names if name not in observed)
        if not rest:
            raise InputError("observed must leave at least one variable open, got a value for each")
        table = self.marginal(*observed, *rest).probabilities
        for name, value in observed.items():
            if not isinstance(value, int | np.integer) or not 0 <= value < len(table):
                raise InputError(f"{name} must be an integer from 0 to {len(table) - 1}, got {value!r}")
            table = table[value]
        if not bool(table.any()):
            raise _zero_probability(observed)
        return JointTable(table / table.sum(), rest)

    def _axes(self, names: Sequence[str]) -> list[int]:
        for name in names:
            if name not in self.names:
                raise unknown_name("variable", name, self.names)
        if not names or len(set(names)) != len(names):
            raise InputError(f"names must be different variables, at least one, got {list(names)}")
        return [self.names.index(name) for name in names]


@dataclass(frozen=True, eq=False, init=False)
class ConditionalTable:
    """p(of | given) of discrete variables.

    Args:
        probabilities: the axes of ``given`` first, then those of ``of``, over which they sum to 1.
        of: names of the uncertain variables.
        given: names of the variables that are conditioned on.

    Raises:
        InputError: if the probabilities do not sum to 1 over ``of``, or the names do not match the axes.

    Example:
        >>> from credo.conjugate import ConditionalTable, JointTable
        >>> box = JointTable([0.4, 0.6], ["box"])
        >>> fruit = ConditionalTable([[0.25, 0.75], [0.75, 0.25]], of="fruit", given="box")
        >>> fruit.times(box).marginal("fruit").probabilities
        tensor([0.5500, 0.4500], dtype=torch.float64)
    """

    probabilities: Tensor
    of: tuple[str, ...]
    given: tuple[str, ...]

    def __init__(self, probabilities: TensorLike, of: str | Sequence[str], given: str | Sequence[str]) -> None:
        (table,) = to_tensors(probabilities=probabilities)
        of, given = _to_tuple(of), _to_tuple(given)
        _check_of(of)
        _name_axes(table, (*given, *of))
        totals = table.sum(tuple(range(len(given), table.ndim)), keepdim=True)
        object.__setattr__(self, "probabilities", _normalize(table, totals))
        object.__setattr__(self, "of", of)
        object.__setattr__(self, "given", given)

    def times(self, marginal: JointTable) -> JointTable:
        """p(given, of) = p(of | given) p(given) (the product rule).

        Args:
            marginal: p(given).

        Returns:
            The joint table, with the axes of ``given`` first.

        Raises:
            InputError: if ``marginal`` does not have the variables in ``given``, with as many values.
        """
        known = marginal.marginal(*self.given).probabilities
        sizes = self.probabilities.shape[: len(self.given)]
        if len(marginal.names) != len(self.given) or known.shape != sizes:
            raise InputError(
                f"marginal must have the variables {list(self.given)} with {list(sizes)} values, "
                f"got {list(marginal.names)} with {list(marginal.probabilities.shape)}"
            )
        joint = known.reshape(*known.shape, *[1] * len(self.of)) * self.probabilities
        return JointTable(joint, (*self.given, *self.of))


def bayes(prior: JointTable, likelihood: ConditionalTable) -> ConditionalTable:
    """p(θ | x) = p(x | θ) p(θ) / p(x) for every x (Bayes' rule, Bishop 1.12).

    Args:
        prior: p(θ).
        likelihood: p(x | θ).

    Returns:
        p(θ | x).

    Raises:
        InputError: if the tables do not have the same θ, or an x has probability 0.
    """
    return likelihood.times(prior).conditional(of=likelihood.given, given=likelihood.of)


def _to_tuple(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _check_of(of: tuple[str, ...]) -> None:
    if not of:
        raise InputError("of must name at least one variable, got none")


def _name_axes(table: Tensor, names: Sequence[str] | None) -> tuple[str, ...]:
    """One different name per axis."""
    chosen = tuple(f"x{axis}" for axis in range(table.ndim)) if names is None else tuple(names)
    if table.numel() == 0 or table.ndim == 0:
        raise InputError(f"probabilities must have at least one variable and one value, got shape {list(table.shape)}")
    if len(chosen) != table.ndim or len(set(chosen)) != len(chosen):
        raise InputError(f"names must be {table.ndim} different names, one per axis, got {list(chosen)}")
    return chosen


def _normalize(table: Tensor, totals: Tensor) -> Tensor:
    """Check the sums and remove their rounding errors."""
    if bool((table < 0.0).any()):
        raise InputError(f"probabilities must be at least 0, got {table.min().item():g}")
    if bool(((totals - 1.0).abs() > _SUM_TOLERANCE).any()):
        worst = totals.flatten()[(totals - 1.0).abs().argmax()].item()
        raise InputError(f"probabilities must sum to 1, got {worst:g}; for counts, use JointTable.from_counts")
    return table / totals


def _zero_probability(observed: Mapping[str, int]) -> InputError:
    shown = ", ".join(f"{name} = {value}" for name, value in observed.items())
    return InputError(f"{shown} has probability 0: nothing can be conditioned on it")
