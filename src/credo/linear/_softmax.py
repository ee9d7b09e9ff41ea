"""Softmax regression on blocks of rows: log likelihoods, derivatives, and averages over Gaussian logits."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from scipy.linalg import helmert
from torch import Tensor

from credo._rows import Rows
from credo._special import ndtr, sobol_normal
from credo.conjugate import GaussianBelief

_WIDE = 2.0
"""The standard deviation of a logit above which its density is smoother than the sigmoid."""
_NORMAL_STEP, _NORMAL_STEPS = 0.4, 20
_LOGISTIC_STEP, _LOGISTIC_STEPS = 0.75, 32
SIGMOID_NODES = 2 * _NORMAL_STEPS + 2 * _LOGISTIC_STEPS + 2
"""Number of points of the two quadrature rules for two classes."""
SOFTMAX_NODES = 512
"""Number of quasi-random points for more classes."""


def contrasts(classes: int, like: Tensor) -> Tensor:
    """The matrix G ``[K, C]`` from C = K − 1 free logits z to the logits Gz of K classes, in the dtype of ``like``.

    A common shift of all logits changes no probability. With two classes, the first has logit 0 and z is the log odds
    of the second. With more, the logits sum to 0 and G is orthonormal, so that independent weights of equal prior
    precision for all K classes are independent weights of the same precision for z, without the shift.
    """
    matrix = torch.tensor([[0.0], [1.0]]) if classes == 2 else torch.from_numpy(helmert(classes).T.copy())
    return matrix.to(like)


@dataclass(frozen=True)
class Derivatives:
    """The log likelihood and its first two derivatives at some weights.

    Attributes:
        log_likelihood: Σ_n log p(y_n | x_n, w).
        gradient: its gradient, ``[C·M]``.
        curvature: its negative Hessian, positive semidefinite, ``[C·M, C·M]``.
    """

    log_likelihood: float
    gradient: Tensor
    curvature: Tensor


@dataclass(frozen=True)
class SoftmaxRegression:
    """p(y | x, w) = softmax(G z)_y with z = Vφ(x) and w = vec(V) ~ N(0, diag(λ)⁻¹), for the rows of one data set.

    V is ``[C, M]``, flattened row by row.

    Attributes:
        rows: blocks of x ``[b, D]`` and class numbers ``[b]``.
        features: φ of a block, ``[b, M]``; the last one is constant if there is an intercept.
        classes: K.
        n_features: M.
        intercept_precision: λ of the constant feature; ``None`` if there is none.
    """

    rows: Rows
    features: Callable[[Tensor], Tensor]
    classes: int
    n_features: int
    intercept_precision: float | None

    @cached_property
    def contrasts(self) -> Tensor:
        """G, ``[K, C]``."""
        return contrasts(self.classes, torch.empty(0, dtype=torch.float64, device=self.rows.device))

    @property
    def outputs(self) -> int:
        """C."""
        return self.classes - 1

    @property
    def penalized(self) -> Tensor:
        """Mask of the weights with prior precision α, all but the intercepts, ``[C·M]``."""
        mask = torch.ones(self.outputs, self.n_features, dtype=torch.bool, device=self.rows.device)
        if self.intercept_precision is not None:
            mask[:, -1] = False
        return mask.flatten()

    @cached_property
    def mean_square(self) -> float:
        """The mean square of the penalized features over all rows; 1 if they are all 0."""
        (squares,) = self.total(lambda phi, _: (phi.square().sum(0),))
        mean = float(squares[self.penalized[: self.n_features]].mean()) / self.rows.count
        return mean or 1.0

    def prior(self, weight_precision: float) -> GaussianBelief:
        """N(0, diag(λ)⁻¹), with λ = α for all weights but the intercepts."""
        precision = torch.full((len(self.penalized),), weight_precision, dtype=torch.float64, device=self.rows.device)
        if self.intercept_precision is not None:
            precision[~self.penalized] = self.intercept_precision
        return GaussianBelief(torch.zeros_like(precision), precision.sqrt().diag())

    def total(
        self, function: Callable[[Tensor, Tensor], tuple[Tensor, ...]], numbers_per_row: int | None = None
    ) -> tuple[Tensor, ...]:
        """The sums over blocks of ``function(φ [b, M], Gᵀy [b, C])``, with one-hot y, in one pass."""

        def of_block(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
            return function(self.features(x), self.contrasts[y.long()])

        return self.rows.total(of_block, numbers_per_row or self.classes * self.n_features)

    def log_likelihoods(self, z: Tensor, target: Tensor) -> Tensor:
        """Σ_n log p(y_n | z_n) for ``z [b, C]`` and ``target`` Gᵀy ``[b, C]``."""
        normalizer = -F.logsigmoid(-z) if self.outputs == 1 else (z @ self.contrasts.mT).logsumexp(-1)
        return (target * z).sum() - normalizer.sum()

    def expected_target(self, z: Tensor) -> Tensor:
        """Gᵀ E[y | z], ``[b, C]``."""
        return z.sigmoid() if self.outputs == 1 else (z @ self.contrasts.mT).softmax(-1) @ self.contrasts

    def log_likelihood(self, weights: Tensor) -> float:
        """Σ_n log p(y_n | x_n, w)."""
        matrix = weights.view(self.outputs, self.n_features)
        (value,) = self.total(lambda phi, target: (self.log_likelihoods(phi @ matrix.mT, target),))
        return float(value)

    def expected_log_likelihood(self, q: GaussianBelief) -> float:
        """Σ_n E_q log p(y_n | x_n, w) for a Gaussian q(w)."""

        def of_block(phi: Tensor, target: Tensor) -> tuple[Tensor, ...]:
            mean = phi @ q.mean.view(self.outputs, self.n_features).mT
            if self.outputs == 1:
                normalizer = expected_softplus(mean[:, 0], q.variance_along(phi))
            else:
                normalizer = expected_logsumexp(mean, logit_covariance(phi, q), self.contrasts)
            return ((target * mean).sum() - normalizer.sum(),)

        nodes = SIGMOID_NODES if self.outputs == 1 else SOFTMAX_NODES * self.classes
        (value,) = self.total(of_block, max(nodes, self.classes * self.n_features))
        return float(value)

    def derivatives(self, weights: Tensor) -> Derivatives:
        """The log likelihood and its derivatives (Bishop 4.109, 4.110), with p = softmax(Gz).

        ∇ = Σ_n Gᵀ(y_n − p_n) ⊗ φ_n,    −∇∇ᵀ = Σ_n Gᵀ(diag p_n − p_n p_nᵀ)G ⊗ φ_nφ_nᵀ
        """
        matrix = weights.view(self.outputs, self.n_features)

        def of_block(phi: Tensor, target: Tensor) -> tuple[Tensor, ...]:
            z = phi @ matrix.mT
            value, gradient = self.log_likelihoods(z, target), (target - self.expected_target(z)).mT @ phi
            if self.outputs == 1:
                p = z.sigmoid()
                return value, gradient, phi.mT @ (p * (1.0 - p) * phi)
            p = (z @ self.contrasts.mT).softmax(-1)
            scaled = (p[:, :, None] * phi[:, None, :]).flatten(1)
            own = (scaled.mT @ phi).view(self.classes, self.n_features, self.n_features)
            return value, gradient, torch.block_diag(*own) - scaled.mT @ scaled

        value, gradient, curvature = self.total(of_block)
        if self.outputs > 1:
            blocks = curvature.view(self.classes, self.n_features, self.classes, self.n_features)
            curvature = torch.einsum("kc,kmln,ld->cmdn", self.contrasts, blocks, self.contrasts)
        return Derivatives(float(value), gradient.flatten(), curvature.reshape(len(weights), len(weights)))


def logit_covariance(phi: Tensor, q: GaussianBelief) -> Tensor:
    """The covariance of z = Vφ for each row of ``phi [b, M]`` under a Gaussian q(vec V), ``[b, C, C]``."""
    size = phi.shape[1]
    blocks = q.covariance.view(-1, size, len(q.mean) // size, size)
    return torch.einsum("bp,kplq,bq->bkl", phi, blocks, phi)


def kl_to_prior(q: GaussianBelief, prior: GaussianBelief) -> float:
    """KL(q ‖ prior) for a prior with mean 0."""
    expected_distance = (prior.precision * q.covariance).sum() + (prior.cholesky.mT @ q.mean).square().sum()
    return float(0.5 * (expected_distance - len(q.mean) + q.log_det_precision - prior.log_det_precision))


def log_density(q: GaussianBelief, weights: Tensor) -> float:
    """log N(w | m, Λ⁻¹)."""
    distance = (q.cholesky.mT @ (weights - q.mean)).square().sum()
    return float(0.5 * (q.log_det_precision - len(weights) * math.log(2.0 * math.pi) - distance))


def expected_sigmoid(mean: Tensor, variance: Tensor) -> Tensor:
    """E σ(f) for f ~ N(m, v), to an error below 1e-9, ``[...]``.

    The trapezoidal rule on the whole line converges exponentially, faster if the poles of the integrand are far from
    it. Those of the sigmoid come close if the Gaussian is wide. Then σ is written as the distribution function of a
    logistic variable ℓ, whose density has its poles at ±iπ for all m and v:

        E σ(m + s z) = ∫ σ(m + s z) φ(z) dz = ∫ σ′(ℓ) Φ((m − ℓ) / s) dℓ,    s² = v

    Reference:
        L. N. Trefethen, J. A. C. Weideman. The exponentially convergent trapezoidal rule. SIAM Review 2014.
    """
    scale, mean = variance.sqrt().unsqueeze(-1), mean.unsqueeze(-1)
    z, weights = _normal_rule(mean)
    narrow = (mean + scale.clamp_max(_WIDE) * z).sigmoid() @ weights
    logistic, density = _logistic_rule(mean)
    wide = ndtr((mean - logistic) / scale.clamp_min(_WIDE)) @ density
    return torch.where(scale.squeeze(-1) > _WIDE, wide, narrow)


def expected_softplus(mean: Tensor, variance: Tensor) -> Tensor:
    """E log(1 + e^f) for f ~ N(m, v), to an error below 1e-9 of 1 + |m| + √v, ``[...]``.

    It uses the two rules of :func:`expected_sigmoid`. For a wide Gaussian, log(1 + e^f) is the mean of max(f − ℓ, 0)
    over a logistic variable ℓ, and E max(f − ℓ, 0) = s (uΦ(u) + φ(u)) with u = (m − ℓ)/s.
    """
    scale, mean = variance.sqrt().unsqueeze(-1), mean.unsqueeze(-1)
    z, weights = _normal_rule(mean)
    narrow = F.softplus(mean + scale.clamp_max(_WIDE) * z) @ weights
    logistic, density = _logistic_rule(mean)
    spread = scale.clamp_min(_WIDE)
    u = (mean - logistic) / spread
    heights = torch.exp(-0.5 * u.square()) / math.sqrt(2.0 * math.pi)
    wide = (spread * (u * ndtr(u) + heights)) @ density
    return torch.where(scale.squeeze(-1) > _WIDE, wide, narrow)


def expected_softmax(mean: Tensor, covariance: Tensor, contrasts: Tensor) -> Tensor:
    """E softmax(Gz) for z ~ N(m, V), ``[b, K]``, by quasi-Monte Carlo.

    All rows use one fixed set of scrambled Sobol points, so that the probabilities of a row do not depend on other
    rows.

    Args:
        mean: m, ``[b, C]``.
        covariance: V, ``[b, C, C]``.
        contrasts: G, ``[K, C]``.
    """
    return _logits(mean, covariance, contrasts).softmax(-1).mean(1)


def expected_logsumexp(mean: Tensor, covariance: Tensor, contrasts: Tensor) -> Tensor:
    """E log Σ_k exp(Gz)_k for z ~ N(m, V), ``[b]``, as in :func:`expected_softmax`."""
    return _logits(mean, covariance, contrasts).logsumexp(-1).mean(1)


def _logits(mean: Tensor, covariance: Tensor, contrasts: Tensor) -> Tensor:
    """Gz at quasi-random points z ~ N(m, V), ``[b, SOFTMAX_NODES, K]``."""
    # V is singular if a row of features is 0; the jitter is far below the error of the rule
    jitter = 1e-12 * (1.0 + covariance.diagonal(dim1=-2, dim2=-1))
    factor: Tensor = torch.linalg.cholesky(covariance + torch.diag_embed(jitter))
    z = mean[:, None] + sobol_normal(SOFTMAX_NODES, mean.shape[-1]).to(mean) @ factor.mT
    return z @ contrasts.mT


def _normal_rule(like: Tensor) -> tuple[Tensor, Tensor]:
    """Points and weights for a mean over N(0, 1)."""
    z = _NORMAL_STEP * _integers(_NORMAL_STEPS, like)
    return z, torch.softmax(-0.5 * z.square(), 0)


def _logistic_rule(like: Tensor) -> tuple[Tensor, Tensor]:
    """Points and weights for a mean over a logistic variable."""
    points = _LOGISTIC_STEP * _integers(_LOGISTIC_STEPS, like)
    density = points.sigmoid() * (-points).sigmoid()
    return points, density / density.sum()


def _integers(largest: int, like: Tensor) -> Tensor:
    """−n, …, n."""
    return torch.arange(-largest, largest + 1, dtype=like.dtype, device=like.device)
