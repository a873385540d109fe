"""SlotPool: some slots by number, for tasks of any event loop and of any thread, in their order.

A lock, semaphore or event of anyio, asyncio or trio belongs to the loop that made it or used it
first. This one belongs to none: it wakes each waiting task in that task's own loop. ``SlotPool(1)``
is a lock. Not here: what the slots are; the order of submissions to a backend (admission.py).
"""

from __future__ import annotations

import os
from collections import deque

from aggml.errors import InvalidArgument, InvalidState
from aggml.process.locks import new_lock
from aggml.stream.parker import Parker
from aggml.stream.waits import CHECKPOINT

__all__ = ["SlotHeld", "SlotPool"]


class _Waiting:
    """A task that waits for a slot."""

    __slots__ = ("claims", "given", "parker", "wanted")

    def __init__(self, wanted: int | None) -> None:
        self.parker = Parker()
        self.wanted = wanted
        # One element: who takes it decides. The pool takes it to hand over a slot, the task to
        # leave the queue. `list.pop` is atomic.
        self.claims = [None]
        self.given: list[int] = []  # the slot; whoever pops it owns it

    def claim(self) -> bool:
        """Whether the caller is the first to claim."""
        try:
            self.claims.pop()
        except IndexError:
            return False
        return True

    def take_back(self) -> list[int]:
        """The slot that was handed over, unless somebody else has taken it meanwhile."""
        try:
            return [self.given.pop()]
        except IndexError:
            return []


class SlotPool:
    """The slots 0, 1, ..., ``slots`` - 1; whoever waits gets one, first come, first served.

    No method waits for a lock, so `give` may be called at any point, also by a finalizer that the
    garbage collector runs in the middle of another method of the same pool.

    Args:
        slots: how many there are, at least 1.
    """

    def __init__(self, slots: int) -> None:
        if slots < 1:
            raise InvalidArgument(f"[SlotPool] slots is {slots}, must be at least 1")
        self._slots = slots
        self._free: deque[int] = deque(range(slots))
        self._queue: deque[_Waiting] = deque()
        self._left = 0  # waiting tasks that have left and are still in the queue, about
        # Held only while slots are handed over. It is never waited for: who finds it taken has
        # made its change before, and its holder looks again after the release.
        self._lock = new_lock()
        self._process = os.getpid()

    @property
    def free(self) -> int:
        """How many slots nobody has."""
        return len(self._free)

    async def take(self, wanted: int | None = None) -> int:
        """A free slot; the caller gives it back by `give`.

        Args:
            wanted: the slot to take if it is free; if not, another one is taken.

        Raises:
            InvalidState: the pool belongs to the parent process of a fork. The tasks that would
                give slots back are not in this process.

        Cancellation: leaves the queue; no slot is taken.
        """
        await CHECKPOINT
        if os.getpid() != self._process:
            raise InvalidState(
                "[SlotPool] it belongs to the parent process of a fork: make it anew in this one"
            )
        me = _Waiting(wanted)
        self._queue.append(me)
        self._hand_over()
        try:
            while me.claims:
                await me.parker.park()
        except BaseException:
            if me.claim():
                self._left += 1
            else:
                self._free.extendleft(me.take_back())
            self._hand_over()
            raise
        return me.given.pop()

    def give(self, slot: int) -> None:
        """Give a slot back; from any thread, also from a finalizer."""
        self._free.append(slot)
        self._hand_over()

    def slot(self) -> SlotHeld:
        """A slot for the time of a block: ``async with pool.slot() as slot``."""
        return SlotHeld(self)

    def _hand_over(self) -> None:
        """Give free slots to the first tasks of the queue."""
        while (self._free and self._queue) or self._left > len(self._queue) // 2:
            if not self._lock.acquire(blocking=False):
                return  # its holder looks again
            try:
                self._match()
            finally:
                self._lock.release()

    def _match(self) -> None:
        if self._left > len(self._queue) // 2:  # else tasks with a timeout could fill the queue
            self._left = 0
            those = [self._queue.popleft() for _ in range(len(self._queue))]
            self._queue.extendleft(reversed([one for one in those if one.claims]))
        while self._free and self._queue:
            waiting = self._queue.popleft()
            if waiting.wanted is not None and waiting.wanted in self._free:
                slot = waiting.wanted
                self._free.remove(slot)
            else:
                slot = self._free.popleft()
            waiting.given.append(slot)
            if not waiting.claim() or not waiting.parker.unpark():
                # It has left the queue, or its loop is closed.
                self._free.extendleft(waiting.take_back())

    def __repr__(self) -> str:
        waiting = sum(bool(waiting.claims) for waiting in list(self._queue))
        return f"<SlotPool {len(self._free)} of {self._slots} free, {waiting} waiting>"


class SlotHeld:
    """``async with``: a slot of a pool for the time of the block.

    A class, because leaving the block must never depend on an event loop: an asynchronous generator
    whose loop has been closed would not give its slot back.
    """

    __slots__ = ("_pool", "_slot")

    def __init__(self, pool: SlotPool) -> None:
        self._pool = pool

    async def __aenter__(self) -> int:
        self._slot = await self._pool.take()
        return self._slot

    async def __aexit__(self, *_: object) -> None:
        self._pool.give(self._slot)
