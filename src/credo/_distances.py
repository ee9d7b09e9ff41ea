"""Euclidean distances by one matrix product, without its loss of precision for near neighbors.

‖x − z‖² = ‖x‖² + ‖z‖² − 2 xᵀz is many times faster than a sum of squared differences, but its error is relative to the
squared lengths: equal rows get a distance above 0, and rows far from the origin lose all digits. Here the few pairs for
which that matters are computed from differences.

Reference:
    N. J. Higham. Accuracy and Stability of Numerical Algorithms. 2nd edition, 2002, section 3.1.
"""

from __future__ import annotations

import torch
from torch import Tensor

_MIN_RELATIVE_DISTANCE = 1e6
"""A squared distance is taken from the product if it is this many times its rounding error: at least six digits."""
_BLOCK_NUMBERS = 2**22


class SquaredDistances:
    """‖x_i − z_j‖² to the rows of ``z [n, D]``, each with at least six digits, and 0 for equal rows."""

    def __init__(self, z: Tensor) -> None:
        self._z = z
        self._center = z.mean(0)
        self._centered = z - self._center
        self._squares = torch.linalg.vector_norm(self._centered, dim=1).square_()

    def __call__(self, x: Tensor) -> Tensor:
        """From rows ``x [b, D]``, ``[b, n]``."""
        centered = x - self._center
        bounds = centered.square().sum(1, keepdim=True) + self._squares
        squared = torch.addmm(bounds, centered, self._centered.mT, alpha=-2.0)
        pairs = (squared < bounds.mul_(_MIN_RELATIVE_DISTANCE * _rounding(x))).nonzero()
        for part in pairs.split(max(_BLOCK_NUMBERS // x.shape[1], 1)):
            i, j = part.unbind(1)
            squared[i, j] = (x[i] - self._z[j]).square_().sum(1)
        return squared


def nearest_rows(x: Tensor, z: Tensor) -> Tensor:
    """The index of the row of ``z [K, D]`` that is nearest to each row of ``x [b, D]``, ``[b]``.

    The distance of the chosen row is the smallest to at least six digits. Both should be relative to a point among
    them: far from it many rows are uncertain, and take longer.
    """
    squares = z.square().sum(1, keepdim=True)
    # ‖z‖² − 2 xᵀz, [K, b]: as good as the distance for finding the nearest
    scores = torch.addmm(squares, z, x.mT, alpha=-2.0)
    smallest = scores.min(0)
    lengths = torch.linalg.vector_norm(x, dim=1)
    error = (lengths.square() + squares.max()).mul_(_rounding(x))
    uncertain = smallest.values + lengths.square_() < _MIN_RELATIVE_DISTANCE * error
    if not bool(uncertain.any()):
        return smallest.indices
    rivals = (scores <= smallest.values + 2.0 * error).sum(0)
    rows = (uncertain & (rivals > 1)).nonzero().view(-1)
    exact = torch.cdist(x[rows], z, compute_mode="donot_use_mm_for_euclid_dist").argmin(1)
    return smallest.indices.index_copy(0, rows, exact)


def _rounding(x: Tensor) -> float:
    """The maximum error of a squared distance by a product, relative to the squared lengths."""
    return (x.shape[1] + 4) * torch.finfo(x.dtype).eps
