"""A network that describes images in words: a convolutional encoder and a recurrent decoder."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from typing_extensions import override

from credo._arguments import check_integer
from credo.architectures._base import (
    Architecture,
    check_channels,
    check_drop_rate,
    check_rows,
    drop_units,
    embed_tokens,
)
from credo.errors import InputError


class CaptionState(NamedTuple):
    """What a captioner remembers between two words.

    Attributes:
        features: of the whole image, ``[B, width]``.
        places: of the L places of the image that the decoder attends to, ``[B, L, width]``.
        hidden: hidden state of the LSTM, ``[B, layers, width]``.
        cell: its cell state, ``[B, layers, width]``.
    """

    features: Tensor
    places: Tensor
    hidden: Tensor
    cell: Tensor


class Captioner(Architecture):
    r"""A convolutional encoder and an LSTM decoder with attention, which predicts the next word of a caption.

    Maps images ``[B, in_channels, size, size]`` and words ``[B, T]`` to logits ``[B, T, vocabulary]`` of the word after
    each of them. The encoder has a stage per entry of ``channels`` (5×5 convolution of stride 2, batch norm, ReLU). Its
    maps give features v of the whole image, by a linear layer with ReLU, and features u_l of every place l, by a linear
    layer of the channels there and the coordinates. The decoder reads v and the words so far and looks at one place or
    several for the next word:

        h_t = LSTM([v, embedding(w_{t−1})], h_{t−1}),        a_t = softmax_l(u_l · W h_t / √width),
        logits_t = A tanh(C [h_t, Σ_l a_tl u_l] + c) + b.

    The parameters of the decoder have names that begin with ``decoder.``: ``bayesian="decoder.*"`` is a Bayesian
    decoder on a deterministic encoder, which prediction then evaluates once for all draws. ``forward`` is told all
    words (teacher forcing); :meth:`encode` and :meth:`step` go word by word, as :func:`credo.sequence.generate` does.

    Args:
        vocabulary: number of words.
        in_channels: channels of the image.
        size: height and width of the image.
        channels: channels of each stage of the encoder.
        width: number of features of an image and of a place, and of units of the LSTM.
        embedding: size of the embedding of a word.
        layers: number of layers of the LSTM.
        dropout: drop rate of the input of the LSTM and of the output layer, with the same mask at every step (Gal &
            Ghahramani, 2016), for :class:`credo.MCDropout`.

    Raises:
        InputError: if a size is not an integer of at least 1, the image is too small to be halved once per stage, or
            the rate is outside [0, 1).

    References:
        Vinyals, Toshev, Bengio, Erhan. Show and tell: A neural image caption generator. CVPR 2015. arXiv:1411.4555.
        Xu, Ba, Kiros, Cho, Courville, Salakhutdinov, Zemel, Bengio. Show, attend and tell: Neural image caption
        generation with visual attention. ICML 2015. arXiv:1502.03044.
        Luong, Pham, Manning. Effective approaches to attention-based neural machine translation. EMNLP 2015.
        arXiv:1508.04025 (the form of the attention).

    Example:
        >>> import torch
        >>> net = Captioner(18, size=16, channels=(4, 8), width=32)
        >>> net(torch.zeros(5, 1, 16, 16), torch.zeros(5, 7, dtype=torch.int64)).shape
        torch.Size([5, 7, 18])
    """

    def __init__(
        self,
        vocabulary: int,
        in_channels: int = 1,
        size: int = 48,
        channels: Sequence[int] = (32, 64, 128),
        width: int = 256,
        embedding: int = 32,
        layers: int = 1,
        *,
        dropout: float = 0.0,
    ) -> None:
        vocabulary, in_channels = (
            check_integer(vocabulary, "vocabulary", 1),
            check_integer(in_channels, "in_channels", 1),
        )
        size, width = check_integer(size, "size", 1), check_integer(width, "width", 1)
        embedding, layers = check_integer(embedding, "embedding", 1), check_integer(layers, "layers", 1)
        channels = check_channels(channels)
        if size < 2 ** len(channels):
            raise InputError(f"an image of {size}×{size} cannot be halved {len(channels)} times: give fewer channels")
        super().__init__(
            vocabulary=vocabulary,
            in_channels=in_channels,
            size=size,
            channels=channels,
            width=width,
            embedding=embedding,
            layers=layers,
            dropout=check_drop_rate(dropout, "dropout"),
        )
        self.shape = (in_channels, size, size)
        stages: list[nn.Module] = []
        side = size
        for before, after in zip((in_channels, *channels), channels, strict=False):
            stages += [
                nn.Conv2d(before, after, 5, stride=2, padding=2, bias=False),
                nn.BatchNorm2d(after),
                nn.ReLU(),
            ]
            side = -(-side // 2)
        self.encoder = nn.Sequential(*stages)
        self.features = nn.Sequential(nn.Flatten(), nn.Linear(channels[-1] * side**2, width), nn.ReLU())
        self.places = nn.Linear(channels[-1] + 2, width)
        self.decoder = CaptionDecoder(vocabulary, width, embedding, layers, dropout)

    @override
    def forward(self, images: Tensor, tokens: Tensor) -> Tensor:
        """Predict every word of a caption from the words before it.

        Args:
            images: ``[B, in_channels, size, size]``.
            tokens: the words before, ``[B, T]``, int64; the first is that which stands for the start.

        Returns:
            Logits ``[B, T, vocabulary]``.

        Raises:
            InputError: if the shape of the images does not match, or the tokens are not in the vocabulary.
        """
        return self.decoder(tokens, self.encode(images))[0]  # type: ignore[no-any-return]

    def encode(self, images: Tensor) -> CaptionState:
        """Return the state before the first word.

        Args:
            images: ``[B, in_channels, size, size]``.

        Returns:
            The features of the images and of their places, and zeros for the LSTM.

        Raises:
            InputError: if the shape of the images does not match.
        """
        check_rows(images, self.shape)
        maps = self.encoder(images)
        side = torch.linspace(-1.0, 1.0, maps.shape[-1], dtype=maps.dtype, device=maps.device)
        coordinates = torch.stack(torch.meshgrid(side, side, indexing="ij")).expand(len(maps), -1, -1, -1)
        places = self.places(torch.cat([maps, coordinates], 1).flatten(2).transpose(1, 2))
        zeros = maps.new_zeros(len(maps), self.decoder.lstm.num_layers, self.decoder.lstm.hidden_size)
        return CaptionState(self.features(maps), places, zeros, zeros)

    def step(self, tokens: Tensor, state: CaptionState) -> tuple[Tensor, CaptionState]:
        """Predict the next word.

        Args:
            tokens: the last word of each caption, ``[B]``.
            state: the state before it.

        Returns:
            Logits ``[B, vocabulary]``, and the state after it.
        """
        logits, state = self.decoder(tokens[:, None], state)
        return logits[:, 0], state


class CaptionDecoder(nn.Module):
    """Embedding, LSTM, attention and output layer of a :class:`Captioner`."""

    def __init__(self, vocabulary: int, width: int, embedding: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(width + embedding, width, layers, batch_first=True)
        self.query = nn.Linear(width, width, bias=False)
        self.combine = nn.Linear(2 * width, width)
        self.output = nn.Linear(width, vocabulary)

    @override
    def forward(self, tokens: Tensor, state: CaptionState) -> tuple[Tensor, CaptionState]:
        """Logits ``[B, T, vocabulary]`` of the words after ``tokens``, ``[B, T]``, and the state after the last."""
        features, places, *memory = state
        words = embed_tokens(self.embedding, tokens)
        if len(words) != len(features):
            raise InputError(f"there must be tokens for each of the {len(features)} images, got {list(tokens.shape)}")
        x = torch.cat([features[:, None].expand(-1, tokens.shape[1], -1), words], -1)
        hidden, cell = (part.transpose(0, 1).contiguous() for part in memory)
        x, (hidden, cell) = self.lstm(drop_units(x, self.dropout, self.training), (hidden, cell))
        attention = (self.query(x) @ places.mT / math.sqrt(places.shape[-1])).softmax(-1)
        x = drop_units(torch.cat([x, attention @ places], -1), self.dropout, self.training)
        x = self.combine(x).tanh()
        return self.output(x), CaptionState(features, places, hidden.transpose(0, 1), cell.transpose(0, 1))
