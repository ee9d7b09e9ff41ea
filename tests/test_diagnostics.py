"""R-hat and effective sample size against closed forms of independent and autoregressive chains."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from credo.diagnostics import effective_sample_size, effective_sample_size_tail, r_hat, standard_error
from credo.errors import InputError

CHAINS, DRAWS, QUANTITIES = 4, 1000, 100


def autoregressive(rho: float, seed: int = 0) -> Tensor:
    """x_t = ρ·x_{t−1} + √(1 − ρ²)·ε_t, whose draws have variance 1 and autocorrelations ρ^t."""
    noise = torch.randn(DRAWS, CHAINS, QUANTITIES, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    chain = [noise[0]]
    for step in noise[1:]:
        chain.append(rho * chain[-1] + math.sqrt(1 - rho**2) * step)
    return torch.stack(chain, 1)


@pytest.mark.parametrize("rho", [-0.3, 0.0, 0.3, 0.6, 0.9])
def test_effective_size_of_autoregressive_chains(rho: float) -> None:
    """S_eff = S·(1 − ρ)/(1 + ρ). The mean over 100 quantities has a standard error of a tenth of their spread; Geyer's
    truncation adds a bias of about √(M/S) for the M lags it keeps, below 5 % here."""
    draws = autoregressive(rho)
    exact = CHAINS * DRAWS * (1 - rho) / (1 + rho)
    relative = effective_sample_size(draws) / exact
    assert abs(float(relative.mean()) - 1) < 4 * float(relative.std()) / math.sqrt(QUANTITIES) + 0.05
    error = standard_error(draws) * math.sqrt(exact)
    assert abs(float(error.mean()) - 1) < 0.05


@pytest.mark.parametrize("rho", [0.0, 0.6])
def test_standard_error_is_the_spread_of_means(rho: float) -> None:
    """The variance of 100 means, relative to the squared standard error, has a standard deviation of √(2/100)."""
    draws = autoregressive(rho, seed=1)
    ratio = draws.mean((0, 1)).square().mean() / standard_error(draws).square().mean()
    assert abs(float(ratio) - 1) < 4 * math.sqrt(2 / QUANTITIES)


def test_converged_chains_have_r_hat_one() -> None:
    """For independent draws R-hat² − 1 is about 1/n of a half chain times χ²₇/7, below 4/500 with certainty here."""
    assert float(r_hat(autoregressive(0.0)).max()) < 1.01


def test_r_hat_of_shifted_chains_has_its_closed_form() -> None:
    """Means ±δ give var⁺ = 1 + δ²·M/(M − 1) over M = 8 halves, W = 1; ranks shrink it little for δ = 1/2."""
    draws = autoregressive(0.0)
    delta = 0.5
    shifted = draws + delta * torch.tensor([1.0, -1.0, 1.0, -1.0]).view(4, 1, 1)
    expected = math.sqrt(1 + delta**2 * 8 / 7)
    assert abs(float(r_hat(shifted).mean()) - expected) < 0.02
    far = draws + 5 * torch.arange(4.0).view(4, 1, 1)
    assert float(r_hat(far).min()) > 2


def test_r_hat_sees_other_scales_and_drifts() -> None:
    draws = autoregressive(0.0)
    wide = draws * torch.tensor([1.0, 1.0, 1.0, 4.0]).view(4, 1, 1)
    drifting = draws + torch.linspace(-2, 2, DRAWS).view(1, DRAWS, 1)
    assert float(r_hat(wide).min()) > 1.1
    assert float(r_hat(drifting).min()) > 1.1


def test_ranks_make_monotone_transformations_irrelevant() -> None:
    draws = autoregressive(0.3)
    torch.testing.assert_close(effective_sample_size(draws), effective_sample_size(draws.exp()))
    assert bool(effective_sample_size(torch.tan(draws)).isfinite().all())


def test_tail_size_of_independent_draws_is_their_number() -> None:
    relative = effective_sample_size_tail(autoregressive(0.0)) / (CHAINS * DRAWS)
    assert 0.9 < float(relative.mean()) < 1.05


def test_repeated_draws_count_once() -> None:
    """Each draw r times has autocorrelation 1 − t/r up to lag r, so τ = r."""
    draws = autoregressive(0.0)[:, :250].repeat_interleave(4, 1)
    relative = effective_sample_size(draws) / (CHAINS * 250)
    assert abs(float(relative.mean()) - 1) < 0.1


def test_shapes_and_what_is_not_defined() -> None:
    draws = torch.randn(2, 9, 3, 5)
    assert r_hat(draws).shape == effective_sample_size(draws).shape == standard_error(draws).shape == (3, 5)
    assert r_hat(torch.randn(2, 8)).shape == ()
    assert bool(r_hat(torch.randn(1, 100)).isfinite())
    assert bool(effective_sample_size(torch.ones(2, 8)).isnan())
    draws[0, 0, 0, 0] = math.inf
    assert bool(r_hat(draws)[0, 0].isnan())
    for bad in (torch.randn(8), torch.randn(2, 3), torch.randn(0, 8)):
        with pytest.raises(InputError, match="chain"):
            r_hat(bad)
