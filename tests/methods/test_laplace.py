"""The Laplace approximation against closed forms: linear models, Jacobians by torch.func, brute-force curvature."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev

import credo
from credo.curvature import output_factors
from credo.errors import InputError, UnsupportedError
from credo.linear import BayesianLinearRegression
from credo.methods import NetworkMethod

STRUCTURES = ("full", "kron", "diag", "low_rank")
N, D = 30, 3


def linear_data() -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(0)
    x = torch.randn(N, D, generator=source, dtype=torch.float64)
    slope = torch.tensor([[1.0], [-0.5], [0.2]], dtype=torch.float64)
    return x, x @ slope + 0.3 * torch.randn(N, 1, generator=source, dtype=torch.float64)


def exact_posterior(x: Tensor, y: Tensor, alpha: float, beta: float) -> tuple[Tensor, Tensor]:
    """Mean and precision of p(w | y) of linear regression without an intercept."""
    precision = alpha * torch.eye(x.shape[1], dtype=x.dtype) + beta * x.mT @ x
    return torch.linalg.solve(precision, beta * x.mT @ y)[:, 0], precision


def linear_model(alpha: float = 2.0, noise: float = 0.3, **options: Any) -> credo.Laplace:
    """At the exact maximum a posteriori."""
    x, y = linear_data()
    net = nn.Linear(D, 1, bias=False).double()
    with torch.no_grad():
        net.weight.copy_(exact_posterior(x, y, alpha, noise**-2)[0])
    prior = credo.Normal(0.0, alpha**-0.5)
    return credo.Laplace(net, credo.Gaussian(noise), prior, **options).fit((x, y), epochs=0)


def mlp(outputs: int = 3, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, outputs)).double()


def conv_net() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(18, 3)]
    return nn.Sequential(*layers).double()


def classes(shape: tuple[int, ...], rows: int = 12) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(1)
    x = torch.randn(rows, *shape, generator=source, dtype=torch.float64)
    return x, torch.randint(3, (rows,), generator=source)


def jacobian(net: nn.Module, names: list[str], x: Tensor) -> Tensor:
    """``[B, C, P]``."""
    own = dict(net.named_parameters())
    weights = {name: own[name].detach() for name in names}
    found = jacrev(lambda w: functional_call(net, w, (x,)).flatten(1))(weights)
    return torch.cat([found[name].flatten(2) for name in names], dim=2)


def gauss_newton(model: NetworkMethod, x: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
    j = jacobian(model.net, model.posterior.names(), x)
    g = torch.einsum("kbc,bcp->kbp", output_factors(model.likelihood, model.net(x), y, weight), j).flatten(0, 1)
    return g.mT @ g


def flat(draw: dict[str, Tensor]) -> Tensor:
    return torch.cat([value.flatten() for value in draw.values()])


def fit(net: nn.Module, data: tuple[Tensor, ...], **options: Any) -> credo.Laplace:
    return credo.Laplace(net, options.pop("likelihood", credo.Categorical()), **options).fit(data, epochs=0)


@pytest.mark.parametrize("structure", ["full", "kron", "low_rank"])
def test_a_linear_model_has_the_exact_posterior_and_evidence(structure: str) -> None:
    x, y = linear_data()
    alpha, noise = 2.0, 0.3
    model = linear_model(alpha, noise, structure=structure)
    mean, precision = exact_posterior(x, y, alpha, noise**-2)
    torch.testing.assert_close(flat(model.posterior.mean()), mean)
    torch.testing.assert_close(flat(model.posterior.variance()), precision.inverse().diagonal())
    marginal = torch.distributions.MultivariateNormal(
        torch.zeros(N, dtype=x.dtype), noise**2 * torch.eye(N, dtype=x.dtype) + x @ x.mT / alpha
    )
    assert model.log_marginal_likelihood() == pytest.approx(float(marginal.log_prob(y[:, 0])), abs=1e-8)
    exact = BayesianLinearRegression(fit_intercept=False, weight_precision=alpha, noise_precision=noise**-2)
    expected = exact.fit(x.numpy(), y[:, 0].numpy()).predict_dist(x.numpy())
    found = model.predict(x)
    torch.testing.assert_close(found.mean[:, 0], expected.mean)
    torch.testing.assert_close(found.epistemic[:, 0], expected.epistemic)
    torch.testing.assert_close(found.aleatoric[:, 0], expected.aleatoric)
    assert exact.log_evidence_ == pytest.approx(model.log_marginal_likelihood(), abs=1e-8)


def test_training_finds_the_maximum_of_a_linear_model() -> None:
    """Adam with a learning rate that decays to 0 stops within 1e-3 posterior standard deviations of the maximum."""
    x, y = linear_data()
    mean, precision = exact_posterior(x, y, 2.0, 0.3**-2)
    net = nn.Linear(D, 1, bias=False).double()
    model = credo.Laplace(net, credo.Gaussian(0.3), credo.Normal(0.0, 2.0**-0.5), structure="full")
    model.fit((x, y), epochs=400, lr=0.05, batch_size=N, progress=False, seed=0)
    deviation = (flat(model.posterior.mean()) - mean).abs() / precision.inverse().diagonal().sqrt()
    assert float(deviation.max()) < 1e-3
    assert len(model.history) == 400


def test_the_diagonal_is_that_of_the_precision() -> None:
    x, y = linear_data()
    _, precision = exact_posterior(x, y, 2.0, 0.3**-2)
    model = linear_model(structure="diag")
    torch.testing.assert_close(flat(model.posterior.variance()), 1.0 / precision.diagonal())


@pytest.mark.parametrize("structure", ["full", "kron", "low_rank"])
def test_the_best_prior_of_a_linear_model_is_that_of_the_evidence(structure: str) -> None:
    """Optimizing the prior and moving the weights to their new maximum, in turn, ends where the evidence is highest."""
    x, y = linear_data()
    noise = 0.3
    exact = BayesianLinearRegression(fit_intercept=False, noise_precision=noise**-2).fit(x.numpy(), y[:, 0].numpy())
    model = linear_model(1.0, noise, structure=structure)
    for _ in range(20):
        model.optimize_prior()
        with torch.no_grad():
            alpha = float(model.posterior.prior_precision)
            model.net.weight.copy_(exact_posterior(x, y, alpha, noise**-2)[0])
        model.fit((x, y), epochs=0)
    assert float(np.asarray(exact.weight_precision_)) == pytest.approx(alpha, rel=1e-6)
    assert isinstance(model.prior, credo.Normal)
    assert float(model.prior.scale) == pytest.approx(alpha**-0.5)
    assert exact.log_evidence_ == pytest.approx(model.log_marginal_likelihood(), abs=1e-8)


@pytest.mark.parametrize("groups", ["all", "layer"])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_the_optimized_prior_is_a_stationary_point_of_the_evidence(structure: str, groups: str) -> None:
    """A central difference of step h in log δ has a truncation error of order h², here 1e-8."""
    x, y = classes((4,))
    prior = {"*.bias": credo.Normal(0.1, 0.5), "*": credo.Normal(0.0, 1.0)}
    model = fit(mlp(), (x, y), structure=structure, prior=prior).optimize_prior(groups)
    delta = model.posterior.prior_precision
    best, step = model.log_marginal_likelihood(), 1e-4
    members = [[0, 1, 2, 3]] if groups == "all" else [[0, 1], [2, 3]]
    for group in members:
        values = []
        for sign in (1.0, -1.0):
            delta[group] *= math.exp(sign * step)
            values.append(model.log_marginal_likelihood())
            delta[group] /= math.exp(sign * step)
        assert abs(values[0] - values[1]) / (2.0 * step) < 1e-5
        assert max(values) <= best + 1e-12
    scales = [float(model._priors[name].scale) for name in model.posterior.names()]  # type: ignore[attr-defined]
    torch.testing.assert_close(torch.tensor(scales).double(), delta.rsqrt())


@pytest.mark.parametrize("structure", STRUCTURES)
def test_an_adaptive_prior_ends_at_its_fixed_point(structure: str) -> None:
    """s² = (2b + Σ(w² + σ²))/(K + 2a + 2), the equation of :class:`credo.AdaptiveNormal`, for every layer."""
    x, y = classes((4,))
    prior = credo.AdaptiveNormal(shape=1.5, rate=0.7)
    model = fit(mlp(), (x, y), structure=structure, prior=prior)
    mean, variance = model.posterior.mean(), model.posterior.variance()
    scales = dict(zip(mean, model.posterior.prior_precision.rsqrt().tolist(), strict=True))
    for path in ("0", "2"):
        own = [f"{path}.weight", f"{path}.bias"]
        best = prior.best_scale(flat({n: mean[n] for n in own}), flat({n: variance[n] for n in own}).sqrt())
        for name in own:
            assert scales[name] == pytest.approx(float(best), rel=1e-6)
    with pytest.raises(InputError, match="learned by fit"):
        model.optimize_prior()


@pytest.mark.parametrize("network", ["mlp", "conv"])
def test_full_and_diagonal_equal_brute_force(network: str) -> None:
    """With sample weights, and in batches."""
    net, shape = (mlp(), (4,)) if network == "mlp" else (conv_net(), (2, 4, 4))
    x, y = classes(shape)
    weight = torch.rand(len(y), generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    model = credo.Laplace(net, credo.Categorical(), structure="full").fit((x, y, weight), epochs=0, batch_size=5)
    expected = gauss_newton(model, x, y, weight)
    torch.testing.assert_close(model.posterior.hessian, expected)
    diagonal = credo.Laplace(net, credo.Categorical(), structure="diag").fit((x, y, weight), epochs=0, batch_size=5)
    torch.testing.assert_close(flat(diagonal.posterior.variance()), 1.0 / (expected.diagonal() + 1.0))
    logdet = (expected.diagonal() + 1.0).log().sum()
    torch.testing.assert_close(diagonal.posterior.log_determinant(), logdet)


def kronecker_precision(model: credo.Laplace, x: Tensor, y: Tensor, delta: Tensor) -> list[Tensor]:
    """B ⊗ A + diag(δ) of every layer by its definition, from inputs and output gradients by plain hooks."""
    layers = [m for m in model.net.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []

    def record(layer: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        inputs.append(args[0])
        outputs.append(output)

    for layer in layers:
        layer.register_forward_hook(record)
    f = model.net(x)
    found, position = [], 0
    for layer, a, z in zip(layers, inputs, outputs, strict=True):
        if isinstance(layer, nn.Conv2d):
            a = nn.functional.unfold(a, layer.kernel_size, padding=layer.padding).mT
        a = a.reshape(len(x), -1, a.shape[-1])
        a = torch.cat([a, torch.ones_like(a[..., :1])], -1).flatten(0, 1).detach()
        factor_b = torch.zeros(z.shape[1], z.shape[1], dtype=x.dtype)
        for column in output_factors(model.likelihood, f, y):
            (g,) = torch.autograd.grad(f, z, column, retain_graph=True)
            g = g.flatten(2).mT.flatten(0, 1) if g.dim() == 4 else g
            factor_b += g.mT @ g
        weight, bias = delta[position : position + 2]
        position += 2
        prior = torch.cat([weight.expand(a.shape[1] - 1), bias[None]]).repeat(len(factor_b))
        found.append(torch.kron(factor_b, a.mT @ a / len(a)) + prior.diag())
    return found


@pytest.mark.parametrize("network", ["mlp", "conv"])
def test_kronecker_factors_follow_their_definition(network: str) -> None:
    """Also where the bias has another prior than the weight."""
    net, shape = (mlp(), (4,)) if network == "mlp" else (conv_net(), (2, 4, 4))
    x, y = classes(shape)
    prior = {"*.bias": credo.Normal(0.0, 2.0), "*": credo.Normal(0.0, 0.7)}
    model = credo.Laplace(net, credo.Categorical(), prior, structure="kron").fit((x, y), epochs=0, batch_size=5)
    assert model.posterior.layers == [path for path, m in net.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    precisions = kronecker_precision(model, x, y, model.posterior.prior_precision)
    logdet = torch.stack([p.logdet() for p in precisions]).sum()
    torch.testing.assert_close(model.posterior.log_determinant(), logdet)
    variances = model.posterior.variance()
    total = torch.zeros(len(x), 3, 3, dtype=x.dtype)
    for path, precision in zip(model.posterior.layers, precisions, strict=True):
        covariance = precision.inverse()
        rows = len(variances[f"{path}.bias"])
        matrix = covariance.diagonal().view(rows, -1)
        torch.testing.assert_close(variances[f"{path}.weight"].reshape(rows, -1), matrix[:, :-1])
        torch.testing.assert_close(variances[f"{path}.bias"], matrix[:, -1])
        parts = [jacobian(net, [f"{path}.{key}"], x).view(len(x), 3, rows, -1) for key in ("weight", "bias")]
        j = torch.cat(parts, -1).flatten(2)
        total += j @ covariance @ j.mT
    found = predictor_covariance(model, x)
    torch.testing.assert_close(found, total)


@pytest.mark.parametrize("network", ["mlp", "conv"])
def test_large_factors_are_added_a_few_rows_at_a_time(network: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("credo.posteriors.kronecker._ROWS_AT_ONCE", 2)
    test_kronecker_factors_follow_their_definition(network)


def test_kronecker_factors_where_single_precision_does_not_converge(monkeypatch: pytest.MonkeyPatch) -> None:
    """LAPACK gives up on some matrices with many equal eigenvalues; double precision has the same posterior.

    Both variances have relative errors of a few roundings of float32, times the 33 terms of a row of the factors.
    """
    plain, failed = torch.linalg.eigh, []

    def fails(matrix: Tensor, out: object) -> object:
        if matrix.dtype == torch.float32:
            failed.append(matrix.mul_(math.nan))  # what LAPACK leaves behind is not the matrix
            raise torch.linalg.LinAlgError("the algorithm failed to converge")
        return plain(matrix, out=out)

    torch.manual_seed(0)
    net, x, y = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 3)), torch.randn(2, 3), torch.tensor([0, 2])
    first, second = (credo.Laplace(net, credo.Categorical(), structure="kron") for _ in range(2))
    first.fit((x, y), epochs=0)
    monkeypatch.setattr(torch.linalg, "eigh", fails)
    second.fit((x, y), epochs=0)
    assert failed
    bound = 33 * torch.finfo(torch.float32).eps
    torch.testing.assert_close(flat(second.posterior.variance()), flat(first.posterior.variance()), rtol=bound, atol=0)


@pytest.mark.parametrize("noise", [0.3, 1e-3])
def test_low_rank_in_single_precision_is_that_in_double(noise: float) -> None:
    """Where priors differ in scale and the data say much: a small variance is left of a large one.

    J has relative errors of ε, 10 roundings of which enter the standard deviation of an output as one of the prior.
    """
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 10), nn.Tanh(), nn.Linear(10, 1))
    x, y = torch.randn(100, 4), torch.randn(100, 1)
    prior = {"2.weight": credo.Normal(0.0, 100.0), "0.bias": credo.Normal(0.0, 0.1), "*": credo.Normal(0.0, 10.0)}
    found = []
    for structure, dtype in (("full", torch.float64), ("low_rank", torch.float32)):
        model = credo.Laplace(copy.deepcopy(net).to(dtype), credo.Gaussian(noise), prior, structure=structure, rank=100)
        model.fit((x.to(dtype), y.to(dtype)), epochs=0)
        found.append(predictor_covariance(model, x.to(dtype)).flatten().double())
    deltas = model.posterior._flat_precision(torch.float32)
    before = (jacobian(net, model.posterior.names(), x).square() @ (1.0 / deltas)).flatten()
    error = (found[1].sqrt() - found[0].sqrt()).abs()
    assert bool((error < 10 * torch.finfo(torch.float32).eps * before.sqrt()).all())
    variance = flat(model.posterior.variance())
    assert bool(((variance > 0.0) & (variance <= 1.0 / deltas)).all())


def test_one_layer_with_constant_curvature_is_a_kronecker_product() -> None:
    source = torch.Generator().manual_seed(0)
    x, y = (torch.randn(20, k, generator=source, dtype=torch.float64) for k in (3, 2))
    net = nn.Linear(3, 2).double()
    likelihood = credo.Gaussian([0.3, 0.8])
    full = fit(net, (x, y), structure="full", likelihood=likelihood)
    kron = fit(net, (x, y), structure="kron", likelihood=likelihood)
    torch.testing.assert_close(flat(kron.posterior.variance()), flat(full.posterior.variance()))
    torch.testing.assert_close(predictor_covariance(kron, x), predictor_covariance(full, x))
    assert kron.log_marginal_likelihood() == pytest.approx(full.log_marginal_likelihood(), abs=1e-8)


def predictor_covariance(model: credo.Laplace, x: Tensor) -> Tensor:
    moments = model._predictor(1, 0)._moments(x, None)
    assert moments is not None
    covariance: Tensor = moments[1]
    return covariance


@pytest.mark.parametrize("structure", STRUCTURES)
def test_the_linearized_covariance_is_that_of_the_draws(structure: str) -> None:
    """J·Σ·Jᵀ and the marginal variances, with Σ = R·Rᵀ from the map R of noise to draws, exactly."""
    x, y = classes((4,))
    net = mlp()
    model = fit(net, (x, y), structure=structure, prior=credo.Normal(0.0, 0.8), rank=7)
    perturb, mean = model.posterior._perturbation(), model.posterior.mean()
    size = sum(w.numel() for w in mean.values())
    root = torch.stack([flat(perturb(model.posterior._split(unit))) for unit in torch.eye(size).double()], dim=1)
    covariance = root @ root.mT
    j = jacobian(net, model.posterior.names(), x)
    torch.testing.assert_close(predictor_covariance(model, x), j @ covariance @ j.mT)
    torch.testing.assert_close(flat(model.posterior.variance()), covariance.diagonal())
    torch.testing.assert_close(model.posterior.log_determinant(), -torch.linalg.slogdet(covariance)[1])


def test_low_rank_keeps_the_largest_eigenvalues_and_reaches_the_full_matrix() -> None:
    x, y = classes((4,))
    net = mlp()
    full = fit(net, (x, y), structure="full")
    values = torch.linalg.eigvalsh(full.posterior.hessian)
    few = fit(net, (x, y), structure="low_rank", rank=6)
    torch.testing.assert_close(few.posterior.values, values[-6:])
    rank = int((values > 1e-10).sum())
    for enough in (rank, len(values)):
        model = fit(net, (x, y), structure="low_rank", rank=enough)
        torch.testing.assert_close(predictor_covariance(model, x), predictor_covariance(full, x))
        assert model.log_marginal_likelihood() == pytest.approx(full.log_marginal_likelihood(), abs=1e-6)


@pytest.mark.parametrize("parameters", ["last_layer", "2.*", ["2.weight", "2.bias"]])
def test_the_last_layer_is_a_block_of_the_full_matrix(parameters: Any) -> None:
    x, y = classes((4,))
    net = mlp()
    whole, last = fit(net, (x, y), structure="full"), fit(net, (x, y), structure="full", parameters=parameters)
    assert last.posterior.names() == ["2.weight", "2.bias"]
    torch.testing.assert_close(last.posterior.hessian, whole.posterior.hessian[-18:, -18:])
    draws = last.posterior.sample(2, seed=0)
    assert list(draws) == ["2.weight", "2.bias"]


@pytest.mark.parametrize("structure", STRUCTURES)
def test_frozen_and_tied_parameters(structure: str) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 3)).double()
    net[2].weight = net[0].weight
    net[4].bias.requires_grad_(False)
    x, y = classes((4,))
    model = fit(net, (x, y), structure=structure, rank=1000)
    assert model.posterior.names() == ["0.weight", "0.bias", "2.bias", "4.weight"]
    expected = gauss_newton(model, x, y)
    expected.diagonal().add_(1.0)
    found = flat(model.posterior.variance())
    if structure in ("full", "low_rank"):
        torch.testing.assert_close(found, expected.inverse().diagonal())
    if structure == "diag":
        torch.testing.assert_close(found, 1.0 / expected.diagonal())
    if structure == "kron":  # tied weights, and biases without their weight, are diagonal
        assert model.posterior.layers == ["4"]
        torch.testing.assert_close(found[:24], 1.0 / expected.diagonal()[:24])
    assert float(model.predict(x).epistemic.min()) > 0.0


def test_classification_integrates_the_gaussian_logits() -> None:
    """Two classes: the mean probability is E σ(z), z ~ N(m, v), here by 60 Gauss–Hermite nodes.

    With 4,096 quasi-random points the error is of order 1e-3 or less.
    """
    x, _ = classes((4,))
    y = (x[:, 0] > 0).long()
    net = mlp(2)
    model = fit(net, (x, y), structure="full", prior=credo.Normal(0.0, 3.0))
    mean, covariance = net(x).detach(), predictor_covariance(model, x)
    difference = mean[:, 1] - mean[:, 0]
    variance = covariance[:, 0, 0] + covariance[:, 1, 1] - 2.0 * covariance[:, 0, 1]
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    z = difference[:, None] + variance.sqrt()[:, None] * torch.as_tensor(nodes)
    expected = (z.sigmoid() * torch.as_tensor(weights)).sum(1) / math.sqrt(2.0 * math.pi)
    found = model.predict(x, samples=4096)
    torch.testing.assert_close(found.mean[:, 1], expected, atol=1e-3, rtol=0.0)
    again = model.predict(x.flip(0), samples=4096, seed=7)
    torch.testing.assert_close(again.mean.flip(0), found.mean)


@pytest.mark.parametrize("outputs", [1, 12])
@pytest.mark.parametrize("samples", [2, 100])
def test_quasi_random_points_have_the_moments_of_the_outputs(outputs: int, samples: int) -> None:
    """For a heteroscedastic network the epistemic part is the variance of its means, J·Σ·Jᵀ."""
    torch.manual_seed(0)
    x, y = torch.randn(20, 4).double(), torch.randn(20, outputs).double()
    model = fit(mlp(2 * outputs), (x, y), structure="full", likelihood=credo.Gaussian("heteroscedastic"))
    p = model.predict(x, samples=samples)
    exact = predictor_covariance(model, x).diagonal(dim1=1, dim2=2)[:, :outputs]
    torch.testing.assert_close(p.epistemic, exact)
    torch.testing.assert_close(p.mean, model.net(x)[:, :outputs].detach())


def test_linear_functions_have_the_moments_of_the_linearized_network() -> None:
    """Rows with many outputs use drawn functions; S = 2,000 of them: means within 5 standard errors, variances too."""
    torch.manual_seed(0)
    x, y = torch.randn(3, 4).double(), torch.randn(3, 300).double()
    net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 300)).double()
    model = fit(net, (x, y), structure="diag", likelihood=credo.Gaussian(0.5))
    samples = 2000
    p = model.predict(x, samples=samples, seed=0)
    assert p.n_draws == samples
    j = jacobian(net, model.posterior.names(), x)
    variance = (j.square() * flat(model.posterior.variance())).sum(2)
    error = (p.draws.mean(0) - net(x).detach()) / (variance / samples).sqrt()
    assert float(error.abs().max()) < 5.0
    ratio = p.draws.var(0) / variance - 1.0
    assert float(ratio.abs().max()) < 5.0 * math.sqrt(2.0 / samples)


@pytest.mark.parametrize("linearized", [True, False])
def test_the_elbo_of_a_linear_model_is_its_evidence(linearized: bool) -> None:
    """q is the exact posterior, so the bound is tight; the standard error of the expectation is that of its draws."""
    x, y = linear_data()
    model = linear_model(structure="full", linearized=linearized)
    repeats = torch.tensor([model.elbo((x, y), samples=50, seed=seed) for seed in range(20)])
    error = float(repeats.std()) / math.sqrt(20)
    assert abs(float(repeats.mean()) - model.log_marginal_likelihood()) < 4.0 * error


@pytest.mark.parametrize(
    "likelihood",
    [
        credo.Bernoulli(),
        credo.Poisson(),
        credo.StudentT(4.0, 0.3),
        credo.NegativeBinomial(0.5),
        credo.Beta(5.0, lower=-1, upper=2),
    ],
)
def test_other_likelihoods(likelihood: Any) -> None:
    x, _ = classes((4,))
    y = torch.randint(2, (len(x), 2), generator=torch.Generator().manual_seed(3)).double()
    model = fit(mlp(2), (x, y), structure="kron", likelihood=likelihood)
    p = model.predict(x, samples=64)
    assert bool(p.log_prob(y).isfinite().all())
    assert float(p.epistemic.min()) > 0.0
    assert math.isfinite(model.log_marginal_likelihood())


def test_fit_without_epochs_keeps_the_weights_and_prediction_the_network() -> None:
    x, y = classes((4,))
    net = mlp()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    model = credo.Laplace(net, credo.Categorical()).fit((x, y), epochs=0)
    model.predict(x)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    torch.testing.assert_close(model.predict(x, samples=0).mean, net(x).softmax(-1))
    assert "trained by" not in model.summary()


@pytest.mark.parametrize("weighted", [False, True])
def test_without_epochs_an_untrained_noise_is_that_of_the_residuals(weighted: bool) -> None:
    """σ² = Σ w·r²/Σ w of every output, the maximum of the likelihood; one that was learned before stays.

    An error e of log σ costs e² nats per row. LBFGS ends with a step that gains less than 1e-9, so that e is below
    √1e-9 and σ² is right to 2·√1e-9 = 6.4e-5.
    """
    torch.manual_seed(0)
    net = nn.Linear(3, 2).double()
    before = copy.deepcopy(net.state_dict())
    x, y, w = (torch.randn(20, 3).double(), torch.randn(20, 2).double(), torch.rand(20).double())
    data = (x, y, w) if weighted else (x, y)
    w = w if weighted else torch.ones_like(w)
    model = credo.Laplace(net, credo.Gaussian("learned", outputs=2)).fit(data, epochs=0, batch_size=7)
    expected = (w[:, None] * (net(x) - y).square()).sum(0) / w.sum()
    torch.testing.assert_close(model.predict(x).aleatoric, expected.expand(20, 2).detach(), rtol=6.4e-5, atol=0)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    learned = copy.deepcopy(model.likelihood.state_dict())
    model.fit((x, 10 * y), epochs=0)
    assert all(torch.equal(value, learned[name]) for name, value in model.likelihood.state_dict().items())
    fixed = credo.Gaussian("learned", initial=0.3).requires_grad_(False)
    assert float(credo.Laplace(net, fixed).fit(data, epochs=0).predict(x).aleatoric[0, 0]) == pytest.approx(0.09)


def test_a_model_that_was_not_fitted_says_so() -> None:
    x, y = classes((4,))
    model = credo.Laplace(mlp(), credo.Categorical())
    for call in (
        lambda: model.predict(x),
        lambda: model.posterior.sample(2),
        lambda: model.log_marginal_likelihood(),
        lambda: model.optimize_prior(),
        lambda: model.elbo((x, y)),
    ):
        with pytest.raises(InputError, match="before fit"):
            call()
    assert float(model.predict(x, samples=0).epistemic.max()) == 0.0


def test_an_optimized_prior_is_saved_and_a_model_changes_its_precision(tmp_path: Any) -> None:
    """float32 numbers in a float64 computation: predictions agree to a few roundings."""
    x, y = classes((4,))
    model = credo.Laplace(mlp().float(), credo.Categorical()).fit((x.float(), y), epochs=0).optimize_prior("layer")
    model.save(tmp_path / "run")
    loaded = credo.load(tmp_path / "run", net=mlp(seed=1).float())
    assert loaded.log_marginal_likelihood() == model.log_marginal_likelihood()
    assert torch.equal(loaded.kl(), model.kl())
    expected = model.predict(x.float()).epistemic
    assert torch.equal(loaded.predict(x.float()).epistemic, expected)
    torch.testing.assert_close(model.double().predict(x).epistemic.float(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("likelihood", [credo.Categorical(), credo.LogNormal(0.5), credo.Beta(5.0)])
def test_a_network_of_16_bits_has_a_covariance_of_32(likelihood: Any, structure: str, dtype: torch.dtype) -> None:
    """That of the same weights in float64, up to the roundings of J, 3 layers forward and backward.

    J·Σ·Jᵀ holds J four times, as Σ⁻¹ is quadratic in it: 24 roundings of ε of the largest entry.
    """
    x, labels = classes((2, 4, 4))
    y = labels if isinstance(likelihood, credo.Categorical) else (0.2 + 0.3 * x[:, 0, 0, :3].sigmoid()).double()
    narrow, found = conv_net().to(dtype), []
    for net, own in ((copy.deepcopy(narrow).double(), x.to(dtype).double()), (narrow, x.to(dtype))):
        model = credo.Laplace(net, copy.deepcopy(likelihood), structure=structure, rank=1000)
        found.append(predictor_covariance(model.fit((own, y), epochs=0), own))
        assert model.predict(own[:0]).mean.shape == (0, 3)
    assert found[1].dtype == torch.float32
    torch.testing.assert_close(
        found[1].double(), found[0], rtol=0.0, atol=24 * torch.finfo(dtype).eps * float(found[0].abs().max())
    )
    assert bool(model.predict(own).epistemic.isfinite().all())


def test_networks_with_several_inputs_and_ensembles() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.scale = nn.Linear(4, 3), nn.Linear(4, 3), nn.Parameter(torch.ones(3))

        def forward(self, first: Tensor, second: Tensor) -> Tensor:
            return self.scale * self.a(first) + self.b(second)  # type: ignore[no-any-return]

    x, y = classes((4,))
    data = ({"first": x, "second": x.flip(0)}, y)
    model = fit(Two().double(), data)  # type: ignore[arg-type]
    assert float(model.predict(data[0]).epistemic.min()) > 0.0
    ensemble = credo.DeepEnsemble(mlp().float(), 2, credo.Laplace, likelihood=credo.Categorical())
    ensemble.fit((x.float(), y), epochs=1, progress=False, seed=0)
    assert float(ensemble.predict(x.float(), samples=16).epistemic.min()) > 0.0


def test_a_failed_fit_leaves_the_posterior() -> None:
    x, y = classes((4,))
    model = credo.Laplace(mlp(), credo.Categorical()).fit((x, y), epochs=0)
    expected = model.predict(x).mean
    with pytest.raises(InputError):
        model.fit((x, y + 7), epochs=1)
    torch.testing.assert_close(model.predict(x).mean, expected)


def test_an_interrupted_fit_leaves_no_curvature_of_other_weights() -> None:
    """The covariance of a posterior is that at its mean; without new weights it stays."""

    def stop(model: Any, entry: dict[str, float]) -> None:
        raise KeyboardInterrupt

    x, y = classes((4,))
    model = credo.Laplace(mlp(), credo.Categorical()).fit((x, y), epochs=0)
    expected = model.predict(x).mean
    with pytest.raises(InputError, match="unknown option"):
        model.fit((x, y), epoch=1)
    torch.testing.assert_close(model.predict(x).mean, expected)
    with pytest.raises(KeyboardInterrupt):
        model.fit((x, y), epochs=2, on_epoch_end=stop)
    with pytest.raises(InputError, match=r"fit\(data, epochs=0\) after training"):
        model.predict(x)
    assert bool(model.fit((x, y), epochs=0).predict(x).mean.isfinite().all())


def test_a_prior_that_is_too_wide_is_named() -> None:
    """The precision of the prior, 1e-16, is less than a rounding of a curvature of 1e8 along which two inputs agree."""
    x = torch.randn(20, 1, generator=torch.Generator().manual_seed(0)).double().expand(20, 2).contiguous()
    net = nn.Linear(2, 1).double()
    model = credo.Laplace(net, credo.Gaussian(1e-4), credo.Normal(0.0, 1e8), structure="full").fit(
        (x, x[:, :1]), epochs=0
    )
    with pytest.raises(InputError, match="the prior is too wide"):
        model.predict(x)


@pytest.mark.parametrize("structure", ["full", "kron", "diag"])
def test_a_curvature_that_overflows_is_an_error(structure: str) -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2))
    x, y = 1e25 * torch.randn(8, 2), torch.arange(8) % 2
    net[0].weight.data.mul_(1e-25)
    model = credo.Laplace(net, credo.Categorical(), structure=structure)
    if structure == "full":  # in float64
        assert bool(model.fit((x, y), epochs=0).posterior.hessian.isfinite().all())
        return
    with pytest.raises(InputError, match=r"infinite in torch.float32: scale the data"):
        model.fit((x, y), epochs=0)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_an_infinite_curvature_is_an_error(structure: str) -> None:
    """A rate of e^100 is infinite in float32; LAPACK and ARPACK stop at such a matrix with errors of their own."""
    net = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1))
    nn.init.constant_(net[2].bias, 100.0)
    model = credo.Laplace(net, credo.Poisson(), structure=structure, rank=3)
    with pytest.raises(InputError, match=r"infinite in torch.float32: scale the data"):
        model.fit((torch.randn(10, 3), torch.ones(10, 1)), epochs=0)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_data_without_curvature_leave_the_prior(structure: str) -> None:
    """Where all probabilities are 0 or 1 in float32 the posterior is the prior, and the evidence the likelihood, 1."""
    net = nn.Linear(3, 3)
    nn.init.zeros_(net.weight)
    with torch.no_grad():
        net.bias.copy_(torch.tensor([500.0, 0.0, 0.0]))
    prior = {"weight": credo.Normal(0.0, 0.5), "bias": credo.Normal(500.0, 2.0)}
    model = credo.Laplace(net, credo.Categorical(), prior, structure=structure, rank=3)
    model.fit((torch.randn(10, 3), torch.zeros(10, dtype=torch.long)), epochs=0)
    variance = model.posterior.variance()
    torch.testing.assert_close(variance["weight"], torch.full((3, 3), 0.25))
    torch.testing.assert_close(variance["bias"], torch.full((3,), 4.0))
    assert model.log_marginal_likelihood() == pytest.approx(-0.5 * (2 * 500.0**2) / 4.0)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_later_minibatch_that_does_not_match_is_named_and_leaves_the_posterior(structure: str) -> None:
    """After training elsewhere, ``epochs=0``, no training step looks at the data before the curvature."""
    x, y = classes((4,))
    without_x, wrong_y = x.index_fill(0, torch.tensor([9]), math.nan), y.index_fill(0, torch.tensor([9]), 7)
    model = credo.Laplace(mlp(), credo.Categorical(), structure=structure).fit((x, y), epochs=0)
    expected = model.predict(x).mean
    for own, message in (((without_x, y), "outputs NaN: look for"), ((x, wrong_y), "y holds the label 7")):
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*own), 4)
        with pytest.raises(InputError, match=message):
            model.fit(loader, epochs=0)
        torch.testing.assert_close(model.predict(x).mean, expected)
    learned = credo.Laplace(mlp(), credo.Gaussian("learned"), structure=structure)
    targets = torch.randn(12, 3).double().index_fill(0, torch.tensor([9]), math.nan)
    with pytest.raises(InputError, match="y holds 3 value"):
        learned.fit(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, targets), 4), epochs=0)
    assert float(learned.likelihood.scale) == 1.0  # type: ignore[arg-type]


@pytest.mark.parametrize("structure", STRUCTURES)
def test_validation_during_training_is_that_of_the_point_estimate(structure: str) -> None:
    x, y = classes((4,))
    model = credo.Laplace(mlp(), credo.Categorical(), structure=structure)
    model.fit((x, y), epochs=2, validation=(x, y), progress=False, seed=0)
    model.fit((x, y), epochs=2, validation=(x, y), progress=False, seed=0)
    assert math.isfinite(model.history[-1]["validation_log_likelihood"])


def test_networks_of_other_kinds() -> None:
    """Recurrent layers have diagonal blocks; their rows are differentiated one by one."""

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.rnn(x)[0][:, -1])  # type: ignore[no-any-return]

    torch.manual_seed(0)
    x, y = classes((5, 3), rows=6)
    model = fit(Last().double(), (x, y))
    assert "rnn.weight_ih_l0" in model.summary()
    assert model.posterior.layers == ["head"]
    expected = gauss_newton(fit(model.net, (x, y), structure="diag"), x, y).diagonal() + 1.0
    recurrent = sum(p.numel() for p in model.net.rnn.parameters())
    torch.testing.assert_close(flat(model.posterior.variance())[:recurrent], 1.0 / expected[:recurrent])
    assert float(model.predict(x).epistemic.min()) > 0.0


class Pooled(nn.Module):
    """The mean of what a layer makes of a sequence, ``[B, T, 4]`` to ``[B, 3]``."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        found = self.layer(x)
        return self.head((found[0] if isinstance(found, tuple) else found).mean(1))  # type: ignore[no-any-return]


@pytest.mark.parametrize("layer", ["lstm", "gru", "attention"])
def test_products_with_the_curvature_of_fused_layers(layer: str) -> None:
    """A low-rank H of all ranks is H itself; fused kernels of these layers cannot be differentiated twice."""
    torch.manual_seed(0)
    layers = {
        "lstm": lambda: nn.LSTM(4, 4, batch_first=True),
        "gru": lambda: nn.GRU(4, 4, batch_first=True),
        "attention": lambda: nn.TransformerEncoderLayer(4, 2, 6, batch_first=True),
    }
    net = Pooled(layers[layer]()).double()
    x, y = classes((5, 4), rows=6)
    full = fit(copy.deepcopy(net), (x, y), structure="full")
    low_rank = fit(net, (x, y), structure="low_rank", rank=1000)
    torch.testing.assert_close(flat(low_rank.posterior.variance()), flat(full.posterior.variance()))
    single = credo.Laplace(copy.deepcopy(net).float(), credo.Categorical(), structure="low_rank", rank=3)
    p = single.fit((x.float(), y), epochs=0).predict(x.float())
    assert bool(p.epistemic.gt(0.0).all())
    functions = single._predictor(8, 0).outputs(x.float())
    assert functions.shape == (8, 6, 3)


def test_a_last_layer_that_is_not_called_last_is_an_error() -> None:
    """Which layer is the last one is seen in a forward pass; before, it is the one that was registered last."""

    class HeadFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.body = nn.Linear(4, 3), nn.Linear(2, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.body(x).tanh())

    x, y = torch.randn(6, 2), torch.arange(6) % 3
    net = HeadFirst()
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(InputError, match=r"'head' is called after it: name the last layer, parameters='head.\*'"):
        credo.Laplace(net, credo.Categorical(), parameters="last_layer").fit((x, y), epochs=2)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    named = credo.Laplace(net, credo.Categorical(), parameters="head.*").fit((x, y), epochs=2)
    assert named.posterior.names() == ["head.weight", "head.bias"]
    tied = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2), nn.Linear(2, 2, bias=False))
    tied[2].weight = tied[0].weight
    with pytest.raises(InputError, match=r"'2' is called after it: name the last layer, parameters='2.\*'"):
        credo.Laplace(tied, credo.Categorical(), parameters="last_layer").fit((x, y % 2), epochs=0)
    named = credo.Laplace(tied, credo.Categorical(), parameters="2.*").fit((x, y % 2), epochs=0)
    assert named.posterior.names() == ["0.weight"]


def test_errors_name_the_argument_and_the_input() -> None:
    for wrong in ([], None, 3):
        with pytest.raises(InputError, match="parameters must be a name pattern"):
            credo.Laplace(mlp(), parameters=wrong)  # type: ignore[arg-type]
    net = mlp()
    net[0].requires_grad_(False)
    with pytest.raises(InputError, match=r"parameters='0.\*' fits only frozen parameters"):
        credo.Laplace(net, parameters="0.*")
    x, y = classes((4,))
    model = credo.Laplace(mlp(), credo.Categorical()).fit((x, y), epochs=0)
    with pytest.raises(RuntimeError) as raised:
        model.predict(x[:, :1])
    assert "The network was called on" in raised.value.__notes__[0]


def test_priors_that_are_not_gaussian_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="Gaussian"):
        credo.Laplace(mlp(), prior=credo.ScaleMixture())
    with pytest.raises(UnsupportedError, match="one scale"):
        credo.Laplace(mlp(), parameters="2.bias", prior=credo.Normal(0.0, torch.arange(1.0, 4.0)))
    with pytest.raises(InputError, match="share the scale"):
        credo.Laplace(mlp(), prior={"*.bias": credo.Normal(), "*": credo.AdaptiveNormal()})
    with pytest.raises(InputError, match="full"):
        credo.Laplace(nn.Linear(200, 100), structure="full")
    with pytest.raises(InputError, match="structure"):
        credo.Laplace(mlp(), structure="kronecker")


def test_a_prior_may_have_a_mean_for_every_weight() -> None:
    """Such as the weights of another network: the evidence of a linear model is that of y less its prediction."""
    x, y = linear_data()
    center = torch.tensor([[0.9, -0.4, 0.3]], dtype=torch.float64)
    plain = linear_model(2.0, 0.3, structure="full")
    net = nn.Linear(D, 1, bias=False).double()
    shifted = y - x @ center.mT
    with torch.no_grad():
        net.weight.copy_(center + exact_posterior(x, shifted, 2.0, 0.3**-2)[0])
    model = credo.Laplace(net, credo.Gaussian(0.3), credo.Normal(center, 2.0**-0.5), structure="full")
    model.fit((x, y), epochs=0)
    torch.testing.assert_close(model.posterior.variance()["weight"], plain.posterior.variance()["weight"])
    marginal = torch.distributions.MultivariateNormal(
        torch.zeros(N, dtype=x.dtype), 0.3**2 * torch.eye(N, dtype=x.dtype) + x @ x.mT / 2.0
    )
    assert model.log_marginal_likelihood() == pytest.approx(float(marginal.log_prob(shifted[:, 0])), abs=1e-8)
    before = model.log_marginal_likelihood()
    assert model.optimize_prior().log_marginal_likelihood() > before
    assert torch.equal(model.prior.mean, center)  # type: ignore[union-attr]


@pytest.mark.parametrize("structure", ["full", "kron", "diag"])
def test_outputs_without_a_dimension_of_their_own(structure: str) -> None:
    """A network that returns [B] has the posterior and the predictions of the one that returns [B, 1]."""

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(30, 3, generator=generator)
    y = x.sum(1)
    found = []
    for last, target in ((nn.Identity(), y[:, None]), (nn.Flatten(0), y)):
        torch.manual_seed(0)
        model = credo.Laplace(nn.Sequential(nn.Linear(3, 1), last), credo.Gaussian(0.5), structure=structure)
        found.append(model.fit((x, target), epochs=20, seed=0).predict(x[:4], samples=20, seed=0))
    torch.testing.assert_close(found[1].mean, found[0].mean.squeeze(-1))
    torch.testing.assert_close(found[1].epistemic, found[0].epistemic.squeeze(-1))


def test_sample_weights_are_repeated_rows_in_the_exact_posterior() -> None:
    """Σ w x xᵀ/σ² + 1/s² is the posterior precision of a linear model: the predictive variances agree with it."""
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(12, k, generator=generator, dtype=torch.float64) for k in (3, 1))
    count = torch.arange(12) % 3 + 1
    net = nn.Linear(3, 1, bias=False).double()

    def epistemic(data: Any) -> Tensor:
        model = credo.Laplace(copy.deepcopy(net), credo.Gaussian(0.5), credo.Normal(0.0, 2.0), structure="full")
        return model.fit(data, epochs=0).predict(x).epistemic[:, 0]

    precision = (x * count[:, None]).T @ x / 0.25 + torch.eye(3, dtype=torch.float64) / 4
    exact = torch.einsum("ni,ij,nj->n", x, torch.linalg.inv(precision), x)
    torch.testing.assert_close(epistemic((x, y, count.double())), exact)
    torch.testing.assert_close(epistemic((x.repeat_interleave(count, 0), y.repeat_interleave(count, 0))), exact)


@pytest.mark.parametrize("structure", ["full", "kron", "diag", "low_rank"])
@pytest.mark.parametrize("classes", [False, True])
def test_a_network_of_half_precision_is_linearized_in_float32(structure: str, classes: bool) -> None:
    """As its twin in float32; the activations and gradients of bfloat16, rounded to 2⁻⁸, make a few per cent."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).bfloat16()
    twin = copy.deepcopy(net).float()
    x = torch.randn(12, 4).bfloat16()
    y = torch.randint(0, 3, (12,)) if classes else torch.randn(12, 3).bfloat16()
    predictions = []
    for each, dtype in ((net, torch.bfloat16), (twin, torch.float32)):
        likelihood = credo.Categorical() if classes else credo.Gaussian(0.5)
        model = credo.Laplace(each, likelihood, structure=structure)
        model.fit((x.to(dtype), y if classes else y.to(dtype)), epochs=0)
        predictions.append(model.predict(x.to(dtype)))
    found, expected = predictions
    assert found.mean.dtype == torch.float32
    torch.testing.assert_close(found.mean, expected.mean, rtol=0.05, atol=0.05)
    torch.testing.assert_close(found.epistemic, expected.epistemic, rtol=0.1, atol=1e-3)
