"""The one training loop, on Lightning Fabric, which handles device, precision and processes.

Every epoch draws its random numbers from (seed, epoch, rank), so that a run resumed from a checkpoint ends in
exactly the weights of one that was never interrupted.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

from credo import data as data_
from credo._files import recover
from credo._notices import notify
from credo._tensors import changing_tensors
from credo.errors import DivergenceError, InputError, unknown_name
from credo.seeding import check_seed, derive, reseed, seeded
from credo.training import checkpoints
from credo.training.accumulation import gather, pieces
from credo.training.capture import make_step
from credo.training.loggers import RunLog
from credo.training.monitoring import ProgressBar
from credo.training.options import FitKeywords, FitOptions
from credo.training.processes import launch, make_fabric
from credo.training.step import StepInput
from credo.training.task import Task

if TYPE_CHECKING:
    from lightning_fabric import Fabric

_STEPS_BETWEEN_CHECKS = 50
_ORDER, _NOISE, _SET_UP, _VALIDATION = range(4)
"""The random streams of a run; the order of the data is drawn in :mod:`credo.data`."""


def train(task: Task[Any], data: Any, keywords: FitKeywords) -> None:
    """Train the model of ``task`` in place; its history gets one entry per epoch.

    After an error before the first step the model is unchanged; after one during training it has the weights of the
    last good epoch.

    Args:
        task: the model and how it is trained.
        data: as ``fit`` accepts them.
        keywords: the options that ``fit`` was called with.
    """
    task.check_keywords(keywords)  # first, as options that do not apply need not be valid
    options = FitOptions.from_keywords(keywords)
    task.check_device_count(options.devices * options.num_nodes)
    launch(make_fabric(options, task.model.device), _train_process, task, data, options)


def _train_process(fabric: Fabric, task: Task[Any], data: Any, options: FitOptions) -> None:
    _Run(fabric, task, data, options).run()


class _Run:
    """One training run in one process."""

    def __init__(self, fabric: Fabric, task: Task[Any], data: Any, options: FitOptions) -> None:
        self.fabric, self.task, self.options = fabric, task, options
        self.model, self.module = task.model, task.module
        self.monitor = _monitor(task, options)
        self.seed = int(fabric.broadcast(check_seed(options.seed)))
        self.log = RunLog(options.logger, fabric.global_rank == 0)
        self.loader, self.gathered = self._make_loader(data)
        self.batches = _length(self.loader, self.gathered)
        self.epochs = task.default_epochs(self.batches) if options.epochs is None else options.epochs
        self.order = data_.EpochOrder(self.loader)
        self.n_data = data_.count_data(self.loader, options.n_data)
        self.has_minibatches = isinstance(data, DataLoader) and _has_minibatches(data)
        self.validation = None if options.validation is None else task.make_dataset(options.validation)
        self.best_score, self.best_epoch = -math.inf, -1
        self.best: dict[str, Tensor] = {}
        self.step = 0
        self.start = 0
        self.before_training: dict[str, Tensor] = {}
        self.epoch_start: dict[str, Tensor] = {}
        self.good: dict[str, Tensor] = {}
        self.good_epochs = 0

    def run(self) -> None:
        """Set up, train, and leave random states, flags and data order as they were."""
        device, flags = self.model.device, [(module, module.training) for module in self.module.modules()]
        try:
            folder = checkpoints.folder_for(self.options.checkpoint, self.fabric.global_rank)
            with folder, torch.enable_grad(), seeded(self.seed, self.fabric.device):
                try:
                    self._set_up()
                    if self.options.resume:
                        self.start = self._resume()
                except BaseException:
                    self.task.undo_setup()
                    self.module.to(device)
                    for module, flag in flags:
                        module.training = flag
                    raise
                self._train()
        finally:
            self.order.restore()

    def _train(self) -> None:
        if self.start:
            self.before_training = _snapshot(self.module)
        self.good, self.good_epochs = self.before_training, self.start
        status = "failed"
        try:
            self.log.start(self.options, method=type(self.model).__name__, epochs=self.epochs, seed=self.seed)
            with ProgressBar(self.options.progress, self.epochs, self.start, self.fabric.global_rank == 0) as progress:
                for epoch in range(self.start, self.epochs):
                    if self._is_stale(epoch):
                        break
                    self._epoch(epoch, progress)
                    self._checkpoint(epoch + 1)
            if self.best:
                _restore(self.module, self.best)
            if self.epochs:  # a posterior of a network that was trained elsewhere
                self.model._training_path = self.take_step.path
            self.task.on_train_end()
            status = "success"
        except DivergenceError:
            _restore(self.module, self.good)
            self.model.history = self.model.history[: self.good_epochs]
            raise
        except BaseException:
            if self.epoch_start:
                _restore(self.module, self.epoch_start)
            raise
        finally:
            self.module.eval()
            self.log.finish(status)

    def _set_up(self) -> None:
        task, options, device = self.task, self.options, self.fabric.device
        reseed(derive(self.seed, _SET_UP), device)
        task.check_device_count(self.fabric.world_size)
        self.module.to(device)
        _train_mode(self.module)
        batch = self._first_batch()
        items, rows = self.n_data, batch.y.shape[0]
        if items < rows:
            raise InputError(
                f"the data set has a length of {items}, but its first minibatch has {rows} rows; pass the number of "
                "data: fit(..., n_data=N)"
            )
        if options.n_data is None and rows > 1 and self.has_minibatches:
            self.n_data = items * rows
            notify(f"the loader yields minibatches: {items} of {rows} rows are {self.n_data} data; pass n_data if not")
        self.model.n_data = self.n_data
        task.setup(batch)
        self._check_data(batch)
        task.before_step(batch.x)
        self.before_training = _snapshot(self.module)
        task.on_train_start(None if self.batches is None else self.epochs * self.batches)
        self.optimizers = task.configure_optimizers(options)
        in_memory = isinstance(self.loader.dataset, data_.TensorRows)
        self.take_step = make_step(self.fabric, task, self.optimizers, options, self.n_data, check_data=not in_memory)
        self.record = self.take_step.record
        if not options.resume:
            self.model.history = []

    def _epoch(self, epoch: int, progress: ProgressBar) -> None:
        task, fabric = self.task, self.fabric
        begin = time.perf_counter()
        self.epoch_start = self.before_training if epoch == self.start else _snapshot(self.module)
        reseed(derive(self.seed, _NOISE, epoch, fabric.global_rank), fabric.device)
        self.order.set(self.seed, epoch)
        self.record.reset()
        i = part_rows = 0
        for i, batch in enumerate(gather(map(task.make_batch, self.loader), self.gathered), 1):
            part_rows = max(part_rows, -(-len(batch.y) // self.options.accumulate))
            batch, rows = self._share(data_.move(batch, fabric.device), i)
            fraction = (epoch + (i - 1) / (self.batches or math.inf)) / self.epochs
            self.step += 1
            self.record.begin(self.step)
            for name in task.active_optimizers(i):
                self.optimizers.set_rate(name, fraction)
                arguments = task.loss_arguments(name, i, self.batches)
                self.take_step(name, StepInput(batch, arguments, rows), self.step)
                if i == 1 or self.record.is_immediate or i % _STEPS_BETWEEN_CHECKS == 0:
                    self._stop_if_diverged(epoch)
                if i == 1:  # only now is it known that the last epoch ended well
                    self.good, self.good_epochs = self.epoch_start, epoch
            task.on_batch_end(self.step)
            progress.step(self.batches)
        if i == 0:
            raise InputError("the loader yielded no batches; give it data, or drop_last=False")
        last = pieces(batch, part_rows)[-1]  # a network that carries a state has seen no more rows at once
        task.before_step(last.x)
        if epoch + 1 == self.epochs or self._is_checkpoint_due(epoch + 1):
            self.record.add_loss(self.step, task.finite_check(last), last)
        self._stop_if_diverged(epoch)
        self._synchronize_buffers()
        self.epoch_start = {}
        metrics = {"epoch": epoch + 1, **task.epoch_metrics(self.record.means()), **self.optimizers.rates()}
        if self.validation is not None:
            metrics.update(self._validate())
            self._keep_best(metrics)
        metrics["seconds"] = time.perf_counter() - begin
        self.model.history.append(metrics)
        self._call_back(metrics)
        self.log.log(metrics, self.step)
        progress.epoch(epoch + 1, task.progress_text(metrics))
        task.on_epoch_end(metrics)

    def _share(self, batch: data_.Batch, i: int) -> tuple[data_.Batch, float]:
        """The batch with rows weighted for this process's share, and the number of rows it stands for."""
        sampler = self.loader.batch_sampler
        if self.fabric.world_size == 1 or not isinstance(sampler, data_.GlobalBatches):
            return batch, batch.y.shape[0]
        weight = sampler.row_weights(i - 1)
        if weight is not None:
            own = 1.0 if batch.sample_weight is None else batch.sample_weight
            batch = batch._replace(sample_weight=weight.to(batch.y.device) * own)
        return batch, sampler.global_rows(i - 1) / self.fabric.world_size

    def _validate(self) -> dict[str, float]:
        self.module.eval()
        assert self.validation is not None
        scores = self.task.validation_step(self.validation, derive(self.seed, _VALIDATION))
        _train_mode(self.module)
        return self.fabric.broadcast(scores)

    def _call_back(self, metrics: dict[str, float]) -> None:
        if self.options.on_epoch_end is not None:
            self.module.eval()
            self.options.on_epoch_end(self.model, metrics)
            _train_mode(self.module)

    def _keep_best(self, metrics: dict[str, float]) -> None:
        score = self.task.monitors[self.monitor] * metrics[f"validation_{self.monitor}"]
        if self.options.patience is not None and score > self.best_score:
            self.best_score, self.best_epoch = score, int(metrics["epoch"]) - 1
            self.best = _snapshot(self.module)

    def _is_stale(self, epoch: int) -> bool:
        """Whether ``patience`` epochs before this one brought no better score."""
        return self.options.patience is not None and epoch - 1 - self.best_epoch >= self.options.patience

    def _stop_if_diverged(self, epoch: int) -> None:
        bad_data, bad_loss = self.record.first_bad_steps()
        if bad_loss is None:
            return
        if bad_data is not None and bad_data <= bad_loss:
            raise InputError(f"the minibatch at step {bad_data} holds NaN or infinite values; remove or impute them")
        where = f"the end of epoch {self.good_epochs}" if self.good_epochs else "its start"
        raise DivergenceError(
            f"training diverged: the loss was no longer finite at step {bad_loss} (epoch {epoch + 1}); the model is "
            f"back at {where}. Try a smaller lr, gradient_clip=1.0, or standardized inputs and targets"
        )

    def _synchronize_buffers(self) -> None:
        if self.fabric.world_size > 1:
            for buffer in self.module.buffers():
                if buffer.dtype != torch.bool:  # masks of pruned weights never differ
                    torch.distributed.broadcast(buffer, 0)

    def _is_checkpoint_due(self, done: int) -> bool:
        options = self.options
        return options.checkpoint is not None and (done % options.checkpoint_every == 0 or done == self.epochs)

    def _checkpoint(self, done: int) -> None:
        if not self._is_checkpoint_due(done) or self.fabric.global_rank != 0:
            return
        assert self.options.checkpoint is not None
        state = checkpoints.State(
            epochs_done=done,
            epochs=self.epochs,
            seed=self.seed,
            n_data=self.n_data,
            step=self.step,
            best_epoch=self.best_epoch,
            best_score=self.best_score,
            history=self.model.history,
            scaler=self.fabric.strategy.precision.state_dict(),
        )
        checkpoints.write(self.options.checkpoint, self.module, self.optimizers.by_name, state, self.best)

    def _resume(self) -> int:
        assert self.options.checkpoint is not None
        if self.fabric.global_rank == 0:
            recover(self.options.checkpoint)
        self.fabric.barrier()
        folder = recover(self.options.checkpoint)
        if not folder.exists():
            self.model.history = []
            return 0
        checkpoint = checkpoints.read(folder, self.module, self.optimizers.by_name)
        state = checkpoint.state
        if state.epochs != self.epochs and not self.optimizers.are_constant:
            raise InputError(
                f"the checkpoint is from a run of {state.epochs} epochs, but epochs={self.epochs}; "
                "the learning-rate schedule depends on it, so use the same number, or go on with "
                "credo.load(checkpoint).fit(...)"
            )
        if self.options.seed is not None and self.options.seed != state.seed:
            raise InputError(f"the checkpoint was made with seed {state.seed}, not {self.options.seed}")
        if self.n_data != state.n_data:
            raise InputError(f"the checkpoint was made with {state.n_data} data, not {self.n_data}; pass the same data")
        checkpoint.apply(self.module, self.optimizers.by_name)
        self.fabric.strategy.precision.load_state_dict(state.scaler)
        self.seed, self.step, self.best = state.seed, state.step, checkpoint.best
        self.best_score = -math.inf if state.best_score is None else state.best_score
        self.best_epoch = state.best_epoch
        return state.epochs_done

    def _make_loader(self, data: Any) -> tuple[DataLoader[Any], int]:
        """The loader, and the number of its minibatches that make a step; a loader of ours has them in one."""
        fabric, options = self.fabric, self.options
        dataset = self.task.make_dataset(data)
        gathered = options.accumulate if isinstance(dataset, DataLoader) else 1
        loader = data_.make_loader(
            dataset,
            options.batch_size * options.accumulate,
            self.seed,
            fabric.global_rank,
            fabric.world_size,
            self.model.dtype,
            fabric.device,
        )
        if isinstance(data, DataLoader) and fabric.world_size > 1:
            return fabric.setup_dataloaders(loader), gathered  # type: ignore[return-value]
        return loader, gathered

    def _first_batch(self) -> data_.Batch:
        try:
            for raw in self.loader:
                return data_.move(self.task.make_batch(raw), self.fabric.device)
        except TypeError as error:
            if "default_collate" not in str(error):
                raise
            raise InputError(
                f"the data set must yield tensors, arrays or numbers, images as tensors: {error}"
            ) from error
        raise InputError("the loader yielded no batches; give it data, or drop_last=False")

    def _check_data(self, batch: data_.Batch) -> None:
        self.task.check_data(batch, self.loader.dataset)
        if self.validation is None:
            return
        try:
            for held_out in data_.batches(
                self.validation, self.options.batch_size, self.fabric.device, self.model.dtype, self.task.make_batch
            ):
                self.task.check_data(held_out, self.validation)
                return
        except InputError as error:
            raise InputError(f"validation: {error}") from error
        raise InputError("validation: the loader yielded no batches")


def _monitor(task: Task[Any], options: FitOptions) -> str:
    """The metric that early stopping watches: the option, or the first that the task offers."""
    if options.monitor is None:
        return next(iter(task.monitors), "")
    if options.monitor not in task.monitors:
        raise unknown_name("monitor", options.monitor, list(task.monitors))
    return options.monitor


def _snapshot(module: torch.nn.Module) -> dict[str, Tensor]:
    """Copies of what training can change; frozen parameters, which may be most of a network, are not copied."""
    return {name: value.clone() for name, value in changing_tensors(module).items()}


def _restore(module: torch.nn.Module, snapshot: dict[str, Tensor]) -> None:
    module.load_state_dict(snapshot, strict=False)  # it has no frozen parameters


def _train_mode(module: torch.nn.Module) -> None:
    """Train mode, except for frozen parts in evaluation mode, whose running statistics must not change."""
    resting = [part for part in module.modules() if not part.training and _is_frozen(part)]
    module.train()
    for part in resting:
        part.eval()


def _is_frozen(module: torch.nn.Module) -> bool:
    parameters = list(module.parameters())
    return bool(parameters) and not any(parameter.requires_grad for parameter in parameters)


def _length(loader: DataLoader[Any], gathered: int) -> int | None:
    try:
        return -(-len(loader) // gathered)
    except TypeError:
        return None


def _has_minibatches(loader: DataLoader[Any]) -> bool:
    """Whether the items of the loader's data set are minibatches, and nothing says how many data they hold."""
    in_order = isinstance(loader.sampler, SequentialSampler | RandomSampler)
    return loader.batch_sampler is None and in_order and not hasattr(loader.dataset, "n_data")
