"""Self-information, entropy, cross-entropy, KL and Jensen–Shannon against sums, integrals and each other."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.spatial.distance import jensenshannon
from torch.distributions import (
    Bernoulli,
    Beta,
    Binomial,
    Categorical,
    Cauchy,
    ContinuousBernoulli,
    Distribution,
    Exponential,
    FisherSnedecor,
    Gamma,
    Gumbel,
    HalfCauchy,
    HalfNormal,
    Independent,
    Laplace,
    LowRankMultivariateNormal,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
    OneHotCategorical,
    Poisson,
    StudentT,
    TransformedDistribution,
    Uniform,
    Weibull,
    Wishart,
)
from torch.distributions.transforms import ExpTransform

from credo.errors import InputError
from credo.information import cross_entropy, entropy, jensen_shannon, kl, self_information
from information.cases import ON_THE_LINE, as_mixture, correlated, mixture, number, on_the_line, within

ROUNDING = 1e-12
# The left tail of a Gumbel density is so thin that no moment of Student's t bears it: that divergence is infinite.
PAIRS = [pair for pair in itertools.permutations(ON_THE_LINE, 2) if pair != ("student", "gumbel")]


@st.composite
def tables(draw, count: int = 2, size: int = 4):
    """``count`` tables of probabilities over the same outcomes, some of which may be impossible."""
    weights = st.lists(st.sampled_from([0.0, 0.1, 1.0, 3.0]), min_size=size, max_size=size).filter(any)
    return [np.array(w) / sum(w) for w in (draw(weights) for _ in range(count))]


class TestSelfInformation:
    def test_fair_coin_has_one_bit(self):
        assert float(self_information(Bernoulli(0.5), 1.0).bits) == pytest.approx(1.0, abs=ROUNDING)
        assert float(self_information([0.5, 0.5], 0).bits) == pytest.approx(1.0, abs=ROUNDING)

    @settings(max_examples=50)
    @given(tables())
    def test_independent_events_add_up(self, pair):
        p, q = pair
        both = self_information(np.outer(p, q).ravel(), 4 * 2 + 1)
        apart = self_information(p, 2).value + self_information(q, 1).value
        assert torch.allclose(both.value, apart, atol=ROUNDING)

    def test_independent_densities_add_up(self):
        x, base = torch.arange(15.0).reshape(5, 3) - 7.0, Normal(torch.zeros(3), torch.arange(1.0, 4.0))
        joint = self_information(Independent(base, 1), x)
        assert joint.exact
        assert torch.allclose(joint.value, self_information(base, x).value.sum(-1), atol=ROUNDING)

    @pytest.mark.parametrize(
        ("p", "impossible"),
        [
            (Categorical(torch.tensor([0.5, 0.5, 0.0])), 2),
            (Categorical(torch.tensor([0.5, 0.5])), 7),
            (OneHotCategorical(torch.tensor([0.0, 1.0])), [1.0, 0.0]),
            (Bernoulli(0.0), 1.0),
            (Binomial(3, 1.0), 2.0),
            (Exponential(1.0), -1.0),
            (Gamma(2.0, 1.0), -1.0),
            (Uniform(0.0, 1.0), 1.5),
            (
                MixtureSameFamily(
                    Categorical(torch.ones(2)), Uniform(torch.tensor([0.0, 3.0]), torch.tensor([1.0, 4.0]))
                ),
                2.0,
            ),
            ([0.0, 1.0], 0),
        ],
    )
    def test_impossible_outcomes_are_infinite(self, p, impossible):
        before = torch.get_rng_state()
        assert float(self_information(p, impossible)) == math.inf
        assert torch.equal(torch.get_rng_state(), before)

    def test_mixture_support_is_union_of_component_supports(self):
        p = MixtureSameFamily(Categorical(torch.ones(2)), Uniform(torch.tensor([0.0, 3.0]), torch.tensor([1.0, 4.0])))
        assert torch.allclose(self_information(p, [0.5, 3.5]).value, number(math.log(2.0)), atol=ROUNDING)

    def test_small_logits_do_not_count_as_zero_probability(self):
        assert float(self_information(Categorical(logits=torch.tensor([0.0, -200.0])), 1)) == pytest.approx(200.0)
        assert float(self_information(Bernoulli(logits=torch.tensor(60.0)), 0.0)) == pytest.approx(60.0)


class TestEntropy:
    @pytest.mark.parametrize("name", ON_THE_LINE)
    def test_equals_quadrature(self, name):
        p = ON_THE_LINE[name]
        found = entropy(p)
        assert found.exact == (name != "mixture")
        assert within(found, on_the_line(p, lambda x: -p.log_prob(x)))

    @settings(max_examples=50)
    @given(tables(count=1))
    def test_table_equals_scipy(self, table):
        assert float(entropy(table[0])) == pytest.approx(scipy.stats.entropy(table[0]), abs=ROUNDING)

    def test_certain_outcome_has_zero_entropy(self):
        assert torch.equal(entropy(Bernoulli(torch.tensor([0.0, 1.0]))).value, torch.zeros(2, dtype=torch.float64))
        assert float(entropy(Binomial(5, 0.0))) == 0.0

    def test_float32_binomial_equals_scipy(self):
        found = entropy(Binomial(1000, torch.tensor([0.25, 0.5])))
        truth = [scipy.stats.binom(1000, q).entropy() for q in (0.25, 0.5)]
        assert found.exact
        assert found.value.tolist() == pytest.approx(truth, abs=1e-9)

    def test_binomials_with_different_totals(self):
        found = entropy(Binomial(torch.tensor([2.0, 5.0]), torch.tensor(0.3, dtype=torch.float64)))
        assert found.value.tolist() == pytest.approx([scipy.stats.binom(n, 0.3).entropy() for n in (2, 5)], abs=1e-10)

    def test_monte_carlo_equals_scipy_within_standard_error(self):
        assert within(entropy(Poisson(3.0)), scipy.stats.poisson(3.0).entropy())

    def test_independent_coordinates_add_up(self):
        parts = Bernoulli(torch.tensor([0.2, 0.7, 1.0]))
        assert torch.allclose(entropy(Independent(parts, 1)).value, entropy(parts).value.sum(), atol=ROUNDING)
        drawn = entropy(Independent(mixture().expand((3,)), 1))
        assert within(drawn, 3.0 * on_the_line(mixture(), lambda x: -mixture().log_prob(x)))

    def test_mixture_of_bernoullis_equals_table(self):
        p = MixtureSameFamily(Categorical(torch.tensor([0.3, 0.7])), Bernoulli(torch.tensor([0.1, 0.6])))
        assert float(entropy(p)) == pytest.approx(float(entropy([0.55, 0.45])), abs=1e-7)


def mixed(weights: list[float], components: Distribution) -> MixtureSameFamily:
    return MixtureSameFamily(Categorical(torch.tensor(weights)), components)


class TestKL:
    @pytest.mark.parametrize(("first", "second"), PAIRS)
    def test_kl_and_cross_entropy_equal_quadrature(self, first, second):
        p, q = ON_THE_LINE[first], ON_THE_LINE[second]
        assert within(kl(p, q), on_the_line(p, lambda x: p.log_prob(x) - q.log_prob(x)))
        assert within(cross_entropy(p, q), on_the_line(p, lambda x: -q.log_prob(x)))

    @pytest.mark.parametrize(("first", "second"), PAIRS)
    def test_cross_entropy_is_entropy_plus_divergence(self, first, second):
        p, q = ON_THE_LINE[first], ON_THE_LINE[second]
        crossed, own, divergence = cross_entropy(p, q, seed=1), entropy(p, seed=2), kl(p, q, seed=3)
        error = torch.stack([e.standard_error for e in (crossed, own, divergence)]).norm()
        assert abs(float(crossed) - float(own) - float(divergence)) <= 4.0 * error + ROUNDING

    @settings(max_examples=50)
    @given(tables())
    def test_tables_equal_scipy_and_difference_of_entropies(self, pair):
        p, q = pair
        divergence = float(kl(p, q))
        assert divergence >= 0.0
        assert divergence == pytest.approx(scipy.stats.entropy(p, q), abs=ROUNDING)
        assert float(cross_entropy(p, q)) == pytest.approx(float(entropy(p)) + divergence, abs=ROUNDING)
        assert float(kl(p, p)) == 0.0

    @pytest.mark.parametrize(
        ("p", "q"),
        [
            (Normal(0.0, 1.0), Gamma(2.0, 1.0)),
            (Normal(0.0, 1.0), Uniform(-9.0, 9.0)),
            (mixture(), Uniform(-9.0, 2.0)),
            (mixture(), MixtureSameFamily(Categorical(torch.ones(2)), Exponential(torch.tensor([1.0, 2.0])))),
            (TransformedDistribution(Normal(0.0, 1.0), ExpTransform()), Beta(1.0, 1.0)),
            (Bernoulli(0.5), Bernoulli(0.0)),
            (Binomial(3, 1.0), Binomial(3, 0.0)),
            (Binomial(5, 0.5), Binomial(3, 0.5)),
            (Poisson(1.0), Categorical(torch.tensor([0.5, 0.5]))),
            (Categorical(torch.ones(3)), Categorical(torch.tensor([0.5, 0.5, 0.0]))),
            (OneHotCategorical(torch.ones(2)), OneHotCategorical(torch.tensor([1.0, 0.0]))),
        ],
    )
    def test_is_infinite_if_q_excludes_outcomes_of_p(self, p, q):
        for found in (kl(p, q), cross_entropy(p, q)):
            assert float(found) == math.inf
            assert float(found.standard_error) == 0.0

    def test_is_finite_if_p_excludes_outcomes_of_q(self):
        assert float(kl(Binomial(3, 0.5), Binomial(5, 0.5))) == pytest.approx(
            scipy.stats.entropy([1, 3, 3, 1, 0, 0], [1, 5, 10, 10, 5, 1]), abs=1e-7
        )
        assert float(kl(Bernoulli(1.0), Bernoulli(0.5))) == pytest.approx(math.log(2.0))
        assert float(kl(Bernoulli(0.3), Poisson(0.5))) == pytest.approx(
            scipy.stats.entropy([0.7, 0.3]) * -1 - 0.3 * math.log(0.5) + 0.5, abs=1e-7
        )

    @pytest.mark.parametrize(
        ("p", "q", "infinite"),
        [
            (StudentT(2.0), Normal(0.0, 1.0), True),
            (StudentT(2.1), Normal(0.0, 1.0), False),
            (Cauchy(0.0, 1.0), Laplace(0.0, 1.0), True),
            (StudentT(1.5), Laplace(0.0, 1.0), False),
            (HalfCauchy(1.0), HalfNormal(1.0), True),
            (HalfCauchy(1.0), Weibull(1.0, 0.5), False),
            (StudentT(9.0), Gumbel(0.0, 1.0), True),
            (FisherSnedecor(3.0, 6.0), Gumbel(0.0, 1.0), False),
            (mixed([0.9, 0.1], StudentT(torch.tensor([5.0, 1.5]))), Normal(0.0, 1.0), True),
            (mixed([1.0, 0.0], StudentT(torch.tensor([5.0, 1.5]))), Normal(0.0, 1.0), False),
            (StudentT(1.5), mixed([0.5, 0.5], Laplace(torch.zeros(2), 1.0)), False),
            (
                Independent(StudentT(torch.tensor([5.0, 1.5])), 1),
                MultivariateNormal(torch.zeros(2), torch.tensor([[1.0, 0.5], [0.5, 1.0]])),
                True,
            ),
        ],
        ids=str,
    )
    def test_is_infinite_if_tails_of_p_are_too_heavy_for_q(self, p, q, infinite):
        """E|x|^k is infinite where P(|x| > t) falls as t^−k or more slowly, which no draws show."""
        for measure in (kl, cross_entropy):
            found = measure(p, q, samples=100)
            assert bool(found.value.isinf()) == infinite
            assert infinite == (float(found.standard_error) == 0.0)

    def test_heavy_tails_are_detected_per_batch_member(self):
        found = kl(StudentT(torch.tensor([1.0, 2.0, 5.0])), Normal(torch.zeros(2, 1), 1.0), samples=100)
        assert found.value.isinf().tolist() == [[True, True, False]] * 2

    def test_supports_with_a_common_end(self):
        found = kl(ContinuousBernoulli(number(0.3)), Uniform(number(0.0), number(1.0)))
        assert within(found, -float(ContinuousBernoulli(number(0.3)).entropy()))

    def test_gaussians_in_any_parameterization_have_a_closed_form(self):
        scale = torch.tensor([0.5, 2.0], dtype=torch.float64)
        diagonal = Independent(Normal(torch.zeros(2, dtype=torch.float64), scale), 1)
        same = MultivariateNormal(torch.zeros(2, dtype=torch.float64), scale_tril=scale.diag())
        low_rank = LowRankMultivariateNormal(torch.zeros(2), torch.tensor([[1.0], [0.5]]), torch.ones(2))
        for p, q, p_same, q_same in [
            (diagonal, correlated(), same, correlated()),
            (correlated(), diagonal, correlated(), same),
            (diagonal, low_rank, same, low_rank),
        ]:
            assert kl(p, q).exact
            assert float(kl(p, q)) == pytest.approx(float(kl(p_same, q_same)), abs=ROUNDING)

    @pytest.mark.parametrize("monte_carlo", [False, True])
    def test_batches_broadcast(self, monte_carlo):
        q = Normal(torch.tensor([[0.0], [1.0]]), torch.tensor([1.0, 2.0, 3.0]))
        p = mixture() if monte_carlo else Normal(0.5, 1.0)
        found = kl(p, q)
        assert found.value.shape == found.standard_error.shape == (2, 3)
        alone = [[kl(p, Normal(m, s)).value.item() for s in (1.0, 2.0, 3.0)] for m in (0.0, 1.0)]
        assert torch.allclose(found.value, torch.tensor(alone, dtype=torch.float64), atol=1e-9)
        assert kl(q, p).value.shape == cross_entropy(p, q).value.shape == (2, 3)
        assert kl(p, Gamma(torch.ones(4), 1.0)).value.tolist() == [math.inf] * 4

    def test_batches_of_tables_broadcast(self):
        p, q = torch.tensor([0.2, 0.8]), torch.tensor([[0.5, 0.5], [0.2, 0.8], [1.0, 0.0]])
        assert kl(p, q).value.tolist() == pytest.approx([scipy.stats.entropy(p, row) for row in q], abs=1e-7)
        assert kl(q, p).value.shape == (3,)

    def test_exact_values_have_gradients_and_estimates_do_not(self):
        mean = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
        kl(Normal(mean, number(2.0)), Normal(number(0.0), number(1.0))).value.backward()
        assert mean.grad == 1.0
        assert not kl(mixture(), Normal(mean, number(1.0))).value.requires_grad
        assert not kl(Wishart(number(4.0), torch.eye(2)), Wishart(number(5.0), torch.eye(2))).value.requires_grad
        with torch.no_grad():
            assert kl(Wishart(number(4.0), torch.eye(2)), Wishart(number(5.0), torch.eye(2))).exact


class TestJensenShannon:
    @settings(max_examples=50)
    @given(tables())
    def test_tables_equal_scipy_symmetric_and_bounded(self, pair):
        p, q = pair
        found = float(jensen_shannon(p, q))
        assert found == pytest.approx(jensenshannon(p, q) ** 2, abs=1e-9)
        assert found == pytest.approx(float(jensen_shannon(q, p)), abs=ROUNDING)
        assert 0.0 <= found <= math.log(2.0) + ROUNDING

    @settings(max_examples=50)
    @given(tables(count=3))
    def test_is_entropy_of_mixture_minus_entropy_of_parts(self, three):
        weights = np.array([0.2, 0.5, 0.3])
        mixed = float(entropy(weights @ np.stack(three)))
        parts = sum(w * float(entropy(p)) for w, p in zip(weights, three, strict=True))
        assert float(jensen_shannon(*three, weights=10 * weights)) == pytest.approx(mixed - parts, abs=ROUNDING)

    @pytest.mark.parametrize(("first", "second"), [("normal", "laplace"), ("mixture", "wide normal")])
    def test_densities_equal_quadrature(self, first, second):
        p, q = ON_THE_LINE[first], ON_THE_LINE[second]

        def log_mean(x):
            return torch.logaddexp(p.log_prob(x), q.log_prob(x)) - math.log(2.0)

        truth = 0.5 * sum(on_the_line(a, lambda x, a=a: a.log_prob(x) - log_mean(x)) for a in (p, q))
        found = jensen_shannon(p, q)
        assert not found.exact
        assert within(found, truth)
        assert within(jensen_shannon(q, p, seed=5), truth)

    def test_lower_and_upper_bound(self):
        same, apart = jensen_shannon(Normal(0.0, 1.0), Normal(torch.tensor([0.0, 1e3]), 1.0)).value
        assert same == 0.0
        assert apart == pytest.approx(math.log(2.0), abs=ROUNDING)
        three = jensen_shannon(*(Normal(m, 1.0) for m in (0.0, 1e3, 2e3)), weights=[1.0, 1.0, 2.0])
        assert within(three, float(entropy([0.25, 0.25, 0.5])))

    def test_binomials_with_different_totals(self):
        p, q = Binomial(2, 0.5), Binomial(3, 0.5)
        truth = jensenshannon([0.25, 0.5, 0.25, 0.0], [0.125, 0.375, 0.375, 0.125]) ** 2
        assert float(jensen_shannon(p, q)) == pytest.approx(truth, abs=1e-7)


SEEDS = 300
MEASURES = {
    "entropy": (
        lambda seed: entropy(mixture(), samples=2000, seed=seed),
        lambda p: on_the_line(p, lambda x: -p.log_prob(x)),
    ),
    "kl": (
        lambda seed: kl(mixture(), ON_THE_LINE["wide normal"], samples=2000, seed=seed),
        lambda p: on_the_line(p, lambda x: p.log_prob(x) - ON_THE_LINE["wide normal"].log_prob(x)),
    ),
    "cross-entropy": (
        lambda seed: cross_entropy(mixture(), ON_THE_LINE["wide normal"], samples=2000, seed=seed),
        lambda p: on_the_line(p, lambda x: -ON_THE_LINE["wide normal"].log_prob(x)),
    ),
    "jensen-shannon": (
        lambda seed: jensen_shannon(Normal(0.0, 1.0), Uniform(-1.0, 1.0), weights=[1.0, 2.0], samples=2000, seed=seed),
        None,
    ),
}
"""Estimates by seed, and their true value as a function of the mixture."""


class TestMonteCarlo:
    @pytest.mark.parametrize("name", MEASURES)
    def test_standard_errors_match_actual_errors(self, name):
        """z-scores over many seeds are standard normal: their mean and mean square, to one chance in 10,000."""
        measure, truth = MEASURES[name]
        found = [measure(seed) for seed in range(SEEDS)]
        value = torch.stack([e.value for e in found])
        error = torch.stack([e.standard_error for e in found])
        exact = _jensen_shannon_of_normal_and_uniform() if truth is None else truth(mixture())
        z = (value - exact) / error
        assert abs(z.mean()) * math.sqrt(SEEDS) < scipy.stats.norm.isf(5e-5)
        low, high = scipy.stats.chi2(SEEDS).interval(1 - 1e-4)
        assert low < z.square().sum() < high

    def test_seed_is_reproducible_and_keeps_global_state(self):
        before = torch.get_rng_state()
        first, again, other = (float(entropy(mixture(), seed=seed)) for seed in (3, 3, 4))
        jensen_shannon(mixture(), Normal(0.0, 1.0))
        assert torch.equal(torch.get_rng_state(), before)
        assert first == again != other
        assert float(entropy(mixture(), seed=None)) != float(entropy(mixture(), seed=None))

    def test_arguments_are_not_modified(self):
        p = Normal(torch.tensor(0.0), torch.tensor(1.0), validate_args=True)  # torch.compile switches the default off
        kl(p, mixture())
        assert p.loc.dtype == torch.float32
        assert p._validate_args

    def test_monte_carlo_equals_closed_form_of_gaussians(self):
        p, q = correlated(0.8), correlated(-0.3, (2.0, 1.0))
        assert within(kl(as_mixture(p), q), float(kl(p, q)))
        assert within(kl(p, as_mixture(q)), float(kl(p, q)))


def _jensen_shannon_of_normal_and_uniform() -> float:
    """Outside [−1, 1] the normal has the mixture to itself: log p/m = log 3 there."""
    p, inside = Normal(number(0.0), number(1.0)), scipy.stats.norm.cdf(1.0) - scipy.stats.norm.cdf(-1.0)

    def cell(x: float) -> float:
        a, b = float(p.log_prob(number(x)).exp()), 0.5
        m = a / 3 + 2 * b / 3
        return a / 3 * math.log(a / m) + 2 * b / 3 * math.log(b / m)

    return quad(cell, -1.0, 1.0)[0] + (1.0 - inside) / 3 * math.log(3.0)


class TestEstimate:
    def test_scalar_estimates_convert_to_float(self):
        exact, drawn = entropy(Normal(0.0, 1.0)), entropy(mixture())
        assert math.exp(exact) == pytest.approx(math.sqrt(2 * math.pi * math.e))
        assert str(exact) == "1.41894"
        assert "±" in str(drawn)
        assert drawn.bits.standard_error == drawn.standard_error / math.log(2.0)
        with pytest.raises(InputError, match=r"shape \[2\]"):
            float(entropy(Normal(torch.zeros(2), 1.0)))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: entropy([0.5, 0.6]), "sum to 1"),
        (lambda: entropy([1.5, -0.5]), "negative"),
        (lambda: entropy([[0.5, float("nan")]]), "NaN"),
        (lambda: entropy(0.5), r"\[..., K\]"),
        (lambda: entropy("normal"), "torch Distribution or a table"),
        (lambda: entropy(mixture(), samples=1), "samples must be an integer of at least 2"),
        (lambda: entropy(mixture(), seed=-1), "seed"),
        (lambda: kl(Normal(0.0, 1.0), correlated()), "same event shape"),
        (lambda: kl(Normal(0.0, 1.0), Poisson(1.0)), "both be discrete or both continuous"),
        (lambda: kl([0.5, 0.5], [0.2, 0.3, 0.5]), "same outcomes, got 2 and 3"),
        (lambda: kl(Normal(torch.zeros(2), 1.0), Normal(torch.zeros(3), 1.0)), "broadcast"),
        (lambda: self_information(Normal(0.0, 1.0), float("nan")), "NaN"),
        (lambda: self_information(Normal(0.0, 1.0), "one"), "x must be"),
        (lambda: self_information(correlated(), [1.0, 2.0, 3.0]), r"events of shape \[2\]"),
        (lambda: jensen_shannon([0.5, 0.5], [0.5, 0.5], weights=[1.0]), "weights must be 2 positive"),
        (lambda: jensen_shannon([0.5, 0.5], [0.5, 0.5], weights=[1.0, 0.0]), "weights must be 2 positive"),
    ],
)
def test_bad_arguments_raise(call, words):
    with pytest.raises(InputError, match=words):
        call()
