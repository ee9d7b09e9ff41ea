"""Who moves while a model trains: the optimizer, the learning rate and the schedule of each player."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from credo.errors import InputError, unknown_name
from credo.training.options import Options, Schedule, factor

if TYPE_CHECKING:
    from credo.training.contract import Trainable


class Players:
    """The players of ``model``, mostly one, with their optimizers by name.

    ``lr``, ``schedule`` and ``optimizer`` among the options are for all players, or a mapping from the names of some;
    the others have the default.
    """

    def __init__(self, model: Trainable, options: Options) -> None:
        groups = model.players(options.weight_decay)
        schedules = _by_player("schedule", options.schedule, "cosine", groups)
        rates = _by_player("lr", options.lr, Options.lr, groups)
        builders = _by_player("optimizer", options.optimizer, None, groups)
        for schedule in schedules.values():
            factor(schedule, 0.0)  # one that gives no number is said now
        self._schedules: Mapping[str, Schedule] = schedules
        self.optimizers = {
            player: _build(builders[player] or model.default_optimizer, groups[player], rates[player])
            for player in groups
        }
        self._rates = {player: [group["lr"] for group in o.param_groups] for player, o in self.optimizers.items()}

    @property
    def are_constant(self) -> bool:
        """Whether no learning rate depends on how long the training is to be."""
        return all(schedule == "constant" for schedule in self._schedules.values())

    def set_rate(self, player: str, progress: float) -> None:
        """The learning rates of ``player`` when ``progress`` of the training, from 0 to 1, is done."""
        share = factor(self._schedules[player], progress)
        for group, rate in zip(self.optimizers[player].param_groups, self._rates[player], strict=True):
            group["lr"] = rate * share

    def rates(self) -> dict[str, float]:
        """The learning rates now, as in the history: ``lr``, or ``generator_lr`` and so on for several players."""
        now = {player: float(o.param_groups[0]["lr"]) for player, o in self.optimizers.items()}
        return {"lr": next(iter(now.values()))} if len(now) == 1 else {f"{p}_lr": rate for p, rate in now.items()}


def _by_player(option: str, given: Any, default: Any, players: Iterable[str]) -> dict[str, Any]:
    """``given`` for every player, or what a mapping holds for each."""
    players = list(players)
    if not isinstance(given, Mapping):
        return dict.fromkeys(players, given)
    for player in given:
        if player not in players:
            raise unknown_name(f"player of {option}", player, players)
    return {player: given.get(player, default) for player in players}


def _build(builder: Any, groups: list[dict[str, Any]], lr: float) -> Optimizer:
    optimizer = builder(groups, lr=lr)
    if not isinstance(optimizer, Optimizer):
        raise InputError(f"optimizer must give a torch.optim.Optimizer, got {type(optimizer).__name__}")
    return optimizer
