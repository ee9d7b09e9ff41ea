"""A posterior that is a single point."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from credo.functional import Draw, Sampler
from credo.posteriors.base import Posterior
from credo.selection import owners


class PointMass(Posterior):
    """All mass on the network's own parameters.

    Args:
        net: the network.
        names: the parameters to cover.
    """

    def __init__(self, net: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self._owners = owners(net, names)

    def names(self) -> list[str]:
        """The covered parameters."""
        return list(self._owners)

    def mean(self) -> Draw:
        """The parameters, detached."""
        return {name: getattr(module, key).detach() for name, (module, key) in self._owners.items()}

    def sampler(self, seed: int) -> Sampler:
        """The same parameters, whatever the seed."""
        return lambda numbers: [self.mean() for _ in numbers]
