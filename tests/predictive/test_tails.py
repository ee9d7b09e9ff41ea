"""Distribution functions, quantiles and entropies in both tails and at large rates, against arithmetic of 60 digits."""

from __future__ import annotations

import math
from collections.abc import Callable

import mpmath
import pytest
import torch
from torch import Tensor

from credo.likelihoods import Gaussian, Likelihood, Poisson, StudentT
from credo.predictive import Predictive
from credo.predictive.counts import PoissonComponents
from credo.predictive.location_scale import StudentTComponents

F64 = torch.float64
DTYPES = [torch.float32, F64]
mpmath.mp.dps = 60
Tails = Callable[[float], tuple[mpmath.mpf, mpmath.mpf]]

MEANS = (-0.3, 0.0, 0.7)


def student_below(z: mpmath.mpf, df: float) -> mpmath.mpf:
    """P(t_ν ≤ z) for z < 0."""
    nu = mpmath.mpf(df)
    return mpmath.betainc(nu / 2, mpmath.mpf(1) / 2, 0, nu / (nu + z * z), regularized=True) / 2


def mixture_tails(below: Callable[[mpmath.mpf], mpmath.mpf], locations: Tensor, scale: float) -> Tails:
    """P(Y ≤ y) and P(Y > y) of an equal mixture of symmetric distributions; ``below`` is for negative arguments."""

    def of(y: float) -> tuple[mpmath.mpf, mpmath.mpf]:
        z = [(mpmath.mpf(y) - mpmath.mpf(float(m))) / mpmath.mpf(scale) for m in locations]
        lower = [below(x) if x < 0 else 1 - below(-x) for x in z]
        upper = [below(-x) if x > 0 else 1 - below(x) for x in z]
        return sum(lower) / len(lower), sum(upper) / len(upper)

    return of


def poisson_tails(log_rates: Tensor) -> Tails:
    def of(y: float) -> tuple[mpmath.mpf, mpmath.mpf]:
        count = mpmath.floor(y)
        if count < 0:
            return mpmath.mpf(0), mpmath.mpf(1)
        rates = [mpmath.exp(float(x)) for x in log_rates]
        upper = [mpmath.gammainc(count + 1, 0, rate, regularized=True) for rate in rates]
        lower = [mpmath.gammainc(count + 1, rate, regularized=True) for rate in rates]
        return sum(lower) / len(lower), sum(upper) / len(upper)

    return of


def case(name: str, dtype: torch.dtype) -> tuple[Predictive, Tails]:
    locations = torch.tensor(MEANS, dtype=dtype)
    if name == "Gaussian":
        return Gaussian(0.5).predictive(locations[:, None]), mixture_tails(mpmath.ncdf, locations, 0.5)
    if name.startswith("Student"):
        df = float(name.split()[1])
        p = StudentT(df, 0.5).predictive(locations[:, None])
        return p, mixture_tails(lambda z: student_below(z, df), locations, 0.5)
    log_rates = locations + math.log(float(name.split()[1]))
    return Poisson().predictive(log_rates[:, None]), poisson_tails(log_rates)


CONTINUOUS = ["Gaussian", "Student 2.05", "Student 4", "Student 5", "Student 1e8"]
COUNTS = ["Poisson 0.1", "Poisson 4", "Poisson 300"]
LEVELS = [1e-30, 1e-12, 1e-8, 1e-3, 0.3, 0.5, 0.8, 1 - 1e-3, 1 - 1e-8, 1 - 1e-12]


def slope(name: str, y: float) -> float:
    """How much of a tail a rounding of y or m moves: z² of it for e^{−z²/2}, and ν of it for |z|^{−ν}."""
    z = (abs(y) + 1) / 0.5
    return 1 + (z**2 if name == "Gaussian" else min(z**2, 1 + float(name.split()[1])))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CONTINUOUS)
def test_quantiles_of_mixtures_have_their_level_in_both_tails(name: str, dtype: torch.dtype) -> None:
    p, tails = case(name, dtype)
    for level, y in zip(LEVELS, p.quantile(LEVELS)[:, 0].tolist(), strict=True):
        lower, upper = tails(y)
        found, wanted = (lower, mpmath.mpf(level)) if level <= 0.5 else (upper, 1 - mpmath.mpf(level))
        assert abs(float(found / wanted - 1)) < 8 * torch.finfo(dtype).eps * slope(name, y), level


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", [*CONTINUOUS, *COUNTS])
def test_cdf_and_survival_are_accurate_in_the_tails(name: str, dtype: torch.dtype) -> None:
    p, tails = case(name, dtype)
    center, spread = float(p.mean), float(p.std)
    for z in (-9.0, -5.0, -2.0, 0.0, 2.0, 5.0, 9.0):
        y = torch.tensor([center + z * spread], dtype=dtype)
        y = y.floor() if name in COUNTS else y
        lower, upper = tails(float(y))
        below = float(p.cdf(y))
        above = float(p.components.survival(y).mean(0))  # type: ignore[attr-defined]
        # torch's incomplete gamma functions err by up to 1e-9 of themselves
        error = (
            2e-9 + 4 * torch.finfo(dtype).eps if name in COUNTS else 8 * torch.finfo(dtype).eps * slope(name, float(y))
        )
        for found, exact in ((below, lower), (above, upper)):
            assert found == pytest.approx(float(exact), rel=error, abs=torch.finfo(dtype).tiny), z


def smallest(tails: Tails, level: float) -> int:
    """The smallest count with P(Y ≤ y) ≥ level."""
    wanted = mpmath.mpf(level)
    low, high = -1, 10_000
    while high - low > 1:
        middle = (low + high) // 2
        below, above = tails(middle)
        reached = below >= wanted if level <= 0.5 else above <= 1 - wanted
        low, high = (low, middle) if reached else (middle, high)
    return high


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", COUNTS)
def test_quantiles_of_counts_are_exact_in_both_tails(name: str, dtype: torch.dtype) -> None:
    p, tails = case(name, dtype)
    for level, y in zip(LEVELS, p.quantile(LEVELS)[:, 0].tolist(), strict=True):
        assert y == smallest(tails, level), level


def test_the_lower_tail_of_a_gaussian_is_not_0() -> None:
    p = Gaussian(1.0).predictive(torch.zeros(1, 1, dtype=F64))
    for z in (-10.0, -20.0, -37.0):
        assert float(p.cdf(torch.tensor([z], dtype=F64))) == pytest.approx(float(mpmath.ncdf(z)), rel=1e-12)
    single = Gaussian(1.0).predictive(torch.tensor([[0.0], [0.1]]))
    assert float(single.quantile(1e-8)) == pytest.approx(float(single.double().quantile(1e-8)), rel=1e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rate", [1e-6, 0.3, 5.0, 80.0, 900.0, 1100.0, 1e7, 1e12])
def test_poisson_entropy_at_any_rate(rate: float, dtype: torch.dtype) -> None:
    log_rate = torch.tensor([[math.log(rate)]], dtype=dtype)
    found, x = float(PoissonComponents(log_rate).entropy), mpmath.exp(float(log_rate))
    if rate < 1e4:
        first, last = (int(x + z * mpmath.sqrt(x)) for z in (-14, 14))
        log_p = [k * mpmath.log(x) - x - mpmath.loggamma(k + 1) for k in range(max(first, 0), last + 40)]
        exact = -sum(mpmath.exp(value) * value for value in log_p)
    else:
        exact = mpmath.log(2 * mpmath.pi * mpmath.e * x) / 2 - 1 / (12 * x) - 1 / (24 * x**2)
    # 128 terms, each of which errs by a few units of its log, up to 30; counts beyond 7 deviations are left out
    error = 1e-10 + 8 * torch.finfo(dtype).eps * (1 + 30 * (rate < 1e3))
    assert found == pytest.approx(float(exact), rel=error)


def test_poisson_at_a_large_rate_in_single_precision() -> None:
    """−16.0 and 0.05 by the textbook's formula."""
    log_rate = torch.tensor([[math.log(1e7)]])
    p, rate = Poisson().predictive(log_rate), math.exp(float(log_rate))
    exact = -0.5 * math.log(2 * math.pi * 1e7)
    for z in (0.0, 1.0, -3.0):
        y = torch.tensor([1e7 + z * math.sqrt(1e7)]).round()
        expected = float(Poisson().predictive(log_rate.double()).log_prob(y.double()))
        # λ and y are rounded to 1, which z turns into |y − λ|/λ
        assert float(p.log_prob(y)) == pytest.approx(expected, abs=abs(float(y) - rate) * 2e-7 + 1e-5)
        assert expected == pytest.approx(exact - z**2 / 2, abs=0.01)
    assert float(p.entropy) == pytest.approx(0.5 * math.log(2 * math.pi * math.e * 1e7), rel=1e-6)


def test_information_of_draws_with_large_rates() -> None:
    """Poisson(λ(1 ± 2/√λ)) are N(±2, 1) in units of √λ, whose mutual information does not depend on λ."""
    shift = torch.tensor([[-2.0], [2.0]], dtype=F64)
    expected = float(Gaussian(1.0).predictive(shift).mutual_information)
    for rate in (1e5, 1e7):
        log_rates = math.log(rate) + torch.log1p(shift / math.sqrt(rate))
        for dtype in DTYPES:
            p = Poisson().predictive(log_rates.to(dtype))
            # skewness moves it by 1/√λ; in single precision log λ is rounded to 1e-6, 3e-3 of √λ
            assert float(p.mutual_information) == pytest.approx(expected, abs=3 / math.sqrt(rate) + 1e-3)


@pytest.mark.parametrize("df", [0.3, 2.05, 30.0, 99.0, 101.0, 1e4, 1e8, 1e13])
def test_student_t_entropy_at_any_degrees_of_freedom(df: float) -> None:
    one = torch.ones(1, 1, dtype=F64)
    half = mpmath.mpf(df) / 2
    spread = (half + 0.5) * (mpmath.digamma(half + 0.5) - mpmath.digamma(half))
    exact = spread + mpmath.log(2 * half) / 2 + mpmath.log(mpmath.beta(0.5, half))
    found = float(StudentTComponents(0 * one, 0 * one, df * one).entropy)
    assert found == pytest.approx(float(exact), rel=1e-13 if df < 50 or df > 100 else 1e-12)


@pytest.mark.parametrize("likelihood", [Gaussian(0.5), StudentT(3.0, 0.5), Poisson()], ids=str)
def test_quantiles_increase_through_the_median(likelihood: Likelihood) -> None:
    p = likelihood.predictive(torch.randn(7, 20, generator=torch.Generator().manual_seed(0)))
    steps = p.quantile([0.4, 0.4999999, 0.5, 0.5000001, 0.6]).diff(dim=0)
    assert bool((steps >= 0).all())
