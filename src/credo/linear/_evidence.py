"""The precisions α of the weights and β of the noise: evidence maximization and variational inference."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import brentq
from torch.distributions import Gamma, kl_divergence

from credo.em import EMFit, Expectation, fit_em
from credo.linear._algebra import ROUNDING, SpectralPosterior, Spectrum, Vector

DEFAULT_SHAPE = 1e-12
"""Shape of the default Gamma prior: the weight of 2·10⁻¹² observations, about the rounding of a sum."""
_STEP = 0.25
"""Step of the grid over log α/β: every term of the evidence changes on a scale of 1 or more."""
_MARGIN = 10.0
"""How far the grid reaches beyond the last value of log α/β at which a term changes."""
_PLATEAU = 1e-12
"""Relative differences of the objective below this are rounding."""
_MAX_MAXIMA = 8


@dataclass(frozen=True)
class PrecisionPrior:
    """The prior of a precision τ: a fixed value, or Gam(a, b) with mean a/b, flat in log τ as a → 0 and b → 0.

    Attributes:
        shape: a, the weight of 2a observations N(0, τ⁻¹); 0 for a fixed precision.
        rate: b, half of the sum of their squares; 0 for a fixed precision.
        fixed: the value of τ if it is not learned.
    """

    shape: float = 0.0
    rate: float = 0.0
    fixed: float | None = None

    @classmethod
    def from_arguments(cls, fixed: float | None, gamma: tuple[float, float] | None, typical: float) -> PrecisionPrior:
        """A fixed value if there is one, else the Gamma prior, by default a very weak one with mean ``typical``."""
        if fixed is not None:
            return cls(fixed=float(fixed))
        return cls(DEFAULT_SHAPE, DEFAULT_SHAPE / typical) if gamma is None else cls(*gamma)

    def mode(self, count: float, squares: float) -> float:
        """The τ that maximizes ½·count·log τ − ½·squares·τ + log p(log τ): (count + 2a) / (squares + 2b)."""
        if self.fixed is not None:
            return self.fixed
        return (count + 2.0 * self.shape) / (squares + 2.0 * self.rate)

    def log_density(self, precision: float) -> float:
        """log p(log τ) = log Gam(τ | a, b) + log τ; 0 for a fixed precision."""
        if self.fixed is not None:
            return 0.0
        scaled = self.rate * precision
        return self.shape * math.log(scaled) - scaled - math.lgamma(self.shape)

    def posterior(self, count: float, squares: float) -> PrecisionPosterior:
        """Gam(a + count/2, b + squares/2), after ``count`` observations N(0, τ⁻¹) with this sum of squares."""
        if self.fixed is not None:
            return PrecisionPosterior(self.fixed, math.log(self.fixed), 0.0)
        q, p = _gamma(self.shape + 0.5 * count, self.rate + 0.5 * squares), _gamma(self.shape, self.rate)
        log_mean = torch.digamma(q.concentration) - q.rate.log()
        return PrecisionPosterior(float(q.mean), float(log_mean), float(kl_divergence(q, p)))


@dataclass(frozen=True)
class PrecisionPosterior:
    """The moments of q(τ) that the variational bound needs.

    Attributes:
        mean: E[τ].
        log_mean: E[log τ].
        kl: KL(q ‖ p) to the prior, in nats.
    """

    mean: float
    log_mean: float
    kl: float


@dataclass(frozen=True)
class Precisions:
    """The two hyperparameters of Bayesian linear regression.

    Attributes:
        weights: α, of the prior.
        noise: β.
    """

    weights: float
    noise: float


@dataclass(frozen=True)
class PrecisionPosteriors:
    """q(α) and q(β).

    Attributes:
        weights: q(α), of the precision of the prior.
        noise: q(β), of the precision of the noise.
    """

    weights: PrecisionPosterior
    noise: PrecisionPosterior


def maximize_evidence(
    spectrum: Spectrum,
    weight_prior: PrecisionPrior,
    noise_prior: PrecisionPrior,
    starts: Sequence[Precisions] | None = None,
    *,
    tolerance: float,
    max_iter: int,
) -> EMFit[Precisions, SpectralPosterior]:
    """Maximize log p(y | α, β) + log p(log α) + log p(log β) by the γ iteration (Bishop 3.91–3.95).

        α ← γ / ‖m‖²,    β ← (N − γ) / ‖y − Φm‖²

    with the counts and squares of the priors added, one after the other. Neither step lowers the evidence. For α at
    fixed m, −log(1 + βλ/α) is convex in 1/α and so lies above its tangent, and on the tangents the step ends as high as
    it began. For β the same holds of −log(1 + α/βλ) in 1/β, together with log β ≥ 1 − 1/β. There may be several maxima:
    the highest that is reached from ``starts``, by default from all of :func:`find_maxima`, is returned.

    References:
        D. J. C. MacKay. Bayesian interpolation. Neural Computation, 1992.
    """
    first = find_maxima(spectrum, weight_prior, noise_prior) if starts is None else starts

    def e_step(precisions: Precisions) -> Expectation[SpectralPosterior]:
        posterior = spectrum.posterior(precisions.weights, precisions.noise)
        priors = weight_prior.log_density(precisions.weights) + noise_prior.log_density(precisions.noise)
        return Expectation(posterior, posterior.log_evidence + priors)

    def m_step(posterior: SpectralPosterior) -> Precisions:
        alpha = weight_prior.mode(posterior.effective_parameters, posterior.squared_weights)
        updated = spectrum.posterior(alpha, posterior.noise_precision)
        return Precisions(alpha, noise_prior.mode(updated.free_rows, updated.squared_errors))

    return fit_em(lambda k: first[k], e_step, m_step, tolerance=tolerance, max_iter=max_iter, restarts=len(first))


def infer_precisions(
    spectrum: Spectrum,
    weight_prior: PrecisionPrior,
    noise_prior: PrecisionPrior,
    *,
    tolerance: float,
    max_iter: int,
) -> EMFit[PrecisionPosteriors, SpectralPosterior]:
    """Maximize the evidence lower bound over q(w)q(α)q(β) (Bishop, section 10.3 and exercise 10.26).

        q(w) = N(m, S),    S⁻¹ = E[α]I + E[β]ΦᵀΦ,    m = E[β]SΦᵀy
        q(α) = Gam(a + M/2, b + E‖w‖²/2),    q(β) = Gam(c + N/2, d + E‖y − Φw‖²/2)

    The bound is E[log p(y | w, β)] + E[log p(w | α)] + H[q(w)] − KL(q(α) ‖ p(α)) − KL(q(β) ‖ p(β)). It is maximized
    from every maximum of the evidence, which lie close to its own maxima, and the highest is returned.
    """
    n, m = spectrum.count, spectrum.size
    starts = find_maxima(spectrum, weight_prior, noise_prior)

    def start(k: int) -> PrecisionPosteriors:
        alpha, beta = starts[k].weights, starts[k].noise
        return PrecisionPosteriors(weight_prior.posterior(m, m / alpha), noise_prior.posterior(n, n / beta))

    def e_step(q: PrecisionPosteriors) -> Expectation[SpectralPosterior]:
        posterior = spectrum.posterior(q.weights.mean, q.noise.mean)
        log_likelihood = 0.5 * (
            n * (q.noise.log_mean - math.log(2.0 * math.pi)) - q.noise.mean * _expected_errors(posterior)
        )
        # the 2π of the prior and of the entropy of q(w) cancel
        log_prior = 0.5 * (m * q.weights.log_mean - q.weights.mean * _expected_weights(posterior))
        entropy = 0.5 * (m - posterior.log_det_precision)
        return Expectation(posterior, log_likelihood + log_prior + entropy - q.weights.kl - q.noise.kl)

    def m_step(posterior: SpectralPosterior) -> PrecisionPosteriors:
        return PrecisionPosteriors(
            weight_prior.posterior(m, _expected_weights(posterior)),
            noise_prior.posterior(n, _expected_errors(posterior)),
        )

    return fit_em(start, e_step, m_step, tolerance=tolerance, max_iter=max_iter, restarts=len(starts))


def find_maxima(spectrum: Spectrum, weight_prior: PrecisionPrior, noise_prior: PrecisionPrior) -> list[Precisions]:
    """All local maxima of the objective of :func:`maximize_evidence`, the highest first.

    For every ratio ρ = α/β the best β has a closed form, with a, b, c, d the shapes and rates of the priors of α and β:

        β = (N + 2a + 2c) / (yᵀ(I + ΦΦᵀ/ρ)⁻¹y + 2bρ + 2d)

    so that one number remains. As a function of log ρ the objective is a sum of terms that each change once, on a scale
    of 1. A grid with smaller steps over all places where a term changes therefore finds every maximum.

    With one weight fewer than rows, all targets can be fitted exactly and the evidence has no upper bound as β → ∞.
    Only the prior of β bounds that maximum. If the prior is weak and there is another maximum, it is left out.
    """
    if weight_prior.fixed and noise_prior.fixed:
        return [Precisions(weight_prior.fixed, noise_prior.fixed)]

    def precisions(log_ratio: Vector) -> tuple[Vector, Vector]:
        """ρ and the best β."""
        ratio = np.exp(log_ratio)
        if weight_prior.fixed:
            return ratio, weight_prior.fixed / ratio
        if noise_prior.fixed:
            return ratio, np.full_like(ratio, noise_prior.fixed)
        count = spectrum.count + 2.0 * (weight_prior.shape + noise_prior.shape)
        return ratio, count / (
            spectrum.shrunken_squares(ratio) + 2.0 * weight_prior.rate * ratio + 2.0 * noise_prior.rate
        )

    def objective(log_ratio: Vector) -> Vector:
        ratio, noise = precisions(log_ratio)
        pairs = zip((ratio * noise).tolist(), noise.tolist(), strict=True)
        priors = [weight_prior.log_density(alpha) + noise_prior.log_density(beta) for alpha, beta in pairs]
        values: Vector = spectrum.log_evidence(ratio, noise) + np.array(priors)
        return values

    def slope(log_ratio: float) -> float:
        """A number with the sign of the objective's slope: the γ iteration's step of log α, or minus that of log β."""
        ratio, noise = precisions(np.array(log_ratio))
        at = spectrum.posterior(float(ratio * noise), float(noise))
        if weight_prior.fixed:
            return float(np.log(at.noise_precision / noise_prior.mode(at.free_rows, at.squared_errors)))
        return float(np.log(weight_prior.mode(at.effective_parameters, at.squared_weights) / at.weight_precision))

    low, high = _ratio_range(spectrum, weight_prior, noise_prior)
    grid = np.arange(low, high + _STEP, _STEP)
    values = objective(grid)
    padded = np.concatenate(([-np.inf], values, [-np.inf]))
    level = _PLATEAU * np.maximum(np.abs(values), 1.0)
    peaks = np.flatnonzero((values > padded[:-2] + level) & (values >= padded[2:] - level))
    peaks = peaks[np.argsort(-values[peaks], kind="stable")][:_MAX_MAXIMA]
    maxima = np.array([_root_or_middle(slope, grid[i] - _STEP, grid[i] + _STEP) for i in peaks])
    maxima = maxima[np.argsort(-objective(maxima), kind="stable")]
    ratios, noises = precisions(maxima)
    proper = np.full(len(maxima), True)
    if _fits_any_targets(spectrum) and 2.0 * noise_prior.shape < 1.0:
        # at the improper maximum the squares are N − 1 times those of the prior
        proper = spectrum.shrunken_squares(ratios) > 4.0 * spectrum.count * noise_prior.rate
    chosen = proper if proper.any() else ~proper
    return [Precisions(float(r * b), float(b)) for r, b in zip(ratios[chosen], noises[chosen], strict=True)]


def _root_or_middle(slope: Callable[[float], float], low: float, high: float) -> float:
    """The root of a falling slope between two points, to all digits; the middle of a plateau."""
    if slope(low) > 0.0 > slope(high):
        return float(brentq(slope, low, high, xtol=1e-14))
    return 0.5 * (low + high)


def _fits_any_targets(spectrum: Spectrum) -> bool:
    """Whether no residual is left though there is one row more than weights that the data determine."""
    return (
        spectrum.count == (spectrum.scales > 0.0).sum() + 1
        and spectrum.residual <= (spectrum.count * ROUNDING) ** 2 * spectrum.total
    )


def _ratio_range(spectrum: Spectrum, weight_prior: PrecisionPrior, noise_prior: PrecisionPrior) -> tuple[float, float]:
    """The range of log ρ outside of which no term changes: of any direction, of the noise, or of the priors."""
    seen = spectrum.scales > 0.0
    eigenvalues, n = np.square(spectrum.scales[seen]), spectrum.count
    residual = spectrum.residual + 2.0 * noise_prior.rate
    variances = np.array([spectrum.total / n, residual / (n + 2.0 * noise_prior.shape)])
    if noise_prior.fixed:
        variances = np.array([1.0 / noise_prior.fixed])
    alpha = weight_prior.fixed or weight_prior.shape / weight_prior.rate
    places = [*eigenvalues, *(alpha * variances)]
    if seen.any():
        places.append(residual / float((np.square(spectrum.targets[seen]) / eigenvalues).sum() or np.inf))
    if weight_prior.rate:
        places.append((spectrum.total + 2.0 * noise_prior.rate) / (2.0 * weight_prior.rate))
    finite = [place for place in places if 0.0 < place < np.inf]
    return np.log(min(finite)) - _MARGIN, np.log(max(finite)) + _MARGIN


def _expected_weights(posterior: SpectralPosterior) -> float:
    """E‖w‖² = ‖m‖² + tr S."""
    return posterior.squared_weights + posterior.trace


def _expected_errors(posterior: SpectralPosterior) -> float:
    """E‖y − Φw‖² = ‖y − Φm‖² + tr(ΦᵀΦS)."""
    return posterior.squared_errors + posterior.effective_parameters / posterior.noise_precision


def _gamma(shape: float, rate: float) -> Gamma:
    a, b = torch.tensor([shape, rate], dtype=torch.float64)
    return Gamma(a, b, validate_args=False)
