"""One network that outputs the predictive distribution of another model, with both parts of its uncertainty."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from typing_extensions import override

from credo import data as data_
from credo.errors import InputError
from credo.functional import Caller, Forward
from credo.likelihoods.split import SplitLikelihood
from credo.methods.base import check_samples
from credo.methods.network import NetworkMethod, NetworkPredictor
from credo.posteriors.point import PointMass
from credo.selection import select
from credo.training.supervised import SupervisedTask, Terms


class Distilled(NetworkMethod):
    """A network that was distilled from a model by :func:`credo.distill`: one pass, no draws.

    ``fit`` minimizes the divergence of its likelihood from the teacher's predictions, which are the targets:
    ``model.fit((x, model.likelihood.targets(teacher.predict(x))))``.

    Args:
        net: outputs what its likelihood needs.
        likelihood: :class:`~credo.likelihoods.split.SplitMixture` for one real target,
            :class:`~credo.likelihoods.split.SplitGaussian` for several, or
            :class:`~credo.likelihoods.split.SplitCategorical` for classes.
        forward: ``callable(net, x)`` for networks with unusual inputs or outputs.

    Attributes:
        distillation: the teacher's method, the numbers of rows, and ``kl``, the mean KL(teacher ‖ student) in nats of
            held-out rows; empty before :func:`credo.distill` has measured it. It is saved in the card.

    Example:
        >>> student = credo.distill(model, x)
        >>> student.predict(x_new).epistemic, student.distillation["kl"]
    """

    posterior: PointMass

    def __init__(self, net: nn.Module, likelihood: SplitLikelihood, *, forward: Forward | None = None) -> None:
        if not isinstance(likelihood, SplitLikelihood):
            raise InputError(
                f"likelihood must be SplitMixture(), SplitGaussian() or SplitCategorical(), got {likelihood!r}: use "
                "credo.distill, which chooses it"
            )
        super().__init__(net, likelihood, forward)
        self.posterior = PointMass(net, select(net, "*"))
        self.distillation: dict[str, Any] = {}

    @override
    def terms(self, x: Any, y: Tensor, sample_weight: Tensor | None = None) -> Terms:
        assert isinstance(self.likelihood, SplitLikelihood)
        output = Caller(self.net, self._forward)(x)
        return Terms(self._weighted_nll(-self.likelihood.divergence(output, y), sample_weight), self.kl())

    @override
    def kl(self) -> Tensor:
        """0: the network is fitted without a prior.

        Returns:
            A scalar.
        """
        return torch.zeros((), device=self.device, dtype=self.dtype)

    def _predictor(self, samples: int | str, seed: int | None) -> NetworkPredictor:
        """The network's output is the distribution, whatever the number of draws."""
        check_samples(samples)
        return NetworkPredictor(self, 0, None)

    def _training_task(self) -> _DistillationTask:
        return _DistillationTask(self)

    def _describe_parameter(self, name: str) -> str:
        return "distilled"

    def _own_config(self) -> dict[str, object]:
        return {}

    def _describe_training(self) -> dict[str, object]:
        return {**super()._describe_training(), "distillation": self.distillation}

    def _restore_training(self, card: object) -> None:
        super()._restore_training(card)
        found = card.get("distillation") if isinstance(card, dict) else None
        self.distillation = found if isinstance(found, dict) else {}


class _DistillationTask(SupervisedTask[Distilled]):
    """Trains a network on the predictions of a teacher."""

    def check_data(self, batch: data_.Batch, dataset: Dataset[Any] | DataLoader[Any]) -> None:
        """Raise ``InputError`` if the first batch does not match the network."""
        self._check_output(batch)

    @torch.no_grad()
    def _check_output(self, batch: data_.Batch) -> Tensor:
        output = self.model._predictor(0, None).outputs(batch.x)[0]
        assert isinstance(self.model.likelihood, SplitLikelihood)
        needed = [len(batch.y), self.model.likelihood.n_outputs(batch.y)]
        if list(output.shape) != needed:
            raise InputError(f"the network outputs {list(output.shape)}, but {needed} are needed to distill")
        return output

    @torch.no_grad()
    def finite_check(self, batch: data_.Batch) -> Tensor:
        """The loss."""
        return self.model.terms(batch.x, batch.y).nll

    @torch.no_grad()
    def validation_step(self, held_out: Dataset[Any] | DataLoader[Any], seed: int) -> dict[str, float]:
        """The divergence of held-out rows, with its sign changed."""
        model, total, rows = self.model, 0.0, 0
        for x, y, _ in data_.batches(held_out, 4096, model.device, model.dtype):
            total -= float(model.terms(x, y).nll) * len(y)
            rows += len(y)
        mean = total / max(rows, 1)
        return {"validation_log_likelihood": mean, "validation_elbo": mean}
