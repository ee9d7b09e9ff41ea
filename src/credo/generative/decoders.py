"""p(x | z) by a network whose weights are numbers, or by one with a posterior over them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from credo.errors import InputError
from credo.functional import Replica
from credo.likelihoods import Bernoulli, Likelihood
from credo.methods import BayesByBackprop
from credo.seeding import check_seed


class Cost(NamedTuple):
    """What a batch costs, in nats per datum, differentiable."""

    nll: Tensor
    weight_kl: Tensor | None = None
    """Each datum's share of the KL of the weights, where they have a posterior."""
    kl_factor: float | Tensor = 1.0
    """What that counts at this step of training."""


class Decoder(ABC):
    """What a latent-variable model asks of its decoder. Codes come as ``z [S, B, latent]``, S sets for a batch."""

    likelihood: Likelihood

    @abstractmethod
    def output(self, z: Tensor) -> Tensor:
        """What the network outputs for codes ``[B, latent]``; by the mean weights where they have a posterior."""

    @abstractmethod
    def log_prob(self, x: Tensor, z: Tensor) -> Tensor:
        """log p(x | z) of data ``[B, ...]`` for codes ``[S, B, latent]``, ``[S, B]``."""

    @abstractmethod
    def cost(self, x: Tensor, z: Tensor, weight: Tensor, n_data: int | None) -> Cost:
        """The mean over data, each times its ``weight [B]``, and codes; for training."""

    @abstractmethod
    def kl_share(self, n_data: int | None) -> float:
        """Each datum's share of the KL of the weights."""

    def mean(self, z: Tensor) -> Tensor:
        """E[x | z] for codes ``[B, latent]``."""
        return self.likelihood.predictive(self.output(z)[None]).mean


class PointDecoder(Decoder):
    """A network and a likelihood."""

    def __init__(self, net: nn.Module, likelihood: Likelihood) -> None:
        self.net, self.likelihood = net, likelihood

    def output(self, z: Tensor) -> Tensor:
        """The network's."""
        out: Tensor = self.net(z)
        return out

    def log_prob(self, x: Tensor, z: Tensor) -> Tensor:
        """All codes in one call."""
        rows = self.likelihood.log_prob(self.output(z.flatten(0, 1)), repeated(x, len(z)))
        return rows.view(z.shape[:2])

    def cost(self, x: Tensor, z: Tensor, weight: Tensor, n_data: int | None) -> Cost:
        """−E log p(x | z)."""
        return Cost(-(weight * self.log_prob(x, z).mean(0)).mean())

    def kl_share(self, n_data: int | None) -> float:
        """Weights that are numbers cost nothing."""
        return 0.0


class BayesianDecoder(Decoder):
    """A network with a posterior over its weights: the full variational version (Kingma & Welling 2014, appendix F)."""

    def __init__(self, method: BayesByBackprop) -> None:
        if method._likelihood_is_open:
            raise InputError("a Bayesian decoder needs its likelihood: credo.BayesByBackprop(net, credo.Bernoulli())")
        if method.temperature != 1.0 or method._kl_weighting != "uniform":
            raise InputError("a Bayesian decoder must have temperature=1 and kl_weighting='uniform'")
        self.method, self.likelihood = method, method.likelihood

    def output(self, z: Tensor) -> Tensor:
        """That of the mean weights."""
        return self.method._predictor(0, None).outputs(z)[0]

    @torch.no_grad()
    def log_prob(self, x: Tensor, z: Tensor) -> Tensor:
        """By a weight draw of its own for every set of codes."""
        network = Replica(self.method.net, self.method._forward, own_buffers=True)
        network.net.eval()
        posterior = self.method.posterior
        draw = posterior.sampler(check_seed(None))
        return torch.stack(
            [self.likelihood.log_prob(posterior.call(network, draw([s])[0], codes), x) for s, codes in enumerate(z)]
        )

    def cost(self, x: Tensor, z: Tensor, weight: Tensor, n_data: int | None) -> Cost:
        """By the estimators of Bayes by Backprop."""
        terms = self.method.terms(z.flatten(0, 1), repeated(x, len(z)), weight.repeat(len(z)))
        return Cost(terms.nll, terms.kl / _known(n_data), self.method._kl_factor())

    @torch.no_grad()
    def kl_share(self, n_data: int | None) -> float:
        """KL(q(w) ‖ p(w)) over the number of training data."""
        return float(self.method.kl()) / _known(n_data)


def repeated(x: Tensor, times: int) -> Tensor:
    """Data ``[B, ...]`` once for each set of codes, ``[times·B, ...]``."""
    return x.expand(times, *x.shape).flatten(0, 1)


def likelihood_for(decoder: nn.Module | None, likelihood: Likelihood | None) -> Likelihood:
    """The likelihood that was given, that of a Bayesian decoder, or Bernoulli."""
    if likelihood is not None and not isinstance(likelihood, Likelihood):
        raise InputError(
            "likelihood must be a credo likelihood such as credo.Bernoulli() or credo.Gaussian(noise='learned'), an "
            f"object and not a class, got {getattr(likelihood, '__name__', type(likelihood).__name__)}"
        )
    if not isinstance(decoder, BayesByBackprop):
        return likelihood or Bernoulli()
    if likelihood is not None:
        raise InputError("a Bayesian decoder brings its own likelihood: leave out likelihood=")
    return BayesianDecoder(decoder).likelihood


def _known(n_data: int | None) -> int:
    """The number of training data, which has to be known to share the KL of the weights among them."""
    if n_data is None or n_data < 1:
        raise InputError(
            f"n_data must be the number of training data, which share the KL of the decoder's weights, got {n_data}: "
            "pass n_data=len(data), or fit the model first"
        )
    return n_data
