"""Estimates, their standard errors and how they are printed."""

from __future__ import annotations

import math

import pytest
import torch

from credo._estimate import Estimate
from credo.errors import InputError


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (0.123456, 0.00421, "0.1235 ± 0.0042"),
        (1234.5, 210.0, "1234 ± 2.1e+02"),
        (1.5, 0.0, "1.5 ± 0"),
        (1e-9, 2e-10, "1e-09 ± 2e-10"),
        (math.inf, 0.0, "inf ± 0"),
        (math.nan, math.nan, "nan ± nan"),
    ],
)
def test_repr_rounds_to_the_standard_error(value, error, text):
    assert repr(Estimate(torch.tensor(value), torch.tensor(error), exact=False)) == text


def test_repr_of_several_estimates():
    estimate = Estimate(torch.tensor([1.0, 2.0]), torch.tensor([0.1, 0.0]), exact=False)
    assert repr(estimate) == "[1.00 ± 0.10, 2 ± 0]"
    assert repr(Estimate.from_exact(torch.tensor(2.0))) == "2"
    assert repr(estimate.sum(1)) == "3.00 ± 0.10"
    with pytest.raises(InputError, match="use its value"):
        float(estimate)


def test_infinite_mean_has_no_standard_error():
    estimate = Estimate.from_samples(torch.tensor([1.0, math.inf]))
    assert (estimate.value, estimate.standard_error) == (math.inf, 0.0)


def test_one_infinite_draw_makes_the_mean_infinite():
    found = Estimate.from_samples(torch.tensor([[1.0, 1.0], [2.0, torch.inf]]))
    assert found.value.tolist() == [1.5, math.inf]
    assert found.standard_error.tolist() == [0.5, 0.0]
