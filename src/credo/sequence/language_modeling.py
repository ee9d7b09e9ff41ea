"""How well a method predicts the tokens of a stream: perplexity, with carried states, draws and dynamic evaluation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from credo._arguments import check_integer, check_non_negative
from credo.data import as_batch, move
from credo.errors import InputError
from credo.functional import Replica
from credo.likelihoods import Categorical
from credo.seeding import check_seed, seeded

if TYPE_CHECKING:
    from credo.methods.network import NetworkMethod


@torch.no_grad()
def token_log_likelihood(
    model: NetworkMethod, stream: DataLoader[Any], samples: int = 0, seed: int | None = None
) -> Tensor:
    r"""log p(y_t | x_{≤t}) of every target of a stream.

    With S draws the probabilities of a token are averaged, each from a network that read the whole stream with the same
    weights and carried its own state:

        log p(y_t | x_{≤t}) = log (1/S) Σ_s p(y_t | x_{≤t}, w_s).

    Args:
        model: a method with a categorical likelihood, whose network carries its state (:class:`CarriedState`).
        stream: minibatches that continue each other, as those of :class:`TokenStream`.
        samples: number of draws S; 0: the mean weights.
        seed: for the draws; ``None``: from torch's random state.

    Returns:
        Nats ``[B, steps]``, float64, on the CPU.
    """
    check_integer(samples, "samples", minimum=0)
    _check_likelihood(model)
    network = Replica(model.net, model._forward, own_buffers=True)
    network.net.eval()
    if samples == 0:
        point = model.posterior.point()
        return _read(stream, model.device, lambda x: network(point, x))
    sampler = model.posterior.sampler(check_seed(seed))
    total = torch.tensor(-math.inf, dtype=torch.float64)
    for s in range(samples):
        draw = sampler([s])[0]
        total = torch.logaddexp(
            total, _read(stream, model.device, lambda x, w=draw: model.posterior.call(network, w, x))
        )
    return total - math.log(samples)


def perplexity(model: NetworkMethod, stream: DataLoader[Any], samples: int = 0, seed: int | None = None) -> float:
    """exp of the mean negative log likelihood of a token.

    Args:
        model: as for :func:`token_log_likelihood`.
        stream: minibatches that continue each other; ``batch_size=1`` reads the text as it is.
        samples: number of draws; 0: the mean weights.
        seed: for the draws.

    Returns:
        The perplexity.
    """
    return math.exp(-float(token_log_likelihood(model, stream, samples, seed).mean()))


@torch.no_grad()
def perplexity_bound(model: NetworkMethod, stream: DataLoader[Any], samples: int = 1, seed: int | None = None) -> float:
    r"""An upper bound on the perplexity, exp of the mean NLL of a token under draws of the weights.

    For a posterior with sharpening (``BayesByBackprop(sharpening=...)``) each minibatch is read with weights that took
    a step towards it, and its NLL includes what that costs. The KL of the weights that all minibatches share is not
    included: it does not grow with the text.

    Args:
        model: as for :func:`token_log_likelihood`.
        stream: minibatches that continue each other.
        samples: number of times that the stream is read, with new weights for every minibatch.
        seed: for the draws; ``None``: from torch's random state.

    Returns:
        The bound.
    """
    check_integer(samples, "samples", minimum=1)
    _check_likelihood(model)
    total, tokens, training = 0.0, 0, model.training
    model.eval()
    try:
        with seeded(seed, model.device):
            for _ in range(samples):
                for x, y, _ in (move(as_batch(raw), model.device) for raw in stream):
                    total += float(model.nll(x, y)) * len(y)
                    tokens += y.numel()
    finally:
        model.train(training)
    return math.exp(total / tokens)


def dynamic_evaluation(model: NetworkMethod, stream: DataLoader[Any], lr: float = 0.1, decay: float = 0.0) -> Tensor:
    r"""log p(y_t | x_{≤t}) of every target, by weights that go on learning from the text they have read.

    After each minibatch has been scored, the mean weights take a gradient step on it and a step back to where training
    left them,

        θ ← θ − lr·∇θ (−1/T Σ_t log p(y_t | x_{≤t}, θ)) + decay·(θ_0 − θ),

    with the mean over the minibatch's tokens. The model itself is not changed.

    Args:
        model: as for :func:`token_log_likelihood`.
        stream: minibatches that continue each other.
        lr: learning rate.
        decay: how much of the distance to the trained weights is undone at every step.

    Returns:
        Nats ``[B, steps]``, float64, on the CPU.

    References: T. Mikolov, M. Karafiát, L. Burget, J. Černocký, S. Khudanpur, "Recurrent neural network based language
    model", Interspeech 2010. B. Krause, E. Kahembwe, I. Murray, S. Renals, "Dynamic evaluation of neural sequence
    models", ICML 2018 (the decay).
    """
    check_non_negative(lr, "lr")
    check_non_negative(decay, "decay")
    _check_likelihood(model)
    network = Replica(model.net, model._forward, own_buffers=True)
    network.net.eval()
    trained = {name: p.detach() for name, p in model.net.named_parameters()} | model.posterior.point()
    weights = {name: p.clone().requires_grad_() for name, p in trained.items()}
    scores = []
    for raw in stream:
        batch = move(as_batch(raw), model.device)
        with torch.enable_grad():
            log_likelihood = _log_probability(network(weights, batch.x), batch.y)
            gradients = torch.autograd.grad(-log_likelihood.mean(), list(weights.values()), allow_unused=True)
        scores.append(log_likelihood.detach().double().cpu())
        with torch.no_grad():
            for (name, weight), gradient in zip(weights.items(), gradients, strict=True):
                if gradient is not None:
                    weight.sub_(gradient, alpha=lr).lerp_(trained[name], decay)
    return torch.cat(scores, dim=1)


def _read(stream: DataLoader[Any], device: torch.device, call: Any) -> Tensor:
    batches = (move(as_batch(raw), device) for raw in stream)
    return torch.cat([_log_probability(call(x), y).double().cpu() for x, y, _ in batches], dim=1)


def _log_probability(logits: Tensor, y: Tensor) -> Tensor:
    """log p(y) for logits ``[B, T, V]``, ``[B, T]``."""
    return logits.float().log_softmax(-1).gather(-1, y[..., None])[..., 0]


def _check_likelihood(model: NetworkMethod) -> None:
    if not isinstance(model.likelihood, Categorical):
        raise InputError(f"tokens need a Categorical likelihood, but the model has {model.likelihood!r}")
