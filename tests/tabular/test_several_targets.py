"""Several targets of one network: encoding, independent and joint noise, saving, and single targets of them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from torch import distributions as D

import credo
from credo.errors import InputError, UnsupportedError
from credo.predictive import RealPredictive
from credo.predictive.joint import JointGaussianComponents, to_correlation
from credo.tabular.predictions import column_names, to_frame
from credo.tabular.runs import fit_run, open_run
from credo.tabular.several_targets import RegressionTargets, check_one_target, noise_correlation, target_covariance

NOISE = np.array([[1.0, -0.7], [-0.7, 1.0]])


def table(rows: int = 300, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Two linear targets in different units; the correlation of their noise is −0.7."""
    rng = np.random.default_rng(seed)
    X = pd.DataFrame(rng.normal(size=(rows, 2)), columns=["u", "v"])
    noise = 0.3 * rng.multivariate_normal([0, 0], NOISE, rows)
    Y = pd.DataFrame({"price": 1000 + 200 * (X.u + noise[:, 0]), "weight": X.v - X.u + noise[:, 1]})
    return X, Y


@pytest.fixture(scope="module")
def joint() -> credo.Regressor:
    return credo.Regressor("map", joint_noise=True, epochs=60, random_state=0).fit(*table())


def test_joint_density_samples_and_covariance_match_torch() -> None:
    """The closed form is torch's; moments of 40,000 samples within 5 standard errors."""
    generator = torch.Generator().manual_seed(0)
    mean, noise, spread = (torch.rand(3, 4, 2, generator=generator, dtype=torch.float64) + 0.1 for _ in range(3))
    parts = JointGaussianComponents(mean, (noise + spread).log(), noise, spread, to_correlation(NOISE))
    scale = noise.sqrt()
    covariance = scale[..., :, None] * scale[..., None, :] * torch.from_numpy(NOISE) + torch.diag_embed(spread)
    reference = D.MultivariateNormal(mean, covariance)
    y = torch.randn(4, 2, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(parts.row_log_prob(y), reference.log_prob(y))
    p = RealPredictive(parts)
    torch.testing.assert_close(p.log_prob(y), reference.log_prob(y).logsumexp(0) - np.log(3))
    total = target_covariance(p)
    torch.testing.assert_close(total.diagonal(dim1=-2, dim2=-1), p.variance)
    n = 40_000
    samples = p.sample(n, seed=1) - p.mean
    products = samples[..., :, None] * samples[..., None, :]
    error = products.std(0) / np.sqrt(n)
    assert bool(((products.mean(0) - total).abs() < 5 * error).all())


def test_without_correlation_the_joint_density_is_that_of_independent_noise() -> None:
    outputs = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    alone = credo.Gaussian("heteroscedastic").predictive(outputs)
    joint = RealPredictive(
        JointGaussianComponents(
            alone.components.mean, alone.components.log_variance, correlation=to_correlation(np.eye(2))
        )
    )
    y = torch.zeros(5, 2, dtype=torch.float64)
    torch.testing.assert_close(joint.log_prob(y), alone.log_prob(y))
    torch.testing.assert_close(joint.interval(0.9).lower, alone.interval(0.9).lower)


def test_noise_correlation_is_the_maximum_likelihood_estimate_of_linear_regressions() -> None:
    """Means by least squares and R from their residuals maximize the joint likelihood (Zellner 1962)."""
    X, Y = table(80)
    design, y = np.column_stack([np.ones(80), X]), Y.to_numpy()
    residual = y - design @ np.linalg.lstsq(design, y, rcond=None)[0]
    std = residual.std(axis=0)
    mean = torch.tensor(y - residual)[None]
    p = RealPredictive(credo.Gaussian(noise=std.tolist()).components(mean))
    found = noise_correlation(p, torch.tensor(y))
    np.testing.assert_allclose(found, np.corrcoef(residual.T), atol=1e-5)

    def log_likelihood(rho: float) -> float:
        covariance = np.outer(std, std) * np.array([[1, rho], [rho, 1]])
        return float(stats.multivariate_normal([0, 0], covariance).logpdf(residual).sum())

    best = found[0, 1]
    assert log_likelihood(best) > max(log_likelihood(best - 0.01), log_likelihood(best + 0.01))


def test_joint_noise_is_found(joint: credo.Regressor) -> None:
    """Within 4 standard errors, (1 − ρ²)/√n = 0.03, of −0.7."""
    assert abs(joint.noise_correlation_[0, 1] + 0.7) < 4 * (1 - 0.49) / np.sqrt(300)
    X, Y = table(50, seed=1)
    p = joint.predict_dist(X)
    y = torch.tensor(Y.to_numpy())
    independent = joint.marginal("price").predict_dist(X).log_prob(y[:, 0])
    independent = independent + joint.marginal("weight").predict_dist(X).log_prob(y[:, 1])
    assert float(p.log_prob(y).mean()) > float(independent.mean())
    correlation = joint.predict_correlation(X)
    assert correlation.shape == (50, 2, 2)
    np.testing.assert_allclose(correlation[:, 0, 1], joint.noise_correlation_[0, 1], atol=1e-9)  # one draw


def test_shapes_units_and_frames(joint: credo.Regressor) -> None:
    X, Y = table()
    mean, std = joint.predict(X, return_std=True)
    assert mean.shape == std.shape == (300, 2)
    assert joint.score(X, Y) > 0.8
    p = joint.predict_dist(X)
    assert p.interval(0.9).lower.shape == (300, 2)
    torch.testing.assert_close(p.variance, p.aleatoric + p.epistemic)
    frame = to_frame(p, joint.target_)
    assert list(frame) == column_names(joint.target_)
    assert {"price_mean", "weight_upper", "correlation_price_weight"} <= set(frame)
    np.testing.assert_allclose(frame["price_std"], std[:, 0])


def test_a_marginal_is_the_prediction_of_one_target(joint: credo.Regressor) -> None:
    X, Y = table()
    alone, p = joint.marginal("weight").predict_dist(X), joint.predict_dist(X)
    for name in ("mean", "aleatoric", "epistemic"):
        torch.testing.assert_close(getattr(alone, name), getattr(p, name)[:, 1])
    torch.testing.assert_close(alone.interval(0.9).upper, p.interval(0.9).upper[:, 1])
    far = X.assign(u=X.u + 10)
    torch.testing.assert_close(joint.marginal(0).predict_dist(far).epistemic, joint.predict_dist(far).epistemic[:, 0])
    assert joint.marginal("price").score(X, Y["price"]) > 0.8
    with pytest.raises(InputError, match="weight"):
        joint.marginal("wieght")
    with pytest.raises(InputError, match="one target only"):
        joint.marginal("price").marginal("price")
    with pytest.raises(InputError, match="save the model of all targets"):
        joint.marginal("price").save("nowhere")


@pytest.mark.parametrize("rows", [60, 250])
def test_draws_of_several_targets(rows: int) -> None:
    """The same noise for all rows below 200, noise per row above: both have a posterior over all outputs."""
    X, Y = table(rows)
    model = credo.Regressor("bbb", epochs=5, random_state=0, samples=10).fit(X.to_numpy(), Y.to_numpy())
    p = model.predict_dist(X.to_numpy())
    assert p.draws.shape == (10, rows, 2)
    assert model.target_.names == ("y0", "y1")
    assert model.noise_correlation_ is None
    model.partial_fit(X.to_numpy(), Y.to_numpy())
    assert bool((model.predict_dist(X.to_numpy() + 100.0).epistemic > p.epistemic).all())


def test_saving(joint: credo.Regressor, tmp_path) -> None:
    X, Y = table()
    joint.save(tmp_path / "run")
    same = credo.load(tmp_path / "run")
    y = torch.tensor(Y.to_numpy())
    torch.testing.assert_close(same.predict_dist(X).log_prob(y), joint.predict_dist(X).log_prob(y), rtol=0, atol=0)
    np.testing.assert_array_equal(same.noise_correlation_, joint.noise_correlation_)


def test_rows_without_all_targets_are_left_out() -> None:
    X, Y = table(60)
    Y.iloc[3, 0], Y.iloc[7, 1] = None, None
    target = RegressionTargets.learn(Y)
    assert target.known(Y).sum() == 58
    assert any("2" in note and "missing" in note for note in target.notes)
    with pytest.warns(UserWarning, match="missing"):
        model = credo.Regressor("map", epochs=2, random_state=0).fit(X, Y)
    assert model.predict(X).shape == (60, 2)


def test_what_several_targets_cannot_have() -> None:
    X, Y = table(60)
    for options in ({"calibrate": "variance"}, {"likelihood": "poisson"}):
        with pytest.raises(InputError, match="for one target, got 2"):
            credo.Regressor("map", epochs=1, **options).fit(X, Y)
    with pytest.raises(InputError, match="same in every row"):
        credo.Regressor("map", epochs=1).fit(X, Y.assign(weight=1.0))
    with pytest.raises(InputError, match="one value per row"):
        credo.Classifier("map", epochs=1).fit(X, (Y > 0).astype(str))
    with pytest.raises(InputError, match="positive definite"):
        to_correlation([[1.0, 2.0], [2.0, 1.0]])


def test_a_run_of_several_targets(tmp_path) -> None:
    X, Y = table(80)
    frame = pd.concat([X, Y], axis=1)
    run = fit_run(frame, "price,weight", method="map", epochs=3, joint_noise=True)
    assert list(run.scores_by_target) == ["price", "weight"]
    run.save(tmp_path / "run")
    again = open_run(tmp_path / "run")
    assert again.record["target"] == "price,weight"
    assert [s.value for s in again.scores_by_target["weight"]] == [s.value for s in run.scores_by_target["weight"]]
    assert "weight" in again.report("weight")
    with pytest.raises(InputError, match="choose one of the targets"):
        again.report()
    with pytest.raises(InputError, match="holds classes"):
        fit_run(frame.assign(kind=np.arange(80) % 2), "price,kind", method="map", epochs=1)


def test_what_takes_one_target_says_so(joint: credo.Regressor) -> None:
    with pytest.raises(UnsupportedError, match="export is for one target, and this model has 'price', 'weight'"):
        check_one_target(joint.target_, "export")
    check_one_target(joint.marginal("price").target_, "export")
