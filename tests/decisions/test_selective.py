"""The error rate of accepted rows stays below the promised one, as often as promised."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import binom
from torch import Tensor

import credo
from credo.decisions import SelectivePredictor
from credo.decisions.selective import _ranks, _upper_bound
from credo.errors import InputError
from credo.predictive import Predictive


def binary(probability: Tensor) -> Predictive:
    """A prediction of class 1 with the given probabilities, by one draw."""
    return credo.Bernoulli().predictive(probability.logit()[None])


def simulate(n: int, stream: torch.Generator, rounding: float | None = None) -> tuple[Predictive, Tensor]:
    """Predictions of confidence c ~ U(½, 1) that are right with probability c, rounded to make ties if asked."""
    confidence = 0.5 + 0.5 * torch.rand(n, generator=stream, dtype=torch.float64).clamp(1e-6, 1 - 1e-6)
    right = torch.rand(n, generator=stream, dtype=torch.float64) < confidence
    if rounding is not None:
        confidence = (confidence / rounding).floor() * rounding + rounding / 2
    return binary(confidence), right.long()


def true_risk(threshold: float) -> float:
    """E[1 − c | u < t] of u = 1 − c ~ U(0, ½), which is t/2."""
    return min(threshold, 0.5) / 2


@pytest.mark.parametrize(("n", "delta"), [(200, 0.2), (1000, 0.1)])
def test_the_guarantee_holds_in_simulation(n: int, delta: float) -> None:
    """In 400 repetitions the true risk of the accepted rows exceeds r in a fraction δ at most.

    The risk is known in closed form. Tolerance: 3 standard errors √(δ(1 − δ)/400) above δ.
    """
    stream, repetitions = torch.Generator().manual_seed(0), 400
    failures, accepted = 0, 0.0
    for _ in range(repetitions):
        selective = SelectivePredictor(0.1, delta, "variation_ratio").fit(*simulate(n, stream))
        assert selective.threshold is not None
        failures += true_risk(selective.threshold) > 0.1
        accepted += selective.coverage / repetitions
    assert failures / repetitions <= delta + 3 * math.sqrt(delta * (1 - delta) / repetitions)
    # the true risk of 0.1 is reached at a coverage of 0.4
    assert 0.0 < accepted < 0.4


def test_the_guarantee_is_not_far_from_tight() -> None:
    """If all thresholds have the risk r + 10⁻⁶, every acceptance is a failure; one of five bounds fails with ≥ δ/10.

    A single Clopper–Pearson bound fails with probability close to δ/5, less by the steps of the binomial distribution,
    and the bounds of nested rows are dependent; together they fail in at most δ of 500 repetitions (3 standard
    errors) and in at least δ/10.
    """
    stream, delta, repetitions = torch.Generator().manual_seed(4), 0.2, 500
    p = binary(torch.linspace(0.51, 0.99, 400, dtype=torch.float64))
    failures = 0
    for _ in range(repetitions):
        y = (torch.rand(400, generator=stream, dtype=torch.float64) >= 0.1 + 1e-6).long()
        failures += SelectivePredictor(0.1, delta, levels=5).fit(p, y).coverage > 0
    assert failures / repetitions <= delta + 3 * math.sqrt(delta * (1 - delta) / repetitions)
    assert failures / repetitions >= delta / 10


def test_the_guarantee_holds_for_ties() -> None:
    """With five distinct uncertainties; the true risk of u < t is that of the bins below t, again in closed form."""
    stream, delta, repetitions = torch.Generator().manual_seed(1), 0.2, 300
    failures = 0
    for _ in range(repetitions):
        selective = SelectivePredictor(0.1, delta, "variation_ratio").fit(*simulate(300, stream, rounding=0.1))
        assert selective.threshold is not None
        bins = sum(0.05 + 0.1 * k < selective.threshold - 1e-9 for k in range(5))
        failures += true_risk(0.1 * bins) > 0.1 if bins else False
    assert failures / repetitions <= delta + 3 * math.sqrt(delta * (1 - delta) / repetitions)


def test_a_useless_score_accepts_all_or_nothing() -> None:
    """With 20 % errors everywhere, a risk of 10 % cannot be had and one of 30 % costs nothing."""
    stream = torch.Generator().manual_seed(2)
    p = binary(torch.rand(2000, generator=stream, dtype=torch.float64).clamp(0.01, 0.99))
    wrong = torch.rand(2000, generator=stream, dtype=torch.float64) < 0.2
    y = torch.where(wrong, 1 - p.mode, p.mode)
    none, everything = (SelectivePredictor(risk).fit(p, y) for risk in (0.1, 0.3))
    assert none.threshold == -math.inf
    assert not none.accept(p).any()
    assert (none.coverage, math.isnan(none.bound)) == (0.0, True)
    assert everything.threshold == math.inf
    assert everything.accept(p).all()
    assert everything.coverage == 1.0


def test_accepted_rows_of_the_calibration_set_are_those_counted() -> None:
    p, y = simulate(1000, torch.Generator().manual_seed(3))
    selective = SelectivePredictor(0.2, 0.1).fit(p, y)
    accepted = selective.accept(p)
    assert float(accepted.double().mean()) == selective.coverage
    errors = (p.mode[accepted] != y[accepted]).sum()
    assert selective.bound == float(_upper_bound(errors[None], accepted.sum()[None], 0.1 / 20))
    assert selective.bound <= 0.2


@pytest.mark.parametrize(("errors", "n"), [(0, 10), (3, 50), (49, 50)])
def test_the_bound_is_where_the_binomial_tail_is_delta(errors: int, n: int) -> None:
    counts = torch.tensor([errors, n, 0]), torch.tensor([n, n, 0])
    bound, all_wrong, no_rows = _upper_bound(*counts, 0.01).tolist()
    assert binom.cdf(errors, n, bound) == pytest.approx(0.01, rel=1e-6)
    assert all_wrong == no_rows == 1.0


def test_ranks_end_with_all_rows() -> None:
    assert _ranks(100, 4) == [100, 75, 50, 25]
    assert _ranks(3, 10) == [3, 2, 1]


def test_targets_to_ignore_are_left_out() -> None:
    generator = torch.Generator().manual_seed(0)
    outputs = 3.0 * torch.randn(5, 300, 3, generator=generator)
    y = outputs.mean(0).argmax(-1)
    ignored = torch.rand(300, generator=generator) < 0.5
    likelihood = credo.Categorical(ignore_index=-1)
    found = SelectivePredictor(0.1).fit(likelihood.predictive(outputs), y.masked_fill(ignored, -1))
    expected = SelectivePredictor(0.1).fit(likelihood.predictive(outputs[:, ~ignored]), y[~ignored])
    assert (found.threshold, found.coverage, found.bound) == (expected.threshold, expected.coverage, expected.bound)
    with pytest.raises(InputError, match="at least one row with a target"):
        SelectivePredictor().fit(likelihood.predictive(outputs), torch.full_like(y, -1))


def test_a_row_of_several_targets_is_left_out_if_all_of_them_are_to_ignore() -> None:
    generator = torch.Generator().manual_seed(0)
    outputs = 3.0 * torch.randn(5, 300, 4, 3, generator=generator)
    y = outputs.mean(0).argmax(-1)
    y = y.masked_fill(torch.rand(300, 4, generator=generator) < 0.5, -1)
    likelihood = credo.Categorical(ignore_index=-1)

    def any_wrong(p: Predictive, y: Tensor) -> Tensor:
        return ((p.mode != y) & (y != -1)).any(1)

    counted = (y != -1).any(1)
    assert 0 < int(counted.sum()) < 300
    found = SelectivePredictor(0.5, error=any_wrong).fit(likelihood.predictive(outputs), y)
    expected = SelectivePredictor(0.5, error=any_wrong).fit(likelihood.predictive(outputs[:, counted]), y[counted])
    assert (found.threshold, found.coverage, found.bound) == (expected.threshold, expected.coverage, expected.bound)


def test_real_targets_need_a_definition_of_an_error() -> None:
    p = credo.Gaussian(noise=0.1).predictive(torch.randn(20, 500, 1, generator=torch.Generator().manual_seed(0)))
    y = p.mean + 0.01
    with pytest.raises(InputError, match="error must be given for real targets"):
        SelectivePredictor().fit(p, y)
    close = SelectivePredictor(score="variance", error=lambda p, y: (p.mean - y).abs() > 1.0).fit(p, y)
    assert close.coverage == 1.0
    with pytest.raises(InputError, match="one True or False per row"):
        SelectivePredictor(score="variance", error=lambda p, y: p.mean - y).fit(p, y)


def test_wrong_arguments_are_sentences() -> None:
    p, y = simulate(20, torch.Generator().manual_seed(0))
    with pytest.raises(InputError, match="not fitted"):
        SelectivePredictor().accept(p)
    with pytest.raises(InputError, match="risk must be a number between 0 and 1"):
        SelectivePredictor(risk=5)
    with pytest.raises(InputError, match="unknown score"):
        SelectivePredictor(score="doubt")
    with pytest.raises(InputError):
        SelectivePredictor().fit(p, y[:-1])
