"""Values with a standard error, and how they are printed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from credo.errors import InputError


@dataclass(frozen=True, eq=False, repr=False)
class Estimate:
    """A Monte Carlo estimate with its standard error, or an exact value; ``float(estimate)`` if it is one number.

    Attributes:
        value: the estimate, ``[...]``; differentiable if it is exact.
        standard_error: of the Monte Carlo mean, ``[...]``; 0 if the value is exact, or infinite: a single infinite
            draw makes the mean infinite.
        exact: whether the value is a closed form or a finite sum, not a mean over draws.

    Example:
        >>> import torch
        >>> from credo.information import Estimate
        >>> Estimate.from_samples(torch.tensor([1.0, 2.0, 3.0, 4.0]))
        2.50 ± 0.65
    """

    value: Tensor
    standard_error: Tensor
    exact: bool

    @classmethod
    def from_exact(cls, value: Tensor) -> Estimate:
        """Wrap an exact value.

        Args:
            value: ``[...]``.

        Returns:
            The value with a standard error of 0.
        """
        return cls(value, torch.zeros_like(value), True)

    @classmethod
    def from_samples(cls, values: Tensor) -> Estimate:
        """Estimate a mean from independent samples.

        Args:
            values: at least two samples along dim 0, ``[L, ...]``.

        Returns:
            The mean over dim 0 with its standard error s/√L, ``[...]``.

        Raises:
            InputError: if there are fewer than two samples.
        """
        if values.ndim == 0 or len(values) < 2:
            raise InputError(
                f"values must have at least two samples along dim 0 for a standard error, "
                f"got shape {list(values.shape)}"
            )
        values = values if values.is_floating_point() else values.double()
        mean, error = values.mean(0), values.std(0) / math.sqrt(len(values))
        return cls(mean, torch.where(mean.isinf(), 0.0, error), False)

    def sum(self, ndims: int) -> Estimate:
        """Sum over trailing dimensions whose errors are independent.

        Args:
            ndims: number of trailing dimensions; 0 for none.

        Returns:
            The sum, with the errors added in quadrature.
        """
        if ndims == 0:
            return self
        dims = tuple(range(-ndims, 0))
        return Estimate(self.value.sum(dims), self.standard_error.square().sum(dims).sqrt(), self.exact)

    def expand(self, shape: torch.Size) -> Estimate:
        """Expand to a larger batch, as ``torch.Tensor.expand``.

        Args:
            shape: the new shape.

        Returns:
            The same estimate for every member of the batch.
        """
        return Estimate(self.value.expand(shape), self.standard_error.expand(shape), self.exact)

    @property
    def bits(self) -> Estimate:
        """An estimate in nats, converted to bits."""
        return Estimate(self.value / math.log(2.0), self.standard_error / math.log(2.0), self.exact)

    def __float__(self) -> float:
        if self.value.numel() != 1:
            raise InputError(f"the estimate has shape {list(self.value.shape)}: use its value and standard_error")
        return self.value.item()

    def __repr__(self) -> str:
        pairs = zip(self.value.flatten().tolist(), self.standard_error.flatten().tolist(), strict=True)
        texts = [f"{value:.6g}" if self.exact else format_estimate(value, error) for value, error in pairs]
        return texts[0] if self.value.ndim == 0 else f"[{', '.join(texts)}]"


def format_estimate(value: float, error: float) -> str:
    """Format a value with its standard error, such as ``"0.1234 ± 0.0042"``.

    Args:
        value: the estimate.
        error: its standard error.

    Returns:
        The error to two significant digits and the value to as many decimals.
    """
    decimals = 1 - math.floor(math.log10(error)) if 0.0 < error < math.inf else -1
    if not 0 <= decimals <= 6:
        return f"{value:.4g} ± {error:.2g}"
    return f"{value:.{decimals}f} ± {error:.{decimals}f}"
