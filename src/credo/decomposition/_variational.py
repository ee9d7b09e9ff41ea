"""Variational inference for Bayesian PCA.

    z ~ N(0, I),    w_k ~ N(0, α_k⁻¹ I),    α_k ~ Gam(a₀, b₀),    μ ~ N(x̄, β₀⁻¹ I),    τ ~ Gam(c₀, d₀)
    q(Z) q(W) q(α) q(μ) q(τ)

Every factor maximizes the bound given the others (Bishop 1999). The prior of μ is centered at the sample mean, so q(μ)
is too, and the factors depend on the data only through their scatter. Columns of W that start along its eigenvectors
stay there, where the optimum lies (Nakajima et al. 2013), so that in these coordinates every covariance is diagonal: a
component is five numbers, a step costs O(K), and no step reads the rows.

Given the noise, the bound is a sum over components, and each term has two maxima: one where the component explains its
direction, one where it is zero. A step takes the higher of the two, since the updates alone never leave the first.

The bound includes all constants: E[log p(X | Z, W, μ, τ)] minus the divergence of every factor from its prior.

References:
    C. M. Bishop. Variational principal components. ICANN 1999.
    S. Nakajima, M. Sugiyama, S. D. Babacan, R. Tomioka. Global analytic solution of fully-observed variational Bayesian
    matrix factorization. JMLR 2013.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.distributions import Gamma, kl_divergence

from credo.em import Expectation

MIN_INITIAL_NOISE = 1e-3
"""The minimum initial noise, relative to the mean variance: rows that span few dimensions leave none."""


@dataclass(frozen=True)
class PCAPriors:
    """a₀, b₀ of the precision of a column of W, c₀, d₀ of that of the noise, and β₀ of the mean."""

    precision_shape: float
    precision_rate: float
    noise_shape: float
    noise_rate: float
    mean_precision: float


@dataclass(frozen=True, eq=False)
class LoadingColumns:
    """q(w_k), q(α_k) and q(z_nk) of every column w_k of W, along the eigenvector u_k; ``[K]`` each.

    Attributes:
        length: E[w] = length · u.
        variance: of every entry of w.
        alpha: q(α).
        gain: E[z_n] = gain · uᵀ(x_n − x̄).
        latent_variance: of z.
    """

    length: Tensor
    variance: Tensor
    alpha: Gamma
    gain: Tensor
    latent_variance: Tensor


@dataclass(frozen=True, eq=False)
class PCAPosterior:
    """All factors.

    Attributes:
        columns: q(W), q(α) and q(Z).
        tau: q(τ), ``[]``.
        mean_variance: of every entry of μ, whose mean is x̄, ``[]``.
    """

    columns: LoadingColumns
    tau: Gamma
    mean_variance: Tensor


@dataclass(frozen=True, eq=False)
class VariationalSteps:
    """The steps of variational inference for data with a given scatter.

    Attributes:
        n_rows: N.
        scatter: the eigenvalues of Σ (x − x̄)(x − x̄)ᵀ, largest first, ``[D]``.
        n_components: K, less than D.
        priors: of all unknowns.
    """

    n_rows: int
    scatter: Tensor
    n_components: int
    priors: PCAPriors

    @property
    def size(self) -> int:
        """D."""
        return len(self.scatter)

    def start(self) -> PCAPosterior:
        """The maximum likelihood solution, with at least a little noise."""
        variances = self.scatter / self.n_rows
        noise = variances[self.n_components :].mean().clamp(min=MIN_INITIAL_NOISE * float(variances.mean()))
        length = (variances[: self.n_components] - noise).clamp(min=0.0).sqrt()
        variance = (noise / self.n_rows).expand_as(length)
        alpha = self._alpha(length.square() + self.size * variance)
        columns = LoadingColumns(length, variance, alpha, torch.zeros_like(length), torch.ones_like(length))
        return PCAPosterior(columns, self._tau(self.n_rows * self.size * noise), noise / self.n_rows)

    def e_step(self, posterior: PCAPosterior) -> Expectation[PCAPosterior]:
        """q(Z), and the bound at all factors."""
        columns, tau = posterior.columns, posterior.tau.mean
        latent_variance = 1.0 / (1.0 + tau * self._squared_length(columns))
        gain = tau * latent_variance * columns.length
        found = replace(posterior, columns=replace(columns, gain=gain, latent_variance=latent_variance))
        return Expectation(found, float(self.bound(found)))

    def m_step(self, posterior: PCAPosterior) -> PCAPosterior:
        """q(W), q(α), q(μ) and q(τ), one after the other."""
        tau = posterior.tau.mean
        updated, zero = self._updated(posterior.columns, tau), self._zero(tau)
        columns = _where(self._contribution(updated, tau) > self._contribution(zero, tau), updated, zero)
        mean_variance = 1.0 / (self.priors.mean_precision + self.n_rows * tau)
        return PCAPosterior(columns, self._tau(self._squared_error(columns, mean_variance)), mean_variance)

    def bound(self, posterior: PCAPosterior) -> Tensor:
        """The evidence lower bound, in nats over all rows, ``[]``."""
        values, tau = self.n_rows * self.size, posterior.tau
        errors = self._squared_error(posterior.columns, posterior.mean_variance)
        expected = 0.5 * (values * (expected_log(tau) - math.log(2.0 * math.pi)) - tau.mean * errors)
        kl_tau = kl_divergence(tau, _gamma_like(tau, self.priors.noise_shape, self.priors.noise_rate))
        ratio = self.priors.mean_precision * posterior.mean_variance
        kl_mean = 0.5 * self.size * (ratio - 1.0 - ratio.log())
        return expected - self._divergence(posterior.columns).sum() - kl_tau - kl_mean

    def _updated(self, columns: LoadingColumns, tau: Tensor) -> LoadingColumns:
        """q(W) and q(α) given q(Z)."""
        second, cross = self._latent_sums(columns)
        variance = 1.0 / (columns.alpha.mean + tau * second)
        length = tau * cross * variance
        alpha = self._alpha(length.square() + self.size * variance)
        return replace(columns, length=length, variance=variance, alpha=alpha)

    def _zero(self, tau: Tensor) -> LoadingColumns:
        """Columns that explain nothing: W with mean 0, and Z with its prior.

        The optimal q(w) and q(α) are unique: with c = Nτ the variance v of an entry of w solves
        ½cDv² + (a₀ + cb₀)v = b₀.
        """
        information = self.n_rows * tau
        half = self.priors.precision_shape + information * self.priors.precision_rate
        root = (half.square() + 2.0 * information * self.size * self.priors.precision_rate).sqrt()
        variance = (2.0 * self.priors.precision_rate / (half + root)).expand(self.n_components)
        zeros = torch.zeros_like(variance)
        return LoadingColumns(zeros, variance, self._alpha(self.size * variance), zeros, torch.ones_like(zeros))

    def _contribution(self, columns: LoadingColumns, tau: Tensor) -> Tensor:
        """The contribution of each component to the bound, ``[K]``: the error that it explains minus its divergence."""
        second, cross = self._latent_sums(columns)
        explained = 2.0 * columns.length * cross - self._squared_length(columns) * second
        return 0.5 * tau * explained - self._divergence(columns)

    def _divergence(self, columns: LoadingColumns) -> Tensor:
        """KL divergence of q(z_k), q(w_k) and q(α_k) from their priors, ``[K]``."""
        second, _ = self._latent_sums(columns)
        kl_latent = 0.5 * (second - self.n_rows * (1.0 + columns.latent_variance.log()))
        squared_length, alpha = self._squared_length(columns), columns.alpha
        log_ratio = expected_log(alpha) + columns.variance.log()
        kl_loading = 0.5 * (alpha.mean * squared_length - self.size * (1.0 + log_ratio))
        prior = _gamma_like(alpha, self.priors.precision_shape, self.priors.precision_rate)
        return kl_latent + kl_loading + kl_divergence(alpha, prior)

    def _latent_sums(self, columns: LoadingColumns) -> tuple[Tensor, Tensor]:
        """Σ E[z²] and Σ uᵀ(x − x̄) E[z] over the rows, ``[K]`` each."""
        cross = self.scatter[: self.n_components] * columns.gain
        return cross * columns.gain + self.n_rows * columns.latent_variance, cross

    def _squared_length(self, columns: LoadingColumns) -> Tensor:
        """E‖w‖², ``[K]``."""
        return columns.length.square() + self.size * columns.variance

    def _squared_error(self, columns: LoadingColumns, mean_variance: Tensor) -> Tensor:
        """Σ E‖x − Wz − μ‖² over all rows, ``[]``.

        A sum of non-negative terms: a difference of larger numbers would lose digits for small noise.
        """
        others = self.scatter[self.n_components :].sum() + self.n_rows * self.size * mean_variance
        residual = self.scatter[: self.n_components] * (1.0 - columns.length * columns.gain).square()
        latent = self.n_rows * columns.length.square() * columns.latent_variance
        second, _ = self._latent_sums(columns)
        return others + (residual + latent + self.size * columns.variance * second).sum()

    def _alpha(self, squared_length: Tensor) -> Gamma:
        """q(α) after E‖w‖², ``[K]``."""
        shape = torch.full_like(squared_length, self.priors.precision_shape + 0.5 * self.size)
        return Gamma(shape, self.priors.precision_rate + 0.5 * squared_length)

    def _tau(self, squared_error: Tensor) -> Gamma:
        """q(τ) after Σ E‖x − Wz − μ‖², ``[]``."""
        shape = torch.full_like(squared_error, self.priors.noise_shape + 0.5 * self.n_rows * self.size)
        return Gamma(shape, self.priors.noise_rate + 0.5 * squared_error)


def expected_log(precision: Gamma) -> Tensor:
    """E[log α] = ψ(a) − log b."""
    return torch.digamma(precision.concentration) - precision.rate.log()


def _gamma_like(q: Gamma, shape: float, rate: float) -> Gamma:
    return Gamma(torch.full_like(q.rate, shape), torch.full_like(q.rate, rate))


def _where(condition: Tensor, a: LoadingColumns, b: LoadingColumns) -> LoadingColumns:
    """The columns of ``a`` where ``condition [K]`` holds, else those of ``b``."""
    return LoadingColumns(
        torch.where(condition, a.length, b.length),
        torch.where(condition, a.variance, b.variance),
        Gamma(a.alpha.concentration, torch.where(condition, a.alpha.rate, b.alpha.rate)),
        torch.where(condition, a.gain, b.gain),
        torch.where(condition, a.latent_variance, b.latent_variance),
    )
