"""The beliefs of a variational mixture of Gaussians: Dirichlet over the weights, Gaussian–Wishart over each component.

The posterior is approximated by q(z) q(π, μ, Λ), and both factors have closed forms given the other. The second depends
on the first through sums over rows only, and the bound at the pair is

    L = H[q(z)] + log (Z_N / Z_0) − ½ N D log 2π

with Z_0 and Z_N the normalizing constants of the prior and of q(π, μ, Λ): equations 10.70–10.77 of Bishop (2006) added
up, at the best q(π, μ, Λ) for that q(z). For one component it is the exact log evidence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from credo._rows import Rows
from credo._special import log_dirichlet_categorical, log_rising
from credo.em import Expectation
from credo.errors import InputError
from credo.mixture.components import LOG_2PI, Sums
from credo.mixture.expectation import expect
from credo.mixture.matrices import FullComponents, corrected, outer


@dataclass(frozen=True, eq=False)
class Assigned:
    """q(z), by its sums over the rows.

    Attributes:
        components: from which the rows were measured.
        sums: N_k, N_k x̄_k and the scatter, in their white coordinates.
        entropy: −Σ_nk r_nk log r_nk.
    """

    components: FullComponents
    sums: Sums
    entropy: float


@dataclass(frozen=True, eq=False)
class Posterior:
    """q(π, μ, Λ) = Dir(π | α) ∏_k N(μ_k | m_k, (β_kΛ_k)⁻¹) Wishart(Λ_k | W_k, ν_k).

    Attributes:
        concentration: α, ``[K]``.
        mean_precision: β, ``[K]``.
        freedom: ν, ``[K]``.
        components: the means m_k, and the expected precisions ν_k W_k.
    """

    concentration: Tensor
    mean_precision: Tensor
    freedom: Tensor
    components: FullComponents

    @cached_property
    def expected_log_scale(self) -> Tensor:
        """E[log π_k] + ½ E[log|Λ_k|] − ½ D/β_k − ½ D log 2π: log ρ_nk without its distance (10.64–10.66), ``[K]``."""
        size = self.components.means.shape[1]
        log_weights = torch.digamma(self.concentration) - torch.digamma(self.concentration.sum())
        psi = torch.digamma(_halves(self.freedom, size)).sum(-1)
        log_det = psi + size * (math.log(2.0) - self.freedom.log()) + 2.0 * self.components.half_log_det
        return log_weights + 0.5 * (log_det - size / self.mean_precision - size * LOG_2PI)

    def assign(self, rows: Rows) -> Assigned:
        """The best q(z) for this q(π, μ, Λ) (10.49, 10.67), in one pass."""
        shared = expect(rows, self.components, self.expected_log_scale)
        distances = shared.sums.second.diagonal(dim1=-2, dim2=-1).sum(-1)
        expected = (shared.sums.count * self.expected_log_scale - 0.5 * distances).sum()
        return Assigned(self.components, shared.sums, shared.total - float(expected))

    def predictive_log_joint(self, squared_distances: Tensor) -> Tensor:
        """log E[π_k] St(x | m_k, L_k, ν_k + 1 − D) (10.81), from squared distances ``[K, b]`` to the components."""
        size = self.components.means.shape[1]
        freedom = self.freedom + 1.0 - size
        log_gammas = log_rising(0.5 * freedom, torch.full_like(freedom, 0.5 * size))
        log_det = self.components.half_log_det - 0.5 * size * self.spread.log()
        log_scale = (self.concentration / self.concentration.sum()).log() + log_gammas + log_det
        log_scale = log_scale - 0.5 * size * (math.pi * freedom).log()
        tails = torch.log1p(squared_distances / (self.spread * freedom)[:, None])
        return log_scale[:, None] - 0.5 * (freedom + size)[:, None] * tails

    @property
    def spread(self) -> Tensor:
        """By how much the squared scale of the Student t of (10.82) exceeds (ν_kW_k)⁻¹, ``[K]``."""
        freedom = self.freedom + 1.0 - self.components.means.shape[1]
        return self.freedom / freedom * (1.0 + 1.0 / self.mean_precision)


@dataclass(frozen=True, eq=False)
class Prior:
    """p(π, μ, Λ) = Dir(π | α₀) ∏_k N(μ_k | m₀, (β₀Λ_k)⁻¹) Wishart(Λ_k | W₀, ν₀).

    Attributes:
        concentration: α₀ of every component.
        mean_precision: β₀.
        mean: m₀, ``[D]``.
        freedom: ν₀, above D − 1.
        inverse_scale: W₀⁻¹, ``[D, D]``.
    """

    concentration: float
    mean_precision: float
    mean: Tensor
    freedom: float
    inverse_scale: Tensor

    def expect(self, assigned: Assigned) -> Expectation[Posterior]:
        """The best q(π, μ, Λ) for q(z) (10.58–10.63), and the bound at both.

        All is measured in the white coordinates y = Pᵀ(x − μ) of the components that the sums come from, where
        W_k⁻¹ is near a multiple of the identity however flat the data are.
        """
        old, count = assigned.components, assigned.sums.count
        mean_precision, freedom = self.mean_precision + count, self.freedom + count
        to_mean = (old.factor.mT @ (old.means - self.mean).unsqueeze(-1)).squeeze(-1)
        shift = assigned.sums.shift
        gap = shift + to_mean
        share = self.mean_precision * count / mean_precision
        root = self._root @ old.factor
        scatter = assigned.sums.second - outer(assigned.sums.first, shift)
        white = root.mT @ root + scatter + share[:, None, None] * outer(gap, gap)
        means = old.moved(count[:, None] / mean_precision[:, None] * gap - to_mean)
        scale = corrected(old.factor, white, floor=0.0)
        components = FullComponents(means, freedom.sqrt()[:, None, None] * scale)
        posterior = Posterior(self.concentration + count, mean_precision, freedom, components)
        log_det = -2.0 * FullComponents(means, scale).half_log_det
        return Expectation(posterior, assigned.entropy + self._log_evidence(count, log_det))

    @cached_property
    def _root(self) -> Tensor:
        """The upper triangular A with AᵀA = W₀⁻¹."""
        lower: Tensor
        lower, failed = torch.linalg.cholesky_ex(self.inverse_scale)
        if bool(failed.any()) or not bool(torch.isfinite(lower).all()):
            raise InputError(
                "covariance_prior is singular: it must be positive definite; where it comes from the rows, columns are "
                "constant or repeat others: drop such columns, scale all to a similar size or raise reg_covar"
            )
        return lower.mT

    def _log_evidence(self, count: Tensor, log_det: Tensor) -> float:
        """log (Z_N / Z_0) − ½ N D log 2π, with ``log_det [K]`` those of W_k⁻¹."""
        size = len(self.mean)
        weights = log_dirichlet_categorical(torch.full_like(count, self.concentration), count)
        halves = _halves(torch.full_like(count, self.freedom), size)
        gammas = log_rising(halves, (0.5 * count[:, None]).expand_as(halves)).sum(-1)
        before = 2.0 * self._root.diagonal().log().sum()
        spread = self.freedom * (log_det - before) + count * (log_det + size * math.log(math.pi))
        means = size * torch.log1p(count / self.mean_precision)
        return float(weights + (gammas - 0.5 * (spread + means)).sum())


def _halves(freedom: Tensor, size: int) -> Tensor:
    """(ν + 1 − i)/2 for i = 1 … D, ``[K, D]``."""
    return 0.5 * (freedom[:, None] - torch.arange(size, dtype=freedom.dtype, device=freedom.device))
