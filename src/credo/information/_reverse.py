"""The search for a Gaussian q that minimizes KL(q ‖ p), for any p with a differentiable density.

With x = m + Cε, ε ~ N(0, I) and C lower triangular with a positive diagonal,

    KL(q ‖ p) = −H(q) − E_ε[log p(m + Cε)],    H(q) = Σ_d log C_dd + ½ D log 2πe.

The expectation is taken over one fixed set of weighted points ε, so that the divergence is a smooth, deterministic
function of m and C. Up to two dimensions the points are an even grid, whose error falls exponentially with the spacing
where log p is smooth, and with its square where log p has kinks; in the plane it is turned, so that kinks along an axis
do not meet a whole row of points at once. In more dimensions they are a scrambled Sobol sequence, shifted and stretched
to mean 0 and covariance I, so that a quadratic log p is integrated exactly.

Reference: L. N. Trefethen, J. A. C. Weideman, The exponentially convergent trapezoidal rule, SIAM Review 2014.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from credo.errors import DivergenceError

_GRID_POINTS: Final = {1: 2001, 2: 71}  # along each dimension
_GRID_EDGE: Final = 7.0  # standard deviations, beyond which lies a mass of 3e-12
_GRID_SLOPE: Final = (1.0 + math.sqrt(5.0)) / 2.0  # the golden ratio: of all slopes the worst met by integers
_SOBOL_POINTS: Final = 4096
_POINTS_PER_DIMENSION: Final = 8
_STEPS: Final = 1000
FLAT: Final = 1e-2
"""The largest component of a gradient, in units of the start's scales, that still counts as a minimum: where the
curvature is about 1, what is left to gain is half its square."""


@dataclass(frozen=True)
class Minimum:
    """Where a search has ended.

    Attributes:
        mean: m, ``[D]``.
        factor: C, ``[D, D]``.
        divergence: KL(q ‖ p), as the points have it.
        slope: the largest component of the gradient there.
    """

    mean: Tensor
    factor: Tensor
    divergence: float
    slope: float


@dataclass(frozen=True)
class Points:
    """Points ε ``[N, D]`` and weights ``[N]``, whose weighted mean stands for an expectation under N(0, I)."""

    values: Tensor
    weights: Tensor


def points(dimension: int, seed: int, device: torch.device) -> Points:
    """The points of the expectation in ``dimension`` dimensions."""
    if dimension in _GRID_POINTS:
        line = torch.linspace(-_GRID_EDGE, _GRID_EDGE, _GRID_POINTS[dimension], dtype=torch.float64, device=device)
        grid = torch.cartesian_prod(*[line] * dimension).reshape(-1, dimension)
        if dimension == 2:
            turn = grid.new_tensor([[1.0, _GRID_SLOPE], [-_GRID_SLOPE, 1.0]]) / math.hypot(1.0, _GRID_SLOPE)
            grid = grid @ turn
        return Points(grid, (-0.5 * grid.square().sum(-1)).softmax(0))
    count = max(_SOBOL_POINTS, 2 ** math.ceil(math.log2(_POINTS_PER_DIMENSION * dimension)))
    engine = torch.quasirandom.SobolEngine(dimension, scramble=True, seed=seed)
    uniform = engine.draw(count, dtype=torch.float64).clamp(min=1.0 / (2.0 * count), max=1.0 - 1.0 / (2.0 * count))
    normal = torch.special.ndtri(uniform)
    normal = normal - normal.mean(0)
    factor = torch.linalg.cholesky(normal.T @ normal / count)
    values: Tensor = torch.linalg.solve_triangular(factor, normal.T, upper=False).T
    return Points(values.to(device), torch.full((count,), 1.0 / count, dtype=torch.float64, device=device))


def minimize(
    log_density: Callable[[Tensor], Tensor], at: Points, start: Tensor, scale: Tensor, diagonal: bool
) -> Minimum:
    """Descend from N(start, diag(scale²)).

    Args:
        log_density: log p of each row, ``[N, D]`` to ``[N]``.
        at: the points of the expectation.
        start: the first m, ``[D]``.
        scale: the first standard deviations, ``[D]``, which are also the units of the search.
        diagonal: whether C stays diagonal.
    """
    dimension = len(start)
    shift = torch.zeros_like(start, requires_grad=True)
    log_widths = torch.zeros_like(start, requires_grad=True)
    skew = torch.zeros(dimension, dimension, dtype=start.dtype, device=start.device, requires_grad=not diagonal)
    parameters = [shift, log_widths] if diagonal else [shift, log_widths, skew]

    def gaussian() -> tuple[Tensor, Tensor]:
        return start + scale * shift, scale[:, None] * (log_widths.exp().diag() + skew.tril(-1))

    def divergence() -> Tensor:
        mean, factor = gaussian()
        expected = at.weights @ log_density(mean + at.values @ factor.T)
        entropy = (scale.log() + log_widths).sum() + 0.5 * dimension * math.log(2.0 * math.pi * math.e)
        return -entropy - expected

    optimizer = torch.optim.LBFGS(
        parameters,
        max_iter=_STEPS,
        tolerance_grad=1e-7,
        tolerance_change=1e-14,
        history_size=20,
        line_search_fn="strong_wolfe",
    )

    def closure() -> float:
        optimizer.zero_grad()
        loss = divergence()
        loss.backward()
        return loss.item()

    with torch.enable_grad():
        optimizer.step(closure)
        reached = closure()
    slope = max(float(p.grad.abs().max()) for p in parameters if p.grad is not None)
    mean, factor = (part.detach() for part in gaussian())
    return Minimum(mean, factor, reached, slope)


def lowest(minima: list[Minimum]) -> list[Minimum]:
    """The searches that ended at a number, lowest divergence first."""
    good = sorted((m for m in minima if math.isfinite(m.divergence)), key=lambda m: m.divergence)
    if not good:
        raise DivergenceError(
            "no search for q ended at a finite divergence: p must have a finite, differentiable log density "
            "everywhere; give a start= near its mass"
        )
    return good
