"""The one loop of expectation–maximization, for maximum likelihood and for variational models.

A model brings two functions. The E-step takes parameters θ, finds what they say of the hidden variables and returns the
expected sufficient statistics together with the bound at θ; the M-step takes the statistics to better parameters:

    E:  q(z) = p(z | x, θ),    bound(θ) = E_q[log p(x, z | θ)] + H[q] + log p(θ)
    M:  θ ← argmax_θ E_q[log p(x, z | θ)] + log p(θ)

For maximum likelihood the bound is the log likelihood itself; anything that regularizes, such as a floor under a
covariance, belongs in it as a log prior. In a variational model θ stands for the hyperparameters of q(θ) and the bound
for the evidence lower bound. Either way no step can lower it, and a bound that falls means that the two steps do not
belong to one objective: that is an error here, not a curiosity.

References:
    A. P. Dempster, N. M. Laird, D. B. Rubin. Maximum likelihood from incomplete data via the EM algorithm. JRSS B 1977.
    R. M. Neal, G. E. Hinton. A view of the EM algorithm that justifies incremental, sparse, and other variants. 1998.
    C. M. Bishop. Pattern Recognition and Machine Learning. 2006, sections 9.4 and 10.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral
from typing import Generic, TypeVar

from credo._notices import notify
from credo.errors import BoundError, DivergenceError, InputError

Parameters = TypeVar("Parameters")
Statistics = TypeVar("Statistics")

ROUNDING = 1e-9
"""By how much of its own size a bound may fall through rounding alone, in float64."""


@dataclass(frozen=True)
class Expectation(Generic[Statistics]):
    """What an E-step finds.

    Attributes:
        statistics: what the M-step needs, summed over the data.
        bound: the bound at the parameters that the E-step was given, in nats over all data.
    """

    statistics: Statistics
    bound: float


@dataclass(frozen=True)
class EMFit(Generic[Parameters, Statistics]):
    """Where EM has come to.

    Attributes:
        parameters: the last ones, of the best start.
        expectation: of the E-step at these parameters.
        bounds: the bound at the start and after every M-step, of the best start.
        converged: whether the last step gained less than the tolerance.
        start: the number of the best start.
    """

    parameters: Parameters
    expectation: Expectation[Statistics]
    bounds: tuple[float, ...]
    converged: bool
    start: int

    @property
    def bound(self) -> float:
        """The bound at ``parameters``."""
        return self.bounds[-1]

    @property
    def n_iter(self) -> int:
        """The number of M-steps."""
        return len(self.bounds) - 1


def fit_em(
    start: Callable[[int], Parameters],
    e_step: Callable[[Parameters], Expectation[Statistics]],
    m_step: Callable[[Statistics], Parameters],
    *,
    rows: int = 1,
    tolerance: float = 1e-3,
    max_iter: int = 100,
    restarts: int = 1,
    watch: Callable[[int, Parameters, Expectation[Statistics]], None] | None = None,
) -> EMFit[Parameters, Statistics]:
    """Alternate E- and M-steps from one or several starts until the bound stands still.

    Args:
        start: the parameters of the start of that number, counted from 0.
        e_step: the expected statistics and the bound at some parameters.
        m_step: the parameters that the statistics call for.
        rows: how many data the bound sums over: what counts as a gain, and as rounding, is judged by it.
        tolerance: the least gain of the bound per row that is worth another step.
        max_iter: the most M-steps from one start.
        restarts: how many starts; the one that ends with the highest bound is returned, and those that diverge are left
            out.
        watch: called as ``watch(iteration, parameters, expectation)`` after every E-step; the start is iteration 0.

    Raises:
        BoundError: the bound fell by more than rounding.
        DivergenceError: the bound is not a number, from any start.
    """
    counts: dict[str, object] = {"rows": rows, "max_iter": max_iter, "restarts": restarts}
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
            raise InputError(f"{name} must be an integer of at least 1, got {value!r}")
    least_gain: object = tolerance
    if not isinstance(least_gain, float | Integral) or not float(least_gain) >= 0.0:
        raise InputError(f"tolerance (tol of an estimator) must be a number of at least 0, got {tolerance!r}")
    best: EMFit[Parameters, Statistics] | None = None
    failure: DivergenceError | None = None
    for k in range(restarts):
        try:
            fit = _climb(k, start(k), e_step, m_step, rows, tolerance, max_iter, watch)
        except DivergenceError as error:
            if restarts > 1:
                notify(f"start {k + 1} of {restarts} was left out: {error}")
            failure = error
            continue
        if best is None or fit.bound > best.bound:
            best = fit
    if best is None:
        assert failure is not None
        raise failure
    return best


def _climb(
    number: int,
    parameters: Parameters,
    e_step: Callable[[Parameters], Expectation[Statistics]],
    m_step: Callable[[Statistics], Parameters],
    rows: int,
    tolerance: float,
    max_iter: int,
    watch: Callable[[int, Parameters, Expectation[Statistics]], None] | None,
) -> EMFit[Parameters, Statistics]:
    """EM from one start."""
    bounds: list[float] = []

    def step(parameters: Parameters) -> Expectation[Statistics]:
        expectation = e_step(parameters)
        found: object = expectation
        if not isinstance(found, Expectation):
            raise InputError(f"e_step must return Expectation(statistics, bound), got {type(found).__name__}")
        bounds.append(_checked(float(expectation.bound), bounds, rows))
        if watch is not None:
            watch(len(bounds) - 1, parameters, expectation)
        return expectation

    expectation = step(parameters)
    for _ in range(max_iter):
        parameters = m_step(expectation.statistics)
        expectation = step(parameters)
        if bounds[-1] - bounds[-2] <= tolerance * rows:
            return EMFit(parameters, expectation, tuple(bounds), True, number)
    return EMFit(parameters, expectation, tuple(bounds), False, number)


def _checked(bound: float, before: list[float], rows: int) -> float:
    """``bound``, which must be a number and not lie below the last one."""
    if not math.isfinite(bound):
        raise DivergenceError(
            f"the bound is {bound} after {len(before)} steps: look for values of very different size in the data, "
            "or raise the regularization"
        )
    if before and bound < before[-1] - ROUNDING * max(abs(bound), abs(before[-1]), rows):
        raise BoundError(
            f"the bound fell from {before[-1]:.10g} to {bound:.10g} in step {len(before)}: the E-step, the M-step and "
            "the bound must belong to one objective, in which a regularization counts as a log prior"
        )
    return bound
