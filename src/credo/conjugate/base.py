"""What every pair of a likelihood and its conjugate prior can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any, Self

from torch import Tensor
from torch.distributions import Distribution

from credo.conjugate._arguments import Numbers


@dataclass(frozen=True, eq=False, repr=False)
class ConjugatePair(ABC):
    """A belief about the parameters θ of p(x | θ), kept in a form that data do not change.

    The hyperparameters are float64 tensors. A pair never changes: :meth:`update` returns a new one. Each class has
    ``maximum_likelihood(data, …)`` as well, p(x | θ) at the θ that makes the data most probable, prior or not.
    """

    @property
    @abstractmethod
    def posterior(self) -> Distribution:
        """p(θ) given all data seen so far; the prior where none have been."""

    @property
    @abstractmethod
    def predictive(self) -> Distribution:
        """p(x) of one new observation given all data seen so far, θ integrated out."""

    @abstractmethod
    def likelihood(self, parameters: Any) -> Distribution:
        """p(x | θ) of one observation."""

    def update(self, data: Numbers) -> Self:
        """The belief after more data, in any order and any number of pieces; no rows leave it as it is.

        Args:
            data: one observation a row, ``[N, ...]``.
        """
        return self._update(self._read(data))

    def log_evidence(self, data: Numbers) -> Tensor:
        """log p(data) given what was seen before, with all constants.

        So ``pair.log_evidence(all) == pair.log_evidence(first) + pair.update(first).log_evidence(rest)``.

        Args:
            data: one observation a row, ``[N, ...]``.
        """
        return self._log_evidence(self._read(data))

    @abstractmethod
    def _read(self, data: Numbers) -> Tensor:
        """Checked data, ``[N, ...]``."""

    @abstractmethod
    def _update(self, data: Tensor) -> Self: ...

    @abstractmethod
    def _log_evidence(self, data: Tensor) -> Tensor: ...

    def _store(self, **hyperparameters: Tensor | int) -> None:
        for name, value in hyperparameters.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        shown = (f"{field.name}={_short(getattr(self, field.name))}" for field in fields(self))
        return f"{type(self).__name__}({', '.join(shown)})"


def _short(value: Any) -> str:
    """Numbers to six digits, in the brackets of a list where there are several."""
    value = value.tolist() if isinstance(value, Tensor) else value
    return f"[{', '.join(map(_short, value))}]" if isinstance(value, list) else f"{value:.6g}"
