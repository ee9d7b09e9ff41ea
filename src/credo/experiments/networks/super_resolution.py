"""Bayesian super-resolution: photographs at twice their resolution, with two standard deviations for every pixel."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

import credo
from credo import metrics, plots
from credo.architectures import ESPCN
from credo.architectures.super_resolution import bicubic
from credo.datasets import ImagePairs, photographs
from credo.experiments.networks._training import TrainingConfig
from credo.experiments.registry import Budget, Result, Row, RunConfig, experiment
from credo.predictive import RealPredictive
from credo.predictive.location_scale import GaussianComponents

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from credo.methods.base import Method

FACTOR = 2
BAYES, DROPOUT = "Bayes by Backprop", "MC dropout"
SHOWN = (0.35, 0.47, 0.97)  # test crops in the figure, as fractions of all: roofs, a wall and leaves, petals
LEVEL = 0.95


class _Settings(NamedTuple):
    """What depends on the budget."""

    widths: tuple[int, ...]
    epochs: int
    lr: float
    dropout: float
    draws: int
    batch_size: int = 4
    train_images: int | None = None
    test_images: int | None = None


SETTINGS: dict[Budget, _Settings] = {
    "full": _Settings((64, 32), 1000, 3e-3, 0.05, 100),
    "quick": _Settings((32, 16), 60, 3e-3, 0.05, 20),
    "smoke": _Settings((4,), 2, 1e-2, 0.05, 5, train_images=8, test_images=6),
}


@experiment(
    "super-resolution",
    title="Bayesian super-resolution: photographs at twice their resolution, with two maps of uncertainty",
    reference=(
        "Shi et al., Real-time single image and video super-resolution using an efficient sub-pixel convolutional "
        "neural network, CVPR 2016 (arXiv:1609.05158); Kendall & Gal, NeurIPS 2017 (arXiv:1703.04977)"
    ),
    figures=["maps", "sparsification"],
)
def run(config: RunConfig) -> Result:
    """Photographs at twice their resolution, with the uncertainty of the weights and the noise of every pixel.

    The papers' claim. Convolutions at the low resolution, whose last channels become the pixels of the high one, give
    better images than bicubic interpolation. A network that predicts the variance of its error, with a distribution
    over its weights, has two maps of uncertainty.

    What is run. ESPCN by Bayes by Backprop and by MC dropout, with a Gaussian likelihood whose mean and log variance
    come from two branches. The data are two photographs that come with scikit-learn, in luminance: columns 280 to 640
    are for training, 0 to 180 for the test, in crops of 60×60 pixels that do not overlap. As in the paper, the low
    resolution is a Gaussian blur that is sampled. A datum is a crop, its log likelihood the sum over its pixels, and
    the KL is divided by the number of crops. The table has the peak signal-to-noise ratio (PSNR), the mean over test
    crops, of bicubic interpolation, of the mean over draws and of the mean weights; the log likelihood of a pixel, by
    its own mixture over draws; the coverage of 95 % intervals; and the area under the sparsification error curve
    (AUSE) of the absolute error, which is 0 for an uncertainty that ranks the errors. The figures show some test crops
    with their maps, and the mean error of the pixels that remain as the most uncertain ones are removed.

    What differs. The papers train on many photographs and on other tasks, so there are no published values. The network
    outputs the difference to bicubic interpolation. Photographs that are reduced without a blur leave less to gain.
    Hyper-parameters were chosen on columns 200 to 260, which are not used here. The quick run has a narrower network
    and fewer epochs.
    """
    settings = SETTINGS[config.budget]
    pairs = _subset(photographs(FACTOR), settings)
    interpolated = bicubic(pairs.x_test, FACTOR)
    rows = [Row("bicubic: PSNR, dB", (_psnr(interpolated, pairs.y_test),))]
    predictions = {}
    for name in (BAYES, DROPOUT):
        config.report(f"{name}: training on {len(pairs.x_train)} crops")
        model = _train(name, pairs, settings, config)
        predictions[name] = _predict(model, pairs, settings.draws, config.seed)
        single = _predict(model, pairs, 0, config.seed)
        rows += _measure(name, predictions[name], single, interpolated, pairs.y_test)
    shown = torch.tensor([round(place * (len(pairs.x_test) - 1)) for place in SHOWN])
    given = {"low resolution": pairs.x_test[shown], "bicubic": interpolated[shown]}
    maps = plots.restoration_maps(given, pairs.y_test[shown], predictions[BAYES][shown])
    return Result(tuple(rows), {"maps": maps, "sparsification": _figure(predictions, pairs.y_test)})


def _subset(pairs: ImagePairs, settings: _Settings) -> ImagePairs:
    """Evenly spaced crops, as the neighbors of one photograph are similar."""

    def spaced(images: Tensor, count: int | None) -> Tensor:
        return images[torch.linspace(0, len(images) - 1, len(images) if count is None else count).round().long()]

    return replace(
        pairs,
        x_train=spaced(pairs.x_train, settings.train_images),
        y_train=spaced(pairs.y_train, settings.train_images),
        x_test=spaced(pairs.x_test, settings.test_images),
        y_test=spaced(pairs.y_test, settings.test_images),
    )


def _train(name: str, pairs: ImagePairs, settings: _Settings, config: RunConfig) -> Method:
    """The method on images that are standardized by the training images."""
    likelihood = credo.Gaussian("heteroscedastic", output_dim=1)

    def network(dropout: float | None) -> ESPCN:
        return ESPCN(FACTOR, 1, settings.widths, dropout=dropout, heteroscedastic=True)

    def build() -> Method:
        if name == BAYES:
            return credo.BayesByBackprop(network(None), likelihood)
        return credo.MCDropout(network(settings.dropout), likelihood)

    training = TrainingConfig(
        name=name, build=build, epochs=settings.epochs, lr=settings.lr, batch_size=settings.batch_size
    )
    mean, std = _scale(pairs)
    x, y = (pairs.x_train - mean) / std, (pairs.y_train - mean) / std
    return training.train(x, y, seed=config.seed, device=config.device)


def _scale(pairs: ImagePairs) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the training pixels."""
    return pairs.y_train.mean(), pairs.y_train.std()


def _predict(model: Method, pairs: ImagePairs, draws: int, seed: int) -> RealPredictive:
    """Test images at the high resolution, in the unit of the images."""
    mean, std = _scale(pairs)
    p = model.predict((pairs.x_test - mean) / std, samples=draws, seed=seed).cpu()
    found = p.components
    assert isinstance(found, GaussianComponents)
    return RealPredictive(GaussianComponents(found.mean * std + mean, found.log_variance + 2 * std.log()))


def _measure(name: str, p: RealPredictive, single: RealPredictive, interpolated: Tensor, y: Tensor) -> list[Row]:
    """What is measured of one method; pixels are rows of their own."""
    pixels = RealPredictive(p.components.map(lambda t: t.flatten(1)))
    single_pixels = RealPredictive(single.components.map(lambda t: t.flatten(1)))
    target = y.flatten()
    error = (pixels.mean - target).abs()
    below = metrics.pit(pixels, target)
    psnr = _psnr(p.mean, y)
    measured = {
        "PSNR, dB": psnr,
        "PSNR above bicubic, dB": psnr - _psnr(interpolated, y),
        "PSNR of mean weights, dB": _psnr(single.mean, y),
        "log likelihood of a pixel, nats": -metrics.nll(pixels, target),
        "log likelihood of a pixel by mean weights, nats": -metrics.nll(single_pixels, target),
        "coverage of 95 % intervals, %": 100 * ((below - 0.5).abs() <= LEVEL / 2).double().mean().item(),
        "epistemic std, gray levels of 255": 255 * pixels.epistemic.mean().sqrt().item(),
        "aleatoric std, gray levels of 255": 255 * pixels.aleatoric.mean().sqrt().item(),
        **{f"AUSE of the {kind}": metrics.ause(error, std) for kind, std in _deviations(pixels).items()},
        "AUSE of a random order": metrics.ause(error, torch.ones_like(error)),
    }
    return [Row(f"{name}: {quantity}", (value,)) for quantity, value in measured.items()]


def _psnr(images: Tensor, y: Tensor) -> float:
    """−10 log₁₀ of the mean squared error of an image between 0 and 1, in decibels, averaged over images."""
    return -10.0 * (images - y).double().square().flatten(1).mean(1).log10().mean().item()


def _deviations(p: RealPredictive) -> dict[str, Tensor]:
    return {"total std": p.std, "epistemic std": p.epistemic.sqrt(), "aleatoric std": p.aleatoric.sqrt()}


def _figure(predictions: dict[str, RealPredictive], y: Tensor) -> Figure:
    """The mean error of the pixels that are kept, by each uncertainty of each method."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 4.2), layout="constrained")
    panels = figure.subplots(1, len(predictions), sharey=True)
    for ax, (name, p) in zip(panels, predictions.items(), strict=True):
        uncertainties = {kind: std.flatten() for kind, std in _deviations(p).items()}
        plots.risk_coverage((p.mean - y).abs().flatten(), uncertainties, ax, label="mean absolute error")
        ax.set(title=name, xlabel="fraction of pixels kept, most certain first")
    return figure
