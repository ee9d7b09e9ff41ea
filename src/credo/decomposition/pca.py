"""Principal component analysis."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from credo._arguments import check_bool
from credo._rows import Rows
from credo.decomposition._base import BaseDecomposition, check_n_components, is_integer
from credo.decomposition._scatter import ScatterStatistics
from credo.errors import InputError


class PCA(BaseDecomposition):
    """Principal component analysis: the orthogonal directions of largest variance.

    They are the eigenvectors of the sample covariance, from one pass over the rows. Components, variances (over N − 1)
    and signs are those of scikit-learn's PCA. Scores are those of the Gaussian that belongs to the components, see
    :class:`~credo.decomposition.ProbabilisticPCA`.

    Args:
        n_components: the number K of components; a number between 0 and 1: the smallest K that explains more than this
            fraction of the variance; ``None``: min(N, D).
        whiten: whether ``transform`` scales every component to unit variance.
        device: the torch device; ``None`` is the CPU.

    Attributes:
        components_: the directions, orthonormal rows, ``[K, D]``.
        explained_variance_: the variance along each of them, ``[K]``.
        explained_variance_ratio_: the same as a fraction of the total variance, ``[K]``.
        singular_values_: of the centered table, ``[K]``.
        mean_: x̄, ``[D]``.
        noise_variance_: the mean variance of the D − K remaining directions. For N ≤ D scikit-learn averages over
            min(N, D) − K of them instead, which does not match the density.
        n_components_: K.
        n_samples_: N.

    References:
        C. M. Bishop. Pattern Recognition and Machine Learning. 2006, section 12.1.

    Example:
        >>> import numpy as np
        >>> from credo.decomposition import PCA
        >>> X = np.random.default_rng(0).normal(size=(100, 3)) * [3.0, 2.0, 0.1]
        >>> PCA(2).fit_transform(X).shape
        (100, 2)
    """

    explained_variance_: NDArray[np.float64]

    def __init__(self, n_components: float | None = None, *, whiten: bool = False, device: str | None = None) -> None:
        self.n_components = n_components
        self.whiten = whiten
        self.device = device

    def transform(self, X: Any) -> NDArray[np.float64]:
        """Return the coordinates of each row along the components.

        Args:
            X: rows ``[B, D]``.

        Returns:
            The coordinates, ``[B, K]``.
        """
        rows = self._new_rows(X)
        mean, axes = self._tensor(self.mean_), self._tensor(self.components_ / self._latent_scale[:, None])
        return rows.map(lambda x: (x - mean) @ axes.mT)

    @override
    def _check_arguments(self) -> None:
        check_bool(self.whiten, "whiten")
        n: Any = self.n_components
        if n is not None and not is_integer(n) and not (isinstance(n, float | np.floating) and 0.0 < n < 1.0):
            raise InputError(
                f"n_components must be None, an integer, or a fraction of the variance between 0 and 1, got {n!r}"
            )

    @override
    def _fit_statistics(self, statistics: ScatterStatistics, rows: Rows) -> None:
        variances, axes = statistics.principal_axes(statistics.count - 1)
        spectrum = variances.cpu().numpy()
        ratios = spectrum / spectrum.sum()
        k = self._choose_n_components(statistics, ratios)
        self.n_components_ = k
        self.mean_ = statistics.mean.cpu().numpy()
        self.components_ = axes[:k].cpu().numpy()
        self.explained_variance_ = spectrum[:k].copy()
        self.explained_variance_ratio_ = ratios[:k].copy()
        self.singular_values_ = np.sqrt(self.explained_variance_ * (statistics.count - 1))
        self.noise_variance_ = float(spectrum[k:].mean()) if k < statistics.n_columns else 0.0

    def _choose_n_components(self, statistics: ScatterStatistics, ratios: NDArray[np.float64]) -> int:
        """K, from ``n_components`` and the explained variance ratios of all D directions."""
        maximum = min(statistics.count, statistics.n_columns)
        if self.n_components is None:
            return maximum
        if is_integer(self.n_components):
            reason = f"the smaller of {statistics.count} rows and {statistics.n_columns} columns"
            return check_n_components(self.n_components, maximum, reason)
        return min(int(np.searchsorted(np.cumsum(ratios), self.n_components, side="right")) + 1, maximum)

    @property
    @override
    def _latent_scale(self) -> NDArray[np.float64]:
        """``[K]``; bounded below, so that a direction without variance is not scaled up to rounding noise."""
        if not self.whiten:
            return np.ones(len(self.explained_variance_))
        return np.maximum(np.sqrt(self.explained_variance_), np.finfo(np.float64).eps)

    @property
    @override
    def _density_noise(self) -> float:
        """σ²; with all D components the smallest variance, which gives the same density."""
        complete = len(self.components_) == len(self.mean_)
        return float(self.explained_variance_[-1]) if complete else self.noise_variance_

    @property
    @override
    def _loading(self) -> NDArray[np.float64]:
        """V(Λ − σ²I)^½, the maximum likelihood solution for these variances (Bishop 12.45)."""
        excess = np.maximum(self.explained_variance_ - self._density_noise, 0.0)
        return self.components_.T * np.sqrt(excess)
