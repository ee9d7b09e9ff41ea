"""How a method predicts the tokens of a stream: perplexity, entropy and dynamic evaluation, with carried states."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from credo._arguments import check_integer, check_non_negative
from credo._devices import at_least_float32
from credo.data import as_batch, move
from credo.errors import InputError, UnsupportedError
from credo.functional import Carrier, Replica, preserve_buffers
from credo.likelihoods import Categorical
from credo.methods.deep_ensemble import DeepEnsemble, shares_of
from credo.seeding import check_seed, seeded
from credo.sequence.streams import TokenStream, as_tokens

if TYPE_CHECKING:
    from credo.methods._sharpening import Sharpening
    from credo.methods.base import Method
    from credo.methods.network import NetworkMethod


@torch.no_grad()
def token_log_likelihood(model: Method, stream: DataLoader[Any], samples: int = 0, seed: int | None = None) -> Tensor:
    r"""log p(y_t | x_{≤t}) of every target of a stream.

    With S draws the probabilities of a token are averaged, each from a network that read the whole stream with the same
    weights and carried its own state:

        log p(y_t | x_{≤t}) = log (1/S) Σ_s p(y_t | x_{≤t}, w_s).

    Args:
        model: a method with a categorical likelihood, whose network carries its state (:class:`CarriedState`), or an
            ensemble of them, whose M members have ⌈S/M⌉ draws each.
        stream: minibatches that continue each other, as those of :class:`TokenStream`.
        samples: number of draws S; 0: the mean weights, of an ensemble those of one member.
        seed: for the draws; ``None``: from torch's random state.

    Returns:
        Nats ``[B, steps]``, float64, on the CPU.

    Raises:
        InputError: if the likelihood is not categorical, or ``stream`` does not consist of minibatches.
    """
    _check_stream(stream)
    total = torch.tensor(-math.inf, dtype=torch.float64)
    for reader in _readers(model, samples, seed):
        total = torch.logaddexp(total, _read(stream, model.device, reader.call) + math.log(reader.weight))
    return total


def perplexity(model: Method, stream: DataLoader[Any], samples: int = 0, seed: int | None = None) -> float:
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
        samples: number of times that the stream is read, with new weights for every minibatch; 0: once, with steps that
            start from the mean weights, which bounds their perplexity.
        seed: for the draws; ``None``: from torch's random state.

    Returns:
        The bound. The state that the network carries is as before the call.
    """
    check_integer(samples, "samples", minimum=0)
    _check_one_network(model, "perplexity_bound")
    _check_stream(stream)
    _check_model(model)
    total, tokens = 0.0, 0
    with seeded(seed, model.device), _evaluation_mode(model), preserve_buffers(list(model.net.modules())):
        nll = model.nll if samples else _nll_near_mean(model)
        for _ in range(max(samples, 1)):
            for x, y, _ in (move(as_batch(raw), model.device) for raw in stream):
                total += float(nll(x, y)) * len(y)
                tokens += y.numel()
    return math.exp(total / tokens)


def _nll_near_mean(model: NetworkMethod) -> Callable[[Any, Tensor], Tensor]:
    """The NLL per row of a minibatch by the mean weights, sharpened if the model has sharpening, with what it costs."""
    network = Replica(model.net, model._forward, own_buffers=True)
    sharpening: Sharpening | None = getattr(model, "_sharpening", None)

    def nll_of(weights: Mapping[str, Tensor], x: Any, y: Tensor) -> Tensor:
        return -_log_probability(network(weights, x), y).sum()

    def nll(x: Any, y: Tensor) -> Tensor:
        if sharpening is None:
            return nll_of(model.posterior.point(), x, y) / len(y)
        with network.preserve_buffers():
            weights, cost = sharpening.forward(
                model.posterior.mean(), lambda shared: nll_of(shared, x, y), model.posterior.masks()
            )
        return (nll_of(weights, x, y) + cost) / len(y)

    return nll


def dynamic_evaluation(model: NetworkMethod, stream: DataLoader[Any], lr: float = 0.1, decay: float = 0.0) -> Tensor:
    r"""log p(y_t | x_{≤t}) of every target, by weights that go on learning from the text they have read.

    After each minibatch has been scored, the mean weights take a gradient step on it and a step back to where training
    left them,

        θ ← θ − lr·∇θ (−1/T Σ_t log p(y_t | x_{≤t}, θ)) + decay·(θ_0 − θ),

    with the mean over the minibatch's tokens. Pruned weights stay 0. The model itself is not changed.

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
    _check_one_network(model, "dynamic_evaluation")
    _check_stream(stream)
    _check_model(model)
    network = _replica(model)
    trained = {name: p.detach() for name, p in model.net.named_parameters()} | model.posterior.point()
    weights = {name: p.clone().requires_grad_() for name, p in trained.items()}
    scores, kept = [], model.posterior.masks()
    with _evaluation_mode(network.net):
        for raw in stream:
            batch = move(as_batch(raw), model.device)
            with torch.enable_grad():
                log_likelihood = _log_probability(network(weights, batch.x), batch.y)
                gradients = torch.autograd.grad(-log_likelihood.mean(), list(weights.values()), allow_unused=True)
            scores.append(log_likelihood.detach().double().cpu())
            with torch.no_grad():
                for (name, weight), gradient in zip(weights.items(), gradients, strict=True):
                    if gradient is not None:
                        gradient = gradient * kept[name] if name in kept else gradient
                        weight.sub_(gradient, alpha=lr).lerp_(trained[name], decay)
    return torch.cat(scores, dim=1)


@torch.no_grad()
def token_entropy(model: Method, stream: DataLoader[Any], samples: int = 0, seed: int | None = None) -> Tensor:
    r"""The entropy of the distribution of every next token, given the tokens before it.

        H_t = −Σ_w p(w | x_{≤t}) log p(w | x_{≤t}),

    where p is the mean over S draws as in :func:`token_log_likelihood`. All draws are held in memory.

    Args:
        model: as for :func:`token_log_likelihood`.
        stream: minibatches that continue each other.
        samples: number of draws S; 0: the mean weights.
        seed: for the draws; ``None``: from torch's random state.

    Returns:
        Nats ``[B, steps]``, float64, on the CPU.
    """
    _check_stream(stream)
    return _entropy(stream, model.device, list(_readers(model, samples, seed)))


class EntropyGap(NamedTuple):
    """The mean entropy of the next token on a text and on the same text read backwards, in nats.

    Attributes:
        text: on the text.
        reversed: on the text read backwards.
    """

    text: float
    reversed: float

    @property
    def gap(self) -> float:
        """How much less certain the model is of the reversed text, in nats per token."""
        return self.reversed - self.text


def entropy_gap(
    model: Method,
    tokens: Tensor,
    samples: int = 0,
    seed: int | None = None,
    *,
    batch_size: int = 20,
    length: int = 35,
) -> EntropyGap:
    r"""How much less certain a model is of a text that is read backwards, which no training text resembles.

    The gap is ΔH = mean_t H_t[reversed text] − mean_t H_t[text], with the entropies of :func:`token_entropy`. A model
    that knows what it does not know has a large gap.

    Args:
        model: as for :func:`token_log_likelihood`.
        tokens: int64 indices ``[N]``.
        samples: number of draws; 0: the mean weights.
        seed: for the draws, which are the same for both texts; ``None``: from torch's random state.
        batch_size: number of rows that are read in parallel.
        length: number of steps of a minibatch.

    Returns:
        Both entropies, and their difference as ``gap``.

    Reference: M. Fortunato, C. Blundell, O. Vinyals, "Bayesian recurrent neural networks", arXiv:1704.02798, 2017,
    equation 20.
    """
    seed, tokens = check_seed(seed), as_tokens(tokens)
    streams = [TokenStream(text, batch_size, length) for text in (tokens, tokens.flip(0))]
    return EntropyGap(*(float(token_entropy(model, stream, samples, seed).mean()) for stream in streams))


class _Reader(NamedTuple):
    """A network with one draw of its weights, which carries a state of its own.

    Attributes:
        call: returns the logits of a minibatch.
        weight: of the draw among all.
    """

    call: Callable[[Any], Tensor]
    weight: float


def _readers(model: Method, samples: int, seed: int | None) -> Iterator[_Reader]:
    """The draws of a prediction, made one after the other; their weights sum to 1."""
    samples = check_integer(samples, "samples", minimum=0)
    for share in shares_of(model, samples, check_seed(seed) if samples else 0):
        if share.weight == 0:
            continue
        _check_model(share.model)
        posterior = share.model.posterior
        if samples == 0:
            yield _Reader(partial(_replica(share.model), posterior.point()), share.weight)
            continue
        for s in range(share.samples):
            call = partial(posterior.call, _replica(share.model), posterior.draw(share.seed, s))
            yield _Reader(call, share.weight / share.samples)


def _replica(model: NetworkMethod) -> Replica:
    """The network in evaluation mode, with a state of its own."""
    network = Replica(model.net, model._forward, own_buffers=True)
    network.net.eval()
    for module in network.net.modules():
        if isinstance(module, Carrier):
            module.checks_rows = True
    return network


@contextmanager
def _evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Evaluation mode in which recurrent layers have gradients.

    cuDNN computes them in training mode only, so recurrent layers stay in it, without their dropout between layers.
    """
    modes = [(part, part.training) for part in module.modules()]
    layers = [(part, part.dropout) for part in module.modules() if isinstance(part, nn.RNNBase)]
    module.eval()
    for layer, _ in layers:
        layer.train()
        layer.dropout = 0.0
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training
        for layer, dropout in layers:
            layer.dropout = dropout


def _entropy(stream: DataLoader[Any], device: torch.device, readers: Sequence[_Reader]) -> Tensor:
    """The entropy of the weighted mean over ``readers`` of the probabilities, ``[B, steps]``."""
    parts = []
    for x, _, _ in (move(as_batch(raw), device) for raw in stream):
        probability = sum((weight * _probabilities(call(x)) for call, weight in readers), torch.zeros(()))
        parts.append(torch.special.entr(probability).sum(-1).double().cpu())
    return torch.cat(parts, dim=1)


def _probabilities(logits: Tensor) -> Tensor:
    return logits.to(at_least_float32(logits.dtype)).softmax(-1)


def _read(stream: DataLoader[Any], device: torch.device, call: Any) -> Tensor:
    batches = (move(as_batch(raw), device) for raw in stream)
    return torch.cat([_log_probability(call(x), y).double().cpu() for x, y, _ in batches], dim=1)


def _log_probability(logits: Tensor, y: Tensor) -> Tensor:
    """log p(y) for logits ``[B, T, V]``, ``[B, T]``."""
    if logits.shape[:-1] != y.shape:
        raise InputError(
            f"targets {list(y.shape)} need logits {[*y.shape, 'V']}, but the network has {list(logits.shape)}"
        )
    try:
        return logits.to(at_least_float32(logits.dtype)).log_softmax(-1).gather(-1, y[..., None])[..., 0]
    except RuntimeError:  # of an index; on a GPU it is an error of CUDA
        size = logits.shape[-1]
        raise InputError(
            f"targets must be from 0 to {size - 1}, for a vocabulary of {size}, got {int(y.min())} to {int(y.max())}"
        ) from None


def _check_one_network(model: Method, function: str) -> None:
    """Raise ``UnsupportedError`` for an ensemble, whose members ``function`` has to read one by one."""
    if isinstance(model, DeepEnsemble):
        raise UnsupportedError(f"{function} is defined for one network: call it for each of model.members")


def _check_stream(stream: object) -> None:
    """Raise ``InputError`` if the tokens are given as they are, not as minibatches."""
    numbers = isinstance(stream, list) and not all(isinstance(batch, list | tuple) for batch in stream)
    if numbers or isinstance(stream, Tensor | np.ndarray | str):
        raise InputError(
            "stream must be minibatches that continue each other, credo.sequence.TokenStream(tokens, batch_size, "
            f"length), got {type(stream).__name__}"
        )


def _check_model(model: NetworkMethod) -> None:
    """Raise ``InputError`` if the model does not predict classes, or its network cannot be called on a minibatch."""
    if not isinstance(model.likelihood, Categorical):
        raise InputError(
            f"tokens need a Categorical likelihood, but the model has {model.likelihood!r}; pass "
            "likelihood=credo.Categorical(), or fit the model first"
        )
    try:
        if model._forward is None:
            inspect.signature(model.net.forward).bind("tokens", "start")
    except TypeError:
        raise InputError(
            f"a {type(model.net).__name__} is not called with the tokens of a minibatch and which rows start there; "
            "give CarriedState a network that is called as net(x, state), and the method of a network without a state "
            "forward=lambda net, x: net(x[0])"
        ) from None
