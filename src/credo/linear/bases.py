"""Basis functions φ(x): what a linear model is linear in.

A basis is a small frozen object that maps inputs ``[N, D]`` to features ``[N, M]``, each row by itself. It is given to
a model as an object, by its name (``"polynomial"``, with the defaults of that class), or as any function of arrays.

Inputs with several columns. ``Polynomial``, ``GaussianBasis``, ``Sigmoidal`` and ``Fourier`` expand every column by
itself, so that the model is a sum of functions of one variable; the features of a column stand together. For more,
give ``GaussianBasis`` points of the whole input space as its centers, or a function such as
``PolynomialFeatures(2).fit(X).transform``.

References:
    C. M. Bishop. Pattern Recognition and Machine Learning. 2006, section 3.1.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import LinAlgWarning
from torch import Tensor

from credo._rows import Rows
from credo.errors import InputError, unknown_name

ENOUGH_DIGITS = 1e-3
"""Nats of the log evidence that rounding of the features may decide before a warning is due."""


class Basis(ABC):
    """Features φ(x) of an input.

    Attributes:
        include_bias: whether a column of ones stands before the others. The textbook model has one; a model with
            ``fit_intercept=True`` needs none.
    """

    include_bias: bool

    @abstractmethod
    def functions(self, X: Tensor) -> Tensor:
        """The basis functions at ``X [N, D]`` without the column of ones, ``[N, M]``."""

    def placed(self, rows: Rows) -> Basis:
        """The same basis with everything that depends on the range of the data filled in."""
        return self

    def features(self, X: Tensor) -> Tensor:
        """φ(x) of each row of ``X [N, D]``, ``[N, M]``."""
        functions = self.functions(X)
        return torch.cat((X.new_ones(len(X), 1), functions), dim=1) if self.include_bias else functions

    def __call__(self, X: ArrayLike) -> NDArray[np.float64]:
        """φ(x) of each row of an array ``[N, D]``, ``[N, M]``."""
        table = np.array(X, np.float64)
        if table.ndim != 2:
            raise InputError(f"X must be a table [N, D], got shape {list(table.shape)}")
        return self.features(torch.from_numpy(table)).numpy()


BasisLike: TypeAlias = Basis | str | Callable[[Any], Any]


@dataclass(frozen=True)
class Identity(Basis):
    """φ(x) = x.

    Args:
        include_bias: put a column of ones before the others.
    """

    include_bias: bool = False

    def functions(self, X: Tensor) -> Tensor:
        """The inputs themselves, ``[N, D]``."""
        return X


@dataclass(frozen=True)
class Polynomial(Basis):
    """φ_j(x) = xʲ for j = 1 … degree, of every column by itself.

    Powers of large numbers are larger still: standardize such inputs first.

    Args:
        degree: the highest power; 0 leaves only the constant.
        include_bias: put a column of ones (x⁰) before the others.
    """

    degree: int = 3
    include_bias: bool = False

    def __post_init__(self) -> None:
        _check_number("degree", self.degree, 0)

    def functions(self, X: Tensor) -> Tensor:
        """x, x², … of the first column, then of the next, ``[N, D · degree]``."""
        powers = torch.arange(1, self.degree + 1, device=X.device)
        return (X.unsqueeze(-1) ** powers).flatten(1)


@dataclass(frozen=True)
class Fourier(Basis):
    """φ(x) = sin(2πkx/T), cos(2πkx/T) for k = 1 … frequencies, of every column by itself.

    Args:
        frequencies: how many multiples of 1/T.
        period: T, one number or one for each column; by default the range of each column in the data.
        include_bias: put a column of ones before the others.
    """

    frequencies: int = 3
    period: float | Sequence[float] | None = None
    include_bias: bool = False

    def __post_init__(self) -> None:
        _check_number("frequencies", self.frequencies, 1)
        if self.period is not None:
            object.__setattr__(self, "period", _as_tuple("period", self.period))
            _check_positive("period", self.period)

    def placed(self, rows: Rows) -> Basis:
        """With the range of each column as its period where none was given."""
        if self.period is not None:
            return self
        low, high = _limits(rows)
        return replace(self, period=_width(low, high).tolist())

    def functions(self, X: Tensor) -> Tensor:
        """sin k = 1, 2, …, then cos, of the first column, then of the next, ``[N, D · 2 · frequencies]``."""
        if self.period is None:
            raise _not_placed("period")
        multiples = torch.arange(1, self.frequencies + 1, dtype=X.dtype, device=X.device)
        turns = (X / X.new_tensor(self.period)).unsqueeze(-1) * multiples
        angles = 2.0 * math.pi * turns
        return torch.cat((angles.sin(), angles.cos()), dim=-1).flatten(1)


@dataclass(frozen=True)
class _Bumps(Basis):
    """A shape h((x − c)/s), moved to several centers c."""

    centers: int | Sequence[float] | Sequence[Sequence[float]] = 9
    scale: float | None = None
    include_bias: bool = False

    takes_points: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.scale is not None:
            _check_positive("scale", self.scale)
        if isinstance(self.centers, int | np.integer):
            _check_number("centers", self.centers, 1)
            return
        object.__setattr__(self, "centers", _as_tuple("centers", self.centers))
        dimensions = np.ndim(self.centers)
        if dimensions != 1 and not (self.takes_points and dimensions == 2):
            form = "[K], or points [K, D]" if self.takes_points else "[K]"
            raise InputError(f"centers must be a number or of shape {form}, got {list(np.shape(self.centers))}")
        if self.scale is None and (dimensions == 2 or np.ptp(self.centers) == 0.0):
            raise InputError("scale must be given where the centers are points or a single one")

    @abstractmethod
    def _shape(self, z: Tensor) -> Tensor:
        """h(z), elementwise."""

    def placed(self, rows: Rows) -> Basis:
        """With the centers spread evenly over the range of each column where only their number was given."""
        if not isinstance(self.centers, int | np.integer):
            return self
        low, high = _limits(rows)
        share = np.linspace(0.0, 1.0, self.centers) if self.centers > 1 else np.array([0.5])
        centers = low[:, None] + share * (high - low)[:, None]
        scales = _width(low, high) / max(self.centers - 1, 1) if self.scale is None else np.full_like(low, self.scale)
        return _PlacedBumps(self, _as_tuple("centers", centers), _as_tuple("scale", scales))

    def functions(self, X: Tensor) -> Tensor:
        """h((x − c)/s) for all centers of the first column, then of the next; h(‖x − c‖/s) where they are points."""
        if isinstance(self.centers, int | np.integer):
            raise _not_placed("centers")
        centers = X.new_tensor(self.centers)
        scale = self.scale or float(np.ptp(self.centers)) / (len(self.centers) - 1)
        if centers.ndim == 1:
            return self._shape((X.unsqueeze(-1) - centers) / scale).flatten(1)
        if centers.shape[1] != X.shape[1]:
            raise InputError(f"the centers are points of {centers.shape[1]} dimensions, and X has {X.shape[1]} columns")
        return self._shape(torch.cdist(X, centers, compute_mode="donot_use_mm_for_euclid_dist") / scale)


@dataclass(frozen=True)
class GaussianBasis(_Bumps):
    """φ_j(x) = exp(−(x − c_j)²/2s²) (Bishop 3.4).

    Args:
        centers: how many centers, spread evenly over the range of each column in the data; or the centers themselves,
            ``[K]``, the same for every column; or K points of the whole input space, ``[K, D]``, for which the
            distance is ‖x − c_j‖.
        scale: s; by default the distance between neighboring centers.
        include_bias: put a column of ones before the others.
    """

    takes_points: ClassVar[bool] = True

    def _shape(self, z: Tensor) -> Tensor:
        return torch.exp(-0.5 * z.square())


@dataclass(frozen=True)
class Sigmoidal(_Bumps):
    """φ_j(x) = 1 / (1 + exp(−(x − c_j)/s)) (Bishop 3.5).

    Args:
        centers: how many centers, spread evenly over the range of each column in the data; or the centers themselves,
            ``[K]``, the same for every column.
        scale: s; by default the distance between neighboring centers.
        include_bias: put a column of ones before the others.
    """

    def _shape(self, z: Tensor) -> Tensor:
        return torch.sigmoid(z)


@dataclass(frozen=True)
class _PlacedBumps(Basis):
    """Bumps with centers ``[D, K]`` and a scale ``[D]`` of its own for every column."""

    form: _Bumps
    centers: tuple[tuple[float, ...], ...]
    scales: tuple[float, ...]

    @property
    def include_bias(self) -> bool:  # type: ignore[override]
        return self.form.include_bias

    def functions(self, X: Tensor) -> Tensor:
        offsets = X.unsqueeze(-1) - X.new_tensor(self.centers)
        return self.form._shape(offsets / X.new_tensor(self.scales).unsqueeze(-1)).flatten(1)


@dataclass(frozen=True)
class _Function(Basis):
    """A function of the user's, from an array ``[N, D]`` to an array ``[N, M]``."""

    function: Callable[[Any], Any]
    include_bias: bool = False

    def functions(self, X: Tensor) -> Tensor:
        values = np.array(self.function(X.cpu().numpy()), np.float64)
        if values.ndim != 2 or len(values) != len(X):
            raise InputError(
                f"the basis function must map inputs [N, D] to features [N, M], got {list(values.shape)} "
                f"for {list(X.shape)}"
            )
        return torch.from_numpy(values).to(X.device)


NAMED: dict[str, type[Basis]] = {
    "identity": Identity,
    "polynomial": Polynomial,
    "gaussian": GaussianBasis,
    "sigmoidal": Sigmoidal,
    "fourier": Fourier,
}


def as_basis(basis: BasisLike) -> Basis:
    """The basis that an object, a name or a function stands for."""
    if isinstance(basis, Basis):
        return basis
    if isinstance(basis, str):
        if basis not in NAMED:
            raise unknown_name("basis", basis, NAMED)
        return NAMED[basis]()
    if callable(basis) and not isinstance(basis, type):
        return _Function(basis)
    raise InputError(f"basis must be a Basis, a name or a function of an array, got {basis!r}")


def checked_features(basis: Basis, X: Tensor) -> Tensor:
    """φ(x) of each row of ``X``, refused where there are none or where one is not finite."""
    features = basis.features(X)
    if not features.shape[1]:
        raise InputError(f"{basis!r} gives no features: choose a larger basis, or include_bias=True")
    if features is not X and not bool(torch.isfinite(features.sum())) and not bool(torch.isfinite(features).all()):
        raise InputError(f"{basis!r} gives values that are not finite: standardize the inputs, or choose another basis")
    return features


def warn_of_rounding(nats: float) -> None:
    """Warn the caller of ``fit`` where rounding of the features may change the log evidence by so many nats.

    To be called from a function that ``fit`` calls.
    """
    if nats > ENOUGH_DIGITS:
        warnings.warn(
            "the features are so nearly linear combinations of one another that rounding alone may change the log "
            f"evidence by {nats:.2g} nats, and predictions with it: scale the inputs to about [-1, 1], lower the "
            "degree, choose another basis, such as GaussianBasis, or raise weight_precision",
            LinAlgWarning,
            stacklevel=4,
        )


def _limits(rows: Rows) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The least and the greatest value of every column, ``[D]`` each."""
    extremes = [torch.stack((block[0].amin(0), block[0].amax(0))) for block in rows.blocks()]
    found = torch.stack(extremes)
    return found[:, 0].amin(0).cpu().numpy(), found[:, 1].amax(0).cpu().numpy()


def _width(low: NDArray[np.float64], high: NDArray[np.float64]) -> NDArray[np.float64]:
    """The range of every column; 1 for a constant one, whose features are constant whatever the range."""
    width: NDArray[np.float64] = np.where(high > low, high - low, 1.0)
    return width


def _as_tuple(name: str, values: Any) -> Any:
    """Numbers, a list or an array of them as (nested) tuples, so that a basis can be compared and hashed."""
    try:
        array = np.array(values, np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must hold numbers, got {values!r}") from error
    if not array.size or not np.isfinite(array).all():
        raise InputError(f"{name} must hold at least one number and only finite ones, got {values!r}")
    nested = array.tolist()
    if array.ndim == 2:
        return tuple(tuple(row) for row in nested)
    return tuple(nested) if array.ndim else nested


def _check_number(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise InputError(f"{name} must be an integer of at least {least}, got {value!r}")


def _check_positive(name: str, value: Any) -> None:
    if not np.all(np.asarray(value, np.float64) > 0.0):
        raise InputError(f"{name} must be greater than 0, got {value!r}")


def _not_placed(name: str) -> InputError:
    return InputError(f"{name} depends on the range of the data: fit a model with this basis, or give {name} itself")
