"""Mixtures of Gaussians by expectation–maximization."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from typing_extensions import override

from credo._arguments import check_option
from credo._estimator import draw_seed, restore_on_error
from credo._rows import Rows
from credo.em import EMFit, Expectation, fit_em
from credo.errors import InputError
from credo.mixture._base import BaseMixture, InitParams, check_array_argument
from credo.mixture._components import LOG_2PI, Assignment, MixtureComponents, assign_by_density
from credo.mixture._covariances import COVARIANCE_TYPES, CovarianceType


class GaussianMixture(BaseMixture):
    """A mixture of Gaussians, p(x) = Σ_k π_k N(x | μ_k, Σ_k), fitted by maximum likelihood with EM.

        E:  r_nk = π_k N(x_n | μ_k, Σ_k) / Σ_j π_j N(x_n | μ_j, Σ_j)
        M:  N_k = Σ_n r_nk,  π_k = N_k/N,  μ_k = Σ_n r_nk x_n / N_k,
            Σ_k = Σ_n r_nk (x_n − μ_k)(x_n − μ_k)ᵀ / N_k

    The likelihood has no maximum where a component can shrink onto a row, or where columns repeat others. The
    covariance floor prevents this: a prior that is flat where no eigenvalue of Σ_k is below ε = ``reg_covar`` and 0
    elsewhere. Under it the M-step raises smaller eigenvalues to ε and changes nothing else, and the likelihood never
    falls. (scikit-learn adds ε to the diagonal of every Σ_k, which is not the M-step of any prior; results agree to
    about ε.)

    Args:
        n_components: the number K of components.
        covariance_type: ``"full"``, ``"tied"`` (one matrix for all), ``"diag"`` or ``"spherical"``.
        tol: stop when an iteration raises the bound by no more than this, in nats per row.
        reg_covar: the covariance floor ε, the minimum variance in any direction, in the squared units of the data; at 0
            a singular covariance is an error.
        max_iter: the maximum number of iterations from one start.
        n_init: the number of starts, of which the one with the highest bound is kept.
        init_params: ``"kmeans"`` (the best of three runs), ``"k-means++"`` or ``"random_from_data"``: rows are first
            assigned to the nearest of such centers, computed from a sample for long tables; ``"random"``: random
            responsibilities.
        weights_init: initial π, ``[K]``; ``None``: from ``init_params``.
        means_init: initial μ, ``[K, D]``; ``None``: from ``init_params``.
        precisions_init: initial Σ⁻¹, ``[K, D, D]``, ``[D, D]``, ``[K, D]`` or ``[K]`` by ``covariance_type``; ``None``:
            from ``init_params``.
        random_state: a seed, or a numpy ``RandomState``.
        device: the torch device; ``None`` is the CPU.

    Attributes:
        weights_: π, ``[K]``.
        means_: μ, ``[K, D]``.
        covariances_: Σ, with the shape of ``precisions_init``.
        precisions_: Σ⁻¹.
        precisions_cholesky_: the upper triangular P with PPᵀ = Σ⁻¹, or one over the standard deviations.
        lower_bound_: the log likelihood, in nats over all rows.
        lower_bounds_: the log likelihood at the start and after every iteration.
        n_iter_: the number of iterations of the best start.
        converged_: whether the best start stopped by ``tol``.

    References:
        A. P. Dempster, N. M. Laird, D. B. Rubin. Maximum likelihood from incomplete data via the EM algorithm. 1977.
        C. M. Bishop. Pattern Recognition and Machine Learning. 2006, section 9.2.

    Example:
        >>> import numpy as np
        >>> from credo.mixture import GaussianMixture
        >>> rng = np.random.default_rng(0)
        >>> X = np.concatenate([rng.normal(0.0, 1.0, (200, 2)), rng.normal(6.0, 1.0, (100, 2))])
        >>> model = GaussianMixture(2, random_state=0).fit(X)
        >>> sorted(model.weights_.round(2).tolist())
        [0.33, 0.67]
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
        """Fit the mixture by EM.

        Args:
            X: rows ``[N, D]``: an array, a data frame or chunks, which are read once per iteration.
            y: ignored.

        Raises:
            InputError: if an argument is invalid, there are too few rows, or a covariance is singular.
        """
        with restore_on_error(self):
            rows = self._check_rows(X)
            fit = self._fit_em(rows)
            components = fit.parameters.components
            self.weights_ = fit.parameters.weights.cpu().numpy()
            self.means_ = components.means.cpu().numpy()
            self.covariances_ = components.covariances.cpu().numpy()
            self.precisions_ = components.precisions.cpu().numpy()
            self.precisions_cholesky_ = components.factor.cpu().numpy()
            components.warn_if_floor_active(self.reg_covar)
            self._record(fit)
        return self

    def aic(self, X: Any) -> float:
        """Return the Akaike information criterion, −2 log likelihood + 2 × the number of free parameters.

        Args:
            X: rows ``[N, D]``.

        Returns:
            The criterion; lower is better.
        """
        return -2.0 * float(self.score_samples(X).sum()) + 2.0 * self._n_parameters()

    def bic(self, X: Any) -> float:
        """Return the Bayesian information criterion, −2 log likelihood + log N × the number of free parameters.

        Args:
            X: rows ``[N, D]``.

        Returns:
            The criterion; lower is better.
        """
        log_densities = self.score_samples(X)
        return -2.0 * float(log_densities.sum()) + math.log(len(log_densities)) * self._n_parameters()

    def _n_parameters(self) -> int:
        return self._components().n_parameters + self.means_.size + len(self.weights_) - 1

    def _fit_em(self, rows: Rows) -> EMFit[_Parameters, Assignment[MixtureComponents]]:
        """EM from all starts, then one more step: scikit-learn notices convergence one step later, too."""
        check_option(self.covariance_type, "covariance_type", COVARIANCE_TYPES)
        kind = COVARIANCE_TYPES[self.covariance_type]
        initial, seed = self._initial_values(kind), draw_seed(self.random_state)

        def e_step(parameters: _Parameters) -> Expectation[Assignment[MixtureComponents]]:
            assignment = assign_by_density(rows, parameters.components, parameters.log_scale)
            return Expectation(assignment, assignment.total)

        def m_step(assignment: Assignment[MixtureComponents]) -> _Parameters:
            count = assignment.sums.count
            return _Parameters(count / count.sum(), assignment.components.m_step(assignment.sums, self.reg_covar))

        def start(k: int) -> _Parameters:
            weights, means, precisions = initial
            if weights is None or means is None or precisions is None:
                found = m_step(self._initial_assignment(rows, kind, seed, k))
                weights = found.weights if weights is None else weights
                means = found.components.means if means is None else means
                if precisions is None:
                    return _Parameters(weights, kind(means, found.components.factor))
            return _Parameters(weights, self._components_from_precisions(means, precisions))

        fit = fit_em(
            start,
            e_step,
            m_step,
            rows=rows.count,
            tolerance=self.tol,
            max_iter=self.max_iter,
            restarts=self.n_init if any(value is None for value in initial) else 1,
        )
        if not fit.converged or fit.n_iter == self.max_iter:
            return fit
        parameters = m_step(fit.expectation.statistics)
        expectation = e_step(parameters)
        return replace(fit, parameters=parameters, expectation=expectation, bounds=(*fit.bounds, expectation.bound))

    def _initial_values(self, kind: type[MixtureComponents]) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """The initial weights, means and precisions that were given, checked; ``None`` for the others."""
        shape = (self.n_components, self.n_features_in_)

        def check(name: str, value: ArrayLike | None, shape: tuple[int, ...]) -> Tensor | None:
            return None if value is None else self._tensor(check_array_argument(name, value, shape))

        weights = check("weights_init", self.weights_init, shape[:1])
        if weights is not None and not (bool((weights >= 0.0).all()) and abs(float(weights.sum()) - 1.0) < 1e-8):
            raise InputError(f"weights_init must be 0 or more and sum to 1, got {weights.tolist()}")
        means = check("means_init", self.means_init, shape)
        return weights, means, check("precisions_init", self.precisions_init, kind.factor_shape(*shape))

    def _components_from_precisions(self, means: Tensor, precisions: Tensor) -> MixtureComponents:
        components = COVARIANCE_TYPES[self.covariance_type].from_precisions(means, precisions)
        if components.min_variance < self.reg_covar * (1.0 - 1e-9):
            raise InputError(
                f"precisions_init must have no eigenvalue above 1/reg_covar = {1.0 / self.reg_covar:g}, got "
                f"{1.0 / components.min_variance:g}"
            )
        return components

    def _components(self) -> MixtureComponents:
        kind = COVARIANCE_TYPES[self.covariance_type]
        return kind(self._tensor(self.means_), self._tensor(self.precisions_cholesky_))

    @override
    def _log_joint(self) -> tuple[MixtureComponents, Callable[[Tensor], Tensor]]:
        parameters = _Parameters(self._tensor(self.weights_), self._components())
        log_scale = parameters.log_scale[:, None]
        return parameters.components, lambda squared_distances: log_scale - 0.5 * squared_distances

    @override
    def _draw_noise(self, k: int, shape: tuple[int, int], random: np.random.Generator) -> NDArray[np.float64]:
        return random.standard_normal(shape)


@dataclass(frozen=True, eq=False)
class _Parameters:
    """π ``[K]``, and the components."""

    weights: Tensor
    components: MixtureComponents

    @property
    def log_scale(self) -> Tensor:
        """log π_k + ½ log|Λ_k| − ½ D log 2π, ``[K]``: the log joint density at the mean of each component."""
        return self.weights.log() + self.components.half_log_det - 0.5 * self.components.means.shape[1] * LOG_2PI
