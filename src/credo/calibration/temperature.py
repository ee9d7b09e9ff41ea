"""Temperature scaling of class probabilities."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import singledispatch
from typing import ClassVar

import torch
from torch import Tensor

from credo._arguments import check_positive
from credo.calibration._search import minimize, negative_log_likelihood
from credo.calibration.base import Calibrator, check_classes
from credo.errors import InputError, UnsupportedError
from credo.predictive import Predictive
from credo.predictive.bernoulli import BernoulliComponents
from credo.predictive.categorical import CategoricalComponents
from credo.predictive.classes import ClassPredictive
from credo.predictive.components import ClassComponents

LARGEST = 50.0


class TemperatureScaling(Calibrator):
    """One temperature for all class probabilities (Guo et al. 2017): of every draw, p_c^{1/T} / Σ_k p_k^{1/T}.

    T > 1 makes an overconfident model less sure, T < 1 a timid one more. A single network keeps its order of classes,
    so its accuracy. The draws are tempered, not their mean: the result is again a mixture over draws, whose entropy is
    the sum of its aleatoric and epistemic parts.

    ``fit`` finds the T between 1/50 and 50 that minimizes

        −Σ_i log p_T(y_i) + ½ (log T)²,

    the negative log likelihood of the held-out targets under the mixture, each target (pixel, token) on its own, and a
    standard normal prior on log T. Without the prior, T would fall to 0 where every held-out target is the most
    probable class, and the model would be as good as certain ever after; with it T stays moderate, and beside a hundred
    rows or more it hardly counts. Targets that are the likelihood's ``ignore_index`` do not count.

    Args:
        temperature: T, where it is known; else ``fit`` finds it.

    Reference: C. Guo, G. Pleiss, Y. Sun, K. Q. Weinberger. On calibration of modern neural networks. ICML 2017.
    """

    least_rows: ClassVar[int] = 10

    def __init__(self, temperature: float | None = None) -> None:
        self.temperature = None if temperature is None else check_positive(temperature, "temperature")

    def get_config(self) -> dict[str, object]:
        """``{"name", "temperature"}``."""
        return {"name": self._name, "temperature": self.temperature}

    def _check(self, predictive: Predictive) -> None:
        check_classes(predictive, self._name)

    def _learn(self, predictive: ClassPredictive, y: Tensor) -> None:
        self._check_rows(_counted_rows(predictive.components, y))
        if not math.isfinite(negative_log_likelihood(predictive, y)):
            raise InputError(
                "a held-out target has probability 0 under every draw, and would have at any temperature: "
                "check the labels and the network's output for −inf."
            )
        self.temperature = minimize(
            lambda t: negative_log_likelihood(_at(predictive, t), y) + 0.5 * math.log(t) ** 2, LARGEST
        )

    def _apply(self, predictive: ClassPredictive) -> ClassPredictive:
        return _at(predictive, self._learned(self.temperature))


def _at(predictive: ClassPredictive, temperature: float) -> ClassPredictive:
    return replace(predictive, components=tempered(predictive.components, temperature))


@singledispatch
def tempered(components: ClassComponents, temperature: float) -> ClassComponents:
    """The components with p_c ∝ p_c^{1/T}; register a rule for components of your own."""
    raise UnsupportedError(f"{components.name} components have no rule for a temperature: tempered.register one.")


@tempered.register
def _(components: CategoricalComponents, temperature: float) -> ClassComponents:
    return replace(components, log_p=(components.log_p / temperature).log_softmax(components.class_dim))


@tempered.register
def _(components: BernoulliComponents, temperature: float) -> ClassComponents:
    return replace(components, logits=components.logits / temperature)


def _counted_rows(components: ClassComponents, y: Tensor) -> int:
    """Rows with a target that is not ignored."""
    counted = torch.ones_like(y, dtype=torch.bool)
    if isinstance(components, CategoricalComponents) and components.ignore_index is not None:
        counted = y != components.ignore_index
    return int(counted.reshape(len(y), -1).any(1).sum())
