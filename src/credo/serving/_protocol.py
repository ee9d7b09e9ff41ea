"""uvicorn's HTTP protocol with limits on time: clients that send a header or receive an answer slowly are cut off."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS = 20.0
"""The maximum number of seconds from a connection, or from the end of an answer, to the end of the next header."""

ANSWER_SECONDS = 300.0
"""The maximum number of seconds in which a client takes nothing of an answer that waits for it."""

_SENTENCE = b'{"error": "the header of the request did not arrive in time"}'
_ANSWER = b"HTTP/1.1 408 Request Timeout\r\ncontent-type: application/json\r\nconnection: close\r\n"
_ANSWER += b"content-length: %d\r\n\r\n%s" % (len(_SENTENCE), _SENTENCE)


class GuardedProtocol(H11Protocol):
    """A connection. The body of a request has a limit of its own, in the routes."""

    _timer: asyncio.TimerHandle | None = None
    _answer_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Start to wait for a header."""
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.family != getattr(socket, "AF_UNIX", None):
            # asyncio does so only if the listening socket was made with the number of TCP. Without it, the body of an
            # answer waits until the client has acknowledged the header, 40 ms later.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop to wait."""
        self._stop()
        self._stop_answer()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Stop to wait once a request has begun."""
        super().handle_events()
        if self._is_busy():
            self._stop()

    def on_response_complete(self) -> None:
        """Wait for the next header."""
        self._wait()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Wait for the client to take the answer."""
        super().pause_writing()
        self._stop_answer()
        self._answer_timer = self.loop.call_later(ANSWER_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop to wait for the client."""
        super().resume_writing()
        self._stop_answer()

    def _stop_answer(self) -> None:
        if self._answer_timer is not None:
            self._answer_timer.cancel()
            self._answer_timer = None

    def _is_busy(self) -> bool:
        cycle: Any = self.cycle
        return cycle is not None and not cycle.response_complete

    def _wait(self) -> None:
        self._stop()
        self._timer = self.loop.call_later(HEADER_SECONDS, self._cut_off)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _cut_off(self) -> None:
        if not self.transport.is_closing() and not self._is_busy():
            self.transport.write(_ANSWER)
            self.transport.close()
