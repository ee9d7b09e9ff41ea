"""The conditional p(x | z) of a latent-variable model, and the bounds of log p(x) that follow from it.

A decoder is a network whose weights are numbers (:class:`PointDecoder`) or have a posterior
(:class:`BayesianDecoder`); its outputs are the parameters of a likelihood.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.distributions import Independent, Normal, kl_divergence
from typing_extensions import override

from credo.errors import InputError
from credo.functional import Replica
from credo.generative.base import check_finite, check_unit_interval
from credo.generative.networks import check_logits
from credo.likelihoods import Bernoulli, Likelihood
from credo.methods import BayesByBackprop
from credo.seeding import check_seed

DiagonalGaussian: TypeAlias = "Independent[Normal]"

MAX_ELEMENTS = 2**22
"""The maximum number of elements of decoded data in memory at once."""


class DecoderTerms(NamedTuple):
    """The terms of a training loss that depend on the decoder, in nats per datum, differentiable."""

    nll: Tensor
    weight_kl: Tensor | None = None
    """The KL of the weights divided by the number of data, if they have a posterior."""
    kl_factor: float | Tensor = 1.0
    """The weight of that KL at this training step."""


class Decoder(ABC):
    """p(x | z). Codes have shape ``[S, B, latent]``: S draws for each datum of a batch."""

    likelihood: Likelihood

    @abstractmethod
    def output(self, z: Tensor) -> Tensor:
        """The output for codes ``[B, latent]``, with the mean weights if they have a posterior."""

    @abstractmethod
    def log_prob(self, x: Tensor, z: Tensor) -> Tensor:
        """log p(x | z) of data ``[B, ...]`` for codes ``[S, B, latent]``, ``[S, B]``."""

    @abstractmethod
    def training_terms(self, x: Tensor, z: Tensor, weight: Tensor, n_data: int | None) -> DecoderTerms:
        """Means over codes and over data, each datum times its ``weight [B]``."""

    @abstractmethod
    def weight_kl(self, n_data: int | None) -> float:
        """The KL of the weights divided by the number of training data."""

    def mean(self, z: Tensor) -> Tensor:
        """E[x | z] for codes ``[B, latent]``."""
        return self.likelihood.predictive(self.output(z)[None]).mean


class PointDecoder(Decoder):
    """A network whose weights are numbers, and a likelihood."""

    def __init__(self, net: nn.Module, likelihood: Likelihood) -> None:
        self.net, self.likelihood = net, likelihood

    @override
    def output(self, z: Tensor) -> Tensor:
        out: Tensor = self.net(z)
        return out

    @override
    def log_prob(self, x: Tensor, z: Tensor) -> Tensor:
        rows = self.likelihood.log_prob(self.output(z.flatten(0, 1)), _repeat(x, len(z)))
        return rows.view(z.shape[:2])

    @override
    def training_terms(self, x: Tensor, z: Tensor, weight: Tensor, n_data: int | None) -> DecoderTerms:
        return DecoderTerms(-(weight * self.log_prob(x, z).mean(0)).mean())

    @override
    def weight_kl(self, n_data: int | None) -> float:
        return 0.0


class BayesianDecoder(Decoder):
    """A network with a posterior over its weights: the full variational version (Kingma & Welling 2014, appendix F)."""

    def __init__(self, method: BayesByBackprop) -> None:
        if method._likelihood_is_open:
            raise InputError("a Bayesian decoder needs its likelihood: credo.BayesByBackprop(net, credo.Bernoulli())")
        if method.temperature != 1.0 or method._kl_weighting != "uniform":
            raise InputError("a Bayesian decoder must have temperature=1 and kl_weighting='uniform'")
        self.method, self.likelihood = method, method.likelihood

    @override
    def output(self, z: Tensor) -> Tensor:
        return self.method._predictor(0, None).outputs(z)[0]

    @override
    @torch.no_grad()
    def log_prob(self, x: Tensor, z: Tensor) -> Tensor:
        """One weight draw for each of the S draws of codes."""
        network = Replica(self.method.net, self.method._forward, own_buffers=True)
        network.net.eval()
        posterior = self.method.posterior
        draw = posterior.sampler(check_seed(None))
        return torch.stack(
            [self.likelihood.log_prob(posterior.call(network, draw([s])[0], codes), x) for s, codes in enumerate(z)]
        )

    @override
    def training_terms(self, x: Tensor, z: Tensor, weight: Tensor, n_data: int | None) -> DecoderTerms:
        terms = self.method.terms(z.flatten(0, 1), _repeat(x, len(z)), weight.repeat(len(z)))
        return DecoderTerms(terms.nll, terms.kl / _check_n_data(n_data), self.method._kl_factor())

    @override
    @torch.no_grad()
    def weight_kl(self, n_data: int | None) -> float:
        return float(self.method.kl()) / _check_n_data(n_data)


def choose_likelihood(decoder: nn.Module | None, likelihood: Likelihood | None) -> Likelihood:
    """The likelihood that was given, that of a Bayesian decoder, or Bernoulli."""
    if likelihood is not None and not isinstance(likelihood, Likelihood):
        raise InputError(
            "likelihood must be a credo likelihood such as credo.Bernoulli() or credo.Gaussian(noise='learned'), an "
            f"object and not a class, got {getattr(likelihood, '__name__', type(likelihood).__name__)}"
        )
    if not isinstance(decoder, BayesByBackprop):
        return likelihood or Bernoulli()
    if likelihood is not None:
        raise InputError("a Bayesian decoder has its own likelihood: leave out likelihood=")
    return BayesianDecoder(decoder).likelihood


def binarize(x: Tensor, likelihood: Likelihood) -> Tensor:
    """Binary data drawn from gray values, if the likelihood is Bernoulli; else the data unchanged."""
    if not isinstance(likelihood, Bernoulli):
        return x
    try:
        return torch.bernoulli(x)
    except RuntimeError as error:  # checking values before would make a GPU wait
        check_values(x, likelihood)
        raise InputError(f"data must be floating-point numbers between 0 and 1, got {x.dtype}") from error


def check_values(x: Tensor, likelihood: Likelihood) -> None:
    """Raise ``InputError`` for values that are impossible under the likelihood."""
    check_finite(x)
    if isinstance(likelihood, Bernoulli):
        check_unit_interval(x, "a Bernoulli likelihood", "likelihood=credo.Gaussian(noise='learned')")


def check_decoder(decoder: nn.Module, likelihood: Likelihood) -> None:
    """Raise ``InputError`` for a decoder that ends in a sigmoid if the likelihood takes logits."""
    if isinstance(likelihood, Bernoulli):
        check_logits("decoder", decoder, "a Bernoulli likelihood takes logits")


def check_output(output: Tensor, x: Tensor, likelihood: Likelihood) -> None:
    """Raise ``InputError`` if the output of a decoder does not match the data."""
    try:
        likelihood.check(output, binarize(x, likelihood))
    except InputError as error:
        hint = ""
        if isinstance(output, Tensor) and output.shape != x.shape and output.numel() == x.numel():
            hint = f" Let it end in nn.Unflatten(1, {tuple(x.shape[1:])})."
        raise InputError(f"the decoder's output does not match data of shape {list(x.shape)}: {error}{hint}") from error


def diagonal_gaussian(mean: Tensor, scale: Tensor) -> DiagonalGaussian:
    """N(mean, diag scale²) over the last dimension; not validated, which would make a GPU wait."""
    return Independent(Normal(mean, scale, validate_args=False), 1, validate_args=False)


def kl_to_prior(q: DiagonalGaussian) -> Tensor:
    """KL(q ‖ N(0, I)) of each datum in closed form, ``[B]``."""
    kl: Tensor = kl_divergence(q, _standard_normal_like(q))
    return kl


def sampled_kl_to_prior(q: DiagonalGaussian, z: Tensor) -> Tensor:
    """log q(z | x) − log p(z) for ``z [S, B, latent]``, ``[S, B]``; its mean under z ~ q is the KL."""
    ratio: Tensor = q.log_prob(z) - _standard_normal_like(q).log_prob(z)
    return ratio


def elbo(decoder: Decoder, x: Tensor, q: DiagonalGaussian, samples: int) -> Tensor:
    """E_q[log p(x | z)] − KL(q ‖ p) from ``samples`` draws, ``[B]``."""
    total = torch.zeros_like(q.mean[:, 0])
    for count in _chunk_sizes(x, samples):
        total = total + decoder.log_prob(x, q.rsample((count,))).sum(0)
    return total / samples - kl_to_prior(q)


def importance_weighted_bound(decoder: Decoder, x: Tensor, q: DiagonalGaussian, samples: int) -> Tensor:
    """log (1/K) Σ_k p(x, z_k)/q(z_k | x) from K = ``samples`` draws, ``[B]``."""
    log_sums = []
    for count in _chunk_sizes(x, samples):
        z = q.rsample((count,))
        log_weights = decoder.log_prob(x, z) - sampled_kl_to_prior(q, z)
        log_sums.append(log_weights.double().logsumexp(0))
    bound = torch.stack(log_sums).logsumexp(0) - math.log(samples)
    return bound.to(q.mean.dtype)


def _standard_normal_like(q: DiagonalGaussian) -> DiagonalGaussian:
    """N(0, I), of the shape, dtype and device of ``q``."""
    return diagonal_gaussian(torch.zeros_like(q.mean), torch.ones_like(q.mean))


def _chunk_sizes(x: Tensor, samples: int) -> Iterator[int]:
    """The numbers of draws to decode at once, which sum to ``samples``."""
    size = max(MAX_ELEMENTS // max(x.numel(), 1), 1)
    for start in range(0, samples, size):
        yield min(size, samples - start)


def _repeat(x: Tensor, times: int) -> Tensor:
    """Data ``[B, ...]`` once for each draw of codes, ``[times·B, ...]``."""
    return x.expand(times, *x.shape).flatten(0, 1)


def _check_n_data(n_data: int | None) -> int:
    """The number of training data, by which the KL of the weights is divided."""
    if n_data is None or n_data < 1:
        raise InputError(
            f"n_data must be the number of training data, by which the KL of the decoder's weights is divided, got "
            f"{n_data}: pass n_data=len(data), or fit the model first"
        )
    return n_data
