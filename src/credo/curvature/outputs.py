r"""The curvature of −log p(y | f) in the output f of a network, as a product of factors.

For every row, Λ = −∇²_f log p(y | f) is written as Λ = Σ_k s_k s_kᵀ. Where the likelihood is an exponential family and
f its natural parameter, Λ does not depend on y and equals the Fisher information. Where the Hessian is indefinite, for
Student-t noise and for heteroscedastic Gaussian and log-normal noise, the Fisher information is used. Other likelihoods
have their Hessian, with 0 in the place of negative eigenvalues.

Reference: J. Martens, "New insights and perspectives on the natural gradient method", JMLR 2020.
"""

from __future__ import annotations

from functools import singledispatch

import torch
from torch import Tensor

from credo._devices import at_least_float32
from credo.errors import InputError
from credo.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood, LogNormal, Poisson, StudentT
from credo.likelihoods.regression import LocationScaleLikelihood
from credo.nests import flatten_rows


def output_factors(likelihood: Likelihood, output: Tensor, y: Tensor, sample_weight: Tensor | None = None) -> Tensor:
    """The factors s_k of Λ = Σ_k s_k s_kᵀ for every row.

    Args:
        likelihood: p(y | f).
        output: f, ``[B, ...]``, with C numbers per row.
        y: targets.
        sample_weight: ``[B]``, multiplies Λ.

    Returns:
        s, ``[K, B, C]``, with K ≤ C, in at least 32 bits.
    """
    wide = output.detach().to(at_least_float32(output.dtype))
    factors: Tensor = _factors(likelihood, wide, y).movedim(-1, 0)
    return factors if sample_weight is None else factors * sample_weight.to(factors.dtype).sqrt()[:, None]


def check_outputs(likelihood: Likelihood, output: Tensor, y: Tensor) -> None:
    """Raise ``InputError`` if a network outputs NaN, or the targets of a batch do not match the likelihood.

    Args:
        likelihood: p(y | f).
        output: f, ``[B, ...]``.
        y: targets.
    """
    if bool(output.isnan().any()):
        raise InputError("the network outputs NaN: look for NaN or infinite values in x and in the network's weights")
    likelihood.check(output, y)


@singledispatch
def _factors(likelihood: Likelihood, output: Tensor, y: Tensor) -> Tensor:
    """The square root Q·√λ⁺ of the Hessian Q·λ·Qᵀ by automatic differentiation, ``[B, C, K]``.

    Negative eigenvalues count as 0, so that the result is the nearest positive semi-definite matrix.
    """
    with torch.enable_grad():
        f = output.clone().requires_grad_()
        nll = -likelihood.components(f[None]).row_log_prob(y).sum()
        (slope,) = torch.autograd.grad(nll, f, create_graph=True)
        each = flatten_rows(slope).sum(0)  # rows are independent: the sum over rows keeps their derivatives apart
        rows = [flatten_rows(torch.autograd.grad(one, f, retain_graph=True)[0]) for one in each]
    curvature = torch.stack(rows, dim=1)
    values, vectors = torch.linalg.eigh(curvature)
    root: Tensor = vectors * values.clamp(min=0.0).sqrt().unsqueeze(-2)
    return root


@_factors.register
def _categorical(likelihood: Categorical, output: Tensor, y: Tensor) -> Tensor:
    """diag(u)·Q with u = √p, whose square is diag(p) − p·pᵀ; a block for every target of a row.

    Q ``[C, C − 1]`` is an orthonormal basis of the complement of u, so that Q·Qᵀ = I − u·uᵀ: the first C − 1 columns of
    the reflection I − (u + e)·(u + e)ᵀ/(1 + u_C) with e = (0, …, 0, 1).
    """
    if likelihood.logit_noise:
        return _factors.dispatch(Likelihood)(likelihood, output, y)
    components = likelihood.components(output[None])
    dim = components.class_dim
    p = components.draws[0].movedim(dim, -1)
    classes, rows = p.shape[-1], len(p)
    p = p.reshape(rows, -1, classes)
    importance = p.new_ones(p.shape[:2])
    labels = y.long().reshape(rows, -1)
    if likelihood.ignore_index is not None:
        ignored = labels == likelihood.ignore_index
        importance, labels = importance.masked_fill(ignored, 0.0), labels.masked_fill(ignored, 0)
    if likelihood.weight is not None:
        importance = importance * likelihood.weight.to(p.dtype)[labels]
    root = p.sqrt()
    mirror = torch.cat([root[..., :-1], 1.0 + root[..., -1:]], dim=-1)
    reflected = mirror.unsqueeze(-1) * (root[..., :-1] / (1.0 + root[..., -1:])).unsqueeze(-2)
    basis = torch.eye(classes, classes - 1, dtype=p.dtype, device=p.device) - reflected  # [B, targets, C, C − 1]
    blocks = (root * importance.sqrt().unsqueeze(-1)).unsqueeze(-1) * basis
    targets = p.shape[1]
    if targets == 1:
        return blocks[:, 0]
    apart = torch.eye(targets, dtype=p.dtype, device=p.device)
    spread = torch.einsum("btij,tu->btiuj", blocks, apart).reshape(rows, targets * classes, -1)
    place = torch.arange(targets * classes, device=p.device).view(output.shape[1:]).movedim(dim, -1).flatten()
    factors = torch.empty_like(spread)
    factors[:, place] = spread
    return factors


@_factors.register
def _bernoulli(likelihood: Bernoulli, output: Tensor, y: Tensor) -> Tensor:
    """p(1 − p) of every output."""
    return _diagonal(output.sigmoid() * (-output).sigmoid())


@_factors.register
def _poisson(likelihood: Poisson, output: Tensor, y: Tensor) -> Tensor:
    """The rate λ = e^f of every output."""
    return _diagonal((output + likelihood.offset).exp())


@_factors.register(Gaussian)
@_factors.register(LogNormal)
def _gaussian(likelihood: Gaussian | LogNormal, output: Tensor, y: Tensor) -> Tensor:
    """1/σ² for a mean of y, or of log y; 1/2 for a log variance."""
    precision = (-2.0 * likelihood._split(output[None])[1][0]).exp()
    return _location_scale(likelihood, output, precision, torch.full_like(precision, 0.5))


@_factors.register
def _student_t(likelihood: StudentT, output: Tensor, y: Tensor) -> Tensor:
    """(ν + 1)/((ν + 3)·σ²) for a location, ν/(2(ν + 3)) for a log σ²."""
    components = likelihood.components(output[None])
    df, precision = components.df[0], (-2.0 * components.log_scale[0]).exp()
    return _location_scale(likelihood, output, precision * (df + 1.0) / (df + 3.0), 0.5 * df / (df + 3.0))


def _location_scale(likelihood: LocationScaleLikelihood, output: Tensor, location: Tensor, scale: Tensor) -> Tensor:
    if likelihood.noise != "heteroscedastic":
        return _diagonal(location)
    dim = likelihood.output_dim % output.ndim
    return _diagonal(torch.cat([location, scale], dim))


def _diagonal(curvature: Tensor) -> Tensor:
    return torch.diag_embed(flatten_rows(curvature.detach()).sqrt())
