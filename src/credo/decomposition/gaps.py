"""The linear-Gaussian model of rows in which values are missing: every row is judged by what is there.

A missing value of a Gaussian is integrated out by leaving it out. With one noise precision β and o the columns that are
there in a row,

    Λ′ = I + β W_oᵀW_o,    m′ = β Λ′⁻¹ W_oᵀ(x_o − μ_o)

so rows with different gaps have different precisions, and all of them come from one product with the masks.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from credo.conjugate import GaussianBelief, LinearGaussian, condition


def posterior(model: LinearGaussian, x: Tensor) -> GaussianBelief:
    """p(z | what is there) of each row of ``x [B, D]``, where NaN is missing; an empty row leaves the prior.

    Args:
        model: p(z) and p(x | z), with one noise precision for all columns.
        x: rows; without a gap they share one precision ``[K, K]``, else each has its own ``[B, K, K]``.
    """
    there = ~x.isnan()
    if bool(there.all()):
        return model.posterior(x)
    loading, beta = model.matrix, model.noise_precision
    squares = (loading.unsqueeze(-1) * loading.unsqueeze(-2)).flatten(1)
    gain = (there.to(x.dtype) @ squares).unflatten(-1, loading.shape[1:] * 2)
    return condition(model.prior, beta * gain, beta * (centered(model, x) @ loading))


def log_evidence(model: LinearGaussian, x: Tensor) -> Tensor:
    """log p(what is there) of each row of ``x [B, D]``, ``[B]``; 0 for an empty row."""
    if not bool(x.isnan().any()):
        return model.log_evidence(x)
    return evidence_of(model, x, posterior(model, x))


def evidence_of(model: LinearGaussian, x: Tensor, after: GaussianBelief) -> Tensor:
    """The same, where the posterior is known: ½ (|o| log(β/2π) − log|Λ′| − β‖x_o − μ_o − W_o m′‖² − ‖m′‖²)."""
    beta = float(model.noise_precision)
    there = ~x.isnan()
    errors = torch.where(there, centered(model, x) - after.mean @ model.matrix.mT, 0.0)
    quadratics = beta * errors.square().sum(-1) + after.mean.square().sum(-1)
    seen = there.sum(-1).to(x.dtype)
    return 0.5 * (seen * math.log(beta / (2.0 * math.pi)) - after.log_det_precision - quadratics)


def centered(model: LinearGaussian, x: Tensor) -> Tensor:
    """x − μ, and 0 where a value is missing, ``[B, D]``."""
    return torch.nan_to_num(x - model.offset, nan=0.0)
