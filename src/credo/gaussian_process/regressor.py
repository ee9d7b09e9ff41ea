"""Exact Gaussian process regression."""

from __future__ import annotations

import math
import os
import warnings
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from credo._arguments import check_integer, check_option
from credo._devices import check_device
from credo._estimator import ClassicalEstimator, check_regression_targets, draw_seed, restore_on_error
from credo.errors import InputError
from credo.gaussian_process._inference import (
    GaussianProcess,
    ObservationModel,
    Solution,
    check_start,
    maximize_evidence,
    select_starts,
    solve,
    to_noise_kernel,
)
from credo.gaussian_process._kernel_base import DEFAULT_BOUNDS
from credo.gaussian_process.kernels import RBF, Constant, Kernel, White
from credo.predictive import ExactGaussianPredictive

MANY_ROWS = 20_000
OPTIMIZERS = ("fmin_l_bfgs_b",)
RELATIVE_BOUNDS = (1e-3, 1e3)
"""Bounds of the length scales of the default kernel, in units of their start."""
_MATRICES = 4  # of size N × N, held at once by fit


class GaussianProcessRegressor(RegressorMixin, ClassicalEstimator):  # type: ignore[misc]
    """Regression with a Gaussian process prior, f ~ GP(m, k), y = f(x) + ε, ε ~ N(0, σ²): exact, in O(N³).

    The kernel describes the function, and uncertainty about the function is epistemic. ``noise`` is added to every
    observation and is aleatoric. A ``White`` kernel in ``kernel`` is part of the function; it is not allowed with a
    learned noise, because the data cannot distinguish the two.

    The hyperparameters maximize the evidence log p(y | X) (type II maximum likelihood); L-BFGS-B searches their
    logarithms.

    Args:
        kernel: k, of the standardized targets if ``normalize_y``. By default a constant, which starts at the variance
            of the targets, times an RBF with a length scale per feature, which starts at √D of its standard deviations.
            A second search starts from the best of other values, for faster and slower functions and for less noise.
        noise: σ. ``"learned"``, with the hyperparameters; a number, the fixed standard deviation in units of y (0
            interpolates); or ``White(start, bounds)``, learned from that start, in units of y.
        optimizer: ``"fmin_l_bfgs_b"``, or ``None`` to keep the hyperparameters as given.
        n_restarts_optimizer: the number of further searches, from hyperparameters drawn log-uniformly within their
            bounds. With 0, a given kernel is searched from its own values only.
        normalize_y: subtract the mean of y, which becomes the mean of the process, and divide by its standard
            deviation. Otherwise the process has mean 0.
        device: where torch computes, such as ``"cuda"``; ``None`` is the CPU.
        random_state: seeds the restarts.

    Attributes:
        kernel_: the kernel of (y − ``y_mean_``)/``y_scale_`` with the learned hyperparameters.
        noise_: σ, a standard deviation in units of y.
        log_evidence_: log p(y | X) in nats, of all targets in their own units.
        X_train_: the training inputs, ``[N, D]``.
        y_train_: the training targets, ``[N]``.
        y_mean_: the number subtracted from the targets.
        y_scale_: the number they were divided by.
        alpha_: K⁻¹(y − ``y_mean_``)/``y_scale_``, ``[N]``, with K the covariance of the scaled observations.
        L_: the lower Cholesky factor of K, ``[N, N]``.
        jitter_: the number added to the diagonal of K if it was not positive definite; else 0.

    References:
        C. E. Rasmussen, C. K. I. Williams. Gaussian Processes for Machine Learning. 2006, chapters 2 and 5.

    Example:
        >>> from credo.gaussian_process import GaussianProcessRegressor
        >>> from credo.gaussian_process.kernels import RBF
        >>> gp = GaussianProcessRegressor(1.0 * RBF(1.0), noise=0.1).fit([[0.0], [1.0], [2.0]], [0.0, 0.8, 0.9])
        >>> predictive = gp.predict_dist([[1.5]])  # mean, std, interval(0.95), epistemic, aleatoric
        >>> predictive.mean.shape
        torch.Size([1])
    """

    def __init__(
        self,
        kernel: Kernel | None = None,
        *,
        noise: str | float | White = "learned",
        optimizer: str | None = "fmin_l_bfgs_b",
        n_restarts_optimizer: int = 0,
        normalize_y: bool = True,
        device: str | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.kernel = kernel
        self.noise = noise
        self.optimizer = optimizer
        self.n_restarts_optimizer = n_restarts_optimizer
        self.normalize_y = normalize_y
        self.device = device
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the hyperparameters and compute the posterior of the function.

        Args:
            X: inputs, ``[N, D]``, or chunks of pairs (X, y), which are concatenated.
            y: targets, ``[N]``; ``None`` if ``X`` comes in chunks.

        Raises:
            InputError: if an argument of the constructor or the data are not valid, or N × N matrices exceed memory.
        """
        with restore_on_error(self):
            self._validate_parameters()
            blocks = list(self._training_rows(X, y, targets=check_regression_targets).blocks())
            x, targets = (torch.cat(parts) for parts in zip(*blocks, strict=True))
            _check_size(len(x), x.device)
            self._learn(x, targets)
        return self

    def predict(self, X: Any, return_std: bool = False, return_cov: bool = False) -> Any:
        """Predict the mean of every row; standard deviation and covariance are those of new observations, with noise.

        Args:
            X: inputs, ``[B, D]``.
            return_std: also return the standard deviation, as in scikit-learn.
            return_cov: also return the covariance, as in scikit-learn.

        Returns:
            The mean, ``[B]``, or a pair (mean, std ``[B]``), or a pair (mean, cov ``[B, B]``).

        Raises:
            InputError: if both ``return_std`` and ``return_cov`` are ``True``.
        """
        if return_std and return_cov:
            raise InputError("return_std and return_cov cannot both be True: the covariance contains the variances")
        if return_std:
            predictive = self.predict_dist(X)
            return predictive.mean.numpy(), predictive.std.numpy()
        rows = self._new_rows(X)
        process = self._process()
        mean = self.y_mean_ + self.y_scale_ * rows.map(process.mean, len(self.X_train_))
        if not return_cov:
            return mean
        x = torch.cat([block[0] for block in rows.blocks()])
        covariance = self.y_scale_**2 * process.covariance(x).cpu().numpy()
        return mean, covariance + self.noise_**2 * np.eye(len(x))

    def predict_dist(self, X: Any) -> ExactGaussianPredictive:
        """Predict the distribution of a new observation at every row.

        Args:
            X: inputs, ``[B, D]``.

        Returns:
            The predictive distribution, ``[B]``: ``epistemic`` is the variance of f, ``aleatoric`` that of the noise.
        """
        check_is_fitted(self)
        mean, variance = self._marginals(X, self._process())
        return ExactGaussianPredictive.of(self.y_mean_ + mean, variance, self.noise_**2)

    def decompose(self, X: Any) -> list[ExactGaussianPredictive]:
        """Predict each term of a sum of kernels separately.

        Every term is a function with prior mean 0, in units of y and without noise. The means add up to that of
        ``predict_dist`` less ``y_mean_``. The variances do not, because the terms are correlated.

        Args:
            X: inputs, ``[B, D]``.

        Returns:
            One predictive distribution ``[B]`` per term, in the order of ``kernel_.terms``.
        """
        check_is_fitted(self)
        process = self._process()
        parts = (self._marginals(X, process.term(kernel)) for kernel in self.kernel_.terms)
        return [ExactGaussianPredictive.of(mean, variance, 0.0) for mean, variance in parts]

    def sample_y(
        self,
        X: Any,
        n_samples: int = 1,
        random_state: int | np.random.RandomState | None = 0,
        *,
        noise: bool = False,
    ) -> NDArray[np.float64]:
        """Draw functions from the posterior, or from the prior before ``fit``, and evaluate them.

        Args:
            X: inputs, ``[B, D]``.
            n_samples: the number of functions.
            random_state: the seed.
            noise: whether to add observation noise.

        Returns:
            The values of the functions, ``[B, n_samples]``.

        Raises:
            InputError: if ``n_samples`` is not a positive integer.
        """
        check_integer(n_samples, "n_samples", minimum=1)
        if hasattr(self, "L_"):
            x = torch.cat([block[0] for block in self._new_rows(X).blocks()])
            process, mean, scale, sigma = self._process(), self.y_mean_, self.y_scale_, self.noise_
        else:
            self._validate_parameters()
            x = self._tensor(check_array(X))
            model = ObservationModel(self._start_kernel(x, 1.0), to_noise_kernel(self.noise, 1.0))
            process, mean, scale, sigma = GaussianProcess.prior(model.function, x), 0.0, 1.0, model.sigma
        generator = torch.Generator(x.device).manual_seed(draw_seed(random_state))
        draws = mean + scale * process.sample(x, n_samples, generator)
        if noise:
            draws += sigma * torch.randn(draws.shape, dtype=draws.dtype, device=draws.device, generator=generator)
        return draws.mT.cpu().numpy()

    def log_marginal_likelihood(self, kernel: Kernel | None = None, noise: float | None = None) -> float:
        """Compute log p(y | X) of the training data for any kernel and noise.

        Args:
            kernel: of the scaled targets, such as ``kernel_.with_theta(theta)``; ``None`` is ``kernel_``.
            noise: σ in units of y; ``None`` is ``noise_``.

        Returns:
            The log evidence in nats, of the targets in their own units.
        """
        check_is_fitted(self)
        function = self.kernel_ if kernel is None else kernel
        white = to_noise_kernel(self.noise_ if noise is None else noise, 1.0, self.y_scale_)
        solution = _solve(ObservationModel(function, white), self._tensor(self.X_train_), self._scaled_targets)
        return solution.log_evidence - len(self.y_train_) * math.log(self.y_scale_)

    def leave_one_out(self) -> ExactGaussianPredictive:
        """Predict every training row from all others, in closed form (Rasmussen & Williams 2006, equation 5.12).

        The hyperparameters are those learned from all rows.

        Returns:
            The predictive distribution of every training row, ``[N]``.
        """
        check_is_fitted(self)
        precision = torch.cholesky_inverse(self._tensor(self.L_)).diagonal()
        mean = self._scaled_targets - self._tensor(self.alpha_) / precision
        total, noise = self.y_scale_**2 / precision, self.noise_**2
        epistemic = (total - noise).clamp(min=torch.finfo(total.dtype).eps * total)
        return ExactGaussianPredictive.of((self.y_mean_ + self.y_scale_ * mean).cpu(), epistemic.cpu(), noise)

    def _learn(self, x: Tensor, y: Tensor) -> None:
        constant = bool(y.min() == y.max())  # their computed mean and deviation would contain rounding errors
        average, deviation = (float(y[0]), 1.0) if constant else (float(y.mean()), float(y.std(correction=0)))
        mean, scale = (average, deviation) if self.normalize_y else (0.0, 1.0)
        z = (y - mean) / scale
        noise = to_noise_kernel(self.noise, deviation, scale)
        model = ObservationModel(self._start_kernel(x, deviation / scale), noise)
        if self.optimizer is not None and len(model.kernel.theta):
            model = self._maximize_evidence(model, x, z)
        solution = _solve(model, x, z)
        self.kernel_, self.noise_ = model.function, scale * model.sigma
        self.y_mean_, self.y_scale_ = mean, scale
        self.X_train_, self.y_train_ = x.cpu().numpy(), y.cpu().numpy()
        self.alpha_, self.L_ = solution.alpha.cpu().numpy(), solution.cholesky.cpu().numpy()
        self.jitter_ = solution.jitter
        self.log_evidence_ = solution.log_evidence - len(y) * math.log(scale)

    def _maximize_evidence(self, model: ObservationModel, x: Tensor, z: Tensor) -> ObservationModel:
        """The model with the highest evidence; unchanged if the evidence has no maximum."""
        if not bool(z.any()):
            warnings.warn(
                "the targets are constant and equal to the mean of the process: the hyperparameters are not learned, "
                "because the evidence has no maximum as all variances go to 0",
                UserWarning,
                stacklevel=4,
            )
            return model
        start, (low, high) = check_start(model.kernel), model.kernel.bounds.T
        random = np.random.default_rng(draw_seed(self.random_state))
        restarts = random.uniform(low, high, size=(self.n_restarts_optimizer, len(start)))
        starts = [start] if self.kernel is not None else select_starts(model.kernel, x, z, start)
        best = maximize_evidence(model.kernel, x, z, [*starts, *restarts], default=self.kernel is None)
        return model.with_theta(best)

    def _validate_parameters(self) -> None:
        if self.kernel is not None and not isinstance(self.kernel, Kernel):
            raise InputError(f"kernel must be None or one of credo.gaussian_process.kernels, got {self.kernel!r}")
        if self.optimizer is not None:
            check_option(self.optimizer, "optimizer", OPTIMIZERS)
        check_integer(self.n_restarts_optimizer, "n_restarts_optimizer", minimum=0)
        white = to_noise_kernel(self.noise, 1.0)
        if self.kernel is not None and self.kernel.has_noise and white is not None and white.free:
            raise InputError(
                "kernel must not contain White if the noise is learned, because the data cannot distinguish the two: "
                "remove White, or set noise to a number (0 makes White the only noise, as part of the function)"
            )

    def _start_kernel(self, x: Tensor, deviation: float) -> Kernel:
        """The given kernel, or the default one for targets with this standard deviation."""
        if self.kernel is not None:
            return self.kernel
        variance = deviation**2
        spread = math.sqrt(x.shape[1]) * x.std(0, correction=0)
        scales: list[float] = torch.where(spread > 0.0, spread, 1.0).tolist()
        bounds = min(scales) * RELATIVE_BOUNDS[0], max(scales) * RELATIVE_BOUNDS[1]
        amplitude = Constant(variance, (DEFAULT_BOUNDS[0] * variance, DEFAULT_BOUNDS[1] * variance))
        return amplitude * RBF(tuple(scales) if len(scales) > 1 else scales[0], bounds)

    @property
    def _scaled_targets(self) -> Tensor:
        return self._tensor((self.y_train_ - self.y_mean_) / self.y_scale_)

    def _process(self) -> GaussianProcess:
        """The posterior of the scaled function."""
        arrays = (_to_shared_tensor(a, check_device(self.device)) for a in (self.X_train_, self.L_, self.alpha_))
        return GaussianProcess(self.kernel_, *arrays)

    def _marginals(self, X: Any, process: GaussianProcess) -> tuple[Tensor, Tensor]:
        """Means, less ``y_mean_``, and variances of a process at the rows of ``X`` in units of y, ``[B]`` each."""
        blocks = self._new_rows(X).blocks(len(self.X_train_))
        means, variances = zip(*(process.marginals(x) for (x,) in blocks), strict=True)
        return self.y_scale_ * torch.cat(means).cpu(), self.y_scale_**2 * torch.cat(variances).cpu()


def _solve(model: ObservationModel, x: Tensor, z: Tensor) -> Solution:
    """The solution at the hyperparameters of the kernel; warn if it needs a jitter."""
    solution = solve(model.kernel, model.kernel.theta_like(x), x, z)
    if solution.jitter:
        warnings.warn(
            f"the covariance matrix of the observations was not positive definite and {solution.jitter:.1e} was added "
            "to its diagonal, a noise variance in units of y_scale_ squared: allow for more noise",
            UserWarning,
            stacklevel=4,
        )
    return solution


def _to_shared_tensor(array: NDArray[np.float64], device: torch.device) -> Tensor:
    """A learned array on the device, without a copy if possible."""
    return torch.as_tensor(array if array.flags.writeable else array.copy(), device=device)


def _check_size(rows: int, device: torch.device) -> None:
    """Raise ``InputError`` if the matrices exceed memory, and warn if they take very long."""
    needed = _MATRICES * rows**2 * torch.float64.itemsize
    available = _memory(device)
    if needed > available:
        maximum = math.isqrt(available // (_MATRICES * torch.float64.itemsize))
        raise InputError(
            f"an exact Gaussian process of {rows} rows needs about {needed / 2**30:.0f} GiB, but the memory is "
            f"{available / 2**30:.0f} GiB: fit a sample of at most {maximum} rows"
        )
    if rows > MANY_ROWS:
        warnings.warn(
            f"an exact Gaussian process of {rows} rows takes {needed / 2**30:.0f} GiB and about {rows**3:.0e} "
            "operations per step of the search: consider a sample of the rows",
            UserWarning,
            stacklevel=3,
        )


def _memory(device: torch.device) -> int:
    """The bytes of memory of a device, free or not."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    if hasattr(os, "sysconf"):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return 2**63  # unknown
