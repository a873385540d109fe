"""Event: a point in a backend's work that tasks and other backends can wait for.

Here: asking and waiting for the latest mark. Not here: recording it and holding a backend until it
is reached, which are operations of a backend (backend.py).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from aggml.process.alive import note
from aggml.process.locks import new_rlock
from aggml.stream.waits import checkpoint

if TYPE_CHECKING:
    from collections.abc import Generator

    from aggml.process.alive import Named
    from aggml.stream.batch import StreamBatch
    from aggml.stream.future import Future

__all__ = ["Event", "latest_mark", "move_mark"]


_marking = new_rlock()  # reentrant: the garbage collector may end a batch in between


class Event:
    """Marks "all that was queued before" on the backend that recorded it last.

    An event that was never recorded counts as reached. Recording it again moves the mark; earlier
    waits keep the old mark (as with CUDA events). ``await event`` waits for the latest mark.

    Cancellation: abandons the wait.
    """

    __slots__ = ("__weakref__", "_marks", "device")

    def __init__(self, device: Named) -> None:
        self.device: Named = device
        note(device, self)
        # The mark that was enqueued last, and behind it marks of open batches, each with the thread
        # of its batch. Only that thread sees them until the batch is enqueued.
        self._marks: tuple[tuple[Future[None], int | None], ...] = ()

    @property
    def _mark(self) -> Future[None] | None:
        """The latest mark as this thread sees it."""
        me = threading.get_ident()
        for mark, thread in reversed(self._marks):
            if thread is None or thread == me:
                return mark
        return None

    def _move(self, mark: Future[None], *, queued: bool) -> None:
        """Take a new mark; if it is not queued yet, `_note_queued` or `_note_dropped` follows."""
        with _marking:
            if queued:
                self._marks = ((mark, None),)
            else:
                self._marks = (*self._marks, (mark, threading.get_ident()))

    def _note_queued(self, mark: Future[None]) -> None:
        """The batch of a mark was enqueued, so the mark is the latest."""
        with _marking:
            waiting = [m for m in self._marks if m[0] is not mark and m[1] is not None]
            self._marks = ((mark, None), *waiting)

    def _note_dropped(self, mark: Future[None]) -> None:
        """The batch of a mark was dropped: the mark was never made."""
        with _marking:
            self._marks = tuple([m for m in self._marks if m[0] is not mark])

    def done(self) -> bool:
        """Whether the latest mark is reached."""
        mark = self._mark
        return mark is None or mark.done()

    def wait(self, timeout: float | None = None) -> bool:
        """Block this thread until the mark is reached (ggml_backend_event_synchronize).

        Args:
            timeout: seconds, or None for ever.

        Returns:
            Whether it is reached.
        """
        mark = self._mark
        return mark is None or mark.wait(timeout)

    def __await__(self) -> Generator[Any, Any, None]:
        mark = self._mark
        if mark is None:
            yield from checkpoint()
        else:
            yield from mark.__await__()

    def __repr__(self) -> str:
        state = "never recorded" if self._mark is None else "reached" if self.done() else "pending"
        return f"<Event of {self.device.name}, {state}>"


# -- for streams; not methods, because who has an Event must not call them


def latest_mark(event: Event) -> Future[None] | None:
    """The mark for which a wait of this thread has to wait; None: the event was never recorded."""
    return event._mark


def move_mark(event: Event, mark: Future[None], batch: StreamBatch | None) -> None:
    """Let the event have a new mark. Other threads see that of an open batch once it is queued."""
    event._move(mark, queued=batch is None)
    if batch is not None:
        batch.once_enqueued(lambda: event._note_queued(mark))
        batch.on_drop(lambda: event._note_dropped(mark))
