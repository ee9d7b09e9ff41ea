"""The stacked ensemble, the default of tables."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import credo
from credo.methods import DeepEnsemble
from credo.tabular import automatic, methods, stacked
from credo.tabular.out_of_fold import overlapping_parts, stacking_weights


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few steps, few networks."""
    monkeypatch.setattr(methods, "MIN_STEPS", 160)
    monkeypatch.setattr(methods, "STEPS_PER_ROW", 0)
    monkeypatch.setattr(stacked, "FOLDS", 3)
    monkeypatch.setattr(stacked, "HIDDEN", (8,))


def curve(rows: int = 80) -> tuple[pd.DataFrame, pd.Series]:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.uniform(-1, 1, rows), "b": rng.choice(["x", "y"], rows)})
    return frame, pd.Series(np.sin(3 * frame["a"]) + 0.1 * rng.normal(size=rows), name="y")


def test_weights_maximize_the_penalized_log_score() -> None:
    """Against a fine grid over the weights of two distributions."""
    generator = torch.Generator().manual_seed(0)
    log_density = torch.randn(2, 40, generator=generator, dtype=torch.float64)
    count = torch.rand(40, generator=generator, dtype=torch.float64) + 0.5
    found = stacking_weights(log_density, count)
    grid = torch.linspace(1e-4, 1 - 1e-4, 20_001, dtype=torch.float64)
    mixed = torch.logaddexp(grid.log()[:, None] + log_density[0], (1 - grid).log()[:, None] + log_density[1])
    best = grid[((mixed * count).sum(1) + grid.log() + (1 - grid).log()).argmax()]
    assert float(found[0]) == pytest.approx(float(best), abs=2e-4)
    assert float(found.sum()) == pytest.approx(1.0)


def test_equal_distributions_have_equal_weights_and_impossible_ones_the_least() -> None:
    same = torch.zeros(3, 10, dtype=torch.float64)
    torch.testing.assert_close(stacking_weights(same, torch.ones(10, dtype=torch.float64)), same[:, 0] + 1 / 3)
    same[1] = -math.inf
    weights = stacking_weights(same, torch.ones(10, dtype=torch.float64))
    torch.testing.assert_close(weights, torch.tensor([6.0, 1.0, 6.0], dtype=torch.float64) / 13)


@pytest.mark.parametrize(("rows", "share"), [(499, 1 / 8), (500, 1 / 10)])
@pytest.mark.parametrize("targets", [np.float32, np.int64])
def test_the_number_of_rows_decides_how_many_are_held_out(rows: int, share: float, targets: type) -> None:
    y = np.zeros(rows, dtype=targets)
    networks, times = stacked.count_networks(rows), 1 if targets is np.int64 else 2
    blocks = np.array_split(np.arange(rows), stacked.count_blocks(y))
    parts = overlapping_parts(blocks, networks, times)
    assert all(abs(len(part) - share * rows) <= times for part in parts)  # blocks differ by one row
    often = np.bincount(np.concatenate(parts), minlength=rows)
    assert set(often.tolist()) <= {0, times}


@pytest.mark.usefixtures("short")
def test_the_default_is_a_weighted_ensemble_that_is_saved_as_it_is(tmp_path: Path) -> None:
    frame, y = curve()
    model = credo.Regressor(random_state=0, likelihood="gaussian").fit(frame, y)
    assert model.method_ == "stacked"
    assert model.notes_[0] == "The method is Stacked ensemble, the default for a table of 80 rows."
    ensemble = model.model_
    assert isinstance(ensemble, DeepEnsemble)
    assert len(ensemble.members) == 3 * len(stacked.SCALES)
    by_group = np.array(ensemble.weights).reshape(-1, 3)
    assert np.ptp(by_group, axis=1).max() == 0.0
    assert by_group.sum() == pytest.approx(1.0)
    p = model.predict_dist(frame)
    assert p.n_draws == len(ensemble.members)
    np.testing.assert_allclose(p.weights.numpy(), ensemble.weights)
    torch.testing.assert_close(p.variance, p.aleatoric + p.epistemic)
    model.save(tmp_path / "run")
    loaded = credo.load(tmp_path / "run")
    assert loaded.model_.weights == ensemble.weights
    np.testing.assert_array_equal(loaded.predict(frame), model.predict(frame))


@pytest.mark.usefixtures("short")
def test_the_same_seed_gives_the_same_model() -> None:
    frame, y = curve(60)
    first, second = (credo.Regressor(random_state=3, likelihood="gaussian").fit(frame, y) for _ in range(2))
    np.testing.assert_array_equal(first.predict(frame), second.predict(frame))


@pytest.mark.usefixtures("short")
def test_classes_of_one_row_several_targets_and_weights_are_fitted() -> None:
    frame, y = curve(60)
    labels = np.where(y > 0, "high", "low").astype(object)
    labels[0] = "once"
    with pytest.warns(UserWarning, match="classes with a single row"):
        classifier = credo.Classifier(random_state=0).fit(frame, labels)
    assert classifier.predict_proba(frame).shape == (60, 3)
    weight = np.r_[np.zeros(5), np.ones(55)]
    one = credo.Regressor(random_state=0, likelihood="gaussian").fit(frame, y, sample_weight=weight)
    without = credo.Regressor(random_state=0, likelihood="gaussian").fit(frame[5:], y[5:])
    np.testing.assert_allclose(one.predict(frame), without.predict(frame))
    several = credo.Regressor(random_state=0).fit(frame, pd.DataFrame({"u": y, "v": -y}))
    assert several.method_ == "stacked"
    assert several.predict(frame).shape == (60, 2)


@pytest.mark.usefixtures("short")
def test_parts_respect_groups_and_time() -> None:
    frame, y = curve(60)
    model = credo.Regressor(random_state=0, likelihood="gaussian").fit(frame, y)
    targets = np.zeros((60, 1))
    groups = np.repeat(np.arange(6), 10)
    details = credo.tabular.splitting.RowDetails.read(60, groups=groups)
    for part in model._parts(targets, details, 3):
        assert not set(groups[part]) & set(np.delete(groups, part))
    two = credo.tabular.splitting.RowDetails.read(60, groups=np.repeat([0, 1], 30))
    assert [len(part) for part in model._parts(targets, two, 3)] == [30, 30, 30]
    time = credo.tabular.splitting.RowDetails.read(60, time=np.arange(60.0))
    assert [part.tolist() for part in model._parts(targets, time, 3)] == [list(range(54, 60))] * 3
    by_time = credo.Regressor(random_state=0, likelihood="gaussian").fit(frame, y, time=np.arange(60.0))
    assert np.isfinite(by_time.predict(frame)).all()


def test_few_rows_are_learned_by_bayes_by_backprop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "MIN_STEPS", 5)
    monkeypatch.setattr(methods, "STEPS_PER_ROW", 0)
    frame, y = curve(automatic.MIN_STACKED_ROWS - 1)
    model = credo.Regressor(random_state=0).fit(frame, y)
    assert model.method_ == "bbb"
    assert "too few to hold some out in turn" in model.notes_[0]
