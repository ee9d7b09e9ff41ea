"""Several draws in one call of the network."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from torch import Tensor
from torch.func import vmap

from credo.evaluation.convolutions import per_draw
from credo.evaluation.shared_work import SharedWork
from credo.functional import Draw, Replica, stack_draws
from credo.nests import tensors
from credo.posteriors.base import Posterior


def evaluate_together(
    posterior: Posterior, replica: Replica, shared: SharedWork | None, way: str, draws: list[Draw], x: Any
) -> Tensor:
    """The outputs of K draws.

    Args:
        posterior: how the network is called with a draw.
        replica: a private copy of the network.
        shared: the work that all draws share, recorded before.
        way: ``"vmap"`` or ``"fold"``.
        draws: K draws.
        x: a batch.

    Returns:
        ``[K, B, ...]``.
    """

    def run() -> Tensor:
        if way == "fold":
            return posterior.call_folded(replica, draws, x)
        mapped = vmap(lambda weights, x: posterior.call(replica, weights, x), in_dims=(0, None))
        return mapped(stack_draws(draws), x)

    loops = way == "vmap" and tensors(x)[0].is_cuda and not posterior.differentiates
    with per_draw(replica.net) if loops else nullcontext():
        return run() if shared is None else shared.reuse(run)
