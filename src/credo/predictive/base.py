"""The interface of a prediction: a mixture over posterior draws of the likelihood's distribution."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import torch
from torch import Tensor

from credo._arguments import check_integer
from credo.errors import InputError
from credo.predictive.components import PredictiveComponents, average, log_average_exp
from credo.seeding import check_seed, generator

if TYPE_CHECKING:
    from typing import Self

P = TypeVar("P", bound="Predictive")

_EQUAL_DRAWS = 400


class Interval(NamedTuple):
    """The ends of a central credible interval.

    Attributes:
        lower: the lower ends, ``[B, ...]``.
        upper: the upper ends, ``[B, ...]``.

    Example:
        >>> lower, upper = model.predict(x).interval(0.9)
    """

    lower: Tensor
    upper: Tensor


@dataclass(frozen=True, eq=False, repr=False)
class Predictive(ABC):
    """The posterior predictive distribution of B rows, a mixture over S draws from the posterior.

        p(y | x) = Σ_s w_s p(y | f_s(x)),    w_s = 1/S unless ensembles of unequal size were mixed.

    A draw is a *function*, shared by all rows; given the draw, all targets are independent. The uncertainty has two
    parts: *aleatoric*, which would remain if the function were known, and *epistemic*, the disagreement between the
    draws. For real and count-valued targets the variance is split, for classes the entropy:

        Var[y] = E_s Var[y | f_s] + Var_s E[y | f_s]         (law of total variance; Kendall & Gal 2017)
        H[y]   = E_s H[y | f_s]   + I[y; f]                  (Houlsby et al. 2011; Depeweg et al. 2018)

    ``entropy`` and ``mutual_information`` are in nats and exist for both kinds. Rows are indexed as in a tensor:
    ``len(p)``, ``p[3]``, ``p[2:5]``, ``p[mask]``; an integer index returns a batch of one row. Everything except
    ``quantile``, ``interval`` and ``sample`` is differentiable with respect to the network's outputs.

    Args:
        components: the distributions p(y | f_s(x_b)), ``[S, B, ...]``.
        weights: w, ``[S]``, summing to 1; ``None`` is uniform.

    Example:
        >>> p = model.predict(x)
        >>> p.mean, p.std, p.epistemic
        >>> p.interval(0.9).lower, p.log_prob(y)

    References:
        N. Houlsby, F. Huszár, Z. Ghahramani, M. Lengyel. Bayesian active learning for classification and preference
        learning. 2011.
        A. Kendall, Y. Gal. What uncertainties do we need in Bayesian deep learning for computer vision? NeurIPS 2017.
        S. Depeweg, J. M. Hernández-Lobato, F. Doshi-Velez, S. Udluft. Decomposition of uncertainty in Bayesian deep
        learning for efficient and risk-sensitive learning. ICML 2018.
    """

    components: PredictiveComponents
    weights: Tensor | None = None

    @property
    def draws(self) -> Tensor:
        """The mean function of every draw, ``[S, B, ...]``: E[y | f_s(x)], or the class probabilities."""
        return self.components.draws

    @property
    def mean(self) -> Tensor:
        """Σ_s w_s E[y | f_s(x)], ``[B, ...]``; for classes their probabilities, in the network's own layout."""
        return average(self.draws, self.weights)

    @property
    @abstractmethod
    def variance(self) -> Tensor:
        """The variance of y, ``[B, ...]``: aleatoric plus epistemic; for classes p(1 − p) of each class."""

    @property
    def std(self) -> Tensor:
        """The square root of ``variance``, ``[B, ...]``."""
        return self.variance.sqrt()

    @property
    @abstractmethod
    def aleatoric(self) -> Tensor:
        """The uncertainty if the function were known: E_s Var[y | f_s]; for classes E_s H[y | f_s] in nats."""

    @property
    @abstractmethod
    def epistemic(self) -> Tensor:
        """The uncertainty about the function: Var E[y | f]; for classes I[y; f] in nats. Exactly 0 for one draw."""

    @property
    @abstractmethod
    def entropy(self) -> Tensor:
        """H[y] of each target in nats; the differential entropy for real targets, which can be negative."""

    @property
    @abstractmethod
    def mutual_information(self) -> Tensor:
        """I[y; f] = H[y] − E_s H[y | f_s] = E_s KL(p(y | f_s) ‖ p(y)) of each target in nats, never negative."""

    @property
    @abstractmethod
    def mode(self) -> Tensor:
        """The most probable class, int64. Only for class-valued targets."""

    @abstractmethod
    def cdf(self, y: Tensor) -> Tensor:
        """Return the distribution function P(Y ≤ y) of each target on its own.

        Args:
            y: targets, ``[B, ...]``.

        Returns:
            Probabilities, ``[B, ...]``.

        Raises:
            InputError: if ``y`` does not match in shape or dtype.
            UnsupportedError: for classes without an order.
        """

    @abstractmethod
    def quantile(self, q: float | Sequence[float] | Tensor) -> Tensor:
        """Return quantiles of the mixture: the smallest y with P(Y ≤ y) ≥ q.

        Args:
            q: one level or K of them, strictly between 0 and 1.

        Returns:
            The quantiles, ``[B, ...]`` for one level, ``[K, B, ...]`` for K.

        Raises:
            InputError: if a level is not between 0 and 1.
            UnsupportedError: for classes without an order.
        """

    @abstractmethod
    def interval(self, level: float = 0.95) -> Interval:
        """Return the central interval that contains y with probability ``level`` (for counts, at least that).

        Args:
            level: the probability, strictly between 0 and 1.

        Returns:
            The quantiles at (1 − level)/2 and (1 + level)/2.

        Raises:
            InputError: if ``level`` is not between 0 and 1.
            UnsupportedError: for classes without an order.
        """

    def log_prob(self, y: Tensor) -> Tensor:
        """Return the log density of each row, log Σ_s w_s Π_i p(y_i | f_s(x)).

        The outputs of a row are independent given the draw only, so they are multiplied within each draw first.

        Args:
            y: targets, ``[B, ...]``.

        Returns:
            Log densities in nats, ``[B]``.

        Raises:
            InputError: if ``y`` does not match in shape or dtype, or holds a value of probability 0.
        """
        self.components.check(y)
        return log_average_exp(self.components.row_log_prob(y), self.weights)

    def sample(self, n: int = 1, seed: int | None = None) -> Tensor:
        """Sample targets from the mixture.

        Each sample picks one draw for the whole batch and then adds noise, so that the rows of a sample lie on one
        function.

        Args:
            n: number of samples.
            seed: makes the samples reproducible, without using or changing the global random state.

        Returns:
            Targets, ``[n, B, ...]``.

        Raises:
            InputError: if ``n`` is negative.
        """
        n = check_integer(n, "n", minimum=0)
        weights = _dense_weights(self)
        stream = None if seed is None else generator(weights.device, check_seed(seed))
        picked = torch.multinomial(weights, n, replacement=True, generator=stream) if n else torch.zeros(0).long()
        with torch.no_grad():
            return self.components.map(lambda t: t[picked]).sample(stream)

    @property
    def adjustment(self) -> object:
        """The correction that a calibrator applied to the mixture; ``None`` for the plain mixture."""
        return None

    @property
    def n_draws(self) -> int:
        """The number of draws S."""
        return self.components.parameter.shape[0]

    def __len__(self) -> int:
        return self.components.target_shape[0]

    def __iter__(self) -> Iterator[Self]:
        return (self[row] for row in range(len(self)))

    def __getitem__(self, rows: int | slice | Sequence[int] | Tensor) -> Self:
        index = _row_index(rows, len(self), self.components.parameter.device)
        return replace(self, components=self.components.map(lambda t: t[:, index]))

    @staticmethod
    def concatenate(parts: Sequence[P]) -> P:
        """Concatenate predictions along the rows.

        Args:
            parts: predictions by the same draws, such as those of several batches. If their draws have different
                weights, as those of folds may have, each part gets 400 draws of equal weight, in proportion to its own.

        Returns:
            One prediction with the rows of all parts.

        Raises:
            InputError: if there are no parts, or they differ in likelihood, draws, calibration or target shape.
        """
        parts = _check_compatible(parts)
        if any(p.weights is not None and not torch.equal(p.weights, _dense_weights(parts[0])) for p in parts):
            parts = [_with_equal_weights(part) for part in parts]
        first, *rest = parts
        for part in rest:
            _check_equal("numbers of draws", first.n_draws, part.n_draws)
            shapes = [list(p.components.target_shape[1:]) for p in (first, part)]
            _check_equal("target shapes per row", *shapes, hint="; model.stream(loader) yields them one by one")
        return replace(first, components=first.components.join([p.components for p in rest], 1))

    @staticmethod
    def mixture(parts: Sequence[P], weights: Tensor | None = None) -> P:
        """Mix predictions of the same rows, as a deep ensemble does.

        Args:
            parts: predictions of the same rows, with any numbers of draws.
            weights: of the parts, summing to 1; ``None``: they are equal.

        Returns:
            One prediction with the draws of all parts.

        Raises:
            InputError: if there are no parts, they are calibrated, or they differ in likelihood or target shape.
        """
        first, *rest = _check_compatible(parts)
        if first.adjustment is not None:
            raise InputError("calibrated predictions cannot be mixed: mix the plain ones and calibrate the mixture.")
        for part in rest:
            _check_equal("target shapes", *(list(p.components.target_shape) for p in (first, part)))
        components = first.components.join([p.components for p in rest], 0)
        if weights is not None:
            own = [w * _dense_weights(p) for w, p in zip(weights.to(components.draws), parts, strict=True)]
            return replace(first, components=components, weights=torch.cat(own))
        uniform = all(p.weights is None and p.n_draws == first.n_draws for p in parts)
        equal = None if uniform else torch.cat([_dense_weights(p) for p in parts]) / len(parts)
        return replace(first, components=components, weights=equal)

    def to(self, device: str | torch.device) -> Self:
        """Return the prediction on another device.

        Args:
            device: the device to copy all tensors to.
        """
        weights = None if self.weights is None else self.weights.to(device)
        return replace(self, components=self.components.map(lambda t: t.to(device)), weights=weights)

    def cpu(self) -> Self:
        """Return the prediction on the CPU."""
        return self.to("cpu")

    def double(self) -> Self:
        """Return the prediction in float64."""
        weights = None if self.weights is None else self.weights.double()
        return replace(self, components=self.components.map(Tensor.double), weights=weights)

    def __repr__(self) -> str:
        return f"Predictive(draws={self.n_draws}, rows={len(self)}, {self.components.name})"


def check_levels(q: float | Sequence[float] | Tensor) -> Tensor:
    """Return quantile levels in float64, ``[]`` or ``[K]``; raise ``InputError`` unless all are between 0 and 1."""
    levels = torch.as_tensor(q, dtype=torch.float64)
    if levels.ndim > 1:
        raise InputError(f"q must be a number or a list of them, got shape {list(levels.shape)}.")
    if not bool(((levels > 0) & (levels < 1)).all()):
        raise InputError(f"q must lie between 0 and 1, both excluded, got {q}.")
    return levels


def _dense_weights(p: Predictive) -> Tensor:
    return p.components.parameter.new_full((p.n_draws,), 1 / p.n_draws) if p.weights is None else p.weights


def _with_equal_weights(p: P) -> P:
    """``p`` with 400 draws of equal weight, each of its own as often as its weight says, to the nearest 1/400."""
    exact = _dense_weights(p).double() * _EQUAL_DRAWS
    count = exact.floor().long()
    most = (exact - count).argsort(descending=True, stable=True)
    count[most[: _EQUAL_DRAWS - int(count.sum())]] += 1
    draws = torch.arange(p.n_draws, device=count.device).repeat_interleave(count)
    return replace(p, components=p.components.map(lambda t: t[draws]), weights=None)


def _check_compatible(parts: Sequence[P]) -> Sequence[P]:
    if not parts:
        raise InputError("there is nothing to join: give at least one Predictive.")
    for part in parts[1:]:
        _check_equal("likelihoods", parts[0].components.name, part.components.name)
        _check_equal("settings", parts[0].components.settings, part.components.settings)
        if parts[0].adjustment != part.adjustment:
            raise InputError("the parts were calibrated differently: only predictions of one calibrator can be joined.")
    return parts


def _check_equal(what: str, a: object, b: object, *, hint: str = "") -> None:
    if a != b:
        raise InputError(f"predictions with different {what} cannot be joined: {a} and {b}{hint}.")


def _row_index(rows: object, count: int, device: torch.device) -> slice | Tensor:
    """An index that selects ``rows`` of ``count`` and keeps the row dimension."""
    if isinstance(rows, slice):
        return rows if rows.step is None or rows.step > 0 else torch.tensor(range(count)[rows], device=device)
    if isinstance(rows, tuple):
        raise InputError("a Predictive is indexed by row alone: index its mean, std or draws for single outputs.")
    index = torch.as_tensor(rows, device=device)
    if index.numel() == 0 and index.dtype != torch.bool:
        index = index.long()
    if index.dtype == torch.bool:
        if index.shape != (count,):
            raise InputError(f"a row mask must have shape [{count}], got {list(index.shape)}.")
        return index
    if index.is_floating_point() or index.is_complex() or index.ndim > 1:
        raise InputError(f"rows are chosen by a number, a slice, a mask or a list of numbers, got {rows!r}.")
    if index.ndim == 0:
        row = operator.index(index)
        if not -count <= row < count:
            raise IndexError(f"row {row} of {count}")
        return slice(row % count, row % count + 1)
    return index
