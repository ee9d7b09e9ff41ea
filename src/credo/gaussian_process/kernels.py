"""Covariance functions of Gaussian processes: small immutable values that can be added and multiplied.

    4.0 * RBF(length_scale=67.0) + RBF(90.0) * Periodic(period=1.0, period_bounds="fixed")

References:
    C. E. Rasmussen, C. K. I. Williams. Gaussian Processes for Machine Learning. 2006, chapter 4.
    D. J. C. MacKay. Introduction to Gaussian processes. 1998, section 5.2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from credo.errors import InputError
from credo.gaussian_process._kernel_base import (
    DEFAULT_BOUNDS,
    Bounds,
    ElementaryKernel,
    Hyperparameter,
    Kernel,
    Positive,
    Product,
    Sum,
    format_value,
)

__all__ = [
    "RBF",
    "Constant",
    "Hyperparameter",
    "Kernel",
    "Linear",
    "Matern",
    "Periodic",
    "Product",
    "RationalQuadratic",
    "Sum",
    "White",
]


@dataclass(frozen=True, repr=False)
class Constant(ElementaryKernel):
    """k(x, x′) = c: a constant function with variance c; as a factor, the variance of another kernel.

    Args:
        value: c.
        value_bounds: the search range of c, or ``"fixed"``.

    Raises:
        InputError: if a hyperparameter or its bounds are not positive.

    Example:
        >>> from credo.gaussian_process.kernels import RBF, Constant
        >>> Constant(2.0) * RBF() == 2.0 * RBF()
        True
    """

    value: float = 1.0
    value_bounds: Bounds = DEFAULT_BOUNDS

    _names: ClassVar[tuple[str, ...]] = ("value",)

    @override
    def _covariance(self, p: Mapping[str, Tensor], x: Tensor, z: Tensor | None) -> Tensor:
        return p["value"].expand(len(x), len(x if z is None else z))

    @override
    def _diagonal(self, p: Mapping[str, Tensor], x: Tensor) -> Tensor:
        return p["value"].expand(len(x))

    @override
    def _nested_repr(self) -> str:
        return repr(self) if self.value_bounds == "fixed" else format_value(self.value)


@dataclass(frozen=True, repr=False)
class White(ElementaryKernel):
    """k(x_i, x_j) = σ² if i = j, else 0: independent noise with standard deviation σ at every observation.

    Args:
        noise: σ, a standard deviation (scikit-learn's ``noise_level`` is the variance σ²).
        noise_bounds: the search range of σ, or ``"fixed"``.

    Raises:
        InputError: if a hyperparameter or its bounds are not positive.

    Example:
        >>> from credo.gaussian_process.kernels import White
        >>> White(0.5)([[0.0], [0.0]]).tolist()
        [[0.25, 0.0], [0.0, 0.25]]
    """

    noise: float = 1.0
    noise_bounds: Bounds = DEFAULT_BOUNDS

    _names: ClassVar[tuple[str, ...]] = ("noise",)

    @property
    def has_noise(self) -> bool:
        """Always ``True``."""
        return True

    @override
    def _covariance(self, p: Mapping[str, Tensor], x: Tensor, z: Tensor | None) -> Tensor:
        return torch.diag(self._diagonal(p, x)) if z is None else x.new_zeros(()).expand(len(x), len(z))

    @override
    def _diagonal(self, p: Mapping[str, Tensor], x: Tensor) -> Tensor:
        return p["noise"].square().expand(len(x))


@dataclass(frozen=True, repr=False)
class Linear(ElementaryKernel):
    """k(x, x′) = Σ_d v_d x_d x′_d: the linear functions wᵀx with independent w_d ~ N(0, v_d).

    ``Linear() + Constant()`` adds an offset and is Bayesian linear regression.

    Args:
        variance: v, one number or one per feature.
        variance_bounds: the search range of v, or ``"fixed"``.

    Raises:
        InputError: if a hyperparameter or its bounds are not positive.

    Example:
        >>> from credo.gaussian_process.kernels import Linear
        >>> Linear()([[1.0], [2.0]]).tolist()
        [[1.0, 2.0], [2.0, 4.0]]
    """

    variance: Positive = 1.0
    variance_bounds: Bounds = DEFAULT_BOUNDS

    _names: ClassVar[tuple[str, ...]] = ("variance",)
    _per_feature: ClassVar[tuple[str, ...]] = ("variance",)

    @override
    def _covariance(self, p: Mapping[str, Tensor], x: Tensor, z: Tensor | None) -> Tensor:
        return (p["variance"] * x) @ (x if z is None else z).mT

    @override
    def _diagonal(self, p: Mapping[str, Tensor], x: Tensor) -> Tensor:
        return (p["variance"] * x.square()).sum(1)


class _StationaryKernel(ElementaryKernel):
    """A kernel of x − x′ with k(x, x) = 1; a factor in front sets the variance."""

    @override
    def _diagonal(self, p: Mapping[str, Tensor], x: Tensor) -> Tensor:
        return x.new_ones(len(x))


@dataclass(frozen=True, repr=False)
class RBF(_StationaryKernel):
    """k(x, x′) = exp(−½ r²) with r² = Σ_d (x_d − x′_d)²/ℓ_d²: functions with derivatives of every order.

    Args:
        length_scale: ℓ, the distance over which f changes; one number, or one per feature (automatic relevance
            determination: a feature with a large ℓ_d has little influence).
        length_scale_bounds: the search range of ℓ, or ``"fixed"``.

    Raises:
        InputError: if a hyperparameter or its bounds are not positive.

    Example:
        >>> from credo.gaussian_process.kernels import RBF
        >>> round(RBF(2.0)([[0.0]], [[2.0]]).item(), 4)
        0.6065
    """

    length_scale: Positive = 1.0
    length_scale_bounds: Bounds = DEFAULT_BOUNDS

    _names: ClassVar[tuple[str, ...]] = ("length_scale",)
    _per_feature: ClassVar[tuple[str, ...]] = ("length_scale",)

    @override
    def _covariance(self, p: Mapping[str, Tensor], x: Tensor, z: Tensor | None) -> Tensor:
        return torch.exp(-0.5 * _scaled_distance(p, x, z).square())


@dataclass(frozen=True, repr=False)
class Matern(_StationaryKernel):
    """Functions with ν − ½ derivatives, r² = Σ_d (x_d − x′_d)²/ℓ_d² (Rasmussen & Williams, equations 4.14 and 4.17).

        ν = ½:  exp(−r),    ν = 1½:  (1 + √3 r) exp(−√3 r),    ν = 2½:  (1 + √5 r + 5/3 r²) exp(−√5 r)

    Args:
        length_scale: ℓ, one number or one per feature.
        nu: ν, one of 0.5, 1.5 and 2.5; it is not searched.
        length_scale_bounds: the search range of ℓ, or ``"fixed"``.

    Raises:
        InputError: if a hyperparameter or its bounds are not positive, or ``nu`` is another number.

    Example:
        >>> from credo.gaussian_process.kernels import Matern
        >>> round(Matern(nu=0.5)([[0.0]], [[1.0]]).item(), 4)
        0.3679
    """

    length_scale: Positive = 1.0
    nu: float = 1.5
    length_scale_bounds: Bounds = DEFAULT_BOUNDS

    _names: ClassVar[tuple[str, ...]] = ("length_scale",)
    _per_feature: ClassVar[tuple[str, ...]] = ("length_scale",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nu not in (0.5, 1.5, 2.5):
            raise InputError(f"Matern.nu must be 0.5, 1.5 or 2.5 (RBF is its limit for large nu), got {self.nu!r}")

    @override
    def _covariance(self, p: Mapping[str, Tensor], x: Tensor, z: Tensor | None) -> Tensor:
        r = math.sqrt(2.0 * self.nu) * _scaled_distance(p, x, z)
        decay = torch.exp(-r)
        if self.nu == 0.5:
            return decay
        return (1.0 + r) * decay if self.nu == 1.5 else (1.0 + r + r.square() / 3.0) * decay

    def __repr__(self) -> str:
        return super().__repr__().replace("(", f"(nu={self.nu:g}, ", 1)


@dataclass(frozen=True, repr=False)
class RationalQuadratic(_StationaryKernel):
    """k(x, x′) = (1 + r²/2α)^−α: a mixture of RBF kernels over many length scales; α → ∞ is one RBF.

    Args:
        length_scale: ℓ, one number or one per feature.
        alpha: α; the smaller, the more the length scales differ.
        length_scale_bounds: the search range of ℓ, or ``"fixed"``.
        alpha_bounds: the search range of α, or ``"fixed"``.

    Raises:
        InputError: if a hyperparameter or its bounds are not positive.

    Example:
        >>> from credo.gaussian_process.kernels import RationalQuadratic
        >>> RationalQuadratic(alpha=0.5)([[0.0]], [[1.0]]).item() < 1.0
        True
    """

    length_scale: Positive = 1.0
    alpha: float = 1.0
    length_scale_bounds: Bounds = DEFAULT_BOUNDS
    alpha_bounds: Bounds = DEFAULT_BOUNDS

    _names: ClassVar[tuple[str, ...]] = ("length_scale", "alpha")
    _per_feature: ClassVar[tuple[str, ...]] = ("length_scale",)

    @override
    def _covariance(self, p: Mapping[str, Tensor], x: Tensor, z: Tensor | None) -> Tensor:
        squares = _scaled_distance(p, x, z).square()
        return torch.exp(-p["alpha"] * torch.log1p(squares / (2.0 * p["alpha"])))


@dataclass(frozen=True, repr=False)
class Periodic(_StationaryKernel):
    """k(x, x′) = exp(−2 Σ_d sin²(π(x_d − x′_d)/p_d)/ℓ_d²): periodic functions (MacKay 1998).

    This is the RBF kernel of points on circles, u(x) = (cos 2πx/p, sin 2πx/p), with distance 2|sin π(x − x′)/p|. It is
    therefore positive semidefinite for any number of features, unlike the sine of their Euclidean distance.

    Args:
        length_scale: ℓ; the smaller, the more f may change within a period. One number, or one per feature.
        period: p, one number or one per feature.
        length_scale_bounds: the search range of ℓ, or ``"fixed"``.
        period_bounds: the search range of p, or ``"fixed"``.

    Raises:
        InputError: if a hyperparameter or its bounds are not positive.

    Example:
        >>> from credo.gaussian_process.kernels import Periodic
        >>> round(Periodic(period=3.0)([[0.0]], [[6.0]]).item(), 6)
        1.0
    """

    length_scale: Positive = 1.0
    period: Positive = 1.0
    length_scale_bounds: Bounds = DEFAULT_BOUNDS
    period_bounds: Bounds = DEFAULT_BOUNDS

    _names: ClassVar[tuple[str, ...]] = ("length_scale", "period")
    _per_feature: ClassVar[tuple[str, ...]] = ("length_scale", "period")

    @override
    def _covariance(self, p: Mapping[str, Tensor], x: Tensor, z: Tensor | None) -> Tensor:
        def on_circles(points: Tensor) -> Tensor:
            angle = 2.0 * math.pi * points / p["period"]
            return torch.cat([angle.cos() / p["length_scale"], angle.sin() / p["length_scale"]], 1)

        return torch.exp(-0.5 * _distance(on_circles(x), None if z is None else on_circles(z)).square())


def _scaled_distance(p: Mapping[str, Tensor], x: Tensor, z: Tensor | None) -> Tensor:
    """r, ``[N, M]``."""
    return _distance(x / p["length_scale"], None if z is None else z / p["length_scale"])


def _distance(x: Tensor, z: Tensor | None) -> Tensor:
    """Euclidean distances ``[N, M]``, from differences.

    A matrix product would be faster, but its rounding error is that of |x|², which the square root of a short distance
    enlarges. The gradient at 0 is 0.
    """
    return torch.cdist(x, x if z is None else z, compute_mode="donot_use_mm_for_euclid_dist")
