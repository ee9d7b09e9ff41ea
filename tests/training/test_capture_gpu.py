"""Captured training on a GPU, where graphs are real; skipped where there is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import credo
from credo.architectures import LeNet
from credo.errors import DivergenceError

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

ROWS, BATCH, EPOCHS = 70, 16, 4
"""Four minibatches of 16 rows and one of 6 per epoch."""


def net(norm: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8) if norm else nn.Tanh(), nn.Linear(8, 1))


def lenet() -> nn.Module:
    torch.manual_seed(0)
    return LeNet()


def table() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(ROWS, 2, generator=generator)
    return x, x.sum(1, keepdim=True).sin()


def images() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(ROWS, 1, 28, 28, generator=generator), torch.randint(0, 10, (ROWS,), generator=generator)


def sequential(build: Callable[[], nn.Module]) -> Any:
    torch.manual_seed(0)
    return build()


METHODS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "map": (lambda: credo.MAP(net(), credo.Gaussian(0.3)), table),
    "batch norm": (lambda: credo.MAP(net(norm=True), credo.Gaussian(0.3)), table),
    "learned noise": (lambda: credo.MAP(net(), credo.Gaussian("learned")), table),
    "bbb": (lambda: credo.BayesByBackprop(net(), credo.Gaussian(0.3)), table),
    "bbb, weight": (lambda: credo.BayesByBackprop(net(), credo.Gaussian(0.3), estimator="weight"), table),
    "bbb, flipout": (lambda: credo.BayesByBackprop(net(), credo.Gaussian(0.3), estimator="flipout"), table),
    "bbb, two draws": (lambda: credo.BayesByBackprop(net(), credo.Gaussian(0.3), samples=2), table),
    "mixture": (lambda: credo.BayesByBackprop(net(), credo.Gaussian(0.3), credo.ScaleMixture()), table),
    "adaptive": (lambda: credo.BayesByBackprop(net(), credo.Gaussian(0.3), credo.AdaptiveNormal()), table),
    "blundell": (
        lambda: credo.BayesByBackprop(net(), credo.Gaussian(0.3), kl_weighting="blundell", kl_warmup=7),
        table,
    ),
    "dropout": (lambda: credo.MCDropout(net(), credo.Gaussian(0.3), p=0.1), table),
    "LeNet, map": (lambda: credo.MAP(lenet(), credo.Categorical()), images),
    "LeNet, bbb": (lambda: credo.BayesByBackprop(lenet(), credo.Categorical()), images),
    "LeNet, local": (lambda: credo.BayesByBackprop(lenet(), credo.Categorical(), estimator="local"), images),
    "LeNet, dropout": (lambda: credo.MCDropout(lenet(), credo.Categorical(), p=0.2), images),
    "logit noise": (
        lambda: credo.BayesByBackprop(
            nn.Sequential(nn.Flatten(), nn.Linear(784, 20)), credo.Categorical(logit_noise=True)
        ),
        images,
    ),
    "auto-encoder": (lambda: sequential(lambda: credo.generative.AutoEncoder("dense", latent=2, shape=(2,))), table),
    "VAE": (lambda: sequential(lambda: credo.generative.VAE("dense", latent=2, shape=(2,))), table),
    "VQ-VAE": (lambda: sequential(lambda: credo.generative.VQVAE("dense", shape=(2,))), table),
    "GAN": (lambda: sequential(lambda: credo.generative.GAN(nn.Linear(3, 2), nn.Linear(2, 1), latent=3)), table),
    "WGAN": (lambda: sequential(lambda: credo.generative.WGAN(nn.Linear(3, 2), nn.Linear(2, 1), latent=3)), table),
}
GENERATIVE = ("auto-encoder", "VAE", "VQ-VAE", "GAN", "WGAN")
EXACT: dict[str, Any] = {
    "lr": 2.0**-7,
    "optimizer": lambda groups, lr: torch.optim.AdamW(groups, lr=lr, betas=(0.5, 0.5)),
}
"""A captured Adam keeps learning rate and bias corrections in float32; of powers of two they are exact."""
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "clipped": {"gradient_clip": 0.1},
    "SGD": {"optimizer": torch.optim.SGD},
    "AdamW": EXACT,
}


def fit(name: str, dtype: torch.dtype = torch.float64, **options: Any) -> Any:
    build, data = METHODS[name]
    x, y = data()
    x, y = x.to(dtype), y.to(dtype) if y.is_floating_point() else y
    given = x.sigmoid() if name in GENERATIVE else (x, y)
    torch.manual_seed(0)
    defaults = {"epochs": EPOCHS, "batch_size": BATCH, "lr": 1e-2, "seed": 5, "device": "cuda"}
    return build().to(dtype).fit(given, **{**defaults, **options})


def assert_close(a: Any, b: Any, tolerance: float = 1e-4) -> None:
    """The same weights, buffers and histories, but for the order in which a GPU adds numbers.

    In float64, so that twenty steps cannot make a difference of a rounding error. A captured Adam keeps learning rates
    and bias corrections in float32, and divides gradients near zero by their own size; the tolerance is 1 % of a step
    of 0.01.
    """
    for (name, left), right in zip(a.state_dict().items(), b.state_dict().values(), strict=True):
        torch.testing.assert_close(
            left, right, rtol=tolerance, atol=tolerance, msg=lambda text, name=name: f"{name}: {text}"
        )
    for left, right in zip(a.history, b.history, strict=True):
        assert {**left, "seconds": 0} == pytest.approx({**right, "seconds": 0}, rel=tolerance, abs=tolerance)


@pytest.mark.parametrize("name", METHODS)
def test_captured_training_equals_eager_training(name: str) -> None:
    """The random numbers are the same too: a replay starts where the generator is, and epochs seed it anew."""
    captured = fit(name, capture=True)
    assert captured._training_path == "captured steps"
    assert_close(captured, fit(name, capture=False))


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", ["map", "bbb", "LeNet, bbb", "VAE", "GAN"])
def test_options_are_captured(name: str, options: str) -> None:
    captured = fit(name, capture=True, **OPTIONS[options])
    assert captured._training_path == "captured steps"
    assert_close(captured, fit(name, capture=False, **OPTIONS[options]))


@pytest.mark.parametrize("name", ["map", "bbb", "bbb, weight", "LeNet, bbb"])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_lower_precisions_are_captured(name: str, precision: str) -> None:
    """The likelihood in the first epoch, before Adam has scaled up rounding errors of gradients near zero."""
    options = {"dtype": torch.float32, "precision": precision}
    captured = fit(name, capture=True, **options)
    assert captured._training_path == "captured steps"
    eager = fit(name, capture=False, **options)
    assert captured.history[0]["nll"] == pytest.approx(eager.history[0]["nll"], rel=0.02)


def test_loaders_and_row_weights_are_captured() -> None:
    x, y = (t.double() for t in table())
    loader = DataLoader(TensorDataset(x, y, torch.linspace(0.5, 1.5, ROWS)), batch_size=BATCH, shuffle=True)

    def train(capture: bool) -> Any:
        options = {"epochs": EPOCHS, "seed": 5, "device": "cuda", "capture": capture}
        return METHODS["bbb"][0]().double().fit(loader, **options)

    captured = train(True)
    assert captured._training_path == "captured steps"
    assert_close(captured, train(False))


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch.compile tells which of its optimizations it leaves out
@pytest.mark.parametrize("name", ["map", "bbb", "LeNet, bbb"])
def test_compiled_steps_are_captured(name: str) -> None:
    model = fit(name, capture=True, compile=True)
    assert model._training_path == "captured steps"
    assert all(bool(p.isfinite().all()) for p in model.parameters())
    if name == "map":  # compiled code draws other random numbers
        assert_close(model, fit(name, capture=False))


class Waiting(nn.Module):
    """A network that looks at a number on the host, which no capture permits."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) if x.abs().max().item() > 0 else x[:, :1]


def test_a_network_that_waits_for_the_device_is_trained_eagerly() -> None:
    def train(capture: bool) -> Any:
        torch.manual_seed(0)
        model = credo.BayesByBackprop(Waiting().double(), credo.Gaussian(0.3))
        return model.fit(
            tuple(t.double() for t in table()), epochs=EPOCHS, batch_size=BATCH, seed=5, device="cuda", capture=capture
        )

    captured = train(True)
    assert "the capture failed" in captured.summary()
    assert_close(captured, train(False))
    assert fit("bbb", capture=True)._training_path == "captured steps"  # the device is still usable


def test_early_stopping_and_resuming_are_as_in_eager_training(tmp_path: Any) -> None:
    held_out = {"validation": tuple(t.double() for t in table()), "patience": 1}
    assert_close(fit("map", capture=True, **held_out), fit("map", capture=False, **held_out))

    def stop(progress: float) -> float:
        if progress * EPOCHS >= 2:
            raise KeyboardInterrupt
        return 1.0

    run = {"checkpoint": tmp_path / "run", "capture": True}
    with pytest.raises(KeyboardInterrupt):
        fit("bbb", schedule=stop, **run)
    resumed = fit("bbb", schedule=lambda progress: 1.0, resume=True, **run)
    assert_close(resumed, fit("bbb", schedule=lambda progress: 1.0, capture=True))


def test_a_diverging_replay_returns_to_the_last_good_epoch() -> None:
    def explode(progress: float) -> float:
        return 1e30 if progress * EPOCHS >= 2 else 1.0

    with pytest.raises(DivergenceError, match="epoch 3"):
        fit("map", dtype=torch.float32, schedule=explode, capture=True)
