"""What a server allows, and the error with which it refuses a request."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from credo._arguments import check_integer, check_positive
from credo._text import counted
from credo.errors import CredoError, InputError

TOKEN_VARIABLE = "CREDO_SERVE_TOKEN"
"""The environment variable with the token; a token on the command line could be read by every user of the machine."""

MIN_TOKEN_LENGTH = 16

LEVELS = (0.01, 0.999)
"""The smallest and the largest level of an interval that a request may ask for."""

QUANTILES = (0.001, 0.999)
"""The smallest and the largest quantile that a request may ask for."""

MAX_QUANTILES = 99
MAX_KEPT = 1000


class Refusal(CredoError):
    """A request that is not answered.

    Args:
        status: the status code of HTTP.
        sentence: what is wrong, and what to do.

    Attributes:
        status: as above.
    """

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


@dataclass(frozen=True)
class ServerOptions:
    """Limits and access of a server.

    Args:
        max_body: the maximum number of bytes in the body of a request; the bodies held at once are at most eight times
            as large.
        max_rows: the maximum number of rows of a request.
        timeout: the maximum number of seconds to receive a body, and then to answer it.
        batch_rows: the maximum number of rows that are predicted together, of one request or of several.
        max_waiting_rows: the maximum number of rows that wait for a prediction, of all requests together.
        token: what clients must send as ``Authorization: Bearer TOKEN``, at least 16 characters; ``None``: nothing.
        cors_origins: the origins, such as ``https://example.org``, whose pages may call the server; default: none.
        allowed_hosts: the values of the header ``Host`` that are accepted; empty: all.
        watch: how often, in seconds, to look for a new model in the folder; ``None``: never.
        device: the device to predict on; ``None``: the CPU.

    Raises:
        InputError: if a value is out of range, or the token is too short.

    Example:
        >>> from credo.serving import ServerOptions
        >>> ServerOptions(max_rows=1000).max_rows
        1000
    """

    max_body: int = 16 * 2**20
    max_rows: int = 100_000
    timeout: float = 30.0
    batch_rows: int = 1024
    max_waiting_rows: int = 400_000
    token: str | None = field(default=None, repr=False)
    cors_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    watch: float | None = None
    device: str | None = None

    def __post_init__(self) -> None:
        for name in ("max_body", "max_rows", "batch_rows", "max_waiting_rows"):
            check_integer(getattr(self, name), name, minimum=1)
        check_positive(self.timeout, "timeout")
        if self.watch is not None:
            check_positive(self.watch, "watch")
        if self.token is not None and not _is_token(self.token):
            raise InputError(
                f"the token ({TOKEN_VARIABLE}) must have at least {MIN_TOKEN_LENGTH} characters, all of them letters, "
                "digits or signs of ASCII without spaces: python -c 'import secrets; print(secrets.token_urlsafe())'"
            )


def token_from_environment() -> str | None:
    """The token of the environment variable :data:`TOKEN_VARIABLE`; ``None`` if it is not set or empty."""
    return os.environ.get(TOKEN_VARIABLE) or None


def _is_token(text: str) -> bool:
    return len(text) >= MIN_TOKEN_LENGTH and all("!" <= character <= "~" for character in text)


def too_many_rows(options: ServerOptions) -> Refusal:
    """The refusal of a request with too many rows."""
    return Refusal(413, f"a request may have {counted(options.max_rows, 'row')} at most: send the table in parts")
