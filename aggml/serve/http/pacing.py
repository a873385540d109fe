"""Keeps the loop punctual: requests begin one by one, the garbage collector searches seldom.

It also counts the requests under way, so that a server can wait for them. Not here: how many
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

YOUNG: Final = 700  # objects made before the youngest are searched for cycles, as Python has it
# Searches of the youngest before what outlived them is searched too; 10 is Python's. Such a search
# takes 2 to 3 ms with 48 requests under way, whatever there is to find, for all that they hold is
# walked, and at most 5 to 7 after 60, 11 after 200 (trio); most cycles, those of requests that were
# cancelled, are found by the first search.
SECOND: Final = 60
# Such searches before all objects are: 10 to 15 ms.
ALL: Final = 100


class Door:
    """Lets one request in with each turn of the loop: its way to the queue takes 0.4 ms."""

    def __init__(self) -> None:
        self._lock = anyio.Lock()

    async def enter(self) -> None:
        """Wait for a turn, first come, first served."""
        async with self._lock:
            await checkpoint()


class UnderWay:
    """Counts POST requests, from their first byte to the last one of their answer."""

    def __init__(self) -> None:
        self.count = 0
        self._changed = anyio.Event()

    def counted(self, app: ASGIApp) -> ASGIApp:
        """The application; its POST requests are counted."""

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
    """Hide all present objects from the collector for good, and let it search seldom.

    Only for a process that serves and does nothing else.
    """
    gc.freeze()
    gc.set_threshold(YOUNG, SECOND, ALL)
