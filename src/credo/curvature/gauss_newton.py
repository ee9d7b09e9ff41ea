r"""The generalized Gauss–Newton matrix of a network on data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import vjp

from credo.curvature.gradients import Block, BlockGradients
from credo.curvature.network import ForwardPass, NetworkGradients, linearize
from credo.curvature.outputs import check_outputs, output_factors
from credo.data import Batch
from credo.functional import Draw
from credo.likelihoods import Likelihood
from credo.nests import flatten_rows, have_equal_rows

_NUMBERS_AT_ONCE = 2**24
_COLUMN_NUMBERS_ON_CPU = 2**18
"""Numbers of the gradients of a few functions of the output; a GPU is faster with all functions at once."""


class CurvatureBatch(NamedTuple):
    """The part of H that some rows contribute by some of the K functions of their output, H = Σ_k Σ_n G_kn·G_knᵀ.

    Attributes:
        gradients: G of every block.
        sample_weight: of the rows, ``[B]``; their square roots are factors of G already. ``None``: all 1.
        is_first: whether these are the first functions of these rows.
    """

    gradients: list[tuple[Block, BlockGradients]]
    sample_weight: Tensor | None
    is_first: bool


class GaussNewton:
    r"""H = Σ_n J_nᵀ·Λ_n·J_n, the generalized Gauss–Newton matrix of −log p(D | w).

    J_n is the Jacobian of the output for row n in the weights and Λ_n = −∇²_f log p(y_n | f). H is never formed here.

    Args:
        network: the network and the parameters w.
        likelihood: p(y | f).
        batches: returns the batches of the data, in evaluation order.
    """

    def __init__(
        self, network: NetworkGradients, likelihood: Likelihood, batches: Callable[[], Iterable[Batch]]
    ) -> None:
        self.network, self.likelihood, self._batches = network, likelihood, batches
        self._rows = 0
        self._log_likelihood: float | None = None

    @property
    def blocks(self) -> list[Block]:
        """The blocks of parameters."""
        return self.network.blocks

    def gradients(self) -> Iterator[CurvatureBatch]:
        """The gradients G whose products are H, a few rows and functions of their output at a time.

        Yields:
            Gradients of as many rows as fit in memory.
        """
        for done, factors, weight in self._passes():
            is_first = True
            for columns in factors.split(self._columns_at_once(done)):
                yield CurvatureBatch(done.gradients(columns), weight, is_first)
                is_first = False

    def diagonal(self, dtype: torch.dtype) -> Draw:
        """The diagonal of H, exact.

        Args:
            dtype: to add up in.

        Returns:
            Name to tensor, of the shape of the parameter.
        """
        device = next(iter(self.network.weights().values())).device
        totals = {block.names[0]: torch.zeros(block.shape, dtype=dtype, device=device) for block in self.blocks}
        for done, factors, _ in self._passes():
            done.add_squares(factors, totals)
        return {name: part for block in self.blocks for name, part in block.split(totals[block.names[0]]).items()}

    def _passes(self) -> Iterator[tuple[ForwardPass, Tensor, Tensor | None]]:
        """Forward passes of all rows, with the factors ``[K, B, C]`` of their Λ and their weights."""
        total = 0.0
        for x, y, weight in self._parts():
            done = self.network.run(x)
            total += self._fit_of(done.output, y, weight)
            yield done, output_factors(self.likelihood, done.output, y, weight), weight
        self._log_likelihood = total

    def _columns_at_once(self, done: ForwardPass) -> int:
        """The number of functions of the output whose gradients are held at a time.

        All, if parameters other than those of layers are differentiated, which is a forward pass of its own.
        """
        everything = flatten_rows(done.output).shape[1]
        if done.output.device.type != "cpu" or any(block.layer is None for block in self.blocks):
            return max(1, everything)
        numbers = sum(record.output_shape.numel() for record in done.records.values())
        return max(1, min(everything, _COLUMN_NUMBERS_ON_CPU // max(1, numbers)))

    @torch.no_grad()
    def product(self, vector: Draw) -> Draw:
        """H·v, by a product with J and one with Jᵀ per batch.

        Args:
            vector: v, name to tensor.

        Returns:
            H·v, name to tensor.
        """
        weights = self.network.weights()
        total = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        for x, y, weight in self._batches():

            def call(w: Draw, x: object = x) -> Tensor:
                return self.network.call(w, x)

            output, change = linearize(call, weights, vector)
            factors = output_factors(self.likelihood, output, y, weight)
            inner = torch.einsum("kbc,bc->kb", factors, flatten_rows(change).to(factors.dtype))
            back = torch.einsum("kbc,kb->bc", factors, inner).to(output.dtype)
            with torch.enable_grad():  # without it, a fused LSTM stores nothing for its backward pass
                part = vjp(call, weights)[1](back.view_as(output))[0]
            total = {name: value + part[name] for name, value in total.items()}
        return total

    @torch.no_grad()
    def log_likelihood(self) -> float:
        """log p(D | w) of all rows.

        Returns:
            A number in nats.
        """
        if self._log_likelihood is None:  # else known from a pass for gradients
            parts = [self._fit_of(self.network.replica({}, x), y, weight) for x, y, weight in self._batches()]
            self._log_likelihood = sum(parts)
        return self._log_likelihood

    @torch.no_grad()
    def _fit_of(self, output: Tensor, y: Tensor, weight: Tensor | None) -> float:
        """log p(y | f) of some rows, after a check that they match."""
        check_outputs(self.likelihood, output, y)
        rows = self.likelihood.log_prob(output, y).double()
        return float((rows if weight is None else rows * weight).sum())

    def _parts(self) -> Iterator[Batch]:
        """The data in batches of so few rows that their gradients fit in memory."""
        for batch in self._batches():
            rows = len(batch.y)
            if not self._rows and rows:
                self._rows = max(1, _NUMBERS_AT_ONCE // self.network.numbers_per_row(batch.x))
            if rows <= self._rows or not have_equal_rows(batch.x):
                yield batch
                continue
            for start in range(0, rows, self._rows):
                yield batch.map(lambda t: t[start : start + self._rows])  # noqa: B023
