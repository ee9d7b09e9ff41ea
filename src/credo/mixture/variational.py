"""Mixtures of Gaussians by variational Bayes.

The posterior is approximated by q(z) q(π, μ, Λ), with a Dirichlet distribution over the weights and a Gaussian–Wishart
distribution over each component. Each factor has a closed form given the other. The second depends on the first only
through sums over rows, and the bound at the pair is

    L = H[q(z)] + log (Z_N / Z_0) − ½ N D log 2π

with Z_0 and Z_N the normalizing constants of the prior and of q(π, μ, Λ): equations 10.70–10.77 of Bishop (2006) added
up, at the best q(π, μ, Λ) for that q(z). For one component it is the exact log evidence.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from typing_extensions import override

from credo._arguments import check_number, check_option, check_positive
from credo._estimator import draw_seed, restore_on_error
from credo._notices import notify
from credo._rows import Rows
from credo._special import log_dirichlet_categorical, log_rising
from credo.em import EMFit, Expectation, fit_em
from credo.errors import InputError
from credo.mixture._base import BaseMixture, InitParams, check_array_argument
from credo.mixture._components import (
    LOG_2PI,
    Assignment,
    MixtureComponents,
    assign_by_density,
    assign_rows,
    nearest_component,
)
from credo.mixture._covariances import FullComponents, outer, update_factor


class VariationalGaussianMixture(BaseMixture):
    """A Bayesian mixture of Gaussians with full covariances, fitted by variational inference.

        π ~ Dir(α₀),    Λ_k ~ Wishart(W₀, ν₀),    μ_k ~ N(m₀, (β₀Λ_k)⁻¹),    x ~ Σ_k π_k N(μ_k, Λ_k⁻¹)

    Iterations alternate between q(z), in one pass over the rows, and q(π, μ, Λ) in closed form. Both raise the same
    lower bound of the log evidence. With a small α₀, components that the data do not need lose all their rows, so that
    K may be chosen too large; ``weights_`` and ``effective_components_`` show what remains. Components are emptied
    slowly, over hundreds of iterations in which the bound may rise by less than 10⁻³ nats each, so the default ``tol``
    is small and the default ``max_iter`` is large. A ``ConvergenceWarning`` is issued if ``max_iter`` is reached.

    The bound includes all constants: for one component it *is* the log evidence. (scikit-learn's omits constants, so
    that it cannot be compared between models.) Densities and memberships of rows are those of the posterior predictive
    distribution, a mixture of Student t distributions that includes the uncertainty of the components:

        p(x | X) = Σ_k E[π_k] St(x | m_k, L_k, ν_k + 1 − D),    L_k = (ν_k + 1 − D) β_k / (1 + β_k) W_k

    Args:
        n_components: the maximum number K of components.
        covariance_type: ``"full"``.
        tol: stop when an iteration raises the bound by no more than this, in nats over all rows.
        reg_covar: added to the diagonal of the default ``covariance_prior``, in the squared units of the data, so that
            it is proper where columns are constant or repeat others.
        max_iter: the maximum number of iterations from one start.
        n_init: the number of starts, of which the one with the highest bound is kept.
        init_params: how rows are first assigned, see :class:`GaussianMixture`.
        weight_concentration_prior_type: ``"dirichlet_distribution"``.
        weight_concentration_prior: α₀; ``None``: 1/K.
        mean_precision_prior: β₀; ``None``: 1.
        mean_prior: m₀ ``[D]``; ``None``: the mean of the rows.
        degrees_of_freedom_prior: ν₀, above D − 1; ``None``: D.
        covariance_prior: W₀⁻¹ ``[D, D]``; ``None``: the covariance of the rows.
        random_state: a seed, or a numpy ``RandomState``.
        device: the torch device; ``None`` is the CPU.

    Attributes:
        weights_: E[π], ``[K]``.
        weight_concentration_: α, ``[K]``.
        means_: m, ``[K, D]``.
        mean_precision_: β, ``[K]``.
        degrees_of_freedom_: ν, ``[K]``.
        covariances_: (ν_kW_k)⁻¹, ``[K, D, D]``.
        precisions_: E[Λ_k] = ν_kW_k, ``[K, D, D]``.
        precisions_cholesky_: the upper triangular P with PPᵀ = ν_kW_k, ``[K, D, D]``.
        effective_components_: the number of components with a total responsibility of at least one row.
        lower_bound_: of the log evidence, in nats over all rows.
        lower_bounds_: the bound at the start and after every iteration.
        n_iter_: the number of iterations of the best start.
        converged_: whether the best start stopped by ``tol``.
        weight_concentration_prior_, mean_precision_prior_, mean_prior_, degrees_of_freedom_prior_, covariance_prior_:
            the prior that was used.

    References:
        H. Attias. A variational Bayesian framework for graphical models. NIPS 1999.
        C. M. Bishop. Pattern Recognition and Machine Learning. 2006, section 10.2.

    Example:
        >>> import numpy as np
        >>> from credo.mixture import VariationalGaussianMixture
        >>> rng = np.random.default_rng(0)
        >>> X = np.concatenate([rng.normal(0.0, 1.0, (200, 2)), rng.normal(8.0, 1.0, (100, 2))])
        >>> model = VariationalGaussianMixture(5, weight_concentration_prior=1e-3, random_state=0).fit(X)
        >>> model.effective_components_
        2
    """

    def __init__(
        self,
        n_components: int = 1,
        *,
        covariance_type: Literal["full"] = "full",
        tol: float = 1e-6,
        reg_covar: float = 1e-6,
        max_iter: int = 5000,
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
        """Fit the posterior by variational inference.

        Args:
            X: rows ``[N, D]``: an array, a data frame or chunks, which are read once per iteration.
            y: ignored.

        Raises:
            InputError: if an argument is invalid, there are too few rows, or the covariance prior is singular.
        """
        with restore_on_error(self):
            check_option(self.covariance_type, "covariance_type", ["full"])
            check_option(
                self.weight_concentration_prior_type, "weight_concentration_prior_type", ["dirichlet_distribution"]
            )
            rows = self._check_rows(X)
            self._set_prior(rows)
            fit = self._fit_em(rows)
            self._set_posterior(fit.expectation.statistics)
            self.effective_components_ = int((fit.parameters.sums.count >= 1.0).sum())
            self._record(fit)
        return self

    def _fit_em(self, rows: Rows) -> EMFit[Assignment[FullComponents], MixturePosterior]:
        """Maximize the bound from all starts.

        q(z) has the role of the parameters: the closed form of q(π, μ, Λ) with its bound is the E-step and the pass
        over the rows is the M-step, so that no pass is needed for the last bound.
        """
        prior = MixturePrior(
            self.weight_concentration_prior_,
            self.mean_precision_prior_,
            self._tensor(self.mean_prior_),
            self.degrees_of_freedom_prior_,
            self._tensor(self.covariance_prior_),
        )
        seed = draw_seed(self.random_state)
        return fit_em(
            lambda k: self._initial_assignment(rows, FullComponents, seed, k),
            prior.update,
            lambda posterior: posterior.assign(rows),
            rows=rows.count,
            tolerance=self.tol / rows.count,
            max_iter=self.max_iter,
            restarts=self.n_init,
        )

    def _set_prior(self, rows: Rows) -> None:
        """Set the attributes of the prior, from the arguments where given and from the rows elsewhere."""
        size = self.n_features_in_
        concentration, precision = self.weight_concentration_prior, self.mean_precision_prior
        freedom = self.degrees_of_freedom_prior
        self.weight_concentration_prior_ = (
            1.0 / self.n_components
            if concentration is None
            else check_positive(concentration, "weight_concentration_prior")
        )
        self.mean_precision_prior_ = 1.0 if precision is None else check_positive(precision, "mean_precision_prior")
        self.degrees_of_freedom_prior_ = (
            float(size) if freedom is None else check_number(freedom, "degrees_of_freedom_prior")
        )
        if not size - 1 < self.degrees_of_freedom_prior_ < math.inf:
            raise InputError(
                f"degrees_of_freedom_prior must be above the number of columns minus 1, {size - 1}, got {freedom}"
            )
        mean, covariance = _mean_and_covariance(rows)
        self.mean_prior_ = (
            mean if self.mean_prior is None else check_array_argument("mean_prior", self.mean_prior, (size,))
        )
        if self.covariance_prior is None:
            self.covariance_prior_ = covariance + self.reg_covar * np.eye(size)
            if self.reg_covar >= covariance.diagonal().min():
                notify(
                    f"the default covariance_prior depends more on reg_covar={self.reg_covar:g} than on the data: "
                    "rescale columns that vary so little, or lower reg_covar"
                )
            return
        self.covariance_prior_ = check_array_argument("covariance_prior", self.covariance_prior, (size, size))
        if not np.allclose(self.covariance_prior_, self.covariance_prior_.T):
            raise InputError("covariance_prior must be symmetric, got a matrix that is not")

    def _set_posterior(self, posterior: MixturePosterior) -> None:
        components = posterior.components
        self.weight_concentration_ = posterior.concentration.cpu().numpy()
        self.mean_precision_ = posterior.mean_precision.cpu().numpy()
        self.degrees_of_freedom_ = posterior.degrees_of_freedom.cpu().numpy()
        self.weights_ = self.weight_concentration_ / self.weight_concentration_.sum()
        self.means_ = components.means.cpu().numpy()
        self.covariances_ = components.covariances.cpu().numpy()
        self.precisions_ = components.precisions.cpu().numpy()
        self.precisions_cholesky_ = components.factor.cpu().numpy()

    def _posterior(self) -> MixturePosterior:
        return MixturePosterior(
            self._tensor(self.weight_concentration_),
            self._tensor(self.mean_precision_),
            self._tensor(self.degrees_of_freedom_),
            FullComponents(self._tensor(self.means_), self._tensor(self.precisions_cholesky_)),
        )

    @override
    def _log_joint(self) -> tuple[MixtureComponents, Callable[[Tensor], Tensor]]:
        posterior = self._posterior()
        return posterior.components, posterior.predictive_log_joint

    @override
    def _draw_noise(self, k: int, shape: tuple[int, int], random: np.random.Generator) -> NDArray[np.float64]:
        # Student t noise, as normal noise of random scale
        freedom = self.degrees_of_freedom_[k] + 1.0 - shape[1]
        scale = float(self._posterior().predictive_scale[k])
        width: NDArray[np.float64] = np.sqrt(scale * freedom / random.chisquare(freedom, (shape[0], 1)))
        return width * random.standard_normal(shape)


def _mean_and_covariance(rows: Rows) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The mean and the covariance (over N − 1) of all rows."""
    anchor = FullComponents.with_unit_covariance(rows.sample(1, seed=0))
    sums = assign_rows(rows, anchor, nearest_component).sums
    scatter = sums.second - outer(sums.first, sums.mean)
    return anchor.shift_means(sums.mean)[0].cpu().numpy(), (scatter[0] / (rows.count - 1)).cpu().numpy()


@dataclass(frozen=True, eq=False)
class MixturePosterior:
    """q(π, μ, Λ) = Dir(π | α) ∏_k N(μ_k | m_k, (β_kΛ_k)⁻¹) Wishart(Λ_k | W_k, ν_k).

    Attributes:
        concentration: α, ``[K]``.
        mean_precision: β, ``[K]``.
        degrees_of_freedom: ν, ``[K]``.
        components: the means m_k, and the expected precisions ν_k W_k.
    """

    concentration: Tensor
    mean_precision: Tensor
    degrees_of_freedom: Tensor
    components: FullComponents

    @cached_property
    def expected_log_scale(self) -> Tensor:
        """E[log π_k] + ½ E[log|Λ_k|] − ½ D/β_k − ½ D log 2π: log ρ_nk without its distance (10.64–10.66), ``[K]``."""
        size = self.components.means.shape[1]
        log_weights = torch.digamma(self.concentration) - torch.digamma(self.concentration.sum())
        psi = torch.digamma(_gamma_arguments(self.degrees_of_freedom, size)).sum(-1)
        log_det = psi + size * (math.log(2.0) - self.degrees_of_freedom.log()) + 2.0 * self.components.half_log_det
        return log_weights + 0.5 * (log_det - size / self.mean_precision - size * LOG_2PI)

    def assign(self, rows: Rows) -> Assignment[FullComponents]:
        """The best q(z) for this q(π, μ, Λ) (10.49, 10.67), in one pass; the total is its entropy."""
        assignment = assign_by_density(rows, self.components, self.expected_log_scale)
        distances = assignment.sums.second.diagonal(dim1=-2, dim2=-1).sum(-1)
        expected = (assignment.sums.count * self.expected_log_scale - 0.5 * distances).sum()
        return replace(assignment, total=assignment.total - float(expected))

    def predictive_log_joint(self, squared_distances: Tensor) -> Tensor:
        """log E[π_k] St(x | m_k, L_k, ν_k + 1 − D) (10.81), from squared distances ``[K, b]`` to the components."""
        size = self.components.means.shape[1]
        freedom = self.degrees_of_freedom + 1.0 - size
        log_gammas = log_rising(0.5 * freedom, torch.full_like(freedom, 0.5 * size))
        log_det = self.components.half_log_det - 0.5 * size * self.predictive_scale.log()
        log_scale = (self.concentration / self.concentration.sum()).log() + log_gammas + log_det
        log_scale = log_scale - 0.5 * size * (math.pi * freedom).log()
        tails = torch.log1p(squared_distances / (self.predictive_scale * freedom)[:, None])
        return log_scale[:, None] - 0.5 * (freedom + size)[:, None] * tails

    @property
    def predictive_scale(self) -> Tensor:
        """The ratio of the squared scale of the Student t of (10.82) to (ν_kW_k)⁻¹, ``[K]``."""
        freedom = self.degrees_of_freedom + 1.0 - self.components.means.shape[1]
        return self.degrees_of_freedom / freedom * (1.0 + 1.0 / self.mean_precision)


@dataclass(frozen=True, eq=False)
class MixturePrior:
    """p(π, μ, Λ) = Dir(π | α₀) ∏_k N(μ_k | m₀, (β₀Λ_k)⁻¹) Wishart(Λ_k | W₀, ν₀).

    Attributes:
        concentration: α₀ of every component.
        mean_precision: β₀.
        mean: m₀, ``[D]``.
        degrees_of_freedom: ν₀, above D − 1.
        inverse_scale: W₀⁻¹, ``[D, D]``.
    """

    concentration: float
    mean_precision: float
    mean: Tensor
    degrees_of_freedom: float
    inverse_scale: Tensor

    def update(self, assignment: Assignment[FullComponents]) -> Expectation[MixturePosterior]:
        """The best q(π, μ, Λ) for a q(z) whose total is its entropy (10.58–10.63), and the bound at both.

        All is computed in the white coordinates y = Pᵀ(x − μ) of the components of the assignment, where W_k⁻¹ is near
        a multiple of the identity however flat the data are.
        """
        old, count = assignment.components, assignment.sums.count
        mean_precision, freedom = self.mean_precision + count, self.degrees_of_freedom + count
        from_prior = (old.factor.mT @ (old.means - self.mean).unsqueeze(-1)).squeeze(-1)
        mean = assignment.sums.mean
        difference = mean + from_prior
        weight = self.mean_precision * count / mean_precision
        root = self._root @ old.factor
        scatter = assignment.sums.second - outer(assignment.sums.first, mean)
        white = root.mT @ root + scatter + weight[:, None, None] * outer(difference, difference)
        means = old.shift_means(count[:, None] / mean_precision[:, None] * difference - from_prior)
        scale = update_factor(old.factor, white, floor=0.0)
        components = FullComponents(means, freedom.sqrt()[:, None, None] * scale)
        posterior = MixturePosterior(self.concentration + count, mean_precision, freedom, components)
        log_det = -2.0 * FullComponents(means, scale).half_log_det
        return Expectation(posterior, assignment.total + self._log_evidence(count, log_det))

    @cached_property
    def _root(self) -> Tensor:
        """The upper triangular A with AᵀA = W₀⁻¹."""
        lower: Tensor
        lower, failed = torch.linalg.cholesky_ex(self.inverse_scale)
        if bool(failed.any()) or not bool(torch.isfinite(lower).all()):
            raise InputError(
                "covariance_prior is singular: it must be positive definite; if it was computed from the rows, columns "
                "are constant or repeat others: drop such columns, scale all to a similar size or raise reg_covar"
            )
        return lower.mT

    def _log_evidence(self, count: Tensor, log_det: Tensor) -> float:
        """log (Z_N / Z_0) − ½ N D log 2π, with ``log_det [K]`` those of W_k⁻¹."""
        size = len(self.mean)
        weights = log_dirichlet_categorical(torch.full_like(count, self.concentration), count)
        halves = _gamma_arguments(torch.full_like(count, self.degrees_of_freedom), size)
        gammas = log_rising(halves, (0.5 * count[:, None]).expand_as(halves)).sum(-1)
        prior_log_det = 2.0 * self._root.diagonal().log().sum()
        scales = self.degrees_of_freedom * (log_det - prior_log_det) + count * (log_det + size * math.log(math.pi))
        means = size * torch.log1p(count / self.mean_precision)
        return float(weights + (gammas - 0.5 * (scales + means)).sum())


def _gamma_arguments(degrees_of_freedom: Tensor, size: int) -> Tensor:
    """(ν + 1 − i)/2 for i = 1 … D, ``[K, D]``."""
    steps = torch.arange(size, dtype=degrees_of_freedom.dtype, device=degrees_of_freedom.device)
    return 0.5 * (degrees_of_freedom[:, None] - steps)
