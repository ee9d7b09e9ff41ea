"""The measurements of the experiment on super-resolution."""

from __future__ import annotations

import math

import pytest
import torch

from credo.experiments.networks.super_resolution import BAYES, _measure, _psnr
from credo.likelihoods import Gaussian


def test_psnr_of_crops_and_of_all_pixels():
    """Errors of 0.1 and 0.01 everywhere are 20 and 40 dB, together −10 log₁₀((10⁻² + 10⁻⁴)/2)."""
    y = torch.full((2, 1, 3, 4), 0.5)
    psnr = _psnr(y + torch.tensor([0.1, -0.01]).view(2, 1, 1, 1), y)
    assert psnr["PSNR of a crop, dB"] == pytest.approx(30.0, rel=1e-5)
    assert psnr["PSNR of all pixels, dB"] == pytest.approx(-10.0 * math.log10((1e-2 + 1e-4) / 2), rel=1e-5)


def test_pixels_are_rows_of_their_own():
    """For y ~ N(m, σ²) with the true m and σ, the log likelihood of a pixel is −½ log(2πeσ²) on average.

    Its variance is ½, and that of the coverage 0.95 · 0.05, over 2 · 40 · 40 independent pixels; 4 standard errors.
    """
    generator = torch.Generator().manual_seed(0)
    mean = torch.rand(2, 1, 40, 40, generator=generator)
    std = 0.02 + 0.1 * torch.rand(2, 1, 40, 40, generator=generator)
    y = mean + std * torch.randn(2, 1, 40, 40, generator=generator)
    p = Gaussian("heteroscedastic", output_dim=1).predictive(torch.cat([mean, 2 * std.log()], 1)[None])
    value = {row.quantity: row.mean for row in _measure(BAYES, p, p, mean, y)}
    n = y.numel()
    expected = -0.5 * (1 + (2 * math.pi * std.square()).log()).mean().item()
    assert abs(value[f"{BAYES}: log likelihood of a pixel, nats"] - expected) < 4 * math.sqrt(0.5 / n)
    assert abs(value[f"{BAYES}: coverage of 95 % intervals, %"] - 95) < 400 * math.sqrt(0.95 * 0.05 / n)
    assert value[f"{BAYES}: PSNR of a crop, dB, above bicubic"] == 0.0
    assert value[f"{BAYES}: epistemic std, gray levels of 255"] == 0.0
    aleatoric = 255 * std.square().mean().sqrt().item()
    assert value[f"{BAYES}: aleatoric std, gray levels of 255"] == pytest.approx(aleatoric, rel=1e-4)
    assert value[f"{BAYES}: AUSE of the total std"] < value[f"{BAYES}: AUSE of a random order"]
