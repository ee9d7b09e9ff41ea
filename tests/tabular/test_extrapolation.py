"""Outside the training range: linear functions stay linear, and the epistemic variance grows with the distance."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch

import credo
from credo.predictive import RealPredictive
from credo.predictive.location_scale import GaussianComponents
from credo.tabular import methods
from credo.tabular.columns import Columns
from credo.tabular.extrapolation import Extrapolation, OutsideRange, split_noise

FAR = np.array([[2.0], [3.0], [10.0], [100.0]])


def sine(rows: int = 80) -> tuple[np.ndarray, np.ndarray]:
    """sin 2.5x + x/2 on [−2, 2], with noise 0.3."""
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(-2.0, 2.0, (rows, 1)), axis=0)
    return x, np.sin(2.5 * x[:, 0]) + 0.5 * x[:, 0] + rng.normal(0.0, 0.3, rows)


@pytest.fixture(scope="module")
def line() -> credo.Regressor:
    """y = 2x + N(0, 0.3²) on [−2, 2], 100 rows.

    log σ² starts at 0 and ends at −4 in units of the target. A cosine schedule of 800 steps of 0.01 moves it by 4 at
    most, of 0.03 by 12.
    """
    rng = np.random.default_rng(0)
    x = rng.uniform(-2.0, 2.0, (100, 1))
    return credo.Regressor(epochs=800, lr=0.03, random_state=0).fit(x, 2.0 * x[:, 0] + rng.normal(0.0, 0.3, 100))


def test_linear_function_is_extrapolated_linearly(line):
    """The slope is known to 0.3/√(Σx²) = 0.026: no interval may claim to know it better, nor doubt its sign."""
    p = line.predict_dist(FAR)
    lower, upper = p.interval(0.95)
    truth = torch.tensor(2.0 * FAR[:, 0])
    assert bool(((lower < truth) & (truth < upper)).all())
    np.testing.assert_allclose(p.mean, truth, rtol=0.05)  # three standard errors of the slope are 4 %
    assert bool((p.epistemic.sqrt() >= torch.tensor(0.026 * FAR[:, 0])).all())
    assert bool((lower > 0.0).all())
    np.testing.assert_allclose(p.aleatoric.sqrt(), 0.3, rtol=0.25)  # its standard error is 7 %, and draws differ by it


@pytest.mark.parametrize("cell", [1e30, -1e300, 1.7e308])
def test_extreme_values_do_not_overflow(line, cell):
    """Features end at a million standard deviations: what lies farther is predicted as if it were there."""
    p = line.predict_dist([[cell]])
    end = line.columns_.scaling.std[0] * line.columns_.scaling.width[0] * 1e6
    edge = line.predict_dist([[math.copysign(2.0 * end, cell)]])
    assert bool(torch.isfinite(torch.stack([*p.interval(0.95), p.mean, p.variance, p.entropy])).all())
    np.testing.assert_allclose(p.mean, edge.mean, rtol=1e-12)


@pytest.mark.parametrize("method", methods.names())
def test_epistemic_variance_grows_with_distance(method):
    """Along rays from the middle of the data, for every method, and without bound."""
    x, y = sine()
    second = np.random.default_rng(1).uniform(-1.0, 1.0, (len(x), 1))
    chains = {"warmup": 30, "draws": 20, "leapfrog_steps": 10, "init_steps": 50}
    options = {"epochs": 30} if methods.get(method).has_epochs else {"method_options": chains}
    model = credo.Regressor(method, samples=50, random_state=0, **options).fit(np.hstack([x, second]), y)
    for ray in ([1.0, 0.0], [-1.0, 0.0], [1.0, 0.5], [-1.0, 0.5]):
        p = model.predict_dist(np.outer(np.linspace(2.05, 12.0, 40), ray))
        epistemic = p.epistemic.numpy()
        assert (np.diff(epistemic) > 0.0).all()
        assert math.sqrt(epistemic[-1]) > 5.0 * math.sqrt(epistemic[0])
        np.testing.assert_allclose(p.aleatoric + p.epistemic, p.variance, rtol=1e-12)


@pytest.mark.parametrize("noise", ["learned", "heteroscedastic"])
def test_noise_outside_equals_noise_at_the_edge(noise):
    x, y = sine()
    model = credo.Regressor(noise=noise, epochs=100, random_state=0).fit(x, y * (2.5 + x[:, 0]))
    ends = [[x.min()], [x.max()]]
    edge, outside = model.predict_dist(ends), model.predict_dist([[-50.0], [50.0]])
    np.testing.assert_allclose(outside.aleatoric, edge.aleatoric, rtol=1e-10)
    assert bool((outside.epistemic > edge.epistemic).all())


def test_slope_variance_of_a_known_function():
    """f = z²: the slope 2z has variance 4 Var z; a noise that grows by 1/10 adds 1/100; a line adds nothing."""
    z = np.linspace(-2.0, 2.0, 401)
    frame = pd.DataFrame({"a": z, "b": 3.0 + 7.0 * z, "c": np.where(z > 0, "x", "y")})
    columns = Columns.learn(frame)

    def predict(features):
        a, b = torch.from_numpy(features[:, :1]).double(), torch.from_numpy(features[:, 1:2]).double()
        scale = 1.0 + 0.1 * a
        return RealPredictive(GaussianComponents((a.square() + 5.0 * b)[None], 2.0 * scale.log()[None]))

    found = Extrapolation.learn(columns, columns.read(frame), predict)
    # z has variance 1; the ends, where the difference is one-sided, and float32 features move it by less than 1 %
    np.testing.assert_allclose(found.slope_variance, [4.01, 0.0], rtol=0.01, atol=1e-9)
    variance = found.variance(np.array([[0.0, 9.0], [0.5, 0.0], [-2.0, 1.0]]))
    np.testing.assert_allclose(variance, 2.0 * found.slope_variance[0] * np.array([0.0, 0.25, 4.0]), atol=1e-6)
    again = Extrapolation.from_config(found.get_config())
    np.testing.assert_array_equal(again.slope_variance, found.slope_variance)
    half = found.merge(Extrapolation(401, np.array([0.0, 0.0])))
    np.testing.assert_allclose(half.slope_variance, found.slope_variance / 2.0)


def test_disagreement_about_noise_is_epistemic():
    """The mixture keeps its density and its variance; only the split moves, by E e^s − e^E[s] and what it implies."""
    torch.manual_seed(0)
    mean, log_variance = torch.randn(40, 6).double(), torch.randn(40, 6).double()
    log_variance[:, 0] = 0.3
    plain = RealPredictive(GaussianComponents(mean, log_variance))
    split = RealPredictive(split_noise(GaussianComponents(mean, log_variance), None, torch.zeros(6).double()))
    y = torch.randn(6).double()
    torch.testing.assert_close(split.log_prob(y), plain.log_prob(y), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(split.variance, plain.variance, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(split.aleatoric[0], plain.aleatoric[0])
    level = log_variance.mean(0).exp()
    assert bool((split.aleatoric[1:] < level[1:]).all())
    assert bool((split.epistemic[1:] > plain.epistemic[1:] + plain.aleatoric[1:] - level[1:]).all())
    wider = split_noise(GaussianComponents(mean, log_variance), None, torch.full((6,), 2.0).double())
    torch.testing.assert_close(RealPredictive(wider).epistemic, split.epistemic + 2.0)


def test_rows_outside_are_flagged_and_counted(line):
    frame = pd.DataFrame({"age": [20.0, 90.0, 30.0, np.nan], "fare": [1.0, -5.0, 9.0, 4.0]}, index=list("abcd"))
    train = pd.DataFrame({"age": np.linspace(18.0, 80.0, 30), "fare": np.linspace(0.0, 8.0, 30)[::-1]})
    model = credo.Regressor("map", epochs=1, random_state=0).fit(train, train["age"])
    with pytest.warns(UserWarning, match="Missing values"):
        flags = model.outside_range(frame)
    assert flags.index.tolist() == list("abcd")
    assert flags["age"].tolist() == [False, True, False, False]
    assert flags["fare"].tolist() == [False, True, True, False]
    outside = OutsideRange()
    assert outside.sentences() == []
    outside.add(flags[["age"]])
    extrapolated = "predictions there are extrapolations."
    assert outside.sentences() == [f"1 row lies outside the training range in 'age': {extrapolated}"]
    outside.add(flags)
    assert outside.sentences() == [f"3 rows lie outside the training range in 'age' (2), 'fare' (2): {extrapolated}"]
    assert line.outside_range(FAR)["x0"].tolist() == [True] * 4


def test_partial_fit_widens_the_range(line, tmp_path):
    x = np.array([[4.0], [5.0], [6.0]])
    model = credo.Regressor(epochs=20, random_state=0).partial_fit(FAR / 100.0, FAR[:, 0])
    assert model.outside_range(x).to_numpy().all()
    model.partial_fit(x, 2.0 * x[:, 0])
    assert not model.outside_range(x).to_numpy().any()
    model.save(tmp_path / "run")
    again = credo.load(tmp_path / "run")
    assert again.extrapolation_.get_config() == model.extrapolation_.get_config()
    np.testing.assert_array_equal(again.predict_dist(FAR).std, model.predict_dist(FAR).std)


def test_a_row_outside_changes_no_other_row_of_a_distilled_model():
    x, y = sine()
    teacher = credo.Regressor("ensemble", epochs=3, samples=10, random_state=0, likelihood="gaussian").fit(x, y)
    student = credo.distill(teacher, x, augmentation=0, epochs=2)
    alone, beside = student.predict_dist(x[:3]), student.predict_dist(np.vstack([x[:3], [[50.0]]]))
    for name in ("mean", "epistemic", "aleatoric"):
        np.testing.assert_allclose(getattr(beside, name)[:3], getattr(alone, name), rtol=1e-12)
    assert float(beside.epistemic[3]) > float(alone.epistemic.max())
