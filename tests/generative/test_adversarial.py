"""Training, saving, samples and errors of adversarial models."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import credo
from credo.architectures import MLP
from credo.errors import InputError
from credo.generative import DCGAN, GAN, WGAN, InfoGAN
from credo.generative.adversarial import PATIENCE, SampleDiversity, frozen
from credo.generative.networks import output_range
from credo.seeding import seeded
from credo.training.adversarial import AdversarialTask

CPU = torch.device("cpu")
SIGMAS = 4.0


def points(n: int = 40, seed: int = 0) -> Tensor:
    with seeded(seed, CPU):
        return torch.randn(n, 2)


def images(n: int = 24, seed: int = 0) -> Tensor:
    """Between −1 and 1, reaching both ends."""
    with seeded(seed, CPU):
        return (2.0 * torch.rand(n, 1, 8, 8) - 1.0).sign() * torch.rand(n, 1, 8, 8)


def small(model: type = GAN, seed: int = 0, **options: object) -> GAN:
    with seeded(seed, CPU):
        return model(MLP(3, (8,), 2), MLP(2, (8,), 1), latent=3, **options)


def dcgan(**options: object) -> DCGAN:
    with seeded(0, CPU):
        return DCGAN((1, 8, 8), latent=5, width=4, **options)


def style_gan() -> GAN:
    with seeded(0, CPU):
        return GAN("style", latent=5, shape=(1, 8, 8), width=2)


def moved(x: Tensor) -> Tensor:
    return x + 0.1 * torch.randn_like(x)


def infogan(outputs: int = 8, **options: object) -> InfoGAN:
    with seeded(0, CPU):
        return InfoGAN(MLP(9, (8,), 2), MLP(2, (8,), outputs), noise=2, categorical=(3, 2), continuous=2, **options)


MODELS = {
    "gan": (small, points),
    "minimax": (lambda: small(objective="minimax", discriminator_steps=3), points),
    "rates": (lambda: small(generator_lr=1e-2, discriminator_lr=1e-3), points),
    "spectral": (lambda: small(spectral_normalization=True), points),
    "dcgan": (dcgan, images),
    "dcgan-spectral": (lambda: dcgan(spectral_normalization=True), images),
    "style": (style_gan, images),
    "wgan": (lambda: small(WGAN, discriminator_steps=2), points),
    "wgan-clip": (lambda: small(WGAN, penalty="clip", clip=0.1), points),
    "infogan": (infogan, points),
    "infogan-std": (lambda: infogan(outputs=10, code_std=None, continuous_weight=0.1), points),
    "infogan-transform": (lambda: infogan(transform=moved, transform_weight=0.5), points),
}
every_model = pytest.mark.parametrize(("make", "data"), MODELS.values(), ids=MODELS)


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@every_model
def test_each_loss_has_gradients_for_its_own_network_only(make, data):
    model, x = make(), data(12)
    model.train()
    for name, other in (("discriminator", "generator"), ("generator", "discriminator")):
        model.zero_grad(set_to_none=True)
        model(x, network=name).backward()
        assert all(p.grad is not None for p in getattr(model, name).parameters())
        assert all(p.grad is None for p in getattr(model, other).parameters())
    assert all(p.requires_grad for p in model.parameters())
    assert model.loss(x, "generator").ndim == 0


@pytest.mark.parametrize(("rows", "steps", "moves"), [(40, 1, 15), (40, 3, 5), (8, 3, 1), (16, 5, 1)])
def test_generator_steps_on_every_kth_minibatch_across_epochs(rows, steps, moves, monkeypatch):
    """Three epochs of rows/8 minibatches; an epoch may be shorter than k."""
    moved = []
    original = AdversarialTask.on_step_end

    def count(task: AdversarialTask, optimizer: str) -> None:
        original(task, optimizer)
        moved.append(optimizer)

    monkeypatch.setattr(AdversarialTask, "on_step_end", count)
    small(discriminator_steps=steps).fit(points(rows), epochs=3, batch_size=8, seed=0)
    assert moved.count("discriminator") == 3 * rows // 8
    assert moved.count("generator") == moves


def test_epoch_without_generator_steps_has_no_generator_loss():
    model = small(discriminator_steps=3).fit(points(8), epochs=3, batch_size=8, seed=0)
    assert ["generator" in entry for entry in model.history] == [False, False, True]
    assert model._training_task().progress_text(model.history[0]).startswith("discriminator")
    assert "generator" in model._training_task().progress_text(model.history[2])


def test_frozen_restores_requires_grad_after_an_error():
    net = MLP(2, (3,), 1)
    net.layers[0].weight.requires_grad_(False)
    with frozen(net):
        assert not any(p.requires_grad for p in net.parameters())
    with pytest.raises(RuntimeError, match="shapes"), frozen(net):
        net(torch.zeros(1, 5))
    assert [p.requires_grad for p in net.parameters()] == [False, True, True, True]


@every_model
def test_resumed_run_is_bitwise_equal(make, data, tmp_path):
    x = data()
    options = {"epochs": 4, "batch_size": 6, "seed": 3}
    whole = make().fit(x, **options)
    folder = tmp_path / "checkpoint"

    class Interruption(Exception):
        pass

    def stop(task: AdversarialTask, metrics: dict[str, float]) -> None:
        if metrics["epoch"] == 3:
            raise Interruption

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AdversarialTask, "on_epoch_end", stop)
        with pytest.raises(Interruption):
            make().fit(x, checkpoint=folder, **options)
    resumed = make().fit(x, checkpoint=folder, resume=True, **options)
    assert same(state(resumed), state(whole))
    drop = {"seconds"}
    assert [{k: v for k, v in e.items() if k not in drop} for e in resumed.history] == [
        {k: v for k, v in e.items() if k not in drop} for e in whole.history
    ]


@every_model
def test_saved_and_copied_models_are_equal(make, data, tmp_path):
    model = make().fit(data(), epochs=2, batch_size=6, seed=0)
    model.save(tmp_path / "run")
    for again in (credo.load(tmp_path / "run"), copy.deepcopy(model)):
        assert type(again) is type(model)
        assert again._get_config() == model._get_config()
        assert same(state(again), state(model))
        assert torch.equal(again.sample(5, seed=1), model.sample(5, seed=1))
        assert torch.equal(again.eval()._discriminate(data(4)), model._discriminate(data(4)))
        again.fit(data(), epochs=1, batch_size=6, seed=0)  # and it goes on


def test_custom_networks_are_passed_to_load(tmp_path):
    with seeded(0, CPU):
        model = GAN(nn.Linear(2, 2), nn.Linear(2, 1), latent=2, spectral_normalization=True)
    model.save(tmp_path / "run")
    again = credo.load(tmp_path / "run", net={"generator": nn.Linear(2, 2), "discriminator": nn.Linear(2, 1)})
    assert same(state(again), state(model))


@every_model
def test_seed_makes_training_and_samples_reproducible(make, data):
    before = torch.get_rng_state()
    first, again, other = (make().fit(data(), epochs=2, batch_size=6, seed=seed) for seed in (0, 0, 1))
    assert same(state(first), state(again))
    assert not same(state(first), state(other))
    assert torch.equal(first.sample(3, seed=5), first.sample(3, seed=5))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@every_model
def test_trains_and_samples_on_a_gpu(make, data, tmp_path):
    model = make().fit(data(), epochs=2, batch_size=6, seed=0, device="cuda")
    samples = model.sample(4, seed=0)
    assert samples.device.type == model._discriminate(samples).device.type == "cuda"
    model.save(tmp_path / "run")
    torch.testing.assert_close(
        credo.load(tmp_path / "run")._discriminate(samples.cpu()),
        model._discriminate(samples).cpu(),
        rtol=1e-3,
        atol=1e-3,
    )


def test_spectral_normalization_bounds_the_discriminator():
    """After training in which the power iteration follows the weights, no layer stretches by more than about 1."""
    model = small(spectral_normalization=True).fit(points(), epochs=30, batch_size=10, lr=1e-2, seed=0)
    model.train()
    for _ in range(100):
        model._discriminate(points())  # power iterations to convergence
    model.eval()
    for layer in (model.discriminator.layers[0], model.discriminator.layers[2]):
        assert torch.linalg.matrix_norm(layer.weight.detach(), 2).item() == pytest.approx(1.0, abs=1e-3)
    assert not hasattr(model.generator.layers[0], "parametrizations")


def test_normalized_discriminator_is_not_normalized_again():
    net = MLP(2, (8,), 1)
    torch.nn.utils.parametrizations.spectral_norm(net.layers[0])
    model = GAN(MLP(3, (8,), 2), net, latent=3, spectral_normalization=True)
    assert len(model.discriminator.layers[0].parametrizations.weight) == 1
    assert len(model.discriminator.layers[2].parametrizations.weight) == 1


def test_scores_are_in_float32_at_least():
    model = small().double()
    model.fit(points().double(), epochs=1, batch_size=8, seed=0)
    assert model.sample(2).dtype == torch.float64
    assert small().bfloat16()._discriminate(points().bfloat16()).dtype == torch.float32


def test_samples_do_not_depend_on_each_other():
    """Evaluation mode, also while training: a row decoded alone is the row decoded with others."""
    model = dcgan().fit(images(), epochs=1, batch_size=6, seed=0)
    model.train()
    z = model.noise(8)
    together = model.decode(z)
    torch.testing.assert_close(torch.cat([model.decode(row[None]) for row in z]), together, rtol=1e-5, atol=1e-6)
    assert model.training
    assert all(module.training for module in model.modules())


class Constant(nn.Module):
    """A collapsed generator, which always outputs the same point."""

    def __init__(self) -> None:
        super().__init__()
        self.point = nn.Parameter(torch.zeros(2))

    def forward(self, z: Tensor) -> Tensor:
        return self.point.expand(len(z), 2)


def test_collapsed_generator_warns_once_and_not_at_the_start():
    model = GAN(Constant(), MLP(2, (8,), 1), latent=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(points(), epochs=10, batch_size=10, seed=0)
    with pytest.warns(UserWarning, match="may have collapsed") as caught:
        model.fit(points(), epochs=PATIENCE // 4 + 10, batch_size=10, seed=0)
    assert len(caught) == 1
    assert model.history[-1]["diversity"] == 0.0


@pytest.mark.parametrize(
    ("diversities", "warned"),
    [((0.1, 0.1, 0.1), True), ((0.1, 0.3, 0.1), False), ((1.0, 0.1), False), ((1.0, 0.1, 0.1), True)],
)
def test_only_lasting_collapse_warns(diversities, warned):
    """Checked twice per patience: warns at the second low value after the first, or after a high one."""
    monitor = SampleDiversity(points())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for i, diversity in enumerate(diversities, 1):
            monitor.warn_if_collapsed(diversity, i * PATIENCE // 2)
    assert bool(caught) == warned


def test_generator_as_diverse_as_the_data_does_not_warn():
    """The identity on N(0, I) is the data's own density: the ratio of two means of 40 distances is near 1."""
    generator = nn.Linear(2, 2)
    with torch.no_grad():
        nn.init.eye_(generator.weight)
        nn.init.zeros_(generator.bias)
    model = GAN(generator, MLP(2, (8,), 1), latent=2)
    model.fit(points(400), epochs=4, batch_size=100, lr=1e-5, seed=0)
    # Nearest distances of points in a plane scatter by about half their mean (Rayleigh: 0.52), those of the sparse
    # outskirts by a little more; the ratio of two means of 256 by √2·0.6/16 ≈ 0.05.
    assert model.history[-1]["diversity"] == pytest.approx(1.0, abs=SIGMAS * 0.055)


@pytest.mark.parametrize("x", [torch.zeros(12, 2), torch.zeros(1, 2)], ids=["all equal", "one row"])
def test_equal_data_have_a_diversity_of_one(x):
    assert small().fit(x, epochs=1, batch_size=4, seed=0).history[0]["diversity"] == 1.0


def test_compared_rows_are_spread_over_the_data():
    """Sorted data: the first 256 rows alone would be a single mode."""
    x = torch.cat([torch.zeros(1000, 2), points(1000)])
    model = small().fit(x, epochs=1, batch_size=500, seed=0)
    assert 0.0 < model.history[0]["diversity"] < 1.0


@pytest.mark.parametrize(
    ("generator", "found"),
    [
        (nn.Sequential(nn.Linear(3, 2), nn.Tanh()), (-1.0, 1.0)),
        (nn.Sequential(nn.Linear(3, 2), nn.Sequential(nn.Linear(2, 2), nn.Sigmoid())), (0.0, 1.0)),
        (nn.Sequential(nn.Linear(3, 2)), None),
        (nn.Sequential(), None),
        (MLP(3, (), 2), None),
        (credo.architectures.DCGANGenerator(shape=(1, 8, 8), width=2), (-1.0, 1.0)),
        (nn.Sequential(credo.architectures.InfoGANGenerator(shape=(1, 8, 8))), (0.0, 1.0)),
    ],
)
def test_output_range_is_that_of_the_last_layer(generator, found):
    assert output_range(generator) == found


def test_data_outside_the_generator_range_raise_with_a_rescaling_hint():
    x = torch.rand(12, 2) * 255.0
    x[0] = torch.tensor([0.0, 255.0])
    model = GAN(nn.Sequential(nn.Linear(3, 2), nn.Tanh()), MLP(2, (8,), 1), latent=3)
    with pytest.raises(InputError, match=r"from -1 to 1, but the data go from 0 to 255: rescale") as error:
        model.fit(x, epochs=1)
    rule = str(error.value).partition("x = ")[2]
    rescaled = eval(rule, {"x": x})
    assert rescaled.min() == -1.0
    assert rescaled.max() == 1.0
    model.fit(rescaled, epochs=1, batch_size=6)
    with pytest.raises(InputError, match="the data go from"):
        model.fit(DataLoader(TensorDataset(x), batch_size=6), epochs=1)


def test_data_in_one_half_of_the_range_warn():
    model = GAN(nn.Sequential(nn.Linear(3, 2), nn.Tanh()), MLP(2, (8,), 1), latent=3)
    with pytest.warns(UserWarning, match="in one half of the generator's range from -1 to 1: rescale"):
        model.fit(torch.rand(12, 2), epochs=1, batch_size=6)


def test_large_data_warn_with_an_unbounded_generator():
    with pytest.warns(UserWarning, match=r"far from the outputs of an untrained network: rescale them, x = -1 \+ 2"):
        small().fit(255.0 * torch.rand(12, 2), epochs=1, batch_size=6)


def test_last_minibatch_of_one_row_raises_with_batch_norm():
    generator = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    model = GAN(generator, MLP(2, (8,), 1), latent=3)
    before = state(model)
    with pytest.raises(InputError, match=r"minibatch at step 3 is too small for batch norm .* another batch_size"):
        model.fit(points(17), epochs=2, batch_size=8, seed=0)
    assert same(state(model), before)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: small(objective="wasserstein"), "unknown objective 'wasserstein'"),
        (lambda: small(objective="minmax"), "did you mean 'minimax'"),
        (lambda: small(discriminator_steps=0), "discriminator_steps must be an integer of at least 1, got 0"),
        (lambda: small(generator_lr=-1.0), "generator_lr must be a positive number"),
        (lambda: small(betas=(0.5, 1.0)), "betas must be two numbers of at least 0 and below 1"),
        (lambda: small(betas=0.5), "betas must be two numbers"),
        (lambda: GAN(MLP(3, (8,), 2), MLP(2, (8,), 1), latent=0), "latent must be an integer of at least 1"),
        (lambda: GAN(nn.Identity(), MLP(2, (8,), 1), latent=2), "generator must be an nn.Module with weights"),
        (lambda: GAN(MLP(3, (8,), 2), lambda x: x, latent=3), "discriminator must be an nn.Module"),
        (lambda: small().sample(0), "n must be an integer of at least 1, got 0"),
        (lambda: small().decode(torch.zeros(4, 2)), r"z must have shape \[N, 3\] with N >= 1, got \[4, 2\]"),
        (lambda: small()(points(), network="critic"), "unknown network 'critic'"),
    ],
)
def test_bad_arguments_raise(build, message):
    with pytest.raises(InputError, match=message):
        build()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: GAN(MLP(3, (), 3), MLP(2, (), 1), latent=3), r"generator outputs \[3\] per datum, but .* shape \[2\]"),
        (lambda: GAN(MLP(4, (), 2), MLP(2, (), 1), latent=3), r"generator cannot be called on a batch .* \[2, 3\]"),
        (lambda: GAN(MLP(3, (), 2), MLP(3, (), 1), latent=3), r"discriminator cannot be called on a batch"),
        (lambda: GAN(MLP(3, (), 2), MLP(2, (), 2), latent=3), r"output 1 number per datum, \[2, 1\], got \[2, 2\]"),
    ],
)
def test_networks_that_do_not_match_raise_before_training(model, message):
    with pytest.raises(InputError, match=message):
        model().fit(points(), epochs=1)


def test_options_without_effect_raise():
    with pytest.raises(InputError, match="GAN has no likelihood of held-out data"):
        small().fit(points(), validation=points(), epochs=1)
    with pytest.raises(InputError, match="lr would change nothing"):
        small(generator_lr=1e-3, discriminator_lr=1e-3).fit(points(), lr=1e-3, epochs=1)
    small(generator_lr=1e-3).fit(points(), lr=1e-3, epochs=1)
    with pytest.raises(InputError, match="devices=1"):
        small()._training_task().check_device_count(2)


def test_grids_of_samples_are_drawn_during_training(tmp_path):
    dcgan().fit(images(), epochs=3, batch_size=6, seed=0, grids=tmp_path / "grids", grid_every=2)
    assert [path.name for path in sorted((tmp_path / "grids").iterdir())] == ["epoch-0002.png"]
