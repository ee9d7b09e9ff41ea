"""The single precision copy may find too many uncertain rows, but never too few."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from credo.mixture import KMeans
from credo.mixture._lloyd import SinglePrecisionCopy


def uncertain(x: np.ndarray, centers: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Which rows are uncertain, as booleans."""
    rows = KMeans()._training_rows(x)
    mean = torch.from_numpy(x.mean(0))
    copy = SinglePrecisionCopy(rows, mean, float(np.sqrt(x.var(0).mean())) or 1.0)
    find = copy.uncertain_rows(torch.from_numpy(centers) - mean)
    found = np.zeros(len(x), bool)
    found[find(torch.from_numpy(labels), *copy.columns).numpy()] = True
    return found


def nearest(x: np.ndarray, centers: np.ndarray) -> np.ndarray:
    return np.square(x[:, None].astype(np.longdouble) - centers).sum(2).argmin(1)


@given(
    seed=st.integers(0, 10**6),
    columns=st.integers(1, 60),
    clusters=st.integers(2, 8),
    gap=st.sampled_from([1e-12, 1e-8, 1e-7, 1e-6, 1e-5, 1e-3, 1.0]),
    scale=st.sampled_from([1e-100, 1.0, 1e100]),
)
@settings(max_examples=100)
def test_rows_with_another_nearest_center_are_always_found(seed, columns, clusters, gap, scale):
    """Rows lie nearly half-way between centers, where rounding matters most."""
    random = np.random.default_rng(seed)
    centers = random.normal(size=(clusters, columns))
    pairs = random.integers(clusters, size=(200, 2))
    x = centers[pairs].mean(1) * (1.0 + gap * random.normal(size=(200, columns)))
    x, centers = x * scale, centers * scale
    labels = random.integers(clusters, size=200)
    wrong = nearest(x, centers) != labels
    assert uncertain(x, centers, labels)[wrong].all()


def test_clearly_assigned_rows_are_not_checked_again():
    random = np.random.default_rng(0)
    centers = random.normal(size=(5, 20))
    x = centers[random.integers(5, size=5000)] + random.normal(size=(5000, 20))
    # by the bound a row is uncertain where its lead is under 2·28·2⁻²³·c(‖x‖ + c), here below 10⁻³ of distances near 20
    assert uncertain(x, centers, nearest(x, centers)).mean() < 1e-3


@pytest.mark.parametrize("far", [1e15, 1e30, 1e200])
def test_all_rows_are_uncertain_if_a_center_is_too_far_for_single_precision(far):
    x = np.random.default_rng(0).normal(size=(50, 3))
    centers = np.array([[0.0, 0.0, 0.0], [9.0, 9.0, 9.0], [far, -far, far]])
    for label in range(3):
        assert uncertain(x, centers, np.full(50, label)).all()


def test_no_row_is_uncertain_with_one_cluster():
    x = np.random.default_rng(0).normal(size=(50, 3))
    assert not uncertain(x, np.zeros((1, 3)), np.zeros(50, int)).any()


def test_kmeans_does_not_depend_on_the_single_precision_copy(monkeypatch):
    x = np.random.default_rng(0).normal(size=(4000, 6))
    with_screen = KMeans(12, random_state=0, tol=0.0).fit(x)
    monkeypatch.setattr("credo.mixture._lloyd.MAX_COPIED_NUMBERS", 0)
    without = KMeans(12, random_state=0, tol=0.0).fit(x)
    assert with_screen.n_iter_ == without.n_iter_
    np.testing.assert_array_equal(with_screen.labels_, without.labels_)
    np.testing.assert_allclose(with_screen.cluster_centers_, without.cluster_centers_, rtol=0, atol=1e-13)


def test_copy_is_not_used_with_reduced_matmul_precision(monkeypatch):
    rows = KMeans()._training_rows(np.zeros((3, 2)))
    assert SinglePrecisionCopy.is_useful(rows, 2)
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "medium")
    assert not SinglePrecisionCopy.is_useful(rows, 2)
