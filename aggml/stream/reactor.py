"""Reactor: the bridge from native completions to the tasks of one event loop, asyncio or trio.

Here: which of the two runs; one reactor and one file descriptor per event loop. A callback waits
for a (stream, ticket). The native side keeps the list of waits. When a ticket is done, it writes to
the descriptor and returns the callbacks that are due; the reactor calls these and inspects nothing
else. Not here: how a task waits (waits.py), the Future (future.py), sleeping without an operation
(parker.py).

Only its event loop keeps a reactor alive: asyncio's selector, or trio's run. So when the loop is
closed, the reactor goes with it, and so do all waits.
"""

from __future__ import annotations

import asyncio
import sys
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

from aggml.errors import InvalidState
from aggml.native import _native
from aggml.process.foreign import report
from aggml.process.locks import new_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    import trio

__all__ = [
    "Reactor",
    "anything_unpumped",
    "current_reactor",
    "current_task",
    "in_trio",
    "known_reactor",
    "protect",
    "reactor_of_asyncio",
    "reactor_of_trio",
    "retire",
    "running_asyncio",
    "running_loop",
    "spawn",
]


class Reactor:
    """Calls back, in its loop, once tickets are done.

    Attributes:
        notifier: the native object with the file descriptor.
        pumped: whether the event loop itself calls `wake`; else the waiting tasks do, see `turn` in
            waits.py.
        turns: how many tasks are in `turn` at this moment.
        led: whether a task, not the pump of trio, waits for the descriptor.
        followers: the other tasks in `turn`, tasks of trio.
        resting: the pump of trio, a task, while it has nothing to wait for.
        stale: whether the descriptor may be readable although nobody has to wake for it.
        parked: makes sleeping tasks check again; they sleep for something other than an operation.
    """

    def __init__(self, *, pumped: bool = True) -> None:
        self.notifier: _native.Notifier = _native.Notifier()
        _native.sched_loop()  # from now on the loop runs as soon as it wakes, despite busy workers
        global _unpumped
        self.pumped: bool = pumped
        _unpumped = _unpumped or not pumped
        self.turns = 0
        self.led = False
        self.followers: set[Any] = set()
        self.parked: set[Callable[[], None]] = set()
        self.resting: Any = None
        self.stale: bool = False

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
        entry = self.notifier.watch(op, callback)
        if not self.led:
            self.start()
        return entry

    def start(self) -> None:
        """Let trio's pump wait for the descriptor, if it rests and any callback waits."""
        if self.resting is not None and self.notifier.waits:
            protect(_start)(self)

    def wake(self) -> None:
        """Make all due callbacks; runs in the loop whenever the descriptor is readable."""
        try:
            self.notifier.call_due(_log_failed)  # before the drain, a system call of 0.8 us
            self.stale = False
            self.notifier.drain()  # also takes the signals of what came since, called next
            self.notifier.call_more_due(_log_failed)
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
        return not (self.turns or self.parked or self.notifier.waits)

    def close(self) -> None:
        """Close the descriptor after the loop has ended; no callback is made any more."""
        self.notifier.close()
        self.notifier.cancel_all()

    def __del__(self) -> None:
        if hasattr(self, "notifier"):  # else there was no descriptor for one
            self.close()


def _log_failed(error: BaseException) -> None:
    report("[Reactor] a callback failed", error)


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
_unpumped = False
_protected: dict[Any, Any] = {}  # see `protect`


def protect(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, in which Ctrl-C interrupts no task of trio."""
    found = _protected.get(function)
    if found is None:
        import trio

        found = _protected[function] = trio.lowlevel.enable_ki_protection(function)
    return found


def anything_unpumped() -> bool:
    """Whether any reactor of this process is, or was, not pumped by its loop."""
    return _unpumped


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


def running_loop() -> object:
    """The event loop of this task: asyncio's loop, or the token of trio's run."""
    if in_trio():
        import trio

        return trio.lowlevel.current_trio_token()
    return running_asyncio()


def reactor_of_asyncio(loop: asyncio.AbstractEventLoop) -> Reactor:
    """The reactor of a loop of asyncio, made when it is first asked for."""
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
            if reactor.notifier.waits:
                await trio.lowlevel.wait_readable(reactor.notifier.fileno())
                reactor.wake()
            else:
                await _rest(reactor)
    finally:
        reactor.leave(trio.lowlevel.reschedule)
        retire(reactor)


def _start(reactor: Reactor) -> None:
    """End the rest of the pump. Protected: Ctrl-C between its lines would leave it asleep."""
    import trio

    task, reactor.resting = reactor.resting, None
    trio.lowlevel.reschedule(task)


async def _rest(reactor: Reactor) -> None:
    """Sleep until a callback waits that no task that leads takes care of."""
    import trio

    def abort(_: object) -> trio.lowlevel.Abort:
        reactor.resting = None
        return trio.lowlevel.Abort.SUCCEEDED

    reactor.resting = trio.lowlevel.current_task()
    await trio.lowlevel.wait_task_rescheduled(abort)


def retire(reactor: Reactor) -> None:
    """Close the reactor of a run that ends, unless a task still waits."""
    if reactor.idle():
        _trio_reactor.set(_ENDING)
        reactor.close()


def reactor_of_trio() -> Reactor:
    """The reactor of the run of trio in this thread, made when it is first asked for."""
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
    return reactor_of_trio() if in_trio() else reactor_of_asyncio(running_asyncio())


def current_task() -> object | None:
    """The task that runs now, to be compared by identity; None outside of a loop."""
    if in_trio():
        import trio

        return trio.lowlevel.current_task()
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


# asyncio keeps its tasks weakly.
_spawned: set[asyncio.Task[None]] = set()


def spawn(function: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a function as a task of this event loop that belongs to no other task.

    It is cancelled when the loop ends, and has to handle every exception of its own.

    Raises:
        InvalidState: no event loop runs in this thread.
    """
    if in_trio():
        import trio

        trio.lowlevel.spawn_system_task(function)
        return
    loop = running_asyncio()
    task = loop.create_task(function())
    _spawned.add(task)
    task.add_done_callback(_spawned.discard)
