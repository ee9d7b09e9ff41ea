"""K copies of a network and its likelihood as K vectors, with the log likelihood of a batch and its gradient."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from credo._embeddings import padding_rows
from credo.data import Batch
from credo.functional import Caller, Draw, Forward
from credo.likelihoods import Likelihood
from credo.methods._recording import Function, record
from credo.nests import leaves, tensors
from credo.stacking import Stack

NET, LIKELIHOOD = "caller.net.", "likelihood."
"""What the names of the network's and of the likelihood's parameters begin with."""
RECORDED_FROM, _LARGEST_NUMBER_OF_RECORDINGS = 10, 8
"""A recording is made at this evaluation of a shape, as it takes the time of some, and for at most so many shapes."""


class Evaluation(NamedTuple):
    """A function of K positions and its gradients.

    Attributes:
        log_density: ``[K]``, float64.
        gradient: ``[K, P]``.
    """

    log_density: Tensor
    gradient: Tensor

    def plus(self, other: Evaluation) -> Evaluation:
        """The sum of two functions."""
        return Evaluation(self.log_density + other.log_density, self.gradient + other.gradient)

    def times(self, factor: float) -> Evaluation:
        """A multiple of the function."""
        return self if factor == 1.0 else Evaluation(self.log_density * factor, self.gradient * factor)


Target: TypeAlias = Callable[[Tensor], Evaluation]
"""From positions ``[K, P]`` to their log densities and gradients."""


class RowLogLikelihood(nn.Module):
    """log p(y | f(x)) per row: a network and its likelihood as one module, so that copies of both can be stacked."""

    def __init__(self, net: nn.Module, likelihood: Likelihood, forward: Forward | None) -> None:
        super().__init__()
        self.caller = Caller(net, forward)
        self.likelihood = likelihood

    def forward(self, x: Any, y: Tensor) -> Tensor:
        """The log likelihood of every row, ``[B]``."""
        return self.likelihood.log_prob(self.caller(x), y)


class FlatStack:
    r"""The log likelihood of a batch under K weight vectors at once, with its gradient.

    A vector of P numbers holds the parameters in the order of ``names``. Sums over rows are in float64, so that
    differences of log densities keep their digits.

    A small network costs more to call than to compute, about twice. So the forward and backward pass are recorded as
    the list of their tensor operations, for shapes of a batch that come often: no modules, ``vmap`` or autograd are in
    it. Where the list cannot be made, or has other results on other positions (dropout), the way through Python
    remains.

    Args:
        module: the network and its likelihood.
        names: the parameters that differ between copies; all others are shared.
        copies: K.
        training: run the network in training mode.
        per_copy: whether every copy has rows of its own: the tensors of a batch are ``[K, B, ...]``.
    """

    def __init__(
        self,
        module: RowLogLikelihood,
        names: Sequence[str],
        copies: int,
        *,
        training: bool = False,
        per_copy: bool = False,
    ) -> None:
        self.shapes = {name: module.get_parameter(name).shape for name in names}
        first = module.get_parameter(names[0])
        self.device, self.dtype = first.device, first.dtype
        self._sizes = [math.prod(shape) for shape in self.shapes.values()]
        self._stack = Stack(module, copies, names=names, training=training)
        self.padding = {name: row for name, row in padding_rows(module).items() if name in self.shapes}
        self._per_copy = per_copy
        self._recorded: dict[object, Function] = {}
        self._count: Counter[object] = Counter()

    def log_likelihood(self, position: Tensor, batch: Batch) -> Evaluation:
        """Σ_rows weight·log p(y | x, w).

        Args:
            position: ``[K, P]``.
            batch: the rows, the same for all copies, or those of every copy.

        Returns:
            The sums ``[K]`` and their gradients ``[K, P]``, detached.
        """
        key = _signature(batch)
        self._count[key] += 1
        if self._count[key] == RECORDED_FROM and len(self._recorded) < _LARGEST_NUMBER_OF_RECORDINGS:
            self._recorded[key] = self._record(self._evaluate_leaves(batch), position.detach(), batch)
        function = self._recorded.get(key) or self._evaluate_leaves(batch)
        with torch.no_grad():
            return Evaluation(*function(position.detach(), *tensors(tuple(batch))))

    def rows(self, position: Tensor, batch: Batch) -> Tensor:
        """log p(y | x, w) of every row ``[K, B]``, without weights of rows."""
        return self._stack(self.unflatten(position), (batch.x, batch.y), per_copy=self._per_copy)

    def unflatten(self, flat: Tensor) -> Draw:
        """Name to ``[..., *shape]`` of vectors ``[..., P]``."""
        parts = flat.split(self._sizes, -1)
        return {
            name: part.view(*flat.shape[:-1], *shape)
            for part, (name, shape) in zip(parts, self.shapes.items(), strict=True)
        }

    def flatten(self, weights: Mapping[str, Tensor]) -> Tensor:
        """Vectors of the parameters in ``weights``, each ``[K, *shape]``; ``[K, P]`` if it holds all of them."""
        dtype = next(iter(weights.values())).dtype
        known = [weights[name] for name in self.shapes if name in weights]
        return torch.cat([value.reshape(len(value), -1).to(dtype) for value in known], 1)

    @torch.no_grad()
    def write(self, flat: Tensor, copies: Sequence[tuple[nn.Module, Likelihood]]) -> None:
        """Copy vectors ``[K, P]`` into the parameters of K networks and their likelihoods, but for padding."""
        for name, value in self.unflatten(flat.detach()).items():
            prefix = NET if name.startswith(NET) else LIKELIHOOD
            for k, (net, likelihood) in enumerate(copies):
                parameter = (net if prefix == NET else likelihood).get_parameter(name.removeprefix(prefix))
                row = self.padding.get(name)
                kept = None if row is None else parameter[row].clone()
                parameter.copy_(value[k])
                if kept is not None:
                    parameter[row] = kept

    def _evaluate_leaves(self, batch: Batch) -> Function:
        """A function of a position and the tensors of a batch like ``batch``."""

        def evaluate(position: Tensor, *data: Tensor) -> tuple[Tensor, ...]:
            remaining = iter(data)
            here = batch.map(lambda _: next(remaining))
            return tuple(differentiate(lambda q: self._sum(q, here), position))

        return evaluate

    def _sum(self, position: Tensor, batch: Batch) -> Tensor:
        rows = self.rows(position, batch)
        weighted = rows if batch.sample_weight is None else rows * batch.sample_weight
        return weighted.double().sum(1)

    def _record(self, function: Function, position: Tensor, batch: Batch) -> Function:
        """``function`` as a list of tensor operations, or as it is."""
        data = tensors(tuple(batch))
        other = 0.9 * position + 0.01
        expected = function(other, *data)  # finds out whether vmap works
        if not self._stack.is_vectorized:
            return function
        try:
            recorded = record(function, position, *data)
            found = recorded(other, *data)
        except Exception:  # whatever cannot be recorded
            return function
        rows = batch.y.shape[1 if self._per_copy else 0]
        tolerance = rounding(rows + position.shape[1], self.dtype)
        return recorded if all(are_close(*pair, tolerance) for pair in zip(found, expected, strict=True)) else function


def differentiate(function: Callable[[Tensor], Tensor], position: Tensor) -> Evaluation:
    """``function``, from ``[K, P]`` to ``[K]``, and its gradient; row k depends on row k alone."""
    with torch.enable_grad():
        leaf = position.detach().requires_grad_()
        value = function(leaf)
        (gradient,) = torch.autograd.grad(value.sum(), leaf)
    return Evaluation(value.detach(), gradient)


def rounding(terms: int, dtype: torch.dtype) -> float:
    """By which part of itself a sum may differ if it is summed in another order.

    The roundings of n terms add up like a random walk, to √n·ε of the size of the terms. The factor of 10 is for sums
    that are smaller than their terms, as gradients near a mode are: up to 0.8·√n·ε were measured there.

    Args:
        terms: n, for a log likelihood the rows and the weights that each of them meets.
        dtype: of the computation, whose ε it is.
    """
    return 10.0 * math.sqrt(terms) * torch.finfo(dtype).eps


def are_close(a: Tensor, b: Tensor, tolerance: float) -> bool:
    """Whether two results differ by rounding, a ``tolerance`` relative to their largest entry."""
    largest = float(b.abs().nan_to_num(0.0, 0.0, 0.0).max()) if b.numel() else 0.0
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance * largest, equal_nan=True)


def _signature(batch: Batch) -> tuple[object, ...]:
    """What must be the same for two batches to run through one recording."""
    values = [*leaves(batch.x), batch.y, batch.sample_weight]
    return tuple((v.shape, v.dtype, v.device) if isinstance(v, Tensor) else v for v in values)
