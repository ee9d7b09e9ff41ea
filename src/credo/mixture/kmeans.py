"""k-means: K centers, and every row with the one nearest to it."""

from __future__ import annotations

import warnings
from numbers import Real
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from credo._estimator import ClassicalEstimator, draw_seed, restore_on_error
from credo._rows import Rows
from credo.em import EMFit, fit_em
from credo.errors import InputError, unknown_name
from credo.mixture.lloyd import Assignment, Lloyd, Moments, assign, nearest, numbers_per_row
from credo.mixture.plus_plus import plus_plus
from credo.seeding import derive

STARTS = ("k-means++", "random")
SEEDING_ROWS = 2**16
"""How many rows k-means++ looks at; of a longer table, a sample of so many."""


class KMeans(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, ClassicalEstimator):  # type: ignore[misc]
    """Clusters by Lloyd's algorithm: assign every row to its nearest center, move centers to the means, repeat.

    It minimizes the inertia J = Σ_n min_k ‖x_n − c_k‖², which is EM for a mixture of spherical Gaussians whose common
    variance goes to 0. A center that loses all its rows moves to the row farthest from its own center, which cannot
    raise J.

    Args:
        n_clusters: K.
        init: ``"k-means++"`` (greedy, on a sample of the rows where there are many), ``"random"`` rows, or the centers
            to start from ``[K, D]``.
        n_init: how many starts, of which the best is kept; ``"auto"``: 10 for ``"random"``, else 1.
        max_iter: the most iterations from one start.
        tol: an iteration must lower J/N by more than ``tol``/K of the mean variance of a column. For clusters of equal
            size that asks of the squared shifts of all centers together what scikit-learn asks of them.
        device: where torch computes; ``None`` is the CPU.
        random_state: a seed, or scikit-learn's kind of generator.

    Attributes:
        cluster_centers_: ``[K, D]``.
        labels_: the cluster of every row of the last call of ``fit`` or ``partial_fit``, ``[N]``; rows in chunks are
            counted in the order in which these came.
        inertia_: J of these rows.
        counts_: how many rows each center is the mean of, ``[K]``.
        n_iter_: iterations from the best start.
        converged_: whether that start stopped by ``tol``.

    References:
        S. P. Lloyd. Least squares quantization in PCM. IEEE Transactions on Information Theory 1982.
        C. M. Bishop. Pattern Recognition and Machine Learning. 2006, section 9.1.
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        init: Literal["k-means++", "random"] | ArrayLike = "k-means++",
        n_init: int | Literal["auto"] = "auto",
        max_iter: int = 300,
        tol: float = 1e-4,
        device: str | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.device = device
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Find the clusters of ``X``, an array, a data frame or chunks, which are read once in every iteration."""
        self._check_options()
        with restore_on_error(self):
            rows = self._training_rows(X)
            moments = Moments.of(rows)
            fit = self._search(rows, moments)
            self.cluster_centers_ = (fit.parameters + moments.mean).cpu().numpy()
            self._label(rows)
            self.counts_ = np.bincount(self.labels_, minlength=self.n_clusters).astype(np.float64)
            self._record_steps(fit.n_iter, fit.converged)
            self._warn_of_empty_clusters()
        return self

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Let more rows move the centers: each becomes the mean of all rows ever assigned to it.

        The first call is a ``fit``, for which K rows are the least; after that rows are assigned once and may be
        forgotten: ``cluster_centers_`` and ``counts_`` are the sufficient statistics. Early rows stay with the center
        that was nearest when they came, so that the clusters are close to those of ``fit`` but not the same.

        Reference:
            J. MacQueen. Some methods for classification and analysis of multivariate observations. 1967.
        """
        if not hasattr(self, "cluster_centers_"):
            return self.fit(X)
        if self.n_clusters != len(self.cluster_centers_):
            raise InputError(
                f"n_clusters is {self.n_clusters}, but {len(self.cluster_centers_)} centers have been learned: "
                "call fit to begin anew"
            )
        with restore_on_error(self):
            rows = self._training_rows(X, reset=False)
            centers, counts = self._tensor(self.cluster_centers_), self._tensor(self.counts_)
            middle = centers.mean(0)
            new = assign(rows, centers - middle, middle)
            counts, sums = counts + new.counts, new.centers * counts[:, None] + new.sums
            means = middle + sums / counts.clamp_min(1.0)[:, None]
            self.cluster_centers_ = torch.where(counts[:, None] > 0, means, centers).cpu().numpy()
            self.counts_ = counts.cpu().numpy()
            self._label(rows)
        return self

    def predict(self, X: Any) -> NDArray[np.int32]:
        """The number of the nearest center, ``[N]``."""
        rows = self._new_rows(X)
        centers = self._tensor(self.cluster_centers_)
        return rows.map(lambda x: nearest(x, centers)[0].int(), numbers_per_row(centers))

    def transform(self, X: Any) -> NDArray[np.float64]:
        """The distances to all centers, ``[N, K]``."""
        rows = self._new_rows(X)
        centers = self._tensor(self.cluster_centers_)
        return rows.map(lambda x: _distances(x, centers), numbers_per_row(centers))

    def score(self, X: Any, y: Any = None) -> float:
        """−J of the rows of ``X``."""
        rows = self._new_rows(X)
        centers = self._tensor(self.cluster_centers_)
        (inertia,) = rows.total(lambda x: (nearest(x, centers)[1].sum(),), numbers_per_row(centers))
        return -float(inertia)

    def _search(self, rows: Rows, moments: Moments) -> EMFit[Tensor, Assignment]:
        """The best of all starts."""
        if rows.count < self.n_clusters:
            raise InputError(
                f"n_clusters must be at most the number of rows, got n_clusters={self.n_clusters} and "
                f"n_samples={rows.count}"
            )
        seed, steps = draw_seed(self.random_state), Lloyd(rows, moments)
        return fit_em(
            lambda number: self._start(rows, derive(seed, number)) - moments.mean,
            steps.e_step,
            steps.m_step,
            rows=rows.count,
            tolerance=self.tol / self.n_clusters,
            max_iter=self.max_iter,
            restarts=self._restarts(),
        )

    def _check_options(self) -> None:
        for name in ("n_clusters", "n_init", "max_iter"):
            value = getattr(self, name)
            if name == "n_init" and value == "auto":
                continue
            if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
                alternative = " or 'auto'" if name == "n_init" else ""
                raise InputError(f"{name} must be an integer of at least 1{alternative}, got {value!r}")
        tol: object = self.tol
        if not isinstance(tol, Real) or not float(tol) >= 0.0:
            raise InputError(f"tol must be at least 0, got {tol!r}")
        if isinstance(self.init, str) and self.init not in STARTS:
            raise unknown_name("init", self.init, STARTS)

    def _restarts(self) -> int:
        if not isinstance(self.init, str):
            return 1
        if self.n_init == "auto":
            return 10 if self.init == "random" else 1
        return self.n_init

    def _start(self, rows: Rows, seed: int) -> Tensor:
        """Centers to begin with, ``[K, D]``."""
        if not isinstance(self.init, str):
            return self._tensor(self._given_centers())
        if self.init == "random":
            return rows.sample(self.n_clusters, seed)
        sample = rows.sample(SEEDING_ROWS, seed)
        return plus_plus(sample, self.n_clusters, torch.Generator().manual_seed(seed))

    def _given_centers(self) -> NDArray[np.float64]:
        centers = np.asarray(self.init, np.float64)
        wanted = (self.n_clusters, self.n_features_in_)
        if centers.shape != wanted:
            raise InputError(f"init must be one of {STARTS} or of shape {wanted}, a row a cluster, got {centers.shape}")
        if not np.isfinite(centers).all():
            raise InputError("init must be finite, got NaN or infinity")
        return centers

    def _label(self, rows: Rows) -> None:
        """``labels_`` and ``inertia_`` of ``rows``."""
        centers = self._tensor(self.cluster_centers_)
        found = rows.map(lambda x: torch.stack(nearest(x, centers), 1), numbers_per_row(centers))
        self.labels_ = found[:, 0].astype(np.int32)
        self.inertia_ = float(found[:, 1].sum())

    def _warn_of_empty_clusters(self) -> None:
        found = int((self.counts_ > 0).sum())
        if found < self.n_clusters:
            warnings.warn(
                f"only {found} of {self.n_clusters} clusters have rows: there may be no more distinct rows, so lower "
                "n_clusters",
                ConvergenceWarning,
                stacklevel=3,
            )

    @property
    def _n_features_out(self) -> int:
        return len(self.cluster_centers_)


def _distances(x: Tensor, centers: Tensor) -> Tensor:
    """‖x − c‖, ``[b, K]``, from differences: exact also for a row that lies on a center."""
    return torch.cdist(x, centers, compute_mode="donot_use_mm_for_euclid_dist")
