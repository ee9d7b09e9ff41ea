"""The ways to learn the precisions of a linear regression, each from the same start to the same kind of answer."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from credo.conjugate import GaussianBelief
from credo.em import EMFit
from credo.errors import InputError
from credo.linear._moments import ReducedTable
from credo.linear._precisions import GivenPrecision, PrecisionPrior
from credo.linear._spectrum import SpectralPosterior, Spectrum, weight_posterior
from credo.linear.evidence import Precisions, find_maxima, maximize_evidence
from credo.linear.relevance import determine_relevance
from credo.linear.variational import infer_precisions


@dataclass(frozen=True, eq=False)
class Learned:
    """A posterior over weights, and the precisions that belong to it.

    Attributes:
        belief: about the relevant weights, less the prior mean.
        relevant: which those are, ``[M]``.
        weight_precision: α, E[α], or one α for every weight.
        noise_precision: β or E[β].
        effective_parameters: γ.
        log_evidence: log p(y | α, β); ``None`` where the precisions are not points.
        fit: how the search went.
    """

    belief: GaussianBelief
    relevant: Tensor
    weight_precision: float | NDArray[np.float64]
    noise_precision: float
    effective_parameters: float
    log_evidence: float | None
    fit: EMFit[Any, Any]


@dataclass(frozen=True, eq=False)
class Search:
    """What a search for the precisions starts from.

    Attributes:
        table: what it determines, in coordinates in which the prior is isotropic.
        spectrum: of the table.
        factor: L with w = m₀ + Lu, where u are those coordinates; ``None`` for the identity.
        weight_prior: of α.
        noise_prior: of β.
        tolerance: the least gain in nats that is worth another step.
        max_iter: the most steps.
    """

    table: ReducedTable
    spectrum: Spectrum
    factor: Tensor | None
    weight_prior: PrecisionPrior
    noise_prior: PrecisionPrior
    tolerance: float
    max_iter: int

    @property
    def _limits(self) -> dict[str, Any]:
        return {"tolerance": self.tolerance, "max_iter": self.max_iter}

    @cached_property
    def _starts(self) -> list[Precisions]:
        """All maxima of the evidence, the highest first."""
        return find_maxima(self.spectrum, self.weight_prior, self.noise_prior)

    @cached_property
    def _most_evident(self) -> EMFit[Precisions, SpectralPosterior]:
        return maximize_evidence(self.spectrum, self.weight_prior, self.noise_prior, self._starts, **self._limits)

    def by_evidence(self) -> Learned:
        """α and β that maximize the evidence."""
        posterior = self._most_evident.expectation.statistics
        return self._isotropic(posterior, posterior.log_evidence, self._most_evident)

    def by_variational_bound(self) -> Learned:
        """q(α) and q(β), from the maxima of the evidence, which lie close to those of the bound."""
        fit = infer_precisions(self.spectrum, self.weight_prior, self.noise_prior, self._starts, **self._limits)
        return self._isotropic(fit.expectation.statistics, None, fit)

    def _isotropic(self, posterior: SpectralPosterior, log_evidence: float | None, fit: EMFit[Any, Any]) -> Learned:
        rows, root = self.table.rows, torch.eye(self.table.size, dtype=torch.float64, device=self.table.rows.device)
        if self.factor is not None:
            rows, root = (torch.linalg.solve_triangular(self.factor, m, upper=False, left=False) for m in (rows, root))
        noise = math.sqrt(posterior.noise_precision)
        belief, _ = weight_posterior(
            noise * rows, noise * self.table.targets, math.sqrt(posterior.weight_precision) * root
        )
        return Learned(
            belief=belief,
            relevant=torch.ones(self.table.size, dtype=torch.bool, device=rows.device),
            weight_precision=posterior.weight_precision,
            noise_precision=posterior.noise_precision,
            effective_parameters=posterior.effective_parameters,
            log_evidence=log_evidence,
            fit=fit,
        )

    def by_relevance(self) -> Learned:
        """One α for every weight."""
        if self.factor is not None or isinstance(self.weight_prior, GivenPrecision):
            raise InputError(
                "hyperparameters='ard' learns a precision for every weight: leave weight_precision and "
                "prior_covariance out"
            )
        fit = determine_relevance(self.table, self.noise_prior, **self._limits)
        posterior = fit.parameters
        return Learned(
            belief=posterior.belief,
            relevant=posterior.relevant,
            weight_precision=posterior.weight_precisions.cpu().numpy(),
            noise_precision=posterior.noise_precision,
            effective_parameters=posterior.effective_parameters,
            log_evidence=posterior.log_evidence,
            fit=fit,
        )


SEARCHES: dict[str, Callable[[Search], Learned]] = {
    "evidence": Search.by_evidence,
    "variational": Search.by_variational_bound,
    "ard": Search.by_relevance,
}
