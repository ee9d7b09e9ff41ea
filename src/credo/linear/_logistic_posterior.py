"""Gaussian posteriors of softmax regression: Laplace's approximation, and quadratic bounds on the likelihood."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from scipy.optimize import minimize_scalar
from torch import Tensor

from credo._arguments import check_integer
from credo.conjugate import GaussianBelief, condition
from credo.conjugate.linear_gaussian import precision_factor
from credo.em import ROUNDING, EMFit, Expectation, fit_em
from credo.errors import DivergenceError
from credo.linear._softmax import Derivatives, SoftmaxRegression, kl_to_prior, log_density

DECADES = 8
"""α is searched within this many powers of 10 of the mean square of a feature: if the data contain no signal, the bound
rises as α → ∞."""
_STOP_BELOW = 50.0
"""The search stops if the bound is this many nats below the best so far."""
_LOG_PRECISION_TOLERANCE = 1e-4
_SUFFICIENT_INCREASE = 1e-4
_MAX_HALVINGS = 50


@dataclass(frozen=True)
class LaplaceFit:
    """The Laplace approximation, a Gaussian at the mode of the posterior.

    Attributes:
        posterior: N(w | w*, H⁻¹), H the negative Hessian of the log posterior at its mode w*.
        weight_precision: α.
        log_evidence: log p(y) by Laplace's method, in nats over all rows.
        lower_bound: a lower bound on log p(y) from the same Gaussian.
        n_iter: number of Newton steps.
        converged: whether Newton's method has converged.
    """

    posterior: GaussianBelief
    weight_precision: float
    log_evidence: float
    lower_bound: float
    n_iter: int
    converged: bool


@dataclass(frozen=True)
class _NewtonState:
    """One iterate of Newton's method: the weights, the log joint density, the next step and its expected increase."""

    weights: Tensor
    log_joint: float
    cholesky: Tensor
    step: Tensor
    increase: float


def fit_laplace(
    model: SoftmaxRegression,
    weight_precision: float | None,
    *,
    tolerance: float,
    max_iter: int,
    curvature: Tensor | None = None,
) -> LaplaceFit:
    """Find the Laplace approximation for a given α, or for the α with the highest lower bound.

        log p(y) ≈ log p(y | w*) + log p(w*) + ½ C·M log 2π − ½ log |H|      (Bishop 4.137)
        log p(y) ≥ E_q[log p(y | w)] − KL(q(w) ‖ p(w | α)),    q = N(w*, H⁻¹)

    Both are equal if q is the posterior. If the classes are separable, or nearly so, the first rises as α → 0, as the
    evidence itself does, though the posterior is then far from Gaussian and q a poor approximation. The second is a
    bound for any q and falls if q is poor. It therefore selects α: with ``weight_precision=None``, α is searched in
    steps of a factor of 10, each from the mode of the last, and then between the neighbors of the best.

    If ``curvature`` is an upper bound on the curvature of the likelihood everywhere, the first is itself a lower bound
    and replaces the second.

    Args:
        model: the data and the prior.
        weight_precision: α, or ``None`` to select it.
        tolerance: stop when a Newton step raises the log joint density by less than this per row.
        max_iter: the maximum number of Newton steps for one α.
        curvature: replaces the curvature of the likelihood at the mode in H, ``[C·M, C·M]``.

    References:
        D. J. C. MacKay. The evidence framework applied to classification networks. Neural Computation 1992.
        C. M. Bishop. Pattern Recognition and Machine Learning. 2006, sections 4.4 and 4.5.
    """
    check_integer(max_iter, "max_iter", minimum=1)
    steps = 0

    def approximate(alpha: float, start: Tensor) -> LaplaceFit:
        nonlocal steps
        fit = _find_mode(model, alpha, start, tolerance, max_iter)
        steps += fit.n_iter
        q, prior = GaussianBelief(fit.parameters, fit.expectation.statistics.cholesky), model.prior(alpha)
        if curvature is not None:
            q = GaussianBelief.from_precision(fit.parameters, prior.precision + curvature)
        evidence = fit.bound - log_density(q, fit.parameters)
        bound = evidence
        if curvature is None:
            bound = model.expected_log_likelihood(q) - kl_to_prior(q, prior)
        return LaplaceFit(q, alpha, evidence, bound, fit.n_iter, fit.converged)

    if weight_precision is not None:
        return approximate(weight_precision, model.prior(weight_precision).mean)
    return replace(_select_precision(model, approximate, tolerance), n_iter=steps)


def _select_precision(
    model: SoftmaxRegression, approximate: Callable[[float, Tensor], LaplaceFit], tolerance: float
) -> LaplaceFit:
    """The fit with the highest lower bound over all α."""
    unit = model.mean_square
    fits: list[LaplaceFit] = []
    best = 0
    for decade in range(DECADES, -DECADES - 1, -1):
        fits.append(approximate(10.0**decade * unit, fits[-1].posterior.mean if fits else model.prior(1.0).mean))
        gain = fits[-1].lower_bound - fits[best].lower_bound
        if gain > tolerance * model.rows.count:
            best = len(fits) - 1
        elif gain < -_STOP_BELOW:
            break
    if not 0 < best < len(fits) - 1:
        return fits[best]
    above, top, below = (math.log(fit.weight_precision) for fit in fits[best - 1 : best + 2])
    tried = {top: fits[best]}

    def cost(log_alpha: float) -> float:
        tried[log_alpha] = approximate(math.exp(log_alpha), fits[best].posterior.mean)
        return -tried[log_alpha].lower_bound

    minimize_scalar(cost, bounds=(below, above), method="bounded", options={"xatol": _LOG_PRECISION_TOLERANCE})
    return max(tried.values(), key=lambda fit: fit.lower_bound)


def _find_mode(
    model: SoftmaxRegression, alpha: float, start: Tensor, tolerance: float, max_iter: int
) -> EMFit[Tensor, _NewtonState]:
    """The mode of the posterior, by Newton's method with a line search (iteratively reweighted least squares).

    The log posterior is concave and no step lowers it, so that the EM loop serves here too.
    """
    prior = model.prior(alpha)

    def evaluate(weights: Tensor) -> Expectation[_NewtonState]:
        derivatives = model.derivatives(weights)
        log_joint = derivatives.log_likelihood + log_density(prior, weights)
        return Expectation(_newton_state(weights, log_joint, derivatives, prior), log_joint)

    def step(state: _NewtonState) -> Tensor:
        # An increase this small is lost in the rounding of the sum over rows, and a line search would fail.
        if state.increase <= ROUNDING * max(abs(state.log_joint), 1.0):
            return state.weights + state.step
        length = 1.0
        for _ in range(_MAX_HALVINGS):
            weights = state.weights + length * state.step
            log_joint = model.log_likelihood(weights) + log_density(prior, weights)
            if log_joint >= state.log_joint + _SUFFICIENT_INCREASE * length * state.increase:
                return weights
            length *= 0.5
        raise DivergenceError("Newton's method found no step that raises the log posterior: scale the columns of X")

    rows = model.rows.count
    return fit_em(lambda _: start, evaluate, step, rows=rows, tolerance=tolerance, max_iter=max_iter)


def _newton_state(weights: Tensor, log_joint: float, derivatives: Derivatives, prior: GaussianBelief) -> _NewtonState:
    gradient = derivatives.gradient - prior.precision @ weights
    cholesky = precision_factor(derivatives.curvature + prior.precision)
    step = torch.cholesky_solve(gradient[:, None], cholesky)[:, 0]
    return _NewtonState(weights, log_joint, cholesky, step, float(gradient @ step))


@dataclass(frozen=True)
class VariationalFit:
    """q(w) and the prior precision α."""

    posterior: GaussianBelief
    weight_precision: float


@dataclass(frozen=True)
class QuadraticBound:
    """A quadratic lower bound on the log likelihood in w, the tightest one under some q(w).

        log p(y | w) ≥ const + wᵀ shift − ½ wᵀ gain w

    Attributes:
        expectation: the expectation of the right-hand side under q.
        gain: ``[C·M, C·M]``.
        shift: ``[C·M]``.
    """

    expectation: float
    gain: Tensor
    shift: Tensor


@dataclass(frozen=True)
class BoundStatistics:
    """What the updates of q(w) and α need: the quadratic bound, and E_q Σw² over the penalized weights."""

    bound: QuadraticBound
    squares: float


def fit_variational(
    model: SoftmaxRegression, weight_precision: float | None, *, tolerance: float, max_iter: int
) -> EMFit[VariationalFit, BoundStatistics]:
    """Maximize the lower bound on log p(y), in turn over the quadratic bound, over q(w) and over α.

        L = E_q[quadratic] − KL(q(w) ‖ p(w | α)),    α ← (number of weights) / E_q ‖w‖²

    Two classes use the bound of :func:`jaakkola_jordan`, more classes that of :func:`boehning`. The start is the mode
    of the posterior. Böhning's bound has its maximum there: it equals Laplace's evidence with a curvature that does not
    depend on w, and the search for α has found its best value too.

    Args:
        model: the data and the prior.
        weight_precision: α, or ``None`` to select it.
        tolerance: stop when an iteration raises the bound by less than this per row.
        max_iter: the maximum number of iterations.
    """
    curvature = None if model.outputs == 1 else boehning_curvature(model)
    bound_for = jaakkola_jordan(model) if curvature is None else boehning(model, curvature)
    mode = fit_laplace(model, weight_precision, tolerance=tolerance, max_iter=max_iter, curvature=curvature)
    learns_alpha = weight_precision is None and curvature is None
    penalized = model.penalized

    def e_step(fit: VariationalFit) -> Expectation[BoundStatistics]:
        q = fit.posterior
        bound = bound_for(q)
        second_moments = q.covariance.diagonal() + q.mean.square()
        elbo = bound.expectation - kl_to_prior(q, model.prior(fit.weight_precision))
        return Expectation(BoundStatistics(bound, float(second_moments[penalized].sum())), elbo)

    def m_step(statistics: BoundStatistics) -> VariationalFit:
        alpha = int(penalized.sum()) / statistics.squares if learns_alpha else mode.weight_precision
        return VariationalFit(condition(model.prior(alpha), statistics.bound.gain, statistics.bound.shift), alpha)

    return fit_em(
        lambda _: VariationalFit(mode.posterior, mode.weight_precision),
        e_step,
        m_step,
        rows=model.rows.count,
        tolerance=tolerance,
        max_iter=max_iter,
    )


def jaakkola_jordan(model: SoftmaxRegression) -> Callable[[GaussianBelief], QuadraticBound]:
    """The bound for two classes, with f = wᵀφ, y 0 or 1 and one ξ per row (Bishop 10.144–10.163).

        log p(y | f) = yf + log σ(−f) ≥ (y − ½) f + log σ(ξ) − ½ξ − λ(ξ)(f² − ξ²),    λ(ξ) = tanh(ξ/2) / 4ξ

    The bound is tightest under q at ξ² = E_q f².

    Reference:
        T. S. Jaakkola, M. I. Jordan. Bayesian parameter estimation via variational methods. Statistics and Computing
        2000.
    """

    def bound(q: GaussianBelief) -> QuadraticBound:
        def of_block(phi: Tensor, target: Tensor) -> tuple[Tensor, ...]:
            mean, centered = phi @ q.mean, target[:, 0] - 0.5
            # λ has the limit 1/8 at 0, which the quotient has reached to rounding at 1e-8
            xi = (q.variance_along(phi) + mean.square()).sqrt().clamp_min(1e-8)
            twice_lambda = torch.tanh(0.5 * xi) / (2.0 * xi)
            value = (F.logsigmoid(xi) - 0.5 * xi + centered * mean).sum()
            return value, phi.mT @ (twice_lambda[:, None] * phi), centered @ phi

        value, gain, shift = model.total(of_block)
        return QuadraticBound(float(value), gain, shift)

    return bound


def boehning(model: SoftmaxRegression, gain: Tensor) -> Callable[[GaussianBelief], QuadraticBound]:
    """The bound for K classes, with f = Gz and one ψ per row; its curvature is constant.

        log Σ_k e^{f_k} ≤ log Σ_k e^{ψ_k} + softmax(ψ)ᵀ(f − ψ) + ½ (f − ψ)ᵀA(f − ψ),    A = ½ (I − 11ᵀ/K)

    A − diag(p) + ppᵀ is positive semidefinite for all probabilities p. The bound is tightest under q at ψ = E_q f.

    Args:
        model: the data.
        gain: see :func:`boehning_curvature`.

    Reference:
        D. Böhning. Multinomial logistic regression algorithm. Annals of the Institute of Statistical Mathematics 1992.
    """

    def bound(q: GaussianBelief) -> QuadraticBound:
        matrix = q.mean.view(model.outputs, model.n_features)

        def of_block(phi: Tensor, target: Tensor) -> tuple[Tensor, ...]:
            psi = phi @ matrix.mT
            return model.log_likelihoods(psi, target), (target - model.expected_target(psi)).mT @ phi

        value, gradient = model.total(of_block)
        trace = float((gain * q.covariance).sum())
        return QuadraticBound(float(value) - 0.5 * trace, gain, gradient.flatten() + gain @ q.mean)

    return bound


def boehning_curvature(model: SoftmaxRegression) -> Tensor:
    """GᵀAG ⊗ ΦᵀΦ, which is ½I ⊗ ΦᵀΦ, ``[C·M, C·M]``."""
    (gram,) = model.total(lambda phi, _: (phi.mT @ phi,))
    return 0.5 * torch.kron(torch.eye(model.outputs, dtype=gram.dtype, device=gram.device), gram)
