"""Automatic relevance determination: a prior precision for every weight, infinite for those that explain nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from credo.conjugate import GaussianBelief
from credo.em import EMFit, Expectation, fit_em
from credo.linear._moments import ReducedTable
from credo.linear._precisions import PrecisionPrior, precision_prior
from credo.linear._spectrum import decompose, weight_posterior
from credo.linear.evidence import find_maxima

_WEAK = 1e-6
SAME_EVIDENCE = 1e-6
"""Nats that do not count: between two maxima, which then are one, and for a weight that is not in the model."""


@dataclass(frozen=True, eq=False)
class RelevancePosterior:
    """p(w | y, α, β) for w ~ N(0, diag(α)⁻¹), where weights of infinite α are 0.

    Attributes:
        table: what is determined of it.
        weight_precisions: α, ``[M]``; infinite for weights that are left out.
        noise_precision: β.
    """

    table: ReducedTable
    weight_precisions: Tensor
    noise_precision: float

    @cached_property
    def relevant(self) -> Tensor:
        """Which weights are in the model, ``[M]``."""
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
        """The belief, and an orthonormal basis of the relevant features with √α below them."""
        return weight_posterior(self._rows[:, self.relevant], self._targets, torch.diag(self._kept.sqrt()))

    @property
    def belief(self) -> GaussianBelief:
        """Of the relevant weights."""
        return self._decomposition[0]

    @cached_property
    def variances(self) -> Tensor:
        """Of the relevant weights, ``[K]``."""
        return self.belief.variance_along(torch.eye(len(self._kept), dtype=self._rows.dtype, device=self._rows.device))

    @cached_property
    def effective_parameters(self) -> float:
        """γ = Σ (1 − αS) over the relevant weights."""
        return len(self._kept) - float(self._kept @ self.variances)

    @cached_property
    def _errors(self) -> Tensor:
        """√β(z − Rm), ``[r]``."""
        return self._targets - self._rows[:, self.relevant] @ self.belief.mean

    @cached_property
    def squared_errors(self) -> float:
        """‖y − Φm‖²."""
        return float(self._errors.square().sum()) / self.noise_precision + self.table.residual

    @cached_property
    def log_evidence(self) -> float:
        """log p(y | α, β)."""
        log_dets = self._kept.log().sum() - self.belief.log_det_precision
        quadratic = self._kept @ self.belief.mean.square() + self.noise_precision * self.squared_errors
        constant = self.table.count * math.log(self.noise_precision / (2.0 * math.pi))
        return 0.5 * (float(log_dets - quadratic) + constant)

    def sparsity_and_quality(self) -> tuple[Tensor, Tensor]:
        """s and q of every weight, ``[M]`` each: how far the other weights leave its feature free, and call for it.

        s = φᵀC⁻¹φ and q = φᵀC⁻¹y, where C is the covariance of y without that weight.
        """
        sparsity, quality = torch.empty_like(self.weight_precisions), torch.empty_like(self.weight_precisions)
        others, (_, q) = ~self.relevant, self._decomposition
        rows = self._rows[:, others]
        below = rows.new_zeros(len(q) - len(rows), rows.shape[1])
        left = torch.cat((rows, below)) - q @ (q[: len(rows)].mT @ rows)
        sparsity[others], quality[others] = left.square().sum(0), rows.mT @ self._errors
        sparsity[self.relevant] = (1.0 / self.variances - self._kept).clamp(min=0.0)
        quality[self.relevant] = self.belief.mean / self.variances
        return sparsity, quality


def determine_relevance(
    table: ReducedTable, noise_prior: PrecisionPrior, *, tolerance: float, max_iter: int
) -> EMFit[RelevancePosterior, RelevancePosterior]:
    """Maximize log p(y | α, β) + log p(log β).

    For one weight the maximum is known: α = s²/(q² − s) where q² > s, and infinite otherwise. Every step puts in,
    changes or takes out the weight that gains most, or changes all weights of the model at once where that gains more;
    then it improves β by the γ iteration. No threshold decides what is relevant, and the units of the columns do not
    matter.

    There may be several maxima. The search climbs from no weights, from all with the precision that the evidence calls
    for where they share one in units of their columns, and from all with hardly any prior where the rows are many
    enough to tell noise from signal. Where the first reaches the same evidence as others, it has fewer weights, because
    it takes one column of several that say the same.

    References:
        M. E. Tipping, A. C. Faul. Fast marginal likelihood maximization for sparse Bayesian models. AISTATS 2003.
    """

    def bound(posterior: RelevancePosterior) -> float:
        return posterior.log_evidence + noise_prior.log_density(posterior.noise_precision)

    def better(posterior: RelevancePosterior) -> RelevancePosterior:
        changes = (replace(posterior, weight_precisions=alpha) for alpha in _changes(posterior))
        # A change that gains less than rounding may lose: then all stays as it is.
        after = max(*changes, posterior, key=bound)
        free = max(table.count - after.effective_parameters, 0.0)
        return replace(after, noise_precision=noise_prior.mode(free, after.squared_errors))

    def climb(first: RelevancePosterior) -> EMFit[RelevancePosterior, RelevancePosterior]:
        return fit_em(
            lambda _: first, lambda p: Expectation(p, bound(p)), better, tolerance=tolerance, max_iter=max_iter
        )

    best, *others = map(climb, _starts(table, noise_prior))
    for other in others:
        best = other if other.bound > best.bound + SAME_EVIDENCE else best
    return best


def _starts(table: ReducedTable, noise_prior: PrecisionPrior) -> Iterator[RelevancePosterior]:
    """Where the search climbs from."""
    squares = table.rows.square().sum(0) / table.count
    squares = torch.where(squares > 0.0, squares, 1.0)
    _, spectrum = decompose(replace(table, rows=table.rows / squares.sqrt()))
    shared = find_maxima(spectrum, precision_prior(None, None, table.count / (table.total or 1.0)), noise_prior)[0]
    yield RelevancePosterior(table, torch.full_like(squares, math.inf), shared.noise)
    yield RelevancePosterior(table, shared.weights * squares, shared.noise)
    free = table.count - len(table.rows)
    if free > len(table.rows):
        noise = noise_prior.mode(free, table.residual)
        yield RelevancePosterior(table, _WEAK * shared.weights * squares, noise)


def _changes(posterior: RelevancePosterior) -> tuple[Tensor, Tensor]:
    """α with the one weight changed that gains most, and with all weights of the model changed, ``[M]`` each."""
    sparsity, quality = posterior.sparsity_and_quality()
    before, excess = posterior.weight_precisions, quality.square() - sparsity
    optimum = torch.where((excess > 0.0) & (sparsity > 0.0), sparsity.square() / excess, math.inf)
    gains = _share_of_evidence(optimum, sparsity, quality) - _share_of_evidence(before, sparsity, quality)
    # of columns that say the same, the one that is in the model already is changed
    gains = torch.where(posterior.relevant, gains, gains - SAME_EVIDENCE)
    best = torch.argmax(gains)
    one = before.clone()
    one[best] = torch.where(gains[best] > 0.0, optimum[best], before[best])
    return one, torch.where(posterior.relevant, optimum, before)


def _share_of_evidence(alpha: Tensor, sparsity: Tensor, quality: Tensor) -> Tensor:
    """½ (log α/(α + s) + q²/(α + s)): what each weight adds to the log evidence, 0 for infinite α, ``[M]``."""
    return 0.5 * (quality.square() / (alpha + sparsity) - torch.log1p(sparsity / alpha))
