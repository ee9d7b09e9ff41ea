"""A weight that rises during the first training steps, such as that of a KL divergence."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Warmup(nn.Module):
    """A factor that rises linearly from 0 to 1 over the first training steps, and counts them.

    Args:
        length: number of steps; 0: the factor is 1.
    """

    steps: Tensor
    length: Tensor
    is_held = False
    """Whether not to count, as in the second and later parts of one step."""

    def __init__(self, length: int = 0) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("length", torch.full((), length, dtype=torch.int64))

    def forward(self) -> Tensor:
        """Count this step, if it is one of training, and return min(1, steps/length)."""
        if self.training and torch.is_grad_enabled() and not self.is_held:
            if torch.compiler.is_compiling():
                self.steps = self.steps + 1  # in place, a compiled backward would see the number of the next step
            else:
                self.steps.add_(1)  # in place, so that a captured CUDA graph counts as well
        return torch.where(self.steps < self.length, self.steps / self.length, 1.0)
