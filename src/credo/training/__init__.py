"""The one training loop, on Lightning Fabric, and the tasks that adapt models to it."""

from credo.training.loop import train
from credo.training.optimizers import NaturalAdam
from credo.training.options import FitOptions

__all__ = ["FitOptions", "NaturalAdam", "train"]
