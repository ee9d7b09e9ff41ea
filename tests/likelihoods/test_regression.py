"""Likelihoods of real targets: the noise scale."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import distributions as D

from credo.likelihoods import (
    Categorical,
    Gaussian,
    StudentT,
)


def test_trap_07_noise_is_a_standard_deviation() -> None:
    n, torch_seed = 100_000, 0
    zero = torch.zeros(1, n)
    for likelihood, std in [
        (Gaussian(0.2), 0.2),
        (Gaussian("learned", initial=0.2), 0.2),
        (StudentT(10.0, 0.2), 0.2 * math.sqrt(10 / 8)),
    ]:
        p = likelihood.predictive(zero)
        torch.testing.assert_close(p.std, torch.full((n,), std))
        # the sample std has relative standard error √((κ − 1)/4n), κ the kurtosis: 3, and 4 for t with 10 degrees
        error = 5 * math.sqrt(3 / (4 * n))
        assert float(p.sample(1, seed=torch_seed).std()) == pytest.approx(std, rel=error)
    hetero = Gaussian("heteroscedastic").predictive(torch.tensor([[[0.0, math.log(0.04)]]]))
    torch.testing.assert_close(hetero.std, torch.tensor([[0.2]]))


def test_learned_noise_converges_to_the_root_mean_square() -> None:
    torch.manual_seed(0)
    output, y = torch.randn(50, 2, dtype=torch.float64), torch.randn(50, 2, dtype=torch.float64)
    rms = (output - y).square().mean(0).sqrt()
    likelihood = Gaussian("learned", outputs=2).double()
    with torch.no_grad():
        likelihood.log_scale.copy_(rms.log())
    likelihood.log_prob(output, y).sum().backward()
    # the gradient is Σ(z² − 1), 50 terms of order 1 that cancel
    torch.testing.assert_close(likelihood.log_scale.grad, torch.zeros(2, dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(likelihood.scale, rms)


def test_heteroscedastic_network_outputs_mean_and_log_variance() -> None:
    torch.manual_seed(0)
    mean, log_variance, y = torch.randn(3, 6, 2, 4, dtype=torch.float64)
    for dim in (1, -1):
        output = torch.cat([mean, log_variance], dim)
        expected = D.Normal(mean, (0.5 * log_variance).exp()).log_prob(y).sum((1, 2))
        torch.testing.assert_close(Gaussian("heteroscedastic", output_dim=dim).log_prob(output, y), expected)
    extreme = Gaussian("heteroscedastic").log_prob(torch.tensor([[0.0, -150.0]]), torch.tensor([[0.0]]))
    torch.testing.assert_close(extreme, torch.tensor([75 - 0.5 * math.log(2 * math.pi)]))


def test_noise_per_output_uses_output_dim() -> None:
    torch.manual_seed(0)
    output, y = torch.randn(2, 5, 2, 3, dtype=torch.float64)
    scale = torch.tensor([0.1, 2.0])
    expected = D.Normal(output, scale.double()[:, None]).log_prob(y).sum((1, 2))
    torch.testing.assert_close(Gaussian(scale, output_dim=1).log_prob(output, y), expected)
    learned = Gaussian("learned", initial=2.0, outputs=3)
    assert learned.log_scale is not None
    assert learned.log_scale.shape == (3,)
    torch.testing.assert_close(
        learned.log_prob(output, y), D.Normal(output, 2.0).log_prob(y).sum((1, 2)), rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("df", [0.5, 4.0, 99.9, 100.1, 1e4, 1e7])
def test_student_t_is_accurate_for_any_degrees_of_freedom(df: float) -> None:
    y = torch.linspace(-5, 5, 11)
    expected = stats.t.logpdf(y.numpy().astype(float), df)
    log_p = StudentT(df, 1.0).log_prob(torch.zeros(11), y)
    # Below 100 degrees two lgamma of at most 150 are subtracted in float32: a rounding of about 150 · 1.2e-7.
    np.testing.assert_allclose(log_p.numpy(), expected, atol=2e-5, rtol=2e-6)
    exact = StudentT(df, 1.0).log_prob(torch.zeros(11, dtype=torch.float64), y.double())
    np.testing.assert_allclose(exact.numpy(), expected, atol=1e-8 if df > 1e6 else 1e-11)  # scipy cancels there


def test_numpy_numbers_are_accepted() -> None:
    assert Gaussian(torch.tensor(0.5)).get_config()["noise"] == 0.5
    assert Gaussian(np.float32(0.5)).get_config()["noise"] == 0.5
    assert Gaussian(np.array([0.5, 0.25])).get_config()["noise"] == [0.5, 0.25]  # type: ignore[arg-type]
    assert json.dumps(Categorical(class_dim=np.int64(1)).get_config())  # type: ignore[arg-type]
