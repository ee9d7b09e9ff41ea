"""k-means clustering."""

from __future__ import annotations

import math
import warnings
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from credo._arguments import check_integer, check_non_negative, check_option
from credo._distances import SquaredDistances
from credo._estimator import ClassicalEstimator, draw_seed, restore_on_error
from credo._rows import Rows
from credo.em import EMFit, fit_em
from credo.errors import InputError
from credo.mixture._lloyd import ClusterSums, Lloyd, TableScale, assign_to_clusters, nearest_centers, numbers_per_row
from credo.seeding import derive

INIT_METHODS = ("k-means++", "random")
INIT_ROWS = 2**16
"""The number of rows that k-means++ uses; longer tables are sampled."""


class KMeans(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, ClassicalEstimator):  # type: ignore[misc]
    """k-means clustering by Lloyd's algorithm: assign rows to their nearest center, move centers to the means, repeat.

    It minimizes the inertia J = Σ_n min_k ‖x_n − c_k‖², which is EM for a mixture of spherical Gaussians whose common
    variance goes to 0. A center that loses all its rows moves to the row farthest from its own center, which cannot
    raise J.

    Args:
        n_clusters: the number K of clusters.
        init: ``"k-means++"`` (greedy, on a sample of the rows for long tables), ``"random"`` rows, or an array of
            initial centers ``[K, D]``.
        n_init: the number of starts, of which the best is kept; ``"auto"``: 10 for ``"random"``, else 1.
        max_iter: the maximum number of iterations from one start.
        tol: stop when an iteration lowers J/N by no more than ``tol``/K times the mean variance of a column. For
            clusters of equal size this matches scikit-learn's criterion on the squared shifts of the centers.
        device: the torch device; ``None`` is the CPU.
        random_state: a seed, or a numpy ``RandomState``.

    Attributes:
        cluster_centers_: ``[K, D]``.
        labels_: the cluster of every row of the last call of ``fit`` or ``partial_fit``, ``[N]``; rows of chunks are in
            the order in which they were read.
        inertia_: J of these rows.
        counts_: the number of rows that each center is the mean of, ``[K]``.
        n_iter_: the number of iterations of the best start.
        converged_: whether the best start stopped by ``tol``.

    References:
        S. P. Lloyd. Least squares quantization in PCM. IEEE Transactions on Information Theory 1982.
        C. M. Bishop. Pattern Recognition and Machine Learning. 2006, section 9.1.

    Example:
        >>> import numpy as np
        >>> from credo.mixture import KMeans
        >>> X = np.array([[0.0], [1.0], [10.0], [11.0]])
        >>> model = KMeans(2, random_state=0).fit(X)
        >>> sorted(model.cluster_centers_[:, 0].tolist())
        [0.5, 10.5]
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
        """Compute the clusters of ``X``.

        Args:
            X: rows ``[N, D]``: an array, a data frame or chunks, which are read once per iteration.
            y: ignored.

        Raises:
            InputError: if an argument is invalid or there are fewer rows than clusters.
        """
        self._check_arguments()
        with restore_on_error(self):
            rows = self._training_rows(X)
            scale = TableScale.from_rows(rows)
            fit = self._fit_em(rows, scale)
            self.cluster_centers_ = (fit.parameters + scale.mean).cpu().numpy()
            self._assign_labels(rows)
            self.counts_ = np.bincount(self.labels_, minlength=self.n_clusters).astype(np.float64)
            self._record_steps(fit.n_iter, fit.converged)
            self._warn_if_clusters_empty()
        return self

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Update the centers with more rows: each is the mean of all rows ever assigned to it.

        The first call is a ``fit`` and needs at least K rows. After that rows are assigned once, and
        ``cluster_centers_`` and ``counts_`` are the sufficient statistics. Early rows keep the center that was nearest
        at the time, so that the clusters are close to those of ``fit`` but not the same.

        Args:
            X: further rows ``[N, D]``.
            y: ignored.

        Raises:
            InputError: if ``n_clusters`` was changed since the first call.

        Reference:
            J. MacQueen. Some methods for classification and analysis of multivariate observations. 1967.
        """
        if not hasattr(self, "cluster_centers_"):
            return self.fit(X)
        if self.n_clusters != len(self.cluster_centers_):
            raise InputError(
                f"n_clusters is {self.n_clusters}, but {len(self.cluster_centers_)} centers have been learned: "
                "call fit to start again"
            )
        with restore_on_error(self):
            rows = self._training_rows(X, reset=False)
            centers, counts = self._tensor(self.cluster_centers_), self._tensor(self.counts_)
            origin = centers.mean(0)
            new = assign_to_clusters(rows, centers - origin, origin)
            counts, sums = counts + new.counts, new.centers * counts[:, None] + new.sums
            means = origin + sums / counts.clamp_min(1.0)[:, None]
            self.cluster_centers_ = torch.where(counts[:, None] > 0, means, centers).cpu().numpy()
            self.counts_ = counts.cpu().numpy()
            self._assign_labels(rows)
        return self

    def predict(self, X: Any) -> NDArray[np.int32]:
        """Return the nearest center of every row.

        Args:
            X: rows ``[N, D]``.

        Returns:
            The index of the cluster, ``[N]``.
        """
        rows = self._new_rows(X)
        centers = self._tensor(self.cluster_centers_)
        return rows.map(lambda x: nearest_centers(x, centers)[0].int(), numbers_per_row(centers))

    def transform(self, X: Any) -> NDArray[np.float64]:
        """Return the distances to all centers.

        Args:
            X: rows ``[N, D]``.

        Returns:
            ‖x − c_k‖, ``[N, K]``.
        """
        rows = self._new_rows(X)
        centers = self._tensor(self.cluster_centers_)
        return rows.map(
            # from differences: exact also for a row that equals a center
            lambda x: torch.cdist(x, centers, compute_mode="donot_use_mm_for_euclid_dist"),
            numbers_per_row(centers),
        )

    def score(self, X: Any, y: Any = None) -> float:
        """Return minus the inertia of the rows.

        Args:
            X: rows ``[N, D]``.
            y: ignored.

        Returns:
            −J, summed over the rows.
        """
        rows = self._new_rows(X)
        centers = self._tensor(self.cluster_centers_)
        (inertia,) = rows.total(lambda x: (nearest_centers(x, centers)[1].sum(),), numbers_per_row(centers))
        return -float(inertia)

    def _fit_em(self, rows: Rows, scale: TableScale) -> EMFit[Tensor, ClusterSums]:
        """The best of all starts."""
        if rows.count < self.n_clusters:
            raise InputError(
                f"n_clusters must be at most the number of rows, got n_clusters={self.n_clusters} and "
                f"n_samples={rows.count}"
            )
        seed, steps = draw_seed(self.random_state), Lloyd(rows, scale)
        return fit_em(
            lambda k: self._initial_centers(rows, derive(seed, k)) - scale.mean,
            steps.e_step,
            steps.m_step,
            rows=rows.count,
            tolerance=self.tol / self.n_clusters,
            max_iter=self.max_iter,
            restarts=self._n_starts(),
        )

    def _check_arguments(self) -> None:
        check_integer(self.n_clusters, "n_clusters", minimum=1)
        check_integer(self.max_iter, "max_iter", minimum=1)
        if self.n_init != "auto":
            check_integer(self.n_init, "n_init (if not 'auto')", minimum=1)
        check_non_negative(self.tol, "tol")
        if isinstance(self.init, str):
            check_option(self.init, "init", INIT_METHODS)

    def _n_starts(self) -> int:
        if not isinstance(self.init, str):
            return 1
        if self.n_init == "auto":
            return 10 if self.init == "random" else 1
        return self.n_init

    def _initial_centers(self, rows: Rows, seed: int) -> Tensor:
        """Centers to start from, ``[K, D]``."""
        if not isinstance(self.init, str):
            return self._tensor(self._given_centers())
        if self.init == "random":
            return rows.sample(self.n_clusters, seed)
        sample = rows.sample(INIT_ROWS, seed)
        return kmeans_plus_plus(sample, self.n_clusters, torch.Generator().manual_seed(seed))

    def _given_centers(self) -> NDArray[np.float64]:
        centers = np.asarray(self.init, np.float64)
        shape = (self.n_clusters, self.n_features_in_)
        if centers.shape != shape:
            raise InputError(f"init must be one of {INIT_METHODS} or an array of shape {shape}, got {centers.shape}")
        if not np.isfinite(centers).all():
            raise InputError("init must be finite, got NaN or infinity")
        return centers

    def _assign_labels(self, rows: Rows) -> None:
        """Set ``labels_`` and ``inertia_`` for ``rows``."""
        centers = self._tensor(self.cluster_centers_)
        found = rows.map(lambda x: torch.stack(nearest_centers(x, centers), 1), numbers_per_row(centers))
        self.labels_ = found[:, 0].astype(np.int32)
        self.inertia_ = float(found[:, 1].sum())

    def _warn_if_clusters_empty(self) -> None:
        found = int((self.counts_ > 0).sum())
        if found < self.n_clusters:
            warnings.warn(
                f"only {found} of {self.n_clusters} clusters have rows: there may be too few distinct rows; lower "
                "n_clusters",
                ConvergenceWarning,
                stacklevel=3,
            )

    @property
    def _n_features_out(self) -> int:
        return len(self.cluster_centers_)


def kmeans_plus_plus(x: Tensor, n_clusters: int, generator: torch.Generator) -> Tensor:
    """The initial centers of greedy k-means++: ``n_clusters`` rows of ``x``, ``[K, D]``.

    The first center is a random row; each further one is drawn with probability proportional to the squared distance of
    a row to its nearest center so far. As the authors suggest, 2 + ⌊ln K⌋ candidates are drawn each time and the one
    that leaves the smallest sum of squared distances is kept.

    Args:
        x: rows ``[n, D]``.
        n_clusters: K, at most n.
        generator: on the CPU, so that a seed gives the same centers on every device.

    Reference:
        D. Arthur, S. Vassilvitskii. k-means++: the advantages of careful seeding. SODA 2007.
    """
    candidates = 2 + int(math.log(n_clusters))
    first = int(torch.randint(len(x), (1,), generator=generator))
    chosen = [first]
    squared_distances = SquaredDistances(x)
    nearest = squared_distances(x[first : first + 1])[0]
    for _ in range(n_clusters - 1):
        cumulative = nearest.cumsum(0)
        draws = torch.rand(candidates, dtype=x.dtype, generator=generator).to(x.device) * cumulative[-1]
        rows = torch.searchsorted(cumulative, draws, right=True).clamp_max(len(x) - 1)
        distances = torch.minimum(squared_distances(x[rows]), nearest)
        best = distances.sum(1).argmin()
        nearest = distances[best]
        chosen.append(int(rows[best]))
    return x[chosen]


def kmeans_centers(sample: Tensor, n_clusters: int, *, n_init: int, seed: int, device: str | None) -> Tensor:
    """The centers ``[K, D]`` of k-means on ``sample [n, D]``, converged or not, to initialize EM."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        kmeans = KMeans(n_clusters, n_init=n_init, random_state=seed % 2**32, device=device)
        centers = kmeans.fit(sample.cpu().numpy()).cluster_centers_
    return torch.from_numpy(centers).to(sample)
