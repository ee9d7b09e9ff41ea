"""Joint beliefs about the mean and the precision of a Gaussian."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import torch
from torch import Size, Tensor
from torch.distributions import Chi2, Distribution, Gamma, MultivariateNormal, Normal, Wishart
from torch.distributions.constraints import Constraint


class MeanAndPrecision(NamedTuple):
    """μ and λ of a Gaussian, or a vector μ and a matrix Λ."""

    mean: Tensor
    precision: Tensor


class NormalGammaDistribution(Distribution):
    """N(μ | m, 1/βλ) Gamma(λ | a, b): draws, values and means are pairs :class:`MeanAndPrecision`.

    Args:
        loc: m, ``[...]``.
        mean_precision: β, ``[...]``.
        shape: a, ``[...]``.
        rate: b, ``[...]``.
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {}

    def __init__(self, loc: Tensor, mean_precision: Tensor, shape: Tensor, rate: Tensor) -> None:
        self.loc, self.mean_precision = loc, mean_precision
        self._precision = Gamma(shape, rate)
        super().__init__(loc.shape)

    @property
    def mean(self) -> MeanAndPrecision:  # type: ignore[override]
        """m and a/b."""
        return MeanAndPrecision(self.loc, self._precision.mean)

    @property
    def variance(self) -> MeanAndPrecision:  # type: ignore[override]
        """b/(β(a − 1)), infinite for a ≤ 1, and a/b²."""
        shape, rate = self._precision.concentration, self._precision.rate
        spread = rate / (self.mean_precision * (shape - 1.0))
        return MeanAndPrecision(torch.where(shape > 1.0, spread, torch.inf), self._precision.variance)

    def sample(self, sample_shape: Sequence[int] = ()) -> MeanAndPrecision:  # type: ignore[override]
        """λ, then a μ for it, ``[*sample_shape, ...]`` each."""
        precision = self._precision.sample(Size(sample_shape))
        return MeanAndPrecision(self._mean_given(precision).sample(), precision)

    def log_prob(self, value: MeanAndPrecision) -> Tensor:  # type: ignore[override]
        """log p(λ) + log p(μ | λ)."""
        mean, precision = value
        log_prob: Tensor = self._precision.log_prob(precision) + self._mean_given(precision).log_prob(mean)
        return log_prob

    def _mean_given(self, precision: Tensor) -> Normal:
        return Normal(self.loc, (self.mean_precision * precision).rsqrt())


class NormalWishartDistribution(Distribution):
    """N(μ | m, (βΛ)⁻¹) Wishart(Λ | W, ν): draws, values and means are pairs :class:`MeanAndPrecision`.

    Args:
        loc: m, ``[D]``.
        mean_precision: β.
        degrees_of_freedom: ν, above D − 1.
        inverse_scale: W⁻¹, ``[D, D]``.
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {}

    def __init__(self, loc: Tensor, mean_precision: Tensor, degrees_of_freedom: Tensor, inverse_scale: Tensor) -> None:
        self.loc, self.mean_precision = loc, mean_precision
        self._precision = Wishart(degrees_of_freedom, precision_matrix=inverse_scale)
        super().__init__()

    @property
    def mean(self) -> MeanAndPrecision:  # type: ignore[override]
        """m and νW."""
        return MeanAndPrecision(self.loc, self._precision.mean)

    @property
    def variance(self) -> MeanAndPrecision:  # type: ignore[override]
        """The diagonal of W⁻¹/(β(ν − D − 1)), infinite for ν ≤ D + 1, and ν(WᵢⱼWᵢⱼ + WᵢᵢWⱼⱼ)."""
        excess = self._precision.df - len(self.loc) - 1.0
        spread = self._precision.precision_matrix.diagonal() / (self.mean_precision * excess)
        return MeanAndPrecision(torch.where(excess > 0.0, spread, torch.inf), self._precision.variance)

    def sample(self, sample_shape: Sequence[int] = ()) -> MeanAndPrecision:  # type: ignore[override]
        """Λ, then a μ for it: ``[*sample_shape, D]`` and ``[*sample_shape, D, D]``.

        Λ = FFᵀ with F by Bartlett's decomposition, and μ = m + F⁻ᵀε/√β. (torch's own Wishart sampler warns of singular
        matrices where there are none.)
        """
        with torch.no_grad():
            factor = self._precision.scale_tril @ self._bartlett(sample_shape)
            noise = torch.randn(factor.shape[:-1], dtype=factor.dtype, device=factor.device).unsqueeze(-1)
            spread: Tensor = torch.linalg.solve_triangular(factor.mT, noise, upper=True)
            mean = self.loc + spread.squeeze(-1) * self.mean_precision.rsqrt()
            return MeanAndPrecision(mean, factor @ factor.mT)

    def log_prob(self, value: MeanAndPrecision) -> Tensor:  # type: ignore[override]
        """log p(Λ) + log p(μ | Λ)."""
        mean, precision = value
        given = MultivariateNormal(self.loc, precision_matrix=self.mean_precision * precision)
        log_prob: Tensor = self._precision.log_prob(precision) + given.log_prob(mean)
        return log_prob

    def _bartlett(self, sample_shape: Sequence[int]) -> Tensor:
        """The Cholesky factor of a draw from Wishart(I, ν): normals below a diagonal of √χ²(ν), √χ²(ν − 1), …."""
        size = len(self.loc)
        freedoms = self._precision.df - torch.arange(size, device=self.loc.device)
        below = torch.randn((*sample_shape, size, size), dtype=self.loc.dtype, device=self.loc.device).tril(-1)
        return below + Chi2(freedoms).sample(Size(sample_shape)).sqrt().diag_embed()
