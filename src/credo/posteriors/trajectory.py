r"""A Gaussian with the first two moments of a sequence of weights: diagonal plus low rank."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from typing_extensions import override

from credo._arguments import check_integer
from credo._devices import at_least_float32
from credo.errors import InputError
from credo.functional import Draw, Sampler
from credo.posteriors._gaussian_sampler import gaussian_sampler, low_rank_sampler
from credo.posteriors._wide_parameters import WideBuffers, as_key
from credo.posteriors.base import Posterior
from credo.selection import parameter_owners


class TrajectoryGaussian(WideBuffers, Posterior):
    r"""N(θ̄, ½·diag(v) + D·Dᵀ/(2·(K − 1))) from the weights θ₁, …, θ_T that an optimizer passed through.

    θ̄ is their mean and v their variance in every coordinate. The columns of D are θ_t − θ̄_t for the last K of them,
    with θ̄_t the mean of the first t. With ``rank=0``, or fewer than two columns, it is N(θ̄, diag(v)).

    The network's own parameters are the mean of the posterior, once :meth:`center` has put θ̄ there.

    Args:
        net: the network.
        names: the parameters to cover.
        rank: the largest K; 0, or at least 2.

    Reference: W. Maddox, T. Garipov, P. Izmailov, D. Vetrov, A. G. Wilson, "A simple baseline for Bayesian uncertainty
    in deep learning", NeurIPS 2019.
    """

    count: Tensor

    def __init__(self, net: nn.Module, names: Sequence[str], rank: int = 20) -> None:
        super().__init__(net)
        if check_integer(rank, "rank", minimum=0) == 1:
            raise InputError("rank must be 0, for independent weights, or at least 2: one deviation has no variance")
        self._owners, self.rank = parameter_owners(net, names), rank
        self.average, self.squares, self.deviations = nn.Module(), nn.Module(), nn.Module()
        for name, weight in self.mean().items():
            zero = torch.zeros_like(weight, dtype=at_least_float32(weight.dtype))
            self.average.register_buffer(as_key(name), zero)
            self.squares.register_buffer(as_key(name), zero.clone())
            self.deviations.register_buffer(as_key(name), zero.new_zeros(rank, *zero.shape))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64, device=next(self.buffers()).device))

    @override
    def names(self) -> list[str]:
        return list(self._owners)

    @override
    def mean(self) -> Draw:
        return {name: getattr(module, key).detach() for name, (module, key) in self._owners.items()}

    def variance(self) -> Draw:
        """v, the variance of every weight along the trajectory, without a correction for its length.

        Returns:
            Name to tensor.
        """
        return {name: self.squares.get_buffer(as_key(name)) / max(int(self.count), 1) for name in self._owners}

    def columns(self) -> Draw:
        """The columns of D, in no particular order.

        Returns:
            Name to tensor ``[K, *shape]``.
        """
        kept = min(int(self.count), self.rank)
        return {name: self.deviations.get_buffer(as_key(name))[:kept] for name in self._owners}

    @torch.no_grad()
    def collect(self) -> None:
        """Add the weights that the network has now to the trajectory."""
        self.count += 1
        number = int(self.count)
        for name, weight in self.mean().items():
            average, squares = (
                self.average.get_buffer(as_key(name)),
                self.squares.get_buffer(as_key(name)),
            )
            before = weight.to(average.dtype) - average
            average += before / number
            after = weight.to(average.dtype) - average
            squares.addcmul_(before, after)  # Welford: the sum of squares about the mean, without cancellation
            if self.rank:
                self.deviations.get_buffer(as_key(name))[(number - 1) % self.rank] = after

    @torch.no_grad()
    def center(self) -> None:
        """Set the network's parameters to the mean of the trajectory."""
        for name, weight in self.mean().items():
            weight.copy_(self.average.get_buffer(as_key(name)))

    def clear(self) -> None:
        """Forget the trajectory."""
        for buffer in self.buffers():
            buffer.zero_()

    @override
    def extra_repr(self) -> str:
        """The length of the trajectory.

        Returns:
            What ``repr`` shows beside the submodules.
        """
        return f"{int(self.count)} sets of weights, rank {self.rank}"

    @override
    @torch.no_grad()
    def sampler(self, seed: int) -> Sampler:
        if not self.count:
            raise InputError("there is no posterior before fit: call fit(data), with at least one epoch")
        mean, columns = self.mean(), self.columns()
        kept = len(next(iter(columns.values())))
        share = 0.5 if kept > 1 else 1.0
        scale = {name: (share * variance).sqrt() for name, variance in self.variance().items()}
        if kept < 2:
            return gaussian_sampler(mean, scale, seed, antithetic=False)
        return low_rank_sampler(mean, scale, columns, 1.0 / math.sqrt(2.0 * (kept - 1)), seed)
