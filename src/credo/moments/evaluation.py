r"""Prediction by moments: one pass of means and variances, then deterministic draws of the network's output.

The output f of a row is taken as Gaussian. Its covariance is a sum over the noises that entered on the way,

    Cov[f] = Σ_n J_n diag(v_n) J_nᵀ,    J_n = ∂E[f]/∂(mean at which noise n enters),

with one backward pass per output. It is exact for one hidden layer, and of first order in the correlations of deeper
units. Going back K outputs through all layers costs K forward passes, so it stops at the first layer from which on it
would cost more than ``1.5`` of them; the units there count as independent.

The draws are Sobol points through the root of that covariance, shifted and scaled to have exactly its mean and
variance. Every likelihood then integrates its output over them as over draws of weights.

References: J. M. Hernández-Lobato, R. P. Adams, "Probabilistic backpropagation for scalable learning of Bayesian neural
networks", ICML 2015. A. Wu, S. Nowozin, E. Meeds, R. E. Turner, J. M. Hernández-Lobato, A. L. Gaunt, "Deterministic
variational inference for robust Bayesian neural networks", ICLR 2019.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from credo._devices import at_least_float32
from credo._special import gaussian_points
from credo.errors import UnsupportedError
from credo.functional import Draw, Replica
from credo.moments.layers import drop
from credo.moments.tensors import Moments, Pass
from credo.nests import count_rows, default_batch_size, first_rows, flatten_rows, map_tensors, split_rows
from credo.posteriors._dropout_calls import DropoutCalls, DropoutRequest
from credo.posteriors._dropout_plan import DropoutPlan
from credo.posteriors.base import Posterior
from credo.posteriors.concrete_dropout import ConcreteWeightDropout
from credo.posteriors.dropout import WeightDropout
from credo.posteriors.dropout_layers import LayerDropout
from credo.posteriors.mean_field import MeanField
from credo.posteriors.point import PointMass
from credo.probing import eager

N_DRAWS = 128
"""Draws of the output; a power of 2 keeps a Sobol sequence balanced."""
_BACKWARD_COST = 1.5
"""How much following covariances may cost, in forward passes."""
_SMALL_COST = 2**17
"""Multiplications per row that are always worth following covariances."""
_ROWS = 512
"""Rows per pass: means, variances and gradients of more do not stay in a cache."""


@singledispatch
def parameter_moments(posterior: Posterior) -> Draw:
    """The random parameters of a network, as :class:`Moments` by name.

    Args:
        posterior: the distribution over the weights.

    Raises:
        UnsupportedError: for a posterior whose weights are not known to be independent.
    """
    raise UnsupportedError(
        f"moments cannot be propagated from the weights of {type(posterior).__name__}, which are not known to be "
        "independent; use samples=100"
    )


@parameter_moments.register
def _(posterior: MeanField) -> Draw:
    mean, scale = posterior.mean(), posterior.scale()
    return {
        name: Moments(mean[name], scale[name].detach().square().to(mean[name].dtype), parameter=name) for name in mean
    }


@parameter_moments.register
def _(posterior: WeightDropout) -> Draw:
    noise, rates = posterior.noise**2, posterior.rates
    if posterior.connections:
        return {
            name: Moments(mean, rates[name] / (1.0 - rates[name]) * mean.square() + noise, parameter=name)
            for name, mean in posterior.mean().items()
        }
    return {
        name: Moments(mean, torch.full_like(mean, noise), parameter=name, rate=rates[name])
        for name, mean in posterior.mean().items()
    }


@parameter_moments.register
def _(posterior: ConcreteWeightDropout) -> Draw:
    return parameter_moments(posterior.bernoulli())


@parameter_moments.register
def _(posterior: PointMass | LayerDropout) -> Draw:
    return {}


class MomentEvaluator:
    """Evaluates a network by its moments.

    Args:
        build: makes a private network, ready to predict.
        posterior: the distribution over its weights.
    """

    def __init__(self, build: Callable[[], Replica], posterior: Posterior) -> None:
        self._build, self._posterior = build, posterior
        self._replica = build()
        with torch.inference_mode(False), torch.no_grad():
            self._weights = parameter_moments(posterior)
        self._start: int | None = None

    @torch.inference_mode(False)
    @torch.no_grad()
    def __call__(self, x: Any, batch_size: int | None = None) -> Tensor:
        """Draws of the output ``[128, B, ...]`` for the rows of ``x``; one draw where nothing is random."""
        x = map_tensors(lambda t: t.clone() if t.is_inference() else t.detach(), x)
        parts = split_rows(x, batch_size or min(default_batch_size(x), _ROWS))
        return torch.cat([_draws(*self.moments(part)) for part in parts], dim=1)

    @torch.no_grad()
    def moments(self, x: Any) -> tuple[Tensor, Tensor | None]:
        """Means and covariances of the output.

        Args:
            x: inputs, rows along dim 0.

        Returns:
            The means ``[B, ...]``, and the covariances ``[B, K, K]`` of the K outputs of a row; where there are too
            many to follow, their variances ``[B, K]``; ``None`` where nothing is random.
        """
        if self._start is None:
            self._start = self._choose_start(x)
        output, here = self._run(x, self._start)
        if not isinstance(output, Moments):
            return output, None
        mean = output.expectation.detach()
        if here.noises:
            return mean, _covariance(output.expectation, here)
        return mean, flatten_rows(output.spread) if output.covariance is None else output.covariance()

    def _choose_start(self, x: Any) -> int:
        """The number of the first weight layer from which on following covariances is not too expensive.

        From the last layer alone nothing is followed: its rule knows the covariances.
        """
        output, here = self._run(first_rows(x, 1), start=-1)
        allowed = max(_BACKWARD_COST * sum(here.costs), _SMALL_COST)
        outputs, spent, start = math.prod(output.shape[1:]), 0, len(here.costs)
        while start > 0 and spent + outputs * here.costs[start - 1] <= allowed:
            start -= 1
            spent += outputs * here.costs[start]
        return start if start < len(here.costs) - 1 or start == 0 else -1

    def _run(self, x: Any, start: int) -> tuple[Tensor, Pass]:
        """The output of one pass that follows covariances from weight layer ``start`` on; never for -1."""
        replica, rows = self._replica, count_rows(x)
        here = Pass(rows, start if rows else -1)
        self._posterior.prepare(replica, x)
        dropout = nullcontext() if replica.plan is None else _Dropout(replica.plan)
        with torch.enable_grad(), eager(), here.running(replica.net), dropout:
            output = replica(self._weights, x)
        for name in self._weights:
            if name not in here.used and name.rpartition(".")[0] in here.called:
                raise here.error(f"the use of {name!r}", "which no layer that moments know takes as its weight")
        if replica.is_stateful():
            self._replica = self._build()
        return output if isinstance(output, Moments) else output.detach(), here


class _Dropout(DropoutCalls):
    """Answers the dropout calls of a network's own layers with the moments of dropout."""

    def __init__(self, plan: DropoutPlan) -> None:
        super().__init__()
        self._plan, self._seen = plan, 0

    @override
    def answer(self, request: DropoutRequest) -> Tensor:
        """The activation with the variance of dropout."""
        x, p, on, spatial_dims, alpha, _ = request
        if self._seen < len(self._plan.calls):
            on = self._plan.calls[self._seen].on
        self._seen += 1
        if not on or p <= 0:
            return x
        return drop(x, p, list(range(x.dim() - spatial_dims, x.dim())), alpha)


def _covariance(mean: Tensor, here: Pass) -> Tensor:
    """Σ_n J_n diag(v_n) J_nᵀ of the outputs of every row, ``[B, K, K]``."""
    with torch.enable_grad():
        outputs = [column.sum() for column in flatten_rows(mean).unbind(1)]
    nodes = [noise.node for noise in here.noises]
    coefficients: list[list[Tensor]] = [[] for _ in nodes]
    for output in outputs:
        gradients = torch.autograd.grad(output, nodes, retain_graph=True, allow_unused=True)
        for found, noise, gradient in zip(coefficients, here.noises, gradients, strict=True):
            if gradient is not None:
                found.append(noise.whiten(gradient).to(at_least_float32(gradient.dtype)))
    total = mean.new_zeros(mean.shape[0], len(outputs), len(outputs), dtype=at_least_float32(mean.dtype))
    for found in coefficients:
        if found:
            factor = torch.stack(found, 1)
            total.baddbmm_(factor, factor.transpose(1, 2))
    return total


def _draws(mean: Tensor, spread: Tensor | None) -> Tensor:
    """Draws ``[S, B, ...]`` of Gaussian outputs with this mean and (co)variance, in at least 32 bits."""
    if spread is None:
        return mean[None]
    flat, spread = (t.to(at_least_float32(t.dtype)) for t in (flatten_rows(mean), spread))
    points = gaussian_points(flat, spread.sqrt() if spread.dim() == 2 else _root(spread), N_DRAWS)
    return points.view(len(points), *mean.shape)


def _root(covariance: Tensor) -> Tensor:
    """The Cholesky factor; of singular matrices too, by a few rounding errors on the diagonal."""
    limits = torch.finfo(covariance.dtype)
    largest = covariance.diagonal(dim1=1, dim2=2).amax(-1) if covariance.numel() else covariance.new_zeros(0)
    jitter = (4 * covariance.shape[-1] * limits.eps * largest + limits.tiny)[:, None]
    root: Tensor = torch.linalg.cholesky(covariance + torch.diag_embed(jitter.expand(-1, covariance.shape[-1])))
    return root
