"""Distances between distributions other than information: total variation and the χ² divergence.

They are exact or Monte Carlo estimates, as in :mod:`credo.information.measures`. Both bound what two distributions can
differ in: TV that of a probability, √(χ² Var_q[f]) that of a mean E[f].

References:
    A. B. Tsybakov. Introduction to Nonparametric Estimation. Springer 2009, section 2.4.
    M. Gil, F. Alajaji, T. Linder. Rényi divergence measures for commonly used univariate continuous distributions.
    Information Sciences 249, 2013.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent

from credo._estimate import Estimate
from credo.information._closed_forms import gaussian_chi_squared, gaussian_pair, gaussian_total_variation
from credo.information._densities import (
    DistributionLike,
    check_comparable,
    enumerate_values,
    expectation,
    expected_value,
    infinite_in_tails,
    log_prob,
    to_distribution,
)
from credo.seeding import check_seed, derive


def total_variation(
    p: DistributionLike, q: DistributionLike, *, samples: int = 10_000, seed: int | None = 0
) -> Estimate:
    """TV(P, Q) = max_A |P(A) − Q(A)| = ½ ∫ |p(x) − q(x)| dx, from 0 to 1; symmetric, and a metric.

    Exact if one of the two has finitely many outcomes, for Gaussians over numbers, and for Gaussian vectors with the
    same covariance. Otherwise it is the mean of |p − q|/(p + q), which lies between 0 and 1 for every draw of the
    equal mixture of the two. Pinsker's inequality is TV ≤ √(KL(P ‖ Q)/2).

    Args:
        p: a distribution.
        q: another distribution over the same outcomes.
        samples: number of Monte Carlo draws of each if there is no closed form, at least 2.
        seed: seed of the draws; ``None`` for new ones each time.

    Returns:
        The distance, a probability, of the broadcast batch shape.

    Raises:
        InputError: if ``p`` and ``q`` are not distributions over the same outcomes.

    Example:
        >>> from credo.information import total_variation
        >>> total_variation([0.5, 0.5], [1.0, 0.0])
        0.5
    """
    p, q = to_distribution("p", p), to_distribution("q", q)
    batch = check_comparable(p, q)
    for first, second in ((p, q), (q, p)):
        values = enumerate_values(first, batch)
        if values is not None:  # where first > second lies in its finite support
            excess = log_prob(first, values).exp() - log_prob(second, values).exp()
            return Estimate.from_exact(excess.clamp(min=0.0).sum(0)).expand(batch)
    pair = gaussian_pair(p, q)
    exact = None if pair is None else gaussian_total_variation(*pair)
    if exact is not None:
        return Estimate.from_exact(exact).expand(batch)

    def relative_difference(x: Tensor) -> Tensor:
        return (0.5 * (log_prob(p, x) - log_prob(q, x))).tanh().abs()

    first_seed = check_seed(seed)
    halves = [expectation(d, relative_difference, batch, samples, derive(first_seed, k)) for k, d in enumerate((p, q))]
    errors = torch.stack([half.standard_error for half in halves])
    return Estimate(0.5 * (halves[0].value + halves[1].value), 0.5 * errors.square().sum(0).sqrt(), False)


def chi_squared(p: DistributionLike, q: DistributionLike, *, samples: int = 10_000, seed: int | None = 0) -> Estimate:
    """χ²(P ‖ Q) = E_q[(p(x)/q(x) − 1)²] = E_p[p(x)/q(x)] − 1, at least 0, and infinite if q excludes what p allows.

    It is the variance of the weights p/q of importance sampling. For Gaussians it is infinite unless 2Σ_q − Σ_p is
    positive definite. The divergence of independent coordinates is ∏ᵢ(1 + χᵢ²) − 1, and KL(P ‖ Q) ≤ log(1 + χ²).

    Without a closed form it is the mean of p/q − 1 over draws of p. A few of them can carry most of it, and its
    standard error may be too small, if the tails of q are lighter than those of p.

    Args:
        p: the distribution whose density is the numerator.
        q: the distribution that it is compared with.
        samples: number of Monte Carlo draws of p if there is no closed form, at least 2.
        seed: seed of the draws; ``None`` for new ones each time.

    Returns:
        The divergence, of the broadcast batch shape.

    Raises:
        InputError: if ``p`` and ``q`` are not distributions over the same outcomes.

    Example:
        >>> from credo.information import chi_squared
        >>> chi_squared([0.5, 0.5], [0.25, 0.75])
        0.333333
    """
    p, q = to_distribution("p", p), to_distribution("q", q)
    return _chi_squared(p, q, check_comparable(p, q), samples, seed)


def _chi_squared(p: Distribution, q: Distribution, batch: torch.Size, samples: int, seed: int | None) -> Estimate:
    values = enumerate_values(p, batch)
    if values is not None:
        log_p, log_q = log_prob(p, values), log_prob(q, values)
        total = expected_value(log_p, (log_p - log_q).exp()) - 1.0
        return Estimate.from_exact(total.clamp(min=0.0)).expand(batch)
    pair = gaussian_pair(p, q)
    if pair is not None:
        return Estimate.from_exact(gaussian_chi_squared(*pair)).expand(batch)
    if isinstance(p, Independent) and isinstance(q, Independent):
        ndims = p.reinterpreted_batch_ndims
        if ndims == q.reinterpreted_batch_ndims:
            parts = _chi_squared(p.base_dist, q.base_dist, batch + p.event_shape[:ndims], samples, seed)
            if parts.exact:
                dims = tuple(range(-ndims, 0))
                return Estimate.from_exact(parts.value.log1p().sum(dims).expm1() if dims else parts.value)
    ratio = expectation(p, lambda x: (log_prob(p, x) - log_prob(q, x)).exp() - 1.0, batch, samples, seed)
    return infinite_in_tails(p, q, ratio)
