"""A posterior that is a single point."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from typing_extensions import override

from credo.functional import Draw, Sampler
from credo.posteriors.base import Posterior
from credo.selection import parameter_owners


class PointMass(Posterior):
    """All mass on the network's own parameters.

    Args:
        net: the network.
        names: the parameters to cover.
    """

    def __init__(self, net: nn.Module, names: Sequence[str]) -> None:
        super().__init__(net)
        self._owners = parameter_owners(net, names)

    @override
    def names(self) -> list[str]:
        return list(self._owners)

    @override
    def mean(self) -> Draw:
        return {name: getattr(module, key).detach() for name, (module, key) in self._owners.items()}

    @override
    def sampler(self, seed: int) -> Sampler:
        return lambda numbers: [self.mean() for _ in numbers]
