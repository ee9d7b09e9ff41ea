"""Convolutions that loop over draws under vmap, against a loop over whole networks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from credo.evaluation.convolutions import per_draw

DRAWS = 5


def networks() -> dict[str, tuple[nn.Module, Tensor]]:
    torch.manual_seed(0)
    padded = nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect")
    deep = nn.Sequential(padded, nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 8, 3, groups=2, bias=False), nn.Flatten())
    grouped = nn.Sequential(nn.Conv2d(4, 6, 3, groups=2), nn.Conv2d(6, 6, 1))
    signal = nn.Sequential(nn.Conv1d(3, 4, 2, stride=2), nn.Tanh(), nn.Conv1d(4, 2, 1))
    return {
        "padding, pooling, groups": (deep, torch.randn(3, 4, 8, 8)),
        "groups first": (grouped, torch.randn(3, 4, 8, 8)),
        "one dimension": (signal, torch.randn(3, 3, 9)),
    }


@pytest.mark.parametrize("drawn", [slice(None), slice(0, 1), slice(1, 2), slice(-1, None)], ids=str)
@pytest.mark.parametrize("name", networks())
def test_outputs_are_those_of_single_draws(name: str, drawn: slice) -> None:
    """All weights drawn, only a filter, only a bias, or only the last tensor; tolerance: float32 rounding."""
    net, x = networks()[name]
    torch.manual_seed(1)
    weights = {key: torch.randn(DRAWS, *p.shape) for key, p in list(net.named_parameters())[drawn]}

    def call(draw: dict[str, Tensor]) -> Tensor:
        return functional_call(net, draw, (x,))

    looped = torch.stack([call({key: value[s] for key, value in weights.items()}) for s in range(DRAWS)])
    with torch.no_grad(), per_draw(net):
        torch.testing.assert_close(vmap(call)(weights), looped, rtol=1e-5, atol=1e-5)
    assert all("_conv_forward" not in vars(module) for module in net.modules())
