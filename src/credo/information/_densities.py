"""Log densities that are −∞ outside the support and at outcomes of probability 0, draws in float64, expectations.

``log_prob`` of torch raises outside the support, or extrapolates if checks are off, and gives an outcome of probability
0 the logarithm of the machine epsilon. Here both have log probability −∞, so that a divergence is infinite exactly
where it should be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import singledispatch
from typing import Any, TypeAlias

import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.distributions import (
    Bernoulli,
    Binomial,
    Categorical,
    Distribution,
    Independent,
    MixtureSameFamily,
    OneHotCategorical,
    constraints,
)

from credo._arguments import check_integer
from credo._estimate import Estimate
from credo.errors import InputError
from credo.information._closed_forms import is_infinite_in_tails
from credo.priors import move_prior
from credo.seeding import check_seed, seeded

DistributionLike: TypeAlias = Distribution | Tensor | ArrayLike
"""A torch distribution, or a table of probabilities ``[..., K]``."""

_SUM_TOLERANCE = 1e-5  # rounding of the sum of thousands of probabilities in float32


def to_distribution(name: str, p: Any) -> Distribution:
    """Copy a distribution, or a table of probabilities ``[..., K]``, in float64 and without argument checks."""
    if not isinstance(p, Distribution):
        return table_to_categorical(name, p, 1)
    return move_prior(p, device_of(p), torch.float64)


def table_to_categorical(name: str, probabilities: Any, ndims: int) -> Categorical:
    """Convert a table whose last ``ndims`` dimensions sum to 1 to a distribution over its cells in row order."""
    try:
        values = torch.as_tensor(probabilities)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"{name} must be a torch Distribution or a table of probabilities, got {type(probabilities).__name__}"
        ) from error
    if values.ndim < ndims or values.is_complex():
        kind = "[..., K]" if ndims == 1 else "[..., I, J]"
        raise InputError(f"{name} must be a table of probabilities {kind}, got shape {list(values.shape)}")
    flat = values.double().flatten(-ndims)
    if flat.shape[-1] == 0 or not bool((flat >= 0.0).all()):
        raise InputError(f"{name} must be probabilities of at least 0, got negative values, NaN or an empty table")
    totals = flat.sum(-1)
    if not bool(((totals - 1.0).abs() < _SUM_TOLERANCE).all()):
        raise InputError(f"{name} must sum to 1, got {totals.flatten()[0].item():g}: divide by its sum")
    return Categorical(logits=flat.log(), validate_args=False)


def draw_samples(p: Distribution, samples: int, seed: int | None, batch: torch.Size) -> Tensor:
    """Draw from ``p``, in a shape that broadcasts with ``batch``.

    Args:
        p: a distribution from :func:`to_distribution`.
        samples: number of draws, at least 2.
        seed: seed of the draws; ``None`` for a new one. torch's global random state is kept.
        batch: shape with which the batch shape of ``p`` broadcasts.

    Returns:
        ``[samples, 1, ..., *p.batch_shape, *event]``, with ``len(batch)`` dimensions between samples and event.
    """
    samples = check_integer(samples, "samples", minimum=2)
    with torch.no_grad(), seeded(check_seed(seed), device_of(p)):
        x = p.sample(torch.Size((samples,)))
    x = x.double() if x.is_floating_point() else x
    return x.reshape(len(x), *(1,) * (len(batch) - len(p.batch_shape)), *x.shape[1:])


def expectation(
    p: Distribution, function: Callable[[Tensor], Tensor], batch: torch.Size, samples: int, seed: int | None
) -> Estimate:
    """E_p[f(x)] by Monte Carlo, for every member of ``batch``."""
    with torch.no_grad():
        return Estimate.from_samples(function(draw_samples(p, samples, seed, batch))).expand(batch)


def expected_value(log_p: Tensor, values: Tensor) -> Tensor:
    """Σ_k p_k v_k over the first dimension, where p_k = 0 contributes 0 for any v_k."""
    return (log_p.exp() * torch.where(log_p == -torch.inf, 0.0, values)).sum(0)


def infinite_in_tails(p: Distribution, q: Distribution, drawn: Estimate) -> Estimate:
    """An estimate that is infinite where E_p[−log q(x)] is, set to infinity where the tails make that so."""
    infinite = is_infinite_in_tails(p, q)
    if infinite is None:
        return drawn
    value = torch.where(infinite, torch.inf, drawn.value)
    return Estimate(value, torch.where(infinite, 0.0, drawn.standard_error), drawn.exact)


def enumerate_values(p: Distribution, batch: torch.Size) -> Tensor | None:
    """All values of a finite discrete distribution, ``[K, 1, ..., *event]``; ``None`` for other distributions."""
    ones = (1,) * len(batch)
    if isinstance(p, OneHotCategorical):
        size = p.event_shape[0]
        return torch.eye(size, dtype=p.probs.dtype, device=p.probs.device).view(size, *ones, size)
    categorical = to_categorical(p)
    if categorical is None:
        return None
    logits = categorical.logits
    return torch.arange(logits.shape[-1], dtype=logits.dtype, device=logits.device).view(-1, *ones)


@singledispatch
def to_categorical(p: Distribution) -> Categorical | None:
    """Convert a distribution over 0, …, K − 1; impossible outcomes have logit −∞. ``None`` for other distributions."""
    return None


@to_categorical.register
def _(p: Categorical) -> Categorical:
    return _categorical(_exact_logits(p.probs, p.logits))


@to_categorical.register
def _(p: Bernoulli) -> Categorical:
    return _categorical(_two_outcomes(p.probs, p.logits))


@to_categorical.register
def _(p: Binomial) -> Categorical:
    n = p.total_count.unsqueeze(-1)
    k = torch.arange(int(n.max()) + 1, dtype=p.logits.dtype, device=p.logits.device)
    failure, success = _two_outcomes(p.probs, p.logits).unsqueeze(-2).unbind(-1)
    ways = torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma((n - k).clamp(min=0) + 1)
    return _categorical(torch.where(k > n, -torch.inf, ways + _times(k, success) + _times(n - k, failure)))


@to_categorical.register
def _(p: MixtureSameFamily) -> Categorical | None:
    components, weights = to_categorical(p.component_distribution), to_categorical(p.mixture_distribution)
    if components is None or weights is None:
        return None
    return _categorical(torch.logsumexp(weights.logits.unsqueeze(-1) + components.logits, -2))


def _exact_logits(probs: Tensor, logits: Tensor) -> Tensor:
    """Logits with −∞ for outcomes of probability 0.

    A small logit from the user is correct; one that torch computed from a probability of 0 has a softmax above 0.
    """
    return torch.where((probs == 0.0) & (logits.softmax(-1) > 0.0), -torch.inf, logits)


def _two_outcomes(probs: Tensor, logits: Tensor) -> Tensor:
    """log(1 − p) and log p of a Bernoulli variable, ``[..., 2]``, with −∞ as in :func:`_exact_logits`."""
    never = (probs == 0.0) & (logits.sigmoid() > 0.0)
    always = (probs == 1.0) & (logits.sigmoid() < 1.0)
    exact = torch.where(never, -torch.inf, torch.where(always, torch.inf, logits))
    return torch.nn.functional.logsigmoid(torch.stack([-exact, exact], -1))


def _categorical(logits: Tensor) -> Categorical:
    return Categorical(logits=logits, validate_args=False)


def _times(count: Tensor, log_probability: Tensor) -> Tensor:
    """``count`` times ``log_probability``, where 0 times −∞ is 0."""
    return torch.where(count == 0, 0.0, count * log_probability)


@singledispatch
def log_prob(p: Distribution, x: Tensor) -> Tensor:
    """log p(x) of a distribution from :func:`to_distribution`, −∞ where p is 0; ``x`` is ``[..., *batch, *event]``."""
    density = to_categorical(p) or p
    support = support_of(density)
    if support is None:
        return density.log_prob(x)
    inside = support.check(x)
    if not bool(inside.all()):
        with seeded(0, device_of(p)):  # any value in the support, to evaluate the density without NaN
            filler = density.sample()
        x = torch.where(inside.reshape(inside.shape + (1,) * len(p.event_shape)), x, filler)
    return torch.where(inside, density.log_prob(x), -torch.inf)


@log_prob.register
def _(p: OneHotCategorical, x: Tensor) -> Tensor:
    chosen = _categorical(_exact_logits(p.probs, p.logits)).log_prob(x.argmax(-1))
    return torch.where(p.support.check(x), chosen, -torch.inf)


@log_prob.register(Independent)
def _(p: Independent[Any], x: Tensor) -> Tensor:
    ndims = p.reinterpreted_batch_ndims
    parts = log_prob(p.base_dist, x)
    return parts.sum(tuple(range(-ndims, 0))) if ndims else parts


@log_prob.register
def _(p: MixtureSameFamily, x: Tensor) -> Tensor:
    # torch's support of a mixture is the intersection of those of its components; here it is the union
    weights = to_categorical(p.mixture_distribution)
    assert weights is not None
    parts = log_prob(p.component_distribution, x.unsqueeze(-1 - len(p.event_shape)))
    return torch.logsumexp(parts + weights.logits, -1)


def check_comparable(p: Distribution, q: Distribution, names: tuple[str, str] = ("p", "q")) -> torch.Size:
    """Return the shared batch shape of two distributions; ``InputError`` if they are not over the same outcomes."""
    if p.event_shape != q.event_shape:
        raise InputError(
            f"{names[0]} and {names[1]} must have the same event shape, "
            f"got {list(p.event_shape)} and {list(q.event_shape)}"
        )
    if isinstance(p, Categorical) and isinstance(q, Categorical) and p.probs.shape[-1] != q.probs.shape[-1]:
        raise InputError(
            f"{names[0]} and {names[1]} must have the same outcomes, got {p.probs.shape[-1]} and {q.probs.shape[-1]}"
        )
    kinds = {is_discrete(p), is_discrete(q)} - {None}
    if len(kinds) == 2:
        raise InputError(
            f"{names[0]} and {names[1]} must both be discrete or both continuous: probabilities and densities "
            "cannot be compared"
        )
    try:
        return torch.Size(torch.broadcast_shapes(p.batch_shape, q.batch_shape))
    except RuntimeError as error:
        raise InputError(
            f"{names[0]} and {names[1]} must have batch shapes that broadcast, "
            f"got {list(p.batch_shape)} and {list(q.batch_shape)}"
        ) from error


def support_of(p: Distribution) -> constraints.Constraint | None:
    """The support of a distribution; ``None`` if it is not defined."""
    try:
        return p.support
    except NotImplementedError:
        return None


def is_discrete(p: Distribution) -> bool | None:
    """Whether the values are discrete; ``None`` if the support is not defined."""
    support = support_of(p)
    return None if support is None else bool(support.is_discrete)


def device_of(p: Distribution) -> torch.device:
    """The device of the parameters; the CPU if there are none."""
    return next((tensor.device for tensor in tensors_of(p)), torch.device("cpu"))


def tensors_of(p: Distribution) -> Iterator[Tensor]:
    """The tensors of a distribution and of the distributions inside it."""
    for value in vars(p).values():
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, Distribution):
            yield from tensors_of(value)
