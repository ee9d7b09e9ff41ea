"""Discrete variables: joint tables, their marginals and conditionals, and Bayes' rule."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from credo.conjugate._arguments import Numbers, numbers, whole_observations
from credo.errors import InputError, unknown_name

_ROUNDING = 1e-9
"""How far from 1 a sum of probabilities may be: decimals that were typed in add up to this, mistakes do not."""


@dataclass(frozen=True, eq=False, init=False)
class JointTable:
    """p(x₀, x₁, …) of discrete variables, the value of each an index along its axis.

    Attributes:
        probabilities: ``[I, J, ...]``, float64; they sum to 1.
        names: of the variables, one an axis: ``x0``, ``x1`` … where none are given.

    References:
        C. M. Bishop. Pattern Recognition and Machine Learning. 2006, section 1.2.
    """

    probabilities: Tensor
    names: tuple[str, ...]

    def __init__(self, probabilities: Numbers, names: Sequence[str] | None = None) -> None:
        (table,) = numbers(probabilities=probabilities)
        object.__setattr__(self, "names", _named_axes("probabilities", table, names))
        object.__setattr__(self, "probabilities", _normalized(table, table.sum()))

    @classmethod
    def from_counts(cls, counts: Numbers, names: Sequence[str] | None = None) -> JointTable:
        """The relative frequencies of ``counts [I, J, ...]``, which maximize the likelihood."""
        (table,) = numbers(counts=counts)
        if bool((table < 0.0).any()) or not bool(table.any()):
            raise InputError("counts must be 0 or more and not all 0: they are turned into relative frequencies")
        return cls(table / table.sum(), names)

    @classmethod
    def from_data(
        cls, data: Numbers, names: Sequence[str] | None = None, sizes: Sequence[int] | None = None
    ) -> JointTable:
        """The relative frequencies of rows.

        Args:
            data: integers from 0, one variable a column, ``[N, V]``.
            names: of the variables.
            sizes: how many values each variable has; one more than its largest in the data where not given.
        """
        rows = whole_observations(data).long()
        if rows.ndim != 2 or 0 in rows.shape:
            raise InputError(f"data must have rows and one variable a column, shape [N, V], got {list(rows.shape)}")
        largest = rows.amax(0).tolist()
        sizes = [value + 1 for value in largest] if sizes is None else list(sizes)
        if len(sizes) != rows.shape[1] or any(value >= size for value, size in zip(largest, sizes, strict=True)):
            raise InputError(f"sizes must be above the largest value of each column, {largest}, got {sizes}")
        strides = torch.tensor([math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))], device=rows.device)
        counts = torch.bincount((rows * strides).sum(1), minlength=math.prod(sizes))
        return cls.from_counts(counts.reshape(sizes), names)

    def marginal(self, *names: str) -> JointTable:
        """p(names), axes in the order of ``names``: the others summed over (the sum rule)."""
        kept = self._axes(names)
        others = [axis for axis in range(len(self.names)) if axis not in kept]
        summed = self.probabilities.sum(others) if others else self.probabilities
        return JointTable(summed.permute(*(sorted(kept).index(axis) for axis in kept)), names)

    def conditional(self, of: str | Sequence[str], given: str | Sequence[str]) -> ConditionalTable:
        """p(of | given), for every value of the variables in ``given``."""
        of, given = _several(of), _several(given)
        _require_of(of)
        joint = self.marginal(*given, *of).probabilities
        return ConditionalTable(_divided(joint, len(given), given), of, given)

    def given(self, **observed: int) -> JointTable:
        """p(the others | observed): ``table.given(weather=0)``."""
        rest = tuple(name for name in self.names if name not in observed)
        if not rest:
            raise InputError("observed must leave at least one variable open, got a value for each")
        table = self.marginal(*observed, *rest).probabilities
        for name, value in observed.items():
            if not isinstance(value, int | np.integer) or not 0 <= value < len(table):
                raise InputError(f"{name} must be an integer from 0 to {len(table) - 1}, got {value!r}")
            table = table[value]
        if not bool(table.any()):
            raise _impossible(observed)
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

    Attributes:
        probabilities: the axes of ``given`` first, then those of ``of``, over which they sum to 1.
        of: names of the variables that are uncertain.
        given: names of those that are known.
    """

    probabilities: Tensor
    of: tuple[str, ...]
    given: tuple[str, ...]

    def __init__(self, probabilities: Numbers, of: str | Sequence[str], given: str | Sequence[str]) -> None:
        (table,) = numbers(probabilities=probabilities)
        of, given = _several(of), _several(given)
        _require_of(of)
        _named_axes("probabilities", table, (*given, *of))
        totals = table.sum(tuple(range(len(given), table.ndim)), keepdim=True)
        object.__setattr__(self, "probabilities", _normalized(table, totals))
        object.__setattr__(self, "of", of)
        object.__setattr__(self, "given", given)

    def times(self, marginal: JointTable) -> JointTable:
        """p(given, of) = p(of | given) p(given) (the product rule)."""
        known = marginal.marginal(*self.given).probabilities
        sizes = self.probabilities.shape[: len(self.given)]
        if len(marginal.names) != len(self.given) or known.shape != sizes:
            raise InputError(
                f"the two tables must agree about {list(self.given)}, of {list(sizes)} values: "
                f"got a table of {list(marginal.names)} with {list(marginal.probabilities.shape)}"
            )
        joint = known.reshape(*known.shape, *[1] * len(self.of)) * self.probabilities
        return JointTable(joint, (*self.given, *self.of))


def bayes(prior: JointTable, likelihood: ConditionalTable) -> ConditionalTable:
    """p(θ | x) = p(x | θ) p(θ) / p(x) for every x (Bayes' rule, Bishop 1.12).

    Args:
        prior: p(θ).
        likelihood: p(x | θ).
    """
    return likelihood.times(prior).conditional(of=likelihood.given, given=likelihood.of)


def _several(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _require_of(of: tuple[str, ...]) -> None:
    if not of:
        raise InputError("of must name at least one variable, got none")


def _named_axes(what: str, table: Tensor, names: Sequence[str] | None) -> tuple[str, ...]:
    chosen = tuple(f"x{axis}" for axis in range(table.ndim)) if names is None else tuple(names)
    if table.numel() == 0 or table.ndim == 0:
        raise InputError(f"{what} must have at least one variable and one value, got shape {list(table.shape)}")
    if len(chosen) != table.ndim or len(set(chosen)) != len(chosen):
        raise InputError(f"names must be {table.ndim} different ones, one for each axis of {what}, got {list(chosen)}")
    return chosen


def _normalized(table: Tensor, totals: Tensor) -> Tensor:
    """The table with the rounding of its sums removed."""
    if bool((table < 0.0).any()):
        raise InputError(f"probabilities must be at least 0, got {table.min().item():g}")
    if bool(((totals - 1.0).abs() > _ROUNDING).any()):
        worst = totals.flatten()[(totals - 1.0).abs().argmax()].item()
        raise InputError(f"probabilities must sum to 1, got {worst:g}; for counts, use JointTable.from_counts")
    return table / totals


def _divided(joint: Tensor, known: int, names: Sequence[str]) -> Tensor:
    """The joint divided by its sums over all but the first ``known`` axes."""
    totals = joint.sum(tuple(range(known, joint.ndim)), keepdim=True)
    impossible = (totals == 0.0).nonzero()
    if len(impossible):
        raise _impossible(dict(zip(names, impossible[0].tolist(), strict=False)))
    return joint / totals


def _impossible(observed: dict[str, int]) -> InputError:
    shown = ", ".join(f"{name} = {value}" for name, value in observed.items())
    return InputError(f"{shown} has probability 0: nothing can be said given what cannot happen")
