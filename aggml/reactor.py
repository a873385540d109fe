"""Reactor: the bridge from native completions to the tasks of one event loop, asyncio or trio.

Here: all that knows which of the two runs; one reactor and one file descriptor per loop. A callback
waits for a (stream, ticket). The native side keeps who waits, writes the descriptor when a ticket
is done, and gives out what is due; the reactor calls that and looks at nothing else. Not here: what
a Future is (future.py).
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

from aggml.errors import InvalidState
from aggml.native import _native

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    import trio

__all__ = [
    "CHECKPOINT",
    "Parker",
    "Reactor",
    "checkpoint",
    "current_reactor",
    "current_task",
    "post_here",
    "wait_op",
]

_log = logging.getLogger("aggml")


class Reactor:
    """Calls back, in its loop, once tickets are done."""

    def __init__(self) -> None:
        self.notifier = _native.Notifier()
        _native.sched_loop()  # from here on the loop runs as soon as it wakes, beside busy workers

    def arm(self, op: _native.Op, callback: Callable[[], object]) -> _native.Waiter | None:
        """Have ``callback`` called in this loop once ``op`` is done.

        Returns:
            The wait, which may be cancelled: nothing of it is left then. None if ``op`` is done,
            nothing is called then.

        Raises:
            InvalidState: ``op`` belongs to the parent process of a fork.
        """
        if not op.stream.alive:
            raise InvalidState("[Future] the operation belongs to the parent process of a fork")
        return self.notifier.watch(op, callback)

    def wake(self) -> None:
        """Call back all that is done; runs in the loop whenever the descriptor is readable."""
        notifier = self.notifier
        notifier.drain()
        try:
            while (callback := notifier.next_due()) is not None:
                self._call(callback)
        except BaseException:
            notifier.signal()  # an interrupt, say: the others have their turn in the next one
            raise

    @staticmethod
    def _call(callback: Callable[[], object]) -> None:
        try:
            callback()
        except Exception:
            _log.exception("[Reactor] a callback failed")

    def close(self) -> None:
        """Close the descriptor; nobody is called back any more. The loop has ended."""
        self.notifier.close()
        self.notifier.cancel_all()


# -- which loop runs here

_asyncio_reactors: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Reactor] = (
    weakref.WeakKeyDictionary()
)
_trio_reactor: Any = None  # a trio.lowlevel.RunVar, made when trio is first seen
_lock = threading.Lock()


def _in_trio() -> bool:
    module = sys.modules.get("trio")
    return module is not None and module.lowlevel.in_trio_task()


def _running_asyncio() -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise InvalidState(
            "[Future] no event loop runs in this thread: "
            "await it in asyncio or trio, or call wait()"
        ) from None


def _reactor_of_asyncio(loop: asyncio.AbstractEventLoop) -> Reactor:
    reactor = _asyncio_reactors.get(loop)
    if reactor is None:
        reactor = Reactor()
        loop.add_reader(reactor.notifier.fileno(), reactor.wake)
        weakref.finalize(loop, reactor.close)
        _asyncio_reactors[loop] = reactor
    return reactor


async def _pump(reactor: Reactor) -> None:
    import trio

    try:
        while True:
            await trio.lowlevel.wait_readable(reactor.notifier.fileno())
            reactor.wake()
    finally:
        reactor.close()


def _reactor_of_trio() -> Reactor:
    import trio

    global _trio_reactor
    if _trio_reactor is None:
        with _lock:
            if _trio_reactor is None:
                _trio_reactor = trio.lowlevel.RunVar[Reactor | None]("aggml_reactor", None)
    reactor: Reactor | None = _trio_reactor.get()
    if reactor is None:
        reactor = Reactor()
        trio.lowlevel.spawn_system_task(_pump, reactor, name="aggml reactor")
        _trio_reactor.set(reactor)
    return reactor


def current_reactor() -> Reactor:
    """The reactor of the loop that runs in this thread.

    Raises:
        InvalidState: none does.
    """
    return _reactor_of_trio() if _in_trio() else _reactor_of_asyncio(_running_asyncio())


def current_task() -> object | None:
    """The task that runs now, to be compared by identity; None outside of a loop."""
    if _in_trio():
        import trio

        return trio.lowlevel.current_task()
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


# -- waiting


def checkpoint() -> Generator[Any, Any, None]:
    """Let other tasks run once, and notice a cancellation."""
    if _in_trio():
        import trio

        yield from trio.lowlevel.checkpoint().__await__()
    else:
        _running_asyncio()
        yield  # what asyncio.sleep(0) does


class _Checkpoint:
    __slots__ = ()

    def __await__(self) -> Generator[Any, Any, None]:
        return checkpoint()


CHECKPOINT = _Checkpoint()  # to be awaited; what anyio.lowlevel.checkpoint() does, for less


def wait_op(op: _native.Op) -> Generator[Any, Any, None]:
    """Suspend this task until ``op`` is done; at least one checkpoint.

    The first turn of the loop comes before any arming: work of a few microseconds is done by then,
    and a descriptor need be neither written nor polled.
    """
    if _in_trio():
        yield from _wait_trio(op)
    else:
        yield from _wait_asyncio(_running_asyncio(), op)


def _wait_asyncio(loop: asyncio.AbstractEventLoop, op: _native.Op) -> Generator[Any, Any, None]:
    yield
    while not op.done():
        waiter: asyncio.Future[None] = loop.create_future()

        def wake(waiter: asyncio.Future[None] = waiter) -> None:
            if not waiter.done():
                waiter.set_result(None)

        entry = _reactor_of_asyncio(loop).arm(op, wake)
        if entry is None:
            return
        try:
            yield from waiter
        finally:
            entry.cancel()


def _wait_trio(op: _native.Op) -> Generator[Any, Any, None]:
    import trio

    yield from trio.lowlevel.checkpoint().__await__()
    while not op.done():
        task = trio.lowlevel.current_task()
        entry = _reactor_of_trio().arm(op, partial(trio.lowlevel.reschedule, task))
        if entry is None:
            return

        def abort(_: object, entry: _native.Waiter = entry) -> trio.lowlevel.Abort:
            entry.cancel()
            return trio.lowlevel.Abort.SUCCEEDED

        yield from trio.lowlevel.wait_task_rescheduled(abort).__await__()


class Parker:
    """One task's place to sleep: ``await parker.park()`` returns after an ``unpark()``.

    An unpark before the park is kept. Made in the loop of the task that parks.
    """

    def __init__(self) -> None:
        self._unparked = False
        self._wake: Callable[[], None] | None = None
        self._post: Callable[[Callable[[], None]], object]
        if _in_trio():
            import trio

            self._post = trio.lowlevel.current_trio_token().run_sync_soon
        else:
            self._post = _running_asyncio().call_soon_threadsafe

    def unpark(self) -> None:
        """Wake who parks here, or who parks next. From any thread."""
        self._unparked = True
        try:
            self._post(self._run)
        except RuntimeError:
            return  # the loop is closed (asyncio) or its run finished (trio): nobody is left

    def _run(self) -> None:
        wake, self._wake = self._wake, None
        if wake is not None:
            wake()

    def __await__(self) -> Generator[Any, Any, None]:
        if self._unparked:
            yield from checkpoint()
        elif _in_trio():
            import trio

            task = trio.lowlevel.current_task()
            self._wake = lambda: trio.lowlevel.reschedule(task)

            def abort(_: object) -> trio.lowlevel.Abort:
                self._wake = None
                return trio.lowlevel.Abort.SUCCEEDED

            yield from trio.lowlevel.wait_task_rescheduled(abort).__await__()
        else:
            waiter: asyncio.Future[None] = _running_asyncio().create_future()
            self._wake = lambda: None if waiter.done() else waiter.set_result(None)
            try:
                yield from waiter
            finally:
                self._wake = None
        self._unparked = False

    def park(self) -> Parker:
        """What to await, for the sake of reading."""
        return self


def post_here() -> Callable[[Callable[[], None]], object]:
    """A function that has the loop of this thread call something soon; usable from any thread."""
    if _in_trio():
        import trio

        return trio.lowlevel.current_trio_token().run_sync_soon
    return _running_asyncio().call_soon_threadsafe
