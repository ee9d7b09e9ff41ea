"""Bayesian logistic regression for two or more classes."""

from __future__ import annotations

from typing import Any, Literal, Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d
from torch import Tensor

from credo._arguments import check_integer, check_option, check_positive
from credo._estimator import ClassicalEstimator, draw_seed, restore_on_error
from credo._partitions import is_partitioned, unique_values
from credo.conjugate import GaussianBelief
from credo.errors import InputError
from credo.likelihoods import Categorical
from credo.linear._algebra import ROUNDING, warn_if_collinear
from credo.linear._logistic_posterior import LaplaceFit, VariationalFit, fit_laplace, fit_variational
from credo.linear._softmax import (
    SIGMOID_NODES,
    SOFTMAX_NODES,
    SoftmaxRegression,
    contrasts,
    expected_sigmoid,
    expected_softmax,
    logit_covariance,
)
from credo.linear.bases import BasisLike, compute_features, to_basis
from credo.linear.regression import WeightDraws
from credo.predictive import Predictive

METHODS = ("laplace", "variational")


class BayesianLogisticRegression(ClassifierMixin, ClassicalEstimator):  # type: ignore[misc]
    """Logistic regression with a Gaussian prior on its weights, and a Gaussian posterior for them.

        p(y | x, W) = softmax(W φ(x))_y,    w ~ N(0, α⁻¹),    p(y | x) = ∫ p(y | x, W) q(W) dW

    Two classes have one row of weights (R = 1), and Wφ is the log odds of the second class. K > 2 classes have R = K
    rows that sum to 0, because a common shift changes no probability. Uncertainty about the weights makes the
    probabilities less extreme than those of the best weights, in particular far from the data. ``method`` selects q:

    - ``"laplace"``: a Gaussian at the mode, with the curvature there. The mode is scikit-learn's
      ``LogisticRegression(C=1/α)``.
    - ``"variational"``: the best Gaussian under a quadratic lower bound on the likelihood, Jaakkola and Jordan's for
      two classes and Böhning's for more.

    ``lower_bound_`` lies below the log evidence. Laplace's ``log_evidence_`` is closer to it if the posterior is nearly
    Gaussian, and unreliable otherwise: if the classes are separable, the evidence rises as α → 0, and the Gaussian at
    the mode becomes a poor approximation long before. A difference of many nats between the two indicates this.

    As in scikit-learn, the intercept is not penalized. The logits at the mean of the features have a wide prior
    N(0, 1/``intercept_precision``), without which the evidence would not exist.

    Args:
        basis: φ, as in :class:`~credo.linear.BayesianLinearRegression`.
        method: ``"laplace"`` or ``"variational"``.
        weight_precision: α, or ``"evidence"``: the value with the highest ``lower_bound_``, searched within 8 powers of
            10 of the mean square of a feature.
        fit_intercept: whether to add a constant feature, after the others.
        intercept_precision: the prior precision of the logits at the mean of the features.
        tol: stop when an iteration raises the objective by less than this, in nats per row.
        max_iter: the maximum number of iterations.
        device: where torch computes, such as ``"cuda"``; ``None`` is the CPU.
        random_state: seeds the draws of ``predict_dist`` and ``sample``.

    Attributes:
        classes_: the labels, in ascending order.
        coef_: the posterior mean of the weights, ``[R, M]``.
        intercept_: the posterior mean of the intercepts, ``[R]``; zeros without one.
        covariance_: the covariance of the weights and intercept of the first row, then of the next,
            ``[R(M+1), R(M+1)]``.
        weight_precision_: α.
        log_evidence_: log p(y) by Laplace's method, in nats over all rows; ``None`` for ``"variational"``.
        lower_bound_: a lower bound on log p(y): E_q[log p(y | W)] − KL(q ‖ p) for ``"laplace"``, exact for two classes
            and by quasi-random points for more; the same with the quadratic bound for ``"variational"``.
        lower_bounds_: the bound at the start and after every iteration, for ``"variational"``.
        n_iter_: the number of Newton steps, or of updates of the bound.
        converged_: whether the last iteration gained less than ``tol``.
        basis_: φ, with everything set that depends on the range of the data.

    References:
        D. J. C. MacKay. The evidence framework applied to classification networks. Neural Computation 1992.
        T. S. Jaakkola, M. I. Jordan. Bayesian parameter estimation via variational methods. Statistics and Computing
        2000.
        D. Böhning. Multinomial logistic regression algorithm. Annals of the Institute of Statistical Mathematics 1992.
        C. M. Bishop. Pattern Recognition and Machine Learning. 2006, sections 4.3–4.5 and 10.6.

    Example:
        >>> from credo.linear import BayesianLogisticRegression
        >>> model = BayesianLogisticRegression().fit([[0.0], [1.0], [2.0], [3.0]], ["a", "a", "b", "b"])
        >>> model.predict([[0.5], [2.5]])
        array(['a', 'b'], dtype='<U1')
    """

    def __init__(
        self,
        basis: BasisLike = "identity",
        *,
        method: Literal["laplace", "variational"] = "laplace",
        weight_precision: float | Literal["evidence"] = 1.0,
        fit_intercept: bool = True,
        intercept_precision: float = 1e-6,
        tol: float = 1e-7,
        max_iter: int = 500,
        device: str | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.basis = basis
        self.method = method
        self.weight_precision = weight_precision
        self.fit_intercept = fit_intercept
        self.intercept_precision = intercept_precision
        self.tol = tol
        self.max_iter = max_iter
        self.device = device
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit the posterior of the weights.

        Args:
            X: inputs, ``[N, D]``, or a function that returns chunks of pairs (X, y), which are read many times.
            y: labels, ``[N]``; ``None`` if ``X`` comes in chunks.

        Raises:
            InputError: if an argument of the constructor, the basis or the data are not valid.
        """
        with restore_on_error(self):
            check_option(self.method, "method", METHODS)
            alpha = self._fixed_precision()
            model = self._model(X, y)
            self._seed = draw_seed(self.random_state)
            found: LaplaceFit | VariationalFit
            if self.method == "laplace":
                found = fit_laplace(model, alpha, tolerance=self.tol, max_iter=self.max_iter)
                self.log_evidence_: float | None = found.log_evidence
                self.lower_bound_ = found.lower_bound
                self._record_steps(found.n_iter, found.converged)
                self.__dict__.pop("lower_bounds_", None)  # of an earlier fit by the other method
            else:
                fit = fit_variational(model, alpha, tolerance=self.tol, max_iter=self.max_iter)
                self._record(fit)
                self.log_evidence_, found = None, fit.parameters
            self._store(found.posterior)
            self.weight_precision_ = found.weight_precision
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """Predict the most probable class of every row.

        Args:
            X: inputs, ``[N, D]``.

        Returns:
            Labels, ``[N]``.
        """
        probabilities = self.predict_proba(X)
        labels: NDArray[Any] = self.classes_[probabilities.argmax(axis=1)]
        return labels

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Predict the probability of every class, averaged over the posterior.

        The average uses quadrature for two classes, with an error below 1e-9, and 512 quasi-random points for more,
        with an error of about 1e-3 if the standard deviation of the logits is about 1.

        Args:
            X: inputs, ``[N, D]``.

        Returns:
            Probabilities in the order of ``classes_``, ``[N, K]``.
        """
        rows = self._new_rows(X)
        q, contrasts = self._posterior(), self._contrasts()
        if len(self.classes_) == 2:
            return rows.map(lambda x: _binary_probabilities(self._features(x), q), SIGMOID_NODES)
        numbers = SOFTMAX_NODES * len(self.classes_)
        return rows.map(lambda x: _probabilities(self._features(x), q, contrasts), numbers)

    def predict_dist(self, X: Any, samples: int = 256) -> Predictive:
        """Predict the class of every row as a mixture over draws of the weights, the same for all rows.

        Args:
            X: inputs, ``[N, D]``.
            samples: the number of draws.

        Returns:
            The predictive distribution, with aleatoric and epistemic uncertainty, ``[N]``.

        Raises:
            InputError: if ``samples`` is not a positive integer.
        """
        check_integer(samples, "samples", minimum=1)
        rows = self._new_rows(X)
        matrix = torch.einsum("kc,scm->skm", self._contrasts(), self._draw(samples, self._seed))
        logits = rows.map(lambda x: torch.einsum("bm,skm->bsk", self._features(x), matrix), matrix[..., 0].numel())
        return Categorical().predictive(torch.from_numpy(logits).transpose(0, 1))

    def sample(self, n_samples: int = 1) -> WeightDraws:
        """Draw weights and intercepts from the posterior.

        Args:
            n_samples: the number of draws.

        Returns:
            Weights ``[n, R, M]`` and intercepts ``[n, R]``; the same ones at every call if ``random_state`` is an
            integer.

        Raises:
            InputError: if ``n_samples`` is not a positive integer.
        """
        check_is_fitted(self)
        check_integer(n_samples, "n_samples", minimum=1)
        draws = self._draw(n_samples, draw_seed(self.random_state)).flatten(1) @ self._jacobian().mT
        return self._split(draws.view(n_samples, *self._shape).cpu().numpy())

    def _fixed_precision(self) -> float | None:
        """α, or ``None`` if the evidence selects it."""
        if isinstance(self.weight_precision, str):
            check_option(self.weight_precision, "weight_precision", ("evidence",))
            return None
        return check_positive(self.weight_precision, "weight_precision")

    def _model(self, X: Any, y: Any) -> SoftmaxRegression:
        """Validate the data; sets ``classes_`` and ``basis_``."""
        encoder = _LabelEncoder()
        if is_partitioned(y):  # whose chunks are checked elsewhere
            encoder.encode(unique_values(y))
        rows = self._training_rows(X, y, targets=encoder.encode)
        rows.count  # noqa: B018 (reads all chunks once, so that all labels are known)
        self.classes_ = encoder.classes
        if len(self.classes_) < 2:
            raise InputError(f"y must contain at least two classes, got one class, {self.classes_[0]}")
        self.basis_ = to_basis(self.basis)._fitted(rows)
        intercept_precision = check_positive(self.intercept_precision, "intercept_precision")
        (total,) = rows.total(lambda x, y: (compute_features(self.basis_, x).sum(0),))
        self._offset = (total / rows.count * bool(self.fit_intercept)).cpu().numpy()
        return SoftmaxRegression(
            rows,
            self._features,
            classes=len(self.classes_),
            n_features=len(total) + bool(self.fit_intercept),
            intercept_precision=intercept_precision if self.fit_intercept else None,
        )

    def _features(self, x: Tensor) -> Tensor:
        """φ(x); with an intercept, φ(x) less its mean, followed by a constant."""
        phi = compute_features(self.basis_, x)
        return F.pad(phi - self._tensor(self._offset), (0, 1), value=1.0) if self.fit_intercept else phi

    def _store(self, q: GaussianBelief) -> None:
        """Store q of the free logits' weights for centered features, and the weights of features without centering."""
        # rounding moves an entry of the precision by ε√(Λ_ii Λ_jj) and so log |Λ|, to first order, by ε Σ Λ_ii (Λ⁻¹)_ii
        warn_if_collinear(ROUNDING * float(q.precision.diagonal() @ q.covariance.diagonal()))
        self._mean, self._cholesky = q.mean.cpu().numpy(), q.cholesky.cpu().numpy()
        jacobian = self._jacobian()
        mean = (jacobian @ q.mean).view(self._shape).cpu().numpy()
        self.coef_, self.intercept_ = self._split(mean)
        self.covariance_ = (jacobian @ q.covariance @ jacobian.mT).cpu().numpy()

    def _posterior(self) -> GaussianBelief:
        """q of the weights of the free logits, for centered features."""
        return GaussianBelief(self._tensor(self._mean), self._tensor(self._cholesky))

    def _contrasts(self) -> Tensor:
        return contrasts(len(self.classes_), self._tensor(0.0))

    @property
    def _shape(self) -> tuple[int, int]:
        """R and M, or M + 1 with an intercept."""
        return 1 if len(self.classes_) == 2 else len(self.classes_), len(self._offset) + bool(self.fit_intercept)

    def _jacobian(self) -> Tensor:
        """The linear map from the weights of ``_posterior`` to ``coef_`` and ``intercept_``, ``[R·M, C·M]``.

        It goes from free logits to classes, and from centered features to the intercept b − wᵀ(mean of φ).
        """
        rows, size = self._shape
        centering = torch.eye(size, dtype=torch.float64, device=self._tensor(0.0).device)
        if self.fit_intercept:
            centering[-1, :-1] = -self._tensor(self._offset)
        return torch.kron(self._contrasts()[-rows:].contiguous(), centering)

    def _split(self, weights: NDArray[np.float64]) -> WeightDraws:
        """Split into weights ``[..., R, M]`` and intercepts ``[..., R]``, zeros without an intercept."""
        if not self.fit_intercept:
            return WeightDraws(weights, np.zeros(weights.shape[:-1]))
        return WeightDraws(weights[..., :-1].copy(), weights[..., -1].copy())

    def _draw(self, n: int, seed: int) -> Tensor:
        """Draws of the weights of the free logits, ``[n, C, M]``."""
        # on the CPU, so that a seed gives the same draws on every device
        q = GaussianBelief(torch.from_numpy(self._mean), torch.from_numpy(self._cholesky))
        draws = q.sample(n, torch.Generator().manual_seed(seed))
        return self._tensor(draws.numpy()).view(n, -1, self._shape[1])


class _LabelEncoder:
    """Encodes labels that arrive in chunks; ``classes`` are the labels seen so far, in ascending order."""

    def __init__(self) -> None:
        self.classes: NDArray[Any] = np.array([])

    def encode(self, y: Any) -> NDArray[np.int64]:
        """Add the labels of ``y`` to ``classes`` and return their indices."""
        check_classification_targets(y)
        y = column_or_1d(y, warn=True)
        new = np.unique(y)
        self.classes = np.union1d(self.classes, new) if len(self.classes) else new
        indices: NDArray[np.int64] = np.searchsorted(self.classes, y)
        return indices


def _binary_probabilities(phi: Tensor, q: GaussianBelief) -> Tensor:
    second = expected_sigmoid(phi @ q.mean, q.variance_along(phi))
    return torch.stack((1.0 - second, second), 1)


def _probabilities(phi: Tensor, q: GaussianBelief, contrasts: Tensor) -> Tensor:
    mean = phi @ q.mean.view(contrasts.shape[1], phi.shape[1]).mT
    return expected_softmax(mean, logit_covariance(phi, q), contrasts)
