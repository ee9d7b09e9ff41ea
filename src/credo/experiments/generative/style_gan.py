"""A progressively grown GAN and a style-based generator on digits (Karras et al. 2018, 2019, 2020)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from credo._threads import one_thread
from credo.architectures import ProgressiveGenerator, StyleGenerator
from credo.experiments._shared import handwritten_digits, report_epochs
from credo.experiments.registry import Budget, Result, Row, RunConfig, experiment
from credo.generative import GAN, WGAN
from credo.generative.evaluation import fit_lenet, frechet_distance, lenet_features, mode_coverage, nearest_distance
from credo.plots.images import draw_images
from credo.seeding import seeded

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from credo.methods import MAP

SIDE = 32
SAMPLES = 10_000
COMPARED = 1000  # samples among which distances are measured
TRUNCATION = 0.7
TRUNCATIONS = (0.0, 0.25, 0.5, 0.75, 1.0)
CERTAIN = 0.95
COLUMNS = 8


@dataclass(frozen=True)
class StyleHyperparameters:
    """Sizes and training lengths.

    Attributes:
        latent: dimension of the noise.
        width: channels at the full resolution.
        batch_size: rows per step.
        lr: learning rate of all networks.
        progressive_epochs: epochs of the progressive WGAN.
        style_epochs: epochs of the style GAN.
        lenet_epochs: epochs of LeNet.
    """

    latent: int
    width: int
    batch_size: int
    lr: float
    progressive_epochs: int
    style_epochs: int
    lenet_epochs: int


HYPERPARAMETERS: dict[Budget, StyleHyperparameters] = {
    "full": StyleHyperparameters(
        latent=64, width=32, batch_size=64, lr=3e-3, progressive_epochs=16, style_epochs=15, lenet_epochs=5
    ),
    "quick": StyleHyperparameters(
        latent=32, width=16, batch_size=32, lr=6e-3, progressive_epochs=26, style_epochs=30, lenet_epochs=10
    ),
    "smoke": StyleHyperparameters(
        latent=4, width=2, batch_size=128, lr=6e-3, progressive_epochs=5, style_epochs=2, lenet_epochs=1
    ),
}


@dataclass(frozen=True, eq=False)
class StyleDigits:
    """Digits between 0 and 1, ``[N, 1, S, S]``, and labels of the training part, on the device."""

    train: Tensor
    labels: Tensor
    test: Tensor


@experiment(
    "style-gan",
    title="Digits by progressive growing and by styles",
    reference="Karras et al., Progressive growing of GANs, ICLR 2018 (arXiv:1710.10196); Karras, Laine & Aila, A "
    "style-based generator architecture for GANs, CVPR 2019, Figures 3 and 8 (arXiv:1812.04948); Karras et al., "
    "Analyzing and improving the image quality of StyleGAN, CVPR 2020 (arXiv:1912.04958)",
    figures=["samples", "growth", "styles"],
)
def run(config: RunConfig) -> Result:
    """A progressive WGAN and a style-based GAN generate digits; styles are truncated and mixed.

    The papers' claims. Growing both networks from 4×4 pixels to the full size, with each new resolution faded in,
    makes training faster and more stable (2018). A generator whose layers are controlled by styles separates coarse
    attributes from fine ones: styles of coarse layers decide pose and shape, those of fine layers texture (2019, Figure
    3). Styles drawn toward their mean give better and less diverse samples (2019, Figure 8).

    What is run. The two presets ``WGAN("progressive")`` and ``GAN("style")``, the second with the modulated
    convolutions, output skips and residual discriminator of 2020, on MNIST padded to 32×32. The table has the Fréchet
    distance between the features of 10,000 samples and of the test digits in a LeNet trained here; the distance between
    nearest samples relative to the same for test digits (diversity); the share of samples that LeNet classifies with a
    probability above 95 %; the number of digits among the samples, and the share of the rarest. The same measures are
    given for truncated styles and for training digits. The papers have no numbers for digits.

    What differs. Networks are narrow and training is short, about a million images in place of twelve to twenty-five,
    with higher learning rates, since weights with an equalized learning rate move slowly. Rates decay to 0 in place of
    a moving average of the generator's weights; there is no path-length regularization, no drift term, and the standard
    deviation in the last layers of the discriminator is over the whole minibatch. The quick and the smoke run use the
    8×8 digits of scikit-learn, which grow once, from 4×4.

    What to look for. In the second figure, the same noise at the end of each phase: blocks become strokes. In the
    third, rows of ψ from 0, the digit of the mean style, to 1; and a grid in which coarse styles come from the left
    column and fine styles from the top row: digits follow the left. Truncation lowers diversity as in the paper, but
    digits are ten classes and not one kind of image, and their mean style lies between classes: in a quick run 3 % of
    the samples at ψ = 0.7 were classified with certainty, and 6 % of those without truncation.

    What was found at 32×32 pixels. The full run needs a GPU and has not been run. A short one on a CPU, 21 minutes,
    with networks of 8 channels and three epochs, has strokes and not yet digits
    (``benchmarks/results/style_gan_short.json``): Fréchet distances of 135 by the progressive WGAN and 166 by styles,
    where training digits have 5, with 34 and 39 % of the samples classified with certainty. All ten digits occur in
    both, coarse styles decide the shape, fine ones change little, and at ψ = 0.7 the diversity falls from 0.78 to 0.68.
    """
    sizes, digits = HYPERPARAMETERS[config.budget], _load(config)
    shape = tuple(digits.train.shape[1:])
    with one_thread(config.budget != "full"):
        config.report("training LeNet for the evaluation")
        lenet = fit_lenet(
            digits.train, digits.labels, epochs=sizes.lenet_epochs, device=config.device, seed=config.seed
        )
        options: dict[str, Any] = {"latent": sizes.latent, "shape": shape, "width": sizes.width}
        options |= {"generator_lr": sizes.lr, "discriminator_lr": sizes.lr}
        with seeded(config.seed, torch.device("cpu")):
            progressive, style = WGAN("progressive", **options), GAN("style", **options)
        growth = Growth(progressive, config, sizes.progressive_epochs)
        _train(progressive, digits, sizes.progressive_epochs, growth, config)
        _train(style, digits, sizes.style_epochs, report_epochs(config, "style GAN", sizes.style_epochs), config)
        config.report("evaluating samples")
        n = min(SAMPLES, len(digits.train))
        samples = {
            "progressive WGAN": _sample(progressive, n, config.seed),
            "style GAN": _sample(style, n, config.seed),
            f"style GAN, ψ = {TRUNCATION}": _sample(style, n, config.seed, truncation=TRUNCATION),
            "training digits": digits.train[:n],
        }
        rows = tuple(_measure(samples, digits.test, lenet))
        shown = {name: samples[name][: COLUMNS**2] for name in ("progressive WGAN", "style GAN")}
        figures = {
            "samples": _samples_figure(shown),
            "growth": growth.figure(),
            "styles": _styles_figure(style, config.seed),
        }
    return Result(rows, figures)


def _load(config: RunConfig) -> StyleDigits:
    """Digits on the device; those of MNIST padded to 32×32."""
    data = handwritten_digits(config)
    margin = (SIDE - data.x_train.shape[-1]) // 2 if config.budget == "full" else 0
    device = config.device or "cpu"
    train, test = (F.pad(x, (margin,) * 4).to(device) for x in (data.x_train, data.x_test))
    return StyleDigits(train, data.y_train.to(device), test)


def _train(model: GAN | WGAN, digits: StyleDigits, epochs: int, on_epoch_end: Any, config: RunConfig) -> None:
    model.fit(
        2.0 * digits.train - 1.0,
        epochs=epochs,
        batch_size=HYPERPARAMETERS[config.budget].batch_size,
        device=config.device,
        seed=config.seed,
        progress=False,
        on_epoch_end=on_epoch_end,
    )


def _sample(model: GAN | WGAN, n: int, seed: int, **options: float) -> Tensor:
    return _unit(model.sample(n, seed=seed, **options))


def _unit(images: Tensor) -> Tensor:
    """Images around [−1, 1], scaled and clipped to [0, 1]."""
    return (0.5 * (images + 1.0)).clamp(0.0, 1.0)


class Growth:
    """Keeps samples of the same noise at the end of each phase; a callback of ``fit``."""

    def __init__(self, model: WGAN, config: RunConfig, epochs: int) -> None:
        self._report = report_epochs(config, "progressive WGAN", epochs)
        self._seed = config.seed
        self._images: dict[int, Tensor] = {}
        self._levels = [level.height for level in _growing(model).levels]

    def __call__(self, model: WGAN, metrics: dict[str, float]) -> None:
        """Replace the samples of the present phase."""
        self._report(model, metrics)
        self._images[_growing(model).phase] = _sample(model, COLUMNS, self._seed).cpu()

    def figure(self) -> Figure:
        """One row of samples per phase."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8.0, 1.35 * len(self._images)), layout="constrained")
        panels = figure.subplots(len(self._images), 1, squeeze=False)[:, 0]
        for ax, (phase, images) in zip(panels, sorted(self._images.items()), strict=True):
            side = self._levels[(phase + 1) // 2]
            draw_images(ax, images, COLUMNS, f"{side}×{side}" + " fading in" * (phase % 2))
        return figure


def _growing(model: WGAN) -> ProgressiveGenerator:
    assert isinstance(model.generator, ProgressiveGenerator)
    return model.generator


def _measure(samples_by_model: dict[str, Tensor], test: Tensor, lenet: MAP) -> Iterator[Row]:
    real, distance = lenet_features(test, lenet), nearest_distance(test[:COMPARED])
    compared = len(test[:COMPARED])
    for name, samples in samples_by_model.items():
        yield Row(
            f"{name}: Fréchet distance to test digits, LeNet features",
            (frechet_distance(lenet_features(samples, lenet), real),),
        )
    for name, samples in samples_by_model.items():
        yield Row(f"{name}: diversity beside test digits", (nearest_distance(samples[:compared]) / distance,))
    for name, samples in samples_by_model.items():
        certain = (lenet.predict(samples).mean.amax(-1) > CERTAIN).double().mean()
        yield Row(f"{name}: classified with more than 95 % probability, %", (100.0 * certain.item(),))
    for name, samples in samples_by_model.items():
        found = mode_coverage(samples, lenet)
        yield Row(f"{name}: digits present, of 10", (float(found.present),))
        yield Row(f"{name}: share of the rarest digit, %", (100.0 * int(found.counts.min()) / found.total,))


def _samples_figure(samples_by_model: dict[str, Tensor]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 4.8), layout="constrained")
    for ax, (name, samples) in zip(figure.subplots(1, len(samples_by_model)), samples_by_model.items(), strict=True):
        draw_images(ax, samples, COLUMNS, name)
    return figure


@torch.no_grad()
def _styles_figure(model: GAN, seed: int) -> Figure:
    """Truncated styles, and a grid of mixed ones."""
    from matplotlib.figure import Figure

    net = model.generator
    assert isinstance(net, StyleGenerator)
    with seeded(seed, model.device):
        z = model.noise(2 * COLUMNS)
    figure = Figure(figsize=(10.0, 5.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    truncated = torch.cat([_unit(model.decode(z[:COLUMNS], truncation=psi)) for psi in TRUNCATIONS])
    draw_images(left, truncated, COLUMNS, f"truncation: ψ = {', '.join(f'{psi:g}' for psi in TRUNCATIONS)}")
    top, side = net.styles(z[:COLUMNS]), net.styles(z[COLUMNS:])
    mixed = [net.mix(w.expand_as(top), top, net.layers // 2) for w in side]
    header = torch.cat([torch.full_like(net.synthesize(top[:1]), -1.0), net.synthesize(top)])
    rows = [torch.cat([net.synthesize(w[None]), net.synthesize(m)]) for w, m in zip(side, mixed, strict=True)]
    draw_images(
        right, _unit(torch.cat([header, *rows])), COLUMNS + 1, "coarse styles of the left, fine ones of the top"
    )
    return figure
