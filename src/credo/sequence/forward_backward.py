"""Forward–backward for hidden Markov chains, in log space and for many sequences at once.

With emissions b_t(j) = p(x_t | z_t = j) and transitions A, both recursions have one form,

    α_t(j) = b_t(j) Σ_i α_{t−1}(i) A_ij,             α_1(j) = π_j b_1(j)        from the beginning,
    γ_t(j) = b_t(j) Σ_i γ_{t+1}(i) A_ji,             γ_T(j) = b_T(j)            from the end,

where γ_t = b_t β_t of the textbooks. They run together, one step for all sequences and both directions, and

    p(z_t = j | x) ∝ α_t(j) γ_t(j) / b_t(j),    p(z_{t−1} = i, z_t = j | x) ∝ α_{t−1}(i) A_ij γ_t(j).

Emissions are taken relative to the largest of their row, which cancels in both: the density of a row far from all
states would leave no digits for those of the other rows.

References:
    L. R. Rabiner. A tutorial on hidden Markov models and selected applications in speech recognition. 1989.
    C. M. Bishop. Pattern Recognition and Machine Learning. 2006, section 13.2.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from credo.sequence.layout import Layout, cut

LEAST_REGULAR = 1e-200
"""A chain whose transitions are all larger needs no care in its sums: see :meth:`Chain.advance`."""
_BLOCK = 2**20
_LONG = 256
_FEW = 2**11


@dataclass(frozen=True, eq=False)
class Chain:
    """p(z_1) and p(z_t | z_{t−1}).

    Attributes:
        start: π, ``[K]``.
        transition: A, ``[K, K]``, from the state of its row to that of its column.
    """

    start: Tensor
    transition: Tensor

    @property
    def states(self) -> int:
        """K."""
        return len(self.start)

    @cached_property
    def both(self) -> Tensor:
        """A for the way forward and Aᵀ for the way back, ``[2, K, K]``."""
        return torch.stack((self.transition, self.transition.mT))

    @cached_property
    def entries(self) -> Tensor:
        """How a state is reached, in logs, ``[2, K + 1, K]``: from each state, or, in the last row, from nowhere."""
        ends = torch.stack((self.start, torch.ones_like(self.start)))
        return torch.cat((self.both, ends.unsqueeze(1)), 1).log()

    @cached_property
    def regular(self) -> bool:
        """Whether no transition is so improbable that states apart by more than float64 reaches could matter."""
        return bool((self.transition > LEAST_REGULAR).all())

    def advance(self, messages: Tensor) -> Tensor:
        """log Σ_i exp(m(i)) A_ij for messages ``[2, n, ..., K]`` of both directions.

        For a regular chain this is a product of matrices, relative to the largest entry of each message. What that
        loses lies below e⁻⁷⁴⁵ of it, and every entry of the result above 10⁻²⁰⁰: nothing.
        """
        if not self.regular:
            shape = (2, *[1] * (messages.ndim - 2), self.states, self.states)
            return torch.logsumexp(messages.unsqueeze(-1) + self.both.log().view(shape), -2)
        flat = messages.flatten(1, -2)
        top = flat.amax(-1, keepdim=True)
        return ((flat - top).exp_() @ self.both).log_().add_(top).view(messages.shape)


@dataclass(frozen=True, eq=False)
class Smoothed:
    """What the two recursions have found.

    Attributes:
        forward: log α, ``[N, K]``.
        backward: log γ, ``[N, K]``.
        log_emission: log b, relative to the largest, ``[N, K]``.
        largest: the log of the largest emission of every row, ``[N]``.
        evidence: log p(x) of every sequence, less the largest emissions, ``[S]``.
        layout: where the sequences are.
    """

    forward: Tensor
    backward: Tensor
    log_emission: Tensor
    largest: Tensor
    evidence: Tensor
    layout: Layout

    @property
    def log_likelihood(self) -> Tensor:
        """log p(x) of every sequence, ``[S]``."""
        return self.evidence.index_add(0, self.layout.owner, self.largest)

    @property
    def posterior(self) -> Tensor:
        """p(z_t | x), ``[N, K]``."""
        evidence = self.evidence[self.layout.owner, None]
        return (self.forward + (self.backward - self.log_emission) - evidence).exp()

    @property
    def log_densities(self) -> Tensor:
        """log p(x_t | x_1 … x_{t−1}) of every row, ``[N]``; a sequence's sum to its log likelihood."""
        so_far = self.forward.logsumexp(-1)
        densities = so_far.clone()
        densities[self.layout.inner] -= so_far[self.layout.inner - 1]
        return densities + self.largest

    def transitions(self, chain: Chain) -> Tensor:
        """Σ_t p(z_{t−1} = i, z_t = j | x) over all sequences, ``[K, K]``."""
        counts = torch.zeros_like(chain.transition)
        width = chain.states if chain.regular else chain.states**2
        for rows in self.layout.inner.split(max(_BLOCK // width, 1)):
            before, after = self.forward[rows - 1], self.backward[rows]
            after = after - self.evidence[self.layout.owner[rows], None]
            if chain.regular:
                # no factor overflows: each largest one times the other's is at most 1/A
                top = before.amax(-1, keepdim=True)
                counts += (before - top).exp().mT @ (after + top).exp()
            else:
                # A goes into the exponent, where it keeps the others from overflowing
                joint = before.unsqueeze(-1) + after.unsqueeze(-2) + chain.transition.log()
                counts += joint.exp().sum(0)
        return counts * chain.transition if chain.regular else counts


def smooth(chain: Chain, log_emission: Tensor, layout: Layout) -> Smoothed:
    """Forward–backward over all sequences.

    A few long sequences take more time for the number of steps than for what is done in each. They are cut in pieces:
    what a piece does to each state that may come before it is found for all pieces at once, then the pieces of a
    sequence are chained, and then all pieces are run again at once from what precedes them (a parallel prefix sum).

    Args:
        chain: π and A.
        log_emission: log b, ``[N, K]``.
        layout: where the sequences are.

    Reference:
        S. Särkkä, Á. F. García-Fernández. Temporal parallelization of Bayesian smoothers. IEEE Transactions on
        Automatic Control 2021.
    """
    largest = log_emission.amax(-1)
    log_emission = log_emission - largest[:, None]
    steps = len(layout.running)
    if steps >= _LONG and len(layout.lengths) * chain.states**2 <= _FEW:
        forward, backward = _in_pieces(chain, log_emission, layout, size=math.isqrt(steps))
    else:
        first = chain.entries[:, -1:].expand(-1, len(layout.lengths), -1)
        forward, backward = _run(chain, log_emission, layout, first)
    return Smoothed(forward, backward, log_emission, largest, forward[layout.last].logsumexp(-1), layout)


def _run(chain: Chain, log_emission: Tensor, layout: Layout, first: Tensor) -> Tensor:
    """Both recursions over the rows, ``[2, N, K]``, from what is there before the first emission, ``[2, S, K]``."""
    emissions = log_emission[layout.visits]
    return _by_row(torch.cat(list(_messages(chain, emissions, layout.running, first)), 1), layout.visits)


def _messages(chain: Chain, emissions: Tensor, running: list[int], first: Tensor) -> Iterator[Tensor]:
    """The messages of the sequences that run at a step, step by step, ``[2, n, ..., K]``.

    Args:
        chain: π and A.
        emissions: in the order of the visits, ``[2, N, ..., K]``.
        running: how many sequences run at each step.
        first: by rank of the sequence, ``[2, S, ..., K]``.
    """
    message = first + emissions[:, : running[0]]
    yield message
    begin = running[0]
    for count in running[1:]:
        message = chain.advance(message[:, :count]) + emissions[:, begin : begin + count]
        yield message
        begin += count


def _in_pieces(chain: Chain, log_emission: Tensor, layout: Layout, size: int) -> Tensor:
    """What :func:`_run` gives, by pieces of ``size`` rows."""
    lengths, counts = cut(layout.lengths, size)
    pieces, chains = Layout(lengths, layout.device), Layout(counts, layout.device)
    rank = torch.from_numpy(pieces.rank).to(layout.device)
    through = _through_pieces(chain, log_emission, pieces)[:, rank]
    first = _before_pieces(chain, through, chains)
    return _run(chain, log_emission, pieces, torch.empty_like(first).index_copy_(1, rank, first))


def _through_pieces(chain: Chain, log_emission: Tensor, pieces: Layout) -> Tensor:
    """The last message of every piece for each entry into it, by rank of the piece, ``[2, P, K + 1, K]``."""
    emissions = log_emission[pieces.visits].unsqueeze(2)
    entries = chain.entries.unsqueeze(1).expand(-1, len(pieces.lengths), -1, -1)
    messages = _messages(chain, emissions, pieces.running, entries)
    ends = [message[:, following:] for message, following in zip(messages, [*pieces.running[1:], 0], strict=True)]
    return torch.cat(ends[::-1], 1)


def _before_pieces(chain: Chain, through: Tensor, chains: Layout) -> Tensor:
    """What is there before the first emission of every piece, ``[2, P, K]``; ``chains`` are sequences of pieces."""
    matrices = through[_directions(through), chains.visits]
    begin = chains.running[0]
    message = matrices[:, :begin, -1]
    before = [chain.entries[:, -1:].expand_as(message)]
    for count in chains.running[1:]:
        message = message[:, :count]
        before.append(chain.advance(message))
        message = (message.unsqueeze(-1) + matrices[:, begin : begin + count, :-1]).logsumexp(-2)
        begin += count
    return _by_row(torch.cat(before, 1), chains.visits)


def _by_row(visited: Tensor, visits: Tensor) -> Tensor:
    """What was found in the order of the ``visits [2, N]``, ``[2, N, K]``, in the order of the rows."""
    rows = torch.empty_like(visited)
    rows[_directions(visited), visits] = visited
    return rows


def _directions(like: Tensor) -> Tensor:
    return torch.arange(2, device=like.device)[:, None]
