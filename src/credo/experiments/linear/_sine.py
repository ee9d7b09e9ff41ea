"""A noisy sine on the unit interval, the data of Bishop's curve fitting examples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NOISE = 0.3
"""The standard deviation of the noise (Bishop, appendix A): β = 11.1."""

Vector = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class SineData:
    """Observations of sin(2πx) with Gaussian noise.

    Attributes:
        x: inputs, ``[N, 1]``.
        y: targets, ``[N]``.
    """

    x: NDArray[np.float64]
    y: Vector

    def first(self, n: int) -> SineData:
        """Return the first ``n`` observations."""
        return SineData(self.x[:n], self.y[:n])


def truth(x: NDArray[np.float64]) -> Vector:
    """sin(2πx) for inputs ``[N, 1]``, ``[N]``."""
    values: Vector = np.sin(2.0 * np.pi * x[:, 0])
    return values


def evenly_spaced(n: int, random: np.random.Generator) -> SineData:
    """Return ``n`` observations at inputs spread evenly over [0, 1], as in Bishop's chapter 1."""
    return _observe(np.linspace(0.0, 1.0, n)[:, None], random)


def at_random(n: int, random: np.random.Generator) -> SineData:
    """Return ``n`` observations at inputs drawn uniformly from [0, 1], in random order."""
    return _observe(random.uniform(size=(n, 1)), random)


def grid(n: int = 200) -> NDArray[np.float64]:
    """Return evenly spaced inputs for a figure, ``[n, 1]``."""
    return np.linspace(0.0, 1.0, n)[:, None]


def _observe(x: NDArray[np.float64], random: np.random.Generator) -> SineData:
    return SineData(x, truth(x) + NOISE * random.normal(size=len(x)))
