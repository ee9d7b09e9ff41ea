"""A target of classes: checked, encoded as positions, and decoded to its labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from credo._text import listed, quoted
from credo.errors import InputError, LoadError
from credo.tabular.dialects import Dialect
from credo.tabular.number_format import FALSE_WORDS, TRUE_WORDS
from credo.tabular.parsing import is_placeholder, to_label
from credo.tabular.target_cells import (
    as_series,
    called,
    is_true,
    is_unknown,
    merge_spellings,
    notes_on_missing,
    parse_labels,
    read_target,
    target_name,
)


@dataclass(frozen=True, eq=False)
class ClassTarget:
    """One of K classes, encoded as its position among them.

    Attributes:
        name: the name of the target's column, or empty.
        classes: the labels ``[K]`` in ascending order: integers, text or booleans, as they were given.
        notes: sentences about rows left out, merged spellings and classes with a single row.
        numeric: whether the labels are numbers, so that texts such as ``?`` are missing.

    Example:
        >>> from credo.tabular import ClassTarget
        >>> target = ClassTarget.learn(["b", "a", "b", "a"])
        >>> target.encode(["a", "b"])
        array([0, 1])
    """

    name: str
    classes: NDArray[Any]
    notes: tuple[str, ...] = ()
    numeric: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The name, as the only one."""
        return (self.name,)

    @classmethod
    def learn(cls, y: Any, dialect: Dialect | None = None) -> ClassTarget:
        """Find the classes.

        Args:
            y: the training labels ``[N]``; missing ones are ignored.
            dialect: what is known about the writing of the table; ``None``: what the target shows.

        Returns:
            The target.

        Raises:
            InputError: if there is one class only, or one for every two rows, or labels are not of one type.
        """
        column = as_series(y)
        name = target_name(column)
        numeric = read_target(column.dropna(), dialect).kind == "number"
        unknown = is_unknown(column, numeric)
        notes = notes_on_missing(column, int(unknown.sum()))
        labels = parse_labels(column[~unknown], name)
        if labels.dtype.kind == "f" and unknown.any():
            labels = labels.astype(np.int64)  # pandas stores integers with missing values as floats
        spellings = merge_spellings(labels)
        if spellings:
            merged = listed(sorted(quoted(label) for label in spellings))
            notes.append(f"Spellings of words for true and false are merged into two classes: {merged}.")
            labels = np.array([spellings[label] for label in labels.tolist()])
        classes, rows = np.unique(labels, return_counts=True)
        if len(classes) == 1:
            raise InputError(f"the {called(name)} holds one class only, {quoted(classes[0])}: at least two are needed")
        if len(classes) > max(2, len(labels) / 2):
            raise InputError(
                f"the {called(name)} holds {len(classes):,} classes in {len(labels):,} rows, too many to learn from: "
                "use regression (credo.Regressor) if it is a quantity, or choose another column"
            )
        single = [quoted(label) for label in classes[rows == 1]]
        if single:
            notes.append(f"The {called(name)} has classes with a single row: {listed(single)}.")
        words = [quoted(label) for label in classes if is_placeholder(label)]
        if words:
            notes.append(f"The {called(name)} has classes that may stand for a missing value: {listed(words)}.")
        return cls(name, classes, tuple(notes), numeric)

    def encode(self, y: Any) -> NDArray[np.int64]:
        """Encode labels.

        Args:
            y: the labels ``[N]``, none of them missing; 1, 1.0 and ``"1"`` are the same label.

        Returns:
            Positions among the classes ``[N]``.

        Raises:
            InputError: if a label is not one of the classes.
        """
        cells = as_series(y).tolist()
        positions = [self._find(cell) for cell in cells]
        if -1 in positions:
            row = positions.index(-1)
            raise InputError(
                f"the {called(self.name)} holds {quoted(cells[row])} in row {row}, counted from 0, which is none of "
                f"the {len(self.classes):,} classes of training ({listed([quoted(c) for c in self.classes])})"
            )
        return np.array(positions, dtype=np.int64)

    def decode(self, positions: Any) -> NDArray[Any]:
        """Decode labels.

        Args:
            positions: among the classes, of any shape.

        Returns:
            The labels, with the dtype they had in training.
        """
        return np.asarray(self.classes[np.asarray(positions)])

    def get_config(self) -> dict[str, object]:
        """The attributes as JSON values.

        Returns:
            A mapping for :meth:`from_config`.
        """
        labels = {"classes": self.classes.tolist(), "dtype": self.classes.dtype.str}
        return {"name": self.name, **labels, "notes": list(self.notes), "numeric": self.numeric}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> ClassTarget:
        """Restore a target.

        Args:
            config: what :meth:`get_config` returned.

        Returns:
            The target.

        Raises:
            LoadError: if an entry is missing or has the wrong type.
        """
        try:
            labels, dtype = np.array(config["classes"]), np.dtype(config["dtype"])
            if labels.dtype.kind not in "biufU" or dtype.kind not in "biufU":
                raise ValueError("classes must be text, numbers or booleans")
            classes = (
                labels if dtype.kind == "U" else labels.astype(dtype)
            )  # a damaged length could allocate any amount of memory
            if classes.tolist() != config["classes"] or not np.array_equal(classes, np.unique(labels)):
                raise ValueError("classes must be different, of one type and in ascending order")
            return cls(str(config["name"]), classes, tuple(config["notes"]), bool(config["numeric"]))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise LoadError(f"the saved description of the target is damaged: {error!r}") from error

    def _find(self, cell: object) -> int:
        """The position of a label, -1 if it is none: as it was given, as a number or text, or as a word for true."""
        position = self._position.get(cell, self._position.get(to_label(cell), -1))
        if position < 0 and isinstance(cell, str) and self._truths:
            position = self._truths.get(cell.strip().casefold(), -1)
        return position

    @cached_property
    def _truths(self) -> dict[str, int]:
        """The positions of all words for true and false, if the two classes are such words."""
        words = [str(label).strip().casefold() for label in self.classes]
        if self.classes.dtype.kind != "U" or len(words) != 2 or not set(words) <= TRUE_WORDS | FALSE_WORDS:
            return {}
        true = next((k for k, word in enumerate(words) if is_true(word)), 0)
        if is_true(words[1 - true]):
            return {}
        return dict.fromkeys(TRUE_WORDS, true) | dict.fromkeys(FALSE_WORDS, 1 - true)

    @cached_property
    def _position(self) -> dict[object, int]:
        labels = self.classes.tolist()
        by_text: dict[object, int] = {to_label(label): k for k, label in enumerate(labels)}
        return by_text | {None: -1} | {label: k for k, label in enumerate(labels)}
