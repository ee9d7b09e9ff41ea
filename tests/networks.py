"""Networks as people have them, each with a batch of data: nothing here knows about credo's way of sampling."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import credo
from credo.likelihoods import Likelihood


class Attention(nn.Module):
    """Self-attention over a sequence ``[B, T, E]``, pooled over time."""

    def __init__(self, batch_first: bool = True, dropout: float = 0.0, need_weights: bool = True) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, dropout=dropout, batch_first=batch_first)
        self.head = nn.Linear(8, 1)
        self.batch_first, self.need_weights = batch_first, need_weights

    def forward(self, x: Tensor) -> Tensor:
        if not self.batch_first:
            x = x.transpose(0, 1)
        h, _ = self.attention(x, x, x, need_weights=self.need_weights)
        pooled: Tensor = self.head(h.mean(1 if self.batch_first else 0))
        return pooled


class Encoder(nn.Module):
    """A transformer encoder over ``[B, T, E]``, pooled over time."""

    def __init__(self, batch_first: bool, dropout: float = 0.0, layers: int = 2) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(8, 1)
        self.batch_first = batch_first

    def forward(self, x: Tensor) -> Tensor:
        if not self.batch_first:
            x = x.transpose(0, 1)
        pooled: Tensor = self.head(self.encoder(x).mean(1 if self.batch_first else 0))
        return pooled


class Recurrent(nn.Module):
    """A recurrent network over ``[B, T, E]``; its last state, or all of them, through a linear head."""

    def __init__(self, kind: type[nn.LSTM | nn.GRU | nn.RNN], batch_first: bool = True, **options: Any) -> None:
        super().__init__()
        self.rnn = kind(3, 6, batch_first=batch_first, **options)
        width = (2 if self.rnn.bidirectional else 1) * (self.rnn.proj_size or 6)
        self.head = nn.Linear(width, 1)
        self.batch_first = batch_first

    def forward(self, x: Tensor) -> Tensor:
        if not self.batch_first:
            x = x.transpose(0, 1)
        h, _ = self.rnn(x)
        last: Tensor = self.head(h[:, -1] if self.batch_first else h[-1])
        return last


class TiedLanguageModel(nn.Module):
    """Tokens ``[B, T]`` to logits ``[B, T, V]``; the output layer is the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.hidden = nn.Linear(6, 6)
        self.output = nn.Linear(6, 11)
        self.output.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.output(self.hidden(self.embedding(tokens)).tanh())
        return logits


class UNet(nn.Module):
    """Images ``[B, 1, 8, 8]`` down, up by a transposed convolution, and a skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(1, 4, (3, 5), stride=2, padding=(1, 2))
        self.up = nn.ConvTranspose2d(4, 3, 3, stride=2, padding=1, output_padding=1)
        self.out = nn.Conv2d(4, 1, 3, padding=1, padding_mode="reflect")

    def forward(self, x: Tensor) -> Tensor:
        up = self.up(self.down(x).relu(), output_size=x.shape[-2:]).relu()
        image: Tensor = self.out(torch.cat([up, x], 1))
        return image


class CalledTwice(nn.Module):
    """One linear layer, applied twice."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(3, 3)
        self.head = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.shared(self.shared(x).tanh()).tanh())
        return y


class Registered(nn.Module):
    """One module under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = self.first
        self.head = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.second(self.first(x).tanh()).tanh())
        return y


class Output(NamedTuple):
    """A model output, as libraries of pretrained networks return it."""

    scores: Tensor
    hidden: Tensor


class DictNetwork(nn.Module):
    """Keyword inputs, a model output."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.body = nn.Linear(7, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, tokens: Tensor, features: Tensor) -> Output:
        hidden = F.gelu(self.body(torch.cat([self.embedding(tokens).mean(1), features], -1)))
        return Output(self.head(hidden), hidden)


def scores(net: nn.Module, x: Any) -> Tensor:
    """How to call :class:`DictNetwork`."""
    output: Output = net(**x)
    return output.scores


@dataclass(frozen=True)
class Case:
    """A network with data."""

    make: Callable[[], nn.Module]
    x: Any
    y: Tensor
    likelihood: Callable[[], Likelihood]
    forward: Callable[[nn.Module, Any], Any] | None = None


def _normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _integers(high: int, *shape: int, seed: int = 0) -> Tensor:
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed))


def _gaussian() -> Likelihood:
    return credo.Gaussian(0.3)


B, T = 6, 5
CASES: dict[str, Case] = {
    "mlp": Case(lambda: credo.architectures.MLP(3, (8, 8)), _normal(B, 3), _normal(B, 1), _gaussian),
    "lenet": Case(
        lambda: credo.architectures.LeNet(4, size=8), _normal(B, 1, 8, 8), _integers(4, B), credo.Categorical
    ),
    "resnet": Case(
        lambda: credo.architectures.ResNet(4, 2, (4, 6)), _normal(B, 2, 6, 6), _integers(4, B), credo.Categorical
    ),
    "lstm": Case(lambda: Recurrent(nn.LSTM, num_layers=2), _normal(B, T, 3), _normal(B, 1), _gaussian),
    "gru": Case(
        lambda: Recurrent(nn.GRU, batch_first=False, bidirectional=True), _normal(B, T, 3), _normal(B, 1), _gaussian
    ),
    "attention": Case(Attention, _normal(B, T, 8), _normal(B, 1), _gaussian),
    "encoder": Case(lambda: Encoder(batch_first=True), _normal(B, T, 8), _normal(B, 1), _gaussian),
    "encoder-time-first": Case(lambda: Encoder(batch_first=False), _normal(B, T, 8), _normal(B, 1), _gaussian),
    "tied": Case(TiedLanguageModel, _integers(11, B, T), _integers(11, B, T, seed=1), credo.Categorical),
    "transformer": Case(
        lambda: credo.architectures.TransformerLanguageModel(11, 8, 1, 2, 8, context=T),
        _integers(11, B, T),
        _integers(11, B, T, seed=1),
        credo.Categorical,
    ),
    "vision-transformer": Case(
        lambda: credo.architectures.VisionTransformer(4, 1, 6, 3, 8, 1, 2, 8),
        _normal(B, 1, 6, 6),
        _integers(4, B),
        credo.Categorical,
    ),
    "unet": Case(UNet, _normal(B, 1, 8, 8), _normal(B, 1, 8, 8), _gaussian),
    "called-twice": Case(CalledTwice, _normal(B, 3), _normal(B, 1), _gaussian),
    "registered-twice": Case(Registered, _normal(B, 3), _normal(B, 1), _gaussian),
    "dictionary": Case(
        DictNetwork,
        {"tokens": _integers(7, B, T), "features": _normal(B, 3)},
        _integers(3, B),
        credo.Categorical,
        scores,
    ),
}
