"""Log-normal and Beta predictions against scipy, quadrature and arithmetic of many digits."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import torch
from scipy import special, stats
from torch import Tensor

from credo.calibration import QuantileRecalibration, SplitConformal, VarianceScaling
from credo.errors import InputError, UnsupportedError
from credo.likelihoods import Beta, LogNormal
from credo.metrics import crps
from credo.predictive import RealPredictive
from credo.predictive.bounded import BetaComponents, LogNormalComponents
from credo.predictive.components import RealComponents
from credo.predictive.location_scale import StudentTComponents

from .cases import F64

LOCATIONS = np.array([-1.0, 0.3, 2.0])


def log_normal() -> tuple[LogNormalComponents, stats.rv_continuous]:
    scale = np.array([0.05, 0.6, 1.5])
    c = LogNormalComponents(torch.tensor(LOCATIONS)[None], torch.tensor(scale).log()[None])
    return c, stats.lognorm(scale, scale=np.exp(LOCATIONS))


def beta() -> tuple[BetaComponents, stats.rv_continuous]:
    mean, total = 1 / (1 + np.exp(-LOCATIONS)), np.array([0.8, 12.0, 3e4])
    c = BetaComponents(torch.tensor(LOCATIONS)[None], torch.tensor(total).log()[None], lower=0.0, upper=3.0)
    return c, stats.beta(mean * total, (1 - mean) * total, scale=3.0)


CASES = {"log-normal": log_normal, "beta": beta}


@pytest.mark.parametrize("name", CASES)
def test_moments_entropy_cdf_and_quantiles_are_those_of_scipy(name: str) -> None:
    c, reference = CASES[name]()
    np.testing.assert_allclose(c.draws[0], reference.mean(), rtol=1e-12)
    np.testing.assert_allclose(c.variance[0], reference.var(), rtol=1e-9)
    np.testing.assert_allclose(c.entropy[0], reference.entropy(), rtol=1e-8)
    p = RealPredictive(c)
    for q in (1e-6, 0.1, 0.5, 0.9, 0.999):
        y = torch.tensor(reference.ppf(q))
        np.testing.assert_allclose(p.quantile(q), y, rtol=1e-8)
        np.testing.assert_allclose(p.cdf(y), q, rtol=1e-8)
        np.testing.assert_allclose(c.survival(y)[0], 1 - q, rtol=1e-8)
        np.testing.assert_allclose(c.log_density(y)[0], reference.logpdf(y), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_partial_moments_are_integrals(name: str) -> None:
    """E[(Y − m)ᵏ; F(Y) ≤ q] = ∫₀^q (F⁻¹(u) − m)ᵏ du, with u = q·sin²(t) for smooth ends."""
    c, reference = CASES[name]()
    nodes, weights = np.polynomial.legendre.leggauss(400)
    t, dt = (nodes + 1) * math.pi / 4, weights * math.pi / 4
    for q in (0.2, 0.9):
        moments = c.partial_moments(torch.tensor(reference.ppf(q)))
        values = reference.ppf((q * np.sin(t) ** 2)[:, None]) - reference.mean()
        for k in range(3):
            exact = (dt * q * np.sin(2 * t)) @ values**k
            scale = (dt * q * np.sin(2 * t)) @ np.abs(values) ** k
            assert bool((np.abs(moments[k][0].numpy() - exact) < 1e-6 * scale).all())


@pytest.mark.parametrize("name", CASES)
def test_samples_have_the_moments(name: str) -> None:
    """Mean and variance of n samples within 5 standard errors."""
    p, n = RealPredictive(CASES[name]()[0].map(lambda t: t[:, :2])), 40_000
    y = p.sample(n, seed=2)
    assert bool(((y.mean(0) - p.mean).abs() < 5 * p.std / math.sqrt(n)).all())
    fourth = (y - p.mean).pow(4).mean(0)
    assert bool(((y.var(0) - p.variance).abs() < 5 * ((fourth - p.variance.square()) / n).sqrt()).all())


@pytest.mark.parametrize(("a", "b"), [(0.2, 0.3), (0.5, 2e3), (20.0, 30.0), (3e4, 8e4), (4e6, 5.0)])
def test_single_precision_density_of_large_concentrations(a: float, b: float) -> None:
    """Against 40 digits at the mean and one standard deviation above; the textbook's formula errs by units here."""
    mpmath.mp.dps = 40
    logit = torch.tensor([[math.log(a / b)]])
    c = BetaComponents(logit, torch.tensor([[math.log(a + b)]]))
    exact_a, exact_b = (t.double().item() for t in c._shapes())
    spread = math.sqrt(a * b / (a + b) ** 2 / (a + b + 1))
    for z in (0.0, 1.0):
        u = torch.tensor([min(a / (a + b) + z * spread, 0.999)])
        x, first, second = (mpmath.mpf(float(v)) for v in (u, exact_a, exact_b))
        log_norm = mpmath.log(mpmath.beta(first, second))
        expected = (first - 1) * mpmath.log(x) + (second - 1) * mpmath.log(1 - x) - log_norm
        # rounding u by 6e-8 moves log p by the slope times that
        slope = abs(float((first - 1) / x - (second - 1) / (1 - x)))
        assert float(c.log_density(u)) == pytest.approx(float(expected), abs=2e-5 + 2e-7 * slope, rel=2e-6)


@pytest.mark.parametrize("shape", [0.01, 0.05, 0.5, 5.0])
def test_samples_of_small_concentrations_lie_at_the_ends(shape: float) -> None:
    """P(0.1 < u < 0.9) and P(u < 1e-6) within 5 standard errors, in float32, where Gamma variables underflow."""
    n = 40_000
    c = BetaComponents(torch.zeros(n, 1), torch.full((n, 1), math.log(2 * shape)))
    u = c.sample(torch.Generator().manual_seed(0))
    reference = stats.beta(shape, shape)
    inner = reference.cdf(0.9) - reference.cdf(0.1)
    for found, exact in (((u > 0.1) & (u < 0.9), inner), (u < 1e-6, reference.cdf(1e-6))):
        assert float(found.float().mean()) == pytest.approx(exact, abs=5 * math.sqrt(exact * (1 - exact) / n) + 1 / n)


EXTREME = (1e-6, 1e-4, 0.01, 0.25, 0.5, 0.75, 0.99, 1 - 1e-4, 1 - 1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, F64], ids=str)
def test_quantiles_of_small_and_large_concentrations_are_those_of_scipy(dtype: torch.dtype) -> None:
    """To rounding of the quantile itself; what is smaller than the smallest number of the dtype is left out."""
    shapes = torch.tensor([0.01, 0.05, 0.3, 1.0, 5.0, 100.0, 1e4], dtype=F64)
    a, b = (t.flatten() for t in torch.meshgrid(shapes, shapes, indexing="ij"))
    c = BetaComponents((a / b).log().to(dtype)[None], (a + b).log().to(dtype)[None])
    exact_a, exact_b = (t[0].numpy() for t in c.map(Tensor.double)._shapes())
    for q in EXTREME:
        expected = stats.beta.ppf(q, exact_a, exact_b)
        expected = np.where(expected < torch.finfo(dtype).tiny, 0.0, expected)
        found = RealPredictive(c).quantile(q).double().numpy()
        np.testing.assert_allclose(found, expected, rtol=4 * torch.finfo(dtype).eps, atol=torch.finfo(dtype).tiny)


@pytest.mark.parametrize("dtype", [torch.float32, F64], ids=str)
@pytest.mark.parametrize("name", ["beta", "log-normal", "student-t"])
def test_quantiles_of_mixtures_over_many_orders_of_magnitude_have_their_level(name: str, dtype: torch.dtype) -> None:
    """The mixture's tail beyond the quantile is its level, or its level lies between those of numbers within rounding.

    Newton's last step leaves an error of eps/(2κ) in the log of a tail that is a power κ of the distance, κ ≥ 0.05.
    """
    c: RealComponents
    shapes = torch.tensor([[0.05, 0.3, 4.0, 0.05], [2.0, 0.05, 900.0, 0.05], [0.4, 7.0, 0.05, 0.06]], dtype=F64)
    locations = torch.tensor([[-1.0, 0.0, 3.0, 0.0], [2.0, 0.1, 0.5, 0.0], [0.4, -2.0, 0.5, 0.01]], dtype=F64)
    if name == "beta":
        other = shapes.flip(0)
        c = BetaComponents((shapes / other).log().to(dtype), (shapes + other).log().to(dtype))
        a, b = (t.numpy() for t in c.map(Tensor.double)._shapes())
        lower = lambda y: special.betainc(a, b, y.clip(0, 1))  # noqa: E731
        upper = lambda y: special.betaincc(a, b, y.clip(0, 1))  # noqa: E731
    elif name == "log-normal":
        c = LogNormalComponents(locations.to(dtype), shapes.clamp(max=9.0).log().to(dtype))
        mean, log_scale = c.location.double().numpy(), c.log_scale.double().numpy()
        z = lambda y: (np.log(y.clip(0)) - mean) / np.exp(log_scale)  # noqa: E731
        lower, upper = lambda y: stats.norm.cdf(z(y)), lambda y: stats.norm.sf(z(y))
    else:
        df = shapes.clamp(min=0.3)
        c = StudentTComponents(locations.to(dtype), (shapes - 3).clamp(max=3.0).to(dtype), df.to(dtype))
        m, scale, nu = (t.double().numpy() for t in (c.location, c.log_scale.double().exp(), c.df))
        lower, upper = lambda y: stats.t.cdf((y - m) / scale, nu), lambda y: stats.t.sf((y - m) / scale, nu)
    eps = torch.finfo(dtype).eps
    for q in EXTREME:
        found = RealPredictive(c).quantile(q)
        assert not bool(found.isnan().any())
        tail, level = (lower, q) if q <= 0.5 else (upper, 1 - q)
        margin = 4 * eps * found.abs() + torch.finfo(dtype).tiny
        ends = found - margin, found + margin
        low, high = np.sort(np.stack([tail(y.double().numpy()).mean(0) for y in ends]), axis=0)
        slack = 1 + 16 * eps / (2 * 0.05)
        assert bool((low <= level * slack).all()), q
        assert bool((high * slack >= level).all()), q


def test_mixture_information_of_distant_draws_is_log_draws() -> None:
    for likelihood, outputs in ((LogNormal(0.01), [-3.0, 0.0, 3.0]), (Beta(1e5), [-2.0, 0.0, 2.0])):
        p = likelihood.predictive(torch.tensor(outputs, dtype=F64)[:, None])
        assert float(p.mutual_information) == pytest.approx(math.log(3), rel=2e-3)


def test_crps_of_a_log_normal_is_its_closed_form() -> None:
    """y(2F(y) − 1) − 2 exp(m + σ²/2)[Φ(z − σ) + Φ(σ/√2) − 1] (Baran & Lerch 2015), z = (log y − m)/σ."""
    m, sigma, y = 0.3, 0.5, np.array([0.2, 1.0, 1.4, 5.0])
    z = (np.log(y) - m) / sigma
    rest = stats.norm.cdf(z - sigma) + stats.norm.cdf(sigma / math.sqrt(2)) - 1
    exact = y * (2 * stats.norm.cdf(z) - 1) - 2 * math.exp(m + sigma**2 / 2) * rest
    p = LogNormal(sigma).predictive(torch.full((1, 4), m, dtype=F64))
    std = float(p.std[0])
    assert crps(p, torch.tensor(y)) == pytest.approx(exact.mean(), abs=3e-4 * std)


def test_beta_targets_at_the_ends_are_refused_with_a_way_out() -> None:
    y = torch.tensor([0.0, 0.2, 1.0])
    with pytest.raises(InputError, match=r"2 value\(s\).*such as Beta\(lower=-0.005, upper=1.005\)"):
        Beta().check(torch.zeros(3), y)
    Beta(lower=-0.005, upper=1.005).check(torch.zeros(3), y)
    with pytest.raises(InputError, match=r"such as Beta\(lower=-0.015, upper=3.015\)"):
        Beta().check(torch.zeros(3), 3 * y)
    with pytest.raises(InputError, match="a log-normal target is positive"):
        LogNormal().check(torch.zeros(3), y)


def test_a_beta_prediction_moves_with_its_ends() -> None:
    """p(y) of y = 10 + 5u is p(u)/5."""
    c = beta()[0]
    moved, y = c.rescaled(5.0, 10.0), torch.tensor([1.0, 1.5, 2.2], dtype=F64)
    torch.testing.assert_close(moved.log_density(10 + 5 * y), c.log_density(y) - math.log(5.0))
    assert moved.support == (10.0, 25.0)
    with pytest.raises(UnsupportedError, match="row by row"):
        c.rescaled(2.0, torch.zeros(3))
    with pytest.raises(UnsupportedError, match="SplitConformal"):
        VarianceScaling(2.0)(RealPredictive(c))


def held_out(c: RealComponents, n: int) -> tuple[RealPredictive, Tensor]:
    p = RealPredictive(c.map(lambda t: t[:, 1:2].expand(1, n).clone()))
    return p, p.sample(1, seed=0)[0]


def test_log_normal_predictions_are_stretched_in_the_logarithm() -> None:
    p, y = held_out(log_normal()[0], 2000)
    assert isinstance(p.components, LogNormalComponents)
    assert float(VarianceScaling(2.0)(p).components.scale[0, 0]) == pytest.approx(1.2)  # type: ignore[attr-defined]
    # the factor of n Gaussian residuals has a standard error of 1/√(2n)
    factor = VarianceScaling().fit(p, y).factor
    assert factor == pytest.approx(1.0, abs=4 / math.sqrt(4000))
    assert float(QuantileRecalibration().fit(p, y)(p).quantile(0.5)[0]) > 0
    with pytest.raises(UnsupportedError, match="start at 0"):
        p.components.rescaled(1.0, 1.0)


@pytest.mark.parametrize("name", CASES)
def test_conformal_intervals_stay_in_the_support(name: str) -> None:
    p, y = held_out(CASES[name]()[0], 200)
    interval = SplitConformal().fit(p, y)(p).interval(0.99)
    first, last = p.components.support
    assert bool((interval.lower >= first).all())
    assert bool((interval.upper <= last).all())
