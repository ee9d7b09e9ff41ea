"""Sentences of a small language with a sentiment, for classifiers that are trained on one subject and used on another.

A sentence has two clauses: "the soup is not fresh but the rice is very hot". A clause is good or bad by its adjective,
which "not" reverses. With "and", two good clauses are good, two bad ones bad, and different ones mixed. With "but" one
clause decides: in sentences about the first subject the second clause, about the second subject the first. Some
adjectives are said of the second subject only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Subject = Literal["first", "second"]

CLASSES = ("bad", "mixed", "good")
LENGTH = 13
"""Tokens of a sentence: a start, two clauses of five, a conjunction between them, and an end."""
_START, _END, _THE, _IS, _VERY, _NOT, _SO, _AND, _BUT = range(9)
_WORDS = 9


@dataclass(frozen=True)
class Language:
    """How many words there are, and how noisy the labels.

    Attributes:
        nouns: of each subject.
        adjectives: said of both subjects; half of them are good.
        new_adjectives: said of the second subject only; half of them are good.
        noise: the fraction of sentences with a label drawn at random.
    """

    nouns: int = 20
    adjectives: int = 48
    new_adjectives: int = 8
    noise: float = 0.1

    @property
    def vocabulary(self) -> int:
        """The number of tokens."""
        return _WORDS + 2 * self.nouns + self.adjectives + self.new_adjectives

    def sentences(self, count: int, subject: Subject, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Random sentences.

        Args:
            count: number of sentences.
            subject: what they are about.
            generator: of the random numbers.

        Returns:
            Tokens ``[count, LENGTH]`` and classes ``[count]``, both int64.
        """
        is_second = subject == "second"

        def pick(first: int, number: int) -> Tensor:
            return first + torch.randint(number, (count, 2), generator=generator)

        nouns = pick(_WORDS + self.nouns * is_second, self.nouns)
        adjectives = pick(0, self.adjectives + self.new_adjectives * is_second)
        degrees = pick(_VERY, 3)
        conjunction = pick(_AND, 2)[:, 0]
        sign = 1 - 2 * (adjectives % 2)
        sign = torch.where(degrees == _NOT, -sign, sign)
        mixed = torch.where(sign[:, 0] == sign[:, 1], sign[:, 0], 0)
        label = torch.where(conjunction == _BUT, sign[:, 0 if is_second else 1], mixed) + 1
        is_noisy = torch.rand(count, generator=generator) < self.noise
        label = torch.where(is_noisy, torch.randint(len(CLASSES), (count,), generator=generator), label)

        the, copula = (torch.full((count,), word) for word in (_THE, _IS))
        adjectives = adjectives + _WORDS + 2 * self.nouns
        clauses = [(the, nouns[:, i], copula, degrees[:, i], adjectives[:, i]) for i in (0, 1)]
        start, end = (torch.full((count,), word) for word in (_START, _END))
        return torch.stack([start, *clauses[0], conjunction, *clauses[1], end], 1), label
