"""Recurrent networks whose state goes on from one minibatch to the next."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from credo._arguments import check_integer
from credo.errors import InputError


class CarriedState(nn.Module):
    """A recurrent network that starts every call from the state in which the call before ended.

    In truncated backpropagation through time a long sequence is cut into pieces: gradients end at a cut, the state does
    not. This module stores the state between calls, so that any method of the library can train and evaluate the
    network on the cuts of a :class:`TokenStream`. As long as the number of rows stays the same, the state stays in the
    same memory, which a training step captured as a CUDA graph reads and writes.

    Args:
        net: called as ``net(x, state)``, returns the output ``[B, T, ...]`` and the new state, a tensor or a tuple of
            tensors; the state before a sequence is ``None``.
        n_states: number of tensors in the state; ``None``: two if there is an LSTM in the network, else one.
        row_dim: dimension of the state tensors that counts the rows; 1 for torch's recurrent layers.

    Raises:
        InputError: in a call, if the network does not return such a pair.

    Example:
        >>> from credo.architectures import LanguageModel
        >>> net = CarriedState(LanguageModel(100, width=8))
        >>> logits = net(torch.zeros(5, 7, dtype=torch.int64), torch.ones(5, dtype=torch.bool))
    """

    def __init__(self, net: nn.Module, n_states: int | None = None, row_dim: int = 1) -> None:
        super().__init__()
        if n_states is None:
            n_states = 2 if any(isinstance(m, nn.LSTM | nn.LSTMCell) for m in net.modules()) else 1
        self.net = net
        self.row_dim = check_integer(row_dim, "row_dim", minimum=0)
        self._names = [f"state_{i}" for i in range(check_integer(n_states, "n_states", minimum=1))]
        for name in self._names:
            self.register_buffer(name, None, persistent=False)

    def reset_state(self) -> None:
        """Set the state to zero, as at the start of a sequence."""
        for state in (getattr(self, name) for name in self._names):
            if state is not None:
                state.zero_()

    def forward(self, x: Tensor, start: Tensor | None = None) -> Tensor:
        """The output for the next piece of every row's sequence.

        Args:
            x: inputs ``[B, T, ...]``.
            start: ``[B]``, bool, whether a row starts a new sequence here; its state is zero then. ``None``: every row
                does, so that ``model.predict(x)`` reads each row from its beginning.

        Returns:
            The output ``[B, T, ...]``.
        """
        output, state = self._call(x, None if start is None else self._previous_state(start))
        self._store(state)
        return output

    def _call(self, x: Tensor, state: Any) -> tuple[Tensor, list[Tensor]]:
        result = self.net(x, state)
        if not isinstance(result, tuple) or len(result) != 2:
            raise InputError(
                f"net must return its output and its new state, got {type(result).__name__}; give CarriedState a "
                "network that is called as net(x, state)"
            )
        output, new = result
        leaves = [new] if isinstance(new, Tensor) else list(new)
        if len(leaves) != len(self._names):
            raise InputError(f"the state of net has {len(leaves)} tensors, not {len(self._names)}; pass n_states")
        return output, leaves

    def _previous_state(self, start: Tensor) -> Any:
        """The stored state, zero where a row starts; ``None`` if there is none for as many rows."""
        stored = [getattr(self, name) for name in self._names]
        if any(s is None or s.shape[self.row_dim] != len(start) for s in stored):
            return None
        going_on = [(~start).view([-1 if dim == self.row_dim else 1 for dim in range(s.dim())]) for s in stored]
        kept = [torch.where(mask, s, torch.zeros_like(s)) for mask, s in zip(going_on, stored, strict=True)]
        return kept[0] if len(kept) == 1 else tuple(kept)

    def _store(self, state: list[Tensor]) -> None:
        """Store the state without its graph, in the same memory from call to call."""
        for name, new in zip(self._names, state, strict=True):
            old = getattr(self, name)
            if old is None or old.shape != new.shape or old.dtype != new.dtype or old.device != new.device:
                setattr(self, name, new.detach().clone())
            else:
                old.copy_(new.detach())
