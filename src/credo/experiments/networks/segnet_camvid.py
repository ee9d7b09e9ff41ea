"""Bayesian SegNet on road scenes: which pixels are uncertain, and why (Kendall et al. 2017)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

import credo
from credo import metrics, plots
from credo.architectures import SegNet
from credo.datasets import Scenes, camvid, median_frequency_weights, street_scenes
from credo.experiments.networks._training import TrainingConfig
from credo.experiments.registry import Budget, Result, Row, RunConfig, experiment
from credo.predictive.classes import CategoricalComponents, ClassPredictive

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from credo.methods.base import Method

KEPT = (1.0, 0.9, 0.5, 0.1)
SHOWN = 3  # test images in the figure
TEST_BATCH = 8
PUBLISHED = {"mean IoU, %": 63.1, "global accuracy, %": 86.9}
SOURCE = "Table 2"
OTHER_SIZE = "paper: 360×480 pixels, an encoder pretrained on ImageNet"


class _Settings(NamedTuple):
    """What depends on the budget."""

    widths: tuple[int, ...]
    convolutions: int
    dropout: float
    epochs: int
    lr: float
    batch_size: int
    noise_samples: int
    draws: int
    shrink: int = 1
    train_images: int | None = None
    test_images: int | None = None


SETTINGS: dict[Budget, _Settings] = {
    "full": _Settings((64, 128, 256, 512), 2, 0.5, 100, 1e-3, 8, 10, 50),
    "quick": _Settings((24, 48, 96, 128), 1, 0.5, 50, 5e-3, 4, 4, 20, shrink=2, train_images=123, test_images=78),
    "smoke": _Settings((8, 16), 1, 0.2, 2, 1e-2, 4, 4, 5, test_images=8),
}


@experiment(
    "segnet-camvid",
    title="Bayesian SegNet: a class and two uncertainties for every pixel",
    reference=(
        "Kendall, Badrinarayanan & Cipolla, Bayesian SegNet, BMVC 2017, Table 2 and Figure 1 (arXiv:1511.02680); "
        "Kendall & Gal, NeurIPS 2017, Figure 1 (arXiv:1703.04977)"
    ),
    figures=["maps", "kept"],
)
def run(config: RunConfig) -> Result:
    """Road scenes, a class for every pixel, and maps of what the network does not know and of what nobody can know.

    The papers' claim. Drawing the masks of dropout also at prediction makes the classes of pixels better and gives a
    map of the uncertainty of the weights, which is high at the edges of objects and for rare classes. Noise on the
    logits that the network itself predicts gives a second map, of the ambiguity of the image.

    What is run. One network has both: SegNet with dropout in its innermost blocks, by `MCDropout`, with
    `Categorical(logit_noise=True)`. The classes are weighted by their median frequency and void pixels are ignored. The
    first figure shows test images with their true and predicted classes and both maps. The table has intersection over
    union and accuracy; the log likelihood of a pixel, by its mean probabilities over draws, and the calibration error,
    of the draws and of a single pass without dropout; and the accuracy of every class, of the most certain pixels, and
    what leaving out the 10 % most uncertain ones gains. The second figure shows the error rate as fewer pixels are
    kept, and the calibration.

    What differs. The images are 120×160, a third of the paper's size in both directions, and the encoder is not
    pretrained, so the published numbers are no target. The network has four blocks of two convolutions in place of five
    of two or three, and is trained by Adam, with mirrored images. The paper's network has no noise on the logits and
    measures uncertainty by the variance of the softmax outputs; ours is the mutual information. The quick run has a
    narrow network with one convolution per block, a third of the training and test images, and 60×80 pixels. The smoke
    run draws streets.
    """
    settings = SETTINGS[config.budget]
    scenes = _load(config, settings)
    mean, std = (statistic.view(1, -1, 1, 1) for statistic in _statistics(scenes.x_train))
    config.report(f"training on {len(scenes.x_train)} images")
    model = _train(scenes, (scenes.x_train - mean) / std, settings, config)
    inputs = (scenes.x_test - mean) / std
    found = {}
    for name, draws in (("MC dropout", settings.draws), ("single pass", 0)):
        config.report(f"{name}: predicting {len(inputs)} images")
        found[name] = _evaluate(model, inputs, scenes, draws, config.seed)
    rows = [
        *(row for name, evaluation in found.items() for row in _measure(name, evaluation, config.budget)),
        *_measure_claims(found),
        *_measure_kept(found["MC dropout"]),
        *_measure_classes(found["MC dropout"], scenes.classes),
    ]
    shown = _evenly_spaced(len(inputs), SHOWN)
    predictive = model.predict(inputs[shown], samples=settings.draws, seed=config.seed).cpu()
    maps = plots.segmentation_maps(
        scenes.x_test[shown], scenes.y_test[shown], predictive, names=scenes.classes, colors=scenes.colors
    )
    return Result(tuple(rows), {"maps": maps, "kept": _figure(found)})


@dataclass(frozen=True, eq=False)
class _Evaluation:
    """The mean class probabilities of all test pixels, and what their draws had in addition.

    Attributes:
        predictive: the mixture over draws as one component, without the memory of the draws.
        label: the true class, ``[N, H, W]``.
        mutual_information: ``[N, H, W]``.
        seen: which pixels are not void, ``[N, H, W]``.
    """

    predictive: ClassPredictive
    label: Tensor
    mutual_information: Tensor
    seen: Tensor

    @property
    def correct(self) -> Tensor:
        """Whether each pixel that is not void is correct, ``[P]``."""
        return (self.predictive.mode == self.label)[self.seen].double()

    @property
    def uncertainties(self) -> dict[str, Tensor]:
        """Of each pixel that is not void, ``[P]``."""
        total = self.predictive.entropy
        parts = {
            "entropy": total,
            "mutual information": self.mutual_information,
            "aleatoric": total - self.mutual_information,
        }
        return {name: part[self.seen] for name, part in parts.items()}

    @property
    def nll(self) -> float:
        """Negative log likelihood of a pixel in nats, each pixel by its own mixture over draws."""
        return -self.predictive.log_prob(self.label).double().sum().item() / int(self.seen.sum())


def _load(config: RunConfig, settings: _Settings) -> Scenes:
    """The scenes of a budget; where not all are used they are evenly spaced, as neighbors come from one video."""
    scenes = street_scenes(12, seed=config.seed) if config.budget == "smoke" else camvid().shrink(settings.shrink)
    trained = _evenly_spaced(len(scenes.x_train), settings.train_images)
    tested = _evenly_spaced(len(scenes.x_test), settings.test_images)
    return replace(
        scenes,
        x_train=scenes.x_train[trained],
        y_train=scenes.y_train[trained],
        x_test=scenes.x_test[tested],
        y_test=scenes.y_test[tested],
    )


def _evenly_spaced(available: int, count: int | None) -> Tensor:
    """Indices of ``count`` of the images, of all for ``None``."""
    return torch.linspace(0, available - 1, available if count is None else count).round().long()


def _statistics(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel."""
    return images.mean((0, 2, 3)), images.std((0, 2, 3))


def _train(scenes: Scenes, x: Tensor, settings: _Settings, config: RunConfig) -> Method:
    y, classes = scenes.y_train, len(scenes.classes)
    likelihood = credo.Categorical(
        class_dim=1,
        logit_noise=True,
        weight=median_frequency_weights(y, classes),
        ignore_index=scenes.void,
        noise_samples=settings.noise_samples,
    )
    if config.budget == "full":
        x, y = torch.cat([x, x.flip(-1)]), torch.cat([y, y.flip(-1)])
    training = TrainingConfig(
        name="Bayesian SegNet",
        build=lambda: credo.MCDropout(
            SegNet(
                x.shape[1],
                classes,
                settings.widths,
                convolutions=settings.convolutions,
                dropout=settings.dropout,
                logit_noise=True,
            ),
            likelihood,
        ),
        epochs=settings.epochs,
        lr=settings.lr,
        batch_size=settings.batch_size,
    )
    return training.train(x, y, seed=config.seed, device=config.device, report=config.report)


def _evaluate(model: Method, x: Tensor, scenes: Scenes, draws: int, seed: int) -> _Evaluation:
    """Predict all images, batch by batch with the same draws, and keep the mixture of each batch only."""

    def batches() -> Iterator[Tensor]:
        yield from x.split(TEST_BATCH)

    mixtures: list[CategoricalComponents] = []
    information: list[Tensor] = []
    for p in model.stream(batches(), draws, seed):
        assert isinstance(p.components, CategoricalComponents)
        mixtures.append(p.components.mixture(p.weights))
        information.append(p.mutual_information.cpu())
    log_p = torch.cat([mixture.log_p.cpu() for mixture in mixtures], 1)
    components = CategoricalComponents(log_p, mixtures[0].class_dim, mixtures[0].ignore_index)
    seen = scenes.y_test != scenes.void
    return _Evaluation(ClassPredictive(components), scenes.y_test, torch.cat(information), seen)


def _measure(name: str, evaluation: _Evaluation, budget: Budget) -> list[Row]:
    scores = metrics.segmentation_scores(evaluation.predictive, evaluation.label)
    measured = {
        "mean IoU, %": 100 * scores.mean_iou,
        "mean class accuracy, %": 100 * scores.mean_class_accuracy,
        "global accuracy, %": 100 * scores.global_accuracy,
        "NLL per pixel, nats": evaluation.nll,
        "ECE": metrics.ece(evaluation.predictive, evaluation.label),
    }
    published = PUBLISHED if name == "MC dropout" and budget != "smoke" else {}
    return [
        Row(
            f"{name}: {quantity}",
            (value,),
            published.get(quantity),
            SOURCE if quantity in published else "",
            OTHER_SIZE if quantity in published else "",
        )
        for quantity, value in measured.items()
    ]


def _measure_claims(found: dict[str, _Evaluation]) -> list[Row]:
    """What uncertainty is worth: the accuracy without uncertain pixels, and the likelihood of draws."""
    drawn, single = found["MC dropout"], found["single pass"]
    kept = metrics.accuracy_by_kept(drawn.correct, drawn.uncertainties["entropy"], (1.0, 0.9)).tolist()
    return [
        Row("accuracy gained without the 10 % most uncertain pixels, points", (100 * (kept[1] - kept[0]),)),
        Row("log likelihood of a pixel, MC dropout − single pass, nats", (single.nll - drawn.nll,)),
    ]


def _measure_kept(evaluation: _Evaluation) -> list[Row]:
    correct = evaluation.correct
    return [
        Row(f"accuracy of the {100 * fraction:g} % most certain pixels by {name}, %", (100 * value,))
        for name, uncertainty in evaluation.uncertainties.items()
        for fraction, value in zip(KEPT, metrics.accuracy_by_kept(correct, uncertainty, KEPT).tolist(), strict=True)
        if fraction < 1.0
    ]


def _measure_classes(evaluation: _Evaluation, names: tuple[str, ...]) -> list[Row]:
    scores = metrics.segmentation_scores(evaluation.predictive, evaluation.label)
    columns = zip(names, scores.class_accuracy.tolist(), scores.iou.tolist(), strict=True)
    return [
        Row(f"accuracy of class {name}, %", (100 * accuracy,), note=f"IoU {100 * iou:.0f} %, first seed")
        for name, accuracy, iou in columns
    ]


def _figure(found: dict[str, _Evaluation]) -> Figure:
    """Error rate over the fraction of pixels kept, and calibration with and without draws."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 3.8), layout="constrained")
    left, *right = figure.subplots(1, 3, width_ratios=(1.5, 1, 1))
    drawn = found["MC dropout"]
    plots.risk_coverage(1 - drawn.correct, drawn.uncertainties, left, label="error rate")
    left.set(title="pixels kept", xlabel="fraction of pixels kept, most certain first")
    for ax, (name, evaluation) in zip(right, found.items(), strict=True):
        plots.reliability(evaluation.predictive, evaluation.label, ax)
        ax.set_title(name)
    return figure
