"""Parker: a task sleeps until another task or thread wakes it; post_here: call soon in a loop.

Not here: waiting for operations (reactor.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aggml.stream.reactor import in_trio, known_reactor, running_asyncio
from aggml.stream.waits import checkpoint, turn

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Generator

    import trio

__all__ = ["Parker", "post_here"]


class Parker:
    """One task's place to sleep: ``await parker.park()`` returns after an ``unpark()``.

    An unpark that comes before the park is kept. It is made in the loop of the task that parks.
    """

    def __init__(self) -> None:
        self._unparked = False
        self._wake: Callable[[], None] | None = None
        self._post: Callable[[Callable[[], None]], object]
        if in_trio():
            import trio

            self._post = trio.lowlevel.current_trio_token().run_sync_soon
        else:
            self._post = running_asyncio().call_soon_threadsafe

    def unpark(self) -> bool:
        """Wake the task that parks here, or the next that does. May be called from any thread.

        Returns:
            False if the loop is closed (asyncio) or its run is over (trio): no task is left.
        """
        self._unparked = True
        try:
            self._post(self._run)
        except RuntimeError:
            return False
        return True

    def unpark_here(self) -> None:
        """`unpark`, called by the loop of the task that parks here."""
        self._unparked = True
        self._run()

    def _run(self) -> None:
        wake, self._wake = self._wake, None
        if wake is not None:
            wake()

    def __await__(self) -> Generator[Any, Any, None]:
        if self._unparked:
            yield from checkpoint()
        elif in_trio():
            yield from self._sleep_trio()
        else:
            waiter: asyncio.Future[None] = running_asyncio().create_future()
            self._wake = lambda: None if waiter.done() else waiter.set_result(None)
            try:
                yield from waiter
            finally:
                self._wake = None
        self._unparked = False

    def _sleep_trio(self) -> Generator[Any, Any, None]:
        import trio

        task = trio.lowlevel.current_task()

        def abort(_: object) -> trio.lowlevel.Abort:
            self._wake = None
            return trio.lowlevel.Abort.SUCCEEDED

        while not self._unparked:
            reactor = known_reactor()
            if reactor is not None and not reactor.pumped:
                self._wake = reactor.notifier.signal
                try:
                    yield from turn(reactor).__await__()
                finally:
                    self._wake = None
                continue
            self._wake = lambda: trio.lowlevel.reschedule(task)
            if reactor is not None:
                reactor.parked.add(self._run)
            try:
                yield from trio.lowlevel.wait_task_rescheduled(abort).__await__()  # noqa: ASYNC105
            finally:
                if reactor is not None:
                    reactor.parked.discard(self._run)

    def park(self) -> Parker:
        """The object itself: ``await parker.park()`` reads better than ``await parker``."""
        return self


def post_here() -> Callable[[Callable[[], None]], object]:
    """A function that has the loop of this thread call something soon; usable from any thread."""
    if in_trio():
        import trio

        return trio.lowlevel.current_trio_token().run_sync_soon
    return running_asyncio().call_soon_threadsafe
