"""credo's regressor behind the interface of skpro, the scikit-learn of probabilistic predictions.

Pipelines, metrics and tuning of skpro, and forecasters of sktime that take its regressors, can so use credo. Needs the
extra ``skpro``.

Reference: F. Király et al., "skpro: supervised probabilistic prediction", https://skpro.readthedocs.io.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from torch import Tensor

from credo.errors import missing_extra
from credo.predictive import Predictive
from credo.tabular.estimators import Regressor

try:
    from skpro.distributions.base import BaseDistribution
    from skpro.regression.base import BaseProbaRegressor
except ImportError as error:
    _error = error

    class BaseDistribution:  # type: ignore[no-redef]
        """Stands for the base classes of skpro where it is missing: nothing can be made of them."""

        def __init__(self, *args: object, **kwargs: object) -> None:
            raise missing_extra("credo.skpro", "skpro", _error) from _error

    BaseProbaRegressor = BaseDistribution

__all__ = ["PredictiveDistribution", "ProbaRegressor"]


class PredictiveDistribution(BaseDistribution):  # type: ignore[misc]
    """A :class:`credo.Predictive` of N rows as a distribution of skpro: the same mixture over draws, not a Gaussian.

    Args:
        predictive: the prediction of a quantity for N rows.
        index: the index of the rows; ``None``, with ``columns=None``: one number without an index.
        columns: the name of the target, in a list of one.
    """

    _tags: ClassVar[dict[str, Any]] = {
        "capabilities:approx": ["energy", "pdfnorm"],
        "capabilities:exact": ["mean", "var", "pdf", "log_pdf", "cdf", "ppf"],
        "distr:measuretype": "continuous",
        "distr:paramtype": "nonparametric",
        "broadcast_init": "off",
    }

    def __init__(self, predictive: Predictive, index: Any = None, columns: Any = None) -> None:
        self.predictive = predictive
        super().__init__(index=index, columns=columns)

    def _iloc(self, rowidx: Any = None, colidx: Any = None) -> PredictiveDistribution:
        """The distribution of some rows; there is one column."""
        rows = np.arange(len(self.index)) if rowidx is None else np.atleast_1d(np.arange(len(self.index))[rowidx])
        if np.ndim(rowidx if rowidx is not None else rows) == 0 and colidx is not None and np.ndim(colidx) == 0:
            return self._iat(rowidx, colidx)
        columns = self.columns if colidx is None else self.columns.take(np.atleast_1d(colidx))
        return PredictiveDistribution(self.predictive[torch.from_numpy(rows)], self.index.take(rows), columns)

    def _iat(self, rowidx: Any = None, colidx: Any = None) -> PredictiveDistribution:
        """The distribution of one row, as that of a number."""
        return PredictiveDistribution(self.predictive[[int(rowidx)]])

    def _mean(self) -> Any:
        return self._shaped(self.predictive.mean)

    def _var(self) -> Any:
        return self._shaped(self.predictive.variance)

    def _log_pdf(self, x: Any) -> Any:
        return self._of(x, self.predictive.log_prob)

    def _pdf(self, x: Any) -> Any:
        return np.exp(self._log_pdf(x))

    def _cdf(self, x: Any) -> Any:
        return self._of(x, self.predictive.cdf)

    def _ppf(self, p: Any) -> Any:
        """Quantiles, with a probability per row; those that several rows share are computed at once."""
        wanted = np.broadcast_to(np.asarray(p, np.float64).reshape(-1), len(self.predictive))
        found = np.empty(len(wanted))
        for level in np.unique(wanted):
            rows = np.flatnonzero(wanted == level)
            if 0.0 < level < 1.0:
                found[rows] = self.predictive[torch.from_numpy(rows)].quantile(float(level)).double().numpy()
            else:
                found[rows] = np.inf if level == 1.0 else -np.inf if level == 0.0 else np.nan
        return self._shaped(torch.from_numpy(found))

    def _of(self, x: Any, function: Callable[[Tensor], Tensor]) -> Any:
        """A function of one value per row."""
        mean = self.predictive.mean
        values = np.broadcast_to(np.asarray(x, np.float64).reshape(-1), len(self.predictive))
        return self._shaped(function(torch.from_numpy(values.copy()).to(mean.dtype).reshape(mean.shape)))

    def _shaped(self, values: Tensor) -> Any:
        """``[N, 1]`` with an index, or a number without one."""
        array: NDArray[np.float64] = values.detach().double().reshape(-1).numpy()
        return array[:, None] if self.ndim else array[0]

    @classmethod
    def get_test_params(cls, parameter_set: str = "default") -> list[dict[str, Any]]:
        """Arguments for the tests of skpro.

        Args:
            parameter_set: the name of a set; there is one.

        Returns:
            Arguments of the constructor.
        """
        from credo.predictive import RealPredictive
        from credo.predictive.location_scale import GaussianComponents

        generator = torch.Generator().manual_seed(0)
        mean = torch.randn(5, 3, generator=generator, dtype=torch.float64)
        predictive = RealPredictive(GaussianComponents(mean, torch.full_like(mean, 0.5)))
        return [{"predictive": predictive, "index": pd.RangeIndex(3), "columns": ["y"]}]


class ProbaRegressor(BaseProbaRegressor):  # type: ignore[misc]
    """credo's :class:`credo.Regressor` as a probabilistic regressor of skpro.

    ``predict``, ``predict_interval``, ``predict_quantiles``, ``predict_var`` and ``predict_proba`` are those of the
    mixture over posterior draws, or of the calibrator of the estimator.

    Args:
        estimator: the regressor to fit, which is not changed; ``None``: ``credo.Regressor()``.

    Attributes:
        estimator_: the fitted regressor.

    Example:
        >>> import numpy as np
        >>> import pandas as pd
        >>> import credo
        >>> from credo.integrations.skpro import ProbaRegressor
        >>> X = pd.DataFrame({"x": np.linspace(0.0, 1.0, 50)})
        >>> y = pd.DataFrame({"y": 2.0 * X["x"]})
        >>> model = ProbaRegressor(credo.Regressor("map", epochs=5, random_state=0)).fit(X, y)
        >>> model.predict_interval(X[:3], coverage=[0.5, 0.9]).shape
        (3, 4)
    """

    _tags: ClassVar[dict[str, Any]] = {
        "capability:multioutput": False,
        "capability:missing": True,
        "X_inner_mtype": "pd_DataFrame_Table",
        "y_inner_mtype": "pd_DataFrame_Table",
        "python_dependencies": "credo",
    }

    def __init__(self, estimator: Regressor | None = None) -> None:
        self.estimator = estimator
        super().__init__()

    def _fit(self, X: pd.DataFrame, y: pd.DataFrame) -> ProbaRegressor:
        self.estimator_ = Regressor() if self.estimator is None else clone(self.estimator)
        self.estimator_.fit(_with_names(X), y.iloc[:, 0].to_numpy())
        self._y_columns = y.columns
        return self

    def _predict(self, X: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame(self._distribution(X).mean.numpy(), X.index, self._y_columns)

    def _predict_var(self, X: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame(self._distribution(X).variance.numpy(), X.index, self._y_columns)

    def _predict_quantiles(self, X: pd.DataFrame, alpha: list[float]) -> pd.DataFrame:
        found = self._distribution(X).quantile(list(alpha)).numpy()
        columns = pd.MultiIndex.from_product([self._y_columns, alpha])
        return pd.DataFrame(found.T, X.index, columns)

    def _predict_interval(self, X: pd.DataFrame, coverage: list[float]) -> pd.DataFrame:
        predictive = self._distribution(X)
        bounds = [bound.numpy() for level in coverage for bound in predictive.interval(level)]
        columns = pd.MultiIndex.from_product([self._y_columns, coverage, ["lower", "upper"]])
        return pd.DataFrame(np.stack(bounds, 1), X.index, columns)

    def _predict_proba(self, X: pd.DataFrame) -> PredictiveDistribution:
        return PredictiveDistribution(self._distribution(X), X.index, self._y_columns)

    def _distribution(self, X: pd.DataFrame) -> Predictive:
        return self.estimator_.predict_dist(_with_names(X))

    @classmethod
    def get_test_params(cls, parameter_set: str = "default") -> list[dict[str, Any]]:
        """Arguments for ``skpro.utils.check_estimator``: short trainings.

        Args:
            parameter_set: the name of a set; there is one.

        Returns:
            Arguments of the constructor.
        """
        short: dict[str, Any] = {"epochs": 5, "samples": 10, "random_state": 0, "progress": False}
        return [
            {"estimator": Regressor("bbb", **short)},
            {"estimator": Regressor("map", noise="learned", hidden=(5,), **short)},
        ]


def _with_names(X: pd.DataFrame) -> pd.DataFrame:
    """``X`` with names of columns that are words, as skpro numbers those of arrays."""
    return X.set_axis([str(name) for name in X.columns], axis=1)
