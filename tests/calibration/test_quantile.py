"""Quantile recalibration: the map of levels, and the distribution it makes, against quadrature and sampling."""

from __future__ import annotations

import math
from itertools import pairwise

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.isotonic import IsotonicRegression
from torch import Tensor

import credo.predictive.recalibrated as recalibrated
from credo.calibration import QuantileRecalibration, VarianceScaling
from credo.calibration.quantile import _fit_level_map
from credo.errors import InputError, UnsupportedError
from credo.likelihoods import Gaussian, Likelihood, StudentT
from credo.predictive import Predictive, RealPredictive, RecalibratedPredictive
from credo.predictive.recalibrated import LevelMap

from .cases import F64, KOLMOGOROV, coverage, skewed, truth, wrong

LEVELS = LevelMap([0, 0.01, 0.2, 0.5, 0.7, 1], [0, 0.05, 0.3, 0.4, 0.8, 1])
IDENTITY = LevelMap([0, 0.3, 1], [0, 0.3, 1])
STUDENT = StudentT(5.0, 0.4).predictive(torch.tensor([[0.0, 3.0], [1.0, 3.1], [-2.0, 2.9]], dtype=F64))


def with_levels(p: Predictive, levels: LevelMap = LEVELS) -> RecalibratedPredictive:
    assert isinstance(p, RealPredictive)
    return RecalibratedPredictive(p.components, p.weights, levels=levels)


CASES = [with_levels(truth(3)), with_levels(truth(2, draws=1)), with_levels(STUDENT)]


def test_level_map_and_its_inverse() -> None:
    u = torch.linspace(0, 1, 201, dtype=F64)
    torch.testing.assert_close(LEVELS.inverse(LEVELS(u)), u)
    torch.testing.assert_close(
        LEVELS(torch.tensor(LEVELS.predicted, dtype=F64)), torch.tensor(LEVELS.observed, dtype=F64)
    )
    torch.testing.assert_close(IDENTITY(u), u)
    slope = (LEVELS(u[1:]) - LEVELS(u[:-1])) / u.diff()
    torch.testing.assert_close(LEVELS.log_slope(u[:-1]), slope.log())  # every knot is a multiple of the step, 0.005
    steps = np.diff(LEVELS.observed), np.diff(LEVELS.predicted)
    assert LEVELS.entropy == pytest.approx(-stats.entropy(*steps))
    assert IDENTITY.entropy == 0


@pytest.mark.parametrize("levels", [[0.0], [0, 0.5], [0.1, 1], [0, 0.5, 0.5, 1], [0, math.nan, 1], None])
def test_bad_levels_raise(levels: object) -> None:
    with pytest.raises(InputError, match="strictly increasing levels from 0 to 1"):
        LevelMap(levels, [0, 1])  # type: ignore[arg-type]
    with pytest.raises(InputError, match="same length, got 3 and 2"):
        LevelMap([0, 0.5, 1], [0, 1])


@pytest.mark.parametrize("tied", [False, True])
def test_level_map_is_isotonic_regression_at_its_knots(tied: bool) -> None:
    u = np.random.default_rng(0).beta(0.6, 0.8, 300)
    u = u.round(2).clip(0.01, 0.99) if tied else u
    levels = _fit_level_map(u)
    assert len(levels.predicted) <= math.ceil(2 * 300 ** (1 / 3)) + 1
    order = np.argsort(u)
    isotonic = IsotonicRegression().fit(u[order], np.arange(1, 301) / 301)
    np.testing.assert_allclose(isotonic.predict(levels.predicted[1:-1]), levels.observed[1:-1], rtol=1e-12)
    if not tied:
        ecdf = np.searchsorted(np.sort(u), levels.predicted[1:-1], side="right")
        np.testing.assert_allclose(ecdf / 301, levels.observed[1:-1], rtol=1e-12)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from([0.0, 1e-300, 1e-9, 0.3, 0.5, 1 - 1e-16, 1.0]), min_size=50, max_size=80))
def test_any_levels_give_a_valid_map(levels: list[float]) -> None:
    _fit_level_map(np.array(levels))  # its constructor checks that it rises strictly from 0 to 1


def knots_of(p: RecalibratedPredictive) -> Tensor:
    """y between which the density of a single row is smooth, ``[K]``."""
    assert len(p) == 1
    inner = p.base.quantile(p.levels.predicted[1:-1]).flatten()
    tails = p.base.quantile([1e-13, 1e-9, 1e-6, 1e-4, 1 - 1e-4, 1 - 1e-6, 1 - 1e-9, 1 - 1e-13]).flatten()
    return torch.cat([inner, tails]).sort().values


def integrate(p: RecalibratedPredictive) -> tuple[Tensor, Tensor]:
    """Points ``[N]`` and weights of an integral against the density of a single row."""
    nodes, weights = (torch.tensor(a) for a in np.polynomial.legendre.leggauss(60))
    parts = [(a + (b - a) * (nodes + 1) / 2, (b - a) / 2 * weights) for a, b in pairwise(knots_of(p))]
    y, w = (torch.cat(t) for t in zip(*parts, strict=True))
    repeated = p[[0] * len(y)]
    return y, w * repeated.log_prob(y.reshape(repeated.draws.shape[1:])).exp()


@pytest.mark.parametrize("many", CASES, ids=["mixture", "Gaussian", "Student-t"])
def test_density_moments_and_entropy_agree_with_quadrature(many: RecalibratedPredictive) -> None:
    for p in many:
        y, w = integrate(p)
        assert float(w.sum()) == pytest.approx(1, abs=1e-9)
        mean = (w * y).sum()
        variance = (w * (y - mean).square()).sum()
        std = float(variance.sqrt())
        # beyond the levels 1e-13, where the quadrature ends, a Student-t of 5 degrees has 1e-7 of its variance
        assert float(p.mean) == pytest.approx(float(mean), abs=1e-7 * std)
        assert float(p.variance) == pytest.approx(float(variance), rel=1e-6)
        log_p = p[[0] * len(y)].log_prob(y.reshape(len(y), *p.draws.shape[2:]))
        assert float(p.entropy) == pytest.approx(float(-(w * log_p).sum()), abs=1e-3)


def partial_moment(z: mpmath.mpf, df: float, power: int) -> mpmath.mpf:
    """E[t^power; t ≤ z] of Student's t, by the beta distribution of x = ν/(ν + t²) with t = −√(ν(1 − x)/x) below 0."""
    nu, half = mpmath.mpf(df), mpmath.mpf(power) / 2

    def lower(below: mpmath.mpf) -> mpmath.mpf:
        x = nu / (nu + below**2)
        share = mpmath.betainc(nu / 2 - half, mpmath.mpf(1) / 2 + half, 0, x) / mpmath.beta(nu / 2, mpmath.mpf(1) / 2)
        return (-1) ** power * nu**half * share / 2

    if z <= 0:
        return lower(z)
    total = {0: mpmath.mpf(1), 1: mpmath.mpf(0), 2: 2 * lower(mpmath.mpf(0))}[power]
    return total - (-1) ** power * lower(-z)


def exact_moments(p: RecalibratedPredictive, df: float, scale: float) -> tuple[float, float]:
    """Mean and variance of one row, piece by piece of R, in 40 digits."""
    center, locations = float(p.base.mean), p.draws[:, 0].tolist()
    raw: list[mpmath.mpf] = []
    for power in (1, 2) if df > 2 else (1,):
        parts = [mpmath.mpf(0)]
        for knot in [*p.base.quantile(p.levels.predicted[1:-1])[:, 0].tolist(), mpmath.inf]:
            up_to = mpmath.mpf(0)
            for location in locations:
                offset = mpmath.mpf(location) - center
                z = (knot - mpmath.mpf(location)) / scale
                t = [partial_moment(z, df, k) for k in range(power + 1)]
                terms = [offset * t[0] + scale * t[1]] if power == 1 else [offset**2 * t[0] + 2 * offset * scale * t[1]]
                up_to += (terms[0] + (scale**2 * t[2] if power == 2 else 0)) / len(locations)
            parts.append(up_to)
        raw.append(sum(c * (b - a) for c, (a, b) in zip(p.levels.slopes, pairwise(parts), strict=True)))
    shift = raw[0]
    return float(center + shift), float(raw[1] - shift**2) if df > 2 else math.inf


@pytest.mark.parametrize("df", [1.05, 1.5, 2.001, 2.05, 2.5, 5.0, 1e6])
@pytest.mark.parametrize("locations", [[0.3], [0.0, 1.0, -2.0]], ids=["single", "mixture"])
def test_moments_of_heavy_tails_are_exact(df: float, locations: list[float]) -> None:
    """For ν = 2.05 most of the variance lies beyond any grid: the level 1e-9 has three fifths of it behind it."""
    p = with_levels(StudentT(df, 0.4).predictive(torch.tensor(locations, dtype=F64)[:, None]))
    mean, variance = exact_moments(p, df, 0.4)
    assert float(p.mean) == pytest.approx(mean, rel=1e-9, abs=1e-9)
    assert float(p.variance) == pytest.approx(variance, rel=1e-9)


def test_knots_in_the_far_tails_are_used() -> None:
    levels = LevelMap([0, 1e-12, 1e-6, 0.5, 1 - 1e-11, 1], [0, 1e-4, 0.01, 0.6, 0.999, 1])
    p = with_levels(StudentT(2.5, 0.4).predictive(torch.zeros(1, 1, dtype=F64)), levels)
    mean, variance = exact_moments(p, 2.5, 0.4)
    assert float(p.mean) == pytest.approx(mean, rel=1e-6)
    assert float(p.variance) == pytest.approx(variance, rel=1e-6)


def test_locations_are_kept_without_a_mean() -> None:
    p = with_levels(StudentT(0.9, 0.4).predictive(torch.tensor([[0.5, 1.0]], dtype=F64)))
    assert torch.equal(p.mean, p.base.mean)
    assert bool(p.variance.isinf().all())


@pytest.mark.parametrize("likelihood", [Gaussian("heteroscedastic"), StudentT(3.0, "heteroscedastic")], ids=str)
def test_gradients_of_moments_match_finite_differences(likelihood: Likelihood) -> None:
    outputs = torch.randn(3, 2, 2, generator=torch.Generator().manual_seed(0), dtype=F64, requires_grad=True)

    def moments(x: Tensor) -> tuple[Tensor, Tensor]:
        p = with_levels(likelihood.predictive(x))
        return p.mean, p.variance

    assert torch.autograd.gradcheck(moments, outputs, atol=1e-6)


@pytest.mark.parametrize("p", CASES, ids=["mixture", "Gaussian", "Student-t"])
def test_quantile_is_the_inverse_of_the_cdf(p: RecalibratedPredictive) -> None:
    y = p.base.mean + torch.linspace(-2, 2, p.base.mean.numel(), dtype=F64).view_as(p.base.mean) * p.base.std
    back = p.quantile(p.cdf(y).flatten())
    rows = torch.arange(len(p))
    torch.testing.assert_close(back[rows, rows], y, rtol=1e-9, atol=1e-9)
    for q in (1e-9, 0.03, 0.5, 1 - 1e-9):
        torch.testing.assert_close(p.cdf(p.quantile(q)), torch.full_like(y, q), rtol=0, atol=1e-12)
    torch.testing.assert_close(p.interval(0.9).upper, p.quantile(0.95))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.01, 0.98), st.floats(0.001, 0.01))
def test_intervals_are_nested(seed: int, level: float, more: float) -> None:
    p = with_levels(truth(2, seed=seed), _fit_level_map(np.random.default_rng(seed).beta(0.5, 0.9, 60)))
    inner, outer = p.interval(level), p.interval(level + more)
    assert bool((outer.lower <= inner.lower).all())
    assert bool((inner.lower < inner.upper).all())
    assert bool((inner.upper <= outer.upper).all())


@pytest.mark.parametrize("p", CASES, ids=["mixture", "Gaussian", "Student-t"])
def test_variance_split_keeps_its_proportions(p: RecalibratedPredictive) -> None:
    torch.testing.assert_close(p.variance, p.aleatoric + p.epistemic)
    torch.testing.assert_close(p.epistemic / p.variance, p.base.epistemic / p.base.variance)
    torch.testing.assert_close(p.std.square(), p.variance)
    assert torch.equal(p.mutual_information, p.base.mutual_information)
    assert torch.equal(p.draws, p.base.draws)
    with pytest.raises(UnsupportedError, match="mean or quantile"):
        _ = p.mode


@pytest.mark.parametrize("base", [truth(3), STUDENT], ids=["mixture", "Student-t"])
def test_identity_map_changes_nothing(base: Predictive) -> None:
    p, y = with_levels(base, IDENTITY), base.sample(1, seed=0)[0]
    for name in ("mean", "variance", "aleatoric", "epistemic", "entropy"):
        torch.testing.assert_close(getattr(p, name), getattr(base, name))
    torch.testing.assert_close(p.log_prob(y), base.log_prob(y))
    torch.testing.assert_close(p.cdf(y), base.cdf(y))
    torch.testing.assert_close(p.quantile([0.01, 0.6]), base.quantile([0.01, 0.6]))
    # F⁻¹ is interpolated between points about 0.2 σ apart at most: an error of h²/8 · |y|/σ² by curvature
    assert bool(((p.sample(50, seed=1) - base.sample(50, seed=1)).abs() < 0.02 * base.std).all())


@pytest.mark.parametrize("p", CASES, ids=["mixture", "Gaussian", "Student-t"])
def test_samples_follow_the_distribution_and_keep_their_ranks(p: RecalibratedPredictive) -> None:
    n = 4000
    y = p.sample(n, seed=3)
    levels = torch.stack([p.cdf(row) for row in y]).flatten(1)
    for of_row in levels.T:
        assert stats.kstest(of_row.numpy(), "uniform").statistic < KOLMOGOROV / math.sqrt(n)
    assert bool(((y.mean(0) - p.mean).abs() < 5 * p.std / math.sqrt(n)).all())
    assert torch.equal(y.argsort(0), p.base.sample(n, seed=3).argsort(0))  # one increasing map for each row
    state = torch.get_rng_state()
    assert torch.equal(p.sample(3, seed=7), p.sample(3, seed=7))
    assert torch.equal(state, torch.get_rng_state())
    assert p.sample(0).shape == (0, *p.mean.shape)


def test_tails_keep_their_shape() -> None:
    p = CASES[0]
    far = p.base.mean + 30 * p.base.std
    log_slope = math.log((1 - 0.8) / (1 - 0.7))
    torch.testing.assert_close(p.log_prob(far), p.base.log_prob(far) + log_slope)
    torch.testing.assert_close(p.quantile(1e-6), p.base.quantile(1e-6 * 0.01 / 0.05))
    heavy = with_levels(StudentT(2.0, 0.5).predictive(torch.randn(3, 4, generator=torch.Generator().manual_seed(0))))
    assert bool(heavy.variance.isinf().all())
    assert bool(heavy.aleatoric.isinf().all())
    torch.testing.assert_close(heavy.epistemic, heavy.base.epistemic)
    assert bool(heavy.interval(0.99).upper.isfinite().all())


def test_results_do_not_depend_on_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = with_levels(truth(7))
    before = whole.mean, whole.variance, whole.entropy, whole.sample(5, seed=0)
    monkeypatch.setattr(recalibrated, "chunk_size", lambda device, cost: 1)
    parts = with_levels(truth(7))
    torch.testing.assert_close((parts.mean, parts.variance, parts.entropy, parts.sample(5, seed=0)), before)


def test_gradients_are_finite() -> None:
    outputs = torch.randn(3, 4, 1, generator=torch.Generator().manual_seed(0), requires_grad=True)
    p = with_levels(Gaussian(0.3).predictive(outputs))
    (p.log_prob(torch.zeros(4, 1)) + p.mean[:, 0] + p.cdf(torch.zeros(4, 1))[:, 0]).sum().backward()
    assert outputs.grad is not None
    assert bool(outputs.grad.isfinite().all())


def test_calibrated_models_change_within_sampling_error() -> None:
    n = 2000
    p, y = wrong(1.0, rows=n)
    q = QuantileRecalibration().fit(p, y)(p)
    # sup |R(F) − F| is the Kolmogorov distance of n uniform levels
    assert float((q.cdf(y) - p.cdf(y)).abs().max()) < KOLMOGOROV / math.sqrt(n)
    new, targets = wrong(1.0, rows=n, seed=10)
    calibrated = QuantileRecalibration().fit(p, y)(new)
    # the expected loss is (pieces − 1)/2n = 0.006 nats, and that of the factor 1/2n
    loss = new.log_prob(targets) - calibrated.log_prob(targets)
    assert float(loss.mean()) < 26 / (2 * n) + 5 * float(loss.std()) / math.sqrt(n)


@pytest.mark.parametrize("factor", [0.3, 3.0, 30.0])
def test_new_levels_are_uniform_after_recalibration(factor: float) -> None:
    n, m = 2000, 3000
    calibrator = QuantileRecalibration().fit(*skewed(factor, rows=n))
    p, y = skewed(factor, rows=m, seed=10)
    bound = KOLMOGOROV * math.sqrt(1 / n + 1 / m)
    assert stats.kstest(p.cdf(y).flatten().numpy(), "uniform").statistic > 0.1 > bound
    q = calibrator(p)
    assert stats.kstest(q.cdf(y).flatten().numpy(), "uniform").statistic < bound
    for level in (0.5, 0.9, 0.95):
        error = math.sqrt(level * (1 - level) * (1 / n + 1 / m))
        assert coverage(q, y, level) == pytest.approx(level, abs=5 * error)


def test_shape_is_learned_unlike_by_scaling() -> None:
    held_out, (p, y) = skewed(3.0, rows=1000), skewed(3.0, rows=2000, seed=10)
    plain, scaled, shaped = (
        c(p).log_prob(y)
        for c in (VarianceScaling(1.0), VarianceScaling().fit(*held_out), QuantileRecalibration().fit(*held_out))
    )
    for better, worse in ((scaled, plain), (shaped, scaled)):
        gain = better - worse
        assert float(gain.mean()) > 5 * float(gain.std()) / math.sqrt(len(y))


def test_float32_gives_the_same_levels() -> None:
    p, y = skewed(30.0, rows=500)
    outputs = torch.cat([p.components.mean, p.components.log_variance], -1).float()  # type: ignore[attr-defined]
    single = Gaussian("heteroscedastic").predictive(outputs)
    q, exact = (QuantileRecalibration().fit(x, t)(x) for x, t in ((single, y.float()), (p, y)))
    for level in (0.01, 0.5, 0.999):
        low, high = q.quantile(level), exact.quantile(level)
        assert low.dtype == torch.float32
        torch.testing.assert_close(low.double(), high, rtol=1e-4, atol=1e-3)
    assert q.mean.dtype == q.std.dtype == q.entropy.dtype == q.log_prob(y.float()).dtype == torch.float32


def test_one_and_two_dimensional_targets_agree() -> None:
    p, y = wrong(2.0, rows=60)
    c = QuantileRecalibration().fit(p, y)
    row = StudentT(5.0, 0.4).predictive(torch.zeros(3, 4, dtype=F64))
    column = StudentT(5.0, 0.4).predictive(torch.zeros(3, 4, 1, dtype=F64))
    a, b, zero = c(row), c(column), torch.zeros(4, dtype=F64)
    torch.testing.assert_close(a.mean[:, None], b.mean)
    torch.testing.assert_close(a.log_prob(zero), b.log_prob(zero[:, None]))
    torch.testing.assert_close(a.sample(3, seed=0)[..., None], b.sample(3, seed=0))
    with pytest.raises(InputError, match="one output per row"):
        c(Gaussian(0.1).predictive(torch.zeros(3, 4, 2)))
