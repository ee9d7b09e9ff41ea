"""A long sequence as minibatches for truncated backpropagation through time."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from credo._arguments import check_integer
from credo.errors import InputError


class TokenStream(DataLoader[Any]):
    r"""A sequence of tokens as minibatches that continue each other.

    The sequence is laid out in ``batch_size`` rows of equal length, which are read in parallel. Minibatch i holds steps
    i·T to (i + 1)·T of every row, T = ``length``, and its targets are the tokens one step later. The state of a
    recurrent network goes on from one minibatch to the next (:class:`CarriedState`); a minibatch says in ``start``
    whether it is the first.

    A datum is one row of one minibatch, so the loss of a method is, per datum,

        −mean_rows Σ_t log p(y_t | x_{≤t}, w) + KL/(B·C)

    for C minibatches of B rows: the whole KL is spread over an epoch.

    Args:
        tokens: indices ``[N]``, integers of any width; a text as bytes has those from 0 to 255.
        batch_size: number of rows B; the last (N − 1) mod B tokens are left out.
        length: number of steps T of a minibatch; the last may be shorter, and ``fit(accumulate=...)`` cannot put it
            together with others then.

    Attributes:
        n_data: the number of data, B·C.
        n_tokens: the number of targets.

    Raises:
        InputError: if ``tokens`` is no sequence of integers, or too short for ``batch_size`` rows.

    Example:
        >>> (x, start), y = next(iter(TokenStream(torch.arange(21), batch_size=2, length=5)))
        >>> x[1].tolist(), y[1].tolist()
        ([10, 11, 12, 13, 14], [11, 12, 13, 14, 15])

    Reference: M. Fortunato, C. Blundell, O. Vinyals, "Bayesian recurrent neural networks", arXiv:1704.02798, 2017.
    """

    def __init__(self, tokens: Any, batch_size: int = 20, length: int = 35) -> None:
        cuts = _Cuts(as_tokens(tokens), check_integer(batch_size, "batch_size", 1), length)
        # A loader draws a seed for workers at every pass: of its own generator, so that reading leaves torch's alone.
        super().__init__(cuts, batch_size=None, shuffle=False, generator=torch.Generator())
        self.n_data, self.n_tokens = cuts.n_data, cuts.rows.shape[0] * (cuts.rows.shape[1] - 1)


def as_tokens(tokens: Any) -> Tensor:
    """Return a sequence of integers as int64 ``[N]``.

    Raises:
        InputError: if it is something else, such as words.
    """
    given = np.frombuffer(tokens, np.uint8) if isinstance(tokens, bytes) else tokens
    try:
        # a copy of an array: torch warns of one that cannot be written to, such as a file mapped into memory
        found = given if isinstance(given, Tensor) else torch.as_tensor(np.array(given))
    except (TypeError, ValueError, RuntimeError):
        first = tokens[0] if isinstance(tokens, list | tuple) and tokens else tokens
        raise InputError(
            f"tokens must be integers, the indices of words in a vocabulary, got {type(first).__name__}: number the "
            "words first, such as {word: i for i, word in enumerate(dict.fromkeys(words))}"
        ) from None
    is_integer = not (found.is_floating_point() or found.is_complex() or found.dtype == torch.bool)
    if found.dim() != 1 or not is_integer:
        raise InputError(f"tokens must be one sequence of integers, got {found.dtype} of {list(found.shape)}")
    return found.to(torch.int64)


class _Cuts(Dataset[Any]):
    """The minibatches by number.

    Attributes:
        rows: ``[B, steps + 1]``; the last token of a row is only a target.
        n_data: rows times minibatches.
    """

    def __init__(self, tokens: Tensor, batch_size: int, length: int) -> None:
        steps = (len(tokens) - 1) // batch_size
        if steps < 1:
            raise InputError(f"{len(tokens)} tokens are too few for {batch_size} rows; choose a smaller batch_size")
        inputs = tokens[: steps * batch_size].view(batch_size, steps)
        self.rows = torch.cat([inputs, tokens[steps : steps * batch_size + 1 : steps][:, None]], dim=1)
        self.length = check_integer(length, "length", 1)
        self.n_data = len(self) * batch_size

    def __len__(self) -> int:
        return -(-(self.rows.shape[1] - 1) // self.length)

    def __getitem__(self, i: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
        if not 0 <= i < len(self):
            raise IndexError(i)
        begin = i * self.length
        window = self.rows[:, begin : begin + self.length + 1]
        start = torch.full((len(window),), i == 0, device=window.device)
        return (window[:, :-1], start), window[:, 1:]
