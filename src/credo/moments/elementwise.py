"""How moments pass activation functions and arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from credo.moments.gaussian import FunctionMoments, clamp, rectifier, smooth
from credo.moments.tensors import RULES, Moments, activation, current_pass, rule


class Linearized(torch.autograd.Function):
    """The value E[f(x)], with the derivative E[f'(x)] by the mean of x."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, value: Tensor, slope: Tensor) -> Tensor:
        """``value`` as it is."""
        ctx.save_for_backward(slope)
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """The gradient times the slope."""
        (slope,) = ctx.saved_tensors
        return gradient * slope, None, None


def apply(x: Moments, moments: Callable[[Tensor, Tensor], FunctionMoments]) -> Moments:
    """f(x) of every element; what f(x) is beyond its linear regression on x counts as independent noise."""
    with torch.no_grad():
        value, variance, slope = moments(x.expectation.detach(), x.spread)
    here = current_pass()
    if here.follow and x.expectation.requires_grad:
        value = Linearized.apply(x.expectation, value, slope)  # type: ignore[no-untyped-call]
        here.add_independent_noise(value, variance - slope.square() * x.spread)
    return Moments(value, variance)


def _in_place(x: Moments, result: Moments, inplace: bool) -> Moments:
    return x.replace(result) if inplace else result


@rule(F.relu, torch.relu, Tensor.relu)
def _relu(input: Any, inplace: bool = False) -> Moments:
    return _in_place(input, apply(activation(input, "relu"), rectifier), inplace)


RULES.update(dict.fromkeys((F.relu_, torch.relu_, Tensor.relu_), partial(_relu, inplace=True)))


@rule(F.leaky_relu)
def _leaky_relu(input: Any, negative_slope: float = 0.01, inplace: bool = False) -> Moments:
    moments = partial(rectifier, negative_slope=float(negative_slope))
    return _in_place(input, apply(activation(input, "leaky_relu"), moments), inplace)


@rule(F.prelu, torch.prelu, Tensor.prelu)
def _prelu(input: Any, weight: Any) -> Moments:
    if isinstance(weight, Moments):
        raise current_pass().error("prelu", f"whose slope {weight.parameter!r} is random")
    slope = weight.detach()
    if slope.numel() > 1:
        slope = slope.view(-1, *[1] * (input.dim() - 2))
    return apply(activation(input, "prelu"), partial(rectifier, negative_slope=slope))


@rule(F.hardtanh)
def _hardtanh(input: Any, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Moments:
    x = activation(input, "hardtanh")
    return _in_place(input, apply(x, partial(clamp, low=float(min_val), high=float(max_val))), inplace)


@rule(F.relu6)
def _relu6(input: Any, inplace: bool = False) -> Moments:
    return _hardtanh(input, 0.0, 6.0, inplace)


def _smooth(function: Callable[..., Tensor], input: Any, *options: Any, inplace: bool = False, **named: Any) -> Moments:
    x = activation(input, getattr(function, "__name__", "activation"))
    return _in_place(input, apply(x, partial(smooth, lambda t: function(t, *options, **named))), inplace)


for _functions in (
    (torch.tanh, F.tanh, Tensor.tanh),
    (torch.sigmoid, F.sigmoid, Tensor.sigmoid),
    (F.gelu,),
    (F.silu,),
    (F.softplus,),
    (F.elu,),
    (F.selu, torch.selu),
    (F.celu, torch.celu),
    (F.mish,),
    (F.logsigmoid,),
    (F.softsign,),
    (torch.erf, Tensor.erf),
    (torch.sin, Tensor.sin),
    (torch.cos, Tensor.cos),
):
    RULES.update(dict.fromkeys(_functions, partial(_smooth, _functions[0])))


@rule(torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__)
def _add(input: Any, other: Any, *, alpha: float = 1.0) -> Moments:
    if not isinstance(other, Tensor):
        x = activation(input, "add")
        return Moments(x.expectation + alpha * other, x.spread)
    if not isinstance(input, Tensor):
        return _add(other, input) if alpha == 1.0 else _add(_multiply(other, alpha), input)
    x, y = activation(input, "add"), activation(other, "add")
    _check_broadcast(x, y, "add")
    return Moments(torch.add(x.expectation, y.expectation, alpha=alpha), torch.add(x.spread, y.spread, alpha=alpha**2))


@rule(torch.sub, Tensor.sub, Tensor.__sub__, torch.subtract, Tensor.subtract)
def _subtract(input: Any, other: Any, *, alpha: float = 1.0) -> Moments:
    return _add(input, other, alpha=-alpha)


@rule(torch.rsub, Tensor.__rsub__)
def _subtract_from(input: Any, other: Any) -> Moments:
    return _add(_multiply(input, -1.0), other)


@rule(torch.neg, Tensor.neg, Tensor.__neg__)
def _negative(input: Any) -> Moments:
    return _multiply(input, -1.0)


@rule(torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__, torch.multiply, Tensor.multiply)
def _multiply(input: Any, other: Any) -> Moments:
    if isinstance(input, Moments) and isinstance(other, Moments):
        raise current_pass().error("mul", "a product of two random tensors")
    random, factor = (input, other) if isinstance(input, Moments) else (other, input)
    x = activation(random, "mul")
    product = Moments(x.expectation * factor, x.spread * (factor * factor))
    _check_broadcast(product, x, "mul")
    return product


@rule(torch.div, Tensor.div, Tensor.__truediv__, torch.true_divide, Tensor.true_divide)
def _divide(input: Any, other: Any) -> Moments:
    if isinstance(other, Moments):
        raise current_pass().error("div", "a division by a random tensor")
    return _multiply(input, 1.0 / other)


def _check_broadcast(x: Moments, y: Moments, function: str) -> None:
    """Raise ``UnsupportedError`` where a random tensor is broadcast: its copies are one variable, not several."""
    shape = torch.broadcast_shapes(x.shape, y.shape)
    if any(t.shape != shape and bool(t.spread.any()) for t in (x, y)):
        raise current_pass().error(function, "which broadcasts a random tensor")


def _working_in_place(function: Callable[..., Moments]) -> Callable[..., Moments]:
    def in_place(input: Any, *args: Any, **options: Any) -> Moments:
        if not isinstance(input, Moments):
            raise current_pass().error("an operation in place", "which would store moments in a plain tensor")
        return input.replace(function(input, *args, **options))

    return in_place


RULES.update(dict.fromkeys((Tensor.add_, Tensor.__iadd__), _working_in_place(_add)))
RULES.update(dict.fromkeys((Tensor.sub_, Tensor.__isub__), _working_in_place(_subtract)))
RULES.update(dict.fromkeys((Tensor.mul_, Tensor.__imul__), _working_in_place(_multiply)))
RULES.update(dict.fromkeys((Tensor.div_, Tensor.__itruediv__), _working_in_place(_divide)))
RULES.update(dict.fromkeys((torch.tanh_, Tensor.tanh_), _working_in_place(partial(_smooth, torch.tanh))))
RULES.update(dict.fromkeys((torch.sigmoid_, Tensor.sigmoid_), _working_in_place(partial(_smooth, torch.sigmoid))))
