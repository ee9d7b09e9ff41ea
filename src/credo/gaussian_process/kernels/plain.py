"""The simplest kernels: a constant, white noise, straight lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from credo.gaussian_process.kernels.base import WIDE, Bounds, Leaf, Positive, shown


@dataclass(frozen=True, repr=False)
class Constant(Leaf):
    """k(x, x′) = c: a constant function with variance c; as a factor, the variance of another.

    Attributes:
        value: c.
        value_bounds: between which c is searched, or ``"fixed"``.
    """

    value: float = 1.0
    value_bounds: Bounds = WIDE

    positive: ClassVar[tuple[str, ...]] = ("value",)

    def _covariance(self, p: Mapping[str, Tensor], x: Tensor, z: Tensor | None) -> Tensor:
        return p["value"].expand(len(x), len(x if z is None else z))

    def _diagonal(self, p: Mapping[str, Tensor], x: Tensor) -> Tensor:
        return p["value"].expand(len(x))

    def _within(self) -> str:
        return repr(self) if self.value_bounds == "fixed" else shown(self.value)


@dataclass(frozen=True, repr=False)
class White(Leaf):
    """k(x_i, x_j) = σ² if i = j, else 0: independent noise with standard deviation σ at every observation.

    Attributes:
        noise: σ, a standard deviation (scikit-learn's ``noise_level`` is the variance σ²).
        noise_bounds: between which σ is searched, or ``"fixed"``.
    """

    noise: float = 1.0
    noise_bounds: Bounds = WIDE

    positive: ClassVar[tuple[str, ...]] = ("noise",)

    @property
    def has_noise(self) -> bool:
        """Yes."""
        return True

    def _covariance(self, p: Mapping[str, Tensor], x: Tensor, z: Tensor | None) -> Tensor:
        return torch.diag(self._diagonal(p, x)) if z is None else x.new_zeros(()).expand(len(x), len(z))

    def _diagonal(self, p: Mapping[str, Tensor], x: Tensor) -> Tensor:
        return p["noise"].square().expand(len(x))


@dataclass(frozen=True, repr=False)
class Linear(Leaf):
    """k(x, x′) = Σ_d v_d x_d x′_d: the linear functions wᵀx with independent w_d ~ N(0, v_d).

    ``Linear() + Constant()`` adds an offset and is Bayesian linear regression.

    Attributes:
        variance: v, one number or one for each feature.
        variance_bounds: between which v is searched, or ``"fixed"``.
    """

    variance: Positive = 1.0
    variance_bounds: Bounds = WIDE

    positive: ClassVar[tuple[str, ...]] = ("variance",)
    per_feature: ClassVar[tuple[str, ...]] = ("variance",)

    def _covariance(self, p: Mapping[str, Tensor], x: Tensor, z: Tensor | None) -> Tensor:
        return (p["variance"] * x) @ (x if z is None else z).mT

    def _diagonal(self, p: Mapping[str, Tensor], x: Tensor) -> Tensor:
        return (p["variance"] * x.square()).sum(1)
