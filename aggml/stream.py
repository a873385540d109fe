"""Stream: in-order work with futures. Public, so that a device written in Python has them too.

Here: what can be enqueued, units, holding. Not here: running (native/runtime/), what an operation
means for a device (backend.py, devices/).
"""

from __future__ import annotations

import atexit
import threading
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from aggml.batch import Batch
from aggml.call_thread import CallThread, foreign_error
from aggml.errors import (
    AggmlError,
    AllocFailed,
    InvalidArgument,
    InvalidState,
    OutOfBounds,
    Unsupported,
)
from aggml.event import Event
from aggml.future import Future, exception_of
from aggml.native import _native
from aggml.spans import bits_of, is_whole, span_of, storage_of, storages_of
from aggml.tensor import Tensor
from aggml.threadpool import ThreadPool, default_pool, stop_pools

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np

    from aggml.buffer import Buffer
    from aggml.plan import Plan

__all__ = ["Stream"]

T = TypeVar("T")
_streams: weakref.WeakSet[Stream] = weakref.WeakSet()

_native.set_exceptions(InvalidState, AllocFailed, InvalidArgument, Unsupported)


class Stream:
    """Ordered work: operations run in the order submitted, whatever their kind.

    Each call returns a Future. Nothing here blocks, and enqueuing is never refused for want of
    room. Tensors name their storage to the stream: what a failed operation would have written is
    poisoned, and what reads it fails with the same cause. Host arrays are borrowed until done.

    Args:
        name: for messages.
        pool: workers that carry the operations out; None: the pool that all streams share.
        n_threads: the most that one plan uses; 0: as many as the pool has.
    """

    def __init__(self, name: str, *, pool: ThreadPool | None = None, n_threads: int = 0) -> None:
        self.name = name
        self.pool = default_pool() if pool is None else pool
        self.native = _native.Stream(name, self.pool.native, n_threads)
        self._batches: dict[int, Batch] = {}
        self._caller: CallThread | None = None
        _streams.add(self)

    # -- enqueuing

    def _put(
        self,
        descs: list[_native.Desc],
        value: T,
        what: str,
        *,
        finish: Callable[[], None] | None = None,
    ) -> Future[T]:
        if self._batches:
            return self._put_groups([(self.native, descs)], value, what, finish=finish)
        (ops,) = _native.submit([(self.native, descs)])
        return Future(tuple(ops), value, what, finish=finish)

    def _put_groups(
        self,
        groups: list[tuple[_native.Stream, list[_native.Desc]]],
        value: T,
        what: str,
        *,
        finish: Callable[[], None] | None = None,
        main: int = -1,
    ) -> Future[T]:
        """Enqueue on several streams in one step; the Future is that of group ``main``."""
        future = Future(None, value, what, finish=finish)
        batch = self._batches.get(threading.get_ident())
        if batch is not None:
            batch.check()
            if self.native.closed:
                raise InvalidState(f"[{what}] {self!r} is closed")
            batch.add(groups, future, main)
        else:
            future._ops = tuple(_native.submit(groups)[main])
        return future

    def _open(self, batch: Batch) -> None:
        if threading.get_ident() in self._batches:
            raise InvalidState(f"[batch] {self!r}: a batch is open in this thread already")
        self._batches[threading.get_ident()] = batch

    def batch(self) -> Batch:
        """``with stream.batch():`` enqueues all calls of this thread at its end, in one step."""
        return Batch(self, guarded=True)

    def open_batch(self) -> Batch | None:
        """The batch that this thread has open here, if any."""
        return self._batches.get(threading.get_ident()) if self._batches else None

    @contextmanager
    def unit(self) -> Iterator[None]:
        """The same for code that never awaits: part of the batch of this thread if one is open."""
        batch = self._batches.get(threading.get_ident()) if self._batches else None
        if batch is not None:
            batch.check()
            yield
            return
        with Batch(self, guarded=False):
            yield

    def together(self, parts: Sequence[Future[None]], operation: str) -> Future[None]:
        """A Future that stands for several of this stream: the times and failures of all of them.

        Inside ``with stream.unit():`` nothing comes between them; an abort stops them all.
        """
        future: Future[None] = Future(None, None, operation)
        batch = self.open_batch()
        if batch is None:
            future.join(list(parts))
        else:
            batch.join(future, list(parts))
        return future

    # -- operations

    def copy(
        self,
        dst: Tensor | np.ndarray[Any, Any],
        src: Tensor | np.ndarray[Any, Any],
        *,
        operation: str = "copy",
    ) -> Future[None]:
        """Copy elements in logical order between tensors and host arrays.

        Tensors lie in memory whose addresses can be read here. A tensor and an array must have the
        same shape in numpy order and the same size of element; two tensors the same type and
        ``ne``. Strides may be any.

        Args:
            dst: what is written.
            src: what is read.
            operation: for messages.

        Raises:
            InvalidArgument: neither side is a tensor.
            NotAllocated: a tensor has no memory.
        """
        if isinstance(dst, Tensor):
            if isinstance(src, Tensor):
                desc = _native.copy(span_of(dst), span_of(src), operation)
            else:
                desc = _native.upload(bits_of(src), span_of(dst), operation)
        elif isinstance(src, Tensor):
            desc = _native.download(bits_of(dst), span_of(src), operation)
        else:
            raise InvalidArgument("[Stream.copy] at least one side has to be a tensor")
        return self._put([desc], None, operation)

    def copy_bytes(
        self,
        tensor: Tensor,
        array: np.ndarray[Any, Any],
        offset: int,
        *,
        to_tensor: bool,
        operation: str = "copy",
    ) -> Future[None]:
        """Copy a contiguous uint8 array into, or out of, a tensor's span at ``offset`` bytes.

        Raises:
            OutOfBounds: bytes of the array would lie outside the span.
        """
        if offset < 0 or offset + array.nbytes > tensor.nbytes:
            raise OutOfBounds(
                f"[Stream.copy_bytes] {array.nbytes} bytes at {offset} are outside {tensor!r}"
            )
        if to_tensor:
            whole = is_whole(tensor, offset, array.nbytes)
            desc = _native.upload_bytes(array, span_of(tensor), offset, whole, operation)
        else:
            desc = _native.download_bytes(array, span_of(tensor), offset, operation)
        return self._put([desc], None, operation)

    def fill(
        self,
        tensor: Tensor,
        value: int,
        offset: int = 0,
        size: int | None = None,
        *,
        operation: str = "memset",
    ) -> Future[None]:
        """Set ``size`` bytes of a tensor's span from ``offset`` on to ``value``; None: to its end.

        Raises:
            OutOfBounds: the bytes are outside the span.
        """
        n = tensor.nbytes - offset if size is None else size
        if offset < 0 or n < 0 or offset + n > tensor.nbytes:
            raise OutOfBounds(f"[Stream.fill] {n} bytes at {offset} are outside {tensor!r}")
        desc = _native.fill(
            span_of(tensor), value, offset, n, is_whole(tensor, offset, n), operation
        )
        return self._put([desc], None, operation)

    def run_plan(
        self, plan: Plan, arena: Buffer | None = None, *, operation: str = "graph_compute"
    ) -> Future[None]:
        """Run a compiled graph.

        Args:
            plan: as `compile_plan` gives it.
            arena: at least ``plan.arena_size`` bytes of scratch, if it needs any.
            operation: for messages.

        Raises:
            InvalidArgument: ``arena`` is missing or too small.
        """
        base = 0
        if plan.arena_size:
            if arena is None or arena.size < plan.arena_size:
                raise InvalidArgument(
                    f"[Stream.run_plan] {plan!r} needs {plan.arena_size} bytes of scratch, "
                    f"got {arena!r}"
                )
            base = arena.base
        return self._put(
            [_native.run_plan(plan.native, base, operation, (plan, arena))], None, operation
        )

    def delay(
        self,
        seconds: float,
        *,
        reads: Sequence[Tensor] = (),
        writes: Sequence[Tensor] = (),
        operation: str = "delay",
    ) -> Future[None]:
        """Let ``seconds`` pass before what comes next; occupies no thread, an abort ends it early.

        Args:
            seconds: less than 0 counts as 0.
            reads: tensors that fail it if they are poisoned.
            writes: tensors that it poisons if it fails or is aborted.
            operation: for messages.
        """
        desc = _native.delay(seconds, operation, storages_of(reads), storages_of(writes), ())
        return self._put([desc], None, operation)

    def wait(self, mark: Future[Any] | Event | Stream, *, operation: str = "wait") -> Future[None]:
        """Hold later work of this stream until a Future or the latest mark of an Event is done.

        Given a Stream: until all that is queued there at this moment is done. No thread waits.
        """
        if isinstance(mark, Stream):
            return self._put([_native.wait(mark.native, None)], None, operation)
        future = mark._mark if isinstance(mark, Event) else mark
        descs = []
        if future is not None and future._ops is None and self._is_in_open_batch(future):
            pass  # earlier in this very batch: the order holds anyway
        elif future is not None and future._last() is not None:
            # Of several tickets of one stream the last stays.
            latest = {op.stream: op.ticket for op in future._ops or ()}
            descs = [
                _native.wait(stream, ticket)
                for stream, ticket in latest.items()
                if stream is not self.native
            ]
        return self._put(descs or [_native.mark(operation, ())], None, operation)

    def let_wait(self, other: Stream) -> Future[None]:
        """Hold later work of ``other`` until all that is queued here is done.

        Counts as a call on this stream: part of its batch if one is open.
        """
        return self._put_groups([(other.native, [_native.wait(self.native, None)])], None, "wait")

    @contextmanager
    def sharing(self, other: Stream) -> Iterator[None]:
        """Enqueue the calls on this stream and on ``other`` in one step on both.

        Raises:
            InvalidState: this thread has different batches open on the two.
        """
        thread = threading.get_ident()
        mine, theirs = self._batches.get(thread), other._batches.get(thread)
        if mine is not None and theirs is not None and mine is not theirs:
            raise InvalidState(
                f"[copy] {self!r} and {other!r} have different batches open in this thread"
            )
        with self.unit() if mine is not None else other.unit():
            batch = other._batches[thread] if mine is None else mine
            self._batches[thread] = other._batches[thread] = batch
            try:
                yield
            finally:
                for stream, before in ((self, mine), (other, theirs)):
                    if before is None:
                        stream._batches.pop(thread, None)

    def clear(self, buffer: Buffer, value: int) -> Future[None]:
        """Set every byte of a host-addressable buffer."""
        return self._put([_native.clear(buffer.base, value, buffer.size, buffer)], None, "clear")

    def _is_in_open_batch(self, future: Future[Any]) -> bool:
        batch = self._batches.get(threading.get_ident())
        return batch is not None and any(f is future for f, _ in (*batch._spans, *batch._joins))

    def record(self, event: Event) -> Future[None]:
        """Mark this point of the stream with the event."""
        future: Future[None] = self._put([_native.mark("record", ())], None, "record")
        if future._ops is None:
            self._batches[threading.get_ident()].note_event(event, future)
        event._mark = future
        return future

    def mark(
        self, operation: str = "mark", *, finish: Callable[[], None] | None = None
    ) -> Future[None]:
        """A Future of all that was queued before."""
        return self._put([_native.mark(operation, ())], None, operation, finish=finish)

    def accept(self, tensor: Tensor) -> Future[None]:
        """Declare what a tensor's storage holds to be good, in stream order."""
        return self._put([_native.mark("accept", storage_of(tensor))], None, "accept")

    def fail(
        self,
        exception: BaseException,
        *,
        writes: Sequence[Tensor] = (),
        partial: Sequence[Tensor] = (),
        operation: str = "fail",
    ) -> Future[None]:
        """Fail in stream order instead of writing.

        Args:
            exception: the cause.
            writes: tensors that would have been written in full; poisoned.
            partial: tensors that would have been written in part.
            operation: for messages.
        """
        tensor = writes[0].name if writes else ""
        error = foreign_error(exception, self.name, operation, tensor)
        return self._put(
            [_native.fail(error, operation, storages_of(writes), storages_of(partial))],
            None,
            operation,
        )

    def call(
        self,
        function: Callable[..., object],
        *args: Any,  # noqa: ANN401 - whatever the function takes
        reads: Sequence[Tensor] = (),
        writes: Sequence[Tensor] = (),
        partial: Sequence[Tensor] = (),
        operation: str = "call",
    ) -> Future[Any]:
        """Run ``function(*args)`` on this stream's Python thread, in order.

        Args:
            function: its return value is the Future's, what it raises the cause of the failure.
            *args: for the function; kept until it has run.
            reads: tensors that fail the call, without running it, if they are poisoned.
            writes: tensors that the function writes in full.
            partial: tensors that the function writes in part.
            operation: for messages.

        Raises:
            InvalidState: a batch is open in this thread.
        """
        box: list[Any] = []

        def run() -> None:
            box.append(function(*args))

        if self._caller is None:
            self._caller = CallThread(self.native, self.name)
            weakref.finalize(self, self._caller.stop)
        caller = self._caller
        future: Future[Any] = Future(None, None, operation)

        def take() -> None:
            future._value = box[0]

        future._finish = take
        desc = _native.call(
            operation,
            storages_of(reads),
            storages_of(writes),
            storages_of(partial),
            (args, tuple(reads), tuple(writes)),
        )
        if self._batches.get(threading.get_ident()) is not None:
            raise InvalidState(f"[Stream.call] {self!r}: a Python call cannot be part of a batch")
        # The ticket is known only once it is queued, and the thread may ask for it at once: hold
        # the stream meanwhile.
        self.native.hold()
        try:
            (ops,) = _native.submit([(self.native, [desc])])
            caller.functions[ops[0].ticket] = run
        finally:
            self.native.release()
        future._ops = tuple(ops)
        return future

    def run_unit(
        self,
        future: Future[Any],
        plan: Plan,
        arena: Buffer | None,
        sets: list[tuple[Tensor, np.ndarray[Any, Any]]],
        gets: list[tuple[Tensor, np.ndarray[Any, Any]]],
    ) -> None:
        """Copies to tensors, a run of a plan and copies from tensors, enqueued in one step.

        What `Backend.run` of a device in host memory comes down to, in one native call; ``future``
        stands for all. Not inside a batch.
        """
        future._ops = _native.submit_run(
            self.native,
            plan.native,
            0 if arena is None else arena.base,
            (plan, arena),
            [(bits_of(array), span_of(tensor)) for tensor, array in sets],
            [(bits_of(array), span_of(tensor)) for tensor, array in gets],
        )

    # -- control

    @property
    def pending(self) -> int:
        """Operations that are not done yet."""
        return self.native.submitted - self.native.completed

    @property
    def closed(self) -> bool:
        """Whether new work is refused."""
        return self.native.closed

    @contextmanager
    def hold(self) -> Iterator[None]:
        """No operation starts until the block ends; one that runs goes on."""
        self.native.hold()
        try:
            yield
        finally:
            self.native.release()

    def lose(self, exception: BaseException) -> None:
        """The device is lost: all that is queued fails with this error, new work is refused."""
        self.native.lose(foreign_error(exception, self.name, "lost"))

    def failures(self) -> list[AggmlError]:
        """The failures that nobody has seen; from now on they count as seen."""
        return [exception_of(error) for error in self.native.take_failures()]

    def abort(self) -> None:
        """Abort the plans, delays and calls that are queued."""
        self.native.abort_all()

    def close(self) -> None:
        """Refuse new work. What is queued goes on, and keeps what it needs."""
        self.native.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "idle" if not self.pending else "busy"
        return f"<Stream {self.name}, {self.pending} queued, {state}>"


@atexit.register
def _shut_down() -> None:
    """Abort what runs, end the Python threads, join the workers: no thread is left behind."""
    callers = []
    for stream in list(_streams):
        if stream.native.alive:
            stream.native.abort_all()
            stream.native.close()
            if stream._caller is not None:
                stream._caller.stop()
                callers.append(stream._caller.thread)
    stop_pools()
    for thread in callers:
        if thread.is_alive():
            thread.join(2.0)
    _native.shutdown()
