"""Student's t distributions: predictions of Gaussian observations with an unknown variance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Size, Tensor
from torch.distributions import Chi2, Distribution, StudentT, constraints
from torch.distributions.constraints import Constraint
from typing_extensions import override

from credo._special import log_rising


class PreciseStudentT(StudentT):
    """torch's Student t with a log density that does not cancel for large ``df``.

    log Γ((ν+1)/2) − log Γ(ν/2) − ½ log νπσ² − ½ (ν+1) log(1 + z²/ν),    z = (x − m)/σ
    """

    @override
    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        z = (value - self.loc) / self.scale
        constant = log_rising(0.5 * self.df, torch.full_like(self.df, 0.5)) - 0.5 * (math.pi * self.df).log()
        return constant - self.scale.log() - 0.5 * (self.df + 1.0) * torch.log1p(z.square() / self.df)


class MultivariateStudentT(Distribution):
    """St(x | m, S, ν): a Gaussian with precision S⁻¹ times a Gamma(ν/2, ν/2) that is integrated out (Bishop 2.162).

    Args:
        df: ν, ``[...]``.
        loc: m, ``[..., D]``.
        scale_tril: the lower triangular L with LLᵀ = S, ``[..., D, D]``.
        validate_args: whether torch checks arguments and values; ``None`` for torch's default.

    Example:
        >>> import torch
        >>> from credo.conjugate import MultivariateStudentT
        >>> MultivariateStudentT(torch.tensor(4.0), torch.zeros(2), torch.eye(2)).variance
        tensor([2., 2.])
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
        """m if ν > 1, else NaN."""
        return torch.where(self.df.unsqueeze(-1) > 1.0, self.loc, math.nan)

    @property
    def covariance_matrix(self) -> Tensor:
        """S ν/(ν − 2) if ν > 2; infinite for 1 < ν ≤ 2 and NaN below, as torch's ``StudentT``."""
        df = self.df[..., None, None]
        finite = df / (df - 2.0) * (self.scale_tril @ self.scale_tril.mT)
        return torch.where(df > 2.0, finite, torch.where(df > 1.0, math.inf, math.nan))

    @property
    def variance(self) -> Tensor:
        """The diagonal of the covariance, ``[..., D]``."""
        return self.covariance_matrix.diagonal(dim1=-2, dim2=-1)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draw from N(0, S), divided by the square root of a draw of χ²(ν)/ν.

        Args:
            sample_shape: shape of independent draws.

        Returns:
            Draws, ``[*sample_shape, ..., D]``.
        """
        with torch.no_grad():
            noise = torch.randn(self._extended_shape(Size(sample_shape)), dtype=self.loc.dtype, device=self.loc.device)
            spread = (self.scale_tril @ noise.unsqueeze(-1)).squeeze(-1)
            scaling = (Chi2(self.df).sample(Size(sample_shape)) / self.df).rsqrt()
            return self.loc + spread * scaling.unsqueeze(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        """log Γ((ν + D)/2) − log Γ(ν/2) − ½ log |πνS| − ½ (ν + D) log(1 + (x − m)ᵀS⁻¹(x − m)/ν).

        Args:
            value: x, ``[..., D]``.

        Returns:
            The log density, ``[...]``.
        """
        if self._validate_args:
            self._validate_sample(value)
        size = self.event_shape[0]
        white = torch.linalg.solve_triangular(self.scale_tril, (value - self.loc).unsqueeze(-1), upper=False)
        distance = white.squeeze(-1).square().sum(-1)
        log_det = 2.0 * self.scale_tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        constant = log_rising(0.5 * self.df, torch.full_like(self.df, 0.5 * size))
        tail = (self.df + size) * torch.log1p(distance / self.df)
        return constant - 0.5 * (log_det + size * (math.pi * self.df).log() + tail)
