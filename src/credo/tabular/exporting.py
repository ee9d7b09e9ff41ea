"""``export`` of :class:`credo.Regressor` and :class:`credo.Classifier`."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from credo.tabular.base import TableEstimator


def export(  # noqa: D417
    self: TableEstimator,
    path: str | Path,
    *,
    samples: int | None = None,
    quantiles: Sequence[float] = (0.05, 0.5, 0.95),
    level: float | None = 0.95,
    precision: str = "float64",
) -> None:
    """Write the estimator as an ONNX graph that takes raw columns and runs without Python; needs the extra ``onnx``.

    Each column that is used is an input ``[rows]`` of its name: numbers in float64, with NaN for gaps; categories as
    text, empty for gaps; dates as text in ISO 8601 (``2024-01-31``, ``2024-01-31T12:30:00``, in UTC), empty for gaps.
    Gaps, categories that training did not have, outliers and values outside the training range are handled as in
    Python, and so is calibration. :func:`credo.export.column_inputs` makes the inputs from a data frame, in which
    numbers and dates may be written in other ways.

    Outputs of a regressor are ``mean``, ``std``, ``epistemic`` and ``aleatoric``, all standard deviations in the units
    of the target, ``quantiles [rows, K]``, ``lower`` and ``upper``; of a classifier ``class``, ``probabilities
    [rows, C]``, ``entropy`` and ``mutual_information`` in nats.

    Args:
        path: the file, such as ``"model.onnx"``.
        samples: the number of posterior draws; ``None``: that of the estimator, and so the numbers of
            ``predict_dist``.
        quantiles: the levels of the output ``quantiles``; empty: without it.
        level: the probability of the interval from ``lower`` to ``upper``; ``None``: without it.
        precision: of the network: ``"float64"`` as in Python, or ``"float32"``, which takes half the memory.

    Raises:
        InputError: the extra ``onnx`` is not installed, or an argument is not valid.
        UnsupportedError: the prediction needs operations that ONNX does not have.
    """
    options: dict[str, Any] = {"samples": samples, "quantiles": quantiles, "level": level, "precision": precision}
    importlib.import_module("credo.export").export_table(self, path, **options)  # it imports this package
