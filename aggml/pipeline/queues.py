"""Queues between stages: bounded, first come first served or by priority.

They belong to one run, and so to one event loop. Putting and taking of one item is one step without
an await, so that a cancelled task loses nothing and takes nothing twice.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from typing import TYPE_CHECKING, Any

import anyio
from anyio.lowlevel import checkpoint

if TYPE_CHECKING:
    from aggml.pipeline.urgency import Urgency

__all__ = ["FanParts", "Parcel", "Queue"]


class Parcel:
    """An item on its way.

    Attributes:
        value: the item.
        urgency: of the item.
        since: when it came to the stage, as `time.perf_counter`.
        join: where the result goes if the stage is a branch of a fan.
        place: of the result there.
    """

    __slots__ = ("join", "place", "since", "urgency", "value")

    def __init__(
        self,
        value: Any,  # noqa: ANN401 an item may be anything
        urgency: Urgency,
        since: float,
        join: FanParts | None = None,
        place: int = 0,
    ) -> None:
        self.value: Any = value
        self.urgency: Urgency = urgency
        self.since: float = since
        self.join: FanParts | None = join
        self.place: int = place


class FanParts:
    """The results of a fan for one item.

    Attributes:
        parcel: the item.
        parts: the results that are there.
        left: how many branches are not done with it.
    """

    __slots__ = ("left", "parcel", "parts")

    def __init__(self, parcel: Parcel, branches: int) -> None:
        self.parcel: Parcel = parcel
        self.parts: list[Any] = [None] * branches
        self.left: int = branches


class _Lines:
    """Entries in the order of arrival."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: deque[tuple[Parcel, anyio.Event | None]] = deque()

    def __len__(self) -> int:
        return len(self._entries)

    def push(self, parcel: Parcel, event: anyio.Event | None = None) -> None:
        self._entries.append((parcel, event))

    def pop(self) -> tuple[Parcel, anyio.Event | None]:
        return self._entries.popleft()


class _Heap:
    """Entries by priority; then the earlier deadline, then the earlier arrival comes first."""

    __slots__ = ("_count", "_entries")

    def __init__(self) -> None:
        self._entries: list[tuple[int, float, int, Parcel, anyio.Event | None]] = []
        self._count = itertools.count()

    def __len__(self) -> int:
        return len(self._entries)

    def push(self, parcel: Parcel, event: anyio.Event | None = None) -> None:
        priority, until = parcel.urgency
        until = math.inf if until is None else until
        heapq.heappush(self._entries, (-priority, until, next(self._count), parcel, event))

    def pop(self) -> tuple[Parcel, anyio.Event | None]:
        return heapq.heappop(self._entries)[3:]


class Queue:
    """Parcels that wait for a stage, or for the consumer.

    Args:
        size: how many may wait; whoever puts more waits.
        by_priority: whether the most urgent one is taken first, else the first.

    Attributes:
        producers: how many tasks may still put something; the queue ends when none is left.
    """

    __slots__ = ("_items", "_putting", "_size", "_takers", "producers")

    def __init__(self, size: int, *, by_priority: bool) -> None:
        lines = _Heap if by_priority else _Lines
        self._items: _Lines | _Heap = lines()
        self._putting: _Lines | _Heap = lines()  # of tasks that wait for room
        self._takers: deque[anyio.Event] = deque()
        self._size = size
        self.producers: int = 0

    def __len__(self) -> int:
        return len(self._items)

    @property
    def waiting(self) -> int:
        """How many wait, those included for which there is no room yet."""
        return len(self._items) + len(self._putting)

    async def put(self, parcel: Parcel) -> None:
        """Add a parcel; waits while the queue is full, and else does not suspend.

        Cancellation: the parcel may be taken nevertheless.
        """
        if self._putting or len(self._items) >= self._size:
            event = anyio.Event()
            self._putting.push(parcel, event)
            await event.wait()
        else:
            self._add(parcel)

    async def wait(self) -> bool:
        """Wait until there is something to `pop`; False: nothing will come. A checkpoint."""
        if self._items:
            await checkpoint()
        while not self._items:
            if not self.producers:
                return False
            event = anyio.Event()
            self._takers.append(event)
            try:
                await event.wait()
            except BaseException:
                if event.is_set():
                    self._wake()  # somebody else takes what this task was woken for
                else:
                    self._takers.remove(event)
                raise
        return True

    def pop(self) -> Parcel:
        """Take a parcel; one that waited for room gets it."""
        parcel, _ = self._items.pop()
        if self._putting:
            following, event = self._putting.pop()
            self._add(following)
            if event is not None:
                event.set()
        return parcel

    def end(self) -> None:
        """One of the producers puts nothing any more."""
        self.producers -= 1
        if not self.producers:
            while self._takers:
                self._takers.popleft().set()

    def _add(self, parcel: Parcel) -> None:
        self._items.push(parcel)
        self._wake()

    def _wake(self) -> None:
        if self._takers and self._items:
            self._takers.popleft().set()
