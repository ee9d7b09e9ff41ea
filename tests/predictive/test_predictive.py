"""The predictive mixture against closed forms, scipy, quadrature and its own samples."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats
from torch import Tensor
from torch import distributions as D

import credo.predictive.real as real
from credo.errors import InputError, UnsupportedError
from credo.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood, Poisson, StudentT
from credo.predictive import Interval, Predictive

F64 = torch.float64
REAL: list[Likelihood] = [Gaussian(0.7), StudentT(3.0, 0.7), Poisson(), Gaussian("heteroscedastic")]
CLASSES: list[Likelihood] = [Categorical(), Bernoulli()]


def prediction(likelihood: Likelihood, draws: int = 5, rows: int = 4, seed: int = 0, spread: float = 1.0) -> Predictive:
    generator = torch.Generator().manual_seed(seed)
    return likelihood.predictive(spread * torch.randn(draws, rows, 4, generator=generator, dtype=F64))


def assert_same(a: Predictive, b: Predictive) -> None:
    assert type(a) is type(b)
    for name in ("draws", "mean", "variance", "aleatoric", "epistemic"):
        torch.testing.assert_close(getattr(a, name), getattr(b, name))


def test_trap_27_moments_are_those_of_the_mixture() -> None:
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


@pytest.mark.parametrize("likelihood", REAL, ids=str)
def test_variance_is_aleatoric_plus_epistemic(likelihood: Likelihood) -> None:
    p = prediction(likelihood)
    torch.testing.assert_close(p.variance, p.aleatoric + p.epistemic)
    torch.testing.assert_close(p.std.square(), p.variance)


@pytest.mark.parametrize("likelihood", [*REAL, *CLASSES], ids=str)
def test_one_draw_has_no_epistemic_uncertainty(likelihood: Likelihood) -> None:
    for p in (prediction(likelihood, draws=1), prediction(likelihood, draws=1, spread=50.0)):
        assert bool((p.epistemic == 0).all())
        assert bool((p.mutual_information == 0).all())


@pytest.mark.parametrize(
    ("likelihood", "components"),
    [
        (Gaussian(0.7), lambda f: D.Normal(f, 0.7)),
        (StudentT(3.0, 0.7), lambda f: D.StudentT(3.0, f, 0.7)),
        (Poisson(), lambda f: D.Poisson(f.exp())),
        (Bernoulli(), lambda f: D.Bernoulli(logits=f)),
    ],
    ids=["Gaussian", "StudentT", "Poisson", "Bernoulli"],
)
def test_log_prob_is_a_mixture_of_the_rows_joint_densities(likelihood: Likelihood, components: object) -> None:
    torch.manual_seed(0)
    outputs = torch.randn(6, 3, 2, 2, dtype=F64)
    y = torch.randint(2, (3, 2, 2)).double()
    joint = D.Independent(components(outputs.transpose(0, 1)), 2)  # type: ignore[operator]
    mixture = D.MixtureSameFamily(D.Categorical(torch.ones(3, 6, dtype=F64)), joint)
    torch.testing.assert_close(likelihood.predictive(outputs).log_prob(y), mixture.log_prob(y))


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


def test_impossible_classes_are_no_trouble() -> None:
    outputs = torch.tensor([[[0.0, 0.0, -math.inf]], [[0.0, -math.inf, -math.inf]]])
    p = Categorical().predictive(outputs)
    h = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    torch.testing.assert_close(p.entropy, torch.tensor([h]))
    torch.testing.assert_close(p.aleatoric, torch.tensor([0.5 * math.log(2)]))
    torch.testing.assert_close(p.epistemic, torch.tensor([h - 0.5 * math.log(2)]))
    assert float(p.log_prob(torch.tensor([2]))) == -math.inf


def test_classification_entropies() -> None:
    # two draws, each sure, that contradict each other: all the uncertainty is epistemic
    for p in (
        Categorical().predictive(torch.tensor([[[100.0, 0.0]], [[0.0, 100.0]]])),
        Bernoulli().predictive(torch.tensor([[100.0], [-100.0]])),
    ):
        torch.testing.assert_close(p.entropy, torch.tensor([math.log(2)]))
        torch.testing.assert_close(p.epistemic, torch.tensor([math.log(2)]))
        torch.testing.assert_close(p.aleatoric, torch.tensor([0.0]))
    # two draws that agree on a fair coin: none of it is
    fair = Bernoulli().predictive(torch.zeros(2, 1))
    torch.testing.assert_close(fair.aleatoric, torch.tensor([math.log(2)]))
    torch.testing.assert_close(fair.epistemic, torch.tensor([0.0]))
    p = prediction(Categorical(), draws=9, rows=50)
    torch.testing.assert_close(p.entropy, D.Categorical(probs=p.mean).entropy())
    torch.testing.assert_close(p.aleatoric, D.Categorical(probs=p.draws).entropy().mean(0))
    torch.testing.assert_close(p.entropy, p.aleatoric + p.epistemic)
    torch.testing.assert_close(p.variance, p.mean * (1 - p.mean))
    torch.testing.assert_close(p.std, p.variance.sqrt())
    assert torch.equal(p.mode, p.mean.argmax(-1))
    coins = prediction(Bernoulli(), draws=9, rows=50)
    torch.testing.assert_close(coins.entropy, D.Bernoulli(coins.mean).entropy())
    assert torch.equal(coins.mode, (coins.mean > 0.5).long())


def test_classes_lie_where_the_network_puts_them() -> None:
    torch.manual_seed(0)
    outputs = torch.randn(6, 2, 3, 4, 5)
    p = Categorical(class_dim=1).predictive(outputs)
    assert p.mean.shape == (2, 3, 4, 5)
    torch.testing.assert_close(p.mean, outputs.softmax(2).mean(0))
    for value in (p.entropy, p.epistemic, p.aleatoric, p.mode, p.sample(1)[0]):
        assert value.shape == (2, 4, 5)
    y = torch.randint(3, (2, 4, 5))
    last = Categorical().predictive(outputs.movedim(2, -1))
    torch.testing.assert_close(p.log_prob(y), last.log_prob(y))


def test_ignored_targets_count_nothing_and_class_weights_are_no_density() -> None:
    torch.manual_seed(0)
    outputs = torch.randn(6, 2, 3, 4)
    y = torch.randint(3, (2, 4))
    plain = Categorical(class_dim=1).predictive(outputs)
    weighted = Categorical(class_dim=1, weight=[1.0, 5.0, 9.0]).predictive(outputs)
    torch.testing.assert_close(weighted.log_prob(y), plain.log_prob(y))
    y[:, 2:] = 255
    ignoring = Categorical(class_dim=1, ignore_index=255).predictive(outputs)
    short = Categorical(class_dim=1).predictive(outputs[..., :2])
    torch.testing.assert_close(ignoring.log_prob(y), short.log_prob(y[:, :2]))


@pytest.mark.parametrize("q", [1e-4, 0.05, 0.5, 0.9, 0.9999])
def test_quantiles_of_one_draw_are_the_distributions_own(q: float) -> None:
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
def test_count_quantile_is_the_smallest_count_that_reaches_the_level(seed: int, draws: int, q: float) -> None:
    p = prediction(Poisson(), draws=draws, rows=2, seed=seed, spread=2.0)
    y = p.quantile(q)
    assert torch.equal(y, y.round())
    assert bool((p.cdf(y) >= q).all())
    assert bool((p.cdf(y - 1) < q).all())


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.01, 0.98), st.floats(0.001, 0.01), st.sampled_from(range(4)))
def test_intervals_are_nested(seed: int, level: float, more: float, which: int) -> None:
    p = prediction(REAL[which], rows=2, seed=seed)
    inner, outer = p.interval(level), p.interval(level + more)
    assert bool((outer.lower <= inner.lower).all())
    assert bool((inner.lower <= inner.upper).all())
    assert bool((inner.upper <= outer.upper).all())


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 6), st.floats(0, 30), st.sampled_from([*REAL[:3], *CLASSES]))
def test_mutual_information_lies_between_0_and_log_draws(
    seed: int, draws: int, spread: float, likelihood: Likelihood
) -> None:
    p = prediction(likelihood, draws, 2, seed, spread=min(spread, 5) if isinstance(likelihood, Poisson) else spread)
    assert bool((p.mutual_information >= 0).all())
    assert bool((p.mutual_information <= math.log(draws) + 1e-4).all())


@pytest.mark.parametrize("likelihood", REAL, ids=str)
def test_interval_covers_what_it_says(likelihood: Likelihood) -> None:
    p = prediction(likelihood, draws=7, rows=2, spread=1.5)
    n, level = 20_000, 0.9
    y = p.sample(n, seed=3)
    interval = p.interval(level)
    covered = ((y >= interval.lower) & (y <= interval.upper)).double().mean(0)
    error = 5 * math.sqrt(level * (1 - level) / n)
    exact = p.cdf(interval.upper) - p.cdf(interval.lower - (1 if isinstance(likelihood, Poisson) else 0))
    assert bool(((covered - exact).abs() < error).all())
    assert bool((exact >= level - 1e-9).all())
    if not isinstance(likelihood, Poisson):
        assert bool(((covered - level).abs() < error).all())


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
def test_entropy_is_that_of_the_mixture(means: list[float], scales: list[float]) -> None:
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


def test_distant_draws_carry_all_their_information() -> None:
    for likelihood in (Gaussian(0.01), StudentT(30.0, 0.01)):
        p = likelihood.predictive(torch.arange(10.0)[:, None] * 5)
        assert float(p.mutual_information) == pytest.approx(math.log(10), rel=2e-3)
    same = Gaussian(0.3).predictive(torch.ones(10, 1, dtype=F64))
    assert float(same.mutual_information) == pytest.approx(0, abs=1e-14)


def test_student_t_variance_is_infinite_where_it_is() -> None:
    p = StudentT(2.0, 0.5).predictive(torch.zeros(3, 2))
    assert bool(p.variance.isinf().all())
    assert bool(p.interval(0.9).upper.isfinite().all())
    torch.testing.assert_close(StudentT(4.0, 0.5).predictive(torch.zeros(3, 2)).variance, torch.full((2,), 0.5))


@pytest.mark.parametrize("likelihood", REAL[:3], ids=str)
def test_results_do_not_depend_on_the_chunks(likelihood: Likelihood, monkeypatch: pytest.MonkeyPatch) -> None:
    p = prediction(likelihood, rows=7)
    whole = p.quantile(0.3), p.mutual_information
    monkeypatch.setattr(real, "chunk_size", lambda device, cost: 1)
    parts = prediction(likelihood, rows=7)
    torch.testing.assert_close((parts.quantile(0.3), parts.mutual_information), whole)


def test_a_sample_lies_on_one_draw() -> None:
    draws = torch.arange(4.0)[:, None] + torch.tensor([0.0, 10.0, 20.0])
    y = Gaussian(1e-4).predictive(draws).sample(4000, seed=0)
    picked = y - torch.tensor([0.0, 10.0, 20.0])
    assert float((picked - picked[:, :1]).abs().max()) < 2e-3  # noise of 1e-4 · √2, 8000 times
    shares = torch.bincount(picked[:, 0].round().long(), minlength=4) / 4000
    assert float((shares - 0.25).abs().max()) < 5 * math.sqrt(0.25 * 0.75 / 4000)


@pytest.mark.parametrize("likelihood", [*REAL, *CLASSES], ids=str)
def test_samples_follow_the_seed_and_leave_the_global_state_alone(likelihood: Likelihood) -> None:
    p = prediction(likelihood)
    state = torch.get_rng_state()
    first = p.sample(3, seed=7)
    assert torch.equal(first, p.sample(3, seed=7))
    assert not torch.equal(first, p.sample(3, seed=8))
    assert torch.equal(state, torch.get_rng_state())
    assert not torch.equal(p.sample(20), p.sample(20))
    assert p.sample(0).shape == (0, *first.shape[1:])
    assert p.log_prob(first[0]).shape == (4,)
    with pytest.raises(InputError, match="n must be an integer of at least 0"):
        p.sample(-1)


@pytest.mark.parametrize("likelihood", CLASSES, ids=str)
def test_class_samples_have_the_mean_frequencies(likelihood: Likelihood) -> None:
    p, n = prediction(likelihood, rows=2), 20_000
    y = p.sample(n, seed=0)
    shares = (
        torch.nn.functional.one_hot(y, 4).double().mean(0)
        if isinstance(likelihood, Categorical)
        else y.double().mean(0)
    )
    assert bool(((shares - p.mean).abs() < 5 * (p.variance / n).sqrt()).all())


@pytest.mark.parametrize("likelihood", [*REAL, *CLASSES], ids=str)
def test_rows_are_addressed_as_in_a_tensor(likelihood: Likelihood) -> None:
    p = prediction(likelihood, rows=6)
    assert len(p) == 6
    chosen: list[tuple[object, Tensor]] = [
        (2, torch.tensor([2])),
        (-1, torch.tensor([5])),
        (slice(2, 5), torch.tensor([2, 3, 4])),
        (slice(None, None, -1), torch.arange(5, -1, -1)),
        ([4, 1], torch.tensor([4, 1])),
        (np.array([4, 1]), torch.tensor([4, 1])),
        (torch.tensor([True, False] * 3), torch.tensor([0, 2, 4])),
        ([], torch.tensor([], dtype=torch.long)),
    ]
    for rows, index in chosen:
        part = p[rows]  # type: ignore[index]
        assert len(part) == len(index)
        torch.testing.assert_close(part.draws, p.draws[:, index])
        torch.testing.assert_close(part.aleatoric, p.aleatoric[index])
    assert [len(row) for row in p] == [1] * 6
    with pytest.raises(IndexError):
        p[6]
    for wrong in (torch.tensor([True, False]), (0, 1), 0.5, torch.zeros(2, 2).long()):
        with pytest.raises(InputError, match="row"):
            p[wrong]  # type: ignore[index]


@pytest.mark.parametrize("likelihood", [*REAL, *CLASSES], ids=str)
def test_concatenation_undoes_slicing(likelihood: Likelihood) -> None:
    p = prediction(likelihood, rows=6)
    assert_same(Predictive.concatenate([p[:2], p[2:3], p[3:]]), p)
    with pytest.raises(InputError, match="different numbers of draws"):
        Predictive.concatenate([p, prediction(likelihood, draws=2)])
    with pytest.raises(InputError, match="nothing to join"):
        Predictive.concatenate([])


@pytest.mark.parametrize("likelihood", [*REAL, *CLASSES], ids=str)
def test_mixture_weights_its_parts_equally(likelihood: Likelihood) -> None:
    p = prediction(likelihood, draws=6)
    thirds = [some_draws(p, slice(i, i + 2)) for i in (0, 2, 4)]
    assert_same(Predictive.mixture(thirds), p)
    assert Predictive.mixture(thirds).weights is None
    # one draw mixed with three weighs as much as the three: the same as that draw three times
    one, three = some_draws(p, slice(0, 1)), some_draws(p, slice(1, 4))
    mixed = Predictive.mixture([one, three])
    repeated = Predictive.mixture([Predictive.mixture([one, one, one]), three])
    for name in ("mean", "variance", "aleatoric", "epistemic", "entropy", "mutual_information"):
        torch.testing.assert_close(getattr(mixed, name), getattr(repeated, name), rtol=1e-4, atol=1e-5)
    y = p.sample(1, seed=0)[0]
    torch.testing.assert_close(mixed.log_prob(y), repeated.log_prob(y))
    if likelihood in REAL:
        torch.testing.assert_close(mixed.cdf(y), repeated.cdf(y))
        torch.testing.assert_close(mixed.quantile(0.2), repeated.quantile(0.2))
    with pytest.raises(InputError, match="weight their draws differently"):
        Predictive.concatenate([mixed, some_draws(p, slice(0, 4))])
    assert_same(Predictive.concatenate([mixed[:1], mixed[1:]]), mixed)


def some_draws(p: Predictive, draws: slice) -> Predictive:
    return dataclasses.replace(p, components=p.components.map(lambda t: t[draws]))


def test_weighted_samples_follow_the_weights() -> None:
    p = Predictive.mixture([Gaussian(0.1).predictive(torch.full((n, 1), m)) for n, m in ((1, 0.0), (9, 10.0))])
    share = float((p.sample(4000, seed=0) < 5).double().mean())
    assert share == pytest.approx(0.5, abs=5 * 0.5 / math.sqrt(4000))


def test_unlike_predictions_do_not_mix() -> None:
    p = prediction(Gaussian(0.1))
    with pytest.raises(InputError, match="different likelihoods"):
        Predictive.mixture([p, prediction(Poisson())])
    with pytest.raises(InputError, match="different target shapes"):
        Predictive.mixture([p, p[:2]])
    images = torch.zeros(1, 2, 3, 3)
    with pytest.raises(InputError, match="different settings"):
        Predictive.mixture([Categorical(class_dim=d).predictive(images) for d in (1, 2)])


@pytest.mark.parametrize("likelihood", CLASSES, ids=str)
def test_classes_have_no_quantiles(likelihood: Likelihood) -> None:
    p = prediction(likelihood)
    for call in (lambda: p.quantile(0.5), lambda: p.interval(0.9), lambda: p.cdf(torch.zeros(4))):
        with pytest.raises(UnsupportedError, match="classes have no order"):
            call()
    with pytest.raises(UnsupportedError, match="mean or quantile"):
        _ = prediction(Gaussian(0.1)).mode


@pytest.mark.parametrize("likelihood", [*REAL, *CLASSES], ids=str)
def test_empty_batches(likelihood: Likelihood) -> None:
    p = prediction(likelihood, rows=0)
    assert len(p) == 0
    for value in (p.mean, p.variance, p.aleatoric, p.epistemic, p.entropy, p.mutual_information):
        assert value.shape[0] == 0
    assert p.sample(3).shape[:2] == (3, 0)
    assert p.log_prob(p.sample(1)[0]).shape == (0,)
    if likelihood in REAL:
        assert p.interval(0.9).lower.shape[0] == 0
        assert p.quantile([]).shape[:2] == (0, 0)


def test_targets_are_checked() -> None:
    p = Gaussian(0.1).predictive(torch.zeros(3, 5, 1))
    with pytest.raises(InputError, match=r"reshape y with y\[:, None\]"):
        p.log_prob(torch.zeros(5))
    with pytest.raises(InputError, match=r"reshape y with y\[:, None\]"):
        p.cdf(torch.zeros(5))
    with pytest.raises(InputError, match="label 3"):
        Categorical().predictive(torch.zeros(2, 1, 3)).log_prob(torch.tensor([3]))


def test_frozen_printed_copied_and_differentiable() -> None:
    outputs = torch.zeros(100, 50, 1, requires_grad=True)
    p = Gaussian(0.1).predictive(outputs)
    assert repr(p) == "Predictive(draws=100, rows=50, Gaussian)"
    with pytest.raises(dataclasses.FrozenInstanceError):
        p.weights = None  # type: ignore[misc]
    p.log_prob(torch.ones(50, 1)).sum().backward()
    assert outputs.grad is not None
    # each row's gradient is (y − f)/σ² = 100, shared by its 100 equal draws
    torch.testing.assert_close(outputs.grad, torch.ones(100, 50, 1))
    detached = prediction(Categorical())
    for other in (copy.deepcopy(detached), pickle.loads(pickle.dumps(detached)), detached.cpu(), detached.to("cpu")):
        assert_same(other, detached)


def test_information_of_counts_whose_rates_are_orders_of_magnitude_apart() -> None:
    """Two draws that no count can be of both: one bit, however wide the gap between them."""
    p = Poisson().predictive(torch.tensor([[[-2.0]], [[14.0]]], dtype=F64))
    assert float(p.mutual_information) == pytest.approx(math.log(2), abs=1e-6)
