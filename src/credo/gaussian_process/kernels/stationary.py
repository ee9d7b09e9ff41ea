"""Kernels of the difference x − x′ alone: what is believed is the same everywhere."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from credo.errors import InputError
from credo.gaussian_process.kernels.base import WIDE, Bounds, Leaf, Positive


class Stationary(Leaf):
    """A kernel with k(x, x) = 1; a :class:`Constant` in front sets the variance."""

    def _diagonal(self, p: Mapping[str, Tensor], x: Tensor) -> Tensor:
        return x.new_ones(len(x))


@dataclass(frozen=True, repr=False)
class RBF(Stationary):
    """k(x, x′) = exp(−½ r²) with r² = Σ_d (x_d − x′_d)²/ℓ_d²: functions with derivatives of every order.

    Attributes:
        length_scale: ℓ, how far one must go for f to change; one number, or one for each feature (automatic relevance
            determination: a feature with a large ℓ_d does not matter).
        length_scale_bounds: between which ℓ is searched, or ``"fixed"``.
    """

    length_scale: Positive = 1.0
    length_scale_bounds: Bounds = WIDE

    positive: ClassVar[tuple[str, ...]] = ("length_scale",)
    per_feature: ClassVar[tuple[str, ...]] = ("length_scale",)

    def _covariance(self, p: Mapping[str, Tensor], x: Tensor, z: Tensor | None) -> Tensor:
        return torch.exp(-0.5 * _scaled_distance(p, x, z).square())


@dataclass(frozen=True, repr=False)
class Matern(Stationary):
    """Functions with ν − ½ derivatives, r² = Σ_d (x_d − x′_d)²/ℓ_d² (Rasmussen & Williams, equations 4.14 and 4.17).

        ν = ½:  exp(−r),    ν = 1½:  (1 + √3 r) exp(−√3 r),    ν = 2½:  (1 + √5 r + 5/3 r²) exp(−√5 r)

    Attributes:
        length_scale: ℓ, one number or one for each feature.
        nu: ν, one of 0.5, 1.5 and 2.5; it is not searched.
        length_scale_bounds: between which ℓ is searched, or ``"fixed"``.
    """

    length_scale: Positive = 1.0
    nu: float = 1.5
    length_scale_bounds: Bounds = WIDE

    positive: ClassVar[tuple[str, ...]] = ("length_scale",)
    per_feature: ClassVar[tuple[str, ...]] = ("length_scale",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nu not in (0.5, 1.5, 2.5):
            raise InputError(f"Matern.nu must be 0.5, 1.5 or 2.5 (RBF is its limit for large nu), got {self.nu!r}")

    def _covariance(self, p: Mapping[str, Tensor], x: Tensor, z: Tensor | None) -> Tensor:
        r = math.sqrt(2.0 * self.nu) * _scaled_distance(p, x, z)
        decay = torch.exp(-r)
        if self.nu == 0.5:
            return decay
        return (1.0 + r) * decay if self.nu == 1.5 else (1.0 + r + r.square() / 3.0) * decay

    def __repr__(self) -> str:
        return super().__repr__().replace("(", f"(nu={self.nu:g}, ", 1)


@dataclass(frozen=True, repr=False)
class RationalQuadratic(Stationary):
    """k(x, x′) = (1 + r²/2α)^−α: a mixture of RBF kernels over many length scales; α → ∞ is one RBF.

    Attributes:
        length_scale: ℓ, one number or one for each feature.
        alpha: α; the smaller, the more the length scales differ.
        length_scale_bounds: between which ℓ is searched, or ``"fixed"``.
        alpha_bounds: between which α is searched, or ``"fixed"``.
    """

    length_scale: Positive = 1.0
    alpha: float = 1.0
    length_scale_bounds: Bounds = WIDE
    alpha_bounds: Bounds = WIDE

    positive: ClassVar[tuple[str, ...]] = ("length_scale", "alpha")
    per_feature: ClassVar[tuple[str, ...]] = ("length_scale",)

    def _covariance(self, p: Mapping[str, Tensor], x: Tensor, z: Tensor | None) -> Tensor:
        squares = _scaled_distance(p, x, z).square()
        return torch.exp(-p["alpha"] * torch.log1p(squares / (2.0 * p["alpha"])))


@dataclass(frozen=True, repr=False)
class Periodic(Stationary):
    """k(x, x′) = exp(−2 Σ_d sin²(π(x_d − x′_d)/p_d)/ℓ_d²): functions that repeat (MacKay 1998).

    It is the RBF kernel of points on circles, u(x) = (cos 2πx/p, sin 2πx/p), whose distance is 2|sin π(x − x′)/p|. That
    makes it a kernel for any number of features, which the sine of their Euclidean distance is not.

    Attributes:
        length_scale: ℓ; the smaller, the more f may change within a period. One number, or one for each feature.
        period: p, one number or one for each feature.
        length_scale_bounds: between which ℓ is searched, or ``"fixed"``.
        period_bounds: between which p is searched, or ``"fixed"``.
    """

    length_scale: Positive = 1.0
    period: Positive = 1.0
    length_scale_bounds: Bounds = WIDE
    period_bounds: Bounds = WIDE

    positive: ClassVar[tuple[str, ...]] = ("length_scale", "period")
    per_feature: ClassVar[tuple[str, ...]] = ("length_scale", "period")

    def _covariance(self, p: Mapping[str, Tensor], x: Tensor, z: Tensor | None) -> Tensor:
        def on_circles(points: Tensor) -> Tensor:
            angle = 2.0 * math.pi * points / p["period"]
            return torch.cat([angle.cos() / p["length_scale"], angle.sin() / p["length_scale"]], 1)

        return torch.exp(-0.5 * _distance(on_circles(x), None if z is None else on_circles(z)).square())


def _scaled_distance(p: Mapping[str, Tensor], x: Tensor, z: Tensor | None) -> Tensor:
    """r, ``[N, M]``."""
    return _distance(x / p["length_scale"], None if z is None else z / p["length_scale"])


def _distance(x: Tensor, z: Tensor | None) -> Tensor:
    """Euclidean distances ``[N, M]``, by differences.

    Through products of x and z they would come faster, but with the rounding of |x|², which the square root of a short
    distance enlarges. The gradient at 0 is 0.
    """
    return torch.cdist(x, x if z is None else z, compute_mode="donot_use_mm_for_euclid_dist")
