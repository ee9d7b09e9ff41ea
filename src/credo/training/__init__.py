"""The one training loop, on Lightning Fabric: device, precision and processes are not our code."""

from credo.training.loop import train
from credo.training.optimizers import NaturalAdam
from credo.training.options import Options

__all__ = ["NaturalAdam", "Options", "train"]
