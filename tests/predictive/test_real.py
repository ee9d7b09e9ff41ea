"""Predictions of real and count-valued targets against closed forms, scipy and quadrature."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats
from torch import distributions as D

import credo.predictive.real as real
from credo.errors import InputError
from credo.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood, Poisson, StudentT
from credo.predictive import Interval, RealPredictive

from .cases import F64, REAL, prediction


def test_trap_27_moments_match_the_mixture() -> None:
    p = prediction(Gaussian("heteroscedastic"), draws=6, rows=3)
    outputs = torch.randn(6, 3, 4, generator=torch.Generator().manual_seed(0), dtype=F64)
    mean, variance = outputs[..., :2], outputs[..., 2:].exp()
    torch.testing.assert_close(p.mean, mean.mean(0))  # every draw counts the same, however precise it claims to be
    torch.testing.assert_close(p.aleatoric, variance.mean(0))
    torch.testing.assert_close(p.epistemic, mean.var(0, unbiased=False))
    torch.testing.assert_close(p.variance, (variance + mean.square()).mean(0) - mean.mean(0).square())
    n = 40_000
    y = p.sample(n, seed=1)
    error = p.std / math.sqrt(n)
    assert bool(((y.mean(0) - p.mean).abs() < 5 * error).all())
    fourth = (y - p.mean).pow(4).mean(0)
    assert bool(((y.var(0) - p.variance).abs() < 5 * ((fourth - p.variance.square()) / n).sqrt()).all())


def test_trap_28_spread_is_centered() -> None:
    # Uncentered second moments of means near 10⁴ cancel to nothing in float32: rounding alone is 10⁸ · 6e-8 = 6.
    spread = torch.tensor([-1.0, 0.0, 1.0, 2.0])
    p = Gaussian(0.5).predictive((1e4 + spread)[:, None])
    torch.testing.assert_close(p.epistemic, torch.tensor([1.25]))
    torch.testing.assert_close(p.std, torch.tensor([math.sqrt(1.25 + 0.25)]))


def test_log_prob_stays_finite_in_the_far_tail() -> None:
    p = Gaussian(0.1).predictive(torch.zeros(3, 2))
    torch.testing.assert_close(p.log_prob(torch.full((2,), 1e3)), D.Normal(0.0, 0.1).log_prob(torch.full((2,), 1e3)))
    certain = Categorical().predictive(torch.tensor([[[500.0, 0.0, 0.0]]]))
    torch.testing.assert_close(certain.log_prob(torch.tensor([2])), torch.tensor([-500.0]))
    coin = Bernoulli().predictive(torch.tensor([[500.0]]))
    torch.testing.assert_close(coin.log_prob(torch.tensor([0.0])), torch.tensor([-500.0]))
    for p in (certain, coin):
        for value in (p.entropy, p.aleatoric, p.epistemic, p.variance):
            torch.testing.assert_close(value, torch.zeros_like(value), rtol=0, atol=1e-30)


@pytest.mark.parametrize("q", [1e-4, 0.05, 0.5, 0.9, 0.9999])
def test_quantiles_of_one_draw_match_the_distribution(q: float) -> None:
    f = torch.tensor([[-2.0, 0.0, 1.0, 3.0, 8.0]], dtype=F64)
    cases = [
        (Gaussian(0.3), stats.norm(f[0], 0.3)),
        (StudentT(2.5, 0.3), stats.t(2.5, f[0], 0.3)),
        (Poisson(), stats.poisson(f[0].exp())),
    ]
    for likelihood, exact in cases:
        np.testing.assert_allclose(likelihood.predictive(f).quantile(q), exact.ppf(q), rtol=1e-9)


def test_cdf_is_the_average_of_the_components() -> None:
    f = torch.randn(4, 6, generator=torch.Generator().manual_seed(0), dtype=F64)
    y = torch.tensor([-1.0, -0.5, 0.0, 0.7, 2.0, 5.0], dtype=F64)
    for likelihood, exact in [
        (Gaussian(0.3), stats.norm.cdf(y, f, 0.3)),
        (StudentT(2.5, 0.3), stats.t.cdf(y, 2.5, f, 0.3)),
        (Poisson(), stats.poisson.cdf(y, f.exp())),
    ]:
        np.testing.assert_allclose(likelihood.predictive(f).cdf(y), exact.mean(0), rtol=1e-9, atol=1e-15)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 6), st.floats(0.001, 0.999), st.floats(0, 30), st.sampled_from([0, 1, 3]))
def test_quantile_is_the_inverse_of_the_cdf(seed: int, draws: int, q: float, spread: float, which: int) -> None:
    p = prediction(REAL[which], draws=draws, rows=2, seed=seed, spread=min(spread, 5) if which == 3 else spread)
    y = p.quantile(q)
    # Between far clusters the density vanishes and y is determined only up to the cdf's rounding.
    torch.testing.assert_close(p.cdf(y), torch.full_like(y, q), rtol=0, atol=1e-9)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 6), st.floats(0.001, 0.999))
def test_count_quantile_is_the_smallest_count_at_the_level(seed: int, draws: int, q: float) -> None:
    p = prediction(Poisson(), draws=draws, rows=2, seed=seed, spread=2.0)
    y = p.quantile(q)
    assert torch.equal(y, y.round())
    assert bool((p.cdf(y) >= q).all())
    assert bool((p.cdf(y - 1) < q).all())


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.01, 0.98), st.floats(0.001, 0.01), st.sampled_from(range(len(REAL))))
def test_intervals_are_nested(seed: int, level: float, more: float, which: int) -> None:
    p = prediction(REAL[which], rows=2, seed=seed)
    inner, outer = p.interval(level), p.interval(level + more)
    assert bool((outer.lower <= inner.lower).all())
    assert bool((inner.lower <= inner.upper).all())
    assert bool((inner.upper <= outer.upper).all())


@pytest.mark.parametrize("likelihood", REAL, ids=str)
def test_interval_ends_are_quantiles(likelihood: Likelihood) -> None:
    """Also where both are found in one search, as those of the mixture and of its mirror image."""
    p = prediction(likelihood, draws=7, rows=3, spread=1.5).double()
    for level in (0.5, 0.95, 0.999):
        for found, exact in zip(p.interval(level), p.quantile([(1 - level) / 2, (1 + level) / 2]), strict=True):
            assert found.shape == exact.shape
            assert float(((found - exact).abs() / (p.std + exact.abs())).max()) < 1e-12


@pytest.mark.parametrize("likelihood", REAL, ids=str)
def test_interval_has_its_coverage(likelihood: Likelihood) -> None:
    p = prediction(likelihood, draws=7, rows=2, spread=1.5)
    assert isinstance(p, RealPredictive)
    n, level = 20_000, 0.9
    y = p.sample(n, seed=3)
    interval = p.interval(level)
    covered = ((y >= interval.lower) & (y <= interval.upper)).double().mean(0)
    error = 5 * math.sqrt(level * (1 - level) / n)
    discrete = p.components.discrete
    exact = p.cdf(interval.upper) - p.cdf(interval.lower - (1 if discrete else 0))
    assert bool(((covered - exact).abs() < error).all())
    assert bool((exact >= level - 1e-9).all())
    if not discrete:
        assert bool(((covered - level).abs() < error).all())


@pytest.mark.parametrize("noise", [0.02, 0.05, 0.1])
def test_quantiles_between_modes_have_their_level(noise: float) -> None:
    """Often one of 20 draws lies apart, so that the 5 % quantile is where hardly any density is.

    There the cdf must be exact to rounding, 20 numbers of 2⁻⁵³ each, while y is not determined so well.
    """
    means = torch.randn(20, 500, generator=torch.Generator().manual_seed(0), dtype=F64)
    p = Gaussian(noise).predictive(means)
    for level in (0.05, 0.1, 0.5, 0.95):
        below = p.cdf(p.quantile(level))
        torch.testing.assert_close(below, torch.full_like(below, level), rtol=0, atol=20 * 2.0**-53)


@pytest.mark.parametrize("q", [1e-6, 0.025, 0.5, 0.975, 1 - 1e-6])
def test_newton_and_bisection_find_the_same_quantile(q: float) -> None:
    """Modes far apart, one narrow among wide ones, means large beside the noise: equal to 1e-12 of the spread."""
    means = torch.tensor([[0.0, 0.0, 1e6, 3.0], [1.0, 1e4, 1e6 + 1e-3, 3.0], [2.0, 1.0, 1e6 - 1e-3, 3.0]], dtype=F64)
    stds = torch.tensor([[1.0, 1e-6, 1e-3, 2.0], [1.0, 1.0, 1e-3, 2.0], [1e-8, 5.0, 1e-2, 2.0]], dtype=F64)
    p = Gaussian("heteroscedastic").predictive(torch.stack([means, 2 * stds.log()], -1))
    flat = p.components.map(lambda t: t.squeeze(-1))
    found, exact = real._solve(flat, None, q), real._bisect(flat, None, q)
    error = (found - exact).abs() / (p.std.squeeze(-1) + exact.abs())
    assert float(error.max()) < 1e-12


def test_quantile_shapes_and_levels() -> None:
    p = prediction(Gaussian(0.7), rows=3)
    assert p.quantile(0.5).shape == (3, 4)
    assert p.quantile([0.1, 0.5]).shape == (2, 3, 4)
    assert p.quantile(torch.tensor([0.5])).shape == (1, 3, 4)
    assert torch.equal(p.quantile([0.1, 0.5])[1], p.quantile(0.5))
    assert isinstance(p.interval(0.5), Interval)
    assert torch.equal(p.interval().upper, p.interval(0.95).upper)
    for q in (0.0, 1.0, -0.5, math.nan, [0.5, 2.0]):
        with pytest.raises(InputError, match="q must lie between 0 and 1"):
            p.quantile(q)
    with pytest.raises(InputError, match="level must be a number between 0 and 1"):
        p.interval(95)


def mixture_entropy(density: object, edges: list[float]) -> float:
    def integrand(y: float) -> float:
        p = density(y)  # type: ignore[operator]
        return -p * math.log(p) if p > 0 else 0.0

    return sum(integrate.quad(integrand, a, b, epsabs=1e-10, limit=200)[0] for a, b in pairwise(edges))


@pytest.mark.parametrize(
    ("means", "scales"),
    [
        ([0.0, 3.0], [1.0, 1.0]),
        ([0.0, 0.5], [1.0, 0.01]),
        ([0.0, 40.0, -1.0], [1.0, 0.2, 3.0]),
        ([0.0, 1e-3], [1.0, 1.0]),
    ],
)
def test_entropy_matches_the_mixture(means: list[float], scales: list[float]) -> None:
    m, s = np.array(means), np.array(scales)
    outputs = torch.tensor(np.stack([m, 2 * np.log(s)], -1))[:, None]
    p = Gaussian("heteroscedastic").predictive(outputs)
    edges = sorted(float(m_i + z * s_i) for m_i, s_i in zip(m, s, strict=True) for z in (-12, -4, -1, 0, 1, 4, 12))
    exact = mixture_entropy(lambda y: float(stats.norm.pdf(y, m, s).mean()), edges)
    assert float(p.entropy) == pytest.approx(exact, abs=1e-6)
    assert float(p.mutual_information) == pytest.approx(exact - float(stats.norm.entropy(m, s).mean()), abs=1e-6)


@pytest.mark.parametrize("df", [1.0, 4.0, 1e4])
def test_entropy_of_heavy_tails(df: float) -> None:
    one = StudentT(df, 0.7).predictive(torch.zeros(1, 1, dtype=F64))
    assert float(one.entropy) == pytest.approx(float(stats.t.entropy(df, 0, 0.7)), abs=1e-9)
    means = np.array([0.0, 3.0, -5.0])
    p = StudentT(df, 0.7).predictive(torch.tensor(means)[:, None])
    edges = [-1e7, -1e5, -1e3, -100, -20, -10, *np.linspace(-9, 7, 33), 10, 20, 100, 1e3, 1e5, 1e7]
    exact = mixture_entropy(lambda y: float(stats.t.pdf(y, df, means, 0.7).mean()), edges)
    assert float(p.entropy) == pytest.approx(exact, abs=1e-5)


@pytest.mark.parametrize("rates", [[0.5, 3.0], [0.01, 400.0], [20.0, 25.0, 30.0]])
def test_entropy_of_counts_is_a_sum(rates: list[float]) -> None:
    r = np.array(rates)
    k = np.arange(1000)[:, None]
    pmf = stats.poisson.pmf(k, r)
    mixed = pmf.mean(1)
    entropy = float(stats.entropy(mixed))
    p = Poisson().predictive(torch.tensor(r).log()[:, None])
    assert float(p.entropy) == pytest.approx(entropy, abs=1e-6)
    assert float(p.mutual_information) == pytest.approx(entropy - float(stats.entropy(pmf).mean()), abs=1e-6)


@pytest.mark.parametrize("location", [-1.0, 1.0, 4.0])
def test_information_of_many_draws(location: float) -> None:
    rates = np.random.default_rng(0).lognormal(location, 0.7, 100)
    pmf = stats.poisson.pmf(np.arange(2000)[:, None], rates)
    exact = float(stats.entropy(pmf.mean(1)) - stats.entropy(pmf).mean())
    p = Poisson().predictive(torch.tensor(rates).log()[:, None])
    assert float(p.mutual_information) == pytest.approx(exact, abs=1e-6)


def test_entropy_of_many_counts_skips_some() -> None:
    p = Poisson().predictive(torch.tensor([[1e5]], dtype=F64).log())
    # Stirling: ½ log 2πeλ − 1/(12λ) + O(λ⁻²)
    assert float(p.entropy) == pytest.approx(0.5 * math.log(2 * math.pi * math.e * 1e5) - 1 / 12e5, abs=1e-6)


def test_information_of_distant_draws_is_log_draws() -> None:
    for likelihood in (Gaussian(0.01), StudentT(30.0, 0.01)):
        p = likelihood.predictive(torch.arange(10.0)[:, None] * 5)
        assert float(p.mutual_information) == pytest.approx(math.log(10), rel=2e-3)
    same = Gaussian(0.3).predictive(torch.ones(10, 1, dtype=F64))
    assert float(same.mutual_information) == pytest.approx(0, abs=1e-14)


def test_student_t_variance_can_be_infinite() -> None:
    p = StudentT(2.0, 0.5).predictive(torch.zeros(3, 2))
    assert bool(p.variance.isinf().all())
    assert bool(p.interval(0.9).upper.isfinite().all())
    torch.testing.assert_close(StudentT(4.0, 0.5).predictive(torch.zeros(3, 2)).variance, torch.full((2,), 0.5))


@pytest.mark.parametrize("likelihood", REAL[:3], ids=str)
def test_results_do_not_depend_on_chunks(likelihood: Likelihood, monkeypatch: pytest.MonkeyPatch) -> None:
    p = prediction(likelihood, rows=7)
    whole = p.quantile(0.3), p.mutual_information
    monkeypatch.setattr(real, "chunk_size", lambda device, cost: 1)
    parts = prediction(likelihood, rows=7)
    torch.testing.assert_close((parts.quantile(0.3), parts.mutual_information), whole)


def test_information_of_counts_whose_rates_are_orders_of_magnitude_apart() -> None:
    """Two draws that no count can be of both: one bit, however wide the gap between them."""
    p = Poisson().predictive(torch.tensor([[[-2.0]], [[14.0]]], dtype=F64))
    assert float(p.mutual_information) == pytest.approx(math.log(2), abs=1e-6)
