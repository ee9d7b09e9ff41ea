"""The dropout a network already has, as a posterior: one draw is one set of masks, shared by all rows.

Masks are a function of the seed, the number of the draw and the number of the dropout call, so that a loop over draws
and a batch of all draws give the same outputs.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from credo.errors import InputError, UnsupportedError
from credo.functional import Draw, Replica, Sampler, describe_modules
from credo.nests import count_rows, map_tensors, tensors
from credo.posteriors._dropout_calls import DropoutCalls, DropoutRequest, apply_mask
from credo.posteriors._dropout_plan import (
    NO_DROPOUT,
    DropoutCall,
    DropoutPlan,
    apply_plan,
    plan_dropout,
)
from credo.posteriors._layered_rnn import drops_between_layers
from credo.posteriors.base import Posterior
from credo.probing import RowDim, eager, few_rows
from credo.seeding import NoRandomness, RandomnessError, bernoulli, derive, hashed


def check_dropout(net: nn.Module) -> None:
    """Raise ``InputError`` if a network surely has no dropout; one with a forward of its own may call it there."""
    for module in net.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
            return
        if isinstance(module, nn.RNNBase) and drops_between_layers(module):
            return
        if isinstance(module, nn.MultiheadAttention) and module.dropout > 0:
            return
        if not type(module).__module__.startswith("torch.nn."):
            return
    raise InputError(NO_DROPOUT)


class LayerDropout(Posterior):
    """Mask sets for the dropout layers of a network. A draw holds only the number its masks grow from.

    Draws are evaluated together as one batch of S·B rows: each dropout call multiplies the rows of draw s by the mask
    of draw s. Where the network allows, what comes before the first dropout is computed with B rows.
    """

    vectorization = "fold"

    def __init__(self) -> None:
        super().__init__()
        self._plans: dict[Hashable, DropoutPlan] = {}
        """What earlier predictions found out, by network and shapes of the inputs."""

    def names(self) -> list[str]:
        """One name: the masks have shapes only once there is an input."""
        return ["masks"]

    def mean(self) -> Draw:
        """Nothing: without masks a network in evaluation mode computes the mean activation of every layer."""
        raise UnsupportedError(
            "the network's own dropout layers have masks, not a weight posterior; "
            "use MCDropout(net, p=...) for draws of weights"
        )

    def sampler(self, seed: int) -> Sampler:
        """The seed of mask set ``s``."""
        return MaskSampler(seed)

    def sample(self, n: int = 1, seed: int | None = None) -> Draw:
        """Not offered: masks are no weights."""
        return self.mean()

    def prepare(self, network: Replica, x: Any) -> None:
        """Find the dropout of the network, by a few rows of ``x``."""
        if network.plan is not None or count_rows(x) == 0:
            return
        key = (describe_modules(network.net), tuple((t.shape, t.dtype, t.device) for t in tensors(x)))
        if key in self._plans:
            apply_plan(network, self._plans[key])
            return
        network.plan = self._plans[key] = plan_dropout(network, x)

    def call(self, network: Replica, draw: Draw, x: Any) -> Tensor:
        """The output for ``x`` with mask set ``draw``."""
        if count_rows(x) == 0:
            return network({}, x)
        self.prepare(network, x)
        return _call_with_masks(network, [draw], x)

    def can_vectorize(self, network: Replica, x: Any) -> bool:
        """Whether the rows of a batch do not see each other, and a trial on a few rows gives the same as a loop."""
        self.prepare(network, x)
        if network.plan is None:
            return False
        if network.plan.fold is None:
            keys = [key for key, plan in self._plans.items() if plan is network.plan]
            network.plan = network.plan._replace(fold=_find_fold(network, x))
            self._plans.update(dict.fromkeys(keys, network.plan))
        return bool(network.plan.fold != "never")

    def call_folded(self, network: Replica, draws: Sequence[Draw], x: Any) -> Tensor:
        """The outputs for ``x`` with each of ``draws``, from one forward pass, ``[K, B, ...]``."""
        return _call_folded(network, draws, x)


class MaskSampler:
    """The seeds of mask sets, by their numbers.

    Args:
        seed: of all of them.
    """

    def __init__(self, seed: int) -> None:
        self.base = derive(seed)

    def __call__(self, numbers: Sequence[int]) -> list[Draw]:
        """On the CPU."""
        return [{"masks": masks} for masks in hashed(self.base, torch.tensor(list(numbers))).unbind()]

    def make_memory(self, size: int, device: torch.device) -> MaskMemory:
        """Memory for ``size`` seeds, as :class:`credo.evaluation.captured.CapturedDraws` needs it."""
        return MaskMemory(size, device)


class MaskMemory:
    """The seeds of K mask sets at a fixed address.

    Args:
        size: K.
        device: where they are.

    Attributes:
        draws: K draws.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        self._base = torch.zeros((), dtype=torch.int64, device=device)
        self._numbers = torch.arange(size, device=device)
        self._seeds = torch.zeros_like(self._numbers)
        self.draws: list[Draw] = [{"masks": masks} for masks in self._seeds.unbind()]

    def load(self, sampler: MaskSampler, samples: int) -> None:
        """Take over the seed of ``sampler``, whatever the number of draws."""
        self._base.fill_(sampler.base)

    def choose(self, first: int) -> None:
        """Let the next draws be ``first`` to ``first`` + K − 1."""
        torch.arange(first, first + len(self._numbers), out=self._numbers)

    def fill(self) -> None:
        """Compute the seeds."""
        self._seeds.copy_(hashed(self._base, self._numbers))


class SharedMasks(DropoutCalls):
    """Handles dropout calls by masks that do not depend on the row; the k-th call of a pass gets mask k.

    Args:
        seeds: of the K mask sets, ``[K]``.
        network: that is called, with its plan.
        rows: rows of the batch per mask set, B. An activation of B rows becomes one of K·B rows under its masks.
    """

    def __init__(self, seeds: Tensor, network: Replica, rows: int) -> None:
        super().__init__()
        self._seeds, self._network, self._rows = seeds, network, rows
        self._plan: DropoutPlan = network.plan
        self._seen = 0

    def answer(self, request: DropoutRequest) -> Tensor:
        """The activation under the next mask."""
        x, p, on, spatial_dims, alpha, rows = request
        known = self._seen < len(self._plan.calls)
        call = self._plan.calls[self._seen] if known else DropoutCall(on, None)
        self._seen += 1
        if not call.on or p <= 0:
            return x
        if rows is not None:
            call = DropoutCall(True, rows)
        self._network.has_used_draw = True
        view, axis, dims = self._separate(x, call)
        one_mask = [
            1 if place in (axis, axis + 1) or dim >= x.dim() - spatial_dims else size
            for place, (size, dim) in enumerate(zip(view, dims, strict=True))
        ]
        draws, shape = len(self._seeds), list(x.shape)
        if dims[axis] < x.dim():
            shape[dims[axis]] *= draws // view[axis]
        if p >= 1:
            return x.new_zeros(shape)
        kept = bernoulli(self._seeds, self._seen, torch.Size(one_mask).numel(), 1.0 - p)
        kept = kept.to(x.dtype).view(draws, *one_mask).transpose(0, axis + 1).squeeze(0)
        return apply_mask(x.reshape(view), kept, p, alpha).reshape(shape)

    def _separate(self, x: Tensor, call: DropoutCall) -> tuple[list[int], int, list[int]]:
        """A view of ``x`` with draws and rows in dimensions of their own.

        Returns:
            The view; the dimension of it that counts draws, followed by the one that counts rows; and for each
            dimension of the view the dimension of ``x`` it is part of.
        """
        draws, rows, where = len(self._seeds), self._rows, call.rows
        shape = list(x.shape)
        if where is not None and rows > 0 and where.dim < x.dim():
            size = shape[where.dim]
            parts = size // rows if draws == 1 else call.parts
            is_known = size > 0 and size in (parts * rows, parts * draws * rows)
            if is_known and (parts == 1 or where.order != "only"):
                held = size // (parts * rows)
                middle = [held, rows] if parts == 1 else [held, rows, parts]
                axis = where.dim
                if parts > 1 and where.order == "minor":
                    middle, axis = [parts, held, rows], axis + 1
                view = [*shape[: where.dim], *middle, *shape[where.dim + 1 :]]
                before, after = range(where.dim), range(where.dim + 1, x.dim())
                return view, axis, [*before, *[where.dim] * len(middle), *after]
        if draws > 1:
            raise UnsupportedError("a dropout call has no row of its own for every draw")
        return [*shape, 1, 1], x.dim(), [*range(x.dim()), x.dim(), x.dim()]


def _call_with_masks(network: Replica, draws: Sequence[Draw], x: Any, rows: int | None = None) -> Tensor:
    plan, first = network.plan, tensors(x)[0]
    seeds = torch.stack([draw["masks"] for draw in draws]).to(first.device)
    if rows is None:
        rows = 0 if plan.input_dim is None else first.shape[plan.input_dim]
    with eager(), SharedMasks(seeds, network, rows):
        return network({}, x)


def _call_folded(network: Replica, draws: Sequence[Draw], x: Any) -> Tensor:
    plan: DropoutPlan = network.plan
    assert plan.input_dim is not None
    assert plan.output is not None
    rows = tensors(x)[0].shape[plan.input_dim]
    if plan.fold == "input":
        x = map_tensors(partial(_repeat, times=len(draws), dim=plan.input_dim), x)
    return _unfold(_call_with_masks(network, draws, x, rows), plan.output, len(draws), rows)


def _repeat(tensor: Tensor, times: int, dim: int) -> Tensor:
    return torch.cat([tensor] * times, dim)


def _unfold(output: Tensor, where: RowDim, draws: int, rows: int) -> Tensor:
    """The output of K·B rows as K outputs of B rows, ``[K, ...]``."""
    parts = output.shape[where.dim] // (draws * rows)
    if where.order == "minor" and parts > 1:
        separate = torch.unflatten(output, where.dim, (parts, draws, rows)).movedim(where.dim + 1, 0)
        return separate.flatten(where.dim + 1, where.dim + 2)
    return torch.unflatten(output, where.dim, (draws, rows * parts)).movedim(where.dim, 0)


def _find_fold(network: Replica, x: Any) -> str:
    """Where a batch can become one of several draws: a trial of two draws on a few rows must equal the loop."""
    plan: DropoutPlan = network.plan
    if plan.input_dim is None:
        return "never"
    few = map_tensors(few_rows, x) if plan.input_dim == 0 else x
    draws = [{"masks": torch.tensor(seed)} for seed in (1, 2)]
    try:
        with NoRandomness():
            looped = torch.stack([_call_with_masks(network, [draw], few) for draw in draws])
            for place in ("dropout", "input"):
                network.plan = plan._replace(fold=place)
                if _agree(network, draws, few, looped):
                    return place
    except RandomnessError:  # of the network's own, which would be the same for all draws of a batch
        return "never"
    finally:
        network.plan = plan
    return "never"


def _agree(network: Replica, draws: Sequence[Draw], x: Any, looped: Tensor) -> bool:
    try:
        folded = _call_folded(network, draws, x)
    except Exception:  # rows of one draw met rows of all draws, as in a residual sum
        return False
    if folded.shape != looped.shape:
        return False
    tolerance = torch.finfo(looped.dtype).eps ** 0.5 * float(looped.detach().abs().nan_to_num(0.0, 0.0, 0.0).amax())
    return torch.allclose(folded, looped, rtol=0.0, atol=tolerance, equal_nan=True)
