"""Kernels in Triton against the formulas they fuse; on a GPU, or on a CPU with TRITON_INTERPRET=1."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Normal, kl_divergence

import credo
from credo import ScaleMixture, kernels
from credo.functional import Sampler, stack_draws
from credo.methods._newton_steps import NewtonSteps, Noise, Weight
from credo.posteriors._gaussian_sampler import RowSampler, gaussian_sampler
from credo.training.optimizers import NaturalAdam

pytestmark = pytest.mark.skipif(not kernels.is_available(), reason="needs Triton and a CUDA device")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SIZES = (3000, 5)


def tensors(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=generator).to(DEVICE) for size in SIZES]


def rhos() -> list[Tensor]:
    """From far below to far above zero."""
    return [torch.linspace(-30.0, 30.0, SIZES[0], device=DEVICE), tensors(1)[1] - 5.0]


@pytest.mark.parametrize("squared", [False, True])
def test_scales_kl_and_their_derivatives(squared: bool) -> None:
    """Against float64.

    Tolerances: a rounding error of ρ ≥ −30 is one of 30·6e-8 ≤ 2e-6 in exp(ρ), and twice that in its square;
    derivatives are differences of numbers in float32, 1e-4.
    """
    means, scale, weight = tensors(0), torch.tensor(0.7, device=DEVICE), torch.tensor(0.37, device=DEVICE)
    values, kl = kernels.scales_and_kl(means, rhos(), scale, squared)
    exact_means = [mean.double().requires_grad_() for mean in means]
    exact_rhos = [rho.double().requires_grad_() for rho in rhos()]
    sigmas = [F.softplus(rho, threshold=50.0) for rho in exact_rhos]
    exact_values = [0.5 * sigma.square() if squared else sigma for sigma in sigmas]
    prior = Normal(0.0, scale.double())
    terms = [kl_divergence(Normal(*pair), prior).sum() for pair in zip(exact_means, sigmas, strict=True)]
    exact_kl = torch.stack(terms).sum()
    torch.testing.assert_close(kl.double(), exact_kl, rtol=1e-6, atol=0.0)
    for value, exact in zip(values, exact_values, strict=True):
        torch.testing.assert_close(value.double(), exact, rtol=4e-6, atol=0.0)

    grads = tensors(2)
    loss = weight.double() * exact_kl
    for value, grad in zip(exact_values, grads, strict=True):
        loss = loss + (value * grad.double()).sum()
    expected = torch.autograd.grad(loss, [*exact_means, *exact_rhos])
    found = kernels.scales_and_kl_backward(means, rhos(), scale, squared, grads, weight)
    for ours, exact in zip([*found[0], *found[1]], expected, strict=True):
        torch.testing.assert_close(ours.double(), exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("is_weight", [False, True])
def test_kl_under_a_scale_mixture(is_weight: bool) -> None:
    """Against float64, from −6 to 6 for ρ, so that (w − μ)/σ loses at most 3 digits; tolerance: 1e-3."""
    prior = ScaleMixture(0.3, 1.0, 0.1)
    mean, rho = tensors(0)[0], torch.linspace(-6.0, 6.0, SIZES[0], device=DEVICE)
    draw = torch.addcmul(mean, F.softplus(rho), tensors(3)[0]) if is_weight else tensors(3)[0]
    exact_mean, exact_rho = mean.double().requires_grad_(), rho.double().requires_grad_()
    sigma = F.softplus(exact_rho)
    noise = ((draw.double() - exact_mean) / sigma).detach() if is_weight else draw.double()
    log_q = -sigma.log() - 0.5 * noise.square() - 0.5 * math.log(2.0 * math.pi)
    exact = (log_q - prior.log_prob(exact_mean + sigma * noise)).sum()
    expected = torch.autograd.grad(2.0 * exact, [exact_mean, exact_rho])
    kl = kernels.mixture_kl(mean, rho, draw, is_weight, prior.constants)
    torch.testing.assert_close(kl.double(), exact.detach(), rtol=1e-5, atol=0.0)
    two = torch.tensor(2.0, device=DEVICE)
    found = kernels.mixture_kl_backward(mean, rho, draw, is_weight, prior.constants, two)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-3, atol=1e-3)


def test_noise_of_an_output() -> None:
    """One element has no variance: it stays as it is. Tolerance: float32 rounding."""
    output, noise, half = tensors(0)[0], tensors(1)[0], tensors(2)[0].square()
    half[7] = 0.0
    ratio = noise.clone()
    result = kernels.add_noise(output, half, ratio)
    deviation = (2.0 * half).sqrt()
    torch.testing.assert_close(result, output + deviation * noise, rtol=1e-6, atol=1e-6)
    seen = half > 0
    torch.testing.assert_close(ratio[seen], (noise / deviation)[seen], rtol=1e-6, atol=1e-6)
    assert bool(ratio.isfinite().all())


def test_a_fused_step_is_that_of_the_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three steps, with a parameter that has no scale.

    Tolerance: the operations stretch the difference of two weights in float32, by up to 100·σ ≤ 70; with |μ| ≤ 4 and a
    rounding error of 6e-8 that is 70·4·6e-8 ≤ 2e-5 per step.
    """

    def train(fused: bool) -> list[Tensor]:
        monkeypatch.setattr(kernels, "accepts", lambda given: fused)
        means, scales, other = (
            copy.deepcopy(tensors(0)),
            [rho.clamp(max=0.0) for rho in rhos()],
            torch.ones(4).to(DEVICE),
        )
        parameters = [p.requires_grad_() for p in (*means, *scales, other)]
        optimizer = NaturalAdam([{"params": parameters, "weight_decay": 0.1}], dict(zip(means, scales, strict=True)))
        for group in optimizer.param_groups:
            dtype = torch.float64 if DEVICE == "cpu" else torch.float32
            group["lr"] = torch.tensor(float(group["lr"]), device=DEVICE, dtype=dtype)
            group["capturable"] = DEVICE == "cuda"
        for step in range(3):
            for k, parameter in enumerate(parameters):
                generator = torch.Generator().manual_seed(10 * step + k)
                parameter.grad = torch.randn(parameter.shape, generator=generator).to(DEVICE)
            optimizer.step()
        return [parameter.detach() for parameter in parameters]

    for ours, theirs in zip(train(True), train(False), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=6e-5)


DRAW_SHAPES = {"weight": (60, 70), "bias": (7,), "empty": (0, 3), "scalar": ()}
"""More than one block of 2,048 weights, and a tensor that leaves most of its block empty."""


def sampler(seed: int, antithetic: bool = False) -> Sampler:
    shapes = DRAW_SHAPES.items()
    mean = {name: torch.linspace(-3.0, 3.0, math.prod(shape)).reshape(shape).to(DEVICE) for name, shape in shapes}
    scale = {name: value.abs() / 2.0 + 0.1 for name, value in mean.items()}
    made = gaussian_sampler(mean, scale, seed, antithetic)
    assert isinstance(made, RowSampler)
    return made


def noise(seed: int, numbers: Sequence[int]) -> Tensor:
    """ε of the largest tensor, ``[K, n]``."""
    mean = torch.linspace(-3.0, 3.0, math.prod(DRAW_SHAPES["weight"])).to(DEVICE)
    drawn = torch.stack([draw["weight"].flatten() for draw in sampler(seed)(numbers)])
    return ((drawn - mean) / (mean.abs() / 2.0 + 0.1)).double().cpu()


def test_draws_are_standard_normal() -> None:
    """Of 40 × 4,200 numbers, moments, correlations of neighbours and tails within 4 standard errors.

    The k-th moment has the variance (E ε²ᵏ − (E εᵏ)²)/N: 1, 2, 15, 96 for k = 1 to 4; a product of two different
    numbers 1/N; the share beyond t, p(1 − p)/N. A rounding error of w, 5·6e-8, is one of 3e-6 in ε, since σ ≥ 0.1.
    """
    epsilon = noise(3, range(40))
    count = epsilon.numel()
    for k, (moment, variance) in enumerate([(0.0, 1.0), (1.0, 2.0), (0.0, 15.0), (3.0, 96.0)], 1):
        assert abs(float(epsilon.pow(k).mean()) - moment) < 4.0 * (variance / count) ** 0.5
    quads = epsilon[:, :4096].reshape(40, 2, 4, 512)  # the four numbers of a call of Philox lie 512 apart
    products = [
        epsilon[:, 1:] * epsilon[:, :-1],
        epsilon[1:] * epsilon[:-1],
        *(quads[:, :, a] * quads[:, :, b] for a in range(4) for b in range(a)),
        *((quads[:, :, a] ** 2 - 1.0) * (quads[:, :, b] ** 2 - 1.0) / 2.0 for a in range(4) for b in range(a)),
    ]
    for product in products:
        assert abs(float(product.mean())) < 4.0 * product.numel() ** -0.5
    for limit in (-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0):
        share = 0.5 * math.erfc(-limit / 2.0**0.5)
        assert abs(float((epsilon < limit).double().mean()) - share) < 4.0 * (share * (1.0 - share) / count) ** 0.5


def test_a_draw_is_a_function_of_the_seed_and_its_number() -> None:
    """Also beyond 32 bits of the number; draws of other seeds are not correlated, within 4 standard errors."""
    numbers = [0, 1, 5, 2**33 + 5, 2**33 + 6]
    together = [{name: value.clone() for name, value in draw.items()} for draw in sampler(3)(numbers)]
    again = sampler(3)
    again(range(9))
    for number, expected in zip(numbers, together, strict=True):
        for name, value in again([number])[0].items():
            assert value.shape == DRAW_SHAPES[name]
            assert torch.equal(value, expected[name])
    mixed = [noise(3, [0])[0], noise(3, [5])[0], noise(3, [2**33 + 5])[0], noise(4, [0])[0], noise(2**62, [0])[0]]
    for a in range(len(mixed)):
        for b in range(a):
            assert abs(float((mixed[a] * mixed[b]).mean())) < 4.0 * len(mixed[a]) ** -0.5


def test_antithetic_draws_come_in_pairs() -> None:
    """Their mean is μ, and the first of a pair has the noise of stream k. Tolerance: float32 rounding of |w| < 16."""
    pairs = [{name: value.clone() for name, value in draw.items()} for draw in sampler(3, antithetic=True)([6, 7])]
    single = sampler(3)([3])[0]
    for name, value in single.items():
        torch.testing.assert_close(pairs[0][name], value, rtol=0.0, atol=2e-6)
        expected = torch.linspace(-3.0, 3.0, value.numel()).reshape(value.shape).to(DEVICE)
        torch.testing.assert_close((pairs[0][name] + pairs[1][name]) / 2.0, expected, rtol=0.0, atol=2e-6)


def test_draws_are_adjacent() -> None:
    """Stacking copies nothing, and neither do weights of a multiple of 32 numbers leave gaps."""
    draws = sampler(0)(range(3))
    assert stack_draws(draws)["bias"].data_ptr() == draws[0]["bias"].data_ptr()
    mean = torch.zeros(8, 16, device=DEVICE)
    assert stack_draws(gaussian_sampler({"w": mean}, {"w": mean + 1.0}, 0, False)(range(3)))["w"].is_contiguous()


def newton_model(exact: bool, warmup: int) -> credo.IVON:
    """A linear layer with σ from 1e-4 to 2, in float64 if ``exact``."""
    net = torch.nn.Linear(60, 50).to(DEVICE)
    model = credo.IVON(net, credo.Categorical(), credo.Normal(0.1, 0.7), kl_warmup=warmup)
    for seed, (mean, rho) in enumerate(model.posterior.scale_parameters().items()):
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            mean.copy_(torch.randn(mean.shape, generator=generator))
            rho.copy_(torch.linspace(-9.0, 2.0, rho.numel()).view(rho.shape))
    model.n_data, model._rows = 200, 1  # so few that they limit the learning rate
    return model.double() if exact else model


@pytest.mark.parametrize("warmup", [0, 3])
@pytest.mark.parametrize("clip", [None, 1e-3])
def test_a_fused_step_of_ivon_is_that_of_the_operations(
    warmup: int, clip: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four steps against float64, of weights that were drawn and of a bias whose noise was that of outputs.

    Tolerance: the numbers of a step are sums of at most ten terms whose sizes differ by at most 1e3, so 1e3·6e-8·10.
    """

    def train(fused: bool) -> list[Tensor]:
        monkeypatch.setattr(kernels, "accepts", lambda given: fused)
        model = newton_model(exact=not fused, warmup=warmup)
        model._clip_radius = clip
        rhos = model.posterior.scale_parameters()
        weights = [Weight(name, mean, rhos[mean]) for name, mean in model.net.named_parameters()]
        steps = NewtonSteps([{"params": list(model.parameters())}], weights, 0.3, model)
        for number in range(4):
            model._warmup.steps.add_(1)
            generator = torch.Generator().manual_seed(number)
            model._noise = {}
            for name, mean, rho in weights:
                grad, noise = (torch.randn(mean.shape, generator=generator).to(mean) for _ in range(2))
                scale = F.softplus(rho.detach())
                mean.grad = 0.05 * grad
                if name == "weight":
                    model._noise[name] = Noise(None if fused else scale, scale * noise)
                else:
                    model._noise[name], rho.grad = Noise(scale, None), 0.05 * noise
            steps.step()
        states = [steps.state[mean][key] for _, mean, _ in weights for key in ("momentum", "square", "step")]
        return [t.detach().double() for t in (*model.parameters(), *states)]

    for ours, exact in zip(train(True), train(False), strict=True):
        torch.testing.assert_close(ours, exact, rtol=6e-4, atol=6e-4 * float(exact.abs().mean()))


def test_weights_drawn_by_a_kernel_have_the_moments_of_the_posterior() -> None:
    """Mean and variance of 400 draws per weight within 5 standard errors, and gradients that are those of θ."""
    model = newton_model(exact=False, warmup=0)
    model._is_newton_step = True
    torch.manual_seed(0)
    names = model.posterior.names()
    draws = [model._draw(names, {}) for _ in range(400)]
    for name, mean in model.net.named_parameters():
        scale = model.posterior.scale()[name].detach()
        noise = ((torch.stack([draw[name] for draw in draws]) - mean) / scale).detach().double()
        assert float(noise.mean().abs()) < 5.0 * noise.numel() ** -0.5
        assert abs(float(noise.square().mean()) - 1.0) < 5.0 * (2.0 / noise.numel()) ** 0.5
        shift = model._noise[name].shift
        assert shift is not None
        torch.testing.assert_close(draws[-1][name], mean + shift)
        (grad,) = torch.autograd.grad(draws[-1][name].square().sum(), mean)
        torch.testing.assert_close(grad, 2.0 * draws[-1][name])
