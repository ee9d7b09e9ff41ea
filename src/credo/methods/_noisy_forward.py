"""The forward pass of training under noise in the weights: by hooks where a layer has a rule, else by drawn weights."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from credo._notices import notify
from credo.functional import Forward, Replica
from credo.methods._noise_hooks import NoiseHooks, noisy_layers
from credo.methods._planning import plan_estimators
from credo.nests import count_rows
from credo.selection import tied_parameters

ESTIMATORS = ("auto", "weight", "local", "flipout")


class NoisyForward:
    """Calls a private replica of a network under Gaussian noise in its weights.

    Args:
        net: the network, whose parameters are the means.
        forward: ``callable(net, x)``, or ``None``.
        names: the parameters that have noise.
        draw: returns weights of given names for their scales σ.
        estimator: one of ``ESTIMATORS``. ``"auto"``: for Linear layers local reparameterization where it is exact, else
            Flipout; convolutions are weight-sampled.
        largest: with ``"auto"``, layers of more weights are weight-sampled too; ``None``: no limit.
        passes: the number of forward passes in a training step, of which batch norms learn as of one.

    Attributes:
        replica: the replica.
        hooks: the noise of its layers.
        weight_sampled: the parameters whose noise comes from drawn weights.
    """

    def __init__(
        self,
        net: nn.Module,
        forward: Forward | None,
        names: Sequence[str],
        draw: Callable[[Sequence[str], Mapping[str, Tensor]], dict[str, Tensor]],
        estimator: str,
        largest: int | None = None,
        passes: int = 1,
    ) -> None:
        layers = noisy_layers(net, names, tied_parameters(net)) if estimator != "weight" else {}
        if estimator == "auto":
            layers = {path: layer for path, layer in layers.items() if _is_small_linear(layer, largest)}
        self._net, self._forward, self._names = net, forward, list(names)
        self._draw, self._estimator = draw, estimator
        self.replica = Replica(net, forward, own_buffers=False, passes=passes)
        self.hooks = NoiseHooks(self.replica, list(layers), {n.rpartition(".")[0] for n in names}, estimator)
        self._is_planned = not layers
        self.weight_sampled = self._not_hooked()

    def plan(self, x: Any) -> None:
        """On the first batch, choose the estimator of each layer."""
        if self._is_planned:
            return
        probe = Replica(self._net, self._forward, own_buffers=True)
        self.hooks.set_plan(plan_estimators(probe, list(self.hooks.plan), self._estimator, x))
        self._is_planned, self.weight_sampled = True, self._not_hooked()
        if self._estimator == "local":
            approximate = [
                path or "the network itself"
                for path in self.hooks.plan
                if not isinstance(self._net.get_submodule(path), nn.Linear)
            ]
            if approximate:
                notify(
                    "estimator='local' treats positions of a convolution as independent, an approximation, in "
                    f"{', '.join(approximate)}; 'auto' and 'flipout' are exact there"
                )

    def __call__(
        self, x: Any, scale: Mapping[str, Tensor], squared: Container[str] = ()
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The output under one draw.

        Hooks reduce the variance of gradients; where none are wanted, drawing the weights is cheaper and also right for
        fused inference kernels that bypass hooks.

        Args:
            x: a batch.
            scale: σ by name, or σ²/2 of the names in ``squared``.
            squared: see ``scale``.

        Returns:
            The output, and the weights that were drawn for it.
        """
        use_hooks = torch.is_grad_enabled()
        names = self.weight_sampled if use_hooks else self._names
        weights = self._draw(names, scale)
        self.hooks.begin(count_rows(x), scale if use_hooks else {}, squared)
        try:
            output = self.replica(weights, x)
        finally:
            self.hooks.end()
        if not torch.compiler.is_compiling():
            self.replica.sync_to_network()
        return output, {name: weights[name] for name in names}

    def describe(self, name: str) -> str:
        """How the noise of parameter ``name`` enters."""
        how = self.hooks.plan[name.rpartition(".")[0]] if self.hooks.covers(name) else "weight"
        return "local on [B, D], else flipout" if how == "auto" else how

    def _not_hooked(self) -> list[str]:
        return [name for name in self._names if not self.hooks.covers(name)]


def _is_small_linear(layer: nn.Module, largest: int | None) -> bool:
    return isinstance(layer, nn.Linear) and (largest is None or layer.weight.numel() <= largest)
