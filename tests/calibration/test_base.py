"""What every calibrator must do: refuse bad input, commute with the choice of rows, survive JSON."""

from __future__ import annotations

import copy
import json
import math
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from credo.calibration import (
    Calibrator,
    QuantileRecalibration,
    SplitConformal,
    TemperatureScaling,
    VarianceScaling,
)
from credo.errors import InputError, LoadError
from credo.likelihoods import Bernoulli, Categorical, Gaussian, Poisson
from credo.predictive import Predictive

from .cases import F64, labeled, skewed, truth

REAL: list[type[Calibrator]] = [VarianceScaling, QuantileRecalibration, SplitConformal]
ALL: list[type[Calibrator]] = [TemperatureScaling, *REAL]


def example(kind: type[Calibrator], rows: int = 80, seed: int = 0) -> tuple[Predictive, Tensor]:
    return labeled(2.0, rows, seed=seed) if kind is TemperatureScaling else skewed(2.0, rows, seed=seed)


def summary(p: Predictive) -> list[Tensor]:
    values = [p.mean, p.variance, p.aleatoric, p.epistemic, p.entropy]
    return values if p.components.name == "Categorical" else [*values, *p.interval(0.9), p.quantile(0.3)]


@pytest.mark.parametrize("kind", ALL)
def test_config_round_trips_through_json(kind: type[Calibrator]) -> None:
    p, y = example(kind)
    calibrator = kind().fit(p, y)
    read = Calibrator.from_config(json.loads(json.dumps(calibrator.get_config())))
    assert type(read) is kind
    assert read.get_config() == calibrator.get_config()
    torch.testing.assert_close(summary(read(p[:5])), summary(calibrator(p[:5])), rtol=0, atol=0)
    empty = Calibrator.from_config(json.loads(json.dumps(kind().get_config())))
    with pytest.raises(InputError, match=f"this {kind.__name__} is not fitted: call fit"):
        empty(p)
    for other in (copy.deepcopy(calibrator), pickle.loads(pickle.dumps(calibrator))):
        assert other.get_config() == calibrator.get_config()


@pytest.mark.parametrize(
    "config",
    [
        {"name": "TemperatureScalin"},
        {"temperature": 1.0},
        ["TemperatureScaling"],
        {"name": "TemperatureScaling", "temperature": -1.0},
        {"name": "TemperatureScaling", "temperature": "hot"},
        {"name": "TemperatureScaling", "scale": 1.0},
        {"name": "VarianceScaling", "factor": math.nan},
        {"name": "QuantileRecalibration", "factor": 1.0, "predicted": [0, 1]},
        {"name": "QuantileRecalibration", "factor": 1.0, "predicted": [0, 1], "observed": ["a", "b"]},
        {"name": "QuantileRecalibration", "factor": 0.0, "predicted": [0, 1], "observed": [0, 1]},
        {"name": "SplitConformal", "scores": [1.0, -1.0]},
        {"name": "SplitConformal", "scores": [[1.0]]},
        {"name": "SplitConformal", "scores": "many"},
        {"name": "SplitConformal", "scores": {"a": 1}},
    ],
)
def test_bad_configs_raise(config: object) -> None:
    with pytest.raises(LoadError):
        Calibrator.from_config(config)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ALL)
def test_row_order_does_not_matter(kind: type[Calibrator]) -> None:
    p, y = example(kind)
    order = torch.randperm(80, generator=torch.Generator().manual_seed(0))
    calibrator, shuffled = kind().fit(p, y), kind().fit(p[order], y[order])
    new, _ = example(kind, seed=5)
    torch.testing.assert_close(summary(shuffled(new)), summary(calibrator(new)), rtol=1e-5, atol=1e-5)
    chosen = torch.tensor([7, 3, 3, 50])
    torch.testing.assert_close(summary(calibrator(new[chosen])), summary(calibrator(new)[chosen]))
    torch.testing.assert_close(summary(calibrator(new)[chosen]), [value[chosen] for value in summary(calibrator(new))])


@pytest.mark.parametrize("kind", ALL)
def test_calibrated_predictions_have_the_predictive_interface(kind: type[Calibrator]) -> None:
    p, y = example(kind)
    calibrator = kind().fit(p, y)
    q = calibrator(p[:6])
    assert len(q) == 6
    assert q.n_draws == p.n_draws
    assert f"(draws={p.n_draws}, rows=6, " in repr(q)
    torch.testing.assert_close(summary(Predictive.concatenate([q[:2], q[2:3], q[3:]])), summary(q))
    for other in (copy.deepcopy(q), pickle.loads(pickle.dumps(q)), q.cpu(), q.to("cpu"), q.double()):
        assert type(other) is type(q)
        torch.testing.assert_close(summary(other), summary(q))
    assert all(value.shape[0] == 0 for value in summary(q[[]]))
    assert q[[]].sample(2).shape[:2] == (2, 0)
    assert [len(row) for row in q] == [1] * 6


@pytest.mark.parametrize("kind", [QuantileRecalibration, SplitConformal])
def test_joining_different_calibrations_raises(kind: type[Calibrator]) -> None:
    p, y = example(kind)
    first, second = kind().fit(p, y)(p), kind().fit(p[:60], y[:60])(p)
    for parts in ([first, second], [first, p]):
        with pytest.raises(InputError, match="calibrated differently"):
            Predictive.concatenate(parts)
    with pytest.raises(InputError, match="mix the plain ones and calibrate the mixture"):
        Predictive.mixture([first, first])
    for other in REAL:
        with pytest.raises(InputError, match="for uncalibrated predictions"):
            other().fit(first, y)


@pytest.mark.parametrize("kind", ALL)
def test_targets_may_be_arrays(kind: type[Calibrator]) -> None:
    p, y = example(kind)
    assert kind().fit(p, y.numpy()).get_config() == kind().fit(p, y).get_config()


@pytest.mark.parametrize("kind", ALL)
def test_bad_held_out_rows_raise(kind: type[Calibrator]) -> None:
    p, y = example(kind)
    few = kind.min_rows - 1
    with pytest.raises(InputError, match=f"{kind.__name__} needs at least {kind.min_rows} held-out rows, got {few}"):
        kind().fit(p[:few], y[:few])
    assert kind().fit(p[: few + 1], y[: few + 1])(p).n_draws == p.n_draws
    with pytest.raises(InputError, match="same number of rows"):
        kind().fit(p, y[:70])
    with pytest.raises(InputError, match="y must hold numbers"):
        kind().fit(p, ["a"] * len(y))
    spoilt = copy.deepcopy(p)
    spoilt.components.parameter[0, 3] = math.nan
    with pytest.raises(InputError, match="the predictive holds NaN or infinite values"):
        kind().fit(spoilt, y)


@pytest.mark.parametrize("kind", REAL)
def test_missing_targets_and_wrong_kinds_raise(kind: type[Calibrator]) -> None:
    p, y = example(kind)
    y[4] = math.nan
    with pytest.raises(InputError, match=r"1 value\(s\) that are NaN"):
        kind().fit(p, y)
    for classes in (Categorical().predictive(torch.zeros(2, 60, 3)), Bernoulli().predictive(torch.zeros(2, 60))):
        with pytest.raises(InputError, match=f"{kind.__name__} is for real targets.*use TemperatureScaling"):
            kind().fit(classes, torch.zeros(60))
    with pytest.raises(InputError, match="got a float, not a Predictive"):
        kind().fit(0.5, y)  # type: ignore[arg-type]


def test_errors_suggest_the_right_calibrator() -> None:
    y = torch.zeros(60)
    with pytest.raises(InputError, match=r"is for classes.*Gaussian.*use VarianceScaling"):
        TemperatureScaling().fit(Gaussian(0.1).predictive(torch.zeros(2, 60)), y)
    counts = Poisson().predictive(torch.zeros(2, 60))
    wrong: list[Callable[[], Calibrator]] = [VarianceScaling, QuantileRecalibration]
    for kind in wrong:
        with pytest.raises(InputError, match=r"got counts \(Poisson\): use SplitConformal"):
            kind().fit(counts, y)


def test_failed_fit_changes_nothing() -> None:
    calibrator = VarianceScaling(2.0)
    with pytest.raises(InputError):
        calibrator.fit(truth(3), torch.zeros(3, 1, dtype=F64))
    assert calibrator.factor == 2.0
    state = torch.get_rng_state()
    for kind in ALL:
        kind().fit(*example(kind))
    assert torch.equal(state, torch.get_rng_state())


def test_repr() -> None:
    assert repr(TemperatureScaling()) == "TemperatureScaling(temperature=None)"
    assert repr(VarianceScaling(1.23456)) == "VarianceScaling(factor=1.235)"
    assert repr(SplitConformal([1.0, 2.0])) == "SplitConformal(scores=[2 numbers])"
    with pytest.raises(InputError, match="temperature must be a positive number"):
        TemperatureScaling(0)
