"""The components of a predictive mixture, p(y | f_s(x_b)) for every draw s and row b, and checks of targets."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from torch import Tensor

from credo.errors import InputError, UnsupportedError

if TYPE_CHECKING:
    from typing import Self


@dataclass(frozen=True, eq=False, repr=False)
class PredictiveComponents(ABC):
    """Univariate distributions ``[S, B, ...]``, independent given the draw. All tensor fields have that shape."""

    name: ClassVar[str]

    @property
    @abstractmethod
    def draws(self) -> Tensor:
        """The mean function of every draw, ``[S, B, ...]``; probabilities where targets are classes."""

    @property
    @abstractmethod
    def target_shape(self) -> torch.Size:
        """The shape of the targets, ``[B, ...]``."""

    @abstractmethod
    def check_dtype_and_shape(self, y: Tensor) -> None:
        """Raise ``InputError`` if the dtype or shape of ``y`` does not match. Safe inside ``torch.compile``."""

    @abstractmethod
    def check_values(self, y: Tensor) -> None:
        """Raise ``InputError`` if ``y`` holds a value of probability 0. Reads the values: not for compiled code."""

    @abstractmethod
    def log_density(self, y: Tensor) -> Tensor:
        """log p(y | f_s(x_b)), elementwise, ``[S, B, ...]``; ``y`` is not checked and broadcasts over draws."""

    @abstractmethod
    def sample(self, generator: torch.Generator | None) -> Tensor:
        """One target from each component, ``[S, B, ...]``."""

    @property
    def parameter(self) -> Tensor:
        """One of the tensors, for the number of draws, the dtype and the device."""
        return next(iter(self._tensors.values()))

    def check(self, y: Tensor) -> None:
        """Raise ``InputError`` if ``y`` does not match in dtype, shape or value."""
        self.check_dtype_and_shape(y)
        self.check_values(y)

    def row_log_prob(self, y: Tensor) -> Tensor:
        """The joint log density of each row of ``y [B, ...]`` under each draw, ``[S, B]``."""
        self.check_dtype_and_shape(y)
        log_p = self.log_density(y)
        return log_p.sum(dim=tuple(range(2, log_p.ndim))) if log_p.ndim > 2 else log_p

    def map(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Apply ``function`` to every tensor."""
        return dataclasses.replace(self, **{name: function(t) for name, t in self._tensors.items()})

    def join(self, others: list[Self], dim: int) -> Self:
        """Concatenate with ``others`` along ``dim`` (0: draws, 1: rows)."""
        parts = [part._tensors for part in (self, *others)]
        return dataclasses.replace(self, **{name: torch.cat([p[name] for p in parts], dim) for name in self._tensors})

    @property
    def settings(self) -> dict[str, object]:
        """All fields that are not tensors, which components must share to be joined."""
        return {name: value for name, value in self._fields.items() if not isinstance(value, Tensor)}

    @property
    def _fields(self) -> dict[str, object]:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @property
    def _tensors(self) -> dict[str, Tensor]:
        return {name: value for name, value in self._fields.items() if isinstance(value, Tensor)}


class PartialMoments(NamedTuple):
    """E[(Y − m)^k; Y ≤ y] for k = 0, 1 and 2, ``[S, B, ...]`` each."""

    probability: Tensor
    first: Tensor
    second: Tensor


@dataclass(frozen=True, eq=False, repr=False)
class RealComponents(PredictiveComponents):
    """Components with a density on the real line or a part of it; or, where ``discrete``, on the counts from 0."""

    discrete: ClassVar[bool] = False

    def check_dtype_and_shape(self, y: Tensor) -> None:
        """Raise ``InputError`` unless ``y`` is in floating point and of the right shape."""
        check_tensor(y)
        if not y.is_floating_point():
            raise InputError(f"y has dtype {y.dtype}, but real-valued targets are needed: call y.float().")
        check_target_shape(y, self.target_shape)

    @property
    def target_shape(self) -> torch.Size:
        """The shape of the parameters, ``[B, ...]``."""
        return self.parameter.shape[1:]

    @property
    def support(self) -> tuple[float, float]:
        """The smallest interval that contains every target: the real line, unless a subclass says otherwise."""
        return -math.inf, math.inf

    @property
    @abstractmethod
    def variance(self) -> Tensor:
        """The variance of each component, ``[S, B, ...]``."""

    @property
    @abstractmethod
    def entropy(self) -> Tensor:
        """The entropy of each component in nats, ``[S, B, ...]``."""

    @property
    def noise_variance(self) -> Tensor:
        """The part of ``variance`` due to noise, ``[S, B, ...]``: all of it for a drawn function."""
        return self.variance

    @property
    def function_variance(self) -> Tensor:
        """The variance of E[y | f] within a component, ``[S, B, ...]``: 0 for a drawn function."""
        return torch.zeros_like(self.draws)

    @property
    def function_information(self) -> Tensor:
        """I[y; f] within a component in nats, ``[S, B, ...]``: 0 for a drawn function."""
        return torch.zeros_like(self.draws)

    @abstractmethod
    def cdf(self, y: Tensor) -> Tensor:
        """P(Y ≤ y), ``[S, B, ...]``, accurate in the lower tail."""

    @abstractmethod
    def survival(self, y: Tensor) -> Tensor:
        """P(Y > y), ``[S, B, ...]``, accurate in the upper tail, where 1 − cdf is not."""

    def tail(self, y: Tensor, upper: bool) -> tuple[Tensor, Tensor]:
        """P(Y > y) or P(Y ≤ y), and the density at y, ``[S, B, ...]`` each."""
        return self.survival(y) if upper else self.cdf(y), self.log_density(y).exp()

    @abstractmethod
    def bracket(self, q: float) -> tuple[Tensor, Tensor]:
        """Two points ``[B, ...]`` that enclose the ``q`` quantile of every mixture of the draws."""

    def mirrored(self) -> Self | None:
        """The components of −y; ``None`` if they are of another family."""
        return None

    def partial_moments(self, y: Tensor) -> PartialMoments:
        """E[(Y − m)^k; Y ≤ y] about the component's mean m, for k = 0, 1, 2. Only for continuous targets."""
        raise UnsupportedError(f"{self.name} targets are discrete: they have no partial moments")

    def rescaled(self, scale: float, offset: Tensor | float) -> Self:
        """The components of ``offset + scale·y``, scale > 0. Only for location-scale families."""
        raise UnsupportedError(
            f"{self.name} targets cannot be shifted and scaled: they are not a location-scale family"
        )

    def stretched(self, factor: float, weights: Tensor | None) -> Self:
        """The components with ``factor`` times their spread about the mixture's mean; ``weights [S]`` of the draws."""
        return self.rescaled(factor, (1.0 - factor) * average(self.draws, weights))

    @abstractmethod
    def grid(self, count: int) -> Tensor:
        """About ``count`` ascending points ``[N, B, ...]`` that resolve every component where it has mass."""


@dataclass(frozen=True, eq=False, repr=False)
class ClassComponents(PredictiveComponents):
    """Components on a finite set of classes, closed under mixtures."""

    is_split: ClassVar[bool] = False
    """Whether a component has epistemic uncertainty of its own."""

    @property
    @abstractmethod
    def entropy(self) -> Tensor:
        """The entropy of each component in nats, ``[S, B, ...]`` without the class dimension."""

    @property
    @abstractmethod
    def mode(self) -> Tensor:
        """The most probable class, int64, ``[S, B, ...]`` without the class dimension."""

    @abstractmethod
    def mixture(self, weights: Tensor | None) -> Self:
        """The mixture over draws, as a single component, ``[1, B, ...]``."""


def average(x: Tensor, weights: Tensor | None) -> Tensor:
    """Σ_s w_s x_s over dim 0; ``None`` weights are uniform."""
    if weights is None:
        return x.mean(0)
    return (weights.view(-1, *[1] * (x.ndim - 1)) * x).sum(0)


def log_average_exp(log_x: Tensor, weights: Tensor | None) -> Tensor:
    """log Σ_s w_s exp(log x_s) over dim 0, exact in the far tail; ``None`` weights are uniform."""
    if weights is None:
        weights = log_x.new_full((len(log_x),), 1 / len(log_x))
    return torch.logsumexp(log_x + weights.log().view(-1, *[1] * (log_x.ndim - 1)), 0)


def pool_grids(grid_of: Callable[[int], Tensor], count: int, draws: int) -> Tensor:
    """Return the sorted union ``[N, B, ...]`` of the grids ``grid_of(n) [n, S, B, ...]`` of single components."""
    grid = grid_of(max(count // draws, 10)).flatten(0, 1).sort(0).values
    return grid[:: 1 + len(grid) // (4 * count)]


def quadrature(grid: Tensor, discrete: bool) -> tuple[Tensor, Tensor]:
    """Return points and weights of ∫ g dy ≈ Σ w g, or of Σ_k g(k), on a grid that ascends along dim 0.

    An integral uses the two-point Gauss–Legendre rule between neighbors. A sum over counts uses the trapezoidal rule,
    which is exact if the grid holds every count, repeated or not, and interpolates counts that it skips.
    """
    gaps = grid.diff(dim=0)
    if discrete:
        ends = torch.ones_like(grid[:1])
        return grid, 0.5 * (torch.cat([ends, gaps]) + torch.cat([gaps, ends]))
    centers, offsets = grid[:-1] + 0.5 * gaps, gaps / math.sqrt(12)
    return torch.cat([centers - offsets, centers + offsets]), 0.5 * torch.cat([gaps, gaps])


def entropy_of(log_p: Tensor, dim: int) -> Tensor:
    """−Σ p log p along ``dim``, with 0 log 0 = 0."""
    return -(log_p.exp() * log_p.clamp(min=torch.finfo(log_p.dtype).min)).sum(dim)


def check_target_shape(y: Tensor, expected: torch.Size) -> None:
    """Raise ``InputError`` if the shape of ``y`` is not ``expected``, with a way to fix it: nothing is broadcast."""
    if y.shape == expected:
        return
    if y.ndim + 1 == len(expected) and expected[-1] == 1 and y.shape == expected[:-1]:
        fix = f"reshape y with {'y[:, None]' if y.ndim == 1 else 'y.unsqueeze(-1)'} or squeeze the output"
    elif y.ndim == len(expected) + 1 and y.shape[-1] == 1 and y.shape[:-1] == expected:
        fix = "squeeze y with y.squeeze(-1)"
    elif y.ndim > 0 and y.shape[0] != expected[0]:
        fix = f"inputs and targets must have the same number of rows, here {expected[0]} and {y.shape[0]}"
    else:
        fix = "the shapes must be equal, nothing is broadcast"
        if y.ndim + 1 == len(expected) and y.is_floating_point():
            fix += "; if y holds class labels, use integers, y.long(), and Categorical()"
        elif len(expected) > 1:
            fix += " (if classes are not the last dimension of the output, pass class_dim; see also output_dim)"
    raise InputError(f"y has shape {list(y.shape)}, but the network's output requires {list(expected)}: {fix}.")


def check_tensor(y: object) -> None:
    """Raise ``InputError`` if ``y`` is not a tensor."""
    if not isinstance(y, Tensor):
        raise InputError(f"y must be a tensor, got {type(y).__name__}: convert it with torch.as_tensor(y).")


def check_finite(y: Tensor) -> None:
    """Raise ``InputError`` if ``y`` holds NaN or infinite values."""
    bad = int((~torch.isfinite(y)).sum())
    if bad:
        raise InputError(f"y holds {bad} value(s) that are NaN or infinite: drop or impute those rows.")
