"""A number that knows how far it may be off."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from credo.errors import InputError


@dataclass(frozen=True, eq=False, repr=False)
class Estimate:
    """A value found by sampling, with its standard error, or an exact one; ``float(estimate)`` where it is one number.

    Attributes:
        value: ``[...]``; differentiable where it is exact.
        standard_error: of the Monte Carlo mean, ``[...]``; 0 where it is exact, and where the value is infinite: a
            single draw proves that.
        exact: whether the value is a closed form or a finite sum, rather than a mean over draws.
    """

    value: Tensor
    standard_error: Tensor
    exact: bool

    @classmethod
    def closed(cls, value: Tensor) -> Estimate:
        """A value without error."""
        return cls(value, torch.zeros_like(value), True)

    @classmethod
    def from_samples(cls, values: Tensor) -> Estimate:
        """The mean over dim 0 of independent ``values [L, ...]``, with its standard error s/√L."""
        if values.ndim == 0 or len(values) < 2:
            raise InputError(
                f"values must hold at least two samples along dim 0, got shape {list(values.shape)}: "
                "one sample says nothing about the error of their mean"
            )
        values = values if values.is_floating_point() else values.double()
        mean, error = values.mean(0), values.std(0) / math.sqrt(len(values))
        return cls(mean, torch.where(mean.isinf(), 0.0, error), False)

    def summed(self, ndims: int) -> Estimate:
        """The sum over the last ``ndims`` dimensions, whose errors are independent."""
        if ndims == 0:
            return self
        dims = tuple(range(-ndims, 0))
        return Estimate(self.value.sum(dims), self.standard_error.square().sum(dims).sqrt(), self.exact)

    def expanded(self, shape: torch.Size) -> Estimate:
        """The same for every member of a larger batch."""
        return Estimate(self.value.expand(shape), self.standard_error.expand(shape), self.exact)

    @property
    def bits(self) -> Estimate:
        """A number of nats in bits."""
        return Estimate(self.value / math.log(2.0), self.standard_error / math.log(2.0), self.exact)

    def __float__(self) -> float:
        if self.value.numel() != 1:
            raise InputError(f"the estimate has shape {list(self.value.shape)}: take its value and standard_error")
        return self.value.item()

    def __repr__(self) -> str:
        pairs = zip(self.value.flatten().tolist(), self.standard_error.flatten().tolist(), strict=True)
        texts = [f"{value:.6g}" if self.exact else with_error(value, error) for value, error in pairs]
        return texts[0] if self.value.ndim == 0 else f"[{', '.join(texts)}]"


def with_error(value: float, error: float) -> str:
    """``"0.1234 ± 0.0042"``: the error to two digits and the value to as many decimals."""
    decimals = 1 - math.floor(math.log10(error)) if 0.0 < error < math.inf else -1
    if not 0 <= decimals <= 6:
        return f"{value:.4g} ± {error:.2g}"
    return f"{value:.{decimals}f} ± {error:.{decimals}f}"
