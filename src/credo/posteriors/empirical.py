"""A posterior that is a set of draws, as samplers return them: equal weights on draws of several chains."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from credo._arguments import check_integer
from credo._text import counted
from credo.errors import InputError
from credo.functional import Draw, Sampler
from credo.posteriors._wide_parameters import as_key
from credo.posteriors.base import Posterior
from credo.seeding import generator

_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0
_SEARCHED = 50


class Empirical(Posterior):
    r"""Equal weights on N = chains × draws stored weight vectors.

    A prediction with S draws takes an evenly spaced subset, whatever S is. All draws are numbered chain by chain, and
    draw s of a seed is number

        (offset + s·stride) mod N,

    with a stride near N/φ, φ the golden ratio, that has no factor in common with N; the seed chooses the offset. The
    first S numbers of such a sequence are spread over all chains and over the whole length of each. N successive ones
    are all draws exactly once, and more than N begin again.

    Args:
        draws: name to tensor ``[chains, draws, *shape]``, the same numbers of chains and draws for all.

    Raises:
        InputError: there are no draws, or their shapes disagree.

    Example:
        >>> posterior = model.posterior  # of credo.HMC
        >>> credo.diagnostics.r_hat(posterior.by_chain()["0.weight"])
        >>> posterior.thin(10).sample(20)
    """

    def __init__(self, draws: Mapping[str, Tensor]) -> None:
        super().__init__()
        if not isinstance(draws, Mapping) or not draws:
            raise InputError(f"draws must be a mapping from parameter names to tensors, got {draws!r:.100}")
        leading = {tuple(value.shape[:2]) for value in draws.values()}
        if len(leading) != 1 or any(value.dim() < 2 or 0 in value.shape[:2] for value in draws.values()):
            found = {name: list(value.shape) for name, value in draws.items()}
            raise InputError(f"draws must have shape [chains, draws, ...], the same for all parameters, got {found}")
        self._names = list(draws)
        self.draws = nn.Module()
        for name, value in draws.items():
            self.draws.register_buffer(as_key(name), value.detach().clone())

    @classmethod
    def without_draws(cls, weights: Mapping[str, Tensor]) -> Empirical:
        """A posterior over parameters before any draw of them; predictions from it raise ``InputError``.

        Args:
            weights: name to tensor, for the shapes of the parameters.

        Returns:
            One chain of length 0.
        """
        posterior = cls({name: value[None, None] for name, value in weights.items()})
        for key, value in list(posterior.draws.named_buffers()):
            posterior.draws.register_buffer(key, value[:, :0])
        return posterior

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of chains and of draws per chain."""
        chains, draws = next(self.draws.buffers()).shape[:2]
        return chains, draws

    @override
    def names(self) -> list[str]:
        return list(self._names)

    @override
    def extra_repr(self) -> str:
        """The numbers of chains, draws and weights.

        Returns:
            What ``repr`` shows beside the submodules.
        """
        chains, draws = self.shape
        weights = sum(value.shape[2:].numel() for value in self.draws.buffers())
        if not draws:
            return f"no draws yet of {weights:,} weights"
        return f"{counted(chains, 'chain')} of {counted(draws, 'draw')} of {weights:,} weights"

    @override
    def mean(self) -> Draw:
        """The mean of all draws, detached. For a network with several modes it is not a good set of weights.

        Returns:
            Name to tensor.
        """
        self._check_has_draws()
        return {name: value.double().mean((0, 1)).to(value.dtype) for name, value in self.by_chain().items()}

    def by_chain(self) -> Draw:
        """All draws in the order in which they were drawn, as :mod:`credo.diagnostics` takes them.

        Returns:
            Name to tensor ``[chains, draws, *shape]``.
        """
        return {name: self.draws.get_buffer(as_key(name)) for name in self._names}

    def order(self, n: int, seed: int) -> list[int]:
        """Which draws :meth:`sample` takes, counted chain by chain.

        Args:
            n: number of draws.
            seed: as for :meth:`sample`.

        Returns:
            The numbers of the first ``n`` draws of the seed.
        """
        self._check_has_draws()
        count = math.prod(self.shape)
        offset = int(torch.randint(count, (), generator=generator(torch.device("cpu"), seed)))
        stride = _even_stride(count)
        return [(offset + s * stride) % count for s in range(n)]

    @override
    def sampler(self, seed: int) -> Sampler:
        flat = {name: value.flatten(0, 1) for name, value in self.by_chain().items()}
        cycle = self.order(math.prod(self.shape), seed)

        def draw(numbers: Sequence[int]) -> list[Draw]:
            picked = [cycle[s % len(cycle)] for s in numbers]
            return [{name: value[i] for name, value in flat.items()} for i in picked]

        return draw

    def thin(self, every: int) -> Empirical:
        """Every ``every``-th draw of each chain.

        Args:
            every: the distance between draws that are kept; the last draw of each chain is one of them.

        Returns:
            A new posterior.
        """
        check_integer(every, "every", minimum=1)
        self._check_has_draws()
        start = (self.shape[1] - 1) % every
        return Empirical({name: value[:, start::every] for name, value in self.by_chain().items()})

    def replace(self, draws: Mapping[str, Tensor]) -> None:
        """Put other draws in the place of the present ones.

        Args:
            draws: name to tensor ``[chains, draws, *shape]``, for the same parameters.
        """
        new = Empirical(draws)
        if new.names() != self.names():
            raise InputError(f"the draws are of {new.names()}, but this posterior is over {self.names()}")
        self.draws = new.draws

    def _check_has_draws(self) -> None:
        if not math.prod(self.shape):
            raise InputError("there is no posterior before fit: call fit(data), which draws from it")

    def _expected_tensors(self, saved: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The draws, with the dtype and the numbers of chains and draws of the saved ones."""
        leading, dtype = _leading(saved), next((v.dtype for v in saved.values() if v.is_floating_point()), None)
        return {
            f"draws.{key}": value.new_empty(*(leading or value.shape[:2]), *value.shape[2:], dtype=dtype)
            for key, value in self.draws.named_buffers()
        }

    def _prepare_for(self, saved: Mapping[str, Tensor]) -> None:
        """Make room for as many draws as were saved."""
        for name, value in self._expected_tensors(saved).items():
            self.draws.register_buffer(name.removeprefix("draws."), value)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        """Make room for as many draws as ``state_dict`` holds."""
        own = {name.removeprefix(prefix): v for name, v in state_dict.items() if name.startswith(f"{prefix}draws.")}
        self._prepare_for(own)
        super()._load_from_state_dict(state_dict, prefix, *args)


def _leading(saved: Mapping[str, Tensor]) -> tuple[int, int] | None:
    """The numbers of chains and draws of saved draws, where they have any."""
    first = next((value for value in saved.values() if value.dim() >= 2), None)
    return None if first is None or first.shape[0] == 0 else (first.shape[0], first.shape[1])


def _even_stride(count: int) -> int:
    """A stride whose multiples modulo ``count`` are spread as evenly as possible, however many of them are taken.

    Gaps stay even if the continued fraction of stride/count has small terms, as that of 1/φ, all of whose are 1. The
    best of the integers near count/φ without a factor in common with ``count`` is taken.
    """
    start = round(count * _GOLDEN)
    near = [i for i in range(max(1, start - _SEARCHED), start + _SEARCHED + 1) if math.gcd(i, count) == 1]
    return min(near, key=lambda stride: (_largest_term(stride, count), abs(stride - start)))


def _largest_term(numerator: int, denominator: int) -> int:
    """The largest term of the continued fraction of a fraction."""
    largest = 0
    while denominator:
        term, (numerator, denominator) = numerator // denominator, (denominator, numerator % denominator)
        largest = max(largest, term)
    return largest
