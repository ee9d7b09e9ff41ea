"""The expectation–maximization (EM) loop, for maximum likelihood and for variational models.

A model provides two functions. The E-step takes parameters θ and returns the expected sufficient statistics together
with the bound at θ. The M-step takes the statistics and returns better parameters:

    E:  q(z) = p(z | x, θ),    bound(θ) = E_q[log p(x, z | θ)] + H[q] + log p(θ)
    M:  θ ← argmax_θ E_q[log p(x, z | θ)] + log p(θ)

For maximum likelihood the bound is the log likelihood. Regularization, such as a covariance floor, enters it as a log
prior. In a variational model θ are the hyperparameters of q(θ), and the bound is the evidence lower bound. In both
cases no step can lower the bound: if it falls, the two steps do not belong to one objective, and a ``BoundError`` is
raised.

References:
    A. P. Dempster, N. M. Laird, D. B. Rubin. Maximum likelihood from incomplete data via the EM algorithm. JRSS B 1977.
    R. M. Neal, G. E. Hinton. A view of the EM algorithm that justifies incremental, sparse, and other variants. 1998.
    C. M. Bishop. Pattern Recognition and Machine Learning. 2006, sections 9.4 and 10.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from credo._arguments import check_integer, check_non_negative
from credo._notices import notify
from credo.errors import BoundError, DivergenceError, InputError

__all__ = ["EMFit", "Expectation", "fit_em"]

Parameters = TypeVar("Parameters")
Statistics = TypeVar("Statistics")

ROUNDING = 1e-9
"""The largest fall of a bound, relative to its size, that is attributed to float64 rounding."""


@dataclass(frozen=True)
class Expectation(Generic[Statistics]):
    """The result of an E-step.

    Attributes:
        statistics: what the M-step needs, summed over the data.
        bound: the bound at the parameters that were passed to the E-step, in nats over all data.

    Example:
        >>> from credo.em import Expectation
        >>> Expectation(statistics=(3.0, 2.0), bound=-1.5).bound
        -1.5
    """

    statistics: Statistics
    bound: float


@dataclass(frozen=True)
class EMFit(Generic[Parameters, Statistics]):
    """The result of :func:`fit_em`.

    Attributes:
        parameters: the final parameters of the best start.
        expectation: the result of the E-step at these parameters.
        bounds: the bound at the start and after every M-step, of the best start.
        converged: whether the last step gained no more than the tolerance.
        start: the index of the best start.

    Example:
        >>> from credo.em import EMFit, Expectation
        >>> fit = EMFit(0.5, Expectation(None, -1.0), bounds=(-2.0, -1.0), converged=True, start=0)
        >>> fit.bound, fit.n_iter
        (-1.0, 1)
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
    callback: Callable[[int, Parameters, Expectation[Statistics]], None] | None = None,
) -> EMFit[Parameters, Statistics]:
    """Alternate E- and M-steps, from one or several starts, until the bound stops rising.

    Args:
        start: returns the initial parameters of start number k, counted from 0.
        e_step: returns the expected statistics and the bound at the given parameters.
        m_step: returns the parameters that maximize the objective for the given statistics.
        rows: the number of rows that the bound sums over; the tolerance and the allowance for rounding scale with it.
        tolerance: stop when a step raises the bound by no more than this, in nats per row.
        max_iter: the maximum number of M-steps from one start.
        restarts: the number of starts. The one with the highest final bound is returned; starts that diverge are
            skipped.
        callback: called as ``callback(iteration, parameters, expectation)`` after every E-step; iteration 0 is the
            start.

    Returns:
        The parameters, statistics and bounds of the best start.

    Raises:
        InputError: if an argument is out of range, or ``e_step`` does not return an ``Expectation``.
        BoundError: if the bound falls by more than rounding.
        DivergenceError: if the bound becomes NaN or infinite from every start.

    Example:
        >>> from credo.em import Expectation, fit_em
        >>> fit = fit_em(lambda k: 1.0, lambda x: Expectation(x, -(x**2)), lambda x: x / 2, tolerance=1e-6)
        >>> fit.converged
        True
    """
    check_integer(rows, "rows", minimum=1)
    check_integer(max_iter, "max_iter", minimum=1)
    check_integer(restarts, "restarts", minimum=1)
    check_non_negative(tolerance, "tolerance (tol of an estimator)")
    best: EMFit[Parameters, Statistics] | None = None
    failure: DivergenceError | None = None
    for k in range(restarts):
        try:
            fit = _fit_once(k, start(k), e_step, m_step, rows, tolerance, max_iter, callback)
        except DivergenceError as error:
            if restarts > 1:
                notify(f"start {k + 1} of {restarts} was skipped: {error}")
            failure = error
            continue
        if best is None or fit.bound > best.bound:
            best = fit
    if best is None:
        assert failure is not None
        raise failure
    return best


def _fit_once(
    number: int,
    parameters: Parameters,
    e_step: Callable[[Parameters], Expectation[Statistics]],
    m_step: Callable[[Statistics], Parameters],
    rows: int,
    tolerance: float,
    max_iter: int,
    callback: Callable[[int, Parameters, Expectation[Statistics]], None] | None,
) -> EMFit[Parameters, Statistics]:
    """EM from one start."""
    bounds: list[float] = []

    def checked_e_step(parameters: Parameters) -> Expectation[Statistics]:
        expectation = e_step(parameters)
        found: object = expectation
        if not isinstance(found, Expectation):
            raise InputError(f"e_step must return Expectation(statistics, bound), got {type(found).__name__}")
        bounds.append(_check_bound(float(expectation.bound), bounds, rows))
        if callback is not None:
            callback(len(bounds) - 1, parameters, expectation)
        return expectation

    expectation = checked_e_step(parameters)
    for _ in range(max_iter):
        parameters = m_step(expectation.statistics)
        expectation = checked_e_step(parameters)
        if bounds[-1] - bounds[-2] <= tolerance * rows:
            return EMFit(parameters, expectation, tuple(bounds), True, number)
    return EMFit(parameters, expectation, tuple(bounds), False, number)


def _check_bound(bound: float, before: list[float], rows: int) -> float:
    """Return ``bound`` if it is finite and not below the last one of ``before``."""
    if not math.isfinite(bound):
        raise DivergenceError(
            f"the bound is {bound} after {len(before)} steps: check the data for values of very different size, "
            "or increase the regularization"
        )
    if before and bound < before[-1] - ROUNDING * max(abs(bound), abs(before[-1]), rows):
        raise BoundError(
            f"the bound fell from {before[-1]:.10g} to {bound:.10g} in step {len(before)}: the E-step, the M-step and "
            "the bound must belong to one objective, in which regularization enters as a log prior"
        )
    return bound
