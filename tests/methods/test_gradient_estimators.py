"""The gradient estimators of Bayes by Backprop have equal expectations and different variances."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import credo
from credo.methods._noise_hooks import _LocalNoise

CLASSES = 4
ESTIMATORS = ("weight", "local", "flipout", "auto")
DRAWS = 3000


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(10, 30), nn.Tanh(), nn.Linear(30, CLASSES))


def cnn() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Conv2d(4, CLASSES, 3))


class Pooled(nn.Module):
    """The mean over positions of a network's feature map, so that correlation between positions matters."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x).flatten(2).mean(-1)


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (mlp, (6, 10)),
    "cnn": (lambda: Pooled(cnn()), (6, 1, 8, 8)),
}
COMPARED = pytest.mark.parametrize(
    ("case", "estimator"),
    [
        ("mlp", "auto"),
        ("mlp", "flipout"),
        ("cnn", "flipout"),
        pytest.param("cnn", "auto", marks=pytest.mark.slow),  # weight sampling, draw by draw: traps/test_sampling.py
    ],
)


def outputs(model: credo.BayesByBackprop, x: Tensor, draws: int) -> Tensor:
    """Outputs ``[draws, B, C]`` of training-mode forward passes."""
    model._prepare(x)
    scale = model.posterior.scale()
    return torch.stack([model._noisy_forward(x, scale)[0].detach() for _ in range(draws)])


@functools.cache
def weight_sampling(case: str) -> tuple[nn.Module, Tensor, Tensor]:
    """A network, its input, and outputs with drawn weights."""
    build, shape = CASES[case]
    torch.manual_seed(0)
    net, x = build(), torch.randn(shape)
    return net, x, outputs(credo.BayesByBackprop(net, initial_scale=0.1, estimator="weight"), x, DRAWS)


@COMPARED
def test_moments_equal_those_of_weight_sampling(case: str, estimator: str) -> None:
    """Mean and variance of the outputs; for the CNN of their mean over positions. 3000 draws each."""
    net, x, reference = weight_sampling(case)
    torch.manual_seed(1)
    estimate = outputs(credo.BayesByBackprop(net, initial_scale=0.1, estimator=estimator), x, DRAWS)
    error = (reference.var(0) / DRAWS + estimate.var(0) / DRAWS).sqrt()
    assert ((reference.mean(0) - estimate.mean(0)).abs() < 5 * error).all()
    # The relative standard error of a variance is √((κ − 1)/n); κ ≈ 3, and 5 allows for heavier tails.
    log_ratio = (estimate.var(0) / reference.var(0)).log()
    assert (log_ratio.abs() < 5 * math.sqrt(2 * (5 - 1) / DRAWS)).all()


def test_local_on_convolutions_loses_the_correlation_of_positions() -> None:
    """The variance of the mean over positions is several times too small, so ``auto`` does not use it there."""
    torch.manual_seed(0)
    net, x = Pooled(nn.Conv2d(1, 2, 3)), torch.ones(4, 1, 10, 10)
    exact = outputs(credo.BayesByBackprop(net, initial_scale=0.1, estimator="weight"), x, 2000).var(0)
    local = outputs(credo.BayesByBackprop(net, initial_scale=0.1, estimator="local"), x, 2000).var(0)
    auto = outputs(credo.BayesByBackprop(net, initial_scale=0.1), x, 2000).var(0)
    assert (local < exact / 4).all()
    assert ((auto / exact).log().abs() < 5 * math.sqrt(2 * 4 / 2000)).all()


@functools.cache
def loss_mean(case: str, estimator: str) -> tuple[float, float]:
    """The mean of 1500 losses, each with its own draw, and its standard error."""
    build, shape = CASES[case]
    torch.manual_seed(0)
    net, x, y = build(), torch.randn(shape), torch.randint(0, CLASSES, shape[:1])
    model = credo.BayesByBackprop(net, credo.Categorical(), initial_scale=0.1, estimator=estimator)
    torch.manual_seed(ESTIMATORS.index(estimator) + 1)
    losses = torch.stack([model.loss(x, y, n_data=100).detach() for _ in range(1500)]).double()
    return float(losses.mean()), float(losses.std()) / math.sqrt(len(losses))


@COMPARED
def test_expected_loss_is_the_same_for_every_estimator(case: str, estimator: str) -> None:
    (expected, expected_error), (mean, error) = loss_mean(case, "weight"), loss_mean(case, estimator)
    assert abs(mean - expected) < 5 * math.hypot(error, expected_error)


@functools.cache
def gradient_moments(estimator: str) -> tuple[Tensor, Tensor]:
    """Mean gradient of the NLL of 128 digits in all μ and ρ of an MLP, and its total variance, over 300 draws."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
    digits = credo.datasets.load_digits()
    x, y = digits.x_train[:128].flatten(1), digits.y_train[:128]
    model = credo.BayesByBackprop(net, credo.Categorical(), initial_scale=0.05, estimator=estimator)
    parameters = [p for p in model.parameters() if p.requires_grad]
    gradients = []
    torch.manual_seed(ESTIMATORS.index(estimator) + 1)
    for _ in range(300):
        loss = model.loss(x, y, n_data=10**9)
        gradients.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)]))
    stacked = torch.stack(gradients)
    return stacked.mean(0), stacked.var(0).sum()


@pytest.mark.parametrize("estimator", ["local", "flipout"])
def test_gradients_have_at_most_a_third_of_the_variance_of_weight_sampling(estimator: str) -> None:
    """An MLP on a batch of 128 digits. Measured: 0.15 for local, 0.27 for Flipout; less with larger σ or training.

    The mean gradients agree: their squared distance is a sum of squared errors whose expectation is known.
    """
    mean_weight, variance_weight = gradient_moments("weight")
    mean, variance = gradient_moments(estimator)
    assert variance < variance_weight / 3
    assert (mean_weight - mean).square().sum() < 2 * (variance_weight + variance) / 300


@pytest.mark.parametrize("kl", ["analytic", "sampled"])
def test_both_kl_estimators_have_the_same_expectation(kl: str) -> None:
    torch.manual_seed(0)
    model = credo.BayesByBackprop(mlp(), credo.Categorical(), initial_scale=0.3, kl=kl)
    x, y = torch.randn(5, 10), torch.randint(0, CLASSES, (5,))
    values = torch.stack([model.terms(x, y).kl.detach() for _ in range(400)]).double()
    prior = torch.distributions.Normal(0.0, 1.0)
    mean, scale = model.posterior.mean(), {name: value.detach() for name, value in model.posterior.scale().items()}
    exact = sum(
        float(torch.distributions.kl_divergence(torch.distributions.Normal(mean[name], scale[name]), prior).sum())
        for name in mean
    )
    error = float(values.std()) / math.sqrt(len(values))
    assert abs(float(values.mean()) - exact) <= max(5 * error, 1e-5 * exact)


def test_local_noise_has_the_derivatives_of_its_formula() -> None:
    """The derivatives of y + √(2h)·ε, h = x²·Vᵀ + b, for one ε, against autograd's, in float64."""
    torch.manual_seed(0)
    shapes = ((5, 4), (5, 3), (4, 3), (4,))
    inputs = [torch.rand(shape, dtype=torch.float64).add(0.1).requires_grad_() for shape in shapes]

    def formula(output: Tensor, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        variance = 2.0 * torch.nn.functional.linear(x.square(), weight, bias)
        return output + variance.sqrt() * torch.randn_like(variance)

    results = []
    for function in (formula, _LocalNoise.apply):
        torch.manual_seed(1)
        value = function(*inputs).square().sum()
        results.append([value, *torch.autograd.grad(value, inputs)])
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected)


def test_a_layer_that_gets_tokens_or_rows_in_turn_is_flipped_or_local() -> None:
    """The first pass on another kind of input computes with σ from σ²/2, the next with σ itself: the same noise."""
    torch.manual_seed(0)
    model = credo.BayesByBackprop(nn.Linear(3, 2), credo.Gaussian(0.1), initial_scale=0.3)
    tokens, targets = torch.randn(4, 5, 3), torch.zeros(4, 5, 2)
    losses = []
    for _ in range(2):
        torch.manual_seed(1)
        losses.append(model.loss(tokens, targets, n_data=4))
    torch.testing.assert_close(losses[0], losses[1])
    assert model._noisy_forward.hooks.squared == frozenset()
    model.loss(torch.randn(4, 3), torch.zeros(4, 2), n_data=4)
    assert model._noisy_forward.hooks.squared == {"weight", "bias"}
