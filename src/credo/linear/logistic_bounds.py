"""Variational logistic regression: quadratic lower bounds on the likelihood, under which the posterior is Gaussian."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from credo.conjugate import GaussianBelief, condition
from credo.em import EMFit, Expectation, fit_em
from credo.linear._softmax import SoftmaxRegression, divergence
from credo.linear.logistic_laplace import fit_laplace


@dataclass(frozen=True)
class Variational:
    """q(w), and the prior precision α it goes with."""

    belief: GaussianBelief
    weight_precision: float


@dataclass(frozen=True)
class Tangent:
    """A quadratic in w that lies below the log likelihood, placed where it is highest under some q(w).

        log p(y | w) ≥ const + wᵀ shift − ½ wᵀ gain w

    Attributes:
        value: the expectation of the right-hand side under that q.
        gain: ``[C·M, C·M]``.
        shift: ``[C·M]``.
    """

    value: float
    gain: Tensor
    shift: Tensor


@dataclass(frozen=True)
class Statistics:
    """What the next q(w) and α are found from: the quadratic, and E_q Σw² over the weights that α is about."""

    tangent: Tangent
    squares: float


def fit_variational(
    model: SoftmaxRegression, weight_precision: float | None, *, tolerance: float, max_iter: int
) -> EMFit[Variational, Statistics]:
    """Raise the lower bound on log p(y), in turn over the place of the quadratic, over q(w) and over α.

        L = E_q[quadratic] − KL(q(w) ‖ p(w | α)),    α ← (number of weights) / E_q ‖w‖²

    Two classes have the bound of :func:`jaakkola_jordan`, more the one of :func:`boehning`. It starts at the mode of
    the posterior. There Böhning's bound has its maximum already: it is then Laplace's evidence with another curvature,
    one that does not depend on w, and the search for α has found its best one too.

    Args:
        model: the data and the prior.
        weight_precision: α, or ``None`` to choose it.
        tolerance: the least gain of the bound per row that is worth another iteration.
        max_iter: the most iterations.
    """
    curvature = None if model.outputs == 1 else boehning_curvature(model)
    tangent_at = jaakkola_jordan(model) if curvature is None else boehning(model, curvature)
    mode = fit_laplace(model, weight_precision, tolerance=tolerance, max_iter=max_iter, curvature=curvature)
    learns = weight_precision is None and curvature is None
    penalized = model.penalized

    def e_step(at: Variational) -> Expectation[Statistics]:
        tangent = tangent_at(at.belief)
        second_moments = at.belief.covariance.diagonal() + at.belief.mean.square()
        bound = tangent.value - divergence(at.belief, model.prior(at.weight_precision))
        return Expectation(Statistics(tangent, float(second_moments[penalized].sum())), bound)

    def m_step(statistics: Statistics) -> Variational:
        alpha = int(penalized.sum()) / statistics.squares if learns else mode.weight_precision
        return Variational(condition(model.prior(alpha), statistics.tangent.gain, statistics.tangent.shift), alpha)

    return fit_em(
        lambda _: Variational(mode.belief, mode.weight_precision),
        e_step,
        m_step,
        rows=model.rows.count,
        tolerance=tolerance,
        max_iter=max_iter,
    )


def jaakkola_jordan(model: SoftmaxRegression) -> Callable[[GaussianBelief], Tangent]:
    """The bound for two classes, with f = wᵀφ, y 0 or 1 and one ξ a row (Bishop 10.144–10.163).

        log p(y | f) = yf + log σ(−f) ≥ (y − ½) f + log σ(ξ) − ½ξ − λ(ξ)(f² − ξ²),    λ(ξ) = tanh(ξ/2) / 4ξ

    It is highest under q at ξ² = E_q f².

    Reference:
        T. S. Jaakkola, M. I. Jordan. Bayesian parameter estimation via variational methods. Statistics and Computing
        2000.
    """

    def tangent(q: GaussianBelief) -> Tangent:
        def of_block(phi: Tensor, target: Tensor) -> tuple[Tensor, ...]:
            mean, centered = phi @ q.mean, target[:, 0] - 0.5
            # λ has the limit 1/8 at 0, which the quotient reaches to rounding before it divides by 0
            xi = (q.variance_along(phi) + mean.square()).sqrt().clamp_min(1e-8)
            twice_lambda = torch.tanh(0.5 * xi) / (2.0 * xi)
            value = (F.logsigmoid(xi) - 0.5 * xi + centered * mean).sum()
            return value, phi.mT @ (twice_lambda[:, None] * phi), centered @ phi

        value, gain, shift = model.total(of_block)
        return Tangent(float(value), gain, shift)

    return tangent


def boehning(model: SoftmaxRegression, gain: Tensor) -> Callable[[GaussianBelief], Tangent]:
    """The bound for K classes, with f = Gz and one ψ a row: a parabola of the same curvature everywhere.

        log Σ_k e^{f_k} ≤ log Σ_k e^{ψ_k} + softmax(ψ)ᵀ(f − ψ) + ½ (f − ψ)ᵀA(f − ψ),    A = ½ (I − 11ᵀ/K)

    A − diag(p) + ppᵀ has no negative eigenvalue for any probabilities p. The bound is highest under q at ψ = E_q f.

    Args:
        model: the data.
        gain: see :func:`boehning_curvature`.

    Reference:
        D. Böhning. Multinomial logistic regression algorithm. Annals of the Institute of Statistical Mathematics 1992.
    """

    def tangent(q: GaussianBelief) -> Tangent:
        matrix = q.mean.view(model.outputs, model.n_features)

        def of_block(phi: Tensor, target: Tensor) -> tuple[Tensor, ...]:
            psi = phi @ matrix.mT
            return model.log_likelihoods(psi, target), (target - model.expected_target(psi)).mT @ phi

        value, slope = model.total(of_block)
        spread = float((gain * q.covariance).sum())
        return Tangent(float(value) - 0.5 * spread, gain, slope.flatten() + gain @ q.mean)

    return tangent


def boehning_curvature(model: SoftmaxRegression) -> Tensor:
    """GᵀAG ⊗ ΦᵀΦ, which is ½I ⊗ ΦᵀΦ, ``[C·M, C·M]``."""
    (gram,) = model.total(lambda phi, _: (phi.mT @ phi,))
    return 0.5 * torch.kron(torch.eye(model.outputs, dtype=gram.dtype, device=gram.device), gram)
