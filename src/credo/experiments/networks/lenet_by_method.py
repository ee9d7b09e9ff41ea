"""LeNet on MNIST by every method: errors, likelihood, calibration and other images in one table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from credo._threads import one_thread
from credo.experiments._shared import add_legend
from credo.experiments.networks._images import load, percent_wrong
from credo.experiments.networks._lenet_runs import METHODS, Settings, Variant, measure
from credo.experiments.networks._records import Record, draw_entropies, group_seeds
from credo.experiments.registry import Budget, Result, Row, RunConfig, experiment
from credo.plots.style import CYCLE, MUTED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LABELS = {
    "map": "MAP",
    "mc-dropout": "MC dropout",
    "concrete-dropout": "concrete dropout",
    "bbb": "Bayes by Backprop",
    "bbb-low-rank": "Bayes by Backprop, low rank",
    "ivon": "IVON",
    "swag": "SWAG",
    "laplace": "Laplace",
    "laplace-last-layer": "Laplace, last layer",
    "variational-last-layer": "variational last layer",
    "sngp": "SNGP",
    "sgld": "SGLD, cyclical",
    "sghmc": "SGHMC, cyclical",
    "ensemble": "ensemble",
}
QUANTITIES: dict[str, Callable[[Record], float]] = {
    "test error, %": percent_wrong,
    "test NLL, nats": lambda record: record["nll"],
    "ECE": lambda record: record["ece"],
}
COSTS: dict[str, Callable[[Record], float]] = {
    "training, s": lambda record: record["train_seconds"],
    "prediction of the test images, s": lambda record: record["predict_seconds"],
}


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
        """The rows of the table."""
        return [Variant(method) for method in METHODS]


PLANS: dict[Budget, Plan] = {
    "full": Plan(Settings()),
    "quick": Plan(
        Settings(
            epochs=15,
            noisy_epochs=25,
            sampler_epochs=40,
            batch_size=64,
            lr=2e-3,
            ivon_lr=0.1,
            ivon_decay=0.99,
            sgld_lr=0.005,
            sghmc_lr=5e-4,
            prior_scale=0.5,
            temperature=0.1,
            rank=2,
            features=256,
            members=3,
            draws=20,
        ),
        on_mnist=False,
    ),
    "smoke": Plan(
        Settings(epochs=1, noisy_epochs=1, sampler_epochs=1, cycles=1, rank=1, features=16, members=2, draws=2),
        on_mnist=False,
    ),
}


@experiment(
    "lenet-by-method",
    title="LeNet on MNIST by every method: error, likelihood, calibration and other images",
    reference=(
        "a comparison by this library; the network is that of Gal & Ghahramani, Bayesian convolutional neural networks "
        "with Bernoulli approximate variational inference, ICLR workshop 2016 (arXiv:1506.02158)"
    ),
    figures=["comparison", "entropy"],
)
def run(config: RunConfig) -> Result:
    """LeNet by MAP and by every way of this library to a posterior over its weights, in one table.

    The papers' claim. Each method's paper finds it better calibrated than a point estimate, and more uncertain of
    images unlike those of its training, at no more errors. They have different networks and data.

    What is run. The same LeNet, likelihood and prior N(0, 0.1²) for all methods on MNIST without augmentation. Dropout
    has the length scale of that prior; methods with a posterior over the last layer have it as the weight decay of the
    others, and SNGP has a Gaussian process of standard deviation 1. MAP, Laplace, the last layers, SWAG and the five
    networks of the ensemble train for 20 epochs, methods with noise in their gradients for 30; SGLD and SGHMC are one
    chain with four cycles. Laplace chooses its prior's scale for each layer by the evidence. The table has test error,
    NLL and calibration error of 100 draws; how well the entropy separates Fashion-MNIST and notMNIST from digits
    (AUROC); and the seconds of training and of the prediction of 10,000 images, the first of its shape.

    What differs. No paper has this table, so there are no published values. Settings follow the papers and are the
    same for related methods; they were not chosen on the test images, and each method could be tuned further. SWAG
    trains with gradient descent, all others with Adam or a method of their own. The quick and the smoke run have the
    8×8 digits of scikit-learn, with letters as the other images; the quick run has the prior N(0, 0.5²), as a narrower
    one outweighs 1,347 images, and is tempered, T = 0.1.

    On a GPU, `benchmarks/network_tables.py` runs parts of the table, stores every run and puts them together.
    """
    plan = PLANS[config.budget]
    data = load(not plan.on_mnist, config.seed)
    records = []
    with one_thread(config.device is None and not plan.on_mnist):
        for variant in plan.variants:
            config.report(LABELS[variant.name])
            records.append(measure(variant, data, plan.settings, config.seed, config.device))
    return assemble(records)


def assemble(records: Sequence[Record]) -> Result:
    """Table and figures from the records of any number of runs.

    Args:
        records: as :func:`measure` returns them; those of one method with different seeds are pooled.
    """
    runs = group_seeds(records, METHODS.index)
    rows = [row for method, found in runs.items() for row in _rows(method, found)]
    return Result(tuple(rows), {"comparison": _comparison_figure(runs), "entropy": _entropy_figure(runs)})


def _scores(records: Sequence[Record]) -> dict[str, list[float]]:
    """The values of each seed by quantity: errors, likelihood, calibration, and AUROC for each set of other images."""
    scores = {quantity: [value(record) for record in records] for quantity, value in QUANTITIES.items()}
    for other in records[0]["others"]:
        scores[f"AUROC of entropy, {other}"] = [record["others"][other]["auroc_entropy"] for record in records]
    return scores


def _rows(method: str, records: Sequence[Record]) -> Iterator[Row]:
    costs = {quantity: [value(record) for record in records] for quantity, value in COSTS.items()}
    for quantity, values in (_scores(records) | costs).items():
        yield Row(f"{LABELS[method]}: {quantity}", tuple(values))


def _comparison_figure(runs: dict[str, list[Record]]) -> Figure:
    """A panel for each quantity and a line for each method: a dot per seed, dashed the mean of MAP."""
    from matplotlib.figure import Figure

    scores = {method: _scores(found) for method, found in runs.items()}
    quantities = list(next(iter(scores.values())))
    figure = Figure(figsize=(2.0 + 1.75 * len(quantities), 1.2 + 0.27 * len(runs)), layout="constrained")
    panels = figure.subplots(1, len(quantities), sharey=True, squeeze=False)[0]
    for ax, quantity in zip(panels, quantities, strict=True):
        for place, found in enumerate(scores.values()):
            values = found[quantity]
            ax.plot(values, [place] * len(values), "o", color=CYCLE[0], markersize=4.5, zorder=3)
        if "map" in scores:
            reference = sum(scores["map"][quantity]) / len(scores["map"][quantity])
            ax.axvline(reference, color=MUTED, linewidth=0.8, linestyle="--", zorder=1)
        ax.grid(axis="y", color=MUTED, alpha=0.25, linewidth=0.6)
        ax.set_title(quantity.replace("AUROC of entropy, ", "AUROC,\n"), fontsize=9)
        ax.locator_params(axis="x", nbins=4)
        ax.tick_params(axis="y", length=0)
    panels[0].set_yticks(range(len(runs)), [LABELS[method] for method in runs])
    panels[0].set_ylim(len(runs) - 0.5, -0.5)
    return figure


def _entropy_figure(runs: dict[str, list[Record]]) -> Figure:
    """Densities of the entropy on digits and on other images, of the first seed."""
    from matplotlib.figure import Figure

    columns = 4
    lines = -(-len(runs) // columns)
    figure = Figure(figsize=(9.6, 0.8 + 1.7 * lines), layout="constrained")
    grid = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    for ax, (method, found) in zip(grid.flat, runs.items(), strict=False):
        draw_entropies(ax, found[0])
        ax.set_title(LABELS[method], fontsize=9)
        ax.label_outer()
    for ax in grid.flat[len(runs) :]:
        ax.set_axis_off()
    for ax in grid[-2, len(runs) - columns * (lines - 1) :] if lines > 1 else ():
        ax.tick_params(labelbottom=True)
    add_legend(figure, grid.flat[0])
    return figure
