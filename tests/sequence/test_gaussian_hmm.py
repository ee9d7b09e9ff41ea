"""The hidden Markov model against hmmlearn, the mixture it generalizes, and difficult tables."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from hmmlearn.hmm import GaussianHMM as Reference
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks

from credo.errors import InputError
from credo.sequence import GaussianHMM

KINDS = ("diag", "full", "tied", "spherical")
LENGTHS = np.array([120, 1, 60, 19, 100])


def simulated(rows: int = 300, columns: int = 2, states: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    transition = 0.3 / states + 0.7 * np.eye(states)
    z = [0]
    for _ in range(rows - 1):
        z.append(rng.choice(states, p=transition[z[-1]]))
    means = 2.0 * rng.normal(size=(states, columns))
    return means[z] + rng.normal(size=(rows, columns)), np.array(z)


def steps(kind: str, iterations: int, **settings) -> GaussianHMM:
    """A model after a number of iterations, always from the same start."""
    x, _ = simulated()
    model = GaussianHMM(3, covariance_type=kind, tol=0.0, max_iter=iterations, random_state=0, **settings)
    with pytest.warns(ConvergenceWarning, match="has not converged"):
        return model.fit(x, lengths=LENGTHS)


def reference(model: GaussianHMM) -> Reference:
    """hmmlearn with the parameters and the priors of ``model``, set to take one step of EM."""
    states, columns = model.means_.shape
    other = Reference(
        states,
        covariance_type=model.covariance_type,
        covars_prior=0.0,
        startprob_prior=model.startprob_prior,
        transmat_prior=model.transmat_prior,
        init_params="",
        n_iter=1,
        tol=0.0,
    )
    other.n_features = columns
    other.startprob_, other.transmat_ = model.startprob_, model.transmat_
    other.means_, other.covars_ = model.means_, model.covars_
    return other


@parametrize_with_checks([GaussianHMM(), GaussianHMM(2)])
@pytest.mark.filterwarnings("ignore")  # the checks warn by themselves
def test_scikit_learn_contract(estimator, check):
    check(estimator)


@pytest.mark.parametrize("kind", KINDS)
def test_likelihood_posterior_and_path_match_hmmlearn(kind):
    x, _ = simulated()
    model = steps(kind, 3)
    other = reference(model)
    log_likelihood, posterior = other.score_samples(x, LENGTHS)
    log_prob, path = other.decode(x, LENGTHS)
    assert model.score(x, lengths=LENGTHS) == pytest.approx(log_likelihood, rel=1e-8)
    np.testing.assert_allclose(model.predict_proba(x, lengths=LENGTHS), posterior, atol=1e-8)
    decoding = model.decode(x, lengths=LENGTHS)
    assert decoding.log_prob == pytest.approx(log_prob, rel=1e-8)
    np.testing.assert_array_equal(decoding.states, path)
    np.testing.assert_array_equal(model.predict(x, lengths=LENGTHS), path)


@pytest.mark.parametrize("kind", KINDS)
def test_one_em_step_matches_hmmlearn(kind):
    x, _ = simulated()
    settings = {"startprob_prior": 1.5, "transmat_prior": 3.0}
    before, after = steps(kind, 3, **settings), steps(kind, 4, **settings)
    other = reference(before).fit(x, LENGTHS)
    np.testing.assert_allclose(after.startprob_, other.startprob_, atol=1e-8)
    np.testing.assert_allclose(after.transmat_, other.transmat_, atol=1e-8)
    np.testing.assert_allclose(after.means_, other.means_, atol=1e-8)
    covariances = other.covars_
    if kind == "diag":
        covariances = covariances.diagonal(axis1=1, axis2=2)
    elif kind == "spherical":
        covariances = covariances[:: x.shape[1], 0, 0]  # hmmlearn gives each as often as there are columns
    elif kind == "tied":
        covariances = covariances[0]
    np.testing.assert_allclose(after.covars_, covariances, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_bound_never_falls_and_is_log_likelihood_plus_log_prior(kind):
    x, _ = simulated()
    model = GaussianHMM(3, covariance_type=kind, transmat_prior=2.0, random_state=0, n_init=2).fit(x, lengths=LENGTHS)
    assert model.converged_
    assert (np.diff(model.lower_bounds_) >= -1e-9 * abs(model.lower_bound_)).all()
    log_likelihood = model.score(x, lengths=LENGTHS)
    assert model.lower_bound_ - model.log_prior_ == pytest.approx(log_likelihood, rel=1e-12)
    assert model.score_samples(x, lengths=LENGTHS).sum() == pytest.approx(log_likelihood, rel=1e-12)


def test_sequences_of_one_row_match_a_mixture():
    x, _ = simulated()
    model = GaussianHMM(3, random_state=0).fit(x, lengths=np.ones(len(x), int))
    difference = x[:, None] - model.means_
    log_densities = -0.5 * (difference**2 / model.covars_ + np.log(2 * np.pi * model.covars_)).sum(-1)
    joint = np.log(model.startprob_) + log_densities
    expected = torch.tensor(joint).logsumexp(1).numpy()
    np.testing.assert_allclose(model.score_samples(x, lengths=np.ones(len(x), int)), expected, rtol=1e-10)


def test_probabilities_sum_to_one_with_an_outlier():
    """A row 1e9 standard deviations away has a log density of −5e17, which has no digits for those of the others."""
    rng = np.random.default_rng(0)
    x = np.column_stack([np.repeat([0.0, 3.0, 0.0, 3.0], 15), np.zeros(60)]) + rng.normal(size=(60, 2))
    model = GaussianHMM(2, random_state=0).fit(x)
    x[20, 1] += 1e9
    np.testing.assert_allclose(model.predict_proba(x).sum(1), 1.0, atol=1e-12)


def test_simulated_states_are_recovered():
    x, z = simulated(2000, seed=4)
    model = GaussianHMM(3, random_state=0).fit(x)
    path = model.predict(x)
    # every found state is one true state: of its rows, most are of it
    truth = np.array([np.bincount(z[path == k], minlength=3).argmax() for k in range(3)])
    assert sorted(truth) == [0, 1, 2]
    assert (truth[path] == z).mean() > 0.9
    # 600 or more steps leave each state: a probability has a standard error below 0.02
    np.testing.assert_allclose(model.transmat_.diagonal(), 0.8, atol=4 * 0.02)
    probabilities = model.predict_proba(x)
    np.testing.assert_allclose(probabilities.sum(1), 1.0, rtol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_samples_have_the_moments_of_the_model(kind):
    model = steps(kind, 10)
    x, z = model.sample(4000)
    again, _ = model.sample(4000)
    np.testing.assert_array_equal(x, again)
    counts = np.zeros((3, 3))
    np.add.at(counts, (z[:-1], z[1:]), 1)
    visits = counts.sum(1, keepdims=True)
    errors = np.sqrt(model.transmat_ * (1 - model.transmat_) / visits)
    assert (abs(counts / visits - model.transmat_) <= 4 * errors + 1e-12).all()
    for k in range(3):
        mine = x[z == k]
        assert (abs(mine.mean(0) - model.means_[k]) <= 4 * mine.std(0) / np.sqrt(len(mine))).all()


def test_chunks_frames_and_memory_maps(tmp_path):
    x, _ = simulated()
    whole = GaussianHMM(3, random_state=0).fit(x, lengths=LENGTHS)
    np.save(tmp_path / "x.npy", x)
    sources = (
        pd.DataFrame(x, columns=["a", "b"]),
        np.load(tmp_path / "x.npy", mmap_mode="r"),
        lambda: (x[start : start + 77] for start in range(0, len(x), 77)),
    )
    for source in sources:
        other = GaussianHMM(3, random_state=0).fit(source, lengths=LENGTHS)
        np.testing.assert_allclose(other.means_, whole.means_, rtol=1e-9)
        np.testing.assert_allclose(other.score_samples(source, lengths=LENGTHS).sum(), whole.score(x, lengths=LENGTHS))


def test_state_without_rows_does_not_change():
    x = np.array([[0.0], [0.1], [5.0], [5.1], [0.05], [5.05]])
    model = GaussianHMM(4, random_state=0).fit(x)
    assert np.isfinite(model.means_).all()
    assert np.isfinite(model.covars_).all()
    np.testing.assert_allclose(model.transmat_.sum(1), 1.0)
    np.testing.assert_allclose(model.startprob_.sum(), 1.0)


def test_equal_rows_have_the_minimum_variance():
    model = GaussianHMM(2, reg_covar=0.01, random_state=0).fit(np.repeat([[0.0], [5.0]], 6, axis=0))
    np.testing.assert_allclose(np.sort(model.means_, axis=0), [[0.0], [5.0]], atol=1e-12)
    np.testing.assert_allclose(model.covars_, 0.01)


@pytest.mark.parametrize("kind", KINDS)
def test_degenerate_tables(kind):
    for x, lengths in (
        (np.ones((6, 2)), None),
        (np.zeros((4, 1)), [1, 1, 1, 1]),
        (np.array([[3.0, 4.0]]), None),
        (np.column_stack((np.arange(8.0), np.arange(8.0), np.ones(8))), [3, 5]),
        (1e8 + np.arange(12.0)[:, None] % 3, None),
    ):
        model = GaussianHMM(min(2, len(x)), covariance_type=kind, random_state=0).fit(x, lengths=lengths)
        for value in (model.means_, model.covars_, model.transmat_, model.predict_proba(x, lengths=lengths)):
            assert np.isfinite(value).all()
        assert np.isfinite(model.score(x, lengths=lengths))
        assert model.predict(x, lengths=lengths).shape == (len(x),)


def test_global_random_state_is_neither_used_nor_changed():
    x, _ = simulated()
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    GaussianHMM(2, random_state=1).fit(x).sample(3)
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_components": 0}, "n_components must be an integer of at least 1, got 0"),
        ({"n_components": 2.5}, "n_components must be an integer of at least 1, got 2.5"),
        ({"n_components": 301}, "n_samples=300 and n_components=301"),
        ({"covariance_type": "diagonal"}, "did you mean 'diag'"),
        ({"reg_covar": -1.0}, "reg_covar must be a number of at least 0"),
        ({"reg_covar": None}, "reg_covar must be a number of at least 0, got None"),
        ({"transmat_prior": 0.5}, "transmat_prior must be a number of at least 1, got 0.5"),
        ({"startprob_prior": float("nan")}, "startprob_prior must be a number of at least 1"),
        ({"n_init": 0}, "n_init must be an integer of at least 1"),
    ],
)
def test_bad_arguments_raise(settings, message):
    x, _ = simulated()
    with pytest.raises(InputError, match=message):
        GaussianHMM(**settings).fit(x)


def test_bad_tables_and_lengths_raise():
    x, _ = simulated()
    model = GaussianHMM(2, random_state=0)
    with pytest.raises(NotFittedError):
        model.predict(x)
    with pytest.raises(NotFittedError):
        model.sample()
    with pytest.raises(InputError, match="add up to the number of rows, 300, but add up to 299"):
        model.fit(x, lengths=[299])
    with pytest.raises(InputError, match="lengths must be integers of at least 1"):
        model.fit(x, lengths=[300, 0])
    with pytest.raises(InputError, match="lengths must be integers"):
        model.fit(x, lengths=[150.5, 149.5])
    with pytest.raises(InputError, match="lengths=…"):
        model.fit(x, [100, 200])
    with pytest.raises(ValueError, match="NaN"):
        model.fit(np.where(x > 2, np.nan, x))
    assert not hasattr(model, "means_")
    model.fit(x)
    with pytest.raises(ValueError, match="features"):
        model.predict(x[:, :1])
    with pytest.raises(InputError, match="n_samples must be an integer of at least 1, got 0"):
        model.sample(0)
    with pytest.raises(InputError, match="raise reg_covar"):
        GaussianHMM(2, reg_covar=0.0, random_state=0).fit(np.ones((5, 2)))


def test_shuffling_data_loader_raises():
    loader = torch.utils.data.DataLoader(torch.randn(20, 2, dtype=torch.float64), batch_size=5, shuffle=True)
    with pytest.raises(InputError, match="the DataLoader shuffles"):
        GaussianHMM(2).fit(loader)
