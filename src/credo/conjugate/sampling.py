"""Expectations by Monte Carlo and importance sampling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from credo._arguments import check_integer
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
    """Estimate E[f(z)] by the mean of f over independent draws (Bishop 11.1–11.3).

        E[f] ≈ (1/L) Σ f(z_l),    standard error √(Var[f] / L)

    The error decreases as 1/√L in any dimension. With a ``proposal`` q the draws come from q and are weighted by
    p(z)/q(z) (importance sampling, Bishop 11.19): use it if f is large where p has few draws.

    Args:
        f: function of all draws ``[L, ...]`` at once that returns values ``[L, ...]``.
        distribution: p, the distribution of z.
        samples: L, at least 2.
        seed: seed of the draws; ``None`` uses torch's global random state.
        proposal: q, positive wherever f(z)p(z) is not 0; ``None`` draws from p.

    Returns:
        The mean with its standard error, of the shape of one value of f.

    Raises:
        InputError: if ``samples`` is below 2, or f does not return one defined value per draw.

    Example:
        >>> import torch
        >>> from credo.conjugate import expectation
        >>> second_moment = expectation(torch.square, torch.distributions.Normal(0.0, 1.0), seed=0)
        >>> abs(float(second_moment) - 1.0) < 5 * float(second_moment.standard_error)
        True
    """
    samples = check_integer(samples, "samples", minimum=2)
    source = distribution if proposal is None else proposal
    # the device of the draws is not known before drawing: seed the GPU too if one is in use
    with seeded(seed, torch.device("cuda" if torch.cuda.is_initialized() else "cpu")):
        z = source.sample(torch.Size([samples]))
    values = torch.as_tensor(f(z))
    if values.ndim == 0 or len(values) != samples:
        raise InputError(f"f must return one value per draw, shape [{samples}, ...], got {list(values.shape)}")
    if proposal is not None:
        weights = (distribution.log_prob(z) - proposal.log_prob(z)).exp()
        values = values * weights.reshape(*weights.shape, *[1] * (values.ndim - weights.ndim))
    undefined = int(values.isnan().sum())
    if undefined:
        raise InputError(f"f returned NaN for {undefined} of its values: it must be defined for every z")
    return Estimate.from_samples(values)
