"""Scale mixtures whose weights belong to the wide or the narrow component in groups."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal

import credo

PRIOR = credo.ScaleMixture(0.25, 1.5, 0.1, dim=-2)


def joint_log_density(weight: Tensor) -> Tensor:
    """log Σ_c π_c Π_k N(w_k; 0, σ_c²) of every column, by torch's distributions."""
    parts = [
        Normal(torch.tensor(0.0).double(), scale).log_prob(weight).sum(0) + math.log(share)
        for share, scale in ((0.25, 1.5), (0.75, 0.1))
    ]
    return torch.stack(parts).logsumexp(0)


def test_a_group_has_the_density_of_its_two_components() -> None:
    torch.manual_seed(0)
    weight = torch.randn(5, 3).double() * torch.tensor([1.0, 0.1, 0.3])
    found = PRIOR.log_prob(weight)
    assert found.shape == weight.shape
    torch.testing.assert_close(found.sum(0), joint_log_density(weight))
    draws = torch.stack([weight, 2.0 * weight])
    torch.testing.assert_close(PRIOR.log_prob(draws).sum(1), torch.stack([joint_log_density(w) for w in draws]))


def test_a_group_of_one_weight_is_the_mixture_of_single_weights() -> None:
    weight = torch.linspace(-4.0, 4.0, 50).double()
    torch.testing.assert_close(PRIOR.log_prob(weight[None]), credo.ScaleMixture(0.25, 1.5, 0.1).log_prob(weight)[None])


def test_draws_of_a_group_are_wide_or_narrow_together() -> None:
    """The share of wide groups is π within 4 standard errors, √(π(1 − π)/4000) each; a group has one scale."""
    torch.manual_seed(0)
    squares = PRIOR.sample((30, 4000)).square().mean(0)
    wide = squares > 0.2
    assert float(wide.double().mean()) == pytest.approx(0.25, abs=4 * math.sqrt(0.25 * 0.75 / 4000))
    assert float(squares[wide].mean()) == pytest.approx(1.5**2, rel=4 * math.sqrt(2 / 30 / int(wide.sum())))


def test_a_network_is_trained_and_stored_with_groups(tmp_path: Path) -> None:
    """An input that does not matter is pulled to the narrow component, and the prior is stored with the model."""
    torch.manual_seed(0)
    x = torch.randn(200, 2)
    net = nn.Linear(2, 8, bias=False)
    y = x[:, :1] @ torch.ones(1, 8) + 0.1 * torch.randn(200, 8)
    prior = credo.ScaleMixture(0.5, 1.0, 0.05, dim=-2)
    model = credo.BayesByBackprop(net, credo.Gaussian(0.1), prior, initial_scale=0.02)
    model.fit((x, y), epochs=60, batch_size=50, lr=0.02, seed=0, progress=False)
    needed, useless = model.posterior.mean()["weight"].abs().mean(0)
    assert float(needed) > 0.9
    assert float(useless) < 0.05
    model.save(tmp_path / "model")
    loaded = credo.load(tmp_path / "model", nn.Linear(2, 8, bias=False))
    assert "dim=-2" in repr(loaded.prior)


def test_tensors_of_too_few_dimensions_are_refused() -> None:
    with pytest.raises(credo.errors.InputError, match=r"'bias'.*at least 2 dimensions"):
        credo.BayesByBackprop(nn.Linear(2, 3), prior=PRIOR)
    with pytest.raises(credo.errors.InputError, match="negative dimension"):
        credo.ScaleMixture(dim=1)
