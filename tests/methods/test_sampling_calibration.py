"""Simulation-based calibration of the samplers: ranks of true parameters among draws are uniform."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import InverseGamma

import credo
from credo.methods._fold_chains import fit_folds
from credo.testing import Ranks

SIMULATIONS, DRAWS, FEATURES = 400, 19, 3
NOISE = credo.Normal(-0.5, 0.5)
"""The prior of log σ."""
SHAPE, RATE = 3.0, 2.0
PRIORS: dict[str, Any] = {
    "normal": credo.Normal(0.0, 1.0),
    "hierarchical": credo.HierarchicalNormal("layer", SHAPE, RATE),
}
SAMPLERS: dict[Any, dict[str, Any]] = {
    credo.HMC: {"warmup": 120, "draws": 5, "leapfrog_steps": 8},
    credo.MCLMC: {"warmup": 400, "draws": 5, "thinning": 10, "energy_error": 1e-6},
}


def draw_weights(prior: str, source: torch.Generator) -> Tensor:
    """Weights and biases from the prior, ``[SIMULATIONS, FEATURES + 1]``; each of the two tensors is a group."""
    unit = torch.randn(SIMULATIONS, FEATURES + 1, dtype=torch.float64, generator=source)
    if prior == "normal":
        return unit
    scale = InverseGamma(SHAPE, RATE).sample((SIMULATIONS, 2)).double().sqrt()
    return unit * scale.repeat_interleave(torch.tensor([FEATURES, 1]), 1)


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("method", SAMPLERS)
def test_ranks_of_weights_and_noise_are_uniform(method: Any, prior: str) -> None:
    """Linear regression with unknown noise; the chains of all simulations are one batch, and each gives one draw."""
    torch.manual_seed(0)
    source = torch.default_generator
    x = torch.randn(3, FEATURES, dtype=torch.float64, generator=source)
    weights = draw_weights(prior, source)
    log_scale = NOISE.loc + NOISE.scale * torch.randn(SIMULATIONS, 1, dtype=torch.float64, generator=source)
    noise = torch.randn(SIMULATIONS, len(x), dtype=torch.float64, generator=source)
    y = weights[:, :FEATURES] @ x.T + weights[:, FEATURES:] + log_scale.exp() * noise
    model = method(
        nn.Linear(FEATURES, 1).double(),
        credo.Gaussian("learned").double(),
        PRIORS[prior],
        chains=DRAWS,
        noise_prior=NOISE,
        init="prior",
        **SAMPLERS[method],
    )
    tables = [(x, targets[:, None]) for targets in y]
    fitted = fit_folds(model, tables, list(range(SIMULATIONS)), diagnose=False)
    truth = torch.cat([weights, log_scale], 1)
    drawn = torch.stack([_draws(each) for each in fitted])
    ranks = Ranks((drawn < truth[:, None]).sum(1), DRAWS)
    assert ranks.p_values(bins=10).min() > 1e-3 / truth.shape[1]


def _draws(model: Any) -> Tensor:
    """Weights, bias and log σ of the last draw of every chain, which are independent: ``[DRAWS, FEATURES + 2]``."""
    found, noise = model.posterior.by_chain(), model.likelihood_posterior.by_chain()
    parts = [found["weight"][:, -1].flatten(1), found["bias"][:, -1], noise["log_scale"][:, -1].view(-1, 1)]
    return torch.cat(parts, 1)
