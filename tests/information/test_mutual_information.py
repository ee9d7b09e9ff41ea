"""Mutual information by its three definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import (
    Dirichlet,
    Independent,
    LogNormal,
    MultivariateNormal,
    Normal,
    TransformedDistribution,
    Wishart,
)
from torch.distributions.transforms import ExpTransform

from credo.errors import InputError
from credo.information import entropy, kl, mutual_information
from information.cases import as_mixture, bimodal, correlated, within

ROUNDING = 1e-12
RHO = 0.8
GAUSSIAN = -0.5 * math.log(1.0 - RHO**2)


@given(st.lists(st.sampled_from([0.0, 0.1, 1.0, 2.0]), min_size=6, max_size=6).filter(any))
def test_table_equals_divergence_and_difference_of_entropies(weights):
    joint = np.reshape(weights, (2, 3)) / sum(weights)
    x, y = joint.sum(1), joint.sum(0)
    found = mutual_information(joint)
    assert found.exact
    assert float(found) == pytest.approx(float(kl(joint.ravel(), np.outer(x, y).ravel())), abs=ROUNDING)
    by_entropies = float(entropy(x)) + float(entropy(y)) - float(entropy(joint.ravel()))
    assert float(found) == pytest.approx(by_entropies, abs=ROUNDING)


def test_batch_of_independent_and_identical_tables():
    apart, same = torch.full((2, 2), 0.25), torch.eye(2) / 2
    assert mutual_information(torch.stack([apart, same])).bits.value.tolist() == pytest.approx([0.0, 1.0], abs=1e-7)


def test_gaussian_pair():
    assert float(mutual_information(correlated(RHO))) == pytest.approx(GAUSSIAN, abs=ROUNDING)
    assert float(mutual_information(correlated(RHO, (3.0, 0.1)))) == pytest.approx(GAUSSIAN, abs=1e-9)
    assert float(mutual_information(Independent(Normal(torch.zeros(2), 1.0), 1))) == 0.0


def test_gaussian_blocks_equal_divergence_and_difference_of_entropies():
    factor = torch.randn(5, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    joint = MultivariateNormal(torch.zeros(5, 4, dtype=torch.float64), factor @ factor.mT + torch.eye(4))
    covariance, x, y = joint.covariance_matrix, [0, 2], [1, 3]
    found = mutual_information(joint, block=x)
    assert found.value.shape == (5,)

    blocks = [MultivariateNormal(torch.zeros(2), covariance[:, block][:, :, block]) for block in (x, y)]
    by_entropies = sum(entropy(block).value for block in blocks) - entropy(joint).value
    assert torch.allclose(found.value, by_entropies, atol=1e-10)

    same_block = torch.tensor([[i in block for i in range(4)] for block in (x, y, x, y)])
    product = MultivariateNormal(joint.loc, torch.where(same_block, covariance, 0.0))
    assert torch.allclose(found.value, kl(joint, product).value, atol=1e-10)
    assert torch.allclose(found.value, mutual_information(joint, block=y).value, atol=1e-10)
    leading = mutual_information(joint, block=2).value
    assert torch.allclose(leading, mutual_information(joint, block=[1, 0]).value, atol=1e-10)


def test_monte_carlo_equals_closed_form_within_standard_error():
    found = mutual_information(as_mixture(correlated(RHO)))
    assert not found.exact
    assert within(found, GAUSSIAN)
    with_margins = mutual_information(correlated(RHO), marginals=(Normal(0.5, 1.0), Normal(-0.3, 1.0)), seed=1)
    assert within(with_margins, GAUSSIAN)


def test_is_invariant_to_transformations_of_the_variables():
    p = correlated(RHO)
    joint = TransformedDistribution(p, ExpTransform())
    margins = tuple(LogNormal(mean, 1.0) for mean in p.loc)
    assert within(mutual_information(joint, marginals=margins), GAUSSIAN)


def test_far_modes_share_their_component():
    """Far apart, x and y of a mixture share its component, log 2, and what they share within it."""
    within_modes = 0.5 * (-0.5 * math.log(1 - 0.04 / 0.24) - 0.5 * math.log(1 - 0.09 / 0.3))
    assert within(mutual_information(bimodal(50.0)), math.log(2.0) + within_modes)


def test_global_state_is_kept():
    before = torch.get_rng_state()
    first, again = (float(mutual_information(bimodal(), seed=2)) for _ in range(2))
    assert first == again
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: mutual_information([0.5, 0.5]), r"\[..., I, J\]"),
        (lambda: mutual_information(torch.ones(2, 2)), "sum to 1"),
        (lambda: mutual_information(Normal(0.0, 1.0)), "over vectors"),
        (lambda: mutual_information(Wishart(torch.tensor(3.0), torch.eye(2))), "over vectors"),
        (lambda: mutual_information(MultivariateNormal(torch.zeros(3), torch.eye(3))), "block must give"),
        (lambda: mutual_information(correlated(), block=2), "from 1 to 1"),
        (lambda: mutual_information(correlated(), block=[0, 1]), "block must be"),
        (lambda: mutual_information(correlated(), block=[2]), "block must be"),
        (lambda: mutual_information(Dirichlet(torch.ones(2))), "pass marginals="),
        (lambda: mutual_information(correlated(), marginals=(Normal(0.0, 1.0),)), "two torch distributions"),
        (lambda: mutual_information(correlated(), marginals=(correlated(), Normal(0.0, 1.0))), "x has 1 coordinates"),
    ],
)
def test_bad_arguments_raise(call, words):
    with pytest.raises(InputError, match=words):
        call()
