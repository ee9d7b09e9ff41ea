"""What a likelihood is, and the checks they share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from credo.errors import InputError
from credo.predictive import Predictive
from credo.predictive.components import listed


class Likelihood(nn.Module, ABC):
    """p(y | f(x)): how targets scatter about what the network outputs. Owns the noise.

    A datum is one row of dim 0. Nothing is broadcast: targets of the wrong shape or dtype are an ``InputError``.
    Outputs in half precision are raised to float32.
    """

    @abstractmethod
    def log_prob(self, output: Tensor, y: Tensor) -> Tensor:
        """log p(y | output) of every row, summed over its outputs, pixels or tokens: ``[B, ...]`` → ``[B]``.

        Differentiable, and free of data-dependent branches, so that ``torch.compile(fullgraph=True)`` takes it.
        """

    @abstractmethod
    def predictive(self, outputs: Tensor) -> Predictive:
        """The mixture over S draws of the network, from their outputs ``[S, B, ...]``."""

    @abstractmethod
    def check(self, output: Tensor, y: Tensor) -> None:
        """Raise ``InputError`` for targets of another shape, dtype or range; called once per data set."""

    @abstractmethod
    def get_config(self) -> dict[str, object]:
        """The constructor's arguments and ``"name"``, JSON-able. What is learned is in the ``state_dict``."""

    def _expected_tensors(self, saved: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The learned tensors in the dtype of the saved ones: a method moved by ``.double()`` has them in float64."""
        dtypes = {value.dtype for value in saved.values() if value.is_floating_point()}
        own: dict[str, Tensor] = self.state_dict(keep_vars=True)
        if len(dtypes) != 1:
            return own
        dtype = dtypes.pop()
        return {name: value.to(dtype) if value.is_floating_point() else value for name, value in own.items()}

    def _prepare_for(self, saved: Mapping[str, Tensor]) -> None:
        """Convert the learned tensors to the dtype of the saved ones."""
        dtypes = {value.dtype for value in saved.values() if value.is_floating_point()}
        if len(dtypes) == 1:
            self.to(dtypes.pop())


def as_outputs(outputs: object) -> Tensor:
    """The outputs ``[S, B, ...]`` of S draws, checked, in float32 at least."""
    if not isinstance(outputs, Tensor):
        raise InputError(
            f"the network outputs a {type(outputs).__name__}, a tensor is needed: "
            "pass forward=lambda net, x: ... to pick the tensor."
        )
    if not outputs.is_floating_point():
        raise InputError(f"the network's output has dtype {outputs.dtype}, a floating one is needed.")
    if outputs.ndim < 2:
        raise InputError(f"outputs must have shape [draws, rows, ...], got {listed(outputs.shape)}.")
    if outputs.shape[0] == 0:
        raise InputError("there are no draws to predict from: at least one is needed.")
    return outputs.float() if outputs.dtype in (torch.float16, torch.bfloat16) else outputs


def one_draw(output: object) -> Tensor:
    """The output ``[B, ...]`` of one draw as outputs ``[1, B, ...]``."""
    if isinstance(output, Tensor) and output.ndim == 0:
        raise InputError("the network's output is a single number: dim 0 of the output must be the rows.")
    return as_outputs(output[None] if isinstance(output, Tensor) else output)


def trailing_dim(dim: int, outputs: Tensor, argument: str) -> int:
    """``dim`` of an output ``[B, ...]`` counted from the end, so that it holds for ``outputs [S, B, ...]`` too."""
    ndim = outputs.ndim - 1
    if not -ndim <= dim < ndim or dim % ndim == 0:
        raise InputError(
            f"{argument}={dim} does not name a dimension behind the rows of the network's output, "
            f"which has shape {listed(outputs.shape[1:])}."
        )
    return dim % ndim - ndim


def halves(outputs: Tensor, dim: int, what: str) -> tuple[Tensor, Tensor]:
    """The two halves of ``outputs`` along ``dim``."""
    size = outputs.shape[dim]
    if size % 2 or size == 0:
        raise InputError(
            f"the network must output {what}, an even number of values, but dimension {dim} has size {size}: "
            "double the width of its last layer."
        )
    first, second = outputs.chunk(2, dim)
    return first, second
