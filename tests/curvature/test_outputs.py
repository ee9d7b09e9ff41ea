"""The curvature of a likelihood in the network's output: closed forms against automatic differentiation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from torch import Tensor
from torch.func import jacrev

import credo
from credo.curvature import output_factors
from credo.likelihoods import Likelihood


def curvature(likelihood: Likelihood, output: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
    factors = output_factors(likelihood, output, y, weight)
    return torch.einsum("kbi,kbj->bij", factors, factors)


def by_autograd(likelihood: Likelihood, output: Tensor, y: Tensor) -> Tensor:
    rows = []
    for f, target in zip(output, y, strict=True):
        value: Any = jacrev(jacrev(lambda f, target=target: -likelihood.log_prob(f[None], target[None])[0]))(f)
        rows.append(value.reshape(f.numel(), f.numel()))
    return torch.stack(rows)


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


LABELS = torch.tensor([0, 2, 1, 2])
IMAGE = torch.tensor([[[0, 1], [2, 2]], [[1, 1], [255, 0]]])
CASES: dict[str, tuple[Likelihood, Tensor, Tensor]] = {
    "gaussian": (credo.Gaussian(0.3), normal(4, 2), normal(4, 2)),
    "gaussian, outputs [B]": (credo.Gaussian(0.3), normal(4), normal(4)),
    "gaussian-per-output": (credo.Gaussian([0.3, 2.0]), normal(4, 2), normal(4, 2)),
    "gaussian-learned": (credo.Gaussian("learned", initial=0.7), normal(4, 2, 3), normal(4, 2, 3)),
    "categorical": (credo.Categorical(), normal(4, 3), LABELS),
    "categorical-weight": (credo.Categorical(weight=[0.5, 1.0, 3.0]), normal(4, 3), LABELS),
    "categorical-image": (
        credo.Categorical(class_dim=1, ignore_index=255, weight=[0.5, 1.0, 3.0]),
        normal(2, 3, 2, 2),
        IMAGE,
    ),
    "bernoulli": (credo.Bernoulli(), normal(4, 2), normal(4, 2) > 0),
    "poisson": (credo.Poisson(), normal(4, 2), torch.arange(8.0).view(4, 2)),
}


@pytest.mark.parametrize("name", CASES)
def test_closed_forms_equal_the_hessian(name: str) -> None:
    likelihood, output, y = CASES[name]
    torch.testing.assert_close(curvature(likelihood, output, y), by_autograd(likelihood, output, y))


@pytest.mark.parametrize("name", ["gaussian", "categorical", "bernoulli", "poisson"])
def test_likelihoods_without_a_closed_form_are_differentiated(name: str) -> None:
    likelihood, output, y = CASES[name]

    class Own(Likelihood):
        def components(self, outputs: Tensor) -> Any:
            return likelihood.components(outputs)

        def get_config(self) -> dict[str, object]:
            return {}

    torch.testing.assert_close(curvature(Own(), output, y), by_autograd(likelihood, output, y), atol=1e-10, rtol=1e-7)


def test_logit_noise_gives_a_positive_semidefinite_matrix() -> None:
    found = curvature(credo.Categorical(logit_noise=True, noise_samples=16), normal(4, 6), LABELS)
    assert bool((torch.linalg.eigvalsh(found) > -1e-12).all())


def test_heteroscedastic_noise_has_the_fisher_information() -> None:
    """E_y of the Hessian; it is quadratic in y, so three Gauss–Hermite nodes are exact."""
    likelihood, output = credo.Gaussian("heteroscedastic"), normal(4, 4)
    nodes, weights = np.polynomial.hermite_e.hermegauss(3)
    mean, scale = output[:, :2], (0.5 * output[:, 2:]).exp()
    expected = sum(
        w / math.sqrt(2.0 * math.pi) * by_autograd(likelihood, output, mean + z * scale)
        for z, w in zip(nodes, weights, strict=True)
    )
    torch.testing.assert_close(curvature(likelihood, output, mean), torch.as_tensor(expected))


@pytest.mark.parametrize("noise", [0.4, "heteroscedastic"])
def test_log_normal_noise_has_the_curvature_of_gaussian_noise_on_the_logarithm(noise: Any) -> None:
    output, y = normal(4, 4), normal(4, 2 if noise == "heteroscedastic" else 4)
    expected = curvature(credo.Gaussian(noise), output, y)
    torch.testing.assert_close(curvature(credo.LogNormal(noise), output, y.exp()), expected)


def test_student_t_noise_has_the_fisher_information() -> None:
    """E[(∂ log p)²] by quadrature, for the location and the log of the squared scale."""
    df, scale = 5.0, 0.7
    likelihood = credo.StudentT(df, "heteroscedastic")
    output = torch.tensor([[0.2, 2.0 * math.log(scale)]], dtype=torch.float64)

    def moment(index: int) -> float:
        def integrand(y: float) -> float:
            f = output.clone().requires_grad_()
            log_p = likelihood.log_prob(f, torch.tensor([[y]], dtype=torch.float64))[0]
            (score,) = torch.autograd.grad(log_p, f)
            return float(log_p.detach().exp() * score[0, index] ** 2)

        return float(quad(integrand, -60.0, 60.0, limit=200, points=[0.2])[0])

    found = curvature(likelihood, output, torch.zeros(1, 1, dtype=torch.float64))[0]
    torch.testing.assert_close(found, torch.diag(torch.tensor([moment(0), moment(1)])).double(), rtol=1e-4, atol=1e-9)


def test_sample_weights_are_factors() -> None:
    likelihood, output, y = CASES["categorical"]
    weight = torch.tensor([0.0, 1.0, 2.0, 0.5], dtype=torch.float64)
    torch.testing.assert_close(
        curvature(likelihood, output, y, weight), weight[:, None, None] * curvature(likelihood, output, y)
    )
