"""Which rows may have a new nearest center, found in single precision without missing one.

A score is s_k = ‖c_k‖² − 2 c_k·x, smallest for the nearest center. In single precision, with rounding unit u, it is off
by at most (2D + 10) u c (‖x‖ + c), where c is the length of the longest center (Higham 2002, section 3.1, for the sum
of D products, and a few roundings more). A row whose own center wins by more than twice that need not be looked at in
double precision.

Reference:
    N. J. Higham. Accuracy and Stability of Numerical Algorithms. 2nd edition, 2002.
"""

from __future__ import annotations

import torch
from torch import Tensor

from credo._rows import Rows

MOST_NUMBERS = 2**28
"""The largest table of which a copy is kept: 1 GiB in single precision."""


class Screen:
    """A copy of a table in single precision, measured from its mean in standard deviations.

    Args:
        rows: of a table.
        mean: of its rows, ``[D]``.
        scale: that of a column; no row is longer than √(ND) of them, so that nothing overflows.

    Attributes:
        columns: the copy ``[N, D]``, and the lengths of its rows ``[N]``.
    """

    def __init__(self, rows: Rows, mean: Tensor, scale: float) -> None:
        self._scale = scale
        self.columns = torch.empty(rows.count, len(mean)), torch.empty(rows.count)

        def fill(x: Tensor, copy: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
            torch.linalg.vector_norm(copy.copy_((x - mean).div_(scale)), dim=1, out=lengths)
            return ()

        rows.beside(*self.columns).total(fill)

    @staticmethod
    def pays(rows: Rows, columns: int) -> bool:
        """Whether a copy is small enough, and single precision is faster and what it says it is."""
        small = rows.count * columns <= MOST_NUMBERS
        return small and rows.device.type == "cpu" and torch.get_float32_matmul_precision() == "highest"

    def against(self, centers: Tensor) -> Against:
        """The same rows seen from ``centers [K, D]``, measured from the mean."""
        return Against(centers / self._scale)


class Against:
    """Finds the rows of a block that are in doubt."""

    def __init__(self, centers: Tensor) -> None:
        squares = centers.square().sum(1, keepdim=True)
        longest = float(squares.max().sqrt())
        unit = torch.finfo(torch.float32).eps  # 2u
        self._centers, self._squares = centers.float(), squares.float()
        self._slope = 2.0 * (centers.shape[1] + 8) * unit * longest
        self._offset = self._slope * longest

    def doubtful(self, labels: Tensor, x: Tensor, lengths: Tensor) -> Tensor:
        """The numbers of the rows ``x [b, D]`` that may have another nearest center than ``labels [b]`` says."""
        scores = torch.addmm(self._squares, self._centers, x.T, alpha=-2.0)
        cells = torch.arange(len(x)).add_(labels, alpha=len(x))
        own = scores.view(-1).index_select(0, cells)
        scores.view(-1).index_fill_(0, cells, torch.inf)
        wins = scores.amin(0) >= own.add_(lengths, alpha=self._slope).add_(self._offset)
        return wins.logical_not_().nonzero().view(-1)
