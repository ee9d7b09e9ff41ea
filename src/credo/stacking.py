"""Many networks as one: K copies of a network, stacked along a leading dimension, with one forward and one gradient.

Members of an ensemble, chains of a sampler and repeats over folds of a small table are copies of one network that do
not interact. Their parameters are stacked, ``[K, ...]``, and evaluated together by ``vmap``. Because copy k does not
depend on the weights of the others, the gradient of the *sum* of the K losses holds the gradient of each loss.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.backends import mha
from torch.func import vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from credo._arguments import check_integer
from credo._notices import notify
from credo.errors import CredoError, InputError, UnsupportedError, unknown_name
from credo.functional import Carrier, Draw, Forward, Replica
from credo.nests import map_tensors, tensors
from credo.seeding import NoRandomness, RandomnessError, check_seed, derive, seeded

RowLoss = Callable[[Tensor, Tensor], Tensor]


class LossAndGradient(NamedTuple):
    """The losses of K copies and their gradients.

    Attributes:
        loss: ``[K]``.
        gradient: the gradient of each copy's loss by its own weights, name to ``[K, *shape]``.
    """

    loss: Tensor
    gradient: Draw


class Stack:
    """K copies of one network, evaluated as one.

    The weights of the copies are not held here: they are an argument, a mapping from parameter names to tensors
    ``[K, *shape]``, so that samplers and optimizers can treat them as they like. An elementwise optimizer such as Adam
    or SGD, given the stacked weights, makes the step of each copy as if it were alone; clipping by a global norm would
    not. Parameters that are not stacked, and all buffers, are shared by the copies and held fixed.

    The copies run through ``vmap``. Where the network has an operation without a batching rule, or convolutions on a
    CPU, which are slower in a batch, they run one after the other, with the same results.

    Args:
        net: the network; it is not changed.
        copies: K.
        names: the parameters to stack; ``None``: all trainable ones, a tied one under its first name.
        forward: ``callable(net, x)`` for networks with unusual inputs or outputs.
        training: run the network in training mode, where dropout draws a mask per copy; by default in evaluation mode.
        vectorize: whether to use ``vmap``; ``None``: where it works and pays.

    Raises:
        InputError: a name is unknown, or nothing is trainable.

    Example:
        >>> stack = Stack(net, copies=8)
        >>> weights = stack.initial_weights(reinitialize, seed=0)
        >>> loss, gradient = stack.loss_and_gradient(weights, x, y, lambda out, y: (out - y).square().sum(1))
    """

    def __init__(
        self,
        net: nn.Module,
        copies: int,
        *,
        names: Sequence[str] | None = None,
        forward: Forward | None = None,
        training: bool = False,
        vectorize: bool | None = None,
    ) -> None:
        self.copies = check_integer(copies, "copies", minimum=1)
        parameters = dict(net.named_parameters())
        chosen = [name for name, p in parameters.items() if p.requires_grad] if names is None else list(names)
        if not chosen:
            raise InputError("the network has no trainable parameters to stack")
        for name in chosen:
            if name not in parameters:
                raise unknown_name("parameter", name, parameters)
        self.names = chosen
        self._net = net
        self._replica = Replica(net, forward, own_buffers=True)
        self._replica.net.train(training)
        self._randomness = "different" if training else "error"
        self._vectorize = vectorize
        self._is_checked = False

    @property
    def is_vectorized(self) -> bool:
        """Whether copies run through ``vmap``; known after the first evaluation."""
        return bool(self._vectorize)

    def initial_weights(self, initialize: Callable[[nn.Module], None] | None = None, seed: int | None = None) -> Draw:
        """Weights to start from.

        Args:
            initialize: changes a network in place, such as by its modules' ``reset_parameters``; it is called for every
                copy, with torch's default generator seeded by (seed, k). ``None``: every copy starts at the weights of
                the network itself.
            seed: fixes the random numbers; ``None``: from torch's random state.

        Returns:
            Name to tensor ``[K, *shape]``.
        """
        if initialize is None:
            return stack_weights([self._net], self.names, self.copies)
        base = check_seed(seed)
        parts = []
        for k in range(self.copies):
            network = copy.deepcopy(self._net)  # one at a time: of a frozen network, only a part is stacked
            with seeded(derive(base, k), next(network.parameters()).device):
                initialize(network)
            parts.append(stack_weights([network], self.names))
        return {name: torch.cat([part[name] for part in parts]) for name in self.names}

    def __call__(self, weights: Draw, x: Any, *, per_copy: bool = False) -> Tensor:
        """The outputs of all copies, differentiable by the weights.

        Args:
            weights: name to tensor ``[K, *shape]``.
            x: inputs, rows along dim 0, the same for all copies; or with ``per_copy`` tensors ``[K, B, ...]``.
            per_copy: whether every copy has inputs of its own.

        Returns:
            The outputs, ``[K, B, ...]``.

        Raises:
            UnsupportedError: the network draws random numbers in evaluation mode, or keeps state from call to call.
        """
        return self._evaluate(self._replica, weights, (x,), per_copy)

    def losses(
        self,
        weights: Draw,
        x: Any,
        y: Tensor,
        loss: RowLoss,
        *,
        per_copy: bool = False,
        sample_weight: Tensor | None = None,
    ) -> Tensor:
        """The mean loss over rows of every copy, differentiable by the weights.

        Args:
            weights: name to tensor ``[K, *shape]``.
            x: inputs, ``[B, ...]``, or with ``per_copy`` ``[K, B, ...]``.
            y: targets, ``[B, ...]``, or with ``per_copy`` ``[K, B, ...]``.
            loss: ``loss(output, y)`` of one copy, one number per row, ``[B]``.
            per_copy: whether every copy has data of its own. Folds of different sizes are padded to the largest, with
                a sample weight of 0 for rows that do not exist.
            sample_weight: weights of the rows, ``[B]`` or ``[K, B]``; the mean is Σ w·loss / Σ w.

        Returns:
            The losses, ``[K]``.
        """

        def row_losses(own: Draw, x: Any, y: Tensor) -> Tensor:
            return loss(self._replica(own, x), y)

        rows = self._evaluate(row_losses, weights, (x, y), per_copy)
        if sample_weight is None:
            return rows.mean(1)
        shared = sample_weight.to(rows.dtype).expand_as(rows)
        return (rows * shared).sum(1) / shared.sum(1)

    def loss_and_gradient(
        self,
        weights: Draw,
        x: Any,
        y: Tensor,
        loss: RowLoss,
        *,
        per_copy: bool = False,
        sample_weight: Tensor | None = None,
    ) -> LossAndGradient:
        """The losses of all copies and their gradients, from one backward pass through the sum of the losses.

        Args:
            weights: name to tensor ``[K, *shape]``.
            x: as for :meth:`losses`.
            y: as for :meth:`losses`.
            loss: as for :meth:`losses`.
            per_copy: as for :meth:`losses`.
            sample_weight: as for :meth:`losses`.

        Returns:
            Losses ``[K]`` and gradients, detached.
        """
        with torch.enable_grad():
            leaves = {name: weights[name].detach().requires_grad_() for name in self.names}
            value = self.losses(leaves, x, y, loss, per_copy=per_copy, sample_weight=sample_weight)
            gradients = torch.autograd.grad(value.sum(), list(leaves.values()), materialize_grads=True)
        return LossAndGradient(value.detach(), dict(zip(leaves, gradients, strict=True)))

    def networks(self, weights: Draw) -> list[nn.Module]:
        """The copies as networks of their own.

        Args:
            weights: name to tensor ``[K, *shape]``.

        Returns:
            K deep copies of the network, with their weights.
        """
        networks = [copy.deepcopy(self._net) for _ in range(self.copies)]
        with torch.no_grad():
            for k, network in enumerate(networks):
                for name in self.names:
                    network.get_parameter(name).copy_(weights[name][k])
        return networks

    def _evaluate(
        self, function: Callable[..., Tensor], weights: Draw, data: tuple[Any, ...], per_copy: bool
    ) -> Tensor:
        """``function(weights, *data)`` of every copy, stacked."""
        if self._vectorize is None:
            self._vectorize = self.copies > 1 and not self._convolves_on_cpu(data)
        if mha.get_fastpath_enabled() and any(weight.requires_grad for weight in weights.values()):
            with _differentiable_attention(next(iter(weights.values())).device):
                return self._evaluate(function, weights, data, per_copy)
        if not self._vectorize:
            result = self._loop(function, weights, data, per_copy)
        else:
            in_dims = (0, *[0 if per_copy else None] * len(data))
            try:
                result = vmap(function, in_dims=in_dims, randomness=self._randomness)(weights, *data)
            except CredoError:
                raise
            except Exception as error:  # a missing batching rule, an in-place buffer, a data-dependent branch
                result = self._loop(function, weights, data, per_copy)
                self._vectorize = False
                reason = str(error).strip().split("\n")[0][:160]
                notify(f"copies of the network run one after the other, because they cannot be vectorized: {reason}")
        if not self._is_checked:
            self._check_state()
        return result

    def _loop(self, function: Callable[..., Tensor], weights: Draw, data: tuple[Any, ...], per_copy: bool) -> Tensor:
        """:meth:`_evaluate`, one copy after the other."""
        results = []
        forbid_randomness = not self._is_checked and self._randomness == "error"
        try:
            with NoRandomness() if forbid_randomness else nullcontext():
                for k in range(self.copies):
                    own = map_tensors(lambda t, k=k: t[k], data) if per_copy else data  # type: ignore[misc]
                    results.append(function({name: value[k] for name, value in weights.items()}, *own))
        except RandomnessError as error:
            raise UnsupportedError(
                "the network draws random numbers in evaluation mode, so its output is not a function of its weights"
            ) from error
        return torch.stack(results)

    def _check_state(self) -> None:
        if any(isinstance(module, Carrier) for module in self._replica.net.modules()):
            raise UnsupportedError(
                "the network carries its state from minibatch to minibatch, which copies of it would share; pass the "
                "network without CarriedState, and whole sequences as rows"
            )
        if self._replica.is_stateful():
            raise UnsupportedError(
                "the network keeps state from call to call, such as batch norm in training mode, which copies of it "
                "would share; run it in evaluation mode, or fit the copies one after the other"
            )
        self._is_checked = True

    def _convolves_on_cpu(self, x: Any) -> bool:
        on_cpu = all(t.device.type == "cpu" for t in tensors(x))
        return on_cpu and any(isinstance(m, nn.modules.conv._ConvNd) for m in self._replica.net.modules())


@contextmanager
def _differentiable_attention(device: torch.device) -> Iterator[None]:
    """Keep attention off paths without a derivative, or without a batching rule on a CPU.

    ``nn.TransformerEncoder`` in evaluation mode takes the former, as it looks for weights that require a gradient and
    does not see those that ``vmap`` has wrapped.
    """
    mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH) if device.type == "cpu" else nullcontext():
            yield
    finally:
        mha.set_fastpath_enabled(True)


def stack_weights(networks: Sequence[nn.Module], names: Sequence[str], repeats: int = 1) -> Draw:
    """The parameters of some networks of one architecture, stacked.

    Args:
        networks: the networks.
        names: the parameters to stack.
        repeats: number of times that every network is repeated.

    Returns:
        Name to tensor ``[len(networks)·repeats, *shape]``, detached.
    """
    parts = [network for network in networks for _ in range(repeats)]
    return {name: torch.stack([part.get_parameter(name).detach() for part in parts]) for name in names}
