"""Stream: all operations together; delays, marks, failures, and the order among streams.

Not here: what an operation means for a device (backend/, devices/).
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from aggml.errors import InvalidState
from aggml.native import _native
from aggml.stream.base import StreamBase
from aggml.stream.call_thread import foreign_error
from aggml.stream.calls import CallStream
from aggml.stream.data import DataStream
from aggml.stream.event import Event
from aggml.tensor.spans import storage_of, storages_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from aggml.stream.future import Future
    from aggml.tensor import Tensor

__all__ = ["Stream"]


class Stream(DataStream, CallStream):
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
    """

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
        return self._put([desc], None, operation)

    def wait(
        self, mark: Future[Any] | Event | StreamBase, *, operation: str = "wait"
    ) -> Future[None]:
        """Hold later work of this stream until a Future or the latest mark of an Event is done.

        With a Stream: until all work that is queued there now is done. No thread waits.
        """
        if isinstance(mark, StreamBase):
            return self._put([_native.wait(mark.native, None)], None, operation)
        future = mark._mark if isinstance(mark, Event) else mark
        descs = []
        if future is not None and future._ops is None and self._is_in_open_batch(future):
            pass  # it is earlier in the same batch, so the order is right anyway
        elif future is not None and future._last() is not None:
            # Of several tickets of one stream only the last is kept.
            latest = {op.stream: op.ticket for op in future._ops or ()}
            descs = [
                _native.wait(stream, ticket)
                for stream, ticket in latest.items()
                if stream is not self.native
            ]
        return self._put(descs or [_native.mark(operation, ())], None, operation)

    def let_wait(self, other: Stream) -> Future[None]:
        """Hold later work of ``other`` until all work queued on this stream is done.

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

    def _is_in_open_batch(self, future: Future[Any]) -> bool:
        batch = self._batches.get(threading.get_ident())
        return batch is not None and any(f is future for f, _ in (*batch._spans, *batch._joins))

    def record(self, event: Event) -> Future[None]:
        """Mark this point of the stream with the event."""
        future: Future[None] = self._put([_native.mark("record", ())], None, "record")
        batch = self.open_batch() if future._ops is None else None
        event._move(future, queued=batch is None)
        if batch is not None:
            batch.once_enqueued(lambda: event._queued(future))
            batch.on_drop(lambda: event._dropped(future))
        return future

    def mark(
        self, operation: str = "mark", *, finish: Callable[[], None] | None = None
    ) -> Future[None]:
        """A Future that is done when all earlier work is done."""
        return self._put([_native.mark(operation, ())], None, operation, finish=finish)

    def accept(self, tensor: Tensor) -> Future[None]:
        """Declare the contents of a tensor's storage to be valid, in stream order."""
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
