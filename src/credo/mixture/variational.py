"""Mixtures of Gaussians by variational Bayes: how many components there are is part of the answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from credo._estimator import draw_seed, restore_on_error
from credo._notices import notify
from credo._rows import Rows
from credo.em import EMFit, fit_em
from credo.errors import InputError, unknown_name
from credo.mixture.base import InitParams, Mixture
from credo.mixture.components import Components
from credo.mixture.dirichlet_wishart import Assigned, Posterior, Prior
from credo.mixture.expectation import share, to_nearest
from credo.mixture.matrices import FullComponents, outer


class VariationalGaussianMixture(Mixture):
    """A Bayesian mixture of Gaussians with full covariances, and the best posterior that is a product q(z) q(π, μ, Λ).

        π ~ Dir(α₀),    Λ_k ~ Wishart(W₀, ν₀),    μ_k ~ N(m₀, (β₀Λ_k)⁻¹),    x ~ Σ_k π_k N(μ_k, Λ_k⁻¹)

    Iterations alternate between q(z), in one pass over the rows, and q(π, μ, Λ) in closed form, and both raise the same
    lower bound of the log evidence. With a small α₀ components that the data do not need lose all their rows, so that
    K may be chosen too large; ``weights_`` and ``effective_components_`` say what is left.

    The bound is the true one, with all constants: for one component it *is* the log evidence. (scikit-learn's leaves
    constants out, so that it cannot be compared between models.) Densities and memberships of rows are those of the
    posterior predictive distribution, a mixture of Student t's that knows how uncertain the components are:

        p(x | X) = Σ_k E[π_k] St(x | m_k, L_k, ν_k + 1 − D),    L_k = (ν_k + 1 − D) β_k / (1 + β_k) W_k

    Args:
        n_components: K, the most components there may be.
        covariance_type: ``"full"``.
        tol: the least gain of the bound, in nats over all rows, that is worth another iteration.
        reg_covar: added to the diagonal of the default ``covariance_prior``, in the squared units of the data, so that
            it is proper where columns are constant or repeat others.
        max_iter: the most iterations from one start.
        n_init: how many starts, of which the one with the highest bound is kept.
        init_params: how rows are first shared out, see :class:`GaussianMixture`.
        weight_concentration_prior_type: ``"dirichlet_distribution"``.
        weight_concentration_prior: α₀; ``None``: 1/K.
        mean_precision_prior: β₀; ``None``: 1.
        mean_prior: m₀ ``[D]``; ``None``: the mean of the rows.
        degrees_of_freedom_prior: ν₀, above D − 1; ``None``: D.
        covariance_prior: W₀⁻¹ ``[D, D]``; ``None``: the covariance of the rows.
        random_state: a seed, or scikit-learn's kind of generator.
        device: where torch computes; ``None`` is the CPU.

    Attributes:
        weights_: E[π], ``[K]``.
        weight_concentration_: α, ``[K]``.
        means_: m, ``[K, D]``.
        mean_precision_: β, ``[K]``.
        degrees_of_freedom_: ν, ``[K]``.
        covariances_: (ν_kW_k)⁻¹, ``[K, D, D]``.
        precisions_: E[Λ_k] = ν_kW_k, ``[K, D, D]``.
        precisions_cholesky_: the upper triangular P with PPᵀ = ν_kW_k, ``[K, D, D]``.
        effective_components_: how many components have at least one row's worth of responsibility.
        lower_bound_: of the log evidence, in nats over all rows.
        lower_bounds_: at the start and after every iteration.
        n_iter_: iterations from the best start.
        converged_: whether that start stopped by ``tol``.
        weight_concentration_prior_, mean_precision_prior_, mean_prior_, degrees_of_freedom_prior_, covariance_prior_:
            the prior that was used.

    References:
        H. Attias. A variational Bayesian framework for graphical models. NIPS 1999.
        C. M. Bishop. Pattern Recognition and Machine Learning. 2006, section 10.2.
    """

    def __init__(
        self,
        n_components: int = 1,
        *,
        covariance_type: Literal["full"] = "full",
        tol: float = 1e-3,
        reg_covar: float = 1e-6,
        max_iter: int = 100,
        n_init: int = 1,
        init_params: InitParams = "kmeans",
        weight_concentration_prior_type: Literal["dirichlet_distribution"] = "dirichlet_distribution",
        weight_concentration_prior: float | None = None,
        mean_precision_prior: float | None = None,
        mean_prior: ArrayLike | None = None,
        degrees_of_freedom_prior: float | None = None,
        covariance_prior: ArrayLike | None = None,
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
        self.weight_concentration_prior_type = weight_concentration_prior_type
        self.weight_concentration_prior = weight_concentration_prior
        self.mean_precision_prior = mean_precision_prior
        self.mean_prior = mean_prior
        self.degrees_of_freedom_prior = degrees_of_freedom_prior
        self.covariance_prior = covariance_prior
        self.random_state = random_state
        self.device = device

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit to ``X``, an array, a data frame or chunks, which are read once in every iteration."""
        with restore_on_error(self):
            self._check_choices()
            rows = self._mixture_rows(X)
            self._learn_prior(rows)
            fit = self._climb(rows)
            self._learn_posterior(fit.expectation.statistics, fit.parameters)
            self._record(fit)
        return self

    def _climb(self, rows: Rows) -> EMFit[Assigned, Posterior]:
        """Raise the bound from all starts.

        Which of the two factors is called the parameters is a matter of taste. Here it is q(z): the closed form of
        q(π, μ, Λ) with its bound is then the E-step, the pass over the rows the M-step, and no pass is wasted on a
        last bound.
        """
        prior, seed = self._prior(), draw_seed(self.random_state)

        def start(number: int) -> Assigned:
            shared = self._first_shares(rows, FullComponents, seed, number)
            return Assigned(shared.components, shared.sums, entropy=shared.total)

        return fit_em(
            start,
            prior.expect,
            lambda posterior: posterior.assign(rows),
            rows=rows.count,
            tolerance=self.tol / rows.count,
            max_iter=self.max_iter,
            restarts=self.n_init,
        )

    def _check_choices(self) -> None:
        for name, only in (
            ("covariance_type", "full"),
            ("weight_concentration_prior_type", "dirichlet_distribution"),
        ):
            if getattr(self, name) != only:
                raise unknown_name(name, getattr(self, name), [only])
        for name in ("weight_concentration_prior", "mean_precision_prior"):
            value = getattr(self, name)
            if value is not None and not 0.0 < value < np.inf:
                raise InputError(f"{name} must be above 0, got {value}")

    def _learn_prior(self, rows: Rows) -> None:
        """The prior in numbers: what was given, and what the rows say for the rest."""
        size = self.n_features_in_
        freedom = size if self.degrees_of_freedom_prior is None else self.degrees_of_freedom_prior
        if not size - 1 < freedom < np.inf:
            raise InputError(
                f"degrees_of_freedom_prior must be above the number of columns less one, {size - 1}, got {freedom}"
            )
        self.degrees_of_freedom_prior_ = float(freedom)
        concentration, precision = self.weight_concentration_prior, self.mean_precision_prior
        self.weight_concentration_prior_ = 1.0 / self.n_components if concentration is None else float(concentration)
        self.mean_precision_prior_ = 1.0 if precision is None else float(precision)
        mean, covariance = _mean_and_covariance(rows)
        floor = self.reg_covar * np.eye(size)
        self.mean_prior_ = mean if self.mean_prior is None else _given("mean_prior", self.mean_prior, (size,))
        if self.covariance_prior is None:
            self.covariance_prior_ = covariance + floor
            if self.reg_covar >= covariance.diagonal().min():
                notify(
                    f"the default covariance_prior is decided by reg_covar={self.reg_covar:g} more than by the data: "
                    "rescale columns that vary so little, or lower it"
                )
        else:
            self.covariance_prior_ = _given("covariance_prior", self.covariance_prior, (size, size))
            if not np.allclose(self.covariance_prior_, self.covariance_prior_.T):
                raise InputError("covariance_prior must be symmetric, got a matrix that is not")

    def _prior(self) -> Prior:
        return Prior(
            self.weight_concentration_prior_,
            self.mean_precision_prior_,
            self._tensor(self.mean_prior_),
            self.degrees_of_freedom_prior_,
            self._tensor(self.covariance_prior_),
        )

    def _learn_posterior(self, posterior: Posterior, assigned: Assigned) -> None:
        components = posterior.components
        self.weight_concentration_ = posterior.concentration.cpu().numpy()
        self.mean_precision_ = posterior.mean_precision.cpu().numpy()
        self.degrees_of_freedom_ = posterior.freedom.cpu().numpy()
        self.weights_ = self.weight_concentration_ / self.weight_concentration_.sum()
        self.means_ = components.means.cpu().numpy()
        self.covariances_ = components.covariances.cpu().numpy()
        self.precisions_ = components.precisions.cpu().numpy()
        self.precisions_cholesky_ = components.factor.cpu().numpy()
        self.effective_components_ = int((assigned.sums.count >= 1.0).sum())

    def _posterior(self) -> Posterior:
        return Posterior(
            self._tensor(self.weight_concentration_),
            self._tensor(self.mean_precision_),
            self._tensor(self.degrees_of_freedom_),
            FullComponents(self._tensor(self.means_), self._tensor(self.precisions_cholesky_)),
        )

    def _log_joint(self) -> tuple[Components, Callable[[Tensor], Tensor]]:
        posterior = self._posterior()
        return posterior.components, posterior.predictive_log_joint

    def _noise(self, k: int, shape: tuple[int, int], random: np.random.Generator) -> NDArray[np.float64]:
        """Student's t, as a normal of random width."""
        freedom = self.degrees_of_freedom_[k] + 1.0 - shape[1]
        spread = float(self._posterior().spread[k])
        width: NDArray[np.float64] = np.sqrt(spread * freedom / random.chisquare(freedom, (shape[0], 1)))
        return width * random.standard_normal(shape)


def _mean_and_covariance(rows: Rows) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of all rows; the covariance is divided by N − 1."""
    anchor = FullComponents.unit(rows.sample(1, seed=0))
    sums = share(rows, anchor, to_nearest).sums
    scatter = sums.second - outer(sums.first, sums.shift)
    return anchor.moved(sums.shift)[0].cpu().numpy(), (scatter[0] / (rows.count - 1)).cpu().numpy()


def _given(name: str, value: ArrayLike, shape: tuple[int, ...]) -> NDArray[np.float64]:
    array = np.array(value, np.float64)
    if array.shape != shape or not np.isfinite(array).all():
        raise InputError(f"{name} must be finite numbers of shape {shape}, got shape {array.shape}")
    return array
