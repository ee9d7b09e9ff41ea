"""Predictions as tables, with one row per row of the input."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from credo._arguments import check_fraction
from credo._text import counted, listed, quoted
from credo.errors import InputError, unknown_name
from credo.methods.base import Predictor
from credo.predictive import Predictive, RealPredictive
from credo.tabular.extrapolation import OutsideRange
from credo.tabular.several_targets import RegressionTargets, correlation_of, marginal_components, pairs
from credo.tabular.table_interface import TableFile
from credo.tabular.targets import ClassTarget, RegressionTarget

if TYPE_CHECKING:
    from credo.tabular.base import TableEstimator

T = TypeVar("T")
Target = RegressionTarget | RegressionTargets | ClassTarget

_MAX_CHUNK_NUMBERS = 2**22  # in the draws of one chunk: 32 MiB
_MAX_CHUNK_ROWS = 4_000  # with rows moved to the edge one batch of the network; more take no less time
_QUANTITY_COLUMNS = ("mean", "std", "epistemic", "aleatoric", "lower", "upper")
_NETWORK_ROWS = 8_192  # two batches of the network


def to_frame(predictive: Predictive, target: Target, level: float = 0.95) -> pd.DataFrame:
    """:func:`to_columns` as a data frame.

    Args:
        predictive: the prediction of N rows.
        target: the target of the model.
        level: the probability of the interval.

    Returns:
        A data frame with N rows.
    """
    return pd.DataFrame(to_columns(predictive, target, level))


def to_columns(predictive: Predictive, target: Target, level: float = 0.95) -> dict[str, NDArray[Any]]:
    """A prediction as named columns.

    For a quantity: ``mean``; ``std``, ``epistemic`` and ``aleatoric``, all standard deviations, with
    std² = epistemic² + aleatoric²; and the bounds ``lower`` and ``upper`` of the central interval. For classes:
    ``class``, the most probable one; ``p_<class>``, the probability of each; and ``entropy`` and
    ``mutual_information`` in nats. For several quantities the columns of each, after its name, ``a_mean`` and so on,
    and the correlation of each pair, ``correlation_a_b``.

    Args:
        predictive: the prediction of N rows.
        target: the target of the model.
        level: the probability of the interval.

    Returns:
        Arrays ``[N]`` by name, in this order.
    """
    if isinstance(target, ClassTarget):
        return _class_columns(predictive, target)
    if isinstance(target, RegressionTargets):
        return _columns_of_targets(predictive, target, level)
    lower, upper = predictive.interval(level)
    epistemic, aleatoric = predictive.epistemic, predictive.aleatoric
    columns = {
        "mean": predictive.mean,
        "std": (epistemic + aleatoric).sqrt(),
        "epistemic": epistemic.sqrt(),
        "aleatoric": aleatoric.sqrt(),
        "lower": lower,
        "upper": upper,
    }
    return {name: values.numpy() for name, values in columns.items()}


def column_names(target: Target) -> list[str]:
    """The names of :func:`to_columns`."""
    if isinstance(target, ClassTarget):
        return ["class", *_probability_names(target), "entropy", "mutual_information"]
    if isinstance(target, RegressionTargets):
        of_targets = [f"{name}_{column}" for name in target.names for column in _QUANTITY_COLUMNS]
        return [*of_targets, *_correlation_names(target)]
    return list(_QUANTITY_COLUMNS)


def predict_file(
    model: TableEstimator, file: TableFile, level: float = 0.95, keep: Sequence[str] = ()
) -> Iterator[pd.DataFrame]:
    """Predict a file of any size in chunks. The target's column is not used if it is there.

    Warnings that several chunks have in common, and rows outside the training range, are reported once, at the end.

    Args:
        model: a fitted estimator.
        file: the file, from :func:`~credo.tabular.table_files.open_table`.
        level: the probability of the intervals.
        keep: columns of the file to put before those of the predictions.

    Returns:
        An iterator over the predictions of the chunks, as :func:`to_frame` returns them.

    Raises:
        InputError: if a column to keep is absent, or has the name of a column of the predictions.
    """
    check_fraction(level, "level")
    for name in keep:
        if name not in file.names:
            raise unknown_name("column to keep", name, file.names)
    taken = [quoted(name) for name in keep if name in column_names(model.target_)]
    if taken:
        raise InputError(f"kept columns have the names of predictions, {listed(taken)}: rename them, or keep others")
    as_text = [name for name in dict.fromkeys([*keep, *model.columns_.formats]) if name in file.names]
    return _predict_chunks(model, file.chunks(chunk_rows(model), as_text), level, list(dict.fromkeys(keep)))


def chunk_rows(model: TableEstimator) -> int:
    """The number of rows per chunk, such that their draws take little memory."""
    target = model.target_
    per_row = len(target.classes) if isinstance(target, ClassTarget) else len(target.names) ** 2
    return min(max(_MAX_CHUNK_NUMBERS // (max(model.samples, 1) * per_row), 1), _MAX_CHUNK_ROWS)


def predict_features(predictor: Predictor, features: NDArray[Any]) -> Predictive:
    """The predictions of the network, in double precision, for some rows at a time."""
    chunks = [
        predictor(torch.from_numpy(features[start : start + _NETWORK_ROWS]).double()).cpu()
        for start in range(0, max(len(features), 1), _NETWORK_ROWS)
    ]
    return chunks[0] if len(chunks) == 1 else Predictive.concatenate(chunks)


def true_values(target: Target, y: pd.Series) -> Tensor:
    """Targets without missing values as a tensor to score predictions against: quantities, or positions of classes."""
    if isinstance(target, ClassTarget):
        return torch.from_numpy(target.encode(y))
    return torch.from_numpy(target.parse(y))


def _predict_chunks(
    model: TableEstimator, chunks: Iterable[pd.DataFrame], level: float, keep: list[str]
) -> Iterator[pd.DataFrame]:
    kept: deque[pd.DataFrame] = deque()  # not itertools.tee, which keeps the last 57 chunks in memory

    def features() -> Iterator[pd.DataFrame]:
        for chunk in chunks:
            kept.append(chunk[keep].astype(object).reset_index(drop=True))  # floats are written as they were read
            yield chunk.drop(columns=list(model.target_.names), errors="ignore")

    outside = OutsideRange()
    predictives = model.stream(features(), outside)
    collected = _ChunkWarnings()
    while (predictive := collected.collect(lambda: next(predictives, None))) is not None:
        yield pd.concat([kept.popleft(), to_frame(predictive, model.target_, level)], axis=1)
    collected.warn()
    for sentence in outside.sentences():
        warnings.warn(sentence, UserWarning, stacklevel=2)


class _ChunkWarnings:
    """Warnings about the chunks of a table; those that start alike are combined."""

    def __init__(self) -> None:
        self._by_start: dict[str, list[str]] = {}

    def collect(self, function: Callable[[], T]) -> T:
        """Call ``function`` and collect its warnings."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            result = function()
        for sentence in (str(warning.message) for warning in caught):
            self._by_start.setdefault(sentence.partition(":")[0], []).append(sentence)
        return result

    def warn(self) -> None:
        """Issue each warning once, with the text from the first chunk that had it."""
        for first, *later in self._by_start.values():
            again = f" The same in {counted(len(later), 'later chunk')} of the table." if later else ""
            warnings.warn(first + again, UserWarning, stacklevel=3)


def _class_columns(predictive: Predictive, target: ClassTarget) -> dict[str, NDArray[Any]]:
    probabilities = zip(_probability_names(target), predictive.mean.numpy().T, strict=True)
    return {
        "class": target.decode(predictive.mode.numpy()),
        **dict(probabilities),
        "entropy": predictive.entropy.numpy(),
        "mutual_information": predictive.mutual_information.numpy(),
    }


def _columns_of_targets(predictive: Predictive, target: RegressionTargets, level: float) -> dict[str, NDArray[Any]]:
    assert isinstance(predictive, RealPredictive)
    columns = {}
    for k, one in enumerate(target.targets):
        of_target = to_columns(replace(predictive, components=marginal_components(predictive, k)), one, level)
        columns |= {f"{one.name}_{name}": values for name, values in of_target.items()}
    correlation = correlation_of(predictive).numpy()
    of_pairs = zip(_correlation_names(target), pairs(target.names), strict=True)
    return columns | {name: correlation[:, k, j] for name, (k, j) in of_pairs}


def _correlation_names(target: RegressionTargets) -> list[str]:
    return [f"correlation_{target.names[k]}_{target.names[j]}" for k, j in pairs(target.names)]


def _probability_names(target: ClassTarget) -> list[str]:
    """``p_1`` also if integers are stored as 1.0."""
    return [f"p_{int(label) if isinstance(label, float) else label}" for label in target.classes.tolist()]
