"""The forms that a curvature matrix can be kept in: full, diagonal and low-rank; :mod:`.kronecker` has another."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from typing_extensions import override

from credo.curvature import GaussNewton
from credo.errors import InputError
from credo.functional import Draw
from credo.posteriors.precision import Gradients, PrecisionGaussian, add_up, buffer_key

_LARGEST_FULL = 10_000


class FullPrecision(PrecisionGaussian):
    """All of H, ``[P, P]``, in float64: exact, for networks, or parts of networks, with few parameters."""

    hessian: Tensor

    def __init__(self, net: nn.Module, names: Sequence[str], prior_precision: Sequence[float]) -> None:
        super().__init__(net, names, prior_precision)
        if self._size() > _LARGEST_FULL:
            raise InputError(
                f"structure='full' keeps a matrix of P × P numbers, for at most P = {_LARGEST_FULL:,} parameters, but "
                f"{self._size():,} are chosen: use structure='kron' or 'low_rank', or parameters='last_layer'"
            )
        self._factor: tuple[Any, Tensor] | None = None
        self._spectrum: tuple[Tensor, int, Tensor, Tensor] | None = None

    @override
    def _curvature(self, curvature: GaussNewton) -> dict[str, Tensor]:
        size = self._size()
        total = torch.zeros(size, size, dtype=torch.float64, device=self.prior_precision.device)
        for batch in curvature.gradients():
            rows = self._flatten(batch.gradients).flatten(0, 1).double()
            total.addmm_(rows.mT, rows)
        return {"hessian": total}

    @override
    def _buffer_shapes(self, saved: Collection[str]) -> dict[str, torch.Size]:
        return {"hessian": torch.Size([self._size(), self._size()])}

    def _cholesky(self) -> Tensor:
        """The lower factor of H + diag(δ), computed once for every H and δ."""
        key = (self.hessian, self.hessian._version, self.prior_precision._version)
        if self._factor is None or self._factor[0][0] is not key[0] or self._factor[0][1:] != key[1:]:
            precision = self.hessian.double().clone()
            precision.diagonal().add_(self._flat_precision(torch.float64))
            factor, failed = torch.linalg.cholesky_ex(precision)
            if bool(failed):
                raise InputError(
                    "the precision of the posterior is singular up to rounding: the prior is too wide for weights that "
                    "the data leave open; give it a smaller scale, or use structure='kron'"
                )
            self._factor = key, factor
        return self._factor[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_factor": None, "_spectrum": None}  # type: ignore[no-untyped-call]

    @override
    def _perturbation(self) -> Callable[[Draw], Draw]:
        factor = self._cholesky()

        def perturb(noise: Draw) -> Draw:
            flat = torch.cat([part.flatten() for part in noise.values()]).double()
            moved = torch.linalg.solve_triangular(factor.mT, flat[:, None], upper=True)[:, 0]
            return self._split(moved.to(self._wide))

        return perturb

    @override
    def log_determinant(self) -> Tensor:
        return 2.0 * self._cholesky().diagonal().log().sum()

    @override
    def variance(self) -> Draw:
        return self._split(torch.cholesky_inverse(self._cholesky()).diagonal().to(self._wide))

    @override
    def total_shrinkage(self) -> float:
        h, delta, seen = self.hessian, self._flat_precision(torch.float64), self._spectrum
        ratio = delta / delta[0]
        if seen is None or seen[0] is not h or seen[1] != h._version or not torch.allclose(seen[2], ratio, rtol=1e-12):
            scale = ratio.rsqrt()  # eigenvalues once: only a common factor of δ changes from call to call
            self._spectrum = seen = h, h._version, ratio, torch.linalg.eigvalsh(scale[:, None] * h.double() * scale)
        return float((delta[0] / (seen[3].clamp_min(0.0) + delta[0])).sum())

    @override
    def output_covariance(self, jacobian: Gradients) -> Tensor:
        rows = self._flatten(jacobian).transpose(0, 1)  # [B, K, P]
        b, k, p = rows.shape
        solved = torch.linalg.solve_triangular(self._cholesky(), rows.reshape(b * k, p).double().mT, upper=False)
        white = solved.mT.reshape(b, k, p)
        covariance: Tensor = white @ white.mT
        return covariance.to(rows.dtype)


class DiagonalPrecision(PrecisionGaussian):
    """The diagonal of H, exact element by element; all weights are independent."""

    @override
    def _curvature(self, curvature: GaussNewton) -> dict[str, Tensor]:
        found = curvature.diagonal(self._wide)
        return {buffer_key("diagonal", name): found[name] for name in self._owners}

    @override
    def _buffer_shapes(self, saved: Collection[str]) -> dict[str, torch.Size]:
        return {buffer_key("diagonal", name): weight.shape for name, weight in self.mean().items()}

    @override
    def variance(self) -> Draw:
        return {name: 1.0 / (self._diagonal(name) + delta) for name, delta in self._precisions().items()}

    def _diagonal(self, name: str) -> Tensor:
        return self.get_buffer(buffer_key("diagonal", name)).to(self._wide)

    @override
    def _perturbation(self) -> Callable[[Draw], Draw]:
        scale = {name: variance.sqrt() for name, variance in self.variance().items()}
        return lambda noise: {name: scale[name] * epsilon for name, epsilon in noise.items()}

    @override
    def log_determinant(self) -> Tensor:
        return -torch.stack([v.double().log().sum() for v in self.variance().values()]).sum()

    @override
    def output_covariance(self, jacobian: Gradients) -> Tensor:
        variance = self.variance()
        return add_up(gradient.inner_products(block.join(variance)) for block, gradient in jacobian)


class LowRankPrecision(PrecisionGaussian):
    r"""The R largest eigenvalues λ of H and their eigenvectors V: the precision is V·diag(λ)·Vᵀ + diag(δ).

    The eigenvectors come from a Lanczos iteration (ARPACK) on products H·v, each of which is a pass over the data.
    In units of the prior, D^(½)·(I + E·diag(e)·Eᵀ)·D^(½) with orthonormal E ``[P, R]``, every operation costs P·R. In
    float32, eigenvalues of H below about 1e-7 of the largest are rounding errors of the products.

    Args:
        net: the network, whose parameters are the mean.
        names: the parameters to cover.
        prior_precision: δ of every one of them.
        rank: R.
    """

    values: Tensor
    vectors: Tensor

    def __init__(self, net: nn.Module, names: Sequence[str], prior_precision: Sequence[float], rank: int) -> None:
        super().__init__(net, names, prior_precision)
        self._rank = min(rank, self._size())

    @override
    def _curvature(self, curvature: GaussNewton) -> dict[str, Tensor]:
        from scipy.sparse.linalg import LinearOperator, eigsh

        size, device, dtype = self._size(), self.prior_precision.device, self._wide
        weights = self.mean()
        curvature.log_likelihood()  # checks all data before the products with H

        def product(vector: NDArray[Any]) -> NDArray[Any]:
            flat = self._split(torch.as_tensor(np.ascontiguousarray(vector).reshape(-1)).to(device))
            found = curvature.product({name: part.to(weights[name].dtype) for name, part in flat.items()})
            self._check_is_finite(found.values())
            return torch.cat([found[name].flatten() for name in weights]).double().cpu().numpy()

        operator = LinearOperator((size, size), matvec=product, dtype=np.float64)
        if self._rank == size:
            values, vectors = np.linalg.eigh(operator @ np.eye(size))
        else:
            start = np.random.default_rng(0).standard_normal(size)
            if (operator @ start).any():
                values, vectors = eigsh(operator, k=self._rank, which="LA", v0=start)
            else:  # the data say nothing, as where all probabilities are 0 or 1; ARPACK stops at such a matrix
                values, vectors = np.zeros(self._rank), np.eye(size, self._rank)
        return {
            "values": torch.as_tensor(values.clip(min=0.0)).to(device, dtype),
            "vectors": torch.as_tensor(np.ascontiguousarray(vectors)).to(device, dtype),
        }

    @override
    def _buffer_shapes(self, saved: Collection[str]) -> dict[str, torch.Size]:
        return {"values": torch.Size([self._rank]), "vectors": torch.Size([self._size(), self._rank])}

    def _in_prior_units(self) -> tuple[Tensor, Tensor, Tensor]:
        """D^(−½) ``[P]``, e ``[R]`` and E ``[P, R]``, in float64.

        In float32, eigenvalues below 1e-7 of the largest would be noise, also those that say most about predictions.
        """
        scale = self._flat_precision(torch.float64).rsqrt()
        factor = self.vectors.double() * self.values.double().sqrt() * scale[:, None]
        values, basis = torch.linalg.eigh(factor.mT @ factor)
        values = values.clamp(min=0.0)
        root = values.sqrt()
        small = root <= root.max() * torch.finfo(root.dtype).eps
        return scale, values.masked_fill(small, 0.0), factor @ basis / root.masked_fill(small, 1.0)

    @override
    def _perturbation(self) -> Callable[[Draw], Draw]:
        scale, values, basis = (t.to(self._wide) for t in self._in_prior_units())
        change = (1.0 + values).rsqrt() - 1.0

        def perturb(noise: Draw) -> Draw:
            flat = torch.cat([part.flatten() for part in noise.values()])
            return self._split(scale * (flat + basis @ (change * (basis.mT @ flat))))

        return perturb

    @override
    def log_determinant(self) -> Tensor:
        _, values, _ = self._in_prior_units()
        return self._flat_precision(torch.float64).log().sum() + values.log1p().sum()

    @override
    def variance(self) -> Draw:
        scale, values, basis = self._in_prior_units()
        return self._split((scale.square() * (1.0 - basis.square() @ (values / (1.0 + values)))).to(self._wide))

    @override
    def output_covariance(self, jacobian: Gradients) -> Tensor:
        scale, values, basis = self._in_prior_units()
        prior = self._split(scale.square())
        directions = [self._split(direction) for direction in (scale[:, None] * basis).unbind(1)]
        wide = [(block, gradient.double()) for block, gradient in jacobian]
        total = add_up(gradient.inner_products(block.join(prior)) for block, gradient in wide)
        along = add_up(g.project(torch.stack([block.join(d) for d in directions])) for block, g in wide)
        along = along.transpose(0, 1)  # [B, K, R]
        return total - (along * (values / (1.0 + values))) @ along.mT
