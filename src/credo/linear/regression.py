"""Bayesian linear regression on basis functions."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from credo._arguments import check_finite_array, check_integer, check_option, check_positive
from credo._devices import check_device
from credo._estimator import ClassicalEstimator, check_regression_targets, draw_seed, restore_on_error
from credo.conjugate import GaussianBelief
from credo.em import EMFit
from credo.errors import InputError
from credo.linear._algebra import SpectralPosterior, Spectrum, SufficientStatistics, decompose, warn_if_collinear
from credo.linear._evidence import PrecisionPrior, infer_precisions, maximize_evidence
from credo.linear._relevance import RelevancePosterior, determine_relevance
from credo.linear.bases import BasisLike, compute_features, to_basis
from credo.predictive import ExactGaussianPredictive

HYPERPARAMETERS = ("evidence", "variational", "ard")


class WeightDraws(NamedTuple):
    """Draws from a posterior over linear functions.

    Attributes:
        coef: weights, ``[n, M]``; ``[n, R, M]`` for a classifier.
        intercept: ``[n]``; ``[n, R]`` for a classifier.

    Example:
        >>> from credo.linear import BayesianLinearRegression
        >>> draws = BayesianLinearRegression().fit([[0.0], [1.0], [2.0]], [0.0, 1.1, 1.9]).sample(5)
        >>> draws.coef.shape, draws.intercept.shape
        ((5, 1), (5,))
    """

    coef: NDArray[np.float64]
    intercept: NDArray[np.float64]


class BayesianLinearRegression(RegressorMixin, ClassicalEstimator):  # type: ignore[misc]
    """Linear regression on basis functions, with a posterior over the weights.

        y = b + wᵀφ(x) + ε,    w ~ N(m₀, α⁻¹S₀),    ε ~ N(0, β⁻¹)
        p(w | y) = N(m, S),    S⁻¹ = αS₀⁻¹ + βΦᵀΦ,    m = S(αS₀⁻¹m₀ + βΦᵀy)
        p(y* | x*) = N(mᵀφ*, 1/β + φ*ᵀSφ*)

    The table is reduced to M + 1 equivalent rows, block by block in one pass, so it may come in chunks and exceed
    memory. Nearly collinear features, such as powers of large numbers, keep all digits that float64 has for them; if
    too few remain, a ``LinAlgWarning`` is given.

    The intercept b has a flat prior: features and target are centered, as in scikit-learn, and predictions include the
    posterior variance 1/(Nβ) of b. The precisions and ``log_evidence_`` are those at the most probable b. With
    ``fit_intercept=False`` this is the textbook model, in which a constant is a basis function (``include_bias=True``).

    Precisions that are not given are learned. If the data do not determine them (constant targets, an exact fit), a
    Gamma prior bounds them. The default prior is too weak to matter otherwise, and equivariant: rescaling a column or
    the target only rescales the result. The noise variance is then about 2·10⁻¹²/N of the variance of the target.

    Args:
        basis: φ: a :class:`~credo.linear.Basis`, its name (``"identity"``, ``"polynomial"``, ``"gaussian"``,
            ``"sigmoidal"``, ``"fourier"``), or a function that maps ``[N, D]`` to ``[N, M]`` row by row.
        hyperparameters: ``"evidence"``: α and β maximize log p(y | α, β), the highest of all maxima.
            ``"variational"``: a factorized posterior q(w)q(α)q(β), with a lower bound on log p(y). ``"ard"``: one α per
            weight, by the evidence; irrelevant weights are exactly m₀. With fewer rows than weights it may take noise
            for signal: set ``noise_precision`` then.
        weight_precision: α; ``None``: learned, or 1 if ``prior_covariance`` is given.
        noise_precision: β; ``None``: learned.
        prior_mean: m₀, a number or ``[M]``; ``None`` is 0.
        prior_covariance: S₀, ``[M, M]``; ``None`` is the identity.
        weight_prior: shape and rate of a Gamma prior on α (not for ``"ard"``); ``None`` is a very weak one.
        noise_prior: shape and rate of a Gamma prior on β; ``None`` is a very weak one.
        fit_intercept: whether to fit an intercept b.
        max_iter: the maximum number of iterations for the precisions.
        tol: stop when an iteration raises the objective by less than this, in nats.
        device: where torch computes, such as ``"cuda"``; ``None`` is the CPU.
        random_state: seeds ``sample`` and ``sample_y``.

    Attributes:
        coef_: m, ``[M]``.
        intercept_: the mean of b.
        sigma_: S, ``[M, M]``; 0 for weights that ARD leaves out.
        X_offset_, y_offset_: subtracted from the features ``[M]`` and the target; 0 without an intercept.
        intercept_variance_: 1/(Nβ), the variance of b at the features ``X_offset_``; independent of the weights.
        weight_precision_: α, or E[α]; ``[M]`` for ``"ard"``, infinite for weights that are left out.
        noise_precision_: β, or E[β].
        effective_parameters_: γ, the number of weights that the data determine.
        log_evidence_: log p(y | α, β); ``None`` for ``"variational"``.
        lower_bound_: the maximized objective: the log evidence plus the log density of the priors at (log α, log β), or
            the variational bound.
        relevant_: mask of the weights in the model, ``[M]``.
        basis_: φ, with everything set that depends on the range of the data.
        statistics_: the sufficient statistics of all rows, which ``partial_fit`` adds to.
        n_iter_, converged_, lower_bounds_: the iterations for the precisions.

    References:
        C. M. Bishop. Pattern Recognition and Machine Learning. 2006, sections 3.3, 3.5, 7.2 and 10.3.
        D. J. C. MacKay. Bayesian interpolation. Neural Computation, 1992.

    Example:
        >>> from credo.linear import BayesianLinearRegression, Polynomial
        >>> model = BayesianLinearRegression(Polynomial(2)).fit([[0.0], [1.0], [2.0], [3.0]], [0.1, 1.0, 3.9, 9.1])
        >>> predictive = model.predict_dist([[4.0]])  # mean, std, interval(0.95), epistemic, aleatoric
        >>> predictive.mean.shape
        torch.Size([1])
    """

    def __init__(
        self,
        basis: BasisLike = "identity",
        *,
        hyperparameters: Literal["evidence", "variational", "ard"] = "evidence",
        weight_precision: float | None = None,
        noise_precision: float | None = None,
        prior_mean: ArrayLike | None = None,
        prior_covariance: ArrayLike | None = None,
        weight_prior: tuple[float, float] | None = None,
        noise_prior: tuple[float, float] | None = None,
        fit_intercept: bool = True,
        max_iter: int = 1000,
        tol: float = 1e-12,
        device: str | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.basis = basis
        self.hyperparameters = hyperparameters
        self.weight_precision = weight_precision
        self.noise_precision = noise_precision
        self.prior_mean = prior_mean
        self.prior_covariance = prior_covariance
        self.weight_prior = weight_prior
        self.noise_prior = noise_prior
        self.fit_intercept = fit_intercept
        self.max_iter = max_iter
        self.tol = tol
        self.device = device
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit the posterior of the weights and the precisions.

        Args:
            X: inputs, ``[N, D]``, or chunks of pairs (X, y).
            y: targets, ``[N]``; ``None`` if ``X`` comes in chunks.

        Raises:
            InputError: if an argument of the constructor, the basis or the data are not valid.
        """
        with restore_on_error(self):
            self._validate_parameters()
            rows = self._training_rows(X, y, targets=check_regression_targets)
            self.basis_ = to_basis(self.basis)._fitted(rows)
            self._basis_of_statistics = self.basis
            self._record(self._fit_statistics(SufficientStatistics.from_rows(rows, self.basis_)))
        return self

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Add further rows: the result is that of one ``fit`` on all rows so far.

        Learned precisions are learned again from all rows. A basis that depends on the range of the data keeps the
        range of the first rows.

        Args:
            X: inputs, ``[N, D]``, or chunks of pairs (X, y).
            y: targets, ``[N]``; ``None`` if ``X`` comes in chunks.

        Raises:
            InputError: as in ``fit``, and if ``basis`` has changed since the first call.
        """
        if not hasattr(self, "statistics_"):
            return self.fit(X, y)
        before = getattr(self, "_basis_of_statistics", self.basis)
        if self.basis is not before and repr(to_basis(self.basis)) != repr(to_basis(before)):
            raise InputError(f"basis is {self.basis!r}, but earlier rows were fitted with {before!r}: call fit instead")
        with restore_on_error(self):
            self._validate_parameters()
            rows = self._training_rows(X, y, targets=check_regression_targets, reset=False)
            new = SufficientStatistics.from_rows(rows, self.basis_)
            self._record(self._fit_statistics(self.statistics_.to(rows.device) + new))
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Predict the mean of every row.

        Args:
            X: inputs, ``[N, D]``.
            return_std: also return the standard deviation of a new observation, as in scikit-learn.

        Returns:
            The mean, ``[N]``, or a pair (mean, std).
        """
        if not return_std:
            rows, coef = self._new_rows(X), self._tensor(self.coef_)
            return rows.map(lambda x: self._features(x) @ coef + self.y_offset_, len(coef))
        predictive = self.predict_dist(X)
        return predictive.mean.numpy(), predictive.std.numpy()

    def predict_dist(self, X: Any) -> ExactGaussianPredictive:
        """Predict the distribution N(y | mᵀφ, 1/β + φᵀSφ) of every row.

        Args:
            X: inputs, ``[N, D]``.

        Returns:
            The predictive distribution, ``[N]``: ``aleatoric`` is 1/β, ``epistemic`` the rest of the variance.
        """
        check_is_fitted(self)
        coef, posterior, relevant = self._tensor(self.coef_), self.posterior, self._relevant

        def mean_and_variance(x: Tensor) -> Tensor:
            features = self._features(x)
            variance = posterior.variance_along(features[:, relevant]) + self.intercept_variance_
            return torch.stack((features @ coef + self.y_offset_, variance), dim=1)

        mean, epistemic = torch.from_numpy(self._new_rows(X).map(mean_and_variance, len(coef))).unbind(1)
        return ExactGaussianPredictive.of(mean, epistemic, 1.0 / self.noise_precision_)

    @property
    def posterior(self) -> GaussianBelief:
        """p(w | y) of the relevant weights; the intercept of the centered features is independent of them."""
        check_is_fitted(self)
        return GaussianBelief(self._tensor(self.coef_)[self._relevant], self._tensor(self.precision_cholesky_))

    def sample(self, n_samples: int = 1) -> WeightDraws:
        """Draw weights and intercepts from the posterior.

        Args:
            n_samples: the number of draws.

        Returns:
            The draws; the same ones at every call if ``random_state`` is an integer.

        Raises:
            InputError: if ``n_samples`` is not a positive integer.
        """
        check_integer(n_samples, "n_samples", minimum=1)
        posterior = self.posterior
        generator = torch.Generator(posterior.mean.device).manual_seed(draw_seed(self.random_state))
        coef = self._tensor(self.coef_).expand(n_samples, -1).clone()
        coef[:, self._relevant] = posterior.sample(n_samples, generator)
        noise = torch.randn(n_samples, generator=generator, dtype=coef.dtype, device=coef.device)
        center = self.y_offset_ + math.sqrt(self.intercept_variance_) * noise
        intercept = center - coef @ self._tensor(self.X_offset_)
        return WeightDraws(coef.cpu().numpy(), intercept.cpu().numpy())

    def sample_y(self, X: Any, n_samples: int = 1) -> NDArray[np.float64]:
        """Draw functions from the posterior and evaluate them, without noise; their weights are those of ``sample``.

        Args:
            X: inputs, ``[N, D]``.
            n_samples: the number of functions.

        Returns:
            The values of the functions, ``[N, n_samples]``.
        """
        draws = self.sample(n_samples)
        coef = self._tensor(draws.coef)
        center = self._tensor(draws.intercept) + coef @ self._tensor(self.X_offset_)
        return self._new_rows(X).map(lambda x: self._features(x) @ coef.mT + center, max(coef.shape))

    @property
    def _relevant(self) -> Tensor:
        return torch.as_tensor(self.relevant_, device=check_device(self.device))

    def _features(self, x: Tensor) -> Tensor:
        return compute_features(self.basis_, x) - self._tensor(self.X_offset_)

    def _fit_statistics(self, statistics: SufficientStatistics) -> EMFit[Any, Any]:
        """Learn everything from the statistics of all rows."""
        if statistics.count == 1 and self.fit_intercept and self.noise_precision is None:
            raise InputError("1 sample does not determine noise and intercept: add rows, or set noise_precision")
        mean, factor = self._prior(statistics.mean)
        table = statistics.to_table(centered=self.fit_intercept)
        determined, spectrum = decompose(table.transform(mean, factor))
        weight_prior, noise_prior = self._precision_priors(spectrum, float(statistics.mean[-1]))
        options: dict[str, Any] = {"tolerance": self.tol, "max_iter": self.max_iter}
        fit: EMFit[Any, RelevancePosterior] | EMFit[Any, SpectralPosterior]
        if self.hyperparameters == "ard":
            fit = determine_relevance(determined, noise_prior, **options)
            ard = fit.expectation.statistics
            posterior, relevant = ard.weights, ard.relevant
            self.weight_precision_: float | NDArray[np.float64] = ard.weight_precisions.cpu().numpy()
        else:
            learn = maximize_evidence if self.hyperparameters == "evidence" else infer_precisions
            fit = learn(spectrum, weight_prior, noise_prior, **options)
            shared = fit.expectation.statistics
            posterior, relevant = shared.to_weights(determined, factor), torch.ones_like(mean, dtype=torch.bool)
            self.weight_precision_ = shared.weight_precision
        found = fit.expectation.statistics
        coef = mean.clone()
        coef[relevant] += posterior.mean
        sigma = coef.new_zeros(len(coef), len(coef))
        sigma[torch.outer(relevant, relevant)] = posterior.covariance.flatten()
        warn_if_collinear(table.evidence_rounding(coef, sigma.diagonal(), found.noise_precision))

        self.noise_precision_ = found.noise_precision
        self.effective_parameters_ = found.effective_parameters
        self.log_evidence_ = None if self.hyperparameters == "variational" else found.log_evidence
        self.statistics_ = statistics.to(torch.device("cpu"))
        self.X_offset_ = float(self.fit_intercept) * self.statistics_.mean[:-1].numpy()
        self.y_offset_ = float(self.fit_intercept) * float(statistics.mean[-1])
        self.coef_, self.sigma_ = coef.cpu().numpy(), sigma.cpu().numpy()
        self.intercept_ = self.y_offset_ - float(self.coef_ @ self.X_offset_)
        self.intercept_variance_ = float(self.fit_intercept) / (statistics.count * self.noise_precision_)
        self.precision_cholesky_ = posterior.cholesky.cpu().numpy()
        self.relevant_ = relevant.cpu().numpy()
        return fit

    def _precision_priors(self, spectrum: Spectrum, target_mean: float) -> tuple[PrecisionPrior, PrecisionPrior]:
        """The priors of α and β; by default prior functions and noise have about the variance of the target."""
        variance = spectrum.total / spectrum.count or target_mean**2 or 1.0
        alpha = (float(spectrum.scales @ spectrum.scales) / spectrum.count or 1.0) / variance
        fixed = 1.0 if self.weight_precision is None and self.prior_covariance is not None else self.weight_precision
        return (
            PrecisionPrior.from_arguments(fixed, self.weight_prior, alpha),
            PrecisionPrior.from_arguments(self.noise_precision, self.noise_prior, 1.0 / variance),
        )

    def _prior(self, like: Tensor) -> tuple[Tensor, Tensor | None]:
        """m₀ ``[M]`` and the Cholesky factor of S₀, ``None`` for the identity, on the device of ``like [M + 1]``."""
        size = len(like) - 1
        mean = np.zeros(size) if self.prior_mean is None else check_finite_array(self.prior_mean, "prior_mean")
        if mean.shape not in ((), (size,)):
            raise InputError(f"prior_mean must be a number or of shape [{size}], got {list(mean.shape)}")
        if self.prior_covariance is None:
            return like.new_tensor(mean).expand(size), None
        covariance = check_finite_array(self.prior_covariance, "prior_covariance")
        if covariance.shape != (size, size) or not np.allclose(covariance, covariance.T):
            raise InputError(f"prior_covariance must be symmetric, [{size}, {size}], got {list(covariance.shape)}")
        factor, failed = torch.linalg.cholesky_ex(like.new_tensor(covariance))
        if bool(failed):
            raise InputError("prior_covariance must be positive definite: give every direction some variance")
        return like.new_tensor(mean).expand(size), factor

    def _validate_parameters(self) -> None:
        check_option(self.hyperparameters, "hyperparameters", HYPERPARAMETERS)
        for name in ("weight_precision", "noise_precision"):
            if getattr(self, name) is not None:
                check_positive(getattr(self, name), name)
        for name in ("weight_prior", "noise_prior"):
            prior = getattr(self, name)
            if prior is not None:
                if np.shape(prior) != (2,):
                    raise InputError(f"{name} must be None or a pair (shape, rate), got {prior!r}")
                check_positive(prior[0], f"the shape of {name}")
                check_positive(prior[1], f"the rate of {name}")
        if self.hyperparameters == "ard" and (self.weight_precision is not None or self.prior_covariance is not None):
            raise InputError(
                "hyperparameters='ard' learns a precision for every weight: remove weight_precision and "
                "prior_covariance"
            )
