"""A Gaussian process that has been seen at some points."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from credo.gaussian_process.kernels import Kernel


@dataclass(frozen=True, eq=False)
class GaussianProcess:
    """The belief about f ~ GP(0, k) after noisy observations; before any, where N = 0.

        E[f(x)] = k(x, X) α,    Cov[f(x), f(z)] = k(x, z) − k(x, X) K⁻¹ k(X, z)

    (Rasmussen & Williams 2006, equations 2.25 and 2.26.) With the kernel of one term of a sum in place of the whole,
    the same formulas give the belief about that term.

    Attributes:
        kernel: k.
        points: X, ``[N, D]``.
        cholesky: L with LLᵀ = K, the covariance of the observations, noise included, ``[N, N]``.
        alpha: K⁻¹y, ``[N]``.
    """

    kernel: Kernel
    points: Tensor
    cholesky: Tensor
    alpha: Tensor

    @classmethod
    def prior(cls, kernel: Kernel, like: Tensor) -> GaussianProcess:
        """What is believed before anything was seen, in the dtype and on the device of ``like [..., D]``."""
        return cls(kernel, like[:0], like.new_zeros(0, 0), like.new_zeros(0))

    def term(self, kernel: Kernel) -> GaussianProcess:
        """The belief about the summand of f that has this kernel."""
        return replace(self, kernel=kernel)

    def mean(self, x: Tensor) -> Tensor:
        """E[f(x)] of every row, ``[B]``."""
        return self._cross(x) @ self.alpha

    def marginals(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """E[f(x)] and Var[f(x)] of every row, ``[B]`` each.

        The variance is a difference of two numbers of the size of the prior's: it is known to the rounding of these,
        and never said to be less.
        """
        cross = self._cross(x)
        before = self.kernel.diagonal(self.kernel.theta_on(x), x)
        after = before - self._explained(cross).square().sum(0)
        return cross @ self.alpha, after.clamp(min=torch.finfo(x.dtype).eps * before)

    def covariance(self, x: Tensor) -> Tensor:
        """Cov[f(x)], ``[B, B]``."""
        explained = self._explained(self._cross(x))
        return self.kernel.covariance(self.kernel.theta_on(x), x) - explained.mT @ explained

    def sample(self, x: Tensor, n: int, generator: torch.Generator) -> Tensor:
        """``n`` functions at ``x``, ``[n, B]``.

        Through the eigenvectors of the covariance, which exist also where smooth functions leave it singular.
        """
        variances: Tensor
        directions: Tensor
        variances, directions = torch.linalg.eigh(self.covariance(x))
        noise = torch.randn(n, len(x), dtype=x.dtype, device=x.device, generator=generator)
        return self.mean(x) + (noise * variances.clamp(min=0.0).sqrt()) @ directions.mT

    def _cross(self, x: Tensor) -> Tensor:
        return self.kernel.covariance(self.kernel.theta_on(x), x, self.points)

    def _explained(self, cross: Tensor) -> Tensor:
        """L⁻¹ k(X, x), ``[N, B]``: the squared length of a column is the variance that the observations take away."""
        explained: Tensor = torch.linalg.solve_triangular(self.cholesky, cross.mT, upper=False)
        return explained
