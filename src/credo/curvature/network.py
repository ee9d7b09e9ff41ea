r"""Row gradients of a network: one backward pass per function of the output, whatever the number of rows.

A forward pass records the inputs a of linear and convolution layers; backward passes to the layers' outputs, not to
their weights, give g (see :mod:`credo.curvature.gradients`). Other parameters have their gradients taken row by row,
vectorized over rows where the network allows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import vjp, vmap

from credo._devices import at_least_float32
from credo.curvature.gradients import Block, BlockGradients, DenseGradients, FactoredGradients, find_blocks
from credo.errors import UnsupportedError
from credo.functional import Draw, Forward, Replica
from credo.nests import count_rows, flatten_rows, have_equal_rows, map_tensors, split_rows


def is_factorable(layer: nn.Module) -> bool:
    """Whether the gradients of a layer can be kept as factors: Linear, and Conv1d or Conv2d without groups.

    Args:
        layer: a layer; subclasses do not count, as they may compute something else.

    Returns:
        Whether :class:`FactoredGradients` can hold its gradients.
    """
    return type(layer) is nn.Linear or (type(layer) in (nn.Conv1d, nn.Conv2d) and getattr(layer, "groups", 0) == 1)


class NetworkGradients:
    """Gradients of functions of a network's output, for every row, in evaluation mode.

    The network itself is not touched: everything happens on a private replica with its own buffers.

    Args:
        net: the network.
        forward: ``callable(net, x)``, or ``None``.
        names: the parameters to differentiate by.
        layers: the paths of layers among them that :func:`is_factorable` allows, that are called once per forward pass
            and have the rows along dim 0 of their input.
    """

    def __init__(self, net: nn.Module, forward: Forward | None, names: list[str], layers: list[str]) -> None:
        self.names = names
        self.blocks = find_blocks({name: net.get_parameter(name).shape for name in names}, layers)
        self.replica = Replica(net, forward, own_buffers=True)
        self.replica.net.eval()
        self._records: dict[str, _Record] | None = None
        self._vectorize = True
        for path in layers:
            layer = self.replica.net.get_submodule(path)
            layer.register_forward_hook(self._recorder(path), with_kwargs=True)

    def weights(self) -> Draw:
        """The parameters to differentiate by, detached.

        Returns:
            Name to tensor.
        """
        own = dict(self.replica.net.named_parameters())
        return {name: own[name].detach() for name in self.names}

    def run(self, x: Any) -> ForwardPass:
        """Call the network and keep what backward passes need.

        Args:
            x: inputs, rows along dim 0.

        Returns:
            The output, and a way to its gradients.
        """
        records: dict[str, _Record] = {}
        self._records = records
        try:
            with torch.enable_grad():
                output = self.replica({}, x)
        finally:
            self._records = None
        return ForwardPass(self, x, output, records)

    def numbers_per_row(self, x: Any) -> int:
        """The number of floating-point numbers that gradients of all outputs need per row.

        Args:
            x: inputs; the first row is enough.

        Returns:
            An estimate of the memory.
        """
        if count_rows(x) == 0:
            return 1
        first = next(iter(split_rows(x, 1)))
        done = self.run(first)
        outputs = done.output.numel()
        total = outputs * outputs
        for block in self.blocks:
            if block.layer is None:
                total += outputs * block.shape[1]
            else:
                record = done.records[block.layer]
                total += record.inputs.numel() + outputs * record.output_shape.numel()
        return total // count_rows(first) + 1

    def dense(self, names: list[str], x: Any, columns: Tensor) -> dict[str, Tensor]:
        """Gradients of columns·f by parameters of any kind, row by row.

        Args:
            names: the parameters.
            x: inputs.
            columns: the directions in the output, ``[K, B, C]``.

        Returns:
            Name to gradients, ``[K, B, *shape]``.
        """
        own = self.weights()
        weights = {name: own[name] for name in names}
        if self._vectorize and have_equal_rows(x):
            try:
                return self._dense_by_vmap(weights, x, columns)
            except Exception:  # a missing batching rule, an in-place buffer, a data-dependent branch
                self._vectorize = False
        return self._dense_by_loop(weights, x, columns)

    def _dense_by_vmap(self, weights: Draw, x: Any, columns: Tensor) -> dict[str, Tensor]:
        def one_row(row: Any, directions: Tensor) -> Draw:
            batch = map_tensors(lambda t: t[None], row)
            pull = vjp(lambda w: self.replica(w, batch).flatten(), weights)[1]
            gradients: Draw = vmap(lambda direction: pull(direction)[0])(directions)
            return gradients

        gradients: dict[str, Tensor] = vmap(one_row, in_dims=(0, 1), out_dims=1)(x, columns)
        return {name: gradient.detach() for name, gradient in gradients.items()}  # of a graph to the other parameters

    def _dense_by_loop(self, weights: Draw, x: Any, columns: Tensor) -> dict[str, Tensor]:
        leaves = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
        found: dict[str, list[Tensor]] = {name: [] for name in leaves}
        for n, row in enumerate(split_rows(x, 1)):
            with torch.enable_grad():
                output = self.replica(leaves, row).flatten()
            for direction in columns[:, n]:
                gradients = torch.autograd.grad(
                    output, list(leaves.values()), direction, retain_graph=True, allow_unused=True
                )
                for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True):
                    found[name].append(torch.zeros_like(leaf) if gradient is None else gradient)
        shape = columns.shape[1], columns.shape[0]
        return {name: torch.stack(found[name]).unflatten(0, shape).transpose(0, 1) for name in leaves}

    def _recorder(self, path: str) -> Callable[..., Tensor | None]:
        def hook(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> Tensor | None:
            if self._records is None:
                return None
            x = (args[0] if args else kwargs["input"]).detach()
            downstream = None
            if not output.requires_grad:  # nothing before this layer is differentiable
                output = output.detach().requires_grad_()
                downstream = output.clone()
            self._records[path] = _Record(layer, x, x._version, get_gradient_edge(output), output.shape)
            return downstream

        return hook


def linearize(function: Callable[[Draw], Tensor], weights: Draw, change: Draw) -> tuple[Tensor, Tensor]:
    """The output of a function and its change J·v to first order.

    By two reverse passes, Jv = ∂(vᵀJᵀu)/∂u, as many operations have no derivative in forward mode.

    Args:
        function: from weights to outputs.
        weights: where to linearize, name to tensor.
        change: v, name to tensor.

    Returns:
        f(w) and J·v, of the same shape.
    """

    def pull_back(direction: Tensor) -> Draw:
        gradient: Draw = vjp(function, weights)[1](direction)[0]
        return gradient

    output = function(weights)
    push = vjp(pull_back, torch.zeros_like(output))[1]
    return output, push(change)[0]


@dataclass(frozen=True, eq=False)
class ForwardPass:
    """A forward pass of a network whose rows can be differentiated; gradients are in float32 at least.

    Attributes:
        network: the network.
        x: the inputs.
        output: f, ``[B, ...]``, with a graph.
        records: what layers were called with.
    """

    network: NetworkGradients
    x: Any
    output: Tensor
    records: Mapping[str, _Record]
    _inputs: dict[str, Tensor] = field(default_factory=dict, repr=False)

    def gradients(self, columns: Tensor) -> list[tuple[Block, BlockGradients]]:
        """The gradients of Σ_c columns_kbc·f_bc by every block.

        Args:
            columns: the directions in the output, ``[K, B, C]``.

        Returns:
            A pair for every block.
        """
        layers = self._layers()
        like = self.output.new_empty(0, dtype=self._dtype)
        found = [record.empty(len(columns), like) for _, record in layers]
        for k, outputs in enumerate(self._backward(columns)):
            for values, (_, g) in zip(found, outputs, strict=True):
                values[k] = g
        pairs: list[tuple[Block, BlockGradients]] = [
            (block, FactoredGradients(self._inputs_of(block), values))
            for (block, _), values in zip(layers, found, strict=True)
        ]
        return pairs + self._dense(columns)

    def add_squares(self, columns: Tensor, totals: Mapping[str, Tensor]) -> None:
        """Add Σ_kn G_kn∘G_kn, the squares of the gradients of all functions k and rows n, of every block.

        For a layer with one position per row this is (Σ_k g_k∘g_k)ᵀ·(a∘a), one product for all functions.

        Args:
            columns: the directions in the output, ``[K, B, C]``.
            totals: ``[O, I]`` of every block, by the name of its first parameter; changed in place.
        """
        squares: dict[Block, Tensor] = {}
        for outputs in self._backward(columns):
            for block, g in outputs:
                total = totals[block.names[0]]
                if g.shape[1] > 1:
                    FactoredGradients(self._inputs_of(block), g[None]).add_squares(total)
                    continue
                g = g[:, 0].to(total.dtype)
                squares[block] = squares[block].addcmul_(g, g) if block in squares else g.square()
        for block, square in squares.items():
            total = totals[block.names[0]]
            total.addmm_(square.mT, self._inputs_of(block)[:, 0].to(total.dtype).square())
        for block, gradient in self._dense(columns):
            gradient.add_squares(totals[block.names[0]])

    @property
    def _dtype(self) -> torch.dtype:
        return at_least_float32(self.output.dtype)

    def _layers(self) -> list[tuple[Block, _Record]]:
        """The blocks of layers, with what these were called with."""
        return [(block, self.records[block.layer]) for block in self.network.blocks if block.layer is not None]

    def _backward(self, columns: Tensor) -> Iterator[list[tuple[Block, Tensor]]]:
        """g of every layer, ``[B, T, O]``, for one function of the output after another."""
        with torch.enable_grad():  # a view that is made without a graph has none
            output = flatten_rows(self.output)
        layers = self._layers()
        edges = [record.edge for _, record in layers]
        for column in columns if layers else ():
            gradients = torch.autograd.grad(output, edges, column, retain_graph=True, allow_unused=True)
            yield [
                (block, (record.empty(1, output)[0].zero_() if g is None else record.positions_of(g)).to(self._dtype))
                for (block, record), g in zip(layers, gradients, strict=True)
            ]

    def _dense(self, columns: Tensor) -> list[tuple[Block, BlockGradients]]:
        """The gradients by parameters that belong to no layer."""
        others = [block for block in self.network.blocks if block.layer is None]
        if not others:
            return []
        dense = self.network.dense([block.names[0] for block in others], self.x, columns)
        return [
            (block, DenseGradients(dense[block.names[0]].flatten(2).unsqueeze(2).to(self._dtype)))  # [K, B, 1, size]
            for block in others
        ]

    def _inputs_of(self, block: Block) -> Tensor:
        """a of a layer, ``[B, T, I]``, the same for all directions."""
        path = str(block.layer)
        if path not in self._inputs:
            self._inputs[path] = self.records[path].inputs_with(len(block.names) > 1).to(self._dtype)
        return self._inputs[path]


@dataclass(frozen=True, eq=False)
class _Record:
    """What a layer was called with, and where its output is in the graph."""

    layer: nn.Module
    x: Tensor
    version: int
    edge: GradientEdge
    output_shape: torch.Size

    @property
    def inputs(self) -> Tensor:
        """a, ``[B, T, I]``: what each output position is a linear function of."""
        if self.x._version != self.version:
            raise UnsupportedError(
                f"the input of a {type(self.layer).__name__} layer is changed in place after the layer was called; "
                "let the network make a new tensor instead"
            )
        if isinstance(self.layer, nn.Linear):
            return self.x.reshape(len(self.x), -1, self.x.shape[-1])
        return _patches(self.layer, self.x)

    def inputs_with(self, bias: bool) -> Tensor:
        """a, with a column of ones for a bias."""
        inputs = self.inputs
        return F.pad(inputs, (0, 1), value=1.0) if bias else inputs

    def empty(self, columns: int, like: Tensor) -> Tensor:
        """Memory for gradients in the layer's output, ``[K, B, T, O]``."""
        rows, outputs = self.output_shape[0], self.output_shape[-1 if isinstance(self.layer, nn.Linear) else 1]
        positions = self.output_shape[1:].numel() // max(outputs, 1)
        return like.new_empty(columns, rows, positions, outputs)

    def positions_of(self, gradient: Tensor) -> Tensor:
        """The gradient in the layer's output as ``[B, T, O]``."""
        if isinstance(self.layer, nn.Linear):
            return gradient.reshape(len(gradient), -1, gradient.shape[-1])
        return gradient.flatten(2).mT


def _patches(layer: Any, x: Tensor) -> Tensor:
    """The patches that a convolution sees, ``[B, T, C·kernel]``."""
    if layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        x, padding = F.pad(x, layer._reversed_padding_repeated_twice, mode=mode), (0,) * len(layer.kernel_size)
    else:
        padding = layer.padding
    kernel, dilation, stride = layer.kernel_size, layer.dilation, layer.stride
    if isinstance(layer, nn.Conv1d):
        x = x.unsqueeze(-2)
        kernel, dilation, padding, stride = (1, *kernel), (1, *dilation), (0, *padding), (1, *stride)
    return F.unfold(x, kernel, dilation, padding, stride).mT
