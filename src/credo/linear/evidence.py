"""Evidence maximisation: the precisions of prior and noise that make the data most probable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from credo.em import EMFit, Expectation, fit_em
from credo.linear._precisions import PrecisionPrior
from credo.linear._spectrum import SpectralPosterior, Spectrum


@dataclass(frozen=True)
class Precisions:
    """The two hyperparameters of Bayesian linear regression.

    Attributes:
        weights: α, of the prior.
        noise: β.
    """

    weights: float
    noise: float


def maximise_evidence(
    spectrum: Spectrum,
    weight_prior: PrecisionPrior,
    noise_prior: PrecisionPrior,
    starts: Sequence[Precisions],
    *,
    tolerance: float,
    max_iter: int,
) -> EMFit[Precisions, SpectralPosterior]:
    """Maximise log p(y | α, β) + log p(log α) + log p(log β) by the γ iteration (Bishop 3.91–3.95).

        α ← γ / ‖m‖²,    β ← (N − γ) / ‖y − Φm‖²

    with the priors' counts and squares added, one after the other. Neither step lowers the evidence. For α, with m held
    where it is, −log(1 + βλ/α) is convex in 1/α and so not below its tangent there, and on the tangents the step ends
    as high as it began; for β the same holds of −log(1 + α/βλ) in 1/β, and log β ≥ 1 − 1/β does the rest. There may
    be more than one maximum: the highest that is reached from ``starts`` is taken.

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
