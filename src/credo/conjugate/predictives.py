"""Distributions of new observations that torch does not have."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Size, Tensor
from torch.distributions import (
    Beta,
    Binomial,
    Chi2,
    Dirichlet,
    Distribution,
    Multinomial,
    NegativeBinomial,
    StudentT,
    constraints,
)
from torch.distributions.constraints import Constraint

from credo._special import log_negative_binomial, log_rising
from credo.conjugate._special import log_dirichlet_multinomial


class PreciseNegativeBinomial(NegativeBinomial):
    """torch's negative binomial with a log probability that keeps its digits for any ``total_count``."""

    def log_prob(self, value: Tensor) -> Tensor:
        """log Γ(r + k)/(Γ(r) k!) + r log(1 − p) + k log p, without cancellation."""
        if self._validate_args:
            self._validate_sample(value)
        shape, odds = self.total_count, self.logits.exp()
        return log_negative_binomial(value.to(odds.dtype), shape, odds)


class PreciseStudentT(StudentT):
    """torch's Student t with a log density that keeps its digits for any ``df``."""

    def log_prob(self, value: Tensor) -> Tensor:
        """log Γ((ν+1)/2) − log Γ(ν/2) − ½ log νπσ² − ½ (ν+1) log(1 + z²/ν), z = (x − m)/σ."""
        if self._validate_args:
            self._validate_sample(value)
        z = (value - self.loc) / self.scale
        constant = log_rising(0.5 * self.df, torch.full_like(self.df, 0.5)) - 0.5 * (math.pi * self.df).log()
        return constant - self.scale.log() - 0.5 * (self.df + 1.0) * torch.log1p(z.square() / self.df)


class BetaBinomialDistribution(Distribution):
    """m ~ Binomial(n, μ) with μ ~ Beta(a, b) integrated out.

    Args:
        a: ``[...]``.
        b: ``[...]``.
        total_count: n.
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {"a": constraints.positive, "b": constraints.positive}
    a: Tensor
    b: Tensor

    def __init__(self, a: Tensor, b: Tensor, total_count: int, validate_args: bool | None = None) -> None:
        self.a, self.b = torch.broadcast_tensors(a, b)
        self.total_count = total_count
        super().__init__(self.a.shape, validate_args=validate_args)

    @constraints.dependent_property(is_discrete=True, event_dim=0)
    def support(self) -> Constraint:
        """0, 1 … n."""
        return constraints.integer_interval(0, self.total_count)

    @property
    def mean(self) -> Tensor:
        """n a/(a + b)."""
        return self.total_count * self.a / (self.a + self.b)

    @property
    def variance(self) -> Tensor:
        """That of a binomial of this mean, times (a + b + n)/(a + b + 1)."""
        concentration = self.a + self.b
        inflation = (concentration + self.total_count) / (concentration + 1.0)
        return self.mean * self.b / concentration * inflation

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """A μ from the beta distribution, then its successes."""
        with torch.no_grad():
            probs = Beta(self.a, self.b).sample(Size(sample_shape))
            counts: Tensor = Binomial(self.total_count, probs).sample()
        return counts

    def log_prob(self, value: Tensor) -> Tensor:
        """log C(n, m) + log B(a + m, b + n − m) − log B(a, b)."""
        if self._validate_args:
            self._validate_sample(value)
        counts = torch.stack([value, self.total_count - value], -1).to(self.a.dtype)
        return log_dirichlet_multinomial(torch.stack([self.a, self.b], -1), counts)


class DirichletMultinomialDistribution(Distribution):
    """m ~ Multinomial(n, μ) with μ ~ Dir(α) integrated out.

    Args:
        concentration: α, ``[..., K]``.
        total_count: n.
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "concentration": constraints.independent(constraints.positive, 1)
    }

    def __init__(self, concentration: Tensor, total_count: int, validate_args: bool | None = None) -> None:
        self.concentration = concentration
        self.total_count = total_count
        super().__init__(concentration.shape[:-1], concentration.shape[-1:], validate_args=validate_args)

    @constraints.dependent_property(is_discrete=True, event_dim=1)
    def support(self) -> Constraint:
        """Counts that sum to n."""
        return constraints.multinomial(self.total_count)

    @property
    def mean(self) -> Tensor:
        """nα/Σα."""
        return self.total_count * self.concentration / self.concentration.sum(-1, keepdim=True)

    @property
    def variance(self) -> Tensor:
        """That of a multinomial of this mean, times (Σα + n)/(Σα + 1)."""
        total = self.concentration.sum(-1, keepdim=True)
        inflation = (total + self.total_count) / (total + 1.0)
        return self.mean * (1.0 - self.concentration / total) * inflation

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """A μ from the Dirichlet distribution, then its counts."""
        with torch.no_grad():
            probs = Dirichlet(self.concentration).sample(Size(sample_shape))
            counts: Tensor = Multinomial(self.total_count, probs).sample()
        return counts

    def log_prob(self, value: Tensor) -> Tensor:
        """log n!/∏m! + Σ [log Γ(α + m) − log Γ(α)] − [log Γ(Σα + n) − log Γ(Σα)]; −∞ for counts with another sum."""
        if self._validate_args:
            self._validate_sample(value)
        counts = value.to(self.concentration.dtype)
        log_prob = log_dirichlet_multinomial(self.concentration, counts)
        return log_prob.where(counts.sum(-1) == self.total_count, -math.inf)


class MultivariateStudentT(Distribution):
    """St(x | m, S, ν): a Gaussian whose precision is S⁻¹ times a Gamma(ν/2, ν/2) that is integrated out (Bishop 2.162).

    Args:
        df: ν, ``[...]``.
        loc: m, ``[..., D]``.
        scale_tril: the lower triangular L with LLᵀ = S, ``[..., D, D]``.
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "df": constraints.positive,
        "loc": constraints.real_vector,
        "scale_tril": constraints.lower_cholesky,
    }
    support = constraints.real_vector

    def __init__(self, df: Tensor, loc: Tensor, scale_tril: Tensor, validate_args: bool | None = None) -> None:
        batch = torch.broadcast_shapes(df.shape, loc.shape[:-1], scale_tril.shape[:-2])
        event = loc.shape[-1:]
        self.df = df.expand(batch)
        self.loc = loc.expand(batch + event)
        self.scale_tril = scale_tril.expand(batch + event + event)
        super().__init__(batch, event, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        """m, where ν > 1; NaN elsewhere."""
        return torch.where(self.df.unsqueeze(-1) > 1.0, self.loc, math.nan)

    @property
    def covariance_matrix(self) -> Tensor:
        """S ν/(ν − 2) where ν > 2; infinite for 1 < ν ≤ 2 and NaN below, as torch's ``StudentT`` has it."""
        df = self.df[..., None, None]
        finite = df / (df - 2.0) * (self.scale_tril @ self.scale_tril.mT)
        return torch.where(df > 2.0, finite, torch.where(df > 1.0, math.inf, math.nan))

    @property
    def variance(self) -> Tensor:
        """The diagonal of the covariance, ``[..., D]``."""
        return self.covariance_matrix.diagonal(dim1=-2, dim2=-1)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """A draw z of N(0, S), divided by the root of a draw of χ²(ν)/ν."""
        with torch.no_grad():
            noise = torch.randn(self._extended_shape(Size(sample_shape)), dtype=self.loc.dtype, device=self.loc.device)
            spread = (self.scale_tril @ noise.unsqueeze(-1)).squeeze(-1)
            squeeze = (Chi2(self.df).sample(Size(sample_shape)) / self.df).rsqrt()
            return self.loc + spread * squeeze.unsqueeze(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        """log Γ((ν + D)/2) − log Γ(ν/2) − ½ log |πνS| − ½ (ν + D) log(1 + (x − m)ᵀS⁻¹(x − m)/ν)."""
        if self._validate_args:
            self._validate_sample(value)
        size = self.event_shape[0]
        white = torch.linalg.solve_triangular(self.scale_tril, (value - self.loc).unsqueeze(-1), upper=False)
        distance = white.squeeze(-1).square().sum(-1)
        log_det = 2.0 * self.scale_tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        constant = log_rising(0.5 * self.df, torch.full_like(self.df, 0.5 * size))
        tail = (self.df + size) * torch.log1p(distance / self.df)
        return constant - 0.5 * (log_det + size * (math.pi * self.df).log() + tail)
