"""Errors of the predictive mean, and calibration of intervals and quantiles, for real and count-valued targets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from credo.errors import InputError
from credo.metrics._statistics import explained_variance, mean, mean_absolute_deviation, root_mean
from credo.metrics._targets import Values, as_tensor, check_real, check_real_targets, mean_outputs, outputs
from credo.predictive import Interval, Predictive
from credo.seeding import check_seed

LEVELS = tuple(k / 20 for k in range(1, 20))  # 0.05, 0.10, …, 0.95


@dataclass(frozen=True, eq=False)
class CalibrationCurve:
    """The fraction of targets below predicted quantiles.

    A calibrated prediction is on the diagonal. If the curve is steeper in the middle, predictions are too wide, if
    flatter, too narrow; above the diagonal they are too high, below too low.

    Attributes:
        nominal: the levels of the quantiles, ``[K]``.
        observed: the fraction of targets below them, ``[K]``.

    Example:
        >>> curve = credo.metrics.calibration_curve(p, y)
        >>> plt.plot(curve.nominal, curve.observed)
    """

    nominal: Tensor
    observed: Tensor


def rmse(p: Predictive, y: Values) -> float:
    """Return the root mean squared error of ``p.mean`` over all targets, in the unit of y; lower is better.

    Args:
        p: the prediction of real or count-valued targets.
        y: the targets, in the shape of ``p.mean``.

    Returns:
        The error.

    Raises:
        InputError: if ``p`` is a prediction of classes or ``y`` does not match it.
    """
    return root_mean(row_squared_error(p, check_real_targets(p, y, "rmse"))).value


def r2(p: Predictive, y: Values) -> float:
    """Return R² = 1 − Σ (y − E[y])² / Σ (y − ȳ)², the fraction of variance explained by ``p.mean``; higher is better.

    0 is no better than the average of the targets, 1 is perfect. The sums are over all outputs, each with its own
    average ȳ.

    Args:
        p: the prediction of real or count-valued targets.
        y: the targets, in the shape of ``p.mean``.

    Returns:
        The score; NaN if all targets are equal.

    Raises:
        InputError: if ``p`` is a prediction of classes or ``y`` does not match it.
    """
    targets = check_real_targets(p, y, "r2")
    return explained_variance(row_squared_error(p, targets), outputs(targets)).value


def coverage(p: Predictive, y: Values, level: float = 0.95) -> float:
    """Return the fraction of targets inside ``p.interval(level)``, ends included; best if equal to ``level``.

    For counts the interval contains at least ``level``, so a higher coverage is no error.

    Args:
        p: the prediction of real or count-valued targets.
        y: the targets, in the shape of ``p.mean``.
        level: the probability inside the interval.

    Returns:
        The coverage, from 0 to 1.

    Raises:
        InputError: if ``p`` is a prediction of classes or ``y`` does not match it.
    """
    targets = check_real_targets(p, y, "coverage")
    return mean(row_coverage(p.interval(level), targets)).value


def width(p: Predictive, level: float = 0.95) -> float:
    """Return the mean width of ``p.interval(level)`` in the unit of y; lower is better, at the right coverage.

    Args:
        p: the prediction of real or count-valued targets.
        level: the probability inside the interval.

    Returns:
        The width.

    Raises:
        InputError: if ``p`` is a prediction of classes.
    """
    check_real(p, "width")
    return mean(row_width(p.interval(level))).value


def pit(p: Predictive, y: Values, seed: int = 0) -> Tensor:
    """Return the probability integral transform u = F(y) of every target.

    It is uniform between 0 and 1 if the prediction is calibrated; a histogram shaped like ∪ means that predictions are
    too narrow, like ∩ too wide. The cdf of counts jumps at y; there u is drawn uniformly within the jump (Dunn & Smyth
    1996), which is again uniform for a calibrated prediction.

    Args:
        p: the prediction of real or count-valued targets.
        y: the targets, in the shape of ``p.mean``.
        seed: for the draws of counts; the global random state is not used.

    Returns:
        u, in the shape of ``y``, float64 on the CPU.

    Raises:
        InputError: if ``p`` is a prediction of classes or ``y`` does not match it.

    References:
        P. K. Dunn, G. K. Smyth. Randomized quantile residuals. J. Comput. Graph. Stat. 1996.
    """
    step = cdf_step(p, check_real_targets(p, y, "pit"))
    stream = torch.Generator().manual_seed(check_seed(seed))
    return step.below + (step.upto - step.below) * torch.rand(step.upto.shape, generator=stream, dtype=torch.float64)


def calibration_curve(p: Predictive, y: Values, levels: Values = LEVELS) -> CalibrationCurve:
    """Return, for every level q, the fraction of targets below the predicted q quantile (Kuleshov et al. 2018).

        observed(q) = (1/N) Σ_n P(u_n ≤ q),    u_n = F_n(y_n),

    where P is 1{u_n ≤ q} for real targets; for counts it is the fraction of the jump of F_n at y_n below q, the
    expectation of the randomized transform :func:`pit` (Czado et al. 2009).

    Args:
        p: the prediction of real or count-valued targets.
        y: the targets, in the shape of ``p.mean``.
        levels: q, between 0 and 1, ``[K]``; by default 0.05, 0.10, …, 0.95.

    Returns:
        The levels and the observed fractions.

    Raises:
        InputError: if ``p`` is a prediction of classes, ``y`` does not match it, or a level is not between 0 and 1.

    References:
        V. Kuleshov, N. Fenner, S. Ermon. Accurate uncertainties for deep learning using calibrated regression. ICML
        2018.
        C. Czado, T. Gneiting, L. Held. Predictive model assessment for count data. Biometrics 2009.
    """
    nominal = _check_levels(levels)
    below = fraction_below(p, check_real_targets(p, y, "calibration_curve"), nominal)
    return CalibrationCurve(nominal, below.mean(0))


def quantile_calibration_error(p: Predictive, y: Values, levels: Values = LEVELS) -> float:
    """Return the mean over ``levels`` q of |observed(q) − q|, see :func:`calibration_curve`; lower is better.

    It uses the absolute deviation, not the squared one of Kuleshov et al. (2018), so that it is a probability; and
    quantiles, not central intervals, so that it also measures a bias. With the default levels it is at most ½, and for
    N targets it is not 0 but about 0.3/√N for a perfectly calibrated prediction.

    Args:
        p: the prediction of real or count-valued targets.
        y: the targets, in the shape of ``p.mean``.
        levels: q, between 0 and 1, ``[K]``; by default 0.05, 0.10, …, 0.95.

    Returns:
        The error.

    Raises:
        InputError: if ``p`` is a prediction of classes, ``y`` does not match it, or a level is not between 0 and 1.
    """
    nominal = _check_levels(levels)
    below = fraction_below(p, check_real_targets(p, y, "quantile_calibration_error"), nominal)
    return mean_absolute_deviation(below, nominal).value


class CdfStep(NamedTuple):
    """P(Y < y) and P(Y ≤ y) of every target, ``[B, ...]`` float64 on the CPU; equal for real targets."""

    below: Tensor
    upto: Tensor


@torch.no_grad()
def row_squared_error(p: Predictive, y: Tensor) -> Tensor:
    """Return (y − E[y])² of every row, averaged over its outputs, ``[B]``."""
    return mean_outputs((p.mean - y).square())


def row_coverage(interval: Interval, y: Tensor) -> Tensor:
    """Return the fraction of every row's targets inside the interval, ``[B]``."""
    return mean_outputs((interval.lower <= y) & (y <= interval.upper))


def row_width(interval: Interval) -> Tensor:
    """Return the mean width of every row's intervals, ``[B]``."""
    return mean_outputs(interval.upper - interval.lower)


@torch.no_grad()
def cdf_step(p: Predictive, y: Tensor) -> CdfStep:
    """Return the cdf just below and at every target."""
    upto = p.cdf(y).double().cpu()
    return CdfStep(p.cdf(y - 1).double().cpu() if check_real(p, "pit").discrete else upto, upto)


def fraction_below(p: Predictive, y: Tensor, levels: Tensor) -> Tensor:
    """Return P(u ≤ q) of every row, averaged over its outputs, for each of K levels q, ``[B, K]``."""
    below, upto = (outputs(t)[..., None] for t in cdf_step(p, y))
    fraction = torch.where(upto > below, ((levels - below) / (upto - below)).clamp(0, 1), (upto <= levels).double())
    return fraction.mean(1)


def _check_levels(levels: Values) -> Tensor:
    nominal = as_tensor(levels, "levels").double().cpu()
    if nominal.ndim != 1 or not len(nominal) or not bool(((nominal > 0) & (nominal < 1)).all()):
        raise InputError(f"levels must be a list of numbers between 0 and 1, both excluded, got {nominal.tolist()}.")
    return nominal
