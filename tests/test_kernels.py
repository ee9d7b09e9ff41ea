"""Kernels in Triton against the formulas they fuse; on a GPU, or on a CPU with TRITON_INTERPRET=1."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from credo import ScaleMixture, kernels
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
