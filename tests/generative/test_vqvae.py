"""The vector-quantized auto-encoder: gradients, training, prior, saving and loading."""

from __future__ import annotations

import copy
import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import credo
from credo import architectures
from credo.architectures import ResidualDecoder, ResidualEncoder
from credo.errors import InputError, LoadError
from credo.generative import VQVAE
from credo.seeding import seeded
from generative.helpers import bars, check_resumed_run, equal

CPU = torch.device("cpu")
SHAPE = (1, 8, 8)


def build(encoder: Any = "residual", seed: int = 0, **options: Any) -> VQVAE:
    defaults = {"latent": 3, "codes": 8, "shape": SHAPE, "hidden": (4, 8), "likelihood": credo.Gaussian(noise=0.2)}
    with seeded(seed, CPU):
        return VQVAE(encoder, **{**defaults, **options})


MODELS = {
    "ema": build,
    "loss": lambda: build(update="loss"),
    "bernoulli": lambda: build(likelihood=credo.Bernoulli()),
    "learned": lambda: build(likelihood=credo.Gaussian(), revive_after=None),
    "heteroscedastic": lambda: build(likelihood=credo.Gaussian(noise="heteroscedastic", output_dim=1)),
    "dense": lambda: build("dense"),
    "convolutional": lambda: build("convolutional"),
}
every_model = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
both_updates = pytest.mark.parametrize("update", ["ema", "loss"])


def gradients(module: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in module.parameters()]


class Watched(nn.Module):
    """A network that keeps its last input and output, with their gradients."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        self.input, self.output = x, self.net(x)
        for tensor in (self.input, self.output):
            if tensor.requires_grad:
                tensor.retain_grad()
        return self.output


@both_updates
@pytest.mark.parametrize("commitment", [0.0, 0.25, 2.0])
def test_straight_through_gradient(update, commitment):
    """∂L/∂z is ∂L/∂e of the reconstruction, to the bit, and 2β(z − e)/B of the commitment."""
    with seeded(0, CPU):
        encoder, decoder = Watched(ResidualEncoder(SHAPE, 3, (4, 8))), Watched(ResidualDecoder(3, SHAPE, (8, 4)))
        model = VQVAE(encoder, decoder, latent=3, codes=8, likelihood=credo.Gaussian(0.2), update=update)
    model._commitment = commitment
    x = bars(5)
    with torch.no_grad():
        codes = model.codebook.nearest(encoder(x))
        vectors = model.codebook.look_up(codes)
    model.loss(x).backward()
    assert torch.equal(decoder.input, vectors)
    z, through = encoder.output, decoder.input.grad
    if commitment == 0.0:
        assert torch.equal(z.grad, through)
    assert float(through.abs().sum()) > 0.0
    torch.testing.assert_close(z.grad, through + 2 * commitment * (z.detach() - vectors) / 5)


def test_loss_matches_the_paper():
    x = bars(5)
    for update, codebook_loss in (("ema", 0.0), ("loss", 1.0)):
        model = build(update=update, commitment=0.5).eval()
        z = model.encoder(x)
        vectors = model.codebook.look_up(model.codebook.nearest(z))
        distance = (z - vectors).square().sum() / 5
        error = (x - model.decoder(vectors)).square().flatten(1).sum(1).mean() / (2 * 0.2**2)
        constant = 64 * (math.log(0.2) + 0.5 * math.log(2 * math.pi))
        torch.testing.assert_close(model(x), error + constant + (codebook_loss + 0.5) * distance)
        assert float(model._last_terms["commitment"]) == pytest.approx(float(distance.detach()), rel=1e-5)


def test_codebook_loss_has_gradients_for_the_codebook_only():
    """Both rules give the networks the same gradients; the codes' are those of the codebook loss by itself."""
    x, averaged, trained = bars(5), build(), build(update="loss")
    with torch.no_grad():
        trained.codebook.vectors.copy_(averaged.codebook.vectors)
    z = trained.encoder(x).detach()
    codes, vectors = trained.codebook.nearest(z), trained.codebook.vectors.detach().clone()
    averaged.loss(x).backward()
    trained.loss(x).backward()
    for part in ("encoder", "decoder"):
        for a, b in zip(gradients(getattr(averaged, part)), gradients(getattr(trained, part)), strict=True):
            assert torch.equal(a, b)
    expected = torch.zeros_like(vectors)
    rows = z.movedim(1, -1).reshape(-1, 3)
    expected.index_add_(0, codes.flatten(), 2 * (vectors[codes.flatten()] - rows) / 5)
    torch.testing.assert_close(trained.codebook.vectors.grad, expected)
    assert not averaged.codebook.vectors.requires_grad


@both_updates
def test_codes_unused_by_the_first_batch_start_at_its_vectors(update):
    with seeded(0, CPU):
        model = build(update=update, codes=64)
        model.loss(bars(40))
        with torch.no_grad():
            rows = model.encoder(bars(40)).movedim(1, -1).reshape(-1, 3)
    at_a_row = (model.codebook.vectors[:, None] == rows).all(-1).any(1)
    assert int(at_a_row.sum()) >= 56


def test_codebook_is_updated_only_in_training():
    x, model = bars(), build()
    before = copy.deepcopy(model.codebook.state_dict())
    model.eval().loss(x)
    model.train()
    with torch.no_grad():
        model.loss(x)
    assert all(torch.equal(value, before[name]) for name, value in model.codebook.state_dict().items())
    model.loss(x)
    assert not torch.equal(model.codebook.vectors, before["vectors"])


@every_model
def test_training_raises_the_bound(make):
    x, model = bars(), make()
    before = float(model.elbo(x, seed=0).mean())
    model.fit(x, epochs=15, batch_size=10, lr=1e-2, validation=bars(seed=1), seed=0)
    assert float(model.elbo(x, seed=0).mean()) > before
    first, last = model.history[0], model.history[-1]
    places = math.prod(model.encode(x).shape[1:])
    assert last["elbo"] == pytest.approx(-last["nll"] - places * math.log(8))
    assert last["elbo"] > first["elbo"]
    assert last["validation_elbo"] > first["validation_elbo"]
    assert all(1.0 <= entry["perplexity"] <= 8.0 for entry in model.history)
    assert "perplexity" in model._training_task().progress_text(last)
    assert "held-out" in model._training_task().progress_text(last)


@every_model
def test_encode_and_decode_agree_with_reconstruct(make):
    x, model = bars(), make().fit(bars(), epochs=2, seed=0)
    codes = model.encode(x)
    assert codes.dtype == torch.int64
    assert codes.shape == (
        (40,) if isinstance(model.encoder, architectures.DenseEncoder | architectures.ConvEncoder) else (40, 2, 2)
    )
    assert torch.equal(model.decode(codes), model.reconstruct(x))
    assert torch.equal(model.decode(codes.int().numpy()), model.reconstruct(x))
    assert model.reconstruct(x).shape == x.shape
    assert torch.equal(model.encode(DataLoader(TensorDataset(x, x), batch_size=7)), codes)
    samples = model.sample(9, seed=1)
    assert samples.shape == (9, *SHAPE)
    assert torch.equal(samples, model.sample(9, seed=1))
    assert not torch.equal(samples, model.sample(9, seed=2))


def test_prior_matches_the_counts():
    x, model = bars(), build().fit(bars(), epochs=5, lr=1e-2, seed=0)
    codes = model.encode(x)
    for i, j, k in itertools.product(range(2), range(2), range(8)):
        share = (int((codes[:, i, j] == k).sum()) + 1) / (40 + 8)
        assert float(model.prior[i, j, k]) == pytest.approx(share)
    expected = torch.stack([model.prior[i, j, codes[:, i, j]].log() for i in range(2) for j in range(2)]).sum(0)
    output = model.decoder(model.codebook.look_up(codes))
    bound = model.likelihood.log_prob(output, x) + expected
    torch.testing.assert_close(model.elbo(x), bound.detach())
    counts = torch.bincount(codes.flatten(), minlength=8).double()
    assert model.perplexity(x) == pytest.approx(float(torch.distributions.Categorical(counts).perplexity()))


def test_samples_follow_the_prior():
    """The share of every code at a place is within four standard errors of its probability."""
    model, n = build().fit(bars(), epochs=5, lr=1e-2, seed=0), 2000
    drawn = []
    model.decode = lambda codes: drawn.append(codes) or codes
    model.sample(n, seed=0)
    shares = F.one_hot(drawn[0], 8).double().mean(0)
    error = (model.prior.double() * (1 - model.prior.double()) / n).sqrt()
    assert ((shares - model.prior).abs() < 4 * error).all()


@every_model
def test_saved_model_loads_without_networks(make, tmp_path):
    x, model = bars(), make().fit(bars(), epochs=2, seed=0)
    model.save(tmp_path / "run")
    loaded = credo.load(tmp_path / "run")
    assert (loaded.history, loaded.n_data, loaded._get_config()) == (model.history, 40, model._get_config())
    for twin in (loaded, copy.deepcopy(model)):
        assert equal(twin, model)
        assert torch.equal(twin.encode(x), model.encode(x))
        assert torch.equal(twin.sample(5, seed=2), model.sample(5, seed=2))
    untrained = make()
    untrained.save(tmp_path / "untrained")
    assert equal(credo.load(tmp_path / "untrained"), untrained)


@every_model
def test_resumed_training_gives_the_same_weights(make, tmp_path):
    """Averages, idle counts, the codes in use and the prior are part of the state."""
    check_resumed_run(make, bars(), tmp_path / "run", lr=1e-2)


def test_custom_networks_for_sequences(tmp_path):
    """The grid is a sequence of six vectors."""

    def networks() -> dict[str, nn.Module]:
        return {"encoder": nn.Conv1d(2, 3, 4, 4), "decoder": nn.ConvTranspose1d(3, 2, 4, 4)}

    with seeded(0, CPU):
        x = torch.randn(20, 2, 24)
        model = VQVAE(**networks(), latent=3, codes=5, likelihood=credo.Gaussian())
    model.fit(x, epochs=2, seed=0)
    assert model.encode(x).shape == (20, 6)
    assert model.sample(3).shape == (3, 2, 24)
    model.save(tmp_path / "run")
    with pytest.raises(LoadError, match="Conv1d"):
        credo.load(tmp_path / "run")
    assert equal(credo.load(tmp_path / "run", networks()), model)


@every_model
def test_evaluation_does_not_change_the_model(make):
    x, model = bars(), make().fit(bars(), epochs=1, seed=0)
    model.train()
    before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    model.encode(x), model.reconstruct(x), model.sample(3, seed=0), model.perplexity(x)
    assert torch.equal(model.elbo(x, seed=1), model.elbo(x, seed=1))
    assert torch.equal(random, torch.get_rng_state())
    assert all(part.training for part in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_failed_fit_keeps_the_prior():
    model = build().fit(bars(), epochs=1, seed=0)
    prior = model.prior.clone()
    with pytest.raises(InputError, match="images must have shape"):
        model.fit(torch.rand(5, 1, 12, 12))
    assert torch.equal(model.prior, prior)


def test_early_stopping_restores_the_best_bound():
    with seeded(0, CPU):
        noise = torch.rand(12, *SHAPE)
    held_out = bars(seed=1)
    model = build().fit(noise, epochs=60, lr=3e-2, validation=held_out, patience=3, seed=0)
    bounds = [entry["validation_elbo"] for entry in model.history]
    assert len(bounds) < 60
    model.prior = None
    assert float(model.elbo(held_out).mean()) == pytest.approx(max(bounds), rel=1e-5)


def test_grids_show_data_next_to_reconstructions(tmp_path):
    model = build()
    model.fit(bars(), epochs=2, seed=0, grids=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["epoch-0001.png", "epoch-0002.png"]
    assert torch.equal(model._example_images(bars())[0::2], bars()[:32])


def test_float64_and_half_precision():
    model = build().double().fit(bars().double(), epochs=1, seed=0)
    assert model.elbo(bars().double()).dtype == model.sample(2).dtype == model.prior.dtype == torch.float64
    mixed = build().fit(bars(), epochs=2, seed=0, precision="bf16-mixed")
    assert math.isfinite(mixed.history[-1]["elbo"])
    assert mixed.codebook.vectors.dtype == torch.float32


@pytest.mark.slow
def test_compiled_training_matches_eager():
    eager, compiled = (build().fit(bars(64), epochs=4, batch_size=16, seed=0, **how) for how in ({}, {"compile": True}))
    assert compiled.history[-1]["nll"] == pytest.approx(eager.history[-1]["nll"], rel=1e-3)


@pytest.mark.slow
@both_updates
def test_two_processes_match_one(update):
    """On the same global batches, of which each process sees half; sums in another order differ by rounding."""
    x = bars(40)
    alone, together = (
        build(update=update, revive_after=None).fit(x, epochs=3, batch_size=8, seed=0, **how)
        for how in ({}, {"devices": 2, "strategy": "ddp_spawn"})
    )
    for name, value in together.state_dict().items():
        torch.testing.assert_close(alone.state_dict()[name], value, rtol=1e-3, atol=1e-4)
    revived = build(update=update).fit(x, epochs=3, batch_size=8, seed=0, devices=2, strategy="ddp_spawn")
    assert revived.history[-1]["perplexity"] > 1.0
    assert float(revived.prior.sum()) == pytest.approx(4.0)


@pytest.mark.slow
def test_digits_are_reconstructed_with_most_codes_in_use():
    """The mean image is the best that one code could do; in even use 64 codes have a perplexity of 64."""
    x = torch.as_tensor(load_digits().images / 16, dtype=torch.float32)[:, None]
    train, test = x[:1500], x[1500:]
    model = build(latent=8, codes=64, hidden=(16, 32)).fit(train, epochs=6, batch_size=32, lr=5e-3, seed=0)
    error = (test - model.reconstruct(test)).square().flatten(1).sum(1).mean()
    baseline = (test - train.mean(0)).square().flatten(1).sum(1).mean()
    assert error < 0.6 * baseline
    assert model.history[-1]["perplexity"] > 32.0
    assert model.perplexity(test) > 32.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encoder": "residul"}, "unknown preset 'residul': did you mean 'residual'"),
        ({"shape": None}, "needs the shape of a datum"),
        ({"shape": (1, 7, 8)}, "must be multiples of 4"),
        ({"shape": (64,)}, "shape must be that of an image"),
        ({"latent": 0}, "latent must be an integer of at least 1, got 0"),
        ({"codes": 1}, "codes must be an integer of at least 2, got 1"),
        ({"commitment": -1.0}, "commitment must be a number of at least 0, got -1.0"),
        ({"decay": 1.0}, "decay must be a number of at least 0 and below 1, got 1.0"),
        ({"revive_after": 0}, "revive_after must be a positive number, got 0"),
        ({"update": "emma"}, "unknown update 'emma': did you mean 'ema'"),
        ({"likelihood": credo.Bernoulli}, "an object and not a class, got Bernoulli"),
        ({"likelihood": credo.Gaussian(noise="heteroscedastic")}, r"output_dim=1\)"),
        (
            {"decoder": credo.MAP(nn.Linear(3, 64), credo.Bernoulli())},
            "a network, not a MAP around one",
        ),
    ],
)
def test_bad_arguments_raise(options, message):
    with pytest.raises(InputError, match=message):
        build(**options)


def test_bad_data_raise():
    with pytest.raises(
        InputError, match=r"Bernoulli likelihood needs data between 0 and 1, got values from .* to 229.5"
    ):
        build(likelihood=credo.Bernoulli()).fit(255 * bars())
    with pytest.raises(InputError, match="NaN or infinite"):
        build().encode(bars() / torch.zeros(1))
    with pytest.raises(InputError, match="there is no prior over codes to sample from yet"):
        build().sample(3)
    with pytest.raises(InputError, match="n must be an integer of at least 1"):
        build().fit(bars(), epochs=1).sample(0)


@pytest.mark.parametrize(
    ("codes", "message"),
    [
        (torch.zeros(3, 2, 2), "codes must be integers as encode returns them, got torch.float32"),
        (torch.zeros(3, 2, 2, dtype=torch.bool), "codes must be integers"),
        (torch.full((3, 2, 2), 8), "codes must be from 0 to 7, got 8 to 8"),
        (torch.full((3, 2, 2), -1), "codes must be from 0 to 7"),
        (torch.zeros(3, 4, dtype=torch.long), r"codes must have shape \[N, 2, 2\] with N >= 1, got \[3, 4\]"),
        (torch.zeros(0, 2, 2, dtype=torch.long), "with N >= 1"),
    ],
)
def test_bad_codes_raise(codes, message):
    with pytest.raises(InputError, match=message):
        build().fit(bars(2), epochs=1).decode(codes)


def test_networks_that_do_not_match_raise():
    decoder = ResidualDecoder(3, SHAPE)
    with pytest.raises(InputError, match=r"encoder must output a vector of size 3, or a grid of them, shape \[1, 3, "):
        VQVAE(ResidualEncoder(SHAPE, 4), decoder, latent=3, codes=8).fit(bars())
    with pytest.raises(InputError, match="the decoder's output does not match data of shape"):
        VQVAE(ResidualEncoder(SHAPE, 3), ResidualDecoder(3, (3, 8, 8)), latent=3, codes=8).fit(bars())
    with pytest.raises(InputError, match="the decoder cannot be called on a batch of shape"):
        VQVAE(ResidualEncoder(SHAPE, 3), nn.Conv2d(4, 1, 1), latent=3, codes=8).fit(bars())


def test_validation_data_with_another_grid_raise():
    encoder, decoder = nn.Conv2d(1, 3, 4, 4), nn.ConvTranspose2d(3, 1, 4, 4)
    model = VQVAE(encoder, decoder, latent=3, codes=8, likelihood=credo.Gaussian())
    with pytest.raises(
        InputError, match=r"validation: all data must have the same grid of codes, \[2, 2\], got \[3, 2"
    ):
        model.fit(bars(), validation=torch.rand(4, 1, 12, 8))
