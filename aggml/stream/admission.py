"""Admission: optional backpressure for tasks that submit work; first come, first served.

Here: which task may submit next. Not here: submitting, which never waits and is never refused
(backend/backend.py).

Tasks of any loop and thread may wait. Finalizers of ours never take the lock: the thread in which
they run may be in the middle of a change. A task that is gone is noted in a deque, at which whoever
takes the lock next looks. The lock is reentrant because a program's finalizers may submit work.
"""

from __future__ import annotations

import weakref
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio.lowlevel

from aggml.errors import InvalidArgument
from aggml.process.locks import new_rlock
from aggml.stream.fifo import Line
from aggml.stream.reactor import current_reactor, current_task

if TYPE_CHECKING:
    from aggml.native import _native
    from aggml.stream.batch import StreamBatch
    from aggml.stream.future import Future

__all__ = ["Admission"]

#: Stands for an admitted task: weak, so that a task that ends gives its place up.
Admitted = weakref.ref[object]


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
        self._lock = new_rlock()
        # Tasks that were admitted and have not submitted yet.
        self._admitted: dict[Admitted, None] = {}
        self._gone: deque[Admitted] = deque()  # of them: those that will not submit
        # Futures of submissions that are not done, as far as it is known; oldest first.
        self._units: deque[Future[Any]] = deque()
        self._line = Line()

    def note(self, future: Future[Any], batch: StreamBatch | None) -> None:
        """One submission was made; all calls of a batch count as one."""
        if self.limit is None:
            return
        if batch is not None:
            if batch.counted:
                return
            batch.counted = True
        self.add(future)
        self.use_up()

    def add(self, future: Future[Any]) -> None:
        """Note a submission, also without a limit. The caller calls `use_up` for its place."""
        with self._lock:
            self._forget_done()
            self._units.append(future)

    def unfinished_futures(self) -> list[Future[Any]]:
        """Futures of submissions that are not done, as far as it is known; oldest first."""
        with self._lock:
            return list(self._units)

    def last_before(self) -> Future[Any] | None:
        """The submission that has to be done before one more may begin; None: it may now.

        For submissions that get done in the order in which they were made.
        """
        limit = self.limit
        if limit is None or len(self._units) < limit:
            return None
        with self._lock:
            self._forget_done()
            return self._units[-limit] if len(self._units) >= limit else None

    def use_up(self) -> None:
        """Use up the admission of this task, or else of another one: a submission was made."""
        with self._lock:
            if self._gone:
                self._forget_gone()
            if self._admitted:
                mine = weakref.ref(current_task() or self)
                found = mine if mine in self._admitted else next(iter(self._admitted))
                self._admitted.pop(found, None)
        if self._line.places:
            self._line.wake()  # there is something to wait for now

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
            return not self._line.places and self._room()

    def _forget_done(self) -> None:
        while self._units:
            first = self._units[0]
            if not first.done():
                break
            with suppress(ValueError):  # a finalizer has removed it meanwhile
                self._units.remove(first)

    def _forget_gone(self) -> None:
        while self._gone:
            self._admitted.pop(self._gone.popleft(), None)

    def _room(self) -> bool:
        self._forget_done()
        if self._gone:
            self._forget_gone()
        return self.limit is None or len(self._units) + len(self._admitted) < self.limit

    def give_up(self, admitted: Admitted | None) -> None:
        """Give up what `admit` returned: its task will not submit. Also called by finalizers."""
        if admitted is not None:
            self._gone.append(admitted)
            self._line.wake()

    async def wait(self) -> None:
        """A checkpoint, then `admit`."""
        await anyio.lowlevel.checkpoint()
        await self.admit()

    async def admit(self) -> Admitted | None:
        """Wait for a place, which is good for one submission.

        An unused admission is given up when the task asks again, and when it ends.

        Returns:
            What `give_up` takes; None if there is no limit.

        Cancellation: gives up the place in the queue.
        """
        if self.limit is None:
            return None
        me = weakref.ref(current_task() or self, self.give_up)
        with self._lock:
            self._forget_gone()
            given_up = me in self._admitted
            self._admitted.pop(me, None)
            if not self._line.places and self._room():
                self._admitted[me] = None
                return me
            place = self._line.join()
        entry: _native.Waiter | None = None
        try:
            if given_up:
                self._line.wake()
            while True:
                with self._lock:
                    if self._line.is_first(place):
                        if self._room():
                            self._admitted[me] = None
                            return me
                        oldest = self._units[0] if self._units else None
                    else:
                        oldest = None
                # None: another waiter is first, or all places belong to tasks that were admitted
                # and have not submitted yet. In any case a place that is given up wakes, too.
                last = None if oldest is None else oldest._op_to_await()
                if last is not None:
                    if entry is not None:
                        entry.cancel()
                    entry = current_reactor().arm(last, place.unpark_here)
                    if entry is None:
                        continue  # it is done now
                await place.park()
        finally:
            if entry is not None:
                entry.cancel()
            self._line.leave(place)
            self._line.wake()
