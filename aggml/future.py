"""Future: tickets of streams that tasks can await.

Here: done, result, exception, awaiting, callbacks, abort by the last cancelled waiter, gather,
as_completed. Not here: how a loop is woken (reactor.py), what is enqueued (stream.py, backend.py).
"""

from __future__ import annotations

import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, cast

import anyio.lowlevel

from aggml import errors
from aggml.call_thread import Waiting, calling, check_may_wait
from aggml.errors import Aborted, AggmlError, DeviceError, InvalidHandle, InvalidState
from aggml.reactor import Parker, checkpoint, current_reactor, post_here, wait_op
from aggml.watch import observed, watchers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator, Iterable

    from aggml.native import _native

__all__ = ["Future", "Shielded", "Times", "as_completed", "exception_of", "gather", "root_cause"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)  # a Future[ndarray] is a Future[object]

# ag_code of native/runtime/runtime.h; FOREIGN carries its own exception.
_CODES: dict[int, type[AggmlError]] = {
    1: DeviceError,
    2: errors.OutOfBounds,
    3: errors.InvalidArgument,
    4: errors.Unsupported,
    5: errors.AllocFailed,
    6: Aborted,
}
# Loops in several threads may wait for one Future. Reentrant: `__del__` leaves, too, at any point.
_waiters_lock = threading.RLock()


class Times(NamedTuple):
    """When an operation was submitted, started and done: perf_counter seconds, None until then."""

    submitted: float
    started: float | None
    done: float | None


def root_cause(error: _native.Error) -> BaseException:
    """The one exception that stands for a native failure; all that follows from it shares it."""
    if error.exception is None:
        cls = _CODES.get(error.code, DeviceError)
        about = f" '{error.tensor}'" if error.tensor else ""
        root = cls(f"[{error.device}: {error.operation}{about}] {error.text}")
        root.device, root.operation = error.device, error.operation
        root.tensor = error.tensor or None
        error.exception = root
    return cast("BaseException", error.exception)


def exception_of(error: _native.Error, *, derived: bool = False) -> AggmlError:
    """A fresh exception for one failed operation, caused by the shared root."""
    root = root_cause(error)
    if isinstance(root, AggmlError):
        cls, text = type(root), str(root)
    else:
        about = f" '{error.tensor}'" if error.tensor else ""
        what = error.text if about else repr(root)  # the text is cut, but names the node's op
        cls, text = DeviceError, f"[{error.device}: {error.operation}{about}] {what}"
    if derived:
        text = f"not run, because what it reads was not written: {text}"
    try:
        exception = cls(text)
    except TypeError:  # a subclass of the caller's with a constructor of its own
        exception = DeviceError(text)
    exception.device, exception.operation = error.device, error.operation
    exception.tensor = error.tensor or None
    exception.__cause__ = root
    error.seen = True
    return exception


class Future(Generic[T_co]):
    """What a queued operation will bring; awaited any number of times, in any task, loop or thread.

    A Future holds its operations' slots, so times and errors stay readable; it does not hold the
    device. Dropping it changes nothing: the operation goes on and keeps what it needs.

    Cancellation: of an await, abandons the wait. Where the work belongs to its waiters alone
    (``run``, ``submit``), the cancellation of the last one aborts the work; see ``shield``.
    """

    __slots__ = (
        "__weakref__",
        "_abortable",
        "_finish",
        "_ops",
        "_problem",
        "_value",
        "_waiters",
        "what",
    )

    def __init__(
        self,
        ops: tuple[_native.Op, ...] | None,
        value: T_co,
        what: str,
        *,
        abortable: bool = False,
        finish: Callable[[], None] | None = None,
    ) -> None:
        self._ops = ops  # None while its batch is open
        self._value = value
        self.what = what
        self._abortable = abortable
        self._finish = finish
        self._waiters = 0
        self._problem: AggmlError | None = None  # set if its batch was given up

    def join(self, parts: list[Future[Any]]) -> None:
        """Stand for all ``parts``, which are queued in this order on one stream."""
        self._ops = tuple([op for part in parts for op in part._ops or ()])

    # -- state

    def _last(self) -> _native.Op | None:
        """The operation that finishes last; None if the batch was given up, so there never was."""
        if self._ops is None:
            if self._problem is not None:
                return None
            raise InvalidState(
                f"[Future] {self.what}: its batch is still open, so it is not queued yet"
            )
        return self._ops[-1]

    def _awaited(self) -> _native.Op | None:
        """The same for who is about to wait for it.

        Raises:
            InvalidState: it would wait for itself, see `check_may_wait`.
        """
        last = self._last()
        if calling and self._ops is not None:
            check_may_wait(self._ops, self.what)
        return last

    def done(self) -> bool:
        """Whether the operation is over, however it ended. Never blocks."""
        if self._ops is None:
            return self._problem is not None
        done = self._ops[-1].done()
        if watchers and done:
            observed(self._ops)
        return done

    def exception(self) -> Exception | None:
        """What `result` would raise, or None.

        Raises:
            InvalidState: the operation is pending.
        """
        if self._problem is not None:
            return self._problem
        if not self.done():
            raise InvalidState(
                f"[Future.exception] {self.what} is pending: await it, or call wait()"
            )
        if watchers:
            observed(self._ops or ())
        for op in self._ops or ():
            error = op.error()
            if error is not None:
                return exception_of(error, derived=op.derived)
        if self._finish is not None:
            try:
                self._finish()
            except ExceptionGroup as problem:  # what synchronize() has to tell
                return problem
        return None

    def result(self) -> T_co:
        """The value.

        Raises:
            InvalidState: the operation is pending.
            AggmlError: what the operation failed with.
            ExceptionGroup: of a `Backend.synchronize`, the failures that nobody had seen.
        """
        problem = self.exception()
        if problem is not None:
            try:
                raise problem
            finally:
                del problem  # no cycle through this frame
        return self._value

    @property
    def times(self) -> Times:
        """Submitted (of the first operation), started, done (of the last)."""
        last = self._last()
        if last is None or self._ops is None:
            raise InvalidState(f"[Future.times] {self.what} was never queued")
        first = self._ops[0].times()
        return Times(first[0], first[1], last.times()[2])

    # -- waiting

    def __await__(self) -> Generator[Any, Any, T_co]:
        last = self._awaited()
        if last is None:
            yield from checkpoint()
            return self.result()
        if not self._abortable:
            yield from wait_op(last)
            return self.result()
        self._enter()
        try:
            yield from wait_op(last)
        except BaseException:
            self._leave(cancelled=True)
            raise
        self._leave(cancelled=False)
        return self.result()

    def wait(self, timeout: float | None = None) -> bool:
        """Block this thread, without the GIL, until done; for scripts and notebooks. Ctrl-C works.

        Args:
            timeout: seconds, or None for ever. Running out is no cancellation.

        Returns:
            Whether it is done.

        Raises:
            InvalidState: called by a function (`Stream.call`, ``map_custom1``) that the very stream
                runs, or one for which that stream waits, by however many others: it would wait for
                itself.
        """
        last = self._awaited()
        if last is None:
            return True
        seconds = -1.0 if timeout is None else max(0.0, timeout)
        self._enter()
        try:
            if calling:
                with Waiting(self._ops or (), self.what):
                    return last.wait(seconds)
            return last.wait(seconds)
        finally:
            self._leave(cancelled=False)

    def add_done_callback(self, callback: Callable[[Future[T_co]], object]) -> None:
        """Call ``callback(self)`` once done, in the loop that runs here; soon if it is done now.

        The callback counts as a waiter. What it raises is logged.

        Raises:
            InvalidState: no loop runs in this thread, or the batch is still open.
        """
        last = self._last()
        reactor, post = current_reactor(), post_here()

        def call() -> None:
            self._leave(cancelled=False)
            try:
                callback(self)
            except Exception:
                _log_callback(self, callback)

        self._enter()
        if last is None or last.done() or reactor.arm(last, call) is None:
            post(call)

    def abort(self) -> None:
        """Stop the operation at its next safe point; later work goes on.

        It is done in its turn and raises Aborted.
        """
        for op in self._ops or ():
            op.abort()

    def shield(self) -> Shielded[T_co]:
        """An awaitable of the same result whose cancellation never aborts the work."""
        return Shielded(self)

    async def settled(self) -> None:
        """Wait until done, however it ends. Cancellation: abandons this wait and nothing else."""
        last = self._awaited()
        if last is not None:
            await _Op(last)

    def _enter(self) -> None:
        with _waiters_lock:
            self._waiters += 1

    def _leave(self, *, cancelled: bool) -> None:
        with _waiters_lock:
            self._waiters -= 1
            last = self._waiters == 0
        if cancelled and last and self._abortable and not self.done():
            self.abort()

    def __repr__(self) -> str:
        if not self.done():
            state = "pending" if self._ops is not None else "in an open batch"
        elif self._problem is not None or any(op.error() is not None for op in self._ops or ()):
            state = "failed"
        else:
            state = "done"
        return f"<Future {self.what}, {state}>"


def _log_callback(future: Future[Any], callback: object) -> None:
    import logging

    logging.getLogger("aggml").exception("[Future] callback %r of %r failed", callback, future)


class _Op:
    """Awaits one operation without looking at how it ended."""

    __slots__ = ("_op",)

    def __init__(self, op: _native.Op) -> None:
        self._op = op

    def __await__(self) -> Generator[Any, Any, None]:
        return wait_op(self._op)


class Shielded(Generic[T_co]):
    """Awaits a Future without the power to abort its work."""

    __slots__ = ("_future",)

    def __init__(self, future: Future[T_co]) -> None:
        self._future = future

    def __await__(self) -> Generator[Any, Any, T_co]:
        last = self._future._awaited()
        self._future._enter()  # it waits, so nobody else is the last waiter
        try:
            yield from checkpoint() if last is None else wait_op(last)
        finally:
            self._future._leave(cancelled=False)
        return self._future.result()


class _Completions(Generic[T]):
    """Yields each Future as it gets done; cancelled, it stops waiting for all of them at once.

    No generator: one that is not exhausted has to be closed by hand, and trio says so.
    """

    def __init__(self, futures: Iterable[Future[T]]) -> None:
        self._ready: deque[Future[T]] = deque()
        self._entries: list[_native.Waiter] = []
        self._waited: set[Future[T]] = set()
        self._futures = list(dict.fromkeys(futures))
        for future in self._futures:
            if not isinstance(future, Future):
                raise InvalidHandle(f"[as_completed] {future!r} is no Future")
        self._left = len(self._futures)
        self._parker: Parker | None = None

    def _start(self) -> Parker:
        parker, reactor, ready = Parker(), current_reactor(), self._ready

        def arrive(future: Future[T]) -> None:  # does not keep self: who breaks off waits no more
            ready.append(future)
            parker.unpark()

        for future in self._futures:
            last = future._awaited()
            entry = None if last is None else reactor.arm(last, partial(arrive, future))
            if entry is None:
                ready.append(future)
            else:
                self._entries.append(entry)
            future._enter()
            self._waited.add(future)
        return parker

    def __aiter__(self) -> _Completions[T]:
        return self

    async def __anext__(self) -> Future[T]:
        if self._left == 0:
            raise StopAsyncIteration
        try:
            if self._parker is None:
                self._parker = self._start()
            await anyio.lowlevel.checkpoint()
            while not self._ready:
                await self._parker.park()
        except BaseException:
            self.close(cancelled=True)
            raise
        future = self._ready.popleft()
        self._left -= 1
        self._waited.discard(future)
        future._leave(cancelled=False)
        return future

    def close(self, *, cancelled: bool = False) -> None:
        """Wait for nothing any more."""
        self._left = 0
        for entry in self._entries:
            entry.cancel()
        while self._waited:
            self._waited.pop()._leave(cancelled=cancelled)

    def __del__(self) -> None:
        self.close()


def as_completed(futures: Iterable[Future[T]]) -> AsyncIterator[Future[T]]:
    """Yield the given Futures as they get done; ``result()`` of each brings value or failure.

    Leaving the loop early aborts nothing.

    Cancellation: of a wait, aborts those that are abortable (``run``, ``submit``) and that nobody
    else waits for.
    """
    return _Completions(futures)


async def gather(*futures: Future[Any]) -> list[Any]:
    """Await all; the results in the order given.

    Raises:
        AggmlError: the first failure, at once; the others go on.

    Cancellation: aborts those that are abortable (``run``, ``submit``) and that nobody else waits
    for.
    """
    completions = _Completions(futures)
    if not futures:
        await anyio.lowlevel.checkpoint()
    try:
        async for future in completions:
            future.result()
    finally:
        completions.close()
    return [future.result() for future in futures]
