"""Concrete dropout against closed forms: its KL, its relaxation, its rates and its predictions."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Bernoulli, Normal

import credo
from credo.errors import InputError
from credo.posteriors.concrete_dropout import ConcreteWeightDropout
from credo.posteriors.dropout import InputUnits


def entropy(p: float) -> float:
    return float(Bernoulli(torch.tensor(p, dtype=torch.float64)).entropy())


def test_kl_is_the_weight_term_minus_the_entropy_of_the_masks() -> None:
    """Units: 3 inputs of the first layer, 8 channels of a grouped convolution, the shared weight of a tied one once."""
    torch.manual_seed(0)
    net = nn.ModuleDict({"a": nn.Linear(3, 8), "b": nn.Conv1d(8, 4, 3, groups=2), "c": nn.Linear(3, 8)})
    net["c"].weight = net["a"].weight
    length_scale = 0.7
    model = credo.ConcreteDropout(net, credo.Gaussian(1.0), p={"a.*": 0.3, "b.*": 0.05}, length_scale=length_scale)
    a, b, biases = net["a"].weight, net["b"].weight, [net[key].bias for key in "abc"]
    weights = a.square().sum() / 0.7 + b.square().sum() / 0.95 + sum(bias.square().sum() for bias in biases)
    expected = 0.5 * length_scale**2 * weights.item() - 3 * entropy(0.3) - 8 * entropy(0.05)
    assert model.kl().item() == pytest.approx(expected, rel=1e-5)


def test_kl_is_that_of_two_narrow_gaussians() -> None:
    """q = p·N(0, s²) + (1 − p)·N(M, s²) with s → 0, by quadrature; the constant is l²s²/2 − log(ls) − ½.

    The two Gaussians are 60 standard deviations apart: their overlap is below rounding. The grid has 20 points per s.
    """
    net, length_scale, s = nn.Linear(1, 1, bias=False).double(), 1.3, 0.02
    grid = torch.linspace(-1.0, 2.5, 3501, dtype=torch.float64)
    prior = Normal(torch.tensor(0.0, dtype=torch.float64), 1.0 / length_scale)
    for p in (0.1, 0.4):
        center = 1.2
        with torch.no_grad():
            net.weight.fill_((1 - p) * center)
        model = credo.ConcreteDropout(net, credo.Gaussian(1.0), p=p, length_scale=length_scale)
        parts = [math.log(p) + Normal(0.0, s).log_prob(grid), math.log(1 - p) + Normal(center, s).log_prob(grid)]
        log_q = torch.logsumexp(torch.stack(parts), 0)
        kl = torch.trapezoid(log_q.exp() * (log_q - prior.log_prob(grid)), grid)
        constant = 0.5 * length_scale**2 * s**2 - math.log(length_scale * s) - 0.5
        assert model.kl().item() + constant == pytest.approx(kl.item(), abs=1e-6)


def test_the_kl_is_shared_by_the_number_of_data() -> None:
    torch.manual_seed(0)
    model = credo.ConcreteDropout(nn.Linear(4, 1).double(), credo.Gaussian(1.0)).eval()
    x, y = torch.randn(6, 4).double(), torch.randn(6, 1).double()
    difference = model.loss(x, y, n_data=30) - model.loss(x, y, n_data=60)
    torch.testing.assert_close(difference, model.kl() / 60)


class Recurrent(nn.Module):
    """An LSTM and a linear layer: the masks of the first are drawn with its weights, those of the second per row."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.lstm(x)[0][:, -1])
        return out


@pytest.mark.parametrize("kind", ["dense", "recurrent"])
def test_gradients_of_the_rates_are_those_of_finite_differences(kind: str) -> None:
    """Central differences of the loss with the same random numbers: their error is of order h² = 1e-10."""
    torch.manual_seed(0)
    net = Recurrent() if kind == "recurrent" else nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
    model = credo.ConcreteDropout(net.double(), credo.Gaussian(0.5), p=0.3, relaxation=0.5)
    x, y = torch.randn(7, *((2, 3) if kind == "recurrent" else (3,))).double(), torch.randn(7, 1).double()

    def loss() -> Tensor:
        torch.manual_seed(1)
        return model.loss(x, y, n_data=20)

    loss()
    logits = list(model.posterior.logit.parameters())
    gradients = torch.autograd.grad(loss(), logits)
    assert len(gradients) == (3 if kind == "recurrent" else 2)
    for logit, gradient in zip(logits, gradients, strict=True):
        values = []
        for sign in (1.0, -1.0):
            with torch.no_grad():
                logit += sign * 1e-5
                values.append(loss().item())
                logit -= sign * 1e-5
        assert gradient.item() == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("relaxation", [0.1, 1.0])
def test_a_relaxed_mask_is_above_one_half_with_the_probability_of_keeping(relaxation: float) -> None:
    """Exactly, at every temperature: z > ½ if u > p. 100,000 masks, 5 standard errors."""
    torch.manual_seed(0)
    net, p, n = nn.Linear(2, 1), 0.2, 100_000
    posterior = ConcreteWeightDropout(net, {"weight": InputUnits(1)}, {"weight": p}, relaxation)
    kept = posterior.mask("weight", [n], net.weight).detach() * (1 - p)
    assert bool(((kept >= 0) & (kept <= 1)).all())
    assert abs(float((kept > 0.5).float().mean()) - (1 - p)) < 5 * math.sqrt(p * (1 - p) / n)


def test_predictions_have_bernoulli_masks_with_the_learned_rates() -> None:
    """f = Σ x_i w_i z_i/(1 − p) + b has the variance Σ x_i² w_i² p/(1 − p); one mask set for all rows of a draw.

    The fourth moment of a Bernoulli sum is below 3 + 1/(p(1 − p)) times the squared variance.
    """
    torch.manual_seed(0)
    net, p, n = nn.Linear(6, 1), 0.3, 10_000
    model = credo.ConcreteDropout(net, credo.Gaussian(0.5), p=0.1)
    with torch.no_grad():
        model.posterior.logit.get("weight").fill_(math.log(p / (1 - p)))
    assert model.rates == {"weight": pytest.approx(p)}
    x = torch.randn(4, 6)
    predictive = model.predict(torch.cat([x, x]), samples=n, seed=0)
    variance = (x.square() @ net.weight.detach().square().T) * p / (1 - p)
    relative = 5 * math.sqrt((2 + 1 / (p * (1 - p))) / n)
    torch.testing.assert_close(predictive.epistemic[:4], variance, rtol=relative, atol=0)
    assert torch.equal(predictive.draws[:, :4], predictive.draws[:, 4:])
    moments = model.predict(x, samples="moments")
    torch.testing.assert_close(moments.epistemic, variance, rtol=1e-3, atol=0)


def regression(n: int, noise: float) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(0)
    weight = 0.5 * torch.randn(8, 1, generator=source)
    x = torch.randn(n, 8, generator=source)
    return x, x @ weight + noise * torch.randn(n, 1, generator=source)


def best_rate(x: Tensor, y: Tensor, noise: float) -> float:
    """The rate at the minimum of the loss with Bernoulli masks, in closed form for a linear model; by L-BFGS."""
    x, y = x.double(), y.double()
    weight, bias, logit = (torch.zeros(s, dtype=torch.float64, requires_grad=True) for s in ((8, 1), (1,), ()))
    optimizer = torch.optim.LBFGS([weight, bias, logit], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        p = logit.sigmoid()
        error = (y - x @ weight - bias).square() + p / (1 - p) * (x.square() @ weight.square())
        penalty = 0.5 * weight.square().sum() / (1 - p) + 0.5 * bias.square().sum()
        loss = error.sum() / (2 * noise**2) + penalty - 8 * (F.softplus(logit) - p * logit)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[arg-type]
    return logit.sigmoid().item()


def fitted(n: int, noise: float, seed: int = 0) -> credo.ConcreteDropout:
    torch.manual_seed(seed)
    model = credo.ConcreteDropout(nn.Linear(8, 1), credo.Gaussian(noise))
    return model.fit(regression(n, noise), epochs=700, batch_size=n, lr=1e-2, seed=seed)


def test_fit_finds_the_best_rate() -> None:
    """Over 6 seeds between 0.99 and 1.06 times the rate that is best for Bernoulli masks; it started at 0.1."""
    noise = 2.0
    best = best_rate(*regression(20, noise), noise)
    assert fitted(20, noise).rates["weight"] == pytest.approx(best, rel=0.15)


@pytest.mark.slow
def test_rates_and_epistemic_variance_fall_with_the_number_of_data() -> None:
    """The best rates are 0.03 and 5e-12; after 700 steps the second one has come to 4e-4."""
    assert best_rate(*regression(20, 1.0), 1.0) > 0.03
    assert best_rate(*regression(320, 1.0), 1.0) < 1e-11
    few, many = fitted(20, 1.0), fitted(320, 1.0)
    assert many.rates["weight"] < 0.1 * few.rates["weight"]
    x = torch.randn(50, 8, generator=torch.Generator().manual_seed(1))
    spread = [model.predict(x, samples="moments").epistemic.mean() for model in (few, many)]
    assert spread[1] < 0.1 * spread[0]


def test_a_saved_model_has_its_rates(tmp_path: Path) -> None:
    x, y = regression(20, 1.0)
    model = credo.ConcreteDropout(nn.Linear(8, 1), credo.Gaussian(1.0)).fit((x, y), epochs=5, seed=0)
    model.save(tmp_path / "run")
    loaded = credo.load(tmp_path / "run", net=nn.Linear(8, 1))
    assert loaded.rates == model.rates
    assert f"p={model.rates['weight']:.3g}, learned" in loaded.summary()


def test_a_rate_of_zero_leaves_a_layer_without_dropout() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    model = credo.ConcreteDropout(net, credo.Gaussian(1.0), p={"2.*": 0.2, "*": 0.0})
    assert model.rates == {"2.weight": pytest.approx(0.2)}
    with pytest.raises(InputError, match="p is 0 for all"):
        credo.ConcreteDropout(net, credo.Gaussian(1.0), p=0.0)
    with pytest.raises(InputError, match=r"\[0, 1\)"):
        credo.ConcreteDropout(net, credo.Gaussian(1.0), p=1.0)


def test_own_dropout_layers_are_mentioned(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        credo.ConcreteDropout(nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 1)), credo.Gaussian(1.0))
    assert "own dropout layers" in caplog.text
