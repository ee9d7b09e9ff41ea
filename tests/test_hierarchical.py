"""Priors with unknown variances: their conditional and marginal densities, and posteriors against quadrature."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Gamma, Normal, kl_divergence

import credo
from credo.data import Batch
from credo.diagnostics import standard_error
from credo.errors import InputError, UnsupportedError

HYPERPRIOR = Gamma(torch.tensor(1.5, dtype=torch.float64), torch.tensor(0.7, dtype=torch.float64))
GROUPS = {"layer": [0, 0, 0, 0, 0, 0], "input": [0, 1, 2, 0, 1, 2], "unit": [0, 0, 0, 1, 1, 1]}
"""The group of each entry of a weight of 2 units and 3 inputs, row by row."""


def weight(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("groups", GROUPS)
def test_variances_are_drawn_from_their_conditional(groups: str) -> None:
    """1/s² | w ~ Gamma(a + n/2, b + Σw²/2): the mean and the mean square of 4,000 draws within 4 standard errors."""
    prior, w = credo.HierarchicalNormal(groups, shape=1.5, rate=0.7), weight(2, 3)
    source = torch.Generator().manual_seed(1)
    concentration, rate = prior.precisions_given(w, w.shape)
    gamma = torch._standard_gamma(torch.full((4_000, *rate.shape), concentration, dtype=w.dtype), generator=source)
    draws = (gamma / rate).expand(4_000, 2, 3).flatten(1)
    for i, group in enumerate(GROUPS[groups]):
        own = [w.flatten()[j] for j, other in enumerate(GROUPS[groups]) if other == group]
        exact = Gamma(1.5 + len(own) / 2, 0.7 + float(sum(v * v for v in own)) / 2)
        for values, mean in ((draws[:, i], exact.mean), (draws[:, i] ** 2, exact.variance + exact.mean**2)):
            assert abs(float(values.mean() - mean)) < 4.0 * float(values.std()) / math.sqrt(4_000)
        same = [j for j, other in enumerate(GROUPS[groups]) if other == group]
        assert all(torch.equal(draws[:, i], draws[:, j]) for j in same)


@pytest.mark.parametrize("groups", GROUPS)
def test_the_marginal_density_is_the_integral_over_the_variances(groups: str) -> None:
    """Σ_g log ∫ Π N(w; 0, s²) InvGamma(s²; a, b) ds², by the trapezoid rule in log s², to 1e-8."""
    prior, w = credo.HierarchicalNormal(groups, shape=1.5, rate=0.7), weight(2, 3)
    log_variance = torch.linspace(-12, 14, 20_001, dtype=torch.float64)
    precision = (-log_variance).exp()
    total = 0.0
    for group in sorted(set(GROUPS[groups])):
        own = [w.flatten()[j] for j, other in enumerate(GROUPS[groups]) if other == group]
        log_p = sum(Normal(0.0, precision.rsqrt()).log_prob(v) for v in own)
        log_p = log_p + HYPERPRIOR.log_prob(precision) + precision.log()
        total += float(torch.trapezoid(log_p.exp(), log_variance).log())
    assert float(prior.log_marginal(w)) == pytest.approx(total, abs=1e-8)


@pytest.mark.parametrize("groups", GROUPS)
def test_the_best_scale_minimizes_the_kl_and_its_gradient_is_that_of_the_bound(groups: str) -> None:
    """The derivative of KL(q ‖ N(0, s²)) − log InvGamma(s²) by log s² is 0 at ŝ, to 1e-10."""
    prior, mean = credo.HierarchicalNormal(groups, shape=1.5, rate=0.7), weight(2, 3)
    q = Normal(mean, torch.full_like(mean, 0.3))
    best = prior.best_scale(q.loc, q.scale)
    for group in set(GROUPS[groups]):
        own = torch.tensor([other == group for other in GROUPS[groups]]).view(2, 3)
        log_variance = best[own][:1].square().log().requires_grad_()
        kl = kl_divergence(Normal(mean[own], q.scale[own]), Normal(0.0, (0.5 * log_variance).exp())).sum()
        penalty = 2.5 * log_variance + 0.7 * (-log_variance).exp()
        (slope,) = torch.autograd.grad(kl + penalty.sum(), log_variance)
        assert abs(float(slope)) < 1e-10
    torch.testing.assert_close(kl_divergence(q, prior), kl_divergence(q, Normal(torch.zeros(()).double(), best)))


def test_one_group_per_tensor_is_the_adaptive_prior_of_bayes_by_backprop() -> None:
    def train(prior: Any) -> credo.BayesByBackprop:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
        x = weight(20, 3)
        return credo.BayesByBackprop(net, credo.Gaussian(0.3), prior).fit((x, x[:, :1]), epochs=5, seed=0)

    ours, adaptive = train(credo.HierarchicalNormal(rate=0.5)), train(credo.AdaptiveNormal(rate=0.5))
    for found, expected in zip(ours.parameters(), adaptive.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)


def test_irrelevant_inputs_are_switched_off() -> None:
    """One of three inputs matters; its scale is the largest under Bayes by Backprop."""
    torch.manual_seed(0)
    x = torch.randn(200, 3)
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    prior = {"0.weight": credo.HierarchicalNormal("input", rate=0.01), "*": credo.HierarchicalNormal()}
    model = credo.BayesByBackprop(net, credo.Gaussian(0.1), prior).fit(
        (x, (2 * x[:, :1]).sin()), seed=0, lr=1e-2, epochs=200
    )
    scales = prior["0.weight"].best_scale(net[0].weight, model.posterior.scale()["0.weight"])[0]
    assert scales[0] > 3.0 * scales[1:].max()


def test_the_target_of_samplers_is_the_joint_density_of_weights_and_variances() -> None:
    """The sum over the chains' prior and hyperprior, by ``torch.distributions``, to rounding; gradients by autograd."""
    net = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1)).double()
    priors = {"0.*": credo.HierarchicalNormal("input", 1.5, 0.7), "2.weight": credo.Normal(0, 0.5)}
    model = credo.HMC(net, credo.Gaussian(0.3), priors | {"*": credo.ScaleMixture()})
    x, y = weight(5, 3), weight(5, 1)
    target = model._log_joint([Batch(x, y, None)])
    position = weight(2, 11)
    refresh = target.refresher(0)
    assert refresh is not None
    before = target(position)
    after = refresh(position, before)
    torch.testing.assert_close(tuple(after), tuple(target(position)))
    assert not torch.equal(before.log_density, after.log_density)
    precision = target._prior._gaussian.precision
    for k in range(2):
        leaf = position[k].clone().requires_grad_()
        first, bias, second, last = leaf.split([6, 2, 2, 1])
        by_input, of_bias = precision[k, :3], precision[k, 6]
        assert torch.equal(precision[k, :6], by_input.repeat(2))
        output = torch.tanh(x @ first.view(2, 3).T + bias) @ second + last
        value = Normal(output, 0.3).log_prob(y[:, 0]).sum() + Normal(0, 0.5).log_prob(second).sum()
        value = value + credo.ScaleMixture().log_prob(last).sum() + Normal(0, of_bias.rsqrt()).log_prob(bias).sum()
        value = value + Normal(0, by_input.rsqrt()).log_prob(first.view(2, 3)).sum()
        unknown = torch.cat([by_input, of_bias[None]])
        value = value + (HYPERPRIOR.log_prob(unknown) + 2.0 * unknown.log()).sum()  # |d(1/s²)/ds²| = 1/s⁴
        (gradient,) = torch.autograd.grad(value, leaf)
        torch.testing.assert_close(after.log_density[k], value.detach())
        torch.testing.assert_close(after.gradient[k], gradient)


SAMPLERS: dict[Any, dict[str, Any]] = {
    credo.HMC: {"warmup": 150, "draws": 300, "leapfrog_steps": 6},
    credo.MCLMC: {"warmup": 600, "draws": 250, "thinning": 8, "energy_error": 1e-6},
    credo.SGLD: {"warmup": 300, "draws": 400, "thinning": 10, "lr": 0.02, "batch_size": None, "preconditioned": False},
}


@pytest.mark.parametrize("method", SAMPLERS)
def test_posterior_moments_of_a_hierarchical_linear_model(method: Any) -> None:
    """Two weights under one unknown variance: means and mean squares by a grid of 301², within 4 standard errors.

    The grid has the weights' marginal prior, the variance integrated out. SGLD has a bias of less than 2 % more.
    """
    source = torch.Generator().manual_seed(3)
    x = torch.randn(6, 2, generator=source, dtype=torch.float64)
    y = x @ torch.tensor([[1.5], [-0.3]], dtype=torch.float64) + torch.randn(6, 1, generator=source).double()
    prior = credo.HierarchicalNormal(shape=2.0, rate=0.5)
    first, second = torch.meshgrid(*[torch.linspace(-5, 6, 301, dtype=torch.float64)] * 2, indexing="ij")
    residual = y[:, 0] - first[..., None] * x[:, 0] - second[..., None] * x[:, 1]
    log_p = -0.5 * residual.square().sum(-1) - 3.0 * (0.5 + 0.5 * (first**2 + second**2)).log()
    density = (log_p - log_p.max()).exp()
    density /= density.sum()
    net = nn.Linear(2, 1, bias=False).double()
    model = method(net, credo.Gaussian(1.0), prior, chains=4, init="prior", **SAMPLERS[method]).fit((x, y), seed=0)
    draws = model.posterior.by_chain()["weight"][:, :, 0]
    bias = 0.02 if method is credo.SGLD else 0.0
    for i, values in enumerate((first, second)):
        for power in (1, 2):
            exact = float((density * values**power).sum())
            error = 4.0 * float(standard_error(draws[:, :, i] ** power)) + bias * abs(exact)
            assert abs(float((draws[:, :, i] ** power).mean()) - exact) < error, (i, power)


def test_draws_from_the_prior_have_its_variance() -> None:
    """E[s²] = b/(a − 1); weights of a group share s², so the 4 standard errors count groups."""
    torch.manual_seed(0)
    draws = credo.HierarchicalNormal("unit", shape=6.0, rate=2.0).draw_weights(torch.Size((4000, 5)))
    squares = draws.square().mean(1)
    assert abs(float(squares.mean()) - 0.4) < 4.0 * float(squares.std()) / math.sqrt(4000)


def test_what_is_refused_and_saved(tmp_path: Any) -> None:
    with pytest.raises(InputError, match="groups"):
        credo.HierarchicalNormal("row")
    with pytest.raises(InputError, match="rate"):
        credo.HierarchicalNormal(rate=0.0)
    with pytest.raises(UnsupportedError, match="not independent"):
        credo.HierarchicalNormal().log_prob(torch.zeros(2))
    net = nn.Linear(2, 1)
    model = credo.HMC(net, credo.Gaussian(0.1), credo.HierarchicalNormal("input", 2.0, 0.5))
    model.save(tmp_path / "run")
    loaded = credo.load(tmp_path / "run", nn.Linear(2, 1))
    assert repr(loaded.prior) == "HierarchicalNormal(groups='input', shape=2, rate=0.5)"  # type: ignore[attr-defined]
