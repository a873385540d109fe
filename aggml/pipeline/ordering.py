"""Ordering: results of several workers leave a stage in the order in which items came to it.

A worker draws a ticket with each item. Results of the oldest ticket go on at once; those of others
are kept until their turn comes. How much is kept is bounded: a worker that is too far ahead waits.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import anyio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aggml.pipeline.queues import Parcel

__all__ = ["Ordering"]


class _Kept:
    """The results of one ticket that have not gone on yet."""

    __slots__ = ("done", "flushing", "results")

    def __init__(self) -> None:
        self.results: deque[tuple[Parcel, Any]] = deque()
        self.done = False  # no more will come
        self.flushing = False  # a task gives them to the next stage now


class Ordering:
    """The tickets of a stage.

    Args:
        send: gives a result to the next stage.
        ahead: how many tickets may be out, and how many results of one of them are kept.
    """

    __slots__ = ("_ahead", "_head", "_kept", "_next", "_send", "_waiting")

    def __init__(self, send: Callable[[Parcel, Any], Awaitable[None]], ahead: int) -> None:
        self._send, self._ahead = send, ahead
        self._head = self._next = 0  # the oldest ticket that is out, and the next one
        self._kept: dict[int, _Kept] = {}
        self._waiting: list[anyio.Event] = []  # tasks to wake when the head moves

    @property
    def full(self) -> bool:
        """Whether no ticket may be drawn now."""
        return self._next - self._head >= self._ahead

    async def wait_for_oldest(self) -> None:
        """Wait until the oldest ticket is done."""
        event = anyio.Event()
        self._waiting.append(event)
        await event.wait()

    def draw(self) -> int:
        """A new ticket."""
        ticket = self._next
        self._next += 1
        self._kept[ticket] = _Kept()
        return ticket

    async def give(self, ticket: int, parcel: Parcel, value: Any) -> None:  # noqa: ANN401
        """A result of a ticket; waits while too many of them are kept."""
        kept = self._kept[ticket]
        while ticket != self._head or kept.flushing:
            if len(kept.results) < self._ahead:
                kept.results.append((parcel, value))
                return
            await self.wait_for_oldest()
        await self._send(parcel, value)

    async def finish(self, ticket: int) -> None:
        """No more results of a ticket will come. Those of later ones follow if they are done."""
        own = self._kept[ticket]
        own.done = True
        if ticket != self._head or own.flushing:
            return  # whoever moves the head, or flushes, goes on with it
        kept: _Kept | None = own
        while kept is not None:
            kept.flushing = True
            while kept.results:
                await self._send(*kept.results.popleft())
            kept.flushing = False
            if kept.done:
                del self._kept[self._head]
                self._head += 1
            while self._waiting:
                self._waiting.pop().set()
            if not kept.done:
                return
            kept = self._kept.get(self._head)
