"""Temperature scaling against known temperatures, identities and the entropy split."""

from __future__ import annotations

import math

import pytest
import torch

from credo.calibration import TemperatureScaling
from credo.calibration.scaling import negative_log_likelihood
from credo.errors import InputError
from credo.likelihoods import Bernoulli, Categorical
from credo.predictive import Predictive

from .cases import F64, curvature, labeled


def fitted(p: Predictive, y: torch.Tensor) -> float:
    temperature = TemperatureScaling().fit(p, y).temperature
    assert temperature is not None
    return temperature


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("draws", [1, 5])
def test_known_temperature_is_recovered(temperature: float, draws: int) -> None:
    p, y = labeled(temperature, rows=3000, draws=draws)
    found = fitted(p, y)
    information = curvature(lambda t: negative_log_likelihood(TemperatureScaling(t)(p), y), found)
    # the prior pulls log T towards 0 by log T/information
    tolerance = 5 / math.sqrt(information) + abs(math.log(temperature)) / information
    assert abs(math.log(found / temperature)) < tolerance < 0.3


def test_temperature_is_a_minimum_and_improves_new_rows() -> None:
    p, y = labeled(3.0, rows=1000)
    calibrator = TemperatureScaling().fit(p, y)
    best = calibrator.temperature
    assert best is not None
    objective = [
        negative_log_likelihood(TemperatureScaling(best * f)(p), y) + 0.5 * math.log(best * f) ** 2
        for f in (0.999, 1.0, 1.001)
    ]
    assert objective[1] < min(objective[0], objective[2])
    new, labels = labeled(3.0, rows=1000, seed=10)
    gain = calibrator(new).log_prob(labels) - new.log_prob(labels)
    assert float(gain.mean()) > 5 * float(gain.std()) / math.sqrt(1000)


def test_every_draw_is_tempered_and_the_split_stays_valid() -> None:
    p, _ = labeled(1.0, rows=20)
    hot = TemperatureScaling(2.0)(p)
    torch.testing.assert_close(hot.draws, (p.draws.log() / 2).softmax(-1))
    torch.testing.assert_close(hot.entropy, hot.aleatoric + hot.epistemic)
    torch.testing.assert_close(TemperatureScaling(1.0)(p).draws, p.draws)
    assert type(hot) is type(p)


def test_images_are_tempered_along_the_class_dimension() -> None:
    g = torch.Generator().manual_seed(0)
    outputs = 4 * torch.randn(3, 12, 5, 2, 2, generator=g, dtype=F64)
    y = torch.randint(5, (12, 2, 2), generator=g)
    images = Categorical(class_dim=1).predictive(outputs)
    rows = Categorical().predictive(outputs.movedim(2, -1).reshape(3, 48, 5))
    assert fitted(images, y) == pytest.approx(fitted(rows, y.flatten()), rel=1e-5)
    torch.testing.assert_close(TemperatureScaling(2.0)(images).mean.sum(1), torch.ones(12, 2, 2, dtype=F64))


def test_ignored_targets_are_left_out() -> None:
    p, y = labeled(2.0, rows=60)
    ignoring = Categorical(ignore_index=-100).predictive(p.components.log_p)  # type: ignore[attr-defined]
    masked = torch.where(torch.arange(60) < 40, y, -100)
    assert fitted(ignoring, masked) == pytest.approx(fitted(p[:40], y[:40]), rel=1e-6)
    with pytest.raises(InputError, match="needs at least 10 held-out rows, got 5"):
        TemperatureScaling().fit(ignoring, torch.where(torch.arange(60) < 5, y, -100))


def test_bernoulli_equals_two_classes() -> None:
    g = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(4, 200, generator=g, dtype=F64)
    y = (torch.rand(200, generator=g) < 0.6).long()
    two = Categorical().predictive(torch.stack([torch.zeros_like(logits), logits], -1))
    coin = Bernoulli().predictive(logits)
    assert fitted(coin, y) == pytest.approx(fitted(two, y), rel=1e-5)
    torch.testing.assert_close(TemperatureScaling(2.0)(coin).mean, TemperatureScaling(2.0)(two).mean[:, 1])


def test_draw_weights_are_used() -> None:
    p, y = labeled(2.0, rows=100, draws=1)
    q, _ = labeled(2.0, rows=100, draws=3, seed=3)
    assert fitted(Predictive.mixture([p, q]), y) == pytest.approx(
        fitted(Predictive.mixture([Predictive.mixture([p, p, p]), q]), y), rel=1e-6
    )


def test_temperature_is_moderate_without_a_likelihood_optimum() -> None:
    p, _ = labeled(1.0, rows=100)
    right = fitted(p, p.mode)  # without the prior, 0
    assert 0.1 < right < 1
    worst = p.mean.argmin(-1)  # without the prior, infinite
    assert 1 < fitted(p, worst) < 50


def test_impossible_targets_raise() -> None:
    logits = torch.zeros(2, 20, 3)
    logits[:, 4, 1] = -math.inf
    p = Categorical().predictive(logits)
    assert fitted(p, torch.zeros(20).long()) > 0
    with pytest.raises(InputError, match="probability 0 under every draw"):
        TemperatureScaling().fit(p, torch.ones(20).long())
