"""Bayesian Transformers: a language model and a vision transformer by five methods."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from credo._threads import one_thread
from credo.experiments._shared import add_legend
from credo.experiments.networks._images import load as load_images
from credo.experiments.networks._images import percent_wrong
from credo.experiments.networks._records import Record, draw_entropies
from credo.experiments.networks._texts import text_of
from credo.experiments.networks._transformer_runs import METHODS, Settings, measure_language, measure_vision
from credo.experiments.registry import Budget, Result, Row, RunConfig, experiment
from credo.plots.style import ALEATORIC, EPISTEMIC

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LABELS = {
    "map": "MAP",
    "dropout": "MC dropout",
    "bbb": "Bayes by Backprop",
    "ivon": "IVON",
    "ensemble": "ensemble",
}


@dataclass(frozen=True)
class Plan:
    """What one budget runs.

    Attributes:
        language: hyper-parameters of the language model.
        vision: hyper-parameters of the vision transformer.
        tokens: number of training tokens; ``None``: all.
        vocabulary: number of words; ``None``: all.
    """

    language: Settings
    vision: Settings
    tokens: int | None = None
    vocabulary: int | None = None


PLANS: dict[Budget, Plan] = {
    "full": Plan(
        Settings(256, 4, 4, epochs=10, batch_size=64, lr=1e-3, length=64, dropout=0.2),
        Settings(
            64,
            4,
            4,
            epochs=8,
            batch_size=128,
            lr=1e-3,
            length=4,
            members=5,
            draws=20,
        ),
    ),
    "quick": Plan(
        Settings(48, 2, 4, epochs=8, batch_size=16, lr=3e-3, length=32, ivon_lr=1.0, dropout=0.2, members=2),
        Settings(
            32,
            2,
            4,
            epochs=15,
            batch_size=64,
            lr=3e-3,
            length=2,
            members=2,
            draws=20,
        ),
        tokens=20_000,
        vocabulary=500,
    ),
    "smoke": Plan(
        Settings(8, 1, 2, epochs=2, batch_size=20, lr=1e-2, length=8, members=2, draws=2),
        Settings(8, 1, 2, epochs=1, batch_size=128, lr=1e-2, length=4, members=2, draws=2),
    ),
}


@experiment(
    "bayesian-transformers",
    title="Bayesian Transformers: a language model and a vision transformer by five methods",
    reference=(
        "Vaswani et al., Attention is all you need, NeurIPS 2017 (arXiv:1706.03762); Dosovitskiy et al., An image is "
        "worth 16x16 words, ICLR 2021 (arXiv:2010.11929); Shen et al., Variational learning is effective for large "
        "deep networks, ICML 2024 (arXiv:2402.17641)"
    ),
    figures=["text", "entropy"],
)
def run(config: RunConfig) -> Result:
    """A Transformer on Penn Treebank and one on MNIST, by MAP, MC dropout, Bayes by Backprop, IVON and an ensemble.

    The papers' claim. Transformers are trained as point estimates; Shen et al. find that a Gaussian posterior over all
    of their weights costs about as much, and predicts as well or better, with better calibrated probabilities.

    What is run. A causal language model with rotary positions, whose output layer is its embedding, reads sequences of
    64 words; perplexities are of sequences that overlap by half, so that a word has 32 words before it or more, and its
    probability is the mean over draws. A vision transformer reads digits as patches of 4×4 pixels; the table has its
    error, likelihood and calibration error, and how well the entropy separates Fashion-MNIST and notMNIST from digits.
    Both have the same network for all methods, except for the dropout layers of MC dropout. The first figure shows
    both uncertainties of the next word in the test text, the second the entropy on digits and on other images.

    What differs. No paper has this table, so there are no published values. The settings were not chosen on
    validation data, except IVON's learning rates and priors (8×8 digits of the training part, validation text); the
    scale of the positions comes from a few short runs on 8×8 digits, scored on those of the test. Bayes by Backprop and
    IVON are tempered, T = 0.1: in the few passes of such a run the KL of the weights outweighs the data.
    The quick run has 20,000 tokens and the 500 most frequent words, and 8×8 digits with letters as the other images.
    The smoke run has a Markov chain of 12 words in place of the text.
    """
    plan = PLANS[config.budget]
    words = text_of(config.budget == "smoke", config.seed, plan.tokens, plan.vocabulary)
    images = load_images(config.budget != "full", config.seed)
    language, vision = {}, {}
    with one_thread(config.device is None and config.budget != "full"):
        for method in METHODS:
            config.report(f"language model, {LABELS[method]}")
            language[method] = measure_language(method, words, plan.language, config.seed, config.device, config.report)
        for method in METHODS:
            config.report(f"vision transformer, {LABELS[method]}")
            vision[method] = measure_vision(method, images, plan.vision, config.seed, config.device, config.report)
    rows = [*_language_rows(language), *_vision_rows(vision)]
    return Result(tuple(rows), {"text": _text_figure(language), "entropy": _entropy_figure(vision)})


def _alone(method: str) -> str:
    return "one network" if method == "ensemble" else "mean weights"


def _language_rows(records: dict[str, Record]) -> Iterator[Row]:
    for method, record in records.items():
        name = f"language model, {LABELS[method]}"
        yield Row(f"{name}: test perplexity", (record["test"],))
        yield Row(f"{name}: validation perplexity", (record["valid"],))
        if method != "map":
            yield Row(f"{name}: test perplexity of {_alone(method)}", (record["test_mean_weights"],))


def _vision_rows(records: dict[str, Record]) -> Iterator[Row]:
    for method, record in records.items():
        name = f"vision transformer, {LABELS[method]}"
        yield Row(f"{name}: test error, %", (percent_wrong(record),))
        if method != "map":
            yield Row(f"{name}: test error of {_alone(method)}, %", (percent_wrong(record, "wrong_mean_weights"),))
        yield Row(f"{name}: test NLL, nats", (record["nll"],))
        yield Row(f"{name}: ECE", (record["ece"],))
        for other, found in record["others"].items():
            yield Row(f"{name}: AUROC of entropy, {other}", (found["auroc_entropy"],))


def _text_figure(records: dict[str, Record]) -> Figure:
    """Aleatoric and epistemic uncertainty of every word at the beginning of the test text."""
    from matplotlib.figure import Figure

    shown = [method for method in METHODS if method != "map"]
    figure = Figure(figsize=(9.6, 1.6 * len(shown) + 1.2), layout="constrained")
    panels = figure.subplots(len(shown), 1, sharex=True, sharey=True)
    for ax, method in zip(panels, shown, strict=True):
        record = records[method]
        places = np.arange(len(record["tokens"]))
        aleatoric = np.array(record["aleatoric"])
        ax.bar(places, aleatoric, color=ALEATORIC, alpha=0.6, label="aleatoric")
        ax.bar(places, record["epistemic"], bottom=aleatoric, color=EPISTEMIC, alpha=0.9, label="epistemic")
        ax.set_title(LABELS[method])
        ax.set_ylabel("nats")
    panels[-1].set_xticks(places, record["tokens"], rotation=60, ha="right", fontsize=8)
    add_legend(figure, panels[0])
    return figure


def _entropy_figure(records: dict[str, Record]) -> Figure:
    """Densities of the entropy on digits and on other images."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 5.4), layout="constrained")
    grid = figure.subplots(2, 3, sharex=True, sharey=True)
    for ax, (method, record) in zip(grid.flat, records.items(), strict=False):
        draw_entropies(ax, record)
        ax.set_title(LABELS[method])
        ax.label_outer()
    grid.flat[-1].set_axis_off()
    grid[0, -1].tick_params(labelbottom=True)
    add_legend(figure, grid.flat[0])
    return figure
