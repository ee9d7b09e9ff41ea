"""Convolutions with drawn weights on a GPU: one kernel per draw.

``vmap`` turns a convolution whose weights differ from draw to draw into a grouped one, for which cuDNN's kernels are
slow: 30 draws of 64 filters over 32 channels took 4.2 ms on an H200, and 30 convolutions one after the other 2.0 ms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

Convolve = Callable[[Tensor, Tensor, Tensor | None], Tensor]


class _PerDraw(torch.autograd.Function):
    """A convolution whose batching rule is a loop; without gradients."""

    generate_vmap_rule = False

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, convolve: Convolve) -> Tensor:
        return convolve(x, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        pass

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        convolve: Convolve,
    ) -> tuple[Tensor, int]:
        x_dim, weight_dim, bias_dim, _ = in_dims
        if weight_dim is None and bias_dim is None and x_dim is not None:
            rows = x.movedim(x_dim, 0)
            return convolve(rows.flatten(0, 1), weight, bias).unflatten(0, rows.shape[:2]), 0
        draws = info.batch_size
        weight = _leading(weight, weight_dim, draws)
        bias = None if bias is None else _leading(bias, bias_dim, draws)
        if x_dim is None and weight.shape[2] == x.shape[1]:  # not grouped: the filters of all draws at once
            output = convolve(x, weight.flatten(0, 1), None if bias is None else bias.flatten())
            return output.unflatten(1, weight.shape[:2]), 1
        x = _leading(x, x_dim, draws)
        outputs = [convolve(x[s], weight[s], None if bias is None else bias[s]) for s in range(draws)]
        return torch.stack(outputs), 0


def _leading(tensor: Tensor, dim: int | None, draws: int) -> Tensor:
    """``tensor`` with the draws along dim 0, the same for all where ``dim`` is ``None``."""
    return tensor.expand(draws, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


@contextmanager
def per_draw(net: nn.Module) -> Iterator[None]:
    """Let the convolutions of ``net``, a private copy, loop over draws inside the block, under ``vmap``.

    Args:
        net: its ``nn.Conv1d``, ``nn.Conv2d`` and ``nn.Conv3d`` modules; others are left to ``vmap``.
    """
    found = [module for module in net.modules() if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d)]
    for module in found:
        vars(module)["_conv_forward"] = partial(_apply, module._conv_forward)
    try:
        yield
    finally:
        for module in found:
            del vars(module)["_conv_forward"]


def _apply(convolve: Convolve, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return _PerDraw.apply(x, weight, bias, convolve)  # type: ignore[no-any-return,no-untyped-call]
