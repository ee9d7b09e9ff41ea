"""The auto-encoder: linear networks against PCA, the two losses, training, saving and loading."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import credo
from credo.architectures import DenseDecoder, DenseEncoder
from credo.errors import InputError, LoadError
from credo.generative import AutoEncoder, GenerativeModel
from credo.seeding import seeded
from generative.helpers import bars, check_resumed_run, equal

CPU = torch.device("cpu")
SHAPE = (1, 8, 8)


def build(encoder: Any = "dense", seed: int = 0, **options: Any) -> AutoEncoder:
    with seeded(seed, CPU):
        return AutoEncoder(encoder, **{"latent": 3, "shape": SHAPE, "hidden": (16,), **options})


def own_networks(seed: int = 0) -> dict[str, nn.Module]:
    """Networks that credo cannot rebuild, with running statistics."""
    with seeded(seed, CPU):
        encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
        return {"encoder": encoder, "decoder": nn.Sequential(nn.Linear(3, 64), nn.Unflatten(1, SHAPE))}


MODELS = {
    "dense": build,
    "bce": lambda: build(loss="bce"),
    "convolutional": lambda: build("convolutional", hidden=(4, 8)),
}
every_model = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)


@pytest.fixture(scope="module")
def flat() -> Tensor:
    """Data ``[300, 8]`` that are nearly three-dimensional."""
    with seeded(1, CPU):
        scales = torch.tensor([2.0, 1.7, 1.4, 0.5, 0.4, 0.3, 0.3, 0.2])
        rotation = torch.linalg.qr(torch.randn(8, 8)).Q
        return (torch.randn(300, 8) * scales) @ rotation.T + 0.5


@pytest.fixture(scope="module")
def linear(flat: Tensor) -> AutoEncoder:
    """Linear networks with the squared error, which have the principal subspace as their optimum."""
    model = build(shape=(8,), hidden=())
    return model.fit(flat, epochs=400, batch_size=300, lr=3e-2, seed=0)


def test_linear_error_is_the_sum_of_the_smallest_eigenvalues(flat, linear):
    """The least of any linear auto-encoder is known, so the error cannot be below it; 1 % above is converged."""
    least = float(torch.linalg.eigvalsh(torch.cov(flat.double().T, correction=0))[:-3].sum())
    error = float(linear.error(flat).double().mean())
    assert least * (1 - 1e-5) < error < 1.01 * least
    assert float((flat - linear.reconstruct(flat)).square().sum(1).mean()) == pytest.approx(error, rel=1e-5)


def test_linear_reconstructions_match_pca(flat, linear):
    """The optimum is unique, so that an error near the least one means reconstructions near the projections."""
    x = flat.double().numpy()
    pca = PCA(3).fit(x)
    projected = pca.inverse_transform(pca.transform(x))
    distance = np.square(linear.reconstruct(flat).double().numpy() - projected).sum(1).mean()
    assert distance < 0.01 * np.square(x - projected).sum(1).mean()


def test_losses_match_their_definition():
    x = bars(5)
    for loss in ("l2", "bce"):
        model = build(loss=loss).eval()
        rebuilt = model.reconstruct(x)
        if loss == "l2":
            expected = (x - rebuilt).square().flatten(1).sum(1)
        else:
            expected = -(x * rebuilt.log() + (1 - x) * (1 - rebuilt).log()).flatten(1).sum(1)
        torch.testing.assert_close(model.error(x), expected)
        torch.testing.assert_close(model(x).detach(), expected.mean())
        assert model.loss(x).requires_grad


def test_bce_decodes_to_probabilities():
    model = build(loss="bce")
    z = torch.tensor([[-50.0, 50.0, 0.0], [1.0, 2.0, 3.0]])
    torch.testing.assert_close(model.decode(z), model.decoder(z).sigmoid().detach())
    assert not torch.equal(model.decode(z), build().decode(z))


def test_sample_weights_multiply_the_loss_of_each_row():
    x, model = bars(6), build()
    parts = [model.loss(x, sample_weight=row) for row in torch.eye(6)]
    torch.testing.assert_close(torch.stack(parts).sum(), model.loss(x))
    with pytest.raises(InputError, match=r"sample_weight must have shape \[6\], got \[5\]"):
        model.loss(x, sample_weight=torch.ones(5))


@every_model
def test_training_lowers_the_error(make):
    x, model = bars(), make()
    before = float(model.error(x).mean())
    model.fit(x, epochs=30, batch_size=10, lr=1e-2, validation=bars(seed=1), seed=0)
    assert float(model.error(x).mean()) < before
    first, last = model.history[0], model.history[-1]
    assert last["error"] < first["error"]
    assert last["validation_error"] == pytest.approx(float(model.error(bars(seed=1)).mean()))
    assert model._training_task().progress_text(last).startswith("error ")
    assert "held-out" in model._training_task().progress_text(last)


@every_model
def test_encode_and_decode_agree_with_reconstruct(make):
    x, model = bars(), make()
    codes = model.encode(x)
    assert codes.shape == (40, 3)
    assert not codes.requires_grad
    assert torch.equal(model.decode(codes), model.reconstruct(x))
    assert model.reconstruct(x).shape == x.shape
    pairs = DataLoader(TensorDataset(x, torch.arange(40)), batch_size=7)
    torch.testing.assert_close(model.encode(pairs), codes)
    assert torch.equal(model.encode(x.numpy()), codes)
    assert torch.equal(model.decode(codes.numpy()), model.decode(codes))


@every_model
def test_saved_model_loads_without_networks(make, tmp_path):
    x, model = bars(), make().fit(bars(), epochs=2, seed=0)
    model.save(tmp_path / "run")
    loaded = credo.load(tmp_path / "run")
    assert (loaded.history, loaded.n_data, loaded._get_config()) == (model.history, 40, model._get_config())
    for twin in (loaded, copy.deepcopy(model)):
        assert equal(twin, model)
        assert torch.equal(twin.reconstruct(x), model.reconstruct(x))


def test_custom_networks_are_passed_to_load(tmp_path):
    model = AutoEncoder(**own_networks(), latent=3).fit(bars(), epochs=1, seed=0)
    model.save(tmp_path / "run")
    with pytest.raises(LoadError, match="Sequential"):
        credo.load(tmp_path / "run")
    assert equal(credo.load(tmp_path / "run", own_networks(1)), model)


@every_model
def test_resumed_training_gives_the_same_weights(make, tmp_path):
    check_resumed_run(make, bars(), tmp_path / "run")


def test_evaluation_does_not_change_the_model():
    x, model = bars(), AutoEncoder(**own_networks(), latent=3)
    before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    model.encode(x), model.reconstruct(x), model.error(x)
    assert torch.equal(random, torch.get_rng_state())
    assert all(part.training for part in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_early_stopping_restores_the_smallest_error():
    held_out = bars(seed=1)
    with seeded(0, CPU):
        noise = torch.rand(12, *SHAPE)
    model = build().fit(noise, epochs=60, lr=3e-2, validation=held_out, patience=3, seed=0)
    errors = [entry["validation_error"] for entry in model.history]
    assert len(errors) < 60
    assert float(model.error(held_out).mean()) == pytest.approx(min(errors))


def test_grids_show_data_next_to_reconstructions(tmp_path):
    x, model = bars(), build()
    model.fit(x, epochs=4, seed=0, grids=tmp_path, grid_every=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["epoch-0002.png", "epoch-0004.png"]
    shown = model._example_images(x)
    assert torch.equal(shown[0::2], x[:32])
    torch.testing.assert_close(shown[1::2], model.reconstruct(x)[:32])
    assert model._example_images(x[:3]).shape == (6, *SHAPE)


def test_autoencoder_has_no_sample():
    assert issubclass(AutoEncoder, GenerativeModel)
    assert not hasattr(AutoEncoder, "sample")


def test_float64_and_half_precision():
    model = build().double().fit(bars().double(), epochs=1, seed=0)
    assert model.encode(bars().double()).dtype == model.reconstruct(bars().double()).dtype == torch.float64
    for loss in ("l2", "bce"):
        mixed = build(loss=loss).fit(bars(), epochs=2, seed=0, precision="bf16-mixed")
        assert np.isfinite(mixed.history[-1]["error"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encoder": "conv"}, "unknown preset 'conv'"),
        ({"encoder": "residual"}, "unknown preset 'residual': choose from dense, convolutional"),
        ({"encoder": "dense", "shape": None}, "needs the shape of a datum"),
        ({"encoder": nn.Linear(3, 3), "shape": None, "hidden": None}, "needs a decoder of your own"),
        ({"latent": 0}, "latent must be an integer of at least 1, got 0"),
        ({"loss": "mse"}, "unknown loss 'mse'"),
        ({"loss": "l1"}, "did you mean 'l2'"),
    ],
)
def test_bad_arguments_raise(options, message):
    with pytest.raises(InputError, match=message):
        build(**options)


def test_bad_data_raise():
    with pytest.raises(InputError, match=r"loss='bce' needs data between 0 and 1, got values from .* to 229.5: divide"):
        build(loss="bce").fit(255 * bars())
    with pytest.raises(InputError, match="or choose loss='l2'"):
        build(loss="bce").encode(-bars())
    build().fit(255 * bars(), epochs=1)
    with pytest.raises(InputError, match="NaN or infinite"):
        build().fit(bars() / torch.zeros(1))
    with pytest.raises(InputError, match=r"data must have shape \[N, 1, 8, 8\], got \[N, 1, 7, 8\]"):
        build().fit(torch.rand(4, 1, 7, 8))
    for z in (torch.zeros(2, 4), torch.zeros(3), torch.zeros(0, 3)):
        with pytest.raises(InputError, match=r"z must have shape \[N, 3\] with N >= 1"):
            build().decode(z)


def test_networks_that_do_not_match_raise():
    x = bars()
    with pytest.raises(InputError, match=r"encoder must output codes of shape \[2, 3\], got \[2, 4\]"):
        AutoEncoder(DenseEncoder(SHAPE, 4), DenseDecoder(3, SHAPE), latent=3).fit(x)
    with pytest.raises(InputError, match=r"decoder must output data of shape \[2, 1, 8, 8\], got \[2, 64\]"):
        AutoEncoder(DenseEncoder(SHAPE, 3), nn.Linear(3, 64), latent=3).fit(x)
    with pytest.raises(InputError, match="the decoder cannot be called on a batch of shape"):
        AutoEncoder(DenseEncoder(SHAPE, 3), nn.Linear(2, 64), latent=3).fit(x)


def test_last_batch_of_one_row_raises_with_batch_norm():
    with pytest.raises(InputError, match="too small for batch norm"):
        AutoEncoder(**own_networks(), latent=3).fit(bars(9), batch_size=4, epochs=1)


def test_custom_training_loop():
    x, model = bars(), build()
    optimizer = torch.optim.Adam(model.parameter_groups(), lr=1e-2)
    before = float(model.loss(x).detach())
    for _ in range(20):
        optimizer.zero_grad()
        model.loss(x).backward()
        optimizer.step()
    assert float(model.loss(x).detach()) < before
