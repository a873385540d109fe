"""How a task waits for an operation, on asyncio and trio, and lets the loop turn once.

Not here: the reactor, which knows when operations are done (reactor.py); the Future (future.py).
"""

from __future__ import annotations

import asyncio
import logging
import math
from functools import partial
from typing import TYPE_CHECKING, Any

from aggml.native import _native
from aggml.stream.reactor import (
    anything_unpumped,
    in_trio,
    known_reactor,
    protect,
    reactor_of_asyncio,
    reactor_of_trio,
    retire,
    running_asyncio,
)

if TYPE_CHECKING:
    from collections.abc import Generator

    import trio

    from aggml.stream.reactor import Reactor

__all__ = ["CHECKPOINT", "checkpoint", "turn", "wait_op"]


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
        entry = reactor_of_asyncio(loop).arm(op, resume)
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

    owed = op.lasts and not op.done() and reactor_of_trio().pumped  # the checkpoint
    if not owed:
        yield from trio.lowlevel.checkpoint().__await__()
    while not op.done():
        reactor = reactor_of_trio()
        if not reactor.pumped:
            yield from _wait_ending(reactor, op)
            break
        if reactor.resting is not None and not reactor.led:
            yield from protect(_lead)(reactor, op)
            owed = False
            continue
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
    if anything_unpumped():
        # This run has no system task that makes due callbacks. So each waiting task makes them,
        # even if its own operation was done immediately.
        found = known_reactor()
        if found is not None and not found.pumped:
            found.wake()
            # The descriptor is empty now, but perhaps it was written for those who wait for it.
            if found.turns or found.led:
                found.notifier.signal()


def _lead(reactor: Reactor, op: _native.Op) -> Generator[Any, Any, None]:
    """Wait until the descriptor is readable, in the waiting task itself.

    The reactor's pump is a task, too: it would run first, wait again, and this task would run one
    turn of the loop later. From the end of 200 us of work to the resumed task: 16.8 and 10.0 us.
    Meanwhile the pump rests. If others still wait when this task goes on, the pump starts again.
    """
    import trio

    if reactor.stale:
        reactor.wake()
    reactor.led = True
    try:
        entry = reactor.arm(op, _nothing)
        if entry is None:
            return
        try:
            yield from trio.lowlevel.wait_readable(reactor.notifier.fileno()).__await__()
            reactor.stale = True
        finally:
            entry.cancel()
    finally:
        reactor.led = False
        while reactor.followers:
            trio.lowlevel.reschedule(reactor.followers.pop())
        reactor.start()
        if not reactor.pumped:
            retire(reactor)


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


# -- at the end of a run of trio


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
        retire(reactor)


async def _follow(reactor: Reactor) -> None:
    import trio

    task = trio.lowlevel.current_task()

    def abort(_: object) -> trio.lowlevel.Abort:
        reactor.followers.discard(task)
        return trio.lowlevel.Abort.SUCCEEDED

    reactor.followers.add(task)
    await trio.lowlevel.wait_task_rescheduled(abort)
