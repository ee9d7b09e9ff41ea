"""Which expectations are infinite because of tails that no finite number of draws shows.

E_p[−log q(x)] is infinite where P(|x| > t) falls as t^−ν and −log q(x) grows as |x|^k with k ≥ ν. Both exponents are
known for the distributions that people meet; for any other nothing is said.
"""

from __future__ import annotations

import math
from functools import singledispatch
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import (
    Cauchy,
    Distribution,
    Exponential,
    FisherSnedecor,
    Gamma,
    Gumbel,
    HalfCauchy,
    HalfNormal,
    Independent,
    Laplace,
    LowRankMultivariateNormal,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
    Pareto,
    StudentT,
    Weibull,
)


class Sides(NamedTuple):
    """An exponent below and one above, ``[...]`` each, of the batch shape."""

    below: Tensor
    above: Tensor


def is_infinite(p: Distribution, q: Distribution) -> Tensor | None:
    """Where E_p[−log q(x)] is known to be infinite by the tails, of the batch shape; ``None`` where nothing is."""
    tails, growth = tail_exponents(p), growth_exponents(q)
    if tails is None or growth is None:
        return None
    below, above = (tail.isfinite() & (k >= tail) for tail, k in zip(tails, growth, strict=True))
    return below | above


@singledispatch
def tail_exponents(p: Distribution) -> Sides | None:
    """ν of P(x < −t) and of P(x > t), ∞ where there is no such tail; ``None`` where that is not known."""
    return None


@tail_exponents.register
def _(p: StudentT) -> Sides:
    return Sides(p.df, p.df)


@tail_exponents.register
def _(p: Cauchy) -> Sides:
    return Sides(torch.ones_like(p.scale), torch.ones_like(p.scale))


@tail_exponents.register
def _(p: HalfCauchy) -> Sides:
    return Sides(torch.full_like(p.scale, math.inf), torch.ones_like(p.scale))


@tail_exponents.register
def _(p: Pareto) -> Sides:
    return Sides(torch.full_like(p.alpha, math.inf), p.alpha)


@tail_exponents.register
def _(p: FisherSnedecor) -> Sides:
    return Sides(torch.full_like(p.df2, math.inf), 0.5 * p.df2)


@tail_exponents.register(Independent)
def _(p: Independent[Any]) -> Sides | None:
    parts = tail_exponents(p.base_dist)
    dims = tuple(range(-p.reinterpreted_batch_ndims, 0))
    return parts if parts is None or not dims else Sides(*(side.amin(dims) for side in parts))


@tail_exponents.register(MixtureSameFamily)
def _(p: MixtureSameFamily) -> Sides | None:
    return _least(p, tail_exponents(p.component_distribution))


@singledispatch
def growth_exponents(q: Distribution) -> Sides | None:
    """k of −log q(x) as x → −∞ and as x → ∞, ∞ where it grows faster; ``None`` where that is not known.

    Beyond an end of the support draws show what is infinite, so nothing has to be said there.
    """
    return None


@growth_exponents.register(Normal)
@growth_exponents.register(HalfNormal)
def _(q: Normal | HalfNormal) -> Sides:
    return Sides(torch.full_like(q.scale, 2.0), torch.full_like(q.scale, 2.0))


@growth_exponents.register(MultivariateNormal)
@growth_exponents.register(LowRankMultivariateNormal)
def _(q: MultivariateNormal | LowRankMultivariateNormal) -> Sides:
    two = torch.full_like(q.loc[..., 0], 2.0)
    return Sides(two, two)


@growth_exponents.register(Laplace)
def _(q: Laplace) -> Sides:
    return Sides(torch.ones_like(q.scale), torch.ones_like(q.scale))


@growth_exponents.register(Exponential)
@growth_exponents.register(Gamma)
def _(q: Exponential | Gamma) -> Sides:
    return Sides(torch.zeros_like(q.rate), torch.ones_like(q.rate))


@growth_exponents.register
def _(q: Weibull) -> Sides:
    return Sides(torch.zeros_like(q.scale), q.concentration)


@growth_exponents.register
def _(q: Gumbel) -> Sides:
    return Sides(torch.full_like(q.scale, math.inf), torch.ones_like(q.scale))


@growth_exponents.register(MixtureSameFamily)
def _(q: MixtureSameFamily) -> Sides | None:
    return _least(q, growth_exponents(q.component_distribution))


def _least(mixture: MixtureSameFamily, parts: Sides | None) -> Sides | None:
    """The exponents of the heaviest of the components that a mixture has, which are its own."""
    if parts is None:
        return None
    out = mixture.mixture_distribution.probs == 0.0
    return Sides(*(torch.where(out, math.inf, side).amin(-1) for side in parts))
