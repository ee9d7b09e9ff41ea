"""The bounds of the VAE against models with known marginal likelihood and posterior."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal

import credo
from credo.generative import VAE, decoders
from credo.seeding import seeded

CPU = torch.device("cpu")
SIGMAS = 4.0
"""Monte Carlo means may be this many standard errors off: once in 16,000 tries."""


@dataclass(frozen=True)
class FactorAnalysis:
    """x = Wz + b + σε with orthogonal columns in W, so that the exact posterior of z is a diagonal Gaussian."""

    weight: Tensor
    bias: Tensor
    noise: float = 0.5

    @property
    def posterior_variance(self) -> Tensor:
        """diag (I + WᵀW/σ²)⁻¹."""
        return 1.0 / (1.0 + self.weight.square().sum(0) / self.noise**2)

    def log_marginal(self, x: Tensor) -> Tensor:
        """log N(x | b, WWᵀ + σ²I)."""
        covariance = self.weight @ self.weight.T + self.noise**2 * torch.eye(len(self.bias), dtype=torch.float64)
        return MultivariateNormal(self.bias, covariance).log_prob(x)

    def vae(self, *, exact: bool = True, **options: object) -> VAE:
        """The model with the exact posterior as its q, or with the prior."""
        features, latent = self.weight.shape
        encoder, decoder = nn.Linear(features, 2 * latent), nn.Linear(latent, features)
        model = VAE(encoder, decoder, latent=latent, likelihood=credo.Gaussian(noise=self.noise), **options).double()
        gain = self.posterior_variance[:, None] * self.weight.T / self.noise**2 if exact else 0.0 * self.weight.T
        log_variance = self.posterior_variance.log() if exact else torch.zeros(latent)
        with torch.no_grad():
            decoder.weight.copy_(self.weight)
            decoder.bias.copy_(self.bias)
            encoder.weight.copy_(torch.cat([gain, torch.zeros(latent, features)]))
            encoder.bias.copy_(torch.cat([-gain @ self.bias, log_variance]))
        return model

    def data(self, n: int, seed: int = 0) -> Tensor:
        with seeded(seed, CPU):
            z, noise = torch.randn(n, self.weight.shape[1]).double(), torch.randn(n, len(self.bias)).double()
        return z @ self.weight.T + self.bias + self.noise * noise


@pytest.fixture(scope="module")
def model() -> FactorAnalysis:
    with seeded(0, CPU):
        basis = torch.linalg.qr(torch.randn(4, 2, dtype=torch.float64)).Q
        return FactorAnalysis(basis * torch.tensor([1.5, 0.7]), torch.randn(4, dtype=torch.float64))


def repeated_losses(vae: VAE, x: Tensor, n: int, seed: int = 0) -> Tensor:
    """The loss of one datum ``x [D]``, ``n`` times with fresh draws."""
    with seeded(seed, CPU), torch.no_grad():
        return torch.stack([vae.loss(x[None]) for _ in range(n)])


def standard_error(values: Tensor) -> float:
    return float(values.std() / math.sqrt(len(values)))


def variance_error(values: Tensor) -> float:
    """The standard error of the sample variance, relative to it: √((κ − 1)/n), κ the kurtosis."""
    kurtosis = (values - values.mean()).pow(4).mean() / values.var().square().clamp(min=1e-300)
    return math.sqrt(max(float(kurtosis) - 1.0, 0.0) / len(values))


def test_closed_form_kl_matches_monte_carlo():
    with seeded(0, CPU):
        q = decoders.diagonal_gaussian(torch.randn(5, 3).double(), (0.5 * torch.randn(5, 3).double()).exp())
        sampled = decoders.sampled_kl_to_prior(q, q.sample((20_000,)))
    error = sampled.std(0) / math.sqrt(len(sampled))
    assert ((sampled.mean(0) - decoders.kl_to_prior(q)).abs() < SIGMAS * error).all()


def test_bounds_at_the_exact_posterior_equal_the_marginal(model):
    x = model.data(50)
    vae, exact = model.vae(), model.log_marginal(x)
    torch.testing.assert_close(vae.log_likelihood(x, samples=1, seed=0), exact, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(vae.log_likelihood(x, samples=64, seed=0), exact, rtol=1e-10, atol=1e-10)
    many = torch.stack([vae.elbo(x, seed=seed) for seed in range(200)])
    assert ((many.mean(0) - exact).abs() < SIGMAS * many.std(0) / math.sqrt(len(many))).all()


@pytest.mark.parametrize("exact", [True, False], ids=["at the exact posterior", "far from the optimum"])
def test_estimators_have_the_expected_variance(model, exact):
    """Both are quadratic in ε, aε² + bε for one latent variable, with variance 2a² + b².

    A: all terms cancel where q is the posterior. B: keeps the noise of log p(x | z), but not that of log p/q.
    """
    weight = model.weight[:, :1] if exact else 0.1 * model.weight[:, :1]
    alone, x = FactorAnalysis(weight, model.bias, model.noise), model.data(1)[0]
    vae = alone.vae(exact=True)
    if not exact:  # q far from the prior, under a decoder that hardly looks at z
        with torch.no_grad():
            vae.encoder.bias[0] += 3.0
    q = vae.encode(x[None])
    mean, scale = q.mean.squeeze(), q.stddev.squeeze()
    residual = x - alone.bias - alone.weight[:, 0] * mean
    slope = (residual @ alone.weight[:, 0]) * scale / alone.noise**2
    curve = -0.5 * scale**2 * alone.weight.square().sum() / alone.noise**2
    expected = {
        "analytic": 2 * curve**2 + slope**2,
        "sampled": 2 * (curve - 0.5 * scale**2 + 0.5) ** 2 + (slope - mean * scale) ** 2,
    }
    found = {}
    for kl, variance in expected.items():
        vae._kl = kl
        losses = repeated_losses(vae, x, 2000)
        found[kl] = losses.var()
        assert abs(found[kl] - variance) < SIGMAS * variance_error(losses) * found[kl] + 1e-20
    if exact:
        assert found["sampled"] < 1e-20
        assert found["analytic"] > 0.1
    else:
        assert found["analytic"] < 0.5 * found["sampled"]


def test_importance_weighted_bounds_rise_to_the_marginal(model):
    """With the prior for q the weights vary; the bias of K draws is about Var(w)/(2K E[w]²)."""
    x = model.data(1).expand(400, -1)
    vae, exact = model.vae(exact=False), model.log_marginal(x[0])
    found = [vae.log_likelihood(x, samples=k, seed=k) for k in (1, 4, 16, 64, 5000)]
    for fewer, more in pairwise(found):
        rise = more.mean() - fewer.mean()
        assert rise > SIGMAS * math.hypot(standard_error(more), standard_error(fewer))
    single = found[0].exp() / exact.exp()
    bias = float(single.var()) / 5000
    assert abs(float(found[-1].mean() - exact)) < SIGMAS * standard_error(found[-1]) + bias


def test_one_importance_sample_is_the_elbo(model):
    x = model.data(1, seed=1)[0]
    weighted = repeated_losses(model.vae(exact=False, objective="iwae"), x, 2000)
    sampled = repeated_losses(model.vae(exact=False, kl="sampled"), x, 2000)
    torch.testing.assert_close(weighted, sampled, rtol=1e-12, atol=1e-12)  # draw by draw
    closed = repeated_losses(model.vae(exact=False), x, 2000, seed=1)
    error = math.hypot(standard_error(weighted), standard_error(closed))
    assert abs(float(weighted.mean() - closed.mean())) < SIGMAS * error


def test_importance_weighted_loss_is_minus_its_bound(model):
    x = model.data(1)[0]
    losses = repeated_losses(model.vae(exact=False, objective="iwae", samples=4), x, 1000)
    bound = model.vae(exact=False).log_likelihood(x.expand(4000, -1), samples=4, seed=0)
    error = math.hypot(standard_error(losses), standard_error(bound))
    assert abs(float(losses.mean() + bound.mean())) < SIGMAS * error


def test_more_draws_lower_only_the_variance_of_the_loss(model):
    x = model.data(1)[0]
    few, many = (repeated_losses(model.vae(exact=False, samples=n), x, 1000) for n in (1, 8))
    bound = model.vae(exact=False).elbo(x[None], samples=20_000, seed=0)
    assert abs(float(few.mean() + bound)) < SIGMAS * math.sqrt(1 + 1000 / 20_000) * standard_error(few)
    assert abs(float(many.mean() - few.mean())) < SIGMAS * math.hypot(standard_error(few), standard_error(many))
    ratio_error = math.hypot(variance_error(few), variance_error(many))
    assert float(few.var() / many.var()) == pytest.approx(8.0, rel=SIGMAS * ratio_error)


@pytest.mark.parametrize(
    "options",
    [{}, {"kl": "sampled", "samples": 2}, {"beta": 0.3}, {"objective": "iwae", "samples": 3}],
    ids=["B", "A", "beta", "iwae"],
)
def test_gradients_match_finite_differences(options):
    with seeded(0, CPU):
        vae = VAE("dense", latent=2, shape=(3,), hidden=(4,), likelihood=credo.Gaussian(), **options).double()
        x = torch.randn(5, 3, dtype=torch.float64)
    names, values = zip(*vae.named_parameters(), strict=True)

    def loss(*parameters: Tensor) -> Tensor:
        with seeded(1, CPU):
            return torch.func.functional_call(vae, dict(zip(names, parameters, strict=True)), (x,))

    assert torch.autograd.gradcheck(loss, values)


def test_linear_vae_reaches_the_likelihood_of_probabilistic_pca():
    """Its best bound is the maximum likelihood of probabilistic PCA (Tipping & Bishop 1999), from eigenvalues."""
    with seeded(0, CPU):
        scales = torch.tensor([3.0, 2.0, 0.5, 0.5, 0.5, 0.5], dtype=torch.float64)
        x = (torch.randn(300, 6, dtype=torch.float64) * scales) @ torch.linalg.qr(torch.randn(6, 6).double()).Q
        vae = VAE("dense", latent=2, shape=(6,), hidden=(), likelihood=credo.Gaussian(noise="learned")).double()
    eigenvalues = torch.linalg.eigvalsh(torch.cov(x.T, correction=0)).flip(0)
    noise = eigenvalues[2:].mean()
    best = -0.5 * float(eigenvalues[:2].log().sum() + 4 * noise.log() + 6 * (math.log(2 * math.pi) + 1))

    vae.fit(x, epochs=1000, batch_size=300, lr=0.03, seed=0)
    scale = vae.likelihood.scale.double()
    weight, bias = (p.detach() for p in vae.decoder.parameters())
    learned = FactorAnalysis(weight, bias, float(scale))
    marginal = float(learned.log_marginal(x).mean())
    assert best - 0.01 * abs(best) < marginal < best
    weighted = vae.log_likelihood(x, samples=500, seed=0)
    assert best - 0.01 * abs(best) < float(weighted.mean()) < best
    assert float(vae.elbo(x, samples=100, seed=0).mean()) > best - 0.01 * abs(best)
    assert float(scale**2) == pytest.approx(float(noise), rel=0.02)
