"""A search for the one number by which predictions are corrected."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from torch import Tensor

from credo.predictive import Predictive
from credo.predictive.components import log_average_exp

STARTS = 17


def negative_log_likelihood(predictive: Predictive, y: Tensor) -> float:
    """−Σ log p(y_i) in nats under the mixture, each target on its own, as its interval or probability is shown."""
    log_p = log_average_exp(predictive.components.log_density(y), predictive.weights)
    return -float(log_p.double().sum())


def minimize(objective: Callable[[float], float], bound: float) -> float:
    """The number between 1/``bound`` and ``bound`` at which ``objective`` is least, found in its logarithm.

    A coarse grid first, because a mixture's likelihood may have several maxima, then Brent's method between the
    neighbors of the best point, to 1e-5 of itself. Deterministic.
    """
    from scipy.optimize import minimize_scalar

    grid = np.linspace(-math.log(bound), math.log(bound), STARTS)
    best = int(np.argmin([objective(math.exp(x)) for x in grid]))
    ends = grid[max(best - 1, 0)], grid[min(best + 1, STARTS - 1)]
    found = minimize_scalar(lambda x: objective(math.exp(x)), bounds=ends, method="bounded", options={"xatol": 1e-5})
    return math.exp(found.x)
