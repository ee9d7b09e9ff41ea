"""Quantiles of mixtures as nodes of a graph, and what recalibration computes from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatch
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from credo.errors import UnsupportedError
from credo.export.builder import Builder, Operand, Value, element_type
from credo.predictive.bounded import LogNormalComponents
from credo.predictive.components import RealComponents
from credo.predictive.location_scale import GaussianComponents, StudentTComponents
from credo.predictive.recalibrated import LevelMap

Family = Literal["normal", "student_t4"]

_MAX_STEPS = 100
_HART_END = 7.07106781186547
_HART_NUMERATOR = (
    *(3.52624965998911e-02, 0.700383064443688, 6.37396220353165, 33.912866078383),
    *(112.079291497871, 221.213596169931, 220.206867912376),
)
_HART_DENOMINATOR = (
    *(8.83883476483184e-02, 1.75566716318264, 16.064177579207, 86.7807322029461),
    *(296.564248779674, 637.333633378831, 793.826512519948, 440.413735824752),
)


@dataclass(frozen=True)
class Mixture:
    """Σ_s w_s p(y | m_s, σ_s) of a location-scale family, possibly of log y.

    Attributes:
        family: of z in y = m + σz.
        location: m, ``[S, B, ...]``.
        scale: σ.
        is_log: whether y is the logarithm of the target.
    """

    family: Family
    location: Tensor
    scale: Tensor
    is_log: bool = False


@singledispatch
def as_mixture(components: RealComponents) -> Mixture:
    """The components as a mixture whose quantiles can be written in operations that ONNX has.

    Args:
        components: p(y | f_s(x)).

    Raises:
        UnsupportedError: ONNX does not have the distribution function of the components.
    """
    raise UnsupportedError(
        f"quantiles of {components.name} targets cannot be exported, as ONNX does not have their distribution "
        "function: pass quantiles=() and level=None, and use mean and std"
    )


@as_mixture.register
def _(components: GaussianComponents) -> Mixture:
    return Mixture("normal", components.mean, components.scale)


@as_mixture.register
def _(components: LogNormalComponents) -> Mixture:
    return Mixture("normal", components.location, components.scale, is_log=True)


@as_mixture.register
def _(components: StudentTComponents) -> Mixture:
    if not torch.compiler.is_exporting() and not bool((components.df == 4.0).all()):
        raise UnsupportedError(
            "quantiles of Student's t are exported for 4 degrees of freedom only, where they are elementary: use "
            "StudentT(df=4), or pass quantiles=() and level=None"
        )
    return Mixture("student_t4", components.location, components.scale)


@dataclass(frozen=True)
class MixtureNodes:
    """A mixture as values of a graph.

    Attributes:
        family: of the components.
        location: ``[S, B, ...]``.
        scale: ``[S, B, ...]``.
        weights: of the draws ``[S]``, summing to 1.
        dims: the number of dimensions of a location.
    """

    family: Family
    location: Value
    scale: Value
    weights: NDArray[np.float64]
    dims: int


def add_quantiles(b: Builder, mixture: MixtureNodes, levels: Sequence[float]) -> Value:
    """Quantiles of a mixture, by Newton's method with bisection where it would leave the bracket.

    A step costs a distribution function and a density. Every third step is a bisection at least, so that the bracket,
    from the smallest to the largest quantile of a draw, shrinks to a point. The loop ends when no quantile moves any
    more, usually after six to ten steps. For levels above ½ the upper tail is computed, which is the accurate one.

    Args:
        b: collects the nodes.
        mixture: the mixture.
        levels: K levels between 0 and 1.

    Returns:
        ``[K, B, ...]``.
    """
    from onnx import TensorProto, helper

    dims, first, second = mixture.dims, b.axes(0), b.axes(1)
    offsets = _along_first([_standard_quantile(mixture.family, q) for q in levels], b.dtype, dims + 1)
    shifted = b("Mul", b("Unsqueeze", mixture.scale, first), offsets)
    draws = b("Add", b("Unsqueeze", mixture.location, first), shifted)
    low, high = b("ReduceMin", draws, second, keepdims=0), b("ReduceMax", draws, second, keepdims=0)
    if len(mixture.weights) == 1:
        return low
    sides = _along_first([-1.0 if q > 0.5 else 1.0 for q in levels], b.dtype, dims)
    wanted = _along_first([min(q, 1.0 - q) for q in levels], b.dtype, dims)
    weights = _along_first(mixture.weights, b.dtype, dims)
    start = b("Mul", b("Add", low, high), 0.5)
    smallest = b("ReduceMin", mixture.scale, first, keepdims=0)
    moves = b("Equal", start, start)

    body = b.inner()
    count, unused, low_in, high_in, y, moves_in = (b.fresh("loop") for _ in range(6))
    z = body("Mul", body("Sub", body("Unsqueeze", y, second), mixture.location), body("Unsqueeze", sides, second))
    share, density = _cdf_and_density(body, mixture.family, body("Div", z, mixture.scale))
    below = body("ReduceSum", body("Mul", weights, share), second, keepdims=0)
    slope = body("ReduceSum", body("Div", body("Mul", weights, density), mixture.scale), second, keepdims=0)
    gap = body("Mul", sides, body("Sub", wanted, below))
    change = body("Div", gap, slope)
    is_low = body("Greater", gap, 0.0)
    new_low, new_high = body("Where", is_low, y, low_in), body("Where", is_low, high_in, y)
    newton = body("Add", y, change)
    middle = body("Mul", body("Add", new_low, new_high), 0.5)
    inside = body("And", body("GreaterOrEqual", newton, new_low), body("LessOrEqual", newton, new_high))
    third = body("Less", body("Mod", count, np.array(3)), np.array(2))
    usable = body("And", inside, third)
    limit = body("Mul", body("Add", body("Abs", y), smallest), 4.0 * float(np.finfo(b.dtype).eps))
    closed = body("Or", body("LessOrEqual", middle, new_low), body("GreaterOrEqual", middle, new_high))
    settled = body("Or", body("LessOrEqual", body("Abs", change), limit), closed)
    following = body("Where", usable, newton, body("Where", settled, y, middle))
    new_y = body("Where", moves_in, following, y)
    new_moves = body("And", moves_in, body("Not", settled))
    some = body("ReduceMax", body("Cast", new_moves, to=TensorProto.INT32), keepdims=0)
    going = body("Cast", some, to=TensorProto.BOOL)
    kind = element_type(b.dtype)
    inputs = [
        helper.make_tensor_value_info(count, TensorProto.INT64, []),
        helper.make_tensor_value_info(unused, TensorProto.BOOL, []),
        *(helper.make_tensor_value_info(name, kind, None) for name in (low_in, high_in, y)),
        helper.make_tensor_value_info(moves_in, TensorProto.BOOL, None),
    ]
    graph = body.subgraph("newton", inputs, [going, new_low, new_high, new_y, new_moves])
    state: list[Operand] = [np.array(_MAX_STEPS), np.array(True), low, high, start, moves]
    return b.several("Loop", 4, *state, body=graph)[2]


def add_recalibrated_moments(
    b: Builder, mixture: MixtureNodes, levels: LevelMap, mean: Value, epistemic: Value, aleatoric: Value
) -> tuple[Value, Value, Value]:
    """Moments after a map of levels, as :class:`credo.predictive.RecalibratedPredictive` derives them.

    Args:
        b: collects the nodes.
        mixture: the mixture before recalibration, of Gaussians.
        levels: R.
        mean: of the mixture ``[B, ...]``.
        epistemic: the epistemic variance.
        aleatoric: the aleatoric variance.

    Returns:
        Mean, epistemic and aleatoric variance.

    Raises:
        UnsupportedError: the components are not Gaussian.
    """
    if mixture.family != "normal":
        raise UnsupportedError(
            "recalibrated Student-t targets cannot be exported: use calibrate='variance' or 'conformal'"
        )
    dims, first, second = mixture.dims, b.axes(0), b.axes(1)
    knots = add_quantiles(b, mixture, levels.predicted[1:-1])
    z = b("Div", b("Sub", b("Unsqueeze", knots, second), mixture.location), mixture.scale)
    below, density = _cdf_and_density(b, "normal", z)
    one = b("Neg", b("Mul", mixture.scale, density))
    two = b("Mul", b("Mul", mixture.scale, mixture.scale), b("Sub", below, b("Mul", z, density)))
    offset = b("Sub", mixture.location, mean)
    weights = _along_first(mixture.weights, b.dtype, dims)

    def mixed(values: Value) -> Value:
        return b("ReduceSum", b("Mul", weights, values), second, keepdims=0)

    square, cross = b("Mul", b("Mul", offset, offset), below), b("Mul", b("Mul", offset, one), 2.0)
    partial_first = mixed(b("Add", b("Mul", offset, below), one))
    partial_second = mixed(b("Add", b("Add", square, cross), two))
    missing = b("Sub", mixed(below), _along_first(levels.predicted[1:-1], b.dtype, dims))
    steps = _along_first([after - before for before, after in pairwise(levels.slopes)], b.dtype, dims)
    distance = b("Sub", knots, mean)

    def summed(values: Value, partial: Value) -> Value:
        return b("ReduceSum", b("Mul", steps, b("Sub", b("Mul", values, missing), partial)), first, keepdims=0)

    shift, variance = summed(distance, partial_first), b("Add", epistemic, aleatoric)
    growth = summed(b("Mul", distance, distance), partial_second)
    growth = b("Add", growth, b("Mul", variance, levels.slopes[-1] - 1.0))
    relative = b("Div", b("Sub", growth, b("Mul", shift, shift)), variance)
    inflation = b("Add", relative, 1.0)
    return b("Add", mean, shift), b("Mul", epistemic, inflation), b("Mul", aleatoric, inflation)


def _along_first(values: Sequence[float] | NDArray[np.float64], dtype: Any, dims: int) -> NDArray[Any]:
    """Numbers along the first of ``dims`` dimensions."""
    return np.asarray(values, dtype=dtype).reshape(-1, *[1] * (dims - 1))


def _standard_quantile(family: Family, q: float) -> float:
    from scipy.special import ndtri, stdtrit

    return float(ndtri(q) if family == "normal" else stdtrit(4.0, q))


def _cdf_and_density(b: Builder, family: Family, z: Value) -> tuple[Value, Value]:
    return _normal(b, z) if family == "normal" else _student_t4(b, z)


def _normal(b: Builder, z: Value) -> tuple[Value, Value]:
    """Φ(z) and φ(z) in elementary operations, with a relative error of about 1e-14, also in the lower tail.

    Reference: G. West. Better approximations to cumulative normal functions. Wilmott Magazine, 2005 (Hart 1968).
    """
    x = b("Min", b("Abs", z), 37.0)
    e = b("Exp", b("Mul", b("Mul", x, x), -0.5))
    near = b("Min", x, _HART_END)
    fraction = b("Add", x, 0.65)
    for k in (4.0, 3.0, 2.0, 1.0):
        fraction = b("Add", x, b("Div", k, fraction))
    ratio = b("Div", _polynomial(b, near, _HART_NUMERATOR), _polynomial(b, near, _HART_DENOMINATOR))
    far = b("Div", 1.0, b("Mul", fraction, 2.506628274631))
    tail = b("Mul", e, b("Where", b("Less", x, _HART_END), ratio, far))
    cdf = b("Where", b("Greater", z, 0.0), b("Sub", 1.0, tail), tail)
    return cdf, b("Mul", e, 1.0 / math.sqrt(2.0 * math.pi))


def _student_t4(b: Builder, z: Value) -> tuple[Value, Value]:
    """The distribution function, as in :mod:`credo.predictive.location_scale`, and the density, ν = 4."""
    total = b("Add", b("Mul", z, z), 4.0)
    c = b("Div", 4.0, total)
    t = b("Mul", b("Div", z, b("Sqrt", total)), b("Add", b("Mul", c, 0.5), 1.0))
    square = b("Mul", c, c)
    tail = b("Div", b("Mul", square, b("Add", c, 3.0)), b("Mul", b("Sub", 1.0, t), 8.0))
    cdf = b("Where", b("Less", z, 0.0), tail, b("Mul", b("Add", t, 1.0), 0.5))
    return cdf, b("Mul", b("Mul", square, b("Sqrt", c)), 0.375)


def _polynomial(b: Builder, x: Value, coefficients: Sequence[float]) -> Value:
    """Horner's scheme, the highest power first."""
    total = b("Add", b("Mul", x, coefficients[0]), coefficients[1])
    for coefficient in coefficients[2:]:
        total = b("Add", b("Mul", total, x), coefficient)
    return total
