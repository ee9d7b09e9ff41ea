"""Training steps that are captured once as a CUDA graph and replayed.

A small network is limited by the launch of kernels, not by arithmetic: a replayed step launches them all at once. What
a step depends on lies in tensors at fixed addresses, which are written in place before every replay: the minibatch, the
arguments of the loss, the learning rates. The warm-up of the KL, the losses and the metrics are counted inside the
graph.

A graph draws from CUDA's default generator, which is registered with it: a replay starts from the seed and the offset
that the generator has at that moment, so that the seed of an epoch takes effect as in eager training.

Reference: PyTorch, "CUDA semantics: CUDA graphs", https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from credo._devices import seconds
from credo._notices import notify
from credo.cuda_graphs import Graph, first_reason, make_graph, without_host_randomness
from credo.data import Batch
from credo.functional import preserve_buffers
from credo.nests import leaves, tensors
from credo.training.monitoring import make_record
from credo.training.optimizers import OptimizerSet
from credo.training.options import FitOptions
from credo.training.step import StepInput, TrainingStep
from credo.training.task import Task

if TYPE_CHECKING:
    from lightning_fabric import Fabric

_EAGER_STEPS = 3
_REPLAYS = 20
"""Those by which the precision is chosen."""


def make_step(
    fabric: Fabric, task: Task[Any], optimizers: OptimizerSet, options: FitOptions, n_data: int, check_data: bool
) -> TrainingStep | CapturedStep:
    """The training step, captured if ``options`` ask for it and nothing is in the way.

    Args:
        fabric: for the device, precision and processes.
        task: the model and its loss.
        optimizers: by name; if the step is captured, their learning rates become tensors.
        options: ``capture``, ``compile``, ``gradient_clip`` and ``precision``.
        n_data: the number of training data.
        check_data: whether to look for minibatches that are not finite.

    Returns:
        The step.
    """
    wanted = bool(options.capture)
    obstacle = find_obstacle(fabric, optimizers) if wanted else None
    captured = wanted and obstacle is None
    if obstacle is not None and options.capture is True:
        notify(f"training steps are not captured: {obstacle}")
    record = make_record(fabric, check_data, on_device=captured)
    step = TrainingStep(fabric, task, optimizers, options, n_data, record)
    if not captured:
        return step
    optimizers.hold_rates_in_tensors(fabric.device)
    return CapturedStep(step, lambda: make_graph(fabric.device))


def find_obstacle(fabric: Fabric, optimizers: OptimizerSet) -> str | None:
    """Why steps cannot be captured, or ``None``."""
    if fabric.device.type != "cuda":
        return "that needs a CUDA GPU"
    if fabric.world_size > 1:
        return "that needs a single process"
    if fabric.strategy.precision.precision == "16-mixed":
        return "the loss scale of precision='16-mixed' is chosen on the host"
    for optimizer in optimizers.by_name.values():
        is_known = isinstance(optimizer, torch.optim.SGD) or all("capturable" in g for g in optimizer.param_groups)
        if not is_known:
            return f"{type(optimizer).__name__} has no option capturable"
    return None


class CapturedStep:
    """A training step that is recorded after a few eager ones and then replayed.

    Minibatches of another shape than the first, such as a smaller last one, run eagerly; if the capture fails, all do.
    If the task's ``capture_key`` changes, as with the resolution of a growing network, the step is recorded anew.

    Args:
        step: the eager step.
        make_graph: makes an empty graph.
    """

    def __init__(self, step: TrainingStep, make_graph: Callable[[], Graph]) -> None:
        self._step, self._make_graph = step, make_graph
        self.record = step.record
        self._recordings: dict[tuple[str, Hashable], _Recording] = {}
        self._signatures: dict[str, list[object]] = {}
        self._failure: str | None = None

    @property
    def path(self) -> str:
        """How the steps ran, in words."""
        if self._failure is not None:
            return f"eager steps (the capture failed: {self._failure})"
        return "captured steps" if any(r.is_captured for r in self._recordings.values()) else "eager steps"

    def __call__(self, name: str, given: StepInput, number: int) -> None:
        """Take step ``number`` with one of the optimizers."""
        signature = _signature(given)
        first = self._signatures.setdefault(name, signature)
        key = name, self._step.task.capture_key()
        if key not in self._recordings:
            self._recordings[key] = _Recording(self._make_graph(), first)
        recording = self._recordings[key]
        if self._failure is not None or signature != recording.signature:
            self._step(name, given, number)
        elif recording.is_captured:
            recording.replay(given)
        elif recording.eager_steps < _EAGER_STEPS:
            recording.eager_steps += 1
            recording.graph.warm_up(lambda: self._step(name, given, number))
        else:
            self._capture(recording, name, given, number)

    def _capture(self, recording: _Recording, name: str, given: StepInput, number: int) -> None:
        try:
            with without_host_randomness():
                if self._step.is_mixed and not any(r.is_captured for r in self._recordings.values()):
                    choose_precision(self._step, name, given)
                recording.capture(self._step, name, given)
        except Exception as error:  # whatever CUDA, the network or the optimizer raises during a capture
            self._failure = first_reason(error)
        if self._failure is None:
            recording.replay(given)
        else:  # after the except clause, where the error no longer holds on to what was computed
            self._step(name, given, number)


def choose_precision(step: TrainingStep, name: str, given: StepInput) -> None:
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


class _Recording:
    """The graph of one optimizer's step, and the tensors that it reads."""

    def __init__(self, graph: Graph, signature: list[object]) -> None:
        self.graph, self.signature = graph, signature
        self.eager_steps = 0
        self.is_captured = False
        self._inputs: list[Tensor] = []

    def capture(self, step: TrainingStep, name: str, given: StepInput) -> None:
        static = StepInput(
            given.batch.map(torch.clone),
            {key: value.clone() if isinstance(value, Tensor) else value for key, value in given.arguments.items()},
            given.rows,
        )
        self._inputs = _tensors(static)
        self.graph.capture(lambda: _with_buffers_in_place(step.task.module, lambda: step(name, static, 0)))
        self.is_captured = True

    def replay(self, given: StepInput) -> None:
        torch._foreach_copy_(self._inputs, _tensors(given))
        self.graph.replay()


def _with_buffers_in_place(module: nn.Module, step: Callable[[], None]) -> None:
    """Run ``step``, and write the buffers that it replaced, as compiled code does, to where they were."""
    before = [(part, key, buffer) for part in module.modules() for key, buffer in part._buffers.items()]
    step()
    for part, key, buffer in before:
        new = part._buffers[key]
        if buffer is not None and new is not None and new is not buffer:
            buffer.copy_(new)
            part._buffers[key] = buffer


def _tensors(given: StepInput) -> list[Tensor]:
    batch = given.batch
    x = [batch.x] if isinstance(batch.x, Tensor) else tensors(batch.x)
    weight = [] if batch.sample_weight is None else [batch.sample_weight]
    return [*x, batch.y, *weight, *(value for value in given.arguments.values() if isinstance(value, Tensor))]


def _signature(given: StepInput) -> list[object]:
    """What must be the same for a replay: the shapes and types of tensors, and all other values."""
    batch: Batch = given.batch
    values = [*leaves(batch.x), batch.y, batch.sample_weight, given.rows, *given.arguments.items()]
    flat = [part for value in values for part in (value if isinstance(value, tuple) else (value,))]
    return [(v.shape, v.dtype, v.layout) if isinstance(v, Tensor) else v for v in flat]
