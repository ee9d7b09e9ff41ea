"""Where k-means begins: centers drawn far from one another."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from credo._distances import SquaredDistances


def plus_plus(x: Tensor, n_clusters: int, generator: torch.Generator) -> Tensor:
    """The start of k-means++: ``n_clusters`` rows of ``x``, ``[K, D]``.

    The first center is any row; each further one is drawn with probability proportional to the squared distance of a
    row to its nearest center so far. As the authors suggest, 2 + ⌊ln K⌋ candidates are drawn each time and the one
    that leaves the smallest sum of squared distances is kept.

    Args:
        x: rows ``[n, D]``.
        n_clusters: K, at most n.
        generator: on the CPU, so that a seed means the same on every device.

    Reference:
        D. Arthur, S. Vassilvitskii. k-means++: the advantages of careful seeding. SODA 2007.
    """
    candidates = 2 + int(math.log(n_clusters))
    first = int(torch.randint(len(x), (1,), generator=generator))
    chosen = [first]
    squared_distances = SquaredDistances(x)
    nearest = squared_distances(x[first : first + 1])[0]
    for _ in range(n_clusters - 1):
        cumulative = nearest.cumsum(0)
        draws = torch.rand(candidates, dtype=x.dtype, generator=generator).to(x.device) * cumulative[-1]
        rows = torch.searchsorted(cumulative, draws, right=True).clamp_max(len(x) - 1)
        distances = torch.minimum(squared_distances(x[rows]), nearest)
        best = distances.sum(1).argmin()
        nearest = distances[best]
        chosen.append(int(rows[best]))
    return x[chosen]
