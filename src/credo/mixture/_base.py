"""The base estimator of the mixtures: initialization, prediction and sampling."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import DensityMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from credo._arguments import check_integer, check_non_negative, check_option
from credo._estimator import ClassicalEstimator, draw_seed
from credo._rows import Rows
from credo._threads import one_thread
from credo.errors import InputError
from credo.mixture._components import (
    Assignment,
    ComponentsT,
    MixtureComponents,
    assign_rows,
    nearest_component,
    random_responsibilities,
)
from credo.mixture.kmeans import kmeans_centers, kmeans_plus_plus
from credo.seeding import derive

InitParams = Literal["kmeans", "k-means++", "random", "random_from_data"]

INIT_ROWS = 2**14
"""The number of rows from which initial centers are computed; longer tables are sampled."""
INIT_KMEANS_RUNS = 3
"""The number of k-means runs of which the best initializes EM: cheaper than EM from a poor start."""


class BaseMixture(DensityMixin, ClassicalEstimator):  # type: ignore[misc]
    """A mixture of K components, fitted by EM."""

    n_components: int
    tol: float
    reg_covar: float
    max_iter: int
    n_init: int
    init_params: InitParams
    random_state: int | np.random.RandomState | None
    weights_: NDArray[np.float64]
    means_: NDArray[np.float64]

    @abstractmethod
    def _log_joint(self) -> tuple[MixtureComponents, Callable[[Tensor], Tensor]]:
        """The fitted components, and log p(x, z = k) ``[K, b]`` as a function of the squared distances to them."""

    @abstractmethod
    def _draw_noise(self, k: int, shape: tuple[int, int], random: np.random.Generator) -> NDArray[np.float64]:
        """White noise of component k, for ``sample``."""

    def fit_predict(self, X: Any, y: Any = None) -> NDArray[np.int64]:
        """Fit the mixture to ``X`` and return the most probable component of every row.

        Args:
            X: rows ``[N, D]``, see ``fit``.
            y: ignored.

        Returns:
            The index of the component, ``[N]``.
        """
        return self.fit(X).predict(X)  # type: ignore[no-any-return]

    def predict(self, X: Any) -> NDArray[np.int64]:
        """Return the most probable component of every row.

        Args:
            X: rows ``[N, D]``.

        Returns:
            The index of the component, ``[N]``.
        """
        return self._map_rows(X, lambda log_joint: log_joint.argmax(0))

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the probability of every component for every row.

        Args:
            X: rows ``[N, D]``.

        Returns:
            p(z = k | x), ``[N, K]``.
        """
        return self._map_rows(X, lambda log_joint: log_joint.softmax(0).T)

    def score_samples(self, X: Any) -> NDArray[np.float64]:
        """Return the log density of every row.

        Args:
            X: rows ``[N, D]``.

        Returns:
            log p(x) in nats, ``[N]``.
        """
        return self._map_rows(X, lambda log_joint: log_joint.logsumexp(0))

    def score(self, X: Any, y: Any = None) -> float:
        """Return the mean log density of the rows.

        Args:
            X: rows ``[N, D]``.
            y: ignored.

        Returns:
            The mean of log p(x), in nats per row.
        """
        return float(self.score_samples(X).mean())

    def sample(self, n_samples: int = 1) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Draw new rows from the fitted mixture.

        Args:
            n_samples: the number n of rows.

        Returns:
            The rows ``[n, D]``, and the component of each ``[n]``.

        Raises:
            InputError: if ``n_samples`` is not an integer of at least 1.
        """
        check_is_fitted(self)
        check_integer(n_samples, "n_samples", minimum=1)
        random = np.random.default_rng(draw_seed(self.random_state))
        components, _ = self._log_joint()
        labels = random.choice(len(self.weights_), n_samples, p=self.weights_ / self.weights_.sum())
        size = self.means_.shape[1]
        return components.sample(labels, lambda k, n: self._draw_noise(k, (n, size), random)), labels

    def _map_rows(self, X: Any, function: Callable[[Tensor], Tensor]) -> NDArray[Any]:
        """``function`` of log p(x, z) ``[K, b]``, for all rows."""
        rows = self._new_rows(X)
        components, log_joint = self._log_joint()
        return rows.map(lambda x: function(log_joint(components.squared_distances(x))), components.numbers_per_row)

    def _check_rows(self, X: Any) -> Rows:
        """Check the constructor arguments that mixtures share, and return the rows of ``X``."""
        for name in ("n_components", "max_iter", "n_init"):
            check_integer(getattr(self, name), name, minimum=1)
        for name in ("tol", "reg_covar"):
            check_non_negative(getattr(self, name), name)
        check_option(self.init_params, "init_params", get_args(InitParams))
        rows = self._training_rows(X, minimum=2)
        if rows.count < max(self.n_components, 2):
            raise InputError(
                f"X must have at least as many rows as there are components, and two, got n_samples={rows.count} and "
                f"n_components={self.n_components}"
            )
        return rows

    def _initial_assignment(
        self, rows: Rows, kind: type[ComponentsT], seed: int, start: int
    ) -> Assignment[ComponentsT]:
        """The assignment of the rows from which start number ``start`` begins; the total is its entropy."""
        seed = derive(seed, start)
        if self.init_params == "random":
            anchors = kind.with_unit_covariance(rows.sample(self.n_components, seed))
            with one_thread():  # one thread reads the blocks, and draws, in order
                return assign_rows(rows, anchors, random_responsibilities(torch.Generator().manual_seed(seed)))
        return assign_rows(rows, kind.with_unit_covariance(self._initial_centers(rows, seed)), nearest_component)

    def _initial_centers(self, rows: Rows, seed: int) -> Tensor:
        """K initial centers, ``[K, D]``."""
        if self.init_params == "random_from_data":
            return rows.sample(self.n_components, seed)
        sample = rows.sample(max(INIT_ROWS, 100 * self.n_components), seed)
        if self.init_params == "k-means++":
            mean = sample.mean(0)
            return mean + kmeans_plus_plus(sample - mean, self.n_components, torch.Generator().manual_seed(seed))
        return kmeans_centers(sample, self.n_components, n_init=INIT_KMEANS_RUNS, seed=seed, device=self.device)


def check_array_argument(name: str, value: ArrayLike, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Return ``value`` as a new float64 array if it is finite and has the given ``shape``."""
    array = np.array(value, np.float64)
    if array.shape != shape or not np.isfinite(array).all():
        raise InputError(f"{name} must be finite numbers of shape {shape}, got shape {array.shape}")
    return array
