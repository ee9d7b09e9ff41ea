"""Gaussian components of several outputs whose noise is correlated."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from credo.errors import InputError
from credo.predictive.location_scale import GaussianComponents

Correlation = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, eq=False, repr=False)
class JointGaussianComponents(GaussianComponents):
    """N(y | m, D R D + V) for the K outputs of a row: noise with correlation R, the same for all rows.

    D is diagonal with the standard deviations of the noise, V diagonal with the variances of the function. Each output
    by itself is the Gaussian of :class:`GaussianComponents`, so that means, variances, quantiles and intervals are the
    same; the log density of a row and samples are joint.

    Attributes:
        correlation: R ``[K, K]``, as tuples.
    """

    correlation: Correlation = ()

    name: ClassVar[str] = "joint Gaussian"

    @property
    def covariance(self) -> Tensor:
        """D R D + V, ``[S, B, K, K]``."""
        scale = self.noise_variance.sqrt()
        noise = scale[..., :, None] * scale[..., None, :] * self._matrix
        return noise + self.function_variance.diag_embed()

    @override
    def row_log_prob(self, y: Tensor) -> Tensor:
        """−½(K log 2π + log |C| + rᵀC⁻¹r), r = y − m and C = D R D + V, ``[S, B]``."""
        self.check_dtype_and_shape(y)
        root = torch.linalg.cholesky(self.covariance)
        residual = (y.to(self.mean.dtype) - self.mean)[..., None]
        z = torch.linalg.solve_triangular(root, residual, upper=False).squeeze(-1)
        half_log_det = root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        log_p: Tensor = -0.5 * (z.square().sum(-1) + z.shape[-1] * math.log(2 * math.pi)) - half_log_det
        return log_p

    @override
    def _noise(self, generator: torch.Generator | None) -> Tensor:
        z = torch.randn(self.mean.shape, generator=generator, dtype=self.mean.dtype, device=self.mean.device)
        noise: Tensor = (torch.linalg.cholesky(self.covariance) @ z[..., None]).squeeze(-1)
        return noise

    @property
    def _matrix(self) -> Tensor:
        if self.mean.shape[-1] != len(self.correlation):
            raise InputError(
                f"the correlation is of {len(self.correlation)} outputs, but the components have {self.mean.shape[-1]}"
            )
        return torch.tensor(self.correlation, dtype=self.mean.dtype, device=self.mean.device)


def to_correlation(matrix: Any) -> Correlation:
    """A matrix ``[K, K]`` as tuples, which can be compared; raise ``InputError`` if it is not a correlation matrix."""
    values = np.asarray(matrix, dtype=np.float64)
    valid = values.ndim == 2 and values.shape[0] == values.shape[1] and np.allclose(values, values.T, atol=1e-9)
    if not valid or not np.allclose(np.diag(values), 1.0) or np.linalg.eigvalsh(values)[0] <= 0.0:
        raise InputError("a correlation must be a symmetric, positive definite matrix with ones on its diagonal")
    return tuple(tuple(row) for row in values.tolist())
