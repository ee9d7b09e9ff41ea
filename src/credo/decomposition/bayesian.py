"""Bayesian principal component analysis."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from credo._rows import Rows
from credo.conjugate import GaussianBelief, condition
from credo.decomposition._base import LatentPosterior, check_count
from credo.decomposition._variational import Belief, Priors, VariationalPCA
from credo.decomposition.moments import Moments, principal_axes
from credo.em import fit_em
from credo.errors import InputError

BREADTH = 1e-3
"""How weak the prior of the mean is, in units of the variance of the data."""
LEAST_NOISE = 1e-11
"""What the prior of the noise leaves of it where the data leave none, as a share of their variance."""
LEAST_RATE = 1e-12
"""The same of α, whose prior is nearly flat in log α: even of a large table it lets a column vanish."""


class BayesianPCA(LatentPosterior):
    """Probabilistic PCA with a belief about W, μ and the noise, in which the data choose the number of components.

        z ~ N(0, I),    x ~ N(Wz + μ, τ⁻¹I),    column k of W ~ N(0, α_k⁻¹I),    α_k ~ Gam(a₀, b₀)

    The precision α_k of a column that the data do not need grows until the column is 0 (automatic relevance
    determination). The posterior is approximated by independent factors q(Z) q(W) q(α) q(μ) q(τ), each the best given
    the others; ``lower_bound_`` is a true bound of log p(X), with all its constants.

    A component counts where its mean is longer than its own uncertainty, ‖E[w]‖² > E‖w − E[w]‖²; the others are left
    out of ``components_``. There may be none: then no direction stands out of the noise.

    Args:
        n_components: the most components, less than D; ``None``: D − 1.
        tol: the fit ends where a step gains less than this, in nats per row.
        max_iter: the most steps.
        precision_shape: a₀ of the precision α of a column.
        precision_rate: b₀, in the units of a squared value of X; ``None``: 10⁻¹² times the mean variance of its
            columns, so small that a column can vanish whatever the number of rows.
        noise_shape: c₀ of the precision τ of the noise.
        noise_rate: d₀, in the units of a squared value of X; ``None``: so small that noise down to about 10⁻⁹ of the
            mean variance of the columns is decided by the data, 10⁻¹¹ of half the sum of all squares.
        mean_precision: β₀ of the mean μ, whose prior stands at the sample mean; ``None``: 10⁻³ over the mean variance.
        device: where torch computes, such as ``"cuda"``.

    Attributes:
        n_components_: K, the number of components that count.
        components_: their E[W]ᵀ, longest first, ``[K, D]``.
        components_variance_: of every entry of a component, ``[K]``.
        alpha_: E[α] of all columns, that count or not, in the order of their length, ``[n_components]``.
        explained_variance_: ‖E[w]‖² + σ² along each component, ``[K]``.
        noise_variance_: σ² = 1 / E[τ].
        mean_: E[μ], ``[D]``.
        lower_bound_: on log p(X), in nats; ``lower_bounds_``: at the start and after every step.
        n_iter_: steps taken.
        converged_: whether the last step gained less than ``tol``.
        n_samples_: N.

    Densities (``score``, ``sample``, ``get_covariance``) are those of p(x) at E[W], E[μ] and E[τ].

    References:
        C. M. Bishop. Variational principal components. ICANN 1999.
        C. M. Bishop. Pattern Recognition and Machine Learning. 2006, section 12.2.3.
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
        """The mean of q(z) for each row of ``X [B, D]``, ``[B, K]``."""
        return self._new_rows(X).map(lambda x: self._belief(x).mean)

    def posterior(self, X: Any) -> GaussianBelief:
        """q(z) of each row of ``X [B, D]``, in which W, μ and τ are uncertain too; all rows share the precision."""
        return self._belief(torch.cat([block[0] for block in self._new_rows(X).blocks()]))

    def _belief(self, x: Tensor) -> GaussianBelief:
        loading, tau = self._tensor(self.components_).mT, 1.0 / self.noise_variance_
        gram = loading.mT @ loading + len(loading) * torch.diag(self._tensor(self.components_variance_))
        prior = GaussianBelief.isotropic(len(gram), 1.0, like=loading)
        return condition(prior, tau * gram, tau * ((x - self._tensor(self.mean_)) @ loading))

    def _check_parameters(self) -> None:
        for name in ("precision_shape", "precision_rate", "noise_shape", "noise_rate", "mean_precision"):
            value = getattr(self, name)
            optional = name not in ("precision_shape", "noise_shape")
            if not (optional and value is None) and not (isinstance(value, Real) and 0.0 < float(value) < math.inf):
                raise InputError(f"{name} must be a positive number{' or None' if optional else ''}, got {value!r}")

    def _learn(self, moments: Moments, rows: Rows) -> None:
        if moments.size < 2:
            raise InputError(f"Bayesian PCA needs at least 2 columns, got n_features = {moments.size}")
        most = moments.size - 1
        wanted = most if self.n_components is None else self.n_components
        n_components = check_count("n_components", wanted, 1, most, f"fewer than the {moments.size} columns")
        variances, axes = principal_axes(moments, moments.count)
        priors = self._priors(float(variances.mean()), moments.count * moments.size)
        steps = VariationalPCA(moments.count, moments.count * variances, n_components, priors)
        fit = fit_em(
            lambda _: steps.start(),
            steps.e_step,
            steps.m_step,
            rows=moments.count,
            tolerance=self.tol,
            max_iter=self.max_iter,
        )
        self._record(fit)
        self.mean_ = moments.mean.cpu().numpy()
        self._keep(fit.parameters, axes)

    def _priors(self, variance: float, values: int) -> Priors:
        return Priors(
            self.precision_shape,
            LEAST_RATE * variance if self.precision_rate is None else self.precision_rate,
            self.noise_shape,
            0.5 * LEAST_NOISE * values * variance if self.noise_rate is None else self.noise_rate,
            BREADTH / variance if self.mean_precision is None else self.mean_precision,
        )

    def _keep(self, found: Belief, axes: Tensor) -> None:
        """The columns of W that count, longest first."""
        components = found.components
        squared_lengths = components.length.square()
        order = squared_lengths.argsort(descending=True, stable=True)
        counts = squared_lengths > len(axes) * components.variance
        kept = order[counts[order]]
        self.noise_variance_ = 1.0 / float(found.tau.mean)
        self.n_components_ = len(kept)
        self.alpha_ = components.alpha.mean[order].cpu().numpy()
        self.components_ = (components.length[kept].unsqueeze(-1) * axes[kept]).cpu().numpy()
        self.components_variance_ = components.variance[kept].cpu().numpy()
        self.explained_variance_ = squared_lengths[kept].cpu().numpy() + self.noise_variance_
