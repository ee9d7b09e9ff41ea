"""The interface of a likelihood, the registry of likelihoods, and checks of network outputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from credo._registry import Registry
from credo.errors import InputError
from credo.predictive import ClassPredictive, Predictive, RealPredictive
from credo.predictive.components import ClassComponents, RealComponents


class Likelihood(nn.Module, ABC):
    """p(y | f(x)), the distribution of targets given the output of the network, with its noise parameters.

    A datum is one row of dim 0. Nothing is broadcast: targets whose shape or dtype does not match raise ``InputError``.
    Outputs in half precision are converted to float32.

    A subclass implements ``components``, the distributions of the targets, and ``get_config``. To load a run that was
    saved with a likelihood of your own, pass ``likelihood=`` to ``credo.load``.

    Example:
        >>> likelihood = credo.Gaussian(noise=0.1)
        >>> likelihood.log_prob(net(x), y)            # [B], to train
        >>> likelihood.predictive(outputs).interval() # from the outputs [S, B, ...] of S draws
    """

    def __init__(self) -> None:
        super().__init__()

    @abstractmethod
    def components(self, outputs: Tensor) -> RealComponents | ClassComponents:
        """Return the distribution p(y | f_s(x_b)) of every draw s and row b.

        Args:
            outputs: the network's outputs for S draws, ``[S, B, ...]``, in float32 or float64.

        Returns:
            The distributions, ``[S, B, ...]``.

        Raises:
            InputError: if the shape of ``outputs`` does not match the likelihood.
        """

    @abstractmethod
    def get_config(self) -> dict[str, object]:
        """Return the constructor's arguments and ``"name"``, which JSON can hold.

        Returns:
            The configuration; learned values are in the ``state_dict``.
        """

    def log_prob(self, output: Tensor, y: Tensor) -> Tensor:
        """Return log p(y | output) per row, summed over its outputs, pixels or tokens.

        Differentiable, and free of data-dependent branches, so that ``torch.compile(fullgraph=True)`` works.

        Args:
            output: the network's output, ``[B, ...]``.
            y: the targets, in the shape of the predictive mean (for classes without the class dimension).

        Returns:
            Log likelihoods in nats, ``[B]``.

        Raises:
            InputError: if the shape or dtype of ``y`` or ``output`` does not match.
        """
        return self.components(as_draw(output)).row_log_prob(y)[0]

    def predictive(self, outputs: Tensor) -> Predictive:
        """Return the predictive distribution, a mixture over S draws of the network.

        Args:
            outputs: the network's outputs for S draws, ``[S, B, ...]``.

        Returns:
            The prediction of B rows.

        Raises:
            InputError: if the shape or dtype of ``outputs`` does not match the likelihood.
        """
        components = self.components(as_outputs(outputs))
        if not torch.is_grad_enabled():
            components = components.map(Tensor.detach)  # a view of a parameter requires a gradient all the same
        return ClassPredictive(components) if isinstance(components, ClassComponents) else RealPredictive(components)

    def check(self, output: Tensor, y: Tensor) -> None:
        """Raise ``InputError`` if targets do not match in shape, dtype or range; called once per data set.

        Args:
            output: the network's output, ``[B, ...]``.
            y: the targets of the same rows.
        """
        self.components(as_draw(output)).check(y)

    def _expected_tensors(self, saved: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the learned tensors in the dtype of the saved ones, float64 after ``.double()`` of the model."""
        own: dict[str, Tensor] = self.state_dict(keep_vars=True)
        dtype = _float_dtype(saved)
        return {name: value.to(dtype=dtype) if value.is_floating_point() else value for name, value in own.items()}

    def _prepare_for(self, saved: Mapping[str, Tensor]) -> None:
        """Convert the learned tensors to the dtype of the saved ones."""
        self.to(dtype=_float_dtype(saved))


REGISTRY: Registry[Likelihood] = Registry("likelihood")


def infer_likelihood(y: Tensor) -> Likelihood:
    """Choose a likelihood by the dtype of the targets: real → Gaussian, bool → Bernoulli, integer → Categorical.

    Args:
        y: the targets.

    Returns:
        The likelihood; the noise of the Gaussian is learned.

    Raises:
        InputError: if ``y`` is not a tensor or is complex.
    """
    from credo.likelihoods.classification import Bernoulli, Categorical
    from credo.likelihoods.regression import Gaussian

    if not isinstance(y, Tensor):
        raise InputError(f"y must be a tensor, got {type(y).__name__}: convert it with torch.as_tensor(y).")
    if y.is_floating_point():
        return Gaussian(noise="learned")
    if y.dtype == torch.bool:
        return Bernoulli()
    if y.is_complex():
        raise InputError(f"there is no likelihood for targets of dtype {y.dtype}: pass likelihood=...")
    return Categorical()


def likelihood_from_config(config: Mapping[str, object]) -> Likelihood:
    """Build a likelihood from its configuration; learned values come from the ``state_dict``.

    Args:
        config: what :meth:`Likelihood.get_config` returned.

    Returns:
        The likelihood.

    Raises:
        LoadError: if the name is unknown or the arguments are not valid; pass ``likelihood=`` to ``credo.load`` for a
            likelihood of your own.
    """
    return REGISTRY.build(config)


def as_outputs(outputs: object) -> Tensor:
    """Check the outputs ``[S, B, ...]`` of S draws and return them in float32 or float64."""
    if not isinstance(outputs, Tensor):
        raise InputError(
            f"the network outputs a {type(outputs).__name__}, but a tensor is needed: "
            "pass forward=lambda net, x: ... to select the tensor."
        )
    if not outputs.is_floating_point():
        raise InputError(f"the network's output has dtype {outputs.dtype}, but a floating-point dtype is needed.")
    if outputs.ndim < 2:
        raise InputError(f"outputs must have shape [draws, rows, ...], got {list(outputs.shape)}.")
    if outputs.shape[0] == 0:
        raise InputError("outputs must hold at least one draw, got none.")
    return outputs.float() if outputs.dtype in (torch.float16, torch.bfloat16) else outputs


def as_draw(output: object) -> Tensor:
    """Check the output ``[B, ...]`` of one draw and return it as ``[1, B, ...]``."""
    if isinstance(output, Tensor) and output.ndim == 0:
        raise InputError("the network's output is a single number, but its dim 0 must be the rows.")
    return as_outputs(output[None] if isinstance(output, Tensor) else output)


def trailing_dim(dim: int, outputs: Tensor, argument: str) -> int:
    """Return ``dim`` of an output ``[B, ...]`` as a negative index, which also holds for ``outputs [S, B, ...]``."""
    ndim = outputs.ndim - 1
    if not -ndim <= dim < ndim or dim % ndim == 0:
        raise InputError(
            f"{argument}={dim} is not a dimension after the rows of the network's output, "
            f"which has shape {list(outputs.shape[1:])}."
        )
    return dim % ndim - ndim


def split_in_two(outputs: Tensor, dim: int, what: str) -> tuple[Tensor, Tensor]:
    """Return the two halves of ``outputs`` along ``dim``; ``what`` they are is named in the error."""
    size = outputs.shape[dim]
    if size % 2 or size == 0:
        raise InputError(
            f"the network must output {what}, an even number of values, but dimension {dim} has size {size}: "
            "double the width of its last layer."
        )
    first, second = outputs.chunk(2, dim)
    return first, second


def _float_dtype(tensors: Mapping[str, Tensor]) -> torch.dtype | None:
    """Return the floating-point dtype that all tensors share, or ``None``."""
    dtypes = {value.dtype for value in tensors.values() if value.is_floating_point()}
    return dtypes.pop() if len(dtypes) == 1 else None
