"""Stream: ordered work, from copies, plans and calls of Python to the order among streams.

Here: every operation, batches, holding and closing. Read it in this order: operations on memory,
calls of Python, time and order, enqueuing, control. Not here: what may be transferred
(tensor/checking.py), what a plan is (plan/plan.py), the thread that calls Python (call_thread.py),
running (native/runtime/), what an operation means for a device (backend/, devices/).
"""

from __future__ import annotations

import threading
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from aggml.dtype import DType
from aggml.errors import (
    AggmlError,
    InvalidArgument,
    InvalidHandle,
    InvalidState,
    OutOfBounds,
)
from aggml.native import _native
from aggml.process.foreign import report, text_of
from aggml.process.locks import new_lock
from aggml.stream import exit as _exit  # noqa: F401 - it ends all streams at exit
from aggml.stream.batch import StreamBatch
from aggml.stream.call_thread import CallThread, foreign_error
from aggml.stream.event import Event, latest_mark, move_mark
from aggml.stream.failures import exception_of
from aggml.stream.future import Future, Outcome, attach, is_queued, operations_of
from aggml.stream.observe import observers, submit
from aggml.stream.threadpool import ThreadPool, default_pool
from aggml.tensor import Tensor
from aggml.tensor.placement import BufferUsage
from aggml.tensor.spans import bits_of, is_whole, span_of, storage_of, storages_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence, Sized

    import numpy as np

    from aggml.tensor.placement import Holder

__all__ = ["Runnable", "Stream"]

T = TypeVar("T")


class Runnable(Protocol):
    """The part of a compiled graph that a stream uses: the native plan, and what it needs."""

    @property
    def native(self) -> _native.Plan:
        """The native plan."""
        ...

    @property
    def arena_size(self) -> int:
        """Bytes of scratch."""
        ...

    @property
    def calls(self) -> Sized:
        """The functions in Python that are among its nodes."""
        ...


class Stream:
    """Ordered work: operations run in the order submitted, whatever their kind.

    Each call returns a Future. No call blocks, and enqueuing is never refused for lack of room.
    The stream knows the storages that an operation reads and writes. If an operation fails, the
    storages that it would have written are poisoned, and operations that read them fail with the
    same cause. Host arrays are borrowed until the operation is done.

    Args:
        name: for messages.
        pool: the workers that carry out the operations; None: the pool that all streams share.
        n_threads: the most threads that one plan uses; 0: as many as the pool has.
        native: a native stream of a device that carries out operations itself, without the pool.

    Attributes:
        name, pool, native: as given, or made.
        open_batches: the open batch of each thread that has one, by the thread's number.

    ``lasts``, where a method takes it, is for simulated devices: the least number of seconds that
    the operation takes; no thread is occupied. The time counts from the simulated end of the
    operation before. So delays of wake-ups do not add up, and a stream that is kept busy has the
    simulated rate. An abort ends the time early.
    """

    def __init__(
        self,
        name: str,
        *,
        pool: ThreadPool | None = None,
        n_threads: int = 0,
        native: _native.Stream | None = None,
    ) -> None:
        self.name = name
        self.pool: ThreadPool = default_pool() if pool is None else pool
        if not isinstance(self.pool, ThreadPool):
            raise InvalidHandle(f"[Stream] pool={pool!r} is no ThreadPool")
        if native is None:
            native = _native.Stream(name, self.pool.native, n_threads)
            self.pool.attach(self)
        self.native = native
        self.open_batches: dict[int, StreamBatch] = {}
        self._caller: CallThread | None = None
        self._starting = new_lock()

    # -- operations on memory

    def copy(
        self,
        dst: Tensor | np.ndarray[Any, Any],
        src: Tensor | np.ndarray[Any, Any],
        *,
        lasts: float = 0.0,
        operation: str = "copy",
    ) -> Future[None]:
        """Copy elements in logical order between tensors and host arrays.

        Tensors must lie in memory that this process can address. A tensor and an array must have
        the same shape in numpy order and the same element size; two tensors must have the same type
        and ``ne``. Any strides are allowed.

        Args:
            dst: the tensor or array to write.
            src: the tensor or array to read.
            lasts: the least number of seconds that the copy takes.
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
        if lasts:
            desc.set_pace(lasts)
        return self.enqueue([desc], None, operation)

    def copy_bytes(
        self,
        tensor: Tensor,
        array: np.ndarray[Any, Any],
        offset: int,
        *,
        to_tensor: bool,
        lasts: float = 0.0,
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
        if lasts:
            desc.set_pace(lasts)
        return self.enqueue([desc], None, operation)

    def copy_parts(
        self,
        parts: Iterable[tuple[Tensor, np.ndarray[Any, Any], int]],
        *,
        to_tensor: bool,
        operation: str = "copy",
    ) -> Future[None]:
        """`copy_bytes` of many tensors, arrays and offsets, enqueued in one step.

        Raises:
            OutOfBounds: bytes of an array would lie outside the span.
        """
        descs = []
        for tensor, array, offset in parts:
            if offset < 0 or offset + array.nbytes > tensor.nbytes:
                raise OutOfBounds(
                    f"[Stream.copy_parts] {array.nbytes} bytes at {offset} are outside {tensor!r}"
                )
            span = span_of(tensor)
            if to_tensor:
                whole = is_whole(tensor, offset, array.nbytes)
                descs.append(_native.upload_bytes(array, span, offset, whole, operation))
            else:
                descs.append(_native.download_bytes(array, span, offset, operation))
        return self.enqueue(descs, None, operation)

    def copy_experts(
        self,
        dst: Tensor,
        src: Tensor,
        ids: Tensor,
        *,
        latency: float = 0.0,
        bandwidth: float | None = None,
        history: _native.ExpertHistory | None = None,
        operation: str = "copy",
    ) -> Future[None]:
        """Copy the matrices of a stack that ``ids`` names; the other matrices stay unchanged.

        ``ids`` is read when the stream reaches the copy. All of ``dst`` counts as written.

        Args:
            dst: the target, with the same layout as ``src``.
            src: ``ne[2]`` matrices, contiguous.
            ids: int32 in one or two dimensions, in memory that this process can address.
            latency: least number of seconds, in addition to the time by ``bandwidth``; see
                ``lasts``.
            bandwidth: simulated bytes per second; None: no limit.
            history: that of `guess_experts` before on this stream: what it copied is left out. As
                many ids as it has places.
            operation: for messages.

        Raises:
            InvalidArgument: the tensors are not as described.
            OutOfBounds: raised by the Future: there is no matrix of that number.
        """
        alike = dst.ne == src.ne and dst.nb == src.nb and dst.dtype is src.dtype
        if not alike or src.ne[3] != 1 or not src.is_contiguous:
            raise InvalidArgument(
                f"[Stream.copy_experts] {src!r} and {dst!r} must be contiguous [.., .., experts], "
                "and equal in type, extents and strides"
            )
        if ids.dtype is not DType.I32 or ids.ne[2:] != (1, 1):
            raise InvalidArgument(
                f"[Stream.copy_experts] ids={ids!r} must be int32, with one or two axes"
            )
        desc = _native.experts(
            span_of(dst),
            span_of(src),
            span_of(ids),
            src.nb[2],
            src.ne[2],
            latency,
            1e9 / bandwidth if bandwidth else 0.0,
            operation,
            history,
        )
        return self.enqueue([desc], None, operation)

    def guess_experts(
        self,
        dst: Tensor,
        src: Tensor,
        history: _native.ExpertHistory,
        *,
        latency: float = 0.0,
        bandwidth: float | None = None,
        operation: str = "guess",
    ) -> Future[None]:
        """Copy the matrices of a stack that the last `copy_experts` with this history named.

        They are copied one by one, until `note_experts` comes. `copy_experts` with this history
        must come next for ``dst``; if a copy fails, it fails, too.

        Args:
            dst: as of `copy_experts`.
            src: as of `copy_experts`.
            history: what was named; it remembers what is copied here.
            latency: as of `copy_experts`, for each matrix.
            bandwidth: as of `copy_experts`.
            operation: for messages.
        """
        pace = latency, 1e9 / bandwidth if bandwidth else 0.0
        spans, size = (span_of(dst), span_of(src)), (src.nb[2], src.ne[2])
        descs = [
            _native.guess_experts(*spans, *size, *pace, operation, history, i)
            for i in range(history.n)
        ]
        return self.enqueue(descs, None, operation)

    def note_experts(self, histories: Sequence[_native.ExpertHistory]) -> Future[None]:
        """When the stream gets here, let no `guess_experts` of these histories copy any further."""
        descs = [_native.note_experts(history) for history in histories]
        return self.enqueue(descs, None, "note")

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
        return self.enqueue([desc], None, operation)

    def run_plan(
        self,
        plan: Runnable,
        arena: Holder | None = None,
        *,
        lasts: float = 0.0,
        operation: str = "graph_compute",
    ) -> Future[None]:
        """Run a compiled graph.

        Args:
            plan: a result of `compile_plan`.
            arena: at least ``plan.arena_size`` bytes of scratch, if the plan needs any.
            lasts: the least number of seconds that the run takes.
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
        if plan.calls:
            self.start_calls()
        desc = _native.run_plan(plan.native, base, operation, (plan, arena))
        if lasts:
            desc.set_pace(lasts)
        return self.enqueue([desc], None, operation)

    def clear(self, buffer: Holder, value: int) -> Future[None]:
        """Set every byte of a host-addressable buffer."""
        # Weights may have been packed and must be packed again. Other tensors are read in place.
        weights = buffer.tensors if buffer.usage is BufferUsage.WEIGHTS else []
        desc = _native.clear(buffer.base, value, buffer.size, storages_of(weights), buffer)
        return self.enqueue([desc], None, "clear")

    # -- calls of Python

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
            function: its return value becomes the Future's value; an exception becomes the cause of
                the failure.
            *args: arguments of the function; kept until it has run.
            reads: tensors that fail the call, without running it, if they are poisoned.
            writes: tensors that the function writes in full.
            partial: tensors that the function writes in part.
            operation: for messages.
        """
        outcome: Any = Outcome()

        def run() -> None:
            outcome.value = function(*args)

        self.start_calls()
        batch = self.open_batch()
        if batch is not None:
            batch.calls = True
        desc = _native.call(
            operation,
            storages_of(reads),
            storages_of(writes),
            storages_of(partial),
            (run, tuple(reads), tuple(writes), tuple(partial)),
        )
        return self.enqueue([desc], outcome, operation)

    # -- time and order

    def delay(
        self,
        seconds: float,
        *,
        reads: Sequence[Tensor] = (),
        writes: Sequence[Tensor] = (),
        operation: str = "delay",
    ) -> Future[None]:
        """Let ``seconds`` pass before later work; occupies no thread. An abort ends it early.

        Args:
            seconds: less than 0 counts as 0.
            reads: tensors that fail it if they are poisoned.
            writes: tensors that it poisons if it fails or is aborted.
            operation: for messages.
        """
        desc = _native.delay(seconds, operation, storages_of(reads), storages_of(writes), ())
        return self.enqueue([desc], None, operation)

    def wait(self, mark: Future[Any] | Event | Stream, *, operation: str = "wait") -> Future[None]:
        """Hold later work of this stream until a Future or the latest mark of an Event is done.

        With a Stream: until all work that is queued there now is done. No thread waits.
        """
        if isinstance(mark, Stream):
            return self.enqueue([_native.wait(mark.native, None)], None, operation)
        future = latest_mark(mark) if isinstance(mark, Event) else mark
        descs = []
        # A call of the same batch comes before this one anyway.
        if future is not None and (is_queued(future) or not self._is_in_open_batch(future)):
            # Of several tickets of one stream only the last is kept.
            latest = {op.stream: op.ticket for op in operations_of(future)}
            descs = [
                _native.wait(stream, ticket)
                for stream, ticket in latest.items()
                if stream is not self.native
            ]
        return self.enqueue(descs or [_native.mark(operation, ())], None, operation)

    def let_wait(self, other: Stream) -> Future[None]:
        """Hold later work of ``other`` until all work queued on this stream is done.

        Counts as a call on this stream: part of its batch if one is open.
        """
        return self.enqueue_groups(
            [(other.native, [_native.wait(self.native, None)])], None, "wait"
        )

    @contextmanager
    def sharing(self, other: Stream) -> Iterator[None]:
        """Enqueue the calls on this stream and on ``other`` in one step on both.

        Raises:
            InvalidState: this thread has different batches open on the two.
        """
        thread = threading.get_ident()
        mine, theirs = self.open_batches.get(thread), other.open_batches.get(thread)
        if mine is not None and theirs is not None and mine is not theirs:
            raise InvalidState(
                f"[copy] {self!r} and {other!r} have different batches open in this thread"
            )
        with self.unit() if mine is not None else other.unit():
            batch = other.open_batches[thread] if mine is None else mine
            self.open_batches[thread] = other.open_batches[thread] = batch
            try:
                yield
            finally:
                for stream, before in ((self, mine), (other, theirs)):
                    if before is None:
                        stream.open_batches.pop(thread, None)

    def _is_in_open_batch(self, future: Future[Any]) -> bool:
        batch = self.open_batches.get(threading.get_ident())
        return batch is not None and batch.has(future)

    def record(self, event: Event) -> Future[None]:
        """Mark this point of the stream with the event."""
        future: Future[None] = self.enqueue([_native.mark("record", ())], None, "record")
        move_mark(event, future, self.open_batch())
        return future

    def mark(
        self, operation: str = "mark", *, finish: Callable[[], None] | None = None
    ) -> Future[None]:
        """A Future that is done when all earlier work is done."""
        return self.enqueue([_native.mark(operation, ())], None, operation, finish=finish)

    def accept(self, tensor: Tensor) -> Future[None]:
        """Declare the contents of a tensor's storage to be valid, in stream order."""
        return self.enqueue([_native.mark("accept", storage_of(tensor))], None, "accept")

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
        return self.enqueue(
            [_native.fail(error, operation, storages_of(writes), storages_of(partial))],
            None,
            operation,
        )

    # -- enqueuing

    def enqueue(
        self,
        descs: list[_native.Desc],
        value: T,
        what: str,
        *,
        finish: Callable[[], None] | None = None,
    ) -> Future[T]:
        """Enqueue native operations of this stream.

        Args:
            descs: in this order, at least one.
            value: of the Future.
            what: the operation, for messages.
            finish: called by the Future when it is asked for its result.

        Returns:
            The Future of all of them.
        """
        if self.open_batches:
            return self.enqueue_groups([(self.native, descs)], value, what, finish=finish)
        if len(descs) == 1 and not observers:
            return Future(_native.submit_one(self.native, descs[0]), value, what, finish=finish)
        (ops,) = submit([(self.native, descs)])
        return Future(tuple(ops), value, what, finish=finish)

    def enqueue_groups(
        self,
        groups: list[tuple[_native.Stream, list[_native.Desc]]],
        value: T,
        what: str,
        *,
        finish: Callable[[], None] | None = None,
        main: int = -1,
    ) -> Future[T]:
        """`enqueue` on several streams in one step; the Future is that of group ``main``."""
        future = Future(None, value, what, finish=finish)
        batch = self.open_batches.get(threading.get_ident())
        if batch is not None:
            batch.check()
            if self.native.closed:
                raise InvalidState(f"[{what}] {self!r} is closed")
            batch.add(groups, future, main)
        else:
            attach(future, submit(groups)[main])
        return future

    def open_with(self, batch: StreamBatch) -> None:
        """Collect the calls of this thread in ``batch`` from now on."""
        if threading.get_ident() in self.open_batches:
            raise InvalidState(f"[batch] {self!r} has a batch open in this thread already")
        self.open_batches[threading.get_ident()] = batch

    def batch(self) -> StreamBatch:
        """``with stream.batch():`` enqueues all calls of this thread at its end, in one step."""
        return StreamBatch(self, guarded=True)

    def open_batch(self) -> StreamBatch | None:
        """The batch that this thread has open on this stream, if any."""
        return self.open_batches.get(threading.get_ident()) if self.open_batches else None

    @contextmanager
    def unit(self) -> Iterator[None]:
        """`batch` for code that never awaits; it joins the batch of this thread if one is open.

        If the block raises, none of its calls is enqueued, then as well.
        """
        batch = self.open_batches.get(threading.get_ident()) if self.open_batches else None
        if batch is not None:
            batch.check()
            with batch.whole():
                yield
            return
        with StreamBatch(self, guarded=False):
            yield

    def together(self, parts: Sequence[Future[None]], operation: str) -> Future[None]:
        """One Future for several of this stream, with the times and failures of all of them.

        Inside ``with stream.unit():`` no other work comes between them. An abort stops them all.
        """
        future: Future[None] = Future(None, None, operation)
        batch = self.open_batch()
        if batch is None:
            future.join(list(parts))
        else:
            batch.join(future, list(parts))
        return future

    def start_calls(self) -> None:
        """Start the thread that runs Python functions; it ends with the stream's last work."""
        if self._caller is not None or not self.native.alive:
            return
        with self._starting:
            if self._caller is None:
                self._caller = CallThread(self.native, self.name)
                weakref.finalize(self, self.native.close)

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
        """Let no operation start until the block ends; a running operation goes on."""
        self.native.hold()
        try:
            yield
        finally:
            self.native.release()

    def lose(self, exception: BaseException) -> None:
        """Declare the device lost: queued work fails with this error, new work is refused."""
        self.native.lose(foreign_error(exception, self.name, "lost"))

    def failures(self) -> list[AggmlError]:
        """The failures that nobody has seen; from now on they count as seen."""
        return [exception_of(error) for error in self.native.take_failures()]

    def tell_failures(self, where: str) -> None:
        """Log the failures that nobody has seen; from now on they count as seen."""
        for failure in self.failures():
            report(f"[{where}] {self.name}: nobody saw {text_of(failure)}")

    def abort(self) -> None:
        """Abort the plans, delays and calls that are queued."""
        self.native.abort_all()

    def close(self) -> None:
        """Refuse new work. Queued work goes on, and keeps its memory alive."""
        self.native.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "idle" if not self.pending else "busy"
        return f"<Stream {self.name}, {self.pending} queued, {state}>"
