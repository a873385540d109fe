"""Locks and semaphores for tasks of any event loop, in any thread; first come, first served.

Here: `FifoSemaphore` and `FifoLock`. anyio's own work within one event loop only: a task of another
loop that waits for them is never woken. Not here: sleeping (parker.py), back-pressure
(admission.py).

They hold no lock of threads. A finalizer may release them, at any point of any thread, also of one
that is just taking or releasing them. Each step below is one call of a `deque`, which is atomic.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import Self

import anyio.lowlevel

from aggml.stream.parker import Parker

__all__ = ["FifoLock", "FifoSemaphore", "Line"]


class Line:
    """Tasks that wait for something, of any loop, in the order in which they came.

    Attributes:
        places: one for each task; not to be changed from outside.
    """

    __slots__ = ("places",)

    def __init__(self) -> None:
        self.places: deque[Parker] = deque()

    def join(self) -> Parker:
        """A place at the end, for the task that runs now; it has to `leave` in the end."""
        place = Parker()
        self.places.append(place)
        return place

    def leave(self, place: Parker) -> None:
        """Give up a place. The caller wakes the one who is first now."""
        with suppress(ValueError):  # its loop was closed, and `wake` removed it
            self.places.remove(place)

    def is_first(self, place: Parker) -> bool:
        """Whether nobody is before this place."""
        try:
            return self.places[0] is place
        except IndexError:
            return False

    def wake(self) -> None:
        """Have the first one look again. Those whose loop was closed will not: they are removed."""
        while True:
            try:
                first = self.places[0]
            except IndexError:
                return
            if first.unpark():
                return
            self.leave(first)


class FifoSemaphore:
    """So many places for tasks of any loop and thread, given in the order in which they asked.

    Args:
        places: how many tasks may have one at the same time.

    Attributes:
        free: an item for each place that nobody has at this moment; not to be changed from outside.
    """

    __slots__ = ("_line", "free")

    def __init__(self, places: int) -> None:
        self.free: deque[None] = deque([None] * places)
        self._line = Line()

    def locked(self) -> bool:
        """Whether all places are taken."""
        return not self.free

    def _take(self) -> bool:
        try:
            self.free.popleft()
        except IndexError:
            return False
        return True

    def acquire_nowait(self) -> bool:
        """Take a place if there is one for which nobody waits; from any thread."""
        return not self._line.places and self._take()

    async def acquire(self) -> None:
        """Wait for a place.

        Cancellation: gives up the place in the line.
        """
        await anyio.lowlevel.checkpoint()
        if self.acquire_nowait():
            return
        place = self._line.join()
        try:
            while not (self._line.is_first(place) and self._take()):
                await place.park()
        finally:
            self._line.leave(place)
            if self.free:
                self._line.wake()

    def release(self) -> None:
        """Give a place back; from any thread, and from finalizers."""
        self.free.append(None)
        self._line.wake()

    async def __aenter__(self) -> Self:
        await self.acquire()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.release()


class FifoLock(FifoSemaphore):
    """A semaphore with one place."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(1)
