"""What the mixtures have in common as estimators: where they start, and what a fitted one answers."""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import DensityMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from credo._arguments import check_integer
from credo._estimator import ClassicalEstimator, draw_seed
from credo._rows import Rows
from credo._threads import one_thread
from credo.errors import InputError, unknown_name
from credo.mixture.components import Components, distances_of
from credo.mixture.expectation import Kind, Shared, at_random, share, to_nearest
from credo.mixture.kmeans import KMeans
from credo.mixture.plus_plus import plus_plus
from credo.seeding import derive

InitParams = Literal["kmeans", "k-means++", "random", "random_from_data"]
STARTS: tuple[InitParams, ...] = ("kmeans", "k-means++", "random", "random_from_data")

START_ROWS = 2**14
"""How many rows the centers of a start are found from; of a longer table, a sample of so many."""
KMEANS_RUNS = 3
"""How many runs of k-means a start takes the best of: cheaper than EM from a poor one."""


class Mixture(DensityMixin, ClassicalEstimator):  # type: ignore[misc]
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
    def _log_joint(self) -> tuple[Components, Callable[[Tensor], Tensor]]:
        """The fitted components, and log p(x, z = k) ``[K, b]`` as a function of the squared distances to them."""

    @abstractmethod
    def _noise(self, k: int, shape: tuple[int, int], random: np.random.Generator) -> NDArray[np.float64]:
        """White noise about component k, for ``sample``."""

    def fit_predict(self, X: Any, y: Any = None) -> NDArray[np.int64]:
        """Fit, and the most probable component of every row, ``[N]``."""
        return self.fit(X).predict(X)  # type: ignore[no-any-return]

    def predict(self, X: Any) -> NDArray[np.int64]:
        """The most probable component of every row, ``[N]``."""
        return self._of_rows(X, lambda log_joint: log_joint.argmax(0))

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """The probability of every component for every row, ``[N, K]``."""
        return self._of_rows(X, lambda log_joint: log_joint.softmax(0).T)

    def score_samples(self, X: Any) -> NDArray[np.float64]:
        """The log density of every row in nats, ``[N]``."""
        return self._of_rows(X, lambda log_joint: log_joint.logsumexp(0))

    def score(self, X: Any, y: Any = None) -> float:
        """The mean log density of a row."""
        return float(self.score_samples(X).mean())

    def sample(self, n_samples: int = 1) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """New rows ``[n, D]``, and the component that each came from ``[n]``."""
        check_is_fitted(self)
        check_integer(n_samples, "n_samples", minimum=1)
        random = np.random.default_rng(draw_seed(self.random_state))
        components, _ = self._log_joint()
        labels = random.choice(len(self.weights_), n_samples, p=self.weights_ / self.weights_.sum())
        rows = self.means_[labels]
        for k in np.unique(labels):
            mine = labels == k
            noise = self._tensor(self._noise(k, (int(mine.sum()), rows.shape[1]), random))
            rows[mine] += components.color(k, noise).cpu().numpy()
        return rows, labels

    def _of_rows(self, X: Any, answer: Callable[[Tensor], Tensor]) -> NDArray[Any]:
        """``answer`` to log p(x, z) ``[K, b]``, for all rows."""
        rows = self._new_rows(X)
        components, log_joint = self._log_joint()
        return rows.map(lambda x: answer(log_joint(distances_of(components, x))), components.numbers_per_row)

    def _mixture_rows(self, X: Any) -> Rows:
        """The rows to learn from, at least two and as many as components."""
        for name in ("n_components", "max_iter", "n_init"):
            whole = getattr(self, name)
            if not isinstance(whole, Integral) or whole < 1:
                raise InputError(f"{name} must be an integer of at least 1, got {whole!r}")
        for name in ("tol", "reg_covar"):
            number = getattr(self, name)
            if not isinstance(number, Real) or not 0.0 <= float(number) < math.inf:
                raise InputError(f"{name} must be a number of at least 0, got {number!r}")
        if self.init_params not in STARTS:
            raise unknown_name("init_params", self.init_params, STARTS)
        rows = self._training_rows(X, minimum=2)
        least = max(self.n_components, 2)
        if rows.count < least:
            raise InputError(
                f"X must have at least as many rows as there are components, and two, got n_samples={rows.count} and "
                f"n_components={self.n_components}"
            )
        return rows

    def _first_shares(self, rows: Rows, kind: type[Kind], seed: int, number: int) -> Shared[Kind]:
        """The rows shared out as the start of that number begins; the total is the entropy of the shares.

        Shares are those of the nearest of K centers, except for ``"random"`` ones.
        """
        seed = derive(seed, number)
        if self.init_params == "random":
            anchors = kind.unit(rows.sample(self.n_components, seed))
            with one_thread():  # which takes the blocks, and so the draws, in their order
                return share(rows, anchors, at_random(torch.Generator().manual_seed(seed)))
        return share(rows, kind.unit(self._centers(rows, seed)), to_nearest)

    def _centers(self, rows: Rows, seed: int) -> Tensor:
        """K centers to begin with, ``[K, D]``."""
        if self.init_params == "random_from_data":
            return rows.sample(self.n_components, seed)
        sample = rows.sample(max(START_ROWS, 100 * self.n_components), seed)
        if self.init_params == "k-means++":
            middle = sample.mean(0)
            return middle + plus_plus(sample - middle, self.n_components, torch.Generator().manual_seed(seed))
        with warnings.catch_warnings():
            # a start need not be the end of k-means
            warnings.simplefilter("ignore", ConvergenceWarning)
            kmeans = KMeans(self.n_components, n_init=KMEANS_RUNS, random_state=seed % 2**32, device=self.device)
            return self._tensor(kmeans.fit(sample.cpu().numpy()).cluster_centers_)
