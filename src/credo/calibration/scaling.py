"""Calibration by one number: the temperature of class probabilities, or the scale of real predictions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import singledispatch
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from credo._arguments import check_positive
from credo.calibration.base import Calibrator, check_classes, check_continuous
from credo.errors import InputError, UnsupportedError
from credo.predictive import ClassPredictive, Predictive, RealPredictive
from credo.predictive.classes import BernoulliComponents, CategoricalComponents
from credo.predictive.components import ClassComponents, log_average_exp

_MAX_TEMPERATURE = 50.0
_MAX_FACTOR = 1e4
_GRID_POINTS = 17


class TemperatureScaling(Calibrator):
    """One temperature for all class probabilities (Guo et al. 2017): p_c^{1/T} / Σ_k p_k^{1/T} for every draw.

    T > 1 makes a model less confident, T < 1 more. A single network keeps its order of classes, and so its accuracy.
    The draws are tempered, not their mean: the result is again a mixture over draws, whose entropy is the sum of its
    aleatoric and epistemic parts.

    ``fit`` finds the T between 1/50 and 50 that minimizes

        −Σ_i log p_T(y_i) + ½ (log T)²,

    the negative log likelihood of the held-out targets under the mixture, each target (pixel, token) on its own, and a
    standard normal prior on log T. Without the prior, T would tend to 0 if every held-out target is the most probable
    class, and all predictions would become certain; with it T stays moderate, and for a hundred rows or more its effect
    is small. Targets equal to the likelihood's ``ignore_index`` are left out.

    Args:
        temperature: T, if it is known; ``None``: ``fit`` finds it.

    Raises:
        InputError: if the temperature is not positive.

    Example:
        >>> calibrator = credo.calibration.TemperatureScaling().fit(model.predict(x_held_out), y_held_out)
        >>> calibrator.temperature, calibrator(model.predict(x_new)).mean

    Reference: C. Guo, G. Pleiss, Y. Sun, K. Q. Weinberger. On calibration of modern neural networks. ICML 2017.
    """

    min_rows: ClassVar[int] = 10

    def __init__(self, temperature: float | None = None) -> None:
        self.temperature = None if temperature is None else check_positive(temperature, "temperature")

    @override
    def get_config(self) -> dict[str, object]:
        return {"name": self._name, "temperature": self.temperature}

    def _check(self, predictive: Predictive) -> None:
        check_classes(predictive, self._name)

    def _learn(self, predictive: ClassPredictive, y: Tensor) -> None:
        self._check_rows(_count_rows(predictive.components, y))
        if not math.isfinite(negative_log_likelihood(predictive, y)):
            raise InputError(
                "a held-out target has probability 0 under every draw, at any temperature: "
                "check the labels and the network's output for −inf."
            )
        self.temperature = _minimize(
            lambda t: negative_log_likelihood(_temper(predictive, t), y) + 0.5 * math.log(t) ** 2, _MAX_TEMPERATURE
        )

    def _apply(self, predictive: ClassPredictive) -> ClassPredictive:
        return _temper(predictive, self._learned(self.temperature))


class VarianceScaling(Calibrator):
    """One factor for all predictive standard deviations: temperature scaling for real targets (Levi et al. 2022).

    The distribution of every row is stretched about its mean, y ↦ m̄ + s(y − m̄): both the means of the draws and their
    noise. The mean and the mutual information do not change; the aleatoric and the epistemic variance are multiplied
    by s². ``fit`` finds the s between 1e-4 and 1e4 that minimizes the negative log likelihood of the held-out targets
    under the mixture. For a single Gaussian, s² = mean of (y − m)²/σ², with a relative error of s of 1/√(2n).

    Only for location-scale families (Gaussian, Student-t); several outputs share the same s.

    Args:
        factor: s, if it is known; ``None``: ``fit`` finds it.

    Raises:
        InputError: if the factor is not positive.

    Example:
        >>> calibrator = credo.calibration.VarianceScaling().fit(model.predict(x_held_out), y_held_out)
        >>> calibrator.factor, calibrator(model.predict(x_new)).std

    Reference: D. Levi, L. Gispan, N. Giladi, E. Fetaya. Evaluating and calibrating uncertainty prediction in regression
    tasks. Sensors 22(15), 2022 (arXiv 2019).
    """

    min_rows: ClassVar[int] = 10

    def __init__(self, factor: float | None = None) -> None:
        self.factor = None if factor is None else check_positive(factor, "factor")

    @override
    def get_config(self) -> dict[str, object]:
        return {"name": self._name, "factor": self.factor}

    def _check(self, predictive: Predictive) -> None:
        check_continuous(predictive, self._name)

    def _learn(self, predictive: RealPredictive, y: Tensor) -> None:
        self.factor = best_factor(predictive, y)

    def _apply(self, predictive: RealPredictive) -> RealPredictive:
        return scale_spread(predictive, self._learned(self.factor))


def best_factor(predictive: RealPredictive, y: Tensor) -> float:
    """Return the factor of the spread that maximizes the likelihood of the targets."""
    factor = _minimize(lambda s: negative_log_likelihood(scale_spread(predictive, s), y), _MAX_FACTOR)
    if not 1.01 / _MAX_FACTOR < factor < _MAX_FACTOR / 1.01:
        more = "less" if factor < 1 else "more"
        raise InputError(
            f"to fit the held-out targets, the predictive std would have to be multiplied by {more} than {factor:.2g}: "
            "check that y is in the units of the prediction, and that these are not the training rows."
        )
    return factor


def scale_spread(predictive: RealPredictive, factor: float) -> RealPredictive:
    """Stretch the distribution of every row about its mean."""
    return replace(predictive, components=predictive.components.stretched(factor, predictive.weights))


def _temper(predictive: ClassPredictive, temperature: float) -> ClassPredictive:
    return replace(predictive, components=temper(predictive.components, temperature))


@singledispatch
def temper(components: ClassComponents, temperature: float) -> ClassComponents:
    """Return components with p_c ∝ p_c^{1/T}; register a rule for components of your own."""
    raise UnsupportedError(
        f"{components.name} components have no rule for a temperature: add one with temper.register."
    )


@temper.register
def _(components: CategoricalComponents, temperature: float) -> ClassComponents:
    return replace(components, log_p=(components.log_p / temperature).log_softmax(components.class_dim))


@temper.register
def _(components: BernoulliComponents, temperature: float) -> ClassComponents:
    return replace(components, logits=components.logits / temperature)


def _count_rows(components: ClassComponents, y: Tensor) -> int:
    """Return the number of rows with a target that is not ignored."""
    counted = torch.ones_like(y, dtype=torch.bool)
    if isinstance(components, CategoricalComponents) and components.ignore_index is not None:
        counted = y != components.ignore_index
    return int(counted.reshape(len(y), -1).any(1).sum())


def negative_log_likelihood(predictive: Predictive, y: Tensor) -> float:
    """Return −Σ log p(y_i) in nats under the mixture, each target on its own."""
    log_p = log_average_exp(predictive.components.log_density(y), predictive.weights)
    return -float(log_p.double().sum())


def _minimize(objective: Callable[[float], float], bound: float) -> float:
    """Minimize ``objective`` over numbers between 1/``bound`` and ``bound``, in their logarithm.

    First on a coarse grid, because a mixture's likelihood can have several maxima, then by Brent's method between the
    neighbors of the best point, to a relative error of 1e-5. Deterministic.
    """
    from scipy.optimize import minimize_scalar

    grid = np.linspace(-math.log(bound), math.log(bound), _GRID_POINTS)
    best = int(np.argmin([objective(math.exp(x)) for x in grid]))
    ends = grid[max(best - 1, 0)], grid[min(best + 1, _GRID_POINTS - 1)]
    found = minimize_scalar(lambda x: objective(math.exp(x)), bounds=ends, method="bounded", options={"xatol": 1e-5})
    return math.exp(found.x)
