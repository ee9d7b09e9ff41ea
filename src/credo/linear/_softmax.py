"""Softmax regression with a Gaussian prior: what its posteriors are found from, as sums over blocks of rows."""

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
from credo.conjugate import GaussianBelief
from credo.linear._integrals import SIGMOID_NODES, SOFTMAX_NODES, expected_logsumexp, expected_softplus


def contrasts(classes: int, like: Tensor) -> Tensor:
    """G ``[K, C]``, which makes the logits Gz of K classes from C = K − 1 free ones z, in the dtype of ``like``.

    A common shift of all logits changes no probability. Of two classes the first has logit 0 and z is the log odds of
    the second; of more, the logits sum to 0 and G is orthonormal, so that independent weights of equal prior precision
    for all K classes are independent weights of that precision for z, without the shift.
    """
    matrix = torch.tensor([[0.0], [1.0]]) if classes == 2 else torch.from_numpy(helmert(classes).T.copy())
    return matrix.to(like)


@dataclass(frozen=True)
class Slope:
    """The log likelihood at some weights, with its first two derivatives.

    Attributes:
        log_likelihood: Σ_n log p(y_n | x_n, w).
        gradient: ∇ of it, ``[C·M]``.
        curvature: −∇∇ᵀ of it, ``[C·M, C·M]``, with no negative eigenvalue.
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
        features: φ of a block, ``[b, M]``; the last one is constant where there is an intercept.
        classes: K.
        n_features: M.
        intercept_precision: λ of the constant feature, ``None`` where there is none.
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
        """Which of the C·M weights α is about: all but the intercepts, bool."""
        mask = torch.ones(self.outputs, self.n_features, dtype=torch.bool, device=self.rows.device)
        if self.intercept_precision is not None:
            mask[:, -1] = False
        return mask.flatten()

    @cached_property
    def mean_square(self) -> float:
        """Of the features that α is about, over all rows; 1 where they are all 0."""
        (squares,) = self.total(lambda phi, _: (phi.square().sum(0),))
        mean = float(squares[self.penalized[: self.n_features]].mean()) / self.rows.count
        return mean or 1.0

    def prior(self, weight_precision: float) -> GaussianBelief:
        """N(0, diag(λ)⁻¹), λ being α for all weights but the intercepts."""
        precision = torch.full((len(self.penalized),), weight_precision, dtype=torch.float64, device=self.rows.device)
        if self.intercept_precision is not None:
            precision[~self.penalized] = self.intercept_precision
        return GaussianBelief(torch.zeros_like(precision), precision.sqrt().diag())

    def total(
        self, function: Callable[[Tensor, Tensor], tuple[Tensor, ...]], numbers_per_row: int | None = None
    ) -> tuple[Tensor, ...]:
        """One pass: the sums over blocks of ``function(φ [b, M], Gᵀy [b, C])``, with y one-hot."""

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

    def expected_log_likelihood(self, belief: GaussianBelief) -> float:
        """Σ_n E log p(y_n | x_n, w) under a belief about w."""

        def of_block(phi: Tensor, target: Tensor) -> tuple[Tensor, ...]:
            mean = phi @ belief.mean.view(self.outputs, self.n_features).mT
            if self.outputs == 1:
                normalizer = expected_softplus(mean[:, 0], belief.variance_along(phi))
            else:
                normalizer = expected_logsumexp(mean, logit_covariance(phi, belief), self.contrasts)
            return ((target * mean).sum() - normalizer.sum(),)

        nodes = SIGMOID_NODES if self.outputs == 1 else SOFTMAX_NODES * self.classes
        (value,) = self.total(of_block, max(nodes, self.classes * self.n_features))
        return float(value)

    def slope(self, weights: Tensor) -> Slope:
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
        return Slope(float(value), gradient.flatten(), curvature.reshape(len(weights), len(weights)))


def logit_covariance(phi: Tensor, belief: GaussianBelief) -> Tensor:
    """The covariance of z = Vφ for each row of ``phi [b, M]`` under a belief about vec(V), ``[b, C, C]``."""
    size = phi.shape[1]
    blocks = belief.covariance.view(-1, size, len(belief.mean) // size, size)
    return torch.einsum("bp,kplq,bq->bkl", phi, blocks, phi)


def divergence(q: GaussianBelief, prior: GaussianBelief) -> float:
    """KL(q ‖ prior) for a prior with mean 0."""
    expected_distance = (prior.precision * q.covariance).sum() + (prior.cholesky.mT @ q.mean).square().sum()
    return float(0.5 * (expected_distance - len(q.mean) + q.log_det_precision - prior.log_det_precision))


def log_density(belief: GaussianBelief, weights: Tensor) -> float:
    """log N(w | m, Λ⁻¹)."""
    distance = (belief.cholesky.mT @ (weights - belief.mean)).square().sum()
    return float(0.5 * (belief.log_det_precision - len(weights) * math.log(2.0 * math.pi) - distance))
