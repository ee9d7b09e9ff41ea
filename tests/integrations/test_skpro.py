"""skpro's interface: its own checks, and the numbers of the predictive distribution."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

import credo

pytest.importorskip("skpro", reason="needs the extra skpro")

from credo.integrations.skpro import PredictiveDistribution, ProbaRegressor

pytestmark = [
    pytest.mark.extras,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"a": rng.normal(size=80), "b": rng.normal(size=80)}, index=np.arange(100, 180))
    return X, pd.DataFrame({"target": X["a"] - X["b"] + 0.1 * rng.normal(size=80)}, index=X.index)


@pytest.fixture(scope="module")
def model(data):
    X, y = data
    return ProbaRegressor(credo.Regressor("bbb", epochs=5, samples=20, random_state=0, progress=False)).fit(X, y)


@pytest.mark.slow
def test_checks_of_skpro_pass():
    from skpro.utils import check_estimator

    results = check_estimator(ProbaRegressor, raise_exceptions=False, verbose=False)
    assert {name: result for name, result in results.items() if result != "PASSED"} == {}
    assert len(results) > 50


def test_predictions_are_those_of_the_regressor(model, data):
    X = data[0]
    p = model.estimator_.predict_dist(X)
    np.testing.assert_array_equal(model.predict(X)["target"], p.mean.numpy())
    np.testing.assert_array_equal(model.predict_var(X)["target"], p.variance.numpy())
    quantiles = model.predict_quantiles(X, alpha=[0.1, 0.5])
    np.testing.assert_allclose(quantiles[("target", 0.1)], p.quantile(0.1).numpy())
    intervals = model.predict_interval(X, coverage=[0.5, 0.9])
    np.testing.assert_allclose(intervals[("target", 0.9, "upper")], p.interval(0.9).upper.numpy())
    assert list(intervals.index) == list(X.index)


def test_distribution_is_the_mixture_over_draws(model, data):
    X, y = data
    p = model.estimator_.predict_dist(X)
    found = model.predict_proba(X)
    assert isinstance(found, PredictiveDistribution)
    values = p.mean.new_tensor(y["target"].to_numpy())
    np.testing.assert_allclose(found.log_pdf(y)["target"], p.log_prob(values).numpy())
    np.testing.assert_allclose(found.cdf(y)["target"], p.cdf(values).numpy())
    np.testing.assert_allclose(found.mean()["target"], p.mean.numpy())
    np.testing.assert_allclose(found.var()["target"], p.variance.numpy())
    np.testing.assert_allclose(found.ppf(0.3)["target"], p.quantile(0.3).numpy())


def test_quantile_and_cdf_are_inverses(model, data):
    found = model.predict_proba(data[0].head(6))
    levels = pd.DataFrame({"target": [0.01, 0.2, 0.5, 0.7, 0.9, 0.99]}, index=data[0].index[:6])
    np.testing.assert_allclose(found.cdf(found.ppf(levels)), levels, atol=1e-6)


def test_rows_of_a_distribution_are_chosen_by_label_and_position(model, data):
    X = data[0]
    found = model.predict_proba(X)
    np.testing.assert_allclose(found.iloc[[3, 1], :].mean(), found.mean().iloc[[3, 1]])
    np.testing.assert_allclose(found.loc[X.index[[5]], ["target"]].var(), found.var().iloc[[5]])
    one = found.iat[4, 0]
    assert one.mean() == pytest.approx(found.mean().iloc[4, 0])
    assert one.log_pdf(0.3) == pytest.approx(found.log_pdf(0.3).iloc[4, 0])
    assert found.sample(3).shape == (3 * len(X), 1)


def test_metrics_of_skpro_score_it(model, data):
    from skpro.metrics import LogLoss

    X, y = data
    expected = -model.estimator_.predict_dist(X).log_prob(torch.from_numpy(y["target"].to_numpy())).mean()
    assert LogLoss()(y, model.predict_proba(X)) == pytest.approx(float(expected))


def test_a_forecaster_of_sktime_has_intervals():
    compose = pytest.importorskip("sktime.forecasting.compose")
    months = pd.period_range("2020-01", periods=40, freq="M")
    y = pd.Series(np.sin(np.arange(40) / 4), index=months, name="y")
    regressor = ProbaRegressor(credo.Regressor("bbb", epochs=5, samples=20, random_state=0, progress=False))
    forecaster = compose.make_reduction(regressor, window_length=6, strategy="direct").fit(y[:-3], fh=[1, 2, 3])
    mean, interval = forecaster.predict(), forecaster.predict_interval(coverage=0.9)["y", 0.9]
    assert list(interval.index) == list(months[-3:])
    assert bool(((interval["lower"] < mean) & (mean < interval["upper"])).all())
