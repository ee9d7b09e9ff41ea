"""Bayesian principal component analysis."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from credo._arguments import check_integer, check_non_negative, check_positive
from credo._rows import Rows
from credo.conjugate import GaussianBelief, condition
from credo.decomposition._base import BaseDecomposition, check_n_components
from credo.decomposition._scatter import ScatterStatistics
from credo.decomposition._variational import PCAPosterior, PCAPriors, VariationalSteps
from credo.em import fit_em
from credo.errors import InputError

DEFAULT_MEAN_PRECISION = 1e-3
"""β₀ by default, relative to the precision of the data."""
DEFAULT_NOISE_RATE = 1e-11
"""d₀ by default, relative to half the sum of squares of the data."""
DEFAULT_PRECISION_RATE = 1e-12
"""b₀ by default, relative to the variance of the data: nearly flat in log α, so that a column can become 0."""


class BayesianPCA(BaseDecomposition):
    """Bayesian PCA: probabilistic PCA with posteriors over W, μ and the noise, which choose the number of components.

        z ~ N(0, I),    x ~ N(Wz + μ, τ⁻¹I),    column k of W ~ N(0, α_k⁻¹I),    α_k ~ Gam(a₀, b₀)

    The precision α_k of a column that the data do not need grows until the column is 0 (automatic relevance
    determination). The posterior is approximated by independent factors q(Z) q(W) q(α) q(μ) q(τ), each optimal given
    the others; ``lower_bound_`` is a bound of log p(X), with all constants.

    A component is kept if its mean is longer than its uncertainty, ‖E[w]‖² > E‖w − E[w]‖²; the others are not in
    ``components_``. There may be none: then no direction exceeds the noise.

    Densities (``score``, ``sample``, ``get_covariance``) are those of p(x) at E[W], E[μ] and E[τ].

    Args:
        n_components: the maximum number of components, less than D; ``None``: D − 1.
        tol: stop when a step raises the bound by no more than this, in nats per row.
        max_iter: the maximum number of steps.
        precision_shape: a₀ of the precision α of a column.
        precision_rate: b₀, in squared units of X; ``None``: 10⁻¹² times the mean variance of its columns, so small that
            a column can vanish whatever the number of rows.
        noise_shape: c₀ of the precision τ of the noise.
        noise_rate: d₀, in squared units of X; ``None``: 10⁻¹¹ times half the sum of squares, so small that noise down
            to about 10⁻⁹ of the mean variance of the columns is determined by the data.
        mean_precision: β₀ of the mean μ, whose prior is centered at the sample mean; ``None``: 10⁻³ over the mean
            variance.
        device: the torch device; ``None`` is the CPU.

    Attributes:
        n_components_: K, the number of components that are kept.
        components_: their E[W]ᵀ, longest first, ``[K, D]``.
        components_variance_: the variance of every entry of a component, ``[K]``.
        alpha_: E[α] of all columns, kept or not, in the order of their length, ``[n_components]``.
        explained_variance_: ‖E[w]‖² + σ² along each component, ``[K]``.
        noise_variance_: σ² = 1 / E[τ].
        mean_: E[μ], ``[D]``.
        lower_bound_: of log p(X), in nats; ``lower_bounds_``: at the start and after every step.
        n_iter_: the number of steps.
        converged_: whether the fit stopped by ``tol``.
        n_samples_: N.

    References:
        C. M. Bishop. Variational principal components. ICANN 1999.
        C. M. Bishop. Pattern Recognition and Machine Learning. 2006, section 12.2.3.
        S. Nakajima, M. Sugiyama, S. D. Babacan, R. Tomioka. Global analytic solution of fully-observed variational
        Bayesian matrix factorization. JMLR 2013.

    Example:
        >>> import numpy as np
        >>> from credo.decomposition import BayesianPCA
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(300, 2)) @ rng.normal(size=(2, 6)) + 0.1 * rng.normal(size=(300, 6))
        >>> BayesianPCA().fit(X).n_components_
        2
    """

    def __init__(
        self,
        n_components: int | None = None,
        *,
        tol: float = 1e-6,
        max_iter: int = 2000,
        precision_shape: float = 1e-3,
        precision_rate: float | None = None,
        noise_shape: float = 1e-3,
        noise_rate: float | None = None,
        mean_precision: float | None = None,
        device: str | None = None,
    ) -> None:
        self.n_components = n_components
        self.tol = tol
        self.max_iter = max_iter
        self.precision_shape = precision_shape
        self.precision_rate = precision_rate
        self.noise_shape = noise_shape
        self.noise_rate = noise_rate
        self.mean_precision = mean_precision
        self.device = device

    def transform(self, X: Any) -> NDArray[np.float64]:
        """Return the mean of q(z) of each row.

        Args:
            X: rows ``[B, D]``.

        Returns:
            E[z], ``[B, K]``.
        """
        return self._new_rows(X).map(lambda x: self._latent_posterior(x).mean)

    def posterior(self, X: Any) -> GaussianBelief:
        """Return q(z) of each row, which includes the uncertainty of W, μ and τ.

        Args:
            X: rows ``[B, D]``.

        Returns:
            A Gaussian with mean ``[B, K]`` and one precision for all rows.
        """
        return self._latent_posterior(torch.cat([block[0] for block in self._new_rows(X).blocks()]))

    def _latent_posterior(self, x: Tensor) -> GaussianBelief:
        loading, tau = self._tensor(self.components_).mT, 1.0 / self.noise_variance_
        gram = loading.mT @ loading + len(loading) * torch.diag(self._tensor(self.components_variance_))
        prior = GaussianBelief.isotropic(len(gram), 1.0, like=loading)
        return condition(prior, tau * gram, tau * ((x - self._tensor(self.mean_)) @ loading))

    @override
    def _check_arguments(self) -> None:
        check_non_negative(self.tol, "tol")
        check_integer(self.max_iter, "max_iter", minimum=1)
        for name in ("precision_shape", "noise_shape"):
            check_positive(getattr(self, name), name)
        for name in ("precision_rate", "noise_rate", "mean_precision"):
            if getattr(self, name) is not None:
                check_positive(getattr(self, name), name)

    @override
    def _fit_statistics(self, statistics: ScatterStatistics, rows: Rows) -> None:
        count, size = statistics.count, statistics.n_columns
        if size < 2:
            raise InputError(f"Bayesian PCA needs at least 2 columns, got n_features = {size}")
        n_components = size - 1 if self.n_components is None else self.n_components
        n_components = check_n_components(n_components, size - 1, f"fewer than the {size} columns")
        variances, axes = statistics.principal_axes(count)
        steps = VariationalSteps(
            count, count * variances, n_components, self._priors(float(variances.mean()), count * size)
        )
        fit = fit_em(
            lambda _: steps.start(),
            steps.e_step,
            steps.m_step,
            rows=count,
            tolerance=self.tol,
            max_iter=self.max_iter,
        )
        self._record(fit)
        self.mean_ = statistics.mean.cpu().numpy()
        self._set_posterior(fit.parameters, axes)

    def _priors(self, variance: float, n_values: int) -> PCAPriors:
        sum_of_squares = n_values * variance
        return PCAPriors(
            self.precision_shape,
            DEFAULT_PRECISION_RATE * variance if self.precision_rate is None else self.precision_rate,
            self.noise_shape,
            0.5 * DEFAULT_NOISE_RATE * sum_of_squares if self.noise_rate is None else self.noise_rate,
            DEFAULT_MEAN_PRECISION / variance if self.mean_precision is None else self.mean_precision,
        )

    def _set_posterior(self, posterior: PCAPosterior, axes: Tensor) -> None:
        """Keep the columns of W that are longer than their uncertainty, longest first."""
        columns = posterior.columns
        squared_lengths = columns.length.square()
        order = squared_lengths.argsort(descending=True, stable=True)
        relevant = squared_lengths > len(axes) * columns.variance
        kept = order[relevant[order]]
        self.noise_variance_ = 1.0 / float(posterior.tau.mean)
        self.n_components_ = len(kept)
        self.alpha_ = columns.alpha.mean[order].cpu().numpy()
        self.components_ = (columns.length[kept].unsqueeze(-1) * axes[kept]).cpu().numpy()
        self.components_variance_ = columns.variance[kept].cpu().numpy()
        self.explained_variance_ = squared_lengths[kept].cpu().numpy() + self.noise_variance_
