"""The variational last layer against Bayesian linear regression, quadrature and Monte Carlo."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal, kl_divergence

import credo
from credo.errors import InputError, UnsupportedError
from credo.likelihoods import Likelihood
from credo.linear import BayesianLinearRegression
from credo.methods._expected_log_likelihood import expected_log_prob
from credo.posteriors.last_layer import CholeskyGaussian
from credo.testing import check_posterior

N, D = 30, 3
ALPHA, NOISE = 2.0, 0.3


def linear_data() -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(0)
    x = torch.randn(N, D, generator=source, dtype=torch.float64)
    slope = torch.tensor([[1.0, 0.3], [-0.5, 0.0], [0.2, -1.0]], dtype=torch.float64)
    return x, x @ slope + NOISE * torch.randn(N, 2, generator=source, dtype=torch.float64)


def mlp(outputs: int, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(D, 5), nn.Tanh(), nn.Linear(5, outputs)).to(dtype)


def scrambled(model: credo.VariationalLastLayer) -> credo.VariationalLastLayer:
    """With correlations and scales that are not those of the start."""
    source = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.posterior.parameters():
            parameter += 0.5 * torch.randn(parameter.shape, generator=source, dtype=parameter.dtype)
    return model


def covariance(posterior: CholeskyGaussian) -> Tensor:
    """S, ``[K, P, P]``, from the definition of its factor."""
    scale = torch.cat([r if r.dim() == 2 else r[:, None] for r in posterior.rho.parameters()], 1)
    scale = nn.functional.softplus(scale)
    eye = torch.eye(scale.shape[1], dtype=scale.dtype)
    unit = eye.expand(len(scale), -1, -1) if posterior.correlations is None else eye + posterior.correlations.tril(-1)
    factor = scale[:, :, None] * unit
    return (factor @ factor.mT).detach()


@pytest.fixture(scope="module")
def trained() -> credo.VariationalLastLayer:
    """A linear model with two outputs, whose features are its inputs."""
    torch.manual_seed(0)
    net = nn.Linear(D, 2, bias=False).double()
    model = credo.VariationalLastLayer(net, credo.Gaussian(NOISE), credo.Normal(0.0, ALPHA**-0.5))
    return model.fit(linear_data(), epochs=600, lr=0.03, batch_size=N, progress=False, seed=0)


def test_fixed_features_give_the_exact_posterior_and_evidence(trained: credo.VariationalLastLayer) -> None:
    """Full batches and a learning rate that decays to 0: the bound is within 1e-8 nats of the evidence.

    The bound is the evidence minus KL(q ‖ exact posterior). With a KL below 1e-8, a mean is off by less than √(2·KL) =
    1.5e-4 standard deviations, and a variance by a factor within 1 ± 2·√KL = 1 ± 2e-4.
    """
    x, y = linear_data()
    bound = -N * float(trained.loss(x, y, n_data=N).detach())
    evidence = 0.0
    variances = covariance(trained.posterior)
    for k in range(2):
        exact = BayesianLinearRegression(fit_intercept=False, weight_precision=ALPHA, noise_precision=NOISE**-2)
        exact.fit(x.numpy(), y[:, k].numpy())
        assert exact.log_evidence_ is not None
        evidence += exact.log_evidence_
        scale = torch.as_tensor(exact.sigma_).diagonal().sqrt()
        deviation = (trained.net.weight[k].detach() - torch.as_tensor(exact.coef_)) / scale
        assert float(deviation.abs().max()) < 1.5e-4
        torch.testing.assert_close(variances[k] / scale.outer(scale), _correlations(exact), rtol=0, atol=2e-4)
        predicted = exact.predict_dist(x.numpy())
        found = trained.predict(x, samples="moments")
        torch.testing.assert_close(found.epistemic[:, k], predicted.epistemic, rtol=2e-4, atol=0)
        torch.testing.assert_close(found.aleatoric[:, k], predicted.aleatoric)
    assert bound == pytest.approx(evidence, abs=1e-8)


def _correlations(exact: BayesianLinearRegression) -> Tensor:
    sigma = torch.as_tensor(exact.sigma_)
    return sigma / sigma.diagonal().sqrt().outer(sigma.diagonal().sqrt())


def test_the_diagonal_covariance_is_the_best_mean_field_one() -> None:
    """At the optimum of a mean-field Gaussian, variances are 1/diag of the exact precision (Bishop 2006, 10.1.2)."""
    x, y = linear_data()
    net = nn.Linear(D, 2, bias=False).double()
    prior = credo.Normal(0.0, ALPHA**-0.5)
    model = credo.VariationalLastLayer(net, credo.Gaussian(NOISE), prior, covariance="diagonal")
    model.fit((x, y), epochs=400, lr=0.03, batch_size=N, progress=False, seed=0)
    precision = ALPHA * torch.eye(D, dtype=x.dtype) + x.mT @ x / NOISE**2
    expected = precision.diagonal().reciprocal().expand(2, -1)
    torch.testing.assert_close(model.posterior.variance()["weight"].detach(), expected, rtol=1e-3, atol=0)


@pytest.mark.parametrize("kind", ["dense", "diagonal"])
def test_moments_and_kl_follow_from_the_covariance(kind: str) -> None:
    model = scrambled(credo.VariationalLastLayer(mlp(3), credo.Categorical(), covariance=kind))
    x, _ = linear_data()
    sigma, layer = covariance(model.posterior), model.net[2]
    features = torch.cat([model.net[:2](x), x.new_ones(N, 1)], 1)
    expected = torch.einsum("np,kpq,nq->nk", features, sigma, features)
    torch.testing.assert_close(model.posterior.output_variance(features[:, :-1]), expected)
    marginal = model.posterior.variance()
    torch.testing.assert_close(marginal["2.weight"], sigma.diagonal(dim1=1, dim2=2)[:, :-1])
    torch.testing.assert_close(marginal["2.bias"], sigma.diagonal(dim1=1, dim2=2)[:, -1])
    q = MultivariateNormal(torch.cat([layer.weight, layer.bias[:, None]], 1), sigma)
    p = MultivariateNormal(x.new_zeros(6), torch.eye(6, dtype=x.dtype))
    torch.testing.assert_close(model.kl(), kl_divergence(q, p).sum())


def test_the_kl_to_other_gaussian_priors() -> None:
    """The prior of every name has its own mean and scale; an adaptive one has the scale that minimizes the KL."""
    priors = {"2.bias": credo.Normal(0.3, 0.5), "*": credo.Normal(torch.full((2, 5), 0.1), 2.0)}
    model = scrambled(credo.VariationalLastLayer(mlp(2), credo.Gaussian(0.3), priors))
    layer = model.net[2]
    q = MultivariateNormal(torch.cat([layer.weight, layer.bias[:, None]], 1), covariance(model.posterior))
    center, scale = torch.tensor([0.1] * 5 + [0.3]).double(), torch.tensor([2.0] * 5 + [0.5]).double()
    torch.testing.assert_close(model.kl(), kl_divergence(q, MultivariateNormal(center, scale.square().diag())).sum())
    adaptive = credo.VariationalLastLayer(mlp(2), credo.Gaussian(0.3), credo.AdaptiveNormal())
    own = {
        name: adaptive.prior.best_scale(mean, adaptive.posterior.variance()[name].sqrt())
        for name, mean in adaptive.posterior.mean().items()
    }
    fixed = {name: credo.Normal(0.0, float(best)) for name, best in own.items()}
    torch.testing.assert_close(adaptive.kl(), credo.VariationalLastLayer(mlp(2), credo.Gaussian(0.3), fixed).kl())


def expectation(likelihood: Likelihood, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
    """E[log p(y | f)] of rows with one output, by the trapezoid rule on 4001 points over ±10 standard deviations."""
    z = torch.linspace(-10, 10, 4001, dtype=torch.float64)
    density = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)
    at = likelihood.components(mean + variance.sqrt() * z[:, None, None]).row_log_prob(y)
    return torch.trapezoid(density[:, None] * at, z, dim=0)


MEANS = torch.tensor([[-2.0], [0.1], [3.0]], dtype=torch.float64)
VARIANCES = torch.tensor([[0.3], [2.0], [0.5]], dtype=torch.float64)


@pytest.mark.parametrize("likelihood", [credo.Gaussian(0.7), credo.Poisson()])
def test_closed_forms_equal_quadrature(likelihood: Likelihood) -> None:
    y = torch.tensor([[1.0], [0.0], [4.0]], dtype=torch.float64)
    found = expected_log_prob(likelihood, MEANS, VARIANCES, y)
    torch.testing.assert_close(found, expectation(likelihood, MEANS, VARIANCES, y), rtol=1e-8, atol=1e-8)


def test_the_heteroscedastic_closed_form_equals_quadrature() -> None:
    """A sum over a grid of 201² points, ±10 standard deviations of the mean and of the log variance."""
    mean = torch.cat([MEANS, 0.3 * MEANS], 1)
    variance = torch.cat([VARIANCES, 0.5 * VARIANCES], 1)
    y = torch.tensor([[1.0], [0.0], [4.0]], dtype=torch.float64)
    found = expected_log_prob(credo.Gaussian("heteroscedastic"), mean, variance, y)
    z = torch.linspace(-10, 10, 201, dtype=torch.float64)
    density = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi) * (z[1] - z[0])
    outputs = mean + variance.sqrt() * torch.cartesian_prod(z, z)[:, None, :]
    at = credo.Gaussian("heteroscedastic").components(outputs).row_log_prob(y)
    weights = density.outer(density).flatten()
    torch.testing.assert_close(found, (weights[:, None] * at).sum(0), rtol=1e-8, atol=1e-8)


def test_bounds_are_below_the_expectation_and_meet_it_without_variance() -> None:
    for target in (0.0, 1.0):
        y = torch.full((3, 1), target, dtype=torch.float64)
        binary = credo.Bernoulli()
        exact = expectation(binary, MEANS, VARIANCES, y)
        assert bool((expected_log_prob(binary, MEANS, VARIANCES, y) < exact).all())
        none = torch.zeros_like(VARIANCES)
        torch.testing.assert_close(expected_log_prob(binary, MEANS, none, y), binary.log_prob(MEANS, y))
    classes = credo.Categorical(weight=[1.0, 2.0], ignore_index=5)
    logits, y = torch.cat([MEANS, torch.zeros_like(MEANS)], 1), torch.tensor([0, 1, 5])
    variance = torch.cat([VARIANCES, torch.zeros_like(VARIANCES)], 1)
    exact = expectation(credo.Categorical(), logits, variance, y.clamp(max=1)) * torch.tensor([1.0, 2.0, 0.0])
    bound = expected_log_prob(classes, logits, variance, y)
    assert bool((bound[:2] < exact[:2]).all())
    assert float(bound[2]) == 0.0
    torch.testing.assert_close(expected_log_prob(classes, logits, 0 * variance, y), classes.log_prob(logits, y))


def test_the_classification_bound_is_below_the_elbo_and_the_evidence() -> None:
    """One weight per class, so that log p(D) = log ∫ p(D | w) p(w) dw is a sum over a grid of 401² points, ±8.

    The Monte Carlo ELBO of 500 draws has a standard error below 0.1 nats here (checked); the bound is below it by
    much more than four of them, and the ELBO is below the evidence.
    """
    source = torch.Generator().manual_seed(0)
    x = torch.randn(20, 1, generator=source, dtype=torch.float64)
    y = (x[:, 0] + 0.5 * torch.randn(20, generator=source) > 0).long()
    model = credo.VariationalLastLayer(nn.Linear(1, 2, bias=False).double(), credo.Categorical())
    model.fit((x, y), epochs=300, lr=0.02, batch_size=20, progress=False, seed=0)
    bound = -20 * float(model.loss(x, y, n_data=20).detach())
    grid = torch.linspace(-8, 8, 401, dtype=torch.float64)
    w = torch.cartesian_prod(grid, grid)
    outputs = x[None] * w[:, None, :]
    likelihood = outputs.log_softmax(-1).gather(-1, y.view(1, -1, 1).expand(len(w), -1, -1)).sum((1, 2))
    prior = -0.5 * w.square().sum(1) - math.log(2 * math.pi)
    evidence = float((likelihood + prior).logsumexp(0) + 2 * math.log(float(grid[1] - grid[0])))
    draws = model.posterior.sample(500, seed=0)["weight"]
    by_draw = (x @ draws.mT).log_softmax(-1).gather(-1, y.view(1, -1, 1).expand(500, -1, -1)).sum((1, 2))
    error = float(by_draw.std()) / math.sqrt(500)
    elbo = model.elbo((x, y), samples=500, seed=0)
    assert error < 0.1
    assert elbo == pytest.approx(float(by_draw.mean() - model.kl().detach()), abs=1e-6)
    assert bound < elbo - 4 * error
    assert elbo < evidence + 4 * error


def test_the_regression_bound_is_the_elbo() -> None:
    """Of 500 draws, within four standard errors."""
    x, y = linear_data()
    model = scrambled(credo.VariationalLastLayer(mlp(2), credo.Gaussian("learned", initial=0.5)))
    bound = -N * float(model.loss(x, y, n_data=N).detach())
    outputs = model.predict(x, samples=500, seed=1).draws
    by_draw = model.likelihood.components(outputs).row_log_prob(y).sum(1).detach()
    error = float(by_draw.std()) / math.sqrt(500)
    assert abs(model.elbo((x, y), samples=500, seed=1) - bound) < 4 * error


def test_draws_have_the_covariance() -> None:
    """Of 4,000 draws; the standard error of a covariance is √((s_ii·s_jj + s_ij²)/4000)."""
    model = scrambled(credo.VariationalLastLayer(mlp(2), credo.Gaussian(0.3)))
    drawn = model.posterior.sample(4000, seed=0)
    rows = torch.cat([drawn["2.weight"], drawn["2.bias"][:, :, None]], 2)
    sigma = covariance(model.posterior)
    for k in range(2):
        spread = sigma[k].diagonal()
        error = ((spread.outer(spread) + sigma[k].square()) / 4000).sqrt()
        assert float(((rows[:, k].mT.cov() - sigma[k]).abs() / error).max()) < 4.5
    cross = torch.stack([rows[:, 0, 0], rows[:, 1, 0]]).corrcoef()[0, 1]
    assert abs(float(cross)) < 4.0 / math.sqrt(4000)


def test_the_closed_form_prediction_is_the_limit_of_draws() -> None:
    """Of 4,000 draws: the mean within four standard errors, the epistemic variance within 4·√(2/4000) = 9 %."""
    x, y = linear_data()
    model = scrambled(credo.VariationalLastLayer(mlp(2), credo.Gaussian(0.3)))
    exact, drawn = model.predict(x, samples="moments"), model.predict(x, samples=4000, seed=0)
    error = exact.epistemic.sqrt() / math.sqrt(4000)
    assert float(((drawn.mean - exact.mean).abs() / error).max()) < 4.0
    assert float((drawn.epistemic / exact.epistemic - 1).abs().max()) < 4 * math.sqrt(2 / 4000)
    torch.testing.assert_close(drawn.aleatoric, exact.aleatoric)
    batched = model.predict(x, samples="moments", batch_size=7)
    torch.testing.assert_close(batched.epistemic, exact.epistemic)
    assert torch.isfinite(exact.log_prob(y)).all()


def test_the_points_of_the_closed_form_have_the_moments_of_the_outputs() -> None:
    """For a heteroscedastic network the epistemic part is the variance of its means, φᵀSφ."""
    x, _ = linear_data()
    model = scrambled(credo.VariationalLastLayer(mlp(4), credo.Gaussian("heteroscedastic")))
    p = model.predict(x, samples="moments")
    variance = model.posterior.output_variance(model.net[:-1](x))[:, :2]  # type: ignore[index]
    torch.testing.assert_close(p.epistemic, variance.detach())
    torch.testing.assert_close(p.mean, model.net(x)[:, :2].detach())


def test_classes_in_closed_form_agree_with_draws() -> None:
    """128 quasi-random points and 4,000 draws: probabilities within four standard errors of ½/√4000, and 0.005."""
    x, _ = linear_data()
    model = scrambled(credo.VariationalLastLayer(mlp(3), credo.Categorical()))
    difference = model.predict(x, samples="moments").mean - model.predict(x, samples=4000, seed=0).mean
    assert float(difference.abs().max()) < 4 * 0.5 / math.sqrt(4000) + 0.005


@pytest.mark.parametrize("likelihood", [credo.Gaussian("learned"), credo.Categorical()])
def test_gradients(likelihood: Likelihood) -> None:
    """Of the loss in every parameter, against central differences with an error of order h² = 1e-10."""
    x, y = linear_data()
    target = y if isinstance(likelihood, credo.Gaussian) else torch.arange(N) % 2
    model = scrambled(credo.VariationalLastLayer(mlp(2), likelihood))
    model.loss(x, target, n_data=N).backward()
    h = 1e-5
    for parameter in model.parameters():
        assert parameter.grad is not None
        index = tuple(size - 1 for size in parameter.shape)
        index = (1, 4, 2) if parameter is model.posterior.correlations else index
        values = []
        for step in (h, -h):
            with torch.no_grad():
                parameter[index] += step
                values.append(model.loss(x, target, n_data=N))
                parameter[index] -= step
        assert float(parameter.grad[index]) == pytest.approx(float(values[0] - values[1]) / (2 * h), abs=1e-7)


def test_the_kl_is_divided_by_the_number_of_data() -> None:
    x, y = linear_data()
    model = scrambled(credo.VariationalLastLayer(mlp(2), credo.Gaussian(0.3)))
    small, large = model.loss(x, y, n_data=N), model.loss(x, y, n_data=10 * N)
    torch.testing.assert_close(small - large, model.kl() * (1 / N - 1 / (10 * N)))
    weighted = model.loss(x, y, n_data=N, sample_weight=torch.full((N,), 2.0).double())
    torch.testing.assert_close(weighted - small, model.nll(x, y))


class Tower(nn.Module):
    """Its head is registered first, is called last, and its output is squeezed."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.body = nn.Linear(4, 1), nn.Linear(D, 4)
        self.passes = 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        return self.head(self.body(x).relu()).squeeze(-1)


def test_the_layer_can_be_named_and_its_output_reshaped() -> None:
    x, y = (part.float() for part in linear_data())
    model = credo.VariationalLastLayer(Tower(), credo.Gaussian(0.3), layer="head")
    model.fit((x, y[:, 0]), epochs=2, progress=False)
    assert model.posterior.names() == ["head.weight", "head.bias"]
    assert model.predict(x, samples="moments").epistemic.shape == (N,)
    assert "5 of 21 parameters are Bayesian" in model.summary()
    wrong = credo.VariationalLastLayer(Tower(), credo.Gaussian(0.3))
    with pytest.raises(UnsupportedError, match=r"output is not that of its layer 'body'"):
        wrong.loss(x, y[:, 0], n_data=N)
    with pytest.raises(UnsupportedError, match="output is not that of"):
        credo.VariationalLastLayer(nn.Sequential(nn.Linear(D, 2), nn.Softmax(-1)), credo.Categorical()).predict(x)


def test_tokens_have_a_bound_per_row() -> None:
    """The log likelihood of a row sums over its positions, and so does the bound."""
    torch.manual_seed(0)
    x, y = torch.randn(4, 6, D).double(), torch.randint(3, (4, 6))
    model = scrambled(credo.VariationalLastLayer(mlp(3), credo.Categorical()))
    per_row = 6 * model.nll(x.flatten(0, 1), y.flatten())
    torch.testing.assert_close(model.nll(x, y), per_row)


def test_the_features_run_once_for_all_draws() -> None:
    x, y = (part.float() for part in linear_data())
    model = credo.VariationalLastLayer(mlp(2, torch.float32), credo.Gaussian(0.3)).fit((x, y), epochs=1, progress=False)
    calls = []

    class Counted(nn.Tanh):
        def forward(self, x: Tensor) -> Tensor:
            calls.append(1)
            return super().forward(x)

    model.net[1] = Counted()
    model.predict(x, samples=50, seed=0, vectorize="loop")
    model.predict(x, samples=50, seed=0, vectorize="loop")
    assert len(calls) < 10


def test_batch_norm_learns_and_dropout_is_allowed() -> None:
    x, y = (part.float() for part in linear_data())
    net = nn.Sequential(nn.Linear(D, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))
    model = credo.VariationalLastLayer(net, credo.Gaussian("learned", outputs=2)).fit((x, y), epochs=3, progress=False)
    assert float(net[1].running_mean.abs().sum()) > 0
    assert model.predict(x, samples=5).mean.shape == y.shape


def test_a_network_of_16_bits_has_scales_of_32() -> None:
    x, y = (part.bfloat16() for part in linear_data())
    model = credo.VariationalLastLayer(mlp(2, torch.float32), credo.Gaussian(0.3)).to(torch.bfloat16)
    assert {p.dtype for p in model.posterior.parameters()} == {torch.float32}
    model.fit((x, y), epochs=1, progress=False)
    assert model.predict(x, samples=2).mean.isfinite().all()


def test_weight_decay_leaves_the_last_layer_alone() -> None:
    model = credo.VariationalLastLayer(mlp(2), credo.Gaussian(0.3))
    decayed, rest = model.parameter_groups(0.1)
    assert {id(p) for p in decayed["params"]} == {id(p) for p in model.net[0].parameters()}
    assert decayed["weight_decay"] == 0.1
    assert rest["weight_decay"] == 0.0
    everything = [id(p) for group in (decayed, rest) for p in group["params"]]
    assert sorted(everything) == sorted(id(p) for p in model.parameters())


def test_a_frozen_bias_stays_as_it_is(tmp_path: Path) -> None:
    x, y = (part.float() for part in linear_data())
    net = mlp(2, torch.float32)
    net[2].bias.requires_grad_(False)
    before = net[2].bias.clone()
    model = credo.VariationalLastLayer(net, credo.Gaussian(0.3)).fit((x, y), epochs=2, progress=False)
    assert model.posterior.names() == ["2.weight"]
    assert torch.equal(net[2].bias, before)
    net[2].weight.requires_grad_(False)
    with pytest.raises(InputError, match="frozen"):
        credo.VariationalLastLayer(net, credo.Gaussian(0.3))


def test_a_run_of_a_known_architecture_loads_without_a_network(tmp_path: Path) -> None:
    x, y = (part.float() for part in linear_data())
    net = credo.architectures.MLP(D, (8,), 2)
    model = credo.VariationalLastLayer(net, credo.Gaussian(0.3)).fit((x, y), epochs=2, progress=False)
    model.save(tmp_path / "run")
    loaded = credo.load(tmp_path / "run")
    assert torch.equal(loaded.predict(x, seed=0).draws, model.predict(x, seed=0).draws)


def test_an_ensemble_of_last_layers() -> None:
    x, y = (part.float() for part in linear_data())
    ensemble = credo.DeepEnsemble(mlp(2, torch.float32), 2, credo.VariationalLastLayer, likelihood=credo.Gaussian(0.3))
    ensemble.fit((x, y), epochs=2, progress=False, seed=0)
    assert ensemble.predict(x, samples=6, seed=0).mean.shape == y.shape


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dense", [True, False])
def test_the_posterior_keeps_the_contract(dense: bool, dtype: torch.dtype) -> None:
    net = mlp(2, dtype)
    check_posterior(CholeskyGaussian(net, ["2.weight", "2.bias"], dense, 0.3), net)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"covariance": "full"}, "unknown covariance"),
        ({"initial_scale": 0.0}, "initial_scale must be a positive number"),
        ({"layer": "3"}, "layer"),
        ({"prior": credo.ScaleMixture()}, "needs a Gaussian"),
        ({"likelihood": credo.StudentT()}, "no expected log likelihood"),
        ({"likelihood": credo.Categorical(logit_noise=True)}, "no expected log likelihood"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises((InputError, UnsupportedError), match=message):
        credo.VariationalLastLayer(mlp(2), **options)


def test_networks_without_a_last_linear_layer() -> None:
    with pytest.raises(InputError, match=r"no nn.Linear"):
        credo.VariationalLastLayer(nn.Conv1d(2, 2, 1))
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    net[2].weight = net[0].weight
    with pytest.raises(UnsupportedError, match="several places"):
        credo.VariationalLastLayer(net)
