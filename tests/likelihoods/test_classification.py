"""Likelihoods of classes against cross entropy and numerical integrals."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats
from torch import distributions as D

from credo.errors import InputError, UnsupportedError
from credo.likelihoods import (
    Bernoulli,
    Categorical,
    Ordinal,
)


@pytest.mark.parametrize("class_dim", [1, -1, 3])
def test_trap_09_categorical_matches_its_distribution_in_any_dimension(class_dim: int) -> None:
    torch.manual_seed(0)
    output = torch.randn(4, 3, 5, 6, dtype=torch.float64)
    logits = output.movedim(class_dim, -1)
    y = torch.randint(logits.shape[-1], logits.shape[:-1])
    expected = D.Categorical(logits=logits).log_prob(y).sum((1, 2))
    torch.testing.assert_close(Categorical(class_dim=class_dim).log_prob(output, y), expected)
    torch.testing.assert_close(Categorical(class_dim=class_dim).log_prob(output, y.to(torch.uint8)), expected)


def test_categorical_weights_and_ignored_labels_agree_with_cross_entropy() -> None:
    torch.manual_seed(0)
    weight = [0.5, 1.0, 3.0]
    output = torch.randn(4, 3, 6, requires_grad=True)
    y = torch.randint(3, (4, 6))
    y[0, :] = -100
    y[1, 2] = -100
    likelihood = Categorical(class_dim=1, weight=weight, ignore_index=-100)
    expected = -F.cross_entropy(output, y, torch.tensor(weight), ignore_index=-100, reduction="none").sum(1)
    log_p = likelihood.log_prob(output, y)
    torch.testing.assert_close(log_p, expected)
    assert log_p[0] == 0
    log_p.sum().backward()
    assert output.grad is not None
    assert bool((output.grad[0] == 0).all())
    assert bool((output.grad[1, :, 2] == 0).all())
    assert bool(output.grad.isfinite().all())


def noisy_sigmoid(location: float, scale: float, power: int = 1) -> float:
    """E sigmoid(location + scale·ε)^power."""
    value, _ = integrate.quad(
        lambda e: stats.norm.pdf(e) * (1 / (1 + math.exp(-(location + scale * e)))) ** power, -12, 12, epsabs=1e-12
    )
    return float(value)


@pytest.mark.parametrize(
    ("logits", "log_variances"),
    [((0.3, -0.8), (0.5, -1.0)), ((2.0, -1.0), (1.5, 1.5)), ((0.0, 4.0), (-8.0, -8.0)), ((-3.0, 3.0), (2.0, 3.0))],
)
def test_logit_noise_matches_the_numerical_integral(
    logits: tuple[float, float], log_variances: tuple[float, float]
) -> None:
    # of two classes the first wins with E sigmoid(z₀ − z₁ + √(e^s₀ + e^s₁) ε)
    location = logits[0] - logits[1]
    scale = math.sqrt(sum(math.exp(s) for s in log_variances))
    p, second_moment = noisy_sigmoid(location, scale), noisy_sigmoid(location, scale, power=2)
    deviation = math.sqrt(max(second_moment - p * p, 0))
    output = torch.tensor([[*logits, *log_variances]], dtype=torch.float64)

    samples = 20_000
    torch.manual_seed(0)
    log_p = float(Categorical(logit_noise=True, noise_samples=samples).log_prob(output, torch.tensor([0])))
    assert log_p == pytest.approx(math.log(p), abs=5 * deviation / (p * math.sqrt(samples)))

    # the fixed quasi-random set must do no worse than one standard error of as many random numbers
    predicted = float(Categorical(logit_noise=True, noise_samples=128).predictive(output[None]).mean[0, 0])
    assert predicted == pytest.approx(p, abs=deviation / math.sqrt(128) + 1e-12)


def test_logit_noise_is_integrated_out_before_entropies() -> None:
    torch.manual_seed(0)
    outputs = torch.randn(7, 10, 6)
    likelihood = Categorical(logit_noise=True)
    state = torch.get_rng_state()
    p = likelihood.predictive(outputs)
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(p.mean, likelihood.predictive(outputs).mean)
    order = torch.randperm(10)
    torch.testing.assert_close(likelihood.predictive(outputs[:, order]).mean, p.mean[order], rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(p.draws.sum(-1), torch.ones(7, 10))
    integrated = D.Categorical(probs=p.draws)
    torch.testing.assert_close(p.aleatoric, integrated.entropy().mean(0))
    one = likelihood.predictive(outputs[:1])
    assert bool((one.epistemic == 0).all())


def test_logit_noise_is_redrawn_in_training() -> None:
    likelihood, output, y = Categorical(logit_noise=True, noise_samples=4), torch.zeros(2, 6), torch.tensor([0, 1])
    assert not torch.equal(likelihood.log_prob(output, y), likelihood.log_prob(output, y))
    segmentation = Categorical(logit_noise=True, class_dim=1)
    assert segmentation.log_prob(torch.randn(2, 6, 4, 4), torch.randint(3, (2, 4, 4))).shape == (2,)
    assert segmentation.predictive(torch.randn(5, 2, 6, 4, 4)).mean.shape == (2, 3, 4, 4)


def test_check_finds_unknown_classes() -> None:
    output = torch.zeros(2, 3)
    Categorical().check(output, torch.tensor([0, 2]))
    Categorical(ignore_index=-100).check(output, torch.tensor([0, -100]))
    with pytest.raises(InputError, match="label 3, but the network has 3 classes, 0 to 2"):
        Categorical().check(output, torch.tensor([0, 3]))
    with pytest.raises(InputError, match="pass ignore_index=-100"):
        Categorical().check(output, torch.tensor([0, -100]))
    with pytest.raises(InputError, match="label 3"):
        Categorical(ignore_index=-100).check(output, torch.tensor([3, -100]))


@settings(max_examples=50, deadline=None)
@given(st.floats(-80, 80), st.floats(-80, 80))
def test_bernoulli_is_the_two_class_categorical(a: float, b: float) -> None:
    output = torch.tensor([[a, b]], dtype=torch.float64)
    for label in (0, 1):
        two = Categorical().log_prob(output, torch.tensor([label]))
        one = Bernoulli().log_prob(output[:, 1] - output[:, 0], torch.tensor([label]))
        torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("logit_noise", [False, True])
def test_class_of_weight_zero_contributes_zero(logit_noise: bool) -> None:
    likelihood = Categorical(weight=[0.0, 1.0, 2.0], logit_noise=logit_noise, noise_samples=5)
    row = [-math.inf, 0.0, 1.0] + 3 * [0.0] * logit_noise
    output = torch.tensor([row, row], requires_grad=True)
    log_p = likelihood.log_prob(output, torch.tensor([0, 1]))
    assert log_p[0].item() == 0
    assert math.isfinite(log_p[1].item())
    (gradient,) = torch.autograd.grad(log_p.sum(), output)
    assert bool(gradient.isfinite().all())
    assert bool((gradient[0] == 0).all())
    assert Categorical(logit_noise=logit_noise).log_prob(output, torch.tensor([0, 1]))[0].item() == -math.inf


def test_ordinal_probabilities_are_differences_of_cumulative_ones() -> None:
    likelihood = Ordinal(4).double()
    f = torch.linspace(-6, 6, 9, dtype=torch.float64)[:, None]
    with torch.no_grad():
        likelihood.log_gaps.copy_(torch.tensor([-1.0, 0.7]))
    cuts = likelihood.cuts
    assert bool((cuts.diff() > 0).all())
    upto = torch.cat([torch.zeros_like(f), (cuts - f).sigmoid(), torch.ones_like(f)], 1)
    p = likelihood.predictive(f[None])
    torch.testing.assert_close(p.mean, upto.diff(dim=1))
    for label in range(4):
        y = torch.full((9,), label)
        torch.testing.assert_close(likelihood.log_prob(f, y).exp(), upto.diff(dim=1)[:, label])
        torch.testing.assert_close(p.cdf(y), upto[:, label + 1])


def test_ordinal_log_probabilities_are_finite_in_both_tails() -> None:
    """log σ(−a) = −a for large a: far from a class, its log probability falls by 1 per unit of f."""
    likelihood = Ordinal(3)
    output = torch.tensor([[-200.0], [-199.0], [199.0], [200.0]], requires_grad=True)
    log_p = likelihood.log_prob(output, torch.ones(4).long())
    torch.testing.assert_close(log_p[1] - log_p[0], torch.tensor(1.0))
    torch.testing.assert_close(log_p[2] - log_p[3], torch.tensor(1.0))
    (gradient,) = torch.autograd.grad(log_p.sum(), output)
    assert bool(gradient.isfinite().all())


def test_ordinal_initial_classes_are_equally_frequent_and_have_quantiles() -> None:
    p = Ordinal(5).predictive(torch.zeros(2, 3, 1))
    torch.testing.assert_close(p.mean, torch.full((3, 5), 0.2))
    assert p.quantile([0.1, 0.3, 0.5, 0.7, 0.95])[:, 0].tolist() == [0, 1, 2, 3, 4]
    assert p.quantile(0.5).shape == (3,)
    interval = p.interval(0.5)
    assert (interval.lower[0].item(), interval.upper[0].item()) == (1, 3)
    with pytest.raises(UnsupportedError, match="no order"):
        Categorical().predictive(torch.zeros(2, 3, 5)).interval()
