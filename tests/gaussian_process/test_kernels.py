"""Kernels: matrices, sums and products, equality, and errors."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import numpy as np
import pytest
import torch

from credo.errors import InputError
from credo.gaussian_process.kernels import RBF, Constant, Linear, Matern, Periodic, RationalQuadratic, White

from .pairs import PAIRS, points

SEVERAL_FEATURES = [
    RBF(0.6),
    RBF((0.5, 1.0, 2.0)),
    Matern(0.7, nu=0.5),
    Matern(0.7, nu=1.5),
    Matern((0.5, 1.0, 2.0), nu=2.5),
    RationalQuadratic(0.6, alpha=0.4),
    Periodic(0.8, period=1.5),
    Periodic((0.5, 1.0, 2.0), period=(1.0, 2.0, 3.0)),
    Linear((0.5, 1.0, 2.0)),
    Constant(2.0),
    White(0.3),
    3.0 * RBF(0.6) * Periodic(0.8, period=1.5) + Linear() * Linear() + White(0.3),
]


@pytest.mark.parametrize("name", PAIRS)
def test_equal_scikit_learn(name):
    ours, theirs = PAIRS[name]
    x, z = points(name, 12), points(name, 7, seed=1)
    for mine, reference in ((ours(x), theirs(x)), (ours(x, z), theirs(x, z))):
        np.testing.assert_allclose(mine, reference, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(
        ours.diagonal(ours.theta_like(torch.empty(0, dtype=torch.float64)), torch.tensor(x)), theirs.diag(x)
    )


@pytest.mark.parametrize("kernel", SEVERAL_FEATURES, ids=str)
def test_symmetric_and_positive_semidefinite(kernel):
    x = torch.from_numpy(np.random.default_rng(0).uniform(-3.0, 3.0, size=(60, 3)))
    matrix = kernel(x)
    assert torch.equal(matrix, matrix.mT)
    torch.testing.assert_close(matrix.diagonal(), kernel.diagonal(kernel.theta_like(x), x))
    eigenvalues = torch.linalg.eigvalsh(matrix)
    # What rounding of the entries can move an eigenvalue by is at most the norm of the errors.
    assert eigenvalues.min() > -60 * 1e-15 * eigenvalues.max()


def test_periodic_is_positive_semidefinite_for_several_features():
    x = torch.from_numpy(np.random.default_rng(0).uniform(-3.0, 3.0, size=(60, 3)))
    of_distance = torch.exp(-2.0 * torch.sin(torch.pi * torch.cdist(x, x) / 1.5).square() / 0.8**2)
    assert torch.linalg.eigvalsh(of_distance).min() < -0.1
    assert torch.linalg.eigvalsh(Periodic(0.8, period=1.5)(x)).min() > -1e-12


def test_periodic_repeats():
    kernel, x = Periodic((0.7, 0.9), period=(1.0, 2.5)), np.random.default_rng(0).normal(size=(9, 2))
    np.testing.assert_allclose(kernel(x, x + np.array([3.0, -5.0])), kernel(x), atol=1e-13)


def test_rational_quadratic_tends_to_rbf():
    x = np.random.default_rng(0).normal(size=(9, 2))
    np.testing.assert_allclose(RationalQuadratic(0.7, alpha=1e5)(x), RBF(0.7)(x), atol=1e-4)


def test_white_noise_is_independent_between_observations():
    x = np.zeros((3, 1))
    assert torch.equal(White(0.5)(x), 0.25 * torch.eye(3, dtype=torch.float64))
    assert torch.equal(White(0.5)(x, x), torch.zeros(3, 3, dtype=torch.float64))


def test_algebra():
    a, b, x = RBF(0.7), Matern(1.1), np.random.default_rng(0).normal(size=(5, 2))
    torch.testing.assert_close((a + b)(x), a(x) + b(x))
    torch.testing.assert_close((a * b)(x), a(x) * b(x))
    for scaled in (3.0 * a, a * 3.0, 3 * a, np.float64(3.0) * a, Constant(3.0) * a):
        torch.testing.assert_close(scaled(x), 3.0 * a(x))
    torch.testing.assert_close((2.0 + a)(x), 2.0 + a(x))
    assert (a + b * 2.0 + White()).terms == (a, b * 2.0, White())
    assert a.terms == (a,)


def test_values_equality_and_copies():
    kernel = 2.0 * RBF([1.0, 2.0]) + White(0.1)
    assert kernel == 2.0 * RBF(np.array([1.0, 2.0])) + White(0.1) == copy.deepcopy(kernel)
    assert kernel == pickle.loads(pickle.dumps(kernel))
    assert len({kernel, copy.deepcopy(kernel), 2.0 * RBF([1.0, 2.0]) + White(0.2)}) == 2
    assert RBF(1.0) != RBF(1.0, "fixed")
    with pytest.raises(dataclasses.FrozenInstanceError):
        kernel.left = RBF()


def test_theta_contains_the_logarithms_of_free_hyperparameters():
    kernel = 2.0 * RBF((1.0, 3.0)) + Periodic(0.5, period=1.0, period_bounds="fixed", length_scale_bounds=(0.1, 10.0))
    np.testing.assert_allclose(kernel.theta, np.log([2.0, 1.0, 3.0, 0.5]))
    np.testing.assert_allclose(np.exp(kernel.bounds), [[1e-5, 1e5]] * 3 + [[0.1, 10.0]])
    moved = kernel.with_theta(np.log([4.0, 2.0, 6.0, 1.0]))
    np.testing.assert_allclose(np.exp(moved.theta), [4.0, 2.0, 6.0, 1.0])
    assert moved.right.period == 1.0
    assert isinstance(moved.left.right.length_scale, tuple)
    assert Constant(1.0, "fixed").theta.shape == (0,)
    assert Constant(1.0, "fixed").bounds.shape == (0, 2)


def test_repr_reads_like_the_expression():
    assert repr(RBF(1 / 3)) == "RBF(length_scale=0.3333)"
    assert repr(Matern((1.0, 2.0), nu=2.5)) == "Matern(nu=2.5, length_scale=(1, 2))"
    assert repr(Constant(2.0)) == "Constant(value=2)"
    kernel = 4.0 * RBF(67.0) + (Linear() + White(0.1)) * Periodic(period=1.0, period_bounds="fixed")
    assert repr(kernel) == (
        "4 * RBF(length_scale=67) + (Linear(variance=1) + White(noise=0.1)) * "
        "Periodic(length_scale=1, period=1, period_bounds='fixed')"
    )


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: RBF(-1.0), "RBF.length_scale must be a positive number"),
        (lambda: RBF(()), "RBF.length_scale must be a positive number"),
        (lambda: RBF(float("nan")), "RBF.length_scale must be a positive number"),
        (lambda: RBF("long"), "RBF.length_scale must be a positive number"),
        (lambda: Constant((1.0, 2.0)), "Constant.value must be a positive number, got"),
        (lambda: White(0.0), "White.noise must be a positive number"),
        (lambda: RBF(1.0, (2.0, 1.0)), "RBF.length_scale_bounds must be 'fixed' or two positive numbers"),
        (lambda: RBF(1.0, "free"), "RBF.length_scale_bounds must be 'fixed'"),
        (lambda: RBF(1.0, None), "RBF.length_scale_bounds must be 'fixed'"),
        (lambda: Matern(1.0, nu=2.0), "Matern.nu must be 0.5, 1.5 or 2.5"),
        (lambda: RBF() + "x", "combined with a kernel or a positive number"),
        (lambda: 0 * RBF(), "Constant.value must be a positive number"),
        (lambda: RBF((1.0, 2.0))(np.ones((4, 3))), "one for each of the 3 features of X, got 2"),
        (lambda: RBF()(np.ones(4)), "points \\[N, D\\]"),
        (lambda: RBF().with_theta([0.0, 1.0]), "theta must have shape \\[1\\], one logarithm"),
    ],
)
def test_bad_kernels_raise(build, message):
    with pytest.raises(InputError, match=message):
        build()
