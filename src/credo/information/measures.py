"""How much there is to learn from an outcome, and how far two beliefs lie apart.

Every measure is exact where the answer is a closed form or a finite sum, and a Monte Carlo mean with its standard error
elsewhere; either way it is an :class:`Estimate` in nats, with the batch shape of its arguments. Beliefs are torch
distributions, or tables of probabilities ``[..., K]``. Monte Carlo estimates carry no gradient: plain draws do not say
how they would move with the parameters.

References:
    C. M. Bishop. Pattern Recognition and Machine Learning. 2006, section 1.6.
    J. Lin. Divergence measures based on the Shannon entropy. IEEE Transactions on Information Theory 1991.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.distributions import ContinuousBernoulli, Distribution, Independent, Uniform, kl_divergence

from credo._estimate import Estimate
from credo.errors import InputError
from credo.information._densities import check_alike, device_of, draws, enumerated, log_prob, parameters, prepared
from credo.information._gaussians import as_multivariate_normal
from credo.information._tails import is_infinite
from credo.seeding import check_seed, derive

Belief: TypeAlias = Distribution | Tensor | ArrayLike
"""A torch distribution, or a table of probabilities ``[..., K]``."""

# Closed forms of torch that are infinite where the two supports share an end, as those of (0, 1) do.
_INFINITE_BY_MISTAKE: Final = {(ContinuousBernoulli, Uniform), (Uniform, ContinuousBernoulli)}


def self_information(p: Belief, x: Any) -> Estimate:
    """−log p(x): how surprising the outcome ``x`` is; infinite where it cannot happen.

    Args:
        p: a distribution; for a continuous one this is minus the log density.
        x: one or more outcomes ``[..., *batch, *event]``; of a table, the numbers of its cells.
    """
    p = prepared("p", p)
    try:
        outcomes = torch.as_tensor(x, device=device_of(p))
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"x must be a tensor of outcomes, or what can become one, got {type(x).__name__}") from error
    if bool(outcomes.isnan().any()):
        raise InputError("x must be outcomes, got NaN among them")
    event = p.event_shape
    if outcomes.shape[outcomes.ndim - len(event) :] != event:
        raise InputError(f"x must end in events of shape {list(event)}, got shape {list(outcomes.shape)}")
    return Estimate.closed(-log_prob(p, outcomes.double() if outcomes.is_floating_point() else outcomes))


def entropy(p: Belief, *, samples: int = 10_000, seed: int | None = 0) -> Estimate:
    """H(P) = −E_p[log p(x)], the expected surprise; that of a density may be negative.

    Args:
        p: a distribution.
        samples: Monte Carlo draws, where there is no closed form.
        seed: of the draws; ``None`` for fresh ones each time.
    """
    p = prepared("p", p)
    exact = _exact_entropy(p)
    return expectation(p, lambda x: -log_prob(p, x), p.batch_shape, samples, seed) if exact is None else exact


def cross_entropy(p: Belief, q: Belief, *, samples: int = 10_000, seed: int | None = 0) -> Estimate:
    """H(P, Q) = −E_p[log q(x)] = H(P) + KL(P ‖ Q), the expected surprise of who believes q where p is true.

    Where the entropy has a closed form and the divergence has none, only the divergence is drawn: log p(x) − log q(x)
    varies less than log q(x) where the two are close.

    Args:
        p: what is true.
        q: what is believed.
        samples: Monte Carlo draws of p, where there is no closed form.
        seed: of the draws; ``None`` for fresh ones each time.
    """
    p, q = prepared("p", p), prepared("q", q)
    batch = check_alike(p, q)
    values = enumerated(p, batch)
    if values is not None:
        return Estimate.closed(_mean_over(log_prob(p, values), -log_prob(q, values))).expanded(batch)
    own = _exact_entropy(p)
    if own is None:
        return _with_tails(p, q, expectation(p, lambda x: -log_prob(q, x), batch, samples, seed))
    divergence = _kl(p, q, batch, samples, seed)
    return Estimate(own.value + divergence.value, divergence.standard_error, divergence.exact)


def kl(p: Belief, q: Belief, *, samples: int = 10_000, seed: int | None = 0) -> Estimate:
    """KL(P ‖ Q) = E_p[log p(x) − log q(x)], which is 0 or more, and infinite where q excludes what p allows.

    The other direction is ``kl(q, p)``. A Monte Carlo estimate of a small divergence may fall below 0 by a few standard
    errors: estimators that cannot take the mean of q(x)/p(x), whose variance is infinite for many pairs. An infinity
    that lies in the tails alone, such as that of a Cauchy p and a Gaussian q, is not seen by draws; it is known for the
    heavy-tailed distributions of torch and their mixtures.

    Args:
        p: what the expectation is over.
        q: what it is compared with.
        samples: Monte Carlo draws of p, where there is no closed form.
        seed: of the draws; ``None`` for fresh ones each time.
    """
    p, q = prepared("p", p), prepared("q", q)
    return _kl(p, q, check_alike(p, q), samples, seed)


def jensen_shannon(
    p: Belief,
    q: Belief,
    *others: Belief,
    weights: ArrayLike | Tensor | None = None,
    samples: int = 10_000,
    seed: int | None = 0,
) -> Estimate:
    """JSD = Σ_k π_k KL(P_k ‖ M) with M = Σ_k π_k P_k, symmetric and between 0 and H(π), log 2 for two.

    It is the mutual information of x ~ M and the number k of the distribution that x came from, and is estimated as
    the mean of KL(p(k | x) ‖ π), of which no draw is below 0 or above −log min_k π_k.

    Args:
        p: a distribution.
        q: another.
        others: more of them.
        weights: π, relative to their sum; equal where ``None``.
        samples: Monte Carlo draws of each distribution, where there is no finite sum.
        seed: of the draws; ``None`` for fresh ones each time.
    """
    beliefs = [prepared(f"distribution {k}", belief) for k, belief in enumerate((p, q, *others))]
    batch = torch.broadcast_shapes(
        *(check_alike(beliefs[0], b, ("distribution 0", f"distribution {k}")) for k, b in enumerate(beliefs))
    )
    shares = _shares(weights, len(beliefs)).to(device_of(beliefs[0]))

    def joint(x: Tensor) -> Tensor:
        """log π_k p_k(x), ``[K, ...]``."""
        parts = torch.broadcast_tensors(*(log_prob(belief, x) for belief in beliefs))
        return torch.stack([share + part for share, part in zip(shares.log(), parts, strict=True)])

    def information(x: Tensor) -> Tensor:
        """KL(p(k | x) ‖ π) of every x."""
        posterior = joint(x).log_softmax(0)
        return _mean_over(posterior, posterior - shares.log().view(-1, *(1,) * (posterior.ndim - 1)))

    values = [enumerated(belief, batch) for belief in beliefs]
    outcomes = max((value for value in values if value is not None), key=len, default=None)
    if outcomes is not None and not any(value is None for value in values):
        exact = _mean_over(joint(outcomes).logsumexp(0), information(outcomes))
        return Estimate.closed(exact.clamp(min=0.0)).expanded(batch)
    first = check_seed(seed)
    parts = [expectation(b, information, batch, samples, derive(first, k)) for k, b in enumerate(beliefs)]
    value = sum(share * part.value for share, part in zip(shares, parts, strict=True))
    variance = sum((share * part.standard_error).square() for share, part in zip(shares, parts, strict=True))
    return Estimate(torch.as_tensor(value), torch.as_tensor(variance).sqrt(), False)


def _exact_entropy(p: Distribution) -> Estimate | None:
    """The entropy of a prepared distribution, where it is a finite sum or torch knows it."""
    values = enumerated(p, p.batch_shape)
    if values is not None:
        log_p = log_prob(p, values)
        return Estimate.closed(_mean_over(log_p, -log_p))
    if isinstance(p, Independent):
        parts = _exact_entropy(p.base_dist)
        return None if parts is None else parts.summed(p.reinterpreted_batch_ndims)
    try:
        return Estimate.closed(p.entropy())
    except NotImplementedError:
        return None


def _kl(p: Distribution, q: Distribution, batch: torch.Size, samples: int, seed: int | None) -> Estimate:
    """KL(P ‖ Q) of prepared distributions."""
    values = enumerated(p, batch)
    if values is not None:
        log_p = log_prob(p, values)
        return Estimate.closed(_mean_over(log_p, log_p - log_prob(q, values)).clamp(min=0.0)).expanded(batch)
    if isinstance(p, Independent) and isinstance(q, Independent):
        ndims = p.reinterpreted_batch_ndims
        if ndims == q.reinterpreted_batch_ndims:
            return _kl(p.base_dist, q.base_dist, batch + p.event_shape[:ndims], samples, seed).summed(ndims)
    exact = _closed_kl(p, q)
    if exact is not None:
        return Estimate.closed(exact.clamp(min=0.0)).expanded(batch)
    return _with_tails(p, q, expectation(p, lambda x: log_prob(p, x) - log_prob(q, x), batch, samples, seed))


def _with_tails(p: Distribution, q: Distribution, drawn: Estimate) -> Estimate:
    """An estimate of E_p[−log q(x)], less what is finite, that is infinite where the tails say so."""
    infinite = is_infinite(p, q)
    if infinite is None:
        return drawn
    value = torch.where(infinite, torch.inf, drawn.value)
    return Estimate(value, torch.where(infinite, 0.0, drawn.standard_error), drawn.exact)


def _closed_kl(p: Distribution, q: Distribution) -> Tensor | None:
    """KL(P ‖ Q) in closed form, where there is one."""
    if (type(p), type(q)) in _INFINITE_BY_MISTAKE:
        return None
    if isinstance(p, Independent) or isinstance(q, Independent):
        gaussians = as_multivariate_normal(p), as_multivariate_normal(q)
        p, q = gaussians[0] or p, gaussians[1] or q
    tracked = torch.is_grad_enabled() and any(t.requires_grad for t in (*parameters(p), *parameters(q)))
    try:
        with torch.enable_grad():  # by which torch finds the moments of some exponential families
            value: Tensor = kl_divergence(p, q)
    except NotImplementedError:
        return None
    if bool(value.isnan().any()):
        return None
    return value if tracked else value.detach()


def expectation(
    p: Distribution, function: Callable[[Tensor], Tensor], batch: torch.Size, samples: int, seed: int | None
) -> Estimate:
    """E_p[f(x)] by Monte Carlo, for every member of ``batch``."""
    with torch.no_grad():
        return Estimate.from_samples(function(draws(p, samples, seed, batch))).expanded(batch)


def _mean_over(log_p: Tensor, values: Tensor) -> Tensor:
    """Σ_k p_k v_k over the first dimension, where p_k = 0 counts as nothing whatever v_k is."""
    return (log_p.exp() * torch.where(log_p == -torch.inf, 0.0, values)).sum(0)


def _shares(weights: ArrayLike | Tensor | None, count: int) -> Tensor:
    """Positive weights that sum to 1, ``[count]``."""
    if weights is None:
        return torch.full((count,), 1.0 / count, dtype=torch.float64)
    given = torch.as_tensor(weights, dtype=torch.float64).detach()
    if given.shape != (count,) or not bool(((given > 0.0) & given.isfinite()).all()):
        raise InputError(f"weights must be {count} positive numbers, one for each distribution, got {weights!r}")
    return given / given.sum()
