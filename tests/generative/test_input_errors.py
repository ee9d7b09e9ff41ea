"""Errors for wrong data, networks and options of generative models."""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import credo
from credo.architectures import MLP, DenseDecoder, DenseEncoder, LeNet
from credo.errors import InputError, LoadError
from credo.generative import GAN, VAE, VQVAE, WGAN, AutoEncoder, InfoGAN
from credo.generative.evaluation import (
    fit_lenet,
    frechet_distance,
    lenet_features,
    mode_coverage,
    parzen_log_likelihood,
)
from credo.seeding import seeded

CPU = torch.device("cpu")
SQUASHED = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.Sigmoid()))


def rows(n: int = 24, width: int = 3) -> Tensor:
    with seeded(0, CPU):
        return torch.rand(n, width)


def small(model: str, **options: object) -> credo.generative.base.GenerativeModel:
    with seeded(0, CPU):
        if model == "vae":
            return VAE(nn.Linear(3, 4), nn.Linear(2, 3), latent=2, **options)
        if model == "vqvae":
            return VQVAE(nn.Linear(3, 2), nn.Linear(2, 3), latent=2, codes=4, **options)
        if model == "ae":
            return AutoEncoder(nn.Linear(3, 2), nn.Linear(2, 3), latent=2, **options)
        return GAN(MLP(2, (4,), 3), MLP(3, (4,), 1), latent=2, **options)


@pytest.mark.parametrize(
    "build",
    [
        lambda: VAE(nn.Linear(3, 4), SQUASHED, latent=2),
        lambda: VQVAE(nn.Linear(3, 2), SQUASHED, latent=2),
        lambda: AutoEncoder(nn.Linear(3, 2), SQUASHED, latent=2, loss="bce"),
        lambda: GAN(MLP(2, (4,), 3), nn.Sequential(nn.Linear(3, 1), nn.Sigmoid()), latent=2),
        lambda: WGAN(MLP(2, (4,), 3), nn.Sequential(nn.Linear(3, 1), nn.Sigmoid()), latent=2),
    ],
    ids=["VAE", "VQVAE", "AutoEncoder", "GAN", "WGAN"],
)
def test_networks_that_end_in_a_sigmoid_raise(build):
    with pytest.raises(InputError, match=r"ends in a sigmoid, but .*: leave the sigmoid out"):
        build()


def test_sigmoid_is_accepted_if_outputs_are_means():
    VAE(nn.Linear(3, 4), SQUASHED, latent=2, likelihood=credo.Gaussian(noise=0.1))
    AutoEncoder(nn.Linear(3, 2), SQUASHED, latent=2)


def test_reconstruction_of_another_shape_raises():
    model = AutoEncoder(nn.Linear(3, 2), nn.Linear(2, 1), latent=2)
    for call in (model.loss, model.error):
        with pytest.raises(InputError, match=r"must output data of shape \[24, 3\], got \[24, 1\]"):
            call(rows())


@pytest.mark.parametrize("model", ["vae", "vqvae", "ae"])
def test_sample_weights_are_used(model):
    """A row of weight 0 is as if it were not there, for a batch of all rows."""
    x, weight = rows(), (torch.arange(24) < 12).float()
    options = {"epochs": 2, "batch_size": 24, "seed": 0}
    plain = small(model).fit(x, **options)
    weighted = small(model).fit((x, None, weight), **options)
    assert not torch.equal(plain.encoder.weight, weighted.encoder.weight)
    spoilt = torch.where(weight[:, None] > 0, x, 1.0 - x)
    if model == "ae":  # the others draw random numbers for every row
        other = small(model).fit((spoilt, None, weight), **options)
        torch.testing.assert_close(other.encoder.weight, weighted.encoder.weight)


def test_bad_data_tuples_raise():
    x = rows()
    for data, message in (
        ([x[:10], x[10:]], "got a list: stack it first"),
        ((x, torch.zeros(3)), "got 24 data and 3 labels"),
        ((x, x, x, x), "got 4 entries"),
        ((x, None, -torch.ones(24)), "sample_weight must hold one number of 0 or more"),
    ):
        with pytest.raises(InputError, match=message):
            small("vae").fit(data, epochs=1)
    with pytest.raises(InputError, match="GAN does not weight rows"):
        small("gan").fit((x, None, torch.ones(24)), epochs=1)


@pytest.mark.parametrize("x", [255.0 * rows(), (255 * rows()).to(torch.uint8), -rows()])
@pytest.mark.parametrize("model", ["vae", "vqvae"])
def test_loss_raises_for_data_out_of_range(model, x):
    with pytest.raises(InputError, match="between 0 and 1"):
        small(model).loss(x)


def test_methods_in_place_of_networks_raise():
    method = credo.MCDropout(MLP(2, (4,), 3), credo.Bernoulli())
    with pytest.raises(InputError, match="the decoder must be a network, not a MCDropout around one"):
        AutoEncoder(nn.Linear(3, 2), method, latent=2)
    with pytest.raises(InputError, match="the encoder must be a network"):
        VAE(credo.MAP(MLP(3, (4,), 4)), nn.Linear(2, 3), latent=2)
    with pytest.raises(InputError, match="the generator must be a network"):
        GAN(method, MLP(3, (4,), 1), latent=2)
    with pytest.raises(InputError, match="the decoder must be a network or a BayesByBackprop"):
        VAE(nn.Linear(3, 4), method, latent=2)


def test_bad_arguments_do_not_change_the_discriminator():
    with_norm = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    with pytest.raises(InputError, match="not contain batch norm"):
        WGAN(MLP(2, (4,), 3), with_norm, latent=2, spectral_normalization=True)
    plain = MLP(3, (4,), 4)
    with pytest.raises(InputError, match="weight must be a positive number"):
        InfoGAN(MLP(4, (4,), 3), plain, noise=0, categorical=(2,), weight=-1, spectral_normalization=True)
    for network in (with_norm, plain):
        assert not any("parametrizations" in name for name, _ in network.named_parameters())


def test_clip_with_spectral_normalization_raises():
    with pytest.raises(InputError, match="both bound the weights"):
        WGAN(MLP(2, (4,), 3), MLP(3, (4,), 1), latent=2, penalty="clip", spectral_normalization=True)


@pytest.mark.parametrize("option", [{"patience": 2}, {"monitor": "elbo"}, {"validation": rows()}])
def test_validation_options_raise_for_adversarial_models(option):
    with pytest.raises(InputError, match=f"GAN has no likelihood .* leave {next(iter(option))} out"):
        small("gan").fit(rows(), epochs=1, **option)


def test_each_model_has_its_own_monitors():
    x = rows()
    stopped = small("ae").fit(x, epochs=8, lr=1e-2, validation=x.flip(1), patience=2, monitor="error", seed=0)
    errors = [entry["validation_error"] for entry in stopped.history]
    assert stopped.error(x.flip(1)).mean().item() == pytest.approx(min(errors))
    with pytest.raises(InputError, match=r"unknown monitor 'log_likelihood'.*elbo"):
        small("vqvae").fit(x, epochs=1, validation=x, monitor="log_likelihood")


def test_grids_must_be_a_folder(tmp_path):
    (tmp_path / "file").write_text("")
    for grids in (tmp_path / "file", True):
        model = small("vae")
        with pytest.raises(InputError, match="grids must be a folder"):
            model.fit(rows(), epochs=1, grids=grids)
        assert not model.history


def test_load_needs_only_the_custom_network(tmp_path):
    model = GAN(MLP(2, (4,), 3), nn.Sequential(nn.Linear(3, 1)), latent=2)
    model.save(tmp_path / "run")
    with pytest.raises(LoadError, match=r"the discriminator \(a Sequential\); .* net=\{'discriminator': \.\.\.\}"):
        credo.load(tmp_path / "run")
    loaded = credo.load(tmp_path / "run", net={"discriminator": nn.Sequential(nn.Linear(3, 1))})
    assert torch.equal(loaded.sample(4, seed=0), model.sample(4, seed=0))


def test_vqvae_without_a_prior_does_not_sample(tmp_path):
    """The last checkpoint is written before the codes are counted."""
    model = small("vqvae").fit(rows(), epochs=1, checkpoint=tmp_path / "run", seed=0)
    loaded = credo.load(tmp_path / "run", net={"encoder": nn.Linear(3, 2), "decoder": nn.Linear(2, 3)})
    with pytest.raises(InputError, match="no prior over codes to sample from yet"):
        loaded.sample(4)
    loaded.fit_prior(rows())
    assert torch.equal(loaded.sample(4, seed=0), model.sample(4, seed=0))


def test_vqvae_state_dict_loads_with_and_without_prior():
    fitted, fresh = small("vqvae").fit(rows(), epochs=1, seed=0), small("vqvae")
    before = fresh.state_dict()
    fresh.load_state_dict(fitted.state_dict())
    assert torch.equal(fresh.sample(4, seed=0), fitted.sample(4, seed=0))
    fresh.load_state_dict(before)
    assert fresh.prior is None


def test_fitting_the_prior_does_not_change_the_loader_generator():
    generator = torch.Generator().manual_seed(3)
    loader = DataLoader(TensorDataset(rows()), batch_size=8, shuffle=True, generator=generator)
    before = generator.get_state()
    small("vqvae").fit(loader, epochs=1, seed=0)
    assert torch.equal(generator.get_state(), before)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: frechet_distance(rows().numpy(), rows()), "features must be tensors, got ndarray"),
        (lambda: frechet_distance(rows() / 0.0, rows()), "features contain NaN or infinite"),
        (lambda: parzen_log_likelihood(rows() / 0.0, rows(), sigma=1.0), "samples contain NaN or infinite"),
        (lambda: mode_coverage(rows(0), lambda x: x), "no samples to classify"),
        (lambda: lenet_features(torch.rand(2, 1, 8, 8), LeNet()), r"\[1, 28, 28\], got \[1, 8, 8\]"),
        (lambda: fit_lenet(torch.rand(4, 1, 8, 8), torch.rand(4)), "y must be labels, integers"),
        (lambda: small("vae").decode("abc"), "z must contain numbers"),
        (lambda: small("gan", betas=("a", "b")), r"betas\[0\] must be a finite number"),
    ],
)
def test_bad_calls_raise(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_classifier_may_return_an_array():
    found = mode_coverage(rows(4), lambda x: torch.tensor([0, 1, 1, 2]).numpy(), 3)
    assert found.counts.tolist() == [1, 2, 1]


def test_compiled_networks_raise():
    with pytest.raises(InputError, match="the encoder is compiled already: pass the plain network"):
        VAE(torch.compile(nn.Linear(3, 4)), nn.Linear(2, 3), latent=2)


def test_labels_are_not_used():
    with_labels = small("vae").fit(rows(), list("abcdefghijklmnopqrstuvwx"), epochs=1, seed=0)
    without = small("vae").fit(rows(), epochs=1, seed=0)
    assert torch.equal(with_labels.encoder.weight, without.encoder.weight)


def test_labels_with_a_loader_raise():
    with pytest.raises(InputError, match="has its own labels: pass it alone"):
        small("vae").fit(DataLoader(TensorDataset(rows())), torch.zeros(24), epochs=1)


def test_flat_output_for_images_raises_with_a_hint():
    model = VAE(nn.Sequential(nn.Flatten(), nn.Linear(16, 4)), nn.Linear(2, 16), latent=2)
    with pytest.raises(InputError, match=r"Let it end in nn\.Unflatten\(1, \(1, 4, 4\)\)"):
        model.fit(torch.rand(8, 1, 4, 4), epochs=1)


def test_load_error_lists_all_custom_networks(tmp_path):
    small("vae").save(tmp_path / "run")
    with pytest.raises(LoadError, match=r"the encoder \(a Linear\) and the decoder \(a Linear\).*'decoder': \.\.\.\}"):
        credo.load(tmp_path / "run")


class Pictures(TensorDataset):
    def __getitem__(self, i: int) -> object:
        return object()


def test_dataset_without_tensors_raises():
    with pytest.raises(InputError, match="the data set must yield tensors, arrays or numbers"):
        small("vae").fit(Pictures(rows()), epochs=1)


def test_finished_run_resumes_with_a_constant_schedule(tmp_path):
    x, options = rows(), {"batch_size": 8, "seed": 0, "schedule": "constant"}
    whole = small("vae").fit(x, epochs=4, **options)
    small("vae").fit(x, epochs=2, checkpoint=tmp_path / "run", **options)
    longer = small("vae").fit(x, epochs=4, checkpoint=tmp_path / "run", resume=True, **options)
    assert torch.equal(longer.encoder.weight, whole.encoder.weight)
    options["schedule"] = "cosine"
    with pytest.raises(InputError, match=r"or go on with credo\.load\(checkpoint\)"):
        small("vae").fit(x, epochs=5, checkpoint=tmp_path / "run", resume=True, **options)


def test_mode_coverage_accepts_a_method():
    lenet = fit_lenet(torch.rand(12, 1, 8, 8), torch.arange(12) % 3, epochs=1)
    assert mode_coverage(torch.rand(6, 1, 8, 8), lenet, 3).total == 6


def test_prior_uses_sample_weights_of_tuples_and_loaders():
    x, weight = rows(), (torch.arange(24) == 0).float()
    model = small("vqvae").fit((x, None, weight), epochs=1, batch_size=24, seed=0)
    code = int(model.encode(x[:1]))
    expected = torch.full((4,), 1.0 / 5.0).scatter_(0, torch.tensor(code), 2.0 / 5.0)  # one row, and one per code
    torch.testing.assert_close(model.prior, expected)
    loader = DataLoader(TensorDataset(x, torch.zeros(24), weight), batch_size=24)
    torch.testing.assert_close(small("vqvae").fit_prior(loader).prior.sum(), torch.tensor(1.0))
    weighted = small("vae").fit(DataLoader(TensorDataset(x, torch.zeros(24), 0.0 * weight), batch_size=24), epochs=1)
    assert weighted.history[0]["nll"] == 0.0


def test_misspelled_network_name_raises(tmp_path):
    small("gan").save(tmp_path / "run")
    with pytest.raises(LoadError, match="did you mean 'generator'"):
        credo.load(tmp_path / "run", net={"generatr": MLP(2, (4,), 3)})


def test_lr_that_the_model_overrides_raises():
    with pytest.raises(InputError, match="lr would change nothing for the generator"):
        small("gan", generator_lr=1e-4).fit(rows(), epochs=1, lr={"generator": 1e-2})
    small("gan", generator_lr=1e-4).fit(rows(), epochs=1, lr={"discriminator": 1e-2})


@pytest.mark.parametrize("labels", [3, torch.tensor(3)])
def test_bad_labels_raise(labels):
    for call in (lambda: small("vae").fit((rows(), labels), epochs=1), lambda: small("vae").fit(rows(), 3, epochs=1)):
        with pytest.raises(InputError, match="there must be one label per datum"):
            call()


def test_sigmoid_before_reshaping_layers_raises():
    decoder = nn.Sequential(nn.Linear(2, 4), nn.Sigmoid(), nn.Unflatten(1, (1, 2, 2)), nn.Identity())
    with pytest.raises(InputError, match="ends in a sigmoid"):
        VAE(nn.Linear(4, 4), decoder, latent=2)


def test_vqvae_loads_a_state_dict_in_its_own_precision():
    fitted, double = small("vqvae").fit(rows(), epochs=1, seed=0), small("vqvae").double()
    double.load_state_dict(fitted.state_dict())
    assert double.prior.dtype == torch.float64
    double.load_state_dict({}, strict=False)
    assert double.prior is not None


def test_vqvae_encodes_in_half_precision():
    assert small("vqvae").to(torch.bfloat16).encode(rows().bfloat16()).shape == (24,)


@pytest.mark.parametrize(
    "claim",
    [{"grid": [30000, 3000]}, {"grid": [0]}, {"grid": "2"}, {"grid": [2.5]}, {"grid": [10**12]}, {"codes": 10**8}],
)
def test_card_with_sizes_larger_than_its_tensors_raises(claim, tmp_path):
    model = VQVAE(DenseEncoder((3,), 2, (4,)), DenseDecoder(2, (3,), (4,)), latent=2, codes=4)
    model.fit(rows(), epochs=1, seed=0).save(tmp_path / "run")
    card = json.loads((tmp_path / "run" / "card.json").read_text())
    card["config"] |= claim
    (tmp_path / "run" / "card.json").write_text(json.dumps(card))
    with pytest.raises(LoadError, match=r"grid|size"):
        credo.load(tmp_path / "run")
