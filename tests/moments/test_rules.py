"""Every rule of moment propagation against quadrature, exact sums or Monte Carlo, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from credo.errors import UnsupportedError
from credo.moments.gaussian import FunctionMoments, clamp, rectifier, smooth
from credo.moments.tensors import Moments, Pass

ROWS = 4


def run(function: Callable[[Any], Any], *inputs: Any, start: int = -1) -> Any:
    """``function`` inside a pass of moments."""
    net = nn.Identity()
    with Pass(ROWS, start).running(net), torch.no_grad():
        return function(*inputs)


def activations(*shape: int, seed: int = 0) -> Moments:
    source = torch.Generator().manual_seed(seed)
    mean = torch.randn(ROWS, *shape, generator=source, dtype=torch.float64)
    return Moments(mean, torch.rand(ROWS, *shape, generator=source, dtype=torch.float64) + 0.1)


MEANS = torch.linspace(-4.0, 4.0, 17, dtype=torch.float64)
FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], FunctionMoments], float, float]] = {
    "relu": (F.relu, rectifier, 2e-8, 3.0),
    "leaky relu": (lambda x: F.leaky_relu(x, 0.2), lambda m, v: rectifier(m, v, 0.2), 2e-8, 3.0),
    "relu6": (F.relu6, lambda m, v: clamp(m, v, 0.0, 6.0), 2e-8, 3.0),
    "hardtanh": (F.hardtanh, lambda m, v: clamp(m, v, -1.0, 1.0), 2e-8, 3.0),
    **{
        f.__name__: (f, lambda m, v, f=f: smooth(f, m, v), tolerance, 1.0)
        for f, tolerance in (
            *((torch.tanh, 3e-6), (torch.sigmoid, 1e-9), (F.gelu, 1e-9), (F.silu, 1e-9), (F.softplus, 1e-9)),
            *((F.mish, 1e-7), (F.elu, 1e-3), (F.selu, 1e-2)),
        )
    },
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("relative_scale", [0.05, 0.3, 1.0])
def test_moments_of_a_function_are_its_integrals(name: str, relative_scale: float) -> None:
    """Against the trapezoidal rule with steps h = 2e-4 in units of the standard deviation σ.

    Near a kink the rule errs by h²/12·σ·φ(0) < 4e-9 in the mean, and by 2·6 times that in the square of a function up
    to 6. The tolerances of smooth functions are the errors of 32 Gauss–Hermite nodes at σ = 1: small where the nearest
    pole is far away, larger for tanh, and for ELU and SELU, which have a kink.
    """
    function, moments, tolerance, largest = FUNCTIONS[name]
    scale = relative_scale * largest
    z = torch.linspace(-10.0, 10.0, 100_001, dtype=torch.float64)
    weight = (-0.5 * z.square()).exp()
    weight /= weight.sum()
    values = function(MEANS[:, None] + scale * z)
    mean = values @ weight
    variance = (values - mean[:, None]).square() @ weight
    slope = (values * z) @ weight / scale
    found = moments(MEANS, torch.full_like(MEANS, scale**2))
    torch.testing.assert_close(found.mean, mean, rtol=0.0, atol=tolerance)
    torch.testing.assert_close(found.variance, variance, rtol=0.0, atol=3 * tolerance)
    torch.testing.assert_close(found.slope, slope, rtol=0.0, atol=3 * tolerance / scale)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_without_variance_a_function_is_itself(name: str) -> None:
    function, moments, _, _ = FUNCTIONS[name]
    found = moments(MEANS, torch.zeros_like(MEANS))
    torch.testing.assert_close(found.mean, function(MEANS), rtol=1e-12, atol=1e-12)
    assert float(found.variance.abs().max()) < 1e-12
    assert bool(found.slope.isfinite().all())


def test_rectifier_keeps_its_variance_in_float32_far_from_zero() -> None:
    """max(x, 0) is x far above zero: E[f²] − E[f]² would lose all digits of a variance of 1e-6 beside 1e4."""
    found = rectifier(torch.tensor([100.0, -100.0]), torch.full((2,), 1e-6))
    torch.testing.assert_close(found.variance, torch.tensor([1e-6, 0.0]))


LINEAR: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    "linear": (lambda x: F.linear(x, CONSTANT, CONSTANT[:, 0]), (6,)),
    "matmul": (lambda x: x @ CONSTANT.T, (6,)),
    "conv1d": (lambda x: F.conv1d(x, CONSTANT.view(3, 2, 3), None, 2, 1), (2, 6)),
    "conv2d with groups": (lambda x: F.conv2d(x, CONSTANT.reshape(2, 1, 3, 3), groups=2), (2, 5, 5)),
    "conv_transpose2d": (lambda x: F.conv_transpose2d(x, CONSTANT.reshape(2, 1, 3, 3), stride=2), (2, 3, 3)),
    "batch norm": (lambda x: F.batch_norm(x, CONSTANT[0], CONSTANT[1].abs() + 1, CONSTANT[2], CONSTANT[0]), (6, 2)),
    "average pool": (lambda x: F.avg_pool2d(x, 2, padding=1), (2, 4, 4)),
    "global average": (lambda x: F.adaptive_avg_pool2d(x, 1), (2, 4, 4)),
    "mean over positions": (lambda x: x.mean((2, 3)), (2, 4, 4)),
    "sum over positions": (lambda x: x.sum(-1), (2, 4)),
    "reflection pad": (lambda x: F.pad(x, (1, 1), mode="reflect")[..., 1:-1], (2, 4)),
    "zero pad": (lambda x: F.pad(x, (1, 1)), (2, 4)),
    "flatten": (lambda x: torch.flatten(x, 1), (2, 4)),
    "view and permute": (lambda x: x.view(ROWS, 4, 2).permute(0, 2, 1), (2, 4)),
    "chunk and cat": (lambda x: torch.cat(x.chunk(2, 1)[::-1], 1), (4,)),
    "index": (lambda x: x[:, 1:, None], (4,)),
    "affine": (lambda x: 2 * (1.0 - x) / 3 + CONSTANT[0], (6,)),
    "multiply by a constant tensor": (lambda x: x * CONSTANT[0], (6,)),
    "concatenate with constants": (lambda x: torch.cat([x, torch.ones(ROWS, 1, dtype=x.dtype)], 1), (4,)),
}
CONSTANT = torch.randn(3, 6, generator=torch.Generator().manual_seed(9), dtype=torch.float64)


@pytest.mark.parametrize("name", LINEAR)
def test_linear_functions_of_independent_units_are_exact(name: str) -> None:
    """A linear map A has the mean A m and the variances Σ_j A_ij² v_j; A is found by its columns."""
    function, shape = LINEAR[name]
    x = activations(*shape)
    found = run(function, x)
    offset = run(function, torch.zeros_like(x.expectation))
    units = torch.eye(x.expectation[0].numel(), dtype=torch.float64)
    columns = [function(unit.view(1, *shape).expand(ROWS, *shape)) - offset for unit in units]
    flat = x.expectation.flatten(1), x.spread.flatten(1)
    mean = offset + sum(flat[0][:, j].view(-1, *[1] * (offset.dim() - 1)) * c for j, c in enumerate(columns))
    variance = sum(flat[1][:, j].view(-1, *[1] * (offset.dim() - 1)) * c.square() for j, c in enumerate(columns))
    torch.testing.assert_close(found.expectation, mean)
    torch.testing.assert_close(found.spread, variance)


def test_sums_of_random_tensors_add_their_variances() -> None:
    x, y = activations(3), activations(3, seed=1)
    found = run(lambda a, b: a - 2 * b, x, y)
    torch.testing.assert_close(found.expectation, x.expectation - 2 * y.expectation)
    torch.testing.assert_close(found.spread, x.spread + 4 * y.spread)


def test_layer_norm_is_right_to_first_order() -> None:
    """Against 200,000 draws with standard deviations of 0.03: 4 standard errors, and the second-order rest of 2 %."""
    mean = torch.randn(ROWS, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    variance = 1e-3 * (1 + torch.arange(8, dtype=torch.float64)).expand(ROWS, 8) / 8
    weight, bias = torch.linspace(0.5, 2.0, 8, dtype=torch.float64), torch.ones(8, dtype=torch.float64)
    found = run(lambda x: F.layer_norm(x, (8,), weight, bias), Moments(mean, variance))
    noise = torch.randn(200_000, ROWS, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    draws = F.layer_norm(mean + variance.sqrt() * noise, (8,), weight, bias)
    error = 4 * (draws.std(0) / 200_000**0.5).max() + 2e-3
    torch.testing.assert_close(found.expectation, draws.mean(0), rtol=0.0, atol=float(error))
    torch.testing.assert_close(found.spread, draws.var(0), rtol=4 * (2 / 200_000) ** 0.5 + 0.02, atol=0.0)


def test_max_pool_takes_the_position_with_the_largest_mean() -> None:
    x = activations(2, 4, 4)
    found = run(lambda t: F.max_pool2d(t, 2), x)
    mean, where = F.max_pool2d(x.expectation, 2, return_indices=True)
    assert torch.equal(found.expectation, mean)
    assert torch.equal(found.spread, x.spread.flatten(-2).gather(-1, where.flatten(-2)).view_as(mean))


def test_operations_in_place_change_the_activation() -> None:
    x = activations(3)
    expected = run(F.relu, activations(3))
    assert run(lambda t: F.relu(t, inplace=True), x) is x
    torch.testing.assert_close(x.expectation, expected.expectation)

    def add(t: Any) -> Any:
        t += 1.0
        return t

    torch.testing.assert_close(run(add, x).expectation, expected.expectation + 1.0)


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "no rule": (lambda x: x.softmax(-1), "through softmax in "),
    "product": (lambda x: x * x, "a product of two random tensors"),
    "division": (lambda x: 1.0 / x, "cannot be propagated through"),
    "rows moved": (lambda x: x.transpose(0, 1), "moves the rows"),
    "rows folded": (lambda x: x.reshape(-1, 1), "moves the rows"),
    "rows selected": (lambda x: x[0], "selects rows"),
    "rows averaged": (lambda x: x.mean(0), "over the rows"),
    "broadcast": (lambda x: x[:, :1] + torch.ones(ROWS, 3), "broadcasts a random tensor"),
    "comparison": (lambda x: bool((x > 0).all()), "through gt in "),
    "conversion": (lambda x: x.numpy(), "cannot be propagated through"),
    "training batch norm": (lambda x: F.batch_norm(x, None, None, training=True), "statistics of the batch"),
    "active dropout": (lambda x: F.dropout(x, 0.5), "active in evaluation mode"),
}


class Named(nn.Module):
    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


@pytest.mark.parametrize("name", REFUSED)
def test_what_moments_cannot_pass_is_refused_by_name(name: str) -> None:
    function, words = REFUSED[name]
    net = nn.Sequential(nn.Identity(), Named(function))
    with Pass(ROWS, -1).running(net), pytest.raises(UnsupportedError, match="use samples=100") as error:
        net(activations(3))
    assert words in str(error.value)
    assert "layer '1'" in str(error.value)


def test_quadrature_has_enough_nodes_for_small_scales() -> None:
    """12 nodes are used up to a standard deviation of 0.3, where they agree with 64 to 1e-7 for tanh."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(64)
    z, w = torch.tensor(nodes), torch.tensor(weights / weights.sum())
    values = torch.tanh(MEANS[:, None] + 0.3 * z)
    found = smooth(torch.tanh, MEANS, torch.full_like(MEANS, 0.09))
    torch.testing.assert_close(found.mean, values @ w, rtol=0.0, atol=1e-7)
    torch.testing.assert_close(found.variance, values.square() @ w - (values @ w).square(), rtol=0.0, atol=1e-7)
