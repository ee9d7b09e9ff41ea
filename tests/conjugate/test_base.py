"""Hyperparameters and data: accepted forms and errors."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from conjugate.pairs import PAIRS, assert_same_pair, hyperparameters
from credo.conjugate import (
    BetaBernoulli,
    BetaBinomial,
    DirichletCategorical,
    DirichletMultinomial,
    GammaPoisson,
    NormalGamma,
    NormalKnownCovariance,
    NormalKnownVariance,
    NormalWishart,
)
from credo.errors import InputError

EYE = torch.eye(2)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: BetaBernoulli(0.0, 1.0), "a must be positive, got 0.0"),
        (lambda: BetaBernoulli(1.0, float("nan")), "b must be finite"),
        (lambda: BetaBernoulli("one", 1.0), "a must be numbers"),
        (lambda: BetaBernoulli([1.0, 2.0], [1.0, 2.0, 3.0]), r"broadcast, got a \[2\], b \[3\]"),
        (lambda: BetaBinomial(1.0, 1.0, trials=0), "trials must be an integer of at least 1, got 0"),
        (lambda: BetaBinomial(1.0, 1.0, trials=2.5), "got 2.5"),
        (lambda: BetaBinomial(1.0, 1.0, trials=True), "got True"),
        (lambda: DirichletCategorical(1.0), "one number per class"),
        (lambda: DirichletCategorical([1.0, 0.0]), "concentration must be positive"),
        (lambda: DirichletMultinomial([1.0, 1.0], trials=-1), "got -1"),
        (lambda: GammaPoisson(1.0, -2.0), "rate must be positive"),
        (lambda: NormalKnownVariance(0.0, 1.0, 0.0), "noise_variance must be positive"),
        (lambda: NormalGamma(0.0, 0.0, 1.0, 1.0), "mean_precision must be positive"),
        (lambda: NormalKnownCovariance(0.0, EYE, EYE), r"mean must be a vector \[D\]"),
        (lambda: NormalKnownCovariance([0.0], EYE, [[1.0]]), r"covariance must have shape \[1, 1\], got \[2, 2\]"),
        (lambda: NormalKnownCovariance([0.0, 0.0], [[1.0, 2.0], [0.0, 1.0]], EYE), "symmetric"),
        (
            lambda: NormalKnownCovariance([0.0, 0.0], EYE, torch.ones(2, 2)),
            "noise_covariance must be symmetric and pos",
        ),
        (lambda: NormalWishart([0.0, 0.0], 1.0, 1.0, EYE), "degrees_of_freedom must be above D - 1 = 1, got 1"),
        (lambda: NormalWishart([0.0, 0.0], [1.0, 2.0], 3.0, EYE), "mean_precision must be one number"),
    ],
)
def test_bad_hyperparameters_raise(call, words):
    with pytest.raises(InputError, match=words):
        call()


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("beta-bernoulli", 1, "got 1: put it in a list"),
        ("beta-bernoulli", [2], "integers from 0 to 1, got 2"),
        ("beta-bernoulli", [0.5], "got 0.5"),
        ("beta-bernoulli", [[1, 0]], r"shape \[N\], got \[1, 2\]"),
        ("beta-bernoulli", ["heads"], "data must be numbers"),
        ("beta-bernoulli", [float("nan")], "finite"),
        ("beta-binomial", [8], "from 0 to 7, got 8"),
        ("dirichlet-categorical", [4], "from 0 to 3, got 4"),
        ("dirichlet-categorical", [-1], "from 0 to 3, got -1"),
        ("dirichlet-multinomial", [[1, 1, 1]], "sum to 5 trials"),
        ("dirichlet-multinomial", [[6, -1, 0]], "at least 0, got -1"),
        ("dirichlet-multinomial", [[5, 0]], r"shape \[N, 3\], got \[1, 2\]"),
        ("gamma-poisson", [-1], "at least 0, got -1"),
        ("normal-known-variance", [float("inf")], "finite"),
        ("normal-known-covariance", [[1.0]], r"shape \[N, 2\], got \[1, 1\]"),
        ("normal-gamma", [None], "finite"),
        ("normal-wishart", [1.0, 2.0, 3.0], r"shape \[N, 3\], got \[3\]"),
        ("normal-wishart", [[1.0, 2.0, float("nan")]], "finite"),
    ],
)
def test_bad_data_raise_in_update_and_log_evidence(name, data, words):
    for call in (PAIRS[name].update, PAIRS[name].log_evidence):
        with pytest.raises(InputError, match=words):
            call(data)


@pytest.mark.parametrize("make", [list, tuple, np.array, torch.tensor, pd.Series, lambda v: torch.tensor(v).bool()])
def test_data_may_be_lists_arrays_tensors_or_series(make):
    assert_same_pair(BetaBernoulli(1, 1).update(make([1, 0, 1])), BetaBernoulli(3, 2), 0.0)


def test_data_frames_are_read_by_row():
    frame = pd.DataFrame({"a": [1.0, 2.0], "b": [0.0, 1.0]})
    pair = NormalWishart([0.0, 0.0], 1, 3, EYE)
    assert_same_pair(pair.update(frame), pair.update(frame.to_numpy()), 0.0)


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_hyperparameters_are_float64(pair):
    assert {value.dtype for value in hyperparameters(pair).values()} == {torch.float64}
    assert pair.predictive.sample((3,)).shape[0] == 3
