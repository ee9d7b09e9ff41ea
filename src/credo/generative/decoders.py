"""p(x | z) by a network whose weights are numbers, or by one with a posterior over them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from credo.errors import InputError
from credo.likelihoods import Bernoulli, Likelihood
from credo.methods import BayesByBackprop


class Cost(NamedTuple):
    """What a batch costs, in nats per datum, differentiable."""

    nll: Tensor
    weights: Tensor
    """Each datum's share of the KL of the weights."""


class Decoder(ABC):
    """What a latent-variable model asks of its decoder."""

    likelihood: Likelihood

    @abstractmethod
    def log_prob(self, x: Tensor, z: Tensor) -> Tensor:
        """log p(x | z) of data ``[B, ...]`` for codes ``[S, B, latent]``, ``[S, B]``."""

    @abstractmethod
    def cost(self, x: Tensor, z: Tensor, weight: Tensor, n_data: int | None) -> Cost:
        """The weighted mean over data and codes, for training."""

    @abstractmethod
    def mean(self, z: Tensor) -> Tensor:
        """E[x | z] for codes ``[B, latent]``."""

    @abstractmethod
    def output(self, z: Tensor) -> Tensor:
        """What the network puts out for codes ``[B, latent]``."""

    @abstractmethod
    def kl_share(self, n_data: int | None) -> float:
        """Each datum's share of the KL of the weights."""


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
        rows: Tensor = self.likelihood.log_prob(self.output(z.flatten(0, 1)), repeated(x, len(z)))
        return rows.view(z.shape[:2])

    def cost(self, x: Tensor, z: Tensor, weight: Tensor, n_data: int | None) -> Cost:
        """−E log p(x | z); the weights cost nothing."""
        nll = -(weight * self.log_prob(x, z).mean(0)).mean()
        return Cost(nll, torch.zeros_like(nll))

    def mean(self, z: Tensor) -> Tensor:
        """Of the likelihood."""
        return self.likelihood.predictive(self.output(z)[None]).mean

    def kl_share(self, n_data: int | None) -> float:
        """None."""
        return 0.0


class BayesianDecoder(Decoder):
    """A network with a posterior over its weights: the full variational version (Kingma & Welling 2014, appendix F)."""

    def __init__(self, method: BayesByBackprop) -> None:
        if method.likelihood_is_open:
            raise InputError("a Bayesian decoder needs its likelihood: credo.BayesByBackprop(net, credo.Bernoulli())")
        self.method, self.likelihood = method, method.likelihood

    def output(self, z: Tensor) -> Tensor:
        """That of the mean weights."""
        return self.method.predictor(0, None).outputs(z)[0]

    def log_prob(self, x: Tensor, z: Tensor) -> Tensor:
        """By a weight draw of its own for every set of codes."""
        outputs = [self.method.predictor(1, None).outputs(codes)[0] for codes in z]
        return torch.stack([self.likelihood.log_prob(output, x) for output in outputs])

    def cost(self, x: Tensor, z: Tensor, weight: Tensor, n_data: int | None) -> Cost:
        """By the estimators of Bayes by Backprop."""
        if n_data is None:
            raise InputError("n_data must be the number of training data, which share the KL of the decoder's weights")
        terms = self.method.terms(z.flatten(0, 1), repeated(x, len(z)), weight.repeat(len(z)))
        return Cost(terms.nll, terms.kl / n_data)

    def mean(self, z: Tensor) -> Tensor:
        """By the mean weights."""
        return self.likelihood.predictive(self.output(z)[None]).mean

    @torch.no_grad()
    def kl_share(self, n_data: int | None) -> float:
        """KL(q(w) ‖ p(w)) over the number of training data."""
        return float(self.method.kl()) / max(n_data or 1, 1)


def repeated(x: Tensor, times: int) -> Tensor:
    """Data ``[B, ...]`` once for each set of codes, ``[times·B, ...]``."""
    return x.expand(times, *x.shape).flatten(0, 1)


def likelihood_for(decoder: nn.Module | None, likelihood: Likelihood | None) -> Likelihood:
    """The likelihood that was given, that of a Bayesian decoder, or Bernoulli."""
    if not isinstance(decoder, BayesByBackprop):
        return likelihood or Bernoulli()
    if likelihood is not None:
        raise InputError("a Bayesian decoder brings its own likelihood: leave out likelihood=")
    return BayesianDecoder(decoder).likelihood
