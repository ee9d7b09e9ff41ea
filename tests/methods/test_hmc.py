"""HMC on networks: its target density, exact posteriors, learned noise, and what it refuses."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import credo
from credo.data import Batch
from credo.diagnostics import standard_error
from credo.errors import InputError, UnsupportedError
from credo.likelihoods import Likelihood
from scenarios import linear_gaussian

TARGET = linear_gaussian()
MEDIUM: dict[str, Any] = {"chains": 4, "warmup": 120, "draws": 150, "leapfrog_steps": 8}
MICROCANONICAL: dict[str, Any] = {"warmup": 1000, "draws": 500, "thinning": 6, "energy_error": 1e-6}
"""In few dimensions the bias of a leapfrog step is that of its square, and the step of this error is 0.3."""
SAMPLERS: dict[Any, dict[str, Any]] = {credo.HMC: MEDIUM, credo.MCLMC: MICROCANONICAL}
SHORT: dict[str, Any] = {"chains": 2, "warmup": 20, "draws": 10, "leapfrog_steps": 3, "init": "network"}


def mlp(outputs: int = 1) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs)).double()


def within(draws: Tensor, exact: Tensor, errors: float = 4.0) -> bool:
    """Whether means over chains and draws are within some standard errors, from the effective sample size."""
    return bool(((draws.mean((0, 1)) - exact) / standard_error(draws)).abs().max() < errors)


LIKELIHOODS: dict[str, tuple[Likelihood, int, str]] = {
    "gaussian": (credo.Gaussian(0.3), 1, "real"),
    "learned": (credo.Gaussian("learned", initial=0.7), 1, "real"),
    "learned-per-output": (credo.Gaussian("learned", outputs=2), 2, "real"),
    "heteroscedastic": (credo.Gaussian("heteroscedastic"), 2, "real"),
    "student": (credo.StudentT("learned"), 1, "real"),
    "poisson": (credo.Poisson(), 1, "count"),
    "negative-binomial": (credo.NegativeBinomial("learned"), 1, "count"),
    "log-normal": (credo.LogNormal("learned"), 1, "share"),
    "beta": (credo.Beta("learned"), 1, "share"),
    "ordinal": (credo.Ordinal(3), 1, "class"),
    "bernoulli": (credo.Bernoulli(), 1, "binary"),
    "categorical": (credo.Categorical(), 3, "class"),
}
PRIORS: dict[str, Any] = {
    "normal": credo.Normal(0.1, 0.8),
    "by-name": {"0.*": credo.Normal(0.0, 0.5), "*": credo.LaplacePrior(0.0, 0.5)},
    "mixture": credo.ScaleMixture(),
    "tensor": {"0.weight": credo.Normal(torch.zeros(4, 3), torch.rand(4, 3) + 0.1), "*": credo.Normal()},
    "broadcast": {"0.weight": credo.Normal(torch.zeros(4, 1), torch.rand(3) + 0.1), "*": credo.LaplacePrior()},
}


@pytest.mark.parametrize(
    ("likelihood_name", "prior_name"),
    [(name, "normal") for name in LIKELIHOODS] + [("learned", name) for name in list(PRIORS)[1:]],
)
def test_the_target_is_the_log_joint_density(likelihood_name: str, prior_name: str) -> None:
    """Equal to −(N·nll/T + complexity) of the loss at the same weights, with its gradient; also in two batches."""
    template, outputs, kind = LIKELIHOODS[likelihood_name]
    likelihood = copy.deepcopy(template).double()
    model = credo.HMC(mlp(outputs), likelihood, PRIORS[prior_name], chains=3, temperature=0.5)
    x, weight = torch.randn(10, 3, dtype=torch.float64), torch.rand(10, dtype=torch.float64)
    targets = 1 if likelihood_name == "heteroscedastic" else outputs
    y = {
        "real": torch.randn(10, targets, dtype=torch.float64),
        "count": torch.randint(5, (10, 1)),
        "share": 0.05 + 0.9 * torch.rand(10, 1, dtype=torch.float64),
        "binary": torch.rand(10, 1) < 0.5,
        "class": torch.randint(3, (10,)),
    }[kind]
    target = model._log_joint([Batch(x[:6], y[:6], weight[:6]), Batch(x[6:], y[6:], weight[6:])])
    starts = [target.sample_prior() for _ in range(3)]
    position = 0.3 * torch.stack(starts)
    found = target(position)
    torch.testing.assert_close(target(position.flip(0)), tuple(part.flip(0) for part in found))
    weights, noise = target.split(position)
    for k in range(3):
        for values, module in ((weights, model.net), (noise, model.likelihood)):
            for name, value in values.items():
                module.get_parameter(name).data.copy_(value[k])
        model.zero_grad()
        value = -10 * model.loss(x, y, n_data=10, sample_weight=weight)
        value.backward()
        torch.testing.assert_close(found.log_density[k], value.detach())
        parts = [model.net.get_parameter(n).grad for n in weights] + [
            model.likelihood.get_parameter(n).grad for n in noise
        ]
        gradient = torch.cat([part.flatten() for part in parts if part is not None])
        torch.testing.assert_close(found.gradient[k], gradient)


@pytest.mark.parametrize("method", SAMPLERS)
def test_moments_of_the_linear_gaussian_posterior(method: Any) -> None:
    """Means and second moments of the 4 weights, and the predictive mean, within 4 standard errors."""
    torch.manual_seed(0)
    prior = credo.Normal(0, TARGET.prior_scale)
    model = method(TARGET.network(), credo.Gaussian(TARGET.noise), prior, init="prior", **SAMPLERS[method])
    model.fit((TARGET.x, TARGET.y), seed=0)
    by_chain = model.posterior.by_chain()
    draws = torch.cat([by_chain["weight"].flatten(2), by_chain["bias"].flatten(2)], 2).double()
    offset = draws - TARGET.mean()
    assert within(draws, TARGET.mean())
    assert within(offset.unsqueeze(-1) * offset.unsqueeze(-2), torch.linalg.inv(TARGET.precision()))
    outputs = model.outputs(TARGET.x).double().squeeze(3)
    assert within(outputs, TARGET.features @ TARGET.mean())
    torch.testing.assert_close(outputs, draws @ TARGET.features.T, rtol=1e-4, atol=1e-5)
    p = model.predict(TARGET.x, samples=len(draws.flatten(0, 1)), seed=0)
    torch.testing.assert_close(p.mean.squeeze(1).double(), outputs.mean((0, 1)), rtol=1e-4, atol=1e-5)
    variance = outputs.flatten(0, 1).var(0, correction=0)
    torch.testing.assert_close(p.epistemic.squeeze(1).double(), variance, rtol=1e-3, atol=0)


def test_optimized_chains_start_near_the_mode() -> None:
    """After Adam the log density is within a few nats of its maximum; of a random start it is hundreds below."""
    torch.manual_seed(0)
    model = credo.HMC(TARGET.network(), credo.Gaussian(TARGET.noise), chains=3)
    target = model._log_joint([Batch(TARGET.x, TARGET.y, None)])
    start = model._start(target, 0)
    mode = TARGET.mean().float().expand(3, 4)
    assert (target(mode).log_density - target(start).log_density < 3).all()
    assert len({float(value) for value in start[:, 0]}) == 3


def grid(*edges: tuple[float, float], points: int = 201) -> list[Tensor]:
    return list(torch.meshgrid(*[torch.linspace(a, b, points, dtype=torch.float64) for a, b in edges], indexing="ij"))


@pytest.mark.parametrize("method", SAMPLERS)
def test_logistic_regression_against_quadrature(method: Any) -> None:
    """Two weights, 12 rows, prior N(0, 2²): moments by a grid of 201² points, to 1e-6, within 4 standard errors."""
    source = torch.Generator().manual_seed(1)
    x = torch.randn(12, 1, dtype=torch.float64, generator=source)
    y = torch.rand(12, 1, dtype=torch.float64, generator=source) < torch.sigmoid(2 * x - 0.5)
    weight, bias = grid((-6, 12), (-8, 8))
    logits = weight[..., None] * x[:, 0] + bias[..., None]
    log_p = (torch.where(y[:, 0], 1.0, -1.0) * logits).sigmoid().log().sum(-1) - (weight**2 + bias**2) / 8
    density = (log_p - log_p.max()).exp()
    density /= density.sum()
    net = nn.Linear(1, 1).double()
    model = method(net, credo.Bernoulli(), credo.Normal(0, 2), init="prior", **SAMPLERS[method])
    model.fit((x, y), seed=0)
    by_chain = model.posterior.by_chain()
    for draws, values in ((by_chain["weight"][..., 0, 0], weight), (by_chain["bias"][..., 0], bias)):
        for power in (1, 2):
            assert within(draws**power, (density * values**power).sum())
    probabilities = torch.sigmoid(model.outputs(x)).squeeze(3)
    assert within(probabilities, (density[..., None] * logits.sigmoid()).sum((0, 1)))


class Constant(nn.Module):
    """A network that outputs one number for all rows."""

    def __init__(self) -> None:
        super().__init__()
        self.level = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.level.expand(len(x), 1)


@pytest.fixture(scope="module")
def noisy_constant() -> tuple[credo.HMC, Tensor]:
    y = 0.5 + 0.4 * torch.randn(8, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    model = credo.HMC(Constant(), init="network", **MEDIUM)
    return model.fit((torch.zeros(8, 1, dtype=torch.float64), y), seed=0), y


def test_learned_noise_against_quadrature(noisy_constant: tuple[credo.HMC, Tensor]) -> None:
    """y ~ N(b, σ²), b ~ N(0, 1), log σ ~ N(0, 1): moments of b and log σ by a grid, within 4 standard errors."""
    model, y = noisy_constant
    level, log_scale = grid((-2, 3), (-3, 2))
    residual = (y[:, 0] - level[..., None]) / log_scale.exp()[..., None]
    log_p = -0.5 * residual.square().sum(-1) - 8 * log_scale - 0.5 * (level**2 + log_scale**2)
    density = (log_p - log_p.max()).exp()
    density /= density.sum()
    assert model.likelihood_posterior is not None
    noise = model.likelihood_posterior.by_chain()["log_scale"].double()
    for draws, values in ((model.posterior.by_chain()["level"].squeeze(2), level), (noise, log_scale)):
        for power in (1, 2):
            assert within(draws**power, (density * values**power).sum())


def test_predictions_use_the_noise_of_each_draw(noisy_constant: tuple[credo.HMC, Tensor], tmp_path: Path) -> None:
    """With all draws the mixture has mean b̄ and variance mean σ² + var b; the level that draws share is aleatoric."""
    model, y = copy.deepcopy(noisy_constant)
    assert model.likelihood_posterior is not None
    level = model.posterior.by_chain()["level"].flatten()
    scale = model.likelihood_posterior.by_chain()["log_scale"].flatten().double().exp()
    x = torch.zeros(1, 1, dtype=torch.float64)
    p = model.predict(x, samples=600, seed=3)
    assert float(p.mean) == pytest.approx(float(level.mean()))
    assert float(p.variance) == pytest.approx(float(scale.square().mean() + level.var(correction=0)))
    exact = torch.distributions.Normal(level, scale).log_prob(y[0]).logsumexp(0) - torch.tensor(600.0).log()
    assert float(p.log_prob(y[:1])) == pytest.approx(float(exact), abs=1e-6)
    order = model.posterior.order(5, seed=3)
    few = model.predict(x, samples=5, seed=3).draws.flatten()
    torch.testing.assert_close(few, level[order])
    best = model.predict(x, samples=0)
    assert float(best.std) == pytest.approx(float(model.likelihood.scale), rel=1e-6)  # type: ignore[arg-type]
    model.posterior, model.likelihood_posterior = model.posterior.thin(5), model.likelihood_posterior.thin(5)
    model.save(tmp_path / "run")
    loaded = credo.load(tmp_path / "run", net=Constant())
    assert loaded.posterior.shape == (4, 30)
    assert loaded.summary() == model.summary()
    assert torch.equal(loaded.predict(x, samples=20, seed=0).draws, model.predict(x, samples=20, seed=0).draws)


def test_weights_and_noise_are_thinned_together(noisy_constant: tuple[credo.HMC, Tensor]) -> None:
    """Otherwise a weight vector would be predicted with the noise of another."""
    model, x = copy.deepcopy(noisy_constant[0]), torch.zeros(2, 1, dtype=torch.float64)
    assert model.likelihood_posterior is not None
    model.posterior.replace(model.posterior.thin(5).by_chain())
    with pytest.raises(InputError, match="chains and draws: thin both"):
        model.predict(x, samples=3)
    model.likelihood_posterior.replace(model.likelihood_posterior.thin(5).by_chain())
    assert model.predict(x, samples=3).n_draws == 3


@pytest.mark.parametrize("chains", [1, 2])
def test_attention_in_evaluation_mode(chains: int) -> None:
    """A fused path of an encoder has no derivative, and its kernels for attention are marked as random."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    net = nn.Sequential(nn.Linear(3, 4), nn.TransformerEncoder(layer, 1), nn.Flatten(), nn.Linear(8, 1))
    x, y = torch.randn(10, 2, 3), torch.randn(10, 1)
    model = credo.HMC(net, credo.Gaussian(0.5), **{**SHORT, "chains": chains}).fit((x, y), seed=0)
    assert float(model.predict(x, seed=0).epistemic.min()) > 0.0


def test_a_chain_does_not_depend_on_the_number_of_chains() -> None:
    """In float64, for 10 transitions, so that rounding that depends on the batch does not grow."""
    x, y = torch.randn(12, 3, dtype=torch.float64), torch.randn(12, 1, dtype=torch.float64)
    few, many = (
        credo.HMC(mlp(), credo.Gaussian(0.5), chains=k, init="prior", warmup=5, draws=5, leapfrog_steps=3)
        .fit((x, y), seed=1)
        .posterior.by_chain()["0.weight"]
        for k in (1, 3)
    )
    torch.testing.assert_close(few[0], many[0], rtol=0, atol=1e-8)
    assert not torch.equal(many[0], many[1])


def test_loaders_sample_weights_and_copies_of_rows_agree() -> None:
    x, y = torch.randn(10, 3, dtype=torch.float64), torch.randn(10, 1, dtype=torch.float64)

    def draws(data: Any) -> Tensor:
        torch.manual_seed(3)
        return credo.HMC(mlp(), credo.Gaussian(0.5), **SHORT).fit(data, seed=0).posterior.by_chain()["2.weight"]

    whole = draws((x, y))
    torch.testing.assert_close(draws(DataLoader(TensorDataset(x, y), batch_size=3)), whole, rtol=0, atol=1e-8)
    weighted = draws((x, y, torch.full((10,), 2.0, dtype=torch.float64)))
    torch.testing.assert_close(draws((torch.cat([x, x]), torch.cat([y, y]))), weighted, rtol=0, atol=1e-8)


def test_dropout_and_batch_norm_are_in_evaluation_mode_and_left_as_they_were() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1)).train()
    buffers = {name: value.clone() for name, value in net.named_buffers()}
    model = credo.HMC(net, credo.Gaussian(0.5), **SHORT)
    model.fit((torch.randn(10, 3), torch.randn(10, 1)), seed=0)
    assert all(module.training for module in net.modules())
    assert all(torch.equal(value, buffers[name]) for name, value in net.named_buffers())
    assert model.posterior.names() == ["0.weight", "0.bias", "3.weight", "3.bias"]


def test_the_likelihood_follows_from_the_targets_and_summary_reports() -> None:
    model = credo.HMC(nn.Linear(3, 3), **SHORT)
    assert "not sampled yet" in model.summary()
    model.fit((torch.randn(12, 3), torch.randint(3, (12,))), seed=0)
    assert isinstance(model.likelihood, credo.Categorical)
    assert model.likelihood_posterior is None
    for word in ("acceptance", "step size", "divergences", "R-hat", "effective draws", "2, 10 draws each"):
        assert word in model.summary()
    assert [entry["iteration"] for entry in model.history] == list(range(30))


class Bare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


class Noisy(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.randn(len(x), 1)


def test_what_cannot_be_sampled_raises_and_changes_nothing() -> None:
    x, y = torch.randn(6, 3), torch.randn(6, 1)
    model = credo.HMC(nn.Linear(3, 1), **SHORT)
    before = copy.deepcopy(model.state_dict())
    for options, sentence in (
        ({"epochs": 3}, r"length of chains is set by HMC\(net, warmup=\.\.\., draws=\.\.\.\)"),
        ({"draws": 3}, r"pass it to the constructor, HMC\(net, draws=\.\.\.\)"),
        ({"sede": 3}, "did you mean 'seed'"),
    ):
        with pytest.raises(InputError, match=sentence):
            model.fit((x, y), **options)
    with pytest.raises(InputError):
        model.fit((x, torch.randn(6, 2)))
    with pytest.raises(UnsupportedError, match="no evidence lower bound"):
        model.elbo((x, y))
    assert model.likelihood_posterior is not None
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with pytest.raises(UnsupportedError, match="density"):
        credo.HMC(nn.Linear(3, 1), prior=credo.AdaptiveNormal())
    with pytest.raises(UnsupportedError, match="init='network'"):
        credo.HMC(Bare(), credo.Gaussian(0.1)).fit((x, y))
    with pytest.raises(UnsupportedError, match="random numbers"):
        credo.HMC(Noisy(3, 1), credo.Gaussian(0.1), **SHORT).fit((x, y))
    with pytest.raises(UnsupportedError, match="leave out logit_noise="):
        credo.HMC(nn.Linear(3, 4), credo.Categorical(logit_noise=True))
    with pytest.raises(UnsupportedError, match="float32"):
        credo.HMC(nn.Linear(3, 1).half(), credo.Gaussian(0.1)).fit((x, y))
    for options in ({"chains": 0}, {"draws": 0}, {"init": "map"}, {"acceptance": 1.0}, {"leapfrog_steps": 0}):
        with pytest.raises(InputError, match=next(iter(options))):
            credo.HMC(nn.Linear(3, 1), **options)  # type: ignore[arg-type]
