"""Connections of uvicorn: clients that are slow with the head of a request, or half-closed.

Here too: streams to clients of HTTP/1.0, which know no chunks.

A client may close its sending half once its request is sent, as ``nc -N`` does, and still read. The
system tells the server the same as of a client that has gone. So the server goes on, and sends an
interim response (102, which clients of HTTP/1.1 skip) now and then until the answer begins: if the
client has gone, its system refuses the second one, and the request is cancelled. Not here: starting
uvicorn (running.py); hypercorn, which ends the requests of half-closed clients.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["connection_class"]

INTERIM: Final = b"HTTP/1.1 102 Processing\r\n\r\n"
WAITS: Final = (0.05, 0.5, 2.0)  # seconds between interim responses; the last one again and again
LATE: Final = (
    b"HTTP/1.1 408 Request Timeout\r\ncontent-type: text/plain\r\ncontent-length: 40\r\n"
    b"connection: close\r\n\r\nthe head of the request came too slowly\n"
)


def connection_class(seconds: float) -> type[asyncio.Protocol]:
    """The class of connections.

    Args:
        seconds: in which the head of a request must be complete.
    """
    base: Any
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as base
    except ModuleNotFoundError:
        from uvicorn.protocols.http.h11_impl import H11Protocol as base

    class Connection(base):  # type: ignore[misc]  # one of two classes
        """A connection."""

        _head: asyncio.TimerHandle | None = None
        _probe: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:
            """Begin to wait for a head."""
            super().connection_made(transport)
            self._head = _later(seconds, self._end)

        def data_received(self, data: bytes) -> None:
            """Read a part of a request."""
            if self._head is None and not self._is_busy():
                self._head = _later(seconds, self._end)
            super().data_received(data)
            if self._is_busy():
                self._stop()
                if self.cycle.scope["http_version"] == "1.0" and not self.cycle.response_started:
                    # uvicorn would send chunks, which HTTP/1.0 does not have.
                    self.cycle.chunked_encoding = False
                    self.cycle.expected_content_length = _AnyLength()

        def handle_websocket_upgrade(self, *given: object) -> None:
            """Hand the connection over: its head is complete, and the rest is not HTTP."""
            self._stop()
            super().handle_websocket_upgrade(*given)

        def connection_lost(self, exc: Exception | None) -> None:
            """Forget the timers."""
            self._stop()
            super().connection_lost(exc)

        def eof_received(self) -> bool:
            """Go on if the request is complete: the client may still read."""
            if not self._is_busy() or self.cycle.more_body:
                return False
            self.cycle.keep_alive = False
            if self.cycle.scope["http_version"] == "1.1":
                self._look(0)
            return True

        def _is_busy(self) -> bool:
            """Whether the head of a request has come whose answer is not complete."""
            return self.cycle is not None and not self.cycle.response_complete

        def _look(self, i: int) -> None:
            """Find out whether somebody reads, until the answer begins."""
            if not self._is_busy() or self.cycle.response_started or self.transport.is_closing():
                return
            self.transport.write(INTERIM)
            wait = WAITS[min(i, len(WAITS) - 1)]
            self._probe = _later(wait, lambda: self._look(i + 1))

        def _end(self) -> None:
            self._head = None
            if not self.transport.is_closing():
                self.transport.write(LATE)
                self.transport.close()

        def _stop(self) -> None:
            for timer in (self._head, self._probe):
                if timer is not None:
                    timer.cancel()
            self._head = self._probe = None

    return Connection


class _AnyLength(int):
    """The length of a body that ends with the connection: any number of bytes fits."""

    def __lt__(self, other: int) -> bool:
        return False

    def __sub__(self, other: int) -> _AnyLength:
        return self

    def __ne__(self, other: object) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


def _later(seconds: float, call: Callable[[], object]) -> asyncio.TimerHandle:
    return asyncio.get_running_loop().call_later(seconds, call)
