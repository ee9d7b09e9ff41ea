"""What samplers of a network's weights share: data as a whole, likelihoods with drawn parameters, and a report."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.func import functional_call
from torch.utils import _pytree as pytree
from typing_extensions import override

from credo import diagnostics
from credo._arguments import check_integer
from credo._text import counted
from credo.data import Batch
from credo.errors import InputError, UnsupportedError
from credo.functional import Draw
from credo.likelihoods import Categorical, Likelihood
from credo.nests import plain
from credo.predictive.components import ClassComponents, RealComponents
from credo.priors import AdaptiveNormal

REFRESHED_EVERY = 10
"""Steps between draws of the prior's unknown variances, for samplers whose steps are short."""
_LARGEST_R_HAT = 1.05
_QUANTITIES_AT_ONCE = 256


class DrawnLikelihood(Likelihood):
    """A likelihood whose parameters were drawn too: draw s of the network goes with draw s of the parameters.

    Args:
        likelihood: the likelihood.
        draws: its parameters, name to ``[S, *shape]``.
    """

    def __init__(self, likelihood: Likelihood, draws: Draw) -> None:
        super().__init__()
        self._components = _Components(likelihood)
        self._draws = {f"likelihood.{name}": value for name, value in draws.items()}

    @override
    def components(self, outputs: Tensor) -> RealComponents | ClassComponents:
        parts = [
            functional_call(self._components, {n: v[s] for n, v in self._draws.items()}, (outputs[s : s + 1],))
            for s in range(len(outputs))
        ]
        return parts[0].join(parts[1:], 0)  # type: ignore[no-any-return]

    @override
    def get_config(self) -> dict[str, object]:
        return self._components.likelihood.get_config()


class _Components(nn.Module):
    """The components of a likelihood as a forward pass, so that its parameters can be replaced."""

    def __init__(self, likelihood: Likelihood) -> None:
        super().__init__()
        self.likelihood = likelihood

    def forward(self, outputs: Tensor) -> RealComponents | ClassComponents:
        return self.likelihood.components(outputs)


@dataclasses.dataclass(frozen=True)
class Plan:
    """Which steps of a chain explore, which sample, and how large they are.

    Every cycle begins with ``warmup`` steps that explore and goes on with ``draws`` times ``thinning`` that sample. A
    constant step size is a single cycle.

    Attributes:
        cycles: their number.
        warmup: exploring steps per cycle.
        draws: draws per cycle.
        thinning: steps per draw.
        is_cyclical: whether the step size falls from ε to 0 in each cycle.
    """

    cycles: int
    warmup: int
    draws: int
    thinning: int
    is_cyclical: bool

    @classmethod
    def build(cls, warmup: int, draws: int, thinning: int = 1, cycles: int | None = None) -> Plan:
        """The plan for ``warmup`` exploring steps and ``draws`` draws in all; without cycles steps are constant."""
        check_integer(warmup, "warmup", minimum=0)
        check_integer(draws, "draws", minimum=1)
        check_integer(thinning, "thinning", minimum=1)
        if cycles is None:
            return cls(1, warmup, draws, thinning, is_cyclical=False)
        if draws % check_integer(cycles, "cycles", minimum=1):
            raise InputError(f"draws must be a multiple of cycles={cycles}, got {draws}")
        return cls(cycles, warmup // cycles, draws // cycles, thinning, is_cyclical=True)

    @property
    def steps(self) -> int:
        """Steps in all."""
        return self.cycles * self.length

    @property
    def length(self) -> int:
        """Steps per cycle."""
        return self.warmup + self.draws * self.thinning

    def is_exploring(self, step: int) -> bool:
        """Whether a step, counted from 0, is of the first part of its cycle."""
        return step % self.length < self.warmup

    def is_draw(self, step: int) -> bool:
        """Whether the position after a step is kept."""
        place = step % self.length - self.warmup
        return place >= 0 and (place + 1) % self.thinning == 0

    def factor(self, step: int) -> float:
        """The factor on the step size: ½·(1 + cos(π·r)) after a fraction r of the cycle, or 1."""
        return 0.5 * (1.0 + math.cos(math.pi * (step % self.length) / self.length)) if self.is_cyclical else 1.0


class Run(NamedTuple):
    """The result of sampling.

    Attributes:
        draws: ``[K, D, P]``.
        log_density: ``[K, D]``, float64; −∞ for draws whose density is not known.
        divergences: number of divergent transitions, ``[K]``; empty for a sampler that has none.
        details: what to show in the report, by label.
    """

    draws: Tensor
    log_density: Tensor
    divergences: Tensor
    details: Mapping[str, str | ByChain]

    def of_chains(self, chains: slice) -> Run:
        """The run of some of the chains."""
        details = {n: v if isinstance(v, str) else v._replace(values=v.values[chains]) for n, v in self.details.items()}
        return Run(self.draws[chains], self.log_density[chains], self.divergences[chains], details)


class ByChain(NamedTuple):
    """One number per chain, with the format in which to show it.

    Attributes:
        values: ``[K]``.
        form: such as ``".2f"``.
    """

    values: Tensor
    form: str

    def __str__(self) -> str:
        return ", ".join(f"{value:{self.form}}" for value in self.values.tolist())


@dataclasses.dataclass(frozen=True)
class SamplingReport:
    """How sampling went.

    Attributes:
        chains: number of chains.
        draws: number of draws per chain.
        details: what the sampler says of itself, by label.
        divergences: number of divergent transitions of each chain; empty for a sampler that has none.
        transitions: number of transitions of each chain after warm-up.
        predictions: convergence of the network's outputs on training inputs, see :func:`convergence`.
        parameters: convergence of the parameters.
    """

    chains: int
    draws: int
    details: dict[str, str]
    divergences: list[int]
    transitions: int
    predictions: dict[str, float]
    parameters: dict[str, float]

    @classmethod
    def from_card(cls, card: object) -> Self | None:
        """The report of a saved run, if it makes sense."""
        names = {field.name for field in dataclasses.fields(cls)}
        return cls(**card) if isinstance(card, Mapping) and set(card) == names else None

    def lines(self) -> list[str]:
        """The report as lines of text."""
        shown = [
            ("chains", f"{self.chains}, {counted(self.draws, 'draw')} each"),
            *self.details.items(),
        ]
        for name, found in (("predictions", self.predictions), ("parameters", self.parameters)):
            if found:
                shown.append(
                    (
                        name,
                        f"R-hat up to {found['r_hat']:.3f} (median {found['median_r_hat']:.3f}), effective draws at "
                        f"least {found['bulk']:,.0f} (bulk) and {found['tail']:,.0f} (tails)",
                    )
                )
        return [f"{name:<24} {text}" for name, text in shown]

    def sentence(self) -> str:
        """Whether the chains have converged, in one sentence."""
        parts = [f"{counted(self.chains, 'chain')} of {counted(self.draws, 'draw')}"]
        if self.predictions:
            parts.append(
                f"R-hat of the predictions is {self.predictions['median_r_hat']:.2f} in the median and at most "
                f"{self.predictions['r_hat']:.2f} (1: the chains agree), with at least "
                f"{self.predictions['bulk']:,.0f} effective draws"
            )
        divergences = sum(self.divergences)
        if self.divergences:
            parts.append(f"{counted(divergences, 'transition')} diverged" if divergences else "no transition diverged")
        return f"{parts[0]}: {'; '.join(parts[1:])}." if parts[1:] else f"{parts[0]}."

    def notices(self) -> list[str]:
        """What needs the user's attention."""
        found = []
        divergences = sum(self.divergences)
        if divergences and divergences == self.chains * self.transitions:
            found.append(
                f"all {divergences:,} transitions diverged, so that no chain has moved: raise warmup=, in which the "
                "step size is adapted"
            )
        elif divergences:
            found.append(
                f"{counted(divergences, 'transition')} diverged: the step size is too large somewhere, and draws may "
                "miss a part of the posterior; take smaller steps, by a higher acceptance= of HMC or a smaller "
                "energy_error= of MCLMC"
            )
        r_hat = self.predictions.get("r_hat", 1.0)
        if self.chains > 1 and r_hat > _LARGEST_R_HAT:
            found.append(f"R-hat of the predictions is up to {r_hat:.2f}: chains disagree; raise warmup= and draws=")
        return found


def convergence(draws: Iterable[Tensor]) -> dict[str, float]:
    """The worst and the median R-hat and the smallest effective sample sizes of all quantities.

    Args:
        draws: tensors ``[chains, draws, ...]``.

    Returns:
        ``r_hat``, ``median_r_hat``, ``bulk`` and ``tail``; empty if there are fewer than 4 draws, or none moves.
    """
    found: list[Tensor] = []
    for tensor in draws:
        if tensor.shape[1] < 4:
            return {}
        for part in tensor.flatten(2).split(_QUANTITIES_AT_ONCE, 2) if tensor.dim() > 2 else [tensor.unsqueeze(2)]:
            sizes = (diagnostics.effective_sample_size(part), diagnostics.effective_sample_size_tail(part))
            found.append(torch.stack([diagnostics.r_hat(part), *sizes]).flatten(1))
    r_hat, bulk, tail = (row[row.isfinite()] for row in torch.cat(found, 1).cpu())
    if not min(len(r_hat), len(bulk), len(tail)):
        return {}
    values = {"r_hat": r_hat.max(), "median_r_hat": r_hat.median(), "bulk": bulk.min(), "tail": tail.min()}
    return {name: float(value) for name, value in values.items()}


def check_densities(priors: dict[str, Distribution]) -> dict[str, Distribution]:
    """Return ``priors`` if all of them have a density."""
    if any(isinstance(prior, AdaptiveNormal) for prior in priors.values()):
        raise UnsupportedError(
            "a sampler needs a prior with a density, which AdaptiveNormal has not; use HierarchicalNormal"
        )
    return priors


def check_is_deterministic(likelihood: Likelihood) -> None:
    """Raise ``UnsupportedError`` if the log likelihood is an estimate by random numbers: chains need a density."""
    if isinstance(likelihood, Categorical) and likelihood.logit_noise:
        raise UnsupportedError(
            "Categorical(logit_noise=True) estimates its log likelihood by random draws of the logits, but a sampler "
            "needs the density itself: leave out logit_noise=, or use credo.BayesByBackprop"
        )


def merge(batches: Sequence[Batch], rows: int) -> list[Batch]:
    """Neighboring batches in one, up to about ``rows`` rows; inputs that are not one tensor stay as they are."""
    merged: list[list[Batch]] = []
    size = math.inf
    for batch in batches:
        size += len(batch.y)
        if size > rows or not isinstance(batch.x, Tensor) or not isinstance(merged[-1][0].x, Tensor):
            merged.append([])
            size = len(batch.y)
        merged[-1].append(batch)
    return [concatenate(group) for group in merged]


def concatenate(group: Sequence[Batch]) -> Batch:
    """Batches as one; inputs are tensors, or tuples or mappings of them."""
    if len(group) == 1:
        return group[0]
    weights: list[Any] = [batch.sample_weight for batch in group]
    ones = [torch.ones(len(b.y), device=b.y.device) if w is None else w for b, w in zip(group, weights, strict=True)]
    weight = None if all(w is None for w in weights) else torch.cat(ones)
    x = pytree.tree_map(lambda *parts: torch.cat(parts), *[plain(batch.x) for batch in group])
    return Batch(x, torch.cat([batch.y for batch in group]), weight)
