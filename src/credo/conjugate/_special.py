"""Probabilities of sequences and counts whose distribution is integrated out over a Dirichlet."""

from __future__ import annotations

from torch import Tensor

from credo._special import log_negative_binomial, log_poisson, log_rising


def log_sequence_probability(concentration: Tensor, counts: Tensor) -> Tensor:
    """The log probability of a sequence of draws with these counts, its distribution integrated out over a Dirichlet.

    log ∫ ∏ₖ μₖ^mₖ Dir(μ | α) dμ = Σₖ [log Γ(αₖ + mₖ) − log Γ(αₖ)] − [log Γ(Σα + Σm) − log Γ(Σα)]

    Args:
        concentration: α, ``[..., K]``.
        counts: m, ``[..., K]``.
    """
    separate = log_rising(concentration, counts).sum(-1)
    return separate - log_rising(concentration.sum(-1), counts.sum(-1))


def log_dirichlet_multinomial(concentration: Tensor, counts: Tensor) -> Tensor:
    """The log probability of the counts m themselves, in any order: that of a sequence times (Σm)!/∏ₖ mₖ!.

    Independent negative binomials of one scale s, given their sum, are Dirichlet-multinomial whatever s is. With
    s = Σm/Σα all are near their means, and no term is large beside the result:

        Σₖ log NB(mₖ | αₖ, s) − log NB(Σm | Σα, s)

    Args:
        concentration: α, ``[..., K]``.
        counts: m, ``[..., K]``.
    """
    total, strength = counts.sum(-1), concentration.sum(-1)
    scale = total / strength
    separate = log_negative_binomial(counts, concentration, scale.unsqueeze(-1)).sum(-1)
    return separate - log_negative_binomial(total, strength, scale)


def log_pooled_multinomial(counts: Tensor) -> Tensor:
    """The log probability of the rows of counts ``[N, ..., K]`` given their sum over rows, ``[...]``.

    With n the total of a row and M the sum over rows, ∏ᵢ n!/∏ₖ mᵢₖ! over (Nn)!/∏ₖ Mₖ!, whatever the probabilities are.
    With the pooled shares M/Nn every factor is a ratio of Poisson probabilities near their mode:

        n!/∏ₖ mₖ! ∏ₖ pₖ^mₖ = ∏ₖ Poisson(mₖ | npₖ) / Poisson(n | n)
    """
    pooled = counts.sum(0)
    shares = pooled / pooled.sum(-1, keepdim=True).clamp(min=1.0)
    return _log_multinomial(counts, shares).sum(0) - _log_multinomial(pooled, shares)


def log_poisson_at(count: Tensor, rate: Tensor) -> Tensor:
    """log Poisson(k | λ) by the rate; 0 where both are 0."""
    return log_poisson(count, rate.log(), rate)


def _log_multinomial(counts: Tensor, shares: Tensor) -> Tensor:
    total = counts.sum(-1)
    return log_poisson_at(counts, total.unsqueeze(-1) * shares).sum(-1) - log_poisson_at(total, total)
