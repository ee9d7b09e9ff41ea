"""One adapter for each library's MC dropout of a network's own dropout layers, for ``benchmarks/peers.py``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import credo


def credo_dropout(net: nn.Sequential) -> Callable[[Tensor, int], Tensor]:
    model = credo.MCDropout(net, credo.Categorical())
    return lambda x, samples: model.predict(x, samples=samples, seed=0).draws


def looped_dropout(net: nn.Sequential) -> Callable[[Tensor, int], Tensor]:
    """Forwards of the network in evaluation mode, its dropout layers in training mode."""
    net.eval()
    for layer in net.modules():
        if isinstance(layer, nn.modules.dropout._DropoutNd):
            layer.train()

    @torch.no_grad()
    def draws(x: Tensor, samples: int) -> Tensor:
        return torch.stack([net(x).softmax(-1) for _ in range(samples)])

    return draws


def baal_dropout(net: nn.Sequential) -> Callable[[Tensor, int], Tensor]:
    from baal.bayesian.dropout import MCDropoutModule
    from baal.modelwrapper import ModelWrapper, TrainingArgs

    wrapper = ModelWrapper(MCDropoutModule(net), TrainingArgs(use_cuda=next(net.parameters()).is_cuda))
    wrapper.eval()
    return lambda x, samples: wrapper.predict_on_batch(x, samples).softmax(1).permute(2, 0, 1)


def torch_uncertainty_dropout(net: nn.Sequential, on_batch: bool) -> Callable[[Tensor, int], Tensor]:
    from torch_uncertainty.methods import mc_dropout

    @torch.no_grad()
    def draws(x: Tensor, samples: int) -> Tensor:
        model = mc_dropout(net, samples, on_batch=on_batch).eval()
        return model(x).unflatten(0, (samples, len(x))).softmax(-1)

    return draws


@dataclass(frozen=True)
class DropoutEntry:
    """A contestant of MC dropout by its name.

    Attributes:
        library: the distribution it comes from.
        build: makes of a network with dropout layers a function of inputs and S that returns draws ``[S, B, C]``.
        loops: as for :class:`Contestant`.
    """

    library: str
    build: Callable[[nn.Sequential], Callable[[Tensor, int], Tensor]]
    loops: bool = False


DROPOUT = {
    "credo": DropoutEntry("credo", credo_dropout),
    "loop over forwards": DropoutEntry("torch", looped_dropout, loops=True),
    "baal": DropoutEntry("baal", baal_dropout),
    "torch-uncertainty": DropoutEntry("torch-uncertainty", lambda net: torch_uncertainty_dropout(net, on_batch=True)),
    "torch-uncertainty, loop": DropoutEntry(
        "torch-uncertainty", lambda net: torch_uncertainty_dropout(net, on_batch=False), loops=True
    ),
}
