"""Fully Bayesian linear regression: Gamma beliefs about both precisions, by a factorized posterior."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from credo.em import EMFit, Expectation, fit_em
from credo.linear._precisions import PrecisionBelief, PrecisionPrior
from credo.linear._spectrum import SpectralPosterior, Spectrum
from credo.linear.evidence import Precisions


@dataclass(frozen=True)
class PrecisionBeliefs:
    """q(α) and q(β).

    Attributes:
        weights: of the precision of the prior.
        noise: of the precision of the noise.
    """

    weights: PrecisionBelief
    noise: PrecisionBelief


def infer_precisions(
    spectrum: Spectrum,
    weight_prior: PrecisionPrior,
    noise_prior: PrecisionPrior,
    starts: Sequence[Precisions],
    *,
    tolerance: float,
    max_iter: int,
) -> EMFit[PrecisionBeliefs, SpectralPosterior]:
    """Maximize the evidence lower bound over q(w)q(α)q(β) (Bishop, section 10.3 and exercise 10.26).

        q(w) = N(m, S),    S⁻¹ = E[α]I + E[β]ΦᵀΦ,    m = E[β]SΦᵀy
        q(α) = Gam(a + M/2, b + E‖w‖²/2),    q(β) = Gam(c + N/2, d + E‖y − Φw‖²/2)

    The search starts from q(α) and q(β) with about the means of each of ``starts``, and the highest bound is kept. It
    is E[log p(y | w, β)] + E[log p(w | α)] + H[q(w)] − KL(q(α) ‖ p(α)) − KL(q(β) ‖ p(β)).
    """
    n, m = spectrum.count, spectrum.size

    def expectation(q: PrecisionBeliefs) -> Expectation[SpectralPosterior]:
        posterior = spectrum.at(q.weights.mean, q.noise.mean)
        log_likelihood = 0.5 * (
            n * (q.noise.log_mean - math.log(2.0 * math.pi)) - q.noise.mean * _expected_errors(posterior)
        )
        # the 2π of the prior and of the entropy of q(w) cancel
        log_prior = 0.5 * (m * q.weights.log_mean - q.weights.mean * _expected_weights(posterior))
        entropy = 0.5 * (m - posterior.log_det_precision)
        divergence = q.weights.divergence + q.noise.divergence
        return Expectation(posterior, log_likelihood + log_prior + entropy - divergence)

    def beliefs(posterior: SpectralPosterior) -> PrecisionBeliefs:
        return PrecisionBeliefs(
            weight_prior.posterior(m, _expected_weights(posterior)),
            noise_prior.posterior(n, _expected_errors(posterior)),
        )

    def first(k: int) -> PrecisionBeliefs:
        alpha, beta = starts[k].weights, starts[k].noise
        return PrecisionBeliefs(weight_prior.posterior(m, m / alpha), noise_prior.posterior(n, n / beta))

    return fit_em(first, expectation, beliefs, tolerance=tolerance, max_iter=max_iter, restarts=len(starts))


def _expected_weights(posterior: SpectralPosterior) -> float:
    """E‖w‖² = ‖m‖² + tr S."""
    return posterior.squared_weights + posterior.spread


def _expected_errors(posterior: SpectralPosterior) -> float:
    """E‖y − Φw‖² = ‖y − Φm‖² + tr(ΦᵀΦS)."""
    return posterior.squared_errors + posterior.effective_parameters / posterior.noise_precision
