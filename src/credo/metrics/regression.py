"""Predictions of real and count-valued targets: is the mean close, and are the error bars honest?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from credo.errors import InputError
from credo.metrics._statistics import explained_variance, mean, mean_absolute_deviation, root_mean
from credo.metrics._targets import Values, as_tensor, by_row, outputs, real_targets, require_real
from credo.predictive import Interval, Predictive
from credo.seeding import check_seed

LEVELS = tuple(k / 20 for k in range(1, 20))  # 0.05, 0.10, …, 0.95


@dataclass(frozen=True, eq=False)
class CalibrationCurve:
    """What a prediction promised and what came: ``observed[k]`` of the targets lie below the ``nominal[k]`` quantile.

    Both ``[K]``. On the diagonal the prediction is calibrated. Where the curve is steeper in the middle it is too wide,
    where flatter too sure of itself; above the diagonal it is too high, below too low.
    """

    nominal: Tensor
    observed: Tensor


def rmse(p: Predictive, y: Values) -> float:
    """√ of the mean of (y − E[y])² over all targets: the error of ``p.mean`` in the unit of y; lower is better."""
    return root_mean(squared_error(p, real_targets(p, y, "rmse"))).value


def r2(p: Predictive, y: Values) -> float:
    """1 − Σ (y − E[y])² / Σ (y − ȳ)²: the share of the targets' variance that ``p.mean`` explains; higher is better.

    0 is no better than the average of the targets, 1 is perfect. The sums go over all outputs, each with an average ȳ
    of its own. NaN where all targets are equal.
    """
    targets = real_targets(p, y, "r2")
    return explained_variance(squared_error(p, targets), outputs(targets)).value


def coverage(p: Predictive, y: Values, level: float = 0.95) -> float:
    """The share of the targets inside ``p.interval(level)``, ends included; right where it equals ``level``.

    For counts the interval holds at least ``level``, so more than it is no fault.
    """
    targets = real_targets(p, y, "coverage")
    return mean(covered(p.interval(level), targets)).value


def width(p: Predictive, level: float = 0.95) -> float:
    """The mean width of ``p.interval(level)`` in the unit of y; lower is better, at the right coverage.

    Args:
        p: the prediction of real or count-valued targets.
        level: the probability inside the interval.
    """
    require_real(p, "width")
    return mean(widths(p.interval(level))).value


def pit(p: Predictive, y: Values, seed: int = 0) -> Tensor:
    """The probability integral transform u = F(y) of every target, in the shape of ``y``, float64 on the CPU.

    Uniform between 0 and 1 if the prediction is calibrated: a histogram shaped like ∪ is too sure, like ∩ too wide. The
    cdf of counts jumps at y, by the probability of y; there u is drawn uniformly within the jump (Dunn & Smyth 1996),
    which is again uniform, from a stream of its own given by ``seed``.

    References:
        P. K. Dunn, G. K. Smyth. Randomized quantile residuals. J. Comput. Graph. Stat. 1996.
    """
    step = cdf_step(p, real_targets(p, y, "pit"))
    stream = torch.Generator().manual_seed(check_seed(seed))
    return step.below + (step.upto - step.below) * torch.rand(step.upto.shape, generator=stream, dtype=torch.float64)


def calibration_curve(p: Predictive, y: Values, levels: Values = LEVELS) -> CalibrationCurve:
    """For every level q the share of the targets below the predicted q quantile (Kuleshov et al. 2018).

        observed(q) = (1/N) Σ_n P(u_n ≤ q),    u_n = F_n(y_n),

    which is 1{u_n ≤ q} for real targets; for counts it is the share of the jump of F_n at y_n that lies below q, the
    expectation of the randomized transform :func:`pit` (Czado et al. 2009).

    Args:
        p: the prediction of real or count-valued targets.
        y: the targets, in the shape of ``p.mean``.
        levels: q, between 0 and 1, ``[K]``.

    References:
        V. Kuleshov, N. Fenner, S. Ermon. Accurate uncertainties for deep learning using calibrated regression. ICML
        2018.
        C. Czado, T. Gneiting, L. Held. Predictive model assessment for count data. Biometrics 2009.
    """
    nominal = _levels(levels)
    below = share_below(p, real_targets(p, y, "calibration_curve"), nominal)
    return CalibrationCurve(nominal, below.mean(0))


def quantile_calibration_error(p: Predictive, y: Values, levels: Values = LEVELS) -> float:
    """The mean over ``levels`` q of |observed(q) − q|, see :func:`calibration_curve`; lower is better.

    The absolute deviation in place of the squared one of Kuleshov et al. (2018), so that it is read as a probability;
    of quantiles, not central intervals, so that a bias shows too. With the default levels it is at most ½, and for N
    targets not 0 but about 0.3/√N where the prediction is perfect.
    """
    nominal = _levels(levels)
    below = share_below(p, real_targets(p, y, "quantile_calibration_error"), nominal)
    return mean_absolute_deviation(below, nominal).value


class CdfStep(NamedTuple):
    """P(Y < y) and P(Y ≤ y) of every target, ``[B, ...]`` float64 on the CPU; equal for real targets."""

    below: Tensor
    upto: Tensor


@torch.no_grad()
def squared_error(p: Predictive, y: Tensor) -> Tensor:
    """(y − E[y])² averaged over the outputs of every row, ``[B]``."""
    return by_row((p.mean - y).square())


def covered(interval: Interval, y: Tensor) -> Tensor:
    """The share of every row's targets inside the interval, ``[B]``."""
    return by_row((interval.lower <= y) & (y <= interval.upper))


def widths(interval: Interval) -> Tensor:
    """The mean width of every row's intervals, ``[B]``."""
    return by_row(interval.upper - interval.lower)


@torch.no_grad()
def cdf_step(p: Predictive, y: Tensor) -> CdfStep:
    """The cdf just before and at every target."""
    upto = p.cdf(y).double().cpu()
    return CdfStep(p.cdf(y - 1).double().cpu() if require_real(p, "pit").discrete else upto, upto)


def share_below(p: Predictive, y: Tensor, levels: Tensor) -> Tensor:
    """P(u ≤ q) of every row, averaged over its outputs, for each of K levels q, ``[B, K]``."""
    below, upto = (outputs(t)[..., None] for t in cdf_step(p, y))
    share = torch.where(upto > below, ((levels - below) / (upto - below)).clamp(0, 1), (upto <= levels).double())
    return share.mean(1)


def _levels(levels: Values) -> Tensor:
    nominal = as_tensor(levels, "levels").double().cpu()
    if nominal.ndim != 1 or not len(nominal) or not bool(((nominal > 0) & (nominal < 1)).all()):
        raise InputError(f"levels must be a list of numbers between 0 and 1, both excluded, got {nominal.tolist()}.")
    return nominal
