"""Scores of uncertainty equal their definitions, computed by loops from the draws."""

from __future__ import annotations

import math

import pytest
import torch

import credo
from credo import metrics
from credo.decisions import out_of_distribution, uncertainty
from credo.errors import InputError, UnsupportedError
from credo.predictive import ClassPredictive, ExactGaussianPredictive, Predictive


def categorical(draws: int = 7, rows: int = 5, classes: int = 3, seed: int = 0) -> ClassPredictive:
    logits = 2.0 * torch.randn(draws, rows, classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    p = credo.Categorical().predictive(logits)
    assert isinstance(p, ClassPredictive)
    return p


def entropy(probabilities: list[float]) -> float:
    return -sum(q * math.log(q) for q in probabilities if q > 0)


def test_bald_is_the_entropy_of_the_mean_less_the_mean_entropy() -> None:
    p = categorical()
    for b, score in enumerate(uncertainty(p, "mutual_information").tolist()):
        draws = p.draws[:, b].tolist()
        mean = [sum(draw[c] for draw in draws) / len(draws) for c in range(3)]
        assert score == pytest.approx(entropy(mean) - sum(map(entropy, draws)) / len(draws), abs=1e-12)


def test_scores_of_classes_equal_their_definitions() -> None:
    p = categorical()
    mean = p.draws.mean(0)
    expected = {
        "entropy": torch.tensor([entropy(row) for row in mean.tolist()], dtype=torch.float64),
        "variation_ratio": 1 - mean.max(-1).values,
        "variance": p.draws.var(0, correction=0).sum(-1),
    }
    for score, values in expected.items():
        torch.testing.assert_close(uncertainty(p, score), values, atol=1e-12, rtol=0)


@pytest.mark.parametrize("score", ["entropy", "mutual_information", "variation_ratio", "variance"])
def test_a_bernoulli_has_the_scores_of_two_classes(score: str) -> None:
    logits = torch.randn(6, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    two = credo.Categorical().predictive(torch.stack([torch.zeros_like(logits), logits], -1))
    torch.testing.assert_close(uncertainty(credo.Bernoulli().predictive(logits), score), uncertainty(two, score))


def test_weights_of_draws_count_as_repetitions() -> None:
    """One draw of weight 1/2 beside two of weight 1/4 is the same as four draws, the first one twice."""
    p = categorical(3)
    weighted = Predictive.mixture([p[:], categorical(3)])  # same draws: uniform over 6, still the same mixture
    for score in ("entropy", "mutual_information", "variation_ratio", "variance"):
        torch.testing.assert_close(uncertainty(weighted, score), uncertainty(p, score))
    logits = p.components.parameter
    double = credo.Categorical().predictive(logits[[0, 0, 1, 2]])
    mixed = Predictive.mixture([credo.Categorical().predictive(logits[:1]), credo.Categorical().predictive(logits[1:])])
    for score in ("entropy", "mutual_information", "variation_ratio", "variance"):
        torch.testing.assert_close(uncertainty(mixed, score), uncertainty(double, score))


def test_variance_of_real_targets_is_epistemic_and_outputs_are_added() -> None:
    exact = ExactGaussianPredictive.of(torch.zeros(3), torch.tensor([1.0, 2.0, 3.0]), noise=5.0)
    torch.testing.assert_close(uncertainty(exact, "variance"), torch.tensor([1.0, 2.0, 3.0]))
    p = credo.Gaussian(noise=0.5).predictive(torch.randn(9, 4, 2, generator=torch.Generator().manual_seed(0)))
    torch.testing.assert_close(uncertainty(p, "variance"), p.draws.var(0, correction=0).sum(1))
    torch.testing.assert_close(uncertainty(p, "mutual_information"), p.mutual_information.sum(1))


def test_out_of_distribution_is_the_detection_by_the_score() -> None:
    inside, outside = categorical(rows=40), categorical(rows=30, seed=3)
    found = out_of_distribution(inside, outside, "mutual_information")
    low, high = inside.mutual_information, outside.mutual_information
    assert found == metrics.Detection(metrics.auroc(low, high), metrics.aupr(low, high), metrics.fpr95(low, high))
    assert out_of_distribution(inside, inside).auroc == pytest.approx(0.5)
    with pytest.raises(InputError, match="same kind"):
        out_of_distribution(inside, credo.Gaussian(0.1).predictive(torch.zeros(2, 4, 1)))


def test_wrong_arguments_are_sentences() -> None:
    real = credo.Gaussian(noise=0.5).predictive(torch.zeros(2, 3, 1))
    with pytest.raises(InputError, match="did you mean 'mutual_information'"):
        uncertainty(real, "mutual_informaton")
    with pytest.raises(InputError, match="must be a Predictive"):
        uncertainty(torch.zeros(3))  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="classes only"):
        uncertainty(real, "variation_ratio")
