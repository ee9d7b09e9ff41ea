"""The options of ``fit``, checked before anything is changed."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias, TypedDict, TypeVar, cast

import torch
from torch.optim import Optimizer

from credo._arguments import check_integer, check_non_negative, check_option, check_positive
from credo.errors import InputError, unknown_name
from credo.seeding import check_seed

_SCHEDULES = ("cosine", "constant")
_CONVERTING = ("16-true", "bf16-true", "64-true", "64")

Schedule: TypeAlias = str | Callable[[float], float]
Builder: TypeAlias = Callable[..., Optimizer]
EpochCallback: TypeAlias = Callable[[Any, dict[str, float]], None]
Fit = TypeVar("Fit", bound=Callable[..., Any])


@dataclasses.dataclass(frozen=True)
class FitOptions:
    """The options of ``fit``.

    Attributes:
        epochs: number of passes over the data; ``None``: 20, and for BayesByBackprop, IVON and VariationalLastLayer at
            least as many as make 2,000 steps.
        batch_size: rows per minibatch, over all processes; a DataLoader keeps its own.
        accumulate: minibatches per step. Their gradients are added up before the optimizer takes it, so that a step has
            the gradient of ``accumulate · batch_size`` rows and the memory of ``batch_size``. Batch norm and noise are
            those of each minibatch.
        lr: learning rate at the start of the schedule; for a model with several optimizers, such as those of a
            generator and a discriminator, a mapping from their names may set each.
        optimizer: ``callable(parameter_groups, lr=...)`` that returns an optimizer; ``None``: Adam, for methods that
            learn scales or drop rates :class:`credo.training.NaturalAdam`; IVON has its own. Or a mapping from the
            names of optimizers.
        schedule: ``"cosine"`` (decay to 0), ``"constant"``, or ``callable(progress)`` that returns a factor on the
            learning rate for progress from 0 to 1. Or a mapping from the names of optimizers.
        weight_decay: weight decay of the network's weights; never applied to the scales of a posterior.
        gradient_clip: maximum norm of the gradient; ``None``: no clipping.
        validation: held-out data, evaluated after every epoch.
        monitor: the validation metric that early stopping watches, such as ``"elbo"`` or ``"log_likelihood"``;
            ``None``: the model's first.
        patience: stop after this many epochs without a better metric, and restore the best weights; ``None``: never.
        on_epoch_end: ``callable(model, entry)``, called after every epoch, in every process, with the model in
            evaluation mode and the epoch's entry of ``history``, to which it may add numbers. The random numbers that
            it draws do not change the training.
        logger: where the entries of ``history`` go as well, after every epoch: an object, or a list of objects, with a
            method ``log_metrics(metrics, step)``, such as ``lightning_fabric.loggers.CSVLogger`` and
            ``TensorBoardLogger``, or Lightning's ``WandbLogger`` and ``MLFlowLogger``. Only the first process writes.
        precision: Fabric's name of a precision: ``"32-true"``, ``"bf16-mixed"`` or ``"16-mixed"``. Where the step is
            captured, mixed precision is timed and dropped, with a notice, if float32 is faster for the network.
        compile: whether to compile the loss with ``torch.compile``.
        capture: whether to capture the training step on a GPU as a CUDA graph and replay it, for minibatches of one
            shape. ``"auto"``: where it is possible; ``True``: also say why it is not; ``False``: never. A replay runs
            no Python, so a network or hook that does something else at every call needs ``False``.
        checkpoint: folder for checkpoints; each replaces the one before as a whole.
        checkpoint_every: epochs between checkpoints.
        resume: whether to continue from ``checkpoint`` if it exists.
        device: where to train; ``None``: where the network is.
        devices: number of processes per machine.
        num_nodes: number of machines. The same script is started on each, by ``torchrun`` or with the environment
            variables ``MASTER_ADDR``, ``MASTER_PORT`` and ``NODE_RANK``, and ``strategy="ddp"``.
        strategy: Fabric's name of a strategy: ``"ddp"`` from a script, ``"ddp_notebook"`` from a notebook,
            ``"ddp_find_unused_parameters_true"`` for a network with unused layers.
        seed: makes the run reproducible; torch's random state is left as it was.
        n_data: number of training data, if a loader has no length, or yields whole minibatches of different sizes.
        progress: whether to show a progress bar; ``None``: only in a terminal.
    """

    epochs: int | None = None
    batch_size: int = 128
    accumulate: int = 1
    lr: float | Mapping[str, float] = 1e-3
    optimizer: Builder | Mapping[str, Builder] | None = None
    schedule: Schedule | Mapping[str, Schedule] = "cosine"
    weight_decay: float = 0.0
    gradient_clip: float | None = None
    validation: Any = None
    monitor: str | None = None
    patience: int | None = None
    on_epoch_end: EpochCallback | None = None
    logger: Any = None
    precision: Any = "32-true"
    compile: bool = False
    capture: bool | str = "auto"
    checkpoint: str | Path | None = None
    checkpoint_every: int = 1
    resume: bool = False
    device: str | torch.device | None = None
    devices: int = 1
    num_nodes: int = 1
    strategy: str = "auto"
    seed: int | None = None
    n_data: int | None = None
    progress: bool | None = None

    def __post_init__(self) -> None:
        for name in ("batch_size", "accumulate", "checkpoint_every", "devices", "num_nodes"):
            check_integer(getattr(self, name), name, minimum=1)
        for name, minimum in (("epochs", 0), ("patience", 1), ("n_data", 1)):
            if getattr(self, name) is not None:
                check_integer(getattr(self, name), name, minimum)
        for lr in _each(self.lr):
            check_positive(lr, "lr")
        check_non_negative(self.weight_decay, "weight_decay")
        if self.gradient_clip is not None:
            check_positive(self.gradient_clip, "gradient_clip")
        for optimizer in _each(self.optimizer):
            if optimizer is not None and not callable(optimizer):
                given = f"a ready {type(optimizer).__name__}" if isinstance(optimizer, Optimizer) else repr(optimizer)
                raise InputError(
                    f"optimizer must be a callable such as torch.optim.SGD, got {given}: fit calls it "
                    "with the parameters and lr"
                )
        for schedule in _each(self.schedule):
            if not callable(schedule):
                check_option(schedule, "schedule", _SCHEDULES)
        if self.on_epoch_end is not None and not callable(self.on_epoch_end):
            raise InputError(f"on_epoch_end must be a callable(model, entry), got {self.on_epoch_end!r}")
        for logger in as_loggers(self.logger):
            if isinstance(logger, type) or not callable(getattr(logger, "log_metrics", None)):
                raise InputError(
                    "logger must have a method log_metrics(metrics, step), as those of lightning_fabric.loggers have, "
                    f"got {logger!r}"
                )
        if not isinstance(self.capture, bool) and self.capture != "auto":
            raise InputError(f"capture must be True, False or 'auto', got {self.capture!r}")
        if self.patience is not None and self.validation is None:
            raise InputError("patience needs held-out data to watch: pass validation=...")
        if self.resume and self.checkpoint is None:
            raise InputError("resume=True needs to know from where: pass checkpoint='folder'")
        if str(self.precision) in _CONVERTING:
            instead = (
                "use net.double() and data in float64"
                if "64" in str(self.precision)
                else "use 'bf16-mixed' or '16-mixed', which compute in 16 bits and keep the weights as they are"
            )
            raise InputError(f"precision={self.precision!r} would convert the network; {instead}")
        if self.seed is not None:
            check_seed(self.seed)

    @classmethod
    def from_keywords(cls, keywords: Mapping[str, Any] | FitKeywords) -> FitOptions:
        """Build from keyword arguments; the error for a misspelled one suggests the nearest.

        Args:
            keywords: options by name.

        Returns:
            The options, checked.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        for key in keywords:
            if key not in names:
                raise unknown_name("option of fit", key, names)
        return cls(**keywords)


class FitKeywords(TypedDict, total=False):
    """The keyword arguments of ``fit``, for type checkers and editors; :class:`FitOptions` explains them."""

    epochs: int | None
    batch_size: int
    accumulate: int
    lr: float | Mapping[str, float]
    optimizer: Builder | Mapping[str, Builder] | None
    schedule: Schedule | Mapping[str, Schedule]
    weight_decay: float
    gradient_clip: float | None
    validation: Any
    monitor: str | None
    patience: int | None
    on_epoch_end: EpochCallback | None
    logger: Any
    precision: Any
    compile: bool
    capture: bool | str
    checkpoint: str | Path | None
    checkpoint_every: int
    resume: bool
    device: str | torch.device | None
    devices: int
    num_nodes: int
    strategy: str
    seed: int | None
    n_data: int | None
    progress: bool | None


def as_fit(fit: Fit) -> Fit:
    """``fit`` outside torch's inference mode, with an error for ``fit(x, y)`` that says how data are passed."""
    parameters = inspect.signature(fit).parameters.values()
    positional = sum(p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for p in parameters)

    @functools.wraps(fit)
    def run(*arguments: Any, **options: Any) -> Any:
        if len(arguments) > positional:
            raise InputError(
                "fit takes the data as one argument, fit((x, y)), and its options by name, such as seed=0; "
                f"got {len(arguments) - 1} arguments"
            )
        with torch.inference_mode(False):
            return fit(*arguments, **options)

    return cast(Fit, run)


def with_fit_options(fit: Fit) -> Fit:
    """Show every option in the signature and the docstring of an :func:`as_fit` that takes ``**options``."""
    signature = inspect.signature(fit)
    fit = as_fit(fit)
    own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    options = [
        inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)
        for field in dataclasses.fields(FitOptions)
    ]
    fit.__signature__ = signature.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
    described = (FitOptions.__doc__ or "").partition("Attributes:\n")[2].rstrip()
    before, marker, after = (fit.__doc__ or "").partition("            **options:")
    if marker:
        rest = after.partition("\n")[2]
        indented = "\n".join(f"    {line}" if line.strip() else line for line in described.splitlines())
        fit.__doc__ = f"{before}{indented}\n{rest}"
    return fit


def as_loggers(logger: Any) -> list[Any]:
    """The loggers of the option ``logger``: none, one, or a list of them."""
    if logger is None:
        return []
    return list(logger) if isinstance(logger, list | tuple) else [logger]


def learning_rate_factor(schedule: Schedule, progress: float) -> float:
    """The factor on the learning rate after ``progress`` of the training, from 0 to 1."""
    if schedule == "constant":
        return 1.0
    if not callable(schedule):
        return 0.5 * (1.0 + math.cos(math.pi * progress))
    given = schedule(progress)
    try:
        found = float(given)
    except (TypeError, ValueError):
        found = math.nan
    if not 0.0 <= found < math.inf:
        raise InputError(f"schedule must return a number of at least 0, got {given!r} at progress {progress:g}")
    return found


def _each(option: Any) -> list[Any]:
    """An option for all optimizers as a list of one, or the options of each."""
    return list(option.values()) if isinstance(option, Mapping) else [option]
