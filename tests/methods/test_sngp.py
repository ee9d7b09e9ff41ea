"""SNGP against Bayesian linear regression on its features, and against the Gaussian process that they approximate."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import credo
from credo.errors import InputError, LoadError, UnsupportedError
from credo.gaussian_process import GaussianProcessRegressor
from credo.gaussian_process.kernels import RBF, Constant
from credo.linear import BayesianLinearRegression
from credo.methods._expected_log_likelihood import expected_log_prob
from credo.methods._spectral_norm import SpectralBound
from credo.methods.sngp import RandomFourierFeatures
from credo.posteriors.last_layer import OutputPrecisionGaussian
from credo.predictive import ExactGaussianPredictive
from credo.testing import check_posterior

N, D, SCALE, NOISE = 24, 2, 1.5, 0.3


def data() -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(0)
    x = torch.randn(N, D, generator=source, dtype=torch.float64)
    y = torch.stack([x[:, 0].sin(), x[:, 1] - x[:, 0]], 1)
    return x, y + NOISE * torch.randn(N, 2, generator=source, dtype=torch.float64)


def mlp(outputs: int, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(D, 6), nn.Tanh(), nn.Linear(6, outputs)).to(dtype)


def sngp(likelihood: credo.Likelihood, outputs: int = 2, **options: Any) -> credo.SNGP:
    return credo.SNGP(mlp(outputs), likelihood, credo.Normal(0.0, SCALE), features=12, **options)


def features(model: credo.SNGP, x: Tensor) -> Tensor:
    """φ, ``[N, M]``, of a network whose last module is the random features and the last layer."""
    return model.net[2][0](model.net[:2](x)).detach()


def test_random_features_have_the_kernel() -> None:
    """The standard error of every product is at most 1/√M; the largest of 45 is below four of them."""
    torch.manual_seed(0)
    x = torch.randn(10, 3)
    phi = RandomFourierFeatures(3, 20_000, 1.7)(x)
    kernel = torch.exp(-0.5 * torch.cdist(x, x).square() / 1.7**2)
    assert float((phi @ phi.mT - kernel).abs().max()) < 4 / math.sqrt(20_000)


@pytest.mark.parametrize("batch_size", [5, N])
def test_the_precision_is_the_sum_over_the_data(batch_size: int) -> None:
    """P_k = I/s² + Σ w_n·p_nk·(1 − p_nk)·φ_n·φ_nᵀ, for any size of minibatches."""
    x, _ = data()
    y, weight = torch.arange(N) % 3, torch.linspace(0.5, 2, N, dtype=torch.float64)
    model = sngp(credo.Categorical(), 3)
    model.fit((x, y, weight), epochs=1, batch_size=batch_size, progress=False, seed=0)
    phi, p = features(model, x), model.net(x).softmax(-1).detach()
    for k in range(3):
        curvature = weight * p[:, k] * (1 - p[:, k])
        expected = torch.eye(12, dtype=x.dtype) / SCALE**2 + torch.einsum("n,ni,nj->ij", curvature, phi, phi)
        torch.testing.assert_close(model.posterior.precision[k], expected)


def test_gaussian_noise_gives_bayesian_linear_regression_on_the_features() -> None:
    """Mean, covariance, prediction and evidence, although training stopped far from the maximum.

    The ELBO of 500 draws is within four standard errors of the evidence.
    """
    x, y = data()
    model = sngp(credo.Gaussian(NOISE)).fit((x, y), epochs=2, batch_size=7, progress=False, seed=0)
    phi, evidence = features(model, x), 0.0
    found = model.predict(x, samples="moments")
    for k in range(2):
        exact = BayesianLinearRegression(fit_intercept=False, weight_precision=SCALE**-2, noise_precision=NOISE**-2)
        expected = exact.fit(phi.numpy(), y[:, k].numpy()).predict_dist(phi.numpy())
        torch.testing.assert_close(model.net[2][1].weight[k].detach(), torch.as_tensor(exact.coef_))
        torch.testing.assert_close(model.posterior.precision[k].inverse(), torch.as_tensor(exact.sigma_))
        torch.testing.assert_close(found.mean[:, k], expected.mean)
        torch.testing.assert_close(found.epistemic[:, k], expected.epistemic)
        torch.testing.assert_close(found.aleatoric[:, k], expected.aleatoric)
        assert exact.log_evidence_ is not None
        evidence += exact.log_evidence_
    variance = model.posterior.output_variance(phi)
    expected_fit = expected_log_prob(model.likelihood, model.net(x), variance, y).sum()
    bound = expected_fit - model.posterior.kl_to(model._priors_here)
    assert float(bound.detach()) == pytest.approx(evidence, abs=1e-8)
    draws = model.predict(x, samples=500, seed=0).draws
    by_draw = model.likelihood.components(draws).row_log_prob(y).sum(1)
    error = float(by_draw.std()) / math.sqrt(500)
    assert abs(model.elbo((x, y), samples=500, seed=0) - evidence) < 4 * error


def test_the_prior_mean_counts() -> None:
    """With hardly any data, the posterior mean is that of the prior."""
    x, y = data()
    model = credo.SNGP(mlp(2), credo.Gaussian(1e4), credo.Normal(0.7, 0.1), features=8)
    model.fit((x, y), epochs=1, progress=False, seed=0)
    torch.testing.assert_close(model.net[2][1].weight.detach(), torch.full((2, 8), 0.7).double(), rtol=1e-4, atol=0)


LENGTH, NEW = 0.8, torch.tensor([[-3.0], [-1.1], [0.1], [1.3], [2.5]], dtype=torch.float64)


def curve() -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(0)
    x = torch.linspace(-2, 2, 8, dtype=torch.float64)[:, None]
    return x, (2 * x).sin() + 0.1 * torch.randn(8, 1, generator=source, dtype=torch.float64)


def process() -> ExactGaussianPredictive:
    """The Gaussian process with kernel exp(−(x − x')²/(2ℓ²)) and noise of standard deviation 1, at the new points."""
    x, y = curve()
    kernel = Constant(1.0, "fixed") * RBF(LENGTH, "fixed")
    exact = GaussianProcessRegressor(kernel, noise=1.0, optimizer=None, normalize_y=False)
    return exact.fit(x.numpy(), y[:, 0].numpy()).predict_dist(NEW.numpy())


def on_inputs(count: int, seed: int) -> credo.SNGP:
    """With the inputs themselves in front of the random features."""
    torch.manual_seed(seed)
    model = credo.SNGP(nn.Linear(1, 1).double(), credo.Gaussian(1.0), features=count, length_scale=LENGTH)
    return model.fit(curve(), epochs=0)


def test_predictions_approach_the_gaussian_process() -> None:
    r"""Mean and variance with 1,024 features are within four standard errors of the process.

    With z_m = √M·φ_m, A = (K + σ²I)⁻¹, b = A·k* and α = A·y, a kernel that is off by dK changes the mean at x* by
    dk*ᵀα − bᵀ·dK·α and the variance by dk** − 2·bᵀdk* + bᵀ·dK·b, to first order. Both are means over the M features of
    (z* − bᵀz)·(zᵀα) and (z* − bᵀz)², minus their expectations; their standard deviations over m give the errors.
    """
    count = 1024
    (x, y), exact, model = curve(), process(), on_inputs(count, seed=0)
    found = model.predict(NEW, samples="moments")

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        return torch.exp(-0.5 * (a - b.mT).square() / LENGTH**2)

    inverse = (kernel(x, x) + torch.eye(8, dtype=x.dtype)).inverse()
    alpha, b = inverse @ y, inverse @ kernel(x, NEW)
    z, z_new = (math.sqrt(count) * model.net[0](points) for points in (x, NEW))
    residual = z_new - b.mT @ z
    mean_error = (residual * (alpha.mT @ z)).std(1) / math.sqrt(count)
    variance_error = residual.square().std(1) / math.sqrt(count)
    assert float(((found.mean[:, 0] - exact.mean).abs() / mean_error).max()) < 4.0
    assert float(((found.epistemic[:, 0] - exact.epistemic).abs() / variance_error).max()) < 4.0


def test_the_distance_to_the_gaussian_process_falls_with_the_number_of_features() -> None:
    """Root mean squared error of the mean over ten sets of features: 16 times as many have a quarter of the error.

    Each of the two has a relative standard error of 1/√20, so the logarithm of the ratio one of 0.32; within three of
    them the ratio is between 1.5 and 10.4.
    """
    exact = process()
    errors = [
        torch.stack([on_inputs(count, s).predict(NEW, samples="moments").mean[:, 0] - exact.mean for s in range(10)])
        for count in (64, 1024)
    ]
    few, many = (float(error.square().mean().sqrt()) for error in errors)
    assert 1.5 < few / many < 10.4


def conv_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3, stride=2), nn.Flatten(), nn.Linear(16, 8), nn.Linear(8, 3)
    )


@pytest.mark.parametrize("channels_last", [False, True])
def test_spectral_norms_are_bounded_after_training(channels_last: bool) -> None:
    """To rounding: a matrix that is scaled to c has a norm within a few float32 rounding errors of it."""
    torch.manual_seed(1)
    x, y = torch.randn(64, 1, 7, 7), torch.randint(3, (64,))
    net = conv_net()
    if channels_last:
        net = net.to(memory_format=torch.channels_last)
    options: dict[str, Any] = {"epochs": 5, "batch_size": 16, "lr": 0.05, "progress": False, "seed": 0}
    bounded = credo.SNGP(net, features=32, spectral_bound=0.8).fit((x, y), **options)
    free = credo.SNGP(net, features=32, spectral_bound=None).fit((x, y), **options)
    for path in ("0", "2", "4"):
        norms = [torch.linalg.matrix_norm(m.net.get_submodule(path).weight.flatten(1), 2) for m in (bounded, free)]
        assert float(norms[0].detach()) <= 0.8 * (1 + 1e-5)
        assert float(norms[1].detach()) > 0.8
    assert bounded._spectral is not None
    assert set(bounded._spectral.norms()) == {"0.weight", "2.weight", "4.weight"}


def test_weights_within_the_bound_stay_as_they_are() -> None:
    net = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5)).double()
    with torch.no_grad():
        net[0].weight.copy_(torch.diag(torch.tensor([0.9, 0.5, 0.3, 0.2, 0.1])))
        net[1].weight.copy_(torch.diag(torch.tensor([4.0, 1.0, 0.3, 0.2, 0.1])))
    before = copy.deepcopy(net)
    spectral = SpectralBound(net, ["0.weight", "1.weight"], 1.0)
    spectral.project()
    torch.testing.assert_close(net[0].weight, before[0].weight, rtol=0, atol=0)
    torch.testing.assert_close(net[1].weight, before[1].weight / 4.0)
    spectral.project_exactly()
    assert {name: float(norm) for name, norm in spectral.norms().items()} == pytest.approx(
        {"0.weight": 0.9, "1.weight": 1.0}
    )


def blobs() -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(0)
    y = torch.arange(80) % 2
    centers = torch.stack([2.0 * y - 1.0, torch.zeros(80)], 1)
    return centers + 0.3 * torch.randn(80, 2, generator=source), y


def test_uncertainty_grows_away_from_the_data_and_a_plain_network_becomes_certain() -> None:
    """Along the line through both classes, at 1 (a center), 3, 6 and 20.

    A plain network of ReLUs is linear far away, so its logits grow; the kernel of SNGP to all data tends to 0, where
    the probabilities of two independent N(0, s²) logits have the mean ½.
    """
    x, y = blobs()
    options: dict[str, Any] = {"epochs": 60, "lr": 1e-2, "batch_size": 40, "progress": False, "seed": 0}

    def net() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))

    points = torch.tensor([[1.0, 0.0], [3.0, 0.0], [6.0, 0.0], [20.0, 0.0]])
    plain = credo.MAP(net(), credo.Categorical(), credo.Normal(0.0, 10.0)).fit((x, y), **options).predict(points)
    torch.manual_seed(0)
    model = credo.SNGP(net(), credo.Categorical(), credo.Normal(0.0, 3.0), features=256, length_scale=0.5)
    ours = model.fit((x, y), **options).predict(points, samples=400, seed=0)
    assert bool((plain.entropy.diff() <= 0).all())
    assert float(plain.entropy[-1]) < 1e-3
    assert bool((ours.entropy.diff()[:2] > 0).all())
    assert float(ours.epistemic[2]) > 5 * float(ours.epistemic[0])
    accuracy = float((model.predict(x, samples=50, seed=0).mode == y).float().mean())
    assert accuracy > 0.95


def test_the_network_that_is_passed_is_not_changed() -> None:
    x, y = (part.float() for part in data())
    net = mlp(2, torch.float32)
    before = copy.deepcopy(net.state_dict())
    model = credo.SNGP(net, credo.Gaussian("learned"), features=16).fit((x, y), epochs=2, progress=False)
    assert list(net.state_dict()) == list(before)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert isinstance(model.net[2][0], RandomFourierFeatures)
    assert model.posterior.names() == ["2.1.weight"]
    assert "16 random features" in model.summary()


def test_closed_form_and_draws_agree() -> None:
    """Of 4,000 draws: the mean within four standard errors, the epistemic variance within 4·√(2/4000) = 9 %."""
    x, y = data()
    model = sngp(credo.Gaussian(NOISE)).fit((x, y), epochs=2, progress=False, seed=0)
    exact, drawn = model.predict(x, samples="moments"), model.predict(x, samples=4000, seed=1)
    error = exact.epistemic.sqrt() / math.sqrt(4000)
    assert float(((drawn.mean - exact.mean).abs() / error).max()) < 4.0
    assert float((drawn.epistemic / exact.epistemic - 1).abs().max()) < 4 * math.sqrt(2 / 4000)


def test_other_likelihoods_and_squeezed_outputs() -> None:
    """λ = e^f for counts, and p(1 − p) for a yes or no."""
    x, _ = data()
    net = nn.Sequential(nn.Linear(D, 4), nn.Tanh(), nn.Linear(4, 1), nn.Flatten(0)).double()
    for likelihood in (credo.Poisson(), credo.Bernoulli()):
        y = (torch.arange(N) % 2).double()
        model = credo.SNGP(net, likelihood, features=6).fit((x, y), epochs=1, progress=False, seed=0)
        phi, f = features(model, x), model.net(x).detach()
        curvature = f.exp() if isinstance(likelihood, credo.Poisson) else f.sigmoid() * (1 - f.sigmoid())
        expected = torch.eye(6, dtype=x.dtype) + torch.einsum("n,ni,nj->ij", curvature, phi, phi)
        torch.testing.assert_close(model.posterior.precision[0], expected)
        assert model.predict(x, samples="moments").mean.shape == (N,)


def test_saving(tmp_path: Path) -> None:
    x, y = (part.float() for part in data())
    net = credo.architectures.MLP(D, (8,), 2)
    model = credo.SNGP(net, credo.Gaussian(0.3), features=16).fit((x, y), epochs=2, progress=False)
    model.save(tmp_path / "run")
    loaded = credo.load(tmp_path / "run")
    assert torch.equal(loaded.predict(x, seed=0).draws, model.predict(x, seed=0).draws)
    card = json.loads((tmp_path / "run" / "card.json").read_text())
    card["config"]["features"] = 10**8
    (tmp_path / "run" / "card.json").write_text(json.dumps(card))
    with pytest.raises(LoadError, match="random features"):
        credo.load(tmp_path / "run")


def test_an_ensemble_of_them() -> None:
    x, y = (part.float() for part in data())
    ensemble = credo.DeepEnsemble(mlp(2, torch.float32), 2, credo.SNGP, likelihood=credo.Gaussian(0.3), features=8)
    ensemble.fit((x, y), epochs=1, progress=False, seed=0)
    assert ensemble.predict(x, samples=4, seed=0).mean.shape == y.shape


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_posterior_keeps_the_contract(dtype: torch.dtype) -> None:
    net = mlp(2, dtype)
    posterior = OutputPrecisionGaussian(net, ["2.weight", "2.bias"], torch.linspace(2, 9, 14).view(2, 7))
    check_posterior(posterior, net)
    torch.testing.assert_close(
        posterior.variance()["2.bias"], (1 / torch.linspace(2, 9, 14).view(2, 7)[:, -1]).double()
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"features": 0}, "features must be an integer of at least 1"),
        ({"length_scale": 0.0}, "length_scale must be a positive number"),
        ({"spectral_bound": -1.0}, "spectral_bound must be a positive number"),
        ({"layer": "7"}, "layer"),
        ({"prior": credo.AdaptiveNormal()}, "needs a credo.Normal"),
        ({"prior": credo.LaplacePrior()}, "needs a Gaussian"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises((InputError, UnsupportedError), match=message):
        credo.SNGP(mlp(2), **options)


def test_a_later_minibatch_that_does_not_match_is_named() -> None:
    """With ``epochs=0`` no training step looks at the data before the posterior."""
    torch.manual_seed(0)
    x, y = torch.randn(8, 3), torch.randn(8, 1)
    y[5] = torch.nan
    model = credo.SNGP(nn.Linear(3, 1), credo.Gaussian(0.3), features=4)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(InputError, match="y holds 1 value"):
        model.fit(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), 4), epochs=0)
    assert all(torch.equal(value, before[name]) for name, value in model.net.state_dict(prefix="net.").items())


def test_an_interrupted_fit_leaves_no_precision_of_other_features() -> None:
    def stop(model: Any, entry: dict[str, float]) -> None:
        raise KeyboardInterrupt

    torch.manual_seed(0)
    x, y = torch.randn(20, 3), torch.randn(20, 1)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    model = credo.SNGP(net, credo.Gaussian(0.3), features=8).fit((x, y), epochs=2)
    expected = model.predict(x, samples="moments").epistemic
    with pytest.raises(InputError, match="unknown option"):
        model.fit((x, y), epoch=1)
    assert torch.equal(model.predict(x, samples="moments").epistemic, expected)
    with pytest.raises(KeyboardInterrupt):
        model.fit((x, y), epochs=2, on_epoch_end=stop)
    with pytest.raises(InputError, match=r"fit\(data, epochs=0\) after training"):
        model.predict(x, samples="moments")
