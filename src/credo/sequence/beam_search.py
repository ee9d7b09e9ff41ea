"""Beam search: the most probable sequences of tokens, for any function that predicts the next token."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from credo._arguments import check_integer
from credo.errors import InputError
from credo.nests import count_rows, have_equal_rows, map_tensors, tensors

Step: TypeAlias = Callable[[Tensor, Any], tuple[Tensor, Any]]
"""``step(tokens, state)``: log probabilities ``[N, V]`` of the token after ``tokens`` ``[N]``, and the new state."""


class Beams(NamedTuple):
    """The most probable sequences that a beam search found, the best first.

    Attributes:
        tokens: ``[B, width, T]``, int64; what follows the end token of a sequence is the end token again.
        log_prob: log probability of each sequence in nats, ``[B, width]``; −∞ where there are fewer sequences than
            beams.
    """

    tokens: Tensor
    log_prob: Tensor


@torch.no_grad()
def beam_search(step: Step, state: Any, *, start: int, end: int, length: int, width: int = 5) -> Beams:
    r"""Search for the sequences of the highest probability, Π_t p(w_t | w_{<t}), token by token.

    Of the V·``width`` continuations of the sequences so far the ``width`` most probable ones are kept. ``width=1`` is
    greedy search; with V^T beams, no sequence of T tokens is ever left out and the result is exact. A sequence is
    complete after its end token, and competes with the others by the probability it has. The search ends when all
    kept sequences are complete, or after ``length`` tokens.

    Args:
        step: ``step(tokens, state)`` returns log probabilities ``[N, V]`` of the token after ``tokens`` ``[N]``, and
            the new state, for N = B·width rows.
        state: the state before the first token: a tensor, or a tuple, list or mapping of tensors, each with B rows
            along dim 0.
        start: the token before the first.
        end: the token that completes a sequence.
        length: the largest number of tokens, the end token included.
        width: number of sequences that are kept.

    Returns:
        The sequences of every row and their log probabilities.

    Raises:
        InputError: if the tensors of ``state`` have different numbers of rows, ``length`` or ``width`` is below 1,
            ``start`` or ``end`` is no index, or ``step`` returns probabilities of the wrong shape.

    Example:
        >>> transition = torch.tensor([[0.1, 0.9], [0.6, 0.4]]).log()
        >>> step = lambda last, state: (transition[last], state)
        >>> beams = beam_search(step, torch.zeros(1), start=0, end=0, length=3)
        >>> beams.tokens[0, 0].tolist()
        [1, 0, 0]
    """
    check_integer(length, "length", 1)
    end, start = check_integer(end, "end", 0), check_integer(start, "start", 0)
    width = check_integer(width, "width", 1)
    rows = count_rows(state)
    if not have_equal_rows(state):
        raise InputError("all tensors of state must have the same number of rows along dim 0")
    state = map_tensors(lambda t: t.repeat_interleave(width, 0), state)
    device = tensors(state)[0].device
    first_row = width * torch.arange(rows, device=device)[:, None]
    last = torch.full((rows * width,), start, device=device)
    tokens = torch.empty(rows, width, 0, dtype=torch.int64, device=device)
    complete = torch.zeros(rows, width, dtype=torch.bool, device=device)
    scores: Tensor | None = None
    for _ in range(length):
        log_p, state = step(last, state)
        if log_p.dim() != 2 or len(log_p) != rows * width or not start < log_p.shape[1] > end:
            raise InputError(
                f"step must return log probabilities [{rows * width}, V] with V above the start and the end token, got "
                f"{list(log_p.shape)}"
            )
        vocabulary = log_p.shape[1]
        if scores is None:  # all beams start alike: one of them is enough
            scores = log_p.new_full((rows, width), -math.inf)
            scores[:, 0] = 0.0
        stay = log_p.new_full((vocabulary,), -math.inf)
        stay[end] = 0.0
        continued = torch.where(complete[..., None], stay, log_p.view(rows, width, vocabulary))
        scores, chosen = (scores[..., None] + continued).flatten(1).topk(width, 1)
        parent, token = chosen // vocabulary, chosen % vocabulary
        tokens = torch.cat([tokens.gather(1, parent[..., None].expand_as(tokens)), token[..., None]], -1)
        complete = complete.gather(1, parent) | (token == end)
        if bool((complete | (scores == -math.inf)).all()):
            break
        last = token.flatten()
        state = _select_rows(state, (first_row + parent).flatten())
    assert scores is not None
    return Beams(tokens, scores)


def _select_rows(state: Any, rows: Tensor) -> Any:
    return map_tensors(lambda t: t[rows], state)
