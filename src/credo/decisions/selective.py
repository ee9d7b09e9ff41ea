"""Selective prediction: abstain where the uncertainty is high, with a guarantee on the errors that remain."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor

from credo._arguments import check_fraction, check_integer, check_option
from credo.decisions.uncertainty import SCORES, uncertainty
from credo.errors import InputError
from credo.metrics._targets import Values, as_tensor
from credo.predictive import ClassPredictive, Predictive
from credo.predictive.classes import CategoricalComponents


class SelectivePredictor:
    r"""Accepts predictions whose uncertainty is below a threshold, such that their error rate is controlled.

    From n calibration rows, ``fit`` finds the threshold t with the largest coverage such that

        P( R(t) ≤ r ) ≥ 1 − δ,    R(t) = P(error | u(x) < t),

    where the outer probability is over the calibration rows. It holds for any model, any score u and any n, if the
    calibration rows and the later ones are independent draws from one distribution and the model was not trained on
    them. It is a statement about all later rows together and says nothing about a single row, or about rows from
    another distribution.

    How. The possible thresholds are the uncertainties of J fixed ranks k = n, n(J − 1)/J, …, n/J among the calibration
    rows, sorted by uncertainty: t_k is the (k+1)-th smallest, and t_n = ∞ accepts all. Given t_k, the rows below it are
    independent draws from P(· | u < t_k), so their number of errors is binomial with rate R(t_k), and the
    Clopper–Pearson bound at level 1 − δ/J,

        R⁺(t_k) = sup{ R : P(Bin(k, R) ≤ number of errors) ≥ δ/J },

    is exceeded with probability at most δ/J. All J bounds hold with probability 1 − δ, so the largest k with
    R⁺(t_k) ≤ r may be chosen by looking at them. Geifman & El-Yaniv (2017) use the same bound, with ranks from a binary
    search, which depend on the data; with fixed ranks the union bound is exact.

    Args:
        risk: r, the highest error rate of accepted rows.
        delta: δ, the probability that the guarantee fails.
        score: the uncertainty u, as in :func:`~credo.decisions.uncertainty`.
        error: ``callable(p, y)`` that says which rows count as errors, ``[B]``, bool; ``None``: those whose most
            probable class is wrong. For real targets it must be given:
            ``lambda p, y: (p.mean - y).abs() > tolerance``.
        levels: J, the number of thresholds to choose from.

    Attributes:
        threshold: t; rows with a lower uncertainty are accepted. −∞ if no threshold has the guarantee, so that no row
            is accepted.
        coverage: the fraction of calibration rows accepted.
        bound: R⁺(t), at most ``risk``; NaN if nothing is accepted.

    Raises:
        InputError: if an argument is not valid.

    Example:
        >>> selective = credo.decisions.SelectivePredictor(risk=0.01).fit(model.predict(x_held_out), y_held_out)
        >>> p = model.predict(x_new)
        >>> accepted = selective.accept(p)
        >>> p.mode[accepted]

    References:
        Y. Geifman, R. El-Yaniv. Selective classification for deep neural networks. NeurIPS 2017.
        A. N. Angelopoulos, S. Bates, E. J. Candès, M. I. Jordan, L. Lei. Learn then test: calibrating predictive
        algorithms to achieve risk control. 2021.
    """

    def __init__(
        self,
        risk: float = 0.05,
        delta: float = 0.05,
        score: str = "entropy",
        error: Callable[[Predictive, Tensor], Tensor] | None = None,
        levels: int = 20,
    ) -> None:
        self.risk = check_fraction(risk, "risk")
        self.delta = check_fraction(delta, "delta")
        self.score = check_option(score, "score", SCORES)
        self.error = error
        self.levels = check_integer(levels, "levels", minimum=1)
        self.threshold: float | None = None
        self.coverage, self.bound = math.nan, math.nan

    def fit(self, p: Predictive, y: Values) -> Self:
        """Choose the threshold from held-out rows.

        Args:
            p: the prediction of rows that were not used in training.
            y: their targets; rows all of whose targets equal the likelihood's ``ignore_index`` are left out.

        Returns:
            The predictor itself; see ``threshold``, ``coverage`` and ``bound``.

        Raises:
            InputError: if the targets do not match the prediction, or there is no definition of an error for them.
        """
        u = uncertainty(p, self.score).double().cpu()
        targets = as_tensor(y, "y").to(p.components.parameter.device)
        p.components.check(targets)
        wrong = self._errors(p, targets).double().cpu()
        if isinstance(p.components, CategoricalComponents) and p.components.ignore_index is not None:
            kept = (targets != p.components.ignore_index).reshape(len(p), -1).any(1).cpu()
            u, wrong = u[kept], wrong[kept]
        if not len(u) or bool(u.isnan().any()):
            raise InputError("the prediction must have at least one row with a target, and no uncertainty may be NaN")
        in_order, order = u.sort()
        limits = torch.cat([in_order, in_order.new_full((1,), math.inf)])
        errors = torch.cat([wrong.new_zeros(1), wrong[order].cumsum(0)])
        thresholds = limits[_ranks(len(u), self.levels)]
        below = torch.searchsorted(in_order, thresholds)  # fewer than the rank if uncertainties are equal
        bounds = _upper_bound(errors[below], below, self.delta / self.levels)
        good = (bounds <= self.risk).nonzero()[:, 0]
        if len(good):
            best = int(good[0])
            self.threshold, self.bound = float(thresholds[best]), float(bounds[best])
            self.coverage = int(below[best]) / len(u)
        else:
            self.threshold, self.coverage, self.bound = -math.inf, 0.0, math.nan
        return self

    def accept(self, p: Predictive) -> Tensor:
        """Say which rows of a prediction to accept.

        Args:
            p: the prediction of any rows.

        Returns:
            Whether the uncertainty of each row is below the threshold, ``[B]``, bool.

        Raises:
            InputError: if the predictor is not fitted.
        """
        if self.threshold is None:
            raise InputError("this SelectivePredictor is not fitted: call fit(p, y) with held-out rows first")
        return uncertainty(p, self.score).double() < self.threshold

    def _errors(self, p: Predictive, targets: Tensor) -> Tensor:
        if self.error is None and not isinstance(p, ClassPredictive):
            raise InputError(
                "error must be given for real targets, for example error=lambda p, y: (p.mean - y).abs() > 1.0"
            )
        wrong = p.mode != targets if self.error is None else torch.as_tensor(self.error(p, targets))
        if wrong.dtype != torch.bool or wrong.numel() != len(p):
            raise InputError(
                f"error must return one True or False per row, [{len(p)}], got {wrong.dtype} of shape "
                f"{list(wrong.shape)}"
            )
        return wrong.reshape(len(p))


def _ranks(n: int, levels: int) -> list[int]:
    """n, n(J − 1)/J, …, n/J, rounded; without 0 and without repetitions, descending."""
    return sorted({round(n * j / levels) for j in range(1, levels + 1)} - {0}, reverse=True)


def _upper_bound(errors: Tensor, n: Tensor, delta: float) -> Tensor:
    """The Clopper–Pearson upper bounds of rates at level 1 − ``delta``; 1 without rows, or if all are errors."""
    from scipy.special import betaincinv

    right = (n - errors).clamp(min=1)
    quantiles = torch.from_numpy(betaincinv((errors + 1).numpy(), right.numpy(), 1.0 - delta))
    return torch.where(errors < n, quantiles, 1.0)
