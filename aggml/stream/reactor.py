"""Reactor: the bridge from native completions to the tasks of one event loop, asyncio or trio.

Here: all code that depends on which of the two runs; one reactor and one file descriptor per event
loop. A callback waits for a (stream, ticket). The native side keeps the list of waits. When a
ticket is done, it writes to the descriptor and returns the callbacks that are due; the reactor
calls these and inspects nothing else. Not here: the Future (future.py), sleeping without an
operation (parker.py).

Only its event loop keeps a reactor alive: asyncio's selector, or trio's run. So when the loop is
closed, the reactor goes with it, and so do all waits.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

from aggml.errors import InvalidState
from aggml.native import _native
from aggml.process.locks import new_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    import trio

__all__ = [
    "CHECKPOINT",
    "Reactor",
    "checkpoint",
    "current_reactor",
    "current_task",
    "in_trio",
    "known_reactor",
    "running_asyncio",
    "turn",
    "wait_op",
]

_log = logging.getLogger("aggml")


class Reactor:
    """Calls back, in its loop, once tickets are done.

    Attributes:
        notifier: the native object with the file descriptor.
        pumped: whether the event loop itself calls `wake`; else the waiting tasks do, see `turn`.
        turns: how many tasks are in `turn` at this moment.
        led: whether one of these tasks waits for the descriptor.
        followers: the other tasks in `turn`, tasks of trio.
        parked: makes sleeping tasks check again; they sleep for something other than an operation.
    """

    def __init__(self, *, pumped: bool = True) -> None:
        self.notifier = _native.Notifier()
        _native.sched_loop()  # from now on the loop runs as soon as it wakes, despite busy workers
        global _unpumped
        self.pumped = pumped
        _unpumped = _unpumped or not pumped
        self.turns = 0
        self.led = False
        self.followers: set[Any] = set()
        self.parked: set[Callable[[], None]] = set()

    def arm(self, op: _native.Op, callback: Callable[[], object]) -> _native.Waiter | None:
        """Have ``callback`` called in this event loop once ``op`` is done.

        Args:
            op: the operation to wait for.
            callback: called again if a KeyboardInterrupt may have cut it short.

        Returns:
            The wait, which may be cancelled and then leaves nothing behind. None if ``op`` is done
            already; then ``callback`` is not called.

        Raises:
            InvalidState: ``op`` belongs to the parent process of a fork.
        """
        if not op.stream.alive:
            raise InvalidState("[Future] the operation belongs to the parent process of a fork")
        return self.notifier.watch(op, callback)

    def wake(self) -> None:
        """Make all due callbacks; runs in the loop whenever the descriptor is readable."""
        try:
            self.notifier.call_due(_log_failed)  # before the drain, a system call of 0.8 us
            self.notifier.drain()  # also takes the signals of what came since, called next
            self.notifier.call_due(_log_failed)
        except BaseException:  # Ctrl-C: this one, if it was not called, and the others come next
            self.notifier.signal()
            raise

    def leave(self, resumes: object) -> None:
        """From now on waiting tasks call `wake`; tasks that wait by ``resumes`` check again."""
        global _unpumped
        self.pumped = False
        _unpumped = True
        for waiter in self.notifier.waiters():
            callback = waiter.callback
            if isinstance(callback, partial) and callback.func is resumes:
                waiter.cancel()
                callback()
        for look in list(self.parked):
            look()

    def idle(self) -> bool:
        """Whether there is no wait."""
        return not (self.turns or self.parked or self.notifier.waiters())

    def close(self) -> None:
        """Close the descriptor after the loop has ended; no callback is made any more."""
        self.notifier.close()
        self.notifier.cancel_all()

    def __del__(self) -> None:
        self.close()


def _log_failed(error: BaseException) -> None:
    _log.error("[Reactor] a callback failed", exc_info=error)


# -- which loop runs here

# The loop's selector keeps the reactor alive. If this dictionary kept it, it would keep the loop as
# well: the reactor refers to the waiting tasks, and they refer to their loop.
_asyncio_reactors: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ref[Reactor]] = (
    weakref.WeakKeyDictionary()
)
# The loop that was looked up last and its reactor: the dictionary's `get` is a function in Python.
_latest: tuple[Callable[[], Any], Callable[[], Reactor | None]] = (lambda: None, lambda: None)
_trio_reactor: Any = None  # a trio.lowlevel.RunVar, made when trio is first seen
_ENDING = "ending"  # stands for the reactor of a run that accepts no system task any more
_lock = new_lock()
_unpumped = False  # whether any reactor of this process is, or was, not pumped by its loop


def in_trio() -> bool:
    """Whether a task of trio runs in this thread."""
    trio = sys.modules.get("trio")
    if trio is None:
        return False
    # Another thread may be importing it just now: then it has no lowlevel, and no run here.
    lowlevel = getattr(trio, "lowlevel", None)
    return lowlevel is not None and bool(lowlevel.in_trio_task())


def running_asyncio() -> asyncio.AbstractEventLoop:
    """The loop of asyncio that runs in this thread.

    Raises:
        InvalidState: no loop of asyncio runs.
    """
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise InvalidState(
            "[Future] no event loop runs in this thread: "
            "await it in asyncio or trio, or call wait()"
        ) from None


def _reactor_of_asyncio(loop: asyncio.AbstractEventLoop) -> Reactor:
    global _latest
    latest, known = _latest
    reactor = known() if latest() is loop else None
    if reactor is not None:
        return reactor
    found = _asyncio_reactors.get(loop)
    reactor = None if found is None else found()
    if reactor is None:
        reactor = Reactor()
        loop.add_reader(reactor.notifier.fileno(), reactor.wake)
        _asyncio_reactors[loop] = weakref.ref(reactor)
    _latest = weakref.ref(loop), weakref.ref(reactor)
    return reactor


async def _pump(reactor: Reactor) -> None:
    import trio

    try:
        while True:
            await trio.lowlevel.wait_readable(reactor.notifier.fileno())
            reactor.wake()
    finally:
        reactor.leave(trio.lowlevel.reschedule)
        _retire(reactor)


def _retire(reactor: Reactor) -> None:
    """Close the reactor of a run that ends, unless a task still waits."""
    if reactor.idle():
        _trio_reactor.set(_ENDING)
        reactor.close()


async def turn(reactor: Reactor) -> None:
    """Wait for the descriptor in the waiting task itself, and make the callbacks that are due.

    Tasks wait so at the end of a run of trio, which finalizes async generators after all system
    tasks have ended. One of them waits for the descriptor, makes the callbacks and lets all others
    check again. If each waited for it, one could empty it just before another begins to wait.
    """
    import trio

    reactor.turns += 1
    try:
        if reactor.led:
            await _follow(reactor)
            return
        reactor.led = True
        try:
            await trio.lowlevel.wait_readable(reactor.notifier.fileno())
            reactor.wake()
        finally:
            reactor.led = False
            while reactor.followers:
                trio.lowlevel.reschedule(reactor.followers.pop())
    finally:
        reactor.turns -= 1
        _retire(reactor)


async def _follow(reactor: Reactor) -> None:
    import trio

    task = trio.lowlevel.current_task()

    def abort(_: object) -> trio.lowlevel.Abort:
        reactor.followers.discard(task)
        return trio.lowlevel.Abort.SUCCEEDED

    reactor.followers.add(task)
    await trio.lowlevel.wait_task_rescheduled(abort)


def _reactor_of_trio() -> Reactor:
    import trio

    global _trio_reactor
    if _trio_reactor is None:
        with _lock:
            if _trio_reactor is None:
                _trio_reactor = trio.lowlevel.RunVar("aggml_reactor", None)
    known = _trio_reactor.get()
    if isinstance(known, Reactor):
        return known
    reactor = Reactor(pumped=known is not _ENDING)
    if reactor.pumped:
        try:
            trio.lowlevel.spawn_system_task(_pump, reactor, name="aggml reactor")
        except RuntimeError:  # the run is past its system tasks
            reactor.leave(trio.lowlevel.reschedule)
    _trio_reactor.set(reactor)
    return reactor


def known_reactor() -> Reactor | None:
    """The reactor of this run of trio if there is one."""
    reactor = None if _trio_reactor is None else _trio_reactor.get()
    return reactor if isinstance(reactor, Reactor) else None


def current_reactor() -> Reactor:
    """The reactor of the loop that runs in this thread. InvalidState: none does."""
    return _reactor_of_trio() if in_trio() else _reactor_of_asyncio(running_asyncio())


def current_task() -> object | None:
    """The task that runs now, to be compared by identity; None outside of a loop."""
    if in_trio():
        import trio

        return trio.lowlevel.current_task()
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


# -- waiting


def checkpoint() -> Generator[Any, Any, None]:
    """Let other tasks run once, and notice a cancellation."""
    if in_trio():
        import trio

        yield from trio.lowlevel.checkpoint().__await__()
    else:
        running_asyncio()
        yield  # asyncio.sleep(0) does the same


class _Checkpoint:
    __slots__ = ()

    def __await__(self) -> Generator[Any, Any, None]:
        return checkpoint()


CHECKPOINT = _Checkpoint()  # to be awaited: a cheaper anyio.lowlevel.checkpoint()


def wait_op(op: _native.Op) -> Generator[Any, Any, None]:
    """Suspend this task until ``op`` is done; at least one checkpoint.

    The task first lets the loop turn once: work of a few microseconds is done by then, and the
    descriptor is neither written nor polled. It waits at once for work that lasts longer.
    """
    return _wait_trio(op) if in_trio() else _wait_asyncio(running_asyncio(), op)


def _wait_asyncio(loop: asyncio.AbstractEventLoop, op: _native.Op) -> Generator[Any, Any, None]:
    owed = op.lasts and not op.done()  # the checkpoint
    if not owed:
        yield
    while not op.done():
        waiter: asyncio.Future[None] = loop.create_future()
        resume = partial(_native.resume, waiter)
        if loop.get_debug():
            resume = partial(_resume_timed, loop, waiter, asyncio.current_task())
        entry = _reactor_of_asyncio(loop).arm(op, resume)
        if entry is None:
            break
        try:
            yield from waiter
        finally:
            entry.cancel()
        owed = False
    if owed:
        yield


def _resume_timed(
    loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[None], task: object
) -> None:
    """Resume a task in debug mode, in which asyncio names whatever holds up the loop.

    asyncio sees the task's step as a part of the reactor's callback, so the task is named here.
    """
    begin = loop.time()
    _native.resume(waiter)
    took = loop.time() - begin
    if took >= getattr(loop, "slow_callback_duration", math.inf):
        logging.getLogger("asyncio").warning("Executing %r took %.3f seconds", task, took)


def _wait_trio(op: _native.Op) -> Generator[Any, Any, None]:
    import trio

    owed = op.lasts and not op.done() and _reactor_of_trio().pumped  # the checkpoint
    if not owed:
        yield from trio.lowlevel.checkpoint().__await__()
    while not op.done():
        reactor = _reactor_of_trio()
        if not reactor.pumped:
            yield from _wait_ending(reactor, op)
            break
        task = trio.lowlevel.current_task()
        entry = reactor.arm(op, partial(trio.lowlevel.reschedule, task))
        if entry is None:
            break

        def abort(_: object, entry: _native.Waiter = entry) -> trio.lowlevel.Abort:
            entry.cancel()
            return trio.lowlevel.Abort.SUCCEEDED

        yield from trio.lowlevel.wait_task_rescheduled(abort).__await__()
        owed = False
    if owed:
        yield from trio.lowlevel.checkpoint().__await__()
    if _unpumped:
        # This run has no system task that makes due callbacks. So each waiting task makes them,
        # even if its own operation was done immediately.
        found = known_reactor()
        if found is not None and not found.pumped:
            found.wake()
            if found.turns:  # the descriptor is empty now, but perhaps it was written for them
                found.notifier.signal()


def _wait_ending(reactor: Reactor, op: _native.Op) -> Generator[Any, Any, None]:
    entry = reactor.arm(op, _nothing)
    try:
        while entry is not None and not op.done():
            yield from turn(reactor).__await__()
    finally:
        if entry is not None:
            entry.cancel()


def _nothing() -> None:
    """The callback for a task that checks by itself."""
