"""Bayesian convolutional networks: errors, two uncertainties, other images and a rotated digit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from credo._threads import one_thread
from credo.datasets import rotate
from credo.experiments._shared import add_legend
from credo.experiments.networks._bayesian_cnn_runs import (
    ANGLES,
    METHODS,
    NETWORKS,
    RISING,
    Settings,
    Variant,
    measure,
)
from credo.experiments.networks._images import load, percent_wrong
from credo.experiments.networks._records import Record, draw_entropies, group_seeds
from credo.experiments.registry import Budget, Result, Row, RunConfig, experiment
from credo.plots.style import ALEATORIC, CYCLE, EPISTEMIC, TRUTH

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NETWORK_LABELS = {"lenet": "LeNet", "allconv": "all-convolutional"}
METHOD_LABELS = {
    "flipout": "Bayes by Backprop",
    "local": "Bayes by Backprop, local",
    "dropout": "MC dropout",
    "ensemble": "ensemble",
}
SHOWN = 13
"""Rotated images above a figure."""


@dataclass(frozen=True)
class Plan:
    """What one budget runs.

    Attributes:
        settings: the hyper-parameters.
        on_mnist: whether to run on MNIST.
    """

    settings: Settings
    on_mnist: bool = True

    @property
    def variants(self) -> list[Variant]:
        """The rows of the table, by network and method."""
        return [Variant(network, method) for network in NETWORKS for method in METHODS]


PLANS: dict[Budget, Plan] = {
    "full": Plan(Settings(relu=True, dropout=0.3, member_dropout=0.3, length_scale=5.0)),
    "quick": Plan(
        Settings(epochs=20, batch_size=64, lr=3e-3, widths=(16, 32), temperature=0.1, members=3, draws=20, ones=20),
        on_mnist=False,
    ),
    "smoke": Plan(Settings(epochs=1, widths=(4, 8), members=2, draws=2, ones=2), on_mnist=False),
}


@experiment(
    "bayesian-cnn",
    title="Bayesian convolutional networks: two uncertainties, other images and a rotated digit",
    reference=(
        "Gal & Ghahramani, Bayesian convolutional neural networks with Bernoulli approximate variational inference, "
        "ICLR workshop 2016 (arXiv:1506.02158); Shridhar, Laumann & Liwicki, A comprehensive guide to Bayesian "
        "convolutional neural network with variational inference, 2019 (arXiv:1901.02731)"
    ),
    figures=["rotated", "entropy", "classes"],
)
def run(config: RunConfig) -> Result:
    """Digits by two convolutional networks, each by Bayes by Backprop, MC dropout and an ensemble.

    The papers' claim. A convolutional network with a distribution over its filters has the error of an ordinary one or
    less, and an uncertainty that is large for images unlike those of its training.

    What is run. LeNet and an all-convolutional network on MNIST, without augmentation. Bayes by Backprop draws with
    Flipout on convolutions, which has the exact distribution; the rows named local use the published local
    reparameterization of convolutions, which treats the positions of an image as independent, in training only:
    predictions always draw weights. The ensemble has five networks, trained with dropout, which they do not have in
    predictions. The table has the test error of draws and of mean weights (of one network, for the ensemble), the
    likelihood and the calibration error; aleatoric and epistemic uncertainty, the expected entropy and the mutual
    information, also for each class; how well entropy and mutual information separate Fashion-MNIST and notMNIST from
    digits; and the same for 1s that are rotated by up to 180°: whether entropy rises with the angle up to 90°, after
    which a 1 becomes upright again, and whether the misread images are the uncertain ones.

    What differs. The papers give their results on these data as curves and as accuracies of other networks, so there
    are no published values. The quick and the smoke run have the 8×8 digits of scikit-learn, with letters as the other
    images; the quick run is tempered, T = 0.1, as 1,347 images are few for so many weights, and its ensemble has three
    networks. At 8×8 pixels a rotated 1 is soon a 4 to all of them, misread and certain.

    What was found in the full run (``benchmarks/results/bayesian_cnn.json``). Error, and AUROC of the entropy for
    Fashion-MNIST and notMNIST, for LeNet with one seed on a CPU and one on a GPU: Bayes by Backprop, T = 0.1, 0.60 and
    0.55 %, 0.993 and 0.990, 0.987 and 0.983; MC dropout 0.49 and 0.52 %, 0.996 and 0.997, 0.975 and 0.981; the
    ensemble, with one seed, 0.46 %, 0.997 and 0.984. The all-convolutional network by MC dropout has 0.54 %, 0.968 and
    0.938. Shorter runs (``benchmarks/results/bayesian_cnn``): the ensemble with a drop rate of 0.1 in training and a
    length scale of 1 has 0.47 %, 0.997 and 0.985 after 12 epochs, with 0.3 and 5 0.54 %, 0.998 and 0.986 after 8; MC
    dropout after 12 0.58 %, 0.996 and 0.976; and Bayes by Backprop at T = 1, with a scale per tensor by empirical
    Bayes, after 20 0.88 %, 0.993 and 0.976. Every run looked at the test images once. The rate of 0.1 was chosen on
    held-out digits, when the results of the other runs on the test images were known.

    Settings were chosen on held-out digits, with printed characters, photographs and digits at 90° in place of the
    other images (``benchmarks/results/bayesian_cnn_validation`` and, for initial weights and T,
    ``bayesian_cnn_other_images_validation.json``). Error and AUROC for characters there: Bayes by Backprop after 25
    epochs at T = 0.1 0.75 % and 0.980 with N(0, 1), 0.74 % and 0.975 with empirical Bayes; at T = 1 1.06 % and 0.973
    after 10 epochs, 1.09 % and 0.964 after 30, so what it lacks at T = 1 is not training. MC dropout after 25 epochs:
    0.67 % and 0.969 with a drop rate of 0.3, 0.74 % and 0.967 with 0.5.

    Less dropout in training makes the networks of an ensemble more diverse, and a little worse: after 10 to 12 epochs
    0.52 % and 0.972 with a rate of 0.3, 0.56 % and 0.977 with 0.1, 0.64 % and 0.979 without, and a mutual information
    of 0.0026, 0.0035 and 0.0040 nats. The rate of 0.1 was taken: the largest AUROC of those within one standard error,
    0.07 %, of the smallest error. Longer training makes the networks more alike: 0.0017 nats on test digits after 8
    epochs and 0.0007 after 60, with 0.3.

    MC dropout misses an AUROC of 0.985 for notMNIST, and no kind or rate of dropout that was tried is clearly better on
    the characters (``other_images.json``): 0.972 after 10 epochs with 0.3 before all layers but the first, 0.972 with
    whole feature maps dropped and 0.5 before the outputs, 0.973 with 0.5 before the outputs only. Short runs with
    dropped pixels or single weights, with noise on the weights, or with tanh are worse or within the scatter of seeds.

    The rotated 1s. Mean entropy and mutual information rise with the angle only up to 50 to 60°, where 60 to 79 % are
    misread. Beyond, they fall, to a second peak at 115 to 120°: a 1 that lies flat is misread, at 90° by 99 to 100 %,
    with 0.37 to 0.58 of the largest entropy and 0.55 to 0.85 of the largest mutual information. So images are uncertain
    where the class changes, and not all misread ones are: AUROC 0.87 to 0.89 by entropy, 0.87 to 0.90 by mutual
    information. Gal & Ghahramani (ICML 2016, Figure 4) do not claim more: their 12 images, without angles, are read as
    1 1 1 1 1 5 5 7 7 7 7 7, and the uncertain ones that they point out are where the class changes.

    On a GPU, `benchmarks/network_tables.py` runs parts of the table, stores every run and puts them together.
    """
    plan = PLANS[config.budget]
    data = load(not plan.on_mnist, config.seed)
    records = []
    with one_thread(config.device is None and not plan.on_mnist):
        for variant in plan.variants:
            config.report(variant.name)
            records.append(measure(variant, data, plan.settings, config.seed, config.device))
    return assemble(records)


def assemble(records: Sequence[Record]) -> Result:
    """Table and figures from the records of any number of runs.

    Args:
        records: as :func:`measure` returns them; those of one variant with different seeds are pooled.
    """
    order = [Variant(network, method).name for network in NETWORKS for method in METHODS]
    runs = {Variant.parse(name): found for name, found in group_seeds(records, order.index).items()}
    rows = [row for variant, found in runs.items() for row in _rows(variant, found)]
    first = next(iter(runs))
    rows += _class_rows(first, runs[first])
    shown = {variant: found[0] for variant, found in runs.items() if variant.network == first.network}
    figures = {
        "rotated": _rotation_figure(shown),
        "entropy": _entropy_figure(shown),
        "classes": _class_figure(shown),
    }
    return Result(tuple(rows), figures)


def _name(variant: Variant) -> str:
    return f"{NETWORK_LABELS[variant.network]}, {METHOD_LABELS[variant.method]}"


def _rows(variant: Variant, records: list[Record]) -> Iterator[Row]:
    """Everything that is measured of one variant, except for the classes."""
    name = _name(variant)

    def row(quantity: str, values: Sequence[float]) -> Row:
        return Row(f"{name}: {quantity}", tuple(values))

    alone = "one network" if variant.method == "ensemble" else "mean weights"
    yield row("test error, %", [percent_wrong(r) for r in records])
    yield row(f"test error of {alone}, %", [percent_wrong(r, "wrong_mean_weights") for r in records])
    yield row("test NLL, nats", [r["nll"] for r in records])
    yield row("ECE", [r["ece"] for r in records])
    for part in ("aleatoric", "epistemic"):
        yield row(f"{part} uncertainty, nats", [float(np.mean(r[part])) for r in records])
    for key, score in (("entropy", "entropy"), ("mutual_information", "mutual information")):
        for other in records[0]["others"]:
            yield row(f"AUROC of {score}, {other}", [r["others"][other][f"auroc_{key}"] for r in records])
        rotated = [r["rotated"] for r in records]
        yield row(f"AUROC of {score}, misread among rotated 1s", [found[f"auroc_{key}"] for found in rotated])
        yield row(
            f"rank correlation of {score} and angle up to {RISING:g}°, rotated 1s",
            [_rank_correlation(found[f"mean_{key}"]) for found in rotated],
        )


def _class_rows(variant: Variant, records: list[Record]) -> Iterator[Row]:
    """Both uncertainties of every class, for one variant."""
    for part in ("aleatoric", "epistemic"):
        for digit in range(len(records[0][part])):
            quantity = f"{_name(variant)}: {part} uncertainty of class {digit}, nats"
            yield Row(quantity, tuple(record[part][digit] for record in records))


def _rank_correlation(values: Sequence[float]) -> float:
    """Spearman's rank correlation of values at ``ANGLES`` with the angle, up to ``RISING``; 0 if they are all equal."""
    rising = np.array(values)[: int((ANGLES <= RISING).sum())]
    if (rising == rising[0]).all():
        return 0.0
    ranks = rising.argsort(kind="stable").argsort(kind="stable")
    return float(np.corrcoef(ranks, np.arange(len(ranks)))[0, 1])


def _panels(count: int, figsize: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=figsize, layout="constrained")
    grid = figure.subplots(-(-count // 2), 2, sharex=True, sharey=True, squeeze=False)
    for ax in grid.flat[count:]:
        ax.set_axis_off()
    return figure, list(grid.flat[:count])


def _label_outer(panels: Sequence[Axes]) -> None:
    """Leave numbers and labels at the left and at the lowest panel of each of two columns."""
    for place, ax in enumerate(panels):
        label = ax.get_xlabel()
        ax.label_outer()
        if place + 2 >= len(panels):
            ax.set_xlabel(label)
            ax.tick_params(labelbottom=True)


def _rotation_figure(records: dict[Variant, Record]) -> Figure:
    """Entropy and mutual information of one 1 at every angle, with the angles at which it is misread."""
    figure, panels = _panels(len(records), (9.6, 6.0))
    angles = ANGLES.numpy()
    for ax, (variant, record) in zip(panels, records.items(), strict=True):
        found = record["rotated"]
        misread = np.array(found["class"]) != 1
        ax.plot(angles, found["entropy"], label="entropy", color=CYCLE[0])
        ax.plot(angles, found["mutual_information"], label="mutual information", color=CYCLE[2], linestyle="--")
        ax.plot(angles[misread], np.array(found["entropy"])[misread], "o", color=TRUTH, label="misread", markersize=4)
        for angle, digit in list(zip(angles, found["class"], strict=True))[:: len(angles) // (SHOWN - 1)]:
            ax.annotate(str(digit), (angle, 1.0), xycoords=ax.get_xaxis_transform(), ha="center", va="top")
        _draw_strip(ax, _rotated_images(found["image"]))
        ax.set(xlabel="angle, degrees", ylabel="nats", ylim=(0.0, 1.1 * math.log(10)))
        ax.set_title(_name(variant), y=1.16)
    _label_outer(panels)
    add_legend(figure, panels[0])
    return figure


def _rotated_images(image: Sequence[str]) -> Tensor:
    """The image of a record at every angle, ``[A, 1, H, W]``."""
    pixels = torch.tensor([list(bytes.fromhex(row)) for row in image]).float() / 255.0
    return rotate(pixels.expand(len(ANGLES), 1, -1, -1), ANGLES)


def _draw_strip(ax: Axes, images: Tensor) -> None:
    """Some of the images in a row above the axes, each above its angle."""
    left, right = float(ANGLES[0]) - 7.5, float(ANGLES[-1]) + 7.5
    ax.set_xlim(left, right)
    width = 1.0 / SHOWN
    for pick in range(0, len(images), len(images) // (SHOWN - 1)):
        center = (float(ANGLES[pick]) - left) / (right - left)
        frame = ax.inset_axes((center - 0.5 * width, 1.0, width, 0.16))
        frame.imshow(images[pick, 0].numpy(), cmap="gray_r", vmin=0.0, vmax=1.0)
        frame.set_axis_off()


def _entropy_figure(records: dict[Variant, Record]) -> Figure:
    """Densities of the entropy on digits and on other images."""
    figure, panels = _panels(len(records), (9.6, 5.4))
    for ax, (variant, record) in zip(panels, records.items(), strict=True):
        draw_entropies(ax, record)
        ax.set_title(_name(variant))
    _label_outer(panels)
    add_legend(figure, panels[0])
    return figure


def _class_figure(records: dict[Variant, Record]) -> Figure:
    """The mean aleatoric and epistemic uncertainty of every class, on top of each other."""
    figure, panels = _panels(len(records), (9.6, 5.4))
    for ax, (variant, record) in zip(panels, records.items(), strict=True):
        aleatoric, epistemic = np.array(record["aleatoric"]), np.array(record["epistemic"])
        digits = np.arange(len(aleatoric))
        ax.bar(digits, aleatoric, color=ALEATORIC, alpha=0.6, label="aleatoric")
        ax.bar(digits, epistemic, bottom=aleatoric, color=EPISTEMIC, alpha=0.9, label="epistemic")
        ax.set(xlabel="class", ylabel="nats")
        ax.set_xticks(digits)
        ax.set_title(_name(variant))
    _label_outer(panels)
    add_legend(figure, panels[0])
    return figure
