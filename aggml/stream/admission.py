"""Admission: optional backpressure for tasks that submit work; first come, first served.

Here: which task may submit next. Not here: submitting, which never waits and is never refused
(backend/backend.py).
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

import anyio.lowlevel

from aggml.errors import InvalidArgument
from aggml.process.locks import new_rlock
from aggml.stream.parker import Parker
from aggml.stream.reactor import current_task

if TYPE_CHECKING:
    from aggml.stream.batch import Batch
    from aggml.stream.future import Future

__all__ = ["Admission"]


class Admission:
    """Counts unfinished submissions, and admits waiting tasks while there are fewer than ``limit``.

    It may be used from any thread.

    Args:
        limit: submissions that may be unfinished or admitted; None: no limit, nothing is counted.

    Attributes:
        limit: as given.
    """

    def __init__(self, limit: int | None) -> None:
        if limit is not None and limit < 1:
            raise InvalidArgument(f"[backend] max_queued={limit} is not positive")
        self.limit = limit
        # Reentrant: a task that is garbage-collected, at any point, gives its place up.
        self._lock = new_rlock()
        # Tasks that were admitted and have not submitted yet. A task that ends gives its place up.
        self._admitted: dict[weakref.ref[object], None] = {}
        # Futures of submissions that are not done, as far as it is known; oldest first.
        self._units: deque[Future[Any]] = deque()
        self._queue: deque[Parker] = deque()

    def note(self, future: Future[Any], batch: Batch | None) -> None:
        """One submission was made; all calls of a batch count as one."""
        if self.limit is None:
            return
        if batch is not None:
            if batch.counted:
                return
            batch.counted = True
        self.add(future)
        self.used()

    def add(self, future: Future[Any]) -> None:
        """Note a submission, also without a limit. The caller calls `used` for its place."""
        with self._lock:
            self._forget_done()
            self._units.append(future)

    def unfinished(self) -> list[Future[Any]]:
        """Futures of submissions that are not done, as far as it is known; oldest first."""
        with self._lock:
            return list(self._units)

    def used(self) -> None:
        """Use up the admission of this task, or else of another one: a submission was made."""
        with self._lock:
            if self._admitted:
                mine = weakref.ref(current_task() or self)
                self._admitted.pop(mine if mine in self._admitted else next(iter(self._admitted)))
            self._call_first()  # there is something to wait for now

    def busy(self) -> bool:
        """Whether a submission is unfinished."""
        with self._lock:
            self._forget_done()
            return bool(self._units)

    def free(self) -> bool:
        """Whether a task that submits right now need not wait."""
        if self.limit is None:
            return True
        with self._lock:
            return not self._queue and self._room()

    def _call_first(self) -> None:
        if self._queue:
            self._queue[0].unpark()

    def _forget_done(self) -> None:
        while self._units and self._units[0].done():
            self._units.popleft()

    def _room(self) -> bool:
        self._forget_done()
        return self.limit is None or len(self._units) + len(self._admitted) < self.limit

    def _give_up(self, task: weakref.ref[object]) -> None:
        with self._lock:
            if task in self._admitted:
                del self._admitted[task]
                self._call_first()

    def give_up(self) -> None:
        """Give up the admission of this task: it will not submit."""
        self._give_up(weakref.ref(current_task() or self))

    async def wait(self) -> None:
        """A checkpoint, then `admit`."""
        await anyio.lowlevel.checkpoint()
        await self.admit()

    async def admit(self) -> None:
        """Wait for a place, which is good for one submission.

        An unused admission is given up when the task asks again, and when it ends.

        Cancellation: gives up the place in the queue.
        """
        if self.limit is None:
            return
        me = weakref.ref(current_task() or self, self._give_up)
        self._give_up(me)
        with self._lock:
            if not self._queue and self._room():
                self._admitted[me] = None
                return
            place = Parker()
            self._queue.append(place)
        try:
            while not self._enter(place, me):
                with self._lock:
                    # None: another waiter is first, or all places belong to tasks that were
                    # admitted and have not submitted yet.
                    first = self._units[0] if self._queue[0] is place and self._units else None
                if first is None:
                    await place.park()
                else:
                    await first.settled()
        finally:
            with self._lock:
                self._queue.remove(place)
                self._call_first()

    def _enter(self, place: Parker, task: weakref.ref[object]) -> bool:
        with self._lock:
            if self._queue[0] is not place or not self._room():
                return False
            self._admitted[task] = None
            return True
