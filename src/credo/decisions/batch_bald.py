"""BatchBALD: the rows whose labels, taken together, say most about the function."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from credo._arguments import check_integer
from credo.decisions.uncertainty import class_probabilities
from credo.errors import InputError, UnsupportedError
from credo.predictive import Predictive
from credo.seeding import check_seed, generator

_NUMBERS_AT_ONCE = 2**22


@dataclass(frozen=True, eq=False)
class BatchSelection:
    """The rows that :func:`batch_bald` selected.

    Attributes:
        rows: row numbers in the order of their selection, ``[n]``, int64.
        information: I[y_1, …, y_k; f] of the first k rows in nats, for k = 1, …, n, ``[n]``.

    Example:
        >>> credo.decisions.batch_bald(p, 10).rows
    """

    rows: Tensor
    information: Tensor


@torch.no_grad()
def batch_bald(
    p: Predictive, batch_size: int, *, max_configurations: int = 1000, seed: int | None = None
) -> BatchSelection:
    r"""Select rows greedily by the mutual information of their labels, jointly, with the function.

    Ten copies of one informative row have the highest scores of BALD, and together little more information than one.
    BatchBALD (Kirsch et al. 2019) maximizes

        I[y_1, …, y_n; f] = H[y_1, …, y_n] − Σ_i E_s H[y_i | f_s]

    instead. Greedy selection reaches at least 1 − 1/e of the optimum, since the information is submodular. By the chain
    rule, the information that row b adds to the n rows selected before is

        I[y_b; f | y_1:n] = Σ_m q_m { H[Σ_s W_ms p(y_b | f_s)] − Σ_s W_ms H[y_b | f_s] },

    a sum over the configurations m of the labels y_1:n, with q_m their probability and W_m the posterior weights of the
    draws given them. It is exact while C^n is at most ``max_configurations``. Beyond, that many configurations are
    sampled from p(y_1:n), which leaves the estimate unbiased for a given row.

    Args:
        p: the prediction of B rows with one class-valued target each, by draws that are functions of all rows. Those of
            a linearized :class:`credo.Laplace` and of ``samples="moments"`` are points for every row by itself:
            :class:`ActiveLearner` draws functions of the former, and so does ``Laplace(linearized=False)``.
        batch_size: number of rows to select, n; at most B.
        max_configurations: configurations of labels to hold; memory and time are proportional to it.
        seed: for the sampled configurations; ``None``: from torch's random state.

    Returns:
        The rows and their joint information.

    Raises:
        InputError: if there are fewer than ``batch_size`` rows, or an argument is not valid.
        UnsupportedError: for targets that are not classes, or several targets per row.

    Example:
        >>> p = credo.Categorical().predictive(torch.randn(20, 50, 3))
        >>> len(credo.decisions.batch_bald(p, 5).rows)
        5

    References:
        A. Kirsch, J. van Amersfoort, Y. Gal. BatchBALD: efficient and diverse batch acquisition for deep Bayesian
        active learning. NeurIPS 2019.
    """
    check_integer(batch_size, "batch_size", minimum=1)
    check_integer(max_configurations, "max_configurations", minimum=1)
    probabilities = class_probabilities(p, "batch_bald").double()
    if probabilities[0, ..., 0].numel() != len(p):
        raise UnsupportedError("batch_bald is for one target per row; average the scores of 'bald' over several.")
    if batch_size > len(p):
        raise InputError(f"batch_size must be at most the number of rows, {len(p)}, got {batch_size}")
    draws, classes = len(probabilities), probabilities.shape[-1]
    probabilities = probabilities.reshape(draws, len(p), classes)
    stream = generator(probabilities.device, check_seed(seed))
    uniform = probabilities.new_full((draws,), 1 / draws)
    posterior = (uniform if p.weights is None else p.weights.double())[None]  # W, [M, S]
    mass = posterior.new_ones(1)  # q, [M]
    rows: list[int] = []
    gains: list[Tensor] = []
    for _ in range(batch_size):
        gain = _information_gain(probabilities, posterior, mass)
        gain[rows] = -torch.inf
        rows.append(int(gain.argmax()))
        gains.append(gain[rows[-1]])
        joint = posterior[:, None] * probabilities[:, rows[-1]].T  # [M, C, S]
        posterior, mass = _condition(joint.reshape(-1, draws), mass.repeat_interleave(classes))
        if len(mass) > max_configurations:
            chosen = _resample(mass, max_configurations, stream)
            posterior, mass = posterior[chosen], torch.full_like(mass[chosen], 1 / max_configurations)
    return BatchSelection(torch.tensor(rows), torch.stack(gains).cumsum(0))


def _information_gain(probabilities: Tensor, posterior: Tensor, mass: Tensor) -> Tensor:
    """I[y_b; f | y_1:n] of every row, ``[B]``, from p ``[S, B, C]``, W ``[M, S]`` and q ``[M]``."""
    size = max(1, _NUMBERS_AT_ONCE // (len(mass) * probabilities.shape[-1]))
    gains = []
    for part in probabilities.split(size, dim=1):
        marginal = torch.einsum("ms,sbc->mbc", posterior, part)
        known = posterior @ _entropy(part)
        gains.append(mass @ (_entropy(marginal) - known).clamp(min=0.0))
    return torch.cat(gains)


def _entropy(probabilities: Tensor) -> Tensor:
    entropy: Tensor = torch.special.entr(probabilities).sum(-1)
    return entropy


def _condition(joint: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
    """The posterior weights and the probability of every configuration; those of probability 0 are left out."""
    total = joint.sum(1)
    possible = total > 0
    return joint[possible] / total[possible, None], (mass * total)[possible]


def _resample(mass: Tensor, count: int, stream: torch.Generator) -> Tensor:
    """``count`` indices by systematic sampling: each occurs ``count·mass`` times, rounded up or down at random."""
    start = torch.rand((), generator=stream, dtype=mass.dtype, device=mass.device)
    positions = (torch.arange(count, dtype=mass.dtype, device=mass.device) + start) / count
    return torch.searchsorted(mass.cumsum(0), positions * mass.sum()).clamp(max=len(mass) - 1)
