"""Traps 1–8 of docs/traps.md: the KL and the objective, against closed forms, quadrature and moments."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from scipy import integrate
from torch import Tensor, nn
from torch.distributions import Categorical as Choice
from torch.distributions import Distribution, Laplace, MixtureSameFamily, Normal, StudentT, kl_divergence

import credo
from credo.methods.network import NetworkMethod
from networks import CalledTwice, Recurrent, Registered, TiedLanguageModel


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv1d(2, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(9, 4), nn.Tanh(), nn.Linear(4, 1))


def spread(model: credo.BayesByBackprop) -> credo.BayesByBackprop:
    """Give every weight a scale of its own."""
    source = torch.Generator().manual_seed(1)
    for rho in model.posterior.rho.parameters():
        rho.data.uniform_(-3.0, 1.0, generator=source)
    return model


def kl_by_torch(model: credo.BayesByBackprop, prior: Distribution) -> Tensor:
    mean, scale = model.posterior.mean(), model.posterior.scale()
    return torch.stack([kl_divergence(Normal(mean[n], scale[n]), prior).sum() for n in mean]).sum()


@pytest.mark.parametrize("prior", [Normal(0.0, 1.0), Normal(0.3, 0.2), Laplace(0.1, 0.5)])
def test_trap_01_kl_is_a_sum(prior: Distribution) -> None:
    model = spread(credo.BayesByBackprop(network(), prior=prior))
    expected = kl_by_torch(model, prior)
    torch.testing.assert_close(model.kl(), expected)
    torch.testing.assert_close(model.posterior.kl(prior), expected)
    assert sorted(model.posterior.names()) == sorted(name for name, _ in model.net.named_parameters())


@pytest.mark.parametrize("rows", [1, 4, 20])
def test_trap_01_the_loss_holds_the_whole_kl_once(rows: int) -> None:
    model = spread(credo.BayesByBackprop(network().double(), credo.Gaussian(0.5))).double()
    x, y = torch.randn(rows, 2, 4).double(), torch.randn(rows, 1).double()
    losses = []
    for n_data in (20, 40):
        torch.manual_seed(3)
        losses.append(model.loss(x, y, n_data=n_data))
    torch.testing.assert_close(40 * (losses[0] - losses[1]), model.kl())
    assert model._last_terms is not None
    torch.testing.assert_close(losses[0], model._last_terms.nll + model._last_terms.kl / 20)


def test_trap_01_temperature_divides_the_likelihood_and_leaves_the_kl() -> None:
    model = spread(credo.BayesByBackprop(network(), credo.Gaussian(0.5), temperature=4.0))
    loss = model.loss(torch.randn(5, 2, 4), torch.randn(5, 1), n_data=20)
    assert model._last_terms is not None
    torch.testing.assert_close(loss, model._last_terms.nll / 4.0 + model.kl() / 20)


def test_trap_02_kl_is_zero_where_posterior_and_prior_agree() -> None:
    """Each of the 62 weights' terms cancels to a few ulp: 62 · 4 · 2e-16 = 5e-14 in float64, 3e-5 in float32."""
    for dtype, tolerance in ((torch.float64, 1e-13), (torch.float32, 3e-5)):
        prior = credo.Normal(torch.tensor(0.25, dtype=dtype), torch.tensor(0.3, dtype=dtype))
        model = credo.BayesByBackprop(network().to(dtype), prior=prior, initial_scale=0.3)
        for parameter in model.net.parameters():
            parameter.data.fill_(0.25)
        assert abs(float(model.kl().detach())) < tolerance


def test_trap_02_kl_does_not_depend_on_how_weights_are_split_into_layers() -> None:
    whole = spread(credo.BayesByBackprop(nn.Linear(3, 4)))
    halves = credo.BayesByBackprop(nn.ModuleList([nn.Linear(3, 2), nn.Linear(3, 2)]))
    for i in range(2):
        rows = slice(2 * i, 2 * i + 2)
        for kind in ("weight", "bias"):
            halves.net.get_parameter(f"{i}.{kind}").data.copy_(whole.net.get_parameter(kind).data[rows])
            target = halves.posterior.rho.get_parameter(f"{i}/{kind}")
            target.data.copy_(whole.posterior.rho.get_parameter(kind).data[rows])
    torch.testing.assert_close(halves.kl(), whole.kl())


@pytest.mark.parametrize("prior", [credo.Normal(0.0, 0.7), credo.LaplacePrior(0.0, 0.7), credo.ScaleMixture()])
def test_trap_03_every_tensor_contributes(prior: Distribution) -> None:
    model = spread(credo.BayesByBackprop(network(), prior=prior))
    parts = model.posterior.kl_by_name(prior, samples=50, seed=0)
    assert list(parts) == [name for name, _ in model.net.named_parameters()]
    total = model.posterior.kl(prior, samples=50, seed=0)
    torch.testing.assert_close(torch.stack(list(parts.values())).sum(), total)
    model.kl().backward()
    for name in parts:
        gradient = model.net.get_parameter(name).grad
        assert gradient is not None
        assert bool((gradient != 0).all()), name
        rho = model.posterior.rho.get_parameter(name.replace(".", "/"))
        assert rho.grad is not None
        assert bool((rho.grad != 0).all()), name


def test_trap_04_lstm_counts_every_parameter_once_whatever_the_length() -> None:
    torch.manual_seed(0)
    model = spread(credo.BayesByBackprop(Recurrent(nn.LSTM, num_layers=2, bidirectional=True), credo.Gaussian(0.1)))
    torch.testing.assert_close(model.kl(), kl_by_torch(model, Normal(0.0, 1.0)))
    kl = []
    for length in (1, 12):
        model.loss(torch.randn(3, length, 3), torch.randn(3, 1), n_data=10)
        assert model._last_terms is not None
        kl.append(model._last_terms.kl)
    assert torch.equal(kl[0], kl[1])


def test_trap_04_tied_and_shared_weights_count_once() -> None:
    torch.manual_seed(0)
    tied = spread(credo.BayesByBackprop(TiedLanguageModel()))
    assert tied.posterior.names() == ["embedding.weight", "hidden.weight", "hidden.bias", "output.bias"]
    torch.testing.assert_close(tied.kl(), kl_by_torch(tied, Normal(0.0, 1.0)))
    twice = credo.BayesByBackprop(CalledTwice())
    registered = credo.BayesByBackprop(Registered())
    registered.net.load_state_dict(
        {
            "first.weight": twice.net.get_parameter("shared.weight").data,
            "first.bias": twice.net.get_parameter("shared.bias").data,
            "second.weight": twice.net.get_parameter("shared.weight").data,
            "second.bias": twice.net.get_parameter("shared.bias").data,
            "head.weight": twice.net.get_parameter("head.weight").data,
            "head.bias": twice.net.get_parameter("head.bias").data,
        }
    )
    torch.testing.assert_close(registered.kl(), twice.kl())


def test_trap_05_the_mixture_has_the_right_gradient_far_in_the_tail() -> None:
    """Far out the wide component alone is left: d log p/dw = −w/σ₁², to the last digits of float32."""
    w = torch.tensor([100.0, -30.0, 5.0, 3000.0], requires_grad=True)
    credo.ScaleMixture(pi=0.5, sigma1=1.0, sigma2=math.exp(-6)).log_prob(w).sum().backward()
    torch.testing.assert_close(w.grad, -w.detach())


def test_trap_05_the_mixture_density_is_the_mixture_density() -> None:
    prior = credo.ScaleMixture(pi=0.3, sigma1=1.5, sigma2=0.1)
    reference: Distribution = MixtureSameFamily(
        Choice(torch.tensor([0.3, 0.7]).double()), Normal(torch.zeros(2).double(), torch.tensor([1.5, 0.1]).double())
    )
    w = torch.linspace(-8.0, 8.0, 400).double()
    torch.testing.assert_close(prior.log_prob(w), reference.log_prob(w))


def test_trap_06_the_default_mixture_mixes() -> None:
    prior = credo.ScaleMixture()
    assert 0.0 < prior.pi < 1.0
    assert prior.sigma1 > prior.sigma2
    near, far = torch.tensor(0.0).double(), torch.tensor(1.0).double()
    single: Distribution = Normal(torch.tensor(0.0).double(), torch.tensor(prior.sigma1).double())
    assert float(prior.log_prob(near)) > float(single.log_prob(near)) + 1.0
    torch.testing.assert_close(prior.log_prob(far), single.log_prob(far) + math.log(prior.pi))
    for pi in (0.0, 1.0, -0.1, 1.1):
        with pytest.raises(credo.errors.InputError):
            credo.ScaleMixture(pi=pi)


N = 40_000


@pytest.mark.parametrize(
    ("draws", "std"),
    [
        (lambda: credo.Normal(0.5, 0.3).rsample(torch.Size([N])), 0.3),
        (lambda: credo.LaplacePrior(0.5, 0.3).sample((N,)), 0.3 * math.sqrt(2.0)),
        (lambda: credo.ScaleMixture(0.25, 2.0, 0.5).sample((N,)), math.sqrt(0.25 * 4.0 + 0.75 * 0.25)),
        (lambda: _noise(credo.BayesByBackprop(nn.Linear(1, N), initial_scale=0.3)), 0.3),
        (lambda: _noise(credo.MCDropout(nn.Linear(1, N), p=0.0, weight_noise=0.3)), 0.3),
    ],
    ids=["normal", "laplace", "mixture", "initial-scale", "weight-noise"],
)
def test_trap_07_a_scale_is_a_standard_deviation(draws: Any, std: float) -> None:
    """Var of the sample variance is (m₄ − m₂²)/n; five of its standard errors."""
    torch.manual_seed(0)
    values = draws().double()
    centered = values - values.mean()
    variance = centered.square().mean()
    error = ((centered.pow(4).mean() - variance.square()) / len(values)).sqrt()
    assert abs(float(variance) - std**2) < 5 * float(error)


def _noise(model: NetworkMethod) -> Tensor:
    weight = model.posterior.sample(1, seed=0)["weight"][0]
    return (weight - model.net.get_parameter("weight").detach()).flatten()


def test_trap_07_the_length_scale_is_the_inverse_of_the_priors_standard_deviation() -> None:
    """∇ of the penalty == ∇ of −log N(w; 0, l⁻²), with W̄²/(1 − p) in place of W̄² where dropout stands."""
    length_scale, p = 2.5, 0.2
    model = credo.MCDropout(nn.Linear(3, 2), p=p, length_scale=length_scale)
    model.kl().backward()
    prior: Distribution = Normal(0.0, 1.0 / length_scale)
    for name, factor in (("weight", 1.0 / (1.0 - p)), ("bias", 1.0)):
        parameter = model.net.get_parameter(name)
        w = parameter.detach().clone().requires_grad_()
        (-factor * prior.log_prob(w).sum()).backward()
        torch.testing.assert_close(parameter.grad, w.grad)


def test_the_dropout_penalty_is_that_of_the_paper() -> None:
    """Gal & Ghahramani 2016, eq. 7, with keep rate, unscaled weights M = W̄/(1 − p) and λ = (1 − p)·l²/(2Nτ).

    They add λ‖M‖² to the mean of E = ½(y − f)². As −log p = τE + …, τ times their objective is ours.
    """
    p, length_scale, tau, n = 0.3, 1.7, 4.0, 50
    model = credo.MCDropout(nn.Linear(3, 2, bias=False), p=p, length_scale=length_scale)
    unscaled = model.net.get_parameter("weight").detach() / (1.0 - p)
    decay = (1.0 - p) * length_scale**2 / (2 * n * tau)
    torch.testing.assert_close(model.kl().detach() / n, tau * decay * unscaled.square().sum())


@pytest.mark.parametrize("prior", [credo.Normal(), credo.ScaleMixture(), credo.LaplacePrior()])
def test_trap_08_the_kl_needs_no_forward(prior: Distribution) -> None:
    model = spread(credo.BayesByBackprop(network(), credo.Gaussian(0.1), prior))
    torch.manual_seed(0)
    before = model.kl()
    assert float(before.detach()) != 0.0
    model.loss(torch.randn(5, 2, 4), torch.randn(5, 1), n_data=10)
    torch.manual_seed(0)
    assert torch.equal(model.kl(), before)
    model.net.get_parameter("0.weight").data += 1.0
    torch.manual_seed(0)
    assert not torch.equal(model.kl(), before), "the KL is stale"


def _numerical_kl(mean: float, scale: float, prior: Distribution) -> float:
    q: Distribution = Normal(torch.tensor(mean).double(), torch.tensor(scale).double())

    def integrand(w: float) -> float:
        at = torch.tensor(w).double()
        log_q = q.log_prob(at)
        return float(log_q.exp() * (log_q - prior.log_prob(at)))

    value, _ = integrate.quad(integrand, mean - 10 * scale, mean + 10 * scale, limit=200, points=[mean, 0.0])
    return float(value)


@pytest.mark.parametrize("prior", [credo.ScaleMixture(0.5, 1.0, 0.1), credo.Normal(), StudentT(3.0)])
@pytest.mark.parametrize("estimator", ["auto", "weight"])
def test_the_sampled_kl_is_unbiased(prior: Distribution, estimator: str) -> None:
    """400 training steps' KL against quadrature, within five standard errors; ``weight`` reuses the forward's draw."""
    model = credo.BayesByBackprop(nn.Linear(2, 2), credo.Gaussian(1.0), prior, kl="sampled", estimator=estimator)
    spread(model)
    mean, scale = model.posterior.mean(), model.posterior.scale()
    expected = sum(
        _numerical_kl(float(m), float(s.detach()), prior)
        for n in mean
        for m, s in zip(mean[n].flatten(), scale[n].flatten(), strict=True)
    )
    torch.manual_seed(0)
    x, y = torch.randn(3, 2), torch.randn(3, 2)
    values = torch.stack([model.terms(x, y).kl.detach() for _ in range(400)]).double()
    error = float(values.std()) / math.sqrt(len(values))
    assert abs(float(values.mean()) - expected) < 5 * error


@pytest.mark.parametrize("batches", [1, 3, 40, 5000])
def test_blundells_weighting_sums_to_one_and_does_not_overflow(batches: int) -> None:
    model = credo.BayesByBackprop(nn.Linear(2, 1), credo.Gaussian(1.0), kl_weighting="blundell")
    weights = [model._kl_weight((i, batches)) for i in range(1, batches + 1)]
    assert all(math.isfinite(weight) for weight in weights)
    assert sum(weights) / batches == pytest.approx(1.0, rel=1e-12)
    if batches > 1:
        assert weights[0] == pytest.approx(2 * weights[1])
    assert model._kl_weight(None) == 1.0
