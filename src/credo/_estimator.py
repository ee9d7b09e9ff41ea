"""Base class and helpers of the classical models as scikit-learn estimators."""

from __future__ import annotations

import warnings
from abc import ABC
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_array, check_is_fitted, column_or_1d

from credo._devices import check_device
from credo._partitions import is_partitioned, partitioned_rows
from credo._rows import Rows, rows_of

if TYPE_CHECKING:
    from credo.em import EMFit


class ClassicalEstimator(BaseEstimator, ABC):  # type: ignore[misc]
    """A scikit-learn estimator that computes with torch, in float64, on ``device``.

    Learned attributes (with a trailing underscore) are numpy arrays and numbers, wherever they were computed, so that
    estimators can be pickled, cloned and moved between machines.
    """

    device: str | None

    def _training_rows(
        self,
        X: Any,
        y: Any = None,
        *,
        targets: Callable[[Any], NDArray[Any]] | None = None,
        allow_nan: bool = False,
        minimum: int = 1,
        reset: bool = True,
    ) -> Rows:
        """Validate the training data; with ``reset=False`` they must have the columns of the first training data."""
        device = check_device(self.device)
        if is_partitioned(X):
            return partitioned_rows(
                self, X, y, reset=reset, device=device, allow_nan=allow_nan, minimum=minimum, targets=targets
            )
        return rows_of(self, X, y, reset=reset, device=device, allow_nan=allow_nan, minimum=minimum, targets=targets)

    def _new_rows(self, X: Any, *, allow_nan: bool = False) -> Rows:
        """Validate the rows to predict, for a fitted model."""
        check_is_fitted(self)
        new_rows = partitioned_rows if is_partitioned(X) else rows_of
        return new_rows(self, X, reset=False, device=check_device(self.device), allow_nan=allow_nan)

    def _tensor(self, array: Any) -> torch.Tensor:
        """Convert a learned attribute to a float64 tensor on the device."""
        return torch.as_tensor(np.array(array, np.float64), device=check_device(self.device))

    def _record(self, fit: EMFit[Any, Any]) -> None:
        """Store the result of EM: ``lower_bound_`` (nats, all rows), ``lower_bounds_``, ``n_iter_``, ``converged_``."""
        self.lower_bound_ = fit.bound
        self.lower_bounds_ = list(fit.bounds)
        self._record_steps(fit.n_iter, fit.converged, stacklevel=4)

    def _record_steps(self, n_iter: int, converged: bool, *, stacklevel: int = 3) -> None:
        """Store ``n_iter_`` and ``converged_``, and warn the caller of ``fit`` if it has not converged."""
        self.n_iter_ = n_iter
        self.converged_ = converged
        if not converged:
            warnings.warn(
                f"{type(self).__name__} has not converged after {n_iter} iterations: raise max_iter, or tol if "
                "this is close enough",
                ConvergenceWarning,
                stacklevel=stacklevel,
            )


def draw_seed(random_state: int | np.random.RandomState | None) -> int:
    """Draw an integer seed from a scikit-learn random state."""
    return int(check_random_state(random_state).randint(2**31))


def check_regression_targets(y: Any) -> NDArray[np.float64]:
    """Return the targets ``y`` as float64 ``[N]``, or raise ``ValueError`` if they are not finite numbers."""
    flat: NDArray[Any] = column_or_1d(y, warn=True)
    return check_array(flat, ensure_2d=False, dtype=np.float64, input_name="y")  # type: ignore[no-any-return]


@contextmanager
def restore_on_error(estimator: BaseEstimator) -> Iterator[None]:
    """Restore all attributes of the estimator if the block raises an exception."""
    before = dict(estimator.__dict__)
    try:
        yield
    except BaseException:
        estimator.__dict__.clear()
        estimator.__dict__.update(before)
        raise
