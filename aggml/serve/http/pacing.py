"""Keeps the event loop punctual: requests begin one by one, the garbage collector runs seldom.

Here too: counting the requests under way, so that a server can wait for them. Not here: how many
streams are woken in one turn (engine.py).
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Final

import anyio
from anyio.lowlevel import checkpoint

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["Door", "UnderWay", "collect_seldom"]

YOUNG: Final = 700  # new objects before the collector searches the youngest; Python's default
# Searches of the youngest generation before the second is searched, too; Python's default is 10. A
# search of the second takes 2 to 3 ms with 48 requests under way, whatever it finds, because it
# walks all objects that they hold. With 60 it takes at most 5 to 7 ms, with 200 at most 11 ms
# (trio). Most cycles come from cancelled requests; the search of the youngest finds those.
SECOND: Final = 60
# Searches of the second generation before all objects are searched, which takes 10 to 15 ms.
ALL: Final = 100


class Door:
    """Lets in one request in each turn of the loop; its way to the engine's queue takes 0.4 ms."""

    def __init__(self) -> None:
        self._lock = anyio.Lock()

    async def enter(self) -> None:
        """Wait for a turn, first come, first served."""
        async with self._lock:
            await checkpoint()


class UnderWay:
    """Counts POST requests, from their first byte to the last byte of their answer."""

    def __init__(self) -> None:
        self.count = 0
        self._changed = anyio.Event()

    def counted(self, app: ASGIApp) -> ASGIApp:
        """Wrap the application so that its POST requests are counted."""

        async def call(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or scope["method"] != "POST":
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


def collect_seldom() -> None:
    """Exempt all present objects from garbage collection for good, and collect seldom.

    Only for a process that serves and does nothing else.
    """
    gc.freeze()
    gc.set_threshold(YOUNG, SECOND, ALL)
