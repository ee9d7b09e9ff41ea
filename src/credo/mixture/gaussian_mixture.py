"""Mixtures of Gaussians by expectation–maximization."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from credo._estimator import draw_seed, restore_on_error
from credo._rows import Rows
from credo.em import EMFit, Expectation, fit_em
from credo.errors import InputError, unknown_name
from credo.mixture.base import InitParams, Mixture
from credo.mixture.components import LOG_2PI, Components, say_where_floor_acts
from credo.mixture.diagonals import DiagonalComponents, SphericalComponents
from credo.mixture.expectation import Shared, expect
from credo.mixture.matrices import FullComponents, TiedComponents

CovarianceType = Literal["full", "tied", "diag", "spherical"]
KINDS: dict[str, type[Components]] = {
    "full": FullComponents,
    "tied": TiedComponents,
    "diag": DiagonalComponents,
    "spherical": SphericalComponents,
}


class GaussianMixture(Mixture):
    """p(x) = Σ_k π_k N(x | μ_k, Σ_k), with parameters of maximum likelihood by EM.

        E:  r_nk = π_k N(x_n | μ_k, Σ_k) / Σ_j π_j N(x_n | μ_j, Σ_j)
        M:  N_k = Σ_n r_nk,  π_k = N_k/N,  μ_k = Σ_n r_nk x_n / N_k,
            Σ_k = Σ_n r_nk (x_n − μ_k)(x_n − μ_k)ᵀ / N_k

    The likelihood has no maximum where a component can shrink onto a row, or where columns repeat others. So there is a
    floor: a prior that is flat where no eigenvalue of Σ_k is below ε = ``reg_covar`` and 0 elsewhere. Under it the
    M-step raises smaller eigenvalues to ε and changes nothing else, and the likelihood still never falls. (scikit-learn
    adds ε to the diagonal of every Σ_k, which is no M-step of any prior; results agree to about ε.)

    Rows in chunks are read once in every iteration.

    Args:
        n_components: K.
        covariance_type: ``"full"``, ``"tied"`` (one matrix for all), ``"diag"`` or ``"spherical"``.
        tol: the least gain of the bound per row that is worth another iteration.
        reg_covar: ε, the least variance in any direction, in the squared units of the data; at 0 a singular covariance
            is an error.
        max_iter: the most iterations from one start.
        n_init: how many starts, of which the one with the highest bound is kept.
        init_params: ``"kmeans"`` (the best of three runs), ``"k-means++"`` or ``"random_from_data"``: rows go to the
            nearest of such centers, found from a sample where there are very many rows; ``"random"``: to all
            components in random shares.
        weights_init: π to start from, ``[K]``.
        means_init: μ to start from, ``[K, D]``.
        precisions_init: Σ⁻¹ to start from, ``[K, D, D]``, ``[D, D]``, ``[K, D]`` or ``[K]`` by ``covariance_type``.
        random_state: a seed, or scikit-learn's kind of generator.
        device: where torch computes; ``None`` is the CPU.

    Attributes:
        weights_: π, ``[K]``.
        means_: μ, ``[K, D]``.
        covariances_: Σ, of the shape of ``precisions_init``.
        precisions_: Σ⁻¹.
        precisions_cholesky_: the upper triangular P with PPᵀ = Σ⁻¹, or one over the standard deviations.
        lower_bound_: the log likelihood, in nats over all rows.
        lower_bounds_: at the start and after every iteration.
        n_iter_: iterations from the best start.
        converged_: whether that start stopped by ``tol``.

    References:
        A. P. Dempster, N. M. Laird, D. B. Rubin. Maximum likelihood from incomplete data via the EM algorithm. 1977.
        C. M. Bishop. Pattern Recognition and Machine Learning. 2006, section 9.2.
    """

    def __init__(
        self,
        n_components: int = 1,
        *,
        covariance_type: CovarianceType = "full",
        tol: float = 1e-3,
        reg_covar: float = 1e-6,
        max_iter: int = 100,
        n_init: int = 1,
        init_params: InitParams = "kmeans",
        weights_init: ArrayLike | None = None,
        means_init: ArrayLike | None = None,
        precisions_init: ArrayLike | None = None,
        random_state: int | np.random.RandomState | None = None,
        device: str | None = None,
    ) -> None:
        self.n_components = n_components
        self.covariance_type = covariance_type
        self.tol = tol
        self.reg_covar = reg_covar
        self.max_iter = max_iter
        self.n_init = n_init
        self.init_params = init_params
        self.weights_init = weights_init
        self.means_init = means_init
        self.precisions_init = precisions_init
        self.random_state = random_state
        self.device = device

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit to ``X``, an array, a data frame or chunks."""
        with restore_on_error(self):
            rows = self._mixture_rows(X)
            fit = self._climb(rows)
            components = fit.parameters.components
            self.weights_ = fit.parameters.weights.cpu().numpy()
            self.means_ = components.means.cpu().numpy()
            self.covariances_ = components.covariances.cpu().numpy()
            self.precisions_ = components.precisions.cpu().numpy()
            self.precisions_cholesky_ = components.factor.cpu().numpy()
            say_where_floor_acts(components, self.reg_covar)
            self._record(fit)
        return self

    def aic(self, X: Any) -> float:
        """Akaike's criterion for ``X``: −2 log likelihood + 2 × free parameters; the lower, the better."""
        return -2.0 * float(self.score_samples(X).sum()) + 2.0 * self._free_parameters()

    def bic(self, X: Any) -> float:
        """The Bayesian criterion for ``X``: −2 log likelihood + log N × free parameters; the lower, the better."""
        log_densities = self.score_samples(X)
        return -2.0 * float(log_densities.sum()) + math.log(len(log_densities)) * self._free_parameters()

    def _free_parameters(self) -> int:
        return self._components().free_parameters + self.means_.size + len(self.weights_) - 1

    def _climb(self, rows: Rows) -> EMFit[_Parameters, Shared[Components]]:
        """EM from all starts, and a last step.

        A step that gains less than ``tol`` is followed by one more, as scikit-learn's is, which notices it a step
        later.
        """
        if self.covariance_type not in KINDS:
            raise unknown_name("covariance_type", self.covariance_type, KINDS)
        given, seed = self._given(rows), draw_seed(self.random_state)
        steps = _Steps(rows, self.reg_covar)
        fit = fit_em(
            lambda number: self._start(rows, given, steps, seed, number),
            steps.e_step,
            steps.m_step,
            rows=rows.count,
            tolerance=self.tol,
            max_iter=self.max_iter,
            restarts=self.n_init if any(part is None for part in given.values()) else 1,
        )
        if not fit.converged or fit.n_iter == self.max_iter:
            return fit
        parameters = steps.m_step(fit.expectation.statistics)
        expectation = steps.e_step(parameters)
        return replace(fit, parameters=parameters, expectation=expectation, bounds=(*fit.bounds, expectation.bound))

    def _start(self, rows: Rows, given: dict[str, Tensor | None], steps: _Steps, seed: int, number: int) -> _Parameters:
        """What was given, and for the rest what an M-step makes of the first shares."""
        kind = KINDS[self.covariance_type]
        weights, means, precisions = given["weights_init"], given["means_init"], given["precisions_init"]
        if weights is None or means is None or precisions is None:
            found = steps.m_step(self._first_shares(rows, kind, seed, number))
            weights = found.weights if weights is None else weights
            means = found.components.means if means is None else means
            if precisions is None:
                return _Parameters(weights, kind(means, found.components.factor))
        components = kind.from_precisions(means, precisions)
        if components.least_variance < self.reg_covar * (1.0 - 1e-9):
            raise InputError(
                f"precisions_init must have no eigenvalue above 1/reg_covar = {1.0 / self.reg_covar:g}, got "
                f"{1.0 / components.least_variance:g}"
            )
        return _Parameters(weights, components)

    def _given(self, rows: Rows) -> dict[str, Tensor | None]:
        """The parts of a start that the user has given, checked."""
        shape = (self.n_components, self.n_features_in_)
        shapes: dict[str, tuple[int, ...]] = {
            "weights_init": shape[:1],
            "means_init": shape,
            "precisions_init": KINDS[self.covariance_type].shape(*shape),
        }
        given: dict[str, Tensor | None] = dict.fromkeys(shapes)
        for name, wanted in shapes.items():
            if getattr(self, name) is not None:
                array = np.array(getattr(self, name), np.float64)
                if array.shape != wanted or not np.isfinite(array).all():
                    raise InputError(f"{name} must be finite numbers of shape {wanted}, got shape {array.shape}")
                given[name] = torch.from_numpy(array).to(rows.device)
        weights = given["weights_init"]
        if weights is not None and not (bool((weights >= 0.0).all()) and abs(float(weights.sum()) - 1.0) < 1e-8):
            raise InputError(f"weights_init must be 0 or more and sum to 1, got {weights.tolist()}")
        return given

    def _components(self) -> Components:
        kind = KINDS[self.covariance_type]
        return kind(self._tensor(self.means_), self._tensor(self.precisions_cholesky_))

    def _log_joint(self) -> tuple[Components, Callable[[Tensor], Tensor]]:
        components = self._components()
        log_scale = _log_scale(self._tensor(self.weights_), components)[:, None]
        return components, lambda squared_distances: log_scale - 0.5 * squared_distances

    def _noise(self, k: int, shape: tuple[int, int], random: np.random.Generator) -> NDArray[np.float64]:
        return random.standard_normal(shape)


@dataclass(frozen=True, eq=False)
class _Parameters:
    """π ``[K]``, and the components."""

    weights: Tensor
    components: Components


class _Steps:
    """The two steps of EM for one table."""

    def __init__(self, rows: Rows, floor: float) -> None:
        self._rows = rows
        self._floor = floor

    def e_step(self, parameters: _Parameters) -> Expectation[Shared[Components]]:
        components = parameters.components
        shared = expect(self._rows, components, _log_scale(parameters.weights, components))
        return Expectation(shared, shared.total)

    def m_step(self, shared: Shared[Components]) -> _Parameters:
        count = shared.sums.count
        return _Parameters(count / count.sum(), shared.components.updated(shared.sums, self._floor))


def _log_scale(weights: Tensor, components: Components) -> Tensor:
    """log π_k + ½ log|Λ_k| − ½ D log 2π: what a row at the mean of a component has, ``[K]``."""
    return weights.log() + components.half_log_det - 0.5 * components.means.shape[1] * LOG_2PI
