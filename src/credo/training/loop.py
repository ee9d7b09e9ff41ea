"""The one training loop, on Lightning Fabric: device, precision and processes are not our code.

Every epoch draws its random numbers from (seed, epoch, rank), so that a run resumed from a checkpoint ends in
exactly the weights of one that was never interrupted.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from credo import data as data_
from credo._files import recover
from credo.errors import DivergenceError, InputError, unknown_name
from credo.seeding import check_seed, derive, reseed, seeded
from credo.training import checkpoints
from credo.training.means import Means
from credo.training.options import Options
from credo.training.players import Players
from credo.training.processes import launch, make_fabric
from credo.training.progress import Progress
from credo.training.watch import Watch

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from credo.training.contract import Trainable

_STEPS_BETWEEN_CHECKS = 50
_ORDER, _NOISE, _SET_UP, _VALIDATION = range(4)
"""The random streams of a run; the order of the data is drawn in :mod:`credo.data`."""


def train(model: Trainable, data: Any, options: Options) -> None:
    """Train ``model`` on ``data`` in place; its ``history`` gets one entry an epoch.

    Whatever goes wrong, the weights are those at the end of the last good epoch.
    """
    model.check_device_count(options.devices)
    launch(make_fabric(options, model.device), _train_process, model, data, options)


def _train_process(fabric: Fabric, model: Trainable, data: Any, options: Options) -> None:
    _Run(fabric, model, data, options).run()


class _Run:
    """One training run in one process."""

    def __init__(self, fabric: Fabric, model: Trainable, data: Any, options: Options) -> None:
        self.fabric, self.model, self.options = fabric, model, options
        self.monitor = _monitor(model, options)
        self.seed = int(fabric.broadcast(check_seed(options.seed)))
        self.loader = self._make_loader(data)
        self.batches = _length(self.loader)
        self.epochs = model.default_epochs(self.batches) if options.epochs is None else options.epochs
        self.order = data_.EpochOrder(self.loader)
        self.n_data = data_.count_data(self.loader, options.n_data)
        self.validation = None if options.validation is None else model.as_dataset(options.validation)
        self.best_score, self.best_epoch = -math.inf, -1
        self.best: dict[str, Tensor] = {}
        self.step = 0
        self.epoch_start: dict[str, Tensor] = {}
        self.good: dict[str, Tensor] = {}
        self.good_epochs = 0
        self.last_batch: data_.Batch | None = None

    def run(self) -> None:
        model = self.model
        undo = model.undo_set_up()
        device, flags = model.device, [(module, module.training) for module in model.modules()]
        try:
            folder = checkpoints.folder_for(self.options.checkpoint, self.fabric.global_rank)
            with folder, torch.enable_grad(), seeded(self.seed, self.fabric.device):
                try:
                    self._set_up()
                    start = self._resume() if self.options.resume else 0
                except BaseException:
                    undo()
                    model.to(device)
                    for module, flag in flags:
                        module.training = flag
                    raise
                self._train(start)
        finally:
            self.order.restore()

    def _train(self, start: int) -> None:
        model = self.model
        self.good, self.good_epochs = _snapshot(model), start
        try:
            with Progress(self.options.progress, self.epochs, start, self.fabric.global_rank == 0) as progress:
                for epoch in range(start, self.epochs):
                    if self._is_stale(epoch):
                        break
                    self._epoch(epoch, progress)
                    self._checkpoint(epoch + 1)
            if self.best:
                model.load_state_dict(self.best)
            if self.last_batch is not None:
                model.after_training(self.last_batch)
        except DivergenceError:
            model.load_state_dict(self.good)
            model.history = model.history[: self.good_epochs]
            raise
        except BaseException:
            if self.epoch_start:
                model.load_state_dict(self.epoch_start)
            raise
        finally:
            model.last_terms = None
            model.eval()

    def _set_up(self) -> None:
        model, options, device = self.model, self.options, self.fabric.device
        reseed(derive(self.seed, _SET_UP), device)
        model.check_device_count(self.fabric.world_size)
        model.to(device)
        _train_mode(model)
        batch = self._first_batch()
        if self.n_data < batch.y.shape[0]:
            raise InputError(
                f"the data set has a length of {self.n_data}, but its first minibatch has {batch.y.shape[0]} rows; say "
                "how many data there are, with fit(..., n_data=N)"
            )
        model.n_data = self.n_data
        model.resolve(batch)
        self._check_data(batch)
        model.prepare(batch.x)
        model.before_training(None if self.batches is None else self.epochs * self.batches)
        self.players = Players(model, options)
        self.optimizers = self.players.optimizers
        loss: Any = torch.compile(model) if options.compile else model
        self.loss, *wrapped = self.fabric.setup(loss, *self.optimizers.values())
        self.fabric_optimizers = dict(zip(self.optimizers, wrapped, strict=True))
        if not options.resume:
            model.history = []

    def _epoch(self, epoch: int, progress: Progress) -> None:
        model, fabric = self.model, self.fabric
        begin = time.perf_counter()
        self.epoch_start = _snapshot(model)
        reseed(derive(self.seed, _NOISE, epoch, fabric.global_rank), fabric.device)
        self.order.set(self.seed, epoch)
        watch = Watch(fabric, watch_data=not isinstance(self.loader.dataset, data_.TensorRows))
        means = Means(fabric)
        for i, raw in enumerate(self.loader, 1):
            batch, rows = self._share(data_.move(model.as_batch(raw), fabric.device), i)
            progressed = (epoch + (i - 1) / (self.batches or math.inf)) / self.epochs
            self.step += 1
            for player in model.turn(i):
                self.players.set_rate(player, progressed)
                loss = self._loss(batch, i, player)
                watch.see(self.step, loss, batch)
                if i == 1 or watch.is_free or i % _STEPS_BETWEEN_CHECKS == 0:
                    self._stop_if_diverged(watch, epoch)
                if i == 1:  # only now is it known that the last epoch ended well
                    self.good, self.good_epochs = self.epoch_start, epoch
                self._move(player, loss)
                means.add(model.reported(), rows)
            progress.step(self.batches)
        if not means.rows:
            raise InputError("the loader yielded no batches; give it data, or drop_last=False")
        self.last_batch = batch
        model.prepare(batch.x)
        if epoch + 1 == self.epochs or self._is_checkpoint_due(epoch + 1):
            watch.see(self.step, model.probe(batch), batch)
        self._stop_if_diverged(watch, epoch)
        self._synchronize_buffers()
        self.epoch_start = {}
        entry = {"epoch": epoch + 1, **model.entry(means.over_processes()), **self.players.rates()}
        if self.validation is not None:
            entry.update(self._validate())
            self._keep_best(entry)
        entry["seconds"] = time.perf_counter() - begin
        model.history.append(entry)
        progress.epoch(epoch + 1, model.headline(entry))
        model.after_epoch(entry)

    def _move(self, player: str, loss: Tensor) -> None:
        """One step of the player's optimizer down its loss."""
        optimizer, options = self.fabric_optimizers[player], self.options
        optimizer.zero_grad()
        self.fabric.backward(loss)
        if options.gradient_clip is not None:
            self.fabric.clip_gradients(
                self.loss, self.optimizers[player], max_norm=options.gradient_clip, error_if_nonfinite=False
            )
        optimizer.step()
        self.model.after_step(player)

    def _loss(self, batch: data_.Batch, i: int, player: str) -> Tensor:
        """The loss of minibatch ``i``; a batch that does not fit is named by its step."""
        options = self.model.loss_options(player, i, self.batches)
        if batch.sample_weight is not None:
            options["sample_weight"] = batch.sample_weight
        if self.options.compile:
            self.model.prepare(batch.x)
        try:
            loss: Tensor = self.loss(batch.x, batch.y, self.n_data, **options)
        except Exception as error:
            self._explain(batch, error)
            raise
        return loss

    def _explain(self, batch: data_.Batch, error: Exception) -> None:
        """Raise a sentence where it is the minibatch that makes the network or the likelihood fail."""
        if isinstance(error, ValueError) and "more than 1 value per channel" in str(error):
            raise InputError(
                f"the minibatch at step {self.step} is too small for batch norm ({error}); choose another batch_size, "
                "or a DataLoader with drop_last=True"
            ) from error
        if batch.y.device.type != "cpu":
            return  # a failed assertion on a GPU leaves nothing to look with
        try:
            self.model.explain(batch)
        except InputError as reason:
            raise InputError(f"the minibatch at step {self.step} does not fit: {reason}") from error

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
        self.model.eval()
        seed = derive(self.seed, _VALIDATION)
        assert self.validation is not None
        scores = self.model.held_out_scores(self.validation, seed)
        _train_mode(self.model)
        return self.fabric.broadcast(scores)

    def _keep_best(self, entry: dict[str, float]) -> None:
        score = self.model.monitors[self.monitor] * entry[f"validation_{self.monitor}"]
        if self.options.patience is not None and score > self.best_score:
            self.best_score, self.best_epoch = score, int(entry["epoch"]) - 1
            self.best = _snapshot(self.model)

    def _is_stale(self, epoch: int) -> bool:
        """Whether epoch ``epoch`` would come after too many without a better score."""
        return self.options.patience is not None and epoch - 1 - self.best_epoch >= self.options.patience

    def _stop_if_diverged(self, watch: Watch, epoch: int) -> None:
        bad_data, bad_loss = watch.first_bad_steps()
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
            for buffer in self.model.buffers():
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
        checkpoints.write(self.options.checkpoint, self.model, self.optimizers, state, self.best)

    def _resume(self) -> int:
        assert self.options.checkpoint is not None
        if self.fabric.global_rank == 0:
            recover(self.options.checkpoint)
        self.fabric.barrier()
        folder = recover(self.options.checkpoint)
        if not folder.exists():
            self.model.history = []
            return 0
        checkpoint = checkpoints.read(folder, self.model, self.optimizers)
        state = checkpoint.state
        if state.epochs != self.epochs and not self.players.are_constant:
            raise InputError(
                f"the checkpoint is from a run of {state.epochs} epochs, but epochs={self.epochs}; "
                "the learning-rate schedule depends on it, so use the same number, or go on with "
                "credo.load(checkpoint).fit(...)"
            )
        if self.options.seed is not None and self.options.seed != state.seed:
            raise InputError(f"the checkpoint was made with seed {state.seed}, not {self.options.seed}")
        if self.n_data != state.n_data:
            raise InputError(f"the checkpoint was made with {state.n_data} data, not {self.n_data}; pass the same data")
        checkpoint.apply(self.model, self.optimizers)
        self.fabric.strategy.precision.load_state_dict(state.scaler)
        self.seed, self.step, self.best = state.seed, state.step, checkpoint.best
        self.best_score = -math.inf if state.best_score is None else state.best_score
        self.best_epoch = state.best_epoch
        return state.epochs_done

    def _make_loader(self, data: Any) -> DataLoader[Any]:
        fabric = self.fabric
        loader = data_.make_loader(
            self.model.as_dataset(data),
            self.options.batch_size,
            self.seed,
            fabric.global_rank,
            fabric.world_size,
            self.model.dtype,
        )
        if isinstance(data, DataLoader) and fabric.world_size > 1:
            return fabric.setup_dataloaders(loader)  # type: ignore[return-value]
        return loader

    def _first_batch(self) -> data_.Batch:
        try:
            for raw in self.loader:
                return data_.move(self.model.as_batch(raw), self.fabric.device)
        except TypeError as error:
            if "default_collate" not in str(error):
                raise
            raise InputError(
                f"the data set must yield tensors, arrays or numbers, images as tensors: {error}"
            ) from error
        raise InputError("the loader yielded no batches; give it data, or drop_last=False")

    def _check_data(self, batch: data_.Batch) -> None:
        self.model.check_data(batch, self.loader.dataset)
        if self.validation is None:
            return
        try:
            for held_out in data_.batches(
                self.validation, self.options.batch_size, self.fabric.device, self.model.dtype, self.model.as_batch
            ):
                self.model.check_data(held_out, self.validation)
                return
        except InputError as error:
            raise InputError(f"validation: {error}") from error
        raise InputError("validation: the loader yielded no batches")


def _monitor(model: Trainable, options: Options) -> str:
    """What early stopping watches: what was asked for, or the first that the model offers."""
    if options.monitor is None:
        return next(iter(model.monitors), "")
    if options.monitor not in model.monitors:
        raise unknown_name("monitor", options.monitor, list(model.monitors))
    return options.monitor


def _snapshot(model: Trainable) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def _train_mode(model: Trainable) -> None:
    """Train mode, except for frozen parts that were put in evaluation mode: their running statistics stay as well."""
    resting = [m for m in model.modules() if not m.training and _is_frozen(m)]
    model.train()
    for module in resting:
        module.eval()


def _is_frozen(module: torch.nn.Module) -> bool:
    parameters = list(module.parameters())
    return bool(parameters) and not any(parameter.requires_grad for parameter in parameters)


def _length(loader: DataLoader[Any]) -> int | None:
    try:
        return len(loader)
    except TypeError:
        return None
