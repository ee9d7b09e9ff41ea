"""A curvature matrix as a Kronecker product for every layer."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

import torch
from torch import Tensor
from typing_extensions import override

from credo.curvature import Block, BlockGradients, FactoredGradients, GaussNewton
from credo.curvature.gradients import find_blocks
from credo.functional import Draw
from credo.posteriors.precision import Gradients, PrecisionGaussian, add_up, buffer_key

_ROWS_AT_ONCE = 256  # of a symmetric product, from the diagonal on: the rest of a large one is not computed


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
        try:
            return self._decomposed_sums(curvature, self._wide)
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            # many equal eigenvalues, as of 500 features over two rows: LAPACK may not converge in single precision
            found = self._decomposed_sums(curvature, torch.float64)
            return {key: value.to(self._wide) for key, value in found.items()}

    def _decomposed_sums(self, curvature: GaussNewton, dtype: torch.dtype) -> dict[str, Tensor]:
        factors, diagonals = self._sums(curvature, dtype)
        self._check_is_finite(factor.diagonal() for pair in factors.values() for factor in pair)  # before LAPACK fails
        delta = {name: value.to(dtype) for name, value in self._precisions().items()}
        found = {
            buffer_key("diagonal", block.names[0]): total.view(block.shapes[0]) for block, total in diagonals.items()
        }
        for block, (a, b) in factors.items():
            # the bias in units of the weights' prior; 1 for a layer that has none, whose first name is its last
            layer, root = str(block.layer), (delta[block.names[-1]] / delta[block.names[0]]).sqrt()
            a[-1] /= root
            a[:, -1] /= root
            found |= {buffer_key("in_values", layer): _decompose(a), buffer_key("in_basis", layer): a}
            a[-1] /= root
            found |= {buffer_key("out_values", layer): _decompose(b), buffer_key("out_basis", layer): b}
        return found

    def _sums(
        self, curvature: GaussNewton, dtype: torch.dtype
    ) -> tuple[dict[Block, tuple[Tensor, Tensor]], dict[Block, Tensor]]:
        """A and B of every layer, of which only the upper triangles count, and the diagonals of other parameters."""
        zeros = partial(torch.zeros, dtype=dtype, device=self.prior_precision.device)
        diagonals = {block: zeros(block.shape) for block in curvature.blocks if block.layer is None}
        shapes = {block: block.shape for block in curvature.blocks if block.layer is not None}
        factors = {block: (zeros(i, i), zeros(o, o)) for block, (o, i) in shapes.items()}
        counts = dict.fromkeys(factors, 0.0)
        for batch in curvature.gradients():
            for block, gradient in batch.gradients:
                if not isinstance(gradient, FactoredGradients):
                    gradient.add_squares(diagonals[block])
                    continue
                g = gradient.outputs.flatten(0, 2).to(dtype)
                _add_product(factors[block][1], g, g)
                if not batch.is_first:  # the inputs are the same for all functions of the output
                    continue
                a = gradient.inputs.to(dtype)
                weight = a.new_ones(len(a)) if batch.sample_weight is None else batch.sample_weight.to(a.dtype)
                weighted = a if batch.sample_weight is None else a * weight[:, None, None]
                _add_product(factors[block][0], a.flatten(0, 1), weighted.flatten(0, 1))
                counts[block] += float(weight.sum()) * a.shape[1]
        for block, count in counts.items():
            factors[block][0].div_(max(count, 1e-30))
        return factors, diagonals

    @override
    def _buffer_shapes(self, saved: Collection[str]) -> dict[str, torch.Size]:
        wanted: dict[str, torch.Size] = {}
        for block in self._blocks(saved):
            if block.layer is None:
                wanted[buffer_key("diagonal", block.names[0])] = block.shapes[0]
                continue
            for side, size in zip(("out", "in"), block.shape, strict=True):
                wanted[buffer_key(f"{side}_values", block.layer)] = torch.Size([size])
                wanted[buffer_key(f"{side}_basis", block.layer)] = torch.Size([size, size])
        return wanted

    def _blocks(self, buffers: Collection[str]) -> list[Block]:
        """The blocks, of which those with factors among ``buffers`` are layers."""
        paths = [name.rpartition(".")[0] for name in self._owners if name.rpartition(".")[2] == "weight"]
        layers = [path for path in paths if buffer_key("in_basis", path) in buffers]
        return find_blocks({name: weight.shape for name, weight in self.mean().items()}, layers)

    @property
    def layers(self) -> list[str]:
        """The paths of the layers with Kronecker factors."""
        return [block.layer for block in self._blocks(self._buffers) if block.layer is not None]

    def _part(self, kind: str, name: str) -> Tensor:
        return self.get_buffer(buffer_key(kind, name)).to(self._wide)

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

        return add_up(covariance(block, gradient) for block, gradient in jacobian)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add leftᵀ·right, which is symmetric, to the upper triangle of a matrix; what is below it stays undefined."""
    for i in range(0, len(total), _ROWS_AT_ONCE):
        rows = slice(i, i + _ROWS_AT_ONCE)
        total[rows, i:].addmm_(left[:, rows].mT, right[:, i:])


def _decompose(matrix: Tensor) -> Tensor:
    """The eigenvalues, not below 0, of a symmetric matrix whose upper triangle counts; it becomes its eigenvectors."""
    values, basis = matrix.new_empty(len(matrix)), matrix.mT
    torch.linalg.eigh(basis, out=(values, basis))  # by columns, as LAPACK has them: in place, without a copy
    matrix.copy_(basis.contiguous())
    return values.clamp_(min=0.0)
