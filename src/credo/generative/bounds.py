"""Lower bounds of log p(x) for a latent-variable model with prior N(0, I), datum by datum, in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TypeAlias

import torch
from torch import Tensor
from torch.distributions import Independent, Normal, kl_divergence

from credo.generative.decoders import Decoder

Latent: TypeAlias = "Independent[Normal]"

NUMBERS_AT_ONCE = 2**22
"""Numbers of decoded data held at once."""


def diagonal(mean: Tensor, scale: Tensor) -> Latent:
    """N(mean, diag scale²) over the last dimension; not validated, which would make a GPU wait."""
    return Independent(Normal(mean, scale, validate_args=False), 1, validate_args=False)


def prior_like(q: Latent) -> Latent:
    """N(0, I), of the shape, dtype and device of ``q``."""
    return diagonal(torch.zeros_like(q.mean), torch.ones_like(q.mean))


def divergence(q: Latent) -> Tensor:
    """KL(q ‖ N(0, I)) of every datum in closed form, ``[B]``."""
    kl: Tensor = kl_divergence(q, prior_like(q))
    return kl


def sampled_divergence(q: Latent, z: Tensor) -> Tensor:
    """log q(z | x) − log p(z) for ``z [S, B, latent]``, ``[S, B]``; under z ~ q its mean is the KL."""
    ratio: Tensor = q.log_prob(z) - prior_like(q).log_prob(z)
    return ratio


def elbo(decoder: Decoder, x: Tensor, q: Latent, samples: int) -> Tensor:
    """E_q[log p(x | z)] − KL(q ‖ p) from ``samples`` draws, ``[B]``."""
    total = torch.zeros_like(q.mean[:, 0])
    for count in _portions(x, samples):
        total = total + decoder.log_prob(x, q.rsample((count,))).sum(0)
    return total / samples - divergence(q)


def importance_weighted(decoder: Decoder, x: Tensor, q: Latent, samples: int) -> Tensor:
    """log (1/K) Σ_k p(x, z_k)/q(z_k | x) from K = ``samples`` draws, ``[B]``."""
    log_sums = []
    for count in _portions(x, samples):
        z = q.rsample((count,))
        log_weights = decoder.log_prob(x, z) - sampled_divergence(q, z)
        log_sums.append(log_weights.double().logsumexp(0))
    bound = torch.stack(log_sums).logsumexp(0) - math.log(samples)
    return bound.to(q.mean.dtype)


def _portions(x: Tensor, samples: int) -> Iterator[int]:
    """How many sets of codes of ``x`` to decode at once, until there were ``samples``."""
    size = max(NUMBERS_AT_ONCE // max(x.numel(), 1), 1)
    for start in range(0, samples, size):
        yield min(size, samples - start)
