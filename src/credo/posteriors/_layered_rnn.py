"""A recurrent network of several layers run layer by layer, so that dropout between them is a call that can be seen."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from credo.posteriors._dropout_calls import drop_padded


class LayeredRNN:
    """The forward of a recurrent network, whose own is one fused kernel.

    Args:
        rnn: the network; its parameters are used as they are.
    """

    def __init__(self, rnn: nn.RNNBase) -> None:
        self._dropout = float(rnn.dropout)
        self._directions = directions = 2 if rnn.bidirectional else 1
        width = directions * (rnn.proj_size or rnn.hidden_size)
        extra: dict[str, Any] = {"proj_size": rnn.proj_size} if isinstance(rnn, nn.LSTM) else {}
        if type(rnn) is nn.RNN:
            extra["nonlinearity"] = rnn.nonlinearity
        self._layers: list[nn.RNNBase] = []
        for k in range(rnn.num_layers):
            build: Any = type(rnn)
            layer = build(
                rnn.input_size if k == 0 else width,
                rnn.hidden_size,
                bias=rnn.bias,
                batch_first=rnn.batch_first,
                bidirectional=rnn.bidirectional,
                device="meta",
                **extra,
            )
            for name, _ in list(layer.named_parameters()):
                layer.register_parameter(name, getattr(rnn, name.replace("_l0", f"_l{k}")))
            self._layers.append(layer.eval())

    def __call__(self, x: Any, hx: Any = None) -> Any:
        """As the recurrent network's own forward, with dropout between layers."""
        directions = self._directions
        finals = []
        for k, layer in enumerate(self._layers):
            if k:
                x = self._drop(x, self._dropout)
            x, final = layer(x, _part(hx, slice(k * directions, (k + 1) * directions)))
            finals.append(final)
        if isinstance(finals[0], tuple):
            return x, tuple(torch.cat(parts) for parts in zip(*finals, strict=True))
        return x, torch.cat(finals)

    def _drop(self, x: Any, p: float) -> Any:
        if not isinstance(x, PackedSequence):
            return F.dropout(x, p)
        padded, lengths = pad_packed_sequence(x, batch_first=True)  # rows in their own order again
        dropped = drop_padded(padded, p)
        return pack_padded_sequence(dropped, lengths, batch_first=True, enforce_sorted=x.sorted_indices is None)


def drops_between_layers(rnn: nn.RNNBase) -> bool:
    return rnn.dropout > 0 and rnn.num_layers > 1


def _part(hx: Any, rows: slice) -> Any:
    if hx is None:
        return None
    return tuple(h[rows] for h in hx) if isinstance(hx, tuple) else hx[rows]
