"""The presets of the adversarial models: published hyperparameters, R1, growth as a part of fit, and captured steps."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.generative.helpers import check_resumed_run, equal
from tests.training.test_capture import FakeGraph, install
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

import credo
from credo.architectures import MLP, ProgressiveDiscriminator, ProgressiveGenerator
from credo.errors import InputError
from credo.generative import GAN, WGAN
from credo.generative.adversarial import AdversarialModel, SampleDiversity
from credo.seeding import seeded
from credo.training.adversarial import AdversarialTask

CPU = torch.device("cpu")


def images(n: int = 24, seed: int = 0) -> Tensor:
    """Between −1 and 1, ``[n, 1, 16, 16]``."""
    with seeded(seed, CPU):
        return 2.0 * torch.rand(n, 1, 16, 16) - 1.0


def build(model: type = WGAN, preset: str = "progressive", seed: int = 0, **options: Any) -> AdversarialModel:
    with seeded(seed, CPU):
        return model(preset, latent=4, shape=(1, 16, 16), width=2, **options)


@pytest.mark.parametrize(("preset", "lr"), [("style", 2e-3), ("progressive", 1e-3)])
@pytest.mark.parametrize("model", [GAN, WGAN])
def test_presets_have_the_published_hyperparameters(model: type, preset: str, lr: float) -> None:
    task = build(model, preset)._training_task()
    for group in task.parameter_groups(0.0).values():
        assert group[0]["lr"] == lr
        assert group[0]["betas"] == (0.0, 0.99)
    assert task.active_optimizers(1) == ("discriminator", "generator")
    own = build(model, preset, generator_lr=None, betas=(0.5, 0.9), discriminator_steps=2)._get_config()
    assert own["generator_lr"] is None
    assert own["discriminator_lr"] == lr
    assert own["betas"] == [0.5, 0.9]
    assert own["discriminator_steps"] == 2


def test_r1_is_on_by_default_for_presets_only() -> None:
    assert build(GAN, "style")._get_config()["r1"] == 16 * 16 / 128
    assert build(GAN, "style", r1=0.1)._get_config()["r1"] == 0.1
    assert GAN(MLP(3, (8,), 2), MLP(2, (8,), 1), latent=3)._get_config()["r1"] == 0.0
    assert WGAN(MLP(3, (8,), 2), MLP(2, (8,), 1), latent=3)._get_config()["discriminator_steps"] == 5


def test_r1_of_a_linear_discriminator_matches_closed_form() -> None:
    """The gradient of w·x is w: ½γ‖w‖² is added to the loss, with the derivative γ·w."""
    model = GAN(MLP(3, (8,), 2), nn.Linear(2, 1), latent=3, r1=0.8)
    plain = GAN(model.generator, model.discriminator, latent=3)
    weight, x, fake = model.discriminator.weight, torch.randn(5, 2), torch.randn(5, 2)
    objective, without = (m._discriminator_objective(x, fake, fake) for m in (model, plain))
    assert objective.terms["gradient_penalty"].item() == pytest.approx(weight.square().sum().item())
    assert not without.terms
    added = objective.loss - without.loss
    assert added.item() == pytest.approx(0.4 * weight.square().sum().item(), abs=1e-6)
    (gradient,) = torch.autograd.grad(added, weight)
    torch.testing.assert_close(gradient, 0.8 * weight.detach(), rtol=1e-4, atol=1e-6)


def test_growth_is_a_part_of_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """40 steps, 0.6 of them in four phases of six steps each for three resolutions, the last 16 at the full one."""
    phases: dict[str, list[tuple[int, int]]] = {"discriminator": [], "generator": []}
    original = AdversarialTask.on_step_end

    def note(task: AdversarialTask[Any], optimizer: str) -> None:
        original(task, optimizer)
        phases[optimizer].append((task.model.generator.phase, task.model.discriminator.phase))

    monkeypatch.setattr(AdversarialTask, "on_step_end", note)
    model = build().fit(images(32), epochs=10, batch_size=8, seed=0)
    expected = [0] * 6 + [1] * 6 + [2] * 6 + [3] * 6 + [4] * 16
    assert phases == {name: [(phase, phase) for phase in expected] for name in phases}
    assert model.generator.fraction == model.discriminator.fraction == 1.0
    phases["generator"].clear()
    model.fit(images(32), epochs=2, batch_size=8, seed=0)  # goes on at the full size
    assert phases["generator"] == [(4, 4)] * 8


def test_captured_growth_equals_eager_growth(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new graph for each of five phases and two optimizers; α changes at every step, and replays have to see it.

    72 steps: phases begin at steps 0, 11, 22, 33 and 44, two of them with the smaller last minibatch of an epoch, as
    every third is, which runs eagerly. So do the first three of the others in each phase.
    """
    graphs = install(monkeypatch, FakeGraph)
    options = {"epochs": 24, "batch_size": 8, "seed": 0}
    captured = build().fit(images(20), capture=True, **options)
    assert [graph.replays for graph in graphs] == [5, 5, 4, 4, 4, 4, 5, 5, 15, 15]
    assert captured._training_path == "captured steps"
    assert equal(captured, build().fit(images(20), capture=False, **options))


def test_captured_style_gan_equals_eager_one(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = install(monkeypatch, FakeGraph)
    captured = build(GAN, "style").fit(images(), epochs=4, batch_size=8, seed=0, capture=True)
    assert [graph.replays for graph in graphs] == [9, 9]
    assert equal(captured, build(GAN, "style").fit(images(), epochs=4, batch_size=8, seed=0, capture=False))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("model", "preset"), [(GAN, "style"), (WGAN, "progressive")])
def test_steps_are_captured_on_a_gpu(model: type, preset: str) -> None:
    fitted = build(model, preset).fit(images(32), epochs=10, batch_size=8, seed=0, device="cuda", capture=True)
    assert fitted._training_path == "captured steps"
    assert fitted.sample(3, seed=0).isfinite().all()


def test_resumed_run_is_bitwise_equal(tmp_path: Path) -> None:
    check_resumed_run(build, images(), tmp_path / "checkpoint", batch_size=6)


def test_saved_and_copied_models_are_equal(tmp_path: Path) -> None:
    model = build().fit(images(), epochs=2, batch_size=6, seed=0)
    model.save(tmp_path / "run")
    for again in (credo.load(tmp_path / "run"), copy.deepcopy(model)):
        assert again._get_config() == model._get_config()
        assert equal(again, model)
        assert torch.equal(again.sample(5, seed=1), model.sample(5, seed=1))
        assert torch.equal(again._discriminate(images(4)), model._discriminate(images(4)))
        again.fit(images(), epochs=1, batch_size=6, seed=0)  # and it goes on


def test_seed_makes_training_and_samples_reproducible() -> None:
    first, again, other = (build().fit(images(), epochs=2, batch_size=6, seed=seed) for seed in (0, 0, 1))
    assert equal(first, again)
    assert not equal(first, other)
    assert torch.equal(first.sample(3, seed=5), first.sample(3, seed=5))


def test_samples_of_a_style_gan_can_be_truncated() -> None:
    model = build(GAN, "style").fit(images(), epochs=2, batch_size=6, seed=0)
    assert torch.equal(model.sample(4, seed=0, truncation=1.0), model.sample(4, seed=0))
    average = model.sample(4, seed=0, truncation=0.0)
    torch.testing.assert_close(average, average[:1].expand(4, -1, -1, -1))
    assert model.generator.mean_style.abs().sum() > 0.0
    z = torch.randn(1500, 4)  # decoded in parts, each with the option
    assert model.decode(z, truncation=0.0).std(0).max() < 1e-5
    with pytest.raises(InputError, match=r"noise must have shape \[N, 4\], got \[N, 5\]"):
        model.generator.styles(torch.randn(3, 5))


def test_options_that_the_generator_does_not_have_raise() -> None:
    with pytest.raises(InputError, match="ProgressiveGenerator has no option truncation, only z"):
        build().sample(2, truncation=0.5)


def test_discriminator_is_trained_on_data_of_the_resolution_of_samples() -> None:
    """At 4×4 only averages of 4×4 blocks of data can be seen, also by the gradient penalty between data and samples."""
    model, x = build(), images(6)
    blocks = x.unflatten(3, (4, 4)).unflatten(2, (4, 4)).mean((3, 5))
    reduced = blocks.repeat_interleave(4, 2).repeat_interleave(4, 3)
    losses = []
    for data in (x, reduced):
        with seeded(1, CPU):
            losses.append(model(data).item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_diversity_is_relative_to_data_of_the_resolution_of_samples() -> None:
    x, generator = images(), ProgressiveGenerator(4, (1, 16, 16), 2)
    monitor = SampleDiversity(x, generator.reduce)
    assert monitor.diversity(generator.reduce(x)) == pytest.approx(1.0)
    generator.grow(1.0)
    assert monitor.diversity(x) == pytest.approx(1.0)


class Endless(IterableDataset[Tensor]):
    """A data set without a length."""

    def __iter__(self) -> Any:
        yield from images(8)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GAN("styles", latent=4, shape=(1, 8, 8)), "unknown preset 'styles': did you mean 'style'"),
        (lambda: GAN("style", latent=4), "preset 'style' needs the shape of an image"),
        (lambda: GAN("style", MLP(2, (), 1), latent=4, shape=(1, 8, 8)), "preset 'style' has its own discriminator"),
        (lambda: WGAN(MLP(4, (), 2), latent=4), "a generator of your own needs a discriminator of your own"),
        (lambda: WGAN(MLP(4, (), 2), MLP(2, (), 1), latent=4, shape=(1, 8, 8)), "shape and width are for presets"),
        (lambda: build(GAN, r1=-1.0), "r1 must be a number of at least 0"),
        (lambda: build().fit(DataLoader(Endless(), batch_size=4), epochs=1, n_data=8), "need the number of steps"),
        (lambda: GAN(ProgressiveGenerator(4, (1, 8, 8), 2), ProgressiveDiscriminator((1, 16, 16), 2), latent=4).fit(
            images(), epochs=1), r"outputs \[1, 8, 8\] per datum, but the data have shape \[1, 16, 16\]"),
    ],
)  # fmt: skip
def test_bad_arguments_raise(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()
