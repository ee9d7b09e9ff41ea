"""Bayesian recurrent networks as language models: perplexity, pruned weights and reversed text (Fortunato et al.)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np

from credo._threads import one_thread
from credo.experiments._shared import add_legend
from credo.experiments.networks._bayesian_rnn_runs import (
    CELLS,
    METHODS,
    Settings,
    Variant,
    measure,
)
from credo.experiments.networks._records import Record, draw_epochs, group_seeds
from credo.experiments.networks._texts import load as load  # for benchmarks/network_tables.py
from credo.experiments.networks._texts import text_of
from credo.experiments.registry import Budget, Result, Row, RunConfig, experiment
from credo.plots.style import CYCLE, DASHES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LABELS = {
    "plain": "{cell}",
    "dropout": "variational {cell}",
    "bayes": "Bayesian {cell}",
    "sharpened": "Bayesian {cell}, sharpened",
}
PUBLISHED_TEST = {"dropout": 79.7, "bayes": 75.5}
"""The published LSTM without regularization is smaller, 2 × 200."""
PUBLISHED_VALID = {"dropout": 81.8, "bayes": 78.8}
PUBLISHED_BOUND = {"valid": 77.8, "test": 74.8}
PUBLISHED_DRAWS = {"dropout": 79.0}
PUBLISHED_DYNAMIC = {"bayes": 70.7}
PUBLISHED_GAP = {
    "mean weights": {"dropout": 0.62, "bayes": 0.65},
    "draws": {"dropout": 0.58, "bayes": 0.67},
}
LARGEST_PRUNED = "0.8"
"""The fraction of weights that the paper prunes with little loss."""


@dataclass(frozen=True)
class Plan:
    """What one budget runs.

    Attributes:
        settings: the hyper-parameters.
        tokens: number of training tokens; ``None``: all.
        vocabulary: number of words; ``None``: all.
    """

    settings: Settings
    tokens: int | None = None
    vocabulary: int | None = None

    @property
    def variants(self) -> list[Variant]:
        """The rows of the table."""
        return [Variant(method) for method in METHODS]


_SMALL = Settings(
    width=128,
    layers=1,
    batch_size=10,
    length=30,
    epochs=12,
    constant_epochs=6,
    decay=0.6,
    optimizer="adam",
    lr=0.01,
    tied=True,
    initial_scale=0.05,
    temperature=0.2,
    sharpening=0.02,
)
PLANS: dict[Budget, Plan] = {
    "full": Plan(Settings()),
    "quick": Plan(_SMALL, tokens=30_000, vocabulary=1000),
    "smoke": Plan(Settings(8, 1, 5, 10, 2, 1, 0.5, "adam", 0.02, initial_scale=0.05, draws=2)),
}


@experiment(
    "bayesian-rnn",
    title="Bayesian recurrent networks: perplexity, pruned weights and reversed text",
    reference=(
        "Fortunato, Blundell & Vinyals, Bayesian recurrent neural networks, 2017, Table 1, Figures 2 and 3 "
        "(arXiv:1704.02798); Gal & Ghahramani, A theoretically grounded application of dropout in recurrent neural "
        "networks, NeurIPS 2016, Table 1 (arXiv:1512.05287)"
    ),
    figures=["training", "pruning", "entropy"],
)
def run(config: RunConfig) -> Result:
    """Language models of Penn Treebank: an LSTM, with variational dropout, and by Bayes by Backprop through time.

    The papers' claim. Bayes by Backprop, with one draw of the weights for every truncated sequence, regularizes an LSTM
    better than dropout whose masks stay the same at every step. Posterior sharpening, which moves the weights along the
    gradient of the minibatch and pays for it, improves it a little further, which was not found here. About 80 % of the
    weights can be pruned. The entropy of predictions is higher on reversed text, by more than under dropout.

    What is run. The medium network of Zaremba et al., two layers of 650 units, 35 steps, batches of 20, SGD at a rate
    of 1; the network without regularization is trained for 13 epochs, the others for 40. Prior and initial scales are
    those of the authors' code, in which the weights of an input, or of a word, come from the wide or the narrow
    component together. Perplexities are of the mean weights, reading the text from its beginning to its end; for the
    sharpened network also the bound, for minibatches as in training. With dynamic evaluation the weights go on learning
    from the test text; its rate is chosen on validation text. Weights are pruned by their signal-to-noise ratio, and
    evaluated on the validation text.

    What differs. The paper trains for 70 epochs, at a rate that decays more slowly. The rates of dropout are not
    published for this network, and its recurrent masks are the same for all rows of a batch. Biases have no posterior.
    The published gaps of entropies are read from the text of the paper. The quick run has 30,000 tokens and the 1,000
    most frequent words, one layer of 128 units whose output layer is the embedding, and Adam; its posteriors are
    tempered, T = 0.2, as in the few steps of such a run the KL outweighs the text. T and σ₀ were chosen on validation
    text. The smoke run has a Markov chain of 12 words.

    What was found in the full run, with one seed (``benchmarks/results/bayesian_rnn.json``). The test perplexity is
    76.3 by variational dropout (published 79.7), 77.7 by Bayes by Backprop (75.5) and 78.0 with sharpening, whose bound
    is 78.4 (74.8): by mean weights, dropout is ahead. By ten draws it is not, with 83.6 beside 79.1, and the entropies
    are as published: on reversed text they rise by 0.64 nats per word for Bayes by Backprop and 0.58 for dropout, and
    by draws 0.65 and 0.45. 70 % of the weights can be pruned at a cost of 0.4, 80 % at 2.3. The sharpened network was
    evaluated from a checkpoint, as its record says. With a prior that mixes for every weight by itself, Bayes by
    Backprop stayed at a validation perplexity of 94 after 55 epochs, in place of 81; dropout with the embedding as
    output layer reached 75 (``benchmarks/results/bayesian_rnn_unfinished.json``).

    And in the quick run, with four seeds (``benchmarks/results/bayesian_rnn_quick.json``). The order is that of the
    paper, test perplexities of 59.2 ± 0.3 without regularization, 47.2 ± 0.1 by dropout, 46.3 ± 0.1 by Bayes by
    Backprop, 46.1 ± 0.3 with sharpening, whose bound is 46.0 ± 0.3. The last step is small: a difference of 0.22 ± 0.17
    over seeds, for the bound 0.27 ± 0.15; with dynamic evaluation Bayes by Backprop has 43.8 and the sharpened one
    43.7. More cannot be expected: to leading order the bound gains σ₀²(‖g‖² − tr H)/2 per minibatch, which is 0 on text
    that the model describes well (``docs/theory/recurrent-networks.md``); per token ‖g‖² and tr H are 16.0 and 14.7 on
    training text, 21.4 and 11.8 on validation text. With larger σ₀ the noise costs more than the steps gain: validation
    perplexities of mean weights over four seeds are 37.75 for σ₀ = 0.02, the paper's, 37.95 for 0.05 and 38.29 for 0.1,
    and 37.92 without sharpening. On validation text, with one seed, dropout with half the rates has 39.5 in place of
    39.6; after 20 epochs in place of 12 dropout has 38.2, Bayes by Backprop 37.8 in place of 38.1. T matters more than
    the method: with T = 0.05 it is 41.8, with T = 1 it is 43.4
    (``benchmarks/results/bayesian_rnn_quick_validation.json``).

    On a GPU, `benchmarks/network_tables.py` runs parts of the table, with checkpoints, stores every run and puts
    them together.
    """
    plan = PLANS[config.budget]
    data = text_of(config.budget == "smoke", config.seed, plan.tokens, plan.vocabulary)
    records = []
    with one_thread(config.device is None and config.budget != "full"):
        for variant in plan.variants:
            config.report(variant.name)
            records.append(measure(variant, data, plan.settings, config.seed, config.device))
    return assemble(records)


def assemble(records: Sequence[Record]) -> Result:
    """Table and figures from the records of any number of runs.

    Args:
        records: as :func:`measure` returns them; those of one variant with different seeds are pooled.
    """
    order = [Variant(method, cell).name for cell in CELLS for method in METHODS]
    runs = {Variant.parse(name): found for name, found in group_seeds(records, order.index).items()}
    rows = [row for variant, found in runs.items() for row in _rows(variant, found)]
    figures = {
        "training": _training_figure(runs),
        "pruning": _pruning_figure(runs),
        "entropy": _entropy_figure(runs),
    }
    return Result(tuple(rows), figures)


def _name(variant: Variant) -> str:
    return LABELS[variant.method].format(cell=variant.cell.upper())


def _rows(variant: Variant, records: list[Record]) -> Iterator[Row]:
    """Everything that is measured of one variant."""
    settings = records[0]["settings"]
    is_published = variant.cell == "lstm" and (settings["layers"], settings["width"]) == (2, 650)
    name = f"{_name(variant)}, {settings['layers']} × {settings['width']}"

    def row(quantity: str, values: Sequence[float], published: float | None = None, source: str = "Table 1") -> Row:
        published = published if is_published else None
        return Row(f"{name}: {quantity}", tuple(values), published, source if published is not None else "")

    method = variant.method
    yield row("test perplexity", [r["test"] for r in records], PUBLISHED_TEST.get(method))
    yield row("validation perplexity", [r["valid"] for r in records], PUBLISHED_VALID.get(method))
    if "bound" in records[0]:
        for part, label in (("test", "test"), ("valid", "validation")):
            values = [r["bound"][part] for r in records]
            yield row(f"bound on the {label} perplexity", values, PUBLISHED_BOUND[part])
    if "test_draws" in records[0]:
        draws = f"test perplexity of {settings['draws']} draws"
        yield row(draws, [r["test_draws"] for r in records], PUBLISHED_DRAWS.get(method))
    if all("dynamic" in r for r in records):
        dynamic = [r["dynamic"]["test"] for r in records]
        yield row("test perplexity, dynamic evaluation", dynamic, PUBLISHED_DYNAMIC.get(method))
    for kind in records[0]["entropy"]:
        gaps = [r["entropy"][kind]["reversed"] - r["entropy"][kind]["text"] for r in records]
        published = PUBLISHED_GAP[kind].get(method)
        yield row(f"entropy gap of reversed text, {kind}, nats per word", gaps, published, "Figure 3")
    if "pruned" in records[0]:
        pruned = [r["pruned"][LARGEST_PRUNED] for r in records]
        yield row(f"validation perplexity, {100 * float(LARGEST_PRUNED):g} % of the weights pruned", pruned)


def _training_figure(runs: dict[Variant, list[Record]]) -> Figure:
    """Validation perplexity over epochs, the mean and the range over seeds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    ax = figure.subplots()
    last = []
    for (variant, records), color, dashes in zip(runs.items(), cycle(CYCLE), cycle(DASHES), strict=False):
        curves = [record["valid_by_epoch"] for record in records]
        last.append(draw_epochs(ax, curves, _name(variant), color, dashes))
    ax.set(xlabel="epochs", ylabel="validation perplexity", ylim=(0.9 * min(last), 1.8 * float(np.median(last))))
    ax.legend()
    return figure


def _pruning_figure(runs: dict[Variant, list[Record]]) -> Figure:
    """Validation perplexity by the fraction of weights that are pruned."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    ax = figure.subplots()
    valid = [record["valid"] for records in runs.values() for record in records]
    for (variant, records), color, dashes in zip(runs.items(), cycle(CYCLE), cycle(DASHES), strict=False):
        if "pruned" in records[0]:
            curves = [{"0": record["valid"], **record["pruned"]} for record in records]
            fractions = [100.0 * float(fraction) for fraction in curves[0]]
            found = np.array([list(curve.values()) for curve in curves])
            ax.plot(fractions, found.mean(0), "o", color=color, linestyle=dashes, label=_name(variant), markersize=4)
        else:
            unpruned = float(np.mean([record["valid"] for record in records]))
            ax.axhline(unpruned, color=color, linestyle=dashes, linewidth=0.9, label=f"{_name(variant)}, not pruned")
    ax.set(xlabel="weights pruned, %", ylabel="validation perplexity", ylim=(0.95 * min(valid), 1.6 * max(valid)))
    ax.legend()
    return figure


def _entropy_figure(runs: dict[Variant, list[Record]]) -> Figure:
    """The entropy of the next word on the test text and on its reverse, with the gap between them."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.4, 4.2), layout="constrained")
    ax = figure.subplots()
    bars = [
        (f"{_name(variant)}\n{kind}", [record["entropy"][kind] for record in records])
        for variant, records in runs.items()
        for kind in records[0]["entropy"]
    ]
    places = np.arange(len(bars))
    text, reverse = (
        np.array([np.mean([e[part] for e in found]) for _, found in bars]) for part in ("text", "reversed")
    )
    ax.barh(places - 0.2, text, 0.4, color=CYCLE[0], label="test text")
    ax.barh(places + 0.2, reverse, 0.4, color=CYCLE[1], label="reversed")
    for place, end, gap in zip(places, np.maximum(text, reverse), reverse - text, strict=True):
        ax.annotate(f"{gap:+.2f}", (end, place), (4, 0), textcoords="offset points", va="center")
    ax.set_yticks(places, [label for label, _ in bars])
    ax.invert_yaxis()
    ax.set(xlabel="mean entropy of the next word, nats", xlim=(0.0, 1.15 * float(max(text.max(), reverse.max()))))
    add_legend(figure, ax)
    return figure
