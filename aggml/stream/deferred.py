"""Deferred: the Future of work that a task of this event loop has to queue first.

Here: that Future, and the task that queues its work. Not here: work that is queued at the call
(future.py), which is nearly all: a deferred Future is for a submission that has to wait for an
evaluation, or is one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from aggml.errors import Aborted, AggmlError
from aggml.native import _native
from aggml.stream.future import Future
from aggml.stream.observe import submit
from aggml.stream.parker import post_here
from aggml.stream.reactor import spawn

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aggml.stream.stream import Stream

__all__ = ["DeferredFuture"]

T = TypeVar("T")


class DeferredFuture(Future[Any]):
    """A Future that stands for another one, which a task of its own queues as soon as it can.

    Until then its only operation is a mark on a stream that is held. So any task, loop and thread
    may wait for it, as for every other Future.

    Args:
        work: queues the work, and returns its Future.
        stream: a stream that nobody else uses.
        what: the method that was called, for messages.

    Raises:
        InvalidState: no event loop runs in this thread.

    Cancellation: of the last waiter, cancels ``work``, or aborts what it queued.
    """

    __slots__ = ("_aborted", "_inner", "_post", "_scope", "_stream")

    def __init__(
        self, work: Callable[[], Awaitable[Future[Any]]], stream: Stream, what: str
    ) -> None:
        self._post = post_here()  # first: it says that no loop runs
        self._stream = stream.native
        self._stream.hold()
        (ops,) = submit([(self._stream, [_native.mark(what, ())])])
        super().__init__(tuple(ops), None, what, abortable=True)
        self._inner: Future[Any] | None = None
        self._aborted = False
        self._scope: anyio.CancelScope | None = None
        spawn(lambda: self._queue(work))

    async def _queue(self, work: Callable[[], Awaitable[Future[Any]]]) -> None:
        """Queue the work, then wait for it, and take over how it ends."""
        self._problem = Aborted(f"[{self.what}] the event loop ended before it was done")
        try:
            with anyio.CancelScope() as self._scope:
                if not self._aborted:
                    self._inner = await work()
                    if self._aborted:
                        self._inner.abort()
                    self._value = await self._inner.shield()
                    self._problem = None
            if self._aborted and self._inner is None:
                self._problem = Aborted(f"[{self.what}] it was aborted before it was queued")
        except AggmlError as problem:
            self._problem = problem
        except Exception as problem:  # of a function of the user, such as an eval callback
            self._problem = Aborted(f"[{self.what}] {type(problem).__name__}: {problem}")
            self._problem.__cause__ = problem
        finally:
            self._stream.release()

    def _failure(self) -> Exception | None:
        return self._problem

    def exception(self) -> Exception | None:
        """As `Future.exception`."""
        return self._problem if self.done() else super().exception()

    def done(self) -> bool:
        """As `Future.done`."""
        assert self._ops is not None
        return self._ops[-1].done()

    def abort(self) -> None:
        """As `Future.abort`; nothing is queued if it was not yet."""
        self._aborted = True
        if self._inner is not None:
            self._inner.abort()
            return
        try:
            self._post(self._cancel)
        except RuntimeError:  # its loop is closed, and the task has ended with it
            return

    def _cancel(self) -> None:
        if self._scope is not None and self._inner is None:
            self._scope.cancel()
        elif self._inner is not None:
            self._inner.abort()
