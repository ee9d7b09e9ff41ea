r"""What a stacked ensemble learns from rows that its networks have not seen: weights of groups, and a calibration.

Early stopping fits the noise of each network to the errors of *this* network on held-out rows. The ensemble has smaller
errors: if errors of networks have variance v and covariance c, those of the mean of M have the variance

.. math:: c + (v - c)/M,

while the mixture, which adds the disagreement of its members to their noise, is *wider* than one of them. So intervals
would be too wide wherever networks err independently. The remedy is one number γ, the same for all networks and rows:
added to the log variance of the noise, and chosen by the log likelihood of held-out rows.

What an ensemble of M networks per group would predict for a held-out row cannot be seen, because only r of them, two
by :func:`overlapping_parts`, have not been trained on it. But the mean log likelihood of ensembles, as their squared
error, is linear in 1/M up to terms of second order,

.. math:: L_M(\gamma) \approx L_1(\gamma) + (L_r(\gamma) - L_1(\gamma)) \frac{1 - 1/M}{1 - 1/r}.

Where networks disagree by much more than their noise, this is too large, and the more so the lower γ is: it is used
from −2 to 1 only. γ maximizes this sum over rows, moved towards 0 as long as the loss is below half a standard error
(over rows), which is about one standard error of γ itself: where rows are few, the noise stays as it was trained.

References: A. Krogh, J. Vedelsby, "Neural network ensembles, cross validation, and active learning", NeurIPS 1994. Y.
Yao, A. Vehtari, D. Simpson, A. Gelman, "Using stacking to average Bayesian predictive distributions", Bayesian Analysis
2018. R. Rahaman, A. H. Thiery, "Uncertainty quantification and deep ensembles", NeurIPS 2021 (ensembles of calibrated
networks are underconfident).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from credo.architectures import TabularMLP
from credo.data import Batch
from credo.likelihoods import Likelihood
from credo.methods import MAP

_MAX_ROWS = 4_096
"""Held-out rows by which weights and calibration are learned, evenly spaced if there are more."""
_ITERATIONS = 200
_SHIFTS = torch.arange(-40, 21, dtype=torch.float64) / 20.0
_STANDARD_ERRORS = 0.5

Rows = NDArray[np.intp]


def overlapping_parts(blocks: Sequence[Rows], networks: int, times: int = 2) -> list[Rows]:
    """The rows that each network of a group holds out: some of ``networks`` blocks, each held out equally often.

    Args:
        blocks: parts of the rows; those after the first ``networks`` are held out by none.
        networks: the number of networks of a group.
        times: the number of networks that hold out a block.

    Returns:
        The rows of each; single blocks, repeated if necessary, unless there are more of them than networks.
    """
    different = list({id(block): block for block in blocks}.values())
    if len(different) <= networks:
        return [different[k % len(different)] for k in range(networks)]
    held_out = [[different[(k + i) % networks] for i in range(times)] for k in range(networks)]
    return [np.sort(np.concatenate(of_network)) for of_network in held_out]


class HeldOutOutputs(NamedTuple):
    """Outputs of networks for rows that they have not been trained on.

    Attributes:
        outputs: of r networks of each of G groups for R rows ``[G, r, R, K]``.
        log_density: log p(y | outputs) ``[G, r, R]``.
        y: the targets ``[R, ...]``.
        weight: how often each row counts ``[R]``.
        networks: the number of networks per group, M.
    """

    outputs: Tensor
    log_density: Tensor
    y: Tensor
    weight: Tensor
    networks: int

    @classmethod
    @torch.no_grad()
    def compute(cls, members: Sequence[MAP], data: Batch, parts: Sequence[Rows]) -> HeldOutOutputs:
        """Predict rows by the networks that hold them out.

        Args:
            members: trained networks, those of the first group first.
            data: all rows.
            parts: the rows that each network of a group holds out.

        Returns:
            The outputs for up to 4,096 rows.
        """
        held_out = torch.zeros(len(parts), len(data.y), dtype=torch.bool)
        for k, part in enumerate(parts):
            held_out[k, torch.from_numpy(part)] = True
        rows = held_out.any(0).nonzero()[:, 0]
        rows = rows[:: -(-len(rows) // _MAX_ROWS)]
        times = int(held_out[:, rows].sum(0).min())
        first = held_out[:, rows].byte().argsort(dim=0, descending=True, stable=True)[:times].to(data.y.device)
        x, y = data.x[rows.to(data.y.device)], data.y[rows.to(data.y.device)]
        outputs, log_density = [], []
        for member in members:
            outputs.append(member.net(x))
            log_density.append(member.likelihood.log_prob(outputs[-1], y))
        groups = (-1, len(parts))
        every, density = torch.stack(outputs).unflatten(0, groups), torch.stack(log_density).unflatten(0, groups)
        index = first.expand(len(density), *first.shape)
        weight = torch.ones(len(rows)) if data.sample_weight is None else data.sample_weight[rows]
        return cls(
            every.gather(1, index[..., None].expand(*index.shape, every.shape[-1])),
            density.gather(1, index).double(),
            y,
            weight.to(density.device).double(),
            len(parts),
        )

    def group_weights(self) -> Tensor:
        """The weights of the groups, each a mixture of r networks ``[G]``."""
        return stacking_weights(self.log_density.logsumexp(1) - math.log(self.log_density.shape[1]), self.weight)

    def choose_shift(self, likelihood: Likelihood, weights: Tensor) -> float:
        """γ, the calibration of the ensemble.

        Args:
            likelihood: p(y | outputs), without parameters of its own.
            weights: of the groups ``[G]``.

        Returns:
            γ between −2 and 1; 0 for classes, and for a likelihood with one noise for all rows.
        """
        if not can_shift(likelihood):
            return 0.0
        shifted = torch.stack([shift_outputs(self.outputs, float(shift)) for shift in _SHIFTS])
        y = self.y.expand(*shifted.shape[:3], *self.y.shape).flatten(0, 3)
        with torch.no_grad():
            density = likelihood.log_prob(shifted.flatten(0, 3), y).double().unflatten(0, shifted.shape[:4])
        return best_shift(_SHIFTS, extrapolate(density, weights, self.networks), self.weight)


def can_shift(likelihood: Likelihood) -> bool:
    """Whether γ applies: to noise that differs from row to row."""
    return getattr(likelihood, "noise", getattr(likelihood, "spread", None)) == "heteroscedastic"


def shift_outputs(outputs: Tensor, shift: float) -> Tensor:
    """Outputs ``[..., K]`` with γ added to their second half, the log noise."""
    location, log_noise = outputs.chunk(2, -1)
    return torch.cat([location, log_noise + shift], -1)


@torch.no_grad()
def shift_network(net: nn.Module, shift: float) -> None:
    """Change the last layer of a network such that its outputs are shifted by γ."""
    assert isinstance(net, TabularMLP)
    last = net.perceptron.layers[-1]
    assert isinstance(last, nn.Linear)
    last.bias[len(last.bias) // 2 :] += shift


def extrapolate(log_density: Tensor, weights: Tensor, networks: int) -> Tensor:
    """The log likelihood of rows under a mixture of groups of M networks, from those of groups of one and of r.

    Args:
        log_density: log p(y_i) by r networks of each group ``[..., G, r, R]``.
        weights: of the groups ``[G]``.
        networks: M.

    Returns:
        L_M of every row ``[..., R]``; of r networks if r is 1.
    """
    times = log_density.shape[-2]
    weighted = log_density + weights.to(log_density).log()[:, None, None]
    all_of_them = weighted.logsumexp((-3, -2)) - math.log(times)
    if times == 1:
        return all_of_them
    one = weighted.logsumexp(-3).mean(-2)
    return one + (all_of_them - one) * (1.0 - 1.0 / networks) / (1.0 - 1.0 / times)


def best_shift(shifts: Tensor, log_likelihood: Tensor, weight: Tensor) -> float:
    """The shift nearest to 0 that is at most half a standard error worse than the best.

    Args:
        shifts: C candidates in ascending order, one of them 0.
        log_likelihood: of rows under each ``[C, R]``.
        weight: of the rows ``[R]``.

    Returns:
        The chosen shift.
    """
    share = weight / weight.sum()
    best = int((log_likelihood @ share).argmax())
    loss = log_likelihood[best] - log_likelihood
    mean = loss @ share
    error = ((loss - mean[:, None]).square() @ share * share.square().sum()).sqrt()
    between = (shifts * shifts[best] >= 0) & (shifts.abs() <= shifts[best].abs())
    good = between & (mean <= _STANDARD_ERRORS * error + 1e-12)
    return float(shifts[good][shifts[good].abs().argmin()])


def stacking_weights(log_density: Tensor, weight: Tensor) -> Tensor:
    r"""The weights w of G distributions that maximize Σ_i c_i·log Σ_g w_g p_g(y_i) + Σ_g log w_g, by EM.

    The last term, a Dirichlet(2) prior, keeps some weight on every distribution where rows are few.

    Args:
        log_density: log p_g(y_i) of rows that the distributions were not fitted to ``[G, N]``.
        weight: c, how often each row counts ``[N]``.

    Returns:
        Weights ``[G]``, summing to 1.
    """
    groups = len(log_density)
    usable = torch.where(log_density.isfinite(), log_density, -1e30)
    weights = log_density.new_full((groups,), 1.0 / groups)
    for _ in range(_ITERATIONS):
        share = (weights.log()[:, None] + usable).softmax(0)
        weights = (share @ weight + 1.0) / (weight.sum() + groups)
    return weights
