"""``BayesianLinearRegression``: a Gaussian belief about the weights of any features."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_array, check_is_fitted, column_or_1d
from torch import Tensor

from credo._devices import check_device
from credo._estimator import ClassicalEstimator, as_before_on_failure, draw_seed
from credo.conjugate import GaussianBelief
from credo.em import EMFit
from credo.errors import InputError, unknown_name
from credo.linear._learning import SEARCHES, Search
from credo.linear._moments import Moments, ReducedTable
from credo.linear._precisions import precision_prior
from credo.linear._spectrum import decompose
from credo.linear.bases import BasisLike, as_basis, checked_features, warn_of_rounding
from credo.linear.evidence import Precisions
from credo.predictive import ExactGaussianPredictive


class WeightDraws(NamedTuple):
    """Draws from a posterior over linear functions.

    Attributes:
        coef: weights, ``[n, M]``.
        intercept: ``[n]``.
    """

    coef: NDArray[np.float64]
    intercept: NDArray[np.float64]


class BayesianLinearRegression(RegressorMixin, ClassicalEstimator):  # type: ignore[misc]
    """Linear regression on basis functions, with a posterior over the weights.

        y = b + wᵀφ(x) + ε,    w ~ N(m₀, α⁻¹S₀),    ε ~ N(0, β⁻¹)
        p(w | y) = N(m, S),    S⁻¹ = αS₀⁻¹ + βΦᵀΦ,    m = S(αS₀⁻¹m₀ + βΦᵀy)
        p(y* | x*) = N(mᵀφ*, 1/β + φ*ᵀSφ*)

    The table is reduced to M + 1 rows that say the same, in blocks and in one pass; it may come in chunks and exceed
    memory. Features that are nearly linear combinations of one another, such as powers of large numbers, keep all
    digits that float64 has for them; where too few remain, a ``LinAlgWarning`` is given.

    The intercept b has a flat prior: features and target are centered, as in scikit-learn, and predictions carry the
    variance 1/(Nβ) that is left of b. The precisions and ``log_evidence_`` are those at the most probable b.
    With ``fit_intercept=False`` everything is the textbook's model, in which a constant is a basis function like any
    other (``include_bias=True``).

    A precision that is given stays; the others are learned. Where the data determine none (constant targets, an exact
    fit), a Gamma prior bounds them, by default one so weak that it acts in no other case and that rescaling a column
    or the target only rescales the answer: the noise variance is then about 2·10⁻¹²/N of the variance of the target.

    Args:
        basis: φ: a :class:`~credo.linear.Basis`, its name (``"identity"``, ``"polynomial"``, ``"gaussian"``,
            ``"sigmoidal"``, ``"fourier"``), or a function from ``[N, D]`` to ``[N, M]`` that maps each row by itself.
        hyperparameters: ``"evidence"``: α and β maximize log p(y | α, β), found among all its maxima.
            ``"variational"``: beliefs q(α), q(β) by a factorized posterior, with a lower bound on log p(y). ``"ard"``:
            one α for every weight, by the evidence; weights that explain nothing are exactly m₀. With fewer rows than
            weights it may take noise for signal: give ``noise_precision`` then.
        weight_precision: α; ``None``: learned, or 1 where ``prior_covariance`` is given.
        noise_precision: β; ``None``: learned.
        prior_mean: m₀, a number or ``[M]``.
        prior_covariance: S₀, ``[M, M]``; ``None`` is the identity.
        weight_prior: shape and rate of a Gamma prior on α (not for ``"ard"``).
        noise_prior: shape and rate of a Gamma prior on β.
        fit_intercept: whether there is a b.
        max_iter: the most steps in search of the precisions.
        tol: the least gain of the objective, in nats, that is worth another step.
        device: where the sums are made, such as ``"cuda"``.
        random_state: seeds ``sample`` and ``sample_y``.

    Attributes:
        coef_: m, ``[M]``.
        intercept_: the mean of b.
        sigma_: S, ``[M, M]``; 0 for weights that ARD leaves out.
        X_offset_, y_offset_: what is taken from features ``[M]`` and target; 0 without an intercept.
        intercept_variance_: 1/(Nβ), of the function where the features are ``X_offset_``; independent of the weights.
        weight_precision_: α, or E[α]; ``[M]`` for ``"ard"``, infinite for weights that are left out.
        noise_precision_: β, or E[β].
        effective_parameters_: γ, how many weights the data determine.
        log_evidence_: log p(y | α, β); ``None`` for ``"variational"``.
        lower_bound_: what was maximized: the log evidence and the log density of the precisions' priors at (log α,
            log β), or the variational bound.
        relevant_: which weights are in the model, ``[M]``.
        basis_: φ, with what depends on the range of the data filled in.
        moments_: what is kept of the rows.
        n_iter_, converged_, lower_bounds_: how the search went.

    References:
        C. M. Bishop. Pattern Recognition and Machine Learning. 2006, sections 3.3, 3.5, 7.2 and 10.3.
        D. J. C. MacKay. Bayesian interpolation. Neural Computation, 1992.
    """

    def __init__(
        self,
        basis: BasisLike = "identity",
        *,
        hyperparameters: str = "evidence",
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

    def fit(self, X: Any, y: Any = None) -> BayesianLinearRegression:
        """Learn from ``X [N, D]`` and ``y [N]``, or from chunks of pairs (X, y) in place of ``X``."""
        with as_before_on_failure(self):
            self._check()
            rows = self._training_rows(X, y, targets=_real)
            self.basis_ = as_basis(self.basis).placed(rows)
            self._basis_of_moments = self.basis
            self._record(self._learn(Moments.of(rows, self.basis_)))
        return self

    def partial_fit(self, X: Any, y: Any = None) -> BayesianLinearRegression:
        """Learn from further rows: the result is that of one ``fit`` on all rows so far.

        Precisions that are learned are learned anew from all rows. A basis that depends on the range of the data keeps
        the range of the first rows.
        """
        if not hasattr(self, "moments_"):
            return self.fit(X, y)
        before = getattr(self, "_basis_of_moments", self.basis)
        if self.basis is not before and repr(as_basis(self.basis)) != repr(as_basis(before)):
            raise InputError(
                f"basis is {self.basis!r}, but earlier rows were learned from with {before!r}: call fit to begin anew"
            )
        with as_before_on_failure(self):
            self._check()
            rows = self._training_rows(X, y, targets=_real, reset=False)
            self._record(self._learn(self.moments_.to(rows.device) + Moments.of(rows, self.basis_)))
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The mean of every row, ``[N]``; with ``return_std=True``, as scikit-learn has it, a pair (mean, std)."""
        if not return_std:
            rows, coef = self._new_rows(X), self._tensor(self.coef_)
            return rows.map(lambda x: self._features(x) @ coef + self.y_offset_, len(coef))
        predictive = self.predict_dist(X)
        return predictive.mean.numpy(), predictive.std.numpy()

    def predict_dist(self, X: Any) -> ExactGaussianPredictive:
        """N(y | mᵀφ, 1/β + φᵀSφ) of every row, ``[N]``: ``aleatoric`` is 1/β, ``epistemic`` the rest."""
        check_is_fitted(self)
        coef, posterior, relevant = self._tensor(self.coef_), self.posterior, self._relevant

        def moments(x: Tensor) -> Tensor:
            features = self._features(x)
            variance = posterior.variance_along(features[:, relevant]) + self.intercept_variance_
            return torch.stack((features @ coef + self.y_offset_, variance), dim=1)

        mean, epistemic = torch.from_numpy(self._new_rows(X).map(moments, len(coef))).unbind(1)
        return ExactGaussianPredictive.of(mean, epistemic, 1.0 / self.noise_precision_)

    @property
    def posterior(self) -> GaussianBelief:
        """p(w | y) of the relevant weights; the intercept of the centered features is independent of them."""
        check_is_fitted(self)
        return GaussianBelief(self._tensor(self.coef_)[self._relevant], self._tensor(self.precision_cholesky_))

    def sample(self, n_samples: int = 1) -> WeightDraws:
        """Weights and intercepts from the posterior; a fixed ``random_state`` gives the same ones at every call."""
        if n_samples < 1:
            raise InputError(f"n_samples must be at least 1, got {n_samples}")
        posterior = self.posterior
        generator = torch.Generator(posterior.mean.device).manual_seed(draw_seed(self.random_state))
        coef = self._tensor(self.coef_).expand(n_samples, -1).clone()
        coef[:, self._relevant] = posterior.sample(n_samples, generator)
        noise = torch.randn(n_samples, generator=generator, dtype=coef.dtype, device=coef.device)
        center = self.y_offset_ + math.sqrt(self.intercept_variance_) * noise
        intercept = center - coef @ self._tensor(self.X_offset_)
        return WeightDraws(coef.cpu().numpy(), intercept.cpu().numpy())

    def sample_y(self, X: Any, n_samples: int = 1) -> NDArray[np.float64]:
        """Functions from the posterior at ``X``, without noise, ``[N, n_samples]``; those of ``sample``."""
        draws = self.sample(n_samples)
        coef = self._tensor(draws.coef)
        center = self._tensor(draws.intercept) + coef @ self._tensor(self.X_offset_)
        values: NDArray[np.float64] = self._new_rows(X).map(
            lambda x: self._features(x) @ coef.mT + center, max(coef.shape)
        )
        return values

    @property
    def _relevant(self) -> Tensor:
        return torch.as_tensor(self.relevant_, device=check_device(self.device))

    def _features(self, x: Tensor) -> Tensor:
        return checked_features(self.basis_, x) - self._tensor(self.X_offset_)

    def _learn(self, moments: Moments) -> EMFit[Any, Any]:
        """The posterior, from the sums over all rows."""
        if moments.count == 1 and self.fit_intercept and self.noise_precision is None:
            raise InputError("1 sample says nothing of noise and intercept: give more rows, or noise_precision")
        mean, factor = self._prior(moments.mean)
        table = moments.table(centered=self.fit_intercept)
        found = SEARCHES[self.hyperparameters](self._search(table.under(mean, factor), factor, moments))
        coef = mean.clone()
        coef[found.relevant] += found.belief.mean
        sigma = coef.new_zeros(len(coef), len(coef))
        sigma[torch.outer(found.relevant, found.relevant)] = found.belief.covariance.flatten()
        warn_of_rounding(table.rounding_of_evidence(coef, sigma.diagonal(), found.noise_precision))

        self.moments_ = moments.to(torch.device("cpu"))
        self.X_offset_ = float(self.fit_intercept) * self.moments_.mean[:-1].numpy()
        self.y_offset_ = float(self.fit_intercept) * float(moments.mean[-1])
        self.coef_ = coef.cpu().numpy()
        self.sigma_ = sigma.cpu().numpy()
        self.intercept_ = self.y_offset_ - float(self.coef_ @ self.X_offset_)
        self.intercept_variance_ = float(self.fit_intercept) / (moments.count * found.noise_precision)
        self.precision_cholesky_ = found.belief.cholesky.cpu().numpy()
        self.relevant_ = found.relevant.cpu().numpy()
        self.weight_precision_ = found.weight_precision
        self.noise_precision_ = found.noise_precision
        self.effective_parameters_ = found.effective_parameters
        self.log_evidence_ = found.log_evidence
        return found.fit

    def _search(self, table: ReducedTable, factor: Tensor | None, moments: Moments) -> Search:
        table, spectrum = decompose(table)
        # Where nothing is said, the prior's functions and the noise are taken to vary as the target does.
        scale = spectrum.total / spectrum.count or float(moments.mean[-1]) ** 2 or 1.0
        usual = Precisions((float(spectrum.scales @ spectrum.scales) / spectrum.count or 1.0) / scale, 1.0 / scale)
        given = 1.0 if self.weight_precision is None and factor is not None else self.weight_precision
        return Search(
            table=table,
            spectrum=spectrum,
            factor=factor,
            weight_prior=precision_prior(given, self.weight_prior, usual.weights),
            noise_prior=precision_prior(self.noise_precision, self.noise_prior, usual.noise),
            tolerance=self.tol,
            max_iter=self.max_iter,
        )

    def _prior(self, like: Tensor) -> tuple[Tensor, Tensor | None]:
        """m₀ ``[M]`` and the Cholesky factor of S₀, ``None`` for the identity, on the device of ``like [M + 1]``."""
        size = len(like) - 1
        mean = np.zeros(size) if self.prior_mean is None else _numbers("prior_mean", self.prior_mean)
        if mean.shape not in ((), (size,)):
            raise InputError(f"prior_mean must be a number or of shape [{size}], got {list(mean.shape)}")
        if self.prior_covariance is None:
            return like.new_tensor(mean).expand(size), None
        covariance = _numbers("prior_covariance", self.prior_covariance)
        if covariance.shape != (size, size) or not np.allclose(covariance, covariance.T):
            raise InputError(f"prior_covariance must be symmetric, [{size}, {size}], got {list(covariance.shape)}")
        factor, failed = torch.linalg.cholesky_ex(like.new_tensor(covariance))
        if bool(failed):
            raise InputError("prior_covariance must be positive definite: give every direction some variance")
        return like.new_tensor(mean).expand(size), factor

    def _check(self) -> None:
        """Raise ``InputError`` for settings that have no meaning."""
        if self.hyperparameters not in SEARCHES:
            raise unknown_name("hyperparameters", self.hyperparameters, SEARCHES)
        for name, value in (("weight_precision", self.weight_precision), ("noise_precision", self.noise_precision)):
            if value is not None and not _is_positive(value):
                raise InputError(f"{name} must be None or a number greater than 0, got {value!r}")
        for name, prior in (("weight_prior", self.weight_prior), ("noise_prior", self.noise_prior)):
            if prior is not None and not (np.shape(prior) == (2,) and all(map(_is_positive, prior))):
                raise InputError(f"{name} must be None or a pair (shape, rate), both greater than 0, got {prior!r}")


def _is_positive(value: Any) -> bool:
    return isinstance(value, Real) and 0.0 < float(value) < math.inf


def _real(y: Any) -> NDArray[np.float64]:
    """Targets as one finite number a row."""
    flat: NDArray[Any] = column_or_1d(y, warn=True)
    return check_array(flat, ensure_2d=False, dtype=np.float64, input_name="y")  # type: ignore[no-any-return]


def _numbers(name: str, values: ArrayLike) -> NDArray[np.float64]:
    try:
        array = np.array(values, np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must hold numbers, got {values!r}") from error
    if not np.isfinite(array).all():
        raise InputError(f"{name} must be finite, got {values!r}")
    return array
