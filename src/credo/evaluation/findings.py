"""What predictions find out about a network, for those that follow."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from credo.evaluation.captured import CapturedPredictions
from credo.evaluation.choice import Sharing


@dataclass
class Findings:
    """What was found out about a network, by workload, in earlier predictions.

    Attributes:
        ways: the fastest way to evaluate draws.
        sharing: what draws share.
        captured: predictions that are replayed.
    """

    ways: dict[Hashable, str] = field(default_factory=dict)
    sharing: dict[Hashable, Sharing] = field(default_factory=dict)
    captured: CapturedPredictions = field(default_factory=CapturedPredictions)
