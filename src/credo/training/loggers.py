"""What ``fit(logger=...)`` writes to an experiment tracker: the options, and the metrics of every epoch.

A logger is anything with ``log_metrics(metrics, step)``. Of those of Lightning Fabric and of Lightning, the methods
``log_hyperparams``, ``save`` and ``finalize`` are called as well.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from numbers import Real
from typing import Any

from credo.training.options import FitOptions, as_loggers

_PLAIN = (bool, int, float, str)


class RunLog:
    """Writes one run to loggers; does nothing without any.

    Args:
        logger: as ``fit`` was given it.
        enabled: whether this process writes.
    """

    def __init__(self, logger: Any, enabled: bool) -> None:
        self._loggers = as_loggers(logger) if enabled else []

    def start(self, options: FitOptions, **further: Any) -> None:
        """Write the options that are plain values, and ``further`` ones, where a logger accepts parameters."""
        given = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)} | further
        parameters = {name: value for name, value in given.items() if isinstance(value, _PLAIN)}
        for logger in self._loggers:
            if hasattr(logger, "log_hyperparams"):
                try:
                    logger.log_hyperparams(parameters)
                except NotImplementedError:  # Fabric's CSVLogger has the method, but only raises
                    continue

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        """Write the metrics of an epoch that ended with training step ``step``."""
        numbers = {name: float(value) for name, value in metrics.items() if isinstance(value, Real)}
        for logger in self._loggers:
            logger.log_metrics(dict(numbers), step=step)
            if hasattr(logger, "save"):
                logger.save()

    def finish(self, status: str) -> None:
        """Tell the loggers that the run ended, with ``"success"`` or ``"failed"``."""
        for logger in self._loggers:
            if hasattr(logger, "finalize"):
                logger.finalize(status)


class NumberedLogger:
    """Loggers for one of several models that are trained in turn: ``nll`` of model k becomes ``nll/k``.

    Args:
        logger: as ``fit`` was given it.
        number: k.
    """

    def __init__(self, logger: Any, number: int) -> None:
        self._run, self._number = RunLog(logger, enabled=True), number

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Write the metrics of training step ``step``."""
        self._run.log({f"{name}/{self._number}": value for name, value in metrics.items()}, step)
