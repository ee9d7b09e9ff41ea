"""Predictions as tables: a row for every row that came in, with what is expected and how sure that is."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from credo._arguments import check_fraction
from credo.errors import InputError, unknown_name
from credo.predictive import Predictive
from credo.tabular.extrapolation import OutsideRange
from credo.tabular.sources import Source
from credo.tabular.targets import ClassTarget, RegressionTarget
from credo.tabular.wording import counted, listed, quoted

if TYPE_CHECKING:
    from credo.tabular.base import TableEstimator

T = TypeVar("T")

_NUMBERS_AT_ONCE = 2**22  # that the draws of one piece may hold: 32 MiB
_MOST_ROWS = 5_000  # a piece of more takes more memory and no less time


def to_frame(predictive: Predictive, target: RegressionTarget | ClassTarget, level: float = 0.95) -> pd.DataFrame:
    """What a prediction says of every row, in plain columns.

    A quantity has ``mean``; ``std``, ``epistemic`` and ``aleatoric``, all standard deviations, so that
    std² = epistemic² + aleatoric²; and the bounds ``lower`` and ``upper`` of its central interval. A class has
    ``class``, the most probable one; ``p_<class>``, the probability of each; and ``entropy`` and
    ``mutual_information`` in nats.

    Args:
        predictive: of B rows.
        target: what was predicted.
        level: how probable it is that a quantity lies between its bounds.
    """
    if isinstance(target, ClassTarget):
        return _of_classes(predictive, target)
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
    return pd.DataFrame({name: values.numpy() for name, values in columns.items()})


def column_names(target: RegressionTarget | ClassTarget) -> list[str]:
    """The columns of :func:`to_frame`."""
    if isinstance(target, ClassTarget):
        return ["class", *_probability_names(target), "entropy", "mutual_information"]
    return ["mean", "std", "epistemic", "aleatoric", "lower", "upper"]


def predict_source(
    model: TableEstimator, source: Source, level: float = 0.95, keep: Sequence[str] = ()
) -> Iterator[pd.DataFrame]:
    """The predictions of a file of any size, piece by piece; the column to predict, where it is there, is not used.

    What is worth a note in several pieces is warned of once, at the end, and so are rows outside the training range.

    Args:
        model: fitted.
        source: the file, by :func:`~credo.tabular.sources.open_source`.
        level: of the bounds of quantities.
        keep: columns of the file to put before those of the predictions.
    """
    check_fraction(level, "level")
    for name in keep:
        if name not in source.names:
            raise unknown_name("column to keep", name, source.names)
    taken = [quoted(name) for name in keep if name in column_names(model.target_)]
    if taken:
        raise InputError(
            f"kept columns would be mistaken for predictions, {listed(taken)}: rename them, or keep others"
        )
    return _predict_pieces(model, source.pieces(rows_at_once(model), as_text=keep), level, list(dict.fromkeys(keep)))


def rows_at_once(model: TableEstimator) -> int:
    """How many rows a piece may have for its draws not to take much memory."""
    per_row = len(model.target_.classes) if isinstance(model.target_, ClassTarget) else 1
    return min(max(_NUMBERS_AT_ONCE // (max(model.samples, 1) * per_row), 1), _MOST_ROWS)


def true_values(target: RegressionTarget | ClassTarget, y: pd.Series) -> Tensor:
    """Targets that are all known, as predictions are scored against: quantities, or positions among the classes."""
    if isinstance(target, ClassTarget):
        return torch.from_numpy(target.encode(y))
    return torch.from_numpy(target.unstandardize(target.standardize(y).astype(np.float64)))


def _predict_pieces(
    model: TableEstimator, pieces: Iterable[pd.DataFrame], level: float, keep: list[str]
) -> Iterator[pd.DataFrame]:
    waiting: deque[pd.DataFrame] = deque()  # not itertools.tee, which holds on to the last 57 pieces

    def features() -> Iterator[pd.DataFrame]:
        for piece in pieces:
            waiting.append(piece[keep].astype(object).reset_index(drop=True))  # floats are written as they came
            yield piece.drop(columns=model.target_.name, errors="ignore")

    outside = OutsideRange()
    predictives = model.stream(features(), outside)
    notes = _Notes()
    while (predictive := notes.during(lambda: next(predictives, None))) is not None:
        yield pd.concat([waiting.popleft(), to_frame(predictive, model.target_, level)], axis=1)
    notes.warn()
    for sentence in outside.sentences():
        warnings.warn(sentence, UserWarning, stacklevel=2)


class _Notes:
    """Warnings about the pieces of a table, of which all that start alike are said once."""

    def __init__(self) -> None:
        self._alike: dict[str, list[str]] = {}

    def during(self, step: Callable[[], T]) -> T:
        """What ``step`` returns, after noting what it warned of."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            result = step()
        for sentence in (str(warning.message) for warning in caught):
            self._alike.setdefault(sentence.partition(":")[0], []).append(sentence)
        return result

    def warn(self) -> None:
        """Warn of everything, in the words of the piece where it was met first."""
        for first, *later in self._alike.values():
            again = f" The same in {counted(len(later), 'later piece')} of the table." if later else ""
            warnings.warn(first + again, UserWarning, stacklevel=3)


def _of_classes(predictive: Predictive, target: ClassTarget) -> pd.DataFrame:
    probabilities = pd.DataFrame(predictive.mean.numpy(), columns=_probability_names(target))
    probabilities.insert(0, "class", target.decode(predictive.mode.numpy()))
    return probabilities.assign(
        entropy=predictive.entropy.numpy(), mutual_information=predictive.mutual_information.numpy()
    )


def _probability_names(target: ClassTarget) -> list[str]:
    """``p_1`` also where integers are stored as 1.0."""
    return [f"p_{int(label) if isinstance(label, float) else label}" for label in target.classes.tolist()]
