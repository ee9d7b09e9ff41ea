r"""The forms that a curvature matrix can be kept in: full, diagonal, Kronecker-factored, low-rank."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from typing_extensions import override

from credo._special import symmetric_eigen
from credo.curvature import Block, BlockGradients, FactoredGradients, GaussNewton
from credo.curvature.gradients import find_blocks
from credo.errors import InputError
from credo.functional import Draw
from credo.posteriors.precision import Gradients, PrecisionGaussian

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
            self._factor = key, torch.linalg.cholesky(precision)
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
        sums: dict[str, Tensor] = {}
        for batch in curvature.gradients():
            for block, gradient in batch.gradients:
                gradient.add_squares(self._zeros(sums, block.names[0], block.shape))
        found: Draw = {}
        for block in curvature.blocks:
            parts = block.split(sums.pop(block.names[0]))
            found |= {name: part.contiguous() for name, part in parts.items()}
        return {_key("diagonal", name): found[name] for name in self._owners}

    @override
    def _buffer_shapes(self, saved: Collection[str]) -> dict[str, torch.Size]:
        return {_key("diagonal", name): weight.shape for name, weight in self.mean().items()}

    @override
    def variance(self) -> Draw:
        return {name: 1.0 / (self._diagonal(name) + delta) for name, delta in self._precisions().items()}

    def _diagonal(self, name: str) -> Tensor:
        return self.get_buffer(_key("diagonal", name)).to(self._wide)

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
        return _total(gradient.inner_products(block.join(variance)) for block, gradient in jacobian)


class KroneckerPrecision(PrecisionGaussian):
    r"""H ≈ B ⊗ A for every linear and convolution layer (K-FAC); the diagonal of H for other parameters.

    With the inputs a of a layer, a 1 appended for the bias, and the gradients g in its output, over N rows and T
    positions that share the weights,

        A = 1/(N·T)·Σ_nt a·aᵀ,    B = Σ_knt g·gᵀ,

    which is exact for one layer if the curvature of the likelihood is the same for all rows. Layers are independent of
    each other. The prior is added exactly: where the bias has another precision than the weight, δ·diag(1, …, 1, r), A
    is decomposed in coordinates in which the prior is isotropic, D^(−½)·A·D^(−½) = Q·diag(α)·Qᵀ with D = diag(1, …, 1,
    r), and B = U·diag(β)·Uᵀ. The covariance is then V·diag(1/(β_i·α_j + δ))·Vᵀ with V = U ⊗ D^(−½)·Q.

    References: J. Martens, R. Grosse, "Optimizing neural networks with Kronecker-factored approximate curvature", ICML
    2015. H. Ritter, A. Botev, D. Barber, "A scalable Laplace approximation for neural networks", ICLR 2018. R. Grosse,
    J. Martens, "A Kronecker-factored approximate Fisher matrix for convolution layers", ICML 2016 (shared weights).
    """

    @override
    def _curvature(self, curvature: GaussNewton) -> dict[str, Tensor]:
        inputs: dict[str, Tensor] = {}
        outputs: dict[str, Tensor] = {}
        counts: dict[str, float] = {}
        diagonals: dict[str, Tensor] = {}
        for batch in curvature.gradients():
            for block, gradient in batch.gradients:
                if block.layer is None or not isinstance(gradient, FactoredGradients):
                    gradient.add_squares(self._zeros(diagonals, block.names[0], block.shape))
                    continue
                rows, columns = block.shape
                g = gradient.outputs.flatten(0, 2).to(self._wide)
                self._zeros(outputs, block.layer, (rows, rows)).addmm_(g.mT, g)
                if not batch.is_first:  # the inputs are the same for all functions of the output
                    continue
                a = gradient.inputs.to(self._wide)
                weight = a.new_ones(len(a)) if batch.sample_weight is None else batch.sample_weight.to(a.dtype)
                weighted = a if batch.sample_weight is None else a * weight[:, None, None]
                self._zeros(inputs, block.layer, (columns, columns)).addmm_(a.flatten(0, 1).mT, weighted.flatten(0, 1))
                counts[block.layer] = counts.get(block.layer, 0.0) + float(weight.sum()) * a.shape[1]
        delta = self._precisions()
        found = {}
        for block in curvature.blocks:
            if block.layer is None:
                shape = block.shapes[0]
                found[_key("diagonal", block.names[0])] = diagonals[block.names[0]].view(shape)
                continue
            a = inputs.pop(block.layer).div_(max(counts[block.layer], 1e-30))
            if len(block.names) > 1:
                root = (delta[block.names[1]] / delta[block.names[0]]).sqrt()
                a[-1] /= root
                a[:, -1] /= root
            found[_key("in_values", block.layer)] = _decompose(a)
            if len(block.names) > 1:
                a[-1] /= root
            found[_key("in_basis", block.layer)] = a
            b = outputs.pop(block.layer)
            found[_key("out_values", block.layer)] = _decompose(b)
            found[_key("out_basis", block.layer)] = b
        return found

    @override
    def _buffer_shapes(self, saved: Collection[str]) -> dict[str, torch.Size]:
        wanted: dict[str, torch.Size] = {}
        for block in self._blocks(saved):
            if block.layer is None:
                wanted[_key("diagonal", block.names[0])] = block.shapes[0]
                continue
            for side, size in zip(("out", "in"), block.shape, strict=True):
                wanted[_key(f"{side}_values", block.layer)] = torch.Size([size])
                wanted[_key(f"{side}_basis", block.layer)] = torch.Size([size, size])
        return wanted

    def _blocks(self, buffers: Collection[str]) -> list[Block]:
        """The blocks, of which those with factors among ``buffers`` are layers."""
        paths = [name.rpartition(".")[0] for name in self._owners if name.rpartition(".")[2] == "weight"]
        layers = [path for path in paths if _key("in_basis", path) in buffers]
        return find_blocks({name: weight.shape for name, weight in self.mean().items()}, layers)

    @property
    def layers(self) -> list[str]:
        """The paths of the layers with Kronecker factors."""
        return [block.layer for block in self._blocks(self._buffers) if block.layer is not None]

    def _part(self, kind: str, name: str) -> Tensor:
        return self.get_buffer(_key(kind, name)).to(self._wide)

    def _block_precision(self, block: Block) -> Tensor:
        """β_i·α_j + δ of a layer, ``[O, I]``; or the diagonal of another parameter, ``[1, size]``."""
        delta = self._precisions()[block.names[0]]
        if block.layer is None:
            return self._part("diagonal", block.names[0]).reshape(1, -1) + delta
        return torch.outer(self._part("out_values", block.layer), self._part("in_values", block.layer)) + delta

    def _bases(self, layer: str) -> tuple[Tensor, Tensor]:
        return self._part("out_basis", layer), self._part("in_basis", layer)

    @override
    def _perturbation(self) -> Callable[[Draw], Draw]:
        blocks = [(block, self._block_precision(block).rsqrt()) for block in self._blocks(self._buffers)]

        def perturb(noise: Draw) -> Draw:
            moved: Draw = {}
            for block, scale in blocks:
                matrix = block.join(noise) * scale
                if block.layer is not None:
                    out_basis, in_basis = self._bases(block.layer)
                    matrix = out_basis @ matrix @ in_basis.mT
                moved |= block.split(matrix)
            return moved

        return perturb

    @override
    def log_determinant(self) -> Tensor:
        total = self.prior_precision.new_zeros(())
        delta = self._precisions()
        for block in self._blocks(self._buffers):
            total = total + self._block_precision(block).double().log().sum()
            if len(block.names) > 1:  # log det of I ⊗ D
                total = total + block.shape[0] * (delta[block.names[1]] / delta[block.names[0]]).double().log()
        return total

    @override
    def variance(self) -> Draw:
        found: Draw = {}
        for block in self._blocks(self._buffers):
            variance = self._block_precision(block).reciprocal()
            if block.layer is not None:
                out_basis, in_basis = self._bases(block.layer)
                variance = out_basis.square() @ variance @ in_basis.square().mT
            found |= block.split(variance)
        return {name: found[name] for name in self._owners}

    @override
    def shrinkage(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for block in self._blocks(self._buffers):
            delta = self._precisions()[block.names[0]].double()
            path = block.names[0].rpartition(".")[0]
            found[path] = found.get(path, 0.0) + float((delta / self._block_precision(block).double()).sum())
        return found

    @override
    def output_covariance(self, jacobian: Gradients) -> Tensor:
        def covariance(block: Block, gradient: BlockGradients) -> Tensor:
            if block.layer is not None and isinstance(gradient, FactoredGradients):
                gradient = gradient.rotate(*self._bases(block.layer))
            return gradient.inner_products(self._block_precision(block).reciprocal())

        return _total(covariance(block, gradient) for block, gradient in jacobian)


class LowRankPrecision(PrecisionGaussian):
    r"""The R largest eigenvalues λ of H and their eigenvectors V: the precision is V·diag(λ)·Vᵀ + diag(δ).

    The eigenvectors come from a Lanczos iteration (ARPACK) on products H·v, each of which is a pass over the data.
    In units of the prior, D^(½)·(I + E·diag(e)·Eᵀ)·D^(½) with orthonormal E ``[P, R]``, every operation costs P·R.

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

        def product(vector: NDArray[Any]) -> NDArray[Any]:
            flat = self._split(torch.as_tensor(np.ascontiguousarray(vector).reshape(-1)).to(device))
            found = curvature.product({name: part.to(weights[name].dtype) for name, part in flat.items()})
            return torch.cat([found[name].flatten() for name in weights]).double().cpu().numpy()

        operator = LinearOperator((size, size), matvec=product, dtype=np.float64)
        if self._rank == size:
            values, vectors = np.linalg.eigh(operator @ np.eye(size))
        else:
            start = np.random.default_rng(0).standard_normal(size)
            values, vectors = eigsh(operator, k=self._rank, which="LA", v0=start)
        return {
            "values": torch.as_tensor(values.clip(min=0.0)).to(device, dtype),
            "vectors": torch.as_tensor(np.ascontiguousarray(vectors)).to(device, dtype),
        }

    @override
    def _buffer_shapes(self, saved: Collection[str]) -> dict[str, torch.Size]:
        return {"values": torch.Size([self._rank]), "vectors": torch.Size([self._size(), self._rank])}

    def _in_prior_units(self) -> tuple[Tensor, Tensor, Tensor]:
        """D^(−½) ``[P]``, e ``[R]`` and E ``[P, R]``."""
        scale = self._flat_precision(self._wide).rsqrt()
        factor = self.vectors.to(self._wide) * self.values.to(self._wide).sqrt() * scale[:, None]
        values, basis = torch.linalg.eigh(factor.mT @ factor)
        values = values.clamp(min=0.0)
        root = values.sqrt()
        small = root <= root.max() * torch.finfo(root.dtype).eps
        return scale, values.masked_fill(small, 0.0), factor @ basis / root.masked_fill(small, 1.0)

    @override
    def _perturbation(self) -> Callable[[Draw], Draw]:
        scale, values, basis = self._in_prior_units()
        change = (1.0 + values).rsqrt() - 1.0

        def perturb(noise: Draw) -> Draw:
            flat = torch.cat([part.flatten() for part in noise.values()])
            return self._split(scale * (flat + basis @ (change * (basis.mT @ flat))))

        return perturb

    @override
    def log_determinant(self) -> Tensor:
        _, values, _ = self._in_prior_units()
        return self._flat_precision(torch.float64).log().sum() + values.double().log1p().sum()

    @override
    def variance(self) -> Draw:
        scale, values, basis = self._in_prior_units()
        return self._split(scale.square() * (1.0 - basis.square() @ (values / (1.0 + values))))

    @override
    def output_covariance(self, jacobian: Gradients) -> Tensor:
        scale, values, basis = self._in_prior_units()
        prior = self._split(scale.square())
        directions = [self._split(direction) for direction in (scale[:, None] * basis).unbind(1)]
        total = _total(gradient.inner_products(block.join(prior)) for block, gradient in jacobian)
        along = _total(g.project(torch.stack([block.join(d) for d in directions])) for block, g in jacobian)
        along = along.transpose(0, 1)  # [B, K, R]
        return total - (along * (values / (1.0 + values))) @ along.mT


def _total(parts: Iterable[Tensor]) -> Tensor:
    return sum(parts, start=torch.zeros(()))


def _decompose(matrix: Tensor) -> Tensor:
    """The eigenvalues of a symmetric matrix, not below 0; the matrix becomes its eigenvectors, in its own memory."""
    values, basis = symmetric_eigen(matrix)
    matrix.copy_(basis)
    clamped: Tensor = values.clamp_(min=0.0)
    return clamped


def _key(kind: str, name: str) -> str:
    """A buffer's name, which may not hold a dot."""
    return f"{kind}:{name.replace('.', '/')}"
