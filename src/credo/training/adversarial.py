"""The task of a generator and a discriminator, each with an optimizer of its own."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from credo import data as data_
from credo.architectures.progressive import GrowingNetwork
from credo.errors import InputError
from credo.training.generative import GenerativeTask, UnsupervisedModel
from credo.training.options import FitKeywords

GENERATOR, DISCRIMINATOR = "generator", "discriminator"


class DiversityMonitor(Protocol):
    """Compares the distances among samples with those among data."""

    count: int

    def diversity(self, samples: Tensor) -> float:
        """The distance among samples relative to that among data."""

    def warn_if_collapsed(self, diversity: float, step: int) -> None:
        """Warn if the diversity has been low for many steps of the generator."""


class AdversarialNetworks(UnsupervisedModel, Protocol):
    """What the task uses of an adversarial model."""

    generator: nn.Module
    discriminator: nn.Module
    _discriminator_steps: int
    _betas: tuple[float, float]
    _steps: Tensor
    _rates: dict[str, float | None]

    def sample(self, n: int = 1, seed: int | None = None) -> Tensor:
        """``n`` samples."""

    def _monitor_diversity(self, x: Tensor) -> DiversityMonitor:
        """A monitor for data ``x``, and a warning if their range is hard to learn."""


A = TypeVar("A", bound=AdversarialNetworks)


class AdversarialTask(GenerativeTask[A]):
    """Trains the discriminator on every minibatch and the generator on every k-th; networks that can grow do."""

    monitors = MappingProxyType({})
    _steps_in_run = 0
    _grown = 0.0
    """The share of their growth that the networks had before the run."""
    _steps_before_epoch = 0
    _diversity: DiversityMonitor | None = None

    def check_keywords(self, keywords: FitKeywords) -> None:
        """Raise ``InputError`` for validation data, and for a learning rate that the model's own would override."""
        name = type(self.model).__name__
        for option in ("validation", "patience", "monitor"):
            if keywords.get(option) is not None:
                raise InputError(
                    f"{name} has no likelihood of held-out data to validate with: leave {option} out, "
                    "and see credo.generative.evaluation for measures of samples"
                )
        if keywords.get("accumulate", 1) != 1:
            raise InputError(f"{name} compares whole minibatches of data and samples: leave accumulate out")
        lr = keywords.get("lr")
        if lr is None:
            return
        named = [key for key in (GENERATOR, DISCRIMINATOR) if not isinstance(lr, Mapping) or key in lr]
        fixed = [key for key in named if self.model._rates[key] is not None]
        if fixed and (isinstance(lr, Mapping) or fixed == named):
            raise InputError(
                f"lr would change nothing for the {' and the '.join(fixed)}, whose rate was given before: change "
                f"{' and '.join(f'{key}_lr' for key in fixed)} of {name} instead"
            )

    def check_data(self, batch: data_.Batch, dataset: Dataset[Any] | DataLoader[Any]) -> None:
        """Check as for every generative model, and keep some data to compare samples with."""
        if batch.sample_weight is not None:
            raise InputError(f"{type(self.model).__name__} does not weight rows: leave sample_weight out")
        super().check_data(batch, dataset)
        self._diversity = self.model._monitor_diversity(dataset.x if isinstance(dataset, data_.TensorRows) else batch.x)

    def on_train_start(self, steps: int | None) -> None:
        """Begin to grow, or go on from an earlier run."""
        if not self._growing:
            return
        if steps is None:
            raise InputError(
                "networks that grow during training need the number of steps: pass data, or a loader, with a length"
            )
        self._steps_in_run, self._grown = steps, max(network.fraction for network in self._growing)
        self._grow(0)

    def on_batch_end(self, step: int) -> None:
        """Grow for the next minibatch."""
        if self._growing:
            self._grow(step)

    def capture_key(self) -> Hashable:
        """The phases of networks that grow."""
        return tuple(network.phase for network in self._growing)

    @property
    def _growing(self) -> list[GrowingNetwork]:
        networks = (self.model.generator, self.model.discriminator)
        return [network for network in networks if isinstance(network, GrowingNetwork)]

    def _grow(self, step: int) -> None:
        for network in self._growing:
            network.grow(min(max(self._grown, step / self._steps_in_run), 1.0))

    def parameter_groups(self, weight_decay: float) -> dict[str, list[dict[str, Any]]]:
        """Those of the discriminator and of the generator, with their own learning rates if they have them."""
        groups = {}
        for name in (DISCRIMINATOR, GENERATOR):
            weights = [p for p in getattr(self.model, name).parameters() if p.requires_grad]
            rate = self.model._rates[name]
            group = {"params": weights, "weight_decay": weight_decay, "betas": self.model._betas}
            groups[name] = [group if rate is None else {**group, "lr": rate}]
        return groups

    def active_optimizers(self, i: int) -> Sequence[str]:
        """The discriminator's always, the generator's on every k-th minibatch, counted over all epochs."""
        if i == 1:  # once per epoch: reading it waits for the GPU
            self._steps_before_epoch = int(self.model._steps)
        both = (self._steps_before_epoch + i) % self.model._discriminator_steps == 0
        return (DISCRIMINATOR, GENERATOR) if both else (DISCRIMINATOR,)

    def loss_arguments(self, optimizer: str, i: int, batches: int | None) -> dict[str, Any]:
        """The network whose loss it is."""
        return {"network": optimizer}

    def on_step_end(self, optimizer: str) -> None:
        """Count the discriminator's steps."""
        if optimizer == DISCRIMINATOR:
            self.model._steps += 1

    def epoch_metrics(self, means: Mapping[str, float]) -> dict[str, float]:
        """Both losses and the diversity of samples, with a warning if it has been low for long."""
        assert self._diversity is not None
        diversity = self._diversity.diversity(self.model.sample(self._diversity.count, seed=0))
        self._diversity.warn_if_collapsed(diversity, int(self.model._steps) // self.model._discriminator_steps)
        return {**means, "diversity": diversity}

    def progress_text(self, metrics: Mapping[str, float]) -> str:
        """Both losses, if both were trained, and the diversity."""
        shown = [f"{name} {metrics[name]:.4g}" for name in (DISCRIMINATOR, GENERATOR) if name in metrics]
        return "  ".join([*shown, f"diversity {metrics['diversity']:.2f}"])

    def validation_step(self, held_out: Dataset[Any] | DataLoader[Any], seed: int) -> dict[str, float]:
        """Not called: there are no validation data."""
        raise InputError(f"{type(self.model).__name__} has no likelihood of held-out data")
