"""How a method predicts the tokens of a stream: perplexity, entropy and dynamic evaluation, with carried states."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from credo._arguments import check_integer, check_non_negative
from credo.data import Batch, as_batch, move
from credo.errors import InputError, UnsupportedError
from credo.functional import Carrier, Draw, Replica, outside_inference_mode
from credo.likelihoods import Categorical
from credo.likelihoods.base import as_draw
from credo.methods.deep_ensemble import DeepEnsemble, shares_of
from credo.predictive.classes import CategoricalComponents
from credo.seeding import check_seed, seeded
from credo.sequence.streams import TokenStream, as_tokens

if TYPE_CHECKING:
    from credo.methods._sharpening import Sharpening
    from credo.methods.base import Method
    from credo.methods.network import NetworkMethod


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
        Nats ``[B, steps]``, float64, on the CPU; NaN for targets with the likelihood's ``ignore_index``.

    Raises:
        InputError: if the likelihood is not categorical, or ``stream`` does not consist of minibatches.
    """
    log_p, counts = _score(model, stream, samples, seed)
    return log_p.masked_fill(~counts, math.nan)


def perplexity(model: Method, stream: DataLoader[Any], samples: int = 0, seed: int | None = None) -> float:
    """exp of the mean negative log likelihood of a token; targets that the likelihood ignores do not count.

    Args:
        model: as for :func:`token_log_likelihood`.
        stream: minibatches that continue each other; ``batch_size=1`` reads the text as it is.
        samples: number of draws; 0: the mean weights.
        seed: for the draws.

    Returns:
        The perplexity.
    """
    log_p, counts = _score(model, stream, samples, seed)
    return float((-log_p[counts].mean()).exp())


@outside_inference_mode()
@torch.no_grad()
def perplexity_bound(model: NetworkMethod, stream: DataLoader[Any], samples: int = 1, seed: int | None = None) -> float:
    r"""An upper bound on the perplexity, exp of the mean NLL of a token under draws of the weights.

    For a posterior with sharpening (``BayesByBackprop(sharpening=...)``) each minibatch is read with weights that took
    a step towards it, and its NLL includes what that costs. What is bounded then is the perplexity of the model of
    sharpening, in which each minibatch has weights of its own, N(φ, σ₀²) around the drawn φ; that of
    :func:`perplexity`, by φ itself, may be larger. The KL of the weights that all minibatches share is not included: it
    does not grow with the text.

    Args:
        model: as for :func:`token_log_likelihood`.
        stream: minibatches that continue each other.
        samples: number of times that the stream is read, with new weights for every minibatch; 0: once, with the mean
            weights in place of drawn ones.
        seed: for the draws; ``None``: from torch's random state.

    Returns:
        The bound.
    """
    check_integer(samples, "samples", minimum=0)
    _check_one_network(model, "perplexity_bound")
    _check_stream(stream)
    _check_model(model)
    network, posterior, seed = _replica(model), model.posterior, check_seed(seed)
    sharpening: Sharpening | None = getattr(model, "_sharpening", None)
    total, tokens, numbers = 0.0, 0, count()
    with seeded(seed, model.device), nullcontext() if sharpening is None else _evaluation_mode(network.net):
        for _ in range(max(samples, 1)):
            for x, y, _ in _batches(stream, model.device):
                draw = posterior.draw(seed, next(numbers)) if samples else posterior.point()
                if sharpening is not None:
                    draw, cost = _sharpen(model, sharpening, network, draw or posterior.mean(), x, y)
                    total += float(cost)
                output = posterior.call(network, draw, x) if samples else network(draw, x)
                log_p, counts = _log_probability(_components(model, output), y)
                total -= float(log_p.sum(dtype=torch.float64))
                tokens += int(counts.sum())
    return math.exp(total / tokens) if tokens else math.nan


def _sharpen(
    model: NetworkMethod, sharpening: Sharpening, network: Replica, shared: Draw, x: Any, y: Tensor
) -> tuple[Draw, Tensor]:
    """Weights of a minibatch's own near ``shared``, and what they cost; the carried state is as before."""

    def nll(weights: Mapping[str, Tensor]) -> Tensor:
        return -_log_probability(_components(model, network(weights, x)), y)[0].sum()

    with network.preserve_buffers():
        return sharpening.forward(shared, nll, model.posterior.masks())


@outside_inference_mode()
def dynamic_evaluation(model: NetworkMethod, stream: DataLoader[Any], lr: float = 0.1, decay: float = 0.0) -> Tensor:
    r"""log p(y_t | x_{≤t}) of every target, by weights that go on learning from the text they have read.

    After each minibatch has been scored, the mean weights take a gradient step on it and a step back to where training
    left them,

        θ ← θ − lr·∇θ (−1/T Σ_t log p(y_t | x_{≤t}, θ)) + decay·(θ_0 − θ),

    with the mean over the minibatch's tokens. Frozen parameters stay as they are, and pruned weights stay 0. The model
    itself is not changed.

    Args:
        model: as for :func:`token_log_likelihood`.
        stream: minibatches that continue each other.
        lr: learning rate.
        decay: which fraction of the distance to the trained weights is undone at every step.

    Returns:
        Nats ``[B, steps]``, float64, on the CPU; NaN for targets with the likelihood's ``ignore_index``.

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
    own = {name: p.detach() for name, p in model.net.named_parameters() if p.requires_grad}
    trained = own | model.posterior.point()
    weights = {name: p.clone().requires_grad_() for name, p in trained.items()}
    scores, kept = [], model.posterior.masks()
    with _evaluation_mode(network.net):
        for x, y, _ in _batches(stream, model.device):
            with torch.enable_grad():
                log_p, counts = _log_probability(_components(model, network(weights, x)), y)
                nll = -log_p.sum() / max(int(counts.sum()), 1)
                gradients = torch.autograd.grad(nll, list(weights.values()), allow_unused=True)
            scores.append(log_p.detach().masked_fill(~counts, math.nan))
            with torch.no_grad():
                for (name, weight), gradient in zip(weights.items(), gradients, strict=True):
                    if gradient is not None:
                        gradient = gradient * kept[name] if name in kept else gradient
                        weight.lerp_(trained[name], decay).sub_(gradient, alpha=lr)
    return _join(scores)


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
    readers, found = list(_readers(model, samples, seed)), []
    for x, _, _ in _batches(stream, model.device):
        parts = ((reader.weight, reader(x)) for reader in readers)
        probability = sum((weight * p.draws[0].movedim(p.class_dim, -1) for weight, p in parts), torch.zeros(()))
        found.append(torch.special.entr(probability).sum(-1))
    return _join(found)


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
        call: returns the output for a minibatch.
        weight: of the draw among all.
        model: whose network it is.
    """

    call: Callable[[Any], Tensor]
    weight: float
    model: NetworkMethod

    def __call__(self, x: Any) -> CategoricalComponents:
        """The distribution of every next token."""
        return _components(self.model, self.call(x))


def _readers(model: Method, samples: int, seed: int | None) -> Iterator[_Reader]:
    """The draws of a prediction, made one after the other; their weights sum to 1."""
    samples = check_integer(samples, "samples", minimum=0)
    for share in shares_of(model, samples, check_seed(seed) if samples else 0):
        if share.weight == 0:
            continue
        _check_model(share.model)
        posterior = share.model.posterior
        if samples == 0:
            yield _Reader(partial(_replica(share.model), posterior.point()), share.weight, share.model)
            continue
        for s in range(share.samples):
            call = partial(posterior.call, _replica(share.model), posterior.draw(share.seed, s))
            yield _Reader(call, share.weight / share.samples, share.model)


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


def _batches(stream: DataLoader[Any], device: torch.device) -> Iterator[Batch]:
    """The minibatches of a stream, of which there must be at least one."""
    is_empty = True
    for raw in stream:
        is_empty = False
        yield move(as_batch(raw), device)
    if is_empty:
        raise InputError("stream yielded no minibatches; a generator can be read only once: pass the loader itself")


def _join(scores: list[Tensor]) -> Tensor:
    """The numbers of all tokens, from those of every minibatch ``[B, T]``."""
    return torch.cat([part.double().cpu() for part in scores], dim=1)


def _components(model: NetworkMethod, output: Tensor) -> CategoricalComponents:
    """The distributions of all next tokens, ``[1, B, T]``, by the likelihood of the model."""
    assert isinstance(model.likelihood, Categorical)
    return model.likelihood.components(as_draw(output))


@torch.no_grad()
def _score(model: Method, stream: DataLoader[Any], samples: int, seed: int | None) -> tuple[Tensor, Tensor]:
    """log p of every token, ``[B, steps]``, by the mean over draws, 0 for those that are ignored; and which count."""
    _check_stream(stream)
    total = torch.tensor(-math.inf, dtype=torch.float64)
    for reader in _readers(model, samples, seed):
        parts = [_log_probability(reader(x), y) for x, y, _ in _batches(stream, model.device)]
        total = torch.logaddexp(total, _join([log_p for log_p, _ in parts]) + math.log(reader.weight))
    return total, torch.cat([counts.cpu() for _, counts in parts], dim=1)


def _log_probability(p: CategoricalComponents, y: Tensor) -> tuple[Tensor, Tensor]:
    """log p(y) of every token, ``[B, T]``, 0 for those that are ignored; and which count."""
    p.check_dtype_and_shape(y)
    try:
        log_p = p.log_density(y)[0]
    except RuntimeError:  # of an index; on a GPU it is an error of CUDA
        raise InputError(
            f"targets must be from 0 to {p.classes - 1}, for a vocabulary of {p.classes}, got {int(y.min())} to "
            f"{int(y.max())}"
        ) from None
    return log_p, torch.ones_like(y, dtype=torch.bool) if p.ignore_index is None else y != p.ignore_index


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
