"""Bayesian logistic regression: class probabilities that know how little was seen."""

from __future__ import annotations

from numbers import Real
from typing import Any, Literal, Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d
from torch import Tensor

from credo._estimator import ClassicalEstimator, as_before_on_failure, draw_seed
from credo.conjugate import GaussianBelief
from credo.errors import InputError, unknown_name
from credo.likelihoods import Categorical
from credo.linear._integrals import SIGMOID_NODES, SOFTMAX_NODES, expected_sigmoid, expected_softmax
from credo.linear._moments import ROUNDING
from credo.linear._softmax import SoftmaxRegression, contrasts, logit_covariance
from credo.linear.bases import BasisLike, as_basis, checked_features, warn_of_rounding
from credo.linear.logistic_bounds import Variational, fit_variational
from credo.linear.logistic_laplace import LaplaceFit, fit_laplace
from credo.linear.regression import WeightDraws
from credo.predictive import Predictive

METHODS = ("laplace", "variational")


class BayesianLogisticRegression(ClassifierMixin, ClassicalEstimator):  # type: ignore[misc]
    """Logistic regression with a Gaussian prior on its weights, and a Gaussian posterior for them.

        p(y | x, W) = softmax(W φ(x))_y,    w ~ N(0, α⁻¹),    p(y | x) = ∫ p(y | x, W) q(W) dW

    Two classes have one row of weights (R = 1), Wφ being the log odds of the second. K > 2 classes have R = K rows that
    sum to 0: a common shift changes no probability and is left out. What the data leave open about the weights makes
    probabilities less extreme than those of the best weights, the more so far from the data. ``method`` says how q is
    found:

    - ``"laplace"``: a Gaussian at the mode, with the curvature there. The mode is scikit-learn's
      ``LogisticRegression(C=1/α)``.
    - ``"variational"``: the best Gaussian under a quadratic lower bound on the likelihood, Jaakkola and Jordan's for
      two classes and Böhning's for more.

    ``lower_bound_`` lies below the log evidence. Laplace's ``log_evidence_`` is closer to it where the posterior is
    nearly Gaussian, and says nothing where it is not: where classes can be separated the evidence rises as α → 0, and
    the Gaussian at the mode becomes useless long before. A gap between the two numbers of many nats says so.

    As in scikit-learn, the intercept is not penalized. The logits at the mean of the features have a prior
    N(0, 1/``intercept_precision``) only because without one there would be no evidence; it is too wide to matter.

    Args:
        basis: φ, as in :class:`~credo.linear.BayesianLinearRegression`.
        method: ``"laplace"`` or ``"variational"``.
        weight_precision: α, or ``"evidence"``: the value with the highest ``lower_bound_``, looked for within 8 powers
            of 10 of the mean square of a feature.
        fit_intercept: whether a constant feature is added, behind the others.
        intercept_precision: the prior precision of the logits at the mean of the features.
        tol: the least gain per row, in nats, that is worth another iteration.
        max_iter: the most iterations.
        device: where torch computes; ``None`` is the CPU.
        random_state: a seed, or scikit-learn's kind of generator, for the draws of ``predict_dist`` and ``sample``.

    Attributes:
        classes_: the labels, in ascending order.
        coef_: the posterior mean of the weights, ``[R, M]``.
        intercept_: the posterior mean of the intercepts, ``[R]``; zeros without one.
        covariance_: of the weights of the first row, with its intercept behind them, then of the next,
            ``[R(M+1), R(M+1)]``.
        weight_precision_: α.
        log_evidence_: log p(y) by Laplace's method, in nats over all rows; ``None`` for ``"variational"``.
        lower_bound_: a lower bound on log p(y), E_q[log p(y | W)] − KL(q ‖ p) for ``"laplace"``, exact for two classes
            and by quasi-random points for more; and of the quadratic bound for ``"variational"``.
        lower_bounds_: at the start and after every iteration, for ``"variational"``.
        n_iter_: iterations: Newton steps, or updates of the bound.
        converged_: whether the last iteration gained less than ``tol``.
        basis_: φ with everything filled in that depends on the data.

    References:
        D. J. C. MacKay. The evidence framework applied to classification networks. Neural Computation 1992.
        T. S. Jaakkola, M. I. Jordan. Bayesian parameter estimation via variational methods. Statistics and Computing
        2000.
        D. Böhning. Multinomial logistic regression algorithm. Annals of the Institute of Statistical Mathematics 1992.
        C. M. Bishop. Pattern Recognition and Machine Learning. 2006, sections 4.3–4.5 and 10.6.
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
        """Find the posterior from an array or frame with labels ``y [N]``, or from chunks (X, y) read many times."""
        with as_before_on_failure(self):
            if self.method not in METHODS:
                raise unknown_name("method", self.method, METHODS)
            alpha = self._given_precision()
            model = self._model(X, y)
            self._seed = draw_seed(self.random_state)
            posterior: LaplaceFit | Variational
            if self.method == "laplace":
                posterior = fit_laplace(model, alpha, tolerance=self.tol, max_iter=self.max_iter)
                self.log_evidence_: float | None = posterior.log_evidence
                self.lower_bound_ = posterior.lower_bound
                self._record_steps(posterior.n_iter, posterior.converged)
                self.__dict__.pop("lower_bounds_", None)  # of an earlier fit by the other method
            else:
                fit = fit_variational(model, alpha, tolerance=self.tol, max_iter=self.max_iter)
                self._record(fit)
                self.log_evidence_, posterior = None, fit.parameters
            self._store(posterior.belief)
            self.weight_precision_ = posterior.weight_precision
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class of every row, ``[N]``."""
        probabilities = self.predict_proba(X)
        labels: NDArray[Any] = self.classes_[probabilities.argmax(axis=1)]
        return labels

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """The probability of every class, ``[N, K]``, averaged over the posterior.

        For two classes by quadrature, exact to 1e-9; for more by 512 quasi-random points, to about 1e-3 where the data
        leave the logits a standard deviation of 1 or so.
        """
        rows = self._new_rows(X)
        belief, contrasts = self._belief(), self._contrasts()
        if len(self.classes_) == 2:
            return rows.map(lambda x: _binary_probabilities(self._features(x), belief), SIGMOID_NODES)
        numbers = SOFTMAX_NODES * len(self.classes_)
        return rows.map(lambda x: _probabilities(self._features(x), belief, contrasts), numbers)

    def predict_dist(self, X: Any, samples: int = 256) -> Predictive:
        """The class of every row as a mixture over ``samples`` draws of the weights, the same for all rows."""
        rows = self._new_rows(X)
        matrix = torch.einsum("kc,scm->skm", self._contrasts(), self._draw(samples, self._seed))
        logits = rows.map(lambda x: torch.einsum("bm,skm->bsk", self._features(x), matrix), matrix[..., 0].numel())
        return Categorical().predictive(torch.from_numpy(logits).transpose(0, 1))

    def sample(self, n_samples: int = 1) -> WeightDraws:
        """Weights ``[n, R, M]`` and intercepts ``[n, R]`` from the posterior.

        A fixed ``random_state`` gives the same ones at every call.
        """
        check_is_fitted(self)
        draws = self._draw(n_samples, draw_seed(self.random_state)).flatten(1) @ self._jacobian().mT
        return self._split(draws.view(n_samples, *self._shape).cpu().numpy())

    def _given_precision(self) -> float | None:
        """α, or ``None`` where the evidence is to choose it."""
        if isinstance(self.weight_precision, str):
            if self.weight_precision != "evidence":
                raise unknown_name("weight_precision", self.weight_precision, ("evidence",))
            return None
        return _positive("weight_precision", self.weight_precision)

    def _model(self, X: Any, y: Any) -> SoftmaxRegression:
        """The data as the model sees them; learns ``classes_`` and ``basis_``."""
        labels = _Labels()
        rows = self._training_rows(X, y, targets=labels.numbers)
        rows.count  # noqa: B018 (chunks are read through once: then all labels are known)
        self.classes_ = labels.seen
        if len(self.classes_) < 2:
            raise InputError(f"y must hold two classes or more, got one class, {self.classes_[0]}")
        self.basis_ = as_basis(self.basis).placed(rows)
        intercept_precision = _positive("intercept_precision", self.intercept_precision)
        (total,) = rows.total(lambda x, y: (checked_features(self.basis_, x).sum(0),))
        self._offset = (total / rows.count * bool(self.fit_intercept)).cpu().numpy()
        return SoftmaxRegression(
            rows,
            self._features,
            classes=len(self.classes_),
            n_features=len(total) + bool(self.fit_intercept),
            intercept_precision=intercept_precision if self.fit_intercept else None,
        )

    def _features(self, x: Tensor) -> Tensor:
        """φ(x); where there is an intercept, about its mean and with a constant behind it."""
        phi = checked_features(self.basis_, x)
        return F.pad(phi - self._tensor(self._offset), (0, 1), value=1.0) if self.fit_intercept else phi

    def _store(self, belief: GaussianBelief) -> None:
        """Keep what :meth:`_belief` needs, and what it means for the weights of features that are not centered."""
        # rounding moves an entry of the precision by ε√(Λ_ii Λ_jj) and so log |Λ|, to first order, by ε Σ Λ_ii (Λ⁻¹)_ii
        warn_of_rounding(ROUNDING * float(belief.precision.diagonal() @ belief.covariance.diagonal()))
        self._mean, self._cholesky = belief.mean.cpu().numpy(), belief.cholesky.cpu().numpy()
        jacobian = self._jacobian()
        mean = (jacobian @ belief.mean).view(self._shape).cpu().numpy()
        self.coef_, self.intercept_ = self._split(mean)
        self.covariance_ = (jacobian @ belief.covariance @ jacobian.mT).cpu().numpy()

    def _belief(self) -> GaussianBelief:
        """q of the weights of the free logits, for centered features."""
        return GaussianBelief(self._tensor(self._mean), self._tensor(self._cholesky))

    def _contrasts(self) -> Tensor:
        return contrasts(len(self.classes_), self._tensor(0.0))

    @property
    def _shape(self) -> tuple[int, int]:
        """R and M, or M + 1 with an intercept."""
        return 1 if len(self.classes_) == 2 else len(self.classes_), len(self._offset) + bool(self.fit_intercept)

    def _jacobian(self) -> Tensor:
        """Of the weights by those of ``_belief``, ``[R·M, C·M]``: by class, and with b − wᵀ(mean of φ) as intercept."""
        rows, size = self._shape
        centering = torch.eye(size, dtype=torch.float64, device=self._tensor(0.0).device)
        if self.fit_intercept:
            centering[-1, :-1] = -self._tensor(self._offset)
        return torch.kron(self._contrasts()[-rows:].contiguous(), centering)

    def _split(self, weights: NDArray[np.float64]) -> WeightDraws:
        """Weights ``[..., R, M]`` and intercepts ``[..., R]``, zeros where there are none."""
        if not self.fit_intercept:
            return WeightDraws(weights, np.zeros(weights.shape[:-1]))
        return WeightDraws(weights[..., :-1].copy(), weights[..., -1].copy())

    def _draw(self, n: int, seed: int) -> Tensor:
        """Draws of the weights of the free logits, ``[n, C, M]``."""
        if n < 1:
            raise InputError(f"the number of draws must be at least 1, got {n}")
        # on the CPU, so that a seed means the same on every device
        belief = GaussianBelief(torch.from_numpy(self._mean), torch.from_numpy(self._cholesky))
        draws = belief.sample(n, torch.Generator().manual_seed(seed))
        return self._tensor(draws.numpy()).view(n, -1, self._shape[1])


class _Labels:
    """The labels met so far, in ascending order, and their numbers."""

    def __init__(self) -> None:
        self.seen: NDArray[Any] = np.array([])

    def numbers(self, y: Any) -> NDArray[np.int64]:
        """The number of each label of ``y`` among those met, these included."""
        check_classification_targets(y)
        y = column_or_1d(y, warn=True)
        new = np.unique(y)
        self.seen = np.union1d(self.seen, new) if len(self.seen) else new
        numbers: NDArray[np.int64] = np.searchsorted(self.seen, y)
        return numbers


def _binary_probabilities(phi: Tensor, belief: GaussianBelief) -> Tensor:
    second = expected_sigmoid(phi @ belief.mean, belief.variance_along(phi))
    return torch.stack((1.0 - second, second), 1)


def _probabilities(phi: Tensor, belief: GaussianBelief, contrasts: Tensor) -> Tensor:
    mean = phi @ belief.mean.view(contrasts.shape[1], phi.shape[1]).mT
    return expected_softmax(mean, logit_covariance(phi, belief), contrasts)


def _positive(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not 0.0 < float(value) < np.inf:
        raise InputError(f"{name} must be a positive number, got {value!r}")
    return float(value)
