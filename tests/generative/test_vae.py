"""The auto-encoder in use: training, saving, drawing, a posterior over its weights, and what it says to wrong input."""

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
from credo.architectures import ConvDecoder, DenseDecoder, DenseEncoder
from credo.errors import InputError, LoadError
from credo.generative import VAE, decoders
from credo.generative.decoders import binarize
from credo.seeding import seeded
from generative.helpers import check_resumed_run, equal

CPU = torch.device("cpu")
SIGMAS = 4.0


def images(n: int = 40, seed: int = 0) -> Tensor:
    """Gray images ``[n, 1, 6, 6]`` of a bright half, left or right."""
    with seeded(seed, CPU):
        left = (torch.rand(n, 1, 1, 1) < 0.5).float()
        half = torch.cat([left.expand(-1, 1, 6, 3), (1 - left).expand(-1, 1, 6, 3)], -1)
        return 0.1 + 0.8 * half


def build(seed: int = 0, **options: object) -> VAE:
    with seeded(seed, CPU):
        return VAE(**{"latent": 2, "shape": (1, 6, 6), "hidden": (16,), **options})


def bayesian(seed: int = 0, **options: object) -> VAE:
    """With a posterior over the decoder's weights as well."""
    with seeded(seed, CPU):
        method = credo.BayesByBackprop(DenseDecoder(2, (1, 6, 6), (16,)), credo.Bernoulli(), **options)
        return VAE("dense", method, latent=2, shape=(1, 6, 6), hidden=(16,))


MODELS = {
    "B": build,
    "A": lambda: build(kl="sampled", samples=3),
    "beta": lambda: build(beta=0.5, warmup=12),
    "iwae": lambda: build(objective="iwae", samples=4),
    "gaussian": lambda: build(likelihood=credo.Gaussian()),
    "heteroscedastic": lambda: build(likelihood=credo.Gaussian(noise="heteroscedastic")),
    "convolutional": lambda: build(encoder="convolutional", hidden=(4, 8)),
    "bayesian": bayesian,
    "mixture": lambda: bayesian(prior=credo.ScaleMixture(), kl_warmup=5),
}
every_model = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)


def normalized() -> VAE:
    """With running statistics, which only training may move."""
    with seeded(0, CPU):
        encoder = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))
        return VAE(encoder, DenseDecoder(2, (1, 6, 6), (8,)), latent=2)


@every_model
def test_training_raises_the_bound(make):
    x, model = images(), make()
    model.n_data = len(x)
    before = model.elbo(x, samples=20, seed=0).mean()
    model.fit(x, epochs=30, batch_size=10, lr=1e-2, validation=images(seed=1), seed=0)
    assert model.elbo(x, samples=20, seed=0).mean() > before
    entry = model.history[-1]
    assert entry["elbo"] == pytest.approx(-entry["nll"] - entry["kl"] - entry.get("weight_kl", 0.0))
    assert entry["elbo"] > model.history[0]["elbo"]
    assert entry["validation_log_likelihood"] > model.history[0]["validation_log_likelihood"]
    assert ("bound" in entry) == (model._objective == "iwae")
    assert "NLL" in model._training_task().progress_text(entry)


@every_model
def test_saved_model_is_rebuilt_without_its_networks(make, tmp_path):
    x, model = images(), make().fit(images(), epochs=2, seed=0)
    model.save(tmp_path / "run")
    loaded = credo.load(tmp_path / "run")
    assert equal(loaded, model)
    assert (loaded.history, loaded.n_data, loaded._get_config()) == (model.history, 40, model._get_config())
    for twin in (loaded, copy.deepcopy(model)):
        for bound in ("elbo", "log_likelihood"):
            assert torch.equal(getattr(twin, bound)(x, samples=3, seed=1), getattr(model, bound)(x, samples=3, seed=1))
        assert torch.equal(twin.sample(5, seed=2), model.sample(5, seed=2))


@every_model
def test_resumed_training_ends_in_the_same_weights(make, tmp_path):
    check_resumed_run(make, images(), tmp_path / "run")


@pytest.mark.parametrize("make", [*MODELS.values(), normalized], ids=[*MODELS, "normalized"])
def test_looking_at_a_model_changes_nothing(make):
    x, model = images(), make().fit(images(), epochs=1, seed=0)
    model.train()
    before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    model.encode(x), model.reconstruct(x), model.sample(3, seed=0), model.manifold(3), model.interpolate(x[:1], x[1:2])
    assert torch.equal(model.elbo(x, seed=1), model.elbo(x, seed=1))
    assert torch.equal(model.log_likelihood(x, 7, seed=1), model.log_likelihood(x, 7, seed=1))
    assert torch.equal(random, torch.get_rng_state())
    assert all(part.training for part in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not torch.equal(model.elbo(x, seed=1), model.elbo(x, seed=2))


def test_codes_and_what_is_decoded_from_them():
    x, model = images(), build().fit(images(), epochs=20, lr=1e-2, seed=0)
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


def test_manifold_goes_through_equal_shares_of_the_prior():
    model = build()
    first, second = torch.special.ndtri(torch.tensor([1 / 6, 3 / 6, 5 / 6])), model.manifold(3)
    top_left, middle_right = torch.stack([first[0], first[2]]), torch.stack([first[2], first[1]])
    torch.testing.assert_close(second[:1], model.decode(top_left[None]))
    torch.testing.assert_close(second[5:6], model.decode(middle_right[None]))


@pytest.mark.parametrize("options", [{}, {"kl": "sampled"}, {"objective": "iwae", "samples": 3}])
def test_loss_is_linear_in_the_weights_of_rows(options):
    x, model = images(6), build(likelihood=credo.Gaussian(), **options)

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


def test_warmup_counts_training_steps_alone():
    x, model = images(), build(warmup=4, beta=2.0, likelihood=credo.Gaussian())

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
def test_compiled_training_is_that_of_eager():
    """With next to no noise in z, so that it does not matter in which order the two draw it."""
    x = images(64)
    codes = []
    for how in ({}, {"compile": True}):
        model = build(warmup=30, beta=20.0, likelihood=credo.Gaussian(noise=0.3))
        with torch.no_grad():
            last = model.encoder.layers.layers[-1]
            last.weight[2:], last.bias[2:] = 0.0, -60.0
        model.fit(x, epochs=8, batch_size=16, seed=0, **how)
        assert int(model._warmup.steps) == 32
        codes.append(model.encode(x).mean)
    torch.testing.assert_close(*codes, rtol=1e-4, atol=1e-5)


def test_gray_values_are_drawn_anew_and_binary_ones_stay():
    gray, binary = images(), images().round()
    model = build()
    assert not torch.equal(binarize(gray, model.likelihood), binarize(gray, model.likelihood))
    assert torch.equal(binarize(binary, model.likelihood), binary)
    assert torch.equal(binarize(gray, credo.Gaussian()), gray)


def test_bounds_decode_no_more_at_once_than_memory_allows(monkeypatch):
    x, model = images(50), build(hidden=())
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
    x = images().double()
    for likelihood in (credo.Bernoulli(), credo.Gaussian(), credo.StudentT()):
        model = build(likelihood=likelihood).double().fit(x, epochs=1, seed=0)
        assert model.elbo(x).dtype == model.sample(2).dtype == torch.float64
    counts = (5 * images()).round()
    model = build(likelihood=credo.Poisson()).fit(counts, epochs=1, seed=0)
    assert model.log_likelihood(counts, 10).isfinite().all()
    with pytest.raises(InputError, match="x is float64 but the network computes in float32"):
        build().elbo(x)


def test_half_precision_keeps_the_latents_in_full():
    model = build().fit(images(), epochs=2, seed=0, precision="bf16-mixed")
    assert math.isfinite(model.history[-1]["elbo"])
    with torch.autocast("cpu", torch.bfloat16):
        assert model.encode(images()).mean.dtype == torch.float32


@pytest.mark.parametrize("shape", [(1, 7, 5), (3, 9, 4), (1, 6, 7)])
def test_convolutional_networks_take_odd_sizes(shape):
    with seeded(0, CPU):
        model = VAE("convolutional", latent=3, shape=shape, hidden=(4, 8))
        x = torch.rand(12, *shape)
    model.fit(x, epochs=1, batch_size=6, seed=0)
    assert model.reconstruct(x).shape == x.shape
    two = credo.Gaussian(noise="heteroscedastic", output_dim=1)
    with_variance = VAE("convolutional", latent=3, shape=shape, hidden=(4, 8), likelihood=two)
    assert with_variance.fit(x, epochs=1, seed=0).sample(2).shape == (2, *shape)


class TestPosteriorOverTheDecoder:
    """The full variational version: z and the decoder's weights have posteriors."""

    def test_elbo_of_all_data_holds_both_divergences(self):
        x, model = images().round(), bayesian().fit(images().round(), epochs=3, seed=0)
        found = torch.stack([model.elbo(x, samples=4, seed=seed).double().sum() for seed in range(40)])
        inner = model.decoder
        q = model.encode(x)
        with seeded(0, CPU), torch.no_grad():
            draws = torch.stack([self.expected(inner, x, q.sample()) for _ in range(400)]).double()
        reference = draws.mean() - decoders.kl_to_prior(q).sum() - inner.kl().detach()
        error = math.hypot(found.std() / math.sqrt(len(found)), draws.std() / math.sqrt(len(draws)))
        assert abs(float(found.mean() - reference)) < SIGMAS * error

    @staticmethod
    def expected(inner: credo.BayesByBackprop, x: Tensor, z: Tensor) -> Tensor:
        """log p(x | z, w) of all data with a draw of the weights by Bayes by Backprop itself."""
        return inner.likelihood.log_prob(inner._predictor(1, None).outputs(z)[0], x).sum()

    def test_loss_is_minus_the_elbo_per_datum(self):
        x, model = images().round(), bayesian().fit(images().round(), epochs=3, seed=0)
        with seeded(0, CPU):
            losses = torch.stack([model.loss(x).detach() for _ in range(400)]).double()
            bound = torch.stack([model.elbo(x).double().mean() for _ in range(400)])
        error = math.hypot(losses.std() / 20, bound.std() / 20)
        assert abs(float(losses.mean() + bound.mean())) < SIGMAS * error

    def test_weights_belong_to_their_rows_in_every_set_of_codes(self):
        x, model, first = images(6).round(), bayesian(), torch.eye(6)[0]
        model._samples = 3
        others = torch.cat([x[:1], 1 - x[1:]])

        def nll(data: Tensor, weight: Tensor | None = None) -> Tensor:
            with seeded(0, CPU):
                model.loss(data, n_data=6, sample_weight=weight)
            return model._last_terms["nll"]

        torch.testing.assert_close(nll(x, first), nll(others, first))
        torch.testing.assert_close(torch.stack([nll(x, row) for row in torch.eye(6)]).sum(), nll(x))

    def test_without_spread_it_is_the_plain_model(self):
        x, model = images().round(), bayesian(initial_scale=1e-6)
        plain = VAE(model.encoder, model.decoder.net, latent=2)
        found, expected = (m.log_likelihood(x, 200, seed=0) for m in (model, plain))
        # the same codes; weights 1e-6 apart move a logit by some 1e-5, and there are 36
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-3)
        torch.testing.assert_close(model.sample(5, seed=0), plain.sample(5, seed=0))

    def test_number_of_data_must_be_known(self):
        model = bayesian()
        for look in (model.loss, model.elbo):
            with pytest.raises(InputError, match="n_data must be the number of training data"):
                look(images())
        assert model.log_likelihood(images(), 3).isfinite().all()
        few, many = (float(self.seeded_loss(model, n)) for n in (40, 4000))
        assert few - many == pytest.approx(float(model.decoder.kl().detach()) * (1 / 40 - 1 / 4000), rel=1e-4)

    @staticmethod
    def seeded_loss(model: VAE, n_data: int) -> Tensor:
        with seeded(0, CPU):
            return model.loss(images(), n_data=n_data).detach()

    def test_weight_decay_spares_the_scales_and_the_noise(self):
        model = bayesian()
        decayed, spared = model.parameter_groups(0.1)
        assert {id(p) for p in spared["params"]} == {id(p) for p in model.decoder.posterior.parameters()}
        assert (decayed["weight_decay"], spared["weight_decay"]) == (0.1, 0.0)
        gaussian = build(likelihood=credo.Gaussian())
        assert [p is gaussian.likelihood.log_scale for p in gaussian.parameter_groups(0.1)[1]["params"]] == [True]
        assert len(gaussian.parameter_groups()) == 1

    def test_own_networks_and_priors_are_passed_when_loading(self, tmp_path):
        def network() -> nn.Module:
            return nn.Sequential(nn.Linear(2, 36), nn.Unflatten(1, (1, 6, 6)))

        prior = torch.distributions.StudentT(3.0)
        inner = credo.BayesByBackprop(network(), credo.Bernoulli(), prior, forward=lambda net, z: net(2 * z))
        model = VAE("dense", inner, latent=2, shape=(1, 6, 6)).fit(images(), epochs=1, seed=0)
        model.save(tmp_path / "run")
        fresh = {"encoder": DenseEncoder((1, 6, 6), 4), "decoder": network()}
        with pytest.raises(LoadError, match="forward"):
            credo.load(tmp_path / "run", fresh)
        loaded = credo.load(tmp_path / "run", fresh, prior=prior, forward=lambda net, z: net(2 * z))
        assert torch.equal(loaded.elbo(images(), seed=0), model.elbo(images(), seed=0))

    @pytest.mark.parametrize(
        ("inner", "message"),
        [
            ({"temperature": 0.5}, "temperature=1 and kl_weighting='uniform'"),
            ({"kl_weighting": "blundell"}, "temperature=1 and kl_weighting='uniform'"),
            ({"likelihood": None}, "needs its likelihood"),
        ],
    )
    def test_settings_that_would_not_count_are_refused(self, inner, message):
        method = credo.BayesByBackprop(DenseDecoder(2, (3,)), **{"likelihood": credo.Bernoulli(), **inner})
        with pytest.raises(InputError, match=message):
            VAE("dense", method, latent=2, shape=(3,))


def test_networks_of_ones_own(tmp_path: Path):
    def networks() -> dict[str, nn.Module]:
        return {
            "encoder": nn.Sequential(nn.Flatten(), nn.Linear(36, 4)),
            "decoder": nn.Sequential(nn.Linear(2, 36), nn.Unflatten(1, (1, 6, 6))),
        }

    model = VAE(**networks(), latent=2).fit(images(), epochs=1, seed=0)
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
        return images(1, seed=i)[0] * (255.0 if i == 19 else 1.0)


def test_wrong_values_in_any_batch_are_said():
    message = r"Bernoulli likelihood needs data between 0 and 1, got values from 0\.1 to 229\.5: divide"
    loader = DataLoader(LastIsWrong(), batch_size=4)
    for data, look in itertools.product((LastIsWrong(), loader), ("fit", "elbo", "encode", "log_likelihood")):
        with pytest.raises(InputError, match=message):
            getattr(build(), look)(data)
    with pytest.raises(InputError, match="validation: a Bernoulli likelihood"):
        build().fit(images(), validation=255 * images())
    bad = images()
    bad[3] = math.nan
    for data in (bad, TensorDataset(bad)):
        with pytest.raises(InputError, match="NaN or infinite"):
            build().fit(data)
    build(likelihood=credo.Gaussian()).fit(DataLoader(LastIsWrong(), batch_size=4), epochs=1)


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
def test_wrong_arguments_are_named(options, message):
    with pytest.raises(InputError, match=message):
        VAE(**{"latent": 2, "shape": (3,), **options})


def test_iwae_needs_weights_that_are_numbers():
    with pytest.raises(InputError, match="without a posterior"):
        VAE("dense", bayesian().decoder, latent=2, shape=(1, 6, 6), objective="iwae")
    with pytest.raises(InputError, match="has its own likelihood"):
        VAE("dense", bayesian().decoder, latent=2, shape=(1, 6, 6), likelihood=credo.Bernoulli())


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
def test_networks_that_do_not_fit_are_said_before_training(encoder, decoder, message):
    with pytest.raises(InputError, match=message):
        VAE(encoder, decoder, latent=2).fit(torch.rand(8, 3))


def test_one_row_is_too_few_for_batch_norm():
    encoder = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    with pytest.raises(InputError, match="too small for batch norm"):
        VAE(encoder, nn.Linear(2, 3), latent=2).fit(torch.rand(9, 3), batch_size=4, epochs=1)


def test_wrong_calls_are_said():
    model = build()
    for call, message in (
        (lambda: model.decode(torch.zeros(3)), r"z must have shape \[N, 2\] with N >= 1, got \[3\]"),
        (lambda: model.sample(0), "n must be an integer of at least 1"),
        (
            lambda: model.interpolate(images(2), images(3)),
            "start and end must have the same number of rows, got 2 and 3",
        ),
        (lambda: model.interpolate(images(2), images(2), steps=1), "steps must be an integer of at least 2"),
        (lambda: model.manifold(1), "side must be an integer of at least 2"),
        (lambda: build(latent=3).manifold(), "manifold needs latent=2, this model has latent=3"),
        (lambda: model.elbo(images(), samples=0), "samples must be an integer of at least 1"),
        (lambda: model.elbo(images()[:, :, :5]), r"data must have shape \[N, 1, 6, 6\]"),
        (lambda: model.elbo(images(), seed=-1), "seed must be None or an integer"),
        (lambda: model.elbo(DataLoader(TensorDataset(images(0))), seed=1), "the loader yielded no batches"),
    ):
        with pytest.raises(InputError, match=message):
            call()
