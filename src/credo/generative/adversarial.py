"""What adversarial models have in common: two players, who moves when, and an eye on the variety of the samples."""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.data import DataLoader, Dataset

from credo import data as data_
from credo.errors import InputError
from credo.generative.base import GenerativeModel, evaluating
from credo.likelihoods.base import positive, whole
from credo.seeding import seeded

GENERATOR, DISCRIMINATOR = "generator", "discriminator"
COLLAPSED = 0.2
"""Samples lie this many times closer to each other than data do where a warning is given."""
_COMPARED = 256


class AdversarialModel(GenerativeModel):
    """A generator G that turns noise z into data, and a discriminator D that tells its data from real ones.

    On every minibatch the discriminator moves; on every ``discriminator_steps``-th the generator moves too. Each has
    an optimiser of its own. ``history`` holds both losses and ``diversity``: the mean distance of a sample to its
    nearest other sample, over the same for data. It is near 1 where samples are as varied as data, and a warning is
    given once it falls below 0.2: the mark of a generator that puts out the same few things.

    Args:
        generator: ``[B, latent]`` to data ``[B, ...]``.
        discriminator: data to one number a datum, ``[B]`` or ``[B, 1]``, a logit or a score.
        latent: the dimension of the noise z ~ N(0, I).
        discriminator_steps: k.
        generator_lr: the generator's learning rate; by default that of ``fit``.
        discriminator_lr: the discriminator's.
        betas: of Adam, for both players.
        spectral_normalisation: divide every weight of the discriminator by its largest singular value (Miyato et al.
            2018).
    """

    parts: tuple[str, ...] = (GENERATOR, DISCRIMINATOR)  # type: ignore[misc]
    generator: nn.Module
    discriminator: nn.Module

    def __init__(
        self,
        generator: nn.Module,
        discriminator: nn.Module,
        *,
        latent: int,
        discriminator_steps: int = 1,
        generator_lr: float | None = None,
        discriminator_lr: float | None = None,
        betas: Sequence[float] = (0.5, 0.999),
        spectral_normalisation: bool = False,
        **others: nn.Module,
    ) -> None:
        super().__init__(generator=generator, discriminator=discriminator, **others)
        self.latent = whole(latent, "latent", least=1)
        self.discriminator_steps = whole(discriminator_steps, "discriminator_steps", least=1)
        self.rates = {
            name: None if rate is None else positive(rate, f"{name}_lr")
            for name, rate in ((GENERATOR, generator_lr), (DISCRIMINATOR, discriminator_lr))
        }
        self.betas = (float(betas[0]), float(betas[1]))
        self.spectral_normalisation = spectral_normalisation
        if spectral_normalisation:
            _normalise(self.discriminator)
        self._reference: Tensor | None = None
        self._warned = False

    @abstractmethod
    def discriminator_loss(self, real: Tensor, fake: Tensor) -> Tensor:
        """What the discriminator minimises, given data and samples that carry no gradient."""

    @abstractmethod
    def generator_loss(self, count: int) -> Tensor:
        """What the generator minimises, with ``count`` fresh samples."""

    def forward(
        self, x: Tensor, y: Tensor | None = None, n_data: int | None = None, *, player: str = DISCRIMINATOR
    ) -> Tensor:
        """The loss of one player on data ``x [B, ...]``."""
        if player == DISCRIMINATOR:
            with torch.no_grad():
                fake = self.generator(self.noise(len(x)))
            loss = self.discriminator_loss(x, fake)
        else:
            with frozen(self.discriminator):
                loss = self.generator_loss(len(x))
        self.last_terms = {player: loss.detach()}
        return loss

    def judge(self, x: Tensor) -> Tensor:
        """The discriminator's numbers, ``[B]``."""
        scores: Tensor = self.discriminator(x)
        return scores.flatten() if scores.shape in ((len(x),), (len(x), 1)) else _refuse_scores(scores)

    def noise(self, n: int) -> Tensor:
        """z ~ N(0, I), ``[n, latent]``."""
        return torch.randn(n, self.latent, dtype=self.dtype, device=self.device)

    @torch.no_grad()
    def sample(self, n: int = 1, seed: int | None = None) -> Tensor:
        """``n`` data from the generator, ``[n, ...]``."""
        with seeded(seed, self.device):
            z = self.noise(whole(n, "n", least=1))
        return self.decode(z)

    @torch.no_grad()
    def decode(self, z: Tensor) -> Tensor:
        """G(z), ``[n, ...]``, in evaluation mode."""
        with evaluating(self):
            return torch.cat([self.generator(part) for part in z.to(self.device, self.dtype).split(1024)])

    def players(self, weight_decay: float) -> dict[str, list[dict[str, Any]]]:
        """The generator's and the discriminator's parameters."""
        return {
            DISCRIMINATOR: self.group(DISCRIMINATOR, [self.discriminator], weight_decay),
            GENERATOR: self.group(GENERATOR, [self.generator], weight_decay),
        }

    def group(self, player: str, networks: Sequence[nn.Module], weight_decay: float) -> list[dict[str, Any]]:
        """One parameter group, with the player's learning rate where it has one."""
        weights = {id(p): p for network in networks for p in network.parameters() if p.requires_grad}
        group: dict[str, Any] = {"params": list(weights.values()), "weight_decay": weight_decay, "betas": self.betas}
        rate = self.rates[player]
        return [group if rate is None else {**group, "lr": rate}]

    def turn(self, i: int) -> Sequence[str]:
        """The discriminator always; the generator on every k-th minibatch."""
        return (DISCRIMINATOR, GENERATOR) if i % self.discriminator_steps == 0 else (DISCRIMINATOR,)

    def loss_options(self, player: str, i: int, batches: int | None) -> dict[str, Any]:
        """Who moves."""
        return {"player": player}

    def check_data(self, batch: data_.Batch, dataset: Dataset[Any] | DataLoader[Any]) -> None:
        """As for every generative model; the first data are kept to compare samples with."""
        super().check_data(batch, dataset)
        rows = dataset.x if isinstance(dataset, data_.TensorRows) else batch.x
        self._reference = rows[:_COMPARED].to(self.device)
        self._warned = False

    def check_values(self, x: Tensor) -> None:
        """Data may have any values; a generator that ends in tanh needs −1 to 1, which is looked at when called."""

    def check_call(self, x: Tensor) -> None:
        """The generator must put out data of the right shape, and the discriminator one number a datum."""
        fake = self.generator(self.noise(len(x)))
        if fake.shape != x.shape:
            raise InputError(
                f"the generator puts out shape {list(fake.shape[1:])} a datum, but the data have {list(x.shape[1:])}"
            )
        self.judge(x)

    def entry(self, means: Mapping[str, float]) -> dict[str, float]:
        """Both losses, and the diversity of samples; a warning where it has gone."""
        diversity = self.diversity()
        if diversity < COLLAPSED and not self._warned:
            self._warned = True
            warnings.warn(
                f"the samples are {diversity:.2g} times as far from each other as data are: the generator may have "
                "collapsed to a few of them; try a lower learning rate, spectral_normalisation=True, or credo's WGAN",
                UserWarning,
                stacklevel=2,
            )
        return {**means, "diversity": diversity}

    @torch.no_grad()
    def diversity(self) -> float:
        """Nearest-neighbour distance among samples over that among data, from a few hundred of each."""
        if self._reference is None or len(self._reference) < 2:
            return 1.0
        return nearest_distance(self.sample(len(self._reference), seed=0)) / nearest_distance(self._reference)

    def headline(self, entry: Mapping[str, float]) -> str:
        """Both losses."""
        shown = "  ".join(f"{name} {entry[name]:.4g}" for name in (DISCRIMINATOR, GENERATOR) if name in entry)
        return f"{shown}  diversity {entry['diversity']:.2f}"

    def score(self, held_out: Dataset[Any] | DataLoader[Any], seed: int) -> dict[str, float]:
        """Adversarial training has no bound to hold out data for."""
        raise InputError(f"{type(self).__name__} has no likelihood to validate with: evaluate samples instead")

    def own_config(self) -> dict[str, object]:
        """The arguments that are not networks."""
        return {
            "latent": self.latent,
            "discriminator_steps": self.discriminator_steps,
            "generator_lr": self.rates[GENERATOR],
            "discriminator_lr": self.rates[DISCRIMINATOR],
            "betas": list(self.betas),
            "spectral_normalisation": self.spectral_normalisation,
        }


@contextmanager
def frozen(network: nn.Module) -> Iterator[None]:
    """No gradients for the weights of ``network`` inside the block: they would be computed for nothing."""
    moving = [p for p in network.parameters() if p.requires_grad]
    for parameter in moving:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in moving:
            parameter.requires_grad_(True)


def nearest_distance(x: Tensor) -> float:
    """The mean Euclidean distance of each row of ``x [N, ...]`` to its nearest other row."""
    flat = x.flatten(1).double()
    distances = torch.cdist(flat, flat)
    distances.fill_diagonal_(math.inf)
    return float(distances.amin(1).mean())


def _normalise(network: nn.Module) -> None:
    for module in network.modules():
        if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
            spectral_norm(module)


def _refuse_scores(scores: Tensor) -> Tensor:
    raise InputError(f"the discriminator must put out one number a datum, [B] or [B, 1], got {list(scores.shape)}")
