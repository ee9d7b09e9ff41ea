"""The interface of a conjugate pair, and the checks of hyperparameters and data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.distributions import Distribution

from credo.errors import InputError

TensorLike: TypeAlias = Tensor | ArrayLike


@dataclass(frozen=True, eq=False, repr=False)
class ConjugatePair(ABC):
    """A likelihood p(x | θ) with a conjugate prior p(θ): the posterior has the form of the prior.

    The hyperparameters are float64 tensors. A pair is immutable: :meth:`update` returns a new one. Each subclass also
    has a static method ``maximum_likelihood(data, …)``, which returns p(x | θ) at the θ that maximizes the likelihood.

    Example:
        >>> from credo.conjugate import BetaBernoulli
        >>> pair = BetaBernoulli(2, 2).update([1, 0, 1, 1])
        >>> pair
        BetaBernoulli(a=5, b=3)
        >>> pair.predictive.mean.item()
        0.625
    """

    @property
    @abstractmethod
    def posterior(self) -> Distribution:
        """p(θ) given all data so far; the prior if there are none."""

    @property
    @abstractmethod
    def predictive(self) -> Distribution:
        """p(x) of one new observation given all data so far, with θ integrated out."""

    @abstractmethod
    def likelihood(self, parameters: Any) -> Distribution:
        """p(x | θ) of one observation.

        Args:
            parameters: θ, as drawn from :attr:`posterior`.

        Returns:
            The distribution of x given θ.
        """

    def update(self, data: TensorLike) -> Self:
        """Condition on data, in any order and in any number of batches.

        Args:
            data: one observation per row, ``[N, ...]``; N may be 0.

        Returns:
            A pair whose hyperparameters are those of the posterior.

        Raises:
            InputError: if the data do not match the likelihood.
        """
        return self._update(self._read(data))

    def log_evidence(self, data: TensorLike) -> Tensor:
        """log p(data) given the data of earlier updates, with all constants.

        ``pair.log_evidence(all) == pair.log_evidence(first) + pair.update(first).log_evidence(rest)``.

        Args:
            data: one observation per row, ``[N, ...]``; N may be 0.

        Returns:
            The log evidence in nats, of the batch shape of the hyperparameters.

        Raises:
            InputError: if the data do not match the likelihood.
        """
        return self._log_evidence(self._read(data))

    @abstractmethod
    def _read(self, data: TensorLike) -> Tensor:
        """Validated data, ``[N, ...]``."""

    @abstractmethod
    def _update(self, data: Tensor) -> Self: ...

    @abstractmethod
    def _log_evidence(self, data: Tensor) -> Tensor: ...

    def _store(self, **hyperparameters: Tensor | int) -> None:
        for name, value in hyperparameters.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        shown = (f"{field.name}={_format(getattr(self, field.name))}" for field in fields(self))
        return f"{type(self).__name__}({', '.join(shown)})"


def to_tensors(**values: TensorLike) -> tuple[Tensor, ...]:
    """Convert to finite float64 tensors on one device, that of the first tensor among them."""
    device = next((value.device for value in values.values() if isinstance(value, Tensor)), None)
    tensors = {name: _to_float64(name, value, device) for name, value in values.items()}
    for name, tensor in tensors.items():
        if not bool(tensor.isfinite().all()):
            raise InputError(f"{name} must be finite, got {tensor.tolist()}")
    return tuple(tensors.values())


def check_all_positive(**values: Tensor) -> None:
    """Raise ``InputError`` if an element is not above 0."""
    for name, value in values.items():
        if not bool((value > 0.0).all()):
            raise InputError(f"{name} must be positive, got {value.tolist()}")


def broadcast_hyperparameters(positive: Collection[str], **values: TensorLike) -> dict[str, Tensor]:
    """Convert hyperparameters to finite float64 tensors of one shape.

    Args:
        positive: names of those that must be above 0.
        values: the hyperparameters by name.
    """
    tensors = dict(zip(values, to_tensors(**values), strict=True))
    check_all_positive(**{name: tensors[name] for name in positive})
    try:
        shared = torch.broadcast_tensors(*tensors.values())
    except RuntimeError as error:
        shapes = ", ".join(f"{name} {list(value.shape)}" for name, value in tensors.items())
        raise InputError(f"the hyperparameters must have shapes that broadcast, got {shapes}") from error
    return dict(zip(tensors, shared, strict=True))


def to_observations(
    data: TensorLike, row_shape: Sequence[int] | None = None, device: torch.device | None = None
) -> Tensor:
    """Convert data to a finite float64 tensor ``[N, *row_shape]``; rows of any shape if that is ``None``."""
    values = _to_float64("data", data, device)
    if values.ndim == 0:
        raise InputError(f"data must have one observation per row, got {values.item():g}: put it in a list")
    if row_shape is not None and len(values) == 0:
        return values.new_empty((0, *row_shape))
    if row_shape is not None and list(values.shape[1:]) != list(row_shape):
        expected = ", ".join(["N", *map(str, row_shape)])
        raise InputError(f"data must have one observation per row, shape [{expected}], got {list(values.shape)}")
    if not bool(values.isfinite().all()):
        raise InputError("data must be finite, got NaN or infinity: drop or impute those rows")
    return values


def to_counts(
    data: TensorLike,
    row_shape: Sequence[int] | None = None,
    device: torch.device | None = None,
    maximum: int | None = None,
) -> Tensor:
    """Convert data as :func:`to_observations`, and check that they are integers from 0 to ``maximum``."""
    values = to_observations(data, row_shape, device)
    wrong = (values < 0) | (values != values.round())
    if maximum is not None:
        wrong |= values > maximum
    if bool(wrong.any()):
        bounds = "of at least 0" if maximum is None else f"from 0 to {maximum}"
        raise InputError(f"data must be integers {bounds}, got {values[wrong][0].item():g}")
    return values


def check_not_empty(data: Tensor) -> Tensor:
    """Return ``data`` if it has at least one row, which a maximum likelihood estimate needs."""
    if len(data) == 0:
        raise InputError("data must have at least one row for a maximum likelihood estimate, got none")
    return data


def mean_or_zero(data: Tensor) -> Tensor:
    """The mean over rows of ``data [N, ...]``, ``[...]``; 0 if there are none."""
    return data.sum(0) / max(len(data), 1)


def _to_float64(name: str, value: TensorLike, device: torch.device | None) -> Tensor:
    if isinstance(value, Tensor):
        return value.to(device, torch.float64)
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be numbers in a tensor, an array or a list: {error}") from error
    return torch.tensor(array, device=device)


def _format(value: Any) -> str:
    """Numbers to six digits; several as a list."""
    value = value.tolist() if isinstance(value, Tensor) else value
    return f"[{', '.join(map(_format, value))}]" if isinstance(value, list) else f"{value:.6g}"
