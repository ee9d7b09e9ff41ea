"""Posterior sharpening against the closed forms of Gaussian models."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

import credo
from credo.architectures import LanguageModel
from credo.errors import InputError
from credo.methods._sharpening import Sharpening
from credo.sequence import CarriedState, TokenStream, dynamic_evaluation, perplexity_bound


class Constant(nn.Module):
    """Outputs its one weight for every row."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.tensor([value], dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.value.expand(len(x), 1)


def test_divergence_is_that_of_two_gaussians():
    net = nn.Linear(3, 2).double()
    sharpening = Sharpening(net, ["weight", "bias"], 0.3)
    for rate in sharpening.parameters():
        nn.init.normal_(rate)
    shared = {name: p.detach() for name, p in net.named_parameters()}
    x = torch.randn(5, 3, dtype=torch.float64)

    def nll(weights):
        return torch.func.functional_call(net, dict(weights), (x,)).square().sum(1).mean()

    _, divergence = sharpening(shared, nll)
    leaves = {name: p.clone().requires_grad_() for name, p in shared.items()}
    gradients = torch.autograd.grad(nll(leaves), list(leaves.values()))
    expected = sum(
        kl_divergence(Normal(phi - 0.3**2 * rate * g, 0.3), Normal(phi, 0.3)).sum()
        for phi, rate, g in zip(shared.values(), sharpening.parameters(), gradients, strict=True)
    )
    torch.testing.assert_close(divergence, expected)


def test_best_step_is_that_to_the_posterior_of_the_minibatch():
    r"""y ~ N(θ, s²), θ ~ N(φ, σ₀²): the posterior mean of θ is φ + σ₀²/(σ₀² + s²)·(y − φ), η/σ₀² = s²/(σ₀² + s²).

    There the bound is stationary. Its gradient is linear in ε with standard deviation σ₀²·|g|·σ₀/s², so the mean of 400
    draws is 0 within 4 standard errors; at half the step it is not.
    """
    phi, y, noise, scale, draws = 0.4, 1.3, 0.5, 0.3, 400
    model = credo.BayesByBackprop(Constant(phi), credo.Gaussian(noise), initial_scale=1e-9, sharpening=scale)
    x, target = torch.zeros(1, 1, dtype=torch.float64), torch.full((1, 1), y, dtype=torch.float64)
    (rate,) = model._sharpening.parameters()
    best = noise**2 / (scale**2 + noise**2)
    gradient = (y - phi) / noise**2
    error = scale**2 * abs(gradient) * scale / noise**2 / draws**0.5
    means = []
    for step in (best, best / 2):
        nn.init.constant_(rate, step)
        torch.manual_seed(0)
        rate.grad = None
        for _ in range(draws):
            (model.nll(x, target) / draws).backward()
        means.append(float(rate.grad))
    assert abs(means[0]) < 4 * error
    assert means[1] < -4 * error


def test_trap_12_the_loss_of_a_minibatch_is_lower_after_sharpening_on_it():
    r"""By a step with r = 1: with g = (φ − y)/s² and h = 1/s² the mean of the loss falls by

        σ₀²g²/2·(1 − σ₀²h) − σ₀²h/2,

    what the step gains less what it and the noise cost. Within 4 standard errors of 1,000 draws.
    """
    phi, y, noise, scale = 0.4, 1.9, 0.5, 0.2
    sharpened = credo.BayesByBackprop(Constant(phi), credo.Gaussian(noise), initial_scale=1e-9, sharpening=scale)
    plain = credo.BayesByBackprop(Constant(phi), credo.Gaussian(noise), initial_scale=1e-9)
    nn.init.ones_(next(sharpened._sharpening.parameters()))
    x, target = torch.zeros(1, 1, dtype=torch.float64), torch.full((1, 1), y, dtype=torch.float64)
    torch.manual_seed(0)
    with torch.no_grad():
        draws = torch.stack([sharpened.nll(x, target) for _ in range(1000)])
        before = plain.nll(x, target)
    g, h = (phi - y) / noise**2, 1.0 / noise**2
    gain = scale**2 * g**2 / 2 * (1 - scale**2 * h) - scale**2 * h / 2
    assert gain > 0.5
    assert abs(float(before - draws.mean()) - gain) < 4 * float(draws.std()) / 1000**0.5


def test_bound_at_the_best_step_is_the_marginal_likelihood():
    """The bound is log N(y; φ, s² + σ₀²) less KL(q(θ) ‖ p(θ | y)), as q(θ) has the posterior's mean but not its width.

    The gap is KL(N(m, σ₀²) ‖ N(m, v)) with 1/v = 1/σ₀² + 1/s². Within 4 standard errors of 1,000 draws of the NLL.
    """
    phi, y, noise, scale = 0.4, 1.3, 0.5, 0.3
    model = credo.BayesByBackprop(Constant(phi), credo.Gaussian(noise), initial_scale=1e-9, sharpening=scale)
    x, target = torch.zeros(1, 1, dtype=torch.float64), torch.full((1, 1), y, dtype=torch.float64)
    (rate,) = model._sharpening.parameters()
    nn.init.constant_(rate, noise**2 / (scale**2 + noise**2))
    torch.manual_seed(0)
    with torch.no_grad():
        draws = torch.stack([model.nll(x, target) for _ in range(1000)])
    exact = -Normal(phi, (noise**2 + scale**2) ** 0.5).log_prob(torch.tensor(y))
    variance = 1.0 / (1.0 / scale**2 + 1.0 / noise**2)
    gap = kl_divergence(Normal(0.0, scale), Normal(0.0, torch.tensor(variance).sqrt()))
    assert abs(float(draws.mean() - exact - gap)) < 4 * float(draws.std()) / 1000**0.5


def test_bound_gains_half_the_excess_of_the_squared_gradient_over_the_trace():
    r"""−log p(y | θ) = ½‖y − Xθ‖² has g = −Xᵀ(y − Xφ) and H = XᵀX. With η = σ₀² the loss falls in expectation by

        σ₀²(‖g‖² − tr H)/2 − σ₀⁴ gᵀHg/2,

    whose leading term is 0 on average if y ~ N(Xφ, I), as E[ggᵀ] = H. Within 5 standard errors of 4,000 draws.
    """
    generator = torch.Generator().manual_seed(0)
    x, y, phi = (torch.randn(*size, generator=generator, dtype=torch.float64) for size in ((6, 3), (6,), (3,)))
    scale, draws = 0.2, 4000
    net = nn.Module()
    net.weight = nn.Parameter(phi)
    sharpening = Sharpening(net, ["weight"], scale)
    nn.init.ones_(sharpening.weight)

    def nll(weights):
        return 0.5 * (y - x @ weights["weight"]).square().sum()

    torch.manual_seed(0)
    with torch.no_grad():
        gains = []
        for _ in range(draws):
            own, divergence = sharpening({"weight": phi}, nll)
            gains.append(nll({"weight": phi}) - nll(own) - divergence)
    gain = torch.stack(gains)
    g, h = -x.T @ (y - x @ phi), x.T @ x
    expected = 0.5 * scale**2 * (g @ g - h.trace()) - 0.5 * scale**4 * (g @ h @ g)
    assert abs(float(gain.mean() - expected)) < 5 * float(gain.std()) / draws**0.5
    assert float(expected) > 10 * float(gain.std()) / draws**0.5  # the tolerance is not the whole of it


def test_without_steps_and_noise_it_is_bayes_by_backprop():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    x, y = torch.randn(7, 3), torch.randn(7, 1)
    sharpened = credo.BayesByBackprop(net, credo.Gaussian(0.5), sharpening=1e-9)
    plain = credo.BayesByBackprop(net, credo.Gaussian(0.5), estimator="weight")
    losses = []
    for model in (sharpened, plain):
        torch.manual_seed(1)
        losses.append(model.loss(x, y, n_data=7))
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-5, atol=1e-5)


def test_minibatch_advances_a_carried_state_once():
    torch.manual_seed(0)
    net = CarriedState(LanguageModel(7, width=5, layers=1))
    tokens = torch.randint(0, 7, (41,))
    stream = TokenStream(tokens, batch_size=2, length=5)
    model = credo.BayesByBackprop(net, credo.Categorical(), initial_scale=1e-9, sharpening=1e-9).train()
    for x, y in stream:
        model.loss(x, y, n_data=stream.n_data)
    _, (hidden, memory) = net.net(tokens[:40].view(2, 20))
    torch.testing.assert_close(net.state_0, hidden, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(net.state_1, memory, rtol=1e-4, atol=1e-5)


def test_training_learns_the_steps_and_they_are_saved(tmp_path):
    """Steps towards minibatches pay if minibatches differ: here each has a mean of its own.

    8 rows with noise s = 0.5 have a curvature of h = 8/s² = 32 in the bias, so that the best step is that of
    r = 1/(1 + σ₀²h) = 1/9. The gradients of the last steps leave an error of a few hundredths.
    """
    torch.manual_seed(0)
    levels = torch.tensor([-1.0, 1.0]).repeat(16)[:, None]
    data = torch.utils.data.DataLoader([(torch.zeros(8, 1), level.expand(8, 1)) for level in levels], batch_size=None)
    net = nn.Linear(1, 1)
    model = credo.BayesByBackprop(net, credo.Gaussian(0.5), sharpening=0.5, kl_warmup=0)
    model.fit(data, n_data=256, epochs=15, lr=1e-2, seed=0)
    rate = model._sharpening.get_parameter("bias")
    assert rate.item() == pytest.approx(1 / 9, abs=0.05)
    model.save(tmp_path / "run")
    loaded = credo.load(tmp_path / "run", net=nn.Linear(1, 1))
    assert loaded._sharpening.scale == 0.5
    torch.testing.assert_close(loaded._sharpening.get_parameter("bias"), rate)


def test_steps_do_not_depend_on_how_many_times_a_row_is_repeated():
    """Two rows that are the same are one row with twice the log likelihood: g and what it costs double too."""
    model = credo.BayesByBackprop(Constant(0.4), credo.Gaussian(0.5), initial_scale=1e-9, sharpening=0.3)
    twice = credo.BayesByBackprop(Constant(0.4), credo.Gaussian(0.5 / 2**0.5), initial_scale=1e-9, sharpening=0.3)
    x, y = torch.zeros(2, 1, dtype=torch.float64), torch.full((2, 1), 1.3, dtype=torch.float64)
    losses = []
    for found, rows in ((model, 2), (twice, 1)):
        torch.manual_seed(0)
        likelihood = found.likelihood.log_prob(y[:rows], y[:rows]).sum()  # without the residual
        losses.append(rows * found.nll(x[:rows], y[:rows]) + likelihood)
    torch.testing.assert_close(losses[0], losses[1])


def test_perplexity_bound_is_above_the_perplexity_of_many_draws():
    """By Jensen's inequality, the mean NLL of draws is above the NLL of their mean."""
    torch.manual_seed(0)
    model = credo.BayesByBackprop(CarriedState(LanguageModel(7, width=5)), credo.Categorical(), initial_scale=0.5)
    stream = TokenStream(torch.randint(0, 7, (101,)), batch_size=1, length=10)
    bound = perplexity_bound(model, stream, samples=20, seed=0)
    assert bound > credo.sequence.perplexity(model, stream, samples=20, seed=0)
    assert bound == perplexity_bound(model, stream, samples=20, seed=0)


def test_pruned_weights_stay_zero():
    """Half of them: θ is 0 where φ is; all of them: every token is as probable as any other, by every measure."""
    torch.manual_seed(0)
    net = LanguageModel(7, width=5, layers=1, tied=False)
    model = credo.BayesByBackprop(CarriedState(net), credo.Categorical(), sharpening=0.3)
    stream = TokenStream(torch.randint(0, 7, (101,)), batch_size=4, length=10)
    model.prune(0.5)
    masks = model.posterior.masks()
    shared = {name: mean.requires_grad_() for name, mean in model.posterior.mean().items()}
    own, cost = model._sharpening(
        shared, lambda weights: sum(w.square().sum() + w.sum() for w in weights.values()), masks
    )
    assert all(bool((own[name] != 0).eq(mask).all()) for name, mask in masks.items())
    step = sum((0.1 * 0.3**2 * (2 * shared[name] + 1))[mask].square().sum() for name, mask in masks.items())
    torch.testing.assert_close(cost, step / (2 * 0.3**2))
    model.prune(1.0)
    for samples in (0, 2):
        assert perplexity_bound(model, stream, samples, seed=0) == pytest.approx(7.0, rel=1e-6)
    scores = dynamic_evaluation(model, stream, lr=1.0)
    torch.testing.assert_close(scores, torch.full_like(scores, -math.log(7.0)))


def test_noise_by_hooks_is_refused():
    with pytest.raises(InputError, match="estimator='weight', not 'flipout'"):
        credo.BayesByBackprop(nn.Linear(1, 1), estimator="flipout", sharpening=0.1)


def test_step_sizes_of_a_network_of_low_precision_keep_32_bits():
    net = nn.Linear(3, 2).bfloat16()
    model = credo.BayesByBackprop(net, credo.Gaussian(0.5), sharpening=0.1)
    assert {p.dtype for p in model._sharpening.parameters()} == {torch.float32}
    model.fit((torch.randn(8, 3).bfloat16(), torch.randn(8, 2).bfloat16()), epochs=2, progress=False, seed=0)
    assert {p.dtype for p in model._sharpening.parameters()} == {torch.float32}
    assert {p.dtype for p in net.parameters()} == {torch.bfloat16}
