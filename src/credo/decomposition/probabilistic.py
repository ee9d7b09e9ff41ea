"""Probabilistic principal component analysis."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from credo._estimator import draw_seed
from credo._rows import Rows
from credo._threads import one_thread
from credo.conjugate import GaussianBelief
from credo.decomposition import _em, gaps
from credo.decomposition._base import LatentPosterior, check_count
from credo.decomposition.moments import Moments, check_noise, principal_axes, with_signs
from credo.em import fit_em
from credo.errors import InputError, unknown_name

METHODS = ("closed_form", "em")
SMALL = 256


@dataclass(frozen=True, eq=False)
class MissingValues:
    """A table with its gaps filled.

    Attributes:
        mean: the values that are there, and the conditional expectation of those that are not, ``[B, D]``.
        std: how far a value may be from it: 0 where it is there, ``[B, D]``.
    """

    mean: NDArray[np.float64]
    std: NDArray[np.float64]


class ProbabilisticPCA(LatentPosterior):
    """Principal components as maximum likelihood of a latent variable model.

        p(z) = N(0, I),    p(x | z) = N(Wz + μ, σ²I),    p(x) = N(μ, WWᵀ + σ²I)

    The maximum has a closed form, W = U(Λ − σ²I)^½ with the K largest eigenvalues Λ of the sample covariance (over N)
    and σ² the mean of the others. EM finds the same from a random start, and also where values are missing (NaN): then
    it maximizes the likelihood of those that are there, exactly, with a pass over the rows for every step. It assumes
    that values are missing at random. A row without any value says nothing and changes nothing.

    With ``method="em"`` every method takes missing values. A model fitted in closed form takes them too, in
    ``posterior``, ``impute``, ``predict_missing`` and ``score_samples``; only ``fit`` and ``transform`` refuse them.

    Args:
        n_components: K, less than D and than N − 1, so that some noise is left; ``None``: the most.
        method: ``"closed_form"`` or ``"em"``.
        tol: EM ends where a step gains less than this, in nats per row.
        max_iter: the most steps of EM.
        device: where torch computes, such as ``"cuda"``.
        random_state: for the start of EM.

    Attributes:
        components_: Wᵀ, its rows along the principal axes, ``[K, D]``.
        explained_variance_: ‖w‖² + σ², the variance of x along each of them, ``[K]``.
        noise_variance_: σ².
        mean_: μ, ``[D]``.
        log_likelihood_: of all rows, in nats; ``lower_bound_`` is the same number.
        lower_bounds_: the same at the start and after every step of EM.
        n_iter_: steps taken, 1 for the closed form.
        converged_: whether the last step gained less than ``tol``.
        n_components_: K.
        n_samples_: N.

    References:
        M. E. Tipping, C. M. Bishop. Probabilistic principal component analysis. JRSS B 1999.
        C. M. Bishop. Pattern Recognition and Machine Learning. 2006, section 12.2.
    """

    _allows_gaps = True

    def __init__(
        self,
        n_components: int | None = None,
        *,
        method: str = "closed_form",
        tol: float = 1e-6,
        max_iter: int = 1000,
        device: str | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.n_components = n_components
        self.method = method
        self.tol = tol
        self.max_iter = max_iter
        self.device = device
        self.random_state = random_state

    def transform(self, X: Any) -> NDArray[np.float64]:
        """The posterior mean of z for each row of ``X [B, D]``, ``[B, K]``; the prior mean 0 for an empty row."""
        rows = self._new_rows(X, allow_nan=True)
        model = self._model

        def mean(x: Tensor) -> Tensor:
            if self.method != "em" and bool(x.isnan().any()):
                raise InputError("X has missing values (NaN): fit with method='em', or ask for posterior(X).mean")
            return gaps.posterior(model, x).mean

        return rows.map(mean)

    def posterior(self, X: Any) -> GaussianBelief:
        """p(z | x) of each row of ``X [B, D]``, from the values that are there.

        Returns:
            The mean ``[B, K]``, with one precision for all rows where nothing is missing, else with one for each.
        """
        rows = self._new_rows(X, allow_nan=True)
        return gaps.posterior(self._model, torch.cat([block[0] for block in rows.blocks()]))

    def impute(self, X: Any) -> NDArray[np.float64]:
        """``X [B, D]`` with its missing values replaced by their expectation given those that are there."""
        return self.predict_missing(X).mean

    def predict_missing(self, X: Any) -> MissingValues:
        """The missing values of ``X [B, D]`` given those that are there, with their standard deviations."""
        rows = self._new_rows(X, allow_nan=True)
        model = self._model
        mean, std = [], []
        for block in rows.blocks(numbers_per_row=3 * len(self.mean_) * (1 + self.n_components_)):
            x, belief = block[0], gaps.posterior(model, block[0])
            absent = x.isnan()
            variance = belief.variance_along(model.matrix) + self.noise_variance_
            mean.append(torch.where(absent, belief.mean @ model.matrix.mT + model.offset, x).cpu())
            std.append(torch.where(absent, variance.sqrt(), 0.0).cpu())
        return MissingValues(torch.cat(mean).numpy(), torch.cat(std).numpy())

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.method == "em"
        return tags

    def _check_parameters(self) -> None:
        if self.method not in METHODS:
            raise unknown_name("method", self.method, METHODS)

    def _learn(self, moments: Moments, rows: Rows) -> None:
        n_components = self._count(moments)
        if self.method == "em":
            self._climb(moments, rows, n_components)
        elif moments.incomplete:
            raise InputError("X has missing values (NaN), which the closed form does not allow: choose method='em'")
        else:
            self._solve(moments, n_components)
        self.lower_bound_ = self.log_likelihood_
        self.n_components_ = n_components

    def _count(self, moments: Moments) -> int:
        """K, for which some variance must be left to the noise."""
        most = min(moments.size, moments.count - 1) - 1
        if most < 1:
            raise InputError(
                "probabilistic PCA needs at least 2 columns and 3 rows, so that some noise is left, got "
                f"n_features = {moments.size} and n_samples = {moments.count}"
            )
        if self.n_components is None:
            return most
        reason = (
            f"fewer than {moments.size} columns and the {moments.count - 1} dimensions that {moments.count} rows span"
        )
        return check_count("n_components", self.n_components, 1, most, reason)

    def _solve(self, moments: Moments, k: int) -> None:
        """The maximum in closed form (Bishop 12.45, 12.46)."""
        variances, axes = principal_axes(moments, moments.count)
        noise = float(variances[k:].mean())
        check_noise(noise, moments.mean_variance, k)
        log_det = float(variances[:k].log().sum()) + (moments.size - k) * math.log(noise)
        self.log_likelihood_ = -0.5 * moments.count * (moments.size * (1.0 + math.log(2.0 * math.pi)) + log_det)
        self.lower_bounds_, self.n_iter_, self.converged_ = [self.log_likelihood_], 1, True
        self._keep(axes[:k], variances[:k] - noise, moments.mean, noise)

    def _climb(self, moments: Moments, rows: Rows, n_components: int) -> None:
        """EM from a random start."""
        if moments.incomplete:
            observed = _em.Observed.of(rows)
            center, variances = observed.mean, observed.variance
            e_step = partial(_em.expect_from_rows, rows, center)
        else:
            moments.check_spread()
            center, variances = moments.mean, moments.scatter.diagonal() / moments.count
            e_step = partial(_em.expect_from_moments, moments)
        generator = torch.Generator().manual_seed(draw_seed(self.random_state))
        start = _em.Parameters.random(n_components, variances, generator)
        # a step on matrices this small is shorter than it takes threads to meet; passes over rows have their own
        with one_thread(not moments.incomplete and moments.size <= SMALL):
            fit = fit_em(
                lambda _: start, e_step, _em.m_step, rows=moments.count, tolerance=self.tol, max_iter=self.max_iter
            )
        self._record(fit)
        self.log_likelihood_ = fit.bound
        found = fit.parameters
        axes, lengths, _ = torch.linalg.svd(found.loading, full_matrices=False)
        self._keep(with_signs(axes.mT), lengths.square(), center + found.mean, found.noise)

    def _keep(self, axes: Tensor, squared_lengths: Tensor, mean: Tensor, noise: float) -> None:
        """W by its ``axes [K, D]`` and the squared length along each of them, ``[K]``, longest first."""
        lengths = squared_lengths.clamp(min=0.0)
        self.components_ = (lengths.sqrt().unsqueeze(-1) * axes).cpu().numpy()
        self.explained_variance_ = (lengths + noise).cpu().numpy()
        self.mean_ = mean.cpu().numpy()
        self.noise_variance_ = noise
