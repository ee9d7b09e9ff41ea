"""Looks at data through a model without training it: do they fit, and how well are they predicted?"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from credo import data as data_
from credo.errors import CredoError, InputError
from credo.nests import tensors
from credo.seeding import check_seed, derive, seeded

if TYPE_CHECKING:
    from credo.methods.network import NetworkMethod

_ROWS = 4096
_NOISE = 1  # index of the stream


def noise_seeded(seed: int | None, device: torch.device) -> AbstractContextManager[None]:
    """What a likelihood draws inside the block comes from a stream of ``seed``, apart from that of the weights."""
    return seeded(None if seed is None else derive(check_seed(seed), _NOISE), device)


@torch.no_grad()
def check_batch(model: NetworkMethod, batch: data_.Batch) -> Tensor:
    """The output of the mean weights for a batch, or a sentence that says how the batch does not fit."""
    try:
        output = model.predictor(0, None).outputs(batch.x)[0]
    except CredoError:
        raise
    except Exception as error:  # whatever the user's network raises when called
        shapes = [list(t.shape) for t in tensors(batch.x)]
        raise InputError(
            f"the network cannot be called on a minibatch of shape {', '.join(map(str, shapes))}: {error}"
        ) from error
    model.likelihood.check(output, batch.y)
    model.likelihood.log_prob(output, batch.y)
    return output


def check_data(model: NetworkMethod, batch: data_.Batch, dataset: Dataset[Any] | DataLoader[Any]) -> None:
    """Say misfits of shape, dtype and value before training: in a first batch, and in every target held in memory."""
    if not isinstance(dataset, data_.TensorRows):
        try:
            check_batch(model, batch)
        except InputError as error:
            raise InputError(f"the first minibatch does not fit: {error}") from error
        return
    output = check_batch(model, batch)
    rows = len(output)
    for start in range(0, len(dataset), rows):
        y = dataset.y[start : start + rows].to(output.device)
        model.likelihood.check(output[: len(y)], y)


@torch.no_grad()
def score(model: NetworkMethod, dataset: Any, samples: int, seed: int, n_data: int) -> dict[str, float]:
    """Mean log predictive density and ELBO per held-out datum.

    Args:
        model: in evaluation mode.
        dataset: held-out data, as :func:`credo.data.as_dataset` gives them; sample weights count as repetitions.
        samples: weight draws.
        seed: for the draws.
        n_data: the number of training data, which share the KL.
    """
    predictor = model.predictor(samples, seed)
    log_predictive, expected, rows = 0.0, 0.0, 0.0
    with noise_seeded(seed, model.device):
        for x, y, weight in data_.batches(dataset, _ROWS, model.device, model.dtype):
            by_draw = torch.stack([model.likelihood.log_prob(output, y) for output in predictor.outputs(x)]).double()
            weight = by_draw.new_ones(len(y)) if weight is None else weight.double()
            log_predictive += float(((by_draw.logsumexp(0) - math.log(len(by_draw))) * weight).sum())
            expected += float((by_draw.mean(0) * weight).sum())
            rows += float(weight.sum())
    if rows == 0:
        raise InputError("the validation data hold no rows that count; give at least one")
    return {
        "validation_log_likelihood": log_predictive / rows,
        "validation_elbo": expected / rows - float(model.kl()) / n_data,
    }
