"""A ring of Gaussians: modes that a generator can find or miss."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

from credo.errors import InputError


@dataclass(frozen=True, eq=False)
class Ring:
    """Points in the plane from equally likely Gaussians, whose centers lie evenly on a circle.

    Attributes:
        x: points ``[n, 2]``.
        mode: which Gaussian each comes from, ``[n]``.
        centers: of the Gaussians, ``[modes, 2]``.
        std: standard deviation of each.
    """

    x: Tensor
    mode: Tensor
    centers: Tensor
    std: float

    @property
    def distribution(self) -> MixtureSameFamily:
        """Where the points come from."""
        return MixtureSameFamily(
            Categorical(logits=torch.zeros(len(self.centers))),
            Independent(Normal(self.centers, torch.full_like(self.centers, self.std)), 1),
        )


def ring_of_gaussians(n: int = 2000, modes: int = 8, radius: float = 2.0, std: float = 0.02, seed: int = 0) -> Ring:
    """``n`` points from ``modes`` Gaussians on a circle, on which generators that forget modes are seen to do so.

    Args:
        n: number of points.
        modes: number of Gaussians.
        radius: of the circle.
        std: standard deviation of each Gaussian.
        seed: fixes the points.
    """
    if n < 1 or modes < 1:
        raise InputError(f"n and modes must be at least 1, got {n} and {modes}")
    if not (radius > 0.0 and std > 0.0):
        raise InputError(f"radius and std must be positive, got {radius} and {std}")
    generator = torch.Generator().manual_seed(seed)
    angle = torch.arange(modes) * (2.0 * math.pi / modes)
    centers = radius * torch.stack([angle.cos(), angle.sin()], dim=1)
    mode = torch.randint(modes, (n,), generator=generator)
    return Ring(centers[mode] + std * torch.randn(n, 2, generator=generator), mode, centers, std)
