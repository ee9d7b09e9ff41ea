"""Automatic relevance determination (ARD): one prior precision per weight, infinite for irrelevant weights."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from credo.conjugate import GaussianBelief
from credo.em import EMFit, Expectation, fit_em
from credo.linear._algebra import ReducedTable, decompose, weight_posterior
from credo.linear._evidence import PrecisionPrior, find_maxima

SAME_EVIDENCE = 1e-6
"""A difference in nats that is ignored: between two maxima, and for adding a weight that is not in the model."""
_WEAK_PRIOR = 1e-6


@dataclass(frozen=True, eq=False)
class RelevancePosterior:
    """p(w | y, α, β) for w ~ N(0, diag(α)⁻¹), where weights of infinite α are 0.

    Attributes:
        table: the reduced table of the data.
        weight_precisions: α, ``[M]``; infinite for weights that are left out.
        noise_precision: β.
    """

    table: ReducedTable
    weight_precisions: Tensor
    noise_precision: float

    @cached_property
    def relevant(self) -> Tensor:
        """Mask of the weights in the model, ``[M]``."""
        return torch.isfinite(self.weight_precisions)

    @cached_property
    def _kept(self) -> Tensor:
        """α of the relevant weights, ``[K]``."""
        return self.weight_precisions[self.relevant]

    @cached_property
    def _rows(self) -> Tensor:
        """√β times the features of the reduced table, ``[r, M]``."""
        return math.sqrt(self.noise_precision) * self.table.rows

    @cached_property
    def _targets(self) -> Tensor:
        """√β times its targets, ``[r]``."""
        return math.sqrt(self.noise_precision) * self.table.targets

    @cached_property
    def _decomposition(self) -> tuple[GaussianBelief, Tensor]:
        """The posterior, and an orthonormal basis of the relevant features with √α below them."""
        return weight_posterior(self._rows[:, self.relevant], self._targets, torch.diag(self._kept.sqrt()))

    @property
    def weights(self) -> GaussianBelief:
        """The posterior of the relevant weights."""
        return self._decomposition[0]

    @cached_property
    def variances(self) -> Tensor:
        """The posterior variances of the relevant weights, ``[K]``."""
        return self.weights.variance_along(torch.eye(len(self._kept), dtype=self._rows.dtype, device=self._rows.device))

    @cached_property
    def effective_parameters(self) -> float:
        """γ = Σ (1 − αS) over the relevant weights."""
        return len(self._kept) - float(self._kept @ self.variances)

    @cached_property
    def _errors(self) -> Tensor:
        """√β(z − Rm), ``[r]``."""
        return self._targets - self._rows[:, self.relevant] @ self.weights.mean

    @cached_property
    def squared_errors(self) -> float:
        """‖y − Φm‖²."""
        return float(self._errors.square().sum()) / self.noise_precision + self.table.residual

    @cached_property
    def log_evidence(self) -> float:
        """log p(y | α, β)."""
        log_dets = self._kept.log().sum() - self.weights.log_det_precision
        quadratic = self._kept @ self.weights.mean.square() + self.noise_precision * self.squared_errors
        constant = self.table.count * math.log(self.noise_precision / (2.0 * math.pi))
        return 0.5 * (float(log_dets - quadratic) + constant)

    def sparsity_and_quality(self) -> tuple[Tensor, Tensor]:
        """s = φᵀC⁻¹φ and q = φᵀC⁻¹y of every weight, ``[M]`` each; C is the covariance of y without that weight.

        s measures how little the other features overlap with this one, q how well it explains what they do not.
        """
        sparsity, quality = torch.empty_like(self.weight_precisions), torch.empty_like(self.weight_precisions)
        others, (_, q) = ~self.relevant, self._decomposition
        rows = self._rows[:, others]
        below = rows.new_zeros(len(q) - len(rows), rows.shape[1])
        projected = torch.cat((rows, below)) - q @ (q[: len(rows)].mT @ rows)
        sparsity[others], quality[others] = projected.square().sum(0), rows.mT @ self._errors
        sparsity[self.relevant] = (1.0 / self.variances - self._kept).clamp(min=0.0)
        quality[self.relevant] = self.weights.mean / self.variances
        return sparsity, quality


def determine_relevance(
    table: ReducedTable, noise_prior: PrecisionPrior, *, tolerance: float, max_iter: int
) -> EMFit[RelevancePosterior, RelevancePosterior]:
    """Maximize log p(y | α, β) + log p(log β).

    For a single weight the maximum has a closed form: α = s²/(q² − s) if q² > s, else infinite. Every step adds,
    changes or removes the weight that gains most, or changes all weights of the model at once if that gains more, and
    then improves β by the γ iteration. There is no threshold of relevance, and the units of the columns do not matter.

    There may be several maxima. The search starts from no weights, from all weights with the best common precision in
    units of their columns, and, if there are enough rows to tell noise from signal, from all weights with a very weak
    prior. If the first start reaches the same evidence as others, it is preferred: it has fewer weights, because it
    adds only one of several equivalent columns.

    References:
        M. E. Tipping, A. C. Faul. Fast marginal likelihood maximization for sparse Bayesian models. AISTATS 2003.
    """

    def bound(posterior: RelevancePosterior) -> float:
        return posterior.log_evidence + noise_prior.log_density(posterior.noise_precision)

    def m_step(posterior: RelevancePosterior) -> RelevancePosterior:
        changes = (replace(posterior, weight_precisions=alpha) for alpha in _candidates(posterior))
        # A change that gains less than rounding may lower the bound: then nothing is changed.
        after = max(*changes, posterior, key=bound)
        free = max(table.count - after.effective_parameters, 0.0)
        return replace(after, noise_precision=noise_prior.mode(free, after.squared_errors))

    def fit(start: RelevancePosterior) -> EMFit[RelevancePosterior, RelevancePosterior]:
        return fit_em(
            lambda _: start, lambda p: Expectation(p, bound(p)), m_step, tolerance=tolerance, max_iter=max_iter
        )

    best, *others = map(fit, _starts(table, noise_prior))
    for other in others:
        best = other if other.bound > best.bound + SAME_EVIDENCE else best
    return best


def _starts(table: ReducedTable, noise_prior: PrecisionPrior) -> Iterator[RelevancePosterior]:
    """The starts of the search."""
    squares = table.rows.square().sum(0) / table.count
    squares = torch.where(squares > 0.0, squares, 1.0)
    _, spectrum = decompose(replace(table, rows=table.rows / squares.sqrt()))
    weight_prior = PrecisionPrior.from_arguments(None, None, table.count / (table.total or 1.0))
    shared = find_maxima(spectrum, weight_prior, noise_prior)[0]
    yield RelevancePosterior(table, torch.full_like(squares, math.inf), shared.noise)
    yield RelevancePosterior(table, shared.weights * squares, shared.noise)
    free = table.count - len(table.rows)
    if free > len(table.rows):
        noise = noise_prior.mode(free, table.residual)
        yield RelevancePosterior(table, _WEAK_PRIOR * shared.weights * squares, noise)


def _candidates(posterior: RelevancePosterior) -> tuple[Tensor, Tensor]:
    """α with the one change that gains most, and α with all weights of the model changed, ``[M]`` each."""
    sparsity, quality = posterior.sparsity_and_quality()
    before, excess = posterior.weight_precisions, quality.square() - sparsity
    optimum = torch.where((excess > 0.0) & (sparsity > 0.0), sparsity.square() / excess, math.inf)
    gains = _contribution(optimum, sparsity, quality) - _contribution(before, sparsity, quality)
    # of equivalent columns, the one that is already in the model is preferred
    gains = torch.where(posterior.relevant, gains, gains - SAME_EVIDENCE)
    best = torch.argmax(gains)
    one = before.clone()
    one[best] = torch.where(gains[best] > 0.0, optimum[best], before[best])
    return one, torch.where(posterior.relevant, optimum, before)


def _contribution(alpha: Tensor, sparsity: Tensor, quality: Tensor) -> Tensor:
    """½ (log α/(α + s) + q²/(α + s)), which each weight adds to the log evidence; 0 for infinite α, ``[M]``."""
    return 0.5 * (quality.square() / (alpha + sparsity) - torch.log1p(sparsity / alpha))
