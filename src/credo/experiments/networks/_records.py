"""Records of training runs: one per row of a table and seed, as JSON values that can be stored and pooled later."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

import credo
from credo.datasets import Images
from credo.plots.style import CYCLE, DASHES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from credo.methods.base import Method

Record = dict[str, Any]
"""The measurements of one run, as JSON values."""


def hold_out_last(data: Images, count: int) -> Images:
    """The data with the last ``count`` training images in place of the test images; all of the data for 0."""
    if not count:
        return data
    kept = len(data.y_train) - count
    return Images(data.x_train[:kept], data.y_train[:kept], data.x_train[kept:], data.y_train[kept:], data.classes)


def group_seeds(records: Sequence[Record], order: Callable[[str], Any]) -> dict[str, list[Record]]:
    """The records of each variant by seed, the variants in the ``order`` of their names."""
    groups: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda record: (order(record["variant"]), int(record["seed"]))):
        groups.setdefault(record["variant"], []).append(record)
    return groups


def first_member(model: Method) -> Method:
    """The model itself, or the first network of an ensemble."""
    return model.members[0] if isinstance(model, credo.DeepEnsemble) else model  # type: ignore[return-value]


def draw_epochs(ax: Axes, curves: Sequence[Sequence[float]], label: str, color: str, linestyle: Any) -> float:
    """Draw the mean and the range over seeds of a quantity after every epoch.

    Args:
        ax: where to draw.
        curves: the values of each seed; those of epochs that not all of them have are left out.
        label: in the legend.
        color: of line and range.
        linestyle: of the line.

    Returns:
        The mean after the last epoch.
    """
    length = min(map(len, curves))
    values = np.array([curve[:length] for curve in curves])
    epochs = np.arange(1, length + 1)
    ax.plot(epochs, values.mean(0), color=color, linestyle=linestyle, label=label)
    ax.fill_between(epochs, values.min(0), values.max(0), color=color, alpha=0.15, linewidth=0)
    return float(values[:, -1].mean())


def draw_entropies(ax: Axes, record: Record) -> None:
    """Draw the densities of the entropy on digits and on other images, from 0 to that of ten equal probabilities.

    Args:
        ax: where to draw.
        record: has the density in bins, ``"entropy"``, and that of each of the ``"others"``.
    """
    groups = {"test digits": record["entropy"]} | {name: found["entropy"] for name, found in record["others"].items()}
    edges = np.linspace(0.0, math.log(10), len(record["entropy"]) + 1)
    for (name, values), color, dashes in zip(groups.items(), cycle(CYCLE), cycle(DASHES), strict=False):
        ax.stairs(values, edges, color=color, linestyle=dashes, label=name, linewidth=1.3)
    ax.set(xlabel="entropy, nats", ylabel="density", yscale="log", xlim=(0.0, edges[-1]))


def density(counts: Tensor, total: int, width: float) -> list[float]:
    """The density in bins of a ``width``, from their counts out of a ``total``."""
    return [rounded(value) for value in (counts.double() / (total * width)).tolist()]


def rounded(value: float) -> float:
    """Four significant digits, which keep the files small."""
    return float(f"{value:.4g}")
