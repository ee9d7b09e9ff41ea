"""Networks that hold out parts of the rows, trained in one batch."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

import credo
from credo.data import Batch
from credo.errors import InputError
from credo.methods._fold_training import FoldSchedule, fit_on_folds

ROWS = 24


def rows() -> Batch:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, 2, generator=generator, dtype=torch.float64)
    y = x[:, :1] - 0.5 * x[:, 1:] + 0.3 * torch.randn(ROWS, 1, generator=generator, dtype=torch.float64)
    return Batch(x, y, None)


def members(scales: list[float], folds: int) -> list[credo.MAP]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return [
            credo.MAP(
                nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)).double(),
                credo.Gaussian(0.3),
                credo.Normal(0.0, scale),
            )
            for scale in scales
            for _ in range(folds)
        ]


PARTS = [np.arange(0, 8), np.arange(8, 16), np.arange(16, 24)]
SCHEDULE = FoldSchedule(steps=120, batch_size=ROWS, lr=0.03)


def test_networks_in_one_batch_are_the_networks_alone() -> None:
    """With all rows in every step their order does not matter, so that nothing differs but rounding."""
    together = members([1.0, 0.1], folds=3)
    alone = copy.deepcopy(together)
    schedule = FoldSchedule(steps=11, batch_size=ROWS, lr=0.1)  # too few for the rate to change, which all decide
    fit_on_folds(together, rows(), PARTS, schedule, seed=0)
    for k, one in enumerate(alone):
        fit_on_folds([one], rows(), [PARTS[k % 3]], schedule, seed=0)
        for a, b in zip(one.net.parameters(), together[k].net.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)


def test_held_out_rows_decide_when_to_stop_and_nothing_else() -> None:
    """Other targets of the held-out rows change which weights are kept, but not the path that they are on."""
    changed = rows()
    changed.y[PARTS[0]] = 5.0
    first, second = members([1.0], 1), members([1.0], 1)
    one_step = FoldSchedule(steps=1, batch_size=ROWS, lr=0.03)
    fit_on_folds(first, rows(), PARTS[:1], one_step, seed=0)
    fit_on_folds(second, changed, PARTS[:1], one_step, seed=0)
    for a, b in zip(first[0].net.parameters(), second[0].net.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("scale", [1.0, 0.1])
def test_a_linear_network_reaches_ridge_regression(scale: float) -> None:
    """(XᵀX + (σ/s)²I)⁻¹Xᵀy; held-out rows are copies of those trained on, so that no step towards it is worse."""
    data = rows()
    twice = Batch(data.x.repeat(2, 1), data.y.repeat(2, 1), None)
    net = nn.Linear(2, 1, bias=False).double()
    nn.init.zeros_(net.weight)
    model = credo.MAP(net, credo.Gaussian(0.3), credo.Normal(0.0, scale))
    fit_on_folds([model], twice, [np.arange(ROWS, 2 * ROWS)], FoldSchedule(2000, ROWS, 0.01), seed=0)
    gram = data.x.T @ data.x + (0.3 / scale) ** 2 * torch.eye(2, dtype=torch.float64)
    ridge = torch.linalg.solve(gram, data.x.T @ data.y)
    torch.testing.assert_close(net.weight.detach().T, ridge, rtol=0.0, atol=1e-3)


def test_rows_of_weight_zero_do_not_count() -> None:
    data = rows()
    weight = torch.ones(ROWS, dtype=torch.float64)
    weight[8:12] = 0.0
    changed = Batch(data.x, data.y.clone(), weight)
    changed.y[8:12] = 9.0
    first, second = members([1.0], 3), members([1.0], 3)
    fit_on_folds(first, Batch(data.x, data.y, weight), PARTS, SCHEDULE, seed=0)
    fit_on_folds(second, changed, PARTS, SCHEDULE, seed=0)
    for a, b in zip(first, second, strict=True):
        for p, q in zip(a.net.parameters(), b.net.parameters(), strict=True):
            assert torch.equal(p, q)


def test_history_has_the_held_out_log_likelihood() -> None:
    trained = members([1.0], folds=3)
    fit_on_folds(trained, rows(), PARTS, SCHEDULE, seed=0)
    for member in trained:
        assert member.n_data == 16
        assert {"epoch", "nll", "kl", "elbo", "validation_log_likelihood"} <= member.history[-1].keys()


def test_a_prior_that_is_not_gaussian_is_refused() -> None:
    one = credo.MAP(nn.Linear(2, 1).double(), credo.Gaussian(0.3), credo.LaplacePrior(0.0, 1.0))
    with pytest.raises(InputError, match="the prior must be a Gaussian around 0"):
        fit_on_folds([one], rows(), PARTS[:1], SCHEDULE, seed=0)
