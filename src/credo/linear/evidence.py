"""Evidence maximization: the precisions of prior and noise that make the data most probable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from credo.em import EMFit, Expectation, fit_em
from credo.linear._moments import ROUNDING
from credo.linear._precisions import PrecisionPrior
from credo.linear._spectrum import SpectralPosterior, Spectrum, Vector

_STEP = 0.25
"""Between values of log α/β that are looked at: every term of the evidence turns on a scale of 1 or more."""
_BEYOND = 10.0
"""How far beyond the last value of log α/β at which anything turns."""
_LEVEL = 1e-12
"""The share of the objective that tells no maximum from a plateau: rounding."""
_MOST_MAXIMA = 8


@dataclass(frozen=True)
class Precisions:
    """The two hyperparameters of Bayesian linear regression.

    Attributes:
        weights: α, of the prior.
        noise: β.
    """

    weights: float
    noise: float


def maximize_evidence(
    spectrum: Spectrum,
    weight_prior: PrecisionPrior,
    noise_prior: PrecisionPrior,
    starts: Sequence[Precisions],
    *,
    tolerance: float,
    max_iter: int,
) -> EMFit[Precisions, SpectralPosterior]:
    """Maximize log p(y | α, β) + log p(log α) + log p(log β) by the γ iteration (Bishop 3.91–3.95).

        α ← γ / ‖m‖²,    β ← (N − γ) / ‖y − Φm‖²

    with the priors' counts and squares added, one after the other. Neither step lowers the evidence. For α, with m held
    where it is, −log(1 + βλ/α) is convex in 1/α and so not below its tangent there, and on the tangents the step ends
    as high as it began; for β the same holds of −log(1 + α/βλ) in 1/β, and log β ≥ 1 − 1/β does the rest. There may
    be more than one maximum: the highest that is reached from ``starts`` is taken, see :func:`find_maxima`.

    References:
        D. J. C. MacKay. Bayesian interpolation. Neural Computation, 1992.
    """

    def expectation(precisions: Precisions) -> Expectation[SpectralPosterior]:
        posterior = spectrum.at(precisions.weights, precisions.noise)
        priors = weight_prior.log_density(precisions.weights) + noise_prior.log_density(precisions.noise)
        return Expectation(posterior, posterior.log_evidence + priors)

    def better(posterior: SpectralPosterior) -> Precisions:
        alpha = weight_prior.mode(posterior.effective_parameters, posterior.squared_weights)
        after = spectrum.at(alpha, posterior.noise_precision)
        return Precisions(alpha, noise_prior.mode(after.free_rows, after.squared_errors))

    return fit_em(
        lambda k: starts[k], expectation, better, tolerance=tolerance, max_iter=max_iter, restarts=len(starts)
    )


def find_maxima(spectrum: Spectrum, weight_prior: PrecisionPrior, noise_prior: PrecisionPrior) -> list[Precisions]:
    """All local maxima of what :func:`maximize_evidence` maximizes, the highest first.

    For every ratio ρ = α/β the best β is known, with a, b, c, d the shapes and rates of the priors of α and β:

        β = (N + 2a + 2c) / (yᵀ(I + ΦΦᵀ/ρ)⁻¹y + 2bρ + 2d)

    so that one number remains. As a function of log ρ the objective is a sum of terms that turn once, each on a scale
    of 1, so that a grid of smaller steps over all places where one turns meets every maximum.

    Where there are as many weights as rows less one, all targets can be fitted exactly and the evidence has no bound as
    β → ∞. Only the prior of β holds that maximum; where it is weak, and there is another one, it is left out.
    """
    if weight_prior.known and noise_prior.known:
        return [Precisions(weight_prior.known, noise_prior.known)]
    bounds = _range_of_ratio(spectrum, weight_prior, noise_prior)

    def precisions(log_ratio: Vector) -> tuple[Vector, Vector]:
        ratio = np.exp(log_ratio)
        if weight_prior.known:
            return ratio, weight_prior.known / ratio
        if noise_prior.known:
            return ratio, np.full_like(ratio, noise_prior.known)
        (a, b), (c, d) = weight_prior.observations, noise_prior.observations
        return ratio, (spectrum.count + a + c) / (spectrum.shrunken_squares(ratio) + b * ratio + d)

    def objective(log_ratio: Vector) -> Vector:
        ratio, noise = precisions(log_ratio)
        pairs = zip((ratio * noise).tolist(), noise.tolist(), strict=True)
        priors = [weight_prior.log_density(alpha) + noise_prior.log_density(beta) for alpha, beta in pairs]
        heights: Vector = spectrum.log_evidence(ratio, noise) + np.array(priors)
        return heights

    def slope(log_ratio: float) -> float:
        """Of the sign of the objective's: the γ iteration's step of α, or against that of β where α is known."""
        ratio, noise = precisions(np.array(log_ratio))
        at = spectrum.at(float(ratio * noise), float(noise))
        if weight_prior.known:
            return float(np.log(at.noise_precision / noise_prior.mode(at.free_rows, at.squared_errors)))
        return float(np.log(weight_prior.mode(at.effective_parameters, at.squared_weights) / at.weight_precision))

    grid = np.arange(bounds[0], bounds[1] + _STEP, _STEP)
    values = objective(grid)
    padded = np.concatenate(([-np.inf], values, [-np.inf]))
    level = _LEVEL * np.maximum(np.abs(values), 1.0)
    peaks = np.flatnonzero((values > padded[:-2] + level) & (values >= padded[2:] - level))
    peaks = peaks[np.argsort(-values[peaks], kind="stable")][:_MOST_MAXIMA]
    tops = np.array([_zero_or_middle(slope, grid[i] - _STEP, grid[i] + _STEP) for i in peaks])
    tops = tops[np.argsort(-objective(tops), kind="stable")]
    ratios, noises = precisions(tops)
    proper = np.full(len(tops), True)
    count, squares = noise_prior.observations
    if _fits_anything(spectrum) and count < 1.0:
        # that maximum is where the squares are N − 1 times those of the prior
        proper = spectrum.shrunken_squares(ratios) > 2.0 * spectrum.count * squares
    chosen = proper if proper.any() else ~proper
    return [Precisions(float(r * b), float(b)) for r, b in zip(ratios[chosen], noises[chosen], strict=True)]


def _zero_or_middle(slope: Callable[[float], float], low: float, high: float) -> float:
    """Where a falling slope is 0 in between, to all digits; the middle of a plateau."""
    if slope(low) > 0.0 > slope(high):
        return float(brentq(slope, low, high, xtol=1e-14))
    return 0.5 * (low + high)


def _fits_anything(spectrum: Spectrum) -> bool:
    """Whether nothing is left of any targets, though there is a row more than weights that the data determine."""
    return (
        spectrum.count == (spectrum.scales > 0.0).sum() + 1
        and spectrum.residual <= (spectrum.count * ROUNDING) ** 2 * spectrum.total
    )


def _range_of_ratio(
    spectrum: Spectrum, weight_prior: PrecisionPrior, noise_prior: PrecisionPrior
) -> tuple[float, float]:
    """Below and above which log ρ nothing turns: not the share of any direction, of the noise, or of the priors."""
    (a, b), (c, d) = weight_prior.observations, noise_prior.observations
    seen = spectrum.scales > 0.0
    eigenvalues, n = np.square(spectrum.scales[seen]), spectrum.count
    variances = np.array([spectrum.total / n, (spectrum.residual + d) / (n + c)])
    if noise_prior.known:
        variances = np.array([1.0 / noise_prior.known])
    alpha = weight_prior.known or a / b
    turns = [*eigenvalues, *(alpha * variances)]
    if seen.any():
        turns.append((spectrum.residual + d) / float((np.square(spectrum.targets[seen]) / eigenvalues).sum() or np.inf))
    if b:
        turns.append((spectrum.total + d) / b)
    finite = [turn for turn in turns if 0.0 < turn < np.inf]
    return np.log(min(finite)) - _BEYOND, np.log(max(finite)) + _BEYOND
