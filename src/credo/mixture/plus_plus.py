"""Where k-means begins: centres drawn far from one another."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def plus_plus(x: Tensor, n_clusters: int, generator: torch.Generator) -> Tensor:
    """The start of k-means++: ``n_clusters`` rows of ``x``, ``[K, D]``.

    The first centre is any row; each further one is drawn with probability proportional to the squared distance of a
    row to its nearest centre so far. As the authors suggest, 2 + ⌊ln K⌋ candidates are drawn each time and the one
    that leaves the smallest sum of squared distances is kept.

    Args:
        x: rows ``[n, D]``.
        n_clusters: K, at most n.
        generator: on the CPU, so that a seed means the same on every device.

    Reference:
        D. Arthur, S. Vassilvitskii. k-means++: the advantages of careful seeding. SODA 2007.
    """
    candidates = 2 + int(math.log(n_clusters))
    centred = x - x.mean(0)  # distances from products lose digits far from the origin
    squares = centred.square().sum(1)
    first = int(torch.randint(len(x), (1,), generator=generator))
    chosen = [first]
    nearest = _squared_distances(centred, squares, torch.tensor([first], device=x.device))[0]
    for _ in range(n_clusters - 1):
        cumulative = nearest.cumsum(0)
        draws = torch.rand(candidates, dtype=x.dtype, generator=generator).to(x.device) * cumulative[-1]
        rows = torch.searchsorted(cumulative, draws, right=True).clamp_max(len(x) - 1)
        distances = torch.minimum(_squared_distances(centred, squares, rows), nearest)
        best = distances.sum(1).argmin()
        nearest = distances[best]
        chosen.append(int(rows[best]))
    return x[chosen]


def _squared_distances(x: Tensor, squares: Tensor, rows: Tensor) -> Tensor:
    """Squared distances of all rows to those of the given numbers, ``[T, n]``."""
    return torch.addmm(squares, x[rows], x.T, alpha=-2.0).add_(squares[rows, None]).clamp_min_(0.0)
