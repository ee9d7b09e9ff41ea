"""Principal component analysis."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from credo._rows import Rows
from credo.decomposition._base import LatentDecomposition, check_count, is_integer, latent_rows
from credo.decomposition.moments import Moments, principal_axes
from credo.errors import InputError


class PCA(LatentDecomposition):
    """The orthogonal directions of largest variance.

    The eigenvectors of the sample covariance, from one pass over the rows. Components, variances (over N − 1) and signs
    are those of scikit-learn's PCA. Scores are those of the Gaussian that belongs to the components, see
    :class:`~credo.decomposition.ProbabilisticPCA`.

    Args:
        n_components: K; a number between 0 and 1: as many as explain more than this share of the variance; ``None``:
            min(N, D).
        whiten: whether ``transform`` gives every component unit variance.
        device: where torch computes, such as ``"cuda"``.

    Attributes:
        components_: the directions, orthonormal rows, ``[K, D]``.
        explained_variance_: the variance along each of them, ``[K]``.
        explained_variance_ratio_: the same as a share of the whole, ``[K]``.
        singular_values_: of the centered table, ``[K]``.
        mean_: x̄, ``[D]``.
        noise_variance_: the mean variance of the D − K directions left out. Where N ≤ D scikit-learn averages over
            min(N, D) − K of them instead, which does not belong to the density.
        n_components_: K.
        n_samples_: N.

    References:
        C. M. Bishop. Pattern Recognition and Machine Learning. 2006, section 12.1.
    """

    explained_variance_: NDArray[np.float64]

    def __init__(self, n_components: float | None = None, *, whiten: bool = False, device: str | None = None) -> None:
        self.n_components = n_components
        self.whiten = whiten
        self.device = device

    def transform(self, X: Any) -> NDArray[np.float64]:
        """The coordinates of each row of ``X [B, D]`` along the components, ``[B, K]``."""
        rows = self._new_rows(X)
        mean, axes = self._tensor(self.mean_), self._tensor(self.components_ / self._scale[:, None])
        return rows.map(lambda x: (x - mean) @ axes.mT)

    def inverse_transform(self, X: Any) -> NDArray[np.float64]:
        """The point of the principal subspace with the coordinates ``X [B, K]``, ``[B, D]``."""
        check_is_fitted(self)
        coordinates = latent_rows(X, self._n_features_out)
        return np.asarray((coordinates * self._scale) @ self.components_ + self.mean_)

    def _check_parameters(self) -> None:
        n: Any = self.n_components
        if n is not None and not is_integer(n) and not (isinstance(n, float | np.floating) and 0.0 < n < 1.0):
            raise InputError(
                f"n_components must be None, an integer, or a share of the variance between 0 and 1, got {n!r}"
            )

    def _learn(self, moments: Moments, rows: Rows) -> None:
        variances, axes = principal_axes(moments, moments.count - 1)
        spectrum = variances.cpu().numpy()
        ratios = spectrum / spectrum.sum()
        k = self._count(moments, ratios)
        self.n_components_ = k
        self.mean_ = moments.mean.cpu().numpy()
        self.components_ = axes[:k].cpu().numpy()
        self.explained_variance_ = spectrum[:k].copy()
        self.explained_variance_ratio_ = ratios[:k].copy()
        self.singular_values_ = np.sqrt(self.explained_variance_ * (moments.count - 1))
        self.noise_variance_ = float(spectrum[k:].mean()) if k < moments.size else 0.0

    def _count(self, moments: Moments, ratios: NDArray[np.float64]) -> int:
        """K, from ``n_components`` and the share of the variance of each of the D directions."""
        most = min(moments.count, moments.size)
        if self.n_components is None:
            return most
        if is_integer(self.n_components):
            reason = f"the smaller of {moments.count} rows and {moments.size} columns"
            return check_count("n_components", self.n_components, 1, most, reason)
        return min(int(np.searchsorted(np.cumsum(ratios), self.n_components, side="right")) + 1, most)

    @property
    def _scale(self) -> NDArray[np.float64]:
        """What a coordinate is divided by, ``[K]``; no direction is blown up that has no variance but rounding."""
        if not self.whiten:
            return np.ones(len(self.explained_variance_))
        return np.maximum(np.sqrt(self.explained_variance_), np.finfo(np.float64).eps)

    @property
    def _density_noise(self) -> float:
        """σ²; where no direction was left out, the smallest variance stands for it, in the same density."""
        everything = len(self.components_) == len(self.mean_)
        return float(self.explained_variance_[-1]) if everything else self.noise_variance_

    @property
    def _loading(self) -> NDArray[np.float64]:
        """V(Λ − σ²I)^½, the maximum likelihood solution for these variances (Bishop 12.45)."""
        excess = np.maximum(self.explained_variance_ - self._density_noise, 0.0)
        return self.components_.T * np.sqrt(excess)
