"""The likelihood of a quantity: encodings, the choice among several, saving."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import credo
from credo.errors import InputError
from credo.likelihoods import Gaussian
from credo.predictive import RealPredictive
from credo.tabular.likelihoods import FAMILIES, TargetFamily, candidates, choose_family

VALUES = {
    "gaussian": np.array([-3.0, 1.0, 2.5, 400.0]),
    "student_t": np.array([-3.0, 1.0, 2.5, 400.0]),
    "log_normal": np.array([1e-3, 1.0, 2.5, 4e5]),
    "poisson": np.array([0.0, 1.0, 5.0, 7.0]),
    "negative_binomial": np.array([0.0, 1.0, 5.0, 7.0]),
    "beta": np.array([0.0, 0.2, 0.5, 1.0]),
}


def family(name: str) -> TargetFamily:
    values = VALUES[name]
    return TargetFamily.learn(name, values, float(values.mean()), float(values.std()))


@pytest.mark.parametrize("name", FAMILIES)
def test_targets_are_decoded_to_what_was_encoded(name: str) -> None:
    one = family(name)
    encoded = one.encode(VALUES[name])
    assert encoded.dtype == np.float32
    # float32 of a standardized value: its error is 1e-7 of the scale
    np.testing.assert_allclose(one.decode(encoded), VALUES[name], rtol=1e-5, atol=2e-5 * one.scale)
    assert TargetFamily.from_config(one.get_config()) == one


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("varies", [False, True])
def test_densities_are_in_the_targets_own_units(name: str, varies: bool) -> None:
    """Probabilities sum to 1, or a density to 0.2 between two quantiles; an output of 0 predicts the mean."""
    one = family(name)
    outputs, likelihood = one.likelihood(varies)
    with torch.no_grad():
        p = likelihood.predictive(torch.zeros(1, 301, outputs, dtype=torch.float64))
    assert isinstance(p, RealPredictive)
    p = RealPredictive(one.to_target_units(p.components.map(lambda t: t.squeeze(-1))))
    if p.components.discrete:
        total = float(p.log_prob(torch.arange(301.0, dtype=torch.float64)).exp().sum())
    else:
        first, last = (float(p[0].quantile(q)) for q in (0.4, 0.6))
        grid = torch.linspace(first, last, 301, dtype=torch.float64)
        total = float(torch.trapezoid(p.log_prob(grid).exp(), grid)) + 0.8
    p = p[0]
    assert total == pytest.approx(1.0, abs=1e-4)
    if name != "log_normal":
        assert float(p.mean) == pytest.approx(VALUES[name].mean(), rel=1e-6)
    else:
        assert float(p.quantile(0.5)) == pytest.approx(math.exp(np.log(VALUES[name]).mean()), rel=1e-6)


def test_candidates_follow_from_the_values() -> None:
    rng = np.random.default_rng(0)
    normal = rng.normal(size=100)
    assert candidates(normal) == ["gaussian", "student_t"]
    assert candidates(np.exp(normal)) == ["gaussian", "student_t", "log_normal"]
    assert candidates(300 + normal) == ["gaussian", "student_t"]  # a spread of a percent
    assert candidates(rng.poisson(3.0, 100).astype(float)) == ["gaussian", "poisson", "negative_binomial"]
    assert candidates(rng.integers(1, 10**6, 100).astype(float)) == ["gaussian", "student_t", "log_normal"]
    assert candidates(rng.uniform(size=100)) == ["gaussian", "student_t", "beta"]
    assert candidates((normal > 0).astype(float)) == ["gaussian", "poisson", "negative_binomial"]
    assert candidates(np.exp(normal)[:20]) == ["gaussian"]
    assert candidates(np.full(100, 2.0)) == ["gaussian"]


@pytest.mark.parametrize(
    ("name", "values", "sentence"),
    [
        ("log_normal", [0.0, 1.0], "positive targets, but the smallest is 0"),
        ("beta", [0.5, 1.5], "targets from 0 to 1, but they go from 0.5 to 1.5"),
        ("poisson", [0.5, 1.0], "needs counts"),
        ("negative_binomial", [-1.0, 1.0], "needs counts"),
    ],
)
def test_impossible_targets_are_refused(name: str, values: list[float], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        TargetFamily.learn(name, np.array(values), 0.0, 1.0)


def test_the_choice_needs_clear_evidence() -> None:
    """Targets are standard normal. A prediction of σ = 1 gains 0.3 nats a row over one of σ = 2, and nothing over 1."""
    values = np.random.default_rng(1).normal(size=400)
    families = [TargetFamily("gaussian", 0.0, 1.0), TargetFamily("student_t", 0.0, 1.0)]

    def predict(scales: dict[str, float]):  # type: ignore[no-untyped-def]
        zeros = [torch.zeros(1, len(part), dtype=torch.float64) for part in parts]
        return lambda one: [Gaussian(scales[one.name]).predictive(zero) for zero in zeros]

    parts = [np.arange(150), np.arange(150, 400)]
    same = choose_family(families, values, parts, predict({"gaussian": 1.0, "student_t": 1.0}))
    better = choose_family(families, values, parts, predict({"gaussian": 2.0, "student_t": 1.0}))
    worse = choose_family(families, values, parts, predict({"gaussian": 1.0, "student_t": 2.0}))
    assert (same.name, better.name, worse.name) == ("gaussian", "student_t", "gaussian")
    gain = math.log(2) - (1 - 0.25) / 2  # E log N(0, 1) − log N(0, 4)
    measured = float(better.note.split(": ")[1].split()[0])
    assert measured == pytest.approx(gain, abs=4 * 0.375 * math.sqrt(2 / 400) + 0.005)
    assert "kept" in same.note


def test_a_likelihood_that_a_few_rows_refute_is_not_chosen() -> None:
    """σ = 1 gains 0.32 nats over σ = 2 per standard normal row, and loses 37 nats at each of eight rows with |y| = 10.

    Clipped at 3 nats the gain stays clear, but the mean of the differences as they are is negative.
    """
    values = np.r_[np.random.default_rng(1).normal(size=392), [10.0] * 8]
    families = [TargetFamily("gaussian", 0.0, 1.0), TargetFamily("student_t", 0.0, 1.0)]
    scales = {"gaussian": 2.0, "student_t": 1.0}

    def predict(family: TargetFamily) -> list[RealPredictive]:
        return [Gaussian(scales[family.name]).predictive(torch.zeros(1, 400, dtype=torch.float64))]

    gain = 392 * (math.log(2) - 0.375) + 8 * (math.log(2) - 37.5)
    assert gain < -5 * 0.375 * math.sqrt(2 * 392)
    chosen = choose_family(families, values, [np.arange(400)], predict)
    assert chosen.name == "gaussian"
    assert float(chosen.note.split("student t, ")[1].split()[0]) < 0.0


def heavy(rows: int = 300) -> tuple[pd.DataFrame, pd.Series]:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=rows)})
    return frame, pd.Series(np.exp(frame["a"] + 0.8 * rng.normal(size=rows)), name="price")


def test_auto_chooses_says_and_saves_what_it_chose(tmp_path: Path) -> None:
    frame, y = heavy()
    model = credo.Regressor("map", epochs=350, random_state=0).fit(frame, y)
    assert model.family_.name == "log_normal"
    assert any("log normal likelihood was chosen over the gaussian" in note for note in model.notes_)
    model.save(tmp_path / "run")
    loaded = credo.load(tmp_path / "run")
    assert loaded.family_ == model.family_
    np.testing.assert_array_equal(loaded.predict(frame), model.predict(frame))
    assert float(model.predict_dist(frame).quantile(1e-6).min()) > 0


@pytest.mark.parametrize("name", FAMILIES)
def test_every_likelihood_fits_predicts_and_loads(name: str, tmp_path: Path) -> None:
    frame, y = heavy(80)
    y = {"beta": y / (1 + y), "poisson": y.round(), "negative_binomial": y.round()}.get(name, y)
    model = credo.Regressor(likelihood=name, epochs=3, samples=8, random_state=0).fit(frame, y)
    model.save(tmp_path / "run")
    p, q = model.predict_dist(frame), credo.load(tmp_path / "run").predict_dist(frame)
    assert torch.equal(p.mean, q.mean)
    assert bool(p.log_prob(torch.tensor(y.to_numpy())).isfinite().all())
    torch.testing.assert_close(p.variance, p.aleatoric + p.epistemic)


def test_calibration_of_counts_is_refused_before_training() -> None:
    frame, y = heavy(80)
    with pytest.raises(InputError, match="use calibrate='conformal'"):
        credo.Regressor(likelihood="poisson", calibrate="variance").fit(frame, y.round())
    with pytest.raises(InputError, match="unknown likelihood 'poison'"):
        credo.Regressor(likelihood="poison").fit(frame, y)


def test_ordered_classes_and_their_order(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    a = rng.normal(size=200)
    grade = np.digitize(a + 0.3 * rng.normal(size=200), [-1.0, 0.0, 1.0])
    names = np.array(["low", "fair", "good", "best"])
    frame = pd.DataFrame({"a": a})
    options = {"epochs": 40, "random_state": 0}
    numbers = credo.Classifier("map", ordered=True, **options).fit(frame, grade)
    words = credo.Classifier("map", ordered=list(names), **options).fit(frame, names[grade])
    assert numbers.model_.likelihood.classes == 4
    assert numbers.predict_dist(frame).interval(0.8).upper.max() <= 3
    assert numbers.score(frame, grade) > 0.7
    # the same model of the same numbers, with columns in the order of the labels
    order = [list(words.classes_).index(name) for name in names]
    np.testing.assert_allclose(words.predict_proba(frame)[:, order], numbers.predict_proba(frame), rtol=1e-6)
    words.save(tmp_path / "run")
    np.testing.assert_array_equal(credo.load(tmp_path / "run").predict(frame), words.predict(frame))
    with pytest.raises(InputError, match="every class once, from lowest to highest"):
        credo.Classifier(ordered=["low", "fair"]).fit(frame, names[grade])


def test_balanced_training_keeps_the_frequencies(tmp_path: Path) -> None:
    """5 % of the rows are of a class that no column predicts: its probability is 5 %, not a half."""
    frame = pd.DataFrame({"a": np.random.default_rng(0).normal(size=400)})
    y = np.where(np.arange(400) % 20 == 0, "rare", "common")
    model = credo.Classifier("map", class_weight="balanced", hidden=(), epochs=60, random_state=0).fit(frame, y)
    assert model.class_weights_.tolist() == pytest.approx([400 / 2 / 380, 400 / 2 / 20])
    # 4 standard errors of a frequency of 20 in 400
    assert model.predict_proba(frame)[:, 1].mean() == pytest.approx(0.05, abs=4 * math.sqrt(0.05 * 0.95 / 400))
    model.save(tmp_path / "run")
    np.testing.assert_array_equal(credo.load(tmp_path / "run").predict_proba(frame), model.predict_proba(frame))
    with pytest.raises(InputError, match="pass sample_weight"):
        credo.Classifier(class_weight={"rare": 2.0}).fit(frame, y)
