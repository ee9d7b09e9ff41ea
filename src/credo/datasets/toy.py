"""One-dimensional regression problems whose answer is known."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from credo.errors import InputError


@dataclass(frozen=True, eq=False)
class Curve:
    """A noisy sample of a known function of one variable.

    Attributes:
        x: inputs ``[N, 1]``, ascending.
        y: noisy outputs ``[N, 1]``.
        x_grid: even inputs ``[M, 1]`` that reach past the data on both sides, for plots.
        function: the noise-free function, ``[K, 1]`` to ``[K, 1]``.
        noise: standard deviation of the noise as a function of the input, ``[K, 1]`` to ``[K, 1]``.
        gap: the interval within the data that holds no inputs, or ``None``.
    """

    x: Tensor
    y: Tensor
    x_grid: Tensor
    function: Callable[[Tensor], Tensor]
    noise: Callable[[Tensor], Tensor]
    gap: tuple[float, float] | None = None


def sine_with_gap(n: int = 100, noise: float = 0.1, seed: int = 0) -> Curve:
    """y = sin(2x) + x/4 + ε, with ε ~ N(0, noise²) and no inputs between −0.6 and 0.9.

    Inputs are uniform on [−2, −0.6] ∪ [0.9, 2]. What a model believes inside the gap is its epistemic
    uncertainty; what it believes about the noise, the same everywhere, is aleatoric.
    """
    _require(n, noise)
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
    """
    _require(n)
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

    The regression curve of section 5.2 of Blundell et al. The noise enters inside the sines too, so its size
    depends on the input; ``noise`` is its first-order standard deviation, 0.02·|1 + 0.6π·cos 2πx + 1.2π·cos 4πx|.

    References:
        Blundell, Cornebise, Kavukcuoglu, Wierstra. Weight uncertainty in neural networks. ICML, 2015.
        arXiv:1505.05424.
    """
    _require(n)
    scale = 0.02
    generator = torch.Generator().manual_seed(seed)
    x = (0.5 * torch.rand(n, 1, generator=generator)).sort(dim=0).values
    epsilon = scale * torch.randn(n, 1, generator=generator)

    def function(x: Tensor) -> Tensor:
        return x + 0.3 * torch.sin(2.0 * math.pi * x) + 0.3 * torch.sin(4.0 * math.pi * x)

    def noise(x: Tensor) -> Tensor:
        slow, fast = torch.cos(2.0 * math.pi * x), torch.cos(4.0 * math.pi * x)
        return scale * (1.0 + 0.6 * math.pi * slow + 1.2 * math.pi * fast).abs()

    # x + ε in the identity and in both sines: the noise only shifts the input.
    return Curve(x, function(x + epsilon), _grid(-0.2, 1.2), function, noise)


def _grid(low: float, high: float, points: int = 400) -> Tensor:
    return torch.linspace(low, high, points)[:, None]


def _require(n: int, noise: float = 0.0) -> None:
    if n < 1:
        raise InputError(f"n must be at least 1, got {n}")
    if noise < 0.0:
        raise InputError(f"noise must be a standard deviation of 0 or more, got {noise}")
