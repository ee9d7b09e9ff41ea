"""The interface of kernels, their sums and products, and the base class of elementary kernels."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from credo._arguments import check_positive
from credo.errors import InputError

if TYPE_CHECKING:
    from typing import Self

    from numpy.typing import ArrayLike, NDArray

Bounds = tuple[float, float] | Literal["fixed"]
Positive = float | tuple[float, ...]

DEFAULT_BOUNDS: Final = (1e-5, 1e5)
"""The default search range of a hyperparameter, as in scikit-learn."""


@dataclass(frozen=True)
class Hyperparameter:
    """A positive hyperparameter of a kernel.

    Attributes:
        name: the name of the kernel's argument.
        values: one number, or one per feature.
        bounds: the search range, or ``"fixed"``.

    Example:
        >>> from credo.gaussian_process.kernels import RBF
        >>> RBF(2.0).hyperparameters
        (Hyperparameter(name='length_scale', values=(2.0,), bounds=(1e-05, 100000.0)),)
    """

    name: str
    values: tuple[float, ...]
    bounds: Bounds

    @property
    def fixed(self) -> bool:
        """Whether it keeps its value when a model is fitted."""
        return self.bounds == "fixed"


class Kernel(ABC):
    """A covariance function k(x, x′) = Cov[f(x), f(x′)] of a Gaussian process.

    Kernels are immutable values: they can be compared, shared, added (``a + b``: the sum of two independent functions),
    multiplied (``a * b``) and scaled by a positive number (``4.0 * a``, a :class:`Constant` times ``a``).
    ``kernel(X)`` returns the covariance matrix ``[N, N]`` of points ``[N, D]``, and ``kernel(X, Z)`` the covariances
    ``[N, M]`` between two sets of points, as float64 tensors.

    Hyperparameters are positive. Those that are not fixed are searched by their logarithms θ, ``theta``, in the order
    of the expression; ``covariance`` is differentiable in θ.

    Example:
        >>> from credo.gaussian_process.kernels import RBF, Periodic
        >>> 4.0 * RBF(67.0) + RBF(90.0) * Periodic(period=1.0)
        4 * RBF(length_scale=67) + RBF(length_scale=90) * Periodic(length_scale=1, period=1)
    """

    __array_ufunc__ = None  # so that numpy leaves number * kernel to the kernel

    @property
    @abstractmethod
    def hyperparameters(self) -> tuple[Hyperparameter, ...]:
        """All hyperparameters, from left to right."""

    @abstractmethod
    def with_theta(self, theta: ArrayLike) -> Self:
        """Return the same kernel with other values of the free hyperparameters.

        Args:
            theta: their logarithms, ``[P]``.

        Raises:
            InputError: if the shape of ``theta`` does not match.
        """

    @abstractmethod
    def covariance(self, theta: Tensor, x: Tensor, z: Tensor | None = None) -> Tensor:
        """Compute k(x, z) with hyperparameters e^θ.

        ``covariance(theta, x)`` differs from ``covariance(theta, x, x)`` for white noise: two observations at the same
        point share the function, but not the noise.

        Args:
            theta: the logarithms θ of the free hyperparameters, ``[P]``.
            x: points, ``[N, D]``.
            z: points, ``[M, D]``; ``None`` for the covariance matrix of ``x``.

        Returns:
            The covariances, ``[N, M]``.
        """

    @abstractmethod
    def diagonal(self, theta: Tensor, x: Tensor) -> Tensor:
        """Compute k(x, x) of every row, the diagonal of ``covariance(theta, x)``.

        Args:
            theta: the logarithms θ of the free hyperparameters, ``[P]``.
            x: points, ``[N, D]``.

        Returns:
            The variances, ``[N]``.
        """

    @property
    @abstractmethod
    def has_noise(self) -> bool:
        """Whether the kernel contains white noise."""

    @property
    def terms(self) -> tuple[Kernel, ...]:
        """The terms of a sum of kernels; the kernel itself if it is not a sum."""
        return (self,)

    @property
    def free(self) -> tuple[Hyperparameter, ...]:
        """The hyperparameters that are not fixed."""
        return tuple(h for h in self.hyperparameters if not h.fixed)

    @property
    def theta(self) -> NDArray[np.float64]:
        """The logarithms of the free hyperparameters, ``[P]``."""
        return np.log([value for h in self.free for value in h.values])

    def theta_like(self, x: Tensor) -> Tensor:
        """Return θ in the dtype and on the device of ``x``.

        Args:
            x: any tensor.

        Returns:
            ``theta`` as a tensor, ``[P]``.
        """
        return torch.as_tensor(self.theta, dtype=x.dtype, device=x.device)

    @property
    def bounds(self) -> NDArray[np.float64]:
        """The search range of θ, ``[P, 2]``."""
        return np.log([h.bounds for h in self.free for _ in h.values], dtype=np.float64).reshape(-1, 2)

    def _nested_repr(self) -> str:
        """The representation inside a sum or a product."""
        return repr(self)

    def __call__(self, X: ArrayLike | Tensor, Z: ArrayLike | Tensor | None = None) -> Tensor:
        """Compute k(X, Z), ``[N, M]``; without ``Z`` the covariance matrix of ``X``, ``[N, N]``."""
        x = _to_points(X)
        return self.covariance(self.theta_like(x), x, None if Z is None else _to_points(Z))

    def __add__(self, other: Kernel | float) -> Sum:
        return Sum(self, _to_kernel(other))

    def __radd__(self, other: float) -> Sum:
        return Sum(_to_kernel(other), self)

    def __mul__(self, other: Kernel | float) -> Product:
        return Product(self, _to_kernel(other))

    def __rmul__(self, other: float) -> Product:
        return Product(_to_kernel(other), self)


@dataclass(frozen=True, repr=False)
class _BinaryKernel(Kernel):
    """A kernel that combines two others."""

    left: Kernel
    right: Kernel

    @property
    def hyperparameters(self) -> tuple[Hyperparameter, ...]:
        return self.left.hyperparameters + self.right.hyperparameters

    @override
    def with_theta(self, theta: ArrayLike) -> Self:
        left, right = np.split(_check_theta(self, theta), [len(self.left.theta)])
        return replace(self, left=self.left.with_theta(left), right=self.right.with_theta(right))

    @property
    def has_noise(self) -> bool:
        return self.left.has_noise or self.right.has_noise

    def _split(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        size = len(self.left.theta)
        return theta[:size], theta[size:]


@dataclass(frozen=True, repr=False)
class Sum(_BinaryKernel):
    """k₁(x, x′) + k₂(x, x′), the kernel of the sum of two independent functions; written ``k1 + k2``.

    Args:
        left: k₁.
        right: k₂.

    Example:
        >>> from credo.gaussian_process.kernels import RBF, Linear
        >>> (Linear() + RBF()).terms
        (Linear(variance=1), RBF(length_scale=1))
    """

    @override
    def covariance(self, theta: Tensor, x: Tensor, z: Tensor | None = None) -> Tensor:
        left, right = self._split(theta)
        return self.left.covariance(left, x, z) + self.right.covariance(right, x, z)

    @override
    def diagonal(self, theta: Tensor, x: Tensor) -> Tensor:
        left, right = self._split(theta)
        return self.left.diagonal(left, x) + self.right.diagonal(right, x)

    @property
    def terms(self) -> tuple[Kernel, ...]:
        """The terms of both kernels."""
        return self.left.terms + self.right.terms

    def __repr__(self) -> str:
        return f"{self.left._nested_repr()} + {self.right._nested_repr()}"


@dataclass(frozen=True, repr=False)
class Product(_BinaryKernel):
    """k₁(x, x′) · k₂(x, x′), large only if both are; written ``k1 * k2``.

    Args:
        left: k₁.
        right: k₂.

    Example:
        >>> from credo.gaussian_process.kernels import RBF, Linear
        >>> Linear() * RBF()
        Linear(variance=1) * RBF(length_scale=1)
    """

    @override
    def covariance(self, theta: Tensor, x: Tensor, z: Tensor | None = None) -> Tensor:
        left, right = self._split(theta)
        return self.left.covariance(left, x, z) * self.right.covariance(right, x, z)

    @override
    def diagonal(self, theta: Tensor, x: Tensor) -> Tensor:
        left, right = self._split(theta)
        return self.left.diagonal(left, x) * self.right.diagonal(right, x)

    def __repr__(self) -> str:
        return " * ".join(f"({k})" if isinstance(k, Sum) else k._nested_repr() for k in (self.left, self.right))


class ElementaryKernel(Kernel):
    """A kernel that is not made of others: a frozen dataclass with a field and its ``_bounds`` per hyperparameter."""

    _names: ClassVar[tuple[str, ...]]
    """The names of the hyperparameters."""
    _per_feature: ClassVar[tuple[str, ...]] = ()
    """The names of those that may hold one number per feature."""

    def __post_init__(self) -> None:
        for name in self._names:
            label, bounds = f"{type(self).__name__}.{name}", f"{name}_bounds"
            value = _check_values(getattr(self, name), label, per_feature=name in self._per_feature)
            object.__setattr__(self, name, value)
            object.__setattr__(self, bounds, _check_bounds(getattr(self, bounds), f"{label}_bounds"))

    @abstractmethod
    def _covariance(self, p: Mapping[str, Tensor], x: Tensor, z: Tensor | None) -> Tensor:
        """k(x, z) with hyperparameters ``p`` by name, each ``[]`` or ``[D]``."""

    @abstractmethod
    def _diagonal(self, p: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """k(x, x) of every row."""

    @property
    def hyperparameters(self) -> tuple[Hyperparameter, ...]:
        return tuple(
            Hyperparameter(name, tuple(np.atleast_1d(getattr(self, name)).tolist()), getattr(self, f"{name}_bounds"))
            for name in self._names
        )

    @override
    def with_theta(self, theta: ArrayLike) -> Self:
        values = np.exp(_check_theta(self, theta))
        changed: dict[str, Any] = {}
        for h in self.free:
            own, values = np.split(values, [len(h.values)])
            changed[h.name] = tuple(own) if isinstance(getattr(self, h.name), tuple) else own[0]
        return replace(self, **changed)  # type: ignore[type-var]

    @override
    def covariance(self, theta: Tensor, x: Tensor, z: Tensor | None = None) -> Tensor:
        return self._covariance(self._values(theta, x), x, z)

    @override
    def diagonal(self, theta: Tensor, x: Tensor) -> Tensor:
        return self._diagonal(self._values(theta, x), x)

    @property
    def has_noise(self) -> bool:
        return False

    def _values(self, theta: Tensor, x: Tensor) -> dict[str, Tensor]:
        """The hyperparameters by name, the free ones from θ."""
        values: dict[str, Tensor] = {}
        for h in self.hyperparameters:
            per_feature = isinstance(getattr(self, h.name), tuple)
            if per_feature and len(h.values) != x.shape[1]:
                raise InputError(
                    f"{type(self).__name__}.{h.name} must be one number, or one for each of the {x.shape[1]} features "
                    f"of X, got {len(h.values)} numbers"
                )
            if h.fixed:
                value = torch.tensor(h.values, dtype=x.dtype, device=x.device)
            else:
                value, theta = theta[: len(h.values)].exp(), theta[len(h.values) :]
            values[h.name] = value if per_feature else value[0]
        return values

    def __repr__(self) -> str:
        arguments = [f"{h.name}={format_value(getattr(self, h.name))}" for h in self.hyperparameters]
        arguments += [f"{h.name}_bounds='fixed'" for h in self.hyperparameters if h.fixed]
        return f"{type(self).__name__}({', '.join(arguments)})"


def format_value(value: Positive) -> str:
    """Format a hyperparameter with four digits."""
    return f"({', '.join(f'{v:.4g}' for v in value)})" if isinstance(value, tuple) else f"{value:.4g}"


def _to_kernel(other: object) -> Kernel:
    if isinstance(other, Kernel):
        return other
    if isinstance(other, Real):
        from credo.gaussian_process.kernels import Constant

        return Constant(float(other))
    raise InputError(f"a kernel can be combined with a kernel or a positive number, got {other!r}")


def _to_points(X: ArrayLike | Tensor) -> Tensor:
    points = torch.as_tensor(X, dtype=torch.float64)
    if points.ndim != 2:
        raise InputError(f"a kernel takes points [N, D], got shape {list(points.shape)}")
    return points


def _check_theta(kernel: Kernel, theta: ArrayLike) -> NDArray[np.float64]:
    values, size = np.asarray(theta, np.float64), len(kernel.theta)
    if values.shape != (size,):
        raise InputError(f"theta must have shape [{size}], one logarithm per free number, got {list(values.shape)}")
    return values


def _check_values(value: Any, name: str, *, per_feature: bool) -> Positive:
    """One positive number, or a tuple of them if ``per_feature`` and ``value`` is a sequence."""
    if per_feature and np.ndim(value) == 1 and len(value) > 0:
        return tuple(check_positive(v, name) for v in value)
    return check_positive(value, name)


def _check_bounds(value: Any, name: str) -> Bounds:
    """``"fixed"``, or a pair of finite positive numbers in ascending order."""
    if isinstance(value, str) and value == "fixed":
        return "fixed"
    try:
        low, high = (float(v) for v in value)
    except (TypeError, ValueError):
        low = high = math.nan
    if not 0.0 < low <= high < math.inf:
        raise InputError(f"{name} must be 'fixed' or two positive numbers in ascending order, got {value!r}")
    return low, high
