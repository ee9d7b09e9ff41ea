r"""Prediction with a network that is linearized in its weights.

With the posterior w ~ N(w*, Σ) and f_lin(x, w) = f(x, w*) + J(x)·(w − w*), outputs are Gaussian: N(f(x, w*), J·Σ·Jᵀ).

References: M. E. Khan, A. Immer, E. Abedi, M. Korzepa, "Approximate inference turns deep networks into Gaussian
processes", NeurIPS 2019. A. Immer, M. Korzepa, M. Bauer, "Improving predictions of Bayesian neural nets via local
linearization", AISTATS 2021.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from typing_extensions import override

from credo import data as data_
from credo._arguments import check_integer
from credo._devices import at_least_float32
from credo._special import sobol_normal
from credo.curvature import NetworkGradients
from credo.curvature.network import linearize
from credo.evaluation import Evaluator, Findings
from credo.functional import Draw, Replica, Sampler
from credo.methods._last_layer import exact_predictive
from credo.methods.base import Predictor, describing_input
from credo.nests import count_rows, default_batch_size, flatten_rows, split_rows
from credo.posteriors.base import Posterior
from credo.predictive import Predictive
from credo.seeding import check_seed

if TYPE_CHECKING:
    from credo.methods.laplace import Laplace

_NUMBERS_AT_ONCE = 2**24
_MAX_OUTPUTS = 256
"""Above it, a row's covariance is not formed, and functions are drawn instead."""


class LinearizedPredictor(Predictor):
    """Predicts with the linearized network of a Laplace approximation.

    Args:
        method: the method, after ``fit``.
        samples: number of quasi-random points, or of functions.
        seed: of the functions.
    """

    def __init__(self, method: Laplace, samples: int, seed: int | None) -> None:
        self._method, self._samples = method, samples
        self._seed = check_seed(seed)
        self._network: NetworkGradients | None = None

    @torch.no_grad()
    def __call__(self, x: Any, batch_size: int | None = None, vectorize: str = "auto") -> Predictive:
        """The predictive distribution for the rows of ``x``."""
        likelihood = self._method.likelihood
        if batch_size is not None:
            check_integer(batch_size, "batch_size", minimum=1)
        x = data_.prepare_input(x, self._method.device, self._method.dtype)
        with describing_input(x):
            self._method._inspect(x)
            found = self._moments(x, batch_size)
        if found is None:
            return likelihood.predictive(self.outputs(x, batch_size, vectorize))
        mean, covariance = found
        exact = exact_predictive(likelihood, mean, covariance.diagonal(dim1=1, dim2=2).reshape(mean.shape))
        if exact is not None:
            return exact
        points = sobol_normal(self._samples, flatten_rows(mean[0:1]).shape[1]).to(mean)
        moved = torch.einsum("bij,sj->sbi", _symmetric_root(covariance), points)
        return likelihood.predictive(mean + moved.reshape(len(points), *mean.shape))

    def outputs(self, x: Any, batch_size: int | None = None, vectorize: str = "auto") -> Tensor:
        """The outputs ``[S, B, ...]`` of functions drawn from the linearized network."""
        x = data_.prepare_input(x, self._method.device, self._method.dtype)
        posterior = _LinearizedPosterior(self._method.posterior)
        evaluate = Evaluator(self._replica, posterior, posterior.sampler(self._seed), self._samples, 0, Findings())
        return evaluate(x, batch_size, vectorize)

    def _replica(self) -> Replica:
        replica = Replica(self._method.net, self._method._forward, own_buffers=True)
        replica.net.eval()
        return replica

    def _moments(self, x: Any, batch_size: int | None) -> tuple[Tensor, Tensor] | None:
        """f(x, w*) ``[B, ...]`` and J·Σ·Jᵀ ``[B, C, C]``; ``None`` if rows have too many outputs."""
        if count_rows(x) == 0:
            mean = self._replica()({}, x)
            mean = mean.to(at_least_float32(mean.dtype))
            size = flatten_rows(mean).shape[1]
            return mean, mean.new_zeros(0, size, size)
        if self._network is None:
            self._network = self._method._gradients(x)
        network, posterior = self._network, self._method.posterior
        rows = min(batch_size or default_batch_size(x), max(1, _NUMBERS_AT_ONCE // network.numbers_per_row(x)))
        means, covariances = [], []
        for part in split_rows(x, rows):
            done = network.run(part)
            mean = done.output.detach()
            mean = mean.to(at_least_float32(mean.dtype))
            size = flatten_rows(mean).shape[1]
            if size > _MAX_OUTPUTS:
                return None
            identity = torch.eye(size, dtype=done.output.dtype, device=mean.device)
            columns = identity.unsqueeze(1).expand(-1, len(mean), -1)
            means.append(mean)
            covariances.append(posterior.output_covariance(done.gradients(columns)).to(mean.dtype))
        return torch.cat(means), torch.cat(covariances)


class _LinearizedPosterior(Posterior):
    """A posterior whose draws are weights of the linearized network.

    Args:
        posterior: over the weights of the network.
    """

    differentiates = True

    def __init__(self, posterior: Posterior) -> None:
        super().__init__()
        self._weights = posterior
        self._mean = posterior.mean()

    @override
    def names(self) -> list[str]:
        return self._weights.names()

    @override
    def mean(self) -> Draw:
        return self._mean

    @override
    def sampler(self, seed: int) -> Sampler:
        return self._weights.sampler(seed)

    @override
    def call(self, network: Replica, draw: Draw, x: Any) -> Tensor:
        """f(x, w*) + J(x)·(w − w*)."""
        network.has_used_draw = True  # tangents are not the draw itself, by which shared work would be found
        tangent = {name: draw[name] - weight for name, weight in self._mean.items()}
        output, change = linearize(lambda weights: network(weights, x), self._mean, tangent)
        return output + change


def _symmetric_root(covariance: Tensor) -> Tensor:
    """The symmetric square root of positive semi-definite matrices; a continuous function of them, unlike a factor."""
    values, vectors = torch.linalg.eigh(covariance)
    root: Tensor = (vectors * values.clamp(min=0.0).sqrt().unsqueeze(-2)) @ vectors.mT
    return root
