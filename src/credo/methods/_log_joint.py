"""The log joint density of data and weights, with its gradient, for many chains at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

from credo.data import Batch
from credo.functional import Draw
from credo.methods._flat_stack import LIKELIHOOD, NET, Evaluation, FlatStack, RowLogLikelihood, Target, differentiate


class LogPrior:
    """log p(w) of K weight vectors at once; parameters without a prior have a constant density.

    Args:
        priors: the priors of parameters by name, on their device and in their dtype.
        stack: the order of the parameters in a vector.
    """

    def __init__(self, priors: Mapping[str, Distribution], stack: FlatStack) -> None:
        self._priors, self._stack = priors, stack
        self._normal = self._normal_prior()

    def __call__(self, position: Tensor) -> Evaluation:
        """The log density ``[K]`` and its gradient ``[K, P]`` at ``position`` ``[K, P]``, detached."""
        if self._normal is None:
            return differentiate(self._log_prior, position)
        mean, precision, constant = self._normal
        offset = position.detach() - mean
        slope = offset * precision
        return Evaluation(constant - 0.5 * (offset * slope).double().sum(1), -slope)

    def _log_prior(self, position: Tensor) -> Tensor:
        weights = self._stack.unflatten(position)
        parts = [prior.log_prob(weights[name]).reshape(len(position), -1) for name, prior in self._priors.items()]
        return torch.stack([part.double().sum(1) for part in parts]).sum(0)

    def _normal_prior(self) -> tuple[Tensor, Tensor, float] | None:
        """Means and precisions ``[P]`` and the constant of the log density, if all priors are Gaussian."""
        if not all(isinstance(prior, Normal) for prior in self._priors.values()):
            return None
        like = next(iter(self._priors.values())).loc  # type: ignore[attr-defined]
        means, precisions, constant = [], [], 0.0
        for name, shape in self._stack.shapes.items():
            prior = self._priors.get(name)
            if not isinstance(prior, Normal):
                means.append(like.new_zeros(math.prod(shape)))
                precisions.append(like.new_zeros(math.prod(shape)))
                continue
            scale = prior.scale.expand(shape).flatten()
            means.append(prior.loc.expand(shape).flatten())
            precisions.append(scale.square().reciprocal())
            constant -= float(scale.double().log().sum()) + 0.5 * len(scale) * math.log(2.0 * math.pi)
        return torch.cat(means), torch.cat(precisions), constant

    def sample(self) -> Tensor:
        """One draw from the prior, ``[P]``, from torch's default generator."""
        return torch.cat([_sample(self._priors[name], shape).flatten() for name, shape in self._stack.shapes.items()])


class LogJoint:
    r"""(1/T)·Σ_rows log p(y | x, w) + log p(w) of K weight vectors at once.

    A weight vector w of P numbers holds the network's parameters in the order of ``priors``, then the parameters that
    the likelihood learns, in the order of ``noise_priors``.

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
        named = {f"{NET}{name}": prior for name, prior in priors.items()}
        named |= {f"{LIKELIHOOD}{name}": prior for name, prior in noise_priors.items()}
        self._stack = FlatStack(module, list(named), copies)
        self._prior = LogPrior(named, self._stack)
        self.data, self._temperature = data, temperature
        self._rows = sum(len(batch.y) for batch in data)

    def __call__(self, position: Tensor) -> Evaluation:
        """The log joint density ``[K]`` and its gradient ``[K, P]`` at ``position`` ``[K, P]``."""
        value = self._prior(position)
        for batch in self.data:
            value = value.plus(self._stack.log_likelihood(position, batch).times(1.0 / self._temperature))
        return value

    def estimate(self, position: Tensor, batch: Batch) -> Evaluation:
        """An unbiased estimate of :meth:`__call__` from B of the N rows: their log likelihood times N/B."""
        factor = self._rows / (len(batch.y) * self._temperature)
        return self._prior(position).plus(self._stack.log_likelihood(position, batch).times(factor))

    def flatten(self, weights: Draw, noise: Draw) -> Tensor:
        """Vectors ``[K, P]`` of the network's weights and the likelihood's parameters, each ``[K, *shape]``."""
        named = {f"{NET}{name}": value for name, value in weights.items()}
        return self._stack.flatten(named | {f"{LIKELIHOOD}{name}": value for name, value in noise.items()})

    def split(self, flat: Tensor) -> tuple[Draw, Draw]:
        """The network's weights and the likelihood's parameters in vectors ``[..., P]``, each ``[..., *shape]``."""
        named = self._stack.unflatten(flat)
        weights, noise = (
            {name.removeprefix(prefix): value for name, value in named.items() if name.startswith(prefix)}
            for prefix in (NET, LIKELIHOOD)
        )
        return weights, noise

    def sample_prior(self) -> Tensor:
        """One draw from the prior, ``[P]``, from torch's default generator."""
        return self._prior.sample()


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


def _sample(prior: Distribution, shape: torch.Size) -> Tensor:
    """Independent draws for a parameter of a shape that the prior broadcasts to."""
    padded = [1] * (len(shape) - len(prior.batch_shape)) + list(prior.batch_shape)
    repeated = [i for i, size in enumerate(padded) if size == 1]
    own = [i for i, size in enumerate(padded) if size != 1]
    drawn = prior.sample(torch.Size([shape[i] for i in repeated]))
    places = torch.tensor(repeated + own, dtype=torch.int64).argsort().tolist()
    return drawn.reshape([shape[i] for i in repeated + own]).permute(places)
