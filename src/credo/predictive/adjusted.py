"""Predictions that a calibrator has corrected without touching the draws."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from credo.predictive.base import Predictive
from credo.predictive.components import RealComponents
from credo.predictive.real import RealPredictive


@dataclass(frozen=True, eq=False, repr=False)
class AdjustedPredictive(Predictive):
    """A mixture on the real line with a correction laid over it, the same for every row.

    ``components``, ``weights`` and ``draws`` are those of the prediction that was corrected. Rows can be chosen and
    concatenated; a mixture of corrected predictions is not the correction of their mixture, so it is refused.
    """

    components: RealComponents

    @property
    @abstractmethod
    def adjustment(self) -> object:
        """The correction, comparable by ``==``."""

    @cached_property
    def base(self) -> RealPredictive:
        """The prediction as it was before the correction."""
        return RealPredictive(self.components, self.weights)

    @property
    def mutual_information(self) -> Tensor:
        """I[y; f] of ``base``, ``[B, ...]``: a strictly increasing map of a target tells as much of the draws."""
        return self.base.mutual_information

    @property
    def mode(self) -> Tensor:
        """Not for real or count-valued targets."""
        return self.base.mode

    def __repr__(self) -> str:
        return f"{type(self).__name__}(draws={self.n_draws}, rows={len(self)}, {self.components.name})"
