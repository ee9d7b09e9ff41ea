"""Sequences by the posterior predictive distribution of a network, with the uncertainty of every token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from credo._arguments import check_integer
from credo._devices import at_least_float32
from credo.data import prepare_input
from credo.errors import InputError, UnsupportedError
from credo.functional import Draw, Replica
from credo.likelihoods import Categorical
from credo.methods.deep_ensemble import shares_of
from credo.methods.laplace import Laplace
from credo.methods.network import NetworkMethod
from credo.nests import count_rows, first_rows, split_rows, tensors
from credo.posteriors.dropout_layers import LayerDropout
from credo.predictive import Predictive
from credo.predictive.components import log_average_exp
from credo.seeding import check_seed
from credo.sequence.beam_search import Beams, Step, beam_search

if TYPE_CHECKING:
    from credo.methods.base import Method


@dataclass(frozen=True, eq=False)
class Generated:
    """The most probable sequence of every row, and the distribution of each of its tokens.

    Attributes:
        tokens: ``[B, T]``, int64; what follows the end token is the end token again.
        emitted: which positions belong to the sequence, the end token included, ``[B, T]``.
        log_prob: log probability of the sequence in nats, ``[B]``.
        predictive: of every token, given the tokens before it: a mixture over draws with targets ``[B, T]``.

    Example:
        >>> found = generate(model, images, end=0, length=15)
        >>> found.tokens[found.emitted], found.mutual_information[found.emitted]
    """

    tokens: Tensor
    emitted: Tensor
    log_prob: Tensor
    predictive: Predictive

    @property
    def entropy(self) -> Tensor:
        """H[w_t | w_{<t}] of the mean probabilities in nats, ``[B, T]``."""
        return self.predictive.entropy

    @property
    def expected_entropy(self) -> Tensor:
        """E_s H[w_t | w_{<t}, θ_s] in nats, the aleatoric part, ``[B, T]``."""
        return self.predictive.aleatoric

    @property
    def mutual_information(self) -> Tensor:
        """I[w_t; θ | w_{<t}] in nats, the epistemic part, ``[B, T]``."""
        return self.predictive.mutual_information


@torch.no_grad()
def generate(
    model: Method,
    x: Any,
    *,
    end: int,
    length: int,
    start: int | None = None,
    width: int = 5,
    samples: int = 20,
    seed: int | None = None,
    batch_size: int | None = None,
) -> Generated:
    r"""Generate the most probable sequence of every row by beam search on the posterior predictive distribution.

    The probability of the next token is its mean over S draws of the weights, each of which has read the tokens so far
    with a state of its own:

        p(w_t | w_{<t}, x) = (1/S) Σ_s p(w_t | w_{<t}, x, θ_s).

    The network has the methods ``encode(*inputs)``, which returns the state before the first token; ``step(tokens,
    state)``, which returns logits ``[N, V]`` of the next token and the new state; and ``forward(*inputs, tokens)``,
    which returns logits ``[B, T, V]`` for known tokens. A state is a tensor, or a tuple of tensors, with rows along
    dim 0. :class:`credo.architectures.Captioner` is such a network.

    Args:
        model: a method with a categorical likelihood, or an ensemble of them, fitted to ``((*inputs, tokens before),
            tokens)``.
        x: inputs of ``encode``: a tensor with rows along dim 0, or a tuple of tensors.
        end: the token that completes a sequence.
        length: the largest number of tokens, the end token included.
        start: the token before the first; ``None``: the end token.
        width: number of beams, see :func:`credo.sequence.beam_search`.
        samples: number of draws S; 0: the mean weights.
        seed: for the draws; ``None``: from torch's random state.
        batch_size: rows that are generated at once; ``None``: all.

    Returns:
        The sequences, their probabilities and the predictive distribution of every token, on the model's device.

    Raises:
        InputError: if the network lacks ``encode`` or ``step``, or the likelihood is not categorical, with the classes
            last and no ``logit_noise``.
        UnsupportedError: if draws are not functions that can be called token by token: a linearized Laplace
            approximation, or dropout layers in ``encode``.

    References:
        Fortunato, Blundell, Vinyals. Bayesian recurrent neural networks. 2017. arXiv:1704.02798 (captions by a
        Bayesian LSTM).
    """
    check_integer(samples, "samples", minimum=0)
    if batch_size is not None:
        check_integer(batch_size, "batch_size", minimum=1)
    seed, start = check_seed(seed), end if start is None else start
    shares = shares_of(model, samples, seed)
    readers = [_Reader(share.model, share.samples, share.seed) for share in shares]
    weights = [share.weight / r.draws for share, r in zip(shares, readers, strict=True) for _ in range(r.draws)]
    step = _mean_step(readers, torch.tensor(weights, device=model.device))
    inputs = prepare_input(x if isinstance(x, tuple) else (x,), model.device, model.dtype)
    found = []
    for part in split_rows(inputs, batch_size or max(1, count_rows(inputs))):
        state = [state for reader in readers for state in reader.encode(part)]
        found.append(beam_search(step, state, start=start, end=end, length=length, width=width))
    tokens, log_prob = _best(found, end)
    before = tokens.roll(1, dims=1)
    before[:, 0] = start
    ends_before = (tokens == end).cumsum(1) - (tokens == end).long()
    predictive = model.predict((*inputs, before), samples=samples, seed=seed, batch_size=batch_size, vectorize="loop")
    return Generated(tokens, ends_before == 0, log_prob, predictive)


def _mean_step(readers: list[_Reader], weights: Tensor) -> Step:
    """A step with the mean probabilities over the weighted draws of all readers, each of which has its own state."""

    def step(tokens: Tensor, states: list[Any]) -> tuple[Tensor, list[Any]]:
        rest = iter(states)
        found = [reader.step(tokens, s, next(rest)) for reader in readers for s in range(reader.draws)]
        logits = torch.stack([logits for logits, _ in found])
        log_p = logits.to(at_least_float32(logits.dtype)).log_softmax(-1)
        return log_average_exp(log_p, weights), [state for _, state in found]

    return step


def _best(parts: list[Beams], end: int) -> tuple[Tensor, Tensor]:
    """The best sequences of all rows, ``[B, T]``, and their log probabilities."""
    longest = max(part.tokens.shape[-1] for part in parts)
    tokens = [F.pad(part.tokens[:, 0], (0, longest - part.tokens.shape[-1]), value=end) for part in parts]
    return torch.cat(tokens), torch.cat([part.log_prob[:, 0] for part in parts])


class _Reader:
    """A network under draws of its weights, called token by token.

    Args:
        model: the method.
        samples: number of draws; 0: the mean weights.
        seed: of the draws.
    """

    def __init__(self, model: NetworkMethod, samples: int, seed: int) -> None:
        likelihood = model.likelihood
        if not isinstance(likelihood, Categorical) or likelihood.logit_noise or likelihood.class_dim not in (-1, 2):
            raise InputError(f"tokens need likelihood=credo.Categorical(), but the model has {likelihood!r}")
        for name in ("encode", "step"):
            if not callable(getattr(model.net, name, None)):
                raise InputError(f"the network must have a method {name}, but {type(model.net).__name__} has none")
        if isinstance(model, Laplace) and model._linearized and samples:
            raise UnsupportedError("a linearized network cannot be called token by token; use linearized=False")
        self._posterior = model.posterior if samples else None
        self._draws = model.posterior.sampler(seed)(range(samples)) if samples else [model.posterior.point()]
        self._encoder = Replica(model.net, self._encode, own_buffers=True)
        self._stepper = Replica(model.net, self._step, own_buffers=True)
        for network in (self._encoder, self._stepper):
            network.net.eval()
        self._state: Any = None

    @property
    def draws(self) -> int:
        """Number of draws."""
        return len(self._draws)

    def encode(self, x: Any) -> list[Any]:
        """The state before the first token for every draw; computed once if it does not depend on the draw."""
        if not self._encoding_depends_on_draw(x):
            self._encoder({}, x)
            return [self._state] * self.draws
        states = []
        for draw in self._draws:
            self._call(self._encoder, draw, x)
            states.append(self._state)
        return states

    def step(self, tokens: Tensor, s: int, state: Any) -> tuple[Tensor, Any]:
        """Logits of the next token by draw ``s``, and its new state."""
        logits = self._call(self._stepper, self._draws[s], (tokens, state))
        return logits, self._state

    def _encode(self, net: nn.Module, x: Any) -> Tensor:
        self._state = net.encode(*x)  # type: ignore[operator]
        return tensors(self._state)[0]

    def _step(self, net: nn.Module, x: Any) -> Tensor:
        logits, self._state = net.step(*x)  # type: ignore[operator]
        return logits  # type: ignore[no-any-return]

    def _call(self, network: Replica, draw: Draw, x: Any) -> Tensor:
        return network(draw, x) if self._posterior is None else self._posterior.call(network, draw, x)

    def _encoding_depends_on_draw(self, x: Any) -> bool:
        """Whether the state before the first token has a gradient with respect to a draw."""
        if isinstance(self._posterior, LayerDropout):
            _check_no_dropout(self._posterior, self._encoder, x)
            return False
        weights = {name: p.detach() for name, p in self._encoder.net.named_parameters()}
        weights |= {name: weight.detach().clone().requires_grad_() for name, weight in self._draws[0].items()}
        with torch.enable_grad():
            self._encoder(weights, first_rows(x, 1))
        return any(t.requires_grad for t in tensors(self._state))


def _check_no_dropout(posterior: LayerDropout, encoder: Replica, x: Any) -> None:
    """Raise ``UnsupportedError`` if the encoder drops units: masks are numbered from the start of every call."""
    try:
        posterior.prepare(encoder, x)
    except InputError:  # nothing is dropped
        return
    raise UnsupportedError(
        "the network has dropout in encode, whose masks cannot be continued from token to token; use dropout in step "
        "only, or MCDropout(net, p=...), which draws weights"
    )
