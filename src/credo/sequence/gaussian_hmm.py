"""Hidden Markov models with Gaussian emissions."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import DensityMixin
from sklearn.utils.validation import check_is_fitted
from torch.utils.data import DataLoader, RandomSampler

from credo._arguments import check_integer, check_minimum, check_non_negative, check_option
from credo._estimator import ClassicalEstimator, draw_seed, restore_on_error
from credo._rows import Rows
from credo.em import fit_em
from credo.errors import InputError
from credo.mixture._components import MixtureComponents, assign_rows, nearest_component
from credo.mixture._covariances import COVARIANCE_TYPES, CovarianceType
from credo.mixture.kmeans import kmeans_centers
from credo.seeding import derive
from credo.sequence._baum_welch import BaumWelch, HMMParameters, compute_log_emission
from credo.sequence._inference import MarkovChain, SequenceLayout, SmoothedStates, smooth, viterbi

INIT_ROWS = 2**15
"""The number of rows from which initial centers are computed; longer tables are sampled."""


class Decoding(NamedTuple):
    """The most probable path through the states.

    Attributes:
        log_prob: log max_z p(x, z), summed over all sequences.
        states: the path, ``[N]``.

    Example:
        >>> import numpy as np
        >>> from credo.sequence import GaussianHMM
        >>> X = np.repeat([0.0, 5.0], 20)[:, None] + np.random.default_rng(0).normal(size=(40, 1))
        >>> GaussianHMM(2, random_state=0).fit(X).decode(X).states.shape
        (40,)
    """

    log_prob: float
    states: NDArray[np.int64]


class GaussianHMM(DensityMixin, ClassicalEstimator):  # type: ignore[misc]
    """A hidden Markov model with Gaussian emissions, fitted by EM (Baum–Welch).

        p(x, z) = π_{z_1} Π_{t>1} A_{z_{t−1} z_t} Π_t N(x_t | μ_{z_t}, Σ_{z_t})

        E:  r_tk = p(z_t = k | x), ξ_tij = p(z_{t−1} = i, z_t = j | x) by forward–backward in log space
        M:  π ∝ Σ r_1,  A_ij ∝ Σ_t ξ_tij,  μ_k = Σ_t r_tk x_t / N_k,
            Σ_k = Σ_t r_tk (x_t − μ_k)(x_t − μ_k)ᵀ / N_k

    The rows of a table are one sequence, or several of given ``lengths`` that follow each other and share the
    parameters. All sequences are processed at once, whatever their lengths.

    As in :class:`~credo.mixture.GaussianMixture` there is a covariance floor: a prior that is flat where no eigenvalue
    of Σ_k is below ε and 0 elsewhere. π and the rows of A have Dirichlet priors, whose log density is part of the
    bound, so that it never falls. A state without rows does not change.

    Args:
        n_components: the number K of states.
        covariance_type: ``"diag"``, ``"full"``, ``"tied"`` (one matrix for all states) or ``"spherical"``.
        reg_covar: the covariance floor ε, the minimum variance in any direction, in the squared units of the data; at 0
            a singular covariance is an error.
        startprob_prior: the Dirichlet parameter of π, at least 1; 1 is flat.
        transmat_prior: the Dirichlet parameter of every row of A, at least 1; 1 is flat.
        tol: stop when an iteration raises the bound by no more than this, in nats per row.
        max_iter: the maximum number of iterations from one start.
        n_init: the number of starts, of which the one with the highest bound is kept. A start has the clusters of
            k-means as states, and equal transition probabilities.
        device: the torch device; ``None`` is the CPU.
        random_state: a seed, or a numpy ``RandomState``.

    Attributes:
        startprob_: π, ``[K]``.
        transmat_: A, from the state of its row to that of its column, ``[K, K]``.
        means_: μ, ``[K, D]``.
        covars_: Σ: ``[K, D]`` for ``"diag"``, ``[K, D, D]`` for ``"full"``, ``[D, D]`` for ``"tied"``, ``[K]`` for
            ``"spherical"``.
        precisions_cholesky_: factors of the precisions, as in :class:`~credo.mixture.GaussianMixture`.
        lower_bound_: log likelihood + log prior, in nats over all rows.
        log_prior_: the log density of π and A in it.
        lower_bounds_: the bound at the start and after every iteration.
        n_iter_: the number of iterations of the best start.
        converged_: whether the best start stopped by ``tol``.

    References:
        L. E. Baum, T. Petrie, G. Soules, N. Weiss. A maximization technique occurring in the statistical analysis of
        probabilistic functions of Markov chains. Annals of Mathematical Statistics 1970.
        L. R. Rabiner. A tutorial on hidden Markov models and selected applications in speech recognition. 1989.
        C. M. Bishop. Pattern Recognition and Machine Learning. 2006, section 13.2.

    Example:
        >>> import numpy as np
        >>> from credo.sequence import GaussianHMM
        >>> X = np.repeat([0.0, 5.0, 0.0], 50)[:, None] + np.random.default_rng(0).normal(size=(150, 1))
        >>> model = GaussianHMM(2, random_state=0).fit(X)
        >>> model.predict_proba(X).shape
        (150, 2)
    """

    def __init__(
        self,
        n_components: int = 1,
        *,
        covariance_type: CovarianceType = "diag",
        reg_covar: float = 1e-6,
        startprob_prior: float = 1.0,
        transmat_prior: float = 1.0,
        tol: float = 1e-4,
        max_iter: int = 100,
        n_init: int = 1,
        device: str | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.n_components = n_components
        self.covariance_type = covariance_type
        self.reg_covar = reg_covar
        self.startprob_prior = startprob_prior
        self.transmat_prior = transmat_prior
        self.tol = tol
        self.max_iter = max_iter
        self.n_init = n_init
        self.device = device
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, *, lengths: ArrayLike | None = None) -> Self:
        """Fit the model by EM.

        Args:
            X: rows ``[N, D]`` in their order: an array, a data frame or chunks.
            y: ignored.
            lengths: the lengths of the sequences ``[S]``, which add up to N; ``None``: one sequence.

        Raises:
            InputError: if an argument is invalid, there are fewer rows than states, or a covariance is singular.
        """
        with restore_on_error(self):
            self._check_arguments()
            if isinstance(X, DataLoader) and isinstance(X.sampler, RandomSampler):
                raise InputError("the DataLoader shuffles, but a hidden Markov model depends on the order of the rows")
            rows = _in_memory(self._training_rows(X))
            if rows.count < self.n_components:
                raise InputError(
                    f"X must have at least as many rows as there are states, got n_samples={rows.count} and "
                    f"n_components={self.n_components}"
                )
            _check_y(y, rows.count)
            layout = _check_lengths(lengths, rows)
            steps = BaumWelch(rows, layout, self.reg_covar, self.startprob_prior, self.transmat_prior)
            seed = draw_seed(self.random_state)
            fit = fit_em(
                lambda k: self._initial_parameters(rows, derive(seed, k)),
                steps.e_step,
                steps.m_step,
                rows=rows.count,
                tolerance=self.tol,
                max_iter=self.max_iter,
                restarts=self.n_init,
            )
            chain, emissions = fit.parameters.chain, fit.parameters.emissions
            self.startprob_ = chain.start.cpu().numpy()
            self.transmat_ = chain.transition.cpu().numpy()
            self.means_ = emissions.means.cpu().numpy()
            self.covars_ = emissions.covariances.cpu().numpy()
            self.precisions_cholesky_ = emissions.factor.cpu().numpy()
            self.log_prior_ = steps.log_prior(fit.parameters)
            emissions.warn_if_floor_active(self.reg_covar)
            self._record(fit)
        return self

    def predict(self, X: Any, lengths: ArrayLike | None = None) -> NDArray[np.int64]:
        """Return the most probable path through the states.

        Args:
            X: rows ``[N, D]``.
            lengths: the lengths of the sequences ``[S]``; ``None``: one sequence.

        Returns:
            The states, ``[N]``.
        """
        return self.decode(X, lengths=lengths).states

    def decode(self, X: Any, lengths: ArrayLike | None = None) -> Decoding:
        """Return the most probable path (Viterbi), and the log density of rows and path together.

        Args:
            X: rows ``[N, D]``.
            lengths: the lengths of the sequences ``[S]``; ``None``: one sequence.

        Returns:
            The log density, summed over the sequences, and the states ``[N]``.
        """
        rows = _in_memory(self._new_rows(X))
        log_emission = compute_log_emission(rows, self._emissions()).cpu().numpy()
        path, log_prob = viterbi(self.startprob_, self.transmat_, log_emission, _check_lengths(lengths, rows))
        return Decoding(float(log_prob.sum()), path)

    def predict_proba(self, X: Any, lengths: ArrayLike | None = None) -> NDArray[np.float64]:
        """Return the posterior of the state at every row, given all rows of its sequence.

        Args:
            X: rows ``[N, D]``.
            lengths: the lengths of the sequences ``[S]``; ``None``: one sequence.

        Returns:
            p(z_t | x), ``[N, K]``.
        """
        return self._smooth(X, lengths).posterior.cpu().numpy()

    def score(self, X: Any, y: Any = None, *, lengths: ArrayLike | None = None) -> float:
        """Return the log likelihood of all rows together.

        Args:
            X: rows ``[N, D]``.
            y: ignored.
            lengths: the lengths of the sequences ``[S]``; ``None``: one sequence.

        Returns:
            log p(x) in nats, summed over the sequences.
        """
        smoothed = self._smooth(X, lengths)
        _check_y(y, len(smoothed.forward))
        return float(smoothed.log_likelihood.sum())

    def score_samples(self, X: Any, lengths: ArrayLike | None = None) -> NDArray[np.float64]:
        """Return the log density of every row given the rows before it in its sequence.

        Args:
            X: rows ``[N, D]``.
            lengths: the lengths of the sequences ``[S]``; ``None``: one sequence.

        Returns:
            log p(x_t | x_1 … x_{t−1}) in nats, ``[N]``.
        """
        return self._smooth(X, lengths).log_densities.cpu().numpy()

    def sample(self, n_samples: int = 1) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Draw a new sequence from the fitted model.

        Args:
            n_samples: the number n of rows.

        Returns:
            The rows ``[n, D]``, and their states ``[n]``.

        Raises:
            InputError: if ``n_samples`` is not an integer of at least 1.
        """
        check_is_fitted(self)
        check_integer(n_samples, "n_samples", minimum=1)
        random = np.random.default_rng(draw_seed(self.random_state))
        states = _sample_path(self.startprob_, self.transmat_, random.random(n_samples))
        size = self.means_.shape[1]
        return self._emissions().sample(states, lambda _, n: random.standard_normal((n, size))), states

    def _check_arguments(self) -> None:
        for name in ("n_components", "max_iter", "n_init"):
            check_integer(getattr(self, name), name, minimum=1)
        for name in ("tol", "reg_covar"):
            check_non_negative(getattr(self, name), name)
        for name in ("startprob_prior", "transmat_prior"):
            check_minimum(getattr(self, name), name, 1.0)
        check_option(self.covariance_type, "covariance_type", COVARIANCE_TYPES)

    def _initial_parameters(self, rows: Rows, seed: int) -> HMMParameters:
        """The clusters of k-means as states, and uniform probabilities."""
        sample = rows.sample(max(INIT_ROWS, 100 * self.n_components), seed)
        centers = kmeans_centers(sample, self.n_components, n_init=1, seed=seed, device=self.device)
        kind = COVARIANCE_TYPES[self.covariance_type]
        assignment = assign_rows(rows, kind.with_unit_covariance(centers), nearest_component)
        uniform = torch.full_like(assignment.sums.count, 1.0 / self.n_components)
        chain = MarkovChain(uniform, uniform.repeat(self.n_components, 1))
        return HMMParameters(chain, assignment.components.m_step(assignment.sums, self.reg_covar))

    def _emissions(self) -> MixtureComponents:
        kind = COVARIANCE_TYPES[self.covariance_type]
        return kind(self._tensor(self.means_), self._tensor(self.precisions_cholesky_))

    def _smooth(self, X: Any, lengths: ArrayLike | None) -> SmoothedStates:
        rows = _in_memory(self._new_rows(X))
        chain = MarkovChain(self._tensor(self.startprob_), self._tensor(self.transmat_))
        return smooth(chain, compute_log_emission(rows, self._emissions()), _check_lengths(lengths, rows))


def _in_memory(rows: Rows) -> Rows:
    """A table of the rows in their order; chunks are read once and joined."""
    if rows.is_table:
        return rows
    return Rows((rows.map(lambda x: x),), rows.device, lambda chunk: chunk)


def _sample_path(
    start: NDArray[np.float64], transition: NDArray[np.float64], uniform: NDArray[np.float64]
) -> NDArray[np.int64]:
    """A path through the states, from one uniform number per step."""
    first, following = np.cumsum(start), np.cumsum(transition, axis=1)
    first, following = first / first[-1], following / following[:, -1:]
    states = np.empty(len(uniform), np.int64)
    cumulative = first
    for t, u in enumerate(uniform):
        states[t] = np.searchsorted(cumulative, u, side="right")
        cumulative = following[states[t]]
    return states


def _check_lengths(lengths: ArrayLike | None, rows: Rows) -> SequenceLayout:
    """The layout of sequences of the given ``lengths``; all rows are one sequence if there are none."""
    if lengths is None:
        return SequenceLayout(np.array([rows.count]), rows.device)
    found = np.asarray(lengths)
    if found.ndim != 1 or not np.issubdtype(found.dtype, np.integer) or (found < 1).any():
        raise InputError(f"lengths must be integers of at least 1, one for each sequence, got {lengths!r}")
    if found.sum() != rows.count:
        raise InputError(f"lengths must add up to the number of rows, {rows.count}, but add up to {found.sum()}")
    return SequenceLayout(found.astype(np.int64), rows.device)


def _check_y(y: Any, n_rows: int) -> None:
    """Raise InputError if lengths are passed as y, the argument that scikit-learn passes along."""
    if y is not None and np.shape(y)[:1] != (n_rows,):
        raise InputError("y is ignored and must have one value per row: pass the lengths of sequences as lengths=…")
