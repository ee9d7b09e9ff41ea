"""Synthetic data: one-dimensional regression curves and a ring of Gaussians."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

from credo._arguments import check_integer, check_non_negative, check_positive


@dataclass(frozen=True, eq=False)
class Curve:
    """A noisy sample of a known function of one variable.

    Attributes:
        x: inputs ``[N, 1]``, ascending.
        y: noisy targets ``[N, 1]``.
        x_grid: evenly spaced inputs ``[M, 1]`` that extend beyond the data on both sides, for plots.
        function: the noise-free function, ``[K, 1]`` to ``[K, 1]``.
        noise: standard deviation of the noise as a function of the input, ``[K, 1]`` to ``[K, 1]``.
        gap: the interval without inputs inside the range of the data, or ``None``.

    Example:
        >>> curve = sine_with_gap(n=50)
        >>> curve.x.shape, curve.gap
        (torch.Size([50, 1]), (-0.6, 0.9))
    """

    x: Tensor
    y: Tensor
    x_grid: Tensor
    function: Callable[[Tensor], Tensor]
    noise: Callable[[Tensor], Tensor]
    gap: tuple[float, float] | None = None


def sine_with_gap(n: int = 100, noise: float = 0.1, seed: int = 0) -> Curve:
    """y = sin(2x) + x/4 + ε, with ε ~ N(0, noise²) and no inputs between −0.6 and 0.9.

    Inputs are uniform on [−2, −0.6] ∪ [0.9, 2]. The uncertainty of a model about the function is large inside the gap
    (epistemic); the noise is the same everywhere (aleatoric).

    Args:
        n: number of points.
        noise: standard deviation of the noise.
        seed: seed of the inputs and the noise.

    Returns:
        The curve.

    Raises:
        InputError: if ``n`` is below 1 or ``noise`` is negative.
    """
    check_integer(n, "n", 1)
    check_non_negative(noise, "noise")
    low, high, gap = -2.0, 2.0, (-0.6, 0.9)
    generator = torch.Generator().manual_seed(seed)
    u = torch.rand(n, 1, generator=generator) * (high - low - (gap[1] - gap[0])) + low
    x = torch.where(u < gap[0], u, u + (gap[1] - gap[0])).sort(dim=0).values

    def function(x: Tensor) -> Tensor:
        return torch.sin(2.0 * x) + 0.25 * x

    def constant(x: Tensor) -> Tensor:
        return torch.full_like(x, noise)

    y = function(x) + noise * torch.randn(n, 1, generator=generator)
    return Curve(x, y, _grid(-2.75, 2.75), function, constant, gap)


def heteroscedastic_sine(n: int = 200, seed: int = 0) -> Curve:
    """y = sin(2x) + σ(x)·ε, ε ~ N(0, 1), whose noise σ(x) = 0.05 + 0.35·sigmoid(2x) grows from left to right.

    Inputs are uniform on [−2, 2].

    Args:
        n: number of points.
        seed: seed of the inputs and the noise.

    Returns:
        The curve.

    Raises:
        InputError: if ``n`` is below 1.
    """
    check_integer(n, "n", 1)
    generator = torch.Generator().manual_seed(seed)
    x = (4.0 * torch.rand(n, 1, generator=generator) - 2.0).sort(dim=0).values

    def function(x: Tensor) -> Tensor:
        return torch.sin(2.0 * x)

    def noise(x: Tensor) -> Tensor:
        return 0.05 + 0.35 * torch.sigmoid(2.0 * x)

    y = function(x) + noise(x) * torch.randn(n, 1, generator=generator)
    return Curve(x, y, _grid(-2.75, 2.75), function, noise)


def blundell_curve(n: int = 200, seed: int = 0) -> Curve:
    """y = x + 0.3·sin(2π(x + ε)) + 0.3·sin(4π(x + ε)) + ε, ε ~ N(0, 0.02²), inputs uniform on [0, 0.5].

    The regression curve of section 5.2 of Blundell et al. The noise also enters inside the sines, so its size depends
    on the input; ``noise`` of the curve is its first-order standard deviation,
    0.02·|1 + 0.6π·cos 2πx + 1.2π·cos 4πx|.

    Args:
        n: number of points.
        seed: seed of the inputs and the noise.

    Returns:
        The curve.

    Raises:
        InputError: if ``n`` is below 1.

    References:
        Blundell, Cornebise, Kavukcuoglu, Wierstra. Weight uncertainty in neural networks. ICML, 2015.
        arXiv:1505.05424.
    """
    check_integer(n, "n", 1)
    scale = 0.02
    generator = torch.Generator().manual_seed(seed)
    x = (0.5 * torch.rand(n, 1, generator=generator)).sort(dim=0).values
    epsilon = scale * torch.randn(n, 1, generator=generator)

    def function(x: Tensor) -> Tensor:
        return x + 0.3 * torch.sin(2.0 * math.pi * x) + 0.3 * torch.sin(4.0 * math.pi * x)

    def noise(x: Tensor) -> Tensor:
        slow, fast = torch.cos(2.0 * math.pi * x), torch.cos(4.0 * math.pi * x)
        return scale * (1.0 + 0.6 * math.pi * slow + 1.2 * math.pi * fast).abs()

    # ε is added to x in the identity and in both sines: the noise shifts the input.
    return Curve(x, function(x + epsilon), _grid(-0.2, 1.2), function, noise)


@dataclass(frozen=True, eq=False)
class Ring:
    """Points in the plane from equally probable Gaussians, with centers spaced evenly on a circle.

    Attributes:
        x: points ``[n, 2]``.
        mode: index of the Gaussian of each point, ``[n]``.
        centers: centers of the Gaussians, ``[modes, 2]``.
        std: standard deviation of each Gaussian.

    Example:
        >>> ring = ring_of_gaussians(n=100, modes=8)
        >>> ring.x.shape, ring.centers.shape
        (torch.Size([100, 2]), torch.Size([8, 2]))
    """

    x: Tensor
    mode: Tensor
    centers: Tensor
    std: float

    @property
    def distribution(self) -> MixtureSameFamily:
        """The distribution of the points."""
        return MixtureSameFamily(
            Categorical(logits=torch.zeros(len(self.centers))),
            Independent(Normal(self.centers, torch.full_like(self.centers, self.std)), 1),
        )


def ring_of_gaussians(n: int = 2000, modes: int = 8, radius: float = 2.0, std: float = 0.02, seed: int = 0) -> Ring:
    """Draw points from a mixture of Gaussians on a circle, a test for mode collapse of generators.

    Args:
        n: number of points.
        modes: number of Gaussians.
        radius: radius of the circle.
        std: standard deviation of each Gaussian.
        seed: seed of the points.

    Returns:
        The points, with their modes.

    Raises:
        InputError: if ``n`` or ``modes`` is below 1, or ``radius`` or ``std`` is not positive.
    """
    check_integer(n, "n", 1)
    check_integer(modes, "modes", 1)
    check_positive(radius, "radius")
    check_positive(std, "std")
    generator = torch.Generator().manual_seed(seed)
    angle = torch.arange(modes) * (2.0 * math.pi / modes)
    centers = radius * torch.stack([angle.cos(), angle.sin()], dim=1)
    mode = torch.randint(modes, (n,), generator=generator)
    return Ring(centers[mode] + std * torch.randn(n, 2, generator=generator), mode, centers, std)


def _grid(low: float, high: float, points: int = 400) -> Tensor:
    return torch.linspace(low, high, points)[:, None]
