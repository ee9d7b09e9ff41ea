"""Laplace's approximation of softmax regression: a Gaussian at the mode of the posterior."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from credo.conjugate import GaussianBelief
from credo.conjugate.linear_gaussian import precision_factor
from credo.em import ROUNDING, EMFit, Expectation, fit_em
from credo.errors import DivergenceError, InputError
from credo.linear._softmax import Slope, SoftmaxRegression, divergence, log_density

DECADES = 8
"""α is looked for within so many powers of 10 of the mean square of a feature: without any signal in the data the bound
rises as α → ∞."""
_FAR_BELOW = 50.0
"""Nats below the best α so far at which no better one is looked for below."""
_PRECISION_TOLERANCE = 1e-4
_SUFFICIENT_RISE = 1e-4
_MOST_HALVINGS = 50


@dataclass(frozen=True)
class LaplaceFit:
    """The Gaussian at the mode.

    Attributes:
        belief: N(w | w*, H⁻¹), H the negative Hessian of the log posterior at its mode w*.
        weight_precision: α.
        log_evidence: log p(y) by Laplace's method, in nats over all rows.
        lower_bound: on log p(y), from the same Gaussian.
        n_iter: Newton steps.
        converged: whether the mode stands still.
    """

    belief: GaussianBelief
    weight_precision: float
    log_evidence: float
    lower_bound: float
    n_iter: int
    converged: bool


@dataclass(frozen=True)
class _Ascent:
    """Where Newton's method stands: the weights, the joint density there, and the step it wants to take."""

    weights: Tensor
    log_joint: float
    cholesky: Tensor
    step: Tensor
    rise: float


def fit_laplace(
    model: SoftmaxRegression,
    weight_precision: float | None,
    *,
    tolerance: float,
    max_iter: int,
    curvature: Tensor | None = None,
) -> LaplaceFit:
    """The Laplace approximation for one α, or for the one with the highest lower bound.

        log p(y) ≈ log p(y | w*) + log p(w*) + ½ C·M log 2π − ½ log |H|      (Bishop 4.137)
        log p(y) ≥ E_q[log p(y | w)] − KL(q(w) ‖ p(w | α)),    q = N(w*, H⁻¹)

    Both say the same where q is the posterior. Where the classes can be separated, or nearly so, the first rises as
    α → 0, as the evidence itself does, though the posterior is then far from Gaussian and q of no use. The second is a
    bound for any q, and falls where q no longer fits. So it chooses α: with ``weight_precision=None``, α is looked for
    in steps of a factor of 10, each from the mode of the last, and then between those on both sides of the best.

    With a ``curvature`` that bounds the likelihood's own everywhere, the first is a lower bound itself and takes the
    place of the second.

    Args:
        model: the data and the prior.
        weight_precision: α, or ``None`` to choose it.
        tolerance: the least gain of the log joint density per row that is worth another Newton step.
        max_iter: the most Newton steps at one α.
        curvature: to use in H in place of the likelihood's own at the mode, ``[C·M, C·M]``.

    References:
        D. J. C. MacKay. The evidence framework applied to classification networks. Neural Computation 1992.
        C. M. Bishop. Pattern Recognition and Machine Learning. 2006, sections 4.4 and 4.5.
    """
    if max_iter < 1:
        raise InputError(f"max_iter must be at least 1, got {max_iter}")
    steps = 0

    def at(alpha: float, weights: Tensor) -> LaplaceFit:
        nonlocal steps
        fit = _find_mode(model, alpha, weights, tolerance, max_iter)
        steps += fit.n_iter
        belief, prior = GaussianBelief(fit.parameters, fit.expectation.statistics.cholesky), model.prior(alpha)
        if curvature is not None:
            belief = GaussianBelief.from_precision(fit.parameters, prior.precision + curvature)
        evidence = fit.bound - log_density(belief, fit.parameters)
        bound = evidence
        if curvature is None:
            bound = model.expected_log_likelihood(belief) - divergence(belief, prior)
        return LaplaceFit(belief, alpha, evidence, bound, fit.n_iter, fit.converged)

    if weight_precision is not None:
        return at(weight_precision, model.prior(weight_precision).mean)
    return replace(_best(model, at, tolerance), n_iter=steps)


def _best(model: SoftmaxRegression, at: Callable[[float, Tensor], LaplaceFit], tolerance: float) -> LaplaceFit:
    """The fit with the highest lower bound over all α."""
    unit = model.mean_square
    fits: list[LaplaceFit] = []
    best = 0
    for decade in range(DECADES, -DECADES - 1, -1):
        fits.append(at(10.0**decade * unit, fits[-1].belief.mean if fits else model.prior(1.0).mean))
        gain = fits[-1].lower_bound - fits[best].lower_bound
        if gain > tolerance * model.rows.count:
            best = len(fits) - 1
        elif gain < -_FAR_BELOW:
            break
    if not 0 < best < len(fits) - 1:
        return fits[best]
    above, top, below = (math.log(fit.weight_precision) for fit in fits[best - 1 : best + 2])
    tried = {top: fits[best]}

    def cost(log_alpha: float) -> float:
        tried[log_alpha] = at(math.exp(log_alpha), fits[best].belief.mean)
        return -tried[log_alpha].lower_bound

    minimize_scalar(cost, bounds=(below, above), method="bounded", options={"xatol": _PRECISION_TOLERANCE})
    return max(tried.values(), key=lambda fit: fit.lower_bound)


def _find_mode(
    model: SoftmaxRegression, alpha: float, weights: Tensor, tolerance: float, max_iter: int
) -> EMFit[Tensor, _Ascent]:
    """The mode of the posterior, by Newton's method with a line search (iteratively reweighted least squares).

    The log posterior is concave, so that no step lowers it: the one loop of EM serves here too.
    """
    prior = model.prior(alpha)

    def look(weights: Tensor) -> Expectation[_Ascent]:
        slope = model.slope(weights)
        log_joint = slope.log_likelihood + log_density(prior, weights)
        return Expectation(_ascent(weights, log_joint, slope, prior), log_joint)

    def step(ascent: _Ascent) -> Tensor:
        # A rise this small is lost in the rounding of the sum over rows: the step is right, its gain unmeasurable.
        if ascent.rise <= ROUNDING * max(abs(ascent.log_joint), 1.0):
            return ascent.weights + ascent.step
        length = 1.0
        for _ in range(_MOST_HALVINGS):
            weights = ascent.weights + length * ascent.step
            log_joint = model.log_likelihood(weights) + log_density(prior, weights)
            if log_joint >= ascent.log_joint + _SUFFICIENT_RISE * length * ascent.rise:
                return weights
            length *= 0.5
        raise DivergenceError("Newton's method finds no step that raises the posterior: scale the columns of X")

    rows = model.rows.count
    return fit_em(lambda _: weights, look, step, rows=rows, tolerance=tolerance, max_iter=max_iter)


def _ascent(weights: Tensor, log_joint: float, slope: Slope, prior: GaussianBelief) -> _Ascent:
    gradient = slope.gradient - prior.precision @ weights
    cholesky = precision_factor(slope.curvature + prior.precision)
    step = torch.cholesky_solve(gradient[:, None], cholesky)[:, 0]
    return _Ascent(weights, log_joint, cholesky, step, float(gradient @ step))
