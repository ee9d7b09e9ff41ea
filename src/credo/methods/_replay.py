"""A log density and its gradient as a CUDA graph: the launch of its kernels costs more than they do."""

from __future__ import annotations

import torch
from torch import Tensor

from credo.cuda_graphs import Graph, first_reason, make_graph, without_host_randomness
from credo.methods._flat_stack import RECORDED_FROM, Evaluation, Target

_DEVICES = ("cuda",)
_CAPTURED_FROM = RECORDED_FROM + 3


class Replayed:
    """A target on a GPU that is captured after some evaluations and replayed from then on.

    What it depends on besides the position must lie in tensors at fixed addresses. Where the capture fails, for other
    shapes than the first, and on a CPU, the target is evaluated as it is.

    Args:
        target: the log density.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._count = 0
        self._graph: Graph | None = None
        self._position, self._value = torch.empty(0), Evaluation(torch.empty(0), torch.empty(0))
        self.failure: str | None = None
        """Why the target is not replayed, if the capture failed."""

    @property
    def is_captured(self) -> bool:
        """Whether evaluations are replays."""
        return self._graph is not None

    def __call__(self, position: Tensor) -> Evaluation:
        """The log density ``[K]`` and its gradient ``[K, P]`` at ``position`` ``[K, P]``."""
        if position.device.type not in _DEVICES or self.failure is not None:
            return self._target(position)
        self._count += 1
        if self._count == _CAPTURED_FROM:
            self._capture(position)
        if self._graph is None or position.shape != self._position.shape:
            return self._target(position)
        self._position.copy_(position)
        self._graph.replay()
        return Evaluation(*(part.clone() for part in self._value))

    def _capture(self, position: Tensor) -> None:
        self._position = position.detach().clone()

        def evaluate() -> None:
            self._value = self._target(self._position)

        try:
            graph = make_graph(position.device)
            graph.warm_up(evaluate)
            with without_host_randomness():
                graph.capture(evaluate)
        except Exception as error:  # whatever CUDA or the network raises during a capture
            self.failure = first_reason(error)
        else:
            self._graph = graph
