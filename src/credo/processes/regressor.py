"""``GaussianProcessRegressor``: a distribution over functions, conditioned on data in closed form."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.utils import check_array, column_or_1d
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from credo._devices import check_device
from credo._estimator import ClassicalEstimator, as_before_on_failure, draw_seed
from credo.errors import InputError, unknown_name
from credo.predictive import ExactGaussianPredictive
from credo.processes.evidence import Solution, maximize, promising, solve
from credo.processes.kernels import RBF, Constant, Kernel, White
from credo.processes.kernels.base import WIDE
from credo.processes.observed import Observed, white_noise
from credo.processes.process import GaussianProcess

MANY_ROWS = 20_000
OPTIMIZERS = ("fmin_l_bfgs_b",)
RELATIVE_BOUNDS = (1e-3, 1e3)
"""Between which the length scales of the default kernel are searched, in units of their start."""
LENGTH_SCALES, NOISES = (0.1, 0.3, 1.0, 3.0), (0.1, 1.0)
"""Other starts of the default kernel, in units of the first."""
_MATRICES = 4  # of size N × N that fitting holds at once


class GaussianProcessRegressor(RegressorMixin, ClassicalEstimator):  # type: ignore[misc]
    """Regression with a Gaussian process prior, f ~ GP(m, k), y = f(x) + ε, ε ~ N(0, σ²): exact, in O(N³).

        from credo.processes.kernels import RBF, Periodic

        gp = GaussianProcessRegressor(1.0 * RBF(10.0) + RBF(50.0) * Periodic(period=1.0)).fit(X, y)
        p = gp.predict_dist(X_new)
        p.mean, p.interval(0.95), p.epistemic, p.aleatoric

    One rule divides the uncertainty: the kernel describes the function, and what the belief about the function leaves
    open is epistemic; ``noise`` is added to every observation and is aleatoric. A ``White`` kernel in ``kernel`` is
    part of the function, then; beside a learned noise, from which no data could tell it, it is refused.

    The hyperparameters are those that maximize the evidence log p(y | X) (type II maximum likelihood), found by
    L-BFGS-B in their logarithms with gradients by autograd.

    Args:
        kernel: k, of the targets in standard deviations where ``normalize_y``. By default a constant, which starts at
            the variance of the targets, times an RBF with a length scale for each feature, which starts at √D of its
            standard deviations, so that two rows are typically neither alike nor strangers. A second search starts from
            the best of other values, for faster and slower functions and for less noise.
        noise: σ. ``"learned"``, with the hyperparameters; a number, the standard deviation in units of y, which is
            kept (0 interpolates); or ``White(start, bounds)``, learned from that start, in units of y too.
        optimizer: ``"fmin_l_bfgs_b"``, or ``None`` to keep the hyperparameters as given.
        n_restarts_optimizer: further searches, from hyperparameters drawn log-uniformly within their bounds. A kernel
            that is given is searched from its own values only, unless there are some.
        normalize_y: subtract the mean of y, which becomes that of the process, and divide by its standard deviation.
            Without it the process has mean 0.
        device: where to compute, such as ``"cuda"``.
        random_state: makes the restarts reproducible.

    Attributes:
        kernel_: with the learned hyperparameters, of (y − ``y_mean_``)/``y_scale_``.
        noise_: σ, a standard deviation in units of y.
        log_evidence_: log p(y | X) in nats, of all targets in their own units.
        X_train_: the rows that were learned from, ``[N, D]``.
        y_train_: their targets, ``[N]``.
        y_mean_: what was subtracted from the targets.
        y_scale_: what they were divided by.
        alpha_: K⁻¹(y − ``y_mean_``)/``y_scale_``, ``[N]``, with K the covariance of the scaled observations.
        L_: the lower Cholesky factor of K, ``[N, N]``.
        jitter_: what was added to the diagonal of K because it could not be factorized; usually 0.

    References:
        C. E. Rasmussen, C. K. I. Williams. Gaussian Processes for Machine Learning. 2006, chapters 2 and 5.
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

    def fit(self, X: Any, y: Any = None) -> GaussianProcessRegressor:
        """Learn the hyperparameters from ``X [N, D]`` and ``y [N]`` and condition on them.

        Chunks of (X, y) are joined: an exact process needs all rows at once.
        """
        with as_before_on_failure(self):
            self._check_parameters()
            blocks = list(self._training_rows(X, y, targets=_targets).blocks())
            x, targets = (torch.cat(parts) for parts in zip(*blocks, strict=True))
            _check_size(len(x), x.device)
            self._learn(x, targets)
        return self

    def predict(self, X: Any, return_std: bool = False, return_cov: bool = False) -> Any:
        """The mean of every row, ``[B]``; as in scikit-learn, a pair with the standard deviations or the covariance.

        Both are of new observations, noise included: ``std`` is that of ``predict_dist``, ``cov [B, B]`` has its
        squares on the diagonal.
        """
        if return_std and return_cov:
            raise InputError("return_std and return_cov cannot both be True: the covariance holds the deviations")
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
        """What is believed of a new observation at every row: the mean of f, its variance and the noise."""
        check_is_fitted(self)
        mean, variance = self._marginals(X, self._process())
        return ExactGaussianPredictive.of(self.y_mean_ + mean, variance, self.noise_**2)

    def decompose(self, X: Any) -> list[ExactGaussianPredictive]:
        """What is believed of each term of a sum of kernels on its own, in the order of ``kernel_.terms``.

        Every term is a function with mean 0 before the data, in units of y and without noise; the means add up to that
        of ``predict_dist`` less ``y_mean_``. The variances do not: what one term might explain, another might.
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
        """Draws of the function at ``X``, from the posterior, or from the prior before ``fit``, ``[B, n_samples]``.

        Args:
            X: where.
            n_samples: how many functions.
            random_state: makes them reproducible.
            noise: whether to add the noise of observations.
        """
        _check_count("n_samples", n_samples, 1)
        if hasattr(self, "L_"):
            x = torch.cat([block[0] for block in self._new_rows(X).blocks()])
            process, mean, scale, sigma = self._process(), self.y_mean_, self.y_scale_, self.noise_
        else:
            self._check_parameters()
            x = self._tensor(check_array(X))
            observed = Observed(self._start_kernel(x, 1.0), white_noise(self.noise, 1.0))
            process, mean, scale, sigma = GaussianProcess.prior(observed.function, x), 0.0, 1.0, observed.sigma
        generator = torch.Generator(x.device).manual_seed(draw_seed(random_state))
        draws = mean + scale * process.sample(x, n_samples, generator)
        if noise:
            draws += sigma * torch.randn(draws.shape, dtype=draws.dtype, device=draws.device, generator=generator)
        return draws.mT.cpu().numpy()

    def log_marginal_likelihood(self, kernel: Kernel | None = None, noise: float | None = None) -> float:
        """log p(y | X) of the training data in nats, in units of y, under another kernel or noise than the learned.

        Args:
            kernel: of the scaled targets, such as ``kernel_.with_theta(theta)``; ``None`` is ``kernel_``.
            noise: σ in units of y; ``None`` is ``noise_``.
        """
        check_is_fitted(self)
        function = self.kernel_ if kernel is None else kernel
        white = white_noise(self.noise_ if noise is None else noise, 1.0, self.y_scale_)
        solution = _solved(Observed(function, white), self._tensor(self.X_train_), self._scaled_targets)
        return solution.log_evidence - len(self.y_train_) * math.log(self.y_scale_)

    def leave_one_out(self) -> ExactGaussianPredictive:
        """Every training row as predicted from all others, in closed form (Rasmussen & Williams 2006, equation 5.12).

        The hyperparameters stay those learned from all rows.
        """
        check_is_fitted(self)
        precision = torch.cholesky_inverse(self._tensor(self.L_)).diagonal()
        mean = self._scaled_targets - self._tensor(self.alpha_) / precision
        total, noise = self.y_scale_**2 / precision, self.noise_**2
        epistemic = (total - noise).clamp(min=torch.finfo(total.dtype).eps * total)
        return ExactGaussianPredictive.of((self.y_mean_ + self.y_scale_ * mean).cpu(), epistemic.cpu(), noise)

    def _learn(self, x: Tensor, y: Tensor) -> None:
        constant = bool(y.min() == y.max())  # whose mean and deviation would be those of rounding
        average, deviation = (float(y[0]), 1.0) if constant else (float(y.mean()), float(y.std(correction=0)))
        mean, scale = (average, deviation) if self.normalize_y else (0.0, 1.0)
        z = (y - mean) / scale
        observed = Observed(self._start_kernel(x, deviation / scale), white_noise(self.noise, deviation, scale))
        if self.optimizer is not None and len(observed.kernel.theta):
            observed = self._maximized(observed, x, z)
        solution = _solved(observed, x, z)
        self.kernel_, self.noise_ = observed.function, scale * observed.sigma
        self.y_mean_, self.y_scale_ = mean, scale
        self.X_train_, self.y_train_ = x.cpu().numpy(), y.cpu().numpy()
        self.alpha_, self.L_ = solution.alpha.cpu().numpy(), solution.cholesky.cpu().numpy()
        self.jitter_ = solution.jitter
        self.log_evidence_ = solution.log_evidence - len(y) * math.log(scale)

    def _maximized(self, observed: Observed, x: Tensor, z: Tensor) -> Observed:
        """The hyperparameters with the highest evidence; unchanged where there is none."""
        if not bool(z.any()):
            warnings.warn(
                "the targets do not vary around the mean of the process: the hyperparameters stay as they are, since "
                "the evidence grows without end as all variances go to 0",
                UserWarning,
                stacklevel=4,
            )
            return observed
        start, (low, high) = _checked_start(observed.kernel), observed.kernel.bounds.T
        random = np.random.default_rng(draw_seed(self.random_state))
        further = random.uniform(low, high, size=(self.n_restarts_optimizer, len(start)))
        starts = [start]
        if self.kernel is None:
            starts = promising(observed.kernel, x, z, [start, *_others(observed.kernel, start)])
        return observed.with_theta(maximize(observed.kernel, x, z, [*starts, *further]))

    def _check_parameters(self) -> None:
        if self.kernel is not None and not isinstance(self.kernel, Kernel):
            raise InputError(f"kernel must be None or one of credo.processes.kernels, got {self.kernel!r}")
        if self.optimizer is not None and self.optimizer not in OPTIMIZERS:
            raise unknown_name("optimizer", self.optimizer, OPTIMIZERS)
        _check_count("n_restarts_optimizer", self.n_restarts_optimizer, 0)
        white = white_noise(self.noise, 1.0)
        if self.kernel is not None and self.kernel.has_noise and white is not None and white.free:
            raise InputError(
                "kernel must not hold White beside a learned noise, since no data can tell the two apart: leave White "
                "out, or give noise as a number (0 makes White the only noise, as part of the function)"
            )

    def _start_kernel(self, x: Tensor, deviation: float) -> Kernel:
        """The given kernel, or the default one for targets with this standard deviation."""
        if self.kernel is not None:
            return self.kernel
        variance = deviation**2
        spread = math.sqrt(x.shape[1]) * x.std(0, correction=0)
        scales: list[float] = torch.where(spread > 0.0, spread, 1.0).tolist()
        bounds = min(scales) * RELATIVE_BOUNDS[0], max(scales) * RELATIVE_BOUNDS[1]
        amplitude = Constant(variance, (WIDE[0] * variance, WIDE[1] * variance))
        return amplitude * RBF(tuple(scales) if len(scales) > 1 else scales[0], bounds)

    @property
    def _scaled_targets(self) -> Tensor:
        return self._tensor((self.y_train_ - self.y_mean_) / self.y_scale_)

    def _process(self) -> GaussianProcess:
        """The posterior of the scaled function."""
        learned = (_shared(a, check_device(self.device)) for a in (self.X_train_, self.L_, self.alpha_))
        return GaussianProcess(self.kernel_, *learned)

    def _marginals(self, X: Any, process: GaussianProcess) -> tuple[Tensor, Tensor]:
        """Means and variances of a process at the rows of ``X`` in units of y, around 0, ``[B]`` each."""
        blocks = self._new_rows(X).blocks(len(self.X_train_))
        means, variances = zip(*(process.marginals(x) for (x,) in blocks), strict=True)
        return self.y_scale_ * torch.cat(means).cpu(), self.y_scale_**2 * torch.cat(variances).cpu()


def _targets(y: Any) -> NDArray[np.float64]:
    values: NDArray[np.float64] = column_or_1d(y, dtype=np.float64, warn=True)
    return values


def _solved(observed: Observed, x: Tensor, z: Tensor) -> Solution:
    """The solution at the hyperparameters of the kernel; a jitter is said."""
    solution = solve(observed.kernel, observed.kernel.theta_on(x), x, z)
    if solution.jitter:
        warnings.warn(
            f"the covariance matrix of the observations was not positive definite and {solution.jitter:.1e} was added "
            "to its diagonal, a variance of noise in units of y_scale_ squared: allow for more noise",
            UserWarning,
            stacklevel=4,
        )
    return solution


def _check_count(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise InputError(f"{name} must be an integer of at least {least}, got {value!r}")


def _shared(array: NDArray[np.float64], device: torch.device) -> Tensor:
    """A learned array on the device, without a copy where none is needed."""
    return torch.as_tensor(array if array.flags.writeable else array.copy(), device=device)


def _checked_start(kernel: Kernel) -> NDArray[np.float64]:
    """θ, which must lie within its bounds; the rounding of a kernel that came from a search is forgiven."""
    theta, (low, high) = kernel.theta, kernel.bounds.T
    within = np.clip(theta, low, high)
    for name, k in ((h.name, k) for k, h in enumerate(h for h in kernel.free for _ in h.values)):
        if abs(theta[k] - within[k]) > 1e-9:
            raise InputError(
                f"{name} must start within its bounds {math.exp(low[k]):.4g} to {math.exp(high[k]):.4g}, "
                f"got {math.exp(theta[k]):.4g}: widen {name}_bounds, or fix it"
            )
    return within


def _others(kernel: Kernel, start: NDArray[np.float64]) -> Iterator[NDArray[np.float64]]:
    """Further starts of a search, with functions that vary faster or more slowly, and with less noise."""
    names = np.array([h.name for h in kernel.free for _ in h.values])
    for length_scale, noise in product(LENGTH_SCALES, NOISES):
        if (length_scale, noise) != (1.0, 1.0):
            factors = np.where(names == "length_scale", length_scale, np.where(names == "noise", noise, 1.0))
            yield np.clip(start + np.log(factors), *kernel.bounds.T)


def _check_size(rows: int, device: torch.device) -> None:
    """Raise ``InputError`` for more rows than memory can hold, and warn of hours of work."""
    needed = _MATRICES * rows**2 * torch.float64.itemsize
    there = _memory(device)
    if needed > there:
        most = math.isqrt(there // (_MATRICES * torch.float64.itemsize))
        raise InputError(
            f"an exact Gaussian process of {rows} rows needs about {needed / 2**30:.0f} GiB, and there are "
            f"{there / 2**30:.0f}: fit a sample of at most {most} rows"
        )
    if rows > MANY_ROWS:
        warnings.warn(
            f"an exact Gaussian process of {rows} rows takes {needed / 2**30:.0f} GiB and some {rows**3:.0e} "
            "operations a step of the search: consider a sample of the rows",
            UserWarning,
            stacklevel=4,
        )


def _memory(device: torch.device) -> int:
    """The bytes of memory of a device, free or not."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    if hasattr(os, "sysconf"):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return 2**63  # not known
