"""Predictions of class-valued targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from credo.errors import UnsupportedError
from credo.predictive.base import Interval, Predictive
from credo.predictive.components import ClassComponents, average


@dataclass(frozen=True, eq=False, repr=False)
class ClassPredictive(Predictive):
    """A mixture on a finite set of classes; uncertainties are entropies, ``[B, ...]`` without the class dimension."""

    components: ClassComponents

    @property
    def variance(self) -> Tensor:
        """p(1 − p) of each class, in the layout of ``mean``."""
        return self.mean * (1 - self.mean)

    @property
    def aleatoric(self) -> Tensor:
        """E_s H[y | f_s] in nats."""
        return average(self.components.entropy, self.weights)

    @property
    def epistemic(self) -> Tensor:
        """I[y; f] in nats."""
        return self.mutual_information

    @property
    def entropy(self) -> Tensor:
        """H[y], of the mean probabilities, in nats."""
        return self.components.mixed(self.weights).entropy[0]

    @property
    def mutual_information(self) -> Tensor:
        """H[y] − E_s H[y | f_s] in nats."""
        if self.n_draws == 1:
            return torch.zeros_like(self.aleatoric)
        return (self.entropy - self.aleatoric).clamp(min=0)

    @property
    def mode(self) -> Tensor:
        """The most probable class, int64."""
        return self.components.mixed(self.weights).mode[0]

    def cdf(self, y: Tensor) -> Tensor:
        """Not for classes."""
        raise UnsupportedError("classes have no order, so no cdf: use mean, the class probabilities.")

    def quantile(self, q: float | Sequence[float] | Tensor) -> Tensor:
        """Not for classes."""
        raise UnsupportedError("classes have no order, so no quantiles: use mean, the class probabilities.")

    def interval(self, level: float = 0.95) -> Interval:
        """Not for classes."""
        raise UnsupportedError("classes have no order, so no interval: use mean, the class probabilities.")
