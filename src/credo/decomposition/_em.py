"""EM for probabilistic PCA, with and without missing values: two E-steps and one M-step.

With ž = (z, 1) and w̌_d = (w_d, μ_d), feature d of a row is x_d = w̌_dᵀž + noise: a regression on the latent variable.
Over the rows that have a value there,

    E:  A_d = Σ E[žžᵀ],    c_d = Σ x_d E[ž]
    M:  w̌_d = A_d⁻¹c_d,    σ² = Σ_d (Σ x_d² − w̌_dᵀc_d) / (number of values)

which is (12.53)–(12.57) of Bishop where nothing is missing. Then all rows have the same posterior precision, so that
the sums follow from the scatter, and a step costs the same for a hundred rows and a hundred million. Values are taken
from a fixed center, the mean of those that are there.

References:
    M. E. Tipping, C. M. Bishop. Probabilistic principal component analysis. JRSS B 1999.
    C. M. Bishop. Pattern Recognition and Machine Learning. 2006, section 12.2.2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from credo._rows import Rows
from credo.conjugate import GaussianBelief, LinearGaussian
from credo.decomposition import gaps
from credo.decomposition.moments import Moments, check_noise
from credo.em import Expectation
from credo.errors import InputError


@dataclass(frozen=True, eq=False)
class Parameters:
    """μ (from the center) ``[D]``, W ``[D, K]`` and σ²."""

    mean: Tensor
    loading: Tensor
    noise: float

    @property
    def model(self) -> LinearGaussian:
        """p(z) and p(x | z)."""
        prior = GaussianBelief.isotropic(self.loading.shape[1], 1.0, like=self.loading)
        return LinearGaussian(prior, self.loading, self.mean, 1.0 / self.noise)

    @classmethod
    def random(cls, n_components: int, variances: Tensor, generator: torch.Generator) -> Parameters:
        """A random W and as much noise as signal, for columns with these ``variances [D]`` on average."""
        half = 0.5 * float(variances.mean())
        shape = (len(variances), n_components)
        directions = torch.randn(shape, generator=generator, dtype=variances.dtype).to(variances.device)
        return cls(torch.zeros_like(variances), math.sqrt(half / n_components) * directions, half)


@dataclass(frozen=True, eq=False)
class Expected:
    """Rows that stand for all, where nothing is missing, and what is expected of z: Σ E‖x − Wz‖² as a sum of squares.

    Attributes:
        rows: R with RᵀR the scatter, ``[D, D]``.
        latent: E[z] of each, ``[D, K]``.
        spread: N Cov[z], ``[K, K]``.
    """

    rows: Tensor
    latent: Tensor
    spread: Tensor

    def errors(self, loading: Tensor) -> float:
        """Σ E‖x − Wz‖²."""
        fit = (self.rows - self.latent @ loading.mT).square().sum()
        return float(fit + (loading @ self.spread * loading).sum())


@dataclass(frozen=True, eq=False)
class Statistics:
    """What the M-step needs.

    Attributes:
        second: A_d, ``[D, K + 1, K + 1]``, or ``[1, K + 1, K + 1]`` where it is the same for all columns.
        cross: c_d, ``[D, K + 1]``.
        squares: Σ x², over all values.
        values: the number of values.
        expected: where nothing is missing: then little noise keeps its digits.
    """

    second: Tensor
    cross: Tensor
    squares: float
    values: int
    expected: Expected | None = None


def m_step(statistics: Statistics) -> Parameters:
    """The regression of every column on the latent variable, and the mean square of what it leaves."""
    solution = torch.linalg.solve(statistics.second, statistics.cross.unsqueeze(-1)).squeeze(-1)
    if statistics.expected is None:
        errors = statistics.squares - float((solution * statistics.cross).sum())
    else:
        errors = statistics.expected.errors(solution[:, :-1])
    noise = errors / statistics.values
    check_noise(noise, statistics.squares / statistics.values, solution.shape[1] - 1)
    return Parameters(solution[:, -1], solution[:, :-1], noise)


def expect_from_moments(moments: Moments, parameters: Parameters) -> Expectation[Statistics]:
    """The E-step without missing values, centered at x̄, where the mean of the parameters stays."""
    loading, beta, rows = parameters.loading, 1.0 / parameters.noise, moments.count
    size, n_components = loading.shape
    belief = parameters.model.posterior(loading.new_zeros(size))
    projection = beta * belief.covariance @ loading.mT  # E[z] = Px
    latent = moments.root @ projection.mT
    expected = Expected(moments.root, latent, rows * belief.covariance)
    second = loading.new_zeros(1, n_components + 1, n_components + 1)
    second[0, :-1, :-1] = latent.mT @ latent + expected.spread  # the first is Σ E[z]E[z]ᵀ
    second[0, -1, -1] = rows
    log_dets = rows * (size * math.log(beta / (2.0 * math.pi)) - float(belief.log_det_precision))
    # Σ (β‖x − WE[z]‖² + ‖E[z]‖²), as squares: a difference of larger ones would lose its digits with little noise
    errors = beta * float((moments.root - latent @ loading.mT).square().sum()) + float(latent.square().sum())
    cross = pad(moments.root.mT @ latent, (0, 1))
    squares = float(moments.scatter.trace())
    return Expectation(Statistics(second, cross, squares, rows * size, expected), 0.5 * (log_dets - errors))


def expect_from_rows(rows: Rows, center: Tensor, parameters: Parameters) -> Expectation[Statistics]:
    """The E-step where values are missing: one pass over the rows."""
    model = parameters.model
    size, n_components = parameters.loading.shape

    def sums(block: Tensor) -> tuple[Tensor, ...]:
        x = block - center
        belief = gaps.posterior(model, x)
        there = (~x.isnan()).to(x.dtype)
        latent = pad(belief.mean, (0, 1), value=1.0)  # E[ž]
        products = latent.unsqueeze(-1) * latent.unsqueeze(-2) + pad(belief.covariance, (0, 1, 0, 1))
        values = x.nan_to_num(nan=0.0)
        return (
            (there.mT @ products.flatten(1)).unflatten(1, products.shape[1:]),
            values.mT @ latent,
            values.square().sum(),
            there.sum(),
            gaps.evidence_of(model, x, belief).sum(),
        )

    numbers_per_row = size + 3 * (n_components + 1) ** 2
    second, cross, squares, values, bound = rows.total(sums, numbers_per_row)
    return Expectation(Statistics(second, cross, float(squares), int(values)), float(bound))


@dataclass(frozen=True, eq=False)
class Observed:
    """What is there of each column: how many values, their mean and their variance, ``[D]`` each."""

    counts: Tensor
    mean: Tensor
    variance: Tensor

    @classmethod
    def of(cls, rows: Rows) -> Observed:
        """One pass; refused where a column has no value at all."""
        total: Observed | None = None
        for block in rows.blocks():
            part = cls.of_block(block[0])
            total = part if total is None else total + part
        assert total is not None
        empty = torch.nonzero(total.counts == 0).flatten().tolist()
        if empty:
            raise InputError(f"X has no value in column {empty[0]}, counted from 0: drop columns that are all missing")
        if not bool(total.variance.any()):
            raise InputError("X has no variance: every column is constant, and there are no directions to find")
        return total

    @classmethod
    def of_block(cls, block: Tensor) -> Observed:
        """Of ``block [B, D]``; the mean and the variance of a column without a value are 0."""
        counts = (~block.isnan()).sum(0)
        mean = block.nanmean(0).nan_to_num(nan=0.0)
        squares = (block - mean).square().nansum(0)
        return cls(counts, mean, squares / counts.clamp(min=1))

    def __add__(self, other: Observed) -> Observed:
        counts = self.counts + other.counts
        share = other.counts / counts.clamp(min=1)
        apart = other.mean - self.mean
        variance = self.variance + share * (other.variance - self.variance) + share * (1.0 - share) * apart.square()
        return Observed(counts, self.mean + share * apart, variance)
