"""Total variation and the χ² divergence against sums, integrals, and the inequalities between divergences."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch.distributions import (
    Binomial,
    Categorical,
    Cauchy,
    Independent,
    Laplace,
    LowRankMultivariateNormal,
    MultivariateNormal,
    Normal,
    Poisson,
    StudentT,
)

from credo.errors import InputError
from credo.information import chi_squared, kl, total_variation
from information.cases import ON_THE_LINE, as_mixture, correlated, mixture, number, on_the_line, within
from information.test_measures import ROUNDING, tables

PAIRS = list(itertools.combinations(ON_THE_LINE, 2))


def difference(p, q) -> float:
    """½ ∫ |p − q| = E_p[(1 − q/p)₊] by quadrature."""
    return on_the_line(p, lambda x: (1 - (q.log_prob(x) - p.log_prob(x)).exp()).clamp(min=0.0))


@settings(max_examples=100)
@given(tables(3))
def test_tables_are_sums_and_obey_the_inequalities(three):
    """TV is a metric between 0 and 1; Pinsker; KL ≤ log(1 + χ²), 4TV² ≤ χ²."""
    p, q, r = three
    tv, chi = total_variation(p, q), chi_squared(p, q)
    assert tv.exact
    assert chi.exact
    assert float(tv) == pytest.approx(0.5 * np.abs(p - q).sum(), abs=ROUNDING)
    assert float(tv) == pytest.approx(float(total_variation(q, p)), abs=ROUNDING)
    assert float(tv) <= float(total_variation(p, r)) + float(total_variation(r, q)) + ROUNDING
    with np.errstate(divide="ignore", invalid="ignore"):
        expected = np.where(p > 0, p**2 / q, 0.0).sum() - 1
    assert float(chi) == pytest.approx(expected, abs=ROUNDING)
    assert 0 <= float(tv) <= 1 + ROUNDING
    assert float(tv) <= math.sqrt(float(kl(p, q)) / 2) + ROUNDING
    assert float(kl(p, q)) <= math.log1p(float(chi)) + ROUNDING
    assert 4 * float(tv) ** 2 <= float(chi) + ROUNDING


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_total_variation_of_densities_is_their_integral(pair):
    p, q = (ON_THE_LINE[name] for name in pair)
    for first, second in ((p, q), (q, p)):
        found = total_variation(first, second)
        assert within(found, difference(p, q))
        assert found.exact == all("normal" in name for name in pair)


@pytest.mark.parametrize("offset", [0.0, 1e-9, 0.3, -2.0, 40.0])
@pytest.mark.parametrize("scale", [1.0, 1 + 1e-12, 1.7, 0.01, 0.9])
def test_total_variation_of_normals_is_their_integral(offset, scale):
    """In units of the narrower one, so that the grid resolves it; equal scales are erf(|d|/√8)."""
    p, q = Normal(number(offset), number(scale)), Normal(number(0.0), number(1.0))
    found = total_variation(p, q)
    assert found.exact
    if abs(scale - 1) < 1e-6:
        assert float(found) == pytest.approx(math.erf(abs(offset) / math.sqrt(8)), abs=1e-11)
    else:
        unit = min(scale, 1.0)
        small = Normal(number((offset) / unit), number(scale / unit)), Normal(number(0.0), number(1.0 / unit))
        narrow = small if scale < 1 else small[::-1]
        x = narrow[0].mean + torch.linspace(-60.0, 60.0, 240_001, dtype=torch.float64)
        ratio = (narrow[1].log_prob(x) - narrow[0].log_prob(x)).exp()
        exact = torch.trapezoid(narrow[0].log_prob(x).exp() * (1 - ratio).clamp(min=0.0), x)
        assert float(found) == pytest.approx(float(exact), abs=1e-7)


def test_total_variation_of_vectors():
    """One covariance: erf(√(δᵀΣ⁻¹δ/8)). A coordinate that is the same in both does not count."""
    p = correlated()
    q = MultivariateNormal(p.loc + torch.tensor([0.4, -1.0]), p.covariance_matrix)
    delta = (q.loc - p.loc).numpy()
    distance = delta @ np.linalg.inv(p.covariance_matrix.numpy()) @ delta
    assert float(total_variation(p, q)) == pytest.approx(math.erf(math.sqrt(distance / 8)), abs=ROUNDING)
    assert within(total_variation(as_mixture(p), q), math.erf(math.sqrt(distance / 8)))
    scales = torch.tensor([[1.0, 0.5], [2.0, 0.5]], dtype=torch.float64)
    wide = [Independent(Normal(torch.zeros(2, dtype=torch.float64), scale), 1) for scale in scales]
    one = total_variation(Normal(number(0.0), number(1.0)), Normal(number(0.0), number(2.0)))
    found = total_variation(*wide)
    assert not found.exact
    assert within(found, float(one))


def test_finite_against_infinite_counts():
    """½ Σ |p − q| over the counts up to 200, and the other order."""
    p, q = Binomial(20, number(0.3)), Poisson(number(6.0))
    k = torch.arange(200, dtype=torch.float64)
    exact = 0.5 * (
        q.log_prob(k).exp().sum()
        + sum((p.log_prob(i).exp() - q.log_prob(i).exp()).abs() - q.log_prob(i).exp() for i in k[:21])
    )
    for pair in ((p, q), (q, p)):
        assert float(total_variation(*pair)) == pytest.approx(float(exact), abs=ROUNDING)
    assert math.isinf(float(chi_squared(Poisson(number(20.0)), p)))
    assert float(chi_squared(p, q)) == pytest.approx(
        float((2 * p.log_prob(k[:21]) - q.log_prob(k[:21])).exp().sum() - 1), abs=ROUNDING
    )


@pytest.mark.parametrize("scale", [0.3, 1.0, 1.35])
def test_chi_squared_of_normals_is_its_integral(scale):
    p, q = Normal(number(0.4), number(scale)), Normal(number(-0.2), number(1.0))
    found = chi_squared(p, q)
    assert found.exact
    x = torch.linspace(-60.0, 60.0, 240_001, dtype=torch.float64)
    integral = float(torch.trapezoid((2 * p.log_prob(x) - q.log_prob(x)).exp(), x)) - 1
    assert float(found) == pytest.approx(integral, rel=1e-9)
    assert float(kl(p, q)) <= math.log1p(float(found))
    assert float(total_variation(p, q)) <= math.sqrt(float(kl(p, q)) / 2)


def test_chi_squared_is_infinite_if_the_tails_of_q_are_too_light():
    """σ_p² ≥ 2σ_q²; a batch may hold both kinds. For a Cauchy p no Gaussian q is wide enough."""
    p, q = Normal(number(0.0), torch.tensor([1.0, 1.5], dtype=torch.float64)), Normal(number(0.0), number(1.0))
    assert chi_squared(p, q).value.tolist() == [0.0, math.inf]
    assert math.isinf(float(chi_squared(Cauchy(number(0.0), number(1.0)), q)))


def test_chi_squared_of_vectors():
    """Independent coordinates multiply; rotations and parameterizations do not matter; draws agree."""
    a, b = torch.tensor([0.8, 1.1], dtype=torch.float64), torch.tensor([1.0, 1.0], dtype=torch.float64)
    p = Independent(Normal(torch.tensor([0.2, -0.3], dtype=torch.float64), a), 1)
    q = Independent(Normal(torch.zeros(2, dtype=torch.float64), b), 1)
    separate = chi_squared(p.base_dist, q.base_dist).value
    expected = float((1 + separate).prod() - 1)
    assert float(chi_squared(p, q)) == pytest.approx(expected, rel=1e-12)
    angle = torch.tensor([[0.6, -0.8], [0.8, 0.6]], dtype=torch.float64)
    turned = [MultivariateNormal(angle @ d.mean, angle @ torch.diag(d.variance) @ angle.T) for d in (p, q)]
    assert float(chi_squared(*turned)) == pytest.approx(expected, rel=1e-12)
    factor = torch.zeros(2, 1, dtype=torch.float64)
    assert float(chi_squared(LowRankMultivariateNormal(p.mean, factor, p.variance), q)) == pytest.approx(
        expected, rel=1e-12
    )
    assert within(chi_squared(as_mixture(turned[0]), turned[1], samples=100_000), expected)
    laplace = [Laplace(torch.tensor([0.0, 0.5], dtype=torch.float64), s) for s in (1.0, 1.5)]
    drawn = chi_squared(*(Independent(d, 1) for d in laplace))
    assert not drawn.exact


def test_estimates_have_the_standard_error():
    """Of 200 seeds, the mean within 5 standard errors of it, and the spread near the stated one."""
    p, q = mixture(), StudentT(number(5.0), number(0.0), number(2.0))
    for measure, exact in ((total_variation, difference(p, q)), (chi_squared, None)):
        found = [measure(p, q, samples=400, seed=seed) for seed in range(200)]
        values = np.array([float(f) for f in found])
        exact = on_the_line(p, lambda x: (p.log_prob(x) - q.log_prob(x)).exp()) - 1 if exact is None else exact
        assert values.mean() == pytest.approx(exact, abs=5 * values.std() / math.sqrt(200))
        # the standard deviation of 200 normal numbers is known to 5 %: four of these
        assert values.std() == pytest.approx(np.mean([float(f.standard_error) for f in found]), rel=0.2)


def test_bad_arguments_raise():
    for measure in (total_variation, chi_squared):
        with pytest.raises(InputError, match="same outcomes"):
            measure(Categorical(torch.ones(2)), Categorical(torch.ones(3)))
        with pytest.raises(InputError, match="both be discrete or both continuous"):
            measure(Poisson(1.0), Normal(0.0, 1.0))
        with pytest.raises(InputError, match="sum to 1"):
            measure([0.5, 0.2], [0.5, 0.5])
