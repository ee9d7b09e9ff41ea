"""Information measures: self-information, entropy, cross-entropy, divergences and mutual information.

Every measure is exact if there is a closed form or a finite sum, and otherwise a Monte Carlo mean with its standard
error. It is an :class:`Estimate` in nats, with the batch shape of its arguments. Arguments are torch distributions or
tables of probabilities ``[..., K]``. Monte Carlo estimates have no gradient, because draws are not reparameterized.

References:
    C. M. Bishop. Pattern Recognition and Machine Learning. 2006, section 1.6.
    J. Lin. Divergence measures based on the Shannon entropy. IEEE Transactions on Information Theory 1991.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.distributions import ContinuousBernoulli, Distribution, Independent, Uniform, kl_divergence

from credo._estimate import Estimate
from credo.errors import InputError
from credo.information._closed_forms import marginal, to_multivariate_normal
from credo.information._densities import (
    DistributionLike,
    check_comparable,
    device_of,
    enumerate_values,
    expectation,
    expected_value,
    infinite_in_tails,
    log_prob,
    table_to_categorical,
    tensors_of,
    to_distribution,
)
from credo.seeding import check_seed, derive

# torch's closed forms for these pairs are infinite if the two supports share an end, as those of (0, 1) do
_WRONG_CLOSED_FORMS: Final = {(ContinuousBernoulli, Uniform), (Uniform, ContinuousBernoulli)}


def self_information(p: DistributionLike, x: Any) -> Estimate:
    """−log p(x), infinite for impossible outcomes.

    Args:
        p: a distribution; for a continuous one, p(x) is the density.
        x: one or more outcomes ``[..., *batch, *event]``; for a table, indices of its cells.

    Returns:
        The exact self-information of each outcome, ``[..., *batch]``.

    Raises:
        InputError: if ``p`` is not a distribution or a table that sums to 1, or ``x`` does not match its events.
    """
    p = to_distribution("p", p)
    try:
        outcomes = torch.as_tensor(x, device=device_of(p))
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"x must be a tensor of outcomes, or convertible to one, got {type(x).__name__}") from error
    if bool(outcomes.isnan().any()):
        raise InputError("x must be outcomes, got NaN among them")
    event = p.event_shape
    if outcomes.shape[outcomes.ndim - len(event) :] != event:
        raise InputError(f"x must end in events of shape {list(event)}, got shape {list(outcomes.shape)}")
    return Estimate.from_exact(-log_prob(p, outcomes.double() if outcomes.is_floating_point() else outcomes))


def entropy(p: DistributionLike, *, samples: int = 10_000, seed: int | None = 0) -> Estimate:
    """H(P) = −E_p[log p(x)]; for a continuous distribution it may be negative.

    Args:
        p: a distribution.
        samples: number of Monte Carlo draws if there is no closed form, at least 2.
        seed: seed of the draws; ``None`` for new ones each time.

    Returns:
        The entropy of each member of the batch.

    Raises:
        InputError: if ``p`` is not a distribution or a table that sums to 1.
    """
    p = to_distribution("p", p)
    exact = _exact_entropy(p)
    return expectation(p, lambda x: -log_prob(p, x), p.batch_shape, samples, seed) if exact is None else exact


def cross_entropy(p: DistributionLike, q: DistributionLike, *, samples: int = 10_000, seed: int | None = 0) -> Estimate:
    """H(P, Q) = −E_p[log q(x)] = H(P) + KL(P ‖ Q).

    If only the entropy has a closed form, the divergence alone is estimated by draws: log p(x) − log q(x) varies less
    than log q(x) if the two are close.

    Args:
        p: the distribution that the expectation is over.
        q: the distribution whose log density is averaged.
        samples: number of Monte Carlo draws of p if there is no closed form, at least 2.
        seed: seed of the draws; ``None`` for new ones each time.

    Returns:
        The cross-entropy, of the broadcast batch shape.

    Raises:
        InputError: if ``p`` and ``q`` are not distributions over the same outcomes.
    """
    p, q = to_distribution("p", p), to_distribution("q", q)
    batch = check_comparable(p, q)
    values = enumerate_values(p, batch)
    if values is not None:
        return Estimate.from_exact(expected_value(log_prob(p, values), -log_prob(q, values))).expand(batch)
    own = _exact_entropy(p)
    if own is None:
        return infinite_in_tails(p, q, expectation(p, lambda x: -log_prob(q, x), batch, samples, seed))
    divergence = _kl(p, q, batch, samples, seed)
    return Estimate(own.value + divergence.value, divergence.standard_error, divergence.exact)


def kl(p: DistributionLike, q: DistributionLike, *, samples: int = 10_000, seed: int | None = 0) -> Estimate:
    """KL(P ‖ Q) = E_p[log p(x) − log q(x)], at least 0, and infinite if q excludes outcomes that p allows.

    The other direction is ``kl(q, p)``. A Monte Carlo estimate of a small divergence may be a few standard errors below
    0: non-negative estimators average q(x)/p(x), whose variance is infinite for many pairs. Draws do not show that a
    divergence is infinite in the tails only, as for a Cauchy p and a Gaussian q; this is detected for the heavy-tailed
    distributions of torch and their mixtures.

    Args:
        p: the distribution that the expectation is over.
        q: the distribution that it is compared with.
        samples: number of Monte Carlo draws of p if there is no closed form, at least 2.
        seed: seed of the draws; ``None`` for new ones each time.

    Returns:
        The divergence, of the broadcast batch shape.

    Raises:
        InputError: if ``p`` and ``q`` are not distributions over the same outcomes.
    """
    p, q = to_distribution("p", p), to_distribution("q", q)
    return _kl(p, q, check_comparable(p, q), samples, seed)


def jensen_shannon(
    p: DistributionLike,
    q: DistributionLike,
    *others: DistributionLike,
    weights: ArrayLike | Tensor | None = None,
    samples: int = 10_000,
    seed: int | None = 0,
) -> Estimate:
    """JSD = Σ_k π_k KL(P_k ‖ M) with M = Σ_k π_k P_k, symmetric and between 0 and H(π), log 2 for two.

    It is the mutual information of x ~ M and the index k of the distribution that x comes from. It is estimated by the
    mean of KL(p(k | x) ‖ π), which lies between 0 and −log min_k π_k for every draw.

    Args:
        p: a distribution.
        q: another distribution.
        *others: further distributions.
        weights: π, one positive number per distribution, normalized by their sum; ``None`` for equal weights.
        samples: number of Monte Carlo draws of each distribution if there is no finite sum, at least 2.
        seed: seed of the draws; ``None`` for new ones each time.

    Returns:
        The divergence, of the broadcast batch shape.

    Raises:
        InputError: if the arguments are not distributions over the same outcomes, or ``weights`` are not positive.
    """
    parts = [to_distribution(f"distribution {k}", part) for k, part in enumerate((p, q, *others))]
    batch = torch.broadcast_shapes(
        *(check_comparable(parts[0], part, ("distribution 0", f"distribution {k}")) for k, part in enumerate(parts))
    )
    pi = _normalize_weights(weights, len(parts)).to(device_of(parts[0]))

    def log_joint(x: Tensor) -> Tensor:
        """log π_k p_k(x), ``[K, ...]``."""
        log_probs = torch.broadcast_tensors(*(log_prob(part, x) for part in parts))
        return torch.stack([log_weight + value for log_weight, value in zip(pi.log(), log_probs, strict=True)])

    def information(x: Tensor) -> Tensor:
        """KL(p(k | x) ‖ π) of every x."""
        posterior = log_joint(x).log_softmax(0)
        return expected_value(posterior, posterior - pi.log().view(-1, *(1,) * (posterior.ndim - 1)))

    values = [enumerate_values(part, batch) for part in parts]
    outcomes = max((value for value in values if value is not None), key=len, default=None)
    if outcomes is not None and not any(value is None for value in values):
        exact = expected_value(log_joint(outcomes).logsumexp(0), information(outcomes))
        return Estimate.from_exact(exact.clamp(min=0.0)).expand(batch)
    first = check_seed(seed)
    means = [expectation(part, information, batch, samples, derive(first, k)) for k, part in enumerate(parts)]
    value = sum(weight * mean.value for weight, mean in zip(pi, means, strict=True))
    variance = sum((weight * mean.standard_error).square() for weight, mean in zip(pi, means, strict=True))
    return Estimate(torch.as_tensor(value), torch.as_tensor(variance).sqrt(), False)


def mutual_information(
    joint: DistributionLike,
    *,
    block: int | Sequence[int] | None = None,
    marginals: tuple[Distribution, Distribution] | None = None,
    samples: int = 10_000,
    seed: int | None = 0,
) -> Estimate:
    """I(X; Y) = KL(p(x, y) ‖ p(x) p(y)) = H(X) + H(Y) − H(X, Y), which is 0 if X and Y are independent.

    A table is summed and a Gaussian has ½ log(|Σ_x| |Σ_y| / |Σ|). For other distributions it is estimated by draws: a
    mixture of Gaussians has marginals in closed form, others need ``marginals``.

    Args:
        joint: a table of probabilities ``[..., I, J]``, or a distribution over vectors ``[D]`` that contain x and y.
        block: the coordinates of x, as the number of leading ones or a list of indices; the others are y. ``None`` is
            allowed for vectors of two coordinates.
        marginals: p(x) and p(y); ``None`` for the closed forms.
        samples: number of Monte Carlo draws if there is no closed form, at least 2.
        seed: seed of the draws; ``None`` for new ones each time.

    Returns:
        The mutual information in nats, of the batch shape of ``joint``.

    Raises:
        InputError: if ``joint`` is not a table or a distribution over vectors, ``block`` does not leave coordinates
            for both x and y, or ``marginals`` are needed or do not match the blocks.

    References:
        C. M. Bishop. Pattern Recognition and Machine Learning. 2006, section 1.6.1.
    """
    if not isinstance(joint, Distribution):
        return _mutual_information_of_table(joint)
    joint = to_distribution("joint", joint)
    if len(joint.event_shape) != 1:
        raise InputError(
            f"joint must be a distribution over vectors, event shape [D], got {list(joint.event_shape)}; "
            "pass a discrete joint as a table of probabilities [..., I, J]"
        )
    blocks = [index.to(device_of(joint)) for index in _blocks(block, joint.event_shape[0])]
    gaussian = to_multivariate_normal(joint)
    if gaussian is not None and marginals is None:
        both, x, y = (_log_det(gaussian.covariance_matrix, index) for index in (torch.cat(blocks), *blocks))
        return Estimate.from_exact((0.5 * (x + y - both)).clamp(min=0.0))
    parts = _marginals(joint, blocks, marginals)

    def information(values: Tensor) -> Tensor:
        separate = (log_prob(p, _coordinates(values, index, p)) for p, index in zip(parts, blocks, strict=True))
        return log_prob(joint, values) - sum(separate)

    return expectation(joint, information, joint.batch_shape, samples, seed)


def _exact_entropy(p: Distribution) -> Estimate | None:
    """The entropy if it is a finite sum or torch has a closed form."""
    values = enumerate_values(p, p.batch_shape)
    if values is not None:
        log_p = log_prob(p, values)
        return Estimate.from_exact(expected_value(log_p, -log_p))
    if isinstance(p, Independent):
        parts = _exact_entropy(p.base_dist)
        return None if parts is None else parts.sum(p.reinterpreted_batch_ndims)
    try:
        return Estimate.from_exact(p.entropy())
    except NotImplementedError:
        return None


def _kl(p: Distribution, q: Distribution, batch: torch.Size, samples: int, seed: int | None) -> Estimate:
    """KL(P ‖ Q) of distributions from :func:`to_distribution`."""
    values = enumerate_values(p, batch)
    if values is not None:
        log_p = log_prob(p, values)
        return Estimate.from_exact(expected_value(log_p, log_p - log_prob(q, values)).clamp(min=0.0)).expand(batch)
    if isinstance(p, Independent) and isinstance(q, Independent):
        ndims = p.reinterpreted_batch_ndims
        if ndims == q.reinterpreted_batch_ndims:
            return _kl(p.base_dist, q.base_dist, batch + p.event_shape[:ndims], samples, seed).sum(ndims)
    exact = _closed_form_kl(p, q)
    if exact is not None:
        return Estimate.from_exact(exact.clamp(min=0.0)).expand(batch)
    return infinite_in_tails(p, q, expectation(p, lambda x: log_prob(p, x) - log_prob(q, x), batch, samples, seed))


def _closed_form_kl(p: Distribution, q: Distribution) -> Tensor | None:
    """KL(P ‖ Q) in closed form; ``None`` if there is none."""
    if (type(p), type(q)) in _WRONG_CLOSED_FORMS:
        return None
    if isinstance(p, Independent) or isinstance(q, Independent):
        p, q = to_multivariate_normal(p) or p, to_multivariate_normal(q) or q
    tracked = torch.is_grad_enabled() and any(t.requires_grad for t in (*tensors_of(p), *tensors_of(q)))
    try:
        with torch.enable_grad():  # torch differentiates the log normalizer of some exponential families
            value: Tensor = kl_divergence(p, q)
    except NotImplementedError:
        return None
    if bool(value.isnan().any()):
        return None
    return value if tracked else value.detach()


def _normalize_weights(weights: ArrayLike | Tensor | None, count: int) -> Tensor:
    """Positive weights that sum to 1, ``[count]``."""
    if weights is None:
        return torch.full((count,), 1.0 / count, dtype=torch.float64)
    given = torch.as_tensor(weights, dtype=torch.float64).detach()
    if given.shape != (count,) or not bool(((given > 0.0) & given.isfinite()).all()):
        raise InputError(f"weights must be {count} positive numbers, one per distribution, got {weights!r}")
    return given / given.sum()


def _mutual_information_of_table(joint: Tensor | ArrayLike) -> Estimate:
    """The divergence of a table from the product of its marginals."""
    cells = table_to_categorical("joint", joint, 2)
    probs = cells.probs.unflatten(-1, torch.as_tensor(joint).shape[-2:])
    product = probs.sum(-1, keepdim=True) * probs.sum(-2, keepdim=True)
    return kl(cells, table_to_categorical("joint", product, 2))


def _blocks(block: int | Sequence[int] | None, size: int) -> tuple[Tensor, Tensor]:
    """The indices of x and of y, at least one each."""
    if block is None and size != 2:
        raise InputError(f"block must give the coordinates of x, their number or indices, if there are {size}")
    chosen = list(range(1 if block is None else block)) if block is None or isinstance(block, int) else list(block)
    within = all(isinstance(i, int) and 0 <= i < size for i in chosen)
    if not within or len(set(chosen)) != len(chosen) or not 0 < len(chosen) < size:
        raise InputError(
            f"block must be an integer from 1 to {size - 1}, or a list of as many different indices "
            f"from 0 to {size - 1}, got {block!r}"
        )
    return torch.tensor(chosen), torch.tensor([i for i in range(size) if i not in chosen])


def _log_det(covariance: Tensor, index: Tensor) -> Tensor:
    return torch.logdet(covariance[..., index[:, None], index])


def _marginals(
    joint: Distribution, blocks: Sequence[Tensor], given: tuple[Distribution, Distribution] | None
) -> list[Distribution]:
    """p(x) and p(y), in closed form or as given."""
    if given is None:
        known = [marginal(joint, index) for index in blocks]
        parts = [part for part in known if part is not None]
        if len(parts) != len(blocks):
            raise InputError(f"the marginals of {type(joint).__name__} are not known: pass marginals=(p_x, p_y)")
        return parts
    if len(given) != 2 or not all(isinstance(p, Distribution) for p in given):
        raise InputError("marginals must be two torch distributions, p(x) and p(y)")
    for p, index, name in zip(given, blocks, "xy", strict=True):
        if p.event_shape.numel() != len(index):
            raise InputError(
                f"marginals must match the blocks: {name} has {len(index)} coordinates, "
                f"but its marginal has event shape {list(p.event_shape)}"
            )
    return [to_distribution("marginals", p) for p in given]


def _coordinates(values: Tensor, index: Tensor, p: Distribution) -> Tensor:
    """The coordinates ``index`` of ``values [..., D]`` as an event of ``p``, which may be scalar."""
    part = values[..., index]
    return part if p.event_shape else part.squeeze(-1)
