"""The two steps of k-means, as EM takes them, over the rows of a table in blocks.

    E:  z_n = argmin_k ‖x_n − c_k‖²,    bound = −Σ_n ‖x_n − c_{z_n}‖² / v
    M:  c_k ← mean of the rows with z_n = k

The bound is minus the inertia in units of v, the mean variance of a column, so that what counts as rounding or as a
gain does not depend on the units of the data. With n_k rows of sum s_k in cluster k it needs no pass of its own:

    Σ_n ‖x_n − c_{z_n}‖² = Σ_n ‖x_n‖² + Σ_k (n_k ‖c_k‖² − 2 c_k·s_k)

Rows and centers are measured from the mean of all rows: far from the origin such differences would lose their digits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from credo._distances import nearest_rows
from credo._rows import Rows
from credo.em import Expectation
from credo.mixture.screening import Screen


@dataclass(frozen=True)
class Moments:
    """Of all rows: where they lie, and how far they spread.

    Attributes:
        mean: ``[D]``.
        squares: the sum of squared distances from the mean.
        variance: the mean variance of a column; 1 where nothing varies.
    """

    mean: Tensor
    squares: float
    variance: float

    @staticmethod
    def of(rows: Rows) -> Moments:
        """In two passes over the rows."""
        (sums,) = rows.total(lambda x: (x.sum(0),))
        mean = sums / rows.count
        (squares,) = rows.total(lambda x: ((x - mean).square_().sum(),))
        return Moments(mean, float(squares), float(squares) / (rows.count * len(mean)) or 1.0)


@dataclass(frozen=True)
class Assignment:
    """What the rows say of the centers.

    Attributes:
        centers: to which the rows were assigned, ``[K, D]``.
        sums: of the rows of each cluster, ``[K, D]``.
        counts: of the rows of each cluster, ``[K]``.
    """

    centers: Tensor
    sums: Tensor
    counts: Tensor


class Lloyd:
    """Both steps for one source of rows, with all centers ``[K, D]`` measured from ``moments.mean``.

    Of a table it remembers the clusters of all rows. Most stay in theirs from one pass to the next, and a screen finds
    the others, by which the sums change.
    """

    def __init__(self, rows: Rows, moments: Moments) -> None:
        self._rows = rows
        self._moments = moments
        self._labels = torch.zeros(rows.count if rows.is_table else 0, dtype=torch.long, device=rows.device)
        self._screen: Screen | None = None
        self._remembered: Assignment | None = None

    def e_step(self, centers: Tensor) -> Expectation[Assignment]:
        """Give every row to its nearest center."""
        assignment = self._of_table(centers) if self._rows.is_table else assign(self._rows, centers, self._moments.mean)
        sums, counts = assignment.sums, assignment.counts
        inertia = self._moments.squares + float(counts @ centers.square().sum(1) - 2.0 * (centers * sums).sum())
        if not counts.all():
            assignment = self._filled(assignment)
        return Expectation(assignment, -max(inertia, 0.0) / self._moments.variance)

    def m_step(self, assignment: Assignment) -> Tensor:
        """Move every center to the mean of its rows; one without rows stays."""
        counts = assignment.counts[:, None]
        return torch.where(counts > 0, assignment.sums / counts.clamp_min(1.0), assignment.centers)

    def _of_table(self, centers: Tensor) -> Assignment:
        """In one pass over a table, after the first only by what changes."""
        rows, numbers = self._rows.beside(self._labels), numbers_per_row(centers)
        if self._remembered is None:
            sums, counts = rows.total(lambda x, labels: self._assign(x, labels, centers), numbers)
            self._remembered = Assignment(centers, sums, counts)
            if Screen.pays(self._rows, centers.shape[1]):
                self._screen = Screen(self._rows, self._moments.mean, math.sqrt(self._moments.variance))
            return self._remembered
        if self._screen is None:
            sums, counts = rows.total(lambda x, labels: self._reassign(x, labels, centers), numbers)
        else:
            view = self._screen.against(centers)
            sums, counts = rows.beside(*self._screen.columns).total(
                lambda x, labels, *copy: self._reassign_some(x, labels, view.doubtful(labels, *copy), centers), numbers
            )
        self._remembered = Assignment(centers, self._remembered.sums + sums, self._remembered.counts + counts)
        return self._remembered

    def _assign(self, block: Tensor, labels: Tensor, centers: Tensor) -> tuple[Tensor, Tensor]:
        """Sums ``[K, D]`` and counts ``[K]`` of a block; writes ``labels``."""
        x = block - self._moments.mean
        labels.copy_(nearest_rows(x, centers))
        return _sums(x, labels, centers), _counts(labels, len(centers))

    def _reassign(self, block: Tensor, labels: Tensor, centers: Tensor) -> tuple[Tensor, Tensor]:
        """By how much sums and counts of a block change; rewrites ``labels`` where another center is nearer."""
        x = block - self._moments.mean
        new = nearest_rows(x, centers)
        moved = (new != labels).nonzero().view(-1)
        x, old, new = x.index_select(0, moved), labels.index_select(0, moved), new.index_select(0, moved)
        labels.index_copy_(0, moved, new)
        sums = _sums(x, new, centers).index_add_(0, old, x, alpha=-1.0)
        return sums, _counts(new, len(centers)) - _counts(old, len(centers))

    def _reassign_some(self, block: Tensor, labels: Tensor, chosen: Tensor, centers: Tensor) -> tuple[Tensor, Tensor]:
        """The same, where only the rows of the numbers ``chosen`` can have changed."""
        theirs = labels.index_select(0, chosen)
        changes = self._reassign(block.index_select(0, chosen), theirs, centers)
        labels.index_copy_(0, chosen, theirs)
        return changes

    def _filled(self, assignment: Assignment) -> Assignment:
        """Give empty clusters the rows farthest from their centers, which cannot raise the inertia.

        A row that becomes its own cluster costs nothing, and the rows that it leaves behind lie nearer to their own
        mean. No cluster gives its last row, and rows that lie on their center stay: where there are fewer distinct rows
        than clusters, some remain empty.
        """
        sums, counts = assignment.sums.clone(), assignment.counts.clone()
        empty = (counts == 0).nonzero()[:, 0].tolist()
        for x, label in self._farthest(assignment.centers, len(counts) + len(empty)):
            if empty and counts[label] > 1:
                cluster = empty.pop(0)
                sums[label] -= x
                counts[label] -= 1
                sums[cluster] = x
                counts[cluster] = 1
        return Assignment(assignment.centers, sums, counts)

    def _farthest(self, centers: Tensor, n: int) -> list[tuple[Tensor, int]]:
        """The up to ``n`` rows that lie farthest from their center, with its number, farthest first."""
        found = centers.new_empty(0, centers.shape[1] + 2)
        rows = self._rows.beside(self._labels) if self._rows.is_table else self._rows
        for block, *known in rows.blocks(numbers_per_row(centers)):
            x = block - self._moments.mean
            labels = known[0] if known else nearest_rows(x, centers)
            gaps = (x - centers[labels]).square_().sum(1)
            found = torch.cat([found, torch.cat([x, labels[:, None], gaps[:, None]], 1)[gaps > 0.0]])
            found = found[found[:, -1].topk(min(n, len(found))).indices]
        return [(row[:-2], int(row[-2])) for row in found]


def assign(rows: Rows, centers: Tensor, origin: Tensor) -> Assignment:
    """One pass over ``rows``, in whatever order they come, with ``centers`` measured from ``origin``."""

    def statistics(block: Tensor) -> tuple[Tensor, Tensor]:
        x = block - origin
        labels = nearest_rows(x, centers)
        return _sums(x, labels, centers), _counts(labels, len(centers))

    return Assignment(centers, *rows.total(statistics, numbers_per_row(centers)))


def nearest(x: Tensor, centers: Tensor) -> tuple[Tensor, Tensor]:
    """The number of the nearest center of every row, and the squared distance from it, both ``[b]``."""
    middle = centers.mean(0)
    labels = nearest_rows(x - middle, centers - middle)
    return labels, (x - centers[labels]).square_().sum(1)


def numbers_per_row(centers: Tensor) -> int:
    """For the size of a block: large enough that a dozen operations take longer than it takes to call them."""
    return -(-sum(centers.shape) // 6)


def _sums(x: Tensor, labels: Tensor, centers: Tensor) -> Tensor:
    return torch.zeros_like(centers).index_add_(0, labels, x)


def _counts(labels: Tensor, n_clusters: int) -> Tensor:
    return torch.bincount(labels, minlength=n_clusters).double()
