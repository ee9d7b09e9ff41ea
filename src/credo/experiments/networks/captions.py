"""Captions of scenes of digits by a Bayesian LSTM, with the uncertainty of every word."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

import credo
from credo import metrics
from credo._threads import one_thread
from credo.architectures import Captioner
from credo.datasets import CaptionedScenes, Images, captioned_scenes, load_digits
from credo.datasets.captions import DISTURBANCES
from credo.datasets.files import images
from credo.experiments.networks._training import TrainingConfig
from credo.experiments.registry import Budget, Result, Row, RunConfig, experiment
from credo.plots.style import ALEATORIC, EPISTEMIC, TRUTH
from credo.seeding import derive
from credo.sequence import generate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

    from credo.methods.base import Method

SHOWN = 3
"""Scenes of each kind in the figure."""
PHRASE = 5
"""Words of a line in the figure: those of one digit, and the one that follows."""
ROWS = 250
"""Scenes that are described at once."""
SLOTS = ("size", "digit", "row", "column")
LABELS = {"none": "undisturbed", "occlusion": "one digit occluded", "rotation": "one digit rotated"}


class Settings(NamedTuple):
    """What depends on the budget.

    Attributes:
        channels: of the stages of the encoder.
        width: units of the LSTM, and features of the encoder.
        train_scenes: number of training scenes.
        test_scenes: number of test scenes of each kind.
        epochs: passes over the training scenes.
        batch_size: scenes per step.
        lr: learning rate at the start of its cosine.
        prior_scale: standard deviation of the prior of the decoder's weights.
        draws: number of draws of a prediction.
        beams: width of the beam search.
        initial_scale: σ of the decoder's weights at the start.
        temperature: T.
    """

    channels: tuple[int, ...]
    width: int
    train_scenes: int
    test_scenes: int
    epochs: int
    batch_size: int
    lr: float
    draws: int
    beams: int
    prior_scale: float = 0.2
    initial_scale: float = 0.02
    temperature: float = 1.0


SETTINGS: dict[Budget, Settings] = {
    "full": Settings((32, 64, 128), 128, 100_000, 2_000, 30, 256, 3e-3, 50, 5),
    "quick": Settings((16, 32, 64), 128, 24_000, 500, 4, 64, 3e-3, 10, 3),
    "smoke": Settings((8, 16, 16), 32, 200, 12, 8, 20, 2e-2, 4, 2, temperature=0.1),
}


@experiment(
    "bayesian-captions",
    title="Captions by a Bayesian LSTM: uncertain words are the wrong ones",
    reference=(
        "Fortunato, Blundell & Vinyals, Bayesian recurrent neural networks, 2017 (arXiv:1704.02798); "
        "Xu et al., Show, attend and tell, ICML 2015 (arXiv:1502.03044)"
    ),
    figures=["captions", "words"],
)
def run(config: RunConfig) -> Result:
    """Scenes of two or three handwritten digits, described in words, and how certain each word is.

    The paper's claim. Bayes by Backprop through time makes a network that describes images better, and the uncertainty
    of its weights reaches every word.

    What is run. The scenes are drawn from digits of MNIST, small or large, in the quarters of an image, and with them
    captions such as "large three top left and small zero bottom right". A convolutional encoder and an LSTM with
    attention, by `BayesByBackprop(net, bayesian="decoder.*")`, learn from undisturbed scenes only. Test scenes have
    digits that are in no training scene; in two of three kinds of them one digit is half hidden, or rotated by 60° to
    120°. Captions are found by beam search on the mean probabilities over draws. Every word has an entropy with its
    parts, the mutual information and the expected entropy. The table has the fraction of captions without an error; the
    fraction of correct words; how well uncertainty separates wrong words from correct ones (AUROC); and the mean
    uncertainty of words about the disturbed digit and of the others. The first figure shows scenes with the words of
    their captions in the color of their entropy, wrong words framed; the second the mean uncertainties for each kind of
    word.

    What differs. The paper describes photographs of MSCOCO with an encoder pretrained on ImageNet, so there is no
    published value for these scenes. The quick run has fewer scenes and a smaller encoder. The smoke run has
    scikit-learn's 8×8 digits.
    """
    settings = SETTINGS[config.budget]
    digits = _pad(load_digits(seed=config.seed)) if config.budget == "smoke" else images("mnist")
    with one_thread(config.device is None and config.budget != "full"):
        config.report(f"training on {settings.train_scenes} scenes")
        model = train(digits, settings, config)
        found = {}
        for i, kind in enumerate(DISTURBANCES):
            config.report(f"describing {settings.test_scenes} scenes, {LABELS[kind]}")
            scenes = captioned_scenes(
                digits.x_test, digits.y_test, settings.test_scenes, disturbance=kind, seed=derive(config.seed, 1, i)
            )
            found[kind] = describe(model, scenes, settings, config.seed)
    rows = [row for kind, described in found.items() for row in _measure(kind, described)]
    return Result(tuple(rows), {"captions": _caption_figure(found), "words": _word_figure(found)})


def train(digits: Images, settings: Settings, config: RunConfig) -> Method:
    """A captioner with a Bayesian decoder, trained on undisturbed scenes of the training digits.

    Args:
        digits: single digits.
        settings: the hyper-parameters.
        config: seed and device.
    """
    scenes = captioned_scenes(digits.x_train, digits.y_train, settings.train_scenes, seed=derive(config.seed, 0))
    training = TrainingConfig(
        name="Bayesian captioner",
        build=lambda: credo.BayesByBackprop(
            Captioner(len(scenes.vocabulary), channels=settings.channels, width=settings.width),
            credo.Categorical(ignore_index=scenes.padding),
            credo.Normal(0.0, settings.prior_scale),
            bayesian="decoder.*",
            initial_scale=settings.initial_scale,
            estimator="weight",
            temperature=settings.temperature,
        ),
        epochs=settings.epochs,
        lr=settings.lr,
        batch_size=settings.batch_size,
    )
    return training.train(scenes.inputs, scenes.captions, seed=config.seed, device=config.device)


@dataclass(frozen=True, eq=False)
class Described:
    """Scenes with the captions that a model gave them.

    Attributes:
        scenes: the scenes and their true captions.
        tokens: the captions found, ``[N, T]``.
        emitted: which positions belong to them, ``[N, T]``.
        uncertainties: entropy, mutual information and expected entropy of every word, ``[N, T]``.
    """

    scenes: CaptionedScenes
    tokens: Tensor
    emitted: Tensor
    uncertainties: dict[str, Tensor]

    @property
    def correct(self) -> Tensor:
        """Whether a word is the one at the same position of the true caption, ``[N, T]``."""
        return self.tokens == self.scenes.captions

    @property
    def exact(self) -> Tensor:
        """Whether a caption has no error, ``[N]``; its end is one of its words."""
        return (self.correct | ~self.emitted).all(1)

    @property
    def about(self) -> Tensor:
        """Which words are about the disturbed digit, ``[N, T]``."""
        return self.scenes.about_disturbed & self.emitted


def describe(model: Method, scenes: CaptionedScenes, settings: Settings, seed: int) -> Described:
    """The captions of scenes by beam search.

    Args:
        model: a trained captioner.
        scenes: what to describe.
        settings: number of draws and beams.
        seed: of the draws.
    """
    length = scenes.captions.shape[1]
    found = generate(
        model,
        scenes.images,
        end=0,
        length=length,
        width=settings.beams,
        samples=settings.draws,
        seed=seed,
        batch_size=ROWS,
    )

    def padded(values: Tensor) -> Tensor:
        """To the length of the longest caption there may be."""
        return F.pad(values.cpu(), (0, length - values.shape[1]))

    uncertainties = {
        "entropy": padded(found.entropy),
        "mutual information": padded(found.mutual_information),
        "expected entropy": padded(found.expected_entropy),
    }
    return Described(scenes, padded(found.tokens), padded(found.emitted), uncertainties)


def _pad(digits: Images) -> Images:
    """The 8×8 digits with a margin, as those of MNIST have."""
    return Images(
        F.pad(digits.x_train, [2] * 4), digits.y_train, F.pad(digits.x_test, [2] * 4), digits.y_test, digits.classes
    )


def _measure(kind: str, described: Described) -> list[Row]:
    label, emitted, correct = LABELS[kind], described.emitted, described.correct
    rows = [
        Row(f"{label}: captions without an error, %", (100 * described.exact.double().mean().item(),)),
        Row(f"{label}: correct words, %", (100 * correct[emitted].double().mean().item(),)),
    ]
    wrong, right = emitted & ~correct, emitted & correct
    for name, values in described.uncertainties.items():
        rows.append(Row(f"{label}: AUROC of {name} for wrong words", (_auroc(values[right], values[wrong]),)))
    if kind == "none":
        return rows
    about, others = described.about, emitted & ~described.about
    for name, values in described.uncertainties.items():
        rows += [
            Row(f"{label}: mean {name} of words about it, nats", (values[about].double().mean().item(),)),
            Row(f"{label}: mean {name} of other words, nats", (values[others].double().mean().item(),)),
        ]
    return rows


def _auroc(inside: Tensor, outside: Tensor) -> float:
    """The AUROC, or that of guessing where there is nothing to tell apart."""
    return metrics.auroc(inside, outside) if len(inside) and len(outside) else 0.5


def _caption_figure(found: dict[str, Described]) -> Figure:
    """Scenes of every kind, with the words of their captions colored by entropy."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.5, 3.2 * SHOWN), layout="constrained")
    panels = figure.subplots(SHOWN, len(found))
    colors = ScalarMappable(Normalize(0.0, 1.5), colormaps["Blues"])
    for column, (kind, described) in zip(panels.T, found.items(), strict=True):
        column[0].set_title(LABELS[kind], fontsize=11)
        for row, ax in enumerate(column):
            _draw_scene(ax, described, row, colors)
    figure.colorbar(colors, ax=panels, shrink=0.5, extend="max", label="entropy of a word, nats")
    return figure


def _draw_scene(ax: Axes, described: Described, row: int, colors: ScalarMappable) -> None:
    """A scene, and below it a line of words for each digit; wrong words have a frame."""
    ax.imshow(described.scenes.images[row, 0].numpy(), cmap="gray_r", vmin=0.0, vmax=1.0, interpolation="nearest")
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set(visible=True, color="0.7")  # a scene is as white as the page
    entropy, correct = described.uncertainties["entropy"][row], described.correct[row]
    for position in described.emitted[row].nonzero()[:, 0].tolist():
        line, place = divmod(position, PHRASE)
        color = colors.to_rgba(entropy[position].numpy())
        ax.text(
            -0.12 + 0.28 * place,
            -0.08 - 0.12 * line,
            described.scenes.vocabulary[int(described.tokens[row, position])],
            transform=ax.transAxes,
            ha="center",
            va="center",
            fontsize=8,
            color="black" if sum(color[:3]) > 1.5 else "white",
            bbox={
                "boxstyle": "square,pad=0.25",
                "facecolor": color,
                "edgecolor": "none" if correct[position] else TRUTH,
                "linewidth": 1.5,
            },
        )


def _word_figure(found: dict[str, Described]) -> Figure:
    """Both parts of the mean entropy of each kind of word, for the disturbed digit and for the others."""
    import numpy as np
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 4.2), layout="constrained")
    disturbed = [kind for kind in found if kind != "none"]
    for ax, kind in zip(figure.subplots(1, len(disturbed), sharey=True), disturbed, strict=True):
        described = found[kind]
        slot = torch.arange(described.tokens.shape[1]) % PHRASE
        groups = {"disturbed": described.about, "other": described.emitted & ~described.about}
        for offset, words in zip((-0.2, 0.2), groups.values(), strict=True):
            bottom = np.zeros(len(SLOTS))
            for part, color in (("expected entropy", ALEATORIC), ("mutual information", EPISTEMIC)):
                values = described.uncertainties[part]
                heights = np.array([float(values[words & (slot == i)].double().mean()) for i in range(len(SLOTS))])
                label = part if offset < 0 else None
                ax.bar(np.arange(len(SLOTS)) + offset, heights, 0.36, bottom, color=color, label=label)
                bottom += heights
        ticks = [place + offset for place in range(len(SLOTS)) for offset in (-0.2, 0.2)]
        ax.set_xticks(ticks, ["disturbed", "other"] * len(SLOTS), rotation=60, fontsize=8)
        for place, name in enumerate(SLOTS):
            ax.annotate(name, (place, 1.0), xycoords=ax.get_xaxis_transform(), ha="center", va="bottom")
        ax.set_title(LABELS[kind], y=1.08)
    figure.axes[0].set_ylabel("mean entropy of a word, nats")
    figure.axes[0].legend()
    return figure
