"""The interface of a posterior: named draws that a network can be called with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from credo._arguments import check_integer
from credo._embeddings import padding_rows, without_padding
from credo.functional import Draw, Replica, Sampler
from credo.seeding import check_seed


class Posterior(nn.Module, ABC):
    """A distribution over (some of) the parameters of a network.

    A draw is a mapping from names to tensors. Draw ``s`` of a seed is always the same, whatever was drawn before it, so
    that draws need not be kept and results do not depend on how they are batched.

    Args:
        net: the network, if its embeddings may have vectors for padding: those are no parameters, and every draw of
            :meth:`sample` has their mean, as every draw of a prediction has. Under a prior they count as parameters at
            its center that the data do not depend on: no prior moves them, and their KL is 0 when training has
            converged.
    """

    vectorization: ClassVar[str] = "vmap"
    """How several draws are evaluated at once: ``"vmap"``, :meth:`call` mapped over stacked draws; ``"fold"``,
    :meth:`call_folded`, with draws as rows of one batch."""
    differentiates: ClassVar[bool] = False
    """Whether :meth:`call` differentiates the network."""

    def __init__(self, net: nn.Module | None = None) -> None:
        super().__init__()
        self._padding = {} if net is None else padding_rows(net)

    def _under(self, prior: object, name: str, weight: Tensor) -> Tensor:
        """A weight, or its mean, as its prior sees it, see :func:`~credo._embeddings.without_padding`."""
        return without_padding(weight, self._padding.get(name), prior)

    @abstractmethod
    def names(self) -> list[str]:
        """The names of a draw; tied parameters once, frozen and deterministic ones absent.

        Returns:
            Parameter names.
        """

    @abstractmethod
    def mean(self) -> Draw:
        """The posterior mean, detached.

        Returns:
            Name to tensor.
        """

    def point(self) -> Draw:
        """The weights for the deterministic prediction, as far as they differ from the network's own parameters.

        Returns:
            Name to tensor; empty by default.
        """
        return {}

    def masks(self) -> Draw:
        """Which weights are kept, of the parameters that were pruned; the others are 0.

        Returns:
            Name to bool tensor.
        """
        return {}

    @abstractmethod
    def sampler(self, seed: int) -> Sampler:
        """A function that returns draws by number, detached.

        What all draws have in common is computed once, here. A call of the function may overwrite the draws of the
        call before: fresh memory for every draw of a large network costs more than the draw.

        Args:
            seed: the seed of the stream of draws.

        Returns:
            ``sampler(numbers)``, which returns one draw per number.
        """

    def draw(self, seed: int, s: int) -> Draw:
        """One draw, detached.

        Args:
            seed: the seed of the stream.
            s: the number of the draw.

        Returns:
            Name to tensor.
        """
        return self.sampler(seed)([s])[0]

    def call(self, network: Replica, draw: Draw, x: Any) -> Tensor:
        """The network's output under a draw, which is one function for all rows.

        Args:
            network: a private copy of the network.
            draw: the weights.
            x: inputs, rows along dim 0.

        Returns:
            The output, ``[B, ...]``.
        """
        return network(draw, x)

    def prepare(self, network: Replica, x: Any) -> None:
        """Find out about the network, on its first batch, what :meth:`call` needs to know; nothing by default.

        Args:
            network: a private copy of the network.
            x: inputs, rows along dim 0.
        """
        return

    def can_vectorize(self, network: Replica, x: Any) -> bool:
        """Whether several draws can be evaluated at once in the way of :attr:`vectorization`.

        Args:
            network: a private copy of the network.
            x: inputs, rows along dim 0.

        Returns:
            ``True`` where nothing speaks against it; whether ``vmap`` works is only seen by trying.
        """
        return True

    def call_folded(self, network: Replica, draws: Sequence[Draw], x: Any) -> Tensor:
        """The network's outputs under several draws; one forward pass where :attr:`vectorization` is ``"fold"``.

        Args:
            network: a private copy of the network.
            draws: K draws.
            x: inputs, rows along dim 0.

        Returns:
            The outputs, ``[K, B, ...]``.
        """
        return torch.stack([self.call(network, draw, x) for draw in draws])

    @torch.no_grad()
    def sample(self, n: int = 1, seed: int | None = None) -> Draw:
        """Draw weights.

        Args:
            n: number of draws.
            seed: the same seed gives the same draws; ``None``: from torch's random state.

        Returns:
            Name to tensor of shape ``[n, *shape]``.
        """
        if check_integer(n, "n", minimum=0) == 0:
            return {name: value.new_empty(0, *value.shape) for name, value in self.mean().items()}
        base = check_seed(seed)
        draws = self.sampler(base)(range(n))
        stacked = {name: torch.stack([draw[name] for draw in draws]) for name in draws[0]}
        mean = self.mean() if self._padding else {}
        for name in mean.keys() & self._padding.keys():
            stacked[name][:, self._padding[name]] = mean[name][self._padding[name]]
        return stacked
