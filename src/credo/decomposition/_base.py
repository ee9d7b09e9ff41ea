"""What the three kinds of principal components share: x = Wz + μ + noise, learned from moments."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn import config_context
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_array, check_is_fitted

from credo._estimator import ClassicalEstimator, draw_seed, restore_on_error
from credo._rows import Rows
from credo.conjugate import GaussianBelief, LinearGaussian
from credo.decomposition import gaps
from credo.decomposition.moments import Moments, check_noise
from credo.errors import InputError


class LatentDecomposition(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClassicalEstimator, ABC):  # type: ignore[misc]
    """p(z) = N(0, I) and p(x | z) = N(Wz + μ, σ²I), with W along principal axes.

    Attributes:
        mean_: μ, ``[D]``.
        components_: one direction a row, ``[K, D]``.
        noise_variance_: σ².
        n_samples_: N, of all fits since the last ``fit``.
    """

    mean_: NDArray[np.float64]
    components_: NDArray[np.float64]
    noise_variance_: float
    n_samples_: int
    _moments: Moments
    _allows_gaps: ClassVar[bool] = False

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from ``X [N, D]``, once.

        Args:
            X: an array (mapped from a file, if it is large), a data frame, or chunks of rows: a function that returns
                an iterator of them, a ``DataLoader``, or an iterator.
            y: not used.
        """
        with restore_on_error(self):
            self._check_parameters()
            rows, moments = self._read(X, allow_nan=self._allows_gaps)
            self._take(moments, rows)
        return self

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Learn from ``X`` and all rows of earlier calls: as one ``fit`` on all of them, to rounding.

        Args:
            X: further rows, without missing values; the first call needs as many as the model has to have.
            y: not used.
        """
        fitted = hasattr(self, "_moments")
        if fitted and self._moments.incomplete:
            raise InputError("rows with missing values leave no moments to add to: call fit with all rows instead")
        with restore_on_error(self):
            self._check_parameters()
            rows, moments = self._read(X, reset=not fitted)
            self._take(self._moments.to(rows.device) + moments if fitted else moments, rows)
        return self

    def score_samples(self, X: Any) -> NDArray[np.float64]:
        """log p(x) in nats of each row of ``X [B, D]``, ``[B]``."""
        rows = self._new_rows(X, allow_nan=self._allows_gaps)
        model = self._model
        return rows.map(lambda x: gaps.log_evidence(model, x))

    def score(self, X: Any, y: Any = None) -> float:
        """The mean of log p(x) over the rows of ``X``."""
        return float(self.score_samples(X).mean())

    def sample(self, n: int = 1, random_state: int | np.random.RandomState | None = None) -> NDArray[np.float64]:
        """``n`` new rows from p(x), ``[n, D]``."""
        check_is_fitted(self)
        if not is_integer(n) or n < 1:
            raise InputError(f"n must be an integer of 1 or more, got {n!r}")
        generator = torch.Generator().manual_seed(draw_seed(random_state))
        loading = torch.from_numpy(self._loading)
        z, noise = (
            torch.randn(int(n), size, generator=generator, dtype=torch.float64) for size in reversed(loading.shape)
        )
        drawn = z @ loading.mT + torch.from_numpy(self.mean_) + self._density_noise**0.5 * noise
        return np.asarray(drawn.numpy())

    def get_covariance(self) -> NDArray[np.float64]:
        """The covariance of x under the model, WWᵀ + σ²I, ``[D, D]``."""
        check_is_fitted(self)
        return np.asarray(self._loading @ self._loading.T + self._density_noise * np.eye(len(self.mean_)))

    def get_precision(self) -> NDArray[np.float64]:
        """The inverse of :meth:`get_covariance`, by way of a K × K matrix, ``[D, D]``."""
        check_is_fitted(self)
        model, beta = self._model, 1.0 / self._density_noise
        belief = model.posterior(model.offset)
        explained = beta * model.matrix @ belief.covariance @ model.matrix.mT
        return np.asarray((beta * (torch.eye(len(explained)).to(explained) - explained)).cpu().numpy())

    @abstractmethod
    def _check_parameters(self) -> None:
        """Raise ``InputError`` for what the constructor was given, before any data are read."""

    @abstractmethod
    def _learn(self, moments: Moments, rows: Rows) -> None:
        """Set what is learned from the moments; ``rows`` holds the last rows, for what moments do not tell."""

    @property
    @abstractmethod
    def _loading(self) -> NDArray[np.float64]:
        """W of the density, ``[D, K]``."""

    @property
    def _density_noise(self) -> float:
        """σ² of the density."""
        return self.noise_variance_

    @property
    def _model(self) -> LinearGaussian:
        """p(z) and p(x | z) on the device; refused where p(x) is flat in some direction."""
        loading, noise = self._tensor(self._loading), self._density_noise
        size, n_components = loading.shape
        check_noise(noise, noise + float(loading.square().sum()) / size, n_components)
        prior = GaussianBelief.isotropic(n_components, 1.0, like=loading)
        return LinearGaussian(prior, loading, self._tensor(self.mean_), 1.0 / noise)

    def _read(self, X: Any, *, allow_nan: bool = False, reset: bool = True) -> tuple[Rows, Moments]:
        """The rows of ``X`` and their moments, which tell whether all values are finite: a table is read once."""
        with config_context(assume_finite=True):
            rows = self._training_rows(X, allow_nan=allow_nan, reset=reset)
        moments = Moments.of(rows, getattr(self, "n_features_in_", None))
        if not moments.finite:
            self._training_rows(X, allow_nan=allow_nan, reset=reset)  # for the sentence that says what is wrong
        return rows, moments

    def _take(self, moments: Moments, rows: Rows) -> None:
        self._learn(moments, rows)
        self._moments = moments.to(torch.device("cpu"))
        self.n_samples_ = moments.count

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)


class LatentPosterior(LatentDecomposition, ABC):
    """A decomposition that gives a row its latent variable z as a Gaussian belief."""

    @abstractmethod
    def posterior(self, X: Any) -> GaussianBelief:
        """The belief about z of each row of ``X [B, D]``: mean ``[B, K]``, and the precision that goes with it."""

    def inverse_transform(self, X: Any) -> NDArray[np.float64]:
        """Wz + μ of each row z of ``X [B, K]``: the mean of x there, ``[B, D]``."""
        check_is_fitted(self)
        z = latent_rows(X, self._n_features_out)
        return np.asarray(z @ self.components_ + self.mean_)

    @property
    def _loading(self) -> NDArray[np.float64]:
        return self.components_.T


def latent_rows(X: Any, width: int) -> NDArray[np.float64]:
    """``X`` as latent variables ``[B, width]``, checked."""
    z = check_array(X, dtype=np.float64, ensure_min_features=0, input_name="X")
    if z.shape[1] != width:
        raise InputError(f"X must have one column for each of the {width} components, got {z.shape[1]}")
    return np.asarray(z)


def is_integer(value: object) -> bool:
    """Whether ``value`` is an integer of Python or numpy, and not a truth value."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def check_count(name: str, value: Any, least: int, most: int, reason: str) -> int:
    """``value`` as a number of components between ``least`` and ``most``, for a ``reason``."""
    if not is_integer(value) or not least <= value <= most:
        raise InputError(f"{name} must be an integer between {least} and {most} ({reason}), got {value!r}")
    return int(value)
