"""The VAE in use: training, saving, samples, and errors."""

from __future__ import annotations

import copy
import itertools
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import credo
from credo.architectures import ConvDecoder, DenseDecoder
from credo.errors import InputError, LoadError
from credo.generative import VAE, decoders
from credo.generative.decoders import binarize
from credo.seeding import seeded
from generative.helpers import bayesian_vae, check_resumed_run, equal, halves, small_vae

CPU = torch.device("cpu")
SIGMAS = 4.0


MODELS = {
    "B": small_vae,
    "A": lambda: small_vae(kl="sampled", samples=3),
    "beta": lambda: small_vae(beta=0.5, warmup=12),
    "iwae": lambda: small_vae(objective="iwae", samples=4),
    "gaussian": lambda: small_vae(likelihood=credo.Gaussian()),
    "heteroscedastic": lambda: small_vae(likelihood=credo.Gaussian(noise="heteroscedastic")),
    "convolutional": lambda: small_vae(encoder="convolutional", hidden=(4, 8)),
    "bayesian": bayesian_vae,
    "mixture": lambda: bayesian_vae(prior=credo.ScaleMixture(), kl_warmup=5),
}
every_model = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)


def normalized() -> VAE:
    """With running statistics, which change only in training."""
    with seeded(0, CPU):
        encoder = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))
        return VAE(encoder, DenseDecoder(2, (1, 6, 6), (8,)), latent=2)


@every_model
def test_training_raises_the_bound(make):
    x, model = halves(), make()
    model.n_data = len(x)
    before = model.elbo(x, samples=20, seed=0).mean()
    model.fit(x, epochs=30, batch_size=10, lr=1e-2, validation=halves(seed=1), seed=0)
    assert model.elbo(x, samples=20, seed=0).mean() > before
    entry = model.history[-1]
    assert entry["elbo"] == pytest.approx(-entry["nll"] - entry["kl"] - entry.get("weight_kl", 0.0))
    assert entry["elbo"] > model.history[0]["elbo"]
    assert entry["validation_log_likelihood"] > model.history[0]["validation_log_likelihood"]
    assert ("bound" in entry) == (model._objective == "iwae")
    assert "NLL" in model._training_task().progress_text(entry)


@every_model
def test_saved_model_loads_without_networks(make, tmp_path):
    x, model = halves(), make().fit(halves(), epochs=2, seed=0)
    model.save(tmp_path / "run")
    loaded = credo.load(tmp_path / "run")
    assert equal(loaded, model)
    assert (loaded.history, loaded.n_data, loaded._get_config()) == (model.history, 40, model._get_config())
    for twin in (loaded, copy.deepcopy(model)):
        for bound in ("elbo", "log_likelihood"):
            assert torch.equal(getattr(twin, bound)(x, samples=3, seed=1), getattr(model, bound)(x, samples=3, seed=1))
        assert torch.equal(twin.sample(5, seed=2), model.sample(5, seed=2))


@every_model
def test_resumed_training_gives_the_same_weights(make, tmp_path):
    check_resumed_run(make, halves(), tmp_path / "run")


@pytest.mark.parametrize("make", [*MODELS.values(), normalized], ids=[*MODELS, "normalized"])
def test_evaluation_does_not_change_the_model(make):
    x, model = halves(), make().fit(halves(), epochs=1, seed=0)
    model.train()
    before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    model.encode(x), model.reconstruct(x), model.sample(3, seed=0), model.manifold(3), model.interpolate(x[:1], x[1:2])
    assert torch.equal(model.elbo(x, seed=1), model.elbo(x, seed=1))
    assert torch.equal(model.log_likelihood(x, 7, seed=1), model.log_likelihood(x, 7, seed=1))
    assert torch.equal(random, torch.get_rng_state())
    assert all(part.training for part in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not torch.equal(model.elbo(x, seed=1), model.elbo(x, seed=2))


def test_encode_and_decode_agree_with_reconstruct():
    x, model = halves(), small_vae().fit(halves(), epochs=20, lr=1e-2, seed=0)
    q = model.encode(x)
    assert (q.batch_shape, q.event_shape) == ((40,), (2,))
    assert torch.equal(model.encode(x, batch_size=7).mean, q.mean)
    assert torch.equal(model.reconstruct(x), model.decode(q.mean))
    path = model.interpolate(x[:3], x[3:6], steps=5)
    assert path.shape == (3, 5, 1, 6, 6)
    torch.testing.assert_close(path[:, 0], model.reconstruct(x[:3]))
    torch.testing.assert_close(path[:, -1], model.reconstruct(x[3:6]))
    samples = model.sample(9, seed=0)
    assert samples.shape == (9, 1, 6, 6)
    assert samples.min() >= 0.0
    assert samples.max() <= 1.0


def test_manifold_is_evenly_spaced_in_probability():
    model = small_vae()
    first, second = torch.special.ndtri(torch.tensor([1 / 6, 3 / 6, 5 / 6])), model.manifold(3)
    top_left, middle_right = torch.stack([first[0], first[2]]), torch.stack([first[2], first[1]])
    torch.testing.assert_close(second[:1], model.decode(top_left[None]))
    torch.testing.assert_close(second[5:6], model.decode(middle_right[None]))


@pytest.mark.parametrize("options", [{}, {"kl": "sampled"}, {"objective": "iwae", "samples": 3}])
def test_loss_is_linear_in_sample_weights(options):
    x, model = halves(6), small_vae(likelihood=credo.Gaussian(), **options)

    def loss(weight: Tensor | None) -> Tensor:
        with seeded(0, CPU):
            return model.loss(x, sample_weight=weight)

    parts = [loss(row) for row in torch.eye(6)]
    torch.testing.assert_close(torch.stack(parts).sum(), loss(None))
    torch.testing.assert_close(loss(torch.full((6,), 2.0)), 2 * loss(None))
    loss(torch.zeros(6))
    assert all(term == 0.0 for term in model._last_terms.values())
    with pytest.raises(InputError, match=r"sample_weight must have shape \[6\], got \[5\]"):
        loss(torch.ones(5))


def test_warmup_counts_only_training_steps():
    x, model = halves(), small_vae(warmup=4, beta=2.0, likelihood=credo.Gaussian())

    def kl_weight() -> float:
        with seeded(0, CPU):
            loss = model.loss(x).detach()
        return float((loss - model._last_terms["nll"]) / model._last_terms["kl"])

    weights = [kl_weight() for _ in range(6)]
    assert weights == pytest.approx([0.5, 1.0, 1.5, 2.0, 2.0, 2.0], rel=1e-4)
    model._warmup.steps.fill_(2)
    model.eval()
    assert kl_weight() == pytest.approx(1.0, rel=1e-4)
    model.train()
    with torch.no_grad():
        assert kl_weight() == pytest.approx(1.0, rel=1e-4)
    assert int(model._warmup.steps) == 2
    model.fit(x, epochs=2, batch_size=10, seed=0)
    assert int(model._warmup.steps) == 2 + 8


@pytest.mark.slow
def test_compiled_training_matches_eager():
    """With next to no noise in z, so that it does not matter in which order the two draw it."""
    x = halves(64)
    codes = []
    for how in ({}, {"compile": True}):
        model = small_vae(warmup=30, beta=20.0, likelihood=credo.Gaussian(noise=0.3))
        with torch.no_grad():
            last = model.encoder.layers.layers[-1]
            last.weight[2:], last.bias[2:] = 0.0, -60.0
        model.fit(x, epochs=8, batch_size=16, seed=0, **how)
        assert int(model._warmup.steps) == 32
        codes.append(model.encode(x).mean)
    torch.testing.assert_close(*codes, rtol=1e-4, atol=1e-5)


def test_gray_values_are_binarized_and_binary_values_unchanged():
    gray, binary = halves(), halves().round()
    model = small_vae()
    assert not torch.equal(binarize(gray, model.likelihood), binarize(gray, model.likelihood))
    assert torch.equal(binarize(binary, model.likelihood), binary)
    assert torch.equal(binarize(gray, credo.Gaussian()), gray)


def test_bounds_are_computed_in_chunks(monkeypatch):
    x, model = halves(50), small_vae(hidden=())
    decoded = []
    model.decoder.register_forward_hook(lambda module, inputs, output: decoded.append(output.numel()))
    monkeypatch.setattr(decoders, "MAX_ELEMENTS", 1000)
    model.log_likelihood(x, samples=40, seed=0)
    assert max(decoded) <= 1000
    assert sum(decoded) == 50 * 40 * 36
    decoded.clear()
    model.elbo(DataLoader(TensorDataset(x), batch_size=50), samples=3, seed=0)
    assert max(decoded) <= 1000
    assert sum(decoded) == 50 * 3 * 36


def test_float64_networks_and_other_likelihoods():
    x = halves().double()
    for likelihood in (credo.Bernoulli(), credo.Gaussian(), credo.StudentT()):
        model = small_vae(likelihood=likelihood).double().fit(x, epochs=1, seed=0)
        assert model.elbo(x).dtype == model.sample(2).dtype == torch.float64
    counts = (5 * halves()).round()
    model = small_vae(likelihood=credo.Poisson()).fit(counts, epochs=1, seed=0)
    assert model.log_likelihood(counts, 10).isfinite().all()
    with pytest.raises(InputError, match="x is float64 but the network computes in float32"):
        small_vae().elbo(x)


def test_latents_are_in_float32_under_autocast():
    model = small_vae().fit(halves(), epochs=2, seed=0, precision="bf16-mixed")
    assert math.isfinite(model.history[-1]["elbo"])
    with torch.autocast("cpu", torch.bfloat16):
        assert model.encode(halves()).mean.dtype == torch.float32


@pytest.mark.parametrize("shape", [(1, 7, 5), (3, 9, 4), (1, 6, 7)])
def test_convolutional_networks_accept_odd_sizes(shape):
    with seeded(0, CPU):
        model = VAE("convolutional", latent=3, shape=shape, hidden=(4, 8))
        x = torch.rand(12, *shape)
    model.fit(x, epochs=1, batch_size=6, seed=0)
    assert model.reconstruct(x).shape == x.shape
    two = credo.Gaussian(noise="heteroscedastic", output_dim=1)
    with_variance = VAE("convolutional", latent=3, shape=shape, hidden=(4, 8), likelihood=two)
    assert with_variance.fit(x, epochs=1, seed=0).sample(2).shape == (2, *shape)


def test_custom_networks(tmp_path: Path):
    def networks() -> dict[str, nn.Module]:
        return {
            "encoder": nn.Sequential(nn.Flatten(), nn.Linear(36, 4)),
            "decoder": nn.Sequential(nn.Linear(2, 36), nn.Unflatten(1, (1, 6, 6))),
        }

    model = VAE(**networks(), latent=2).fit(halves(), epochs=1, seed=0)
    model.save(tmp_path / "run")
    with pytest.raises(LoadError, match="Sequential"):
        credo.load(tmp_path / "run")
    assert equal(credo.load(tmp_path / "run", networks()), model)
    mixed = VAE("dense", ConvDecoder(2, (1, 6, 6), (8, 4)), latent=2, shape=(1, 6, 6))
    assert mixed.sample(2).shape == (2, 1, 6, 6)


class LastIsWrong(Dataset):
    """Images in [0, 1], of which the last is given in 0 to 255."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, i: int) -> Tensor:
        return halves(1, seed=i)[0] * (255.0 if i == 19 else 1.0)


def test_bad_values_in_any_batch_raise():
    message = r"Bernoulli likelihood needs data between 0 and 1, got values from 0\.1 to 229\.5: divide"
    loader = DataLoader(LastIsWrong(), batch_size=4)
    for data, look in itertools.product((LastIsWrong(), loader), ("fit", "elbo", "encode", "log_likelihood")):
        with pytest.raises(InputError, match=message):
            getattr(small_vae(), look)(data)
    with pytest.raises(InputError, match="validation: a Bernoulli likelihood"):
        small_vae().fit(halves(), validation=255 * halves())
    bad = halves()
    bad[3] = math.nan
    for data in (bad, TensorDataset(bad)):
        with pytest.raises(InputError, match="NaN or infinite"):
            small_vae().fit(data)
    small_vae(likelihood=credo.Gaussian()).fit(DataLoader(LastIsWrong(), batch_size=4), epochs=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encoder": "dens"}, "unknown preset 'dens': did you mean 'dense'"),
        ({"encoder": 3}, "encoder must be a network or the name of a preset, got int"),
        ({"decoder": "dense"}, "decoder must be a network, got str"),
        ({"shape": None}, "needs the shape of a datum"),
        ({"shape": (0, 3)}, r"shape\[0\] must be an integer of at least 1"),
        ({"encoder": nn.Linear(3, 4), "shape": None}, "needs a decoder of your own"),
        ({"encoder": nn.Linear(3, 4), "decoder": nn.Linear(2, 3)}, "shape and hidden are for presets"),
        ({"latent": 0}, "latent must be an integer of at least 1, got 0"),
        ({"hidden": 200}, "hidden must be a list of widths"),
        ({"hidden": (0,)}, r"hidden\[0\] must be an integer"),
        ({"kl": "analytical"}, "unknown kl 'analytical': did you mean 'analytic'"),
        ({"objective": "elbow"}, "unknown objective 'elbow': did you mean 'elbo'"),
        ({"samples": 0}, "samples must be an integer of at least 1"),
        ({"beta": -1.0}, "beta must be a number of at least 0, got -1.0"),
        ({"beta": "1"}, "beta must be a number of at least 0, got '1'"),
        ({"warmup": -1}, "warmup must be an integer of at least 0"),
        ({"objective": "iwae", "beta": 0.5}, "an importance-weighted bound has no KL"),
        ({"objective": "iwae", "warmup": 5}, "an importance-weighted bound has no KL"),
        ({"likelihood": credo.Bernoulli}, "an object and not a class, got Bernoulli"),
        ({"encoder": "convolutional"}, r"shape must be that of an image"),
        ({"encoder": "convolutional", "shape": (1, 3, 9)}, "an image of 3×9 cannot be halved 2 times"),
        (
            {"encoder": "convolutional", "shape": (1, 8, 8), "likelihood": credo.Gaussian(noise="heteroscedastic")},
            "output_dim=1",
        ),
        ({"likelihood": credo.Gaussian(noise="heteroscedastic", output_dim=3)}, "output_dim=3 .* is not a dimension"),
    ],
)
def test_bad_arguments_raise(options, message):
    with pytest.raises(InputError, match=message):
        VAE(**{"latent": 2, "shape": (3,), **options})


def test_iwae_with_a_bayesian_decoder_raises():
    with pytest.raises(InputError, match="without a posterior"):
        VAE("dense", bayesian_vae().decoder, latent=2, shape=(1, 6, 6), objective="iwae")
    with pytest.raises(InputError, match="has its own likelihood"):
        VAE("dense", bayesian_vae().decoder, latent=2, shape=(1, 6, 6), likelihood=credo.Bernoulli())


@pytest.mark.parametrize(
    ("encoder", "decoder", "message"),
    [
        (nn.Linear(5, 4), nn.Linear(2, 3), r"the encoder cannot be called on a batch of shape \[2, 3\]"),
        (
            nn.Linear(3, 2),
            nn.Linear(2, 3),
            r"mean and log variance of 2 latent variables, shape \[2, 4\], got \[2, 2\]",
        ),
        (nn.Linear(3, 4), nn.Linear(4, 3), r"the decoder cannot be called on a batch of shape \[2, 2\]"),
        (nn.Linear(3, 4), nn.Linear(2, 4), r"the decoder's output does not match data of shape \[2, 3\]"),
    ],
)
def test_networks_that_do_not_match_raise_before_training(encoder, decoder, message):
    with pytest.raises(InputError, match=message):
        VAE(encoder, decoder, latent=2).fit(torch.rand(8, 3))


def test_last_batch_of_one_row_raises_with_batch_norm():
    encoder = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    with pytest.raises(InputError, match="too small for batch norm"):
        VAE(encoder, nn.Linear(2, 3), latent=2).fit(torch.rand(9, 3), batch_size=4, epochs=1)


def test_bad_calls_raise():
    model = small_vae()
    for call, message in (
        (lambda: model.decode(torch.zeros(3)), r"z must have shape \[N, 2\] with N >= 1, got \[3\]"),
        (lambda: model.sample(0), "n must be an integer of at least 1"),
        (
            lambda: model.interpolate(halves(2), halves(3)),
            "start and end must have the same number of rows, got 2 and 3",
        ),
        (lambda: model.interpolate(halves(2), halves(2), steps=1), "steps must be an integer of at least 2"),
        (lambda: model.manifold(1), "side must be an integer of at least 2"),
        (lambda: small_vae(latent=3).manifold(), "manifold needs latent=2, this model has latent=3"),
        (lambda: model.elbo(halves(), samples=0), "samples must be an integer of at least 1"),
        (lambda: model.elbo(halves()[:, :, :5]), r"data must have shape \[N, 1, 6, 6\]"),
        (lambda: model.elbo(halves(), seed=-1), "seed must be None or an integer"),
        (lambda: model.elbo(DataLoader(TensorDataset(halves(0))), seed=1), "the loader yielded no batches"),
    ):
        with pytest.raises(InputError, match=message):
            call()
