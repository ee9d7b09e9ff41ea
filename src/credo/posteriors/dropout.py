r"""Dropout as a posterior over weights, W = diag(z)·M + σ·ε with z ~ Bernoulli(1 − p), and DropConnect, W = z ⊙ M.

In torch's convention kept activations are rescaled by 1/(1 − p), so the parameter the network stores is
W̄ = (1 − p)·M, the mean of the posterior, and a draw is W̄·diag(z)/(1 − p), one z per input unit or channel. With
DropConnect every single weight has a z of its own.

Reference: Y. Gal, Z. Ghahramani, "Dropout as a Bayesian approximation", ICML 2016; for recurrent networks "A
theoretically grounded application of dropout in recurrent neural networks", NeurIPS 2016. L. Wan, M. Zeiler, S. Zhang,
Y. LeCun, R. Fergus, "Regularization of neural networks using DropConnect", ICML 2013.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

from credo._devices import at_least_float32
from credo.functional import Draw, Sampler
from credo.posteriors.base import Posterior
from credo.seeding import generator
from credo.selection import parameter_owners

_OTHER_LAYERS = {"transformers.pytorch_utils.Conv1D": 0, "torch_geometric.nn.dense.linear.Linear": 1}
"""Linear layers of other libraries, and the dimension of their weight that counts inputs."""


class InputUnits(NamedTuple):
    """How a weight tensor meets its layer's input.

    Attributes:
        dim: the dimension that counts input units or channels.
        groups: convolution groups; dimension ``dim`` counts the inputs of one group only.
        is_all: whether there is a single one, so that dropping it would erase the input: a gray image, say.
    """

    dim: int
    groups: int = 1
    is_all: bool = False


def weight_layers(net: nn.Module) -> dict[str, InputUnits]:
    """The weights of ``net`` that dropout can stand before, by parameter name."""
    found: dict[str, InputUnits] = {}
    known = {id(p): name for name, p in net.named_parameters()}

    def add(parameter: object, dim: int, groups: int = 1) -> None:
        if isinstance(parameter, nn.Parameter) and parameter.requires_grad and id(parameter) in known:
            is_all = parameter.shape[dim] * groups == 1
            found.setdefault(known[id(parameter)], InputUnits(dim, groups, is_all))

    for module in net.modules():
        other = next((_OTHER_LAYERS[name] for name in _qualified_names(module) if name in _OTHER_LAYERS), None)
        if isinstance(module, nn.Linear):
            add(module.weight, 1)
        elif isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
            add(module.weight, 1, module.groups)
        elif isinstance(module, nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d | nn.Embedding):
            add(module.weight, 0)
        elif isinstance(module, nn.RNNBase | nn.RNNCellBase | nn.MultiheadAttention):
            for name, parameter in module.named_parameters(recurse=False):
                if "weight" in name:
                    add(parameter, 1)
        elif other is not None:
            add(module.weight, other)
    return found


def _qualified_names(module: nn.Module) -> list[str]:
    return [f"{kind.__module__}.{kind.__qualname__}" for kind in type(module).__mro__]


class WeightDropout(Posterior):
    """Draws of weights whose input units, or which themselves, are dropped at random.

    Args:
        net: the network.
        units: for every covered weight, its input units.
        rates: for every covered weight, the drop rate p.
        noise: σ, a standard deviation in units of the stored weights.
        connections: whether single weights are dropped, not input units.
    """

    def __init__(
        self,
        net: nn.Module,
        units: Mapping[str, InputUnits],
        rates: Mapping[str, float],
        noise: float = 0.0,
        connections: bool = False,
    ) -> None:
        super().__init__(net)
        self._owners = parameter_owners(net, list(units))
        self.units, self.rates, self.noise, self.connections = dict(units), dict(rates), noise, connections

    def names(self) -> list[str]:
        """The covered weights."""
        return list(self._owners)

    def mean(self) -> Draw:
        """The stored weights, detached."""
        return {name: self._weight(name).detach() for name in self._owners}

    def sampler(self, seed: int) -> Sampler:
        """Draws W̄·diag(z)/(1 − p) + σ·ε, or W̄ ⊙ z/(1 − p) + σ·ε, with z and ε from the stream (seed, s)."""

        @torch.no_grad()
        def draw(s: int) -> Draw:
            devices = dict.fromkeys(self._weight(name).device for name in self._owners)
            sources = {device: generator(device, seed, s) for device in devices}
            return {name: self._sample(name, sources[self._weight(name).device]) for name in self._owners}

        return lambda numbers: [draw(s) for s in numbers]

    def rsample(self, names: Sequence[str]) -> dict[str, Tensor]:
        """One differentiable draw of ``names``, from torch's default generator."""
        return {name: self._sample(name, None) for name in names}

    def mask(self, name: str, shape: Sequence[int], like: Tensor, source: torch.Generator | None = None) -> Tensor:
        """z/(1 − p) of the weight ``name``, of any shape, in the precision of ``like``."""
        rate = self.rates[name]
        uniform = torch.rand(shape, device=like.device, dtype=at_least_float32(like.dtype), generator=source)
        return (uniform >= rate).to(like.dtype) / (1.0 - rate)

    def with_rates(self, rates: Mapping[str, float]) -> Self:
        """The same weights with other drop rates."""
        other = copy(self)
        other.rates = dict(rates)
        return other

    def input_count(self, name: str) -> int:
        """The number of input units or channels that are dropped before the weight ``name``."""
        dim, groups, _ = self.units[name]
        return self._weight(name).shape[dim] * (groups if dim == 1 else 1)

    def masked(self, name: str, mask: Tensor) -> Tensor:
        """The weight ``name`` with its input units multiplied by ``mask``, ``[input_count]``."""
        weight = self._weight(name)
        dim, groups, _ = self.units[name]
        shape = [1] * weight.dim()
        shape[dim] = weight.shape[dim]
        if groups > 1 and dim == 1:
            per_group = weight.shape[0] // groups
            return weight * mask.view(groups, *shape[1:]).repeat_interleave(per_group, dim=0)
        return weight * mask.view(shape)

    def _sample(self, name: str, source: torch.Generator | None) -> Tensor:
        weight = self._weight(name)
        if self.connections:
            drawn = weight * self.mask(name, weight.shape, weight, source)
        else:
            drawn = self.masked(name, self.mask(name, [self.input_count(name)], weight, source))
        if self.noise > 0:
            epsilon = torch.empty_like(weight, requires_grad=False).normal_(generator=source)
            drawn = drawn + self.noise * epsilon
        return drawn

    def _weight(self, name: str) -> Tensor:
        module, attribute = self._owners[name]
        weight = getattr(module, attribute)
        assert isinstance(weight, Tensor)
        return weight
