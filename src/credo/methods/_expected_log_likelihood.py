r"""E[log p(y | f)] for independent Gaussian outputs f ~ N(m, v), in closed form, or a lower bound of it.

| likelihood | E[log p(y ǀ f)] |
|---|---|
| Gaussian | log N(y; m, σ²) − v/(2σ²), exact |
| Gaussian, heteroscedastic | −½(log 2π + s + ((y − m)² + v)·exp(v_s/2 − s)), exact, for a log variance N(s, v_s) |
| Poisson | y·m − exp(m + v/2) − log y!, exact |
| Categorical | ≥ m_y − log Σ_c exp(m_c + v_c/2), by Jensen's inequality for the logarithm |
| Bernoulli | ≥ log p(y ǀ m) − v/8, as the second derivative of log p is nowhere below −1/4 |

Reference for the bound of classes: J. Harrison, J. Willes, J. Snoek, "Variational Bayesian last layers", ICLR 2024.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from credo.errors import UnsupportedError
from credo.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood, Poisson
from credo.likelihoods.base import as_draw, split_in_two, trailing_dim


def expected_log_prob(likelihood: Likelihood, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
    """E[log p(y | f)] of every row for f ~ N(mean, variance), or a lower bound; differentiable.

    Args:
        likelihood: p(y | f), which :func:`check_has_expectation` accepts.
        mean: ``[B, ...]``.
        variance: ``[B, ...]``.
        y: targets.

    Returns:
        ``[B]``, in nats.
    """
    for cls in type(likelihood).__mro__:
        if cls in _RULES:
            return _RULES[cls](likelihood, mean, variance, y)
    raise UnsupportedError(f"{likelihood!r} has no expected log likelihood")


def check_has_expectation(likelihood: Likelihood) -> None:
    """Raise ``UnsupportedError`` if :func:`expected_log_prob` has no formula for a likelihood."""
    is_known = isinstance(likelihood, tuple(_RULES))
    if not is_known or (isinstance(likelihood, Categorical) and likelihood.logit_noise):
        raise UnsupportedError(
            f"{likelihood!r} has no expected log likelihood in closed form: use credo.Gaussian, credo.Bernoulli, "
            "credo.Poisson, or credo.Categorical without logit_noise"
        )


def _gaussian(likelihood: Gaussian, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
    components = likelihood.components(as_draw(mean))
    log_prob = components.row_log_prob(y)[0]
    center, precision = components.mean[0], (-components.log_variance[0]).exp()
    if likelihood.noise != "heteroscedastic":
        return log_prob - 0.5 * _row_sum(variance.to(precision.dtype) * precision)
    dim = trailing_dim(likelihood.output_dim, as_draw(mean), "output_dim")
    of_mean, of_log_variance = split_in_two(variance.to(precision.dtype), dim, "[mean, log variance]")
    square = (y.to(center.dtype) - center).square()
    return log_prob - 0.5 * _row_sum(((square + of_mean) * (0.5 * of_log_variance).exp() - square) * precision)


def _poisson(likelihood: Poisson, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
    excess = (mean + likelihood.offset).to(variance.dtype).exp() * (0.5 * variance).expm1()
    return likelihood.log_prob(mean, y) - _row_sum(excess)


def _categorical(likelihood: Categorical, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
    logits = as_draw(mean)
    dim = trailing_dim(likelihood.class_dim, logits, "class_dim")
    normalizer = (logits + 0.5 * variance.to(logits.dtype)).logsumexp(dim, keepdim=True)
    return likelihood.weighted_log_prob(logits - normalizer, dim, y)


def _bernoulli(likelihood: Bernoulli, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
    return likelihood.log_prob(mean, y) - 0.125 * _row_sum(variance)


def _row_sum(values: Tensor) -> Tensor:
    return values.sum(dim=tuple(range(1, values.ndim))) if values.ndim > 1 else values


_RULES: dict[type[Likelihood], Callable[[Any, Tensor, Tensor, Tensor], Tensor]] = {
    Gaussian: _gaussian,
    Poisson: _poisson,
    Categorical: _categorical,
    Bernoulli: _bernoulli,
}
"""Not ``functools.singledispatch``, which ``torch.compile`` cannot trace."""
