"""The GAN on known densities: its value, its best discriminator, and its losses."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Normal

from credo.datasets import ring_of_gaussians
from credo.generative import GAN
from credo.generative.gan import discriminator_loss, generator_loss
from credo.seeding import seeded

CPU = torch.device("cpu")
SIGMAS = 4.0


def normal(mean: float, std: float) -> Normal:
    return Normal(torch.tensor(mean, dtype=torch.float64), torch.tensor(std, dtype=torch.float64))


P, Q = normal(-1.0, 1.0), normal(1.0, 1.0)


def grid() -> Tensor:
    return torch.linspace(-30.0, 30.0, 12_001, dtype=torch.float64)


def integral(values: Tensor) -> float:
    return torch.trapezoid(values, grid()).item()


def value_of(logit: Tensor, p: Normal, q: Normal) -> float:
    """V(D) by quadrature."""
    x = grid()
    return integral(p.log_prob(x).exp() * F.logsigmoid(logit) + q.log_prob(x).exp() * F.logsigmoid(-logit))


def best_logit(p: Normal, q: Normal) -> Tensor:
    """Of D* = p / (p + q)."""
    return p.log_prob(grid()) - q.log_prob(grid())


def jensen_shannon(p: Normal, q: Normal) -> float:
    x = grid()
    mixture = torch.logaddexp(p.log_prob(x), q.log_prob(x)) - math.log(2.0)
    halves = [integral(r.log_prob(x).exp() * (r.log_prob(x) - mixture)) for r in (p, q)]
    return sum(halves) / 2.0


def test_best_discriminator_is_p_over_p_plus_q_at_every_point():
    """y ↦ a log y + b log(1 − y) peaks at a/(a + b): no other value of D(x) does better anywhere."""
    x = grid()
    p, q = P.log_prob(x).exp(), Q.log_prob(x).exp()
    best = best_logit(P, Q)
    torch.testing.assert_close(best.sigmoid(), p / (p + q))
    at_best = p * F.logsigmoid(best) + q * F.logsigmoid(-best)
    for shift in (-3.0, -0.1, 0.1, 3.0):
        assert bool((p * F.logsigmoid(best + shift) + q * F.logsigmoid(-best - shift) <= at_best).all())


@pytest.mark.parametrize("q", [normal(1.0, 1.0), normal(-1.0, 2.0), normal(4.0, 0.5), normal(-1.0, 1.0)])
def test_value_is_twice_the_jensen_shannon_divergence_minus_log_4(q):
    assert value_of(best_logit(P, q), P, q) == pytest.approx(2.0 * jensen_shannon(P, q) - math.log(4.0), abs=1e-9)


def test_value_is_minus_log_4_for_equal_densities_and_0_for_distant_ones():
    assert value_of(best_logit(P, P), P, P) == pytest.approx(-math.log(4.0), abs=1e-9)
    far = normal(9.0, 0.2)
    assert value_of(best_logit(P, far), P, far) == pytest.approx(0.0, abs=1e-6)


def test_value_on_the_ring_by_monte_carlo():
    """Ring against a broad Gaussian: −V at D* is log 4 − 2 JSD, by draws of both within four standard errors."""
    p = ring_of_gaussians(std=0.3).distribution
    q = torch.distributions.Independent(Normal(torch.zeros(2), 1.5 * torch.ones(2)), 1)
    with seeded(0, CPU):
        x, y = p.sample((20_000,)), q.sample((20_000,))

    def logit(z: Tensor) -> Tensor:
        return (p.log_prob(z) - q.log_prob(z)).double()

    ours = -discriminator_loss(logit(x), logit(y)).item()
    # 2 JSD from its definition, by other draws.
    with seeded(1, CPU):
        x, y = p.sample((20_000,)), q.sample((20_000,))
    terms = [r.log_prob(z) - torch.logaddexp(p.log_prob(z), q.log_prob(z)) + math.log(2.0) for r, z in ((p, x), (q, y))]
    theirs = sum(t.double().mean().item() for t in terms) - math.log(4.0)
    error = math.sqrt(2.0 * sum(t.double().var().item() for t in terms) / 20_000)
    assert ours == pytest.approx(theirs, abs=SIGMAS * error)


def test_trained_discriminator_approaches_p_over_p_plus_q():
    """Against N(1, 1), data from N(−1, 1) have the linear logit −2x: logistic regression with known standard errors."""
    model = _against_fixed_gaussian()
    optimizer = torch.optim.LBFGS(model.discriminator.parameters(), line_search_fn="strong_wolfe")
    n = 20_000
    with seeded(1, CPU):
        x = P.sample((n, 1))

    def closure() -> Tensor:
        optimizer.zero_grad()
        with seeded(2, CPU):
            loss = model(x, network="discriminator")
        loss.backward()
        return loss

    for _ in range(5):
        loss = optimizer.step(closure)
    # Fisher information of n draws of each density; slope and bias do not mix, as the weight D*(1 − D*) is even.
    at, best = grid(), best_logit(P, Q)
    weight = (P.log_prob(at).exp() + Q.log_prob(at).exp()) * best.sigmoid() * (-best).sigmoid()
    slope_error, bias_error = (1.0 / math.sqrt(n * integral(weight * power)) for power in (at.square(), at**0))
    assert model.discriminator.weight.item() == pytest.approx(-2.0, abs=SIGMAS * slope_error)
    assert model.discriminator.bias.item() == pytest.approx(0.0, abs=SIGMAS * bias_error)

    def variance(density: Normal, values: Tensor) -> float:
        p = density.log_prob(at).exp()
        return integral(p * values.square()) - integral(p * values) ** 2

    error = math.sqrt((variance(P, F.logsigmoid(best)) + variance(Q, F.logsigmoid(-best))) / n)
    assert loss.item() == pytest.approx(math.log(4.0) - 2.0 * jensen_shannon(P, Q), abs=SIGMAS * error)


def _against_fixed_gaussian() -> GAN:
    with seeded(0, CPU):
        model = GAN(nn.Linear(1, 1), nn.Linear(1, 1), latent=1).double()
    with torch.no_grad():
        model.generator.weight.fill_(1.0)
        model.generator.bias.fill_(1.0)
    return model


def test_losses_match_the_paper():
    real, fake = torch.tensor([2.0, -1.0]), torch.tensor([0.5, 3.0])
    d_real, d_fake = real.sigmoid(), fake.sigmoid()
    assert discriminator_loss(real, fake).item() == pytest.approx(
        -(d_real.log().mean() + (1 - d_fake).log().mean()).item()
    )
    assert generator_loss(fake, "non_saturating").item() == pytest.approx(-d_fake.log().mean().item())
    assert generator_loss(fake, "minimax").item() == pytest.approx((1 - d_fake).log().mean().item())


def test_minimax_gradient_vanishes_if_the_discriminator_is_certain():
    """d log(1 − D)/dlogit = −D and d(−log D)/dlogit = D − 1."""
    logit = torch.tensor([-20.0], requires_grad=True)
    (minimax,) = torch.autograd.grad(generator_loss(logit, "minimax"), logit)
    (non_saturating,) = torch.autograd.grad(generator_loss(logit, "non_saturating"), logit)
    assert abs(minimax.item()) < 1e-8
    assert non_saturating.item() == pytest.approx(-1.0)
