"""The states that a network carries through minibatches which continue each other, one for every draw."""

from __future__ import annotations

from typing import Any

from torch import nn

from credo.functional import Carrier


class CarriedStates:
    """How far every draw of the weights has read; before the first minibatch, as far as the network itself."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int], list[Any]] = {}

    def resume(self, net: nn.Module, s: int, part: int) -> None:
        """Let a copy of the network go on where draw ``s`` is.

        Args:
            net: the copy.
            s: the number of the draw.
            part: the number of the part, where a minibatch is split by rows.
        """
        states = self._kept.get((s, part))
        for k, carrier in enumerate(_carriers(net)):
            carrier.checks_rows = True
            if states is not None:
                carrier.set_carried(states[k])

    def keep(self, net: nn.Module, s: int, part: int) -> None:
        """Keep where draw ``s`` is now.

        Args:
            net: the copy, which is not called again.
            s: the number of the draw.
            part: as for :meth:`resume`.
        """
        if carriers := _carriers(net):
            self._kept[s, part] = [carrier.get_carried() for carrier in carriers]


def _carriers(net: nn.Module) -> list[Carrier]:
    return [module for module in net.modules() if isinstance(module, Carrier)]
