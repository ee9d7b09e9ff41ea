"""The calibration of a stacked ensemble against errors whose variances are known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

import credo
from credo.architectures import TabularMLP
from credo.data import Batch
from credo.likelihoods import Categorical, Gaussian
from credo.methods import MAP
from credo.tabular.out_of_fold import (
    HeldOutOutputs,
    best_shift,
    can_shift,
    extrapolate,
    overlapping_parts,
    shift_network,
    shift_outputs,
)

GAUSSIAN = Gaussian("heteroscedastic")
ROWS, NETWORKS = 20_000, 8


def outputs_of(networks: int, shared: float, own: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Networks ``[1, M, R, 2]`` whose errors have a common and an own part, and whose noise is that of their errors."""
    generator = torch.Generator().manual_seed(seed)
    y = math.sqrt(shared) * torch.randn(ROWS, 1, generator=generator, dtype=torch.float64)
    mean = math.sqrt(own) * torch.randn(networks, ROWS, 1, generator=generator, dtype=torch.float64)
    return torch.cat([mean, torch.full_like(mean, math.log(shared + own))], -1)[None], y


def density(outputs: Tensor, y: Tensor, shift: float) -> Tensor:
    """log p(y) ``[1, M, R]``."""
    shifted = shift_outputs(outputs, shift)
    return GAUSSIAN.log_prob(shifted.flatten(0, 2), y.expand(*shifted.shape[:2], *y.shape).flatten(0, 2)).unflatten(
        0, shifted.shape[:3]
    )


@pytest.mark.parametrize(("shared", "own"), [(0.9, 0.1), (0.7, 0.3), (1.0, 0.0)])
def test_the_calibrated_variance_is_that_of_the_errors_of_the_ensemble(shared: float, own: float) -> None:
    """c + (v − c)/M, from pairs of networks; v is their noise, and the variance v + (v − c)(1 − 1/M) without γ."""
    outputs, y = outputs_of(2, shared, own)
    log_density = torch.zeros(1, 2, ROWS, dtype=torch.float64)
    found = HeldOutOutputs(outputs, log_density, y, torch.ones(ROWS, dtype=torch.float64), NETWORKS)
    shift = found.choose_shift(GAUSSIAN, torch.ones(1))
    variance = math.exp(shift) * (shared + own) + own * (1.0 - 1.0 / NETWORKS)
    expected = shared + own / NETWORKS
    # γ has a grid of 0.05 and moves by one standard error, √(2/R); the expansion in 1/M is of first order.
    assert variance == pytest.approx(expected, rel=0.025 + math.sqrt(2.0 / ROWS) + 0.05 * own / shared)


@pytest.mark.parametrize("shift", [-1.0, -0.5, 0.0])
def test_pairs_tell_the_log_likelihood_of_more_networks(shift: float) -> None:
    few, y = outputs_of(2, 0.8, 0.2)
    many, y_many = outputs_of(NETWORKS, 0.8, 0.2, seed=1)
    weights = torch.ones(1)
    found = extrapolate(density(few, y, shift), weights, NETWORKS)
    direct = extrapolate(density(many, y_many, shift), weights, NETWORKS)
    error = math.sqrt(float(found.var() + direct.var()) / ROWS)
    one = density(few, y, shift).mean()
    assert abs(float(found.mean() - direct.mean())) < 4.0 * error + 0.1 * abs(float(direct.mean() - one))


def test_groups_of_one_network_are_not_extrapolated() -> None:
    log_density = torch.randn(3, 1, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    weights = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    expected = (weights[:, None] * log_density[:, 0].exp()).sum(0).log()
    torch.testing.assert_close(extrapolate(log_density, weights, 8), expected)


def test_the_shift_stays_at_0_where_rows_do_not_tell() -> None:
    shifts = torch.tensor([-1.0, -0.5, 0.0, 0.5], dtype=torch.float64)
    noise = torch.randn(30, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    unclear = shifts[:, None] * (noise - noise.mean() - 0.05)
    assert best_shift(shifts, unclear, torch.ones(30, dtype=torch.float64)) == 0.0
    clear = -(shifts[:, None] + 1.0).square() + 0.01 * noise
    assert best_shift(shifts, clear, torch.ones(30, dtype=torch.float64)) == -1.0
    other = clear.clone()
    other[:, 15:] = -other[:, 15:] * 100.0  # rows without weight do not count
    assert best_shift(shifts, other, (torch.arange(30) < 15).double()) == -1.0


def test_half_of_the_rows_are_held_out_by_two_networks() -> None:
    half = overlapping_parts(list(np.array_split(np.arange(50), 10)), 5)
    assert np.bincount(np.concatenate(half), minlength=50).tolist() == [2] * 25 + [0] * 25
    assert [part.tolist() for part in overlapping_parts([np.arange(3), np.arange(3, 6)], 4)] == [
        [0, 1, 2],
        [3, 4, 5],
        [0, 1, 2],
        [3, 4, 5],
    ]


def test_rows_are_scored_by_networks_that_hold_them_out() -> None:
    """Network k predicts k for every row."""
    parts = overlapping_parts(list(np.array_split(np.arange(24), 8)), 4)
    members = []
    for k in range(8):
        net = TabularMLP(1, (2,), 2)
        for parameter in net.parameters():
            torch.nn.init.zeros_(parameter)
        torch.nn.init.constant_(net.perceptron.layers[-1].bias, float(k))
        members.append(MAP(net, GAUSSIAN))
    weight = torch.arange(24.0)
    found = HeldOutOutputs.compute(members, Batch(torch.zeros(24, 1), torch.zeros(24, 1), weight), parts)
    assert found.outputs.shape == (2, 2, 12, 2)
    for row in range(12):
        holders = [k for k, part in enumerate(parts) if row in part]
        assert found.outputs[0, :, row, 0].tolist() == holders
        assert found.outputs[1, :, row, 0].tolist() == [k + 4 for k in holders]
    expected = GAUSSIAN.log_prob(found.outputs[1, 0], found.y)
    torch.testing.assert_close(found.log_density[1, 0], expected.double())
    assert torch.equal(found.weight, weight[:12].double())


def test_a_shifted_network_has_shifted_outputs() -> None:
    net = TabularMLP(3, (5,), 4)
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    before = net(x)
    shift_network(net, -0.7)
    torch.testing.assert_close(net(x), shift_outputs(before, -0.7))


def test_classes_and_one_noise_for_all_rows_are_not_shifted() -> None:
    assert can_shift(GAUSSIAN)
    assert can_shift(credo.likelihoods.NegativeBinomial("heteroscedastic"))
    assert not can_shift(Gaussian("learned"))
    assert not can_shift(Categorical())
    assert not can_shift(credo.Ordinal(3))
