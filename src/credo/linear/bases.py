"""Basis functions φ(x), the features of a linear model.

A basis is a frozen object that maps inputs ``[N, D]`` to features ``[N, M]``, row by row. A model takes it as an
object, by its name (``"polynomial"``, with the defaults of that class), or as any function of arrays.

``Polynomial``, ``GaussianBasis``, ``Sigmoidal`` and ``Fourier`` expand every column separately, so that the model is a
sum of functions of one variable. All features of the first column come first, then those of the next. For functions of
several columns, pass points of the input space as the centers of ``GaussianBasis``, or a function such as
``PolynomialFeatures(2).fit(X).transform``.

References:
    C. M. Bishop. Pattern Recognition and Machine Learning. 2006, section 3.1.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from typing_extensions import override

from credo._arguments import check_finite_array, check_integer, check_option, check_positive
from credo._rows import Rows
from credo.errors import InputError


class Basis(ABC):
    """Features φ(x) of an input; subclass it and define ``functions`` to add a basis.

    Attributes:
        include_bias: whether a column of ones precedes the others. The textbook model has one; a model with
            ``fit_intercept=True`` needs none.

    Example:
        >>> from credo.linear import Polynomial
        >>> Polynomial(2, include_bias=True)([[3.0]])
        array([[1., 3., 9.]])
    """

    include_bias: bool

    @abstractmethod
    def functions(self, X: Tensor) -> Tensor:
        """Compute the basis functions without the column of ones.

        Args:
            X: inputs, ``[N, D]``.

        Returns:
            The features, ``[N, M]``.
        """

    def features(self, X: Tensor) -> Tensor:
        """Compute φ(x) of each row.

        Args:
            X: inputs, ``[N, D]``.

        Returns:
            The features, with the column of ones first if ``include_bias``, ``[N, M]``.
        """
        functions = self.functions(X)
        return torch.cat((X.new_ones(len(X), 1), functions), dim=1) if self.include_bias else functions

    def __call__(self, X: ArrayLike) -> NDArray[np.float64]:
        """Compute φ(x) of each row of an array ``[N, D]``, ``[N, M]``."""
        table = np.array(X, np.float64)
        if table.ndim != 2:
            raise InputError(f"X must be a table [N, D], got shape {list(table.shape)}")
        return self.features(torch.from_numpy(table)).numpy()

    def _fitted(self, rows: Rows) -> Basis:
        """The same basis with everything set that depends on the range of the data."""
        return self


BasisLike: TypeAlias = Basis | str | Callable[[Any], Any]


@dataclass(frozen=True)
class Identity(Basis):
    """φ(x) = x.

    Args:
        include_bias: add a column of ones before the others.

    Example:
        >>> from credo.linear import Identity
        >>> Identity()([[1.0, 2.0]])
        array([[1., 2.]])
    """

    include_bias: bool = False

    @override
    def functions(self, X: Tensor) -> Tensor:
        return X


@dataclass(frozen=True)
class Polynomial(Basis):
    """φ_j(x) = xʲ for j = 1 … degree, of every column separately.

    Standardize large inputs first: their powers are larger still.

    Args:
        degree: the highest power; 0 leaves only the constant.
        include_bias: add a column of ones (x⁰) before the others.

    Raises:
        InputError: if ``degree`` is not an integer of at least 0.

    Example:
        >>> from credo.linear import Polynomial
        >>> Polynomial(3)([[2.0]])
        array([[2., 4., 8.]])
    """

    degree: int = 3
    include_bias: bool = False

    def __post_init__(self) -> None:
        check_integer(self.degree, "degree", minimum=0)

    @override
    def functions(self, X: Tensor) -> Tensor:
        powers = torch.arange(1, self.degree + 1, device=X.device)
        return (X.unsqueeze(-1) ** powers).flatten(1)


@dataclass(frozen=True)
class Fourier(Basis):
    """φ(x) = sin(2πkx/T), then cos(2πkx/T), for k = 1 … frequencies, of every column separately.

    Args:
        frequencies: the number of multiples of 1/T.
        period: T, one number or one per column; by default the range of each column in the training data.
        include_bias: add a column of ones before the others.

    Raises:
        InputError: if ``frequencies`` is not a positive integer or ``period`` is not positive.

    Example:
        >>> from credo.linear import Fourier
        >>> Fourier(1, period=1.0)([[0.25]]).round(3)
        array([[1., 0.]])
    """

    frequencies: int = 3
    period: float | Sequence[float] | None = None
    include_bias: bool = False

    def __post_init__(self) -> None:
        check_integer(self.frequencies, "frequencies", minimum=1)
        if self.period is not None:
            object.__setattr__(self, "period", _to_tuple(self.period, "period"))
            for period in np.atleast_1d(self.period):
                check_positive(float(period), "period")

    @override
    def functions(self, X: Tensor) -> Tensor:
        if self.period is None:
            raise _missing_range("period")
        multiples = torch.arange(1, self.frequencies + 1, dtype=X.dtype, device=X.device)
        angles = 2.0 * math.pi * ((X / X.new_tensor(self.period)).unsqueeze(-1) * multiples)
        return torch.cat((angles.sin(), angles.cos()), dim=-1).flatten(1)

    @override
    def _fitted(self, rows: Rows) -> Basis:
        if self.period is not None:
            return self
        low, high = _column_range(rows)
        return replace(self, period=_width(low, high).tolist())


@dataclass(frozen=True)
class _CenteredBasis(Basis):
    """A profile h((x − c)/s) at several centers c; h(‖x − c‖/s) if the centers are points."""

    centers: int | Sequence[float] | Sequence[Sequence[float]] = 9
    scale: float | None = None
    include_bias: bool = False

    _allows_points: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.scale is not None:
            check_positive(self.scale, "scale")
        if isinstance(self.centers, int | np.integer):
            check_integer(self.centers, "centers", minimum=1)
            return
        object.__setattr__(self, "centers", _to_tuple(self.centers, "centers"))
        dimensions = np.ndim(self.centers)
        if dimensions != 1 and not (self._allows_points and dimensions == 2):
            shapes = "[K], or points [K, D]" if self._allows_points else "[K]"
            raise InputError(f"centers must be a number or of shape {shapes}, got {list(np.shape(self.centers))}")
        if self.scale is None and (dimensions == 2 or np.ptp(self.centers) == 0.0):
            raise InputError("scale must be given if the centers are points or there is only one")

    @abstractmethod
    def _profile(self, z: Tensor) -> Tensor:
        """h(z), elementwise."""

    @override
    def functions(self, X: Tensor) -> Tensor:
        if isinstance(self.centers, int | np.integer):
            raise _missing_range("centers")
        centers = X.new_tensor(self.centers)
        scale = self.scale or float(np.ptp(self.centers)) / (len(self.centers) - 1)
        if centers.ndim == 1:
            return self._profile((X.unsqueeze(-1) - centers) / scale).flatten(1)
        if centers.shape[1] != X.shape[1]:
            raise InputError(f"the centers are points of {centers.shape[1]} dimensions, but X has {X.shape[1]} columns")
        return self._profile(torch.cdist(X, centers, compute_mode="donot_use_mm_for_euclid_dist") / scale)

    @override
    def _fitted(self, rows: Rows) -> Basis:
        if not isinstance(self.centers, int | np.integer):
            return self
        low, high = _column_range(rows)
        fractions = np.linspace(0.0, 1.0, self.centers) if self.centers > 1 else np.array([0.5])
        centers = low[:, None] + fractions * (high - low)[:, None]
        scales = _width(low, high) / max(self.centers - 1, 1) if self.scale is None else np.full_like(low, self.scale)
        return _FittedCenteredBasis(self, _to_tuple(centers, "centers"), _to_tuple(scales, "scale"))


@dataclass(frozen=True)
class GaussianBasis(_CenteredBasis):
    """φ_j(x) = exp(−(x − c_j)²/2s²) (Bishop 3.4).

    Args:
        centers: the number of centers, spread evenly over the range of each column in the training data; or the
            centers, ``[K]``, the same for every column; or K points of the input space, ``[K, D]``, with the distance
            ‖x − c_j‖.
        scale: s; by default the distance between neighboring centers.
        include_bias: add a column of ones before the others.

    Raises:
        InputError: if the shape of ``centers`` or the value of ``scale`` is not valid.

    Example:
        >>> from credo.linear import GaussianBasis
        >>> GaussianBasis([0.0, 1.0], scale=1.0)([[0.0]]).round(3)
        array([[1.   , 0.607]])
    """

    _allows_points: ClassVar[bool] = True

    @override
    def _profile(self, z: Tensor) -> Tensor:
        return torch.exp(-0.5 * z.square())


@dataclass(frozen=True)
class Sigmoidal(_CenteredBasis):
    """φ_j(x) = 1 / (1 + exp(−(x − c_j)/s)) (Bishop 3.5).

    Args:
        centers: the number of centers, spread evenly over the range of each column in the training data; or the
            centers, ``[K]``, the same for every column.
        scale: s; by default the distance between neighboring centers.
        include_bias: add a column of ones before the others.

    Raises:
        InputError: if the shape of ``centers`` or the value of ``scale`` is not valid.

    Example:
        >>> from credo.linear import Sigmoidal
        >>> Sigmoidal([0.0, 1.0], scale=1.0)([[0.0]]).round(3)
        array([[0.5  , 0.269]])
    """

    @override
    def _profile(self, z: Tensor) -> Tensor:
        return torch.sigmoid(z)


@dataclass(frozen=True)
class _FittedCenteredBasis(Basis):
    """The profile of a ``_CenteredBasis`` with centers ``[D, K]`` and scales ``[D]`` per column."""

    basis: _CenteredBasis
    centers: tuple[tuple[float, ...], ...]
    scales: tuple[float, ...]

    @property
    def include_bias(self) -> bool:  # type: ignore[override]
        return self.basis.include_bias

    @override
    def functions(self, X: Tensor) -> Tensor:
        offsets = X.unsqueeze(-1) - X.new_tensor(self.centers)
        return self.basis._profile(offsets / X.new_tensor(self.scales).unsqueeze(-1)).flatten(1)


@dataclass(frozen=True)
class _FunctionBasis(Basis):
    """A user's function from an array ``[N, D]`` to an array ``[N, M]``."""

    function: Callable[[Any], Any]
    include_bias: bool = False

    @override
    def functions(self, X: Tensor) -> Tensor:
        values = np.array(self.function(X.cpu().numpy()), np.float64)
        if values.ndim != 2 or len(values) != len(X):
            raise InputError(
                f"the basis function must map inputs [N, D] to features [N, M], got {list(values.shape)} "
                f"for {list(X.shape)}"
            )
        return torch.from_numpy(values).to(X.device)


_BASES: dict[str, type[Basis]] = {
    "identity": Identity,
    "polynomial": Polynomial,
    "gaussian": GaussianBasis,
    "sigmoidal": Sigmoidal,
    "fourier": Fourier,
}


def to_basis(basis: BasisLike) -> Basis:
    """Return the basis for an object, a name or a function."""
    if isinstance(basis, Basis):
        return basis
    if isinstance(basis, str):
        return _BASES[check_option(basis, "basis", _BASES)]()
    if callable(basis) and not isinstance(basis, type):
        return _FunctionBasis(basis)
    raise InputError(f"basis must be a Basis, a name or a function of an array, got {basis!r}")


def compute_features(basis: Basis, X: Tensor) -> Tensor:
    """Compute φ(x) of each row; raise ``InputError`` if there are no features or some are not finite."""
    features = basis.features(X)
    if not features.shape[1]:
        raise InputError(f"{basis!r} gives no features: choose a larger basis, or include_bias=True")
    if features is not X and not bool(torch.isfinite(features.sum())) and not bool(torch.isfinite(features).all()):
        raise InputError(f"{basis!r} gives values that are not finite: standardize the inputs, or choose another basis")
    return features


def _column_range(rows: Rows) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The minimum and the maximum of every column, ``[D]`` each."""
    extremes = torch.stack([torch.stack((block[0].amin(0), block[0].amax(0))) for block in rows.blocks()])
    return extremes[:, 0].amin(0).cpu().numpy(), extremes[:, 1].amax(0).cpu().numpy()


def _width(low: NDArray[np.float64], high: NDArray[np.float64]) -> NDArray[np.float64]:
    """The range of every column; 1 for a constant one, whose features are constant for any range."""
    width: NDArray[np.float64] = np.where(high > low, high - low, 1.0)
    return width


def _to_tuple(values: Any, name: str) -> Any:
    """Numbers, a list or an array as (nested) tuples, so that a basis can be compared and hashed."""
    array = check_finite_array(values, name)
    if not array.size:
        raise InputError(f"{name} must contain at least one number, got {values!r}")
    nested = array.tolist()
    if array.ndim == 2:
        return tuple(tuple(row) for row in nested)
    return tuple(nested) if array.ndim else nested


def _missing_range(name: str) -> InputError:
    return InputError(f"{name} depends on the range of the data: fit a model with this basis, or set {name}")
