"""What the three kinds of PCA share: the model x = Wz + μ + noise, learned from the scatter, and its missing values."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from numbers import Integral
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn import config_context
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_array, check_is_fitted
from torch import Tensor

from credo._arguments import check_integer
from credo._estimator import ClassicalEstimator, draw_seed, restore_on_error
from credo._rows import Rows
from credo.conjugate import GaussianBelief, LinearGaussian, condition
from credo.decomposition._scatter import ScatterStatistics, check_noise
from credo.errors import InputError


class BaseDecomposition(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClassicalEstimator, ABC):  # type: ignore[misc]
    """p(z) = N(0, I) and p(x | z) = N(Wz + μ, σ²I), with W along principal axes.

    Attributes:
        mean_: μ, ``[D]``.
        components_: one direction per row, ``[K, D]``.
        noise_variance_: σ².
        n_samples_: N, of all rows since the last ``fit``.
    """

    mean_: NDArray[np.float64]
    components_: NDArray[np.float64]
    noise_variance_: float
    n_samples_: int
    _statistics: ScatterStatistics
    _allows_missing: ClassVar[bool] = False

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit the model to ``X``.

        Args:
            X: rows ``[N, D]``: an array (memory-mapped, if it is large), a data frame, or chunks of rows: a function
                that returns an iterator of them, a ``DataLoader``, or an iterator.
            y: ignored.

        Raises:
            InputError: if an argument is invalid, or the rows have too few columns or no variance.
        """
        with restore_on_error(self):
            self._check_arguments()
            rows, statistics = self._read(X, allow_nan=self._allows_missing)
            self._fit_and_store(statistics, rows)
        return self

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Fit the model to ``X`` and the rows of all earlier calls: equal to one ``fit`` on all rows, up to rounding.

        Args:
            X: further rows ``[N, D]`` without missing values; the first call needs as many rows as ``fit``.
            y: ignored.

        Raises:
            InputError: if an argument is invalid, or earlier rows have missing values.
        """
        fitted = hasattr(self, "_statistics")
        if fitted and self._statistics.has_missing:
            raise InputError("partial_fit cannot add to rows with missing values: call fit with all rows instead")
        with restore_on_error(self):
            self._check_arguments()
            rows, statistics = self._read(X, reset=not fitted)
            self._fit_and_store(self._statistics.to(rows.device) + statistics if fitted else statistics, rows)
        return self

    def inverse_transform(self, X: Any) -> NDArray[np.float64]:
        """Return the mean of x for given latent variables, Wz + μ.

        Args:
            X: latent variables z ``[B, K]``, as returned by ``transform``.

        Returns:
            The mean of x, ``[B, D]``.

        Raises:
            InputError: if the number of columns is not the number of components.
        """
        check_is_fitted(self)
        z = check_array(X, dtype=np.float64, ensure_min_features=0, input_name="X")
        if z.shape[1] != self._n_features_out:
            raise InputError(
                f"X must have one column for each of the {self._n_features_out} components, got {z.shape[1]}"
            )
        return np.asarray((z * self._latent_scale) @ self.components_ + self.mean_)

    def score_samples(self, X: Any) -> NDArray[np.float64]:
        """Return the log density of every row.

        Args:
            X: rows ``[B, D]``.

        Returns:
            log p(x) in nats, ``[B]``.
        """
        rows = self._new_rows(X, allow_nan=self._allows_missing)
        model = self._model
        return rows.map(lambda x: log_evidence(model, x))

    def score(self, X: Any, y: Any = None) -> float:
        """Return the mean log density of the rows.

        Args:
            X: rows ``[B, D]``.
            y: ignored.

        Returns:
            The mean of log p(x), in nats per row.
        """
        return float(self.score_samples(X).mean())

    def sample(self, n: int = 1, random_state: int | np.random.RandomState | None = None) -> NDArray[np.float64]:
        """Draw new rows from p(x).

        Args:
            n: the number of rows.
            random_state: a seed, or a numpy ``RandomState``.

        Returns:
            The rows, ``[n, D]``.

        Raises:
            InputError: if ``n`` is not an integer of at least 1.
        """
        check_is_fitted(self)
        check_integer(n, "n", minimum=1)
        generator = torch.Generator().manual_seed(draw_seed(random_state))
        loading = torch.from_numpy(self._loading)
        z, noise = (
            torch.randn(int(n), size, generator=generator, dtype=torch.float64) for size in reversed(loading.shape)
        )
        drawn = z @ loading.mT + torch.from_numpy(self.mean_) + self._density_noise**0.5 * noise
        return np.asarray(drawn.numpy())

    def get_covariance(self) -> NDArray[np.float64]:
        """Return the covariance of x under the model, WWᵀ + σ²I.

        Returns:
            The covariance, ``[D, D]``.
        """
        check_is_fitted(self)
        return np.asarray(self._loading @ self._loading.T + self._density_noise * np.eye(len(self.mean_)))

    def get_precision(self) -> NDArray[np.float64]:
        """Return the inverse of :meth:`get_covariance`, computed with a K × K matrix.

        Returns:
            The precision, ``[D, D]``.
        """
        check_is_fitted(self)
        model, beta = self._model, 1.0 / self._density_noise
        posterior = model.posterior(model.offset)
        explained = beta * model.matrix @ posterior.covariance @ model.matrix.mT
        return np.asarray((beta * (torch.eye(len(explained)).to(explained) - explained)).cpu().numpy())

    @abstractmethod
    def _check_arguments(self) -> None:
        """Raise InputError for invalid constructor arguments, before any data are read."""

    @abstractmethod
    def _fit_statistics(self, statistics: ScatterStatistics, rows: Rows) -> None:
        """Set the learned attributes from the statistics, and from ``rows`` where values are missing."""

    @property
    def _loading(self) -> NDArray[np.float64]:
        """W of the density, ``[D, K]``."""
        return self.components_.T

    @property
    def _density_noise(self) -> float:
        """σ² of the density."""
        return self.noise_variance_

    @property
    def _latent_scale(self) -> Any:
        """What ``transform`` divides each latent variable by."""
        return 1.0

    @property
    def _model(self) -> LinearGaussian:
        """p(z) and p(x | z) on the device; raises InputError if p(x) is flat in some direction."""
        loading, noise = self._tensor(self._loading), self._density_noise
        size, n_components = loading.shape
        check_noise(noise, noise + float(loading.square().sum()) / size, n_components)
        return latent_model(loading, self._tensor(self.mean_), noise)

    def _read(self, X: Any, *, allow_nan: bool = False, reset: bool = True) -> tuple[Rows, ScatterStatistics]:
        """The rows of ``X`` and their statistics, which show whether all values are finite: a table is read once."""
        with config_context(assume_finite=True):
            rows = self._training_rows(X, allow_nan=allow_nan, reset=reset)
        statistics = ScatterStatistics.from_rows(rows, getattr(self, "n_features_in_", None))
        if not statistics.is_finite:
            self._training_rows(X, allow_nan=allow_nan, reset=reset)  # raises scikit-learn's error
        return rows, statistics

    def _fit_and_store(self, statistics: ScatterStatistics, rows: Rows) -> None:
        self._fit_statistics(statistics, rows)
        self._statistics = statistics.to(torch.device("cpu"))
        self.n_samples_ = statistics.count

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)


def is_integer(value: object) -> bool:
    """Whether ``value`` is an integer of Python or numpy, and not a bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_n_components(value: Any, maximum: int, reason: str) -> int:
    """Return ``value`` as a number of components between 1 and ``maximum``; the error contains the ``reason``."""
    if not is_integer(value) or not 1 <= value <= maximum:
        raise InputError(f"n_components must be an integer between 1 and {maximum} ({reason}), got {value!r}")
    return int(value)


def latent_model(loading: Tensor, mean: Tensor, noise: float) -> LinearGaussian:
    """p(z) = N(0, I) and p(x | z) = N(Wz + μ, σ²I), with ``loading`` W ``[D, K]`` and ``noise`` σ²."""
    prior = GaussianBelief.isotropic(loading.shape[1], 1.0, like=loading)
    return LinearGaussian(prior, loading, mean, 1.0 / noise)


def latent_posterior(model: LinearGaussian, x: Tensor) -> GaussianBelief:
    """p(z | observed values) of each row; a row without any value gives the prior.

    A missing value of a Gaussian is integrated out by omitting it. With one noise precision β and o the columns that
    are observed in a row,

        Λ′ = I + β W_oᵀW_o,    m′ = β Λ′⁻¹ W_oᵀ(x_o − μ_o)

    Args:
        model: p(z) and p(x | z), with one noise precision for all columns.
        x: rows ``[B, D]``, NaN where missing; without missing values they share one precision ``[K, K]``, else each has
            its own ``[B, K, K]``.
    """
    observed = ~x.isnan()
    if bool(observed.all()):
        return model.posterior(x)
    loading, beta = model.matrix, model.noise_precision
    squares = (loading.unsqueeze(-1) * loading.unsqueeze(-2)).flatten(1)
    gain = (observed.to(x.dtype) @ squares).unflatten(-1, loading.shape[1:] * 2)
    return condition(model.prior, beta * gain, beta * (_deviations(model, x) @ loading))


def log_evidence(model: LinearGaussian, x: Tensor) -> Tensor:
    """log p(observed values) of each row of ``x [B, D]``, ``[B]``; 0 for a row without any."""
    if not bool(x.isnan().any()):
        return model.log_evidence(x)
    return log_evidence_from_posterior(model, x, latent_posterior(model, x))


def log_evidence_from_posterior(model: LinearGaussian, x: Tensor, posterior: GaussianBelief) -> Tensor:
    """The same for a known posterior: ½ (|o| log(β/2π) − log|Λ′| − β‖x_o − μ_o − W_o m′‖² − ‖m′‖²)."""
    beta = float(model.noise_precision)
    observed = ~x.isnan()
    errors = torch.where(observed, _deviations(model, x) - posterior.mean @ model.matrix.mT, 0.0)
    quadratics = beta * errors.square().sum(-1) + posterior.mean.square().sum(-1)
    n_observed = observed.sum(-1).to(x.dtype)
    return 0.5 * (n_observed * math.log(beta / (2.0 * math.pi)) - posterior.log_det_precision - quadratics)


def _deviations(model: LinearGaussian, x: Tensor) -> Tensor:
    """x − μ, and 0 where a value is missing, ``[B, D]``."""
    return torch.nan_to_num(x - model.offset, nan=0.0)
