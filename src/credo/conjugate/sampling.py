"""Expectations by sampling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from credo._estimate import Estimate
from credo.errors import InputError
from credo.seeding import seeded


def expectation(
    f: Callable[[Any], Tensor],
    distribution: Distribution,
    *,
    samples: int = 10_000,
    seed: int | None = None,
    proposal: Distribution | None = None,
) -> Estimate:
    """E[f(z)] as the mean of f over independent draws, with its standard error (Bishop 11.1–11.3).

        E[f] ≈ (1/L) Σ f(z_l),    standard error √(Var[f] / L)

    The error falls as 1/√L whatever the dimension of z. With a ``proposal`` q the draws come from q and are weighted by
    p(z)/q(z) (importance sampling, Bishop 11.19): for an f that is large where p has few draws.

    Args:
        f: takes draws ``[L, ...]``, all at once, and returns values ``[L, ...]``.
        distribution: p, of z.
        samples: L.
        seed: fixes the draws; torch's own random state is used where it is ``None``.
        proposal: q; positive wherever f(z)p(z) is not 0.
    """
    if samples < 2:
        raise InputError(f"samples must be at least 2, so that their spread gives the error, got {samples}")
    source = distribution if proposal is None else proposal
    # A distribution does not say where its draws lie; on a GPU only if one is in use.
    with seeded(seed, torch.device("cuda" if torch.cuda.is_initialized() else "cpu")):
        z = source.sample(torch.Size([samples]))
    values = torch.as_tensor(f(z))
    if values.ndim == 0 or len(values) != samples:
        raise InputError(f"f must return one value a draw, shape [{samples}, ...], got {list(values.shape)}")
    if proposal is not None:
        weights = (distribution.log_prob(z) - proposal.log_prob(z)).exp()
        values = values * weights.reshape(*weights.shape, *[1] * (values.ndim - weights.ndim))
    undefined = int(values.isnan().sum())
    if undefined:
        raise InputError(f"f is not a number for {undefined} of its values: it must be defined wherever z can fall")
    return Estimate.from_samples(values)
