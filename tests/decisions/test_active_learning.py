"""Rounds of query and teach, with networks and estimators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import credo
from credo.decisions import ActiveLearner, uncertainty
from credo.errors import InputError
from credo.linear import BayesianLinearRegression
from credo.predictive import Predictive

OPTIONS = {"epochs": 5, "lr": 1e-2}


def pool(n: int = 60) -> tuple[Tensor, Tensor]:
    x = torch.randn(n, 2, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0] > 0).long()


def network() -> credo.MCDropout:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 2))
        return credo.MCDropout(net, credo.Categorical())


def learner(acquisition: Any = "bald", **options: Any) -> ActiveLearner:
    return ActiveLearner(network(), pool()[0], acquisition, 5, samples=20, fit_options=OPTIONS, seed=0, **options)


@pytest.mark.parametrize("acquisition", ["bald", "batch_bald", "entropy", "variation_ratio", "variance", "random"])
def test_every_acquisition_labels_new_rows_and_keeps_random_state(acquisition: str) -> None:
    x, y = pool()
    state = torch.get_rng_state()
    found = learner(acquisition, score=lambda model: float((model.predict(x, 10, seed=0).mode == y).double().mean()))
    found.run(y, 20)
    assert torch.equal(torch.get_rng_state(), state)
    assert len(found.labeled) == len(found.labeled.unique()) == 20
    assert torch.equal(found.labels, y[found.labeled])
    assert [entry["labels"] for entry in found.history] == [5, 10, 15, 20]
    assert all(0 <= entry["score"] <= 1 for entry in found.history)
    assert sorted([*found.labeled.tolist(), *found.unlabeled.tolist()]) == list(range(60))


def test_query_returns_the_highest_scores() -> None:
    _, y = pool()
    found = learner("entropy").run(y, 10)
    rows = found.query(7)
    assert torch.equal(rows, found.query(7))
    assert not set(rows.tolist()) & set(found.labeled.tolist())
    sources: list[Predictive] = []

    def score(p: Predictive) -> Tensor:
        sources.append(p)
        return -uncertainty(p, "entropy")

    other = learner(score).run(y, 10)
    lowest = other.query(50)
    assert len(sources[-1]) == len(lowest) == 50
    assert torch.equal(lowest.sort().values, other.unlabeled)
    assert bool((uncertainty(sources[-1], "entropy").sort().values.diff() >= 0).all())


def test_scores_are_those_of_the_model_after_the_labels() -> None:
    """By other draws of the fitted model, the row chosen by 20 draws scores above the median."""
    x, y = pool()
    found = learner("variance").run(y, 10)
    best = int(found.query(1))
    rows = found.unlabeled
    p = found.model.predict(x[rows], samples=400, seed=1)
    scores = uncertainty(p, "variance")
    assert scores[rows.tolist().index(best)] > scores.median()


def test_equal_scores_are_broken_at_random() -> None:
    _, y = pool()
    found = learner(lambda p: torch.zeros(len(p))).run(y, 5)
    assert found.query(20).tolist() != found.unlabeled[:20].tolist()


def test_every_round_starts_from_scratch_unless_warm() -> None:
    _, y = pool()
    model = network()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    rows = torch.arange(10)
    cold, warm, again = (
        ActiveLearner(model, pool()[0], "entropy", 5, fit_options=OPTIONS, seed=0, warm_start=warm).teach(rows, y[rows])
        for warm in (False, True, False)
    )
    first = cold.model
    for one in (cold, warm, again):
        one.teach([20, 21], y[[20, 21]])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert cold.model is not first
    assert [len(one.history) for one in (cold, warm)] == [2, 2]
    weights = [one.model.net[0].weight for one in (cold, warm, again)]
    assert torch.equal(weights[0], weights[2])
    assert not torch.equal(weights[0], weights[1])


def test_fit_options_can_depend_on_the_number_of_labels() -> None:
    x, y = pool()
    epochs = []
    found = ActiveLearner(
        network(),
        x,
        "random",
        5,
        fit_options=lambda n: {"epochs": 30 // n, "lr": 1e-2},
        score=lambda model: epochs.append(len(model.history)) or 0.0,
        seed=0,
    )
    found.run(y, 15)
    assert epochs == [6, 3, 2]


def test_a_factory_makes_every_model() -> None:
    _, y = pool()
    made = []

    def factory() -> credo.Method:
        made.append(credo.MAP(nn.Linear(2, 2), credo.Categorical()))
        return made[-1]

    state = torch.get_rng_state()
    found = ActiveLearner(factory, pool()[0], "entropy", 5, fit_options={"epochs": 1}, seed=0).run(y, 15)
    assert len(made) == 3
    assert found.model is made[-1]
    assert not torch.equal(made[0].net.weight, made[1].net.weight)
    assert torch.equal(torch.get_rng_state(), state)


def test_candidates_limit_what_is_scored() -> None:
    _, y = pool()
    sizes: list[int] = []

    def score(p: Predictive) -> Tensor:
        sizes.append(len(p))
        return p.entropy

    learner(score, candidates=12).run(y, 15)
    assert sizes == [12, 12]


def test_estimators_arrays_and_data_frames() -> None:
    x, y = pool()
    table = pd.DataFrame(x.numpy(), columns=["a", "b"])
    labels = np.where(y.numpy() == 1, "yes", "no")
    model = credo.Classifier(method="map", epochs=5)
    found = ActiveLearner(model, table, "entropy", 20, seed=0).run(labels, 40)
    assert sorted(found.model.classes_) == ["no", "yes"]
    assert len(found.query(100)) == 20
    regression = ActiveLearner(BayesianLinearRegression(), x.numpy(), "variance", 5, seed=0)
    regression.run((x @ torch.tensor([1.0, -2.0])).numpy(), 20)
    # the next row of a linear model without noise in its inputs is one far from those labeled
    p = regression.model.predict_dist(x.numpy()[regression.unlabeled])
    assert int(regression.query(1)) == int(regression.unlabeled[int(p.epistemic.argmax())])


def test_the_last_batch_is_smaller_and_then_the_pool_is_exhausted() -> None:
    x, y = pool(8)
    found = ActiveLearner(network(), x, "random", 5, fit_options={"epochs": 1}, seed=0)
    found.run(y, 5)
    assert len(found.query()) == 3
    found.teach(found.query(), y[found.query()])
    with pytest.raises(InputError, match="all 8 rows of the pool are labeled"):
        found.query()


def test_wrong_arguments_are_sentences_and_change_nothing() -> None:
    x, y = pool()
    with pytest.raises(InputError, match="did you mean 'bald'"):
        learner("balt")
    with pytest.raises(InputError, match="with predict or predict_dist, got 3"):
        ActiveLearner(3, x)
    with pytest.raises(InputError, match="pass them to its constructor"):
        ActiveLearner(BayesianLinearRegression(), x, fit_options={"epochs": 3})
    with pytest.raises(InputError, match="the pool is empty"):
        ActiveLearner(network(), x[:0])
    found = learner().teach([1, 2, 3], y[1:4])
    for rows, labels, message in [
        ([0, 60], y[:2], "between 0 and 59, the rows of the pool, got 60"),
        ([3, 4], y[:2], "row 3 is labeled already"),
        ([4, 4], y[:2], "a row twice"),
        ([4, 5], y[:3], "one label per row, 2, got shape \\[3\\]"),
        ([4, 5], 1, "one label per row, 2, got shape \\[\\]"),
        ([4.0], y[:1], "list of row numbers"),
        (["a"], y[:1], "list of row numbers"),
        ([4], y[:1, None], "the shape of those before, \\[\\] per row, got \\[1\\]"),
    ]:
        with pytest.raises(InputError, match=message):
            found.teach(rows, labels)
    assert found.labeled.tolist() == [1, 2, 3]
    with pytest.raises(InputError, match="one label per row of the pool, 60, got 59"):
        found.run(y[:-1], 10)
    with pytest.raises(InputError, match="at most the number of rows of the pool, 60, got 61"):
        found.run(y, 61)
    with pytest.raises(InputError, match="one score per row"):
        learner(lambda p: p.mean).run(y, 10)
    with pytest.raises(InputError, match="must return numbers, got NaN for 55 of 55 rows"):
        learner(lambda p: p.entropy * torch.nan).run(y, 10)


@pytest.mark.parametrize("acquisition", ["bald", "batch_bald", "variance", "entropy"])
def test_a_model_without_epistemic_uncertainty_is_named(acquisition: str, caplog: pytest.LogCaptureFixture) -> None:
    """Its epistemic scores are 0 for all rows, of which a learner would choose at random without a word."""
    x, y = pool()
    point = credo.MAP(nn.Linear(2, 2), credo.Categorical())
    for model, is_named in ((point, acquisition != "entropy"), (network(), False)):
        caplog.clear()
        found = ActiveLearner(model, x, acquisition, 3, samples=10, fit_options=OPTIONS, seed=0)
        found.teach([0, 1, 2], y[:3]).query()
        assert ("no epistemic uncertainty" in caplog.text) == is_named


def test_a_round_whose_score_fails_did_not_happen() -> None:
    """Otherwise its labels would count, but not in the history, by whose length random numbers are chosen."""
    _, y = pool()
    found = learner(score=lambda model: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        found.run(y, 5)
    assert found.model is None
    assert found.labels is None
    assert not len(found.labeled)
    assert not found.history


@pytest.mark.parametrize("warm", [False, True])
def test_after_a_failed_round_the_model_is_that_of_the_round_before(warm: bool) -> None:
    x, y = pool()
    scores = iter([1.0, "not a number"])
    found = learner(score=lambda model: next(scores), warm_start=warm).teach([0, 1, 2], y[:3])
    expected = found.model.predict(x, seed=0).mean
    with pytest.raises(ValueError, match="not a number"):
        found.teach([3, 4], y[3:5])
    assert len(found.labeled) == 3
    assert torch.equal(found.model.predict(x, seed=0).mean, expected)


def test_batch_bald_of_a_linearized_laplace_knows_which_rows_are_independent() -> None:
    """Rows along two axes have independent logits under the posterior; a copy of a row has the same one.

    Rows 8 and 9 are copies of the most informative row, row 10 is nearly as informative alone. Its information adds up
    with that of row 8 or 9 in full, while a copy adds less than its own.
    """
    train = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]).repeat(2, 1)
    candidates = torch.tensor([[2.0, 0.0], [2.0, 0.0], [0.0, 1.9]])
    labels = torch.tensor([1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0])[:, None]  # H is diagonal, and the maximum is at 0
    model = credo.Laplace(nn.Linear(2, 1, bias=False), credo.Bernoulli(), structure="full")
    found = ActiveLearner(
        model,
        torch.cat([train, candidates]),
        "batch_bald",
        samples=1000,
        fit_options={"epochs": 200, "lr": 0.05},
        seed=0,
    )
    found.teach(range(8), labels)
    assert 10 in found.query(2).tolist()
