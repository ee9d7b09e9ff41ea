"""Words as 0/1 features, one a category."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from credo.tabular.wording import counted

MOST_CATEGORIES = 30
"""Categories of a column with a feature of their own."""

FEWEST_ROWS = 2
"""Rows that a category needs for a feature of its own."""

REPEATED_SHARE = 0.5
"""A column of words is of use if this share of its values, at least, occurs more than once."""

_MOST_REMEMBERED = 1000

Words = Sequence[str | None]


@dataclass(frozen=True)
class Category:
    """One-hot features of a column of words.

    The most frequent categories have a feature each, words too rare for that share one, "other", and missing values
    have one; the last two only if training had such rows. A word that training never had counts as "other", and has
    no feature set where there is no "other": a feature that was 0 in all of training has weights that no data formed.

    Attributes:
        name: of the column.
        kept: the categories with a feature of their own, most frequent first, equals in alphabetical order.
        rare: words known from training that share "other"; the 1,000 most frequent.
        has_gaps: whether training had missing values.
    """

    name: str
    kept: tuple[str, ...]
    rare: tuple[str, ...]
    has_gaps: bool

    @classmethod
    def learn(cls, name: str, words: Words) -> Category:
        """From the words of all rows, ``None`` where missing."""
        ranked = ranking(words)
        kept = [word for word, rows in ranked[:MOST_CATEGORIES] if rows >= FEWEST_ROWS]
        rare = [word for word, _ in ranked[len(kept) : len(kept) + _MOST_REMEMBERED]]
        return cls(name, tuple(kept), tuple(rare), None in words)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """One a category, then "other", then "missing"."""
        other = (f"{self.name} (other)",) if self.rare else ()
        missing = (f"{self.name} (missing)",) if self.has_gaps else ()
        return (*(f"{self.name}={word}" for word in self.kept), *other, *missing)

    @property
    def treatment(self) -> str:
        """What is done with the column."""
        others = [*(["other"] if self.rare else []), *(["missing"] if self.has_gaps else [])]
        return f"one-hot: {' and '.join([counted(len(self.kept), 'category'), *others])}"

    def encode(self, words: Words) -> NDArray[np.float32]:
        """Zeros and ones ``[N, K]``."""
        other = len(self.kept) if self.rare else -1
        missing = len(self.kept) + bool(self.rare) if self.has_gaps else other
        slots = np.array([missing if w is None else self._slot.get(w, other) for w in words], dtype=np.intp)
        features = np.zeros((len(words), len(self.feature_names)), dtype=np.float32)
        set_rows = np.flatnonzero(slots >= 0)
        features[set_rows, slots[set_rows]] = 1.0
        return features

    def unseen(self, words: Words) -> list[str]:
        """Those of ``words`` that training did not have, "missing" among them.

        Where training had more words than are remembered, new ones are to be expected, and none is reported.
        """
        if len(self.rare) == _MOST_REMEMBERED:
            return []
        known = {*self.kept, *self.rare, *([None] if self.has_gaps else [])}
        return ["missing" if word is None else word for word in words if word not in known]

    def get_config(self) -> dict[str, object]:
        """The attributes as JSON holds them."""
        return {"name": self.name, "kept": list(self.kept), "rare": list(self.rare), "has_gaps": self.has_gaps}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Category:
        """The inverse of :meth:`get_config`."""
        return cls(config["name"], tuple(config["kept"]), tuple(config["rare"]), bool(config["has_gaps"]))

    @cached_property
    def _slot(self) -> dict[str, int]:
        return {word: slot for slot, word in enumerate(self.kept)}


def ranking(words: Words) -> list[tuple[str, int]]:
    """The categories and their numbers of rows, most frequent first, equals in alphabetical order."""
    counts = Counter(word for word in words if word is not None)
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def repeated_share(words: Words) -> float:
    """The share of the values, without the missing, that occur in at least two rows."""
    counts = Counter(word for word in words if word is not None)
    return sum(rows for rows in counts.values() if rows >= FEWEST_ROWS) / max(1, counts.total())
