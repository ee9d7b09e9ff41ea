"""``partial_fit`` updates the posterior, including that of the noise."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import credo
from credo import metrics

NEAR_THE_CURVE = np.array([[0.5], [-0.5]]), np.array([0.52, -0.49])


def unit_noise(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """y = x + N(0, 1)."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2.0, 2.0, (rows, 1))
    return x, x[:, 0] + rng.normal(0.0, 1.0, rows)


def noise_of(model: credo.Regressor) -> float:
    """σ in the middle of the data, root mean square."""
    return float(model.predict_dist(np.linspace(-1.5, 1.5, 31)[:, None]).aleatoric.mean().sqrt())


@pytest.mark.parametrize("noise", ["learned", "heteroscedastic"])
def test_two_further_rows_do_not_lower_the_noise(noise):
    x, y = unit_noise(150)
    model = credo.Regressor(noise=noise, epochs=200, random_state=0).fit(x, y)
    before = noise_of(model)
    assert 0.8 < before < 1.2  # the standard error of σ from 150 rows is 6 %
    model.partial_fit(*NEAR_THE_CURVE)
    # two residuals of 0 among 152 would lower σ by 0.7 %; a draw of 100 knows it to 1 %
    assert noise_of(model) == pytest.approx(before, rel=0.05)
    x, y = unit_noise(2000, seed=1)
    assert metrics.coverage(model.predict_dist(x), torch.tensor(y)) > 0.92


@pytest.mark.slow
def test_every_call_updates_the_noise_posterior():
    """As many residuals of 0 as there were rows halve σ²; their precision adds up, four at a time."""
    x, y = unit_noise(40)
    model = credo.Regressor(hidden=(), epochs=800, random_state=0).fit(x, y)
    name = "constants.weight"
    before = noise_of(model)
    scale = model.model_.posterior.scale()[name].item()
    assert scale == pytest.approx(np.sqrt(2.0 / 40.0), rel=0.15)  # of log σ², from n rows: √(2/n)
    model.set_params(epochs=40)
    four = np.array([[-1.5], [-0.5], [0.5], [1.5]])
    for _ in range(10):
        model.partial_fit(four, model.predict(four))
    assert noise_of(model) == pytest.approx(before / np.sqrt(2.0), rel=0.15)
    assert model.model_.posterior.scale()[name].item() < 0.85 * scale


def test_parameters_without_a_posterior_are_unchanged():
    x, y = unit_noise(60)
    model = credo.Regressor(epochs=50, method_options={"bayesian": "layers.0.*"}, random_state=0).fit(x, y)
    bayesian = model.model_.posterior.names()
    assert sorted(bayesian) == ["constants.weight", "layers.0.bias", "layers.0.weight"]
    plain = {name: p for name, p in model.model_.net.named_parameters() if name not in bayesian}
    before = {name: parameter.detach().clone() for name, parameter in plain.items()}
    model.partial_fit(*NEAR_THE_CURVE).partial_fit(*NEAR_THE_CURVE)
    for name, value in before.items():
        torch.testing.assert_close(model.model_.net.get_parameter(name).detach(), value, rtol=1e-6, atol=0.0)
