"""Codebooks against closed forms: nearest codes, moving averages, revival, and k-means as a special case."""

from __future__ import annotations

import itertools

import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.datasets import make_blobs
from torch import nn

import credo
from credo.generative import VQVAE
from credo.generative.codebook import GradientCodebook, MovingAverageCodebook, perplexity
from credo.seeding import seeded

CPU = torch.device("cpu")


@pytest.mark.parametrize("grid", [(), (4,), (2, 3)])
def test_nearest_code_matches_brute_force(grid):
    with seeded(0, CPU):
        book = MovingAverageCodebook(50, 6, None, 0.9).double()
        book.vectors.copy_(torch.randn(50, 6, dtype=torch.float64))
        z = torch.randn(7, 6, *grid, dtype=torch.float64)
    codes = book.nearest(z)
    assert codes.shape == (7, *grid)
    for place in itertools.product(range(7), *map(range, grid)):
        row, *rest = place
        vector = z[(row, slice(None), *rest)]
        distances = [float((vector - e).square().sum()) for e in book.vectors]
        assert int(codes[place]) == distances.index(min(distances))
        assert torch.equal(book.look_up(codes)[(row, slice(None), *rest)], book.vectors[codes[place]])


def test_nearest_code_does_not_depend_on_the_origin():
    """The offset leaves multiples of 1/1024 exact in single precision."""
    with seeded(0, CPU):
        book = MovingAverageCodebook(50, 6, None, 0.9)
        book.vectors.copy_((1024.0 * torch.rand(50, 6)).round() / 1024.0)
        z = (1024.0 * torch.rand(200, 6)).round() / 1024.0
    codes = book.nearest(z)
    book.vectors += 4096.0
    assert torch.equal(book.nearest(z + 4096.0), codes)


def test_moving_averages_match_closed_form_on_constant_input():
    """N_t = γ^t + (1 − γ^t) n and m_t = γ^t e_0 + (1 − γ^t) n c; codes that get nothing keep γ^t of both."""
    decay, steps, n = 0.9, 25, 12
    with seeded(0, CPU):
        book = MovingAverageCodebook(4, 2, None, decay).double()
    start, c = book.vectors.clone(), torch.tensor([3.0, -1.0], dtype=torch.float64)
    z = c.expand(n, 2)
    winner = int(book.nearest(z)[0])
    for _ in range(steps):
        codes = book.nearest(z)
        assert (codes == winner).all()
        book.update(z, codes, torch.ones(n))
    kept = decay**steps
    counts, sums = torch.full((4,), kept, dtype=torch.float64), kept * start
    counts[winner] += (1 - kept) * n
    sums[winner] += (1 - kept) * n * c
    total = counts.sum()
    smoothed = total * (counts + 1e-5) / (total + 4e-5)
    torch.testing.assert_close(book.counts, counts)
    torch.testing.assert_close(book.sums, sums)
    torch.testing.assert_close(book.vectors, sums / smoothed[:, None])


@pytest.mark.parametrize("make", [lambda: MovingAverageCodebook(8, 2, None, 0.5), lambda: GradientCodebook(8, 2, None)])
def test_codebook_uses_sample_weights(make):
    """A datum of weight 2 is one that comes twice, one of weight 0 does not come at all."""
    with seeded(0, CPU):
        once, twice = make(), make()
        twice.load_state_dict(once.state_dict())
        z = torch.randn(4, 2, 3)
    once.update(z, once.nearest(z), torch.tensor([2.0, 1.0, 0.0, 1.0]))
    rows = z[[0, 0, 1, 3]]
    twice.update(rows, twice.nearest(rows), torch.ones(4))
    for name, value in twice.state_dict().items():
        torch.testing.assert_close(once.state_dict()[name], value)


def test_perplexity_of_even_and_single_use():
    assert perplexity(torch.full((12,), 7.0)) == pytest.approx(12.0)
    assert perplexity(torch.tensor([0.0, 9.0, 0.0])) == 1.0
    p = torch.tensor([0.5, 0.25, 0.25, 0.0])
    assert perplexity(40 * p) == pytest.approx(2**1.5)


@pytest.mark.parametrize("update", ["ema", "loss"])
def test_idle_codes_restart_at_encoder_outputs(update):
    with seeded(0, CPU):
        book = MovingAverageCodebook(4, 2, 3.0, 0.9) if update == "ema" else GradientCodebook(4, 2, 3.0)
        with torch.no_grad():
            far = torch.tensor([[0.0, 0.0], [100.0, 0.0], [0.0, 100.0], [-100.0, 0.0]])
            for name, value in book.named_parameters() if update == "loss" else book.named_buffers():
                if name in ("vectors", "sums"):
                    value.copy_(far)
            book.idle.zero_()
        z = 0.1 * torch.randn(4, 2)
        moved = []
        for _ in range(3):
            book.update(z, book.nearest(z), torch.ones(4))
            moved.append((book.vectors[1:] - far[1:]).norm(dim=1) > 50.0)
    assert [bool(gone.any()) for gone in moved] == [False, False, True]  # four vectors a batch are one per code
    assert moved[-1].all()
    assert all(bool((z == e).all(1).any()) for e in book.vectors[1:].detach())
    assert torch.equal(book.idle, torch.zeros(4))
    if update == "ema":
        assert torch.equal(book.counts[1:], torch.ones(3))
        assert torch.equal(book.sums[1:], book.vectors[1:])


def test_without_revival_no_code_is_restarted():
    with seeded(0, CPU):
        book = GradientCodebook(4, 2, None)
        before, z = book.vectors.detach().clone(), torch.randn(30, 2)
        for _ in range(20):
            book.update(z, torch.zeros(30, dtype=torch.long), torch.ones(30))
    assert torch.equal(book.vectors, before)
    assert float(book.idle[1]) == 20 * 30 / 4


def test_identity_networks_give_k_means():
    """Codes that are averages of what lies nearest to them are a fixed point of Lloyd's algorithm.

    From one point of every cluster it is the best one, which k-means finds with ten starts. An average over the last
    1/(1 − γ) = 10 batches with some 30 points of a cluster adds (1 − γ)/(1 + γ)/30 = 0.2 % to the inertia.
    """
    points, labels = make_blobs(1000, centers=8, cluster_std=0.6, random_state=0)
    x = torch.as_tensor(points, dtype=torch.float32)
    model = VQVAE(nn.Identity(), nn.Identity(), latent=2, codes=8, likelihood=credo.Gaussian(), decay=0.9)
    one_of_each = x[[int((labels == k).argmax()) for k in range(8)]]
    model.codebook.restart(torch.ones(8, dtype=torch.bool), one_of_each)
    model.fit(x, epochs=30, batch_size=250, seed=0)
    best = KMeans(8, n_init=10, random_state=0).fit(points)
    inertia = float((x - model.reconstruct(x)).square().sum())
    assert inertia == pytest.approx(best.inertia_, rel=0.01)
    order = torch.cdist(one_of_each.double(), torch.as_tensor(best.cluster_centers_)).argmin(1)
    # a standard error of 0.6·√(0.1/1.9/30) = 0.025 in each direction
    torch.testing.assert_close(
        model.codebook.vectors.double(), torch.as_tensor(best.cluster_centers_)[order], rtol=0, atol=0.1
    )


def test_identity_networks_from_a_random_start_reach_a_fixed_point_of_lloyd():
    points, _ = make_blobs(600, centers=8, cluster_std=0.6, random_state=0)
    x = torch.as_tensor(points, dtype=torch.float32)
    with seeded(0, CPU):
        model = VQVAE(nn.Identity(), nn.Identity(), latent=2, codes=12, likelihood=credo.Gaussian(), decay=0.5)
    model.fit(x, epochs=60, batch_size=600, seed=0)
    inertia = float((x - model.reconstruct(x)).square().sum())
    continued = KMeans(12, init=model.codebook.vectors.double().numpy(), n_init=1).fit(points)
    assert inertia == pytest.approx(continued.inertia_, rel=1e-3)
    assert model.history[-1]["perplexity"] > 6.0
