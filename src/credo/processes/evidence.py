"""The evidence of a Gaussian process, its gradient, and the hyperparameters that maximize it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy.optimize import minimize
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from credo._notices import notify
from credo._rows import DEVICE_BLOCK
from credo.errors import DivergenceError, InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from credo.processes.kernels import Kernel

JITTERS = tuple(10.0**power for power in range(-12, -3))
"""What is added to the diagonal of a matrix that rounding has made indefinite, in units of its mean, in this order."""
SCOUTED_ROWS = 300
"""How many rows the starts of a search are compared on; of more, so many that are evenly spaced."""
_CPU_BLOCK = 2**18  # numbers of the covariance matrix that are worked on at once: they stay in cache


@dataclass(frozen=True, eq=False)
class Solution:
    """The targets seen through their covariance matrix K.

    Attributes:
        cholesky: the lower triangular L with LLᵀ = K, ``[N, N]``.
        alpha: K⁻¹y, ``[N]``.
        log_evidence: log N(y | 0, K), a number.
        jitter: what was added to the diagonal of K because its factorization failed; 0 where it did not.
    """

    cholesky: Tensor
    alpha: Tensor
    log_evidence: float
    jitter: float


def solve(kernel: Kernel, theta: Tensor, x: Tensor, y: Tensor) -> Solution:
    """The evidence of ``y [N]`` at ``x [N, D]`` under the kernel with hyperparameters e^θ, in O(N³).

        log p(y | X, θ) = −½ yᵀK⁻¹y − ½ log|K| − N/2 log 2π

    Equation 5.8 of Rasmussen & Williams 2006.
    """
    factor, jitter = _factorized(_lower_covariance(kernel, theta, x))
    alpha = torch.cholesky_solve(y[:, None], factor)[:, 0]
    log_evidence = -0.5 * y @ alpha - factor.diagonal().log().sum() - 0.5 * len(y) * math.log(2.0 * math.pi)
    return Solution(factor, alpha, float(log_evidence), jitter)


def gradient(kernel: Kernel, theta: Tensor, x: Tensor, solution: Solution) -> Tensor:
    """The gradient of the evidence in θ, ``[P]``.

        ∂/∂K log p(y | X, θ) = ½ (ααᵀ − K⁻¹),    α = K⁻¹y

    Equation 5.9; only from K to θ is it found by autograd, and block by block: the graph of all of K is never held,
    and the derivative of a Cholesky factor, which costs more than the factor, is not needed.
    """
    towards = torch.cholesky_inverse(solution.cholesky).mul_(-0.5).addr_(solution.alpha, solution.alpha, alpha=0.5)
    theta = theta.detach().requires_grad_()
    slope = torch.zeros_like(theta)
    for rows, before in _blocks(x):
        part = kernel.covariance(theta, x[rows], None if before is None else x[before])
        if part.requires_grad:  # between different rows, noise does not depend on θ
            weight = towards[rows, rows] if before is None else 2.0 * towards[rows, before]
            slope += torch.autograd.grad(part, theta, weight)[0]
    return slope


def maximize(kernel: Kernel, x: Tensor, y: Tensor, starts: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """The θ that maximizes the evidence, ``[P]``: by L-BFGS-B from each start, the best of them.

    Warns:
        ConvergenceWarning: the best search stopped before it stood still.
    """
    best = min((_search(kernel, x, y, start) for start in starts), key=lambda search: float(search.fun))
    if not best.success:
        warnings.warn(
            f"the evidence may not be at its maximum after {best.nit} steps ({best.message}): scale the features to "
            "similar ranges, start from other hyperparameters, or narrow their bounds",
            ConvergenceWarning,
            stacklevel=3,
        )
    theta: NDArray[np.float64] = best.x
    if bool(np.isclose(theta[:, None], kernel.bounds, rtol=0.0, atol=1e-6).any()):
        notify(
            f"the evidence is highest at a bound, {kernel.with_theta(theta)}: rescale the features, widen the bounds, "
            "or leave the kernel to the data with kernel=None"
        )
    return theta


def promising(kernel: Kernel, x: Tensor, y: Tensor, starts: Sequence[NDArray[np.float64]]) -> list[NDArray[np.float64]]:
    """The first of several starts and the other of highest evidence; of many rows, where they lead for a few.

    The evidence has several maxima as a rule: one that takes all for noise, and others that find a function.
    """
    few = torch.linspace(0, len(x) - 1, min(len(x), SCOUTED_ROWS)).round().long()
    x_few, y_few = x[few.to(x.device)], y[few.to(x.device)]
    heights = [solve(kernel, torch.as_tensor(start).to(x), x_few, y_few).log_evidence for start in starts[1:]]
    chosen = [starts[0], starts[1 + int(np.argmax(heights))]]
    if len(few) == len(x):
        return chosen
    return [min((_search(kernel, x_few, y_few, start) for start in chosen), key=lambda search: float(search.fun)).x]


def _search(kernel: Kernel, x: Tensor, y: Tensor, start: NDArray[np.float64]) -> Any:
    """scipy's result of a search for the maximum of the evidence."""

    def objective(values: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        theta = torch.as_tensor(values, dtype=x.dtype, device=x.device)
        solution = solve(kernel, theta, x, y)
        return -solution.log_evidence, -gradient(kernel, theta, x, solution).cpu().numpy()

    return minimize(objective, start, jac=True, method="L-BFGS-B", bounds=kernel.bounds)


def _lower_covariance(kernel: Kernel, theta: Tensor, x: Tensor) -> Tensor:
    """k(X, X), ``[N, N]``, whose part above the diagonal is not filled: the Cholesky factorization does not read it."""
    out = x.new_zeros(len(x), len(x))
    with torch.no_grad():
        for rows, before in _blocks(x):
            if before is None:
                out[rows, rows] = kernel.covariance(theta, x[rows])
            else:
                out[rows, before] = kernel.covariance(theta, x[rows], x[before])
    return out


def _blocks(x: Tensor) -> Iterator[tuple[slice, slice | None]]:
    """The lower half of an N × N matrix in blocks: some rows with themselves (``None``), then with all before them."""
    numbers = _CPU_BLOCK if x.device.type == "cpu" else DEVICE_BLOCK
    size = max(numbers // len(x), 16)
    for start in range(0, len(x), size):
        rows = slice(start, min(start + size, len(x)))
        yield rows, None
        if start:
            yield rows, slice(0, start)


def _factorized(covariance: Tensor) -> tuple[Tensor, float]:
    """The Cholesky factor, and the jitter that it took; ``covariance`` is changed where it took some."""
    diagonal = covariance.diagonal()
    scale, added = float(diagonal.mean()), 0.0
    for jitter in (0.0, *(scale * share for share in JITTERS)):
        diagonal += jitter - added
        added = jitter
        factor, failed = torch.linalg.cholesky_ex(covariance)
        if not failed and math.isfinite(float(factor.diagonal().sum())):
            return factor, jitter
    if not math.isfinite(float(covariance.sum())):
        raise DivergenceError(
            "the covariances of the data are not finite: look for huge values in X, or narrow the bounds of the kernel"
        )
    raise InputError("the kernel gives no positive definite covariance matrix for these data: it is not a kernel")
