"""Admission: back-pressure for those who ask for it; first come, first served.

Here: who may submit next. Not here: submitting, which never waits and is never refused
(backend.py).
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

import anyio.lowlevel

from aggml.errors import InvalidArgument
from aggml.reactor import Parker, current_task

if TYPE_CHECKING:
    from aggml.batch import Batch
    from aggml.future import Future

__all__ = ["Admission"]


class Admission:
    """Counts submissions that are not done, and admits waiters while they are fewer than ``limit``.

    Args:
        limit: submissions that may be pending or admitted; None: no limit, nothing is counted.

    Attributes:
        limit: as given.
        units: Futures of submissions that are not done, as far as it is known; oldest first.
    """

    def __init__(self, limit: int | None) -> None:
        if limit is not None and limit < 1:
            raise InvalidArgument(f"[backend] max_queued={limit} is not positive")
        self.limit = limit
        # Who was admitted and has not submitted yet; a task that ends without gives its place up.
        self._admitted: dict[weakref.ref[object], None] = {}
        self.units: deque[Future[Any]] = deque()
        self._queue: deque[Parker] = deque()

    def note(self, future: Future[Any], batch: Batch | None) -> None:
        """One submission was made; all calls of a batch count as one."""
        if self.limit is None:
            return
        if batch is not None:
            if batch.counted:
                return
            batch.counted = True
        self.units.append(future)
        self.used()
        self._forget_done()

    def used(self) -> None:
        """A place was used that this task, or another one, was admitted to."""
        if self._admitted:
            mine = weakref.ref(current_task() or self)
            self._admitted.pop(mine if mine in self._admitted else next(iter(self._admitted)))
        if self._queue:
            self._queue[0].unpark()  # there is something to wait for now

    def free(self) -> bool:
        """Whether who submits right now need not wait."""
        limit = self.limit
        if limit is None:
            return True
        if self._queue:
            return False
        units = self.units
        while units and units[0].done():
            units.popleft()
        return len(units) + len(self._admitted) < limit

    def _forget_done(self) -> None:
        while self.units and self.units[0].done():
            self.units.popleft()

    def _room(self) -> bool:
        self._forget_done()
        return self.limit is None or len(self.units) + len(self._admitted) < self.limit

    def _give_up(self, task: weakref.ref[object]) -> None:
        if task in self._admitted:
            del self._admitted[task]
            if self._queue:
                self._queue[0].unpark()

    def give_up(self) -> None:
        """This task will not submit what it was admitted for."""
        self._give_up(weakref.ref(current_task() or self))

    async def wait(self) -> None:
        """A checkpoint, then `admit`."""
        await anyio.lowlevel.checkpoint()
        await self.admit()

    async def admit(self) -> None:
        """Wait for a place, which is good for one submission.

        Asking again gives one up that was not used, and so does the end of the task.

        Cancellation: gives the place in the queue up.
        """
        if self.limit is None:
            return
        me = weakref.ref(current_task() or self, self._give_up)
        self._give_up(me)
        if not self._queue and self._room():
            self._admitted[me] = None
            return
        place = Parker()
        self._queue.append(place)
        try:
            while self._queue[0] is not place:
                await place.park()
            while not self._room():
                if self.units:
                    await self.units[0].settled()
                else:  # all places are admitted to others, who have not submitted yet
                    await place.park()
            self._admitted[me] = None
        finally:
            first = self._queue[0] is place
            self._queue.remove(place)
            if first and self._queue:
                self._queue[0].unpark()
