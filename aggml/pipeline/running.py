"""Running: the tasks of a pipeline, and what its consumer sees.

Each stage has as many tasks as workers; another task goes through the source. A task takes from the
queue before its stage and puts into the one behind it, so a slow consumer slows down the source.
All tasks end before ``async with run(...)`` does. They run in a scope of their own: an error
cancels them, and not the consumer, who gets the error at the next step of its loop.
"""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Generator, Iterable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Self

import anyio
from anyio.lowlevel import checkpoint

from aggml.errors import InvalidArgument, InvalidState
from aggml.pipeline.ordering import Ordering
from aggml.pipeline.queues import FanParts, Parcel, Queue
from aggml.pipeline.stages import Fan, Stage, StageError, StageStats, as_stage, show, whole
from aggml.pipeline.urgency import NOT_URGENT, Urgency, Urgent, present
from aggml.process import html
from aggml.tracing.timeline import note_work

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

__all__ = ["PipelineResults", "run"]

_DROPPED: Final = object()
#: What has a length, but no results in the order of the items.
_UNORDERED: Final = (AbstractSet, Mapping, str, bytes, bytearray)


def run(
    source: Iterable[Any] | AsyncIterable[Any],
    *stages: Stage | Fan | Callable[[Any], Any],
    buffer: int = 8,
    ordered: bool = True,
    on_error: Callable[[StageError], Any] | None = None,
) -> AbstractAsyncContextManager[PipelineResults]:
    """Run items through stages, which work at the same time.

    ``async with run(source, f, g) as results: async for item in results: ...``

    Args:
        source: items, each of which may be `Urgent`. A generator, async or not, is closed at the
            end.
        stages: see `Stage` and `fan`; a bare function is ``Stage(fn)``.
        buffer: how many items may wait before each stage, and for the consumer.
        ordered: whether results come in the order of the items of the source. If not, each comes
            when it is ready, and the most urgent item is taken first at each stage.
        on_error: a function, async or not, that is given each error. If it returns, the item is
            dropped and the run goes on. What it raises ends the run.

    Returns:
        A context manager. At the end of its block, all work that is left is cancelled.

    Raises:
        InvalidArgument: something is of another type or out of its range.
        StageError: by the loop over the results, or at the end of the block: a stage failed on an
            item. Results that were ready before come first.

    Cancellation: of the consumer cancels all stages.
    """
    if not hasattr(source, "__aiter__") and not hasattr(source, "__iter__"):
        raise InvalidArgument(
            f"[run] source is of type {type(source).__name__}, expected an iterable or an async one"
        )
    if not isinstance(ordered, bool):
        raise InvalidArgument(f"[run] ordered is {show(ordered)}, expected True or False")
    if on_error is not None and not callable(on_error):
        raise InvalidArgument(f"[run] on_error is {show(on_error)}, expected a function or None")
    size = whole("run", "buffer", buffer, 1)
    return _open(
        PipelineResults(source, [as_stage("run", x) for x in stages], size, ordered, on_error)
    )


@asynccontextmanager
async def _open(results: PipelineResults) -> AsyncIterator[PipelineResults]:
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        results.begin()
        tasks.start_soon(results.work)
        try:
            yield results
        except Exception as error:  # the group would wrap it
            failure = error
        finally:
            results.left = True
            tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
    results.raise_unseen()


class PipelineResults:
    """What comes out of a run: ``async for item in results``. ``print(results)`` draws the stages.

    Attributes:
        left: whether the block of ``async with run(...)`` has been left.
        broken: whether one of its tasks was cancelled, or ended by another interrupt.
    """

    def __init__(
        self,
        source: Iterable[Any] | AsyncIterable[Any],
        stages: list[Stage | Fan],
        buffer: int,
        ordered: bool,
        on_error: Callable[[StageError], Any] | None,
    ) -> None:
        self.left = self._complete = False
        self.broken: bool = False
        self._urgency = NOT_URGENT
        self._scope: anyio.CancelScope
        self._source, self._on_error = source, on_error
        self._buffer, self._ordered = buffer, ordered
        self._error: Exception | None = None
        self._seen = False
        self._stages = stages
        self._workers: dict[str, _Workers] = {}
        self._splitters: list[tuple[Queue, list[Queue]]] = []
        self._drawing: list[tuple[int, str]] = []  # depth, and a stage's name or a text
        queues = [self._queue(stage) for stage in stages] + [self._queue(None)]
        self._first, self._last = queues[0], queues[-1]
        self._first.producers = 1
        for stage, inbox, out in zip(stages, queues, queues[1:], strict=False):
            self._connect(stage, inbox, out, 1)

    # -- what the consumer uses

    @property
    def stats(self) -> dict[str, StageStats]:
        """What each stage has done so far, by its name; equal names get a number."""
        return {name: workers.stats for name, workers in self._workers.items()}

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:  # noqa: ANN401
        if await self._last.wait():
            return self._last.pop().value
        if self._error is not None:
            self._seen = True
            raise self._error
        if self.left and not self._complete:
            raise InvalidState("[pipeline] the block of this run has been left")
        if self.broken:  # by an interrupt, which the block raises at its end
            raise InvalidState("[pipeline] this run was cancelled before its last result")
        self._complete = True
        raise StopAsyncIteration

    def __str__(self) -> str:
        lines = ["source"]
        for depth, name in self._drawing:
            line = "   " * (depth - 1) + "-> " + name
            if name in self._workers:
                stage, stats = self._workers[name].stage, self._workers[name].stats
                how = f"{stage.workers} at a time" + (
                    "" if stage.batch is None else f", batches of {stage.batch}"
                )
                line = (
                    f"{line:24} {how:26} {stats.taken:7} taken {stats.given:7} given "
                    f"{stats.waiting:5} waiting {stats.busy_seconds:9.3f} s busy"
                )
            lines.append(line)
        return "\n".join([*lines, "-> results"])

    def __repr__(self) -> str:
        return f"<PipelineResults of {len(self._workers)} stages>"

    def _repr_html_(self) -> str:
        """For notebooks: the stages with their numbers at this moment."""
        return html.plain(str(self))

    # -- the tasks

    def begin(self) -> None:
        """Make what belongs to the event loop and to the task of the run."""
        self._urgency = present.get()
        self._scope = anyio.CancelScope()
        for workers in self._workers.values():
            workers.begin()

    async def work(self) -> None:
        """Go through the source and the stages, until all is done or an error ends the run."""
        with self._scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._feed, name="pipeline: source")
                for inbox, branches in self._splitters:
                    tasks.start_soon(_split, inbox, branches, name="pipeline: fan")
                for name, workers in self._workers.items():
                    for k in range(workers.stage.workers):
                        tasks.start_soon(workers.work, k, name=f"pipeline: {name} {k}")
            self._complete = True

    async def _feed(self) -> None:
        """Put the items of the source into the first queue."""
        try:
            source = self._source
            if not isinstance(source, Iterable):
                items = aiter(source)
                try:
                    async for item in items:
                        await self._enter(item)
                finally:
                    await _close(items)
            else:
                each = iter(source)
                try:
                    for item in each:
                        await self._enter(item)
                finally:
                    if isinstance(each, Generator):
                        each.close()
        except Exception as error:
            await self.fail(StageError("source", None, error))
        except BaseException as error:
            if not _is_stray(error):
                self.broken = True
                raise
            await self.fail(StageError("source", None, error))
        finally:
            self._first.end()

    async def _enter(self, item: Any) -> None:  # noqa: ANN401
        urgency = self._urgency
        if isinstance(item, Urgent):
            item, urgency = item.item, item.urgency
        await self._first.put(Parcel(item, urgency, perf_counter()))
        await checkpoint()

    async def fail(self, error: StageError) -> None:
        """Give an error to the handler; without one, end the run."""
        try:
            if self._on_error is None:
                raise error
            answer = self._on_error(error)
            if inspect.isawaitable(answer):
                await answer
        except Exception as raised:
            if self._error is None:
                self._error = raised
            self._scope.cancel()
            await anyio.sleep_forever()  # so that nothing behind the failed item is given

    def raise_unseen(self) -> None:
        """Raise the error that ended the run if no step of the consumer's loop did."""
        if self._error is not None and not self._seen:
            self._seen = True
            raise self._error

    # -- building

    def _queue(self, stage: Stage | Fan | None) -> Queue:
        size = stage.buffer if isinstance(stage, Stage) and stage.buffer else self._buffer
        return Queue(size, by_priority=not self._ordered)

    def _connect(self, stage: Stage | Fan, inbox: Queue, out: Queue, depth: int) -> None:
        if isinstance(stage, Stage):
            name, k = stage.name, 1
            while name in self._workers:
                k += 1
                name = f"{stage.name} ({k})"
            self._drawing.append((depth, name))
            ahead = stage.workers + (stage.buffer or self._buffer) if self._ordered else None
            self._workers[name] = _Workers(self, stage, name, inbox, out, ahead)
            out.producers += stage.workers
            return
        self._drawing.append((depth, "each of"))
        branches = [self._queue(branch) for branch in stage.branches]
        for branch, queue in zip(stage.branches, branches, strict=True):
            queue.producers = 1
            self._connect(branch, queue, out, depth + 1)
        self._splitters.append((inbox, branches))


async def _split(inbox: Queue, branches: list[Queue]) -> None:
    """Give each parcel to all branches of a fan."""
    try:
        while await inbox.wait():
            parcel = inbox.pop()
            join, now = FanParts(parcel, len(branches)), perf_counter()
            for place, branch in enumerate(branches):
                await branch.put(Parcel(parcel.value, parcel.urgency, now, join, place))
    finally:
        for branch in branches:
            branch.end()


async def _close(items: object) -> None:
    """Close an async generator; other iterators have nothing to close."""
    aclose = getattr(items, "aclose", None)
    if aclose is not None:
        await aclose()


def _is_stray(error: BaseException) -> bool:
    """Whether this is a cancellation that nobody asked for, as of an asyncio task awaited."""
    if not isinstance(error, anyio.get_cancelled_exc_class()):
        return False
    return anyio.current_effective_deadline() != -math.inf


def _most_urgent(parcels: list[Parcel]) -> Urgency:
    """The urgency of a batch: the highest priority, and the latest deadline; None: one has none."""
    deadlines = [x.urgency.until for x in parcels]
    return Urgency(
        max(x.urgency.priority for x in parcels),
        None if None in deadlines else max(x for x in deadlines if x is not None),
    )


class _Workers:
    """The workers of one stage in one run.

    Args:
        run: of which they are a part.
        stage: what they do.
        name: of the stage in this run.
        inbox: where they take from.
        out: where they put.
        ahead: how many calls may be begun while the oldest one is not done; None: results come in
            any order.
    """

    def __init__(
        self,
        run: PipelineResults,
        stage: Stage,
        name: str,
        inbox: Queue,
        out: Queue,
        ahead: int | None,
    ) -> None:
        self.stage, self._run, self._name = stage, run, name
        self._inbox, self._out = inbox, out
        self._order = Ordering(self._send, ahead) if ahead and stage.workers > 1 else None
        self._taken = self._given = self._failed = 0
        self._busy = self._latency = 0.0
        self._collecting: anyio.Lock | None = None  # held by the worker that collects a batch

    def begin(self) -> None:
        """Make what belongs to an event loop."""
        if self.stage.batch is not None and self.stage.workers > 1:
            self._collecting = anyio.Lock(fast_acquire=True)

    @property
    def stats(self) -> StageStats:
        mean = self._latency / self._given if self._given else 0.0
        return StageStats(
            self._taken, self._given, self._inbox.waiting, self._busy, self._failed, mean
        )

    async def work(self, k: int) -> None:
        """One worker: take, call, give, until nothing comes any more."""
        row = f"{self._name} {k + 1}" if self.stage.workers > 1 else self._name
        try:
            while True:
                if self._collecting is None:
                    parcels, ticket = await self._take()
                else:
                    async with self._collecting:
                        parcels, ticket = await self._take()
                if not parcels:
                    return
                self._taken += len(parcels)
                await self._treat(parcels, ticket, row)
                if self._order is not None:
                    await self._order.finish(ticket)
        except BaseException:
            self._run.broken = True
            raise
        finally:
            self._out.end()

    async def _take(self) -> tuple[list[Parcel], int]:
        """An item or a batch of them, and its ticket; nothing if no more will come."""
        inbox, order = self._inbox, self._order
        while True:  # while this worker waits for an item, others may fill the order again
            while order is not None and order.full:
                await order.wait_for_oldest()
            if not await inbox.wait():
                return [], 0
            if order is None or not order.full:
                break
        found = [inbox.pop()]
        if self.stage.batch is not None:
            until = anyio.current_time() + self.stage.within
            while len(found) < self.stage.batch:
                more = bool(inbox)
                if not more:
                    with anyio.CancelScope(deadline=until):
                        more = await inbox.wait()
                if not more:
                    break
                found.append(inbox.pop())
        return found, 0 if order is None else order.draw()

    async def _treat(self, parcels: list[Parcel], ticket: int, row: str) -> None:
        """Call the stage's function, as often as it may be tried, and give its results."""
        for parcel in [x for x in parcels if x.urgency.until is not None and x.urgency.late]:
            parcels.remove(parcel)
            late = TimeoutError("the deadline of the item has passed")
            await self._fail(parcel.value, late, [parcel])
        if not parcels:
            return
        value = parcels[0].value if self.stage.batch is None else [x.value for x in parcels]
        urgency = parcels[0].urgency if len(parcels) == 1 else _most_urgent(parcels)
        present.set(urgency)
        for tries_left in range(self.stage.retries, -1, -1):
            call = _Call(self, row, parcels, ticket, urgency)
            try:
                await call.make(value)
            except Exception as error:
                cause: BaseException = error
            except BaseException as error:
                if not _is_stray(error):
                    raise
                cause = error
            else:
                return
            if not tries_left or call.given or urgency.late:
                await self._fail(value, cause, parcels)
                return
            await checkpoint()

    async def _fail(self, value: object, cause: BaseException, parcels: list[Parcel]) -> None:
        self._failed += 1
        await self._run.fail(StageError(self._name, value, cause))
        for parcel in parcels:
            await self._send(parcel, _DROPPED)

    async def give(self, parcel: Parcel, value: Any, ticket: int) -> None:  # noqa: ANN401
        """Pass on a result of an item; the result None drops the item."""
        if value is None:
            await self._send(parcel, _DROPPED)
            return
        self._given += 1
        self._latency += perf_counter() - parcel.since
        if self._order is None:
            await self._send(parcel, value)
        else:
            await self._order.give(ticket, parcel, value)

    def note(self, row: str, since: float, begin: float) -> None:
        """A call that began at ``begin``, or a step of it, has ended."""
        end = perf_counter()
        self._busy += end - begin
        note_work(row, self._name, since, begin, end)

    async def _send(self, parcel: Parcel, value: Any) -> None:  # noqa: ANN401
        """Put a result into the next queue; in a fan, the last branch puts the tuple.

        A fan in a branch of another fan ends with a tuple that is itself a part of the outer one.
        """
        while (join := parcel.join) is not None:
            join.parts[parcel.place] = value.item if isinstance(value, Urgent) else value
            join.left -= 1
            if join.left:
                return
            dropped = any(part is _DROPPED for part in join.parts)
            parcel, value = join.parcel, _DROPPED if dropped else tuple(join.parts)
        if value is _DROPPED:
            return
        urgency = parcel.urgency
        if isinstance(value, Urgent):
            value, urgency = value.item, value.urgency
        await self._out.put(Parcel(value, urgency, perf_counter()))


class _Call:
    """One call of a stage's function.

    Args:
        workers: of the stage.
        row: of the timeline.
        parcels: the items.
        ticket: of the items.
        urgency: of the items.

    Attributes:
        given: results that were given, after which the call cannot be made again.
    """

    __slots__ = ("_parcels", "_row", "_ticket", "_urgency", "_workers", "given")

    def __init__(
        self, workers: _Workers, row: str, parcels: list[Parcel], ticket: int, urgency: Urgency
    ) -> None:
        self._workers, self._row, self._parcels = workers, row, parcels
        self._ticket, self._urgency = ticket, urgency
        self.given = 0

    async def make(self, value: Any) -> None:  # noqa: ANN401
        """Call the function, and give what comes of it."""
        stage, parcels = self._workers.stage, self._parcels
        found = stage.fn(value)
        if stage.batch is not None:
            if hasattr(found, "__aiter__"):
                raise InvalidArgument(
                    "[Stage] a batch gave a stream of results, expected a list of as many results "
                    "as items"
                )
            results = await self._await_in_time(found)
            sized = hasattr(results, "__len__") and not isinstance(results, _UNORDERED)
            if not sized or len(results) != len(parcels):
                there = len(results) if sized else f"{type(results).__name__} {show(results)}"
                raise InvalidArgument(
                    f"[Stage] a batch of {len(parcels)} items gave {there}, expected a list of as "
                    "many results"
                )
            for parcel, result in zip(parcels, results, strict=True):
                await self._give(parcel, result)
        elif hasattr(found, "__aiter__"):
            if parcels[0].join is not None:
                raise InvalidArgument("[fan] a branch gave a stream of results, expected one")
            await self._stream(aiter(found))
        else:
            await self._give(parcels[0], await self._await_in_time(found))

    async def _stream(self, results: AsyncIterator[Any]) -> None:
        try:
            while True:
                try:
                    result = await self._await_in_time(anext(results))
                except StopAsyncIteration:
                    return
                await self._give(self._parcels[0], result)
        finally:
            await _close(results)

    async def _give(self, parcel: Parcel, result: Any) -> None:  # noqa: ANN401
        self.given += 1
        await self._workers.give(parcel, result, self._ticket)

    async def _await_in_time(self, awaitable: Any) -> Any:  # noqa: ANN401
        """What an awaitable brings, within the time-out of the stage and the items' deadline."""
        if not hasattr(awaitable, "__await__"):
            raise InvalidArgument(
                f"[Stage] the function gave {type(awaitable).__name__}, expected an awaitable or "
                "an async iterator: write async def"
            )
        begin = perf_counter()
        try:
            seconds, until = self._workers.stage.timeout, self._urgency.until
            if seconds is None and until is None:
                return await awaitable
            left = math.inf if until is None else until - time.monotonic()
            limit = left if seconds is None else min(left, seconds)
            with anyio.move_on_after(limit):
                return await awaitable
            if limit == left:
                raise TimeoutError("the deadline of the item has passed")
            raise TimeoutError(f"the call took longer than its time-out of {seconds:g} s")
        finally:
            self._workers.note(self._row, self._parcels[0].since, begin)
