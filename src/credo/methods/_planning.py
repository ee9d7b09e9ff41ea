"""Which gradient estimator is right for each layer, decided by watching a few rows pass through the network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from credo._notices import notify
from credo.functional import Replica
from credo.nests import count_rows, first_rows, tensors
from credo.probing import ROWS, RowDim, eager, trace_rows
from credo.seeding import reproducible

_DERIVATIVES = (torch.autograd.grad, torch.autograd.backward, Tensor.backward)


def plan_estimators(probe: Replica, layers: Collection[str], estimator: str, x: Any) -> dict[str, str]:
    """Decide, per layer, which noise has the distribution of drawn weights.

    Noise per row is that of a weight draw per row, which is right only where rows do not see each other and the
    forward pass does not differentiate the network: elsewhere all layers are weight-sampled. So is a layer whose
    parameters are also used outside it, or whose input has something else than the rows along dim 0. Under ``"auto"`` a
    layer that is called several times gets Flipout, whose draw is shared by the calls.

    Args:
        probe: a replica with buffers of its own and no hooks.
        layers: paths of the layers in question.
        estimator: what was asked for.
        x: a batch.
    """
    if count_rows(x) == 0:
        return dict.fromkeys(layers, "weight" if estimator != "local" else "local")
    modules = {path: probe.net.get_submodule(path) for path in layers}
    passed: list[tuple[str, Tensor]] = []

    def watch(path: str) -> Callable[..., None]:
        def hook(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            passed.append((path, (args[0] if args else kwargs["input"]).detach()))

        return hook

    held = {id(p): path for path, module in modules.items() for p in module.parameters(recurse=False)}
    uses = _Uses(held)

    def run(batch: Any) -> tuple[Tensor, list[Tensor]]:
        def call() -> Tensor:
            passed.clear()
            uses.count.clear()
            with probe.preserve_buffers(), torch.enable_grad(), eager(), uses:
                return probe({}, batch)

        return reproducible(call, tensors(batch)[0].device).detach(), [value for _, value in passed]

    handles = [m.register_forward_pre_hook(watch(path), with_kwargs=True) for path, m in modules.items()]
    for module in probe.net.modules():
        module.training = not isinstance(module, _NormBase)
    try:
        run(first_rows(x, ROWS))
        calls, uses_in_training = Counter(path for path, _ in passed), Counter(uses.count)
        probe.net.eval()
        trace = trace_rows(run, x)
    except Exception:
        probe({}, x)  # raises if the network does; else it is a few rows alone that it cannot be called on
        trace, calls, uses_in_training = None, Counter(), Counter()
    finally:
        for handle in handles:
            handle.remove()
    if uses.differentiates or ((trace is None or trace.input_dim != 0) and estimator != "local"):
        reason = (
            "the forward pass differentiates or maps the network"
            if uses.differentiates
            else "the rows of a batch cannot be told apart: they see each other, or are not dim 0 of every input"
        )
        notify(f"weights are drawn once per batch, because {reason}")
        return dict.fromkeys(layers, "weight")
    inside = [] if trace is None else trace.inside
    seen = [(path, value.dim() > 1 and rows == RowDim(0)) for (path, value), rows in zip(passed, inside, strict=False)]
    wrong_rows = {path for path, is_right in seen if not is_right} | (set(layers) - {path for path, _ in seen})
    parameters = Counter(held.values())
    decided = {}
    for path in layers:
        if uses_in_training[path] != calls[path] * parameters[path] or (estimator != "local" and path in wrong_rows):
            decided[path] = "weight"
        elif estimator == "auto" and calls[path] > 1:
            decided[path] = "flipout"
        else:
            decided[path] = estimator
    return decided


class _Uses(TorchFunctionMode):
    """Counts the operations that compute with given tensors, and sees whether derivatives are taken.

    Args:
        names: what to count under, by the tensors' identity.
    """

    def __init__(self, names: Mapping[int, str]) -> None:
        super().__init__()
        self.names = names
        self.count: Counter[str] = Counter()
        self.differentiates = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.differentiates |= func in _DERIVATIVES or torch._C._functorch.peek_interpreter_stack() is not None
        result = func(*args, **(kwargs or {}))
        if any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(result)):
            for leaf in pytree.tree_leaves((args, kwargs)):
                if id(leaf) in self.names:
                    self.count[self.names[id(leaf)]] += 1
        return result
