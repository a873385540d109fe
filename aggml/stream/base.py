"""StreamBase: enqueuing, batches, holding and closing; what happens to streams at exit.

Not here: what can be enqueued (data.py, calls.py, stream.py), running (native/runtime/).
"""

from __future__ import annotations

import atexit
import threading
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from aggml.errors import (
    AggmlError,
    AllocFailed,
    InvalidArgument,
    InvalidHandle,
    InvalidState,
    Unsupported,
)
from aggml.native import _native
from aggml.process.foreign import report, show, text_of
from aggml.process.locks import new_lock
from aggml.stream.batch import Batch
from aggml.stream.call_thread import CallThread, foreign_error, join_callers, stop_callers
from aggml.stream.failures import exception_of
from aggml.stream.future import Future
from aggml.stream.observe import observers, submit
from aggml.stream.threadpool import ThreadPool, default_pool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["StreamBase", "at_exit"]

T = TypeVar("T")

_native.set_exceptions(InvalidState, AllocFailed, InvalidArgument, Unsupported)


def _tell_unseen(name: str, errors: Sequence[_native.Error]) -> None:
    for error in errors:
        report(f"[Stream] {name} is gone, and nobody saw {text_of(exception_of(error))}")


_native.set_unseen(_tell_unseen)


class StreamBase:
    """The base of `Stream`, on which its operations are built."""

    def __init__(
        self,
        name: str,
        *,
        pool: ThreadPool | None = None,
        n_threads: int = 0,
        native: _native.Stream | None = None,
    ) -> None:
        self.name = name
        self.pool = default_pool() if pool is None else pool
        if not isinstance(self.pool, ThreadPool):
            raise InvalidHandle(f"[Stream] pool={pool!r} is no ThreadPool")
        if native is None:
            native = _native.Stream(name, self.pool.native, n_threads)
            self.pool.attach(self)
        self.native = native
        self._batches: dict[int, Batch] = {}
        self._caller: CallThread | None = None
        self._starting = new_lock()

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
        if len(descs) == 1 and not observers:
            return Future(_native.submit_one(self.native, descs[0]), value, what, finish=finish)
        (ops,) = submit([(self.native, descs)])
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
            future._ops = tuple(submit(groups)[main])
        return future

    def _open(self, batch: Batch) -> None:
        if threading.get_ident() in self._batches:
            raise InvalidState(f"[batch] {self!r} has a batch open in this thread already")
        self._batches[threading.get_ident()] = batch

    def batch(self) -> Batch:
        """``with stream.batch():`` enqueues all calls of this thread at its end, in one step."""
        return Batch(self, guarded=True)

    def open_batch(self) -> Batch | None:
        """The batch that this thread has open on this stream, if any."""
        return self._batches.get(threading.get_ident()) if self._batches else None

    @contextmanager
    def unit(self) -> Iterator[None]:
        """`batch` for code that never awaits; it joins the batch of this thread if one is open.

        If the block raises, none of its calls is enqueued, then as well.
        """
        batch = self._batches.get(threading.get_ident()) if self._batches else None
        if batch is not None:
            batch.check()
            with batch.whole():
                yield
            return
        with Batch(self, guarded=False):
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

    def _start_calls(self) -> None:
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


_endings: list[Callable[[], object]] = []


def at_exit(function: Callable[[], object]) -> None:
    """Register a function that a device needs at exit, called after all streams and pools ended."""
    if function not in _endings:
        _endings.append(function)


@atexit.register
def _shut_down() -> None:
    """Abort what runs, end the Python threads, join the workers: no thread is left behind.

    This includes streams, threads and pools that no Python object refers to any more. Failures that
    nobody has seen are logged. Functions that a stream still runs are given 2 s, all together.
    """
    try:
        _native.end_streams()
        callers = stop_callers()
        _native.stop_pools()
        for function in _endings:
            try:
                function()
            except Exception as error:
                report(f"[exit] {show(function)} failed", error)
        join_callers(callers, 2.0)
        for name, errors in _native.take_unseen():
            _tell_unseen(name, errors)
    finally:  # also after Ctrl-C: threads that come back later must not touch Python any more
        _native.shutdown()
