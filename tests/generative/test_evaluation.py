"""Measures of samples against closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.linalg
import torch
from torch import Tensor
from torch.distributions import Normal

from credo.architectures import MLP, LeNet
from credo.datasets import load_digits, ring_of_gaussians
from credo.errors import InputError
from credo.generative import evaluation
from credo.generative.evaluation import (
    fit_lenet,
    frechet_distance,
    lenet_features,
    mode_coverage,
    nearest_distance,
    parzen_log_likelihood,
    ring_coverage,
)
from credo.seeding import seeded

CPU = torch.device("cpu")


def draws(*shape: int, seed: int = 0) -> Tensor:
    with seeded(seed, CPU):
        return torch.randn(*shape, dtype=torch.float64)


def with_moments(mean: Tensor, covariance: Tensor, n: int = 50, seed: int = 0) -> Tensor:
    """Points whose sample mean and covariance are exactly those."""
    x = draws(n, len(mean), seed=seed)
    x = x - x.mean(0)
    white = torch.linalg.solve_triangular(torch.linalg.cholesky(x.T.cov()), x.T, upper=False).T
    return mean + white @ torch.linalg.cholesky(covariance).T


# Fréchet distance.


def test_frechet_distance_of_gaussians_is_the_closed_form():
    a, b = draws(3, 3, seed=1), draws(3, 3, seed=2)
    covariances = [m @ m.T + torch.eye(3, dtype=torch.float64) for m in (a, b)]
    means = draws(2, 3, seed=3)
    root = scipy.linalg.sqrtm(covariances[0].numpy() @ covariances[1].numpy()).real
    expected = float((means[0] - means[1]).square().sum() + sum(c.trace() for c in covariances)) - 2.0 * np.trace(root)
    found = frechet_distance(
        *(with_moments(m, c, seed=i) for i, (m, c) in enumerate(zip(means, covariances, strict=True)))
    )
    assert found == pytest.approx(expected, rel=1e-9)


def test_frechet_distance_of_diagonal_gaussians_is_a_sum_of_squares():
    """‖μ_a − μ_b‖² + Σ (σ_a − σ_b)²."""
    a = with_moments(torch.tensor([0.0, 1.0]).double(), torch.diag(torch.tensor([1.0, 4.0]).double()))
    b = with_moments(torch.tensor([3.0, 1.0]).double(), torch.diag(torch.tensor([9.0, 0.25]).double()), seed=1)
    assert frechet_distance(a, b) == pytest.approx(9.0 + 4.0 + 2.25, rel=1e-9)


def test_frechet_distance_of_equal_sets_is_zero_also_where_features_are_dead():
    x = draws(40, 5)
    x[:, 3:] = 0.0
    assert frechet_distance(x, x) == pytest.approx(0.0, abs=1e-9)
    assert frechet_distance(x[:4], x[:4]) == pytest.approx(0.0, abs=1e-9)  # fewer rows than features
    assert frechet_distance(x, x.flip(0) + 2.0) == pytest.approx(4.0 * 5)
    assert frechet_distance(x[:, :1], x[:, :1] + 1.0) == pytest.approx(1.0)


def spread_features(rows: int, columns: int, rank: int, seed: int) -> Tensor:
    """Features of the given rank whose directions have scales from 1e2 down to 1e-2."""
    scales = torch.logspace(2.0, -2.0, rank, dtype=torch.float64)
    return draws(rows, rank, seed=seed) * scales @ draws(rank, columns, seed=9) / math.sqrt(columns)


@pytest.mark.parametrize(
    ("rows", "columns", "rank"),
    [
        pytest.param(100, 500, 500, id="fewer rows than features"),
        pytest.param(300, 200, 20, id="rank 20 of 200"),
        pytest.param(300, 200, 200, id="full rank, condition 1e8"),
    ],
)
def test_frechet_distance_of_covariances_that_are_singular_or_nearly_so(rows, columns, rank):
    """Against the nuclear norm of the cross matrix of the centered features.

    The singular values are exact to rounding times the largest one, and there are at most 500 of them. Square roots of
    eigenvalues that are rounding would be off by 1e-8 of it, each.
    """
    a, b = spread_features(rows, columns, rank, seed=1), spread_features(rows, columns, rank, seed=2)
    x, y = ((f - f.mean(0)) / math.sqrt(rows - 1) for f in (a, b))
    traces = float(x.square().sum() + y.square().sum())
    means = float((a.mean(0) - b.mean(0)).square().sum())
    exact = means + traces - 2.0 * np.linalg.svd((x @ y.T).numpy(), compute_uv=False).sum()
    assert frechet_distance(a, b) == pytest.approx(exact, abs=500 * 2.3e-16 * traces)


def test_frechet_distance_is_symmetric():
    a, b = draws(30, 4), 2.0 * draws(20, 4, seed=1)
    assert frechet_distance(a, b) == pytest.approx(frechet_distance(b, a), rel=1e-9)


def test_lenet_learns_digits_and_its_features_tell_noise_from_digits():
    data = load_digits()
    lenet = fit_lenet(data.x_train, data.y_train, epochs=4, seed=0)
    features = lenet_features(data.x_test, lenet, batch_size=100)
    assert features.shape == (len(data.x_test), 500)
    assert not features.requires_grad
    torch.testing.assert_close(lenet.net.classifier[-1](features), lenet.net(data.x_test), rtol=1e-4, atol=1e-4)
    train = lenet_features(data.x_train[: len(features)], lenet.net)
    with seeded(0, CPU):
        noise = lenet_features(torch.rand_like(data.x_test), lenet)
    assert frechet_distance(train, features) < 0.1 * frechet_distance(train, noise)
    found = mode_coverage(data.x_test, lambda x: lenet.predict(x).mode)
    assert found.present == 10
    assert found.counts.sum() == found.total == len(data.x_test)


# Parzen window.


def test_parzen_is_the_density_of_the_mixture_written_out():
    samples, test = draws(6, 2), draws(5, 2, seed=1)
    sigma = 0.7
    density = Normal(samples[None], sigma).log_prob(test[:, None]).sum(2).exp().mean(1)
    values = density.log()
    found = parzen_log_likelihood(samples, test, sigma=sigma)
    assert found.mean == pytest.approx(values.mean().item(), rel=1e-9)
    assert found.standard_error == pytest.approx(values.std().item() / math.sqrt(5), rel=1e-9)
    assert found.sigma == sigma


def test_parzen_does_not_depend_on_blocks(monkeypatch):
    samples, test = draws(50, 3), draws(37, 3, seed=1)
    whole = parzen_log_likelihood(samples, test, sigma=0.5)
    monkeypatch.setattr(evaluation.parzen, "_DISTANCES_AT_ONCE", 120)
    assert parzen_log_likelihood(samples, test, sigma=0.5).mean == pytest.approx(whole.mean, rel=1e-12)


def test_parzen_of_images_in_many_dimensions_does_not_underflow():
    x = torch.rand(8, 1, 28, 28)
    found = parzen_log_likelihood(x, x, sigma=0.2)
    # Each sample is its own nearest, and alone: log N(x; x, σ²) − log 8.
    expected = -784 * math.log(0.2 * math.sqrt(2 * math.pi)) - math.log(8)
    assert found.mean == pytest.approx(expected, rel=1e-6)


def test_width_is_the_best_for_validation_data():
    """One sample at 0 and validation data of root mean square r in D dimensions: the best σ is r/√D."""
    validation = draws(200, 4)
    found = parzen_log_likelihood(torch.zeros(1, 4), validation, validation=validation)
    best = validation.square().mean().sqrt().item()
    # Two rounds of 25 candidates between about 0.1 and 2 of the spread: steps of (log 20)/24 · 2/24.
    assert math.log(found.sigma) == pytest.approx(math.log(best), abs=math.log(20) / 24 * 2 / 24)
    for factor in (0.9, 1.1):
        assert parzen_log_likelihood(torch.zeros(1, 4), validation, sigma=factor * best).mean < found.mean


def test_validation_data_among_the_samples_choose_no_width():
    samples = 100.0 * draws(60, 20)
    with pytest.raises(InputError, match="all validation data are among the samples"):
        parzen_log_likelihood(samples, samples, validation=samples[:40])


def test_width_in_one_dimension_is_far_above_the_distance_of_neighbors():
    samples, validation, test = draws(2000, 1), draws(500, 1, seed=1), draws(4000, 1, seed=2)
    found = parzen_log_likelihood(samples, test, validation=validation)
    assert 0.05 < found.sigma < 1.0  # Silverman's rule says 0.23
    # Against the entropy of N(0, 1): an estimate of log p is below it by little, beside the error of the mean.
    entropy = 0.5 * math.log(2 * math.pi * math.e)
    assert found.mean == pytest.approx(-entropy, abs=4.0 * found.standard_error + 0.02)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: parzen_log_likelihood(draws(3, 2), draws(3, 2)), "either sigma or validation data"),
        (lambda: parzen_log_likelihood(draws(3, 2), draws(3, 2), sigma=1.0, validation=draws(2, 2)), "either sigma"),
        (lambda: parzen_log_likelihood(draws(3, 2), draws(3, 3), sigma=1.0), "test have 3 numbers a datum"),
        (lambda: parzen_log_likelihood(draws(3, 2), draws(3, 2), sigma=0.0), "sigma must be a positive number"),
        (lambda: parzen_log_likelihood([1.0], draws(3, 2), sigma=1.0), "samples must be a tensor"),
        (
            lambda: parzen_log_likelihood(torch.zeros(3, 2), draws(3, 2), validation=torch.zeros(2, 2)),
            "all the same: no width fits",
        ),
        (lambda: frechet_distance(draws(3, 2), draws(3, 3)), r"\[N, D\] and \[M, D\], got \[3, 2\] and \[3, 3\]"),
        (lambda: frechet_distance(draws(1, 2), draws(3, 2)), "two rows or more, got 1 and 3"),
        (lambda: lenet_features(torch.zeros(1, 1, 8, 8), MLP(2)), "lenet must be a LeNet"),
        (lambda: fit_lenet(torch.zeros(4, 1, 8, 9), torch.zeros(4).long()), "square images"),
        (lambda: mode_coverage(draws(4, 2), lambda x: x), "one integer for each of 4 samples"),
        (lambda: mode_coverage(draws(4, 2), lambda x: torch.full((4,), 11)), "classes from 0 to 9, got 11 to 11"),
        (lambda: ring_coverage(draws(4, 2), draws(8, 3), 0.1), r"got \[4, 2\] and \[8, 3\]"),
        (lambda: ring_coverage(draws(4, 2), draws(8, 2), -0.1), "scale must be a positive number"),
        (lambda: ring_of_gaussians(0), "n must be an integer of at least 1, got 0"),
        (lambda: ring_of_gaussians(std=0.0), "std must be a positive number, got 0.0"),
    ],
)
def test_wrong_arguments_are_named(call, message):
    with pytest.raises(InputError, match=message):
        call()


# Modes.


def test_ring_is_covered_by_its_own_points():
    """Within 3σ in the plane lies 1 − exp(−9/2) = 98.9 % of a Gaussian."""
    ring = ring_of_gaussians(n=8000, seed=1)
    found = ring_coverage(ring.x, ring.centers, ring.std)
    share = 1.0 - math.exp(-4.5)
    assert found.quality == pytest.approx(share, abs=4.0 * math.sqrt(share * (1 - share) / 8000))
    assert found.present == 8
    assert found.missing == []
    assert torch.equal(torch.bincount(ring.mode, minlength=8) >= found.counts, torch.ones(8, dtype=torch.bool))


def test_ring_that_lost_modes_says_which():
    ring = ring_of_gaussians(n=800)
    found = ring_coverage(ring.x[(ring.mode != 2) & (ring.mode != 7)], ring.centers, ring.std)
    assert found.present == 6
    assert found.missing == [2, 7]
    assert ring_coverage(torch.zeros(10, 2), ring.centers, ring.std).quality == 0.0


def test_ring_has_the_density_it_says():
    ring = ring_of_gaussians(n=5, modes=4, radius=1.5, std=0.3)
    torch.testing.assert_close(ring.centers.norm(dim=1), torch.full((4,), 1.5))
    expected = Normal(ring.centers[None], 0.3).log_prob(ring.x[:, None]).sum(2).exp().mean(1).log()
    torch.testing.assert_close(ring.distribution.log_prob(ring.x), expected)


def test_nearest_distance_is_that_to_another_row():
    assert nearest_distance(torch.tensor([[0.0, 0.0], [3.0, 4.0], [3.0, 5.0]])) == pytest.approx((5.0 + 1.0 + 1.0) / 3)
    assert nearest_distance(torch.zeros(3, 1, 2, 2)) == 0.0


def test_twins_have_distance_zero_and_rows_far_from_the_origin_their_own():
    x = 100.0 * draws(50, 784)
    assert nearest_distance(torch.cat([x, x])) == 0.0
    x = draws(100, 2) + 1e8
    gaps = (x[:, None] - x).norm(dim=2).fill_diagonal_(math.inf)
    assert nearest_distance(x) == pytest.approx(float(gaps.amin(1).mean()), rel=1e-9)


def test_coverage_and_windows_do_not_depend_on_where_the_origin_is():
    """2²⁰ costs 20 of 53 bits of every coordinate: 1e-10 of 1, or 1e-7 of a scale of 1e-3."""
    centers, offset = draws(30, 2), 2.0**20
    samples = centers.repeat(4, 1) + 1e-3 * draws(120, 2, seed=1)
    here, there = ring_coverage(samples, centers, 1e-3), ring_coverage(samples + offset, centers + offset, 1e-3)
    assert torch.equal(here.counts, there.counts)
    expected = parzen_log_likelihood(centers, samples, sigma=1e-3).mean
    found = parzen_log_likelihood(centers + offset, samples + offset, sigma=1e-3).mean
    # each of log p moves by d·δ/σ², with d about 2σ and δ = 2e-10
    assert found == pytest.approx(expected, abs=4e-7)


def test_lenet_itself_is_taken():
    net = LeNet(size=8)
    assert lenet_features(torch.zeros(2, 1, 8, 8), net).shape == (2, 500)
    assert net.training
