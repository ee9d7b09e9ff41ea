"""The prior that finds its own scale, against the joint bound it stands for."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Gamma, InverseGamma, MixtureSameFamily, Normal, kl_divergence

import credo
from credo.errors import InputError, UnsupportedError
from credo.priors import AdaptiveNormal, from_config, to_config


def joint(mean: Tensor, scale: Tensor, variance: Tensor, prior: AdaptiveNormal) -> Tensor:
    """KL(q ‖ N(0, s²)) − log p(s²), which the best scale minimizes."""
    hyperprior = InverseGamma(torch.tensor(prior.shape).double(), torch.tensor(prior.rate).double())
    kl = kl_divergence(Normal(mean, scale), Normal(torch.zeros_like(mean), variance.sqrt())).sum()
    return kl - hyperprior.log_prob(variance)


@pytest.fixture
def posterior() -> tuple[Tensor, Tensor]:
    stream = torch.Generator().manual_seed(0)
    mean = torch.randn(7, 5, generator=stream, dtype=torch.float64)
    return mean, 0.1 + torch.rand(7, 5, generator=stream, dtype=torch.float64)


def test_the_scale_is_the_minimizer_of_the_joint_bound(posterior):
    prior = AdaptiveNormal(shape=1.5, rate=3.0)
    best = prior.best_scale(*posterior).square()
    at_best = joint(*posterior, best, prior)
    for factor in (0.9, 0.99, 1.01, 1.1):
        assert joint(*posterior, factor * best, prior) > at_best


def test_the_gradient_is_that_of_the_joint_bound(posterior):
    """d/dθ min_s J(θ, s) = ∂J/∂θ at the minimum: holding the scale constant loses nothing."""
    prior = AdaptiveNormal(rate=2.0)
    mean, scale = (t.clone().requires_grad_() for t in posterior)
    count = mean.numel()
    variance = (2.0 * prior.rate + (mean.square() + scale.square()).sum()) / (count + 2.0 * prior.shape + 2.0)
    expected = torch.autograd.grad(joint(mean, scale, variance, prior), (mean, scale))
    found = torch.autograd.grad(kl_divergence(Normal(mean, scale), prior).sum(), (mean, scale))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_every_tensor_has_a_scale_of_its_own_however_they_are_evaluated():
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)).double()
    method = credo.BayesByBackprop(net, credo.Gaussian(), AdaptiveNormal(rate=3.0), initial_scale=0.2)
    posterior = method.posterior
    scale = posterior.scale()
    expected = {
        name: kl_divergence(Normal(mean, scale[name]), Normal(0.0, method.prior.best_scale(mean, scale[name]))).sum()
        for name, mean in posterior.mean().items()
    }
    for name, kl in posterior.kl_by_name(method.prior).items():
        torch.testing.assert_close(kl, expected[name])
    together = method.terms(torch.zeros(3, 4).double(), torch.zeros(3, 2).double()).kl
    torch.testing.assert_close(together, torch.stack(list(expected.values())).sum())
    torch.testing.assert_close(method.kl(), together)


def test_pruned_weights_leave_the_kl_finite_and_differentiable():
    method = credo.BayesByBackprop(nn.Linear(5, 3), credo.Gaussian(), AdaptiveNormal())
    method.prune(0.5)
    kl = method.kl()
    kl.backward()
    assert torch.isfinite(kl)
    assert all(torch.isfinite(p.grad).all() for p in method.posterior.rho.parameters())


def test_a_layer_without_use_shrinks_and_one_in_use_does_not():
    torch.manual_seed(0)
    x = torch.randn(200, 2)
    y = 3.0 * x[:, :1] + 0.1 * torch.randn(200, 1)

    class TwoInputs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.useless = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x[:, :1]) + self.useless(x[:, 1:])

    prior = AdaptiveNormal(shape=0.1, rate=0.01)
    method = credo.BayesByBackprop(TwoInputs(), credo.Gaussian(0.1), prior)
    method.fit((x, y), epochs=300, batch_size=200, lr=0.03, seed=0, progress=False)
    mean, scale = method.posterior.mean(), method.posterior.scale()
    best = {name: prior.best_scale(mean[name], scale[name]).item() for name in mean}
    assert best["used.weight"] > 1.0 > 0.2 > best["useless.weight"]


def test_it_is_saved_copied_and_refused_where_it_has_no_density(tmp_path):
    prior = AdaptiveNormal(shape=2.0, rate=5.0)
    assert repr(from_config(to_config(prior))) == repr(prior) == "AdaptiveNormal(shape=2, rate=5)"
    net = credo.architectures.MLP(2, (3,), 2)
    method = credo.BayesByBackprop(net, credo.Gaussian(noise="heteroscedastic"), prior)
    method.save(tmp_path / "run")
    assert repr(credo.load(tmp_path / "run").prior) == repr(copy.deepcopy(method).prior) == repr(prior)
    with pytest.raises(UnsupportedError, match="kl='auto'"):
        credo.BayesByBackprop(net, credo.Gaussian(), prior, kl="sampled").kl()
    with pytest.raises(UnsupportedError, match="Normal"):
        credo.MAP(net, credo.Gaussian(), prior).kl()
    with pytest.raises(InputError, match="rate"):
        AdaptiveNormal(rate=0.0)


def test_pruned_weights_leave_the_scale_and_the_kl():
    """A pruned layer costs what a layer of its remaining weights costs."""
    torch.manual_seed(0)
    net = nn.Linear(6, 5, bias=False).double()
    model = credo.BayesByBackprop(net, credo.Gaussian(), AdaptiveNormal(rate=2.0), initial_scale=0.3)
    assert model.prune(0.4) == 12
    kept = model.posterior.mean()["weight"] != 0
    mean, scale = model.posterior.mean()["weight"][kept], model.posterior.scale()["weight"][kept]
    expected = kl_divergence(Normal(mean, scale), model.prior).sum()
    for kl in (model.kl(), model.posterior.kl(model.prior)):
        torch.testing.assert_close(kl, expected)
    terms = model.terms(torch.ones(2, 6).double(), torch.ones(2, 5).double())
    torch.testing.assert_close(terms.kl, expected)


def test_pruning_again_counts_all_weights_that_are_zero():
    torch.manual_seed(0)
    model = credo.BayesByBackprop(nn.Linear(5, 4, bias=False), credo.Gaussian(), AdaptiveNormal())
    assert [model.prune(f) for f in (0.5, 0.2, 0.5, 0.75)] == [10, 10, 10, 15]
    assert int((model.posterior.mean()["weight"] == 0).sum()) == 15


def test_a_mixture_of_torch_is_the_scale_mixture():
    """Both routes to a prior of two Gaussians have the same KL and the same MAP penalty."""
    torch.manual_seed(0)
    net, scales = nn.Linear(3, 2), torch.tensor([1.0, 0.05], dtype=torch.float64)
    mixture = MixtureSameFamily(Categorical(torch.tensor([0.25, 0.75])), Normal(torch.zeros(2), scales))
    ours = credo.ScaleMixture(pi=0.25, sigma1=1.0, sigma2=0.05)
    models = [credo.BayesByBackprop(net, credo.Gaussian(0.3), prior, initial_scale=0.2) for prior in (mixture, ours)]
    torch.testing.assert_close(*[model.posterior.kl(model.prior, samples=50, seed=0) for model in models])
    torch.testing.assert_close(*[credo.MAP(net, credo.Gaussian(0.3), prior).kl() for prior in (mixture, ours)])


def test_a_mixture_over_positive_numbers_is_refused():
    mixture = MixtureSameFamily(Categorical(torch.ones(2)), Gamma(torch.ones(2), torch.ones(2)))
    with pytest.raises(InputError, match="does not cover the real line"):
        credo.BayesByBackprop(nn.Linear(3, 2), credo.Gaussian(0.3), mixture)
