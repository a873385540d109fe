"""BatchEngine: vectors, ranks and windows of speech, which one step answers, computed in batches.

It has no task and no loop of its own: those who wait drive it. A task adds its requests to the
queue. If there is room for a batch, the task takes one from the queue, computes it and hands out
the results; if not, it parks until it has its results or there is room. So the engine works for
tasks of any event loop and any thread.

Here: which requests a batch has (`choose`, a pure function), the queue, cancellation, deadlines.
Not here: the computation (encoder/, speech/), text token by token (engine.py).
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import anyio

from aggml.models.engine.policy import AGING, Shares, divide_fairly
from aggml.models.engine.requests import caller
from aggml.models.errors import DeadlineError, EngineError, FullError
from aggml.process.locks import new_lock
from aggml.stream.parker import Parker, post_here
from aggml.stream.reactor import running_loop
from aggml.stream.waits import CHECKPOINT

if TYPE_CHECKING:
    import threading
    from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence

__all__ = ["BatchEngine", "Waiting", "choose"]


T = TypeVar("T", bound=Sized)  # its length counts towards the size of its batch
R = TypeVar("R")


class Waiting(NamedTuple):
    """What the policy knows of a request in the queue.

    Attributes:
        size: length of its item.
        priority: as its caller gave it.
        since: when it arrived, in seconds.
        caller: whose request it is.
    """

    size: int
    priority: int = 0
    since: float = 0.0
    caller: Hashable = None


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A request of the queue, with what its caller got so far; `policy.OfCaller`."""

    number: int
    caller: Hashable
    served: int
    tokens: int


def choose(
    queue: Sequence[Waiting], full: int, now: float, shares: Shares | None = None
) -> list[int]:
    """Which requests the next batch has: their places in the queue, in order of rank.

    A higher priority comes first; among equal ones the caller that got the fewest tokens, then the
    earlier arrival. A request gains one priority in every `AGING` seconds. The first one is always
    chosen, however long it is; of the others those for which there is still room. So nobody is
    passed over for ever: each batch has the first one.

    Args:
        queue: in order of arrival.
        full: the largest sum of sizes.
        now: the time, in seconds.
        shares: what each caller got; None: all got the same.
    """
    if len(queue) == 1:
        return [0]
    levels: dict[int, list[int]] = {}
    for i, one in enumerate(queue):
        levels.setdefault(one.priority + int((now - one.since) / AGING), []).append(i)
    order: list[int] = []
    for level in sorted(levels, reverse=True):
        those = levels[level]
        if all(queue[i].caller == queue[those[0]].caller for i in those):
            order += those
            continue
        fair = divide_fairly(
            _Candidate(
                i,
                queue[i].caller,
                shares.served_tokens(queue[i].caller) if shares else 0,
                queue[i].size,
            )
            for i in those
        )
        order += [x.number for x in fair]
    chosen: list[int] = []
    size = 0
    for i in order:
        if not chosen or size + queue[i].size <= full:
            chosen.append(i)
            size += queue[i].size
    return chosen


@dataclass(eq=False, slots=True)
class _Request:
    """An item on its way. It is in the queue, or in a batch, or answered."""

    item: Any
    about: Waiting
    call: _Call
    result: Any = None


class _Batch:
    """Requests that are computed together.

    Attributes:
        requests: those that still need their results.
        size: sum of their sizes.
        abort: ends the computation, from any thread; None: it does not depend on others.
    """

    __slots__ = ("abort", "requests", "size")

    def __init__(self, requests: list[_Request], size: int) -> None:
        self.requests = requests
        self.size = size
        self.abort: Callable[[], object] | None = None


class _Call:
    """A task with its requests.

    Attributes:
        home: the event loop of the task.
        caller: for whom it asks.
        calls: those that take items from the same ones, itself included; None: itself alone.
        most: the most that the ``size`` of all of these may be.
        place: what it calls, for messages.
        left: how many of its requests in queue and batches are not answered.
        size: the sum of their sizes.
        queued: how many of its requests are in the queue.
        batch: the one that the task is computing.
        error: why a batch with a request of it failed.
        parker: where the task sleeps; None: it did not have to so far.
    """

    __slots__ = (
        "batch", "caller", "calls", "error", "home", "left", "most", "parker", "place", "queued",
        "removed", "size",
    )  # fmt: skip

    def __init__(self, most: int, place: str, calls: list[_Call] | None = None) -> None:
        self.calls = calls
        self.place = place
        self.most = most
        self.parker: Parker | None = None
        self.home = running_loop()
        self.caller = caller.get()
        self.left = self.size = self.queued = 0
        self.removed = False  # it was taken out of the engine
        self.batch: _Batch | None = None
        self.error: Exception | None = None

    @property
    def waits(self) -> bool:
        """Whether it needs results that may still come."""
        return self.left > 0 and self.error is None


class _Homes:
    """Calls by the event loop of their tasks."""

    __slots__ = ("calls",)

    def __init__(self) -> None:
        self.calls: dict[object, dict[_Call, None]] = {}

    def add(self, call: _Call) -> None:
        self.calls.setdefault(call.home, {})[call] = None

    def discard(self, call: _Call) -> None:
        found = self.calls.get(call.home)
        if found is not None and call in found:
            del found[call]
            if not found:
                del self.calls[call.home]  # so that the loop can be freed


class _Guard:
    """``with``: the state of an engine is this thread's; at its end, calls that left are removed.

    A task may leave at any moment: Python's collector, which may run while this thread holds the
    lock, finalizes tasks of loops that nobody runs any more. So who leaves never waits for the
    lock.
    """

    __slots__ = ("_engine",)

    def __init__(self, engine: BatchEngine[Any, Any]) -> None:
        self._engine = engine

    def __enter__(self) -> None:
        self._engine.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._engine.lock.release()
        if self._engine.gone:
            self._engine.sweep()


class BatchEngine(Generic[T, R]):
    """Makes batches of the items that tasks submit: ``result = await engine.submit(item)``.

    No request waits for a batch to fill: while one batch is computed, the next one collects.

    Args:
        compute: takes a list of items and returns a result for each. It is cancelled if the task
            that computes is cancelled, or if nobody waits for its results any more.
        full: a batch is full at this sum of lengths; a single item may be longer.
        max_waiting: how many requests may be in the queue; more are refused.
        at_once: how many batches may be computed at a time. A call with more than fills one batch
            computes so many at a time itself.
        enough: a further batch begins beside a running one only if this sum of lengths is in the
            queue; None: only if it is full.
    """

    def __init__(
        self,
        compute: Callable[[list[T]], Awaitable[Sequence[R]]],
        *,
        full: int,
        max_waiting: int,
        at_once: int = 1,
        enough: int | None = None,
    ) -> None:
        self._compute = compute
        self._full = full
        self._enough = full if enough is None else enough
        self._max_waiting = max_waiting
        self._at_once = at_once
        self._queue: list[_Request] = []  # in order of arrival
        self._queued = 0  # sum of sizes
        self._batches: set[_Batch] = set()  # that are computed now
        # Calls that have requests in the queue and are parked; calls that are awake and will look
        # at the queue soon. By their loops: one that stands still must not stop the others.
        self._parked = _Homes()
        self._awake = _Homes()
        self.gone: deque[_Call] = deque()  # they have left, and their requests are still here
        self._shares = Shares()
        self._rate = 0.0  # measured: sizes a second; 0: nothing was measured yet
        self.lock: threading.Lock = (
            new_lock()
        )  # held for moments only; nothing is awaited meanwhile
        self._guard = _Guard(self)

    async def submit(
        self,
        item: T,
        priority: int = 0,
        deadline: float | None = None,
        place: str = "BatchEngine.submit",
    ) -> R:
        """The result for one item: see `submit_all`."""
        return (await self.submit_all([item], priority, deadline, place))[0]

    async def submit_all(
        self,
        items: Iterable[T],
        priority: int = 0,
        deadline: float | None = None,
        place: str = "BatchEngine.submit",
    ) -> list[R]:
        """The results for several items, in their order.

        No more of them are in the queue and in batches at a time than two batches have. So
        somebody else's item does not wait for all of them.

        Args:
            items: any number.
            priority: higher ones are computed first. Among equal ones the caller that got the
                fewest tokens comes first (`aggml.models.caller`).
            deadline: seconds from now, in which all results are needed.
            place: the call, for messages.

        Raises:
            EngineError: the computation failed; the cause is attached.
            FullError: too many requests are waiting.
            DeadlineError: the deadline has passed, or is predicted to be missed: then nothing is
                computed.

        Cancellation: takes the requests back. Other requests of the same batch are answered. If the
        cancelled task was computing the batch, another one begins it again.
        """
        todo = deque(items)
        if deadline is None:
            return await self._answers(todo, priority, place)
        self._foresee(sum(map(len, todo)), deadline, place)
        with anyio.move_on_after(deadline):
            return await self._answers(todo, priority, place)
        raise DeadlineError(f"[{place}] the deadline of {deadline:g} s has passed")

    def _foresee(self, size: int, deadline: float, place: str) -> None:
        """Refuse what cannot be done in time.

        Raises:
            DeadlineError: it cannot.
        """
        with self._guard:
            before = self._queued + sum(batch.size for batch in self._batches)
            needed = (before + size) / self._rate if self._rate else 0.0
        if deadline <= 0 or needed > deadline:
            raise DeadlineError(
                f"[{place}] the deadline of {deadline:g} s cannot be met: "
                f"{needed:.3g} s are predicted"
            )

    async def _answers(self, todo: deque[T], priority: int, place: str) -> list[R]:
        requests: list[_Request] = []
        if self._at_once == 1 or sum(map(len, todo)) <= self._full:
            await self._take_part(_Call(2 * self._full, place), requests, todo, priority)
            return [request.result for request in requests]
        failures: list[Exception] = []
        calls: list[_Call] = []
        most = self._at_once * self._full
        calls += [_Call(most, place, calls) for _ in range(self._at_once)]
        working = len(calls)

        async def take_part(call: _Call) -> None:
            nonlocal working
            try:
                await self._take_part(call, requests, todo, priority)
            except Exception as error:
                working -= 1
                if not working or not isinstance(error, FullError):  # else the others go on
                    failures.append(error)
                    tasks.cancel_scope.cancel()

        # A task computes one batch at a time. While its results are handed out, the device would
        # have nothing to do if there were no other one.
        try:
            async with anyio.create_task_group() as tasks:
                for call in (*calls,):
                    tasks.start_soon(take_part, call)
        finally:
            calls.clear()  # they refer to each other through it
        if failures:
            raise failures[0]
        return [request.result for request in requests]

    async def _take_part(
        self, call: _Call, requests: list[_Request], todo: deque[T], priority: int
    ) -> None:
        """Bring items to the queue, compute batches, and wait until these items have their results.

        Args:
            call: of this task.
            requests: of all items so far, in their order; further ones are added.
            todo: the items that are still to come; other tasks may take from them as well.
            priority: of the items.

        Raises:
            EngineError: the computation failed.
            FullError: too many requests are waiting.
        """
        if not todo:
            await CHECKPOINT
        self._shares.enter(call.caller)
        try:
            while call.error is None and (call.left or todo):
                with self._guard:
                    self._awake.add(call)
                    added = self._add(call, requests, todo, priority)
                if added:
                    await CHECKPOINT  # tasks that are ready add their requests before a batch
                with self._guard:
                    batch = self._begin(call)
                if batch is not None:
                    await self._drive(batch, call, last=not todo)
                elif call.waits and call.parker is not None:
                    await call.parker.park()
        finally:
            if not call.removed:
                self.gone.append(call)
                self.sweep()
        if call.error is not None:
            if isinstance(call.error, EngineError):
                raise call.error
            raise EngineError(f"[{call.place}] {call.error}") from call.error

    async def _drive(self, batch: _Batch, call: _Call, *, last: bool) -> None:
        """Compute a batch and hand out its results.

        Args:
            batch: is computed by this task.
            call: of this task.
            last: whether it has no further items to add.
        """
        begin = time.perf_counter()
        error: Exception | None = None
        computed = list(batch.requests)
        items = [request.item for request in computed]
        results: Sequence[R] = ()
        try:
            if any(request.call is call for request in computed):
                results = await self._compute(items)
            else:
                results = await self._compute_for_others(batch, items)
            if batch.requests and len(results) != len(computed):
                raise EngineError(
                    f"[BatchEngine.submit] {len(results)} results for {len(computed)} requests"
                )
        except Exception as failure:  # of any class: the waiting tasks must get it
            error = failure
        if error is None:
            for request, result in zip(computed, results, strict=False):
                request.result = result
        with self._guard:
            if error is None and batch.requests:
                rate = batch.size / max(time.perf_counter() - begin, 1e-9)
                self._rate = 0.7 * self._rate + 0.3 * rate if self._rate else rate
            ready = self._answer(batch, call, error)
            if not ready:
                self._end(call)
                if last and not call.left:
                    self._remove(call)
                return
        woken = 0
        try:
            for other in ready:
                woken += 1
                if other.parker is None:
                    continue  # it is awake, and will look
                if other.home is call.home:
                    other.parker.unpark_here()
                else:
                    other.parker.unpark()
                # One task in each turn of the loop: a woken task takes 0.1 to 0.4 ms beside busy
                # workers, so all at once would hold up the loop.
                await CHECKPOINT
        finally:
            for other in ready[woken:]:
                if other.parker is not None:
                    other.parker.unpark()
        with self._guard:
            self._end(call)

    async def _compute_for_others(self, batch: _Batch, items: list[T]) -> Sequence[R]:
        """Compute a batch without a request of this task; it ends if nobody needs it any more."""
        with anyio.CancelScope() as scope:
            post = post_here()
            with self._guard:
                batch.abort = lambda: post(scope.cancel)
                needed = bool(batch.requests)
            if needed:
                return await self._compute(items)
        return ()

    # -- changes of the state, each called with the lock

    def _add(self, call: _Call, requests: list[_Request], todo: deque[T], priority: int) -> bool:
        """Add items to the queue, as many as the call may have there; False: none.

        Raises:
            FullError: the queue is full.
        """
        added, now, size = False, time.monotonic(), sum(x.size for x in call.calls or (call,))
        while todo and (not call.left or size + len(todo[0]) <= call.most):
            if len(self._queue) >= self._max_waiting:
                if call.left:
                    break
                seconds = math.ceil(self._queued / self._rate) if self._rate else 1
                raise FullError(
                    f"[{call.place}] {len(self._queue)} requests are waiting, at most "
                    f"{self._max_waiting} may",
                    max(1, seconds),
                )
            item = todo.popleft()
            request = _Request(item, Waiting(len(item), priority, now, call.caller), call)
            requests.append(request)
            self._enqueue(request)
            call.left += 1
            call.size += request.about.size
            size += request.about.size
            added = True
        return added

    def _enqueue(self, request: _Request) -> None:
        self._queue.append(request)
        self._queued += request.about.size
        request.call.queued += 1

    def _may_begin(self) -> bool:
        running = len(self._batches)
        if not self._queue or running >= self._at_once:
            return False
        return not running or self._queued >= self._enough

    def _begin(self, call: _Call) -> _Batch | None:
        """The next batch, which the task then computes; None: the task has to park, or is done."""
        self._awake.discard(call)
        if not call.waits:
            return None
        if not self._may_begin():
            call.parker = call.parker or Parker()  # before anybody can look for it
            if call.queued:
                self._parked.add(call)
            return None
        chosen = self._queue
        left: list[_Request] = []
        if len(chosen) > 1:
            queue = [x.about for x in chosen]
            places = choose(queue, self._full, time.monotonic(), self._shares)
            chosen = [self._queue[i] for i in places]
            taken = set(places)
            left = [x for i, x in enumerate(self._queue) if i not in taken]
        self._queue = left
        size = 0
        for request in chosen:
            size += request.about.size
            request.call.queued -= 1
            if not request.call.queued:
                self._parked.discard(request.call)
        self._queued -= size
        batch = call.batch = _Batch(chosen, size)
        self._batches.add(batch)
        self._wake()
        return batch

    def _wake(self) -> None:
        """If there is room for a batch, a task of each loop looks at the queue."""
        if not self._may_begin():
            return
        for home, parked in [*self._parked.calls.items()]:
            if home in self._awake.calls:
                continue
            call = next(iter(parked))
            if call.parker is None or call.parker.unpark():  # without one it is awake
                self._parked.discard(call)
                self._awake.add(call)
            else:  # its loop is closed, so nobody waits there any more
                for each in [*parked]:
                    self._remove(each)

    def _answer(self, batch: _Batch, call: _Call, error: Exception | None) -> list[_Call]:
        """Note that a batch is done; returns the tasks to wake."""
        ready: dict[_Call, None] = {}
        for request in batch.requests:
            other = request.call
            other.left -= 1
            other.size -= request.about.size
            self._shares.charge(other.caller, request.about.size)
            if error is not None:
                other.error = error
            # it is done, or it has more requests to add
            if other is not call and (error is not None or not other.queued):
                ready[other] = None
        batch.requests = []
        return [*ready]

    def _end(self, call: _Call) -> None:
        """The task does not compute any more."""
        batch, call.batch = call.batch, None
        if batch is not None:
            self._batches.discard(batch)
            batch.abort = None
            if batch.requests:  # it was cancelled: the others' requests come first again
                self._queue, after = [], self._queue
                self._queued = 0
                for request in after:
                    request.call.queued -= 1
                for request in (*batch.requests, *after):
                    self._enqueue(request)
                for other in dict.fromkeys(request.call for request in batch.requests):
                    awake = self._awake.calls.get(other.home, {})
                    if other is not call and other.batch is None and other not in awake:
                        self._parked.add(other)
                batch.requests = []
        self._wake()

    def _remove(self, call: _Call) -> None:
        """Forget a call: take its requests out of the queue and of the batches."""
        self._parked.discard(call)
        self._awake.discard(call)
        if call.queued:
            self._queue = [x for x in self._queue if x.call is not call]
            self._queued = sum(x.about.size for x in self._queue)
        for batch in self._batches if call.left else ():
            batch.requests = [x for x in batch.requests if x.call is not call]
            if not batch.requests and batch.abort is not None:
                with contextlib.suppress(RuntimeError):  # the loop that computes it is closed
                    batch.abort()
        call.left = call.queued = call.size = 0
        if not call.removed:
            call.removed = True
            self._shares.leave(call.caller)

    def sweep(self) -> None:
        """Remove the calls that have left; if another thread holds the lock, that one does it."""
        while self.gone and self.lock.acquire(blocking=False):
            try:
                while self.gone:
                    call = self.gone.popleft()
                    self._remove(call)
                    self._end(call)
            finally:
                self.lock.release()
