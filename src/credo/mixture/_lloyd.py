"""The two steps of k-means, as EM takes them, over the rows of a table in blocks.

    E:  z_n = argmin_k ‖x_n − c_k‖²,    bound = −Σ_n ‖x_n − c_{z_n}‖² / v
    M:  c_k ← mean of the rows with z_n = k

The bound is minus the inertia in units of v, the mean variance of a column, so that tolerance and rounding do not
depend on the units of the data. With n_k rows of sum s_k in cluster k it follows from the same pass:

    Σ_n ‖x_n − c_{z_n}‖² = Σ_n ‖x_n‖² + Σ_k (n_k ‖c_k‖² − 2 c_k·s_k)

Rows and centers are taken relative to the mean of all rows: far from the origin such differences would lose digits.

Reference:
    N. J. Higham. Accuracy and Stability of Numerical Algorithms. 2nd edition, 2002.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from credo._distances import nearest_rows
from credo._rows import Rows
from credo.em import Expectation

MAX_COPIED_NUMBERS = 2**28
"""The largest table that is copied to single precision: 1 GiB."""


@dataclass(frozen=True)
class TableScale:
    """The location and scale of all rows.

    Attributes:
        mean: ``[D]``.
        sum_of_squares: the sum of squared distances from the mean.
        variance: the mean variance of a column; 1 if all rows are equal.
    """

    mean: Tensor
    sum_of_squares: float
    variance: float

    @staticmethod
    def from_rows(rows: Rows) -> TableScale:
        """In two passes over the rows."""
        (sums,) = rows.total(lambda x: (x.sum(0),))
        mean = sums / rows.count
        (squares,) = rows.total(lambda x: ((x - mean).square_().sum(),))
        return TableScale(mean, float(squares), float(squares) / (rows.count * len(mean)) or 1.0)


@dataclass(frozen=True)
class ClusterSums:
    """The sufficient statistics of k-means.

    Attributes:
        centers: to which the rows were assigned, ``[K, D]``.
        sums: of the rows of each cluster, ``[K, D]``.
        counts: the number of rows of each cluster, ``[K]``.
    """

    centers: Tensor
    sums: Tensor
    counts: Tensor


class Lloyd:
    """Both steps for one source of rows, with all centers ``[K, D]`` relative to ``scale.mean``.

    For a table the labels of all rows are kept. Most do not change from one pass to the next: a copy in single
    precision finds the rows that may change, and the sums are updated by these alone.

    Args:
        rows: a table or chunks.
        scale: the location and scale of the rows.
    """

    def __init__(self, rows: Rows, scale: TableScale) -> None:
        self._rows = rows
        self._scale = scale
        self._labels = torch.zeros(rows.count if rows.is_table else 0, dtype=torch.long, device=rows.device)
        self._copy: SinglePrecisionCopy | None = None
        self._last: ClusterSums | None = None

    def e_step(self, centers: Tensor) -> Expectation[ClusterSums]:
        """Assign every row to its nearest center."""
        clusters = (
            self._assign_table(centers)
            if self._rows.is_table
            else assign_to_clusters(self._rows, centers, self._scale.mean)
        )
        sums, counts = clusters.sums, clusters.counts
        inertia = self._scale.sum_of_squares + float(counts @ centers.square().sum(1) - 2.0 * (centers * sums).sum())
        if not counts.all():
            clusters = self._fill_empty_clusters(clusters)
        return Expectation(clusters, -max(inertia, 0.0) / self._scale.variance)

    def m_step(self, clusters: ClusterSums) -> Tensor:
        """Move every center to the mean of its rows; one without rows stays."""
        counts = clusters.counts[:, None]
        return torch.where(counts > 0, clusters.sums / counts.clamp_min(1.0), clusters.centers)

    def _assign_table(self, centers: Tensor) -> ClusterSums:
        """One pass over a table; after the first, sums change only by the rows that move."""
        rows, numbers = self._rows.with_columns(self._labels), numbers_per_row(centers)
        if self._last is None:
            sums, counts = rows.total(lambda x, labels: self._assign(x, labels, centers), numbers)
            self._last = ClusterSums(centers, sums, counts)
            if SinglePrecisionCopy.is_useful(self._rows, centers.shape[1]):
                self._copy = SinglePrecisionCopy(self._rows, self._scale.mean, math.sqrt(self._scale.variance))
            return self._last
        if self._copy is None:
            sums, counts = rows.total(lambda x, labels: self._reassign(x, labels, centers), numbers)
        else:
            find = self._copy.uncertain_rows(centers)
            sums, counts = rows.with_columns(*self._copy.columns).total(
                lambda x, labels, *copy: self._reassign_some(x, labels, find(labels, *copy), centers), numbers
            )
        self._last = ClusterSums(centers, self._last.sums + sums, self._last.counts + counts)
        return self._last

    def _assign(self, block: Tensor, labels: Tensor, centers: Tensor) -> tuple[Tensor, Tensor]:
        """Sums ``[K, D]`` and counts ``[K]`` of a block; writes ``labels``."""
        x = block - self._scale.mean
        labels.copy_(nearest_rows(x, centers))
        return _sums(x, labels, centers), _counts(labels, len(centers))

    def _reassign(self, block: Tensor, labels: Tensor, centers: Tensor) -> tuple[Tensor, Tensor]:
        """The change of sums and counts of a block; updates ``labels`` where another center is nearer."""
        x = block - self._scale.mean
        new = nearest_rows(x, centers)
        moved = (new != labels).nonzero().view(-1)
        x, old, new = x.index_select(0, moved), labels.index_select(0, moved), new.index_select(0, moved)
        labels.index_copy_(0, moved, new)
        sums = _sums(x, new, centers).index_add_(0, old, x, alpha=-1.0)
        return sums, _counts(new, len(centers)) - _counts(old, len(centers))

    def _reassign_some(self, block: Tensor, labels: Tensor, chosen: Tensor, centers: Tensor) -> tuple[Tensor, Tensor]:
        """The same where only the rows with indices ``chosen`` can change."""
        own = labels.index_select(0, chosen)
        changes = self._reassign(block.index_select(0, chosen), own, centers)
        labels.index_copy_(0, chosen, own)
        return changes

    def _fill_empty_clusters(self, clusters: ClusterSums) -> ClusterSums:
        """Move the rows farthest from their centers to the empty clusters, which cannot raise the inertia.

        A row that is its own cluster adds nothing, and the rows that it leaves are nearer to their own mean. A cluster
        keeps its last row, and rows that equal their center stay: with fewer distinct rows than clusters, some clusters
        remain empty.
        """
        sums, counts = clusters.sums.clone(), clusters.counts.clone()
        empty = (counts == 0).nonzero()[:, 0].tolist()
        for x, label in self._farthest(clusters.centers, len(counts) + len(empty)):
            if empty and counts[label] > 1:
                cluster = empty.pop(0)
                sums[label] -= x
                counts[label] -= 1
                sums[cluster] = x
                counts[cluster] = 1
        return ClusterSums(clusters.centers, sums, counts)

    def _farthest(self, centers: Tensor, n: int) -> list[tuple[Tensor, int]]:
        """At most ``n`` rows, those farthest from their center, with its index, farthest first."""
        found = centers.new_empty(0, centers.shape[1] + 2)
        rows = self._rows.with_columns(self._labels) if self._rows.is_table else self._rows
        for block, *known in rows.blocks(numbers_per_row(centers)):
            x = block - self._scale.mean
            labels = known[0] if known else nearest_rows(x, centers)
            distances = (x - centers[labels]).square_().sum(1)
            found = torch.cat([found, torch.cat([x, labels[:, None], distances[:, None]], 1)[distances > 0.0]])
            found = found[found[:, -1].topk(min(n, len(found))).indices]
        return [(row[:-2], int(row[-2])) for row in found]


def assign_to_clusters(rows: Rows, centers: Tensor, origin: Tensor) -> ClusterSums:
    """One pass over ``rows``, in any order, with ``centers`` relative to ``origin``."""

    def block_sums(block: Tensor) -> tuple[Tensor, Tensor]:
        x = block - origin
        labels = nearest_rows(x, centers)
        return _sums(x, labels, centers), _counts(labels, len(centers))

    return ClusterSums(centers, *rows.total(block_sums, numbers_per_row(centers)))


def nearest_centers(x: Tensor, centers: Tensor) -> tuple[Tensor, Tensor]:
    """The index of the nearest center of every row, and the squared distance to it, both ``[b]``."""
    origin = centers.mean(0)
    labels = nearest_rows(x - origin, centers - origin)
    return labels, (x - centers[labels]).square_().sum(1)


def numbers_per_row(centers: Tensor) -> int:
    """For the size of a block: large enough that its operations take longer than their calls."""
    return -(-sum(centers.shape) // 6)


def _sums(x: Tensor, labels: Tensor, centers: Tensor) -> Tensor:
    return torch.zeros_like(centers).index_add_(0, labels, x)


def _counts(labels: Tensor, n_clusters: int) -> Tensor:
    return torch.bincount(labels, minlength=n_clusters).double()


class SinglePrecisionCopy:
    """A copy of a table in single precision, which finds the rows that may have a new nearest center.

    A score is s_k = ‖c_k‖² − 2 c_k·x, smallest for the nearest center. In single precision, with rounding unit u, its
    error is at most (2D + 10) u c (‖x‖ + c), where c is the length of the longest center (Higham 2002, section 3.1, for
    the sum of D products, and a few more roundings). A row whose own center wins by more than twice that needs no check
    in double precision.

    Args:
        rows: of a table.
        mean: of the rows, ``[D]``; the copy is relative to it.
        scale: the standard deviation of a column; in its units no row is longer than √(ND), so that nothing overflows.

    Attributes:
        columns: the copy ``[N, D]``, and the lengths of its rows ``[N]``.
    """

    def __init__(self, rows: Rows, mean: Tensor, scale: float) -> None:
        self._scale = scale
        self.columns = torch.empty(rows.count, len(mean)), torch.empty(rows.count)

        def fill(x: Tensor, copy: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
            torch.linalg.vector_norm(copy.copy_((x - mean).div_(scale)), dim=1, out=lengths)
            return ()

        rows.with_columns(*self.columns).total(fill)

    @staticmethod
    def is_useful(rows: Rows, n_columns: int) -> bool:
        """Whether the copy is small enough, and single precision is faster and not reduced further by torch."""
        small = rows.count * n_columns <= MAX_COPIED_NUMBERS
        return small and rows.device.type == "cpu" and torch.get_float32_matmul_precision() == "highest"

    def uncertain_rows(self, centers: Tensor) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        """A function that finds the rows of a block that may not belong to the center of their label.

        Args:
            centers: ``[K, D]``, relative to the mean.

        Returns:
            A function of ``labels [b]`` and the block of both ``columns`` that returns the indices of such rows.
        """
        centers = centers / self._scale
        squares = centers.square().sum(1, keepdim=True)
        longest = float(squares.max().sqrt())
        eps = torch.finfo(torch.float32).eps  # 2u
        slope = 2.0 * (centers.shape[1] + 8) * eps * longest
        offset = slope * longest
        centers, squares = centers.float(), squares.float()

        def find(labels: Tensor, x: Tensor, lengths: Tensor) -> Tensor:
            scores = torch.addmm(squares, centers, x.T, alpha=-2.0)
            cells = torch.arange(len(x)).add_(labels, alpha=len(x))
            own = scores.view(-1).index_select(0, cells)
            scores.view(-1).index_fill_(0, cells, torch.inf)
            wins = scores.amin(0) >= own.add_(lengths, alpha=slope).add_(offset)
            return wins.logical_not_().nonzero().view(-1)

        return find
