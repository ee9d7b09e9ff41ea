"""k-means against scikit-learn's, properties of its steps, and difficult tables."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pandas as pd
import pytest
import sklearn.cluster
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks

from credo.em import fit_em
from credo.errors import InputError
from credo.mixture import KMeans
from credo.mixture._lloyd import Lloyd, TableScale
from credo.mixture.kmeans import kmeans_plus_plus


@parametrize_with_checks([KMeans(n_clusters=3, random_state=0), KMeans(n_clusters=2, init="random", n_init=2)])
@pytest.mark.filterwarnings("ignore")  # the checks warn by themselves
def test_scikit_learn_contract(estimator, check):
    check(estimator)


def blobs(n: int = 600, clusters: int = 4, columns: int = 3, spread: float = 0.5, seed: int = 0) -> np.ndarray:
    """Overlapping Gaussians around centers from N(0, I)."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(clusters, columns))[rng.integers(clusters, size=n)] + spread * rng.normal(size=(n, columns))


def same_start(X: np.ndarray, start: np.ndarray, **options: float) -> tuple[KMeans, sklearn.cluster.KMeans]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        ours = KMeans(len(start), init=start, **options).fit(X)
        theirs = sklearn.cluster.KMeans(len(start), init=start, n_init=1, **options).fit(X)
    return ours, theirs


@pytest.mark.parametrize("iterations", [1, 2, 5, 300])
def test_steps_match_scikit_learn(iterations):
    X = blobs()
    ours, theirs = same_start(X, X[:6], max_iter=iterations, tol=0.0)
    assert ours.n_iter_ == theirs.n_iter_
    np.testing.assert_allclose(ours.cluster_centers_, theirs.cluster_centers_, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(ours.labels_, theirs.labels_)
    assert ours.inertia_ == pytest.approx(theirs.inertia_, rel=1e-12)
    assert ours.converged_ == (iterations == 300)


@pytest.mark.parametrize("chunked", [False, True])
def test_outlier_does_not_reduce_precision_of_other_distances(chunked):
    """The mean lies 1e8 away from nearly all rows: the rounding of squared lengths is then 1, a squared distance."""
    rng = np.random.default_rng(0)
    X = np.concatenate([0.1 * rng.normal(size=(100, 2)) + np.repeat([[0, 0], [1, 0]], 50, axis=0), [[1e10, 0.0]]])
    model = KMeans(3, random_state=0).fit((lambda: iter(np.array_split(X, 3))) if chunked else X)
    for labels in (model.labels_, model.predict(X)):
        distances = np.square(X[:, None] - model.cluster_centers_).sum(2)
        np.testing.assert_array_equal(labels, distances.argmin(1))
    assert sorted(model.counts_) == [1, 50, 50]


def test_predictions_match_scikit_learn():
    X, new = blobs(), blobs(n=50, seed=1)
    ours, theirs = same_start(X, X[:5], tol=0.0)
    np.testing.assert_array_equal(ours.predict(new), theirs.predict(new))
    np.testing.assert_allclose(ours.transform(new), theirs.transform(new), rtol=1e-9)
    assert ours.score(new) == pytest.approx(theirs.score(new), rel=1e-12)
    np.testing.assert_array_equal(ours.predict(X), ours.labels_)
    assert ours.score(X) == pytest.approx(-ours.inertia_, rel=1e-14)
    np.testing.assert_array_equal(ours.fit_predict(X), ours.labels_)


@pytest.mark.parametrize("tol", [1e-2, 1e-3, 1e-4])
def test_tolerance_is_at_least_as_strict_as_scikit_learn(tol):
    """An M-step gains Σ n_k ‖Δc_k‖², which is N/K times the squared shifts for clusters of equal size."""
    X = blobs(n=4000, clusters=5, spread=1.0)
    ours, theirs = same_start(X, X[:5], tol=tol)
    assert ours.converged_
    assert ours.n_iter_ >= theirs.n_iter_
    assert ours.inertia_ <= theirs.inertia_ * (1 + 1e-12)


@pytest.mark.parametrize("offset", [0.0, 1e6, -1e9])
def test_precision_is_kept_far_from_the_origin(offset):
    # sixteenths stay exact at these offsets, so that nothing but the arithmetic can differ
    X = np.random.default_rng(0).integers(-64, 64, size=(500, 2)) / 16.0
    here, there = (KMeans(4, init=X[:4] + shift, tol=0.0).fit(X + shift) for shift in (0.0, offset))
    assert here.n_iter_ == there.n_iter_
    np.testing.assert_array_equal(here.labels_, there.labels_)
    np.testing.assert_allclose(here.cluster_centers_ + offset, there.cluster_centers_, rtol=4e-16, atol=1e-12)
    assert here.inertia_ == pytest.approx(there.inertia_, rel=1e-12 + 1e-15 * abs(offset))


@pytest.mark.parametrize("scale", [1e-150, 1e-6, 1e6, 1e150])
def test_fit_is_invariant_to_units(scale):
    X = blobs()
    # powers of two leave the digits alone, so that every decision is the same one
    scale = 2.0 ** np.round(np.log2(scale))
    plain, scaled = KMeans(5, random_state=0).fit(X), KMeans(5, random_state=0).fit(X * scale)
    np.testing.assert_array_equal(plain.labels_, scaled.labels_)
    np.testing.assert_allclose(scaled.cluster_centers_ / scale, plain.cluster_centers_, rtol=1e-12)


@given(
    arrays(np.int64, st.tuples(st.integers(8, 40), st.integers(1, 3)), elements=st.integers(-3, 3)),
    st.integers(1, 8),
    st.integers(0, 3),
)
@settings(max_examples=60)
def test_inertia_never_rises_with_ties_and_empty_clusters(X, n_clusters, seed):
    """Few distinct integers bring ties, duplicates and clusters that lose their rows; EM checks every step."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = KMeans(n_clusters, init="random", n_init=1, tol=0.0, random_state=seed).fit(X)
    distances = np.square(X[:, None] - model.cluster_centers_).sum(2)
    assert model.inertia_ == pytest.approx(distances.min(1).sum(), abs=1e-9)
    assert model.inertia_ <= np.square(X - X.mean(0)).sum() + 1e-9


def test_bounds_are_minus_the_inertia_in_units_of_the_variance():
    X = blobs()
    rows = KMeans()._training_rows(X)
    scale = TableScale.from_rows(rows)
    steps, seen = Lloyd(rows, scale), []

    def record(iteration, centers, expectation):
        distances = torch.cdist(torch.from_numpy(X) - scale.mean, centers)
        seen.append((expectation.bound, -distances.amin(1).square().sum().item() / scale.variance))

    start = torch.from_numpy(X[:6]) - scale.mean
    fit_em(lambda _: start, steps.e_step, steps.m_step, rows=len(X), tolerance=0.0, callback=record)
    assert scale.variance == pytest.approx(X.var(0).mean(), rel=1e-12)
    for bound, expected in seen:
        assert bound == pytest.approx(expected, rel=1e-12)


def test_empty_cluster_moves_to_the_farthest_row():
    X = np.array([[0.0], [1.0], [2.0], [10.0]])
    start = np.array([[1.0], [100.0]])
    ours, theirs = same_start(X, start, max_iter=1, tol=0.0)
    np.testing.assert_allclose(ours.cluster_centers_, [[1.0], [10.0]], atol=1e-15)
    np.testing.assert_allclose(ours.cluster_centers_, theirs.cluster_centers_, atol=1e-15)


def test_more_clusters_than_distinct_rows_warns():
    X = np.repeat([[0.0, 0.0], [1.0, 1.0]], 5, axis=0)
    with pytest.warns(ConvergenceWarning, match="only 2 of 4 clusters have rows"):
        model = KMeans(4, random_state=0).fit(X)
    assert model.inertia_ == 0.0
    assert sorted(model.counts_) == [0, 0, 5, 5]
    assert np.isfinite(model.cluster_centers_).all()


def test_equal_rows_are_one_cluster():
    model = KMeans(1).fit(np.full((7, 2), 3.0))
    np.testing.assert_array_equal(model.cluster_centers_, [[3.0, 3.0]])
    assert model.inertia_ == 0.0


def test_as_many_clusters_as_rows():
    X = blobs(n=12)
    model = KMeans(12, random_state=0).fit(X)
    assert sorted(model.labels_) == list(range(12))
    assert model.inertia_ == pytest.approx(0.0, abs=1e-28)


def test_one_cluster_of_one_column_is_the_mean():
    X = blobs(columns=1)
    model = KMeans(1).fit(X)
    np.testing.assert_allclose(model.cluster_centers_, X.mean(0, keepdims=True), atol=1e-14)
    assert model.inertia_ == pytest.approx(X.var() * len(X), rel=1e-12)


def test_more_starts_do_not_raise_the_inertia():
    X = blobs(clusters=12, spread=0.1)
    one, many = (KMeans(12, init="random", n_init=n, random_state=3).fit(X) for n in (1, 10))
    assert many.inertia_ < one.inertia_
    auto = KMeans(12, init="random", random_state=3).fit(X)
    np.testing.assert_array_equal(auto.cluster_centers_, many.cluster_centers_)


def test_random_state_is_reproducible_and_leaves_torch_generator_alone():
    X = blobs()
    before = torch.get_rng_state()
    a, b = (KMeans(5, random_state=7).fit(X) for _ in range(2))
    np.testing.assert_array_equal(a.cluster_centers_, b.cluster_centers_)
    assert torch.equal(before, torch.get_rng_state())


def greedy_probabilities(x: np.ndarray) -> np.ndarray:
    """P(first = i, second = j) of greedy k-means++ for K = 2, where two candidates are drawn."""
    table = np.zeros((len(x), len(x)))
    for first in range(len(x)):
        nearest = np.square(x - x[first])
        p = nearest / nearest.sum()
        left = [np.minimum(nearest, np.square(x - x[j])).sum() for j in range(len(x))]
        for a, b in itertools.product(range(len(x)), repeat=2):
            table[first, a if left[a] <= left[b] else b] += p[a] * p[b] / len(x)
    return table


def test_plus_plus_draws_with_the_published_probabilities():
    x = np.array([0.0, 1.0, 3.5, 7.0, 20.0])
    generator = torch.Generator().manual_seed(0)
    table = torch.from_numpy(x)[:, None]
    drawn = [kmeans_plus_plus(table, 2, generator)[:, 0].numpy() for _ in range(4000)]
    found = np.zeros((5, 5))
    for pair in drawn:
        found[tuple(np.searchsorted(x, pair))] += 1
    expected = 4000 * greedy_probabilities(x)
    possible = expected > 5
    assert found[expected == 0].sum() == 0
    rare = found[~possible].sum(), expected[~possible].sum()
    counts, wanted = np.append(found[possible], rare[0]), np.append(expected[possible], rare[1])
    assert stats.chisquare(counts, wanted).pvalue > 1e-3


def test_plus_plus_draws_distinct_rows():
    x = torch.arange(30, dtype=torch.float64)[:, None]
    chosen = kmeans_plus_plus(x, 30, torch.Generator().manual_seed(0))
    assert len(chosen.unique()) == 30


def test_initialization_from_a_sample_is_as_good_as_from_all_rows(monkeypatch):
    X = blobs(n=3000, clusters=8, spread=0.3)
    whole = np.mean([KMeans(8, random_state=seed).fit(X).inertia_ for seed in range(10)])
    monkeypatch.setattr("credo.mixture.kmeans.INIT_ROWS", 400)
    sampled = [KMeans(8, random_state=seed).fit(X).inertia_ for seed in range(10)]
    assert np.mean(sampled) <= whole + 3 * np.std(sampled) / np.sqrt(10)


@pytest.mark.parametrize("threads", [1, 2])
def test_chunks_match_the_array(threads, tmp_path, monkeypatch):
    monkeypatch.setattr("credo._rows.CPU_BLOCK", 600)
    X = blobs(n=1500)
    np.save(tmp_path / "x.npy", X)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        whole = KMeans(5, init=X[:5], tol=0.0).fit(X)
        mapped = KMeans(5, init=X[:5], tol=0.0).fit(np.load(tmp_path / "x.npy", mmap_mode="r"))
        chunked = KMeans(5, init=X[:5], tol=0.0).fit(lambda: np.array_split(X, [1, 7, 400, 401]))
        loaded = KMeans(5, init=X[:5], tol=0.0).fit(torch.utils.data.DataLoader(torch.from_numpy(X), 256))
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    np.testing.assert_array_equal(whole.cluster_centers_, mapped.cluster_centers_)
    for other in (chunked, loaded):
        assert other.n_iter_ == whole.n_iter_
        np.testing.assert_allclose(other.cluster_centers_, whole.cluster_centers_, atol=1e-12)
        np.testing.assert_array_equal(other.labels_, whole.labels_)
        assert other.inertia_ == pytest.approx(whole.inertia_, rel=1e-12)


def test_chunks_are_initialized_like_the_array():
    X = blobs()
    whole, chunked = (KMeans(5, random_state=0).fit(source) for source in (X, lambda: np.array_split(X, 4)))
    np.testing.assert_allclose(chunked.cluster_centers_, whole.cluster_centers_, atol=1e-12)


def test_shuffling_data_loader():
    X = blobs()
    generator = torch.Generator().manual_seed(0)
    loader = torch.utils.data.DataLoader(torch.from_numpy(X), 100, shuffle=True, generator=generator)
    shuffled, whole = KMeans(5, init=X[:5], tol=0.0).fit(loader), KMeans(5, init=X[:5], tol=0.0).fit(X)
    np.testing.assert_allclose(shuffled.cluster_centers_, whole.cluster_centers_, atol=1e-12)


def test_iterator_raises_in_fit_and_works_in_partial_fit():
    X = blobs()
    with pytest.raises(InputError, match="only once"):
        KMeans(3).fit(iter(np.array_split(X, 3)))
    model = KMeans(3, random_state=0)
    for chunk in np.array_split(X, 3):
        model.partial_fit(chunk)
    assert model.counts_.sum() == len(X)
    assert len(model.labels_) == len(X) // 3


def test_partial_fit_is_close_to_fit():
    X = blobs(n=6000, clusters=4, spread=0.3)
    whole = KMeans(4, random_state=0).fit(X)
    online = KMeans(4, random_state=0)
    for chunk in np.array_split(X, 12):
        online.partial_fit(chunk)
    # rows change their cluster only near a border, where it makes little difference which center they count for
    assert -online.score(X) == pytest.approx(whole.inertia_, rel=1e-2)
    assert -online.score(X) >= whole.inertia_ * (1 - 1e-12)


def test_partial_fit_keeps_running_means():
    model = KMeans(2, init=[[0.0], [10.0]]).fit([[0.0], [2.0], [10.0]])
    model.partial_fit([[4.0], [13.0], [16.0]])
    np.testing.assert_allclose(model.cluster_centers_, [[2.0], [13.0]], atol=1e-14)
    np.testing.assert_array_equal(model.counts_, [3.0, 3.0])
    np.testing.assert_array_equal(model.labels_, [0, 1, 1])
    assert model.inertia_ == pytest.approx(4.0 + 0.0 + 9.0)


def test_partial_fit_with_changed_n_clusters_raises():
    model = KMeans(2).fit([[0.0], [2.0], [10.0]]).set_params(n_clusters=3)
    with pytest.raises(InputError, match="n_clusters is 3, but 2 centers have been learned"):
        model.partial_fit([[1.0]])


def test_partial_fit_does_not_move_centers_without_rows():
    model = KMeans(2, init=[[0.0], [10.0]]).fit([[0.0], [2.0], [10.0]])
    model.partial_fit([[1.0]])
    np.testing.assert_allclose(model.cluster_centers_, [[1.0], [10.0]], atol=1e-14)


def test_data_frames_in_and_out():
    frame = pd.DataFrame(blobs(), columns=["a", "b", "c"]).astype({"a": np.float32})
    model = KMeans(3, random_state=0).fit(frame)
    assert list(model.feature_names_in_) == ["a", "b", "c"]
    assert list(model.get_feature_names_out()) == ["kmeans0", "kmeans1", "kmeans2"]
    assert model.set_output(transform="pandas").transform(frame).shape == (600, 3)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame.rename(columns={"a": "z"}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_clusters": 0}, "n_clusters must be an integer of at least 1, got 0"),
        ({"n_clusters": 2.5}, "n_clusters must be an integer"),
        ({"n_clusters": True}, "n_clusters must be an integer"),
        ({"n_clusters": 601}, "n_clusters=601 and n_samples=600"),
        ({"n_init": 0}, r"n_init \(if not 'auto'\) must be an integer of at least 1, got 0"),
        ({"max_iter": 0}, "max_iter must be an integer"),
        ({"tol": -1.0}, "tol must be a number of at least 0, got -1.0"),
        ({"tol": float("nan")}, "tol must be a number of at least 0, got nan"),
        ({"tol": "strict"}, "tol must be a number of at least 0, got 'strict'"),
        ({"init": "kmeans++"}, "unknown init 'kmeans\\+\\+': did you mean 'k-means\\+\\+'"),
        ({"init": np.zeros((2, 3))}, r"shape \(8, 3\), got \(2, 3\)"),
        ({"init": np.full((8, 3), np.nan)}, "init must be finite"),
        ({"device": "abacus"}, "device must be one that torch can use"),
    ],
)
def test_bad_arguments_raise(options, message):
    model = KMeans(**options)
    with pytest.raises(InputError, match=message):
        model.fit(blobs())
    assert not hasattr(model, "cluster_centers_")


def test_failed_fit_leaves_estimator_unchanged():
    X = blobs()
    model = KMeans(3, random_state=0).fit(X)
    before = model.cluster_centers_
    with pytest.raises(ValueError, match="NaN"):
        model.fit(np.where(X > 1, np.nan, X))
    with pytest.raises(ValueError, match="features"):
        model.partial_fit(X[:, :2])
    assert model.cluster_centers_ is before
    with pytest.raises(NotFittedError):
        KMeans(3).predict(X)


def test_values_whose_squares_overflow_raise():
    X = blobs() * 1e300
    with pytest.raises(InputError, match="too large to be squared"):
        KMeans(3, random_state=0).fit(X)


def test_unconverged_fit_warns():
    X = blobs()
    with pytest.warns(ConvergenceWarning, match="not converged after 1 iterations"):
        KMeans(5, init=X[:5], max_iter=1, tol=0.0).fit(X)
