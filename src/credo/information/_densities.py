"""Densities that are right where torch's are not asked: outside the support, and at outcomes of probability 0.

``log_prob`` of torch raises outside the support, or extrapolates where checks are off, and gives an outcome of
probability 0 the logarithm of the machine epsilon. Here both have log probability −∞, so that a divergence is infinite
exactly where it should be.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import singledispatch
from typing import Any

import numpy as np
import torch
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

from credo.errors import InputError
from credo.priors import moved
from credo.seeding import check_seed, seeded

_SUM_TOLERANCE = 1e-5  # of probabilities in single precision, thousands of them


def prepared(name: str, p: Any) -> Distribution:
    """A float64 copy of a distribution, or of a table of probabilities ``[..., K]``, that skips argument checks."""
    if not isinstance(p, Distribution):
        return table(name, p, 1)
    return moved(p, device_of(p), torch.float64)


def table(name: str, probabilities: Any, ndims: int) -> Categorical:
    """A table whose last ``ndims`` dimensions sum to 1, as a distribution over its cells in row order."""
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
        raise InputError(f"{name} must hold probabilities, 0 or more each, got some that are negative, NaN or none")
    totals = flat.sum(-1)
    if not bool(((totals - 1.0).abs() < _SUM_TOLERANCE).all()):
        raise InputError(f"{name} must sum to 1, got {totals.flatten()[0].item():g}: divide by its sum")
    return Categorical(logits=flat.log(), validate_args=False)


def draws(p: Distribution, samples: int, seed: int | None, batch: torch.Size) -> Tensor:
    """``samples`` draws, to be seen from ``batch``, with which the batch shape of ``p`` broadcasts.

    Their shape is ``[samples, 1, ..., *p.batch_shape, *event]``, with ``len(batch)`` dimensions in the middle. With a
    seed, torch's own random state is not touched.
    """
    if isinstance(samples, bool) or not isinstance(samples, int | np.integer) or samples < 2:
        raise InputError(f"samples must be 2 or more, so that there is a standard error, got {samples!r}")
    with torch.no_grad(), seeded(check_seed(seed), device_of(p)):
        x = p.sample(torch.Size((int(samples),)))
    x = x.double() if x.is_floating_point() else x
    return x.reshape(len(x), *(1,) * (len(batch) - len(p.batch_shape)), *x.shape[1:])


def enumerated(p: Distribution, batch: torch.Size) -> Tensor | None:
    """All values of a distribution that has finitely many, ``[K, 1, ..., *event]``, as in :func:`draws`."""
    ones = (1,) * len(batch)
    if isinstance(p, OneHotCategorical):
        size = p.event_shape[0]
        return torch.eye(size, dtype=p.probs.dtype, device=p.probs.device).view(size, *ones, size)
    numbers = finite(p)
    if numbers is None:
        return None
    logits = numbers.logits
    return torch.arange(logits.shape[-1], dtype=logits.dtype, device=logits.device).view(-1, *ones)


@singledispatch
def finite(p: Distribution) -> Categorical | None:
    """A distribution over 0, …, K − 1 as a Categorical whose impossible outcomes have logit −∞; else ``None``."""
    return None


@finite.register
def _(p: Categorical) -> Categorical:
    return _categorical(_exact_logits(p.probs, p.logits))


@finite.register
def _(p: Bernoulli) -> Categorical:
    return _categorical(_two_outcomes(p.probs, p.logits))


@finite.register
def _(p: Binomial) -> Categorical:
    n = p.total_count.unsqueeze(-1)
    k = torch.arange(int(n.max()) + 1, dtype=p.logits.dtype, device=p.logits.device)
    failure, success = _two_outcomes(p.probs, p.logits).unsqueeze(-2).unbind(-1)
    ways = torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma((n - k).clamp(min=0) + 1)
    return _categorical(torch.where(k > n, -torch.inf, ways + _times(k, success) + _times(n - k, failure)))


@finite.register
def _(p: MixtureSameFamily) -> Categorical | None:
    components, weights = finite(p.component_distribution), finite(p.mixture_distribution)
    if components is None or weights is None:
        return None
    return _categorical(torch.logsumexp(weights.logits.unsqueeze(-1) + components.logits, -2))


def _exact_logits(probs: Tensor, logits: Tensor) -> Tensor:
    """Logits with −∞ for an outcome of probability 0.

    A logit that was given, however small, is right; one that torch made of a probability 0 has a softmax above 0.
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
    """``count`` times ``log_probability``, where none of −∞ is 0."""
    return torch.where(count == 0, 0.0, count * log_probability)


@singledispatch
def log_prob(p: Distribution, x: Tensor) -> Tensor:
    """log p(x) of a prepared distribution, −∞ wherever p is 0; ``x`` is ``[..., *batch, *event]``."""
    numbers = finite(p)
    density = p if numbers is None else numbers
    support = support_of(density)
    if support is None:
        return density.log_prob(x)
    inside = support.check(x)
    if not bool(inside.all()):
        with seeded(0, device_of(p)):  # any value inside will do, where the density itself cannot be evaluated
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
    # torch takes the support of a mixture to be what its components share.
    weights = finite(p.mixture_distribution)
    assert weights is not None
    parts = log_prob(p.component_distribution, x.unsqueeze(-1 - len(p.event_shape)))
    return torch.logsumexp(parts + weights.logits, -1)


def check_alike(p: Distribution, q: Distribution, names: tuple[str, str] = ("p", "q")) -> torch.Size:
    """The batch shape of two distributions over the same things, or an error that says how they differ."""
    if p.event_shape != q.event_shape:
        raise InputError(
            f"{names[0]} and {names[1]} must be over events of one shape, "
            f"got {list(p.event_shape)} and {list(q.event_shape)}"
        )
    if isinstance(p, Categorical) and isinstance(q, Categorical) and p.probs.shape[-1] != q.probs.shape[-1]:
        raise InputError(
            f"{names[0]} and {names[1]} must have the same outcomes, got {p.probs.shape[-1]} and {q.probs.shape[-1]}"
        )
    kinds = {is_discrete(p), is_discrete(q)} - {None}
    if len(kinds) == 2:
        raise InputError(
            f"{names[0]} and {names[1]} must both be discrete or both continuous: a probability and a density "
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
    """Where the density is positive, if the distribution says so."""
    try:
        return p.support
    except NotImplementedError:
        return None


def is_discrete(p: Distribution) -> bool | None:
    """Whether the values can be counted, if the distribution says so."""
    support = support_of(p)
    return None if support is None else bool(support.is_discrete)


def device_of(p: Distribution) -> torch.device:
    """Where the parameters lie; the CPU where there are none."""
    return next((tensor.device for tensor in parameters(p)), torch.device("cpu"))


def parameters(p: Distribution) -> Iterator[Tensor]:
    """The tensors that a distribution and those inside it are made of."""
    for value in vars(p).values():
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, Distribution):
            yield from parameters(value)
