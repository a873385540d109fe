"""Keeps the event loop punctual: requests begin one by one, the garbage collector runs seldom.

Here too: counting the requests and sessions under way, so that a server can wait for them and end
them. Not here: how many streams are woken in one turn (engine.py).
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

import anyio
from anyio.lowlevel import checkpoint

from aggml.models import FullError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["Door", "LiveSession", "LiveSessions", "UnderWay", "collect_seldom"]

YOUNG: Final = 700  # new objects before the collector searches the youngest; Python's default
# Searches of the youngest generation before the second is searched, too; Python's default is 10. A
# search of the second takes 2 to 3 ms with 48 requests under way, whatever it finds, because it
# walks all objects that they hold. With 60 it takes at most 5 to 7 ms, with 200 at most 11 ms
# (trio). Most cycles come from cancelled requests; the search of the youngest finds those.
SECOND: Final = 60
# Searches of the second generation before all objects are searched, which takes 10 to 15 ms;
# Python's default. Connections that their clients close leave cycles, which mostly this search
# alone finds. With 100, memory grew by 18 MB in 10,000 requests, of which 3,000 were hung up.
ALL: Final = 10
FULL_RETRY: Final = 5  # seconds until a client should try again to open a session


class Door:
    """Lets in one request in each turn of the loop; its way to the engine's queue takes 0.4 ms."""

    def __init__(self) -> None:
        self._lock = anyio.Lock()

    async def enter(self) -> None:
        """Wait for a turn, first come, first served."""
        async with self._lock:
            await checkpoint()


class UnderWay:
    """Counts sessions, and POST requests from their first byte to the last of their answer."""

    def __init__(self) -> None:
        self.count = 0
        self._changed = anyio.Event()

    def wrap(self, app: ASGIApp) -> ASGIApp:
        """Wrap the application so that its POST requests and WebSockets are counted."""

        async def call(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "websocket" and scope.get("method") != "POST":
                await app(scope, receive, send)
                return
            self.count += 1
            try:
                await app(scope, receive, send)
            finally:
                self.count -= 1
                self._changed.set()

        return call

    async def none(self) -> None:
        """Wait until no request is under way."""
        while self.count:
            self._changed = anyio.Event()
            await self._changed.wait()


class LiveSession(Protocol):
    """A session that goes on until somebody ends it."""

    def stop(self) -> None:
        """Take no more from the client; end when what it sent before is answered."""

    def cut_off(self) -> None:
        """End at once."""


class LiveSessions:
    """The sessions of a service.

    Args:
        most: sessions at a time; further ones are refused.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._live: dict[LiveSession, None] = {}

    def __len__(self) -> int:
        return len(self._live)

    @contextmanager
    def enter(self, session: LiveSession) -> Iterator[None]:
        """A session, until the end of the block.

        Raises:
            FullError: there are as many as may be.
        """
        if len(self._live) >= self._most:
            raise FullError(f"{len(self._live)} sessions are open, which is the most", FULL_RETRY)
        self._live[session] = None
        try:
            yield
        finally:
            del self._live[session]

    def stop(self) -> None:
        """Let all sessions end."""
        for session in list(self._live):
            session.stop()

    def cut_off(self) -> None:
        """End all sessions at once."""
        for session in list(self._live):
            session.cut_off()


def collect_seldom() -> None:
    """Exempt all present objects from garbage collection for good, and collect seldom.

    Only for a process that serves and does nothing else.
    """
    gc.freeze()
    gc.set_threshold(YOUNG, SECOND, ALL)
