"""Hidden Markov models with Gaussian emissions."""

from __future__ import annotations

import math
import warnings
from numbers import Real
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import DensityMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted
from torch.utils.data import DataLoader, RandomSampler

from credo._arguments import check_integer
from credo._estimator import ClassicalEstimator, draw_seed, restore_on_error
from credo._rows import Rows
from credo.em import fit_em
from credo.errors import InputError, unknown_name
from credo.mixture import KMeans
from credo.mixture.components import say_where_floor_acts
from credo.mixture.expectation import share, to_nearest
from credo.mixture.gaussian_mixture import KINDS
from credo.seeding import derive
from credo.sequence.baum_welch import BaumWelch, Parameters, log_emission
from credo.sequence.forward_backward import Chain, Smoothed, smooth
from credo.sequence.layout import Layout
from credo.sequence.viterbi import most_probable_path

CovarianceType = Literal["diag", "full", "tied", "spherical"]
START_ROWS = 2**15
"""How many rows the centers of a start are found from; of a longer table, a sample of so many."""


class Decoding(NamedTuple):
    """The most probable path through the states.

    Attributes:
        log_prob: log max_z p(x, z), summed over all sequences.
        states: the path, ``[N]``.
    """

    log_prob: float
    states: NDArray[np.int64]


class GaussianHMM(DensityMixin, ClassicalEstimator):  # type: ignore[misc]
    """A chain of hidden states, each with a Gaussian of its own, with parameters found by EM (Baum–Welch).

        p(x, z) = π_{z_1} Π_{t>1} A_{z_{t−1} z_t} Π_t N(x_t | μ_{z_t}, Σ_{z_t})

        E:  r_tk = p(z_t = k | x), ξ_tij = p(z_{t−1} = i, z_t = j | x) by forward–backward in log space
        M:  π ∝ Σ r_1,  A_ij ∝ Σ_t ξ_tij,  μ_k = Σ_t r_tk x_t / N_k,
            Σ_k = Σ_t r_tk (x_t − μ_k)(x_t − μ_k)ᵀ / N_k

    The rows of a table are one sequence, or several of ``lengths`` that lie one behind the other and share the
    parameters. All run side by side, whatever their lengths.

    As in :class:`~credo.mixture.GaussianMixture` there is a floor under the covariances: a prior that is flat where no
    eigenvalue of Σ_k is below ε and 0 elsewhere. π and the rows of A have Dirichlet priors, whose log density is in the
    bound, so that it never falls. A state that no row is in stays where it is.

    Args:
        n_components: K, the number of states.
        covariance_type: ``"diag"``, ``"full"``, ``"tied"`` (one matrix for all states) or ``"spherical"``.
        reg_covar: ε, the least variance in any direction, in the squared units of the data; at 0 a singular covariance
            is an error.
        startprob_prior: the Dirichlet parameter of π, 1 or more; 1 is flat.
        transmat_prior: the Dirichlet parameter of every row of A, 1 or more; 1 is flat.
        tol: the least gain of the bound per row that is worth another iteration.
        max_iter: the most iterations from one start.
        n_init: how many starts, of which the one with the highest bound is kept. A start has the clusters of k-means as
            states, and all transitions are equally probable.
        device: where torch computes; ``None`` is the CPU.
        random_state: a seed, or scikit-learn's kind of generator.

    Attributes:
        startprob_: π, ``[K]``.
        transmat_: A, from the state of its row to that of its column, ``[K, K]``.
        means_: μ, ``[K, D]``.
        covars_: Σ: ``[K, D]`` for ``"diag"``, ``[K, D, D]`` for ``"full"``, ``[D, D]`` for ``"tied"``, ``[K]`` for
            ``"spherical"``.
        precisions_cholesky_: factors of the precisions, as :class:`~credo.mixture.GaussianMixture` has them.
        lower_bound_: log likelihood + log prior, in nats over all rows.
        log_prior_: the log density of π and A in it.
        lower_bounds_: at the start and after every iteration.
        n_iter_: iterations from the best start.
        converged_: whether that start stopped by ``tol``.

    References:
        L. E. Baum, T. Petrie, G. Soules, N. Weiss. A maximization technique occurring in the statistical analysis of
        probabilistic functions of Markov chains. Annals of Mathematical Statistics 1970.
        L. R. Rabiner. A tutorial on hidden Markov models and selected applications in speech recognition. 1989.
        C. M. Bishop. Pattern Recognition and Machine Learning. 2006, section 13.2.
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
        """Fit to the rows of ``X [N, D]``: one sequence, or several of ``lengths [S]``. ``y`` is not used."""
        with restore_on_error(self):
            self._check()
            if isinstance(X, DataLoader) and isinstance(X.sampler, RandomSampler):
                raise InputError("the DataLoader shuffles, but the order of rows is what a hidden Markov model learns")
            rows = _in_memory(self._training_rows(X))
            if rows.count < self.n_components:
                raise InputError(
                    f"X must have at least as many rows as there are states, got n_samples={rows.count} and "
                    f"n_components={self.n_components}"
                )
            _refuse_lengths_as_targets(y, rows.count)
            steps = BaumWelch(rows, _layout(lengths, rows), self.reg_covar, self.startprob_prior, self.transmat_prior)
            seed = draw_seed(self.random_state)
            fit = fit_em(
                lambda number: self._start(rows, derive(seed, number)),
                steps.e_step,
                steps.m_step,
                rows=rows.count,
                tolerance=self.tol,
                max_iter=self.max_iter,
                restarts=self.n_init,
            )
            chain, components = fit.parameters.chain, fit.parameters.components
            self.startprob_ = chain.start.cpu().numpy()
            self.transmat_ = chain.transition.cpu().numpy()
            self.means_ = components.means.cpu().numpy()
            self.covars_ = components.covariances.cpu().numpy()
            self.precisions_cholesky_ = components.factor.cpu().numpy()
            self.log_prior_ = steps.log_prior(fit.parameters)
            say_where_floor_acts(components, self.reg_covar)
            self._record(fit)
        return self

    def predict(self, X: Any, lengths: ArrayLike | None = None) -> NDArray[np.int64]:
        """The states that are most probable together, ``[N]``."""
        return self.decode(X, lengths=lengths).states

    def decode(self, X: Any, lengths: ArrayLike | None = None) -> Decoding:
        """The most probable path, and the log density of rows and path together."""
        rows = _in_memory(self._new_rows(X))
        emission = log_emission(rows, self._parameters().components).cpu().numpy()
        path, log_prob = most_probable_path(self.startprob_, self.transmat_, emission, _layout(lengths, rows))
        return Decoding(float(log_prob.sum()), path)

    def predict_proba(self, X: Any, lengths: ArrayLike | None = None) -> NDArray[np.float64]:
        """p(z_t | all rows of the sequence), ``[N, K]``."""
        return self._smooth(X, lengths).posterior.cpu().numpy()

    def score(self, X: Any, y: Any = None, *, lengths: ArrayLike | None = None) -> float:
        """log p(x) of all rows together, in nats."""
        smoothed = self._smooth(X, lengths)
        _refuse_lengths_as_targets(y, len(smoothed.forward))
        return float(smoothed.log_likelihood.sum())

    def score_samples(self, X: Any, lengths: ArrayLike | None = None) -> NDArray[np.float64]:
        """log p(x_t | x_1 … x_{t−1}) of every row, given those before it in its sequence, ``[N]``."""
        return self._smooth(X, lengths).log_densities.cpu().numpy()

    def sample(self, n_samples: int = 1) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """A new sequence ``[n, D]`` and its states ``[n]``."""
        check_is_fitted(self)
        check_integer(n_samples, "n_samples", minimum=1)
        random = np.random.default_rng(draw_seed(self.random_state))
        states = _walk(self.startprob_, self.transmat_, random.random(n_samples))
        components = self._parameters().components
        rows = self.means_[states]
        for k in np.unique(states):
            mine = states == k
            noise = self._tensor(random.standard_normal((int(mine.sum()), rows.shape[1])))
            rows[mine] += components.color(k, noise).cpu().numpy()
        return rows, states

    def _check(self) -> None:
        whole: tuple[tuple[str, Any], ...] = (("n_components", self.n_components), ("n_init", self.n_init))
        for name, count in whole:
            if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1:
                raise InputError(f"{name} must be an integer of at least 1, got {count!r}")
        if self.covariance_type not in KINDS:
            raise unknown_name("covariance_type", self.covariance_type, KINDS)
        bounded: tuple[tuple[str, Any, float], ...] = (
            ("reg_covar", self.reg_covar, 0.0),
            ("startprob_prior", self.startprob_prior, 1.0),
            ("transmat_prior", self.transmat_prior, 1.0),
        )
        for name, value, least in bounded:
            if not isinstance(value, Real) or not least <= float(value) < math.inf:
                raise InputError(f"{name} must be a number of at least {least:g}, got {value!r}")

    def _start(self, rows: Rows, seed: int) -> Parameters:
        """The clusters of k-means, and a chain that knows nothing."""
        sample = rows.sample(max(START_ROWS, 100 * self.n_components), seed)
        with warnings.catch_warnings():
            # a start need not be the end of k-means
            warnings.simplefilter("ignore", ConvergenceWarning)
            kmeans = KMeans(self.n_components, n_init=1, random_state=seed % 2**32, device=self.device)
            centers = self._tensor(kmeans.fit(sample.cpu().numpy()).cluster_centers_)
        shared = share(rows, KINDS[self.covariance_type].unit(centers), to_nearest)
        uniform = torch.full_like(shared.sums.count, 1.0 / self.n_components)
        chain = Chain(uniform, uniform.repeat(self.n_components, 1))
        return Parameters(chain, shared.components.updated(shared.sums, self.reg_covar))

    def _parameters(self) -> Parameters:
        kind = KINDS[self.covariance_type]
        components = kind(self._tensor(self.means_), self._tensor(self.precisions_cholesky_))
        return Parameters(Chain(self._tensor(self.startprob_), self._tensor(self.transmat_)), components)

    def _smooth(self, X: Any, lengths: ArrayLike | None) -> Smoothed:
        rows = _in_memory(self._new_rows(X))
        parameters = self._parameters()
        return smooth(parameters.chain, log_emission(rows, parameters.components), _layout(lengths, rows))


def _in_memory(rows: Rows) -> Rows:
    """Rows that keep their order: sequences in chunks are read once and joined."""
    if rows.is_table:
        return rows
    return Rows((rows.map(lambda x: x),), rows.device, lambda chunk: chunk)


def _walk(
    start: NDArray[np.float64], transition: NDArray[np.float64], uniform: NDArray[np.float64]
) -> NDArray[np.int64]:
    """A path through the states, by one uniform number a step."""
    first, following = np.cumsum(start), np.cumsum(transition, axis=1)
    first, following = first / first[-1], following / following[:, -1:]
    states = np.empty(len(uniform), np.int64)
    cumulative = first
    for t, u in enumerate(uniform):
        states[t] = np.searchsorted(cumulative, u, side="right")
        cumulative = following[states[t]]
    return states


def _layout(lengths: ArrayLike | None, rows: Rows) -> Layout:
    """Where the sequences are; all rows are one where no ``lengths`` are given."""
    if lengths is None:
        return Layout(np.array([rows.count]), rows.device)
    found = np.asarray(lengths)
    if found.ndim != 1 or not np.issubdtype(found.dtype, np.integer) or (found < 1).any():
        raise InputError(f"lengths must be integers of at least 1, one for each sequence, got {lengths!r}")
    if found.sum() != rows.count:
        raise InputError(f"lengths must add up to the number of rows, {rows.count}, but add up to {found.sum()}")
    return Layout(found.astype(np.int64), rows.device)


def _refuse_lengths_as_targets(y: Any, rows: int) -> None:
    """Raise ``InputError`` for lengths passed as y, the argument that scikit-learn passes along."""
    if y is not None and np.shape(y)[:1] != (rows,):
        raise InputError("y is not used and must have a value for each row: give the lengths of sequences as lengths=…")
