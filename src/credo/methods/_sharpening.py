r"""Posterior sharpening: weights that take a gradient step towards the minibatch they are used on.

A minibatch (x, y) has weights of its own, θ, around weights φ that all minibatches share:

    p(θ | φ) = N(φ, σ₀²),      q(θ | φ, x, y) = N(φ − η∘g, σ₀²),      g = −∇_φ log p(y | x, φ),

with a learned step size η for every weight. The bound on the log likelihood of the minibatch is

    log p(y | x) ≥ E[log p(y | x, θ)] − ‖η∘g‖²/(2σ₀²) − KL(q(φ) ‖ p(φ))·(share of the minibatch).

Gradients are taken through θ = φ − η∘g + σ₀ε with g held fixed: its derivative would be one of second order.

Where log p(y | x, θ) has curvature −h in a weight, the best step size is σ₀²/(1 + σ₀²h). What is learned is therefore
r = η/σ₀²: it has no unit and lies between 0 and 1 for the best steps, whatever σ₀, the size of minibatches and the
scale of a gradient, so that one learning rate suits all of them. It starts at 0.1. Weights are not independent: a step
along a gradient of many weights meets their joint curvature, and from steps with r = 1 for all of them a network of 20
million weights did not recover.

Reference: M. Fortunato, C. Blundell, O. Vinyals, "Bayesian recurrent neural networks", arXiv:1704.02798, 2017.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor, nn

from credo._arguments import check_positive
from credo.posteriors._wide_parameters import WideParameters

_START = 0.1
"""r before training."""


class Sharpening(WideParameters):
    """The step sizes η = σ₀²r of q(θ | φ, x, y), with a parameter r for every weight, 0.1 at the start.

    Args:
        net: the network.
        names: the parameters that have a posterior.
        scale: σ₀.
    """

    def __init__(self, net: nn.Module, names: Sequence[str], scale: float) -> None:
        super().__init__()
        self.scale = check_positive(scale, "sharpening")
        for name in names:
            self.add(name, torch.full_like(net.get_parameter(name), _START))

    def forward(
        self,
        shared: Mapping[str, Tensor],
        nll: Callable[[Mapping[str, Tensor]], Tensor],
        kept: Mapping[str, Tensor] = MappingProxyType({}),
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Draw the weights of a minibatch.

        Args:
            shared: φ by name.
            nll: the negative log likelihood of the minibatch, −log p(y | x, ·), as a function of the weights.
            kept: which weights of pruned parameters are kept, by name; θ is φ, that is 0, for the others.

        Returns:
            θ by name, and KL(q(θ | φ, x, y) ‖ p(θ | φ)) = ‖η∘g‖²/(2σ₀²), differentiable.
        """
        with torch.enable_grad():
            leaves = {name: weight.detach().requires_grad_() for name, weight in shared.items()}
            gradients: Sequence[Tensor | None] = torch.autograd.grad(
                nll(leaves), list(leaves.values()), allow_unused=True
            )
        drawn, squares = {}, []
        for (name, weight), gradient in zip(shared.items(), gradients, strict=True):
            noise = self.scale * torch.randn_like(weight)
            if name in kept:
                noise, gradient = noise * kept[name], None if gradient is None else gradient * kept[name]
            if gradient is None:
                drawn[name] = weight + noise
                continue
            step = self.get(name) * (self.scale**2 * gradient)
            drawn[name] = weight - step.to(weight.dtype) + noise
            squares.append(step.square().sum())
        return drawn, torch.stack(squares).sum() / (2.0 * self.scale**2)
