"""Which way of evaluating draws is fast: a fixed rule on a CPU, a measurement on a GPU.

On a CPU the result must not depend on a clock, and a rule is good enough: calling a small network costs more than
computing it, so its draws are evaluated together; a large one takes as long for one draw as for its share of many, and
many need more memory. On a GPU it depends on kernels that only a measurement knows: ``vmap`` turns a convolution with
drawn weights into a grouped one, which is sometimes fast and sometimes far slower than a loop.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

import torch
from torch import nn

from credo.nests import count_rows, input_bytes, tensors

_WORK_WORTH_A_LOOP = {"vmap": 2**21, "fold": 2**25}
_CONVOLUTIONS_WORTH_A_LOOP = {"vmap": 0, "fold": 2**21}
"""Rows × weights above which a loop is as fast on a CPU, measured on networks of width 50 to 600 and on LeNet. With
drawn weights 32 draws at once took 0.27 of the loop's CPU time at 2¹⁶, 0.46 at 2²⁰ and 1.6 at 2²²; with dropout 0.15 at
2¹⁵, 0.32 at 2²² and 0.9 at 2²⁵; with dropout and convolutions 0.26 at 2¹⁶ and 0.8 at 2²²."""
_CPU_BYTES = 64 * 2**20
_PART_OF_FREE_MEMORY, _GPU_BYTES = 0.25, 2 * 2**30
"""Of a GPU's memory, for the draws that are evaluated at once; more of them are not faster."""
_MIN_DRAWS_TO_FOLD = 16
_MIN_DRAWS_TO_MEASURE = 32
TRIAL_DRAWS = 6


class Sharing(NamedTuple):
    """Whether draws share work, and how large activations are.

    Attributes:
        calls: the module calls that end before the first use of a draw, see :class:`SharedWork`; none if sharing does
            not pay.
        row_bytes: of the activations of a row, all that live at a time; ``None``: not known.
        draws_itself: whether the network draws random numbers of its own.
    """

    calls: frozenset[tuple[int, int]] = frozenset()
    row_bytes: float | None = None
    draws_itself: bool = False


class Workload(NamedTuple):
    """What decides how fast a way is.

    Attributes:
        device: where the network is.
        rows: per call.
        weights: numbers that differ from draw to draw; for dropout, the network's parameters behind the first mask.
        convolves: whether a convolution is among what is computed for every draw.
        samples: number of draws.
        key: the :func:`signature`.
    """

    device: torch.device
    rows: int
    weights: int
    convolves: bool
    samples: int
    key: Hashable

    def choose_by_rule(self, offered: str) -> str | None:
        """``offered`` or ``"loop"``; ``None`` where it takes a measurement."""
        if self.device.type == "cuda" and self.samples >= _MIN_DRAWS_TO_MEASURE:
            return None
        if offered == "fold" and self.samples < _MIN_DRAWS_TO_FOLD:
            return "loop"  # a trial whether a network can be folded costs a few calls
        limit = (_CONVOLUTIONS_WORTH_A_LOOP if self.convolves else _WORK_WORTH_A_LOOP)[offered]
        return offered if self.device.type != "cpu" or self.rows * self.weights <= limit else "loop"


def describe(net: nn.Module, x: Any, weights: int, convolves: bool, samples: int) -> Workload:
    """The workload of a network on a batch."""
    return Workload(tensors(x)[0].device, count_rows(x), weights, convolves, samples, signature(net, x))


def signature(net: nn.Module, x: Any) -> Hashable:
    """Network, data types and shapes, up to a factor of 2 in the number of rows."""
    rows, leaves = count_rows(x), tensors(x)
    shapes = tuple((t.dtype, t.shape[0] if t.shape[0] != rows else 0, t.shape[1:]) if t.dim() else () for t in leaves)
    network = tuple(
        (type(module), tuple(p.shape for p in module.parameters(recurse=False))) for module in net.modules()
    )
    dtypes = tuple({p.dtype for p in net.parameters()})
    return (leaves[0].device, max(rows - 1, 0).bit_length(), shapes, hash(network), dtypes)


def draws_at_once(x: Any, bytes_per_draw: int, row_bytes: float | None, limit: int = _GPU_BYTES) -> int:
    """Draws per chunk such that weights and activations stay within a part of the free memory.

    Args:
        x: a batch.
        bytes_per_draw: of the weights.
        row_bytes: of the activations of a row, all that live at a time; ``None``: not known, as many as of the input.
        limit: bytes at most, on a GPU.
    """
    device = tensors(x)[0].device
    activations = input_bytes(x) if row_bytes is None else row_bytes * count_rows(x)
    if device.type != "cuda":
        return max(1, int(min(_CPU_BYTES / max(activations, 1), 2 * _CPU_BYTES / max(bytes_per_draw, 1))))
    free, _ = torch.cuda.mem_get_info(device)
    budget = min(_PART_OF_FREE_MEMORY * free, limit)
    return max(1, int(budget / max(activations + 2 * bytes_per_draw, 1)))
