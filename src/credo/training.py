"""The one training loop, on Lightning Fabric: device, precision and processes are not our code.

Every epoch draws its random numbers from (seed, epoch, rank), so that a run resumed from a checkpoint ends in
exactly the weights of one that was never interrupted.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightning_fabric import Fabric
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from credo import checkpoints
from credo import data as data_
from credo._progress import Progress
from credo.errors import DivergenceError, InputError, unknown_name
from credo.seeding import check_seed, derive, seeded

if TYPE_CHECKING:
    from credo.methods.base import NetworkMethod

_SCHEDULES = ("cosine", "constant")
_MONITORS = ("elbo", "log_likelihood")
_STEPS_BETWEEN_CHECKS_ON_GPU = 50
_VALIDATION_SAMPLES = 10


@dataclasses.dataclass(frozen=True)
class Options:
    """How to train.

    Attributes:
        epochs: passes over the data.
        batch_size: rows in a minibatch, over all processes; a DataLoader keeps its own.
        lr: learning rate at the start.
        optimizer: ``callable(parameter_groups, lr=…)`` giving an optimiser; Adam by default.
        schedule: ``"cosine"`` (to 0), ``"constant"``, or ``callable(progress)`` giving a factor on the learning
            rate for progress from 0 to 1.
        weight_decay: decoupled from the posterior: it reaches the network's weights, never the scales.
        gradient_clip: largest norm of the whole gradient, or ``None``.
        validation: held-out data, evaluated after every epoch.
        monitor: what early stopping watches, ``"elbo"`` or ``"log_likelihood"``, per held-out datum.
        patience: stop after this many epochs without a better score and return to the best; ``None``: never.
        precision: Fabric's name of a precision, such as ``"bf16-mixed"``.
        compile: compile the loss with ``torch.compile``.
        checkpoint: a folder to write after every ``checkpoint_every`` epochs, whole or not at all.
        checkpoint_every: epochs between checkpoints.
        resume: continue from ``checkpoint`` if it exists.
        device: where to train; by default where the network is.
        devices: number of processes.
        strategy: Fabric's name of a strategy, such as ``"ddp"``.
        seed: makes the run reproducible; torch's random state is left as it was.
        n_data: number of data in the training set, where a loader cannot tell.
        progress: show a bar; ``None``: where there is a terminal.
    """

    epochs: int = 20
    batch_size: int = 128
    lr: float = 1e-3
    optimizer: Callable[..., Optimizer] | None = None
    schedule: str | Callable[[float], float] = "cosine"
    weight_decay: float = 0.0
    gradient_clip: float | None = None
    validation: Any = None
    monitor: str = "elbo"
    patience: int | None = None
    precision: Any = "32-true"
    compile: bool = False
    checkpoint: str | Path | None = None
    checkpoint_every: int = 1
    resume: bool = False
    device: str | torch.device | None = None
    devices: int = 1
    strategy: str = "auto"
    seed: int | None = None
    n_data: int | None = None
    progress: bool | None = None

    def __post_init__(self) -> None:
        for name, least in (("epochs", 0), ("batch_size", 1), ("checkpoint_every", 1), ("devices", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InputError(f"{name} must be a whole number, {least} or more, got {value!r}")
        if not (isinstance(self.lr, float | int) and self.lr > 0 and math.isfinite(self.lr)):
            raise InputError(f"lr must be positive and finite, got {self.lr!r}")
        if not callable(self.schedule) and self.schedule not in _SCHEDULES:
            raise unknown_name("schedule", self.schedule, _SCHEDULES)
        if self.monitor not in _MONITORS:
            raise unknown_name("monitor", self.monitor, _MONITORS)
        if self.patience is not None and self.validation is None:
            raise InputError("patience needs held-out data to watch: pass validation=(X, y)")
        if self.resume and self.checkpoint is None:
            raise InputError("resume=True needs to know from where: pass checkpoint='folder'")
        check_seed(self.seed)

    @classmethod
    def from_keywords(cls, keywords: dict[str, Any]) -> Options:
        """Options from keyword arguments; a misspelt one gets the nearest names."""
        names = [field.name for field in dataclasses.fields(cls)]
        for key in keywords:
            if key not in names:
                raise unknown_name("option of fit", key, names)
        return cls(**keywords)

    def rate(self, progress: float) -> float:
        """The learning rate when ``progress`` of the training is done."""
        if callable(self.schedule):
            return self.lr * float(self.schedule(progress))
        return self.lr if self.schedule == "constant" else self.lr * 0.5 * (1.0 + math.cos(math.pi * progress))


def train(model: NetworkMethod, data: Any, options: Options) -> None:
    """Train ``model`` on ``data`` in place; its ``history`` gets one entry an epoch."""
    device = torch.device(options.device) if options.device is not None else model.device
    if device.type == "cuda" and options.devices == 1:
        fabric = Fabric(accelerator="cuda", devices=[device.index or 0], precision=options.precision)
    else:
        fabric = Fabric(
            accelerator=device.type, devices=options.devices, strategy=options.strategy, precision=options.precision
        )
    if options.devices == 1:
        _Run(fabric, model, data, options).run()
        return
    result = fabric.launch(_train_process, model, data, options)
    if fabric.strategy.launcher is not None and fabric.strategy.launcher.is_interactive_compatible:
        tensors, model.history, model.n_data = result
        model.resolve_likelihood(_first_target(data, device, model.dtype))
        model.load_state_dict(tensors)


def _train_process(fabric: Fabric, model: NetworkMethod, data: Any, options: Options) -> Any:
    """What each process runs; the result travels back where processes were spawned from a function."""
    _Run(fabric, model, data, options).run()
    return {k: v.cpu() for k, v in model.state_dict().items()}, model.history, model.n_data


def _first_target(data: Any, device: torch.device, dtype: torch.dtype) -> Tensor:
    return next(iter(data_.batches(data, 1, device, dtype))).y


class _Run:
    """One training run in one process."""

    def __init__(self, fabric: Fabric, model: NetworkMethod, data: Any, options: Options) -> None:
        self.fabric, self.model, self.options = fabric, model, options
        self.seed = int(fabric.broadcast(check_seed(options.seed)))
        self.loader = self._loader(data)
        self.n_data = data_.count_data(self.loader, options.n_data)
        self.validation_rows = 0
        self.best_score, self.best_epoch = -math.inf, -1
        self.best: dict[str, Tensor] = {}
        self.step = 0

    def run(self) -> None:
        with seeded(self.seed, self.fabric.device):
            self._set_up()
            start = self._resume() if self.options.resume else 0
            progress = Progress(self.options, start, enabled=self.fabric.global_rank == 0)
            self.model.train()
            with progress:
                for epoch in range(start, self.options.epochs):
                    self._epoch(epoch, progress)
                    self._checkpoint(epoch)
                    if self._is_stale(epoch):
                        break
            if self.best:
                self.model.load_state_dict(self.best)
            self.model.eval()

    def _set_up(self) -> None:
        model, options = self.model, self.options
        torch.manual_seed(derive(self.seed, 2))
        model.to(self.fabric.device)
        batch = data_.move(data_.as_batch(next(iter(self.loader))), self.fabric.device)
        model.n_data = self.n_data
        model.resolve_likelihood(batch.y)
        self._check_batch(batch)
        model.prepare(batch.x)
        groups = model.parameter_groups(options.weight_decay)
        build = options.optimizer or default_optimizer
        self.optimizer = build(groups, lr=options.lr)
        loss = torch.compile(model) if options.compile else model
        self.loss, self.fabric_optimizer = self.fabric.setup(loss, self.optimizer)

    def _check_batch(self, batch: data_.Batch) -> None:
        """One forward pass with the mean weights, so that misfits of shape and dtype are said before training."""
        output = self.model.predictor(0, None).outputs(batch.x)[0]
        self.model.likelihood.check(output, batch.y)
        self.model.likelihood.log_prob(output, batch.y)

    def _epoch(self, epoch: int, progress: Progress) -> None:
        model, fabric = self.model, self.fabric
        begin = time.perf_counter()
        good = {name: value.detach().clone() for name, value in model.state_dict().items()}
        torch.manual_seed(derive(self.seed, 1, epoch, fabric.global_rank))
        self._set_epoch(epoch)
        batches = _length(self.loader)
        totals = torch.zeros(3, dtype=torch.float64, device=fabric.device)
        first_bad = torch.full((), -1, dtype=torch.int64, device=fabric.device)
        interval = _STEPS_BETWEEN_CHECKS_ON_GPU if fabric.device.type == "cuda" or fabric.world_size > 1 else 1
        for i, raw in enumerate(self.loader, 1):
            batch = data_.move(data_.as_batch(raw), fabric.device)
            done = epoch + ((i - 1) / batches if batches else 0.0)
            for group in self.optimizer.param_groups:
                group["lr"] = self.options.rate(done / self.options.epochs)
            self.fabric_optimizer.zero_grad()
            loss = self.loss(batch.x, batch.y, self.n_data, **self._loss_options(batch, i, batches))
            self.step += 1
            first_bad = torch.where((first_bad < 0) & ~torch.isfinite(loss.detach()), self.step, first_bad)
            if i % interval == 0:
                self._stop_if_diverged(first_bad, epoch, good, batch)
            fabric.backward(loss)
            if self.options.gradient_clip is not None:
                fabric.clip_gradients(self.loss, self.optimizer, max_norm=self.options.gradient_clip)
            self.fabric_optimizer.step()
            terms = model.last_terms
            assert terms is not None
            rows = batch.y.shape[0]
            totals += torch.stack([terms.nll * rows, terms.kl * rows, torch.full_like(terms.nll, rows)])
            progress.step(batches)
        self._stop_if_diverged(first_bad, epoch, good, None)
        nll, kl, rows = fabric.all_reduce(totals, reduce_op="sum").tolist()
        if rows == 0:
            raise InputError("the loader yielded no batches; give it data, or drop_last=False")
        entry = {"epoch": epoch + 1, "nll": nll / rows, "kl": kl / rows, "lr": self.optimizer.param_groups[0]["lr"]}
        entry["elbo"] = -self.n_data * entry["nll"] - entry["kl"]
        if self.options.validation is not None:
            entry.update(self._validate())
            self._keep_best(entry)
        entry["seconds"] = time.perf_counter() - begin
        model.history.append(entry)
        progress.epoch(entry)

    def _loss_options(self, batch: data_.Batch, i: int, batches: int | None) -> dict[str, Any]:
        options: dict[str, Any] = {}
        if batch.sample_weight is not None:
            options["sample_weight"] = batch.sample_weight
        weighting = getattr(self.model, "kl_weighting", "uniform")
        if weighting != "uniform":
            if batches is None:
                raise InputError("this KL weighting needs to know the number of batches, but the loader has no length")
            options["kl_weight"] = torch.full((), self.model.kl_weight((i, batches)), device=self.fabric.device)
        return options

    def _validate(self) -> dict[str, float]:
        """Mean log predictive density and ELBO per held-out datum."""
        model = self.model
        model.eval()
        seed = derive(self.seed, 3)
        predictor = model.predictor(_VALIDATION_SAMPLES, seed)
        log_predictive, expected, rows = 0.0, 0.0, 0
        with torch.no_grad():
            for x, y, _ in data_.batches(self.options.validation, 4096, self.fabric.device, model.dtype):
                outputs = predictor.outputs(x)
                by_draw = torch.stack([model.likelihood.log_prob(output, y) for output in outputs]).double()
                log_predictive += float((by_draw.logsumexp(0) - math.log(len(by_draw))).sum())
                expected += float(by_draw.mean(0).sum())
                rows += len(y)
            kl = float(model.kl())
        model.train()
        return {
            "validation_log_likelihood": log_predictive / rows,
            "validation_elbo": expected / rows - kl / self.n_data,
        }

    def _keep_best(self, entry: dict[str, float]) -> None:
        score = entry[f"validation_{self.options.monitor}"]
        if self.options.patience is not None and score > self.best_score:
            self.best_score, self.best_epoch = score, int(entry["epoch"]) - 1
            self.best = {name: value.detach().clone() for name, value in self.model.state_dict().items()}

    def _is_stale(self, epoch: int) -> bool:
        return self.options.patience is not None and epoch - self.best_epoch >= self.options.patience

    def _stop_if_diverged(
        self, first_bad: Tensor, epoch: int, good: dict[str, Tensor], batch: data_.Batch | None
    ) -> None:
        flag = self.fabric.all_reduce(first_bad, reduce_op="max") if self.fabric.world_size > 1 else first_bad
        step = int(flag)
        if step < 0:
            return
        self.model.load_state_dict(good)
        self.model.last_terms = None
        leaves = [] if batch is None else [batch.y, *(t for t in _tensors(batch.x))]
        if any(t.is_floating_point() and not bool(torch.isfinite(t).all()) for t in leaves):
            raise InputError(f"the minibatch at step {step} holds NaN or infinite values; remove or impute them")
        raise DivergenceError(
            f"training diverged: the loss was no longer finite at step {step} (epoch {epoch + 1}); the model is back at "
            f"the end of epoch {epoch}. Try a smaller lr, gradient_clip=1.0, or standardised inputs and targets"
        )

    def _checkpoint(self, epoch: int) -> None:
        folder, every = self.options.checkpoint, self.options.checkpoint_every
        last = epoch + 1 == self.options.epochs
        if folder is None or not ((epoch + 1) % every == 0 or last) or self.fabric.global_rank != 0:
            return
        state = {
            "epochs_done": epoch + 1,
            "epochs": self.options.epochs,
            "seed": self.seed,
            "step": self.step,
            "best_score": self.best_score if math.isfinite(self.best_score) else None,
            "best_epoch": self.best_epoch,
            "history": self.model.history,
        }
        checkpoints.write(folder, self.model, self.optimizer, state, self.best)

    def _resume(self) -> int:
        assert self.options.checkpoint is not None
        if not Path(self.options.checkpoint).exists():
            return 0
        state, self.best = checkpoints.read(self.options.checkpoint, self.model, self.optimizer)
        if state["epochs"] != self.options.epochs:
            raise InputError(
                f"the checkpoint is from a run of {state['epochs']} epochs, but epochs={self.options.epochs}; "
                "the learning-rate schedule depends on it, so use the same number"
            )
        if self.options.seed is not None and self.options.seed != state["seed"]:
            raise InputError(f"the checkpoint was made with seed {state['seed']}, not {self.options.seed}")
        self.seed, self.step = state["seed"], state["step"]
        self.best_score = -math.inf if state["best_score"] is None else state["best_score"]
        self.best_epoch = state["best_epoch"]
        self.model.history = state["history"]
        sampler = self.loader.batch_sampler
        if isinstance(sampler, data_.GlobalBatches):
            sampler.seed = self.seed
        return int(state["epochs_done"])

    def _loader(self, data: Any) -> DataLoader[Any]:
        fabric, model = self.fabric, self.model
        loader = data_.make_loader(
            data, self.options.batch_size, self.seed, fabric.global_rank, fabric.world_size, fabric.device, model.dtype
        )
        if isinstance(data, DataLoader) and fabric.world_size > 1:
            return fabric.setup_dataloaders(loader)  # type: ignore[return-value]
        return loader

    def _set_epoch(self, epoch: int) -> None:
        sampler = getattr(self.loader, "batch_sampler", None)
        if isinstance(sampler, data_.GlobalBatches):
            sampler.set_epoch(epoch)
        elif hasattr(self.loader, "_num_iter_calls"):
            self.loader._num_iter_calls = epoch


def default_optimizer(groups: Iterable[dict[str, Any]], lr: float) -> Optimizer:
    """Adam, fused where the parameters' device has a fused kernel."""
    groups = list(groups)
    fused = all(p.device.type in ("cpu", "cuda") for group in groups for p in group["params"])
    return torch.optim.Adam(groups, lr=lr, fused=fused)


def _length(loader: DataLoader[Any]) -> int | None:
    try:
        return len(loader)
    except TypeError:
        return None


def _tensors(x: Any) -> list[Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(x) if isinstance(leaf, Tensor)]
