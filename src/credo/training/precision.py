"""Whether mixed precision pays: measured on the training step of the network, before it is captured."""

from __future__ import annotations

import torch

from credo._devices import seconds
from credo._notices import notify
from credo.cuda_graphs import make_graph
from credo.functional import preserve_buffers
from credo.training.step import StepInput, TrainingStep

_REPLAYS = 20


def drop_precision_that_does_not_pay(step: TrainingStep, name: str, given: StepInput) -> None:
    """Let ``step`` compute in float32 where mixed precision is not faster, and say so.

    Casting weights and activations takes kernels of its own; for small layers they cost more than shorter products
    save. What is timed is the loss and its gradient, captured as the step will be: without a graph, the launch of
    kernels would be timed. Parameters, buffers and random states are left as they were.

    Args:
        step: in mixed precision.
        name: of the optimizer.
        given: a minibatch.
    """
    device = given.batch.y.device
    times: dict[bool, float] = {}
    try:
        with (
            torch.random.fork_rng([device] if device.type == "cuda" else []),
            preserve_buffers(list(step.task.module.modules())),
        ):
            for is_mixed in (True, False):
                step.is_mixed = is_mixed
                times[is_mixed] = _time_gradient(step, name, given, device)
    finally:
        step.drop_gradient(name)
        step.is_mixed = len(times) < 2 or times[True] < times[False]
    if not step.is_mixed:
        notify(
            "training computes in float32, which is faster for this network here: a gradient takes "
            f"{1e3 * times[False]:.2g} ms, and {1e3 * times[True]:.2g} ms in mixed precision"
        )


def _time_gradient(step: TrainingStep, name: str, given: StepInput, device: torch.device) -> float:
    graph = make_graph(device)
    graph.warm_up(lambda: step.take_gradient(name, given))
    graph.capture(lambda: step.take_gradient(name, given))

    def replay() -> None:
        for _ in range(_REPLAYS):
            graph.replay()

    replay()
    return min(seconds(replay, device) for _ in range(3)) / _REPLAYS
