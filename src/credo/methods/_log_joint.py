"""The log joint density of data and weights, with its gradient, for many chains at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Normal

from credo.data import Batch
from credo.functional import Caller, Draw, Forward
from credo.likelihoods import Likelihood
from credo.stacking import Stack

_NET, _LIKELIHOOD = "caller.net.", "likelihood."


class Evaluation(NamedTuple):
    """The log density of K positions and its gradients.

    Attributes:
        log_density: ``[K]``, float64.
        gradient: ``[K, P]``.
    """

    log_density: Tensor
    gradient: Tensor


Target: TypeAlias = Callable[[Tensor], Evaluation]
"""From positions ``[K, P]`` to their log densities and gradients."""


class RowLogLikelihood(nn.Module):
    """log p(y | f(x)) per row: a network and its likelihood as one module, so that copies of both can be stacked."""

    def __init__(self, net: nn.Module, likelihood: Likelihood, forward: Forward | None) -> None:
        super().__init__()
        self.caller = Caller(net, forward)
        self.likelihood = likelihood

    def forward(self, x: Any, y: Tensor) -> Tensor:
        """The log likelihood of every row, ``[B]``."""
        return self.likelihood.log_prob(self.caller(x), y)


class LogJoint:
    r"""(1/T)·Σ_rows log p(y | x, w) + log p(w) of K weight vectors at once.

    A weight vector w of P numbers holds the network's parameters in the order of ``priors``, then the parameters that
    the likelihood learns, in the order of ``noise_priors``. Sums over rows are in float64, so that differences of
    energies keep their digits.

    Args:
        module: the network, which is run in evaluation mode, and its likelihood.
        priors: the priors of the network's parameters, by name, on their device and in their dtype.
        noise_priors: the priors of the likelihood's parameters, by name.
        data: all data, in batches.
        copies: K.
        temperature: T.
    """

    def __init__(
        self,
        module: RowLogLikelihood,
        priors: Mapping[str, Distribution],
        noise_priors: Mapping[str, Distribution],
        data: Sequence[Batch],
        copies: int,
        temperature: float = 1.0,
    ) -> None:
        self._priors = {f"{_NET}{name}": prior for name, prior in priors.items()}
        self._priors |= {f"{_LIKELIHOOD}{name}": prior for name, prior in noise_priors.items()}
        self._shapes = {name: module.get_parameter(name).shape for name in self._priors}
        self._sizes = [math.prod(shape) for shape in self._shapes.values()]
        self._stack = Stack(module, copies, names=list(self._priors))
        self._data, self._temperature = data, temperature
        self._normal = self._normal_prior()
        self._traced: Target | None = None

    def __call__(self, position: Tensor) -> Evaluation:
        """The log joint density ``[K]`` and its gradient ``[K, P]`` at ``position`` ``[K, P]``."""
        position = position.detach()
        if self._traced is None:
            self._traced = self._trace(position)
        with torch.no_grad():
            return Evaluation(*self._traced(position))

    def _evaluate(self, position: Tensor) -> Evaluation:
        """:meth:`__call__`, through Python."""
        value, gradient = self._prior(position)
        for batch in self._data:
            part = _differentiate(lambda q, batch=batch: self._log_likelihood(q, batch), position)  # type: ignore[misc]
            value, gradient = value + part.log_density, gradient + part.gradient
        return Evaluation(value, gradient)

    def _trace(self, position: Tensor) -> Target:
        """:meth:`_evaluate` as the list of its tensor operations, forward and backward.

        A small network costs more to call than to compute, about twice; the list has no modules, ``vmap`` or autograd
        in it. Where it cannot be made, or differs at another position, the way through Python remains.
        """
        from torch.fx.experimental.proxy_tensor import make_fx  # takes a second to import

        self._evaluate(position)  # finds out whether vmap works
        if not self._stack.is_vectorized:
            return self._evaluate
        other = 0.9 * position + 0.01
        expected = self._evaluate(other)
        try:
            traced = make_fx(lambda q: tuple(self._evaluate(q)))(position)
            traced.graph.eliminate_dead_code()
            traced.recompile()
            found = traced(other)
        except Exception:  # whatever tracing does not support
            return self._evaluate
        same = all(torch.allclose(a, b, equal_nan=True) for a, b in zip(found, expected, strict=True))
        return traced if same else self._evaluate

    def _prior(self, position: Tensor) -> Evaluation:
        """log p(w) and its gradient."""
        if self._normal is None:
            return _differentiate(self._log_prior, position)
        mean, scale, constant = self._normal
        standardized = (position - mean) / scale
        return Evaluation(constant - 0.5 * standardized.double().square().sum(1), -standardized / scale)

    def _log_prior(self, position: Tensor) -> Tensor:
        """log p(w), ``[K]``."""
        weights = self._unflatten(position)
        return torch.stack(
            [
                self._priors[name].log_prob(weights[name]).reshape(len(position), -1).double().sum(1)
                for name in self._priors
            ]
        ).sum(0)

    def _normal_prior(self) -> tuple[Tensor, Tensor, float] | None:
        """Means and scales ``[P]`` and the constant of the log density, if all priors are Gaussian."""
        means, scales = [], []
        for name, prior in self._priors.items():
            if not isinstance(prior, Normal):
                return None
            means.append(prior.loc.expand(self._shapes[name]).flatten())
            scales.append(prior.scale.expand(self._shapes[name]).flatten())
        scale = torch.cat(scales)
        constant = -float(scale.double().log().sum()) - 0.5 * len(scale) * math.log(2.0 * math.pi)
        return torch.cat(means), scale, constant

    def _log_likelihood(self, position: Tensor, batch: Batch) -> Tensor:
        rows = self._stack(self._unflatten(position), (batch.x, batch.y))
        weighted = rows if batch.sample_weight is None else rows * batch.sample_weight
        return weighted.double().sum(1) / self._temperature

    def _unflatten(self, flat: Tensor) -> Draw:
        """Name to ``[..., *shape]`` of vectors ``[..., P]``."""
        parts = flat.split(self._sizes, -1)
        return {
            name: part.view(*flat.shape[:-1], *shape)
            for part, (name, shape) in zip(parts, self._shapes.items(), strict=True)
        }

    def flatten(self, weights: Draw, noise: Draw) -> Tensor:
        """Vectors ``[K, P]`` of the network's weights and the likelihood's parameters, each ``[K, *shape]``."""
        named = {f"{_NET}{name}": value for name, value in weights.items()}
        named |= {f"{_LIKELIHOOD}{name}": value for name, value in noise.items()}
        dtype = next(iter(named.values())).dtype
        return torch.cat([named[name].reshape(len(named[name]), -1).to(dtype) for name in self._shapes], 1)

    def split(self, flat: Tensor) -> tuple[Draw, Draw]:
        """The network's weights and the likelihood's parameters in vectors ``[..., P]``, each ``[..., *shape]``."""
        named = self._unflatten(flat)
        weights, noise = (
            {name.removeprefix(prefix): value for name, value in named.items() if name.startswith(prefix)}
            for prefix in (_NET, _LIKELIHOOD)
        )
        return weights, noise

    def sample_prior(self) -> Tensor:
        """One draw from the prior, ``[P]``, from torch's default generator."""
        return torch.cat([_sample(prior, self._shapes[name]).flatten() for name, prior in self._priors.items()])


def maximize(target: Target, start: Tensor, steps: int, lr: float) -> Tensor:
    """Increase the log density of every row of ``start`` ``[K, P]`` by steps of Adam, with a cosine schedule to 0."""
    position = start.detach().clone()
    optimizer = torch.optim.Adam([position], lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(steps, 1))
    for _ in range(steps):
        position.grad = -target(position).gradient
        optimizer.step()
        schedule.step()
    position.grad = None
    return position


def _differentiate(function: Callable[[Tensor], Tensor], position: Tensor) -> Evaluation:
    with torch.enable_grad():
        leaf = position.detach().requires_grad_()
        value = function(leaf)
        (gradient,) = torch.autograd.grad(value.sum(), leaf)
    return Evaluation(value.detach(), gradient)


def _sample(prior: Distribution, shape: torch.Size) -> Tensor:
    """Independent draws for a parameter of a shape that the prior broadcasts to."""
    padded = [1] * (len(shape) - len(prior.batch_shape)) + list(prior.batch_shape)
    repeated = [i for i, size in enumerate(padded) if size == 1]
    own = [i for i, size in enumerate(padded) if size != 1]
    drawn = prior.sample(torch.Size([shape[i] for i in repeated]))
    places = torch.tensor(repeated + own, dtype=torch.int64).argsort().tolist()
    return drawn.reshape([shape[i] for i in repeated + own]).permute(places)
