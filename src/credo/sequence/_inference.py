"""Inference in hidden Markov chains, in log space and for many sequences at once: forward–backward and Viterbi.

With emissions b_t(j) = p(x_t | z_t = j) and transitions A, the forward and the backward recursion have one form,

    α_t(j) = b_t(j) Σ_i α_{t−1}(i) A_ij,             α_1(j) = π_j b_1(j)        from the beginning,
    γ_t(j) = b_t(j) Σ_i γ_{t+1}(i) A_ji,             γ_T(j) = b_T(j)            from the end,

where γ_t = b_t β_t of the textbooks. They run together, one step for all sequences and both directions, and

    p(z_t = j | x) ∝ α_t(j) γ_t(j) / b_t(j),    p(z_{t−1} = i, z_t = j | x) ∝ α_{t−1}(i) A_ij γ_t(j).

Emissions are relative to the largest of their row, which cancels in both: otherwise a row far from all states would
reduce the precision of the other rows.

References:
    L. R. Rabiner. A tutorial on hidden Markov models and selected applications in speech recognition. 1989.
    C. M. Bishop. Pattern Recognition and Machine Learning. 2006, section 13.2.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

MIN_REGULAR_TRANSITION = 1e-200
"""If all transitions are larger, sums over states can be matrix products: see :meth:`MarkovChain.advance`."""
_BLOCK_NUMBERS = 2**20
_MIN_STEPS_FOR_SEGMENTS = 256
_MAX_SIZE_FOR_SEGMENTS = 2**11


@dataclass(frozen=True, eq=False)
class SequenceLayout:
    """Sequences of different lengths side by side, without padding.

    The rows of S sequences are visited in the order: all first rows, then all second rows, and so on. The longest
    sequence comes first, so that the sequences that are active at a step are the first ones. Sequences are visited from
    their beginning and from their end at the same time, and equally many are active at a step in both directions.

    Attributes:
        lengths: of the sequences, which follow each other in the table, at least 1, ``[S]``.
        device: of the indices.
    """

    lengths: NDArray[np.int64]
    device: torch.device

    @cached_property
    def first_rows(self) -> NDArray[np.int64]:
        """The first row of every sequence, ``[S]``."""
        return np.cumsum(self.lengths) - self.lengths

    @cached_property
    def last_rows(self) -> Tensor:
        """The last row of every sequence, ``[S]``."""
        return torch.from_numpy(self.first_rows + self.lengths - 1).to(self.device)

    @cached_property
    def later_rows(self) -> Tensor:
        """All rows but the first of every sequence, ``[N − S]``."""
        return torch.from_numpy(np.flatnonzero(self._step)).to(self.device)

    @cached_property
    def sequence_of_row(self) -> Tensor:
        """The index of the sequence of each row, ``[N]``."""
        return torch.from_numpy(self._sequence).to(self.device)

    @cached_property
    def rank(self) -> NDArray[np.int64]:
        """The rank of every sequence, the longest first, ``[S]``."""
        return np.argsort(np.argsort(-self.lengths, kind="stable"))

    @cached_property
    def n_active(self) -> list[int]:
        """The number of sequences that have a row at step t, ``[T]``."""
        counts: list[int] = np.bincount(self._step).tolist()
        return counts

    @cached_property
    def visits(self) -> Tensor:
        """The rows in the order of their visits, ``[2, N]``: sequences from their beginning, and from their end."""
        order = np.lexsort((self.rank[self._sequence], self._step))
        mirrored = (self.first_rows + self.lengths - 1)[self._sequence] - self._step
        return torch.from_numpy(np.stack((order, mirrored[order]))).to(self.device)

    @cached_property
    def _sequence(self) -> NDArray[np.int64]:
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @cached_property
    def _step(self) -> NDArray[np.int64]:
        """The position of each row in its sequence, counted from 0."""
        return np.arange(len(self._sequence)) - self.first_rows[self._sequence]


def split_lengths(lengths: NDArray[np.int64], size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split sequences into segments of at most ``size`` rows: the lengths of all segments, and the number of each."""
    counts = -(-lengths // size)
    segments = np.full(counts.sum(), size)
    segments[np.cumsum(counts) - 1] = lengths - (counts - 1) * size
    return segments, counts


@dataclass(frozen=True, eq=False)
class MarkovChain:
    """p(z_1) and p(z_t | z_{t−1}).

    Attributes:
        start: π, ``[K]``.
        transition: A, ``[K, K]``, from the state of its row to that of its column.
    """

    start: Tensor
    transition: Tensor

    @property
    def n_states(self) -> int:
        """K."""
        return len(self.start)

    @cached_property
    def both_directions(self) -> Tensor:
        """A for the forward and Aᵀ for the backward direction, ``[2, K, K]``."""
        return torch.stack((self.transition, self.transition.mT))

    @cached_property
    def log_entries(self) -> Tensor:
        """The log weight of reaching a state from each state, or, in the last row, at the start, ``[2, K + 1, K]``."""
        ends = torch.stack((self.start, torch.ones_like(self.start)))
        return torch.cat((self.both_directions, ends.unsqueeze(1)), 1).log()

    @cached_property
    def is_regular(self) -> bool:
        """Whether no transition is so improbable that products of matrices could underflow where it matters."""
        return bool((self.transition > MIN_REGULAR_TRANSITION).all())

    def advance(self, messages: Tensor) -> Tensor:
        """log Σ_i exp(m(i)) A_ij for messages ``[2, n, ..., K]`` of both directions.

        For a regular chain this is a product of matrices, relative to the largest entry of each message. What
        underflows is below e⁻⁷⁴⁵ of it, and every entry of the result is above 10⁻²⁰⁰: nothing is lost.
        """
        if not self.is_regular:
            shape = (2, *[1] * (messages.ndim - 2), self.n_states, self.n_states)
            return torch.logsumexp(messages.unsqueeze(-1) + self.both_directions.log().view(shape), -2)
        flat = messages.flatten(1, -2)
        largest = flat.amax(-1, keepdim=True)
        return ((flat - largest).exp_() @ self.both_directions).log_().add_(largest).view(messages.shape)


@dataclass(frozen=True, eq=False)
class SmoothedStates:
    """The result of forward–backward.

    Attributes:
        forward: log α, ``[N, K]``.
        backward: log γ, ``[N, K]``.
        log_emission: log b, relative to the largest, ``[N, K]``.
        largest: the log of the largest emission of every row, ``[N]``.
        log_evidence: log p(x) of every sequence, minus the largest log emissions, ``[S]``.
        layout: of the sequences.
    """

    forward: Tensor
    backward: Tensor
    log_emission: Tensor
    largest: Tensor
    log_evidence: Tensor
    layout: SequenceLayout

    @property
    def log_likelihood(self) -> Tensor:
        """log p(x) of every sequence, ``[S]``."""
        return self.log_evidence.index_add(0, self.layout.sequence_of_row, self.largest)

    @property
    def posterior(self) -> Tensor:
        """p(z_t | x), ``[N, K]``."""
        log_evidence = self.log_evidence[self.layout.sequence_of_row, None]
        return (self.forward + (self.backward - self.log_emission) - log_evidence).exp()

    @property
    def log_densities(self) -> Tensor:
        """log p(x_t | x_1 … x_{t−1}) of every row, ``[N]``; the sum over a sequence is its log likelihood."""
        cumulative = self.forward.logsumexp(-1)
        densities = cumulative.clone()
        densities[self.layout.later_rows] -= cumulative[self.layout.later_rows - 1]
        return densities + self.largest

    def transition_counts(self, chain: MarkovChain) -> Tensor:
        """Σ_t p(z_{t−1} = i, z_t = j | x) over all sequences, ``[K, K]``."""
        counts = torch.zeros_like(chain.transition)
        width = chain.n_states if chain.is_regular else chain.n_states**2
        for rows in self.layout.later_rows.split(max(_BLOCK_NUMBERS // width, 1)):
            before, after = self.forward[rows - 1], self.backward[rows]
            after = after - self.log_evidence[self.layout.sequence_of_row[rows], None]
            if chain.is_regular:
                # no factor overflows: the product of the largest ones is at most 1/A
                largest = before.amax(-1, keepdim=True)
                counts += (before - largest).exp().mT @ (after + largest).exp()
            else:
                # with A in the exponent nothing overflows
                joint = before.unsqueeze(-1) + after.unsqueeze(-2) + chain.transition.log()
                counts += joint.exp().sum(0)
        return counts * chain.transition if chain.is_regular else counts


def smooth(chain: MarkovChain, log_emission: Tensor, layout: SequenceLayout) -> SmoothedStates:
    """Forward–backward over all sequences.

    For a few long sequences the number of steps dominates the time. They are split into segments: the effect of a
    segment on each state before it is computed for all segments at once, then the segments of a sequence are chained,
    and then all segments are run again at once from what precedes them (a parallel prefix sum).

    Args:
        chain: π and A.
        log_emission: log b, ``[N, K]``.
        layout: of the sequences.

    Reference:
        S. Särkkä, Á. F. García-Fernández. Temporal parallelization of Bayesian smoothers. IEEE Transactions on
        Automatic Control 2021.
    """
    largest = log_emission.amax(-1)
    log_emission = log_emission - largest[:, None]
    steps, n_sequences = len(layout.n_active), len(layout.lengths)
    if steps >= _MIN_STEPS_FOR_SEGMENTS and n_sequences * chain.n_states**2 <= _MAX_SIZE_FOR_SEGMENTS:
        forward, backward = _run_in_segments(chain, log_emission, layout, size=math.isqrt(steps))
    else:
        initial = chain.log_entries[:, -1:].expand(-1, n_sequences, -1)
        forward, backward = _run(chain, log_emission, layout, initial)
    return SmoothedStates(forward, backward, log_emission, largest, forward[layout.last_rows].logsumexp(-1), layout)


def _run(chain: MarkovChain, log_emission: Tensor, layout: SequenceLayout, initial: Tensor) -> Tensor:
    """Both recursions over the rows, ``[2, N, K]``; ``initial [2, S, K]`` is the message before the first emission."""
    emissions = log_emission[layout.visits]
    return _by_row(torch.cat(list(_messages(chain, emissions, layout.n_active, initial)), 1), layout.visits)


def _messages(chain: MarkovChain, emissions: Tensor, n_active: list[int], initial: Tensor) -> Iterator[Tensor]:
    """The messages of the active sequences, step by step, ``[2, n, ..., K]``.

    Args:
        chain: π and A.
        emissions: in the order of the visits, ``[2, N, ..., K]``.
        n_active: the number of active sequences at each step.
        initial: by rank of the sequence, ``[2, S, ..., K]``.
    """
    message = initial + emissions[:, : n_active[0]]
    yield message
    begin = n_active[0]
    for count in n_active[1:]:
        message = chain.advance(message[:, :count]) + emissions[:, begin : begin + count]
        yield message
        begin += count


def _run_in_segments(chain: MarkovChain, log_emission: Tensor, layout: SequenceLayout, size: int) -> Tensor:
    """The result of :func:`_run`, by segments of ``size`` rows."""
    lengths, counts = split_lengths(layout.lengths, size)
    segments, sequences = SequenceLayout(lengths, layout.device), SequenceLayout(counts, layout.device)
    rank = torch.from_numpy(segments.rank).to(layout.device)
    through = _through_segments(chain, log_emission, segments)[:, rank]
    initial = _before_segments(chain, through, sequences)
    return _run(chain, log_emission, segments, torch.empty_like(initial).index_copy_(1, rank, initial))


def _through_segments(chain: MarkovChain, log_emission: Tensor, segments: SequenceLayout) -> Tensor:
    """The last message of every segment for each entry into it, by rank of the segment, ``[2, P, K + 1, K]``."""
    emissions = log_emission[segments.visits].unsqueeze(2)
    entries = chain.log_entries.unsqueeze(1).expand(-1, len(segments.lengths), -1, -1)
    messages = _messages(chain, emissions, segments.n_active, entries)
    ends = [message[:, following:] for message, following in zip(messages, [*segments.n_active[1:], 0], strict=True)]
    return torch.cat(ends[::-1], 1)


def _before_segments(chain: MarkovChain, through: Tensor, sequences: SequenceLayout) -> Tensor:
    """The message before the first emission of every segment, ``[2, P, K]``; ``sequences`` are those of segments."""
    matrices = through[_directions(through), sequences.visits]
    begin = sequences.n_active[0]
    message = matrices[:, :begin, -1]
    before = [chain.log_entries[:, -1:].expand_as(message)]
    for count in sequences.n_active[1:]:
        message = message[:, :count]
        before.append(chain.advance(message))
        message = (message.unsqueeze(-1) + matrices[:, begin : begin + count, :-1]).logsumexp(-2)
        begin += count
    return _by_row(torch.cat(before, 1), sequences.visits)


def _by_row(visited: Tensor, visits: Tensor) -> Tensor:
    """Values ``[2, N, K]`` in the order of the ``visits [2, N]``, in the order of the rows."""
    rows = torch.empty_like(visited)
    rows[_directions(visited), visits] = visited
    return rows


def _directions(like: Tensor) -> Tensor:
    return torch.arange(2, device=like.device)[:, None]


def viterbi(
    start: NDArray[np.float64],
    transition: NDArray[np.float64],
    log_emission: NDArray[np.float64],
    layout: SequenceLayout,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The most probable path argmax_z p(x, z), ``[N]``, and the log of that maximum for every sequence, ``[S]``.

        δ_t(j) = b_t(j) max_i δ_{t−1}(i) A_ij,    δ_1(j) = π_j b_1(j)

    The steps are many and small, for which numpy is faster than an accelerator.

    Args:
        start: π, ``[K]``.
        transition: A, ``[K, K]``.
        log_emission: log b, ``[N, K]``.
        layout: of the sequences.

    Reference:
        A. J. Viterbi. Error bounds for convolutional codes and an asymptotically optimum decoding algorithm. 1967.
    """
    visits, n_active = layout.visits[0].cpu().numpy(), layout.n_active
    with np.errstate(divide="ignore"):
        log_start, log_transition = np.log(start), np.log(transition)
    # relative to the largest of each row, as above
    largest = log_emission.max(1)
    emissions = (log_emission - largest[:, None])[visits]
    best = log_start + emissions[: n_active[0]]
    origins: list[NDArray[np.int64]] = []
    finished: list[NDArray[np.float64]] = []
    begin = n_active[0]
    for count in n_active[1:]:
        finished.append(best[count:])
        paths = best[:count, :, None] + log_transition
        origins.append(paths.argmax(1))
        best = paths.max(1) + emissions[begin : begin + count]
        begin += count
    last = np.concatenate([best, *finished[::-1]])

    # backtrack by rank, the longest sequence first: sequences that end at a step are appended to the active ones
    final = last.argmax(1)
    states = [final[: n_active[-1]]]
    for origin, count in zip(origins[::-1], n_active[-2::-1], strict=True):
        earlier = origin[np.arange(len(origin)), states[-1]]
        states.append(np.concatenate((earlier, final[len(earlier) : count])))
    path = np.empty(len(visits), np.int64)
    path[visits] = np.concatenate(states[::-1])
    return path, last.max(1)[layout.rank] + np.add.reduceat(largest, layout.first_rows)
