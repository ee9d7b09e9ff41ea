"""Bernoulli components."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from credo.errors import InputError
from credo.predictive.components import (
    ClassComponents,
    check_finite,
    check_shape,
    check_tensor,
    entropy_of,
    log_average_exp,
)

if TYPE_CHECKING:
    from typing import Self


@dataclass(frozen=True, eq=False, repr=False)
class BernoulliComponents(ClassComponents):
    """Bernoulli(y | sigmoid(l)), by its logit."""

    logits: Tensor

    name: ClassVar[str] = "Bernoulli"

    @property
    def draws(self) -> Tensor:
        """p = sigmoid(l)."""
        return self.logits.sigmoid()

    @property
    def target_shape(self) -> torch.Size:
        """``[B, ...]``, the shape of the logits."""
        return self.logits.shape[1:]

    @property
    def _log_p(self) -> Tensor:
        return torch.stack([F.logsigmoid(-self.logits), F.logsigmoid(self.logits)], -1)

    @property
    def entropy(self) -> Tensor:
        """−p log p − (1 − p) log(1 − p)."""
        return entropy_of(self._log_p, -1)

    @property
    def mode(self) -> Tensor:
        """1 where p > ½."""
        return (self.logits > 0).long()

    def check_form(self, y: Tensor) -> None:
        """Labels, one per logit."""
        check_tensor(y)
        if y.is_complex():
            raise InputError(f"y has dtype {y.dtype}, labels 0 and 1 are needed: call y.real.float().")
        check_shape(y, self.target_shape)

    def check_values(self, y: Tensor) -> None:
        """0 and 1."""
        check_finite(y)
        if bool(((y != 0) & (y != 1)).any()):
            raise InputError(
                f"y holds values between {float(y.min()):g} and {float(y.max()):g}: Bernoulli() needs labels 0 and 1; "
                "for more than two classes use Categorical()."
            )

    def log_density(self, y: Tensor) -> Tensor:
        """y log p + (1 − y) log(1 − p), from the logits, with 0 log 0 = 0."""
        y = y.to(self.logits.dtype)
        yes, no = F.logsigmoid(self.logits), F.logsigmoid(-self.logits)
        return torch.where(y == 0, 0.0, y * yes) + torch.where(y == 1, 0.0, (1 - y) * no)

    def sample(self, generator: torch.Generator | None) -> Tensor:
        """0 and 1, int64."""
        u = torch.rand(self.logits.shape, generator=generator, dtype=self.logits.dtype, device=self.logits.device)
        return (u < self.logits.sigmoid()).long()

    def mixed(self, weights: Tensor | None) -> Self:
        """Bernoulli(Σ_s w_s p_s), its logit from log probabilities, so that it keeps its tail."""
        log_p = log_average_exp(self._log_p, weights)
        return type(self)((log_p[..., 1] - log_p[..., 0])[None])
