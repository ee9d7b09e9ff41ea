"""Notices on the ``credo`` logger: decisions that credo takes on the user's behalf."""

from __future__ import annotations

import logging

logger = logging.getLogger("credo")


class _LazyStderr(logging.StreamHandler):  # type: ignore[type-arg]
    """A handler that writes to whatever ``sys.stderr`` is when the notice is given."""

    def emit(self, record: logging.LogRecord) -> None:
        import sys

        self.stream = sys.stderr
        super().emit(record)


def notify(message: str) -> None:
    """Log ``message`` at level INFO; silence it with ``logging.getLogger("credo").setLevel("WARNING")``."""
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    if not logger.handlers and not logging.getLogger().handlers:
        handler = _LazyStderr()
        handler.setFormatter(logging.Formatter("credo: %(message)s"))
        logger.addHandler(handler)
    logger.info(message)
