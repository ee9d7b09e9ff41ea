r"""Gradients of every row, in the form in which a layer makes them.

The gradient of a function of the output in the weight W of a linear layer z_t = W·a_t is Σ_t g_t·a_tᵀ, where t runs
over the positions that share W and g_t is the gradient in z_t. Keeping a and g apart saves the memory of a matrix per
row, and most of what curvature needs follows from them by matrix products.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from credo.functional import Draw

_NUMBERS_AT_ONCE = 2**24


@dataclass(frozen=True)
class Block:
    """Parameters whose gradients come together, as one matrix ``[O, I]``.

    A linear or convolution layer is one block: its weight, ``[O, I]``, with its bias as a further column. Any other
    parameter is a block of its own, ``[1, size]``.

    Attributes:
        names: the parameters: weight, or weight and bias, of a layer; or any single one.
        shapes: their shapes.
        layer: the path of the layer; ``None`` for a parameter of another kind of module.
    """

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    layer: str | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """(O, I) of the matrix."""
        rows = self.shapes[0][0] if self.layer is not None else 1
        return rows, sum(shape.numel() for shape in self.shapes) // max(rows, 1)

    def split(self, matrix: Tensor) -> Draw:
        """The parameters that a matrix holds.

        Args:
            matrix: ``[..., O, I]``.

        Returns:
            Name to tensor ``[..., *shape]``.
        """
        rows = self.shape[0]
        parts = matrix.split([shape.numel() // max(rows, 1) for shape in self.shapes], dim=-1)
        lead = matrix.shape[:-2]
        return {
            name: part.reshape(*lead, *shape) for name, part, shape in zip(self.names, parts, self.shapes, strict=True)
        }

    def join(self, values: Mapping[str, Tensor]) -> Tensor:
        """The matrix that holds parameters, the inverse of :meth:`split`.

        Args:
            values: name to tensor, at least those of the block.

        Returns:
            ``[O, I]``.
        """
        return torch.cat([values[name].reshape(self.shape[0], -1) for name in self.names], dim=1)


def find_blocks(shapes: Mapping[str, torch.Size], layers: Sequence[str]) -> list[Block]:
    """Divide parameters into blocks.

    Args:
        shapes: the shapes of the parameters, by name.
        layers: the paths of linear and convolution layers whose weight is among them.

    Returns:
        The blocks: of the layers, and of all other parameters.
    """
    blocks = []
    for path in layers:
        own = [f"{path}.{key}".removeprefix(".") for key in ("weight", "bias")]
        own = [name for name in own if name in shapes]
        blocks.append(Block(tuple(own), tuple(shapes[name] for name in own), path))
    covered = {name for block in blocks for name in block.names}
    return blocks + [Block((name,), (shape,)) for name, shape in shapes.items() if name not in covered]


class BlockGradients(ABC):
    """Gradients of K functions of B rows in one block, G_kn ``[O, I]``."""

    @abstractmethod
    def double(self) -> BlockGradients:
        """The gradients in double precision.

        Returns:
            The gradients, in the same form.
        """

    @abstractmethod
    def matrices(self) -> Tensor:
        """All gradients.

        Returns:
            G, ``[K, B, O, I]``.
        """

    @abstractmethod
    def add_squares(self, total: Tensor) -> None:
        """Add Σ_kn G_kn∘G_kn.

        Args:
            total: ``[O, I]``, changed in place.
        """

    @abstractmethod
    def inner_products(self, metric: Tensor) -> Tensor:
        """⟨G_kn, G_ln⟩ = Σ_oi metric_oi·G_kn,oi·G_ln,oi for all pairs of functions.

        Args:
            metric: ``[O, I]``.

        Returns:
            ``[B, K, K]``.
        """

    @abstractmethod
    def project(self, directions: Tensor) -> Tensor:
        """Σ_oi G_kn,oi·D_m,oi.

        Args:
            directions: D, ``[M, O, I]``.

        Returns:
            ``[K, B, M]``.
        """


@dataclass(frozen=True, eq=False)
class DenseGradients(BlockGradients):
    """Gradients as they are.

    Attributes:
        values: G, ``[K, B, O, I]``.
    """

    values: Tensor

    def double(self) -> DenseGradients:
        """The gradients in double precision.

        Returns:
            The gradients, in the same form.
        """
        return DenseGradients(self.values.double())

    def matrices(self) -> Tensor:
        """All gradients.

        Returns:
            G, ``[K, B, O, I]``.
        """
        return self.values

    def add_squares(self, total: Tensor) -> None:
        """Add Σ_kn G_kn∘G_kn.

        Args:
            total: ``[O, I]``, changed in place.
        """
        total += self.values.square().sum((0, 1))

    def inner_products(self, metric: Tensor) -> Tensor:
        """⟨G_kn, G_ln⟩ under a metric.

        Args:
            metric: ``[O, I]``.

        Returns:
            ``[B, K, K]``.
        """
        flat = self.values.transpose(0, 1).flatten(2)
        return (flat * metric.flatten()) @ flat.mT

    def project(self, directions: Tensor) -> Tensor:
        """The components of G along directions.

        Args:
            directions: ``[M, O, I]``.

        Returns:
            ``[K, B, M]``.
        """
        return self.values.flatten(2) @ directions.flatten(1).mT


@dataclass(frozen=True, eq=False)
class FactoredGradients(BlockGradients):
    """Gradients G_kn = Σ_t g_knt·a_ntᵀ of a linear layer that is applied at T positions of every row.

    Attributes:
        inputs: a, ``[B, T, I]``; the last column is 1 if the block has a bias.
        outputs: g, ``[K, B, T, O]``.
    """

    inputs: Tensor
    outputs: Tensor

    def double(self) -> FactoredGradients:
        """The gradients in double precision.

        Returns:
            The gradients, in the same form.
        """
        return FactoredGradients(self.inputs.double(), self.outputs.double())

    def matrices(self) -> Tensor:
        """All gradients.

        Returns:
            G, ``[K, B, O, I]``.
        """
        return self.outputs.mT @ self.inputs

    def add_squares(self, total: Tensor) -> None:
        """Add Σ_kn G_kn∘G_kn.

        Args:
            total: ``[O, I]``, changed in place.
        """
        for part in self._by_rows():
            for gradient in part.outputs:
                total += (gradient.mT @ part.inputs).square().sum(0)

    def inner_products(self, metric: Tensor) -> Tensor:
        """⟨G_kn, G_ln⟩ under a metric; for T = 1 it is Σ_o g_ko·g_lo·(metric·(a∘a))_o.

        Args:
            metric: ``[O, I]``.

        Returns:
            ``[B, K, K]``.
        """
        if self.inputs.shape[1] == 1:
            g = self.outputs[:, :, 0].transpose(0, 1)
            scale = self.inputs[:, 0].square() @ metric.mT
            return (g * scale.unsqueeze(1)) @ g.mT
        parts = [DenseGradients(part.matrices()).inner_products(metric) for part in self._by_rows(len(self.outputs))]
        return torch.cat(parts)

    def project(self, directions: Tensor) -> Tensor:
        """The components of G along directions; for T = 1 it is g_kᵀ·(D_m·a).

        Args:
            directions: ``[M, O, I]``.

        Returns:
            ``[K, B, M]``.
        """
        if self.inputs.shape[1] == 1:
            moved = torch.einsum("moi,bi->bmo", directions, self.inputs[:, 0])
            return torch.einsum("kbo,bmo->kbm", self.outputs[:, :, 0], moved)
        parts = [DenseGradients(part.matrices()).project(directions) for part in self._by_rows(len(self.outputs))]
        return torch.cat(parts, dim=1)

    def rotate(self, out_basis: Tensor, in_basis: Tensor) -> FactoredGradients:
        """The gradients Uᵀ·G·V in other coordinates.

        Args:
            out_basis: U, ``[O, O]``.
            in_basis: V, ``[I, I]``.

        Returns:
            The gradients, in the same form.
        """
        return FactoredGradients(self.inputs @ in_basis, self.outputs @ out_basis)

    def _by_rows(self, copies: int = 1) -> Iterator[FactoredGradients]:
        """Parts of so few rows that ``copies`` matrices per row fit in memory."""
        size = max(1, _NUMBERS_AT_ONCE // max(copies * self.outputs.shape[-1] * self.inputs.shape[-1], 1))
        for start in range(0, len(self.inputs), size):
            rows = slice(start, start + size)
            yield FactoredGradients(self.inputs[rows], self.outputs[:, rows])
