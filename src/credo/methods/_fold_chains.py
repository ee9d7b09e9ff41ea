"""Chains of several data sets, such as the folds of a table, as one batch."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from credo._devices import check_device
from credo.data import Batch
from credo.errors import DivergenceError
from credo.methods._flat_stack import RowLogLikelihood
from credo.methods._log_joint import LogJoint
from credo.methods._sampling import concatenate
from credo.nests import first_rows, plain
from credo.priors import move_priors
from credo.seeding import derive
from credo.training.monitoring import ProgressBar
from credo.training.supervised import SupervisedTask

if TYPE_CHECKING:
    from credo.methods.sampler import Sampler

_START, _SAMPLING = 0, 1  # indices of random streams
_ROWS = {"cpu": 4096}
_ROWS_ELSEWHERE = 2**16
_DIAGNOSED_ROWS = 100

AnySampler = TypeVar("AnySampler", bound="Sampler")


def fit_folds(
    model: AnySampler,
    folds: Sequence[Any],
    seeds: Sequence[int],
    *,
    device: str | torch.device | None = None,
    diagnose: bool = True,
) -> list[AnySampler]:
    """Fit a copy of a sampler to every fold, with the chains of all folds as one batch.

    Each copy has the density, the starts and the random numbers that it has alone, ``copy.fit(fold, seed=seed)``. What
    chains adapt by themselves is adapted as there; the length of HMC's trajectories, if it is adapted, is one for all.

    Args:
        model: a sampler that uses all data in each step; it is not changed.
        folds: data sets, as for ``fit``.
        seeds: one per fold.
        device: where to sample; ``None``: where the network is.
        diagnose: whether to compute R-hat and effective sample sizes for the summary of each copy.

    Returns:
        The fitted copies, in the order of the folds.
    """
    models = [copy.deepcopy(model) for _ in folds]
    fit_models(models, folds, seeds, device=device, progress=False, diagnose=diagnose)
    return models


def fit_models(
    models: Sequence[Sampler],
    data: Sequence[Any],
    seeds: Sequence[int],
    *,
    device: str | torch.device | None,
    progress: bool | None,
    diagnose: bool = True,
) -> None:
    """Fit samplers that differ only in their data and seeds, with all chains as one batch; see ``Sampler.fit``.

    Args:
        models: the samplers.
        data: of every sampler.
        seeds: of every sampler.
        device: where to sample; ``None``: where the networks are.
        progress: whether to show a progress bar; ``None``: only in a terminal.
        diagnose: whether to compute R-hat and effective sample sizes.
    """
    first, before = models[0], models[0].device
    chosen = before if device is None else check_device(device)
    tasks, history = [SupervisedTask(model) for model in models], first.history
    try:
        loaded = [model.to(chosen)._load(own, task) for model, own, task in zip(models, data, tasks, strict=True)]
        target = joint_target(models, loaded)
        start = first._improve(
            target,
            torch.cat([m._first_positions(target, derive(s, _START)) for m, s in zip(models, seeds, strict=True)]),
        )
        if not bool(target(start).log_density.isfinite().all()):
            raise DivergenceError(
                "the log density is NaN or infinite where chains start; scale the data, or choose another init="
            )
        with ProgressBar(progress, first._plan.steps, 0, enabled=True, unit="warm-up") as bar:
            run = first._run(target, start, [derive(s, _SAMPLING) for s in seeds], first._reporter(bar))
        if not bool(run.draws.isfinite().all()):
            raise DivergenceError("draws became NaN or infinite; choose a smaller step size, or scale the data")
    except BaseException:
        for model, task in zip(models, tasks, strict=True):
            task.undo_setup()
            model._adopt_likelihood()
            model.to(before)
        first.history = history
        raise
    chains = first._chains
    for f, (model, batches) in enumerate(zip(models, loaded, strict=True)):
        own = run.of_chains(slice(f * chains, (f + 1) * chains))
        model.history = list(first.history)
        model._keep(target, own)
        model._diagnose(own, first_rows(batches[0].x, _DIAGNOSED_ROWS) if diagnose else None)


def joint_target(models: Sequence[Sampler], data: Sequence[Sequence[Batch]]) -> LogJoint:
    """The log joint density of the chains of all models, those of the first model first.

    Args:
        models: samplers that differ only in their data.
        data: all data of every model, in batches.
    """
    first = models[0]
    noise_priors = move_priors(first._noise_priors(), first.device, first.dtype)
    module = RowLogLikelihood(first.net, first.likelihood, first._forward)
    shared = len(models) == 1
    return LogJoint(
        module,
        first._priors_here,
        noise_priors,
        data[0] if shared else stack_folds([concatenate(own) for own in data], first._chains),
        len(models) * first._chains,
        first.temperature,
        per_copy=not shared,
    )


def stack_folds(folds: Sequence[Batch], chains: int) -> list[Batch]:
    """Data sets of any sizes as batches of tensors ``[F·chains, B, ...]``, each repeated for its chains.

    Args:
        folds: F data sets, rows along dim 0.
        chains: number of chains per data set.

    Returns:
        Batches over the rows. Smaller data sets are filled up with copies of their first row, whose weight is 0.
    """
    longest = max(len(fold.y) for fold in folds)

    def fill(tensor: Tensor) -> Tensor:
        return torch.cat([tensor, tensor[:1].expand(longest - len(tensor), *tensor.shape[1:])])

    def stack(*parts: Tensor) -> Tensor:
        return torch.stack([fill(part) for part in parts]).repeat_interleave(chains, 0)

    weight = None
    if any(fold.sample_weight is not None or len(fold.y) < longest for fold in folds):
        own = [fold.y.new_ones(len(fold.y)) if fold.sample_weight is None else fold.sample_weight for fold in folds]
        filled = [torch.cat([w, w.new_zeros(longest - len(w))]) for w in own]
        weight = torch.stack(filled).repeat_interleave(chains, 0)
    x = pytree.tree_map(stack, *[plain(fold.x) for fold in folds])
    whole = Batch(x, stack(*[fold.y for fold in folds]), weight)
    rows = _ROWS.get(whole.y.device.type, _ROWS_ELSEWHERE)
    return [
        whole.map(lambda t, i=i: t[:, i : i + rows].contiguous())  # type: ignore[misc]
        for i in range(0, longest, rows)
    ]
