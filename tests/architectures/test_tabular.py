"""The network for tables, and the piecewise linear encoding of numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from credo import architectures
from credo.architectures import PiecewiseLinear, TabularMLP


def encoding_of(values: list[float], bins: int) -> PiecewiseLinear:
    encoding = PiecewiseLinear(1, bins).double()
    encoding.fit(torch.tensor(values, dtype=torch.float64)[:, None], [0])
    return encoding


def test_a_linear_layer_on_the_codes_is_linear_interpolation_between_the_knots() -> None:
    knots = [-2.0, -0.5, 1.0, 1.5, 4.0]  # five values in four bins: the quantiles are the values
    encoding, heights = encoding_of(knots, bins=4), np.array([1.0, -3.0, 0.5, 2.0, 2.5])
    x = np.linspace(-4.0, 6.0, 101)
    codes = encoding(torch.from_numpy(x)[:, None]).numpy()
    np.testing.assert_allclose(heights[0] + codes @ np.diff(heights), np.interp(x, knots, heights), atol=1e-12)


def test_bins_hold_equally_many_values() -> None:
    x = np.random.default_rng(0).exponential(size=1000)
    codes = encoding_of(x.tolist(), bins=8)(torch.from_numpy(x)[:, None])
    inside = ((codes > 0) & (codes < 1)).sum(0)
    assert inside.min() >= 123  # 125, less the knots at both ends
    assert inside.max() <= 125


def test_a_bin_without_width_is_zero_for_every_value() -> None:
    codes = encoding_of([0.0, 0.0, 0.0, 0.0, 1.0], bins=4)(torch.linspace(-1, 2, 7, dtype=torch.float64)[:, None])
    assert codes.isfinite().all()
    assert torch.equal(codes[:, :3], torch.zeros(7, 3, dtype=torch.float64))
    assert torch.allclose(codes[:, 3], torch.linspace(-1, 2, 7, dtype=torch.float64).clamp(0, 1))


def test_only_the_chosen_columns_are_encoded() -> None:
    x = torch.randn(50, 3)
    encoding = PiecewiseLinear(2, 4)
    encoding.fit(x, [0, 2])
    codes = encoding(x)
    assert codes.shape == (50, 8)
    assert torch.equal(codes, encoding(x + torch.tensor([0.0, 9.0, 0.0])))


@pytest.mark.parametrize("encoded", [0, 2])
def test_the_network_is_rebuilt_with_its_knots(encoded: int) -> None:
    net = TabularMLP(3, (5,), 2, encoded=encoded, bins=4)
    x = torch.randn(20, 3)
    net.encoding.fit(x, list(range(encoded)))
    again = architectures.build(**architectures.describe(net))
    again.load_state_dict(net.state_dict())
    assert torch.equal(net(x), again(x))
    assert net(x).shape == (20, 2)
    assert net(x[:0]).shape == (0, 2)


def test_outside_the_range_only_the_linear_part_changes() -> None:
    net = TabularMLP(1, (5,), 1, encoded=1, bins=4)
    net.encoding.fit(torch.rand(50, 1), [0])
    with torch.no_grad():
        net.perceptron.layers[0].weight[:, 0] = 0.0  # the value itself, beside its codes
        far = net(torch.tensor([[2.0], [3.0], [4.0]]))[:, 0]
    assert torch.allclose(far.diff(), net.linear.weight.detach()[0].expand(2), atol=1e-6)
