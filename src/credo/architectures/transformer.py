"""Transformers: a causal language model, and a classifier of images."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from typing_extensions import override

from credo._arguments import check_bool, check_integer, check_option
from credo._devices import at_least_float32
from credo.architectures._base import Architecture, TokenEmbedding, check_rows, dropout_layers, embed_tokens
from credo.errors import InputError

_ROTARY_BASE = 10_000.0
_TOKEN_SCALE = 0.02
_PATCH_SCALE = 0.3
"""About that of an embedded patch of pixels in [0, 1]; with less, small networks find positions late."""


class TransformerLanguageModel(Architecture):
    r"""A Transformer that predicts the next token of a sequence.

    Maps tokens ``[B, T]`` to logits ``[B, T, vocabulary]``; those of step t depend on tokens 0 to t only. Each block
    normalizes its input before it uses it (pre-norm),

        x ← x + attention(norm(x)),   x ← x + W₂ gelu(W₁ norm(x)),

    and in one of the heads of the attention

        attention(x)_t = Σ_{u ≤ t} softmax_u(q_tᵀ k_u / √d) v_u.

    Rotary positions turn pairs of coordinates of q_t and k_t by angles proportional to t, so that their product depends
    on the distance t − u only. Learned positions are vectors that are added to the embedding.

    Every matrix is the weight of an ``nn.Linear``, for which credo has Flipout and Kronecker factors, and the attention
    is written in matrix products: PyTorch's fused attention has no forward derivatives, no second ones, and no batching
    over drawn weights.

    Args:
        vocabulary: number of tokens.
        width: size of the embedding and of the vector of every step; a multiple of ``heads``.
        layers: number of blocks.
        heads: number of heads of the attention.
        feedforward: hidden units of each block; ``None`` for four times the width.
        context: maximum number of steps T.
        positions: ``"rotary"`` or ``"learned"``.
        tied: whether the output layer uses the matrix of the embedding, as one parameter.
        dropout: drop rate of ``nn.Dropout`` layers after the embedding, the attention and the hidden units of each
            block; ``None`` for no dropout.

    Raises:
        InputError: if a size is not an integer of at least 1, ``width`` is not a multiple of ``heads``, the size of a
            head is odd with rotary positions, or ``positions`` is unknown.

    References:
        Vaswani et al. Attention is all you need. NeurIPS, 2017. arXiv:1706.03762.
        Radford et al. Language models are unsupervised multitask learners. 2019 (norms before each layer).
        Su et al. RoFormer: Enhanced Transformer with rotary position embedding. 2021. arXiv:2104.09864.
        Press, Wolf. Using the output embedding to improve language models. EACL 2017 (tied weights).

    Example:
        >>> import torch
        >>> TransformerLanguageModel(100, width=16, heads=2)(torch.zeros(5, 7, dtype=torch.int64)).shape
        torch.Size([5, 7, 100])
    """

    def __init__(
        self,
        vocabulary: int,
        width: int = 128,
        layers: int = 2,
        heads: int = 4,
        feedforward: int | None = None,
        context: int = 128,
        positions: str = "rotary",
        tied: bool = True,
        *,
        dropout: float | None = None,
    ) -> None:
        vocabulary, context = check_integer(vocabulary, "vocabulary", 1), check_integer(context, "context", 1)
        check_option(positions, "positions", ("rotary", "learned"))
        super().__init__(
            vocabulary=vocabulary,
            width=width,
            layers=layers,
            heads=heads,
            feedforward=feedforward,
            context=context,
            positions=positions,
            tied=check_bool(tied, "tied"),
            dropout=dropout,
        )
        blocks = _blocks(width, layers, heads, feedforward, dropout)
        self.embedding = TokenEmbedding(vocabulary, width)
        self.positions = LearnedVectors(context, width, _TOKEN_SCALE) if positions == "learned" else None
        self.dropout = nn.Sequential(*dropout_layers(dropout))
        self.blocks = blocks
        self.norm = nn.LayerNorm(width)
        self.decoder = nn.Linear(width, vocabulary)
        if tied:
            self.decoder.weight = self.embedding.weight
        if positions == "rotary" and width // heads % 2:
            raise InputError(
                f"width / heads must be even with rotary positions, got {width // heads}: use positions='learned'"
            )
        self.context, self.heads = context, heads

    @override
    def forward(self, tokens: Tensor) -> Tensor:
        """Predict the next token at every step.

        Args:
            tokens: int64 indices ``[B, T]``.

        Returns:
            Logits ``[B, T, vocabulary]``.

        Raises:
            InputError: if the tokens are not in the vocabulary, or there are more than ``context`` steps.
        """
        x = embed_tokens(self.embedding, tokens)
        steps = tokens.shape[1]
        if steps > self.context:
            raise InputError(
                f"tokens must have at most context={self.context} steps, got {steps}: cut the sequences, or build the "
                "network with a larger context"
            )
        rotation = None
        if self.positions is None:
            rotation = _rotation(steps, x.shape[-1] // self.heads, x)
        else:
            x = x + self.positions()[:steps]
        x = self.dropout(x)
        future = torch.ones(steps, steps, dtype=torch.bool, device=tokens.device).triu(1)
        for block in self.blocks:
            x = block(x, rotation, future)
        logits: Tensor = self.decoder(self.norm(x))
        return logits


class VisionTransformer(Architecture):
    r"""A Transformer that classifies square images from a sequence of their patches (Dosovitskiy et al., 2021).

    Maps ``[B, in_channels, size, size]`` to logits ``[B, classes]``. The image is cut into patches, each becomes a
    vector by one linear layer, and a learned vector of its position is added. The blocks are those of
    :class:`TransformerLanguageModel`, with attention in both directions. The output layer sees the vector of a learned
    class token that runs through all blocks before the patches, or the mean over the patches.

    Args:
        classes: number of classes.
        in_channels: channels of the image.
        size: height and width of the image, a multiple of ``patch``.
        patch: height and width of a patch.
        width: size of the vector of a patch; a multiple of ``heads``.
        layers: number of blocks.
        heads: number of heads of the attention.
        feedforward: hidden units of each block; ``None`` for four times the width.
        pooling: ``"class"`` for a class token, ``"mean"`` for the mean over the patches.
        dropout: drop rate of ``nn.Dropout`` layers after the embedding, the attention and the hidden units of each
            block; ``None`` for no dropout.

    Raises:
        InputError: if a size is not an integer of at least 1, ``size`` is not a multiple of ``patch`` or ``width`` not
            one of ``heads``, or ``pooling`` is unknown.

    References:
        Dosovitskiy et al. An image is worth 16x16 words: Transformers for image recognition at scale. ICLR, 2021.
        arXiv:2010.11929.

    Example:
        >>> import torch
        >>> VisionTransformer(width=16, heads=2)(torch.zeros(5, 1, 28, 28)).shape
        torch.Size([5, 10])
    """

    def __init__(
        self,
        classes: int = 10,
        in_channels: int = 1,
        size: int = 28,
        patch: int = 7,
        width: int = 64,
        layers: int = 4,
        heads: int = 4,
        feedforward: int | None = None,
        pooling: str = "class",
        *,
        dropout: float | None = None,
    ) -> None:
        classes, in_channels = check_integer(classes, "classes", 1), check_integer(in_channels, "in_channels", 1)
        size, patch = check_integer(size, "size", 1), check_integer(patch, "patch", 1)
        check_option(pooling, "pooling", ("class", "mean"))
        if size % patch:
            raise InputError(f"size must be a multiple of patch, got {size} and {patch}")
        super().__init__(
            classes=classes,
            in_channels=in_channels,
            size=size,
            patch=patch,
            width=width,
            layers=layers,
            heads=heads,
            feedforward=feedforward,
            pooling=pooling,
            dropout=dropout,
        )
        blocks = _blocks(width, layers, heads, feedforward, dropout)
        self.patch, self.shape = patch, (in_channels, size, size)
        self.embedding = nn.Linear(in_channels * patch**2, width)
        self.positions = LearnedVectors((size // patch) ** 2, width, _PATCH_SCALE)
        self.class_token = LearnedVectors(1, width, _PATCH_SCALE) if pooling == "class" else None
        self.dropout = nn.Sequential(*dropout_layers(dropout))
        self.blocks = blocks
        self.norm = nn.LayerNorm(width)
        self.classifier = nn.Linear(width, classes)

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Classify images.

        Args:
            x: images ``[B, in_channels, size, size]``.

        Returns:
            Logits ``[B, classes]``.

        Raises:
            InputError: if the shape of the images does not match.
        """
        check_rows(x, self.shape)
        x = self.embedding(_patches(x, self.patch)) + self.positions()
        if self.class_token is not None:
            x = torch.cat([self.class_token().expand(len(x), -1, -1), x], dim=1)
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        logits: Tensor = self.classifier(x.mean(1) if self.class_token is None else x[:, 0])
        return logits


class LearnedVectors(nn.Module):
    """Vectors that are parameters, ``[count, width]``: positions, or a class token."""

    def __init__(self, count: int, width: int, initial_scale: float) -> None:
        super().__init__()
        self.initial_scale = initial_scale
        self.weight = nn.Parameter(torch.empty(count, width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the vectors from a Gaussian with mean 0."""
        nn.init.normal_(self.weight, 0.0, self.initial_scale)

    @override
    def forward(self) -> Tensor:
        """The vectors, ``[count, width]``."""
        return self.weight


class TransformerBlock(nn.Module):
    """Attention and a network with one hidden layer, each added to its input, which is normalized before."""

    def __init__(self, width: int, heads: int, feedforward: int, dropout: float | None) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.attention = nn.Sequential(nn.Linear(width, width), *dropout_layers(dropout))
        self.norm_feedforward = nn.LayerNorm(width)
        self.feedforward = nn.Sequential(
            nn.Linear(width, feedforward), nn.GELU(), *dropout_layers(dropout), nn.Linear(feedforward, width)
        )

    @override
    def forward(self, x: Tensor, rotation: Tensor | None = None, hidden: Tensor | None = None) -> Tensor:
        """Apply the block.

        Args:
            x: ``[B, T, width]``.
            rotation: cosine and sine of the angles of rotary positions, ``[2, T, width / heads / 2]``.
            hidden: ``[T, T]``, whether the step of a row must not use the step of a column.

        Returns:
            ``[B, T, width]``.
        """
        x = x + self.attention(self._attend(self.norm_attention(x), rotation, hidden))
        return torch.add(x, self.feedforward(self.norm_feedforward(x)))

    def _attend(self, x: Tensor, rotation: Tensor | None, hidden: Tensor | None) -> Tensor:
        """The means of the values by the attention of each head, side by side, ``[B, T, width]``."""
        projected = self.query_key_value(x).unflatten(-1, (3, self.heads, -1)).transpose(1, 3)
        query, key, value = projected.unbind(2)  # [B, heads, T, width / heads]
        if rotation is not None:
            query, key = _rotate(query, rotation), _rotate(key, rotation)
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        if hidden is not None:
            scores = scores.masked_fill(hidden, -math.inf)
        means: Tensor = scores.softmax(-1) @ value
        return means.transpose(1, 2).flatten(2)


def _blocks(width: int, layers: int, heads: int, feedforward: int | None, dropout: float | None) -> nn.ModuleList:
    """``layers`` blocks, after a check of the sizes."""
    width, heads = check_integer(width, "width", 1), check_integer(heads, "heads", 1)
    hidden = 4 * width if feedforward is None else check_integer(feedforward, "feedforward", 1)
    if width % heads:
        raise InputError(f"width must be a multiple of heads, got {width} and {heads}")
    return nn.ModuleList(
        TransformerBlock(width, heads, hidden, dropout) for _ in range(check_integer(layers, "layers", 1))
    )


def _patches(x: Tensor, patch: int) -> Tensor:
    """The pixels of every patch, row by row: ``[B, C, H, W]`` to ``[B, HW / patch², C·patch²]``."""
    grid: Tensor = x.unflatten(3, (-1, patch)).unflatten(2, (-1, patch))  # [B, C, rows, patch, columns, patch]
    return grid.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


def _rotation(steps: int, size: int, like: Tensor) -> Tensor:
    """cos and sin of the angles t·10000^(−2i/size) of step t and pair i, ``[2, steps, size / 2]``."""
    dtype, device = at_least_float32(like.dtype), like.device
    frequency = _ROTARY_BASE ** (-torch.arange(0, size, 2, dtype=dtype, device=device) / size)
    angle = torch.arange(steps, dtype=dtype, device=device)[:, None] * frequency
    return torch.stack([angle.cos(), angle.sin()]).to(like.dtype)


def _rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Turn each pair of a coordinate of the first half and one of the second, ``[B, heads, T, size]``."""
    first, second = x.chunk(2, dim=-1)
    cos, sin = rotation.unbind(0)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
