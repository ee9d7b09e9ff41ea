"""What adversarial models have in common: a generator, a discriminator, and samples."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Real
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import spectral_norm

from credo._arguments import check_integer, check_positive
from credo.errors import InputError, unknown_name
from credo.generative.base import GenerativeModel, call_network
from credo.generative.diversity import SampleDiversity
from credo.generative.observations import check_logits, output_range
from credo.seeding import seeded
from credo.training.adversarial import DISCRIMINATOR, GENERATOR, AdversarialTask
from credo.training.generative import GRID_SIZE, evaluation_mode

_ROWS_AT_ONCE = 1024
_FAR = 20.0


class Objective(NamedTuple):
    """What a player minimizes on a minibatch, and what else to keep of it in the history, by name."""

    loss: Tensor
    terms: Mapping[str, Tensor] = MappingProxyType({})


class AdversarialModel(GenerativeModel):
    """A generator G that turns noise z into data, and a discriminator D that tells its data from real ones.

    On every minibatch the discriminator moves; on every ``discriminator_steps``-th the generator moves too. Each has
    an optimizer of its own. ``history`` holds both losses and ``diversity``: the mean distance of a sample to its
    nearest other sample, over the same for data. It is near 1 where samples are as varied as data, and a warning is
    given where it stays below 0.2: the mark of a generator that outputs nearly the same thing again and again. Whole
    kinds of data can be missing while the rest is varied: see ``credo.generative.evaluation.mode_coverage`` for that.

    Samples are drawn in evaluation mode: by the running statistics of batch norm, a sample does not depend on those
    that are drawn with it. Where the generator ends in tanh or a sigmoid, or has an attribute ``output_range`` as those
    of ``credo.architectures`` do, data outside its range are refused.

    Args:
        generator: ``[B, latent]`` to data ``[B, ...]``.
        discriminator: data to one number a datum, ``[B]`` or ``[B, 1]``, a logit or a score.
        latent: the dimension of the noise z ~ N(0, I).
        discriminator_steps: k.
        generator_lr: the generator's learning rate; by default that of ``fit``.
        discriminator_lr: the discriminator's.
        betas: of Adam, for both players, whatever an ``optimizer`` given to ``fit`` says.
        spectral_normalization: divide every weight matrix of the discriminator by its largest singular value (Miyato
            et al. 2018).

    References:
        T. Miyato et al. Spectral normalization for generative adversarial networks. ICLR 2018. arXiv:1802.05957.
    """

    _parts = (GENERATOR, DISCRIMINATOR)
    generator: nn.Module
    discriminator: nn.Module
    _outputs: int = 1
    """The number of outputs of the discriminator per datum; the first is its logit or score."""
    steps: Tensor

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
        spectral_normalization: bool = False,
    ) -> None:
        for name, network in ((GENERATOR, generator), (DISCRIMINATOR, discriminator)):
            if not isinstance(network, nn.Module) or not any(p.requires_grad for p in network.parameters()):
                raise InputError(f"the {name} must be an nn.Module with weights to learn, got {network!r}")
        check_logits(DISCRIMINATOR, discriminator, "its output is taken for a logit, or for a score without bounds")
        super().__init__(generator=generator, discriminator=discriminator)
        self.latent = check_integer(latent, "latent", minimum=1)
        self.discriminator_steps = check_integer(discriminator_steps, "discriminator_steps", minimum=1)
        self._rates = {
            name: None if rate is None else check_positive(rate, f"{name}_lr")
            for name, rate in ((GENERATOR, generator_lr), (DISCRIMINATOR, discriminator_lr))
        }
        self.betas = _checked_betas(betas)
        self.spectral_normalization = spectral_normalization
        if spectral_normalization:
            _normalize(discriminator)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    @abstractmethod
    def _discriminator_objective(self, real: Tensor, fake: Tensor, z: Tensor) -> Objective:
        """What the discriminator minimizes, given data and samples G(z) that carry no gradient."""

    @abstractmethod
    def _generator_objective(self, fake: Tensor, z: Tensor) -> Objective:
        """What the generator minimizes, given its samples G(z)."""

    def forward(
        self, x: Tensor, y: Tensor | None = None, n_data: int | None = None, *, player: str = DISCRIMINATOR
    ) -> Tensor:
        """The loss of one player on data ``x [B, ...]``; the generator needs to know only how many there are."""
        if player not in self._parts:
            raise unknown_name("player", player, self._parts)
        z = self.noise(len(x))
        if player == DISCRIMINATOR:
            with torch.no_grad():
                fake = self.generator(z)
            objective = self._discriminator_objective(x, fake, z)
        else:
            with frozen(self.discriminator):
                objective = self._generator_objective(self.generator(z), z)
        terms = {player: objective.loss, **objective.terms}
        self._last_terms = {name: value.detach() for name, value in terms.items()}
        return objective.loss

    def loss(self, x: Tensor, player: str = DISCRIMINATOR) -> Tensor:
        """The same as ``model(x, player=...)``, by its name, for your own training loop."""
        return self.forward(x, player=player)

    def _judge(self, x: Tensor) -> Tensor:
        """The discriminator's numbers, ``[B]``, in float32 at least."""
        return self._scores(self.discriminator(x))

    def _scores(self, output: Tensor) -> Tensor:
        """The first number that the discriminator outputs for each datum, ``[B]``."""
        return full_precision(output if output.ndim == 1 else output[:, 0])

    def noise(self, n: int) -> Tensor:
        """What the generator takes, ``[n, latent]``: z ~ N(0, I), unless a model says otherwise."""
        return torch.randn(n, self.latent, dtype=self.dtype, device=self.device)

    def sample(self, n: int = 1, seed: int | None = None) -> Tensor:
        """``n`` data from the generator, ``[n, ...]``."""
        with seeded(seed, self.device):
            z = self.noise(check_integer(n, "n", minimum=1))
        return self.decode(z)

    @torch.no_grad()
    def decode(self, z: Any) -> Tensor:
        """G(z), ``[n, ...]``, for noise ``z [n, latent]``."""
        noise = self._check_codes(z)
        with evaluation_mode(self):
            return torch.cat([self.generator(part) for part in noise.split(_ROWS_AT_ONCE)])

    def _training_task(self) -> AdversarialTask[Any]:
        return AdversarialTask(self)

    def _example_images(self, x: Tensor) -> Tensor:
        """Samples, from the same random numbers every time."""
        return self.sample(GRID_SIZE, seed=0)

    def _monitor_diversity(self, x: Tensor) -> SampleDiversity:
        """A monitor for data ``x``, with a warning if their range makes the task hard for the generator."""
        self._warn_of_range(x)
        return SampleDiversity(x)

    def _check_values(self, x: Tensor) -> None:
        """Data must lie where the generator can put them."""
        found = output_range(self.generator)
        if found is None:
            return
        low, high = found
        slack = 1e-4 * (high - low)
        least, most = float(x.min()), float(x.max())
        if least < low - slack or most > high + slack:
            raise InputError(
                f"the generator outputs values from {low:g} to {high:g}, but the data go from {least:.4g} to "
                f"{most:.4g}: {_rescaling(least, most, low, high)}"
            )

    def _warn_of_range(self, x: Tensor) -> None:
        """Say where data lie in one half of what the generator can output, or far from what it starts with."""
        least, most = float(x.min()), float(x.max())
        found = output_range(self.generator)
        low, high = found or (-1.0, 1.0)
        if found is None:
            is_odd, where = max(-least, most) > _FAR, "far from what networks output at first"
        else:
            is_odd = least >= (low + high) / 2 or most <= (low + high) / 2
            where = f"in one half of the generator's range from {low:g} to {high:g}"
        if is_odd:
            advice = _rescaling(least, most, low, high)
            warnings.warn(f"the data go from {least:.4g} to {most:.4g}, {where}: {advice}", UserWarning, stacklevel=2)

    def _check_shapes(self, x: Tensor) -> None:
        """The generator must output data of the right shape, and the discriminator one number a datum."""
        fake = call_network(GENERATOR, self.generator, self.noise(len(x)))
        if not isinstance(fake, Tensor) or fake.shape != x.shape:
            shape = list(fake.shape[1:]) if isinstance(fake, Tensor) else type(fake).__name__
            raise InputError(f"the generator outputs {shape} a datum, but the data have shape {list(x.shape[1:])}")
        output = call_network(DISCRIMINATOR, self.discriminator, x)
        found = list(output.shape) if isinstance(output, Tensor) else type(output).__name__
        if found != [len(x), self._outputs] and (found != [len(x)] or self._outputs > 1):
            raise InputError(
                f"the discriminator must output {self._outputs} number{'s' * (self._outputs > 1)} a datum, "
                f"[{len(x)}, {self._outputs}], got {found}"
            )

    def _get_config(self) -> dict[str, object]:
        """The arguments that are not networks, but for the latent size."""
        return {
            "discriminator_steps": self.discriminator_steps,
            "generator_lr": self._rates[GENERATOR],
            "discriminator_lr": self._rates[DISCRIMINATOR],
            "betas": list(self.betas),
            "spectral_normalization": self.spectral_normalization,
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


def networks_for(
    shape: Sequence[int] | None,
    generator: nn.Module | None,
    discriminator: nn.Module | None,
    published: Callable[[Sequence[int]], tuple[nn.Module, nn.Module]],
) -> tuple[nn.Module, nn.Module]:
    """The two networks as they were given, or the published ones for data of that shape."""
    if shape is None and generator is not None and discriminator is not None:
        return generator, discriminator
    if shape is None or generator is not None or discriminator is not None:
        raise InputError("give either shape=(channels, height, width) or both a generator and a discriminator")
    return published(shape)


def full_precision(x: Tensor) -> Tensor:
    """``x``, in float32 where it came in half precision."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _rescaling(least: float, most: float, low: float, high: float) -> str:
    if least == most:
        return "rescale them"
    return f"rescale them, x = {low:g} + {high - low:g} * (x - {least:.4g}) / {most - least:.4g}"


def _checked_betas(betas: Sequence[float]) -> tuple[float, float]:
    is_pair = isinstance(betas, list | tuple) and len(betas) == 2 and all(isinstance(b, Real) for b in betas)
    if not is_pair or not all(0.0 <= b < 1.0 for b in betas):
        raise InputError(f"betas must be two numbers from 0 to below 1, such as (0.5, 0.999), got {betas!r}")
    return float(betas[0]), float(betas[1])


def _normalize(network: nn.Module) -> None:
    """Spectral normalization of every linear layer and convolution that does not have it yet."""
    layers = [m for m in network.modules() if isinstance(m, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d)]
    for layer in layers:
        if not parametrize.is_parametrized(layer):
            spectral_norm(layer)
