"""The log joint density of data and weights, with its gradient, for many chains at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

from credo.data import Batch
from credo.functional import Draw
from credo.hierarchical import HierarchicalNormal
from credo.methods._flat_stack import LIKELIHOOD, NET, Evaluation, FlatStack, RowLogLikelihood, Target, differentiate
from credo.methods._replay import Replayed
from credo.methods._streams import Streams
from credo.seeding import derive

_VARIANCES = 1  # index of a random stream

Refresh: TypeAlias = Callable[[Tensor, Evaluation], Evaluation]


class LogPrior:
    """log p(w) of K weight vectors at once; parameters without a prior have a constant density.

    Under a :class:`credo.HierarchicalNormal` it is log p(w, s²), with variances s² of each chain that are held fixed
    until :meth:`resample` draws new ones; they begin at 1/s² = a/b, the mean of their prior.

    Args:
        priors: the priors of parameters by name, on their device and in their dtype.
        stack: the order of the parameters in a vector.
    """

    def __init__(self, priors: Mapping[str, Distribution], stack: FlatStack) -> None:
        self._priors, self._stack = priors, stack
        self.hierarchical = {name: p for name, p in priors.items() if isinstance(p, HierarchicalNormal)}
        self._others = {
            name: p for name, p in priors.items() if not isinstance(p, Normal) and name not in self.hierarchical
        }
        self._fixed, self._gaussian = 0.0, _Gaussian(torch.zeros(()), torch.zeros(()), 0.0)
        self._is_set_up = False

    def __call__(self, position: Tensor) -> Evaluation:
        """The log density ``[K]`` and its gradient ``[K, P]`` at ``position`` ``[K, P]``, detached."""
        position = position.detach()
        if not self._is_set_up:
            self._set_up(position)
        mean, precision, constant = self._gaussian
        offset = position - mean
        slope = offset * precision
        value = Evaluation((offset * slope).double().sum(1).mul_(-0.5).add_(constant), slope.neg_())
        return value.plus(differentiate(self._log_others, position)) if self._others else value

    def resample(self, position: Tensor, streams: Streams) -> None:
        """Draw the variances of every chain given its weights."""
        weights = self._stack.unflatten(position.detach())
        precisions = {}
        for name, prior in self.hierarchical.items():
            conditional = prior.precisions_given(weights[name], self._stack.shapes[name])
            gamma = streams.gamma(name, conditional.concentration, conditional.rate.shape[1:])
            precisions[name] = gamma / conditional.rate
        self._set_precisions(position, precisions)

    def sample(self) -> Tensor:
        """One draw from the prior, ``[P]``, from torch's default generator."""
        parts = [_sample(self._priors[name], shape).flatten() for name, shape in self._stack.shapes.items()]
        return torch.cat([part.to(self._stack.device, self._stack.dtype) for part in parts])

    def _set_up(self, position: Tensor) -> None:
        """Means and precisions of all weights; the precision is 0 where the prior is not Gaussian."""
        means, precisions = [], []
        for name, shape in self._stack.shapes.items():
            prior = self._priors.get(name)
            if isinstance(prior, Normal):
                scale = prior.scale.expand(shape).flatten()
                means.append(prior.loc.expand(shape).flatten())
                precisions.append(scale.square().reciprocal())
                self._fixed -= float(scale.double().log().sum()) + 0.5 * len(scale) * math.log(2.0 * math.pi)
            else:
                means.append(position.new_zeros(math.prod(shape)))
                precisions.append(means[-1])
        self._gaussian = _Gaussian(torch.cat(means), torch.cat(precisions), self._fixed)
        self._is_set_up = True
        if self.hierarchical:
            weights, start = self._stack.unflatten(position), {}
            for name, hierarchical in self.hierarchical.items():
                sums = hierarchical.group_sums(weights[name], self._stack.shapes[name])
                start[name] = torch.full_like(sums, hierarchical.shape / hierarchical.rate, dtype=torch.float64)
            self._set_precisions(position, start)

    def _set_precisions(self, position: Tensor, precisions: Draw) -> None:
        """Take over 1/s² of the groups, name to tensors that broadcast against ``[K, *shape]``, and log p(s²)."""
        named = self._stack.unflatten(self._gaussian.precision.expand(len(position), -1).clone())
        constant: float | Tensor = self._fixed
        for name, prior in self.hierarchical.items():
            precision = precisions[name]
            log, size = precision.log(), named[name][0].numel() / max(precision[0].numel(), 1)
            hyperprior = (prior.shape + 1.0) * log - prior.rate * precision
            hyperprior = hyperprior + prior.shape * math.log(prior.rate) - math.lgamma(prior.shape)
            density = 0.5 * size * (log - math.log(2.0 * math.pi)) + hyperprior
            constant = constant + density.flatten(1).sum(1)
            named[name] = precision.to(position.dtype).expand_as(named[name])
        new = _Gaussian(self._gaussian.mean, self._stack.flatten(named), constant)
        current = self._gaussian
        if isinstance(current.constant, Tensor) and isinstance(constant, Tensor):
            current.precision.copy_(new.precision)  # in place: a replayed target reads these addresses
            current.constant.copy_(constant)
        else:
            self._gaussian = new

    def _log_others(self, position: Tensor) -> Tensor:
        """log p of the parameters whose prior is not Gaussian, ``[K]``."""
        weights = self._stack.unflatten(position)
        parts = [prior.log_prob(weights[name]).reshape(len(position), -1) for name, prior in self._others.items()]
        return torch.stack([part.double().sum(1) for part in parts]).sum(0)


class _Gaussian(NamedTuple):
    """The Gaussian part of a prior: means ``[P]``, precisions ``[P]`` or ``[K, P]``, and the rest of log p."""

    mean: Tensor
    precision: Tensor
    constant: float | Tensor


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
        per_copy: whether every copy has data of its own: the tensors of a batch are ``[K, B, ...]``, and weights of 0
            fill up data sets that are smaller than others.
    """

    def __init__(
        self,
        module: RowLogLikelihood,
        priors: Mapping[str, Distribution],
        noise_priors: Mapping[str, Distribution],
        data: Sequence[Batch],
        copies: int,
        temperature: float = 1.0,
        *,
        per_copy: bool = False,
    ) -> None:
        named = {f"{NET}{name}": prior for name, prior in priors.items()}
        named |= {f"{LIKELIHOOD}{name}": prior for name, prior in noise_priors.items()}
        self._stack = FlatStack(module, list(named), copies, per_copy=per_copy)
        self._prior = LogPrior(named, self._stack)
        self.data, self._temperature = data, temperature
        self._rows = sum(len(batch.y) for batch in data)
        self._replayed = Replayed(self._evaluate)

    def __call__(self, position: Tensor) -> Evaluation:
        """The log joint density ``[K]`` and its gradient ``[K, P]`` at ``position`` ``[K, P]``."""
        return self._replayed(position)

    def _evaluate(self, position: Tensor) -> Evaluation:
        value = self._prior(position)
        for batch in self.data:
            value = value.plus(self._stack.log_likelihood(position, batch).times(1.0 / self._temperature))
        return value

    def log_likelihood(self, position: Tensor) -> Tensor:
        """(1/T)·Σ_rows log p(y | x, w), ``[K]``, at ``position`` ``[K, P]``."""
        sums = [self._stack.log_likelihood(position, batch).log_density for batch in self.data]
        return torch.stack(sums).sum(0) / self._temperature

    def log_prior(self, position: Tensor) -> Tensor:
        """log p(w), ``[K]``, at ``position`` ``[K, P]``."""
        return self._prior(position).log_density

    def estimate(self, position: Tensor, batch: Batch) -> Evaluation:
        """An unbiased estimate of :meth:`__call__` from B of the N rows: their log likelihood times N/B."""
        factor = self._rows / (len(batch.y) * self._temperature)
        return self._prior(position).plus(self._stack.log_likelihood(position, batch).times(factor))

    def refresher(self, seed: int | Sequence[int]) -> Refresh | None:
        """A step of Gibbs sampling for unknown variances of the prior; ``None`` if there are none.

        Args:
            seed: fixes the random numbers, see :class:`Streams`; they are independent of those of chains with it.

        Returns:
            A function of positions ``[K, P]`` and the target there, which returns the target under the new variances.
        """
        if not self._prior.hierarchical:
            return None
        own = [derive(s, _VARIANCES) for s in ([seed] if isinstance(seed, int) else seed)]
        streams: list[Streams] = []

        def refresh(position: Tensor, state: Evaluation) -> Evaluation:
            if not streams:
                streams.append(Streams(position.device, own, len(position)))
            before = self._prior(position).times(-1.0)
            self._prior.resample(position, streams[0])
            return state.plus(before).plus(self._prior(position))

        return refresh

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


def log_density(prior: Distribution, weight: Tensor) -> Tensor:
    """log p(w) of one parameter tensor, a scalar; unknown variances are integrated out."""
    return prior.log_marginal(weight) if isinstance(prior, HierarchicalNormal) else prior.log_prob(weight).sum()


def _sample(prior: Distribution, shape: torch.Size) -> Tensor:
    """Draws for a parameter of a shape that the prior broadcasts to."""
    if isinstance(prior, HierarchicalNormal):
        return prior.draw_weights(shape)
    padded = [1] * (len(shape) - len(prior.batch_shape)) + list(prior.batch_shape)
    repeated = [i for i, size in enumerate(padded) if size == 1]
    own = [i for i, size in enumerate(padded) if size != 1]
    drawn = prior.sample(torch.Size([shape[i] for i in repeated]))
    places = torch.tensor(repeated + own, dtype=torch.int64).argsort().tolist()
    return drawn.reshape([shape[i] for i in repeated + own]).permute(places)
