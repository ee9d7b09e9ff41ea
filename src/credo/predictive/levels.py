"""Which share of the targets falls below a predicted quantile: a map of the levels from 0 to 1 onto themselves."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from credo.errors import InputError


@dataclass(frozen=True, repr=False)
class LevelMap:
    """R: [0, 1] → [0, 1], continuous, strictly increasing, linear between knots, with R(0) = 0 and R(1) = 1.

    Because the first and the last piece are linear too, R(u) = cu near 0 and 1 − R(u) = c'(1 − u) near 1: a
    distribution function F and R∘F have tails of the same shape.

    Args:
        predicted: the knots, from 0 to 1.
        observed: the values of R there, from 0 to 1.
    """

    predicted: Sequence[float]
    observed: Sequence[float]

    def __post_init__(self) -> None:
        for name in ("predicted", "observed"):
            object.__setattr__(self, name, _checked(getattr(self, name), name))
        if len(self.predicted) != len(self.observed):
            raise InputError(
                f"a level map has as many observed as predicted levels, got {len(self.predicted)} predicted and "
                f"{len(self.observed)} observed ones."
            )

    def __call__(self, level: Tensor) -> Tensor:
        """R(u), elementwise; differentiable."""
        return interpolate(level, *self._knots(level))

    def inverse(self, level: Tensor) -> Tensor:
        """R⁻¹(u), elementwise; differentiable."""
        predicted, observed = self._knots(level)
        return interpolate(level, observed, predicted)

    def log_slope(self, level: Tensor) -> Tensor:
        """log R'(u), elementwise; at a knot that of the piece above."""
        predicted, observed = self._knots(level)
        log_slopes = (observed.diff() / predicted.diff()).log()
        return log_slopes[torch.searchsorted(predicted[1:-1], level.detach().contiguous(), right=True)]

    @property
    def entropy(self) -> float:
        """−∫ R' log R' du, the entropy of R⁻¹(U) for a uniform U: never positive, and 0 for the identity."""
        steps = zip(pairwise(self.predicted), pairwise(self.observed), strict=True)
        return -sum((s - r) * math.log((s - r) / (v - u)) for (u, v), (r, s) in steps)

    @property
    def slopes(self) -> list[float]:
        """R' between the knots."""
        steps = zip(pairwise(self.predicted), pairwise(self.observed), strict=True)
        return [(s - r) / (v - u) for (u, v), (r, s) in steps]

    def __repr__(self) -> str:
        return f"LevelMap({len(self.predicted)} knots)"

    def _knots(self, like: Tensor) -> tuple[Tensor, Tensor]:
        return like.new_tensor(self.predicted), like.new_tensor(self.observed)


def interpolate(x: Tensor, xs: Tensor, ys: Tensor) -> Tensor:
    """The piecewise linear function through ``(xs, ys)`` at ``x``, held constant beyond the ends.

    Args:
        x: ``[...]`` where ``xs`` is one-dimensional, else ``[..., N]``.
        xs: ``[K]`` or ``[..., K]``, not falling along the last dimension.
        ys: as ``xs``.
    """
    above = torch.searchsorted(xs.detach(), x.detach().contiguous(), right=True).clamp(1, xs.shape[-1] - 1)
    at: Callable[[Tensor, Tensor], Tensor] = (lambda t, i: t[i]) if xs.ndim == 1 else (lambda t, i: t.gather(-1, i))
    left, right, low, high = at(xs, above - 1), at(xs, above), at(ys, above - 1), at(ys, above)
    width = right - left
    share = ((x - left) / torch.where(width > 0, width, 1.0)).clamp(0, 1)
    return low + share * (high - low)


def _checked(levels: object, name: str) -> tuple[float, ...]:
    values = tuple(map(float, levels)) if isinstance(levels, Sequence) else ()
    rising = all(a < b for a, b in pairwise(values))
    if len(values) < 2 or not rising or values[0] != 0 or values[-1] != 1:
        raise InputError(f"{name} must be levels that rise strictly from 0 to 1.")
    return values
