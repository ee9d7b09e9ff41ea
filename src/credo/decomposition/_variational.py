"""Variational Bayesian PCA: beliefs about every unknown of x = Wz + μ + noise, and the bound that they maximize.

    z ~ N(0, I),    w_k ~ N(0, α_k⁻¹ I),    α_k ~ Gam(a₀, b₀),    μ ~ N(x̄, β₀⁻¹ I),    τ ~ Gam(c₀, d₀)
    q(Z) q(W) q(α) q(μ) q(τ)

Every factor is the one that maximizes the bound given the others (Bishop 1999). The prior of μ stands at the sample
mean, so q(μ) does too, and all else that the factors want to know of the data is their scatter. Columns of W that start
along its eigenvectors stay there, where the best solution lies (Nakajima et al. 2013), so that in these coordinates
every covariance is diagonal: a component is a handful of numbers, a step costs O(K), and no step reads the rows.

Given the noise, the bound is a sum over components, and each has two maxima: one where it explains its direction, one
where it is off. A step takes the higher of the two, since the updates by themselves never leave the first.

The bound is exact, with all its constants: E[log p(X | Z, W, μ, τ)] less the divergence of every factor from its prior.

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

LEAST_START = 1e-3
"""The least noise that a fit starts from, as a share of the mean variance: rows that span few dimensions leave none."""


@dataclass(frozen=True)
class Priors:
    """a₀, b₀ of the precision of a component, c₀, d₀ of that of the noise, and β₀ of the mean."""

    precision_shape: float
    precision_rate: float
    noise_shape: float
    noise_rate: float
    mean_precision: float


@dataclass(frozen=True, eq=False)
class Components:
    """q(w_k), q(α_k) and q(z_nk) of every component k, which lies along the eigenvector u_k; ``[K]`` each.

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
class Belief:
    """All factors.

    Attributes:
        components: q(W), q(α) and q(Z).
        tau: q(τ), ``[]``.
        mean_variance: of every entry of μ, whose mean is x̄, ``[]``.
    """

    components: Components
    tau: Gamma
    mean_variance: Tensor


@dataclass(frozen=True, eq=False)
class VariationalPCA:
    """The steps for data with this scatter.

    Attributes:
        rows: N.
        scatter: the eigenvalues of Σ (x − x̄)(x − x̄)ᵀ, largest first, ``[D]``.
        n_components: K, less than D.
        priors: of all unknowns.
    """

    rows: int
    scatter: Tensor
    n_components: int
    priors: Priors

    @property
    def size(self) -> int:
        """D."""
        return len(self.scatter)

    def start(self) -> Belief:
        """The maximum likelihood solution, in which every direction but the last ones has a component of its own."""
        variances = self.scatter / self.rows
        noise = variances[self.n_components :].mean().clamp(min=LEAST_START * float(variances.mean()))
        length = (variances[: self.n_components] - noise).clamp(min=0.0).sqrt()
        variance = (noise / self.rows).expand_as(length)
        alpha = self._alpha(length.square() + self.size * variance)
        components = Components(length, variance, alpha, torch.zeros_like(length), torch.ones_like(length))
        return Belief(components, self._tau(self.rows * self.size * noise), noise / self.rows)

    def e_step(self, belief: Belief) -> Expectation[Belief]:
        """q(Z), and the bound of all factors together."""
        components, tau = belief.components, belief.tau.mean
        latent_variance = 1.0 / (1.0 + tau * self._squared_length(components))
        gain = tau * latent_variance * components.length
        found = replace(belief, components=replace(components, gain=gain, latent_variance=latent_variance))
        return Expectation(found, float(self.bound(found)))

    def m_step(self, belief: Belief) -> Belief:
        """q(W), q(α), q(μ) and q(τ), one after the other."""
        tau = belief.tau.mean
        updated, off = self._updated(belief.components, tau), self._off(tau)
        components = _choose(self._worth(updated, tau) > self._worth(off, tau), updated, off)
        mean_variance = 1.0 / (self.priors.mean_precision + self.rows * tau)
        return Belief(components, self._tau(self._squared_error(components, mean_variance)), mean_variance)

    def bound(self, belief: Belief) -> Tensor:
        """The evidence lower bound, in nats over all rows, ``[]``."""
        values, tau = self.rows * self.size, belief.tau
        errors = self._squared_error(belief.components, belief.mean_variance)
        expected = 0.5 * (values * (expected_log(tau) - math.log(2.0 * math.pi)) - tau.mean * errors)
        of_tau = kl_divergence(tau, _gamma_like(tau, self.priors.noise_shape, self.priors.noise_rate))
        ratio = self.priors.mean_precision * belief.mean_variance
        of_mean = 0.5 * self.size * (ratio - 1.0 - ratio.log())
        return expected - self._divergence(belief.components).sum() - of_tau - of_mean

    def _updated(self, components: Components, tau: Tensor) -> Components:
        """q(W) and q(α) given q(Z)."""
        second, cross = self._latent_sums(components)
        variance = 1.0 / (components.alpha.mean + tau * second)
        length = tau * cross * variance
        alpha = self._alpha(length.square() + self.size * variance)
        return replace(components, length=length, variance=variance, alpha=alpha)

    def _off(self, tau: Tensor) -> Components:
        """Components that explain nothing: W with mean 0 and Z as under its prior.

        Of q(w) and q(α), each best given the other, there is one pair: with c = Nτ the variance v of an entry of w
        solves ½cDv² + (a₀ + cb₀)v = b₀.
        """
        information = self.rows * tau
        half = self.priors.precision_shape + information * self.priors.precision_rate
        root = (half.square() + 2.0 * information * self.size * self.priors.precision_rate).sqrt()
        variance = (2.0 * self.priors.precision_rate / (half + root)).expand(self.n_components)
        nothing = torch.zeros_like(variance)
        return Components(nothing, variance, self._alpha(self.size * variance), nothing, torch.ones_like(nothing))

    def _worth(self, components: Components, tau: Tensor) -> Tensor:
        """What each component adds to the bound, ``[K]``: the error that it explains less its divergence."""
        second, cross = self._latent_sums(components)
        explained = 2.0 * components.length * cross - self._squared_length(components) * second
        return 0.5 * tau * explained - self._divergence(components)

    def _divergence(self, components: Components) -> Tensor:
        """Of q(z_k), q(w_k) and q(α_k) from their priors, ``[K]``."""
        second, _ = self._latent_sums(components)
        of_latent = 0.5 * (second - self.rows * (1.0 + components.latent_variance.log()))
        squared_length, alpha = self._squared_length(components), components.alpha
        log_ratio = expected_log(alpha) + components.variance.log()
        of_loading = 0.5 * (alpha.mean * squared_length - self.size * (1.0 + log_ratio))
        prior = _gamma_like(alpha, self.priors.precision_shape, self.priors.precision_rate)
        return of_latent + of_loading + kl_divergence(alpha, prior)

    def _latent_sums(self, components: Components) -> tuple[Tensor, Tensor]:
        """Σ E[z²] and Σ uᵀ(x − x̄) E[z] over the rows, ``[K]`` each."""
        along = self.scatter[: self.n_components]
        cross = along * components.gain
        return cross * components.gain + self.rows * components.latent_variance, cross

    def _squared_length(self, components: Components) -> Tensor:
        """E‖w‖², ``[K]``."""
        return components.length.square() + self.size * components.variance

    def _errors(self, components: Components) -> Tensor:
        """The share of every component in Σ E‖x − Wz − x̄‖², ``[K]``.

        A sum of terms that are not negative: a difference of larger ones would lose its digits with little noise.
        """
        left = self.scatter[: self.n_components] * (1.0 - components.length * components.gain).square()
        second, _ = self._latent_sums(components)
        latent = self.rows * components.length.square() * components.latent_variance
        return left + latent + self.size * components.variance * second

    def _squared_error(self, components: Components, mean_variance: Tensor) -> Tensor:
        """Σ E‖x − Wz − μ‖² over all rows, ``[]``."""
        others = self.scatter[self.n_components :].sum() + self.rows * self.size * mean_variance
        return others + self._errors(components).sum()

    def _alpha(self, squared_length: Tensor) -> Gamma:
        """q(α) after E‖w‖², ``[K]``."""
        shape = torch.full_like(squared_length, self.priors.precision_shape + 0.5 * self.size)
        return Gamma(shape, self.priors.precision_rate + 0.5 * squared_length)

    def _tau(self, squared_error: Tensor) -> Gamma:
        """q(τ) after Σ E‖x − Wz − μ‖², ``[]``."""
        shape = torch.full_like(squared_error, self.priors.noise_shape + 0.5 * self.rows * self.size)
        return Gamma(shape, self.priors.noise_rate + 0.5 * squared_error)


def expected_log(precision: Gamma) -> Tensor:
    """E[log α] = ψ(a) − log b."""
    return torch.digamma(precision.concentration) - precision.rate.log()


def _gamma_like(q: Gamma, shape: float, rate: float) -> Gamma:
    return Gamma(torch.full_like(q.rate, shape), torch.full_like(q.rate, rate))


def _choose(first: Tensor, a: Components, b: Components) -> Components:
    """The components of ``a`` where ``first [K]``, else those of ``b``."""
    return Components(
        torch.where(first, a.length, b.length),
        torch.where(first, a.variance, b.variance),
        Gamma(a.alpha.concentration, torch.where(first, a.alpha.rate, b.alpha.rate)),
        torch.where(first, a.gain, b.gain),
        torch.where(first, a.latent_variance, b.latent_variance),
    )
