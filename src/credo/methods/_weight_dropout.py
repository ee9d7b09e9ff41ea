"""Dropout before the weight layers of any network: the layers, masks for every row in training, the prior's penalty."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from credo._arguments import check_number
from credo._devices import at_least_float32
from credo._embeddings import padding_rows, without_padding
from credo._notices import notify
from credo.errors import InputError, UnsupportedError
from credo.functional import Forward, Replica
from credo.methods._noise_hooks import channel_dim, noisy_layers
from credo.methods._planning import plan_estimators
from credo.nests import count_rows
from credo.posteriors.concrete_dropout import ConcreteWeightDropout
from credo.posteriors.dropout import InputUnits, WeightDropout, weight_layers
from credo.selection import match_one, match_parameters, tied_parameters


def find_places(
    net: nn.Module, p: float | Mapping[str, float], connections: bool = False
) -> tuple[dict[str, InputUnits], dict[str, float]]:
    """The weights to put dropout before, and the weights that are left without are named in a notice.

    Args:
        net: the network.
        p: a drop rate for all weight layers but those with a single input, or a mapping from name patterns.
        connections: whether single weights are dropped, which does not erase a single input.

    Returns:
        The input units and the rate of every such weight, by name.

    Raises:
        InputError: there is no weight layer, or a rate is not in [0, 1).
    """
    units = weight_layers(net)
    if not units:
        raise InputError("the network has no weight layer that dropout could stand before")
    rates = {name: _rate(p, name, list(units)) for name in units}
    covered = units
    spare = not isinstance(p, Mapping) and not connections
    if spare and not all(found.is_all for found in units.values()):
        covered = {name: found for name, found in units.items() if not found.is_all}
    _notify_of_uncovered(net, rates, covered)
    return covered, {name: rates[name] for name in covered}


def _rate(p: float | Mapping[str, float], name: str, names: list[str]) -> float:
    rate = match_one(p, name, names) if isinstance(p, Mapping) else p
    if not 0.0 <= check_number(rate, "p") < 1.0:
        raise InputError(f"p is the rate at which inputs are dropped and must lie in [0, 1), got {rate}")
    return float(rate)


def _notify_of_uncovered(net: nn.Module, rates: Mapping[str, float], covered: Mapping[str, InputUnits]) -> None:
    """Name the weights without dropout before them: single inputs, and layers of unknown kinds."""
    inputs = [name for name in rates if name not in covered]
    if inputs:
        notify(
            f"no dropout is put before {', '.join(inputs)}, whose input is a single unit or channel and would be "
            "erased; name it in a mapping p={...} to have it there"
        )
    unknown = [name for name in match_parameters(net) if name not in rates and net.get_parameter(name).dim() > 1]
    if unknown:
        kinds = {type(net.get_submodule(name.rpartition(".")[0])).__name__ for name in unknown}
        shown = ", ".join(unknown[:3]) + (", …" if len(unknown) > 3 else "")
        notify(f"no dropout is put before {shown}: how {', '.join(sorted(kinds))} meets its inputs is not known")


def penalized_parameters(net: nn.Module) -> dict[str, int | None]:
    """The parameters that have a prior, and the row of each that is a vector for padding, which has none."""
    padding = padding_rows(net)
    return {name: padding.get(name) for name in match_parameters(net)}


def weight_penalty(
    net: nn.Module, penalized: Mapping[str, int | None], length_scale: float, keep: Mapping[str, float | Tensor]
) -> Tensor:
    """l²/2·Σ ‖W̄‖²/(1 − p), with p = 0 for parameters without dropout before them.

    Args:
        net: the network.
        penalized: from :func:`penalized_parameters`.
        length_scale: l.
        keep: 1 − p of the parameters with dropout before them.

    Returns:
        A scalar in nats, differentiable.
    """
    squares = [
        _sum_of_squares(without_padding(net.get_parameter(name), row)) / keep.get(name, 1.0)
        for name, row in penalized.items()
    ]
    return 0.5 * length_scale**2 * torch.stack(squares).sum()


def _sum_of_squares(weight: Tensor) -> Tensor:
    if weight.is_complex():
        return torch.view_as_real(weight).square().sum()
    return weight.to(at_least_float32(weight.dtype)).square().sum()


class MaskedNetwork:
    """Calls a network as in training: a mask for every row where that is possible, otherwise one for the batch.

    Args:
        net: the network; a private replica of it is called.
        forward: ``callable(net, x)`` for unusual networks, or ``None``.
        posterior: draws the masks.
        per_row: whether rows may have masks of their own.
    """

    def __init__(
        self, net: nn.Module, forward: Forward | None, posterior: WeightDropout | ConcreteWeightDropout, per_row: bool
    ) -> None:
        self._net, self._forward, self._posterior = net, forward, posterior
        self._replica = Replica(net, forward, own_buffers=False)
        layers = noisy_layers(net, posterior.names(), tied_parameters(net)) if per_row else {}
        self._masks = _RowMasks(self._replica, list(layers), posterior)
        self._planned = False

    def prepare(self, x: Any) -> None:
        """Update the private replica; on the first batch find the layers that can have a mask per row."""
        self._replica.sync_from_network()
        if not self._masks.plan or self._planned:
            return
        probe = Replica(self._net, self._forward, own_buffers=True)
        self._masks.plan = plan_estimators(probe, list(self._masks.plan), "flipout", x)
        self._planned = True

    def __call__(self, x: Any, training: bool = True) -> Tensor:
        """The output for ``x``; without masks where ``training`` is false."""
        if not training:
            return self._replica({}, x)
        drawn = [name for name in self._posterior.names() if not self._masks.covers(name)]
        weights = self._posterior.rsample(drawn)
        self._masks.begin(count_rows(x))
        try:
            output = self._replica(weights, x)
        finally:
            self._masks.end()
        if not torch.compiler.is_compiling():
            self._replica.sync_to_network()
        return output


class _RowMasks:
    """Pre-hooks that drop the inputs of layers, with a mask for every row that all its positions share."""

    def __init__(
        self, replica: Replica, paths: Sequence[str], posterior: WeightDropout | ConcreteWeightDropout
    ) -> None:
        self.plan: dict[str, str] = dict.fromkeys(paths, "flipout")
        self.rows, self.active = 0, False
        self._posterior = posterior
        self._drawn: dict[str, Tensor] = {}
        for path in paths:
            replica.net.get_submodule(path).register_forward_pre_hook(self._mask_for(path), with_kwargs=True)

    def begin(self, rows: int) -> None:
        self.rows, self.active, self._drawn = rows, True, {}

    def end(self) -> None:
        self.active, self._drawn = False, {}

    def covers(self, name: str) -> bool:
        path, _, attribute = name.rpartition(".")
        return attribute == "weight" and self.plan.get(path, "weight") != "weight"

    def _mask_for(self, path: str) -> Callable[..., Any]:
        def hook(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if self.plan[path] == "weight":
                return None
            if torch.is_grad_enabled() and not self.active and layer.training:
                raise UnsupportedError(
                    "the network uses gradient checkpointing, which would recompute activations with other masks "
                    "than the forward pass drew; switch it off in the network"
                )
            if not self.active:
                return None
            x, rest = (args[0], args[1:]) if args else (kwargs["input"], ())
            if path not in self._drawn:
                shape = [1] * x.dim()
                shape[0] = x.shape[0] if x.shape[0] == self.rows else 1
                shape[channel_dim(layer)] = x.shape[channel_dim(layer)]
                self._drawn[path] = self._posterior.mask(f"{path}.weight".lstrip("."), shape, x)
            others = {key: value for key, value in kwargs.items() if key != "input"}
            return (x * self._drawn[path], *rest), others

        return hook
