"""Recurrent networks whose state goes on from one minibatch to the next."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from credo._arguments import check_integer
from credo.errors import InputError
from credo.functional import Carrier, outside_inference_mode
from credo.model import Model

_MIN_BUFFERS = 16


class _Structure:
    """How the tensors of a state are nested, once a call has shown it; copies of a network share it.

    Attributes:
        spec: as torch describes a nest.
    """

    spec: Any = None

    def __deepcopy__(self, memo: Any) -> _Structure:
        return self

    def __getstate__(self) -> tuple[Any]:
        """A nest of numbers with that structure: torch serializes no named tuples."""
        return (None if self.spec is None else pytree.tree_unflatten(range(self.spec.num_leaves), self.spec),)

    def __setstate__(self, state: tuple[Any]) -> None:
        self.spec = None if state[0] is None else pytree.tree_flatten(state[0])[1]


class CarriedState(Carrier):
    """A recurrent network that starts every call from the state in which the call before ended.

    In truncated backpropagation through time a long sequence is cut into pieces: gradients end at a cut, the state does
    not. This module stores the state between calls, so that any method of the library can train and evaluate the
    network on the cuts of a :class:`TokenStream`. As long as the number of rows stays the same, the state stays in the
    same memory, which a training step captured as a CUDA graph reads and writes.

    Args:
        net: called as ``net(x, state)``, returns the output ``[B, T, ...]`` and the new state: a tensor, or tensors in
            tuples, lists and dictionaries, also nested. The state before a sequence is ``None`` or consists of zeros,
            which must mean the same; a network with a learned initial state h₀ can return h − h₀ and add h₀ to the
            state that it is given.
        n_states: number of tensors in the state; ``None``: as many as the network returns.
        row_dim: dimension of the state tensors that counts the rows; ``None``: 0 or 1, the one whose size is the number
            of rows. If both are of that size it is 1 for tensors of three dimensions, as in torch's recurrent layers,
            and 0 for others.

    Raises:
        InputError: if ``net`` is no network that can be called as ``net(x, state)``; in a call, if it does not return
            such a pair, or if rows go on from a state of another number of rows.

    Example:
        >>> from credo.architectures import LanguageModel
        >>> net = CarriedState(LanguageModel(100, width=8))
        >>> logits = net(torch.zeros(5, 7, dtype=torch.int64), torch.ones(5, dtype=torch.bool))
    """

    rows: Tensor | None

    def __init__(self, net: nn.Module, n_states: int | None = None, row_dim: int | None = None) -> None:
        super().__init__()
        self.net = _check_net(net)
        self.row_dim = None if row_dim is None else check_integer(row_dim, "row_dim", minimum=0)
        self._n_states = None if n_states is None else check_integer(n_states, "n_states", minimum=1)
        self._structure = _Structure()
        # Copies share buffers by name, so all names exist before the first call. Two per module are enough for the
        # hidden and the cell state of each.
        count = self._n_states or max(_MIN_BUFFERS, 2 * sum(1 for _ in net.modules()))
        self._names = [f"state_{i}" for i in range(count)]
        for name in (*self._names, "rows"):  # rows: [B, 0], whose shape belongs to the state as its numbers do
            self.register_buffer(name, None, persistent=False)

    def reset_state(self) -> None:
        """Set the state to zero, as at the start of a sequence."""
        for state in self._stored():
            state.zero_()

    def get_carried(self) -> dict[str, Tensor | None]:
        """The state between calls.

        Returns:
            Its tensors by name, which the next call may overwrite.
        """
        return dict(self._buffers)

    def set_carried(self, state: dict[str, Tensor | None]) -> None:
        """Go on from another state.

        Args:
            state: as :meth:`get_carried` returns it.
        """
        self._buffers.update(state)

    def forward(self, x: Tensor, start: Tensor | None = None) -> Tensor:
        """The output for the next piece of every row's sequence.

        Args:
            x: inputs ``[B, T, ...]``.
            start: ``[B]``, bool, whether a row starts a new sequence here; its state is zero then. ``None``: every row
                does, so that ``model.predict(x)`` reads each row from its beginning.

        Returns:
            The output ``[B, T, ...]``.

        Raises:
            InputError: if ``start`` is not as above, or rows go on from a state of another number of rows.
        """
        if start is not None and not _are_flags(start, x.shape[:1]):
            found = f"{start.dtype} of {list(start.shape)}" if isinstance(start, Tensor) else type(start).__name__
            raise InputError(f"start must be bool [{len(x)}], whether each row starts a sequence, got {found}")
        output, state = self._call(x, None if start is None else self._previous_state(start))
        self._store(state, len(x))
        return output

    def _call(self, x: Tensor, state: Any) -> tuple[Tensor, list[Tensor]]:
        result = self.net(x, state)
        if not isinstance(result, tuple) or len(result) != 2:
            raise InputError(
                f"net must return its output and its new state, got {type(result).__name__}; give CarriedState a "
                "network that is called as net(x, state)"
            )
        output, new = result
        leaves, structure = pytree.tree_flatten(new)
        if not leaves or not all(isinstance(leaf, Tensor) for leaf in leaves):
            kinds = ", ".join(dict.fromkeys(type(leaf).__name__ for leaf in leaves)) or "nothing"
            raise InputError(f"the state of net must consist of tensors in tuples, lists and dictionaries, got {kinds}")
        if len(leaves) > len(self._names) or self._n_states not in (None, len(leaves)):
            raise InputError(f"the state of net has {len(leaves)} tensors, not {len(self._names)}; pass n_states")
        for leaf in leaves:
            if self._find_row_dim(leaf, len(x)) is None:
                where = "dimension 0 or 1" if self.row_dim is None else f"dimension {self.row_dim}"
                raise InputError(
                    f"the state of net must count the {len(x)} rows of x in {where}, got a tensor of "
                    f"{list(leaf.shape)}; pass row_dim"
                )
        self._structure.spec = structure
        return output, leaves

    def _stored(self) -> list[Tensor]:
        return [state for state in (getattr(self, name) for name in self._names) if state is not None]

    def _find_row_dim(self, state: Tensor, rows: int) -> int | None:
        """The dimension of ``state`` that counts the rows; ``None``: it has another number of rows."""
        preferred = (1, 0) if state.dim() == 3 else (0, 1)
        dims = preferred if self.row_dim is None else (self.row_dim,)
        return next((dim for dim in dims if dim < state.dim() and state.shape[dim] == rows), None)

    def _previous_state(self, start: Tensor) -> Any:
        """The stored state, zero where a row starts; ``None`` if all start and it has another number of rows."""
        stored = self._stored()
        if self.rows is None or not stored:
            return None
        if len(self.rows) != len(start):
            if not self.checks_rows or start.all():
                return None
            raise InputError(
                f"{len(start)} rows cannot go on from the state of {len(self.rows)} rows; keep the number of rows in "
                "all minibatches of a text, and mark the first one with start"
            )
        kept = []
        for state in stored:
            row_dim = self._find_row_dim(state, len(start))
            goes_on = (~start).view([-1 if dim == row_dim else 1 for dim in range(state.dim())])
            kept.append(torch.where(goes_on, state, torch.zeros_like(state)))
        return pytree.tree_unflatten(kept, self._structure.spec)

    def _store(self, state: list[Tensor], rows: int) -> None:
        """Store the state without its graph, in the same memory from call to call.

        It has at least the precision of the weights: autocast returns it in 16 bits, with which a network cannot go on
        outside of autocast. Tensors of inference mode could not be written to later.
        """
        if self.rows is None or len(self.rows) != rows:
            with outside_inference_mode():
                self.rows = state[0].new_empty(rows, 0)
        weights = next((p.dtype for p in self.net.parameters() if p.is_floating_point()), None)
        for name, new in zip(self._names, state, strict=False):
            old, new = getattr(self, name), new.detach()
            if weights is not None and new.is_floating_point():
                new = new.to(torch.promote_types(new.dtype, weights))
            if old is None or old.shape != new.shape or old.dtype != new.dtype or old.device != new.device:
                with outside_inference_mode():
                    setattr(self, name, new.clone())
            else:
                old.copy_(new)


def _are_flags(start: object, shape: torch.Size) -> bool:
    return isinstance(start, Tensor) and start.dtype == torch.bool and start.shape == shape


def _check_net(net: object) -> nn.Module:
    """Return ``net`` if it is a network that can be called as ``net(x, state)``."""
    if not isinstance(net, nn.Module) or isinstance(net, Model):
        kind = type(net).__name__
        fix = f"; carry the state inside of it, {kind}(CarriedState(network), ...)" if isinstance(net, Model) else ""
        raise InputError(f"net must be a network, a torch.nn.Module, got {kind}{fix}")
    try:
        inspect.signature(net.forward).bind("x", "state")
    except ValueError:  # it has no signature to read
        return net
    except TypeError:
        raise InputError(
            f"net must be called as net(x, state), but a {type(net).__name__} has no place for a state; a network "
            "without one needs no CarriedState"
        ) from None
    return net
