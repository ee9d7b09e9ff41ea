"""Networks that hold out parts of the rows in turn, trained in one batch, each stopped early by its part."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from credo.data import Batch
from credo.errors import DivergenceError, InputError
from credo.methods._flat_stack import NET, FlatStack, RowLogLikelihood
from credo.methods.map import MAP
from credo.priors import Normal
from credo.seeding import generator
from credo.training.monitoring import ProgressBar

_MAX_HELD_OUT = 2_048
"""Rows of a held-out part by which training is stopped; a random choice of them, if there are more."""
_PATIENCE = 12
"""Evaluations without a better one for more than a tenth of the networks, after which training stops."""
_EVALUATIONS = 120
_SMALLER_RATE, _FIRST_SHARE = 0.2, 0.75
"""The second learning rate, relative to the first, and the largest share of the steps that has the first."""

Rows = NDArray[np.intp]


@dataclass(frozen=True)
class FoldSchedule:
    """How long networks are trained.

    Attributes:
        steps: the largest number of steps.
        batch_size: rows per step of each network.
        lr: the learning rate of Adam; once hardly a network improves, or after three quarters of the steps, a fifth of
            it, from the best weights on.
    """

    steps: int
    batch_size: int
    lr: float

    @property
    def every(self) -> int:
        """Steps between evaluations of the held-out rows."""
        return max(self.steps // _EVALUATIONS, 1)


def fit_on_folds(
    members: Sequence[MAP],
    data: Batch,
    held_out: Sequence[Rows],
    schedule: FoldSchedule,
    *,
    seed: int,
    progress: bool | None = False,
) -> None:
    """Train G·F networks of one architecture in one batch, each on all rows but one of F parts.

    Network k maximizes log p(D₋ₖ | w) + log p(w) by Adam, and keeps the weights with the highest log likelihood of its
    part, number k mod F, along the way. So every row is predicted by networks that have not seen it, and every network
    sees most rows. Networks may have different priors.

    Args:
        members: point estimates with centered Gaussian priors, whose likelihoods are set; they get the weights.
        data: all rows, features ``[N, D]``.
        held_out: the rows of the F parts; parts may overlap.
        schedule: the length of training.
        seed: of the order of rows.
        progress: whether to show a progress bar; ``None``: only in a terminal.

    Raises:
        InputError: a prior is not a centered Gaussian.
        DivergenceError: a loss became NaN or infinite before the first evaluation.
    """
    training = _FoldTraining(members, data, held_out, schedule, seed)
    with ProgressBar(progress, _EVALUATIONS, 0, enabled=True, unit="evaluation") as bar:
        training.run(bar)
    training.write_back()


class _Best(NamedTuple):
    """The best weights so far ``[K, P]``, and the log likelihoods per held-out row that they have ``[K]``."""

    position: Tensor
    score: Tensor


class _FoldTraining:
    def __init__(
        self, members: Sequence[MAP], data: Batch, held_out: Sequence[Rows], schedule: FoldSchedule, seed: int
    ) -> None:
        self.members, self.data, self.schedule = list(members), data, schedule
        self.device = members[0].device
        modules = [RowLogLikelihood(m.net, m.likelihood, m._forward) for m in self.members]
        names = [name for name, p in modules[0].named_parameters() if p.requires_grad]
        stacked = {name: torch.stack([m.get_parameter(name).detach() for m in modules]) for name in names}
        self.stack = FlatStack(modules[0], names, len(modules), training=True, per_copy=True)
        self.precision = torch.cat([self._precision_of(member) for member in self.members])
        self.position = self.stack.flatten(stacked)
        self.generator = generator(torch.device("cpu"), seed)
        groups, rows = len(members) // len(held_out), np.arange(len(data.y))
        self.trained = [torch.from_numpy(np.setdiff1d(rows, part)) for part in held_out] * groups
        self._order = torch.empty(len(members), 0, dtype=torch.int64)
        self.sizes = torch.tensor([float(len(part)) for part in self.trained], device=self.device)
        self.validation = self._pad([self._choose(torch.from_numpy(part)) for part in held_out] * groups)

    def _precision_of(self, member: MAP) -> Tensor:
        """The precision of the prior of every weight ``[1, P]``; 0 for parameters of the likelihood."""
        precision = {}
        for name, shape in self.stack.shapes.items():
            prior = member._priors.get(name.removeprefix(NET)) if name.startswith(NET) else None
            if prior is not None and not (isinstance(prior, Normal) and prior.is_centered):
                raise InputError(f"the prior must be a Gaussian around 0, such as Normal(0, 1), got {prior!r}")
            scale = torch.tensor(torch.inf) if prior is None else prior.scale
            precision[name] = scale.to(self.device, self.stack.dtype).square().reciprocal().expand(1, *shape)
        return self.stack.flatten(precision)

    def run(self, bar: ProgressBar) -> None:
        """Train until no network improves, with two learning rates."""
        every, done = self.schedule.every, 0
        best = _Best(self.position.clone(), torch.full((len(self.members),), -torch.inf, device=self.device))
        for lr, limit in (
            (self.schedule.lr, math.ceil(_FIRST_SHARE * self.schedule.steps)),
            (_SMALLER_RATE * self.schedule.lr, self.schedule.steps),
        ):
            self.position = best.position.clone().requires_grad_()
            optimizer, waited = torch.optim.Adam([self.position], lr=lr), 0
            while done < limit and waited < _PATIENCE:
                started, steps = time.perf_counter(), min(every, limit - done)
                losses = [self._step(optimizer) for _ in range(steps)]
                done += steps
                score = self._score()
                better = score > best.score
                waited = 0 if better.double().mean() > 0.1 else waited + 1
                best = _Best(
                    torch.where(better[:, None], self.position.detach(), best.position),
                    torch.where(better, score, best.score),
                )
                self._record(torch.stack(losses).mean(0), score, done, time.perf_counter() - started)
                bar.epoch(done // every, f"log likelihood {float(best.score.mean()):.3f}")
        if not bool(best.score.isfinite().all()):
            raise DivergenceError("the loss became NaN or infinite; choose a smaller lr, or scale the data")
        self.position = best.position

    def _step(self, optimizer: torch.optim.Optimizer) -> Tensor:
        """One step of every network on a minibatch of its own; its NLL per row ``[K]``."""
        batch = self._next_batch()
        nll = self.stack.log_likelihood(self.position, batch).times(-1.0 / batch.y.shape[1])
        self.position.grad = nll.gradient + self.precision * self.position.detach() / self.sizes[:, None]
        optimizer.step()
        return nll.log_density

    def _next_batch(self) -> Batch:
        """Rows of every network, in a random order that has each about equally often."""
        size = min(self.schedule.batch_size, *(len(part) for part in self.trained))
        if self._order.shape[1] < size:
            longest = max(len(part) for part in self.trained)
            self._order = torch.stack([self._shuffle(part, longest) for part in self.trained]).to(self.device)
        rows, self._order = self._order[:, :size], self._order[:, size:]
        return self.data.map(lambda t: t[rows])

    def _shuffle(self, rows: Tensor, length: int) -> Tensor:
        """A permutation of ``rows``, and of further ones as many as ``length`` asks for."""
        parts = [
            rows[torch.randperm(len(rows), generator=self.generator)] for _ in range(-(-length // max(len(rows), 1)))
        ]
        return torch.cat(parts)[:length]

    def _choose(self, rows: Tensor) -> Tensor:
        return rows[torch.randperm(len(rows), generator=self.generator)[:_MAX_HELD_OUT]]

    def _pad(self, parts: list[Tensor]) -> Batch:
        """The rows of every part, as one batch ``[K, V, ...]``; rows that fill up shorter parts have the weight 0."""
        longest = max(map(len, parts))
        rows = torch.stack([torch.cat([part, part[:1].expand(longest - len(part))]) for part in parts])
        exists = torch.stack([torch.arange(longest) < len(part) for part in parts]).to(self.device, self.stack.dtype)
        batch = self.data.map(lambda t: t[rows.to(t.device)])
        return batch._replace(sample_weight=exists if batch.sample_weight is None else exists * batch.sample_weight)

    @torch.no_grad()
    def _score(self) -> Tensor:
        """The mean log likelihood per held-out row ``[K]``; −∞ where it is not finite."""
        weight = self.validation.sample_weight
        assert weight is not None
        rows = self.stack.rows(self.position.detach(), self.validation)
        mean = (rows * weight).sum(1) / weight.sum(1).clamp_min(torch.finfo(weight.dtype).tiny)
        return torch.where(mean.isfinite(), mean, -torch.inf)

    def _record(self, nll: Tensor, score: Tensor, steps: int, seconds: float) -> None:
        """Write an entry of the history of every network."""
        penalty = 0.5 * (self.precision * self.position.detach().square()).sum(1)
        for k, member in enumerate(self.members):
            size, epoch = float(self.sizes[k]), steps * self.schedule.batch_size / float(self.sizes[k])
            entry = {"epoch": max(round(epoch), 1), "nll": float(nll[k]), "kl": float(penalty[k])}
            entry |= {"elbo": -size * entry["nll"] - entry["kl"], "validation_log_likelihood": float(score[k])}
            member.history.append({**entry, "seconds": seconds / len(self.members)})

    def write_back(self) -> None:
        """Give the networks their weights."""
        self.stack.write(self.position, [(member.net, member.likelihood) for member in self.members])
        for k, member in enumerate(self.members):
            member.n_data = int(self.sizes[k])
