"""Basis functions: values, data-dependent parameters, and errors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.preprocessing import PolynomialFeatures

from credo.errors import InputError
from credo.linear import BayesianLinearRegression, Fourier, GaussianBasis, Identity, Polynomial, Sigmoidal
from credo.linear.bases import to_basis

X = np.array([[0.0, 2.0], [0.5, 4.0], [1.0, 10.0]])


def fitted(basis, table=X):
    """The basis of a model that is fitted to ``table``."""
    return BayesianLinearRegression(basis).fit(table, np.arange(len(table)) ** 2.0).basis_


def test_values_equal_the_formulas():
    x, z = X[:, :1], X[:, 1:]
    np.testing.assert_array_equal(Identity()(X), X)
    np.testing.assert_allclose(Polynomial(3)(X), np.hstack([x, x**2, x**3, z, z**2, z**3]), rtol=1e-15)
    bumps = GaussianBasis(centers=[0.0, 1.0], scale=0.5)(X)
    np.testing.assert_allclose(bumps[:, 1], np.exp(-((X[:, 0] - 1.0) ** 2) / (2 * 0.25)), rtol=1e-15)
    np.testing.assert_allclose(bumps[:, 2], np.exp(-(X[:, 1] ** 2) / (2 * 0.25)), rtol=1e-14)
    steps = Sigmoidal(centers=[0.0, 1.0], scale=0.5)(X)
    np.testing.assert_allclose(steps[:, 3], 1 / (1 + np.exp(-(X[:, 1] - 1.0) / 0.5)), rtol=1e-15)
    waves = Fourier(frequencies=2, period=(1.0, 8.0))(X)
    angles = 2 * np.pi * X[:, 1] / 8.0
    expected = np.stack([np.sin(angles), np.sin(2 * angles), np.cos(angles), np.cos(2 * angles)], axis=1)
    np.testing.assert_allclose(waves[:, 4:], expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    "basis", [Identity(), Polynomial(2), GaussianBasis([0.0, 1.0]), Sigmoidal([0.0, 1.0]), Fourier(2, 1.0)]
)
def test_bias_is_the_first_column(basis):
    with_bias = type(basis)(**{**vars(basis), "include_bias": True})
    np.testing.assert_array_equal(with_bias(X), np.hstack([np.ones((3, 1)), basis(X)]))


def test_points_as_centers_use_the_euclidean_distance():
    points = X[:2]
    expected = np.exp(-((X[:, None] - points) ** 2).sum(-1) / (2 * 3.0**2))
    np.testing.assert_allclose(GaussianBasis(points, scale=3.0)(X), expected, rtol=1e-14)


def test_number_of_centers_is_spread_over_the_range_of_every_column():
    basis = fitted(GaussianBasis(3))
    np.testing.assert_allclose(basis.centers, [[0.0, 0.5, 1.0], [2.0, 6.0, 10.0]], rtol=1e-15)
    np.testing.assert_allclose(basis.scales, [0.5, 4.0], rtol=1e-15)
    each = [GaussianBasis(centers)(column[:, None]) for centers, column in zip(basis.centers, X.T, strict=True)]
    np.testing.assert_allclose(basis(X), np.hstack(each), rtol=1e-15)
    assert fitted(Sigmoidal(3, scale=0.1)).scales == (0.1, 0.1)
    assert fitted(GaussianBasis(1)).centers == ((0.5,), (6.0,))
    assert fitted(Fourier()).period == (1.0, 8.0)


def test_constant_column_has_constant_features():
    constant = np.hstack([X, np.full((3, 1), 7.0)])
    for basis in (GaussianBasis(3), Sigmoidal(3), Fourier(2)):
        features = fitted(basis, constant)(constant)
        assert np.isfinite(features).all()
        assert np.ptp(features[:, -3:], axis=0).max() == 0.0


def test_bases_can_be_named_compared_hashed_and_cloned():
    assert to_basis("polynomial") == Polynomial()
    assert GaussianBasis(np.array([0.0, 1.0])) == GaussianBasis((0, 1)) != GaussianBasis((0, 2))
    assert hash(GaussianBasis([[0.0, 1.0]], scale=1.0)) == hash(GaussianBasis(np.array([[0.0, 1.0]]), scale=1.0))
    model = clone(BayesianLinearRegression(GaussianBasis([0.0, 1.0])))
    assert model.basis == GaussianBasis([0.0, 1.0])
    assert repr(Polynomial(2)) == "Polynomial(degree=2, include_bias=False)"


def test_function_as_basis():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(50, 1)), rng.normal(size=50)
    powers = PolynomialFeatures(3, include_bias=False).fit(x).transform
    own, other = (BayesianLinearRegression(basis).fit(x, y) for basis in (Polynomial(3), powers))
    np.testing.assert_allclose(own.coef_, other.coef_, rtol=1e-12)


def test_features_are_float64():
    x = torch.zeros(4, 2, dtype=torch.float64)
    for name in ("identity", "polynomial"):
        assert to_basis(name).features(x).dtype == torch.float64
    assert to_basis(np.exp).features(x).dtype == torch.float64


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: to_basis("polynomail"), "polynomial"),
        (lambda: to_basis(3), "basis must be"),
        (lambda: to_basis(Polynomial), "basis must be"),
        (lambda: Polynomial(-1), "degree must be an integer of at least 0, got -1"),
        (lambda: Polynomial(2.5), "degree"),
        (lambda: Fourier(0), "frequencies"),
        (lambda: Fourier(2, period=0.0), "period must be a positive number"),
        (lambda: GaussianBasis(0), "centers"),
        (lambda: GaussianBasis([]), "centers"),
        (lambda: GaussianBasis([0.0, np.nan]), "finite"),
        (lambda: GaussianBasis(["a"]), "centers must contain finite numbers"),
        (lambda: GaussianBasis([1.0]), "scale must be given"),
        (lambda: GaussianBasis(3, scale=-1.0), "scale must be a positive number"),
        (lambda: Sigmoidal([[0.0, 1.0]], scale=1.0), "shape"),
        (lambda: GaussianBasis([[0.0]], scale=1.0)(X), "1 dimensions"),
        (lambda: GaussianBasis(3)(X), "depends on the range of the data"),
        (lambda: Fourier()(X), "depends on the range of the data"),
        (lambda: Identity()(X[0]), "table"),
        (lambda: fitted(lambda x: x[:, 0]), r"\[N, M\]"),
        (lambda: fitted(Polynomial(0)), "no features"),
        (lambda: fitted(lambda x: 1 / x), "not finite"),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_bad_bases_raise(make, message):
    with pytest.raises(InputError, match=message):
        make()
