"""Beam search against exhaustive search: all sequences enumerated and scored one by one."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from credo.errors import InputError
from credo.sequence import beam_search

VOCABULARY, LENGTH, START, END = 3, 4, 2, 0


def markov_chains(rows: int) -> Tensor:
    """Random log transition probabilities ``[rows, V, V]``."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(rows, VOCABULARY, VOCABULARY, generator=generator, dtype=torch.float64).log_softmax(-1)


def step_of_chain(tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    return state[torch.arange(len(tokens)), tokens], state


def complete_sequences(length: int) -> list[tuple[int, ...]]:
    """All sequences of ``length`` tokens; after an end token there are only end tokens."""
    return [
        tokens
        for tokens in itertools.product(range(VOCABULARY), repeat=length)
        if END not in tokens or set(tokens[tokens.index(END) :]) == {END}
    ]


def log_prob_of_chain(tokens: tuple[int, ...], transition: Tensor) -> float:
    total, last = 0.0, START
    for token in tokens:
        total += float(transition[last, token])
        if token == END:
            break
        last = token
    return total


def test_widest_beam_finds_every_sequence_in_order_of_its_probability():
    chains = markov_chains(5)
    width = VOCABULARY**LENGTH
    found = beam_search(step_of_chain, chains, start=START, end=END, length=LENGTH, width=width)
    sequences = complete_sequences(LENGTH)
    assert found.tokens.shape == (5, width, LENGTH)
    for row, transition in enumerate(chains):
        tokens = [tuple(t) for t in found.tokens[row, : len(sequences)].tolist()]
        assert sorted(tokens) == sequences
        expected = torch.tensor([log_prob_of_chain(t, transition) for t in tokens], dtype=torch.float64)
        torch.testing.assert_close(found.log_prob[row, : len(sequences)], expected)
        assert (found.log_prob[row, 1:] <= found.log_prob[row, :-1]).all()
        assert (found.log_prob[row, len(sequences) :] == -math.inf).all()
        assert math.isclose(found.log_prob[row].exp().sum(), 1.0)


def test_one_beam_is_greedy_search():
    chains = markov_chains(20)
    found = beam_search(step_of_chain, chains, start=START, end=END, length=LENGTH, width=1)
    for row, transition in enumerate(chains):
        last, expected = START, []
        while len(expected) < found.tokens.shape[-1]:
            last = END if END in expected else int(transition[last].argmax())
            expected.append(last)
        assert found.tokens[row, 0].tolist() == expected
        assert float(found.log_prob[row, 0]) == pytest.approx(log_prob_of_chain(tuple(expected), transition))


def test_two_beams_find_what_greedy_search_misses():
    """0.6·0.5 = 0.30 by the more probable first token, 0.4·0.9 = 0.36 by the other."""
    transition = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.25, 0.25], [0.9, 0.05, 0.05]]).log()

    def step(tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        first = torch.tensor([0.0, 0.6, 0.4]).log().expand(len(tokens), -1)
        return torch.where(state[:, None] == 0, first, transition[tokens]), state + 1

    state = torch.zeros(1)
    greedy = beam_search(step, state, start=1, end=0, length=2, width=1)
    two = beam_search(step, state, start=1, end=0, length=2, width=2)
    assert greedy.tokens[0, 0].tolist() == [1, 0]
    assert two.tokens[0, 0].tolist() == [2, 0]
    assert float(two.log_prob[0, 0].exp()) == pytest.approx(0.36)


@pytest.mark.parametrize("width", [1, 4, VOCABULARY**LENGTH])
def test_states_follow_their_sequences(width):
    """The next token depends on the whole history, which only the state holds: scores must be those of the tokens."""
    generator = torch.Generator().manual_seed(1)
    table = torch.randn(2 * (VOCABULARY + 1) ** LENGTH, VOCABULARY, generator=generator, dtype=torch.float64)

    def advance(history: Tensor, tokens: Tensor) -> Tensor:
        return (history * (VOCABULARY + 1) + tokens + 1) % len(table)

    def step(tokens: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        history = advance(state["history"], tokens)
        return table[history].log_softmax(-1), {"history": history}

    rows = torch.tensor([3, 50])
    found = beam_search(step, {"history": rows}, start=START, end=END, length=LENGTH, width=width)

    def score(row: Tensor, tokens: tuple[int, ...]) -> float:
        total, history, last = 0.0, row, START
        for token in tokens:
            history = advance(history, torch.tensor(last))
            total += float(table[history].log_softmax(-1)[token])
            if token == END:
                break
            last = token
        return total

    for row, tokens, log_prob in zip(rows, found.tokens, found.log_prob, strict=True):
        best = tuple(tokens[0].tolist())
        assert float(log_prob[0]) == pytest.approx(score(row, best))
        if width == VOCABULARY**LENGTH:
            assert best == max(complete_sequences(LENGTH), key=lambda sequence: score(row, sequence))


def test_search_ends_when_all_sequences_are_complete():
    log_p = torch.tensor([1.0, 0.0, 0.0]).log()
    found = beam_search(lambda tokens, s: (log_p.expand(len(tokens), -1), s), torch.zeros(2), start=0, end=0, length=9)
    assert found.tokens.shape == (2, 5, 1)
    assert found.log_prob[:, 0].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("options", "state", "message"),
    [
        ({"width": 0}, torch.zeros(2), "width must be"),
        ({"length": 0}, torch.zeros(2), "length must be"),
        ({"end": -1}, torch.zeros(2), "end must be an integer of at least 0, got -1"),
        ({"start": 0.5}, torch.zeros(2), "start must be an integer"),
        ({"end": 3}, torch.zeros(2), "V above the start and the end token"),
        ({}, (torch.zeros(2), torch.zeros(3)), "the same number of rows"),
    ],
)
def test_invalid_arguments_raise(options, state, message):
    arguments = {"start": START, "end": END, "length": LENGTH, **options}
    with pytest.raises(InputError, match=message):
        beam_search(lambda tokens, s: (torch.zeros(len(tokens), VOCABULARY), s), state, **arguments)
