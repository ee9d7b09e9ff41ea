"""K Gaussian components, and one pass that assigns the rows to them.

Every component is a mean μ_k and a factor P_k of its precision, Λ_k = P_k P_kᵀ, so that y = P_kᵀ(x − μ_k) is white. EM
works in these coordinates: the sums Σ r, Σ r y and Σ r yyᵀ give the step from the old component to the new one. This
keeps full precision for components that are narrow, far from the origin or nearly flat, even where float64 could not
distinguish the covariance from a singular one.

The covariance floor ε enters as a prior, so that EM maximizes one objective: the density of Λ_k is flat where no
eigenvalue of Σ_k is below ε and 0 elsewhere. The M-step stays in closed form. It maximizes

    ½ N_k log|Λ_k| − ½ tr(Λ_k Σ_n r_nk (x_n − μ_k)(x_n − μ_k)ᵀ)    over 0 < Λ_k ≤ I/ε

so that Σ_k is the scatter over N_k, with eigenvalues below ε raised to ε. Where all variances are above ε this is the
maximum likelihood estimate.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from credo._notices import notify
from credo._rows import Rows
from credo.errors import InputError

LOG_2PI = math.log(2.0 * math.pi)
_EMPTY_COUNT = 1e-10
"""A component with a smaller total responsibility stays where it is."""


@dataclass(frozen=True, eq=False)
class ComponentSums:
    """Sums of the rows, weighted by responsibility, in the white coordinates of each component.

    Attributes:
        count: N_k = Σ r, ``[K]``.
        first: Σ r y, ``[K, D]``.
        second: Σ r yyᵀ ``[K, D, D]``; for tied covariances its sum over k ``[D, D]``, for diagonal ones Σ r y²
            ``[K, D]`` and for spherical ones Σ r ‖y‖² ``[K]``.
    """

    count: Tensor
    first: Tensor
    second: Tensor

    @property
    def occupied(self) -> Tensor:
        """Which components have rows, ``[K, 1]``."""
        return (self.count > _EMPTY_COUNT)[:, None]

    @property
    def mean(self) -> Tensor:
        """The weighted mean of y, ``[K, D]``; 0 for components without rows."""
        return torch.where(self.occupied, self.first / self.count.clamp_min(_EMPTY_COUNT)[:, None], 0.0)


@dataclass(frozen=True, eq=False)
class WhitenedRows:
    """A block of rows in the white coordinates of K components.

    Attributes:
        squared_distances: (x − μ_k)ᵀΛ_k(x − μ_k), ``[K, b]``.
        sums: returns the sums for given responsibilities ``[K, b]``.
    """

    squared_distances: Tensor
    sums: Callable[[Tensor], ComponentSums]


@dataclass(frozen=True, eq=False)
class MixtureComponents(ABC):
    """K Gaussians in D dimensions; the subclasses in ``_covariances.py`` are the four covariance types.

    Attributes:
        means: ``[K, D]``.
        factor: of the precisions, with the shape of :meth:`factor_shape`.
    """

    means: Tensor
    factor: Tensor

    @staticmethod
    @abstractmethod
    def factor_shape(n_components: int, n_features: int) -> tuple[int, ...]:
        """The shape of factor, precisions and covariances."""

    @classmethod
    @abstractmethod
    def with_unit_covariance(cls, means: Tensor) -> Self:
        """Components with covariance I."""

    @classmethod
    @abstractmethod
    def from_precisions(cls, means: Tensor, precisions: Tensor) -> Self:
        """Components with the given precisions."""

    @property
    @abstractmethod
    def numbers_per_row(self) -> int:
        """How many numbers :meth:`whiten` holds for each row, for the size of a block."""

    @abstractmethod
    def whiten(self, x: Tensor) -> WhitenedRows:
        """The rows ``x [b, D]`` in white coordinates."""

    @abstractmethod
    def m_step(self, sums: ComponentSums, floor: float) -> Self:
        """The components that maximize the objective for ``sums`` taken here, with no variance below ``floor``."""

    @property
    @abstractmethod
    def min_variance(self) -> float:
        """The smallest variance of any component in any direction."""

    @property
    @abstractmethod
    def half_log_det(self) -> Tensor:
        """½ log|Λ_k| = log|P_k|, ``[K]``."""

    @property
    @abstractmethod
    def covariances(self) -> Tensor:
        """The covariances."""

    @property
    @abstractmethod
    def precisions(self) -> Tensor:
        """The inverses of the covariances."""

    @property
    @abstractmethod
    def n_parameters(self) -> int:
        """The number of free parameters of the covariances."""

    @abstractmethod
    def unwhiten(self, k: int, noise: Tensor) -> Tensor:
        """P_k⁻ᵀ times each row of ``noise [n, D]``: white noise with the covariance of component k."""

    @property
    def center(self) -> Tensor:
        """The mean of the means, ``[D]``; coordinates relative to it keep the most digits."""
        return self.means.mean(0)

    def squared_distances(self, x: Tensor) -> Tensor:
        """Squared distances ``[K, b]`` of rows ``x [b, D]``; raises InputError if one overflows."""
        distances = self.whiten(x).squared_distances
        if not bool(torch.isfinite(distances).all()):
            raise InputError(
                "X contains rows so far from the components that their distance cannot be squared: check the values"
            )
        return distances

    def sample(self, labels: NDArray[Any], noise: Callable[[int, int], NDArray[Any]]) -> NDArray[np.float64]:
        """One row for each of the ``labels [n]``, ``[n, D]``; ``noise(k, n)`` draws white noise ``[n, D]``."""
        rows: NDArray[np.float64] = self.means.cpu().numpy()[labels]
        for k in np.unique(labels):
            own = labels == k
            white = torch.as_tensor(noise(k, int(own.sum())), dtype=self.means.dtype, device=self.means.device)
            rows[own] += self.unwhiten(k, white).cpu().numpy()
        return rows

    def warn_if_floor_active(self, floor: float) -> None:
        """Notify the user if a variance equals the covariance floor."""
        if self.min_variance <= floor * (1.0 + 1e-6):
            notify(
                f"a variance is at the covariance floor, reg_covar={floor:g}: rescale columns that vary so little, or "
                "lower reg_covar; where rows repeat each other the floor keeps the likelihood finite"
            )


ComponentsT = TypeVar("ComponentsT", bound=MixtureComponents)
Rule = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Maps squared distances ``[K, b]`` to responsibilities ``[K, b]`` and a number per row ``[b]``."""


@dataclass(frozen=True, eq=False)
class Assignment(Generic[ComponentsT]):
    """The result of one pass over the rows.

    Attributes:
        components: in whose white coordinates the sums are.
        sums: of the rows, weighted by their responsibilities.
        total: the sum over the rows of the number that the rule returns.
    """

    components: ComponentsT
    sums: ComponentSums
    total: float


def assign_rows(rows: Rows, components: ComponentsT, rule: Rule) -> Assignment[ComponentsT]:
    """Assign every row to the components by ``rule``, in one pass."""

    def block_sums(x: Tensor) -> tuple[Tensor, ...]:
        white = components.whiten(x)
        responsibilities, number = rule(white.squared_distances)
        sums = white.sums(responsibilities)
        return sums.count, sums.first, sums.second, number.sum()

    *sums, total = rows.total(block_sums, components.numbers_per_row)
    return Assignment(components, ComponentSums(*sums), float(total))


def assign_by_density(rows: Rows, components: ComponentsT, log_scale: Tensor) -> Assignment[ComponentsT]:
    """The E-step: r_nk ∝ ρ_nk = exp(s_k − ½ d²_nk) with ``log_scale`` s ``[K]``; the total is Σ_n log Σ_k ρ_nk."""
    return assign_rows(rows, components, partial(_responsibilities, log_scale=log_scale))


def nearest_component(squared_distances: Tensor) -> tuple[Tensor, Tensor]:
    """The rule that assigns every row to its nearest component; the number is the entropy, 0."""
    responsibilities = torch.zeros_like(squared_distances)
    responsibilities.scatter_(0, squared_distances.argmin(0, keepdim=True), 1.0)
    return responsibilities, squared_distances.new_zeros(())


def random_responsibilities(generator: torch.Generator) -> Rule:
    """The rule that draws random responsibilities; the number is their entropy."""

    def rule(squared_distances: Tensor) -> tuple[Tensor, Tensor]:
        draws = torch.rand(squared_distances.T.shape, generator=generator, dtype=torch.float64)
        responsibilities = (draws / draws.sum(1, keepdim=True)).T.to(squared_distances.device)
        return responsibilities, torch.special.entr(responsibilities).sum(0)

    return rule


def _responsibilities(squared_distances: Tensor, log_scale: Tensor) -> tuple[Tensor, Tensor]:
    """Responsibilities and log Σ_k ρ_nk, with one exponential for each."""
    logits = torch.add(log_scale[:, None], squared_distances, alpha=-0.5)
    largest = logits.amax(0)
    responsibilities = logits.sub_(largest).exp_()
    total = responsibilities.sum(0)
    return responsibilities.div_(total), largest + total.log()
