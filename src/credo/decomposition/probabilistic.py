"""Probabilistic principal component analysis, in closed form and by EM, also with missing values.

With ž = (z, 1) and w̌_d = (w_d, μ_d), feature d of a row is x_d = w̌_dᵀž + noise: a regression on the latent variable.
Over the rows in which x_d is observed,

    E:  A_d = Σ E[žžᵀ],    c_d = Σ x_d E[ž]
    M:  w̌_d = A_d⁻¹c_d,    σ² = Σ_d (Σ x_d² − w̌_dᵀc_d) / (number of values)

which is (12.53)–(12.57) of Bishop (2006) where nothing is missing. Then all rows have the same posterior precision, the
sums follow from the scatter, and the cost of a step does not depend on the number of rows. Values are relative to a
fixed center, the mean of the observed values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad
from typing_extensions import override

from credo._arguments import check_integer, check_non_negative, check_option
from credo._estimator import draw_seed
from credo._rows import Rows
from credo._threads import one_thread
from credo.conjugate import GaussianBelief
from credo.decomposition._base import (
    BaseDecomposition,
    check_n_components,
    latent_model,
    latent_posterior,
    log_evidence_from_posterior,
)
from credo.decomposition._scatter import ColumnStatistics, ScatterStatistics, check_noise, fix_signs
from credo.em import Expectation, fit_em
from credo.errors import InputError

Method = Literal["closed_form", "em"]
_SMALL_MATRIX = 256


@dataclass(frozen=True, eq=False)
class MissingValues:
    """A table with its missing values filled in.

    Attributes:
        mean: the observed values, and the conditional mean of the missing ones, ``[B, D]``.
        std: the standard deviation of the missing values, 0 for observed ones, ``[B, D]``.

    Example:
        >>> import numpy as np
        >>> from credo.decomposition import ProbabilisticPCA
        >>> X = np.random.default_rng(0).normal(size=(50, 4))
        >>> X[0, 0] = np.nan
        >>> filled = ProbabilisticPCA(1, method="em", random_state=0).fit(X).predict_missing(X)
        >>> int((filled.std > 0).sum())
        1
    """

    mean: NDArray[np.float64]
    std: NDArray[np.float64]


class ProbabilisticPCA(BaseDecomposition):
    """Probabilistic PCA: principal components as maximum likelihood of a latent variable model.

        p(z) = N(0, I),    p(x | z) = N(Wz + μ, σ²I),    p(x) = N(μ, WWᵀ + σ²I)

    The maximum has a closed form, W = U(Λ − σ²I)^½ with the K largest eigenvalues Λ of the sample covariance (over N)
    and σ² the mean of the others. EM finds the same from a random start, and also where values are missing (NaN): then
    it maximizes the likelihood of the observed values, exactly, with one pass over the rows per step. It assumes that
    values are missing at random. A row without any value has no effect.

    With ``method="em"`` every method accepts missing values. A model fitted in closed form accepts them in
    ``posterior``, ``impute``, ``predict_missing`` and ``score_samples``, but not in ``fit`` and ``transform``.

    Args:
        n_components: the number K of components, less than D and than N − 1, so that some noise is left; ``None``: the
            maximum.
        method: ``"closed_form"`` or ``"em"``.
        tol: EM stops when a step raises the log likelihood by no more than this, in nats per row.
        max_iter: the maximum number of steps of EM.
        device: the torch device; ``None`` is the CPU.
        random_state: a seed, or a numpy ``RandomState``, for the start of EM.

    Attributes:
        components_: Wᵀ, its rows along the principal axes, ``[K, D]``.
        explained_variance_: ‖w‖² + σ², the variance of x along each of them, ``[K]``.
        noise_variance_: σ².
        mean_: μ, ``[D]``.
        log_likelihood_: of all rows, in nats; equal to ``lower_bound_``.
        lower_bounds_: the log likelihood at the start and after every step of EM.
        n_iter_: the number of steps, 1 for the closed form.
        converged_: whether EM stopped by ``tol``.
        n_components_: K.
        n_samples_: N.

    References:
        M. E. Tipping, C. M. Bishop. Probabilistic principal component analysis. JRSS B 1999.
        C. M. Bishop. Pattern Recognition and Machine Learning. 2006, section 12.2.

    Example:
        >>> import numpy as np
        >>> from credo.decomposition import ProbabilisticPCA
        >>> X = np.random.default_rng(0).normal(size=(100, 4)) * [3.0, 2.0, 0.1, 0.1]
        >>> model = ProbabilisticPCA(2).fit(X)
        >>> model.posterior(X[:5]).mean.shape
        torch.Size([5, 2])
    """

    _allows_missing = True

    def __init__(
        self,
        n_components: int | None = None,
        *,
        method: Method = "closed_form",
        tol: float = 1e-6,
        max_iter: int = 1000,
        device: str | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.n_components = n_components
        self.method = method
        self.tol = tol
        self.max_iter = max_iter
        self.device = device
        self.random_state = random_state

    def transform(self, X: Any) -> NDArray[np.float64]:
        """Return the posterior mean of the latent variable of each row.

        Args:
            X: rows ``[B, D]``; with ``method="em"`` values may be missing (NaN).

        Returns:
            E[z | x], ``[B, K]``; the prior mean 0 for a row without any value.

        Raises:
            InputError: if values are missing and ``method`` is not ``"em"``.
        """
        rows = self._new_rows(X, allow_nan=True)
        model = self._model

        def mean(x: Tensor) -> Tensor:
            if self.method != "em" and bool(x.isnan().any()):
                raise InputError("X has missing values (NaN): fit with method='em', or use posterior(X).mean")
            return latent_posterior(model, x).mean

        return rows.map(mean)

    def posterior(self, X: Any) -> GaussianBelief:
        """Return p(z | x) of each row, given its observed values.

        Args:
            X: rows ``[B, D]``, NaN where missing.

        Returns:
            A Gaussian with mean ``[B, K]``, and one precision for all rows if nothing is missing, else one per row.
        """
        rows = self._new_rows(X, allow_nan=True)
        return latent_posterior(self._model, torch.cat([block[0] for block in rows.blocks()]))

    def impute(self, X: Any) -> NDArray[np.float64]:
        """Replace missing values by their conditional mean given the observed ones.

        Args:
            X: rows ``[B, D]``, NaN where missing.

        Returns:
            The filled table, ``[B, D]``.
        """
        return self.predict_missing(X).mean

    def predict_missing(self, X: Any) -> MissingValues:
        """Predict the missing values given the observed ones, with standard deviations.

        Args:
            X: rows ``[B, D]``, NaN where missing.

        Returns:
            The filled table and the standard deviations, ``[B, D]`` each.
        """
        rows = self._new_rows(X, allow_nan=True)
        model = self._model
        mean, std = [], []
        for block in rows.blocks(numbers_per_row=3 * len(self.mean_) * (1 + self.n_components_)):
            x, posterior = block[0], latent_posterior(model, block[0])
            missing = x.isnan()
            variance = posterior.variance_along(model.matrix) + self.noise_variance_
            mean.append(torch.where(missing, posterior.mean @ model.matrix.mT + model.offset, x).cpu())
            std.append(torch.where(missing, variance.sqrt(), 0.0).cpu())
        return MissingValues(torch.cat(mean).numpy(), torch.cat(std).numpy())

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.method == "em"
        return tags

    @override
    def _check_arguments(self) -> None:
        check_option(self.method, "method", get_args(Method))
        check_non_negative(self.tol, "tol")
        check_integer(self.max_iter, "max_iter", minimum=1)

    @override
    def _fit_statistics(self, statistics: ScatterStatistics, rows: Rows) -> None:
        n_components = self._choose_n_components(statistics)
        if self.method == "em":
            self._fit_em(statistics, rows, n_components)
        elif statistics.has_missing:
            raise InputError("X has missing values (NaN), which the closed form does not allow: choose method='em'")
        else:
            self._fit_closed_form(statistics, n_components)
        self.lower_bound_ = self.log_likelihood_
        self.n_components_ = n_components

    def _choose_n_components(self, statistics: ScatterStatistics) -> int:
        """K, such that some variance is left for the noise."""
        count, n_columns = statistics.count, statistics.n_columns
        maximum = min(n_columns, count - 1) - 1
        if maximum < 1:
            raise InputError(
                "probabilistic PCA needs at least 2 columns and 3 rows, so that some noise is left, got "
                f"n_features = {n_columns} and n_samples = {count}"
            )
        if self.n_components is None:
            return maximum
        reason = f"fewer than {n_columns} columns and the {count - 1} dimensions that {count} rows span"
        return check_n_components(self.n_components, maximum, reason)

    def _fit_closed_form(self, statistics: ScatterStatistics, k: int) -> None:
        """The maximum in closed form (Bishop 12.45, 12.46)."""
        variances, axes = statistics.principal_axes(statistics.count)
        size, noise = statistics.n_columns, float(variances[k:].mean())
        check_noise(noise, statistics.mean_variance, k)
        log_det = float(variances[:k].log().sum()) + (size - k) * math.log(noise)
        self.log_likelihood_ = -0.5 * statistics.count * (size * (1.0 + math.log(2.0 * math.pi)) + log_det)
        self.lower_bounds_, self.n_iter_, self.converged_ = [self.log_likelihood_], 1, True
        self._set_parameters(axes[:k], variances[:k] - noise, statistics.mean, noise)

    def _fit_em(self, statistics: ScatterStatistics, rows: Rows, n_components: int) -> None:
        """EM from a random start."""
        if statistics.has_missing:
            columns = ColumnStatistics.from_rows(rows)
            center, variances = columns.mean, columns.variance
            e_step = partial(e_step_from_rows, rows, center)
        else:
            statistics.check_variance()
            center, variances = statistics.mean, statistics.scatter.diagonal() / statistics.count
            e_step = partial(e_step_from_scatter, statistics)
        start = random_start(n_components, variances, torch.Generator().manual_seed(draw_seed(self.random_state)))
        # steps on small matrices take less time than synchronizing threads; passes over rows use their own threads
        with one_thread(not statistics.has_missing and statistics.n_columns <= _SMALL_MATRIX):
            fit = fit_em(
                lambda _: start, e_step, m_step, rows=statistics.count, tolerance=self.tol, max_iter=self.max_iter
            )
        self._record(fit)
        self.log_likelihood_ = fit.bound
        axes, lengths, _ = torch.linalg.svd(fit.parameters.loading, full_matrices=False)
        self._set_parameters(fix_signs(axes.mT), lengths.square(), center + fit.parameters.mean, fit.parameters.noise)

    def _set_parameters(self, axes: Tensor, squared_lengths: Tensor, mean: Tensor, noise: float) -> None:
        """Set W from its ``axes [K, D]`` and the squared length along each of them, ``[K]``, longest first."""
        squared_lengths = squared_lengths.clamp(min=0.0)
        self.components_ = (squared_lengths.sqrt().unsqueeze(-1) * axes).cpu().numpy()
        self.explained_variance_ = (squared_lengths + noise).cpu().numpy()
        self.mean_ = mean.cpu().numpy()
        self.noise_variance_ = noise


@dataclass(frozen=True, eq=False)
class PPCAParameters:
    """μ relative to the center ``[D]``, W ``[D, K]`` and σ²."""

    mean: Tensor
    loading: Tensor
    noise: float


@dataclass(frozen=True, eq=False)
class PPCAStatistics:
    """What the M-step needs.

    Attributes:
        second: A_d, ``[D, K + 1, K + 1]``, or ``[1, K + 1, K + 1]`` if it is the same for all columns.
        cross: c_d, ``[D, K + 1]``.
        squares: Σ x², over all values.
        n_values: the number of values.
        errors: returns Σ E‖x − Wz‖² for W ``[D, K]``, as a sum of squares that is precise for small noise; ``None`` if
            values are missing.
    """

    second: Tensor
    cross: Tensor
    squares: float
    n_values: int
    errors: Callable[[Tensor], float] | None = None


def random_start(n_components: int, variances: Tensor, generator: torch.Generator) -> PPCAParameters:
    """A random W, with half of the mean of the column ``variances [D]`` for signal and noise each."""
    half = 0.5 * float(variances.mean())
    shape = (len(variances), n_components)
    directions = torch.randn(shape, generator=generator, dtype=variances.dtype).to(variances.device)
    return PPCAParameters(torch.zeros_like(variances), math.sqrt(half / n_components) * directions, half)


def m_step(statistics: PPCAStatistics) -> PPCAParameters:
    """The regression of every column on the latent variable, and the mean squared residual."""
    solution = torch.linalg.solve(statistics.second, statistics.cross.unsqueeze(-1)).squeeze(-1)
    mean, loading = solution[:, -1], solution[:, :-1]
    if statistics.errors is None:
        errors = statistics.squares - float((solution * statistics.cross).sum())
    else:
        errors = statistics.errors(loading)
    noise = errors / statistics.n_values
    check_noise(noise, statistics.squares / statistics.n_values, loading.shape[1])
    return PPCAParameters(mean, loading, noise)


def e_step_from_scatter(statistics: ScatterStatistics, parameters: PPCAParameters) -> Expectation[PPCAStatistics]:
    """The E-step without missing values, relative to x̄, where the mean of the parameters stays 0."""
    loading, beta, count, root = parameters.loading, 1.0 / parameters.noise, statistics.count, statistics.root
    size, n_components = loading.shape
    posterior = latent_model(loading, parameters.mean, parameters.noise).posterior(loading.new_zeros(size))
    latent = root @ (beta * posterior.covariance @ loading.mT).mT  # E[z] of the rows of the root
    covariance = count * posterior.covariance
    second = loading.new_zeros(1, n_components + 1, n_components + 1)
    second[0, :-1, :-1] = latent.mT @ latent + covariance
    second[0, -1, -1] = count

    def errors(loading: Tensor) -> float:
        fit = (root - latent @ loading.mT).square().sum()
        return float(fit + (loading @ covariance * loading).sum())

    log_dets = count * (size * math.log(beta / (2.0 * math.pi)) - float(posterior.log_det_precision))
    # Σ (β‖x − WE[z]‖² + ‖E[z]‖²) as squares: a difference of larger numbers would lose digits for small noise
    quadratics = beta * float((root - latent @ loading.mT).square().sum()) + float(latent.square().sum())
    cross = pad(root.mT @ latent, (0, 1))
    squares = float(statistics.scatter.trace())
    return Expectation(PPCAStatistics(second, cross, squares, count * size, errors), 0.5 * (log_dets - quadratics))


def e_step_from_rows(rows: Rows, center: Tensor, parameters: PPCAParameters) -> Expectation[PPCAStatistics]:
    """The E-step with missing values: one pass over the rows."""
    model = latent_model(parameters.loading, parameters.mean, parameters.noise)
    size, n_components = parameters.loading.shape

    def block_sums(block: Tensor) -> tuple[Tensor, ...]:
        x = block - center
        posterior = latent_posterior(model, x)
        observed = (~x.isnan()).to(x.dtype)
        latent = pad(posterior.mean, (0, 1), value=1.0)  # E[ž]
        products = latent.unsqueeze(-1) * latent.unsqueeze(-2) + pad(posterior.covariance, (0, 1, 0, 1))
        values = x.nan_to_num(nan=0.0)
        return (
            (observed.mT @ products.flatten(1)).unflatten(1, products.shape[1:]),
            values.mT @ latent,
            values.square().sum(),
            observed.sum(),
            log_evidence_from_posterior(model, x, posterior).sum(),
        )

    numbers_per_row = size + 3 * (n_components + 1) ** 2
    second, cross, squares, n_values, bound = rows.total(block_sums, numbers_per_row)
    return Expectation(PPCAStatistics(second, cross, float(squares), int(n_values)), float(bound))
