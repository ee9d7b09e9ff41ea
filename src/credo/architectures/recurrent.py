"""Recurrent language models, with the dropout masks of variational recurrent networks."""

from __future__ import annotations

from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from credo._arguments import check_bool, check_integer, check_option
from credo.architectures._base import Architecture, TokenEmbedding, check_drop_rate, drop_units, embed_tokens
from credo.errors import InputError
from credo.functional import complete_weights, restore_flat_weights

State: TypeAlias = Tensor | tuple[Tensor, Tensor]
"""The state of a recurrent network, ``[layers, B, width]``; hidden and cell state of an LSTM."""

_CELLS: dict[str, type[nn.LSTM | nn.GRU | nn.RNN]] = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}


class LanguageModel(Architecture):
    r"""A recurrent network that predicts the next token of a sequence.

    Maps tokens ``[B, T]`` and a state to logits ``[B, T, vocabulary]`` and the state after the last token.

    Dropout follows Gal & Ghahramani (2016): a mask is drawn once per sequence and is the same at every time step. With
    the input x_t, the hidden state h_t and masks z_x, z_h,

        h_t = cell(x_t ∘ z_x, h_{t−1} ∘ z_h),

    where z_x differs between the rows of a batch and the layers, and z_h is shared by the rows: dropping units of
    h_{t−1} is the same as dropping columns of the recurrent weight matrix, so that fused kernels can be used. The part
    of h_{t−1} that a GRU passes on without weights, h_t = (1 − u)∘n + u∘h_{t−1}, is not dropped: dropout is on weights.
    Word dropout sets all occurrences of a word to zero.

    Args:
        vocabulary: number of tokens.
        width: size of the embedding and of every hidden state.
        layers: number of recurrent layers.
        cell: ``"lstm"``, ``"gru"`` or ``"rnn"``.
        tied: whether the output layer uses the matrix of the embedding.
        dropout: drop rate of the inputs of every layer, the output layer included.
        recurrent_dropout: drop rate of the hidden states from step to step.
        word_dropout: drop rate of words.

    Raises:
        InputError: if a size is not an integer of at least 1, a rate is outside [0, 1), or the cell is unknown.

    References:
        Gal, Ghahramani. A theoretically grounded application of dropout in recurrent neural networks. NeurIPS 2016.
        Press, Wolf. Using the output embedding to improve language models. EACL 2017 (tied weights).

    Example:
        >>> import torch
        >>> logits, state = LanguageModel(100, width=8)(torch.zeros(5, 7, dtype=torch.int64))
        >>> logits.shape
        torch.Size([5, 7, 100])
    """

    def __init__(
        self,
        vocabulary: int,
        width: int = 650,
        layers: int = 2,
        cell: str = "lstm",
        tied: bool = True,
        *,
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        word_dropout: float = 0.0,
    ) -> None:
        vocabulary, width = check_integer(vocabulary, "vocabulary", 1), check_integer(width, "width", 1)
        layers = check_integer(layers, "layers", 1)
        check_option(cell, "cell", tuple(_CELLS))
        rates = {"dropout": dropout, "recurrent_dropout": recurrent_dropout, "word_dropout": word_dropout}
        for name, rate in rates.items():
            check_drop_rate(rate, name)
        super().__init__(
            vocabulary=vocabulary, width=width, layers=layers, cell=cell, tied=check_bool(tied, "tied"), **rates
        )
        self.dropout, self.recurrent_dropout, self.word_dropout = dropout, recurrent_dropout, word_dropout
        self.embedding = TokenEmbedding(vocabulary, width)
        self.layers = nn.ModuleList([_CELLS[cell](width, width, batch_first=True) for _ in range(layers)])
        self.decoder = nn.Linear(width, vocabulary)
        if tied:
            self.decoder.weight = self.embedding.weight

    def forward(self, tokens: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Apply the network.

        Args:
            tokens: int64 indices ``[B, T]``.
            state: the state after the token before the first, ``None``: zeros.

        Returns:
            Logits of the next token at every step, ``[B, T, vocabulary]``, and the last state.

        Raises:
            InputError: if the tokens are not in the vocabulary, or the state has another structure or shape.
        """
        x = embed_tokens(self.embedding, tokens)
        if state is not None:
            self._check_state(state, len(tokens))
        if self.word_dropout > 0:
            kept = F.dropout(x.new_ones(self.embedding.num_embeddings, 1), self.word_dropout, self.training)
            x = x * kept[tokens]
        finals: list[State] = []
        for k, layer in enumerate(self.layers):
            x = drop_units(x, self.dropout, self.training)
            x, final = self._run(layer, x, None if state is None else _layer_state(state, k))
            finals.append(final)
        return self.decoder(drop_units(x, self.dropout, self.training)), _stack_states(finals)

    def _check_state(self, state: State, rows: int) -> None:
        expected = (len(self.layers), rows, self.embedding.embedding_dim)
        count = 2 if isinstance(self.layers[0], nn.LSTM) else 1
        parts = list(state) if isinstance(state, tuple | list) else [state]
        if len(parts) != count or not all(isinstance(part, Tensor) and part.shape == expected for part in parts):
            kind = "two tensors" if count == 2 else "one tensor"
            found = [str(list(part.shape)) if isinstance(part, Tensor) else type(part).__name__ for part in parts]
            raise InputError(
                f"state must be {kind} of {list(expected)}, got {', '.join(found) or 'none'}; "
                "CarriedState(net) stores it between the minibatches of a TokenStream"
            )

    def _run(self, layer: nn.Module, x: Tensor, state: State | None) -> tuple[Tensor, State]:
        assert isinstance(layer, nn.RNNBase)
        output: tuple[Tensor, State]
        if self.recurrent_dropout == 0:
            output = layer(x, state)
            return output
        weight: Tensor = layer.weight_hh_l0  # type: ignore[assignment]
        kept = F.dropout(weight.new_ones(weight.shape[1]), self.recurrent_dropout, self.training)
        output = functional_call(layer, complete_weights(layer, {"weight_hh_l0": weight * kept}), (x, state))
        restore_flat_weights([layer])
        return output


def _layer_state(state: State, k: int) -> State:
    if isinstance(state, Tensor):
        return state[k : k + 1].contiguous()
    hidden, memory = state
    return hidden[k : k + 1].contiguous(), memory[k : k + 1].contiguous()


def _stack_states(states: list[State]) -> State:
    if isinstance(states[0], Tensor):
        return torch.cat(states)  # type: ignore[arg-type]
    hidden, memory = zip(*states, strict=True)
    return torch.cat(hidden), torch.cat(memory)
