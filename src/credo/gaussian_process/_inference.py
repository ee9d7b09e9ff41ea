"""Posterior, evidence and hyperparameter search of a Gaussian process with a given kernel."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from numbers import Real
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from credo._arguments import check_option
from credo._notices import notify
from credo._rows import DEVICE_BLOCK
from credo.errors import DivergenceError, InputError
from credo.gaussian_process.kernels import Kernel, White

JITTERS = tuple(10.0**power for power in range(-12, -3))
"""Added in this order to the diagonal of a matrix that is not positive definite, in units of its mean."""
NOISE_START, NOISE_MIN, NOISE_MAX = 0.3, 1e-4, 10.0
"""Start and bounds of a learned noise, in standard deviations of the targets."""
LENGTH_SCALE_FACTORS, NOISE_FACTORS = (0.1, 0.3, 1.0, 3.0), (0.1, 1.0)
"""Further starts of the default kernel, in units of the first."""
START_ROWS = 300
"""The maximum number of rows on which the starts of a search are compared; they are evenly spaced."""
_CPU_BLOCK = 2**18  # numbers of the covariance matrix per block, so that a block stays in cache


@dataclass(frozen=True, eq=False)
class GaussianProcess:
    """The posterior of f ~ GP(0, k) given noisy observations; the prior if N = 0.

        E[f(x)] = k(x, X) α,    Cov[f(x), f(z)] = k(x, z) − k(x, X) K⁻¹ k(X, z)

    (Rasmussen & Williams 2006, equations 2.25 and 2.26.) With the kernel of one term of a sum in place of k, the same
    formulas give the posterior of that term.

    Attributes:
        kernel: k.
        points: X, ``[N, D]``.
        cholesky: L with LLᵀ = K, the covariance of the observations including noise, ``[N, N]``.
        alpha: K⁻¹y, ``[N]``.
    """

    kernel: Kernel
    points: Tensor
    cholesky: Tensor
    alpha: Tensor

    @classmethod
    def prior(cls, kernel: Kernel, like: Tensor) -> GaussianProcess:
        """The process without observations, in the dtype and on the device of ``like [..., D]``."""
        return cls(kernel, like[:0], like.new_zeros(0, 0), like.new_zeros(0))

    def term(self, kernel: Kernel) -> GaussianProcess:
        """The posterior of the term of f that has this kernel."""
        return replace(self, kernel=kernel)

    def mean(self, x: Tensor) -> Tensor:
        """E[f(x)] of every row, ``[B]``."""
        return self._cross(x) @ self.alpha

    def marginals(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """E[f(x)] and Var[f(x)] of every row, ``[B]`` each.

        The variance is a difference of two numbers of the size of the prior variance. It is clamped to their rounding
        error.
        """
        cross = self._cross(x)
        prior = self.kernel.diagonal(self.kernel.theta_like(x), x)
        posterior = prior - self._explained(cross).square().sum(0)
        return cross @ self.alpha, posterior.clamp(min=torch.finfo(x.dtype).eps * prior)

    def covariance(self, x: Tensor) -> Tensor:
        """Cov[f(x)], ``[B, B]``."""
        explained = self._explained(self._cross(x))
        return self.kernel.covariance(self.kernel.theta_like(x), x) - explained.mT @ explained

    def sample(self, x: Tensor, n: int, generator: torch.Generator) -> Tensor:
        """``n`` functions at ``x``, ``[n, B]``.

        The eigenvectors of the covariance exist also if smooth functions make it singular.
        """
        variances: Tensor
        directions: Tensor
        variances, directions = torch.linalg.eigh(self.covariance(x))
        noise = torch.randn(n, len(x), dtype=x.dtype, device=x.device, generator=generator)
        return self.mean(x) + (noise * variances.clamp(min=0.0).sqrt()) @ directions.mT

    def _cross(self, x: Tensor) -> Tensor:
        return self.kernel.covariance(self.kernel.theta_like(x), x, self.points)

    def _explained(self, cross: Tensor) -> Tensor:
        """L⁻¹ k(X, x), ``[N, B]``; the squared length of a column is the variance that the observations explain."""
        explained: Tensor = torch.linalg.solve_triangular(self.cholesky, cross.mT, upper=False)
        return explained


@dataclass(frozen=True)
class ObservationModel:
    """y = f(x) + ε.

    Attributes:
        function: the kernel of f.
        noise: the kernel of ε; ``None`` for exact observations.
    """

    function: Kernel
    noise: White | None

    @property
    def kernel(self) -> Kernel:
        """The kernel of y."""
        return self.function if self.noise is None else self.function + self.noise

    @property
    def sigma(self) -> float:
        """The standard deviation of ε."""
        return 0.0 if self.noise is None else self.noise.noise

    def with_theta(self, theta: NDArray[np.float64]) -> ObservationModel:
        """The same model with other values of the free hyperparameters of ``kernel``, by their logarithms."""
        size = len(self.function.theta)
        noise = None if self.noise is None else self.noise.with_theta(theta[size:])
        return ObservationModel(self.function.with_theta(theta[:size]), noise)


def to_noise_kernel(noise: object, deviation: float, unit: float = 1.0) -> White | None:
    """The kernel of the noise of targets that are divided by ``unit``; ``None`` for exact observations.

    Args:
        noise: ``"learned"``; a standard deviation, which is fixed; or a :class:`White` kernel.
        deviation: the standard deviation of the targets.
        unit: the number that the targets are divided by.
    """
    if isinstance(noise, White):
        bounds = noise.noise_bounds
        return White(noise.noise / unit, bounds if bounds == "fixed" else (bounds[0] / unit, bounds[1] / unit))
    if isinstance(noise, str):
        check_option(noise, "noise", ("learned",))
        scale = deviation / unit
        return White(NOISE_START * scale, (NOISE_MIN * scale, NOISE_MAX * scale))
    if not isinstance(noise, Real) or not 0.0 <= float(noise) < math.inf:
        raise InputError(f"noise must be 'learned', a number of at least 0, or a White kernel, got {noise!r}")
    return White(float(noise) / unit, "fixed") if noise else None


@dataclass(frozen=True, eq=False)
class Solution:
    """The solved system Kα = y, with K the covariance matrix of the targets.

    Attributes:
        cholesky: the lower triangular L with LLᵀ = K, ``[N, N]``.
        alpha: K⁻¹y, ``[N]``.
        log_evidence: log N(y | 0, K).
        jitter: the number added to the diagonal of K if its factorization failed; else 0.
    """

    cholesky: Tensor
    alpha: Tensor
    log_evidence: float
    jitter: float


def solve(kernel: Kernel, theta: Tensor, x: Tensor, y: Tensor) -> Solution:
    """The evidence of ``y [N]`` at ``x [N, D]`` under the kernel with hyperparameters e^θ, in O(N³).

        log p(y | X, θ) = −½ yᵀK⁻¹y − ½ log|K| − N/2 log 2π

    (Rasmussen & Williams 2006, equation 5.8.)
    """
    factor, jitter = _factorize(_lower_covariance(kernel, theta, x))
    alpha = torch.cholesky_solve(y[:, None], factor)[:, 0]
    log_evidence = -0.5 * y @ alpha - factor.diagonal().log().sum() - 0.5 * len(y) * math.log(2.0 * math.pi)
    return Solution(factor, alpha, float(log_evidence), jitter)


def evidence_gradient(kernel: Kernel, theta: Tensor, x: Tensor, solution: Solution) -> Tensor:
    """The gradient of the evidence in θ, ``[P]``.

        ∂/∂K log p(y | X, θ) = ½ (ααᵀ − K⁻¹),    α = K⁻¹y

    (Equation 5.9.) Autograd is used only from K to θ and block by block, so that neither the graph of all of K nor the
    derivative of the Cholesky factor is needed.
    """
    towards = torch.cholesky_inverse(solution.cholesky).mul_(-0.5).addr_(solution.alpha, solution.alpha, alpha=0.5)
    theta = theta.detach().requires_grad_()
    gradient = torch.zeros_like(theta)
    for rows, before in _blocks(x):
        part = kernel.covariance(theta, x[rows], None if before is None else x[before])
        if part.requires_grad:  # between different rows, noise does not depend on θ
            weight = towards[rows, rows] if before is None else 2.0 * towards[rows, before]
            gradient += torch.autograd.grad(part, theta, weight)[0]
    return gradient


def maximize_evidence(
    kernel: Kernel, x: Tensor, y: Tensor, starts: Sequence[NDArray[np.float64]], *, default: bool = False
) -> NDArray[np.float64]:
    """The θ that maximizes the evidence, ``[P]``: the best result of L-BFGS-B over all starts.

    Args:
        kernel: of the observations.
        x: the inputs ``[N, D]``.
        y: the targets ``[N]``.
        starts: θ to begin with, ``[P]`` each.
        default: whether the kernel is the default one, which decides what to say about a θ at its bounds.

    Warns:
        ConvergenceWarning: if the best search has not converged.
    """
    best = min((_search(kernel, x, y, start) for start in starts), key=lambda search: float(search.fun))
    if not best.success:
        warnings.warn(
            f"the evidence may not be at its maximum after {best.nit} steps ({best.message}): scale the features to "
            "similar ranges, start from other hyperparameters, or narrow their bounds",
            ConvergenceWarning,
            stacklevel=5,
        )
    theta: NDArray[np.float64] = best.x
    if bool(np.isclose(theta[:, None], kernel.bounds, rtol=0.0, atol=1e-6).any()):
        advice = "rescale the features, widen the bounds, or use the default kernel (kernel=None)"
        if default:
            advice = "a feature with the largest length scale has no effect that the data show"
        notify(f"the evidence is highest at a bound, {kernel.with_theta(theta)}: {advice}")
    return theta


def check_start(kernel: Kernel) -> NDArray[np.float64]:
    """θ, clipped to its bounds; raise ``InputError`` if it is outside by more than rounding."""
    theta, (low, high) = kernel.theta, kernel.bounds.T
    clipped = np.clip(theta, low, high)
    for k, name in enumerate(_free_names(kernel)):
        if abs(theta[k] - clipped[k]) > 1e-9:
            raise InputError(
                f"{name} must start within its bounds {math.exp(low[k]):.4g} to {math.exp(high[k]):.4g}, "
                f"got {math.exp(theta[k]):.4g}: widen {name}_bounds, or fix it"
            )
    return clipped


def select_starts(kernel: Kernel, x: Tensor, y: Tensor, start: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """``start`` and the best of several others; of many rows, the better of both after a search on a few rows.

    The evidence usually has several maxima: one that explains the targets as noise, and others that find a function.
    The other starts are functions that vary faster or more slowly, with less noise.
    """
    names, others = np.array(_free_names(kernel)), []
    for length_scale, noise in product(LENGTH_SCALE_FACTORS, NOISE_FACTORS):
        if (length_scale, noise) != (1.0, 1.0):
            factors = np.where(names == "length_scale", length_scale, np.where(names == "noise", noise, 1.0))
            others.append(np.clip(start + np.log(factors), *kernel.bounds.T))
    few = torch.linspace(0, len(x) - 1, min(len(x), START_ROWS)).round().long().to(x.device)
    x_few, y_few = x[few], y[few]
    evidences = [solve(kernel, torch.as_tensor(other).to(x), x_few, y_few).log_evidence for other in others]
    chosen = [start, others[int(np.argmax(evidences))]]
    if len(few) == len(x):
        return chosen
    return [min((_search(kernel, x_few, y_few, theta) for theta in chosen), key=lambda search: float(search.fun)).x]


def _free_names(kernel: Kernel) -> list[str]:
    """The name of the hyperparameter of every element of θ."""
    return [h.name for h in kernel.free for _ in h.values]


def _search(kernel: Kernel, x: Tensor, y: Tensor, start: NDArray[np.float64]) -> Any:
    """scipy's result of a search for the maximum of the evidence."""

    def objective(values: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        theta = torch.as_tensor(values, dtype=x.dtype, device=x.device)
        solution = solve(kernel, theta, x, y)
        return -solution.log_evidence, -evidence_gradient(kernel, theta, x, solution).cpu().numpy()

    return minimize(objective, start, jac=True, method="L-BFGS-B", bounds=kernel.bounds)


def _lower_covariance(kernel: Kernel, theta: Tensor, x: Tensor) -> Tensor:
    """k(X, X), ``[N, N]``, without the part above the diagonal, which the Cholesky factorization does not read."""
    out = x.new_zeros(len(x), len(x))
    with torch.no_grad():
        for rows, before in _blocks(x):
            if before is None:
                out[rows, rows] = kernel.covariance(theta, x[rows])
            else:
                out[rows, before] = kernel.covariance(theta, x[rows], x[before])
    return out


def _blocks(x: Tensor) -> Iterator[tuple[slice, slice | None]]:
    """The lower half of an N × N matrix in blocks: rows with themselves (``None``), then with all rows before them."""
    numbers = _CPU_BLOCK if x.device.type == "cpu" else DEVICE_BLOCK
    size = max(numbers // len(x), 16)
    for start in range(0, len(x), size):
        rows = slice(start, min(start + size, len(x)))
        yield rows, None
        if start:
            yield rows, slice(0, start)


def _factorize(covariance: Tensor) -> tuple[Tensor, float]:
    """The Cholesky factor and the jitter that was needed; ``covariance`` is changed in place by the jitter."""
    diagonal = covariance.diagonal()
    scale, added = float(diagonal.mean()), 0.0
    for jitter in (0.0, *(scale * fraction for fraction in JITTERS)):
        diagonal += jitter - added
        added = jitter
        factor, failed = torch.linalg.cholesky_ex(covariance)
        if not failed and math.isfinite(float(factor.diagonal().sum())):
            return factor, jitter
    if not math.isfinite(float(covariance.sum())):
        raise DivergenceError(
            "the covariances of the data are not finite: look for very large values in X, or narrow the bounds of the "
            "kernel"
        )
    raise InputError("the covariance matrix of the kernel is not positive definite for these data")
