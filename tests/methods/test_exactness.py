"""Bayes by Backprop, MC dropout and MAP against closed forms on linear-Gaussian models."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import credo
from scenarios import LinearGaussian, linear_gaussian

TARGET = linear_gaussian()


def flat(values: dict[str, Tensor]) -> Tensor:
    return torch.cat([values["weight"].flatten(), values["bias"].flatten()]).detach().double()


def fitted(target: LinearGaussian, **options: object) -> credo.BayesByBackprop:
    """The recipe: full batch, 4 draws per step, 1500 steps of Adam at 0.03 with a cosine to 0."""
    torch.manual_seed(0)
    model = credo.BayesByBackprop(
        target.network(), credo.Gaussian(noise=target.noise), credo.Normal(0, target.prior_scale), samples=4, **options
    )
    return model.fit((target.x, target.y), epochs=1500, batch_size=len(target.x), lr=0.03, seed=0)


@pytest.fixture(scope="module")
def model() -> credo.BayesByBackprop:
    return fitted(TARGET)


def test_reaches_the_exact_mean_and_the_mean_field_scale(model: credo.BayesByBackprop) -> None:
    """Over 8 seeds the largest deviations were 0.027 posterior std in the mean and 2.1 % in the scale."""
    mean, std = flat(model.posterior.mean()), flat(model.posterior.scale())
    assert ((mean - TARGET.mean()).abs() < 0.1 * TARGET.posterior_std()).all()
    torch.testing.assert_close(std, TARGET.mean_field_std(), rtol=0.05, atol=0)


@pytest.mark.slow
def test_weight_sampling_reaches_the_same_optimum() -> None:
    """Over 8 seeds the largest deviations were 0.056 posterior std in the mean and 3.9 % in the scale."""
    model = fitted(TARGET, estimator="weight")
    mean, std = flat(model.posterior.mean()), flat(model.posterior.scale())
    assert ((mean - TARGET.mean()).abs() < 0.1 * TARGET.posterior_std()).all()
    torch.testing.assert_close(std, TARGET.mean_field_std(), rtol=0.05, atol=0)


def test_tempering_is_the_closed_form_tempered_posterior() -> None:
    """VFE = KL − (1/T)·E[log p(D | w)]: precision I/s² + ΦᵀΦ/(Tσ²). Over 8 seeds at most 0.040 std and 1.8 %."""
    model = fitted(TARGET, temperature=2.0)
    mean, std = flat(model.posterior.mean()), flat(model.posterior.scale())
    assert ((mean - TARGET.mean(2.0)).abs() < 0.1 * TARGET.posterior_std()).all()
    torch.testing.assert_close(std, TARGET.mean_field_std(2.0), rtol=0.05, atol=0)


def test_elbo_matches_its_closed_form_and_stays_below_the_evidence(model: credo.BayesByBackprop) -> None:
    data = (TARGET.x, TARGET.y)
    estimates = torch.tensor([model.elbo(data, samples=200, seed=seed) for seed in range(20)], dtype=torch.float64)
    estimate, error = float(estimates.mean()), float(estimates.std()) / math.sqrt(20)
    exact = TARGET.elbo(flat(model.posterior.mean()), flat(model.posterior.scale()))
    assert abs(estimate - exact) < 5 * error
    assert exact == pytest.approx(TARGET.best_elbo(), abs=0.02)
    assert estimate < TARGET.log_evidence() + 5 * error


def test_loss_is_minus_the_elbo_per_datum(model: credo.BayesByBackprop) -> None:
    torch.manual_seed(0)
    losses = torch.stack([model.loss(TARGET.x, TARGET.y).detach() for _ in range(2000)]).double()
    error = float(losses.std()) / math.sqrt(len(losses))
    exact = TARGET.elbo(flat(model.posterior.mean()), flat(model.posterior.scale()))
    assert abs(float(losses.mean()) + exact / len(TARGET.x)) < 5 * error


def test_predictive_moments_are_those_of_the_posterior(model: credo.BayesByBackprop) -> None:
    """Var[y] = σ² + φᵀ diag(std²) φ; 4000 draws give the epistemic variance to a relative error of √(2/4000)."""
    p = model.predict(TARGET.x, samples=4000, seed=1)
    std = flat(model.posterior.scale())
    epistemic = TARGET.features.square() @ std.square()
    torch.testing.assert_close(p.epistemic.squeeze(1).double(), epistemic, rtol=5 * math.sqrt(2 / 4000), atol=0)
    torch.testing.assert_close(p.aleatoric, torch.full_like(p.mean, TARGET.noise**2))
    center = TARGET.features @ flat(model.posterior.mean())
    assert ((p.mean.squeeze(1) - center).abs() < 5 * (epistemic / 4000).sqrt()).all()


def test_map_is_ridge_regression() -> None:
    model = credo.MAP(TARGET.network(), credo.Gaussian(noise=TARGET.noise), credo.Normal(0, TARGET.prior_scale))
    model.fit((TARGET.x, TARGET.y), epochs=2000, batch_size=len(TARGET.x), lr=0.05, seed=0)
    torch.testing.assert_close(flat(model.posterior.mean()), TARGET.mean(), rtol=1e-3, atol=1e-4)
    assert (model.predict(TARGET.x).epistemic == 0).all()


@pytest.mark.parametrize("weight_noise", [0.0, 0.3])
def test_dropout_predictive_moments_of_a_linear_layer(weight_noise: float) -> None:
    """f = Σ x_i (w_i z_i/(1−p) + σε_i) + b: mean wᵀx + b, variance Σ x_i² (w_i² p/(1−p) + σ²); plus τ⁻¹."""
    torch.manual_seed(0)
    net, p, tau = nn.Linear(6, 1), 0.3, 4.0
    x = torch.randn(5, 6)
    model = credo.MCDropout(net, credo.Gaussian(noise=tau**-0.5), p=p, weight_noise=weight_noise)
    predictive = model.predict(x, samples=20_000, seed=0)
    with torch.no_grad():
        variance = x.square() @ (net.weight.square() * p / (1 - p) + weight_noise**2).T
        standard_error = (variance / 20_000).sqrt()
        assert ((predictive.mean - net(x)).abs() < 5 * standard_error).all()
    # The fourth moment of a Bernoulli sum is below 3 + 1/(p(1 − p)) times the squared variance.
    relative = 5 * math.sqrt((2 + 1 / (p * (1 - p))) / 20_000)
    torch.testing.assert_close(predictive.epistemic, variance, rtol=relative, atol=0)
    torch.testing.assert_close(predictive.aleatoric, torch.full_like(variance, 1 / tau))


@pytest.mark.parametrize("connections", [False, True])
def test_masks_of_units_are_shared_by_outputs_and_masks_of_weights_are_not(connections: bool) -> None:
    """f_k = Σ x_i w_ki z/(1 − p) + b_k: mean wx + b, Cov(f_k, f_l) = p/(1 − p) Σ x_i² w_ki w_li, or 0 for k ≠ l.

    In training too, where a batch of DropConnect has one mask.
    """
    torch.manual_seed(0)
    net, p, n = nn.Linear(6, 3), 0.3, 20_000
    x = torch.randn(6)
    model = credo.MCDropout(net, credo.Gaussian(0.5), p=p, connections=connections)
    with torch.no_grad():
        weighted = x * net.weight
        expected = p / (1 - p) * weighted @ weighted.T
        if connections:
            expected = expected.diag().diag()
        training = torch.stack([model._noisy_forward(x.expand(1, 6))[0] for _ in range(n // 4)])
        for draws in (model.predict(x[None], samples=n, seed=0).draws[:, 0], training):
            assert ((draws.mean(0) - net(x)).abs() < 5 * (expected.diag() / len(draws)).sqrt()).all()
            centered = draws - net(x)
            products = centered[:, :, None] * centered[:, None, :]
            assert ((products.mean(0) - expected).abs() < 5 * products.std(0) / math.sqrt(len(draws))).all()


def test_dropout_penalty_agrees_with_the_paper() -> None:
    """Ours, times 1/τ, is ½(y − f)² + λ‖M‖² with λ = (1 − p)l²/(2Nτ) and M = W̄/(1 − p), up to a constant."""
    torch.manual_seed(0)
    p, length_scale, tau, n = 0.2, 0.7, 5.0, 40
    x, y = torch.randn(n, 4), torch.randn(n, 1)
    net = nn.Linear(4, 1)
    model = credo.MCDropout(net, credo.Gaussian(noise=tau**-0.5), p=p, length_scale=length_scale).eval()
    decay = (1 - p) * length_scale**2 / (2 * n * tau)
    weight, bias = net.weight / (1 - p), net.bias
    paper = 0.5 * (y - net(x)).square().mean() + decay * weight.square().sum()
    paper = paper + length_scale**2 / (2 * n * tau) * bias.square().sum()
    constant = 0.5 * math.log(2 * math.pi / tau) / tau
    torch.testing.assert_close(model.loss(x, y, n_data=n) / tau, paper + constant)


def test_dropout_in_training_has_the_moments_of_its_posterior() -> None:
    """Masks per row in training and one mask set per draw in prediction are the same distribution of outputs."""
    torch.manual_seed(0)
    net = nn.Linear(6, 1)
    model = credo.MCDropout(net, credo.Gaussian(noise=1.0), p=0.3).train()
    x = torch.randn(1, 6).expand(20_000, 6)
    model._prepare(x)
    output = model._noisy_forward(x).detach()
    variance = float((x[:1].square() * net.weight.detach().square()).sum() * 0.3 / 0.7)
    assert abs(float(output.mean() - net(x[:1]).detach())) < 5 * math.sqrt(variance / 20_000)
    assert float(output.var()) == pytest.approx(variance, rel=5 * math.sqrt((2 + 1 / 0.21) / 20_000))


def test_ensemble_is_an_equal_mixture_of_independent_members() -> None:
    torch.manual_seed(0)
    ensemble = credo.DeepEnsemble(TARGET.network(), members=4, likelihood=credo.Gaussian(noise=TARGET.noise))
    weights = torch.stack([flat(member.posterior.mean()) for member in ensemble.members])
    assert len(weights.unique(dim=0)) == 4
    members = torch.stack([member.predict(TARGET.x).mean for member in ensemble.members])
    p = ensemble.predict(TARGET.x)
    torch.testing.assert_close(p.mean, members.mean(0))
    torch.testing.assert_close(p.epistemic, members.var(0, correction=0))


def test_pruning_keeps_the_weights_with_signal(model: credo.BayesByBackprop) -> None:
    import copy

    pruned = copy.deepcopy(model)
    snr = torch.cat([value.flatten() for value in pruned.posterior.snr().values()])
    assert pruned.prune(0.5) == 2
    keep = (snr >= snr.sort().values[2]).tolist()
    draws = pruned.posterior.sample(3, seed=0)
    values = torch.cat([draws["weight"].flatten(1), draws["bias"].flatten(1)], 1)
    assert [bool(column.any()) for column in values.T] == keep
    before = pruned.kl()
    pruned.fit((TARGET.x, TARGET.y), epochs=5, lr=0.1, seed=0)
    assert torch.cat([v.flatten() for v in pruned.posterior.mean().values()]).eq(0).sum() == 2
    assert before.isfinite()
    assert before < model.kl()
