"""Identities that hold for every conjugate pair."""

from __future__ import annotations

import pytest
import torch

from conjugate.pairs import PAIRS, assert_same_pair, flat, hyperparameters, simulated, unflat
from credo.conjugate import expectation
from credo.seeding import seeded
from credo.testing import simulation_based_calibration

ROWS = 30
STANDARD_ERRORS = 5.0
ROUNDING = 1e-11  # of log probabilities of some tens of nats, and of sums over ROWS rows, in float64

every_pair = pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=ROUNDING, atol=ROUNDING)


@every_pair
def test_sequential_updates_equal_one_batch_in_any_order(pair):
    _, data = simulated(pair, ROWS)
    whole = pair.update(data)
    one_by_one = pair
    for row in data:
        one_by_one = one_by_one.update(row[None])
    assert_same_pair(one_by_one, whole, ROUNDING)
    assert_same_pair(pair.update(data[20:]).update(data[:20]), whole, ROUNDING)
    assert_same_pair(pair.update(data.flip(0)), whole, ROUNDING)


@every_pair
def test_log_evidence_satisfies_the_chain_rule(pair):
    _, data = simulated(pair, ROWS)
    close(pair.log_evidence(data[:11]) + pair.update(data[:11]).log_evidence(data[11:]), pair.log_evidence(data))


@every_pair
def test_log_evidence_is_sum_of_one_step_predictions(pair):
    _, data = simulated(pair, ROWS)
    steps = [pair.update(data[:n]).predictive.log_prob(data[n]) for n in range(ROWS)]
    close(torch.stack(steps).sum(), pair.log_evidence(data))


@every_pair
def test_log_evidence_satisfies_bayes_rule_at_any_parameters(pair):
    _, data = simulated(pair, ROWS)
    after = pair.update(data)
    for seed in range(3):
        parameters, _ = simulated(after, 1, seed=seed)
        likelihood = pair.likelihood(parameters).log_prob(data).sum()
        close(
            pair.posterior.log_prob(parameters) + likelihood - after.posterior.log_prob(parameters),
            pair.log_evidence(data),
        )


@every_pair
def test_update_without_data_returns_the_prior(pair):
    assert_same_pair(pair.update([]), pair, ROUNDING)
    close(pair.log_evidence([]), torch.tensor(0.0, dtype=torch.float64))
    assert_same_pair(pair.update(simulated(pair, 1)[1][:0]), pair, ROUNDING)


@every_pair
def test_update_does_not_modify_the_pair(pair):
    before = {name: value.clone() for name, value in hyperparameters(pair).items()}
    pair.update(simulated(pair, ROWS)[1])
    assert all(torch.equal(value, before[name]) for name, value in hyperparameters(pair).items())
    with pytest.raises(AttributeError):
        setattr(pair, next(iter(before)), 1.0)


@every_pair
def test_posterior_draws_have_posterior_mean(pair):
    belief = pair.update(simulated(pair, ROWS)[1]).posterior
    estimate = expectation(flat, belief, samples=20_000, seed=0)
    assert ((estimate.value - flat(belief.mean)).abs() <= STANDARD_ERRORS * estimate.standard_error).all()


@every_pair
def test_predictive_is_likelihood_averaged_over_posterior(pair):
    belief = pair.update(simulated(pair, ROWS)[1])
    _, new = simulated(pair, 5, seed=1)
    for x in new:
        averaged = expectation(
            lambda parameters, x=x: belief.likelihood(parameters).log_prob(x).exp(), belief.posterior, seed=0
        )
        error = (averaged.value - belief.predictive.log_prob(x).exp()).abs()
        assert error <= STANDARD_ERRORS * averaged.standard_error


@every_pair
def test_predictive_draws_have_predictive_moments(pair):
    predictive = pair.update(simulated(pair, ROWS)[1]).predictive
    if predictive.mean.isnan().any():  # labels have no mean
        return
    center = predictive.mean
    moments = expectation(lambda x: torch.stack([x - center, (x - center) ** 2], 1), predictive, samples=50_000, seed=0)
    expected = torch.stack([torch.zeros_like(center), predictive.variance])
    assert ((moments.value - expected).abs() <= STANDARD_ERRORS * moments.standard_error).all()


@every_pair
def test_posterior_concentrates_on_true_parameters(pair):
    parameters, data = simulated(pair, 2000)
    with seeded(0, torch.device("cpu")):
        draws = flat(pair.update(data).posterior.sample((1000,)))
    z = (draws.mean(0) - flat(parameters)) / draws.std(0)
    assert z.abs().max() < STANDARD_ERRORS


@every_pair
def test_log_evidence_is_differentiable_in_hyperparameters(pair):
    _, data = simulated(pair, ROWS)
    given = {name: value.clone().requires_grad_() for name, value in hyperparameters(pair).items()}
    others = {"trials": pair.trials} if hasattr(pair, "trials") else {}
    type(pair)(**given, **others).log_evidence(data).backward()
    assert all(value.grad is not None and value.grad.isfinite().all() for value in given.values())


@every_pair
def test_repr_can_be_evaluated(pair):
    assert_same_pair(eval(repr(pair), {type(pair).__name__: type(pair)}), pair, 1e-5)


PARAMETERS = 1 + 1 + 4 + 3 + 1 + 1 + 2 + 2 + 9
LEVEL = 0.01 / PARAMETERS  # Bonferroni over all parameters of all pairs


def ranks_of(pair, update):
    return simulation_based_calibration(
        lambda _: flat(pair.posterior.sample()).reshape(-1),
        lambda theta, _: pair.likelihood(unflat(pair, theta)).sample((10,)),
        lambda data, n, _: flat(update(data).posterior.sample((n,))).reshape(n, -1),
        simulations=500,
    )


@every_pair
def test_posterior_is_calibrated(pair):
    assert ranks_of(pair, pair.update).p_values().min() > LEVEL


def test_number_of_parameters_matches_bonferroni_correction():
    assert sum(flat(pair.posterior.mean).numel() for pair in PAIRS.values()) == PARAMETERS


@every_pair
def test_calibration_detects_data_counted_twice(pair):
    assert ranks_of(pair, lambda data: pair.update(data).update(data)).p_values().min() < LEVEL
