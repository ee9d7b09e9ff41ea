"""What a kernel is, and how kernels are added and multiplied."""

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

from credo.errors import InputError

if TYPE_CHECKING:
    from typing import Self

    from numpy.typing import ArrayLike, NDArray

Bounds = tuple[float, float] | Literal["fixed"]
Positive = float | tuple[float, ...]

WIDE: Final = (1e-5, 1e5)
"""Between which a hyperparameter is searched where nothing else is said, as in scikit-learn."""


@dataclass(frozen=True)
class Hyperparameter:
    """A positive number of a kernel, or one for each feature.

    Attributes:
        name: of the kernel's argument.
        values: one, or one for each feature.
        bounds: between which it is searched, or ``"fixed"``.
    """

    name: str
    values: tuple[float, ...]
    bounds: Bounds

    @property
    def fixed(self) -> bool:
        """Whether it keeps its value when a model is fitted."""
        return self.bounds == "fixed"


class Kernel(ABC):
    """A covariance function k(x, x′): what is believed of f(x) and f(x′) together, before any data.

    Kernels are immutable values: they can be compared, shared, added (``a + b``: the sum of two independent functions),
    multiplied (``a * b``) and scaled by a positive number (``4.0 * a``, a :class:`Constant` times ``a``). Called with
    points, ``kernel(X)`` is the matrix ``[N, N]`` of their covariances, ``kernel(X, Z)`` that between two sets,
    ``[N, M]``; both are float64 tensors.

    Hyperparameters are positive. Those that are not fixed are searched by their logarithms θ, ``theta``, in the order
    in which the expression is read; ``covariance`` is differentiable in θ.
    """

    __array_ufunc__ = None  # a numpy number times a kernel is left to the kernel

    @property
    @abstractmethod
    def hyperparameters(self) -> tuple[Hyperparameter, ...]:
        """All of them, from left to right."""

    @abstractmethod
    def with_theta(self, theta: ArrayLike) -> Self:
        """The same kernel with other values of the free hyperparameters, by their logarithms ``[P]``."""

    @abstractmethod
    def covariance(self, theta: Tensor, x: Tensor, z: Tensor | None = None) -> Tensor:
        """k(x, z) at the logarithms θ ``[P]``, ``[N, M]``; without ``z`` the points ``x`` with themselves.

        The difference matters for white noise alone: two observations at one place share the function, not the noise.
        """

    @abstractmethod
    def diagonal(self, theta: Tensor, x: Tensor) -> Tensor:
        """k(x, x) of every row, ``[N]``: the diagonal of ``covariance(theta, x)``."""

    @property
    @abstractmethod
    def has_noise(self) -> bool:
        """Whether white noise is part of it."""

    @property
    def terms(self) -> tuple[Kernel, ...]:
        """The kernels that this one is the sum of; itself, where it is no sum."""
        return (self,)

    @property
    def free(self) -> tuple[Hyperparameter, ...]:
        """The hyperparameters that are not fixed."""
        return tuple(h for h in self.hyperparameters if not h.fixed)

    @property
    def theta(self) -> NDArray[np.float64]:
        """The logarithms of the free hyperparameters, ``[P]``."""
        return np.log([value for h in self.free for value in h.values])

    def theta_on(self, x: Tensor) -> Tensor:
        """θ in the dtype and on the device of ``x``."""
        return torch.as_tensor(self.theta, dtype=x.dtype, device=x.device)

    @property
    def bounds(self) -> NDArray[np.float64]:
        """Between which θ is searched, ``[P, 2]``."""
        return np.log([h.bounds for h in self.free for _ in h.values], dtype=np.float64).reshape(-1, 2)

    def _within(self) -> str:
        """How it is written inside a sum or a product."""
        return repr(self)

    def __call__(self, X: ArrayLike | Tensor, Z: ArrayLike | Tensor | None = None) -> Tensor:
        """k(X, Z), ``[N, M]``; without ``Z`` the points with themselves, ``[N, N]``."""
        x = _points(X)
        return self.covariance(self.theta_on(x), x, None if Z is None else _points(Z))

    def __add__(self, other: Kernel | float) -> Sum:
        return Sum(self, _kernel(other))

    def __radd__(self, other: float) -> Sum:
        return Sum(_kernel(other), self)

    def __mul__(self, other: Kernel | float) -> Product:
        return Product(self, _kernel(other))

    def __rmul__(self, other: float) -> Product:
        return Product(_kernel(other), self)


class Leaf(Kernel):
    """A kernel that is not made of others: a frozen dataclass with a field and its ``_bounds`` per hyperparameter."""

    positive: ClassVar[tuple[str, ...]]
    """The names of the hyperparameters."""
    per_feature: ClassVar[tuple[str, ...]] = ()
    """Those of them that may hold one number for each feature."""

    def __post_init__(self) -> None:
        for name in self.positive:
            number, bounds = f"{type(self).__name__}.{name}", f"{name}_bounds"
            several = name in self.per_feature
            object.__setattr__(self, name, _positive(number, getattr(self, name), several=several))
            object.__setattr__(self, bounds, _bounds(f"{number}_bounds", getattr(self, bounds)))

    @abstractmethod
    def _covariance(self, p: Mapping[str, Tensor], x: Tensor, z: Tensor | None) -> Tensor:
        """k(x, z) with hyperparameters ``p`` by name, each ``[]`` or ``[D]``."""

    @abstractmethod
    def _diagonal(self, p: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """k(x, x) of every row."""

    @property
    def hyperparameters(self) -> tuple[Hyperparameter, ...]:
        """All of them, in the order of the arguments."""
        return tuple(
            Hyperparameter(name, tuple(np.atleast_1d(getattr(self, name)).tolist()), getattr(self, f"{name}_bounds"))
            for name in self.positive
        )

    def with_theta(self, theta: ArrayLike) -> Self:
        """The same kernel with other values of the free hyperparameters, by their logarithms ``[P]``."""
        values = np.exp(_checked_theta(self, theta))
        changed: dict[str, Any] = {}
        for h in self.free:
            own, values = np.split(values, [len(h.values)])
            changed[h.name] = tuple(own) if isinstance(getattr(self, h.name), tuple) else own[0]
        return replace(self, **changed)  # type: ignore[type-var]

    def covariance(self, theta: Tensor, x: Tensor, z: Tensor | None = None) -> Tensor:
        """k(x, z) at the logarithms θ, ``[N, M]``."""
        return self._covariance(self._at(theta, x), x, z)

    def diagonal(self, theta: Tensor, x: Tensor) -> Tensor:
        """k(x, x) of every row, ``[N]``."""
        return self._diagonal(self._at(theta, x), x)

    @property
    def has_noise(self) -> bool:
        """No, unless it is white noise."""
        return False

    def _at(self, theta: Tensor, x: Tensor) -> dict[str, Tensor]:
        """The hyperparameters by name, the free ones from θ; their number must be 1 or that of the features."""
        at: dict[str, Tensor] = {}
        for h in self.hyperparameters:
            each = isinstance(getattr(self, h.name), tuple)
            if each and len(h.values) != x.shape[1]:
                raise InputError(
                    f"{type(self).__name__}.{h.name} must be one number, or one for each of the {x.shape[1]} features "
                    f"of X, got {len(h.values)} numbers"
                )
            if h.fixed:
                values = torch.tensor(h.values, dtype=x.dtype, device=x.device)
            else:
                values, theta = theta[: len(h.values)].exp(), theta[len(h.values) :]
            at[h.name] = values if each else values[0]
        return at

    def __repr__(self) -> str:
        arguments = [f"{h.name}={shown(getattr(self, h.name))}" for h in self.hyperparameters]
        arguments += [f"{h.name}_bounds='fixed'" for h in self.hyperparameters if h.fixed]
        return f"{type(self).__name__}({', '.join(arguments)})"


@dataclass(frozen=True, repr=False)
class Pair(Kernel):
    """Two kernels joined into one.

    Attributes:
        left: the first.
        right: the second.
    """

    left: Kernel
    right: Kernel

    @property
    def hyperparameters(self) -> tuple[Hyperparameter, ...]:
        """Those of both."""
        return self.left.hyperparameters + self.right.hyperparameters

    def with_theta(self, theta: ArrayLike) -> Self:
        """The same pair with other values of the free hyperparameters, by their logarithms ``[P]``."""
        left, right = np.split(_checked_theta(self, theta), [len(self.left.theta)])
        return replace(self, left=self.left.with_theta(left), right=self.right.with_theta(right))

    @property
    def has_noise(self) -> bool:
        """Where either has."""
        return self.left.has_noise or self.right.has_noise

    def _split(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        size = len(self.left.theta)
        return theta[:size], theta[size:]


@dataclass(frozen=True, repr=False)
class Sum(Pair):
    """k₁(x, x′) + k₂(x, x′): the sum of two independent functions."""

    def covariance(self, theta: Tensor, x: Tensor, z: Tensor | None = None) -> Tensor:
        """k₁ + k₂, ``[N, M]``."""
        left, right = self._split(theta)
        return self.left.covariance(left, x, z) + self.right.covariance(right, x, z)

    def diagonal(self, theta: Tensor, x: Tensor) -> Tensor:
        """k₁ + k₂ of every row, ``[N]``."""
        left, right = self._split(theta)
        return self.left.diagonal(left, x) + self.right.diagonal(right, x)

    @property
    def terms(self) -> tuple[Kernel, ...]:
        """The terms of both."""
        return self.left.terms + self.right.terms

    def __repr__(self) -> str:
        return f"{self.left._within()} + {self.right._within()}"


@dataclass(frozen=True, repr=False)
class Product(Pair):
    """k₁(x, x′) · k₂(x, x′): alike only where both say so."""

    def covariance(self, theta: Tensor, x: Tensor, z: Tensor | None = None) -> Tensor:
        """k₁ · k₂, ``[N, M]``."""
        left, right = self._split(theta)
        return self.left.covariance(left, x, z) * self.right.covariance(right, x, z)

    def diagonal(self, theta: Tensor, x: Tensor) -> Tensor:
        """k₁ · k₂ of every row, ``[N]``."""
        left, right = self._split(theta)
        return self.left.diagonal(left, x) * self.right.diagonal(right, x)

    def __repr__(self) -> str:
        return " * ".join(f"({k})" if isinstance(k, Sum) else k._within() for k in (self.left, self.right))


def _kernel(other: object) -> Kernel:
    if isinstance(other, Kernel):
        return other
    if isinstance(other, Real):
        from credo.gaussian_process.kernels.plain import Constant

        return Constant(float(other))
    raise InputError(f"a kernel can be joined with a kernel or a positive number, got {other!r}")


def _points(X: ArrayLike | Tensor) -> Tensor:
    points = torch.as_tensor(X, dtype=torch.float64)
    if points.ndim != 2:
        raise InputError(f"a kernel takes points [N, D], one row each, got shape {list(points.shape)}")
    return points


def _checked_theta(kernel: Kernel, theta: ArrayLike) -> NDArray[np.float64]:
    values, free = np.asarray(theta, np.float64), len(kernel.theta)
    if values.shape != (free,):
        raise InputError(f"theta must hold {free} logarithms, one for each free number, got shape {values.shape}")
    return values


def _positive(name: str, value: Any, *, several: bool) -> Positive:
    """One finite positive number, or a tuple of them where there may be ``several``."""
    vector = several and np.ndim(value) == 1 and len(value) > 0
    try:
        numbers = [float(v) for v in value] if vector else [float(value)]
    except (TypeError, ValueError):
        numbers = [math.nan]
    if not all(0.0 < v < math.inf for v in numbers):
        wanted = "a positive number, or one for each feature" if several else "a positive number"
        raise InputError(f"{name} must be {wanted}, got {value!r}")
    return tuple(numbers) if vector else numbers[0]


def _bounds(name: str, value: Any) -> Bounds:
    """``"fixed"``, or a pair of finite positive numbers in order."""
    if isinstance(value, str) and value == "fixed":
        return "fixed"
    try:
        low, high = (float(v) for v in value)
    except (TypeError, ValueError):
        low = high = math.nan
    if not 0.0 < low <= high < math.inf:
        raise InputError(f"{name} must be 'fixed' or two positive numbers, the lower first, got {value!r}")
    return low, high


def shown(value: Positive) -> str:
    """A hyperparameter to four digits."""
    return f"({', '.join(f'{v:.4g}' for v in value)})" if isinstance(value, tuple) else f"{value:.4g}"
