"""Which kinds of data do samples cover, and how varied are they?"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from credo._arguments import check_integer, check_positive
from credo._distances import SquaredDistances
from credo.errors import InputError
from credo.methods import Method


@dataclass(frozen=True, eq=False)
class Coverage:
    """How many samples fell to each mode.

    Attributes:
        counts: samples of each mode, ``[modes]``, int64.
        total: all samples, also those that belong to no mode.
    """

    counts: Tensor
    total: int

    @property
    def present(self) -> int:
        """The number of modes with at least one sample."""
        return int((self.counts > 0).sum())

    @property
    def missing(self) -> list[int]:
        """The modes without a sample."""
        return [int(mode) for mode in (self.counts == 0).nonzero()]

    @property
    def quality(self) -> float:
        """The share of samples that belong to a mode."""
        return int(self.counts.sum()) / self.total


def mode_coverage(samples: Tensor, classify: Method | Callable[[Tensor], Tensor], n: int = 10) -> Coverage:
    """How many samples a classifier takes for each of ``n`` classes.

    Args:
        samples: ``[N, ...]``.
        classify: samples to integers from 0 to n − 1, ``[N]``; or a fitted method, such as :func:`fit_lenet`
            gives, of whose predictive the mode is taken.
        n: the number of classes.
    """
    if not len(samples):
        raise InputError("there are no samples to classify")
    found = classify.predict(samples).mode if isinstance(classify, Method) else classify(samples)
    classes = torch.as_tensor(found)
    modes = check_integer(n, "n", minimum=1)
    if classes.shape != samples.shape[:1] or classes.is_floating_point():
        raise InputError(
            f"classify must give one integer for each of {len(samples)} samples, got {classes.dtype} of shape "
            f"{list(classes.shape)}"
        )
    if bool(((classes < 0) | (classes >= modes)).any()):
        raise InputError(
            f"classify must give classes from 0 to {modes - 1}, got {int(classes.min())} to {classes.max()}"
        )
    return Coverage(torch.bincount(classes.cpu(), minlength=modes), len(samples))


def ring_coverage(samples: Tensor, centers: Tensor, scale: float, radius: float = 3.0) -> Coverage:
    """How many samples lie near each center; those near none count for no mode.

    Args:
        samples: ``[N, D]``.
        centers: ``[modes, D]``.
        scale: the standard deviation of a mode.
        radius: how many scales from a center still belong to it; 3 in the literature.
    """
    if samples.ndim != 2 or centers.ndim != 2 or samples.shape[1] != centers.shape[1] or not len(samples):
        raise InputError(
            f"samples and centers must have shapes [N, D] and [modes, D], got {list(samples.shape)} and "
            f"{list(centers.shape)}"
        )
    nearest = SquaredDistances(centers.to(samples.device).double())(samples.double()).min(1)
    near = nearest.values.sqrt() <= check_positive(radius, "radius") * check_positive(scale, "scale")
    return Coverage(torch.bincount(nearest.indices[near].cpu(), minlength=len(centers)), len(samples))


def nearest_distance(x: Tensor) -> float:
    """The mean Euclidean distance of each row of ``x [N, ...]`` to its nearest other row."""
    if len(x) < 2:
        return math.nan
    flat = x.flatten(1).double()
    squared = SquaredDistances(flat)(flat).fill_diagonal_(math.inf)
    return float(squared.amin(1).sqrt().mean())
