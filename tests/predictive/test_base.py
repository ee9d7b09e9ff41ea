"""The interface of predictions: moments, densities, samples, rows and mixtures."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch import distributions as D

from credo.errors import InputError
from credo.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood, Poisson, StudentT
from credo.predictive import Predictive

from .cases import CLASSES, F64, REAL, assert_same, prediction


@pytest.mark.parametrize("likelihood", REAL, ids=str)
def test_variance_is_aleatoric_plus_epistemic(likelihood: Likelihood) -> None:
    p = prediction(likelihood)
    torch.testing.assert_close(p.variance, p.aleatoric + p.epistemic)
    torch.testing.assert_close(p.std.square(), p.variance)


@pytest.mark.parametrize("likelihood", [*REAL, *CLASSES], ids=str)
def test_one_draw_has_no_epistemic_uncertainty(likelihood: Likelihood) -> None:
    for p in (prediction(likelihood, draws=1), prediction(likelihood, draws=1, spread=50.0)):
        assert bool((p.epistemic == 0).all())
        assert bool((p.mutual_information == 0).all())


@pytest.mark.parametrize(
    ("likelihood", "components"),
    [
        (Gaussian(0.7), lambda f: D.Normal(f, 0.7)),
        (StudentT(3.0, 0.7), lambda f: D.StudentT(3.0, f, 0.7)),
        (Poisson(), lambda f: D.Poisson(f.exp())),
        (Bernoulli(), lambda f: D.Bernoulli(logits=f)),
    ],
    ids=["Gaussian", "StudentT", "Poisson", "Bernoulli"],
)
def test_log_prob_mixes_joint_densities_of_rows(likelihood: Likelihood, components: object) -> None:
    torch.manual_seed(0)
    outputs = torch.randn(6, 3, 2, 2, dtype=F64)
    y = torch.randint(2, (3, 2, 2)).double()
    joint = D.Independent(components(outputs.transpose(0, 1)), 2)  # type: ignore[operator]
    mixture = D.MixtureSameFamily(D.Categorical(torch.ones(3, 6, dtype=F64)), joint)
    torch.testing.assert_close(likelihood.predictive(outputs).log_prob(y), mixture.log_prob(y))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 6), st.floats(0, 30), st.sampled_from([*REAL[:3], *CLASSES]))
def test_mutual_information_lies_between_0_and_log_draws(
    seed: int, draws: int, spread: float, likelihood: Likelihood
) -> None:
    p = prediction(likelihood, draws, 2, seed, spread=min(spread, 5) if isinstance(likelihood, Poisson) else spread)
    assert bool((p.mutual_information >= 0).all())
    assert bool((p.mutual_information <= math.log(draws) + 1e-4).all())


def test_a_sample_lies_on_one_draw() -> None:
    draws = torch.arange(4.0)[:, None] + torch.tensor([0.0, 10.0, 20.0])
    y = Gaussian(1e-4).predictive(draws).sample(4000, seed=0)
    picked = y - torch.tensor([0.0, 10.0, 20.0])
    assert float((picked - picked[:, :1]).abs().max()) < 2e-3  # noise of 1e-4 · √2, 8000 times
    shares = torch.bincount(picked[:, 0].round().long(), minlength=4) / 4000
    assert float((shares - 0.25).abs().max()) < 5 * math.sqrt(0.25 * 0.75 / 4000)


@pytest.mark.parametrize("likelihood", [*REAL, *CLASSES], ids=str)
def test_samples_are_reproducible_and_keep_the_global_state(likelihood: Likelihood) -> None:
    p = prediction(likelihood)
    state = torch.get_rng_state()
    first = p.sample(3, seed=7)
    assert torch.equal(first, p.sample(3, seed=7))
    assert not torch.equal(first, p.sample(3, seed=8))
    assert torch.equal(state, torch.get_rng_state())
    assert not torch.equal(p.sample(20), p.sample(20))
    assert p.sample(0).shape == (0, *first.shape[1:])
    assert p.log_prob(first[0]).shape == (4,)
    with pytest.raises(InputError, match="n must be an integer of at least 0"):
        p.sample(-1)


@pytest.mark.parametrize("likelihood", [*REAL, *CLASSES], ids=str)
def test_rows_are_indexed_as_in_a_tensor(likelihood: Likelihood) -> None:
    p = prediction(likelihood, rows=6)
    assert len(p) == 6
    chosen: list[tuple[object, Tensor]] = [
        (2, torch.tensor([2])),
        (-1, torch.tensor([5])),
        (slice(2, 5), torch.tensor([2, 3, 4])),
        (slice(None, None, -1), torch.arange(5, -1, -1)),
        ([4, 1], torch.tensor([4, 1])),
        (np.array([4, 1]), torch.tensor([4, 1])),
        (torch.tensor([True, False] * 3), torch.tensor([0, 2, 4])),
        ([], torch.tensor([], dtype=torch.long)),
    ]
    for rows, index in chosen:
        part = p[rows]  # type: ignore[index]
        assert len(part) == len(index)
        torch.testing.assert_close(part.draws, p.draws[:, index])
        torch.testing.assert_close(part.aleatoric, p.aleatoric[index])
    assert [len(row) for row in p] == [1] * 6
    with pytest.raises(IndexError):
        p[6]
    for wrong in (torch.tensor([True, False]), (0, 1), 0.5, torch.zeros(2, 2).long()):
        with pytest.raises(InputError, match="row"):
            p[wrong]  # type: ignore[index]


@pytest.mark.parametrize("likelihood", [*REAL, *CLASSES], ids=str)
def test_concatenation_undoes_slicing(likelihood: Likelihood) -> None:
    p = prediction(likelihood, rows=6)
    assert_same(Predictive.concatenate([p[:2], p[2:3], p[3:]]), p)
    with pytest.raises(InputError, match="different numbers of draws"):
        Predictive.concatenate([p, prediction(likelihood, draws=2)])
    with pytest.raises(InputError, match="nothing to join"):
        Predictive.concatenate([])


@pytest.mark.parametrize("likelihood", [*REAL, *CLASSES], ids=str)
def test_mixture_weights_its_parts_equally(likelihood: Likelihood) -> None:
    p = prediction(likelihood, draws=6)
    thirds = [some_draws(p, slice(i, i + 2)) for i in (0, 2, 4)]
    assert_same(Predictive.mixture(thirds), p)
    assert Predictive.mixture(thirds).weights is None
    # one draw mixed with three weighs as much as the three: the same as that draw three times
    one, three = some_draws(p, slice(0, 1)), some_draws(p, slice(1, 4))
    mixed = Predictive.mixture([one, three])
    repeated = Predictive.mixture([Predictive.mixture([one, one, one]), three])
    for name in ("mean", "variance", "aleatoric", "epistemic", "entropy", "mutual_information"):
        torch.testing.assert_close(getattr(mixed, name), getattr(repeated, name), rtol=1e-4, atol=1e-5)
    y = p.sample(1, seed=0)[0]
    torch.testing.assert_close(mixed.log_prob(y), repeated.log_prob(y))
    if likelihood in REAL:
        torch.testing.assert_close(mixed.cdf(y), repeated.cdf(y))
        torch.testing.assert_close(mixed.quantile(0.2), repeated.quantile(0.2))
    assert_same(Predictive.concatenate([mixed[:1], mixed[1:]]), mixed)


@pytest.mark.parametrize("likelihood", [*REAL, *CLASSES], ids=str)
def test_mixture_with_weights(likelihood: Likelihood) -> None:
    """Weights of 1/4 and 3/4 are those of a part and of the other three times."""
    p = prediction(likelihood, draws=4)
    halves = [some_draws(p, slice(0, 2)), some_draws(p, slice(2, 4))]
    mixed = Predictive.mixture(halves, torch.tensor([0.25, 0.75], dtype=torch.float64))
    repeated = Predictive.mixture([halves[0], *[halves[1]] * 3])
    for name in ("mean", "variance", "aleatoric", "epistemic", "entropy", "mutual_information"):
        torch.testing.assert_close(getattr(mixed, name), getattr(repeated, name), rtol=1e-4, atol=1e-5)
    y = p.sample(1, seed=0)[0]
    torch.testing.assert_close(mixed.log_prob(y), repeated.log_prob(y))


@pytest.mark.parametrize("likelihood", [*REAL, *CLASSES], ids=str)
def test_parts_with_different_weights_are_joined_by_repeated_draws(likelihood: Likelihood) -> None:
    """Weights that are multiples of 1/400 stay exactly as they are."""
    p = prediction(likelihood, draws=2)
    each = [some_draws(p, slice(0, 1)), some_draws(p, slice(1, 2))]
    first, second = (Predictive.mixture(each, torch.tensor([w, 1 - w], dtype=torch.float64)) for w in (0.25, 0.6))
    joined = Predictive.concatenate([first, second])
    assert joined.n_draws == 400
    assert joined.weights is None
    expected = torch.cat([first.mean, second.mean])
    torch.testing.assert_close(joined.mean, expected, rtol=1e-4, atol=1e-5)
    y = p.sample(1, seed=0)[0]
    found = joined.log_prob(torch.cat([y, y]))
    torch.testing.assert_close(found, torch.cat([first.log_prob(y), second.log_prob(y)]), rtol=1e-4, atol=1e-4)


def some_draws(p: Predictive, draws: slice) -> Predictive:
    return dataclasses.replace(p, components=p.components.map(lambda t: t[draws]))


def test_weighted_samples_follow_the_weights() -> None:
    p = Predictive.mixture([Gaussian(0.1).predictive(torch.full((n, 1), m)) for n, m in ((1, 0.0), (9, 10.0))])
    share = float((p.sample(4000, seed=0) < 5).double().mean())
    assert share == pytest.approx(0.5, abs=5 * 0.5 / math.sqrt(4000))


def test_joining_unlike_predictions_raises() -> None:
    p = prediction(Gaussian(0.1))
    with pytest.raises(InputError, match="different likelihoods"):
        Predictive.mixture([p, prediction(Poisson())])
    with pytest.raises(InputError, match="different target shapes"):
        Predictive.mixture([p, p[:2]])
    images = torch.zeros(1, 2, 3, 3)
    with pytest.raises(InputError, match="different settings"):
        Predictive.mixture([Categorical(class_dim=d).predictive(images) for d in (1, 2)])


@pytest.mark.parametrize("likelihood", [*REAL, *CLASSES], ids=str)
def test_empty_batches(likelihood: Likelihood) -> None:
    p = prediction(likelihood, rows=0)
    assert len(p) == 0
    for value in (p.mean, p.variance, p.aleatoric, p.epistemic, p.entropy, p.mutual_information):
        assert value.shape[0] == 0
    assert p.sample(3).shape[:2] == (3, 0)
    assert p.log_prob(p.sample(1)[0]).shape == (0,)
    if likelihood in REAL:
        assert p.interval(0.9).lower.shape[0] == 0
        assert p.quantile([]).shape[:2] == (0, 0)


def test_targets_are_checked() -> None:
    p = Gaussian(0.1).predictive(torch.zeros(3, 5, 1))
    with pytest.raises(InputError, match=r"reshape y with y\[:, None\]"):
        p.log_prob(torch.zeros(5))
    with pytest.raises(InputError, match=r"reshape y with y\[:, None\]"):
        p.cdf(torch.zeros(5))
    with pytest.raises(InputError, match="label 3"):
        Categorical().predictive(torch.zeros(2, 1, 3)).log_prob(torch.tensor([3]))


def test_frozen_repr_copy_and_gradients() -> None:
    outputs = torch.zeros(100, 50, 1, requires_grad=True)
    p = Gaussian(0.1).predictive(outputs)
    assert repr(p) == "Predictive(draws=100, rows=50, Gaussian)"
    with pytest.raises(dataclasses.FrozenInstanceError):
        p.weights = None  # type: ignore[misc]
    p.log_prob(torch.ones(50, 1)).sum().backward()
    assert outputs.grad is not None
    # each row's gradient is (y − f)/σ² = 100, shared by its 100 equal draws
    torch.testing.assert_close(outputs.grad, torch.ones(100, 50, 1))
    detached = prediction(Categorical())
    for other in (copy.deepcopy(detached), pickle.loads(pickle.dumps(detached)), detached.cpu(), detached.to("cpu")):
        assert_same(other, detached)
