"""How moments pass weight layers, dropout, normalization and pooling."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vjp, vmap

from credo._devices import at_least_float32
from credo.moments.tensors import RULES, Moments, activation, current_pass, rule

SMALL_LAYER = 16
"""The number of units up to which a layer that is the output has covariances."""

Map = Callable[[Tensor, Tensor], Tensor]
"""A function linear in its input and in its weight."""


def _affine(x: Any, weight: Any, bias: Any, apply: Map, function: str, channel: int) -> Moments:
    r"""The moments of y = W x + b, for weights that are independent of each other and of x.

        E[y] = E[W] E[x] + E[b],    Var[y_i] = Σ_k E[W_ik]² Var[x_k] + Var[W_ik] E[x_k²] + Var[b_i].

    The last two terms are noise that enters here. Where ``apply`` uses a weight at several positions of a row, all of
    them share its noise.

    Args:
        x: the input.
        weight: of the layer.
        bias: of the layer, ``[outputs]``, or ``None``.
        apply: the layer without its bias.
        function: its name.
        channel: the dimension of ``x`` that counts input units.
    """
    here = current_pass()
    here.enter_weight_layer()
    for parameter in (weight, bias):
        if isinstance(parameter, Moments):
            _use(parameter, function)
    w, w_variance = (weight.expectation, weight.spread) if isinstance(weight, Moments) else (weight.detach(), None)
    b, b_variance = (bias.expectation, bias.spread) if isinstance(bias, Moments) else (bias, None)
    before = activation(x, function)
    h = before
    if isinstance(weight, Moments) and weight.rate > 0:
        h = drop(x, weight.rate, [d for d in range(1, x.dim()) if d != channel % x.dim()])
    mean = apply(h.expectation, w)
    positions = math.prod(mean.shape[1:]) // max(mean.shape[channel], 1)
    after = [1] * (mean.dim() - 1 - channel % mean.dim())
    if b is not None:
        mean = mean + b.detach().view(-1, *after)
    here.costs.append(positions * w.numel())
    with torch.no_grad():
        variance = apply(h.spread, w.square()) if h is not before or isinstance(x, Moments) else None
        noise = None
        if w_variance is not None:
            square = before.expectation.detach().square()
            noise = apply(square + before.spread if isinstance(x, Moments) else square, w_variance)
        if b_variance is not None:
            shift = b_variance.view(-1, *after)
            noise = shift.expand(mean.shape) if noise is None else noise + shift
    if here.follow and noise is not None and positions == 1:
        here.add_independent_noise(mean, noise)
    elif here.follow and noise is not None:
        _add_shared_noise(mean, before, w, w_variance, b_variance, apply, channel)
    spreads = [part for part in (variance, noise) if part is not None]
    result = Moments(mean, sum(spreads[1:], spreads[0]) if spreads else torch.zeros_like(mean))
    if variance is not None and not here.follow and mean.dim() == w.dim() == 2 and len(w) <= SMALL_LAYER:
        result.covariance = lambda: _covariance(w, h.spread, noise)
    return result


def _covariance(w: Tensor, variance: Tensor, noise: Tensor | None) -> Tensor:
    """W diag(v) Wᵀ + diag(noise) for every row of ``variance``, ``[B, K, K]``."""
    w = w.to(at_least_float32(w.dtype))  # in 16 bits it would not stay positive definite
    products = (w[:, None] * w).flatten(0, 1)
    covariance = F.linear(variance.to(w.dtype), products).view(-1, len(w), len(w))
    return covariance if noise is None else covariance + torch.diag_embed(noise)


def _use(parameter: Moments, function: str) -> None:
    """Take note that a layer uses a random parameter, which only one may do once."""
    here = current_pass()
    if parameter.parameter is None:
        raise here.error(function, "whose weights are computed from random parameters")
    if parameter.parameter in here.used:
        raise here.error(function, f"which uses the random parameter {parameter.parameter!r} a second time")
    here.used.add(parameter.parameter)


def _add_shared_noise(
    mean: Tensor, h: Moments, w: Tensor, w_variance: Tensor | None, b_variance: Tensor | None, apply: Map, channel: int
) -> None:
    """The noise of weights that several positions share: its coefficients are the gradients of a row by the weights."""
    here = current_pass()
    x = h.expectation.detach()
    if w_variance is not None:
        scale = w_variance.sqrt()

        def by_weights(gradient: Tensor) -> Tensor:
            def of_row(x: Tensor, g: Tensor) -> Tensor:
                return vjp(lambda weight: apply(x[None], weight), w)[1](g[None])[0]  # type: ignore[no-any-return]

            rows: Tensor = vmap(of_row)(x, gradient)
            return (rows * scale).flatten(1)

        here.add_noise(mean, by_weights)
        here.add_independent_noise(mean, apply(h.spread, w_variance))
    if b_variance is not None:
        others = [d for d in range(1, mean.dim()) if d != channel % mean.dim()]
        bias_scale = b_variance.sqrt()
        here.add_noise(mean, lambda gradient: gradient.sum(others) * bias_scale)


@rule(F.linear)
def _linear(input: Any, weight: Any, bias: Any = None) -> Moments:
    return _affine(input, weight, bias, F.linear, "linear", -1)


def _convolution(
    function: Callable[..., Tensor], input: Any, weight: Any, bias: Any = None, *args: Any, **options: Any
) -> Moments:
    spatial = weight.dim() - 2
    if input.dim() != spatial + 2:
        raise current_pass().error(function.__name__, "on an input without rows")

    def apply(x: Tensor, w: Tensor) -> Tensor:
        return function(x, w, None, *args, **options)

    return _affine(input, weight, bias, apply, function.__name__, 1)


_function: Any
for _function in (
    *(torch.conv1d, torch.conv2d, torch.conv3d),
    *(torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d),
):
    RULES[_function] = partial(_convolution, _function)


@rule(torch.matmul, Tensor.matmul, Tensor.__matmul__)
def _matmul(input: Any, other: Any) -> Moments:
    if isinstance(other, Moments) or other.dim() != 2:
        raise current_pass().error("matmul", "of which one factor must be a constant matrix on the right")
    return _affine(input, other.t(), None, F.linear, "matmul", -1)


def drop(x: Any, p: float, shared: list[int], alpha: bool = False) -> Moments:
    """x·z/(1 − p) with z ~ Bernoulli(1 − p): the mean of x stays, and its variance grows by E[x²]·p/(1 − p).

    Args:
        x: the activation.
        p: the rate.
        shared: dimensions along which all positions have one z.
        alpha: whether this is alpha dropout, which is refused.
    """
    here, h = current_pass(), activation(x, "dropout")
    if alpha or p >= 1:
        raise here.error("alpha_dropout" if alpha else "dropout with a rate of 1")
    odds = p / (1.0 - p)
    mean = h.expectation * 1.0  # a node of its own
    noise = odds * (mean.detach().square() + h.spread)
    if not shared:
        here.add_independent_noise(mean, noise)
    elif here.follow:
        values = mean.detach() * math.sqrt(odds)
        here.add_noise(mean, lambda gradient: (gradient * values).sum(shared).flatten(1))
        here.add_independent_noise(mean, odds * h.spread)
    return Moments(mean, h.spread + noise)


@rule(F.dropout, torch.dropout, F.dropout1d, F.dropout2d, F.dropout3d, torch.feature_dropout)
def _inactive_dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Moments:
    """Dropout in evaluation mode; that of the network's own layers is answered before it gets here."""
    if training and p > 0:
        raise current_pass().error("dropout", "which is active in evaluation mode")
    return activation(input, "dropout")


@rule(F.batch_norm, torch.batch_norm)
def _batch_norm(
    input: Any,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Moments:
    if training or running_mean is None or running_var is None:
        raise current_pass().error("batch_norm", "which normalizes by the statistics of the batch")
    _check_constant("batch_norm", weight, bias)
    x = activation(input, "batch_norm")
    precision = 1.0 / (running_var + eps)
    factor = precision if weight is None else precision * weight.detach().square()
    shape = [1, -1, *[1] * (x.dim() - 2)]
    scale = precision.sqrt() if weight is None else precision.sqrt() * weight.detach()
    shift = -running_mean * scale if bias is None else bias.detach() - running_mean * scale
    mean = x.expectation * scale.view(shape) + shift.view(shape)
    return Moments(mean, x.spread * factor.view(shape))


@rule(F.layer_norm, torch.layer_norm)
def _layer_norm(
    input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any
) -> Moments:
    """To first order: the mean square over units is replaced by its expectation."""
    _check_constant("layer_norm", weight, bias)
    x = activation(input, "layer_norm")
    dims = list(range(x.dim() - len(normalized_shape), x.dim()))
    if 0 in dims:
        raise current_pass().error("layer_norm", "over the rows")
    n = math.prod(normalized_shape)
    centered = x.expectation - x.expectation.mean(dims, keepdim=True)
    square = centered.square().mean(dims, keepdim=True) + x.spread.mean(dims, keepdim=True) * (1.0 - 1.0 / n) + eps
    y = centered * square.rsqrt()
    with torch.no_grad():
        u = y.detach()
        sums = [(x.spread * u**power).sum(dims, keepdim=True) for power in range(3)]
        others = sums[0] + 2.0 * u * sums[1] + u.square() * sums[2]
        variance = (x.spread * (1.0 - 2.0 * (1.0 + u.square()) / n) + others / n**2) / square
    mean = y if weight is None else y * weight.detach()
    mean = mean if bias is None else mean + bias.detach()
    return Moments(mean, variance if weight is None else variance * weight.detach().square())


def _check_constant(function: str, *parameters: Any) -> None:
    for parameter in parameters:
        if isinstance(parameter, Moments):
            raise current_pass().error(function, f"whose parameter {parameter.parameter!r} is random")


def _average_pool(
    function: Callable[..., Tensor],
    dims: int,
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Moments:
    """Means of windows of k positions; independent positions divide the mean of their variances by k."""
    padded = padding != 0 and padding != (0,) * dims
    if ceil_mode or (padded and not count_include_pad) or divisor_override is not None:
        raise current_pass().error("avg_pool", "whose windows have different sizes or a divisor of their own")
    x = activation(input, "avg_pool")
    count = kernel_size**dims if isinstance(kernel_size, int) else math.prod(kernel_size)
    pooled = [function(t, kernel_size, stride, padding) for t in (x.expectation, x.spread)]
    return Moments(pooled[0], pooled[1] / count)


for _dims, _function in ((1, torch.avg_pool1d), (2, F.avg_pool2d), (3, F.avg_pool3d)):
    RULES[_function] = partial(_average_pool, _function, _dims)


def _adaptive_average_pool(function: Callable[..., Tensor], dims: int, input: Any, output_size: Any) -> Moments:
    x = activation(input, "adaptive_avg_pool")
    mean, variance = function(x.expectation, output_size), function(x.spread, output_size)
    pairs = list(zip(x.shape[-dims:], mean.shape[-dims:], strict=True))
    if any(before % after for before, after in pairs):
        raise current_pass().error("adaptive_avg_pool", "whose windows overlap")
    return Moments(mean, variance / math.prod(before // after for before, after in pairs))


for _dims, _function in ((1, torch.adaptive_avg_pool1d), (2, F.adaptive_avg_pool2d), (3, F.adaptive_avg_pool3d)):
    RULES[_function] = partial(_adaptive_average_pool, _function, _dims)
RULES[F.adaptive_avg_pool1d] = RULES[torch.adaptive_avg_pool1d]


def _max_pool(
    function: Callable[..., Any],
    dims: int,
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Moments:
    """The position with the largest mean of every window.

    Positions of a convolution share the noise of its weights and move together. Clark's moments of a maximum, which
    treat them as independent, measured less accurate on LeNet.
    """
    if return_indices:
        raise current_pass().error("max_pool", "which returns indices")
    x = activation(input, "max_pool")
    return _select(x, dims, *function(x.expectation, kernel_size, stride, padding, dilation, ceil_mode, True))


for _dims, _function in ((1, F.max_pool1d), (2, F.max_pool2d), (3, F.max_pool3d)):
    RULES[_function] = partial(_max_pool, _function, _dims)


def _select(x: Moments, dims: int, mean: Tensor, where: Tensor) -> Moments:
    return Moments(mean, x.spread.flatten(-dims).gather(-1, where.flatten(-dims)).view_as(mean))


def _adaptive_max_pool(
    function: Callable[..., Any], dims: int, input: Any, output_size: Any, return_indices: bool = False
) -> Moments:
    if return_indices:
        raise current_pass().error("adaptive_max_pool", "which returns indices")
    x = activation(input, "adaptive_max_pool")
    return _select(x, dims, *function(x.expectation, output_size, True))


for _dims, _function in ((1, F.adaptive_max_pool1d), (2, F.adaptive_max_pool2d), (3, F.adaptive_max_pool3d)):
    RULES[_function] = partial(_adaptive_max_pool, _function, _dims)
