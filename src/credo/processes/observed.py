"""The kernel of observations: that of the function, and the noise around it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING

from credo.errors import InputError, unknown_name
from credo.processes.kernels import Kernel, White

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NOISE_START, NOISE_LEAST, NOISE_MOST = 0.3, 1e-4, 10.0
"""Where the search for a learned noise begins and ends, in standard deviations of the targets."""


@dataclass(frozen=True)
class Observed:
    """y = f(x) + ε.

    Attributes:
        function: the kernel of f.
        noise: that of ε; ``None`` where observations are exact.
    """

    function: Kernel
    noise: White | None

    @property
    def kernel(self) -> Kernel:
        """That of y."""
        return self.function if self.noise is None else self.function + self.noise

    @property
    def sigma(self) -> float:
        """The standard deviation of ε."""
        return 0.0 if self.noise is None else self.noise.noise

    def with_theta(self, theta: NDArray[np.float64]) -> Observed:
        """The same with other values of the free hyperparameters of ``kernel``, by their logarithms."""
        size = len(self.function.theta)
        noise = None if self.noise is None else self.noise.with_theta(theta[size:])
        return Observed(self.function.with_theta(theta[:size]), noise)


def white_noise(noise: object, deviation: float, unit: float = 1.0) -> White | None:
    """The noise that a setting asks for, of targets divided by ``unit``; ``None`` for exact observations.

    Args:
        noise: ``"learned"``; a standard deviation, which is kept; or a :class:`White` kernel.
        deviation: the standard deviation of the targets.
        unit: what the targets are divided by.
    """
    if isinstance(noise, White):
        bounds = noise.noise_bounds
        return White(noise.noise / unit, bounds if bounds == "fixed" else (bounds[0] / unit, bounds[1] / unit))
    if isinstance(noise, str):
        if noise != "learned":
            raise unknown_name("noise", noise, ("learned",))
        spread = deviation / unit
        return White(NOISE_START * spread, (NOISE_LEAST * spread, NOISE_MOST * spread))
    if not isinstance(noise, Real) or not 0.0 <= float(noise) < math.inf:
        raise InputError(f"noise must be 'learned', a number of at least 0, or a White kernel, got {noise!r}")
    return White(float(noise) / unit, "fixed") if noise else None
