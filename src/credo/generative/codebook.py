"""The codebook of a vector-quantized model: nearest vectors, the two ways to learn them, and counts of codes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, distributed, nn
from typing_extensions import override

from credo.errors import InputError

_SMOOTHING = 1e-5


class Codebook(nn.Module, ABC):
    """K vectors e_k in D dimensions; a vector z is encoded by the index of the nearest.

    Inputs have shape ``z [B, D, ...]``: one vector for each position along the dimensions after the second.

    Args:
        codes: K.
        dimension: D.
        revive_after: a code that was not used for ``revive_after``·K training vectors (``revive_after`` times its even
            share) restarts at a random vector of the batch; ``None``: never. At the start all codes count as unused for
            that long, so codes that the first batch does not use start at vectors of it.

    Attributes:
        vectors: ``[K, D]``.
        idle: ``[K]``, number of vectors per code since each was last used.
        used: ``[K]``, how often each was used since this count was set to 0.
        n_processes: number of processes that train the codebook together; ``None``: all of torch's process group, if
            there is one.
    """

    vectors: Tensor
    idle: Tensor
    used: Tensor
    n_processes: int | None = None

    def __init__(self, codes: int, dimension: int, revive_after: float | None) -> None:
        super().__init__()
        self._revive_after = revive_after
        self.register_buffer("idle", torch.full((codes,), revive_after or 0.0))
        self.register_buffer("used", torch.zeros(codes))
        self._register(torch.empty(codes, dimension).uniform_(-1.0 / codes, 1.0 / codes))

    @abstractmethod
    def _register(self, vectors: Tensor) -> None:
        """Register the initial ``vectors [K, D]`` and the state needed to learn them."""

    @abstractmethod
    def loss(self, z: Tensor, vectors: Tensor) -> Tensor:
        """The loss per datum by which ``vectors [B, D, ...]``, those nearest to ``z``, are learned, ``[B]``."""

    @abstractmethod
    def _update_vectors(self, counts: Tensor, sums: Tensor) -> None:
        """Update from the number of vectors ``[K]`` of a batch per code, and their sums ``[K, D]``."""

    @abstractmethod
    def restart(self, codes: Tensor, at: Tensor) -> None:
        """Set the codes selected by the mask ``codes [K]`` to the rows of ``at [K, D]``."""

    @torch.no_grad()
    def nearest(self, z: Tensor) -> Tensor:
        """The code argmin_k ‖z − e_k‖ of each vector of ``z [B, D, ...]``, ``[B, ...]``."""
        rows, vectors = (t.float() if t.dtype == torch.bfloat16 else t for t in (_rows(z), self.vectors))
        center = vectors.mean(0)  # distances computed by a product lose digits far from the origin
        return torch.cdist(rows - center, vectors - center).argmin(1).view(len(z), *z.shape[2:])

    def look_up(self, codes: Tensor) -> Tensor:
        """The vectors of ``codes [B, ...]``, ``[B, D, ...]``."""
        return F.embedding(codes, self.vectors).movedim(-1, 1)

    def check_codes(self, codes: Any, grid: tuple[int, ...] | None) -> Tensor:
        """``codes`` as an int64 tensor; raises ``InputError`` if they are no codes ``[N, *grid]`` of this codebook."""
        found = torch.as_tensor(codes, device=self.vectors.device)
        if found.is_floating_point() or found.is_complex() or found.dtype == torch.bool:
            raise InputError(f"codes must be integers as encode returns them, got {found.dtype}")
        if found.ndim == 0 or len(found) == 0 or (grid is not None and found.shape[1:] != grid):
            expected = ", ".join(["N", *map(str, ("...",) if grid is None else grid)])
            raise InputError(f"codes must have shape [{expected}] with N >= 1, got {list(found.shape)}")
        low, high = int(found.min()), int(found.max())
        if not 0 <= low <= high < len(self.vectors):
            raise InputError(f"codes must be from 0 to {len(self.vectors) - 1}, got {low} to {high}")
        return found.long()

    @torch.no_grad()
    def update(self, z: Tensor, codes: Tensor, weight: Tensor) -> None:
        """Update from a training batch ``z [B, D, ...]`` with ``codes [B, ...]`` and row weights ``weight [B]``."""
        rows, positions = _rows(z), codes[0].numel()
        with torch.autocast(z.device.type, enabled=False):
            assigned = F.one_hot(codes.flatten(), len(self.vectors)).to(rows.dtype)
            assigned *= weight.to(rows.dtype).repeat_interleave(positions)[:, None]
            counts, sums = assigned.sum(0), assigned.T @ rows
        if self._is_shared():
            distributed.all_reduce(counts)
            distributed.all_reduce(sums)
        self.used += counts
        self.idle.copy_(torch.where(counts > 0, 0.0, self.idle + counts.sum() / len(counts)))
        self._update_vectors(counts, sums)
        if self._revive_after is not None:
            self._revive(self.idle >= self._revive_after, rows)

    def _revive(self, unused: Tensor, rows: Tensor) -> None:
        """Restart the codes selected by the mask ``unused [K]`` at random ``rows [n, D]``."""
        chosen = rows[torch.randint(len(rows), (len(self.vectors),), device=rows.device)]
        if self._is_shared():
            distributed.broadcast(chosen, 0)
        self.restart(unused, chosen)
        self.idle.masked_fill_(unused, 0)

    def _is_shared(self) -> bool:
        """Whether other processes train the same codes on data of their own."""
        return self.n_processes != 1 and distributed.is_available() and distributed.is_initialized()


class MovingAverageCodebook(Codebook):
    r"""Codes that are moving averages of the vectors nearest to them (van den Oord et al. 2017, appendix A.1).

        N_k ← γ N_k + (1 − γ) n_k,    m_k ← γ m_k + (1 − γ) Σ z,    e_k = m_k / N̂_k,

    where n_k vectors of the batch, with sum Σ z, are nearest to code k. N̂ are the counts with Laplace smoothing,
    N̂_k = N (N_k + ε)/(N + Kε), N = Σ_k N_k. The initial value of a code, or its restart, has the weight of one vector.

    Args:
        codes: K.
        dimension: D.
        revive_after: see :class:`Codebook`.
        decay: γ.
    """

    counts: Tensor
    sums: Tensor

    def __init__(self, codes: int, dimension: int, revive_after: float | None, decay: float) -> None:
        super().__init__(codes, dimension, revive_after)
        self._decay = decay

    def _register(self, vectors: Tensor) -> None:
        self.register_buffer("vectors", vectors)
        self.register_buffer("counts", torch.ones(len(vectors)))
        self.register_buffer("sums", vectors.clone())

    @override
    def loss(self, z: Tensor, vectors: Tensor) -> Tensor:
        return z.new_zeros(len(z))  # averages need no gradient

    def _update_vectors(self, counts: Tensor, sums: Tensor) -> None:
        self.counts.lerp_(counts, 1.0 - self._decay)
        self.sums.lerp_(sums, 1.0 - self._decay)
        total = self.counts.sum()
        smoothed = total * (self.counts + _SMOOTHING) / (total + len(self.counts) * _SMOOTHING)
        self.vectors.copy_(self.sums / smoothed[:, None])

    @override
    def restart(self, codes: Tensor, at: Tensor) -> None:
        self.counts.masked_fill_(codes, 1.0)
        for vectors in (self.sums, self.vectors):
            vectors.copy_(torch.where(codes[:, None], at, vectors))


class GradientCodebook(Codebook):
    """Codes that are parameters, learned by the codebook loss ‖sg[z] − e‖²."""

    def _register(self, vectors: Tensor) -> None:
        self.vectors = nn.Parameter(vectors)

    @override
    def loss(self, z: Tensor, vectors: Tensor) -> Tensor:
        return squared_distance(z.detach(), vectors)

    def _update_vectors(self, counts: Tensor, sums: Tensor) -> None:
        """Nothing: the optimizer updates the vectors."""

    @override
    def restart(self, codes: Tensor, at: Tensor) -> None:
        self.vectors.copy_(torch.where(codes[:, None], at, self.vectors))  # the optimizer's momentum decays by itself


def straight_through(z: Tensor, vectors: Tensor) -> Tensor:
    """``vectors``, bit by bit, with their gradient passed on to ``z`` unchanged."""
    return vectors.detach() + (z - z.detach())


def squared_distance(z: Tensor, vectors: Tensor) -> Tensor:
    """‖z − e‖² of each datum, summed over the positions of ``[B, D, ...]``, ``[B]``."""
    return (z - vectors).square().flatten(1).sum(1)


def count_codes(codes: Tensor, n_codes: int, weight: Tensor | None = None) -> Tensor:
    """How often each code occurs at each position of ``codes [N, ...]``, ``[..., n_codes]``.

    With ``weight [N]``, each datum counts as often as its weight.
    """
    flat = codes.reshape(len(codes), -1)
    offsets = n_codes * torch.arange(flat.shape[1], device=codes.device)
    weights = None if weight is None else weight.repeat_interleave(flat.shape[1]).double()
    counts = torch.bincount((flat + offsets).flatten(), weights, minlength=flat.shape[1] * n_codes)
    return counts.view(*codes.shape[1:], n_codes)


def perplexity(counts: Tensor) -> float:
    """exp(−Σ_k p_k log p_k), p_k the shares of ``counts [K]``: the number of codes in even use with that entropy."""
    shares = counts.double() / counts.sum()
    return float(torch.special.entr(shares).sum().exp())


def _rows(z: Tensor) -> Tensor:
    """``z [B, D, ...]`` as ``[B·positions, D]``."""
    return z.movedim(1, -1).reshape(-1, z.shape[1])
