"""Laplace's approximation of softmax regression: a Gaussian at the mode of the posterior."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from credo.conjugate import GaussianBelief
from credo.conjugate.linear_gaussian import precision_factor
from credo.em import ROUNDING, EMFit, Expectation, fit_em
from credo.errors import DivergenceError, InputError
from credo.linear._softmax import Slope, SoftmaxRegression, log_density

PRECISION_RANGE = (1e-8, 1e8)
"""Where α is looked for: without any signal in the data the evidence rises as α → ∞."""
_PRECISION_TOLERANCE = 1e-5
_SUFFICIENT_RISE = 1e-4
_MOST_HALVINGS = 50


@dataclass(frozen=True)
class LaplaceFit:
    """The Gaussian at the mode.

    Attributes:
        belief: N(w | w*, H⁻¹), H the negative Hessian of the log posterior at its mode w*.
        weight_precision: α.
        log_evidence: log p(y) by Laplace's method, in nats over all rows.
        n_iter: Newton steps.
        converged: whether mode and α stand still.
    """

    belief: GaussianBelief
    weight_precision: float
    log_evidence: float
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
    """The Laplace approximation for one α, or for the α that the evidence calls for.

        log p(y) ≈ log p(y | w*) + log p(w*) + ½ C·M log 2π − ½ log |H|      (Bishop 4.137)

    With ``weight_precision=None`` mode and α take turns, α ← γ / ‖w*‖² with γ = Σ_i (1 − α (H⁻¹)_ii) the number of
    well-determined weights (MacKay 1992); the sums leave out intercepts. That ignores how H changes with α, so it is no
    exact maximum of the approximate evidence. It is the better choice: where the classes can be separated, Laplace's
    method fails for small α and its evidence hardly falls as α → 0.

    Args:
        model: the data and the prior.
        weight_precision: α, or ``None`` to choose it.
        tolerance: the least gain of the log joint density per row that is worth another Newton step.
        max_iter: the most Newton steps at one α, and the most values of α.
        curvature: to use in H in place of the likelihood's own at the mode, ``[C·M, C·M]``.

    References:
        D. J. C. MacKay. The evidence framework applied to classification networks. Neural Computation 1992.
        C. M. Bishop. Pattern Recognition and Machine Learning. 2006, sections 4.4 and 4.5.
    """
    if max_iter < 1:
        raise InputError(f"max_iter must be 1 or more, got {max_iter}")
    alpha = 1.0 if weight_precision is None else weight_precision
    weights = model.prior(alpha).mean
    steps = 0
    for _ in range(max_iter):
        fit = _find_mode(model, alpha, weights, tolerance, max_iter)
        weights, steps = fit.parameters, steps + fit.n_iter
        belief = GaussianBelief(weights, fit.expectation.statistics.cholesky)
        if curvature is not None:
            belief = GaussianBelief.from_precision(weights, model.prior(alpha).precision + curvature)
        found = LaplaceFit(belief, alpha, fit.bound - log_density(belief, weights), steps, fit.converged)
        better = _reestimate(belief, alpha, model.penalised)
        if weight_precision is not None or abs(math.log(better / alpha)) <= _PRECISION_TOLERANCE:
            return found
        alpha = better
    return replace(found, converged=False)


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


def _reestimate(belief: GaussianBelief, alpha: float, penalised: Tensor) -> float:
    """γ / ‖w‖²."""
    determined = (1.0 - alpha * belief.covariance.diagonal()[penalised]).sum()
    low, high = PRECISION_RANGE
    return float((determined / belief.mean[penalised].square().sum()).nan_to_num(high).clamp(low, high))
