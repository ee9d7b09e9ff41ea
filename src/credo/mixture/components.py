"""K Gaussian components: how far rows lie from them, and what rows that are shared among them add up to.

Every component is a mean μ_k and a factor P_k of its precision, Λ_k = P_k P_kᵀ, so that y = P_kᵀ(x − μ_k) is white. All
that EM needs is measured there, relative to the component as it is: the sums Σ r, Σ r y and Σ r yyᵀ, and what they call
for is a small step from the old component to the new one. No digits are lost where a component is narrow, far from the
origin or nearly flat, and covariances that float64 could not tell from singular ones still have a good factor.

A floor under the covariances enters as a prior, so that EM climbs one objective: the density of Λ_k is flat where no
eigenvalue of Σ_k is below ε and 0 elsewhere. A flat density adds a constant to the log likelihood, which is left out,
and the M-step stays in closed form. It maximizes

    ½ N_k log|Λ_k| − ½ tr(Λ_k Σ_n r_nk (x_n − μ_k)(x_n − μ_k)ᵀ)    over 0 < Λ_k ≤ I/ε

so that Σ_k is the scatter over N_k, with its eigenvalues below ε raised to ε. A component that holds a single row or
copies of it gets the variance ε; where all variances are above ε the estimate is that of maximum likelihood.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from credo._notices import notify
from credo.errors import InputError

LOG_2PI = math.log(2.0 * math.pi)
EMPTY = 1e-10
"""A component with responsibility for less than so many rows stays where it is."""
FAR = 1e4
"""At this squared distance, in standard deviations of a component, squares of differences are no longer expanded into
powers, the faster way: up to there 12 digits remain."""


@dataclass(frozen=True, eq=False)
class Sums:
    """What rows say of the components that they were measured from, in white coordinates.

    Attributes:
        count: N_k = Σ r, ``[K]``.
        first: Σ r y, ``[K, D]``.
        second: Σ r yyᵀ ``[K, D, D]``; for a tied matrix its sum over k ``[D, D]``, for diagonals Σ r y² ``[K, D]`` and
            for spheres Σ r ‖y‖² ``[K]``.
    """

    count: Tensor
    first: Tensor
    second: Tensor

    @property
    def occupied(self) -> Tensor:
        """Which components have rows, ``[K, 1]``."""
        return (self.count > EMPTY)[:, None]

    @property
    def shift(self) -> Tensor:
        """The mean of y, ``[K, D]``; 0 without rows."""
        return torch.where(self.occupied, self.first / self.count.clamp_min(EMPTY)[:, None], 0.0)


@dataclass(frozen=True, eq=False)
class Measured:
    """Rows as seen from K components.

    Attributes:
        squared_distances: (x − μ_k)ᵀΛ_k(x − μ_k), ``[K, b]``.
        sums: what the rows add up to, given their responsibilities ``[K, b]``.
    """

    squared_distances: Tensor
    sums: Callable[[Tensor], Sums]


@dataclass(frozen=True, eq=False)
class Components(ABC):
    """K Gaussians in D dimensions.

    Attributes:
        means: ``[K, D]``.
        factor: of the precisions; its shape is that of the kind of covariance.
    """

    means: Tensor
    factor: Tensor

    @classmethod
    @abstractmethod
    def unit(cls, means: Tensor) -> Self:
        """Components with these means and the identity as covariance."""

    @classmethod
    @abstractmethod
    def from_precisions(cls, means: Tensor, precisions: Tensor) -> Self:
        """Components with precisions of the shape that ``precisions`` has."""

    @staticmethod
    @abstractmethod
    def shape(components: int, features: int) -> tuple[int, ...]:
        """Of the precisions."""

    @property
    @abstractmethod
    def numbers_per_row(self) -> int:
        """How many numbers a row takes while it is measured."""

    @abstractmethod
    def measure(self, x: Tensor) -> Measured:
        """The rows ``x [b, D]`` as seen from here."""

    @abstractmethod
    def updated(self, sums: Sums, floor: float) -> Self:
        """The components that the sums, taken here, call for, with no variance below the ``floor`` ε."""

    @property
    @abstractmethod
    def least_variance(self) -> float:
        """Of any component in any direction."""

    @property
    @abstractmethod
    def half_log_det(self) -> Tensor:
        """½ log|Λ_k|, ``[K]``."""

    @property
    @abstractmethod
    def covariances(self) -> Tensor:
        """Of the shape that the kind of covariance has."""

    @property
    @abstractmethod
    def precisions(self) -> Tensor:
        """The inverses of the covariances."""

    @property
    @abstractmethod
    def free_parameters(self) -> int:
        """How many numbers the covariances have."""

    @abstractmethod
    def color(self, k: int, noise: Tensor) -> Tensor:
        """White ``noise [n, D]`` with the covariance of component k: P_k⁻ᵀ times each row."""

    @property
    def center(self) -> Tensor:
        """The middle of the means, ``[D]``: measured from there, coordinates keep most digits."""
        return self.means.mean(0)


def distances_of(components: Components, x: Tensor) -> Tensor:
    """Squared distances ``[K, b]`` of rows ``x [b, D]``; raises InputError where one is too large for a number."""
    distances = components.measure(x).squared_distances
    if not bool(torch.isfinite(distances).all()):
        raise InputError(
            "X holds rows so far from the components that their distance cannot be squared: look for a wrong value"
        )
    return distances


def say_where_floor_acts(components: Components, floor: float) -> None:
    """Tell the user that the least variance, not the data, decides how narrow a component is."""
    if components.least_variance <= floor * (1.0 + 1e-6):
        notify(
            f"a variance lies on its floor, reg_covar={floor:g}: where the columns are that small rescale them, or "
            "lower the floor; where rows repeat each other it is what keeps the likelihood finite"
        )
