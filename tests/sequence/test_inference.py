"""The recursions against enumeration of all paths, and against each other."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
import torch

from credo.sequence import _inference
from credo.sequence._inference import MarkovChain, SequenceLayout, smooth, split_lengths, viterbi

CPU = torch.device("cpu")


def layout(*lengths: int) -> SequenceLayout:
    return SequenceLayout(np.array(lengths), CPU)


def chain(states: int, seed: int = 0, zeros: bool = False) -> MarkovChain:
    rng = np.random.default_rng(seed)
    start, transition = rng.dirichlet(np.ones(states)), rng.dirichlet(np.ones(states), states)
    if zeros:
        transition = np.triu(transition)
        transition /= transition.sum(1, keepdims=True)
        start = np.eye(states)[0]
    return MarkovChain(torch.tensor(start), torch.tensor(transition))


def emissions(rows: int, states: int, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    return torch.tensor(scale * np.random.default_rng(seed).normal(size=(rows, states)))


def enumerated(
    model: MarkovChain, log_emission: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray, tuple[int, ...], float]:
    """Likelihood, posterior, transitions, best path and its probability of one sequence, from all K^T paths."""
    steps, states = log_emission.shape
    start, transition, b = model.start.numpy(), model.transition.numpy(), np.exp(log_emission)
    total, posterior, transitions = 0.0, np.zeros((steps, states)), np.zeros((states, states))
    best, best_path = -1.0, ()
    for path in product(range(states), repeat=steps):
        p = start[path[0]] * np.prod([b[t, z] for t, z in enumerate(path)])
        p *= np.prod([transition[i, j] for i, j in pairwise(path)])
        total += p
        for t, z in enumerate(path):
            posterior[t, z] += p
        for i, j in pairwise(path):
            transitions[i, j] += p
        if p > best:
            best, best_path = p, path
    return np.log(total), posterior / total, transitions / total, best_path, np.log(best)


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("states", [1, 2, 3])
def test_recursions_match_enumeration_of_all_paths(states, zeros):
    lengths = (4, 1, 6, 2)
    model, b = chain(states, zeros=zeros), emissions(sum(lengths), states)
    where = layout(*lengths)
    found = smooth(model, b, where)
    path, log_prob = viterbi(model.start.numpy(), model.transition.numpy(), b.numpy(), where)
    transitions = np.zeros((states, states))
    for s, (begin, length) in enumerate(zip(where.first_rows, lengths, strict=True)):
        rows = slice(begin, begin + length)
        exact = enumerated(model, b[rows].numpy())
        assert float(found.log_likelihood[s]) == pytest.approx(exact[0], rel=1e-12)
        assert float(found.log_densities[rows].sum()) == pytest.approx(exact[0], rel=1e-12)
        np.testing.assert_allclose(found.posterior[rows], exact[1], atol=1e-12)
        transitions += exact[2]
        assert tuple(path[rows]) == exact[3]
        assert log_prob[s] == pytest.approx(exact[4], rel=1e-12)
    np.testing.assert_allclose(found.transition_counts(model), transitions, atol=1e-12)


@pytest.mark.parametrize("zeros", [False, True])
def test_segments_match_plain_recursion(monkeypatch, zeros):
    model, b, where = chain(4, 1, zeros), emissions(700, 4, 1, scale=3.0), layout(300, 7, 1, 392)
    in_segments = smooth(model, b, where)
    monkeypatch.setattr(_inference, "_MIN_STEPS_FOR_SEGMENTS", 10_000)
    plain = smooth(model, b, where)
    for name in ("forward", "backward", "log_likelihood"):
        # logs of some hundred nats, added up in another order
        torch.testing.assert_close(getattr(in_segments, name), getattr(plain, name), rtol=1e-12, atol=1e-10)


def test_matrix_products_match_logsumexp(monkeypatch):
    model, b, where = chain(5, 2), emissions(400, 5, 2, scale=300.0), layout(150, 250)
    quick = smooth(model, b, where)
    monkeypatch.setattr(_inference, "MIN_REGULAR_TRANSITION", 2.0)
    model = MarkovChain(model.start, model.transition)
    careful = smooth(model, b, where)
    assert not model.is_regular
    torch.testing.assert_close(quick.forward, careful.forward, rtol=1e-12, atol=1e-9)
    # e to differences of logs of size 1e5, which carry 11 digits
    torch.testing.assert_close(quick.posterior, careful.posterior, rtol=0.0, atol=1e-9)
    torch.testing.assert_close(
        quick.transition_counts(chain(5, 2)), careful.transition_counts(model), rtol=0.0, atol=1e-7
    )


def test_path_through_a_state_of_tiny_probability_is_kept():
    # the only way to state 2 leads through state 1, which the first row makes e⁻²⁰⁰⁰ times less probable than state 0
    model = MarkovChain(
        torch.tensor([0.5, 0.5, 0.0]), torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.5, 0.5], [0.0, 0.0, 1.0]])
    )
    model = MarkovChain(model.start.double(), model.transition.double())
    b = torch.tensor([[0.0, -2000.0, 0.0], [-9000.0, -9000.0, 0.0]], dtype=torch.float64)
    found = smooth(model, b, layout(2))
    assert float(found.log_likelihood[0]) == pytest.approx(-2000.0 + np.log(0.25), rel=1e-12)
    np.testing.assert_allclose(found.posterior, [[0, 1, 0], [0, 0, 1]], atol=1e-12)


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("rows", [(5, 6, 3), (300, 4)])
def test_row_far_from_all_states_does_not_reduce_precision_of_others(zeros, rows):
    """A density that all states share must cancel, though 2⁻⁶⁰ of it would be a nat."""
    model, where, total = chain(3, 1, zeros), layout(*rows), sum(rows)
    # multiples of 2¹⁰, so that the common part can be added without rounding
    b = (emissions(total, 3, 1) * 2.0).round() * 2.0**10
    far = b.clone()
    far[[2, total - 2]] -= 2.0**60
    here, there = smooth(model, b, where), smooth(model, far, where)
    torch.testing.assert_close(there.posterior, here.posterior, rtol=0.0, atol=1e-12)
    torch.testing.assert_close(there.transition_counts(model), here.transition_counts(model), rtol=0.0, atol=1e-12)
    start, transition = model.start.numpy(), model.transition.numpy()
    expected, _ = viterbi(start, transition, b.numpy(), where)
    np.testing.assert_array_equal(viterbi(start, transition, far.numpy(), where)[0], expected)


def test_ten_thousand_steps_do_not_underflow():
    model, b = chain(3), emissions(10_000, 3) - 500.0
    found = smooth(model, b, layout(10_000))
    # e⁻⁵⁰⁰ a row: float64 ends after two of them
    assert float(found.log_likelihood[0]) == pytest.approx(
        float(smooth(model, b + 500.0, layout(10_000)).log_likelihood[0]) - 500.0 * 10_000, rel=1e-12
    )
    np.testing.assert_allclose(found.posterior.sum(1), 1.0, rtol=1e-8)


def test_layout_visits_every_row_once_per_direction():
    where = layout(2, 5, 1, 5)
    assert where.n_active == [4, 3, 2, 2, 2]
    assert sorted(where.visits[0].tolist()) == sorted(where.visits[1].tolist()) == list(range(13))
    assert where.visits[0, :4].tolist() == [2, 8, 0, 7]
    assert where.visits[1, :4].tolist() == [6, 12, 1, 7]
    segments, counts = split_lengths(np.array([7, 3, 1]), 3)
    assert segments.tolist() == [3, 3, 1, 3, 1]
    assert counts.tolist() == [3, 1, 1]
