r"""Adam in the posterior's own units.

The distance between two Gaussians N(μ, σ²) that are close together is that of the Fisher metric, dμ²/σ² + 2·(d log σ)²:
how far a mean may move in one step, and how much a scale may change, is a matter of σ, not of the network. With Adam's
moments m̂ and v̂ of the gradient, the learning rate η, σ = softplus(ρ) and one relative step r for both,

    Δμ = −max(η, r·σ)·m̂/(√v̂ + ε),      Δρ = −max(η, r)·m̂/(√v̂ + ε).

A weight that matters, whose σ is small, moves by η as under plain Adam; one that does not, whose σ has grown, follows
at the pace of its σ. Otherwise a posterior that starts at σ = 0.01 takes thousands of steps to a prior of scale 1.

Reference: M. E. Khan, D. Nielsen, V. Tangkaratt, W. Lin, Y. Gal, A. Srivastava, "Fast and scalable Bayesian deep
learning by weight-perturbation in Adam", ICML 2018, whose natural-gradient steps are measured in units of σ² instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._utils import _unflatten_dense_tensors
from torch.optim import Optimizer

from credo import kernels
from credo.errors import InputError, unknown_name
from credo.posteriors._gaussian_kl import SMALL, joined
from credo.training.options import FitOptions, Schedule, learning_rate_factor

RELATIVE_STEP, STEPS = 0.1, 2000
"""r for runs of up to ``STEPS`` steps; chosen on validation data among 0.03, 0.1 and 0.3."""

_BLOCK = 2**16
"""The elements of a large tensor that are computed at once, such that what lies between stays in a CPU's cache."""


def relative_step(steps: int | None) -> float:
    """r for a run of ``steps``: longer runs take smaller steps."""
    return RELATIVE_STEP * min(1.0, STEPS / max(steps or STEPS, 1))


def adam(groups: Iterable[dict[str, Any]], lr: float) -> Optimizer:
    """Adam, fused where the parameters' device has a fused kernel."""
    return Adam(list(groups), lr)


class Adam(torch.optim.Adam):
    """Torch's Adam, which from the second step on calls the fused kernel without looking for its state again.

    Args:
        groups: parameter groups.
        lr: learning rate of groups that have none.
    """

    def __init__(self, groups: Sequence[dict[str, Any]], lr: float = 1e-3) -> None:
        parameters = [p for group in groups for p in group["params"]]
        super().__init__(groups, lr=lr, fused=_can_fuse(parameters))
        self._found: tuple[Any, list[_KernelArguments]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_found": None}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one step.

        Args:
            closure: evaluates the loss again, as for any torch optimizer.

        Returns:
            The loss, if a closure was given.
        """
        found = self._kernel_arguments() if closure is None else None
        if found is None or any(p.grad is None for arguments in found for p in arguments.parameters):
            loss: float | None = super().step(closure)
            return loss
        for group, arguments in zip(self.param_groups, found, strict=True):
            torch._foreach_add_(arguments.steps, 1)
            _fused_adam(group, arguments)
        return None

    def _kernel_arguments(self) -> list[_KernelArguments] | None:
        """The tensors that the fused kernel works on; ``None`` if torch has to find them, or has more to do."""
        if getattr(self, "grad_scale", None) is not None:  # set for a step by torch.amp.GradScaler
            return None
        if self._found is None or self._found[0] is not self.state:  # new after load_state_dict
            if any(group["amsgrad"] or group["maximize"] or not group["fused"] for group in self.param_groups):
                return None
            parameters = [group["params"] for group in self.param_groups]
            if any(len({(p.device, p.dtype) for p in params}) > 1 for params in parameters):
                return None
            if not all(self.state.get(p) for params in parameters for p in params):
                return None
            keys = ("exp_avg", "exp_avg_sq", "step")
            lists = [
                _KernelArguments(params, *([self.state[p][key] for p in params] for key in keys))
                for params in parameters
            ]
            self._found = (self.state, lists)
        return self._found[1]


class _KernelArguments(NamedTuple):
    parameters: list[Tensor]
    first_moments: list[Tensor]
    second_moments: list[Tensor]
    steps: list[Tensor]


def _fused_adam(group: dict[str, Any], arguments: _KernelArguments) -> None:
    torch._fused_adam_(
        arguments.parameters,
        [p.grad for p in arguments.parameters],  # type: ignore[misc]
        arguments.first_moments,
        arguments.second_moments,
        [],
        arguments.steps,
        lr=group["lr"],
        beta1=group["betas"][0],
        beta2=group["betas"][1],
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        amsgrad=False,
        maximize=False,
    )


class NaturalAdam(Adam):
    """Adam whose steps are at least a tenth of the posterior's standard deviation at the start of the schedule.

    Args:
        groups: parameter groups; means and scales may share a group.
        scales: ρ of each mean.
        lr: learning rate, the smallest step.
        relative_step: r; :func:`relative_step` has the default for a run.
        relative: further parameters that are in units of σ, such as the factors of a low-rank covariance; their steps
            are those of a ρ.

    Example:
        >>> model = credo.BayesByBackprop(net, credo.Gaussian(0.1))
        >>> optimizer = NaturalAdam(model.parameter_groups(), model.posterior.scale_parameters())
    """

    def __init__(
        self,
        groups: Sequence[dict[str, Any]],
        scales: Mapping[Tensor, Tensor],
        lr: float = 1e-3,
        relative_step: float = RELATIVE_STEP,
        relative: Iterable[Tensor] = (),
    ) -> None:
        of_scales = {id(parameter) for parameter in (*scales.values(), *relative)}
        split: list[dict[str, Any]] = []
        for group in groups:
            own = {**group, "lr": group.get("lr", lr)}
            rhos = {**own, "lr": max(own["lr"], relative_step)}
            split.append({**own, "params": [p for p in group["params"] if id(p) not in of_scales]})
            split.append({**rhos, "params": [p for p in group["params"] if id(p) in of_scales]})
        split = [group for group in split if group["params"]]
        super().__init__(split, lr)
        self._stretched = _together(
            (mean, scales[mean], relative_step / group["lr"])
            for group in split
            for mean in group["params"]
            if mean in scales
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one step of Adam, scaled up where the posterior's units are larger.

        Args:
            closure: evaluates the loss again, as for any torch optimizer.

        Returns:
            The loss, if a closure was given.
        """
        if closure is None and self._take_fused_step():
            return None
        before = [joined(means).clone() if len(means) == 1 else joined(means) for means, _, _ in self._stretched]
        loss = super().step(closure)
        for (means, rhos, ratio), old in zip(self._stretched, before, strict=True):
            if len(means) > 1:
                new = _stretch(old, joined(means), joined(rhos), ratio)
                torch._foreach_copy_(means, _unflatten_dense_tensors(new, means))
                continue
            (mean,), (rho,) = means, rhos
            if mean.device.type == "cpu" and mean.numel() > _BLOCK and mean.is_contiguous() and rho.is_contiguous():
                blocks = [tensor.view(-1).split(_BLOCK) for tensor in (old, mean, rho)]
            else:
                blocks = [(old,), (mean,), (rho,)]
            for start, end, part in zip(*blocks, strict=True):
                _stretch(start, end, part, ratio, out=end)
        return loss

    def _take_fused_step(self) -> bool:
        """Take the step in one kernel per mean and its scale; ``False`` where that is not possible.

        That is for captured steps, whose learning rates are tensors.
        """
        found, groups = self._kernel_arguments(), self.param_groups
        pairs = [(*pair, ratio) for means, rhos, ratio in self._stretched for pair in zip(means, rhos, strict=True)]
        paired = [tensor for mean, rho, _ in pairs for tensor in (mean, rho)]
        if found is None or not paired or not all(isinstance(group["lr"], Tensor) for group in groups):
            return False
        if any(p.grad is None for group in groups for p in group["params"]) or not kernels.accepts(paired):
            return False
        in_pairs = {id(parameter) for parameter in paired}
        for group, arguments in zip(groups, found, strict=True):
            torch._foreach_add_(arguments.steps, 1)
            others = [row for row in zip(*arguments, strict=True) if id(row[0]) not in in_pairs]
            if others:
                _fused_adam(group, _KernelArguments(*map(list, zip(*others, strict=True))))
        group_of = {id(p): group for group in groups for p in group["params"]}
        for mean, rho, ratio in pairs:
            kernels.natural_adam(
                self._adam_state(mean),
                self._adam_state(rho),
                self._adam_settings(group_of[id(mean)], mean),
                self._adam_settings(group_of[id(rho)], rho),
                ratio,
            )
        return True

    def _adam_state(self, parameter: Tensor) -> kernels.AdamState:
        state = self.state[parameter]
        assert parameter.grad is not None
        return kernels.AdamState(parameter, parameter.grad, state["exp_avg"], state["exp_avg_sq"])

    def _adam_settings(self, group: dict[str, Any], parameter: Tensor) -> kernels.AdamSettings:
        step = self.state[parameter]["step"]
        return kernels.AdamSettings(group["lr"], step, group["betas"], group["eps"], group["weight_decay"])


def _stretch(old: Tensor, new: Tensor, rho: Tensor, ratio: float, out: Tensor | None = None) -> Tensor:
    """A step from ``old`` to ``new``, scaled up by r·σ/η where that is more than 1."""
    return torch.lerp(old, new, F.softplus(rho).mul_(ratio).clamp_min_(1.0).to(new.dtype), out=out)


def _together(stretched: Iterable[tuple[Tensor, Tensor, float]]) -> list[tuple[list[Tensor], list[Tensor], float]]:
    """Means, their ρ and ratios: small tensors of one kind together, where calls cost more than the numbers."""
    groups: dict[Any, tuple[list[Tensor], list[Tensor], float]] = {}
    for mean, rho, ratio in stretched:
        is_small = mean.numel() < SMALL and mean.is_contiguous() and rho.is_contiguous()
        key = (mean.device, mean.dtype, rho.dtype, ratio) if is_small else mean
        means, rhos, _ = groups.setdefault(key, ([], [], ratio))
        means.append(mean)
        rhos.append(rho)
    return list(groups.values())


class OptimizerSet:
    """The optimizers of a model by name, mostly one, with their learning rates and schedules.

    Args:
        groups: the parameter groups of each optimizer.
        options: ``lr``, ``schedule`` and ``optimizer`` are for all optimizers, or mappings from names; optimizers that
            a mapping does not name get the default.
        default: builds the optimizer if the options have none.
    """

    def __init__(
        self, groups: Mapping[str, list[dict[str, Any]]], options: FitOptions, default: Callable[..., Optimizer]
    ) -> None:
        schedules = _by_name("schedule", options.schedule, FitOptions.schedule, groups)
        rates = _by_name("lr", options.lr, FitOptions.lr, groups)
        builders = _by_name("optimizer", options.optimizer, None, groups)
        for schedule in schedules.values():
            learning_rate_factor(schedule, 0.0)  # raises if the schedule does not return a number
        self._schedules: Mapping[str, Schedule] = schedules
        self.by_name = {name: _build(builders[name] or default, groups[name], rates[name]) for name in groups}
        self._rates = {name: [group["lr"] for group in o.param_groups] for name, o in self.by_name.items()}

    @property
    def are_constant(self) -> bool:
        """Whether no learning rate depends on the length of the training."""
        return all(schedule == "constant" for schedule in self._schedules.values())

    def set_rate(self, name: str, progress: float) -> None:
        """Set the learning rates of one optimizer after ``progress`` of the training, from 0 to 1."""
        factor = learning_rate_factor(self._schedules[name], progress)
        for group, rate in zip(self.by_name[name].param_groups, self._rates[name], strict=True):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate * factor)
            else:
                group["lr"] = rate * factor

    def hold_rates_in_tensors(self, device: torch.device) -> None:
        """Keep every learning rate in a tensor that is written in place, and count steps on the device."""
        for group in [group for optimizer in self.by_name.values() for group in optimizer.param_groups]:
            dtype = torch.float64 if device.type == "cpu" else torch.float32  # what the fused kernels read
            group["lr"] = torch.tensor(float(group["lr"]), dtype=dtype, device=device)
            if "capturable" in group:
                group["capturable"] = device.type == "cuda"
            elif device.type == "cuda" and _can_fuse(group["params"]):  # SGD's other kernels read the rate on the host
                group["fused"], group["foreach"] = True, False

    def rates(self) -> dict[str, float]:
        """The current learning rates: ``lr``, or ``generator_lr`` and so on if there are several optimizers."""
        now = {name: float(o.param_groups[0]["lr"]) for name, o in self.by_name.items()}
        return {"lr": next(iter(now.values()))} if len(now) == 1 else {f"{name}_lr": rate for name, rate in now.items()}


def weight_decay_groups(model: nn.Module, networks: Iterable[nn.Module], weight_decay: float) -> list[dict[str, Any]]:
    """Parameter groups with weight decay on the networks' weights only.

    Without weight decay all parameters are one group, which a fused optimizer updates in one kernel.

    Args:
        model: holds the networks and further parameters, such as scales.
        networks: its networks.
        weight_decay: for the parameters of the networks.

    Returns:
        One or two groups.
    """
    learned = [p for p in model.parameters() if p.requires_grad]
    if weight_decay == 0.0:
        return [{"params": learned, "weight_decay": 0.0}]
    known = {id(p) for net in networks for p in net.parameters()}
    weights, others = [p for p in learned if id(p) in known], [p for p in learned if id(p) not in known]
    groups: list[dict[str, Any]] = [{"params": weights, "weight_decay": weight_decay}]
    return [*groups, {"params": others, "weight_decay": 0.0}] if others else groups


def _by_name(option: str, given: Any, default: Any, names: Iterable[str]) -> dict[str, Any]:
    """``given`` for every optimizer, or what a mapping holds for each."""
    names = list(names)
    if not isinstance(given, Mapping):
        return dict.fromkeys(names, given)
    for name in given:
        if name not in names:
            raise unknown_name(f"optimizer in {option}", name, names)
    return {name: given.get(name, default) for name in names}


def _build(builder: Any, groups: list[dict[str, Any]], lr: float) -> Optimizer:
    optimizer = builder(groups, lr=lr)
    if not isinstance(optimizer, Optimizer):
        raise InputError(f"optimizer must return a torch.optim.Optimizer, got {type(optimizer).__name__}")
    return optimizer


def _can_fuse(parameters: Iterable[Tensor]) -> bool:
    return all(p.device.type in ("cpu", "cuda") and p.is_floating_point() for p in parameters)
