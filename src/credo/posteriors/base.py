"""The contract of a posterior: named draws that a network can be called with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from credo.errors import InputError
from credo.functional import Draw, Replica, Sampler
from credo.seeding import check_seed


class Posterior(nn.Module, ABC):
    """A distribution over (some of) what a network computes with, usually its parameters.

    A draw is a mapping from names to tensors. Draw number ``s`` of a seed is always the same, whatever was
    drawn before it, so that draws need not be kept and results do not depend on how they are batched.
    """

    vectorizable: ClassVar[bool] = True
    """Whether :meth:`call` can be mapped over stacked draws."""

    @abstractmethod
    def names(self) -> list[str]:
        """The names a draw holds; tied parameters once, frozen and deterministic ones absent."""

    @abstractmethod
    def mean(self) -> Draw:
        """The posterior mean, detached."""

    def point(self) -> Draw:
        """What to call the network with for its deterministic prediction; nothing where its own state says it all."""
        return {}

    @abstractmethod
    def sampler(self, seed: int) -> Sampler:
        """A function from draw numbers to those draws of the stream ``seed``, detached.

        What all draws have in common is computed here, once. A call of the function may overwrite the draws of the
        call before: fresh memory for every draw of a large network costs more than the draw.
        """

    def draw(self, seed: int, s: int) -> Draw:
        """Draw number ``s`` of the stream ``seed``, detached."""
        return self.sampler(seed)([s])[0]

    def call(self, network: Replica, draw: Draw, x: Any) -> Tensor:
        """The network's output for ``x`` under ``draw``, one function for all rows."""
        return network(draw, x)

    @torch.no_grad()
    def sample(self, n: int = 1, seed: int | None = None) -> Draw:
        """``n`` draws: name → ``[n, *shape]``."""
        if n < 0:
            raise InputError(f"n must be at least 0, got {n}")
        if n == 0:
            return {name: value.new_empty(0, *value.shape) for name, value in self.mean().items()}
        base = check_seed(seed)
        draws = self.sampler(base)(range(n))
        return {name: torch.stack([draw[name] for draw in draws]) for name in draws[0]}
