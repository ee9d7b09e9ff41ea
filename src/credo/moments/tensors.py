"""Tensors of random variables: means and variances that run through a network's own forward pass.

A :class:`Moments` stands in for an activation or a random parameter. Every torch function it is passed to is looked up
in :data:`RULES`; one without a rule raises ``UnsupportedError`` with the name of the layer.

Variances are propagated as if units were independent. A pass that follows covariances also keeps autograd's graph of
the means, in which the derivative of E[f(x)] by the mean of x is E[f'(x)], and a list of the independent noises that
entered on the way. From both follows the covariance of the outputs, see :mod:`credo.moments.evaluation`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, Self, TypeVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from credo.errors import UnsupportedError
from credo.nests import flatten_rows

Rule = Callable[..., Any]
R = TypeVar("R", bound=Rule)

RULES: dict[Any, Rule] = {}
"""How moments pass each function of torch."""


class Noise(NamedTuple):
    """Independent noise that enters the network.

    Attributes:
        node: the mean that it is added to.
        whiten: from the derivative of an output by ``node``, ``[B, ...]``, to coefficients ``[B, N]`` of independent
            noises of variance 1.
    """

    node: Tensor
    whiten: Callable[[Tensor], Tensor]


class Pass:
    """One forward pass of moments.

    Args:
        rows: number of rows B.
        start: the number of the weight layer from which on covariances between units are followed; -1: never. Between
            the units that enter it there are none to follow, so that it begins with its input, not with the output of
            the layer before.
    """

    def __init__(self, rows: int, start: int) -> None:
        self.rows, self.start = rows, start
        self.follow = start == 0
        """Whether covariances are followed here."""
        self.costs: list[int] = []  # multiplications per row of the weight layers so far
        self.noises: list[Noise] = []
        self.layers: list[tuple[str, nn.Module]] = []
        self.called: set[str] = set()
        self.used: set[str] = set()

    def enter_weight_layer(self) -> None:
        """Follow covariances from the input of this layer on, if it is the one to start with."""
        self.follow |= len(self.costs) == self.start

    def add_noise(self, node: Tensor, whiten: Callable[[Tensor], Tensor]) -> None:
        """Take note of noise that enters at ``node``, if covariances are followed."""
        if self.follow:
            self.noises.append(Noise(node.requires_grad_() if not node.requires_grad else node, whiten))

    def add_independent_noise(self, node: Tensor, variance: Tensor) -> None:
        """Take note of noise that is independent between the elements of ``node``."""
        if self.follow:
            scale = variance.clamp_min(0.0).sqrt().expand(node.shape)
            self.add_noise(node, lambda gradient: flatten_rows(gradient * scale))

    def error(self, function: str, reason: str = "") -> UnsupportedError:
        """The error for a function that moments cannot pass, with the name of the layer that is running."""
        path, module = self.layers[-1] if self.layers else ("", None)
        if module is None:
            what = function
        elif type(module).__module__.startswith("torch.nn."):
            what = f"nn.{type(module).__name__}"
        else:
            what = f"{function} in {type(module).__name__}"
        where = f" (layer {path!r})" if path else ""
        why = f", {reason}" if reason else ""
        return UnsupportedError(f"moments cannot be propagated through {what}{where}{why}; use samples=100")

    @contextmanager
    def running(self, net: nn.Module) -> Iterator[None]:
        """Make this the current pass, and keep track of the layers of ``net`` that are running."""

        def enter(path: str) -> Callable[..., None]:
            def hook(module: nn.Module, *_: Any) -> None:
                self.layers.append((path, module))
                self.called.add(path)

            return hook

        def leave(*_: Any) -> None:
            self.layers.pop()

        handles = []
        for path, module in net.named_modules():
            handles.append(module.register_forward_pre_hook(enter(path)))
            handles.append(module.register_forward_hook(leave))
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)
            for handle in handles:
                handle.remove()


_CURRENT: ContextVar[Pass] = ContextVar("moments_pass")


def current_pass() -> Pass:
    """The pass that is running."""
    return _CURRENT.get()


class Moments(Tensor):
    """A tensor of random variables that are known by mean and variance.

    It has the shape, dtype and device of a tensor and no data: a function that no rule knows cannot compute with it.

    Args:
        expectation: the means, ``[...]``.
        spread: the variances, ``[...]``.
        parameter: the name of the random parameter that it is; ``None`` for an activation.
        rate: of a parameter, the rate at which dropout removes the input units of its layer.
    """

    expectation: Tensor
    spread: Tensor
    parameter: str | None
    rate: float
    covariance: Callable[[], Tensor] | None
    """The covariances ``[B, K, K]`` of the K units of a layer, where they follow from the variances of its inputs."""

    @staticmethod
    def __new__(cls, expectation: Tensor, *_: Any, **__: Any) -> Self:
        """Make a tensor without data."""
        made: Self = Tensor._make_wrapper_subclass(
            cls, expectation.shape, dtype=expectation.dtype, device=expectation.device
        )
        return made

    def __init__(self, expectation: Tensor, spread: Tensor, parameter: str | None = None, rate: float = 0.0) -> None:
        self.expectation, self.spread, self.parameter, self.rate = expectation, spread, parameter, rate
        self.covariance = None

    @override
    def __repr__(self) -> str:  # type: ignore[override]
        return f"Moments({list(self.expectation.shape)}, parameter={self.parameter!r})"

    def replace(self, other: Moments) -> Moments:
        """Become ``other``, for functions that work in place."""
        self.expectation, self.spread, self.covariance = other.expectation, other.spread, other.covariance
        return self

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        rule = RULES.get(func)
        if rule is not None:
            return rule(*args, **kwargs)
        name = getattr(func, "__name__", str(func))
        if name == "__get__" or func in _METADATA:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        raise current_pass().error(name)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise current_pass().error(str(func))


_METADATA = {
    *(Tensor.size, Tensor.dim, Tensor.numel, Tensor.nelement, Tensor.ndimension, Tensor.__len__),
    *(Tensor.is_floating_point, Tensor.is_complex, torch.is_floating_point, torch.is_complex, torch.numel),
}


def rule(*functions: Any) -> Callable[[R], R]:
    """Register how moments pass ``functions``."""

    def register(function: R) -> R:
        RULES.update(dict.fromkeys(functions, function))
        return function

    return register


def activation(x: Any, function: str) -> Moments:
    """``x`` as an activation; raises ``UnsupportedError`` for a random parameter, which only layers know how to use."""
    if not isinstance(x, Moments):
        return Moments(x, torch.zeros((), dtype=x.dtype, device=x.device).expand(x.shape))
    here = current_pass()
    if x.parameter is not None:
        raise here.error(function, f"which uses the random parameter {x.parameter!r} outside of a layer")
    if here.follow and not x.expectation.requires_grad:
        here.add_independent_noise(x.expectation, x.spread)
    return x
