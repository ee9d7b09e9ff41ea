"""Predictions in closed form are those of a mixture over infinitely many draws."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from credo import metrics
from credo.calibration import Calibrator, QuantileRecalibration, SplitConformal, VarianceScaling
from credo.plots._tools import draw_band
from credo.predictive import ExactGaussianPredictive, Predictive, RealPredictive
from credo.predictive.location_scale import GaussianComponents

F64 = torch.float64
MEAN = torch.tensor([0.0, 1.0, -2.0], dtype=torch.float64)
EPISTEMIC = torch.tensor([0.5, 2.0, 0.01], dtype=torch.float64)
NOISE = 0.3
EXACT = ExactGaussianPredictive.of(MEAN, EPISTEMIC, NOISE)


def drawn(p: Predictive) -> RealPredictive:
    """The same belief about f(x) by weighted functions, the nodes of Gauss–Hermite quadrature."""
    z, weights = (torch.tensor(values) for values in np.polynomial.hermite_e.hermegauss(60))
    means = p.mean + p.epistemic.sqrt() * z[:, None]
    return RealPredictive(GaussianComponents(means, p.aleatoric.log().expand_as(means)), weights / weights.sum())


@pytest.fixture(scope="module")
def mixture():
    return drawn(EXACT)


def test_parts_add_up():
    assert isinstance(EXACT, Predictive)
    torch.testing.assert_close(EXACT.variance, EXACT.aleatoric + EXACT.epistemic, rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(EXACT.epistemic, EPISTEMIC, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(EXACT.aleatoric, torch.full_like(MEAN, NOISE), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["mean", "variance", "epistemic", "entropy", "mutual_information"])
def test_moments_agree_with_draws(name, mixture):
    torch.testing.assert_close(getattr(EXACT, name), getattr(mixture, name), rtol=1e-6, atol=1e-6)


def test_distribution_agrees_with_draws(mixture):
    y = torch.tensor([0.3, -1.0, -2.5], dtype=torch.float64)
    torch.testing.assert_close(EXACT.log_prob(y), mixture.log_prob(y), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(EXACT.cdf(y), mixture.cdf(y), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(EXACT.quantile([0.1, 0.5]), mixture.quantile([0.1, 0.5]), rtol=1e-6, atol=1e-6)


def test_interval_has_its_level():
    lower, upper = EXACT.interval(0.9)
    torch.testing.assert_close(EXACT.cdf(upper) - EXACT.cdf(lower), torch.full_like(MEAN, 0.9), rtol=1e-12, atol=1e-12)


def test_rows_units_and_joining_keep_both_parts():
    part = EXACT[1:]
    torch.testing.assert_close(part.epistemic, EPISTEMIC[1:], rtol=1e-12, atol=1e-14)
    joined = Predictive.concatenate([EXACT[:1], part])
    torch.testing.assert_close(joined.epistemic, EXACT.epistemic, rtol=0, atol=0)
    scaled = EXACT.components.rescaled(10.0, 5.0)
    torch.testing.assert_close(scaled.noise, 100.0 * EXACT.components.noise, rtol=1e-12, atol=0)
    torch.testing.assert_close(scaled.variance, 100.0 * EXACT.components.variance, rtol=1e-12, atol=0)


def test_without_noise_everything_is_epistemic():
    exact = ExactGaussianPredictive.of(MEAN, EPISTEMIC, 0.0)
    assert torch.equal(exact.aleatoric, torch.zeros_like(MEAN))
    assert torch.isinf(exact.mutual_information).all()
    torch.testing.assert_close(exact.variance, EPISTEMIC, rtol=1e-12, atol=0)


# y ~ N(0, 1 + ¼) and N(10, 4 + 1) in the first row, as in the second the other way round and closer
PARTS = [
    ExactGaussianPredictive.of(torch.tensor(m, dtype=F64), torch.tensor(v, dtype=F64), torch.tensor(noise, dtype=F64))
    for m, v, noise in (([0.0, 1.0], [1.0, 0.2], [0.25, 1.0]), ([10.0, 0.0], [4.0, 1.0], [1.0, 0.3]))
]


@pytest.fixture(scope="module")
def mixed_draws():
    return Predictive.mixture([drawn(part) for part in PARTS])


def test_mixture_moments_match_the_parts():
    mixed = Predictive.mixture(PARTS)
    exact = {
        "mean": [5.0, 0.5],
        "aleatoric": [(0.25 + 1) / 2, (1 + 0.3) / 2],
        "epistemic": [(1 + 4) / 2 + 25, (0.2 + 1) / 2 + 0.25],
        "variance": [28.125, 1.5],
    }
    for name, values in exact.items():
        torch.testing.assert_close(getattr(mixed, name), torch.tensor(values, dtype=F64), rtol=1e-14, atol=0)
    lower, upper = mixed.interval(0.95)
    held = mixed.cdf(upper) - mixed.cdf(lower)
    torch.testing.assert_close(held, torch.full_like(held, 0.95), rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", ["mean", "variance", "aleatoric", "epistemic", "entropy", "mutual_information"])
def test_mixture_moments_agree_with_draws(name, mixed_draws):
    torch.testing.assert_close(
        getattr(Predictive.mixture(PARTS), name), getattr(mixed_draws, name), rtol=1e-6, atol=1e-6
    )


def test_mixture_distribution_agrees_with_draws(mixed_draws):
    mixed, y = Predictive.mixture(PARTS), torch.tensor([1.3, -1.0], dtype=F64)
    torch.testing.assert_close(mixed.log_prob(y), mixed_draws.log_prob(y), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(mixed.cdf(y), mixed_draws.cdf(y), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(mixed.quantile([0.1, 0.5]), mixed_draws.quantile([0.1, 0.5]), rtol=1e-6, atol=1e-6)


def test_mixture_of_a_prediction_with_itself_is_unchanged():
    mixed = Predictive.mixture([EXACT, EXACT, EXACT])
    for name in ("mean", "variance", "aleatoric", "epistemic", "entropy", "mutual_information"):
        torch.testing.assert_close(getattr(mixed, name), getattr(EXACT, name), rtol=1e-12, atol=1e-12)


def test_mixtures_of_mixtures_keep_their_weights_rows_and_units():
    """A part of a mixture of two counts half as much as one that stands alone."""
    nested = Predictive.mixture([Predictive.mixture(PARTS), PARTS[0]])
    first, second = PARTS
    mean = 0.75 * first.mean + 0.25 * second.mean
    between = 0.75 * (first.mean - mean).square() + 0.25 * (second.mean - mean).square()
    epistemic = 0.75 * first.epistemic + 0.25 * second.epistemic + between
    torch.testing.assert_close(nested.epistemic, epistemic, rtol=1e-12, atol=0)
    torch.testing.assert_close(nested[1:].epistemic, epistemic[1:], rtol=1e-12, atol=0)
    torch.testing.assert_close(
        Predictive.concatenate([nested, nested[:1]]).epistemic[2:], epistemic[:1], rtol=1e-12, atol=0
    )
    scaled = VarianceScaling(3.0)(nested)
    torch.testing.assert_close(scaled.mean, mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(scaled.epistemic, 9 * epistemic, rtol=1e-12, atol=0)
    torch.testing.assert_close(scaled.double().cpu().aleatoric, 9 * nested.aleatoric, rtol=1e-12, atol=0)


@pytest.mark.parametrize("calibrator", [VarianceScaling, QuantileRecalibration, SplitConformal])
@pytest.mark.parametrize("parts", [1, 2])
def test_calibration_keeps_the_epistemic_part_and_the_mutual_information(calibrator: type[Calibrator], parts: int):
    stream = torch.Generator().manual_seed(0)
    plain = [
        ExactGaussianPredictive.of(torch.randn(80, generator=stream, dtype=F64), torch.full((80,), v, dtype=F64), 0.3)
        for v in (0.5, 2.0)[:parts]
    ]
    p = Predictive.mixture(plain)
    y = p.sample(80, seed=1).diagonal()  # every row from a part of its own
    q = calibrator().fit(p, y)(p)
    torch.testing.assert_close(q.mutual_information, p.mutual_information, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(q.variance, q.aleatoric + q.epistemic, rtol=1e-12, atol=0)
    torch.testing.assert_close(q.epistemic / q.variance, p.epistemic / p.variance, rtol=1e-12, atol=0)
    torch.testing.assert_close(q[3:5].epistemic, q.epistemic[3:5], rtol=1e-12, atol=0)
    halves = Predictive.concatenate([q[:30], q[30:]])
    torch.testing.assert_close(halves.epistemic, q.epistemic, rtol=1e-12, atol=0)


def test_small_epistemic_part_is_accurate():
    """v = 1e-12 beside σ² = 1 is not the difference of two rounded variances."""
    exact = ExactGaussianPredictive.of(MEAN, torch.full_like(MEAN, 1e-12), 1.0)
    torch.testing.assert_close(exact.epistemic, torch.full_like(MEAN, 1e-12), rtol=1e-15, atol=0)
    torch.testing.assert_close(exact.mutual_information, torch.full_like(MEAN, 5e-13), rtol=1e-11, atol=0)
    assert torch.equal(ExactGaussianPredictive.of(MEAN, 0 * MEAN, 0.0).mutual_information, torch.zeros_like(MEAN))


def test_crps_matches_gaussian_mixtures():
    y = torch.tensor([0.4, 2.0], dtype=F64)
    for p in (PARTS[1], Predictive.mixture(PARTS)):
        gaussians = RealPredictive(GaussianComponents(p.components.mean, p.components.log_variance))
        assert metrics.crps(p, y) == pytest.approx(metrics.crps(gaussians, y), rel=1e-12)


def test_function_bands_of_mixtures_and_calibrated_predictions():
    """The band of f is that of the mixture of N(m, v), without the noise."""
    mixed = Predictive.mixture(PARTS)
    functions = RealPredictive(GaussianComponents(mixed.components.mean, mixed.components.epistemic.log()))
    band = torch.from_numpy(draw_band(mixed, 0.9))
    torch.testing.assert_close(band, functions.quantile([0.05, 0.95]), rtol=1e-12, atol=0)
    wider = torch.from_numpy(draw_band(VarianceScaling(2.0)(mixed), 0.9))
    torch.testing.assert_close(wider, mixed.mean + 2 * (band - mixed.mean), rtol=1e-9, atol=0)
