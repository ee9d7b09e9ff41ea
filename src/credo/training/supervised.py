"""The task of methods that learn p(y | x): a network, a likelihood, and a posterior over the weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from credo import data as data_
from credo.errors import CredoError, InputError
from credo.likelihoods import Likelihood
from credo.nests import describe_tensors
from credo.seeding import check_seed, derive, seeded
from credo.training.task import SINGLE, Task, TrainableModel

_ROWS = 4096
_VALIDATION_SAMPLES = 10
_LIKELIHOOD_NOISE = 1  # index of the random stream


class Terms(NamedTuple):
    """The two parts of a loss, each differentiable.

    Attributes:
        nll: negative log likelihood per row, in nats.
        kl: KL(q ‖ p) in nats over the whole data, or −log p(w) for a point estimate.
    """

    nll: Tensor
    kl: Tensor


class SupervisedModel(TrainableModel, Protocol):
    """What the task uses of a method with one network."""

    likelihood: Likelihood
    _likelihood_is_open: bool
    _last_terms: Terms | None

    def parameter_groups(self, weight_decay: float = 0.0) -> list[dict[str, Any]]:
        """Parameter groups for an optimizer."""

    def kl(self) -> Tensor:
        """KL(q ‖ p) in nats."""

    def _predictor(self, samples: int, seed: int | None) -> Any:
        """Predicts with fixed draws."""

    def _resolve_likelihood(self, y: Tensor) -> None:
        """Choose the likelihood from the targets, if none was given."""

    def _prepare(self, x: Any) -> None:
        """Do on a batch what must not happen inside a compiled step."""

    def _kl_weight(self, batch: tuple[int, int] | None) -> float | None:
        """The weight of the KL on minibatch i of M, or ``None`` if it is the same for all."""


S = TypeVar("S", bound=SupervisedModel)


class SupervisedTask(Task[S]):
    """Trains a method by its loss −(1/T)·mean log p(y | x, w) + c·KL/n_data."""

    def __init__(self, model: S) -> None:
        super().__init__(model)
        self._before = (model.likelihood, model._likelihood_is_open)

    def setup(self, batch: data_.Batch) -> None:
        """Choose the likelihood from the targets, if none was given."""
        self.model._resolve_likelihood(batch.y)

    def undo_setup(self) -> None:
        """Restore the likelihood and the number of data."""
        super().undo_setup()
        self.model.likelihood, self.model._likelihood_is_open = self._before

    def check_data(self, batch: data_.Batch, dataset: Dataset[Any] | DataLoader[Any]) -> None:
        """Raise ``InputError`` for a first batch, or targets held in memory, that do not match the model."""
        if not isinstance(dataset, data_.TensorRows):
            try:
                self._check_output(batch)
            except InputError as error:
                raise InputError(f"the first minibatch does not match the model: {error}") from error
            return
        output = self._check_output(batch)
        rows = len(output)
        for start in range(0, len(dataset), rows):
            y = dataset.y[start : start + rows].to(output.device)
            self.model.likelihood.check(output[: len(y)], y)

    def check_batch(self, batch: data_.Batch) -> None:
        """Raise ``InputError`` if a minibatch does not match the network or the likelihood."""
        self._check_output(batch)

    @torch.no_grad()
    def _check_output(self, batch: data_.Batch) -> Tensor:
        """The output of the mean weights, after a check that it matches the targets."""
        try:
            output: Tensor = self.model._predictor(0, None).outputs(batch.x)[0]
        except CredoError:
            raise
        except Exception as error:  # whatever the user's network raises when called
            raise InputError(
                f"the network cannot be called on a minibatch of {describe_tensors(batch.x)}: {error}"
            ) from error
        self.model.likelihood.check(output, batch.y)
        self.model.likelihood.log_prob(output, batch.y)
        return output

    def parameter_groups(self, weight_decay: float) -> dict[str, list[dict[str, Any]]]:
        """One optimizer for everything."""
        return {SINGLE: self.model.parameter_groups(weight_decay)}

    def before_step(self, x: Any) -> None:
        """What the method does on a batch outside compiled code."""
        self.model._prepare(x)

    def loss_arguments(self, optimizer: str, i: int, batches: int | None) -> dict[str, Any]:
        """The weight of the KL on minibatch ``i``, if it is not the same on all."""
        if self.model._kl_weight(None) is None:
            return {}
        if batches is None:
            raise InputError(
                "this kl_weighting needs the number of batches, but the loader has no length; "
                "pass tensors or a data set, or a loader with a length"
            )
        return {"kl_weight": torch.full((), self.model._kl_weight((i, batches)) or 0.0, device=self.model.device)}

    def step_metrics(self) -> Mapping[str, Tensor]:
        """NLL and KL of the last loss."""
        assert self.model._last_terms is not None
        return self.model._last_terms._asdict()

    @torch.no_grad()
    def finite_check(self, batch: data_.Batch) -> Tensor:
        """The loss of the mean weights."""
        output = self.model._predictor(0, None).outputs(batch.x)[0]
        return self.model.likelihood.log_prob(output, batch.y).sum() + self.model.kl()

    def epoch_metrics(self, means: Mapping[str, float]) -> dict[str, float]:
        """NLL per row, KL and ELBO in nats."""
        assert self.model.n_data is not None
        return {**means, "elbo": -self.model.n_data * means["nll"] - means["kl"]}

    def progress_text(self, metrics: Mapping[str, float]) -> str:
        """NLL, KL and ELBO, and the ELBO of held-out data."""
        shown = f"NLL {metrics['nll']:.4g}  KL {metrics['kl']:.4g}  ELBO {metrics['elbo']:.5g}"
        return f"{shown}  held-out ELBO {metrics['validation_elbo']:.4g}" if "validation_elbo" in metrics else shown

    @torch.no_grad()
    def validation_step(self, held_out: Dataset[Any] | DataLoader[Any], seed: int) -> dict[str, float]:
        """Mean log predictive density and ELBO per held-out row; sample weights count as repetitions."""
        model = self.model
        assert model.n_data is not None
        predictor = model._predictor(_VALIDATION_SAMPLES, seed)
        log_predictive, expected, rows = 0.0, 0.0, 0.0
        with likelihood_noise(seed, model.device):
            for x, y, weight in data_.batches(held_out, _ROWS, model.device, model.dtype):
                by_draw = torch.stack([model.likelihood.log_prob(out, y) for out in predictor.outputs(x)]).double()
                weight = by_draw.new_ones(len(y)) if weight is None else weight.double()
                log_predictive += float(((by_draw.logsumexp(0) - math.log(len(by_draw))) * weight).sum())
                expected += float((by_draw.mean(0) * weight).sum())
                rows += float(weight.sum())
        if rows == 0:
            raise InputError("the validation data have no rows with a positive weight")
        return {
            "validation_log_likelihood": log_predictive / rows,
            "validation_elbo": expected / rows - float(model.kl()) / model.n_data,
        }


def likelihood_noise(seed: int | None, device: torch.device) -> Any:
    """Inside the block, what a likelihood draws comes from a stream of ``seed`` other than that of the weights."""
    return seeded(None if seed is None else derive(check_seed(seed), _LIKELIHOOD_NOISE), device)
