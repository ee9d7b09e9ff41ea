r"""Dropout as a posterior over weights, with a learned drop rate for every weight tensor.

A rate p = sigmoid(λ) can be learned by gradients if the mask depends on it smoothly. The concrete distribution takes
the place of a Bernoulli variable: with u uniform on (0, 1) and the temperature t, a unit is kept by

    z = sigmoid((log u − log(1 − u) − λ)/t),

which tends to 1 with probability 1 − p and to 0 with probability p as t → 0.

References: Y. Gal, J. Hron, A. Kendall, "Concrete dropout", NeurIPS 2017. C. J. Maddison, A. Mnih, Y. W. Teh, "The
concrete distribution", ICLR 2017.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from credo._devices import at_least_float32
from credo.functional import Draw, Sampler
from credo.posteriors._wide_parameters import WideParameters
from credo.posteriors.base import Posterior
from credo.posteriors.dropout import InputUnits, WeightDropout


class ConcreteWeightDropout(Posterior):
    """Draws of weights whose input units are dropped at random, at learned rates.

    Draws for prediction have Bernoulli masks, those for training relaxed ones.

    Args:
        net: the network.
        units: for every covered weight, its input units.
        rates: for every covered weight, the drop rate p at the start, in (0, 1).
        relaxation: t, the temperature of the concrete distribution.
    """

    def __init__(
        self, net: nn.Module, units: Mapping[str, InputUnits], rates: Mapping[str, float], relaxation: float = 0.1
    ) -> None:
        super().__init__(net)
        self._initial = WeightDropout(net, units, rates)
        self.relaxation = relaxation
        self.logit = WideParameters()
        for name, weight in self._initial.mean().items():
            initial = math.log(rates[name]) - math.log1p(-rates[name])
            self.logit.add(name, weight.new_full((), initial, dtype=at_least_float32(weight.dtype)))

    @override
    def names(self) -> list[str]:
        return self._initial.names()

    @override
    def mean(self) -> Draw:
        return self._initial.mean()

    def bernoulli(self) -> WeightDropout:
        """The posterior of predictions, with the rates as they are now.

        Returns:
            Dropout with fixed rates.
        """
        rates = torch.stack([self.logit.get(name).detach() for name in self.names()]).sigmoid().tolist()
        return self._initial.with_rates(dict(zip(self.names(), rates, strict=True)))

    def keep(self) -> dict[str, Tensor]:
        """1 − p of every covered weight, differentiable.

        Returns:
            Name to scalar.
        """
        return {name: torch.sigmoid(-self.logit.get(name)) for name in self.names()}

    def entropy(self) -> Tensor:
        """Σ K·H(p), the entropy of all masks, with K input units before a weight and H(p) = softplus(λ) − p·λ.

        Returns:
            A scalar in nats, differentiable.
        """
        terms = []
        for name in self.names():
            logit = self.logit.get(name)
            terms.append(self._initial.input_count(name) * (F.softplus(logit) - logit.sigmoid() * logit))
        return torch.stack(terms).sum()

    @override
    def sampler(self, seed: int) -> Sampler:
        return self.bernoulli().sampler(seed)

    def mask(self, name: str, shape: Sequence[int], like: Tensor) -> Tensor:
        """A relaxed mask z/(1 − p), from torch's default generator.

        Args:
            name: the weight whose rate it has.
            shape: of the mask.
            like: a tensor of the device and dtype of the mask.

        Returns:
            The mask, differentiable with respect to λ.
        """
        logit = self.logit.get(name)
        uniform = torch.rand(shape, device=logit.device, dtype=logit.dtype)
        kept = torch.sigmoid((uniform.logit() - logit) / self.relaxation)
        return (kept / torch.sigmoid(-logit)).to(like.dtype)

    def rsample(self, names: Sequence[str]) -> dict[str, Tensor]:
        """One draw with relaxed masks, from torch's default generator.

        Args:
            names: the weights to draw.

        Returns:
            Name to tensor, differentiable.
        """
        initial = self._initial
        return {
            name: initial.masked(name, self.mask(name, [initial.input_count(name)], initial._weight(name)))
            for name in names
        }
