"""Predictions of classes."""

from __future__ import annotations

import math

import pytest
import torch
from torch import distributions as D

from credo.errors import UnsupportedError
from credo.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood

from .cases import CLASSES, prediction


def test_impossible_classes_have_finite_entropy() -> None:
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


def test_class_dim_is_used() -> None:
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


def test_ignored_targets_and_class_weights_in_predictions() -> None:
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


@pytest.mark.parametrize("likelihood", CLASSES, ids=str)
def test_classes_have_no_quantiles(likelihood: Likelihood) -> None:
    p = prediction(likelihood)
    for call in (lambda: p.quantile(0.5), lambda: p.interval(0.9), lambda: p.cdf(torch.zeros(4))):
        with pytest.raises(UnsupportedError, match="classes have no order"):
            call()
    with pytest.raises(UnsupportedError, match="mean or quantile"):
        _ = prediction(Gaussian(0.1)).mode
