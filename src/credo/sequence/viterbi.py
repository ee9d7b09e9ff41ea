"""The most probable path through a hidden Markov chain, for many sequences at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from credo.sequence.layout import Layout


def most_probable_path(
    start: NDArray[np.float64], transition: NDArray[np.float64], log_emission: NDArray[np.float64], layout: Layout
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """argmax_z p(x, z), ``[N]``, and the log of that maximum for every sequence, ``[S]``.

        δ_t(j) = b_t(j) max_i δ_{t−1}(i) A_ij,    δ_1(j) = π_j b_1(j)

    Steps are many and small: numpy, which takes them with the least ado, is faster here than an accelerator.

    Args:
        start: π, ``[K]``.
        transition: A, ``[K, K]``.
        log_emission: log b, ``[N, K]``.
        layout: where the sequences are.

    Reference:
        A. J. Viterbi. Error bounds for convolutional codes and an asymptotically optimum decoding algorithm. 1967.
    """
    visits, running = layout.visits[0].cpu().numpy(), layout.running
    with np.errstate(divide="ignore"):
        log_start, log_transition = np.log(start), np.log(transition)
    # relative to the largest of each row, so that a row far from all states leaves digits for the others
    largest = log_emission.max(1)
    emissions = (log_emission - largest[:, None])[visits]
    best = log_start + emissions[: running[0]]
    origins: list[NDArray[np.int64]] = []
    finished: list[NDArray[np.float64]] = []
    begin = running[0]
    for count in running[1:]:
        finished.append(best[count:])
        paths = best[:count, :, None] + log_transition
        origins.append(paths.argmax(1))
        best = paths.max(1) + emissions[begin : begin + count]
        begin += count
    last = np.concatenate([best, *finished[::-1]])

    # by rank, the longest sequence first: at each step back, those that end there join behind the others
    final = last.argmax(1)
    states = [final[: running[-1]]]
    for origin, count in zip(origins[::-1], running[-2::-1], strict=True):
        earlier = origin[np.arange(len(origin)), states[-1]]
        states.append(np.concatenate((earlier, final[len(earlier) : count])))
    path = np.empty(len(visits), np.int64)
    path[visits] = np.concatenate(states[::-1])
    return path, last.max(1)[layout.rank] + np.add.reduceat(largest, layout.starts)
