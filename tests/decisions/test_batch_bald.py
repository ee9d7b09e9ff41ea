"""The joint information of a batch equals a sum over all configurations of its labels."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

import credo
from credo.decisions import batch_bald, uncertainty
from credo.errors import InputError, UnsupportedError
from credo.predictive import Predictive


def prediction(draws: int = 6, rows: int = 8, classes: int = 3, seed: int = 0, scale: float = 2.0) -> Predictive:
    stream = torch.Generator().manual_seed(seed)
    return credo.Categorical().predictive(
        scale * torch.randn(draws, rows, classes, generator=stream, dtype=torch.float64)
    )


def joint_information(p: Predictive, rows: list[int]) -> float:
    """H[y_1, …, y_n] − Σ_i E_s H[y_i | f_s], by enumeration."""
    draws = p.draws
    entropy = 0.0
    for labels in itertools.product(range(draws.shape[-1]), repeat=len(rows)):
        likelihood = torch.ones(len(draws), dtype=torch.float64)
        for row, label in zip(rows, labels, strict=True):
            likelihood = likelihood * draws[:, row, label]
        entropy += float(torch.special.entr(likelihood.mean()))
    conditional = torch.special.entr(draws[:, rows]).sum((1, 2)).mean()
    return entropy - float(conditional)


def greedy(p: Predictive, n: int) -> list[int]:
    chosen: list[int] = []
    for _ in range(n):
        rest = [row for row in range(len(p)) if row not in chosen]
        chosen.append(max(rest, key=lambda row: joint_information(p, [*chosen, row])))
    return chosen


@pytest.mark.parametrize("seed", range(4))
def test_selection_and_information_equal_enumeration(seed: int) -> None:
    p = prediction(seed=seed)
    found = batch_bald(p, 3)
    assert found.rows.tolist() == greedy(p, 3)
    expected = [joint_information(p, found.rows[:k].tolist()) for k in (1, 2, 3)]
    torch.testing.assert_close(found.information, torch.tensor(expected, dtype=torch.float64), atol=1e-12, rtol=0)


def test_a_batch_of_one_is_bald() -> None:
    p = prediction(rows=30)
    found = batch_bald(p, 1)
    scores = uncertainty(p, "mutual_information")
    assert int(found.rows) == int(scores.argmax())
    assert float(found.information) == pytest.approx(float(scores.max()), abs=1e-12)


def test_copies_of_one_row_add_less_than_another_row() -> None:
    """Row 0 is the most informative one and rows 1 to 4 are its copies: BALD takes them, BatchBALD does not."""
    p = prediction(draws=8, rows=6, seed=2)
    best = int(uncertainty(p, "mutual_information").argmax())
    others = [row for row in range(6) if row != best]
    copies = p[[best] * 5 + others]
    top = uncertainty(copies, "mutual_information").topk(2).indices.tolist()
    assert max(top) < 5
    assert int(batch_bald(copies, 2).rows[1]) >= 5


def test_sampled_configurations_estimate_the_information() -> None:
    """With 5 of 9 to 27 configurations, the mean over 200 seeds of the information of rows 0 to 3 is the exact one.

    Only rows 0 to 3 are in the prediction, so their order is all that is chosen. Tolerance: 4 standard errors.
    """
    p = prediction(draws=5, rows=4, scale=1.5)
    exact = joint_information(p, [0, 1, 2, 3])
    values = torch.stack([batch_bald(p, 4, max_configurations=5, seed=seed).information[-1] for seed in range(200)])
    error = float(values.std()) / len(values) ** 0.5
    assert error > 0
    assert abs(float(values.mean()) - exact) < 4 * error
    assert float(batch_bald(p, 4, max_configurations=100).information[-1]) == pytest.approx(exact, abs=1e-12)


def test_weights_and_bernoulli_and_certain_draws() -> None:
    logits = prediction(draws=3).components.parameter
    double = credo.Categorical().predictive(logits[[0, 0, 1, 2]])
    mixed = Predictive.mixture([credo.Categorical().predictive(logits[:1]), credo.Categorical().predictive(logits[1:])])
    torch.testing.assert_close(batch_bald(mixed, 3).information, batch_bald(double, 3).information)
    ones = torch.tensor([[40.0, 40.0, -40.0], [-40.0, 40.0, 40.0]], dtype=torch.float64)
    certain = batch_bald(credo.Bernoulli().predictive(ones), 2)
    torch.testing.assert_close(certain.information, torch.full((2,), 2.0, dtype=torch.float64).log())
    assert 1 not in certain.rows[:1]


def test_seed_and_global_random_state() -> None:
    p = prediction(rows=20)
    state = torch.get_rng_state()
    rows: list[Tensor] = [batch_bald(p, 6, max_configurations=20, seed=seed).rows for seed in (0, 0)]
    assert torch.equal(*rows)
    assert torch.equal(torch.get_rng_state(), state)


def test_wrong_arguments_are_sentences() -> None:
    p = prediction()
    with pytest.raises(InputError, match="at most the number of rows, 8, got 9"):
        batch_bald(p, 9)
    with pytest.raises(InputError, match="batch_size must be an integer of at least 1"):
        batch_bald(p, 0)
    with pytest.raises(UnsupportedError, match="classes only"):
        batch_bald(credo.Gaussian(noise=1.0).predictive(torch.zeros(2, 3, 1)), 1)
    with pytest.raises(UnsupportedError, match="one target per row"):
        batch_bald(credo.Bernoulli().predictive(torch.zeros(2, 3, 4)), 1)
