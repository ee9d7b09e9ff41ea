"""How moments pass functions that move elements, and sums and means over dimensions. Rows stay along dim 0."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from credo.moments.tensors import RULES, Moments, activation, current_pass, rule


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", function))


def _wrap(means: Any, variances: Any) -> Any:
    if isinstance(means, Tensor):
        return Moments(means, variances)
    return tuple(Moments(mean, variance) for mean, variance in zip(means, variances, strict=True))


def _check_rows(result: Any, function: str) -> Any:
    """``result``, whose dim 0 must count the rows."""
    here = current_pass()
    for part in [result] if isinstance(result, Moments) else result:
        if part.dim() == 0 or part.shape[0] != here.rows:
            raise here.error(function, "which moves the rows from dim 0")
    return result


def _both(function: Callable[..., Any], input: Any, *args: Any, **options: Any) -> Any:
    """A function that moves elements, on means and variances alike."""
    x = activation(input, _name(function))
    result = _wrap(function(x.expectation, *args, **options), function(x.spread, *args, **options))
    return _check_rows(result, _name(function))


_function: Any
for _function in (
    *(Tensor.view, Tensor.reshape, torch.reshape, Tensor.flatten, torch.flatten, Tensor.unflatten, torch.unflatten),
    *(Tensor.contiguous, Tensor.clone, torch.clone, Tensor.detach, Tensor.to, Tensor.float, Tensor.double),
):
    RULES[_function] = partial(_both, _function)


def _along(function: Callable[..., Any], position: int, default: int, input: Any, *args: Any, **options: Any) -> Any:
    """A function along one dimension, argument number ``position``, that must not be the one of the rows."""
    dim = args[position] if len(args) > position else options.get("dim", default)
    if isinstance(dim, int) and dim % (input.dim() + (_name(function) == "unsqueeze")) == 0:
        raise current_pass().error(_name(function), "along the rows")
    return _both(function, input, *args, **options)


for _function in (Tensor.unsqueeze, torch.unsqueeze, Tensor.squeeze, torch.squeeze):
    RULES[_function] = partial(_along, _function, 0, -1)
for _function in (Tensor.unbind, torch.unbind):
    RULES[_function] = partial(_along, _function, 0, 0)
for _function in (*(Tensor.chunk, torch.chunk, Tensor.split, torch.split), *(Tensor.narrow, Tensor.select)):
    RULES[_function] = partial(_along, _function, 0 if _function in (Tensor.narrow, Tensor.select) else 1, 0)


@rule(Tensor.transpose, torch.transpose, Tensor.swapaxes, torch.swapaxes)
def _transpose(input: Any, dim0: int, dim1: int) -> Moments:
    if 0 in (dim0 % input.dim(), dim1 % input.dim()):
        raise current_pass().error("transpose", "which moves the rows from dim 0")
    moved: Moments = _both(torch.transpose, input, dim0, dim1)
    return moved


@rule(Tensor.permute, torch.permute)
def _permute(input: Any, *dims: Any) -> Moments:
    order = dims[0] if len(dims) == 1 and not isinstance(dims[0], int) else dims
    if order[0] % input.dim() != 0:
        raise current_pass().error("permute", "which moves the rows from dim 0")
    moved: Moments = _both(torch.permute, input, tuple(order))
    return moved


@rule(Tensor.__getitem__)
def _getitem(input: Any, index: Any) -> Moments:
    first = index[0] if isinstance(index, tuple) and index else index
    if first is not Ellipsis and first != slice(None):
        raise current_pass().error("indexing", "which selects rows")
    selected: Moments = _both(Tensor.__getitem__, input, index)
    return selected


@rule(torch.cat, torch.concat)
def _cat(tensors: Any, dim: int = 0) -> Moments:
    parts = [activation(part, "cat") for part in tensors]
    if dim % parts[0].dim() == 0:
        raise current_pass().error("cat", "along the rows")
    return Moments(torch.cat([p.expectation for p in parts], dim), torch.cat([p.spread for p in parts], dim))


@rule(F.pad)
def _pad(input: Any, pad: Any, mode: str = "constant", value: float | None = None) -> Moments:
    x = activation(input, "pad")
    spread = F.pad(x.spread, pad, mode, None if mode != "constant" else 0.0)
    return Moments(F.pad(x.expectation, pad, mode, value), spread)


def _reduce(average: bool, input: Any, dim: Any = None, keepdim: bool = False) -> Moments:
    """A sum or mean of independent variables over dimensions other than that of the rows."""
    x = activation(input, "mean" if average else "sum")
    dims = [] if dim is None else [d % x.dim() for d in ([dim] if isinstance(dim, int) else dim)]
    if not dims or 0 in dims:
        raise current_pass().error("mean" if average else "sum", "over the rows")
    mean, variance = x.expectation.sum(dims, keepdim), x.spread.sum(dims, keepdim)
    count = 1
    for d in dims:
        count *= x.shape[d]
    return Moments(mean / count, variance / count**2) if average else Moments(mean, variance)


RULES.update(dict.fromkeys((Tensor.mean, torch.mean), partial(_reduce, True)))
RULES.update(dict.fromkeys((Tensor.sum, torch.sum), partial(_reduce, False)))


def _like(function: Callable[..., Tensor], input: Any, *args: Any, **options: Any) -> Tensor:
    """A constant tensor of the shape, dtype or device of ``input``."""
    return function(input.expectation.detach(), *args, **options)


for _function in (torch.zeros_like, torch.ones_like, Tensor.new_zeros, Tensor.new_ones, Tensor.new_full):
    RULES[_function] = partial(_like, _function)
