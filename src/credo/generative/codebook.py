"""The codebook of a vector-quantized model: nearest vectors, and the two ways to learn them."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, distributed, nn

_SMOOTHING = 1e-5


class Codebook(nn.Module, ABC):
    """K vectors e_k in D dimensions, each the code of what lies nearest to it.

    What is coded comes as ``z [B, D, ...]``: a vector for every place behind the first two dimensions.

    Args:
        codes: K.
        dimension: D.
        revive_after: a code that had none of the last ``revive_after``·K vectors of training, where its even share is
            ``revive_after``, restarts at a random vector of the batch; ``None``: never. At the start all codes count as
            idle for so long, so those that the first batch does not need begin at vectors of it.

    Attributes:
        vectors: ``[K, D]``.
        idle: ``[K]``, how many vectors per code have come since each was last used.
        used: ``[K]``, how often each was used since these counts were last set to 0.
        processes: how many train the codebook together; ``None``: all of torch's process group, if there is one.
    """

    vectors: Tensor
    idle: Tensor
    used: Tensor
    processes: int | None = None

    def __init__(self, codes: int, dimension: int, revive_after: float | None) -> None:
        super().__init__()
        self.revive_after = revive_after
        self.register_buffer("idle", torch.full((codes,), revive_after or 0.0))
        self.register_buffer("used", torch.zeros(codes))
        self.keep(torch.empty(codes, dimension).uniform_(-1.0 / codes, 1.0 / codes))

    @abstractmethod
    def keep(self, vectors: Tensor) -> None:
        """Register the first ``vectors [K, D]`` and what is needed to learn them."""

    @abstractmethod
    def loss(self, z: Tensor, vectors: Tensor) -> Tensor:
        """What makes ``vectors [B, D, ...]``, those nearest to ``z``, learn by gradient, ``[B]``; 0 where nothing."""

    @abstractmethod
    def move(self, counts: Tensor, sums: Tensor) -> None:
        """Learn from how many vectors ``[K]`` a batch has for each code, and their sums ``[K, D]``."""

    @abstractmethod
    def restart(self, codes: Tensor, at: Tensor) -> None:
        """Set the marked ``codes [K]`` to the rows of ``at [K, D]``."""

    @torch.no_grad()
    def nearest(self, z: Tensor) -> Tensor:
        """The code argmin_k ‖z − e_k‖ of every vector of ``z [B, D, ...]``, ``[B, ...]``."""
        rows, vectors = (t.float() if t.dtype == torch.bfloat16 else t for t in (_rows(z), self.vectors))
        center = vectors.mean(0)  # distances by a product lose digits far from the origin
        return torch.cdist(rows - center, vectors - center).argmin(1).view(len(z), *z.shape[2:])

    def look_up(self, codes: Tensor) -> Tensor:
        """The vectors of ``codes [B, ...]``, ``[B, D, ...]``."""
        return F.embedding(codes, self.vectors).movedim(-1, 1)

    @torch.no_grad()
    def learn(self, z: Tensor, codes: Tensor, weight: Tensor) -> None:
        """Follow a training batch ``z [B, D, ...]`` and its ``codes [B, ...]``, each datum times its ``weight [B]``."""
        rows, places = _rows(z), codes[0].numel()
        with torch.autocast(z.device.type, enabled=False):
            assigned = F.one_hot(codes.flatten(), len(self.vectors)).to(rows.dtype)
            assigned *= weight.to(rows.dtype).repeat_interleave(places)[:, None]
            counts, sums = assigned.sum(0), assigned.T @ rows
        if self._is_shared():
            distributed.all_reduce(counts)
            distributed.all_reduce(sums)
        self.used += counts
        self.idle.copy_(torch.where(counts > 0, 0.0, self.idle + counts.sum() / len(counts)))
        self.move(counts, sums)
        if self.revive_after is not None:
            self._revive(self.idle >= self.revive_after, rows)

    def _revive(self, gone: Tensor, rows: Tensor) -> None:
        """Restart the codes that are ``gone [K]`` at random ``rows [n, D]``."""
        chosen = rows[torch.randint(len(rows), (len(self.vectors),), device=rows.device)]
        if self._is_shared():
            distributed.broadcast(chosen, 0)
        self.restart(gone, chosen)
        self.idle.masked_fill_(gone, 0)

    def _is_shared(self) -> bool:
        """Whether other processes learn the same codes from data of their own."""
        return self.processes != 1 and distributed.is_available() and distributed.is_initialized()


class AveragedCodebook(Codebook):
    r"""Codes that are moving averages of the vectors they stand for (van den Oord et al. 2017, appendix A.1).

        N_k ← γ N_k + (1 − γ) n_k,    m_k ← γ m_k + (1 − γ) Σ z,    e_k = m_k / N̂_k,

    with n_k vectors of the batch nearest to code k, whose sum is Σ z. N̂ are the counts with Laplace smoothing,
    N̂_k = N (N_k + ε)/(N + Kε), N = Σ_k N_k. A code's start, or restart, weighs as much as one vector.

    Args:
        codes: K.
        dimension: D.
        revive_after: as for every codebook.
        decay: γ.
    """

    counts: Tensor
    sums: Tensor

    def __init__(self, codes: int, dimension: int, revive_after: float | None, decay: float) -> None:
        super().__init__(codes, dimension, revive_after)
        self.decay = decay

    def keep(self, vectors: Tensor) -> None:
        """Buffers."""
        self.register_buffer("vectors", vectors)
        self.register_buffer("counts", torch.ones(len(vectors)))
        self.register_buffer("sums", vectors.clone())

    def loss(self, z: Tensor, vectors: Tensor) -> Tensor:
        """0: averages need no gradient."""
        return z.new_zeros(len(z))

    def move(self, counts: Tensor, sums: Tensor) -> None:
        """Both averages, and the vectors."""
        self.counts.lerp_(counts, 1.0 - self.decay)
        self.sums.lerp_(sums, 1.0 - self.decay)
        total = self.counts.sum()
        smoothed = total * (self.counts + _SMOOTHING) / (total + len(self.counts) * _SMOOTHING)
        self.vectors.copy_(self.sums / smoothed[:, None])

    def restart(self, codes: Tensor, at: Tensor) -> None:
        """As at the start, with a count of one."""
        self.counts.masked_fill_(codes, 1.0)
        for vectors in (self.sums, self.vectors):
            vectors.copy_(torch.where(codes[:, None], at, vectors))


class TrainedCodebook(Codebook):
    """Codes that are parameters, drawn to the vectors they stand for by the codebook loss ‖sg[z] − e‖²."""

    def keep(self, vectors: Tensor) -> None:
        """A parameter."""
        self.vectors = nn.Parameter(vectors)

    def loss(self, z: Tensor, vectors: Tensor) -> Tensor:
        """‖sg[z] − e‖² of every datum, ``[B]``."""
        return squared_distance(z.detach(), vectors)

    def move(self, counts: Tensor, sums: Tensor) -> None:
        """Nothing: the optimizer does it."""

    def restart(self, codes: Tensor, at: Tensor) -> None:
        """In place; what the optimizer remembers of a code, its momentum, is left to fade."""
        self.vectors.copy_(torch.where(codes[:, None], at, self.vectors))


def squared_distance(z: Tensor, vectors: Tensor) -> Tensor:
    """‖z − e‖² of every datum, summed over the places of ``[B, D, ...]``, ``[B]``."""
    return (z - vectors).square().flatten(1).sum(1)


def perplexity(counts: Tensor) -> float:
    """exp(−Σ_k p_k log p_k), p the shares of ``counts [K]``: as many codes in even use would be as varied."""
    shares = counts.double() / counts.sum()
    return float(torch.special.entr(shares).sum().exp())


def _rows(z: Tensor) -> Tensor:
    """``z [B, D, ...]`` as ``[B·places, D]``."""
    return z.movedim(1, -1).reshape(-1, z.shape[1])
