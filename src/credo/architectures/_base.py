"""The base class of the bundled networks, and the layers and checks that they share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Integral, Real
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from credo._arguments import check_integer, check_number
from credo.errors import InputError, unknown_name

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "softplus": nn.Softplus,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
}


class Architecture(nn.Module):
    """A network that stores its constructor arguments, so that it can be rebuilt from a file.

    Subclasses leave the initialization to their layers, so that ``reset_parameters`` of each layer draws fresh weights,
    or have a ``reset_parameters`` of their own. An ensemble initializes its members this way.

    Args:
        **config: the constructor arguments of the subclass.

    Attributes:
        config: the constructor arguments as JSON values; ``type(net)(**net.config)`` is the same network with fresh
            weights.

    Example:
        >>> from credo.architectures import MLP
        >>> MLP(3, (8,)).config["hidden"]
        [8]
    """

    config: dict[str, Any]

    def __init__(self, **config: Any) -> None:
        super().__init__()
        self.config = {key: _as_json(value) for key, value in config.items()}


def _as_json(value: Any) -> Any:
    """A value that JSON can hold: tuples as lists, numbers of numpy as numbers of Python."""
    if isinstance(value, tuple | list):
        return [_as_json(part) for part in value]
    if isinstance(value, bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else value


class TokenEmbedding(nn.Embedding):
    """An embedding whose initial vectors are small enough to be an output layer too."""

    start_bound = 0.1

    def reset_parameters(self) -> None:
        """Draw the vectors uniformly from [−0.1, 0.1], as Zaremba et al. (2014) do."""
        nn.init.uniform_(self.weight, -self.start_bound, self.start_bound)


def embed_tokens(embedding: nn.Embedding, tokens: Tensor) -> Tensor:
    """The vectors ``[B, T, D]`` of tokens ``[B, T]``.

    Raises:
        InputError: if the tokens are not indices of the embedding; on a GPU one that is too large is an error of CUDA.
    """
    if not isinstance(tokens, Tensor):
        raise InputError(f"tokens must be int64 indices [B, T] in a tensor, got {type(tokens).__name__}")
    if tokens.dtype not in (torch.int64, torch.int32) or tokens.dim() != 2:
        raise InputError(f"tokens must be int64 indices [B, T], got {tokens.dtype} of {list(tokens.shape)}")
    if torch.compiler.is_compiling():
        return embedding(tokens)  # type: ignore[no-any-return]
    try:
        return embedding(tokens)  # type: ignore[no-any-return]
    except IndexError:
        size = embedding.num_embeddings
        raise InputError(
            f"tokens must be from 0 to {size - 1}, for a vocabulary of {size}, got {int(tokens.min())} to "
            f"{int(tokens.max())}"
        ) from None


def activation_layer(name: str) -> nn.Module:
    """Return a new activation module by its name."""
    if name not in ACTIVATIONS:
        raise unknown_name("activation", name, ACTIVATIONS)
    return ACTIVATIONS[name]()


def dropout_layers(p: float | None) -> list[nn.Module]:
    """Return ``[nn.Dropout(p)]``, or an empty list if ``p`` is ``None``."""
    return [] if p is None else [nn.Dropout(check_drop_rate(p, "dropout"))]


def drop_units(x: Tensor, p: float, training: bool) -> Tensor:
    """Return ``x``, ``[B, T, D]``, with the same units dropped at every time step, others in every row."""
    return x if p == 0 else F.dropout1d(x.transpose(1, 2), p, training).transpose(1, 2)


def check_drop_rate(rate: float, name: str) -> float:
    """Return ``rate`` if it is in [0, 1)."""
    found = check_number(rate, name)
    if not 0.0 <= found < 1.0:
        raise InputError(f"{name} is the rate at which units are dropped and must lie in [0, 1), got {rate}")
    return found


def check_sizes(sizes: object, name: str) -> tuple[int, ...]:
    """Return ``sizes`` as a tuple if they are integers of at least 1."""
    if not isinstance(sizes, Iterable):
        raise InputError(f"{name} must be a sequence of integers, such as (16, 32), got {sizes!r}")
    return tuple(check_integer(size, f"{name}[{i}]", 1) for i, size in enumerate(sizes))


def check_channels(channels: Sequence[int]) -> tuple[int, ...]:
    """Return ``channels`` as a tuple if there is at least one, and all are integers of at least 1."""
    checked = check_sizes(channels, "channels")
    if not checked:
        raise InputError("channels must hold at least one width, got none")
    return checked


def check_rows(x: Tensor, shape: Sequence[int | str], name: str = "images") -> None:
    """Raise InputError unless ``x`` has shape ``[N, *shape]``; a size with a name, such as ``"H"``, may be any.

    Images of integers, as a file has them, are an error too.
    """
    if not isinstance(x, Tensor):
        raise InputError(f"{name} must be a tensor, got {type(x).__name__}: convert it with torch.as_tensor")
    if not x.is_floating_point():
        raise InputError(f"{name} must be floating-point numbers, got {x.dtype}: x.float() / 255 if they are bytes")
    sizes = x.shape[1:]
    if len(sizes) != len(shape) or any(isinstance(s, int) and s != n for s, n in zip(shape, sizes, strict=True)):
        expected, found = (", ".join(["N", *map(str, sizes)]) for sizes in (shape, x.shape[1:]))
        raise InputError(f"{name} must have shape [{expected}], got [{found}]")
