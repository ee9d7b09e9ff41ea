"""What the tests of several models share: data, equality of states, and a run that is broken off and resumed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from credo.generative.base import GenerativeModel
from credo.seeding import seeded
from credo.training.generative import GenerativeTask


def bars(n: int = 40, seed: int = 0) -> Tensor:
    """Gray images ``[n, 1, 8, 8]`` of a bright bar somewhere."""
    with seeded(seed, torch.device("cpu")):
        place = torch.randint(8, (n,))
        return 0.1 + 0.8 * F.one_hot(place, 8).float()[:, None, :, None].expand(-1, 1, 8, 8)


def equal(a: nn.Module, b: nn.Module) -> bool:
    """Whether two modules are in the same state, to the bit."""
    first, second = a.state_dict(), b.state_dict()
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def check_resumed_run(make: Callable[[], GenerativeModel], x: Tensor, folder: Path, **options: Any) -> None:
    """A run that is broken off in its third epoch of four, and resumed, ends as one that is not."""
    options = {"epochs": 4, "batch_size": 16, "seed": 3, **options}
    whole = make().fit(x, **options)

    def stop(entry: dict[str, float]) -> None:
        if entry["epoch"] == 3:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GenerativeTask, "on_epoch_end", lambda _, metrics: stop(metrics))
        with pytest.raises(KeyboardInterrupt):
            make().fit(x, checkpoint=folder, **options)
    resumed = make().fit(x, checkpoint=folder, resume=True, **options)
    assert equal(whole, resumed)
    assert _untimed(whole) == _untimed(resumed)


def _untimed(model: GenerativeModel) -> list[dict[str, float]]:
    return [{name: value for name, value in entry.items() if name != "seconds"} for entry in model.history]
