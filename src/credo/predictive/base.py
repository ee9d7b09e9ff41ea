"""The one answer every model gives: a mixture, over draws, of the likelihood's own distribution."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import torch
from torch import Tensor

from credo.errors import InputError
from credo.predictive.components import Components, average, listed, log_average_exp
from credo.seeding import check_seed, generator

if TYPE_CHECKING:
    from typing import Self

P = TypeVar("P", bound="Predictive")


class Interval(NamedTuple):
    """The ends of a central credible interval, ``[B, ...]`` each."""

    lower: Tensor
    upper: Tensor


@dataclass(frozen=True, eq=False, repr=False)
class Predictive(ABC):
    """The posterior predictive distribution of B rows, a mixture over S draws from the posterior.

        p(y | x) = Σ_s w_s p(y | f_s(x)),    w_s = 1/S unless ensembles of unequal size were mixed.

    A draw is a *function*: the rows of one draw belong together, and given the draw all targets are independent.
    Uncertainty is split in two. What would remain if the function were known is *aleatoric*; what the draws
    disagree on is *epistemic*. Real and count-valued targets are split in variance, classes in entropy:

        Var[y] = E_s Var[y | f_s] + Var_s E[y | f_s]         (law of total variance; Kendall & Gal 2017)
        H[y]   = E_s H[y | f_s]   + I[y; f]                  (Houlsby et al. 2011; Depeweg et al. 2018)

    ``entropy`` and ``mutual_information`` are in nats and exist for both kinds. Rows are addressed as in a tensor:
    ``len(p)``, ``p[3]``, ``p[2:5]``, ``p[mask]``; an integer keeps the row as a batch of one. Everything but
    ``quantile``, ``interval`` and ``sample`` is differentiable in the network's outputs.

    Args:
        components: the distributions p(y | f_s(x_b)), ``[S, B, ...]``.
        weights: w, ``[S]``, summing to 1; ``None`` is uniform.

    References:
        N. Houlsby, F. Huszár, Z. Ghahramani, M. Lengyel. Bayesian active learning for classification and preference
        learning. 2011.
        A. Kendall, Y. Gal. What uncertainties do we need in Bayesian deep learning for computer vision? NeurIPS 2017.
        S. Depeweg, J. M. Hernández-Lobato, F. Doshi-Velez, S. Udluft. Decomposition of uncertainty in Bayesian deep
        learning for efficient and risk-sensitive learning. ICML 2018.
    """

    components: Components
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
        """What remains if the function is known: E_s Var[y | f_s]; for classes E_s H[y | f_s] in nats."""

    @property
    @abstractmethod
    def epistemic(self) -> Tensor:
        """What is not known of the function: Var E[y | f]; for classes I[y; f] in nats. Exactly 0 for one drawn one."""

    @property
    @abstractmethod
    def entropy(self) -> Tensor:
        """H[y] of each target in nats; differential for real targets, so it may be negative."""

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
        """P(Y ≤ y), each target on its own, ``[B, ...]``. Not for class-valued targets."""

    @abstractmethod
    def quantile(self, q: float | Sequence[float] | Tensor) -> Tensor:
        """The mixture's own quantiles: ``[B, ...]`` for a number, ``[K, B, ...]`` for K of them. Not for classes."""

    @abstractmethod
    def interval(self, level: float = 0.95) -> Interval:
        """The central interval that holds y with probability ``level``. Not for class-valued targets."""

    def log_prob(self, y: Tensor) -> Tensor:
        """log Σ_s w_s Π_i p(y_i | f_s(x)), ``[B]``, for targets ``y [B, ...]``.

        The outputs of a row are independent given the draw, not without it: they are multiplied within a draw first.
        """
        self.components.check(y)
        return log_average_exp(self.components.row_log_prob(y), self.weights)

    def sample(self, n: int = 1, seed: int | None = None) -> Tensor:
        """``n`` targets from the mixture, ``[n, B, ...]``.

        Each sample picks one draw for the whole batch, then adds the noise, so that the rows of a sample lie on one
        function. With a ``seed`` the global random state is neither used nor changed.
        """
        if n < 0:
            raise InputError(f"n must be at least 0, got {n}.")
        weights = _dense_weights(self)
        stream = None if seed is None else generator(weights.device, check_seed(seed))
        picked = torch.multinomial(weights, n, replacement=True, generator=stream) if n else torch.zeros(0).long()
        with torch.no_grad():
            return self.components.map(lambda t: t[picked]).sample(stream)

    @property
    def adjustment(self) -> object:
        """What a calibrator has laid over the mixture, ``None`` for the mixture itself; joined parts must share it."""
        return None

    @property
    def n_draws(self) -> int:
        """S."""
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
        """The rows of all ``parts``, one behind the other; the parts must come from the same draws."""
        first, *rest = _alike(parts)
        for part in rest:
            _require_equal("numbers of draws", first.n_draws, part.n_draws)
            _require_equal("target shapes per row", *(listed(p.components.target_shape[1:]) for p in (first, part)))
            if first.weights is not part.weights and not torch.equal(*(_dense_weights(p) for p in (first, part))):
                raise InputError("the parts weight their draws differently: only the same draws can be joined.")
        return replace(first, components=first.components.join([p.components for p in rest], 1))

    @staticmethod
    def mixture(parts: Sequence[P]) -> P:
        """The equal-weight mixture of ``parts`` (a deep ensemble), whatever their numbers of draws; rows must agree."""
        first, *rest = _alike(parts)
        if first.adjustment is not None:
            raise InputError("calibrated predictions cannot be mixed: mix the plain ones and calibrate the mixture.")
        for part in rest:
            _require_equal("target shapes", *(listed(p.components.target_shape) for p in (first, part)))
        uniform = all(p.weights is None and p.n_draws == first.n_draws for p in parts)
        weights = None if uniform else torch.cat([_dense_weights(p) for p in parts]) / len(parts)
        return replace(first, components=first.components.join([p.components for p in rest], 0), weights=weights)

    def to(self, device: str | torch.device) -> Self:
        """The same prediction on another device."""
        weights = None if self.weights is None else self.weights.to(device)
        return replace(self, components=self.components.map(lambda t: t.to(device)), weights=weights)

    def cpu(self) -> Self:
        """The same prediction on the CPU."""
        return self.to("cpu")

    def double(self) -> Self:
        """The same prediction in float64."""
        weights = None if self.weights is None else self.weights.double()
        return replace(self, components=self.components.map(Tensor.double), weights=weights)

    def __repr__(self) -> str:
        return f"Predictive(draws={self.n_draws}, rows={len(self)}, {self.components.name})"


def _dense_weights(p: Predictive) -> Tensor:
    return p.components.parameter.new_full((p.n_draws,), 1 / p.n_draws) if p.weights is None else p.weights


def _alike(parts: Sequence[P]) -> Sequence[P]:
    if not parts:
        raise InputError("there is nothing to join: give at least one Predictive.")
    for part in parts[1:]:
        _require_equal("likelihoods", parts[0].components.name, part.components.name)
        _require_equal("settings", parts[0].components.settings, part.components.settings)
        if parts[0].adjustment != part.adjustment:
            raise InputError("the parts were calibrated differently: only predictions of one calibrator can be joined.")
    return parts


def _require_equal(what: str, a: object, b: object) -> None:
    if a != b:
        raise InputError(f"predictions with different {what} cannot be joined: {a} and {b}.")


def _row_index(rows: object, count: int, device: torch.device) -> slice | Tensor:
    """What selects ``rows`` of ``count`` and keeps the row dimension."""
    if isinstance(rows, slice):
        return rows if rows.step is None or rows.step > 0 else torch.tensor(range(count)[rows], device=device)
    if isinstance(rows, tuple):
        raise InputError("a Predictive is indexed by row alone: index its mean, std or draws for single outputs.")
    index = torch.as_tensor(rows, device=device)
    if index.numel() == 0 and index.dtype != torch.bool:
        index = index.long()
    if index.dtype == torch.bool:
        if index.shape != (count,):
            raise InputError(f"a row mask must have shape [{count}], got {listed(index.shape)}.")
        return index
    if index.is_floating_point() or index.is_complex() or index.ndim > 1:
        raise InputError(f"rows are chosen by a number, a slice, a mask or a list of numbers, got {rows!r}.")
    if index.ndim == 0:
        row = operator.index(index)
        if not -count <= row < count:
            raise IndexError(f"row {row} of {count}")
        return slice(row % count, row % count + 1)
    return index
