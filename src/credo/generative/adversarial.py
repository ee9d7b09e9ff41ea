"""The base class of adversarial models: a generator, a discriminator, and the diversity of samples."""

from __future__ import annotations

import inspect
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import spectral_norm

from credo._arguments import check_bool, check_integer, check_number, check_option, check_positive
from credo.architectures.progressive import GrowingNetwork
from credo.errors import InputError
from credo.generative.base import GenerativeModel
from credo.generative.evaluation import nearest_distance
from credo.generative.networks import call_network, check_logits, output_range
from credo.seeding import seeded
from credo.training.adversarial import DISCRIMINATOR, GENERATOR, AdversarialTask
from credo.training.generative import GRID_SIZE, evaluation_mode

BATCH_SIZE = 1024
"""Rows per call of a network outside of training."""
COLLAPSED = 0.2
"""A warning is given if the diversity is below this ..."""
PATIENCE = 300
"""... for this many generator steps, since an untrained generator has not collapsed."""
_COMPARED_ROWS = 256
_LARGE_VALUE = 20.0


class Objective(NamedTuple):
    """The loss of a network on a minibatch, and further terms for the history, by name."""

    loss: Tensor
    terms: Mapping[str, Tensor] = MappingProxyType({})


class AdversarialModel(GenerativeModel):
    """A generator G that maps noise z to data, and a discriminator D that distinguishes its samples from data.

    The discriminator is trained on every minibatch, the generator on every ``discriminator_steps``-th. Each has its own
    optimizer. ``history`` contains both losses and ``diversity``: the mean distance of a sample to its nearest other
    sample, divided by the same for data. It is near 1 if samples are as diverse as data. A warning is given if it stays
    below 0.2, when the generator outputs nearly the same sample again and again. Whole modes of the data can be missing
    at a diversity near 1: see ``credo.generative.evaluation.mode_coverage``.

    Samples are drawn in evaluation mode: with the running statistics of batch norm, a sample does not depend on the
    others in its batch. If the generator ends in tanh or a sigmoid, or has an attribute ``output_range`` as those of
    ``credo.architectures`` do, data outside of its range raise ``InputError``.

    Args:
        generator: a network from noise ``[B, latent]`` to data ``[B, ...]``.
        discriminator: a network from data to one number per datum, ``[B]`` or ``[B, 1]``, a logit or a score.
        latent: the dimension of the noise z ~ N(0, I).
        discriminator_steps: k, the number of discriminator steps per generator step.
        generator_lr: learning rate of the generator; ``None``: that of ``fit``.
        discriminator_lr: learning rate of the discriminator; ``None``: that of ``fit``.
        betas: of Adam, for both optimizers; they override those of an ``optimizer`` given to ``fit``.
        spectral_normalization: whether to divide each weight matrix of the discriminator by its largest singular value
            (Miyato et al. 2018).

    Attributes:
        latent: the dimension of the noise.
        generator: the generator.
        discriminator: the discriminator.

    References:
        T. Miyato et al. Spectral normalization for generative adversarial networks. ICLR 2018. arXiv:1802.05957.
    """

    _network_names = (GENERATOR, DISCRIMINATOR)
    generator: nn.Module
    discriminator: nn.Module
    _outputs: int = 1
    """The number of outputs of the discriminator per datum; the first is its logit or score."""
    _steps: Tensor
    """The number of discriminator steps taken."""

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
        check_logits(DISCRIMINATOR, discriminator, "its output is used as a logit or an unbounded score")
        super().__init__(generator=generator, discriminator=discriminator)
        self.latent = check_integer(latent, "latent", minimum=1)
        self._discriminator_steps = check_integer(discriminator_steps, "discriminator_steps", minimum=1)
        self._rates = {
            name: None if rate is None else check_positive(rate, f"{name}_lr")
            for name, rate in ((GENERATOR, generator_lr), (DISCRIMINATOR, discriminator_lr))
        }
        self._betas = _check_betas(betas)
        self._spectral_normalization = check_bool(spectral_normalization, "spectral_normalization")
        if spectral_normalization:
            _add_spectral_norm(discriminator)
        self.register_buffer("_steps", torch.zeros((), dtype=torch.int64))

    @abstractmethod
    def _discriminator_objective(self, real: Tensor, fake: Tensor, z: Tensor) -> Objective:
        """The loss of the discriminator, given data and samples G(z) without gradient."""

    @abstractmethod
    def _generator_objective(self, fake: Tensor, z: Tensor) -> Objective:
        """The loss of the generator, given its samples G(z)."""

    def forward(
        self, x: Tensor, y: Tensor | None = None, n_data: int | None = None, *, network: str = DISCRIMINATOR
    ) -> Tensor:
        """The loss of one of the two networks, differentiable.

        Args:
            x: data ``[B, ...]``; the generator uses only their number.
            y: not used.
            n_data: not used.
            network: ``"discriminator"`` or ``"generator"``.

        Returns:
            The loss, a scalar.
        """
        check_option(network, "network", self._network_names)
        z = self.noise(len(x))
        if network == DISCRIMINATOR:
            real = self.generator.reduce(x) if isinstance(self.generator, GrowingNetwork) else x
            with torch.no_grad():
                fake = self.generator(z)
            objective = self._discriminator_objective(real, fake, z)
        else:
            with frozen(self.discriminator):
                objective = self._generator_objective(self.generator(z), z)
        terms = {network: objective.loss, **objective.terms}
        self._last_terms = {name: value.detach() for name, value in terms.items()}
        return objective.loss

    def loss(self, x: Tensor, network: str = DISCRIMINATOR) -> Tensor:
        """The loss of one of the two networks, for a training loop of your own; the same as ``model(x, network=...)``.

        Args:
            x: data ``[B, ...]``; the generator uses only their number.
            network: ``"discriminator"`` or ``"generator"``.

        Returns:
            The loss, a differentiable scalar.

        Raises:
            InputError: ``network`` is neither of the two.
        """
        return self.forward(x, network=network)

    def noise(self, n: int) -> Tensor:
        """Draw inputs of the generator, z ~ N(0, I).

        Args:
            n: number of draws.

        Returns:
            z, ``[n, latent]``.
        """
        return torch.randn(n, self.latent, dtype=self.dtype, device=self.device)

    def sample(self, n: int = 1, seed: int | None = None, **options: Any) -> Tensor:
        """Samples from the generator.

        Args:
            n: number of samples.
            seed: makes the draws reproducible; ``None``: torch's random state is used.
            **options: further arguments of the generator, such as ``truncation=0.7`` of a style-based one.

        Returns:
            Samples ``[n, ...]``.
        """
        with seeded(seed, self.device):
            z = self.noise(check_integer(n, "n", minimum=1))
        return self.decode(z, **options)

    @torch.no_grad()
    def decode(self, z: Any, **options: Any) -> Tensor:
        """The output of the generator.

        Args:
            z: noise ``[n, latent]``.
            **options: further arguments of the generator.

        Returns:
            G(z), ``[n, ...]``.

        Raises:
            InputError: if the noise has another shape, or the generator does not take an option.
        """
        noise = self._check_codes(z)
        known = inspect.signature(self.generator.forward).parameters
        unknown = ", ".join(options.keys() - known.keys())
        if unknown and not any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()):
            raise InputError(f"{type(self.generator).__name__} has no option {unknown}, only {', '.join(known)}")
        with evaluation_mode(self):
            return torch.cat([self.generator(part, **options) for part in noise.split(BATCH_SIZE)])

    def _discriminate(self, x: Tensor) -> Tensor:
        """The logits or scores of data, ``[B]``, in float32 at least."""
        return self._scores(self.discriminator(x))

    def _scores(self, output: Tensor) -> Tensor:
        """The first output of the discriminator per datum, ``[B]``."""
        return full_precision(output if output.ndim == 1 else output[:, 0])

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # compiled code has no second derivative
    def _score_gradients(self, x: Tensor) -> Tensor:
        """∇D(x), flattened, ``[B, numbers per datum]``, differentiable; D should treat every datum by itself."""
        inputs = x.detach().requires_grad_()
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(self._discriminate(inputs).sum(), inputs, create_graph=True)
        return gradient.flatten(1)

    def _training_task(self) -> AdversarialTask[Any]:
        return AdversarialTask(self)

    def _example_images(self, x: Tensor) -> Tensor:
        """Samples, from the same random numbers every time."""
        return self.sample(GRID_SIZE, seed=0)

    def _monitor_diversity(self, x: Tensor) -> SampleDiversity:
        """A monitor for data ``x``; warns if their range is hard to learn."""
        self._warn_about_range(x)
        return SampleDiversity(x, self.generator.reduce if isinstance(self.generator, GrowingNetwork) else None)

    def _check_values(self, x: Tensor) -> None:
        """Data must be in the range of the generator."""
        found = output_range(self.generator)
        if found is None:
            return
        low, high = found
        tolerance = 1e-4 * (high - low)
        least, most = float(x.min()), float(x.max())
        if least < low - tolerance or most > high + tolerance:
            raise InputError(
                f"the generator outputs values from {low:g} to {high:g}, but the data go from {least:.4g} to "
                f"{most:.4g}: {_rescaling_hint(least, most, low, high)}"
            )

    def _warn_about_range(self, x: Tensor) -> None:
        """Warn if data are in one half of the generator's range, or far from its initial outputs."""
        least, most = float(x.min()), float(x.max())
        found = output_range(self.generator)
        low, high = found or (-1.0, 1.0)
        if found is None:
            is_unusual, where = max(-least, most) > _LARGE_VALUE, "far from the outputs of an untrained network"
        else:
            is_unusual = least >= (low + high) / 2 or most <= (low + high) / 2
            where = f"in one half of the generator's range from {low:g} to {high:g}"
        if is_unusual:
            hint = _rescaling_hint(least, most, low, high)
            warnings.warn(f"the data go from {least:.4g} to {most:.4g}, {where}: {hint}", UserWarning, stacklevel=2)

    def _check_shapes(self, x: Tensor) -> None:
        fake = call_network(GENERATOR, self.generator, self.noise(len(x)))
        if not isinstance(fake, Tensor) or fake.shape != x.shape:
            shape = list(fake.shape[1:]) if isinstance(fake, Tensor) else type(fake).__name__
            raise InputError(f"the generator outputs {shape} per datum, but the data have shape {list(x.shape[1:])}")
        output = call_network(DISCRIMINATOR, self.discriminator, x)
        found = list(output.shape) if isinstance(output, Tensor) else type(output).__name__
        if found != [len(x), self._outputs] and (found != [len(x)] or self._outputs > 1):
            raise InputError(
                f"the discriminator must output {self._outputs} number{'s' * (self._outputs > 1)} per datum, "
                f"[{len(x)}, {self._outputs}], got {found}"
            )

    def _get_config(self) -> dict[str, object]:
        """The arguments that are not networks, without the latent size."""
        return {
            "discriminator_steps": self._discriminator_steps,
            "generator_lr": self._rates[GENERATOR],
            "discriminator_lr": self._rates[DISCRIMINATOR],
            "betas": list(self._betas),
            "spectral_normalization": self._spectral_normalization,
        }


class SampleDiversity:
    """Compares the distances among samples with those among data during training.

    Args:
        data: ``[N, ...]``, of which a few hundred evenly spaced rows are used.
        reduce: gives data the resolution that samples have at the moment; ``None``: they have that of the data.

    Attributes:
        count: the number of rows used, and of samples to compare them with.
    """

    def __init__(self, data: Tensor, reduce: Callable[[Tensor], Tensor] | None = None) -> None:
        rows = torch.linspace(0, len(data) - 1, min(len(data), _COMPARED_ROWS)).long()
        self.count = len(rows)
        self._data, self._reduce = data[rows.to(data.device)], reduce
        self._distance = nearest_distance(self._data) if self.count > 1 else 0.0
        self._last_diverse_step: int | None = None
        self._warned = False

    def diversity(self, samples: Tensor) -> float:
        """Nearest-neighbor distance among samples divided by that among data; 1 if all data are equal."""
        if self._distance and self._reduce is not None:
            return nearest_distance(samples) / nearest_distance(self._reduce(self._data.to(samples.device)))
        return nearest_distance(samples) / self._distance if self._distance else 1.0

    def warn_if_collapsed(self, diversity: float, step: int) -> None:
        """Warn, once, if the diversity has been low for many generator steps; ``step`` have been taken."""
        if diversity >= COLLAPSED or self._last_diverse_step is None:
            self._last_diverse_step = step
        if not self._warned and step - self._last_diverse_step >= PATIENCE:
            self._warned = True
            warnings.warn(
                f"distances among samples are {diversity:.2g} times those among data: the generator may have "
                "collapsed to a few samples; try a lower learning rate, spectral_normalization=True, or WGAN",
                UserWarning,
                stacklevel=2,
            )


@contextmanager
def frozen(network: nn.Module) -> Iterator[None]:
    """Inside the block no gradients are computed for the weights of ``network``."""
    trainable = [p for p in network.parameters() if p.requires_grad]
    for parameter in trainable:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trainable:
            parameter.requires_grad_(True)


def generator_and_discriminator(
    shape: Sequence[int] | None,
    generator: nn.Module | None,
    discriminator: nn.Module | None,
    build: Callable[[Sequence[int]], tuple[nn.Module, nn.Module]],
) -> tuple[nn.Module, nn.Module]:
    """The two networks as they were given, or the published ones for data of a ``shape``."""
    if shape is None and generator is not None and discriminator is not None:
        return generator, discriminator
    if shape is None or generator is not None or discriminator is not None:
        raise InputError("give either shape=(channels, height, width) or both a generator and a discriminator")
    return build(shape)


def full_precision(x: Tensor) -> Tensor:
    """``x``, converted to float32 if it is in half precision."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _rescaling_hint(least: float, most: float, low: float, high: float) -> str:
    if least == most:
        return "rescale them"
    return f"rescale them, x = {low:g} + {high - low:g} * (x - {least:.4g}) / {most - least:.4g}"


def _check_betas(betas: Sequence[float]) -> tuple[float, float]:
    if not isinstance(betas, list | tuple) or len(betas) != 2:
        raise InputError(f"betas must be two numbers, such as (0.5, 0.999), got {betas!r}")
    first, second = (check_number(beta, f"betas[{i}]") for i, beta in enumerate(betas))
    if not (0.0 <= first < 1.0 and 0.0 <= second < 1.0):
        raise InputError(f"betas must be two numbers of at least 0 and below 1, got {betas!r}")
    return first, second


def _add_spectral_norm(network: nn.Module) -> None:
    """Normalize each linear layer and convolution that is not parametrized yet."""
    layers = [m for m in network.modules() if isinstance(m, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d)]
    for layer in layers:
        if not parametrize.is_parametrized(layer):
            spectral_norm(layer)
