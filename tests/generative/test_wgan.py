"""The Wasserstein GAN: the penalty of critics with known gradients, clipping, and mode coverage."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from credo.architectures import MLP, DCGANDiscriminator, DCGANGenerator
from credo.datasets import ring_of_gaussians
from credo.errors import InputError
from credo.generative import WGAN
from credo.generative.evaluation import ring_coverage
from credo.seeding import seeded

CPU = torch.device("cpu")


def points(n: int = 40, seed: int = 0) -> Tensor:
    with seeded(seed, CPU):
        return torch.randn(n, 2)


def build(critic: nn.Module | None = None, **options: object) -> WGAN:
    with seeded(0, CPU):
        return WGAN(MLP(3, (8,), 2), critic or MLP(2, (8,), 1), latent=3, **options)


class Quadratic(nn.Module):
    """f(x) = a ‖x‖²/2, whose gradient is a·x."""

    def __init__(self, a: float) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.tensor(a))

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * self.a * x.flatten(1).square().sum(1)


@pytest.mark.parametrize("w", [(0.0, 0.0), (0.6, 0.8), (3.0, 4.0)])
def test_penalty_of_a_linear_critic_matches_closed_form(w):
    critic = nn.Linear(2, 1)
    with torch.no_grad():
        critic.weight.copy_(torch.tensor([w]))
    penalty = build(critic)._gradient_penalty(points(7), points(7, seed=1))
    assert penalty.item() == pytest.approx((math.hypot(*w) - 1.0) ** 2, abs=1e-6)
    penalty.backward()
    # d(‖w‖ − 1)²/dw = 2(‖w‖ − 1)·w/‖w‖; at 0, where there is none, torch takes 0.
    norm = math.hypot(*w)
    expected = torch.tensor([[2.0 * (norm - 1.0) * v / norm if norm else 0.0 for v in w]])
    torch.testing.assert_close(critic.weight.grad, expected)


def test_penalty_of_a_quadratic_critic_matches_its_integral():
    """Between r·u and s·u the point t·u, t ~ U(r, s), has gradient norm a·t: E(at − 1)² by its integral."""
    a, r, s = 0.7, 1.0, 3.0
    direction = torch.tensor([[0.6, 0.8]])
    n = 4000
    model = build(Quadratic(a))
    with seeded(0, CPU):
        penalty = model._gradient_penalty((r * direction).expand(n, 2), (s * direction).expand(n, 2))
    moments = {k: (s ** (k + 1) - r ** (k + 1)) / ((k + 1) * (s - r)) for k in range(5)}
    mean = a**2 * moments[2] - 2 * a * moments[1] + 1.0
    powers = {4: a**4, 3: -4 * a**3, 2: 6 * a**2, 1: -4 * a, 0: 1.0}
    variance = sum(factor * moments[k] for k, factor in powers.items()) - mean**2
    assert penalty.item() == pytest.approx(mean, abs=4.0 * math.sqrt(variance / n))
    penalty.backward()
    # The same integral differentiated by a.
    spread = math.sqrt(
        sum((2 * a * t * t - 2 * t - (2 * a * moments[2] - 2 * moments[1])) ** 2 for t in _even(r, s)) / 1000
    )
    slope = 2 * a * moments[2] - 2 * moments[1]
    assert model.discriminator.a.grad.item() == pytest.approx(slope, abs=4.0 * spread / math.sqrt(n))


def _even(low: float, high: float, count: int = 1000) -> list[float]:
    return [low + (high - low) * (i + 0.5) / count for i in range(count)]


def test_penalty_of_images_uses_all_pixels():
    with seeded(0, CPU):
        generator, critic = DCGANGenerator(4, (1, 8, 8), 2), Quadratic(1.0)
        model = WGAN(generator, critic, latent=4)
        x = torch.randn(5, 1, 8, 8)
    norms = x.flatten(1).norm(dim=1)
    assert model._gradient_penalty(x, x).item() == pytest.approx((norms - 1.0).square().mean().item(), rel=1e-5)


def test_losses_match_the_papers():
    model, x = build(nn.Linear(2, 1), penalty="clip"), points()
    with seeded(1, CPU):
        fake = model.generator(model.noise(len(x)))
    with seeded(1, CPU):
        critic = model(x)
        terms = model._last_terms
    distance = (model._discriminate(x).mean() - model._discriminate(fake).mean()).item()
    assert critic.item() == pytest.approx(-distance, abs=1e-6)
    assert terms["wasserstein"].item() == pytest.approx(distance, abs=1e-6)
    with seeded(1, CPU):
        assert model(x, network="generator").item() == pytest.approx(-model._discriminate(fake).mean().item(), abs=1e-6)


@pytest.mark.parametrize("optimizer", [None, torch.optim.RMSprop])
def test_clipping_bounds_the_critic_weights(optimizer):
    model = build(penalty="clip", clip=0.03).fit(points(), epochs=5, batch_size=8, lr=1e-2, seed=0, optimizer=optimizer)
    assert max(p.abs().max().item() for p in model.discriminator.parameters()) <= 0.03
    assert max(p.abs().max().item() for p in model.generator.parameters()) > 0.03


def test_history_contains_distance_and_penalty():
    model = build().fit(points(), epochs=5, batch_size=8, seed=0)
    assert {"discriminator", "generator", "wasserstein", "gradient_penalty"} <= model.history[-1].keys()
    entry = model.history[-1]
    assert entry["discriminator"] == pytest.approx(10.0 * entry["gradient_penalty"] - entry["wasserstein"])
    assert model._training_task().progress_text(entry).startswith("Wasserstein distance")


def test_trained_critic_estimates_the_distance_of_two_points():
    """Data at 0 and samples at distance 2: W = 2; the penalty allows a slope of 1 + 1/λ, so up to 2.2 for λ = 10.

    A linear critic of slope w has the loss λ(w − 1)² − 2w, least at w = 1 + 1/λ.
    """
    model = build(nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.discriminator.parameters(), lr=0.02)
    real, fake = torch.zeros(4, 2), torch.tensor([[0.0, 2.0]]).expand(4, 2)
    for _ in range(400):
        optimizer.zero_grad()
        objective = model._discriminator_objective(real, fake, fake)
        objective.loss.backward()
        optimizer.step()
    assert objective.terms["wasserstein"].item() == pytest.approx(2.0 * 1.1, abs=1e-3)


@pytest.mark.slow
def test_finds_all_eight_modes_of_the_ring():
    ring = ring_of_gaussians(2048)
    with seeded(0, CPU):
        model = WGAN(MLP(2, (64, 64), 2), MLP(2, (64, 64), 1), latent=2, penalty_weight=1.0)
    model.fit(ring.x, epochs=150, batch_size=256, lr=2e-3, seed=0)
    samples = model.sample(2000, seed=1)
    assert ring_coverage(samples, ring.centers, ring.std).present == 8
    # Each center is the nearest of an eighth of all; a mode lost, or taken for two, would be at 0 or at a quarter.
    shares = ring_coverage(samples, ring.centers, scale=2.0).counts / 2000
    assert shares.min() > 1 / 16
    assert shares.max() < 1 / 4


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: build(penalty="gradients"), "unknown penalty 'gradients': did you mean 'gradient'"),
        (lambda: build(penalty_weight=0.0), "penalty_weight must be a positive number"),
        (lambda: build(clip=-1.0), "clip must be a positive number"),
        (
            lambda: WGAN(DCGANGenerator(4, (1, 8, 8), 2), DCGANDiscriminator((1, 8, 8), 2), latent=4),
            "must not contain batch norm for penalty='gradient'",
        ),
    ],
)
def test_bad_arguments_raise(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_gradient_penalty_with_an_image_critic_without_batch_norm():
    with seeded(0, CPU):
        critic = DCGANDiscriminator((1, 8, 8), 2, batch_norm=False)
        model = WGAN(DCGANGenerator(4, (1, 8, 8), 2), critic, latent=4)
        x = 2.0 * torch.rand(12, 1, 8, 8) - 1.0
    assert math.isfinite(model.fit(x, epochs=5, batch_size=6, seed=0).history[-1]["generator"])
