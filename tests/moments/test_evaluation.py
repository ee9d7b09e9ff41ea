"""Prediction by moments: exactness, agreement with sampling, refusals, and what it leaves alone."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.networks import CalledTwice, Recurrent
from torch import Tensor, nn

import credo
from credo.errors import InputError, UnsupportedError
from credo.methods.network import NetworkMethod
from credo.moments import MomentEvaluator


def dense(*sizes: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after), activation()]
    return nn.Sequential(*layers[:-1]).double()


def rows(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def outputs(model: NetworkMethod, x: Tensor, draws: int) -> Tensor:
    return model._predictor(draws, 0).outputs(x)


@pytest.mark.parametrize("n_outputs", [2, 24])
def test_one_hidden_layer_has_the_closed_form(n_outputs: int) -> None:
    """Independent hidden units: Var[f] = Σ_k μ_k² Var[h_k] + σ_k² E[h_k²] + σ_b², and covariances between outputs.

    More outputs than 16 have the variances, but not quite the covariances: 128 points are too few.
    """
    net, x = dense(3, 7, n_outputs), rows(5, 3)
    model = credo.BayesByBackprop(net, credo.Gaussian(0.1), initial_scale=0.4)
    s2 = 0.4**2
    first, last = net[0], net[2]
    assert isinstance(first, nn.Linear)
    assert isinstance(last, nn.Linear)
    with torch.no_grad():
        mean, scale = first(x), (s2 * (x.square().sum(1, keepdim=True) + 1.0)).sqrt()
        normal = torch.distributions.Normal(torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64))
        above, density = normal.cdf(mean / scale), normal.log_prob(mean / scale).exp()
        h = mean * above + scale * density
        square = (mean.square() + scale.square()) * above + mean * scale * density
        expected = last(h)
        w = last.weight
        covariance = torch.einsum("ik,bk,jk->bij", w, square - h.square(), w)
        covariance += torch.diag_embed((s2 * (square.sum(1, keepdim=True) + 1.0)).expand(-1, n_outputs))
    p = model.predict(x, samples="moments")
    torch.testing.assert_close(p.mean, expected)
    torch.testing.assert_close(p.epistemic, covariance.diagonal(dim1=1, dim2=2))
    torch.testing.assert_close(p.variance, p.epistemic + 0.01)
    if n_outputs == 2:
        off = p.draws - p.mean
        torch.testing.assert_close(torch.einsum("sbi,sbj->bij", off, off) / p.n_draws, covariance)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(3, 6), nn.Linear(6, 6), nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).tanh()
        y: Tensor = self.last(h + self.inner(h).relu())
        return y


def image_network(*middle: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3, padding=1, padding_mode="circular"), nn.Softplus(), *middle, nn.BatchNorm2d(4)),
        *(nn.Conv2d(4, 3, 2, stride=2), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2)),
    ).double()


NETWORKS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "two hidden layers": (lambda: dense(3, 8, 8, 2), (3,)),
    "three hidden layers": (lambda: dense(3, 8, 8, 8, 1, activation=nn.Tanh), (3,)),
    "residual": (lambda: Residual().double(), (3,)),
    "convolutions": (image_network, (1, 6, 6)),
    "positions": (lambda: nn.Sequential(*dense(3, 8, 4), nn.Flatten(), nn.Linear(20, 1)).double(), (5, 3)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_deep_networks_agree_with_sampling_for_small_scales(name: str) -> None:
    """First order in the covariances: with σ = 0.05 the rest is below 3 %, beside 4 standard errors of 2,000 draws.

    The mean is within 5 % of a standard deviation beside 4 standard errors.
    """
    build, shape = NETWORKS[name]
    x, n = rows(4, *shape), 2000
    model = credo.BayesByBackprop(build(), credo.Gaussian(0.1), initial_scale=0.05)
    draws, p = outputs(model, x, n), model.predict(x, samples="moments")
    std = draws.std(0)
    assert bool(((p.mean - draws.mean(0)).abs() < std * (0.05 + 4 / n**0.5)).all())
    torch.testing.assert_close(p.epistemic.sqrt(), std, rtol=0.03 + 4 / (2 * n) ** 0.5, atol=0.0)


DROPOUT: dict[str, Any] = {
    "inserted": lambda: (dense(3, 20, 20, 1), {"p": 0.05}, (3,)),
    "inserted with noise": lambda: (
        image_network(),
        {"p": {"0.weight": 0.05, "*": 0.05}, "weight_noise": 0.02},
        (1, 6, 6),
    ),
    "connections": lambda: (image_network(), {"p": 0.05, "connections": True}, (1, 6, 6)),
    "own layers": lambda: (image_network(nn.Dropout(0.05)), {}, (1, 6, 6)),
    "own channels": lambda: (image_network(nn.Dropout2d(0.05)), {}, (1, 6, 6)),
}


@pytest.mark.parametrize("name", DROPOUT)
def test_dropout_agrees_with_sampling(name: str) -> None:
    """Masks are not Gaussian: with few units and a rate of 5 % the rest is below 10 %, beside 4 standard errors.

    The standard error of a standard deviation from n draws with kurtosis κ is √((κ − 1)/4n) of it; single masks of
    rate p have κ = 1/(p(1 − p)) − 3 = 18.
    """
    net, options, shape = DROPOUT[name]()
    x, n = rows(3, *shape), 1000
    model = credo.MCDropout(net, credo.Gaussian(0.1), **options)
    draws, p = outputs(model, x, n), model.predict(x, samples="moments")
    std = draws.std(0)
    assert bool(((p.mean - draws.mean(0)).abs() < std * (0.1 + 4 / n**0.5)).all())
    torch.testing.assert_close(p.epistemic.sqrt(), std, rtol=0.1 + 4 * (17 / (4 * n)) ** 0.5, atol=0.0)


def test_classes_are_integrated_over_the_logits() -> None:
    """Against the softmax of 100,000 draws from the same Gaussian: 128 Sobol points leave less than 0.01."""
    net, x = dense(3, 10), rows(6, 3)
    model = credo.BayesByBackprop(net, credo.Categorical(), initial_scale=0.5)
    p = model.predict(x, samples="moments")
    scale = 0.5 * (x.square().sum(1, keepdim=True) + 1.0).sqrt()
    noise = torch.randn(100_000, 6, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = (net(x).detach() + scale * noise).softmax(-1)
    torch.testing.assert_close(p.mean, expected.mean(0), rtol=0.0, atol=0.01)
    assert bool((p.mutual_information > 0).all())


def test_heteroscedastic_noise_is_integrated_over_the_log_variance() -> None:
    """E[e^s] = e^{m + v/2} for a Gaussian log variance s: 128 points are within 1 % of it for v < 0.3."""
    net, x = dense(3, 2), 0.3 * rows(6, 3)
    model = credo.BayesByBackprop(net, credo.Gaussian("heteroscedastic"), initial_scale=0.3)
    p = model.predict(x, samples="moments")
    variance = 0.3**2 * (x.square().sum(1) + 1.0)
    assert float(variance.max()) < 0.3
    torch.testing.assert_close(p.aleatoric[:, 0], (net(x)[:, 1].detach() + variance / 2).exp(), rtol=0.01, atol=0.0)
    torch.testing.assert_close(p.epistemic[:, 0], variance)


def test_many_outputs_have_the_right_variances() -> None:
    """More outputs than are worth following: 40 × 60 weights, 40 outputs; the variances of one layer are exact."""
    net, x = dense(60, 40, activation=nn.Identity), rows(3, 60)
    model = credo.BayesByBackprop(net, credo.Gaussian(0.1), initial_scale=0.2)
    p = model.predict(x, samples="moments")
    torch.testing.assert_close(p.mean, net(x).detach())
    torch.testing.assert_close(p.epistemic, (0.04 * (x.square().sum(1, keepdim=True) + 1.0)).expand(3, 40))


def test_wide_networks_know_the_covariances_of_their_last_layer_alone() -> None:
    """784-300-300-10: ten passes back through 90,000 weights cost too much."""
    model = credo.BayesByBackprop(dense(784, 300, 300, 10), credo.Categorical())
    evaluator = model._predictor("moments", None)._evaluate
    assert isinstance(evaluator, MomentEvaluator)
    _, covariance = evaluator.moments(rows(2, 784))
    assert evaluator._start == -1
    assert covariance is not None
    evaluator._start = 2
    _, followed = evaluator.moments(rows(2, 784))
    assert followed is not None
    torch.testing.assert_close(covariance, followed)


def test_covariances_are_followed_from_the_input_of_a_layer_on() -> None:
    """Not through the activation and the pooling before it, whose 72 units are independent as its 18 inputs are."""
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), *dense(18, 5, 3)).double()
    model = credo.BayesByBackprop(net, credo.Categorical(), initial_scale=0.2)
    evaluator = model._predictor("moments", None)._evaluate
    assert isinstance(evaluator, MomentEvaluator)
    _, here = evaluator._run(rows(2, 1, 8, 8), start=1)
    assert [tuple(noise.node.shape) for noise in here.noises] == [(2, 18), (2, 5), (2, 5), (2, 3)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [4, 600])
def test_networks_of_16_bits_have_positive_definite_covariances(dtype: torch.dtype, width: int) -> None:
    """Where covariances are followed, and where the last layer alone has them: three outputs of nearly equal weights.

    Moments are those of the same weights in float64, up to the roundings of two layers forward and backward, squared.
    """
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3))
    with torch.no_grad():
        net[4].weight[1:] = net[4].weight[:1]
    x = torch.randn(5, 3).to(dtype)
    model = credo.BayesByBackprop(net.to(dtype), credo.Gaussian(0.3), initial_scale=0.02)
    found = model.predict(x, samples="moments")
    wide = copy.deepcopy(model).double().predict(x.double(), samples="moments")
    assert found.epistemic.dtype == torch.float32
    error = (found.epistemic.double() / wide.epistemic - 1.0).abs().max()
    assert float(error) < 24 * torch.finfo(dtype).eps


@pytest.mark.parametrize("width", [4, 600])
def test_outputs_without_a_dimension_of_their_own(width: int) -> None:
    """A network that returns [B] has the predictions of the one that returns [B, 1]."""
    net, x = dense(3, width, width, 1), rows(5, 3)
    wide = credo.BayesByBackprop(net, credo.Gaussian(0.3)).predict(x, samples="moments")
    flat = credo.BayesByBackprop(nn.Sequential(net, nn.Flatten(0)), credo.Gaussian(0.3)).predict(x, samples="moments")
    torch.testing.assert_close(flat.mean, wide.mean[:, 0])
    torch.testing.assert_close(flat.epistemic, wide.epistemic[:, 0])


def test_a_map_estimate_predicts_its_point() -> None:
    net, x = dense(3, 5, 1), rows(4, 3)
    p = credo.MAP(net, credo.Gaussian(0.1)).predict(x, samples="moments")
    torch.testing.assert_close(p.mean, net(x).detach())
    assert not bool(p.epistemic.any())


def test_an_ensemble_mixes_the_moments_of_its_members() -> None:
    x = rows(4, 3)
    ensemble = credo.DeepEnsemble(
        [dense(3, 5, 1), dense(3, 6, 1)], base=credo.BayesByBackprop, likelihood=credo.Gaussian(0.1)
    )
    p = ensemble.predict(x, samples="moments")
    parts = [member.predict(x, samples="moments") for member in ensemble._models()]
    torch.testing.assert_close(p.mean, (parts[0].mean + parts[1].mean) / 2)


def test_only_the_head_is_random() -> None:
    """What comes before the first random layer runs as it is, whatever it is: here an LSTM and a softmax."""
    torch.manual_seed(0)
    model = credo.BayesByBackprop(Recurrent(nn.LSTM), credo.Gaussian(0.1), bayesian="head.*")
    x = torch.randn(3, 5, 3)
    torch.testing.assert_close(model.predict(x, samples="moments").mean, model.predict(x, samples=0).mean)


def test_prediction_is_deterministic_and_does_not_depend_on_batches() -> None:
    net, x = dense(3, 8, 8, 2), rows(11, 3)
    model = credo.BayesByBackprop(net, credo.Gaussian(0.1), initial_scale=0.2)
    state = torch.get_rng_state()
    whole = model.predict(x, samples="moments")
    assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(model.predict(x, samples="moments", seed=3, batch_size=4).draws, whole.draws)
    with torch.inference_mode():
        torch.testing.assert_close(model.predict(x, samples="moments").draws, whole.draws)
    streamed = list(model.stream([x[:5], x[5:]], samples="moments"))
    torch.testing.assert_close(torch.cat([p.mean for p in streamed]), whole.mean)
    assert model.predict(x[:0], samples="moments").mean.shape == (0, 2)
    assert model.predict(x[:1], samples="moments").mean.shape == (1, 2)


@pytest.mark.parametrize("method", [credo.BayesByBackprop, credo.MCDropout])
def test_the_network_is_left_as_it_was(method: type[NetworkMethod], tmp_path: Path) -> None:
    net = image_network(nn.Dropout(0.1)).float().train()
    before = copy.deepcopy(net.state_dict())
    x = torch.randn(4, 1, 6, 6, requires_grad=True)
    model = method(net, credo.Gaussian(0.1))
    found = model.predict(x, samples="moments")
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())
    assert net.training
    assert x.grad is None
    assert all(p.requires_grad and p.grad is None for p in net.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())
    model.save(tmp_path / "run")
    loaded = credo.load(tmp_path / "run", net=image_network(nn.Dropout(0.1)).float())
    torch.testing.assert_close(loaded.predict(x, samples="moments").draws, found.draws)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(3, 3), nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x) * self.scale
        return y


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.ModuleDict({"rnn": nn.LSTM(3, 4, batch_first=True)})
        self.head = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.encoder["rnn"](x)[0][:, -1])
        return y


REFUSED: dict[str, tuple[Any, tuple[int, ...], str]] = {
    "LSTM": (Encoder, (5, 3), r"through nn.LSTM \(layer 'encoder.rnn'\); use samples=100"),
    "used twice": (
        CalledTwice,
        (3,),
        r"nn.Linear \(layer 'shared'\), which uses the random parameter 'shared.weight' a",
    ),
    "outside of a layer": (Scaled, (3,), "mul in Scaled, a product of two random tensors"),
    "softmax": (lambda: nn.Sequential(nn.Linear(3, 2), nn.Softmax(-1)), (3,), r"nn.Softmax \(layer '1'\)"),
    "group norm": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.GroupNorm(2, 4)),
        (3,),
        r"nn.GroupNorm \(layer '1'\); use samples=100",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_networks_that_moments_cannot_pass_are_refused_by_name(name: str) -> None:
    build, shape, words = REFUSED[name]
    model = credo.BayesByBackprop(build(), credo.Gaussian(0.1))
    x = torch.randn(2, *shape)
    with pytest.raises(UnsupportedError, match=words):
        model.predict(x, samples="moments")
    assert len(model.predict(x, samples=2)) == 2


def test_an_unknown_word_for_samples_is_an_error() -> None:
    model = credo.BayesByBackprop(dense(3, 1), credo.Gaussian(0.1))
    with pytest.raises(InputError, match="or 'moments', got 'moment'"):
        model.predict(rows(2, 3), samples="moment")
    with pytest.raises(InputError, match="at least 0"):
        model.predict(rows(2, 3), samples=-1)
