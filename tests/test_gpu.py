"""What must also be true on a GPU; skipped where there is none."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

import credo
from methods.test_conformance import METHODS as CONFORMANCE
from scenarios import linear_gaussian

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

DEVICE = "cuda"


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 3))


def cnn() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 3))


METHODS = {
    "bbb": lambda n: credo.BayesByBackprop(n, credo.Categorical()),
    "swag": lambda n: credo.SWAG(n, credo.Categorical()),
    "ivon": lambda n: credo.IVON(n, credo.Categorical()),
    "last-layer": lambda n: credo.VariationalLastLayer(n, credo.Categorical()),
    "laplace": lambda n: credo.Laplace(n, credo.Categorical()),
    "sngp": lambda n: credo.SNGP(n, credo.Categorical(), features=32),
    "mixture": lambda n: credo.BayesByBackprop(n, credo.Categorical(), credo.ScaleMixture()),
    "dropout": lambda n: credo.MCDropout(n, credo.Categorical(), p=0.1),
    "map": lambda n: credo.MAP(n, credo.Categorical()),
    "ensemble": lambda n: credo.DeepEnsemble(n, members=2, likelihood=credo.Categorical()),
}
"""Methods of convolutional networks with batch norm."""


@pytest.mark.parametrize("task", ["regression", "classification"])
@pytest.mark.parametrize("name", CONFORMANCE)
def test_every_method_fits_and_predicts(name: str, task: str, tmp_path: Path) -> None:
    row, is_regression = CONFORMANCE[name], task == "regression"
    likelihood = credo.Gaussian("learned", initial=0.5) if is_regression else credo.Categorical()
    torch.manual_seed(0)
    network = credo.architectures.MLP(3, (8,), 1 if is_regression else 3, "tanh", row.dropout or None).layers
    x = torch.randn(21, 3)
    y = x[:, :1].sin() if is_regression else x.argmax(1)
    options = row.fit_options or {"epochs": 2, "batch_size": 7}
    model = row.build(network, likelihood).fit((x, y), device=DEVICE, seed=0, **options)
    assert all(value.device.type == DEVICE for value in model.state_dict().values() if value.is_floating_point())
    _check_predictions(model, x)
    model.save(tmp_path / "run")
    loaded = credo.load(tmp_path / "run", net=copy.deepcopy(network).cpu(), **(row.load_options or {}))
    deterministic = loaded.predict(x, samples=0).mean
    torch.testing.assert_close(deterministic, model.predict(x, samples=0).mean.cpu(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", METHODS)
def test_convolutions_and_batch_norm(name: str) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(40, 1, 8, 8), torch.randint(0, 3, (40,))
    model = METHODS[name](cnn()).fit((x, y), epochs=2, batch_size=16, device=DEVICE, seed=0)
    _check_predictions(model, x)


def _check_predictions(model: credo.Method, x: torch.Tensor) -> None:
    """They are on the device, do not touch its random state or depend on the batch size, and add up."""
    state = torch.cuda.get_rng_state()
    p = model.predict(x, samples=6, seed=3)
    assert p.mean.device.type == DEVICE
    assert torch.equal(state, torch.cuda.get_rng_state())
    torch.testing.assert_close(model.predict(x, samples=6, seed=3).mean, p.mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(p.mean, model.predict(x, samples=6, seed=3, batch_size=9).mean, rtol=1e-4, atol=1e-5)
    total = p.variance if p.mean.shape[-1] == 1 else p.entropy
    torch.testing.assert_close(total, p.aleatoric + p.epistemic, rtol=1e-4, atol=1e-5)
    assert bool(p.mean.isfinite().all())


def test_captured_steps_of_ivon_reach_the_exact_variance() -> None:
    """A quadratic with curvature 1 per row: the variance is 1/(N + 1); bounds as in tests/methods/test_ivon.py."""
    n, net = 16, nn.Linear(1, 4000, bias=False)
    model = credo.IVON(net, credo.Gaussian(1.0), initial_scale=0.1)
    data = (torch.ones(n, 1), torch.zeros(n, 4000))
    model.fit(data, epochs=800, batch_size=n, device="cuda", capture=True, seed=0, progress=False)
    assert model.summary().endswith("trained by captured steps")
    precision = model.posterior.scale()["weight"].detach().double().pow(-2)
    assert float(precision.mean()) == pytest.approx(n + 1, rel=0.016)


def test_reaches_the_mean_field_optimum_on_the_gpu() -> None:
    target = linear_gaussian()
    torch.manual_seed(0)
    model = credo.BayesByBackprop(target.network(), credo.Gaussian(noise=target.noise), credo.Normal(0, 1), samples=4)
    model.fit((target.x, target.y), epochs=1500, batch_size=60, lr=0.03, seed=0, device="cuda")
    scale = model.posterior.scale()
    std = torch.cat([scale["weight"].flatten(), scale["bias"]]).detach().cpu().double()
    mean = torch.cat([model.posterior.mean()["weight"].flatten(), model.posterior.mean()["bias"]]).cpu().double()
    assert ((mean - target.mean()).abs() < 0.1 * target.posterior_std()).all()
    torch.testing.assert_close(std, target.mean_field_std(), rtol=0.05, atol=0)


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch.compile tells which of its optimizations it leaves out
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("build", [net, cnn])
def test_compiled_training(build: object, precision: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(64, 4) if build is net else torch.randn(64, 1, 8, 8)
    y = torch.randint(0, 3, (64,))
    model = credo.BayesByBackprop(build(), credo.Categorical())  # type: ignore[operator]
    model.fit((x, y), epochs=3, batch_size=32, device="cuda", compile=True, precision=precision, seed=0)
    assert all(p.isfinite().all() for p in model.parameters())


def test_divergence_is_noticed_and_undone_on_the_gpu() -> None:
    torch.manual_seed(0)
    network = net()
    before = copy.deepcopy(network.state_dict())
    model = credo.MAP(network, credo.Categorical())
    x, y = torch.randn(40, 4), torch.randint(0, 3, (40,))
    with pytest.raises(credo.errors.DivergenceError, match="step"):
        model.fit((x, y), epochs=2, lr=1e30, schedule="constant", batch_size=8, device="cuda", seed=0)
    assert all(torch.equal(v.cpu(), before[k]) for k, v in network.state_dict().items())
