"""Predictions in closed form are those of a mixture over infinitely many draws."""

from __future__ import annotations

import math

import pytest
import torch

from credo.predictive import Predictive
from credo.predictive.exact import ExactGaussianPredictive
from credo.predictive.gaussian import GaussianComponents
from credo.predictive.real import RealPredictive

MEAN = torch.tensor([0.0, 1.0, -2.0], dtype=torch.float64)
EPISTEMIC = torch.tensor([0.5, 2.0, 0.01], dtype=torch.float64)
NOISE = 0.3
EXACT = ExactGaussianPredictive.of(MEAN, EPISTEMIC, NOISE)
DRAWS = 4000


@pytest.fixture(scope="module")
def mixture():
    """The same belief about f(x) by draws on a grid of its quantiles, whose moments are right to 1/S."""
    z = torch.special.ndtri((torch.arange(DRAWS, dtype=torch.float64) + 0.5) / DRAWS)
    means = MEAN + EPISTEMIC.sqrt() * z[:, None]
    return RealPredictive(GaussianComponents(means, torch.full_like(means, math.log(NOISE))))


def test_it_is_a_predictive_whose_parts_add_up():
    assert isinstance(EXACT, Predictive)
    torch.testing.assert_close(EXACT.variance, EXACT.aleatoric + EXACT.epistemic, rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(EXACT.epistemic, EPISTEMIC, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(EXACT.aleatoric, torch.full_like(MEAN, NOISE), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["mean", "variance", "epistemic", "entropy", "mutual_information"])
def test_it_agrees_with_draws(name, mixture):
    torch.testing.assert_close(getattr(EXACT, name), getattr(mixture, name), rtol=2e-3, atol=2e-3)


def test_distribution_agrees_with_draws(mixture):
    y = torch.tensor([0.3, -1.0, -2.5], dtype=torch.float64)
    torch.testing.assert_close(EXACT.log_prob(y), mixture.log_prob(y), rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(EXACT.cdf(y), mixture.cdf(y), rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(EXACT.quantile([0.1, 0.5]), mixture.quantile([0.1, 0.5]), rtol=2e-3, atol=2e-3)


def test_interval_holds_its_level():
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
