"""Scaling of the spread against the closed form, known factors and the identities of a stretched distribution."""

from __future__ import annotations

import math

import pytest
import torch

from credo.calibration import VarianceScaling
from credo.calibration.scaling import negative_log_likelihood
from credo.errors import InputError
from credo.likelihoods import Gaussian, Likelihood, StudentT
from credo.predictive import Predictive

from .cases import F64, coverage, curvature, truth, wrong


def fitted(p: Predictive, y: torch.Tensor) -> float:
    factor = VarianceScaling().fit(p, y).factor
    assert factor is not None
    return factor


def test_factor_of_one_gaussian_matches_the_closed_form() -> None:
    p, y = wrong(3.0, rows=50, draws=1)
    exact = float(((y - p.mean).square() / p.variance).mean().sqrt())
    assert fitted(p, y) == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize("factor", [0.2, 1.0, 3.0, 100.0])
def test_known_factor_is_recovered(factor: float) -> None:
    p, y = wrong(factor, rows=2000)
    found = fitted(p, y)
    information = curvature(lambda s: negative_log_likelihood(VarianceScaling(s)(p), y), found)
    assert abs(math.log(found / factor)) < 5 / math.sqrt(information) < 0.1


@pytest.mark.parametrize("likelihood", [Gaussian(0.3), StudentT(5.0, 0.3)], ids=str)
def test_the_distribution_is_stretched_about_its_mean(likelihood: Likelihood) -> None:
    g = torch.Generator().manual_seed(0)
    p = likelihood.predictive(torch.randn(6, 4, 2, generator=g, dtype=F64))
    q = VarianceScaling(2.5)(p)
    y = torch.randn(4, 2, generator=g, dtype=F64)
    torch.testing.assert_close(q.cdf(p.mean + 2.5 * (y - p.mean)), p.cdf(y))
    torch.testing.assert_close(q.mean, p.mean)
    for name in ("variance", "aleatoric", "epistemic"):
        torch.testing.assert_close(getattr(q, name), 2.5**2 * getattr(p, name))
    torch.testing.assert_close(q.quantile(0.9) - q.mean, 2.5 * (p.quantile(0.9) - p.mean))
    torch.testing.assert_close(q.mutual_information, p.mutual_information, rtol=0, atol=1e-6)
    torch.testing.assert_close(q.entropy, p.entropy + math.log(2.5), rtol=0, atol=1e-6)


def test_overconfident_model_is_corrected_on_new_rows() -> None:
    calibrator = VarianceScaling().fit(*wrong(3.0, rows=500))
    p, y = wrong(3.0, rows=4000, seed=10)
    q = calibrator(p)
    assert coverage(p, y, 0.9) < 0.6
    # 500 rows know the factor to 3 %, which moves the cover by 2·1.645·φ(1.645)·0.03 = 0.01; 5 standard errors
    assert coverage(q, y, 0.9) == pytest.approx(0.9, abs=5 * math.hypot(0.01, math.sqrt(0.09 / 4000)))
    gain = q.log_prob(y) - p.log_prob(y)
    assert float(gain.mean()) > 5 * float(gain.std()) / math.sqrt(4000)


def test_several_outputs_share_the_factor() -> None:
    p = truth(500, outputs=3)
    y = p.mean + 2 * (p.sample(1, seed=0)[0] - p.mean)
    assert fitted(p, y) == pytest.approx(2, rel=5 / math.sqrt(2 * 500))


def test_factor_out_of_bounds_raises() -> None:
    p = truth(20)
    with pytest.raises(InputError, match=r"have to be multiplied by less than 0\.0001"):
        VarianceScaling().fit(VarianceScaling(0.001)(truth(20, draws=1)), truth(20, draws=1).mean)
    with pytest.raises(InputError, match=r"have to be multiplied by more than 1e\+04"):
        VarianceScaling().fit(p, p.mean + 1e7)
