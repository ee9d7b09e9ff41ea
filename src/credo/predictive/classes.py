"""Predictions of class-valued targets, and their components."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from credo._arguments import check_fraction
from credo.errors import InputError, UnsupportedError
from credo.predictive.base import Interval, Predictive, check_levels
from credo.predictive.components import (
    ClassComponents,
    average,
    check_finite,
    check_target_shape,
    check_tensor,
    entropy_of,
    log_average_exp,
)


@dataclass(frozen=True, eq=False, repr=False)
class ClassPredictive(Predictive):
    """A mixture on a finite set of classes; uncertainties are entropies, ``[B, ...]`` without the class dimension.

    Only ordered classes (:class:`credo.Ordinal`) have a ``cdf``, and quantiles and intervals, whose ends are classes.

    Args:
        components: the class probabilities of every draw and row.
        weights: of the draws, ``[S]``, summing to 1; ``None`` is uniform.

    Example:
        >>> p = credo.Categorical().predictive(torch.randn(20, 4, 3))
        >>> p.mean.shape, p.mode.shape
        (torch.Size([4, 3]), torch.Size([4]))
    """

    components: ClassComponents

    @property
    @override
    def variance(self) -> Tensor:
        """p(1 − p) of each class, in the layout of ``mean``."""
        return self.mean * (1 - self.mean)

    @property
    @override
    def aleatoric(self) -> Tensor:
        """E_s H[y | f_s] in nats."""
        return average(self.components.entropy, self.weights)

    @property
    @override
    def epistemic(self) -> Tensor:
        """I[y; f] in nats."""
        return self.mutual_information

    @property
    @override
    def entropy(self) -> Tensor:
        """H[y], of the mean probabilities, in nats."""
        return self.components.mixture(self.weights).entropy[0]

    @property
    @override
    def mutual_information(self) -> Tensor:
        """H[y] − E_s H[y | f_s] in nats."""
        if self.n_draws == 1 and not self.components.is_split:
            return torch.zeros_like(self.aleatoric)
        return (self.entropy - self.aleatoric).clamp(min=0)

    @property
    @override
    def mode(self) -> Tensor:
        """The most probable class, int64."""
        return self.components.mixture(self.weights).mode[0]

    @override
    def cdf(self, y: Tensor) -> Tensor:
        cumulative = self._cumulative("cdf")
        self.components.check(y)
        return cumulative.gather(-1, y.long().unsqueeze(-1)).squeeze(-1)

    @override
    def quantile(self, q: float | Sequence[float] | Tensor) -> Tensor:
        cumulative, levels = self._cumulative("quantiles").detach(), check_levels(q).to(self.draws.device)
        reached = cumulative[..., :-1] >= levels.to(cumulative.dtype).view(*levels.shape, *[1] * cumulative.ndim)
        return (~reached).sum(-1)

    @override
    def interval(self, level: float = 0.95) -> Interval:
        level = check_fraction(level, "level")
        return Interval(self.quantile((1 - level) / 2), self.quantile((1 + level) / 2))

    def _cumulative(self, what: str) -> Tensor:
        """P(Y ≤ k) of every ordered class k, along the last dimension."""
        if not isinstance(self.components, OrdinalComponents):
            raise UnsupportedError(f"classes have no order, so no {what}: use mean, the class probabilities.")
        return self.mean.cumsum(-1)


@dataclass(frozen=True, eq=False, repr=False)
class CategoricalComponents(ClassComponents):
    """Categorical(y | π), parametrized by log probabilities with the classes along ``class_dim`` (negative).

    Targets equal to ``ignore_index`` have log density 0.
    """

    log_p: Tensor
    class_dim: int = -1
    ignore_index: int | None = None

    name: ClassVar[str] = "Categorical"

    @property
    @override
    def draws(self) -> Tensor:
        """π."""
        return self.log_p.exp()

    @property
    def classes(self) -> int:
        """The number of classes C."""
        return self.log_p.shape[self.class_dim]

    @property
    @override
    def target_shape(self) -> torch.Size:
        """``[B, ...]``, without the class dimension."""
        return self.log_p.select(self.class_dim, 0).shape[1:]

    @property
    @override
    def entropy(self) -> Tensor:
        """−Σ_c π_c log π_c."""
        return entropy_of(self.log_p, self.class_dim)

    @property
    @override
    def mode(self) -> Tensor:
        """argmax_c π_c."""
        return self.log_p.argmax(self.class_dim)

    @override
    def check_dtype_and_shape(self, y: Tensor) -> None:
        check_tensor(y)
        if y.shape == self.log_p.shape[1:]:
            raise InputError(
                f"y has shape {list(y.shape)}, the shape of the network's output, but class indices of shape "
                f"{list(self.target_shape)} are needed; if y is one-hot, call y.argmax({self.class_dim}); if "
                "it holds probabilities, repeat each row once per class and pass them as sample_weight."
            )
        if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
            raise InputError(f"y has dtype {y.dtype}, but integer class indices are needed: call y.long().")
        check_target_shape(y, self.target_shape)

    @override
    def check_values(self, y: Tensor) -> None:
        wrong = (y < 0) | (y >= self.classes)
        if self.ignore_index is not None:
            wrong &= y != self.ignore_index
        if bool(wrong.any()):
            label = int(y[wrong][0])
            hint = f"; if it marks targets to ignore, pass ignore_index={label}" if label < 0 or label == 255 else ""
            raise InputError(
                f"y holds the label {label}, but the network has {self.classes} classes, 0 to {self.classes - 1}{hint}."
            )

    @override
    def log_density(self, y: Tensor) -> Tensor:
        """log π_y, or 0 where ignored."""
        y = y.long()
        ignored = None if self.ignore_index is None else y == self.ignore_index
        index = y if ignored is None else torch.where(ignored, 0, y)
        index = index.expand(len(self.log_p), *index.shape).unsqueeze(self.class_dim)
        log_p = self.log_p.gather(self.class_dim, index).squeeze(self.class_dim)
        return log_p if ignored is None else torch.where(ignored, 0.0, log_p)

    @override
    def sample(self, generator: torch.Generator | None) -> Tensor:
        """Class indices, int64."""
        p = self.log_p.movedim(self.class_dim, -1).exp()
        if p.numel() == 0:
            return torch.zeros(p.shape[:-1], dtype=torch.long, device=p.device)
        return torch.multinomial(p.reshape(-1, p.shape[-1]), 1, generator=generator).view(p.shape[:-1])

    @override
    def mixture(self, weights: Tensor | None) -> Self:
        """Categorical(Σ_s w_s π_s)."""
        return type(self)(log_average_exp(self.log_p, weights)[None], self.class_dim, self.ignore_index)


@dataclass(frozen=True, eq=False, repr=False)
class SplitCategoricalComponents(CategoricalComponents):
    """Categorical(y | π) with the function integrated out: a share of the entropy is uncertainty about the function.

    Attributes:
        share: I[y; f]/H[y], ``[S, B, ...]`` without the class dimension; ``None``: 0.
    """

    share: Tensor | None = None

    name: ClassVar[str] = "SplitCategorical"
    is_split: ClassVar[bool] = True

    @property
    @override
    def entropy(self) -> Tensor:
        """(1 − share) H[y], what remains if the function were known."""
        total = entropy_of(self.log_p, self.class_dim)
        return total if self.share is None else (1.0 - self.share) * total


@dataclass(frozen=True, eq=False, repr=False)
class OrdinalComponents(CategoricalComponents):
    """Categorical(y | π) with classes in ascending order along the last dimension."""

    name: ClassVar[str] = "Ordinal"


@dataclass(frozen=True, eq=False, repr=False)
class BernoulliComponents(ClassComponents):
    """Bernoulli(y | sigmoid(l)), parametrized by the logit l."""

    logits: Tensor

    name: ClassVar[str] = "Bernoulli"

    @property
    @override
    def draws(self) -> Tensor:
        """p = sigmoid(l)."""
        return self.logits.sigmoid()

    @property
    @override
    def target_shape(self) -> torch.Size:
        """``[B, ...]``, the shape of the logits."""
        return self.logits.shape[1:]

    @property
    def _log_p(self) -> Tensor:
        return torch.stack([F.logsigmoid(-self.logits), F.logsigmoid(self.logits)], -1)

    @property
    @override
    def entropy(self) -> Tensor:
        """−p log p − (1 − p) log(1 − p)."""
        return entropy_of(self._log_p, -1)

    @property
    @override
    def mode(self) -> Tensor:
        """1 where p > ½."""
        return (self.logits > 0).long()

    @override
    def check_dtype_and_shape(self, y: Tensor) -> None:
        check_tensor(y)
        if y.is_complex():
            raise InputError(f"y has dtype {y.dtype}, but labels 0 and 1 are needed: call y.real.float().")
        check_target_shape(y, self.target_shape)

    @override
    def check_values(self, y: Tensor) -> None:
        check_finite(y)
        if bool(((y != 0) & (y != 1)).any()):
            raise InputError(
                f"y holds values between {float(y.min()):g} and {float(y.max()):g}: Bernoulli() needs labels 0 and 1; "
                "for more than two classes use Categorical()."
            )

    @override
    def log_density(self, y: Tensor) -> Tensor:
        """y log p + (1 − y) log(1 − p), from the logits, with 0 log 0 = 0."""
        y = y.to(self.logits.dtype)
        yes, no = F.logsigmoid(self.logits), F.logsigmoid(-self.logits)
        return torch.where(y == 0, 0.0, y * yes) + torch.where(y == 1, 0.0, (1 - y) * no)

    @override
    def sample(self, generator: torch.Generator | None) -> Tensor:
        """Labels 0 and 1, int64."""
        u = torch.rand(self.logits.shape, generator=generator, dtype=self.logits.dtype, device=self.logits.device)
        return (u < self.logits.sigmoid()).long()

    @override
    def mixture(self, weights: Tensor | None) -> Self:
        """Bernoulli(Σ_s w_s p_s); its logit comes from log probabilities, which are accurate near 0 and 1."""
        log_p = log_average_exp(self._log_p, weights)
        return type(self)((log_p[..., 1] - log_p[..., 0])[None])
