"""One pass over the rows: how they are shared among the components, and what they add up to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import torch
from torch import Tensor

from credo._rows import Rows
from credo.mixture.components import Components, Sums

Kind = TypeVar("Kind", bound=Components)


@dataclass(frozen=True, eq=False)
class Shared(Generic[Kind]):
    """What a pass has found.

    Attributes:
        components: from which the rows were measured.
        sums: of the rows, by their responsibilities.
        total: Σ_n of what the rule gives for each row.
    """

    components: Kind
    sums: Sums
    total: float


Rule = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Squared distances ``[K, b]`` to responsibilities ``[K, b]`` and a number for each row ``[b]``."""


def share(rows: Rows, components: Kind, rule: Rule) -> Shared[Kind]:
    """Give every row to the components by ``rule``, in blocks that stay in the cache."""

    def add_up(x: Tensor) -> tuple[Tensor, ...]:
        measured = components.measure(x)
        responsibilities, number = rule(measured.squared_distances)
        sums = measured.sums(responsibilities)
        return sums.count, sums.first, sums.second, number.sum()

    *sums, total = rows.total(add_up, components.numbers_per_row)
    return Shared(components, Sums(*sums), float(total))


def expect(rows: Rows, components: Kind, log_scale: Tensor) -> Shared[Kind]:
    """The E-step: r_nk ∝ ρ_nk = exp(s_k − ½ d²_nk) with ``log_scale`` s ``[K]``; the total is Σ_n log Σ_k ρ_nk."""
    return share(rows, components, partial(_softly, log_scale=log_scale))


def to_nearest(squared_distances: Tensor) -> tuple[Tensor, Tensor]:
    """Every row to the component nearest to it; the number is the entropy of that, 0."""
    responsibilities = torch.zeros_like(squared_distances)
    responsibilities.scatter_(0, squared_distances.argmin(0, keepdim=True), 1.0)
    return responsibilities, squared_distances.new_zeros(())


def at_random(generator: torch.Generator) -> Rule:
    """Every row to all components in random shares; the number is their entropy."""

    def rule(squared_distances: Tensor) -> tuple[Tensor, Tensor]:
        draws = torch.rand(squared_distances.T.shape, generator=generator, dtype=torch.float64)
        responsibilities = (draws / draws.sum(1, keepdim=True)).T.to(squared_distances.device)
        return responsibilities, torch.special.entr(responsibilities).sum(0)

    return rule


def _softly(squared_distances: Tensor, log_scale: Tensor) -> tuple[Tensor, Tensor]:
    """Responsibilities and log Σ_k ρ_nk, with one exponential for each."""
    logits = torch.add(log_scale[:, None], squared_distances, alpha=-0.5)
    top = logits.amax(0)
    responsibilities = logits.sub_(top).exp_()
    total = responsibilities.sum(0)
    return responsibilities.div_(total), top + total.log()
