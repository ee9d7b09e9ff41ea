"""The diversity of samples while a generator is trained."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from credo.generative.evaluation.modes import nearest_distance

COLLAPSED = 0.2
"""A warning is given if the diversity is below this ..."""
PATIENCE = 300
"""... for this many steps of the generator: an untrained one is not a collapsed one."""
_COMPARED = 256


class SampleDiversity:
    """Compares the distances among samples with those among data.

    Args:
        data: ``[N, ...]``, of which a few hundred evenly spaced rows are used.
    """

    def __init__(self, data: Tensor) -> None:
        rows = torch.linspace(0, len(data) - 1, min(len(data), _COMPARED)).long()
        self.count = len(rows)
        self._distance = nearest_distance(data[rows.to(data.device)]) if self.count > 1 else 0.0
        self._diverse_at: int | None = None
        self._warned = False

    def diversity(self, samples: Tensor) -> float:
        """Nearest-neighbor distance among ``count`` samples over that among data; 1 where data are all alike."""
        return nearest_distance(samples) / self._distance if self._distance else 1.0

    def warn_if_collapsed(self, diversity: float, step: int) -> None:
        """Warn, once, if the diversity has been low for many steps of the generator, of which there were ``step``."""
        if diversity >= COLLAPSED or self._diverse_at is None:
            self._diverse_at = step
        if not self._warned and step - self._diverse_at >= PATIENCE:
            self._warned = True
            warnings.warn(
                f"samples lie {diversity:.2g} times as far from each other as data do: the generator may have "
                "collapsed to a few of them; try a lower learning rate, spectral_normalization=True, or WGAN",
                UserWarning,
                stacklevel=2,
            )
