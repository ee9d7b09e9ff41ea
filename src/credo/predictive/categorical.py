"""Categorical components."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from credo.errors import InputError
from credo.predictive.components import (
    ClassComponents,
    check_shape,
    check_tensor,
    entropy_of,
    listed,
    log_average_exp,
)

if TYPE_CHECKING:
    from typing import Self


@dataclass(frozen=True, eq=False, repr=False)
class CategoricalComponents(ClassComponents):
    """Categorical(y | π), by its log probabilities, the classes along ``class_dim`` (negative).

    Targets equal to ``ignore_index`` have log density 0.
    """

    log_p: Tensor
    class_dim: int = -1
    ignore_index: int | None = None

    name: ClassVar[str] = "Categorical"

    @property
    def draws(self) -> Tensor:
        """π."""
        return self.log_p.exp()

    @property
    def classes(self) -> int:
        """C."""
        return self.log_p.shape[self.class_dim]

    @property
    def target_shape(self) -> torch.Size:
        """``[B, ...]``, without the class dimension."""
        return self.log_p.select(self.class_dim, 0).shape[1:]

    @property
    def entropy(self) -> Tensor:
        """−Σ_c π_c log π_c."""
        return entropy_of(self.log_p, self.class_dim)

    @property
    def mode(self) -> Tensor:
        """argmax_c π_c."""
        return self.log_p.argmax(self.class_dim)

    def check_form(self, y: Tensor) -> None:
        """Integers, without the class dimension."""
        check_tensor(y)
        if y.shape == self.log_p.shape[1:]:
            raise InputError(
                f"y has shape {listed(y.shape)}, the shape of the network's output: class indices of shape "
                f"{listed(self.target_shape)} are needed; if y is one-hot, call y.argmax({self.class_dim}); if "
                "it holds probabilities, repeat each row once a class and pass them as sample_weight."
            )
        if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
            raise InputError(f"y has dtype {y.dtype}, integer class indices are needed: call y.long().")
        check_shape(y, self.target_shape)

    def check_values(self, y: Tensor) -> None:
        """From 0 to C − 1, or ignored."""
        wrong = (y < 0) | (y >= self.classes)
        if self.ignore_index is not None:
            wrong &= y != self.ignore_index
        if bool(wrong.any()):
            label = int(y[wrong][0])
            hint = f"; if it marks targets to leave out, pass ignore_index={label}" if label < 0 or label == 255 else ""
            raise InputError(
                f"y holds the label {label}, but the network has {self.classes} classes, 0 to {self.classes - 1}{hint}."
            )

    def log_density(self, y: Tensor) -> Tensor:
        """log π_y, or 0 where ignored."""
        y = y.long()
        ignored = None if self.ignore_index is None else y == self.ignore_index
        index = y if ignored is None else torch.where(ignored, 0, y)
        index = index.expand(len(self.log_p), *index.shape).unsqueeze(self.class_dim)
        log_p = self.log_p.gather(self.class_dim, index).squeeze(self.class_dim)
        return log_p if ignored is None else torch.where(ignored, 0.0, log_p)

    def sample(self, generator: torch.Generator | None) -> Tensor:
        """Classes, int64."""
        p = self.log_p.movedim(self.class_dim, -1).exp()
        if p.numel() == 0:
            return torch.zeros(p.shape[:-1], dtype=torch.long, device=p.device)
        return torch.multinomial(p.reshape(-1, p.shape[-1]), 1, generator=generator).view(p.shape[:-1])

    def mixed(self, weights: Tensor | None) -> Self:
        """Categorical(Σ_s w_s π_s)."""
        return type(self)(log_average_exp(self.log_p, weights)[None], self.class_dim, self.ignore_index)
