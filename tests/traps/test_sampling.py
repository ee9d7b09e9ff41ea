"""Traps 10, 11 and 13–15 of docs/traps.md: every estimator has noise of the right distribution.

A network that is linear in its weights has an output whose moments are known: with w ~ N(μ, σ²) any statistic t of it
has mean t(μ) and variance Σ_w σ_w² (∂t/∂w)². Here ∂t/∂w comes from autograd through plain torch layers. Sample means
over n draws have standard error σ/√n, sample variances (of Gaussian outputs) σ²·√(2/(n − 1)); five of each are allowed.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, jacrev

import credo
from credo.posteriors._gaussian_kl import scales_and_kl
from networks import Recurrent

DRAWS = 1500
ESTIMATORS = ("weight", "local", "flipout", "auto")
Statistic = Callable[[Tensor], Tensor]


def model_of(net: nn.Module, estimator: str) -> credo.BayesByBackprop:
    """A posterior in which every weight has a scale of its own, between 0.13 and 0.69."""
    model = credo.BayesByBackprop(net, credo.Gaussian(1.0), estimator=estimator)
    source = torch.Generator().manual_seed(1)
    for rho in model.posterior.rho.parameters():
        rho.data.uniform_(-2.0, 0.0, generator=source)
    return model


def noisy_outputs(model: credo.BayesByBackprop, x: Any, draws: int = DRAWS) -> Tensor:
    """Outputs of ``draws`` training passes, ``[draws, B, ...]``."""
    torch.manual_seed(0)
    model.train()
    model._prepare(x)
    scale = {name: value.detach() for name, value in model.posterior.scale().items()}
    return torch.stack([model._noisy_forward(x, scale)[0].detach() for _ in range(draws)])


def exact_moments(model: credo.BayesByBackprop, x: Any, statistic: Statistic) -> tuple[Tensor, Tensor]:
    """Mean and variance of ``statistic`` of the output, for a network that is linear in its weights."""
    net = copy.deepcopy(model.net)
    weights = {name: value.clone() for name, value in model.posterior.mean().items()}

    def value(weights: dict[str, Tensor]) -> Tensor:
        return statistic(functional_call(net, weights, (x,)))

    mean = value(weights).detach()
    variance = torch.zeros_like(mean)
    for name, slope in jacrev(value)(weights).items():
        scale = model.posterior.scale()[name].detach()
        variance += (slope * scale).square().flatten(mean.dim()).sum(-1)
    return mean, variance


def assert_moments(values: Tensor, mean: Tensor, variance: Tensor) -> None:
    n = len(values)
    off_mean = (values.mean(0) - mean).abs() / (variance / n).sqrt()
    assert float(off_mean.max()) < 5, f"a mean is {float(off_mean.max()):.1f} standard errors off"
    off_variance = (values.var(0) / variance - 1.0).abs() / math.sqrt(2 / (n - 1))
    assert float(off_variance.max()) < 5, f"a variance is {float(off_variance.max()):.1f} standard errors off"


def elementwise(output: Tensor) -> Tensor:
    return output


def mean_of_row(output: Tensor) -> Tensor:
    """The mean over channels and positions, ``[B]``: where positions share weights, noise must not cancel."""
    return output.flatten(1).mean(1)


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(4, 3), (2, 4)),
    "linear-no-bias": (lambda: nn.Linear(4, 3, bias=False), (1, 4)),
    "linear-tokens": (lambda: nn.Linear(3, 2), (2, 5, 3)),
    "conv1d-dilated": (lambda: nn.Conv1d(2, 3, 3, dilation=2, stride=2), (2, 2, 9)),
    "conv1d-depthwise": (lambda: nn.Conv1d(3, 6, 2, groups=3, bias=False), (2, 3, 5)),
    "conv2d-groups": (lambda: nn.Conv2d(4, 2, (1, 3), groups=2, padding=(0, 1)), (2, 4, 3, 4)),
    "conv2d-reflect": (lambda: nn.Conv2d(2, 2, (3, 2), padding=(1, 1), padding_mode="reflect"), (2, 2, 4, 3)),
    "conv2d-circular": (lambda: nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular"), (2, 2, 4, 3)),
    "conv2d-replicate": (lambda: nn.Conv2d(2, 2, 3, padding="same", padding_mode="replicate"), (2, 2, 3, 4)),
    "conv3d": (lambda: nn.Conv3d(1, 2, (2, 1, 2), stride=(1, 2, 1)), (2, 1, 3, 4, 3)),
    "transposed1d": (lambda: nn.ConvTranspose1d(2, 3, 3, stride=2, output_padding=1), (2, 2, 4)),
    "transposed2d-groups": (
        lambda: nn.ConvTranspose2d(4, 2, (3, 2), stride=2, padding=1, output_padding=(1, 0), groups=2, dilation=(1, 2)),
        (2, 4, 3, 3),
    ),
    "transposed3d": (lambda: nn.ConvTranspose3d(2, 1, (1, 2, 2), stride=(1, 2, 1), bias=False), (2, 2, 2, 3, 2)),
}


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("name", LAYERS)
def test_trap_10_every_estimator_has_the_moments_of_weight_sampling(name: str, estimator: str) -> None:
    """With ``auto`` a convolution is sampled by weight, draw by draw, and has the moments that are tested for it."""
    make, shape = LAYERS[name]
    torch.manual_seed(0)
    x = torch.randn(shape)
    model = model_of(nn.Sequential(make()), estimator)
    chosen = {"auto": "weight" if "linear" not in name else "local on [B, D], else flipout"}.get(estimator, estimator)
    same = estimator != chosen == "weight"
    outputs = noisy_outputs(model, x, 5 if same else DRAWS)
    assert f"Bayesian ({chosen}, prior" in model.summary(), "the estimator was not used"
    if same:
        torch.testing.assert_close(outputs, noisy_outputs(model_of(model.net, chosen), x, 5), rtol=0, atol=0)
        return
    assert_moments(outputs, *exact_moments(model, x, elementwise))
    if estimator != "local" or name in ("linear", "linear-no-bias"):
        rows = torch.stack([mean_of_row(output) for output in outputs])
        assert_moments(rows, *exact_moments(model, x, mean_of_row))


def test_trap_10_local_on_a_convolution_is_the_published_approximation(caplog: pytest.LogCaptureFixture) -> None:
    """It loses the correlation of positions, is never chosen by itself, and says so."""
    caplog.set_level(logging.INFO, "credo")
    x = torch.randn(2, 2, 12, generator=torch.Generator().manual_seed(0))
    model = model_of(nn.Sequential(nn.Conv1d(2, 3, 3)), "local")
    rows = torch.stack([mean_of_row(output) for output in noisy_outputs(model, x)])
    _, variance = exact_moments(model, x, mean_of_row)
    assert float((rows.var(0) / variance).max()) < 0.7
    assert "approximation" in caplog.text
    assert "0" in caplog.text


def test_trap_10_transposed_convolution_with_an_output_size() -> None:
    class Up(nn.Module):
        def __init__(self, positional: bool) -> None:
            super().__init__()
            self.up = nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1)
            self.positional = positional

        def forward(self, x: Tensor) -> Tensor:
            size = [6, 5]
            up: Tensor = self.up(x, size) if self.positional else self.up(x, output_size=size)
            return up

    for positional in (True, False):
        torch.manual_seed(0)
        x = torch.randn(2, 2, 3, 3)
        model = model_of(Up(positional), "auto")
        outputs = noisy_outputs(model, x, 600)
        assert outputs.shape[1:] == (2, 3, 6, 5)
        assert_moments(outputs, *exact_moments(model, x, elementwise))


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("name", ["linear", "linear-tokens", "conv2d-groups", "transposed1d"])
def test_trap_10_rows_share_noise_only_with_weight_sampling(name: str, estimator: str) -> None:
    """Two equal rows: equal noise with ``weight``, which ``auto`` is for convolutions, else uncorrelated.

    A sample correlation has standard error 1/√n.
    """
    make, shape = LAYERS[name]
    x = torch.randn(1, *shape[1:], generator=torch.Generator().manual_seed(0)).expand(2, *shape[1:])
    model = model_of(nn.Sequential(make()), estimator)
    outputs = noisy_outputs(model, x)
    first, second = (outputs[:, row].flatten(1) for row in (0, 1))
    if estimator == "weight" or (estimator == "auto" and "linear" not in name):
        torch.testing.assert_close(first, second)
        return
    first, second = first - first.mean(0), second - second.mean(0)
    correlation = (first * second).mean(0) / (first.square().mean(0) * second.square().mean(0)).sqrt()
    assert float(correlation.abs().max()) < 5 / math.sqrt(DRAWS)


class Once(nn.Module):
    """A square linear layer and a way to use it; every way is linear in the layer's weights."""

    def __init__(self, use: Callable[[nn.Linear, Tensor], Tensor]) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.use = use

    def forward(self, x: Tensor) -> Tensor:
        return self.use(self.fc, x)


def _per_token(fc: nn.Linear, x: Tensor) -> Tensor:
    return torch.stack([fc(x[:, t]) for t in range(x.shape[1])]).mean(0)


def _constant(fc: nn.Linear, x: Tensor) -> Tensor:
    table = torch.linspace(-1.0, 1.0, 12).view(4, 3)
    factors: Tensor = fc(table).mean(0)
    return x @ factors[:, None]


JOINT: dict[str, tuple[Callable[[nn.Linear, Tensor], Tensor], tuple[int, ...]]] = {
    "weight-used-elsewhere": (lambda fc, x: fc(x) + F.linear(x, fc.weight.t()), (4, 3)),
    "weight-used-elsewhere-alone": (lambda fc, x: x @ fc.weight, (4, 3)),
    "bias-used-elsewhere": (lambda fc, x: fc(x) + fc.bias, (4, 3)),
    "called-twice": (lambda fc, x: fc(x) + fc(x.flip(1)), (4, 3)),
    "called-per-token": (_per_token, (4, 5, 3)),
    "tokens": (lambda fc, x: fc(x).mean(1), (4, 5, 3)),
    "time-first": (lambda fc, x: fc(x.transpose(0, 1)).mean(0), (4, 4, 3)),
    "time-first-three": (lambda fc, x: fc(x.transpose(0, 1)).mean(0), (3, 3, 3)),
    "flattened": (lambda fc, x: fc(x.reshape(-1, 3)).view(x.shape).mean(1), (4, 4, 3)),
    "one-token-flattened": (lambda fc, x: fc(x.reshape(-1, 3)).view(x.shape).mean(1), (4, 1, 3)),
    "of-no-row": (_constant, (4, 3)),
    "keyword": (lambda fc, x: fc(input=x), (4, 3)),
}


@pytest.mark.parametrize("estimator", ["auto", "flipout", "weight"])
@pytest.mark.parametrize("name", JOINT)
def test_trap_10_shared_weights_share_their_noise(name: str, estimator: str) -> None:
    use, shape = JOINT[name]
    torch.manual_seed(0)
    x = torch.randn(shape)
    model = model_of(Once(use), estimator)
    outputs = noisy_outputs(model, x)
    assert_moments(outputs, *exact_moments(model, x, elementwise))
    rows = torch.stack([mean_of_row(output) for output in outputs])
    assert_moments(rows, *exact_moments(model, x, mean_of_row))


def test_trap_10_shared_weights_with_an_input_that_is_no_row() -> None:
    """A mask ``[T, T]`` beside the rows, with as many rows as time steps."""

    def masked_mean(fc: nn.Linear, x: Any) -> Tensor:
        h = fc(x[0].transpose(0, 1)).transpose(0, 1)
        mean: Tensor = (x[1] @ h).mean(1)
        return mean

    class Pair(Once):
        def forward(self, rows: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]
            return masked_mean(self.fc, (rows, mask))

    torch.manual_seed(0)
    x = (torch.randn(4, 4, 3), torch.ones(4, 4).tril())
    model = model_of(Pair(_constant), "auto")
    outputs = noisy_outputs(model, x)
    net = copy.deepcopy(model.net)
    flat = model_of(Once(lambda fc, rows: masked_mean(fc, (rows, x[1]))), "weight")
    flat.net.load_state_dict(net.state_dict())
    assert_moments(outputs, *exact_moments(flat, x[0], elementwise))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_trap_10_gradients_of_the_scale_are_unbiased(estimator: str) -> None:
    """E ½‖y‖² = ½Σ(mean² + Σσ²x²) for a linear layer, so its derivative by σ is Σ_rows σ·x²; 1500 draws, 5 s.e."""
    torch.manual_seed(0)
    x = torch.randn(3, 2)
    model = model_of(nn.Linear(2, 1, bias=False), estimator)
    model._prepare(x)
    scale = model.posterior.scale()["weight"].detach().requires_grad_()
    gradients = []
    for _ in range(DRAWS):
        output, _ = model._noisy_forward(x, {"weight": scale})
        gradients.append(torch.autograd.grad(0.5 * output.square().sum(), scale)[0])
    values = torch.stack(gradients)
    expected = scale.detach() * x.square().sum(0)
    error = values.std(0) / math.sqrt(DRAWS)
    assert bool(((values.mean(0) - expected).abs() < 5 * error).all())


def unrolled_lstm(x: Tensor, w: dict[str, Tensor]) -> Tensor:
    """One layer, by its equations (Hochreiter & Schmidhuber 1997), with the same weights at every step: ``[B, H]``."""
    h = c = x.new_zeros(x.shape[0], w["rnn.weight_hh_l0"].shape[1])
    for t in range(x.shape[1]):
        gates = x[:, t] @ w["rnn.weight_ih_l0"].T + w["rnn.bias_ih_l0"] + h @ w["rnn.weight_hh_l0"].T
        i, f, g, o = (gates + w["rnn.bias_hh_l0"]).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
    return h @ w["head.weight"].T + w["head.bias"]


@pytest.mark.parametrize("batch_first", [True, False])
def test_trap_11_an_lstm_uses_one_draw_for_a_sequence(batch_first: bool) -> None:
    """Against the equations, in float64: 7 steps of rounding are far below 1e-12."""
    torch.manual_seed(0)
    model = model_of(Recurrent(nn.LSTM, batch_first=batch_first).double(), "auto").double()
    x = torch.ones(4, 7, 3).double() * torch.tensor([0.5, -1.0, 2.0]).double()
    p = model.predict(x, samples=3, seed=4)
    drawn = model.posterior.sample(3, seed=4)
    for s in range(3):
        expected = unrolled_lstm(x, {name: value[s] for name, value in drawn.items()})
        torch.testing.assert_close(p.draws[s], expected, rtol=0, atol=1e-12)
    trained = model_of(model.net, "weight")
    trained._prepare(x)
    output, weights = trained._noisy_forward(x, trained.posterior.scale())
    torch.testing.assert_close(output, unrolled_lstm(x, weights), rtol=0, atol=1e-12)


PRIORS = {"normal": credo.Normal(), "mixture": credo.ScaleMixture(), "laplace": credo.LaplacePrior()}


@pytest.mark.parametrize("rho", [-200.0, -100.0, -60.0, -20.0, 20.0, 100.0, 200.0])
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("prior", PRIORS)
def test_trap_13_both_tails_of_rho_are_finite(prior: str, estimator: str, rho: float) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv1d(2, 2, 2), nn.Flatten(), nn.Linear(4, 1))
    model = credo.BayesByBackprop(net, credo.Gaussian(1.0), PRIORS[prior], estimator=estimator)
    for parameter in model.posterior.rho.parameters():
        parameter.data.fill_(rho)
    loss = model.loss(torch.randn(3, 2, 3), torch.randn(3, 1), n_data=10)
    loss.backward()
    assert bool(loss.isfinite())
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        assert bool(parameter.grad.isfinite().all()), name
    scale = model.posterior.scale()["2.weight"]
    if rho > 0:
        torch.testing.assert_close(scale, torch.full_like(scale, rho))
    pushed = torch.cat([p.grad.flatten() for p in model.posterior.rho.parameters() if p.grad is not None])
    if rho < -50 and prior == "normal":
        torch.testing.assert_close(pushed, torch.full_like(pushed, -0.1))  # ∂KL/∂ρ → −1 a weight, over n_data = 10


def test_trap_13_the_gaussian_kl_has_the_gradient_of_the_naive_formula() -> None:
    """In float64, for ρ where log(1 + e^ρ) is finite; both cancel to a relative 1e-9 at worst (ρ = −20)."""
    rho = torch.linspace(-20.0, 30.0, 101).double().requires_grad_()
    mean = torch.linspace(-3.0, 3.0, 101).double().requires_grad_()
    prior_mean, prior_scale = torch.tensor(0.2).double(), torch.tensor(0.7).double()
    (scale,), kl = scales_and_kl([mean], [rho], prior_mean, prior_scale)
    gradients = torch.autograd.grad(kl + (scale * mean.detach()).sum(), (mean, rho))
    naive_scale = torch.log1p(torch.exp(rho))
    square = naive_scale.square() + (mean - prior_mean).square()
    naive = (torch.log(prior_scale) - torch.log(naive_scale) + square / (2 * prior_scale.square()) - 0.5).sum()
    expected = torch.autograd.grad(naive + (naive_scale * mean.detach()).sum(), (mean, rho))
    torch.testing.assert_close(scale, naive_scale)
    torch.testing.assert_close(kl, naive)
    for ours, theirs in zip(gradients, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("squared", [False, True])
def test_trap_13_tensors_in_a_row_have_the_scales_and_the_kl_of_single_ones(squared: bool) -> None:
    """Values and gradients, against the formula under autograd."""
    torch.manual_seed(0)
    shapes = ((3, 2), (4,), ())
    means = [torch.randn(shape, dtype=torch.float64).requires_grad_() for shape in shapes]
    rhos = [torch.randn(shape, dtype=torch.float64).requires_grad_() for shape in shapes]
    prior_scale = torch.tensor(0.7).double()

    def formula() -> tuple[list[Tensor], Tensor]:
        scales = [torch.nn.functional.softplus(rho) for rho in rhos]
        terms = [
            (prior_scale.log() - s.log() + (s.square() + m.square()) / (2 * prior_scale.square()) - 0.5).sum()
            for m, s in zip(means, scales, strict=True)
        ]
        return [s.square() / 2 if squared else s for s in scales], torch.stack(terms).sum()

    results = []
    for values, kl in (formula(), scales_and_kl(means, rhos, None, prior_scale, squared)):
        loss = 0.3 * kl + sum((value * value.detach().cos()).sum() for value in values)
        results.append([*values, kl, *torch.autograd.grad(loss, means + rhos)])
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected)


class Awkward(nn.Module):
    """A layer with something in its forward that vmap cannot do."""

    noise: Tensor

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.kind = kind
        self.register_buffer("noise", torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.fc(x)
        if self.kind == "in-place buffer":
            self.noise.copy_(h.detach().amax(0))
            return h
        if self.kind == "branch":
            return -h if bool(h.sum() > 0) else h
        if self.kind == "item":
            return h * h.sum().item()
        if self.kind == "train-mode batch norm":
            return F.batch_norm(h, self.norm.running_mean, self.norm.running_var, training=True)
        raise AssertionError(self.kind)


@pytest.mark.parametrize("kind", ["in-place buffer", "branch", "item", "train-mode batch norm"])
def test_trap_14_prediction_falls_back_to_a_loop_and_says_so(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """Each draw of the loop must be the network itself holding that draw; same kernels, so to the last bit or two."""
    caplog.set_level(logging.INFO, "credo")
    torch.manual_seed(0)
    net = Awkward(kind)
    model = model_of(net, "auto").eval()
    before = copy.deepcopy(net.state_dict())
    x = torch.randn(5, 3)
    p = model.predict(x, samples=4, seed=0)
    assert sum("loops over draws" in message for message in caplog.messages) == 1
    drawn = model.posterior.sample(4, seed=0)
    for s in range(4):
        twin = copy.deepcopy(net)
        for name, value in drawn.items():
            twin.get_parameter(name).data.copy_(value[s])
        torch.testing.assert_close(p.draws[s], twin(x).detach(), rtol=1e-6, atol=1e-6)
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_trap_14_vectorized_prediction_says_nothing_and_equals_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "credo")
    torch.manual_seed(0)
    model = model_of(credo.architectures.MLP(3, (8,), 2), "auto")
    x = torch.randn(5, 3)
    vectorized = model.predict(x, samples=4, seed=0)
    assert caplog.messages == []
    looped = model.predict(x, samples=4, seed=0, vectorize="loop")
    torch.testing.assert_close(vectorized.draws, looped.draws, rtol=1e-6, atol=1e-6)


class Stateful(nn.Module):
    """A network that remembers something of its last call, or of its first."""

    memory: Tensor

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.kind = kind
        self.cache: Tensor | None = None
        self.register_buffer("memory", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.fc(x)
        if self.kind == "assigned buffer":
            self.memory = 0.5 * self.memory + h.detach().mean(0)
            return h + self.memory
        if self.kind == "in-place buffer":
            self.memory.mul_(0.5).add_(h.detach().mean(0))
            return h + self.memory
        if self.cache is None:
            self.cache = self.fc.weight.sum()
        return h * self.cache


@pytest.mark.parametrize("vectorize", ["vmap", "loop"])
@pytest.mark.parametrize("kind", ["assigned buffer", "in-place buffer", "cached attribute"])
def test_trap_14_state_does_not_leak_from_draw_to_draw(kind: str, vectorize: str) -> None:
    """A draw is a function: the network as it was found, holding that draw, whatever was evaluated before."""
    torch.manual_seed(0)
    net = Stateful(kind)
    model = model_of(net, "auto").eval()
    x = torch.randn(5, 3)
    drawn = model.posterior.sample(4, seed=0)
    expected = []
    for s in range(4):
        twin = copy.deepcopy(net)
        for name, value in drawn.items():
            twin.get_parameter(name).data.copy_(value[s])
        expected.append(twin(x).detach())
    predictor = model._predictor(4, 0)
    for _ in range(2):
        torch.testing.assert_close(predictor(x, None, vectorize).draws, torch.stack(expected), rtol=1e-5, atol=1e-5)
    assert net.cache is None
    assert torch.equal(net.memory, torch.zeros(3))


def test_trap_14_an_error_of_the_network_itself_is_raised() -> None:
    with pytest.raises(RuntimeError, match="shapes") as caught:
        credo.BayesByBackprop(nn.Linear(3, 1), credo.Gaussian(1.0)).predict(torch.randn(2, 5), samples=3, seed=0)
    assert caught.value.__notes__ == ["The network was called on torch.float32 [2, 5]."]


def _fresh(method: str, net: Callable[[], nn.Module]) -> credo.Method:
    if method == "bbb":
        return credo.BayesByBackprop(net(), credo.Gaussian(1.0), credo.ScaleMixture())
    if method == "mc-dropout":
        return credo.MCDropout(net(), credo.Gaussian(1.0), p=0.3)
    return credo.DeepEnsemble(net, 2, credo.BayesByBackprop, likelihood=credo.Gaussian(1.0))


@pytest.mark.parametrize("method", ["bbb", "mc-dropout", "ensemble"])
def test_trap_15_a_seed_leaves_the_random_state_alone(method: str) -> None:
    model = _fresh(method, lambda: nn.Linear(3, 1))
    x, y = torch.randn(4, 3), torch.randn(4, 1)
    state = torch.get_rng_state()
    first = model.predict(x, samples=3, seed=0)
    assert torch.equal(torch.get_rng_state(), state), "predict"
    first.sample(3, seed=0)
    assert torch.equal(torch.get_rng_state(), state), "sample of a prediction"
    if isinstance(model, credo.BayesByBackprop):
        model.posterior.sample(3, seed=0)
        model.posterior.kl(model.prior, seed=0)
        assert torch.equal(torch.get_rng_state(), state), "posterior"
        bound = model.elbo((x, y), samples=2, seed=0)
        assert torch.equal(torch.get_rng_state(), state), "elbo"
        assert model.elbo((x, y), samples=2, seed=0) == bound
    model.fit((x, y), epochs=1, seed=0, progress=False)
    assert torch.equal(torch.get_rng_state(), state), "fit"
    torch.manual_seed(1)
    unseeded = model.predict(x, samples=3)
    torch.manual_seed(1)
    assert torch.equal(model.predict(x, samples=3).draws, unseeded.draws), "torch.manual_seed governs what has no seed"


class Restless(nn.Module):
    """A network with a random number of its own, in evaluation too."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc(x) + torch.randn(())
        return y


@pytest.mark.parametrize("method", ["bbb", "mc-dropout", "ensemble"])
def test_trap_15_a_seed_governs_the_randomness_of_the_network_itself(method: str) -> None:
    model = _fresh(method, Restless)
    x = torch.randn(4, 3)
    state = torch.get_rng_state()
    first = model.predict(x, samples=3, seed=0)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(model.predict(x, samples=3, seed=0).draws, first.draws)


@pytest.mark.parametrize("method", ["bbb", "mc-dropout", "map", "ensemble"])
@pytest.mark.parametrize("shuffled", [False, True])
def test_trap_15_a_seed_governs_the_noise_of_the_likelihood(method: str, shuffled: bool) -> None:
    likelihood = credo.Categorical(logit_noise=True, noise_samples=3)
    net = nn.Linear(3, 4)
    model = {
        "bbb": lambda: credo.BayesByBackprop(net, likelihood, credo.ScaleMixture()),
        "mc-dropout": lambda: credo.MCDropout(net, likelihood, p=0.3),
        "map": lambda: credo.MAP(net, likelihood),
        "ensemble": lambda: credo.DeepEnsemble(lambda: nn.Linear(3, 4), 2, likelihood=likelihood),
    }[method]()
    x, y = torch.randn(6, 3), torch.tensor([0, 1, 1, 0, 1, 0])
    rows = torch.utils.data.TensorDataset(x, y)
    data: Any = torch.utils.data.DataLoader(rows, batch_size=4, shuffle=True) if shuffled else (x, y)
    state = torch.get_rng_state()
    bound = model.elbo(data, samples=2, seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(5)
    assert model.elbo(data, samples=2, seed=1) == bound
    assert model.elbo(data, samples=2, seed=2) != bound
    torch.manual_seed(5)
    assert model.elbo(data, samples=2) != model.elbo(data, samples=2)


def test_trap_15_the_seed_of_a_validation_governs_the_noise_of_the_likelihood() -> None:
    model = credo.MAP(nn.Linear(3, 4), credo.Categorical(logit_noise=True, noise_samples=3))
    data = torch.randn(6, 3), torch.tensor([0, 1, 1, 0, 1, 0])
    model.fit(data, epochs=1, seed=0, progress=False)
    state, task = torch.get_rng_state(), model._training_task()
    first = task.validation_step(task.make_dataset(data), 3)
    assert torch.equal(torch.get_rng_state(), state)
    assert task.validation_step(task.make_dataset(data), 3) == first
