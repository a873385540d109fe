"""Backend: the operations together, their order among others, back-pressure, the end.

Not here: what the operations do (data.py, computing.py), waking (future.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import anyio

from aggml.backend.computing import ComputingBackend
from aggml.backend.data import DataBackend
from aggml.errors import AggmlError, InvalidHandle
from aggml.native import _native
from aggml.stream import Stream
from aggml.stream.event import Event
from aggml.stream.future import Future
from aggml.stream.observe import submit
from aggml.stream.reactor import current_task

if TYPE_CHECKING:
    from types import TracebackType

    from aggml.stream.batch import Batch

__all__ = ["Backend"]


class Backend(DataBackend, ComputingBackend):
    """A stream of work on one device; open once constructed.

    Operations run in the order submitted. Every method that returns a Future returns at once;
    misuse raises at the call, before anything is queued; what fails later fails its Future and
    poisons what it would have written.
    """

    # -- order

    def batch(self) -> Batch:
        """``with backend.batch():`` enqueues this thread's calls at its end, in one step.

        So no call of another thread gets between them. Awaiting one of its Futures inside is
        refused. If the body raises, nothing is enqueued and its Futures raise Aborted.
        """
        self._check_open("Backend.batch")
        return self.stream.batch()

    def record(self, event: Event) -> Future[None]:
        """Let ``event`` mark all that is queued so far (ggml_backend_event_record)."""
        self._check_open("Backend.record")
        if not isinstance(event, Event):
            raise InvalidHandle(f"[Backend.record] {event!r} is no Event")
        return self.stream.record(event)

    def wait(self, event: Event | Future[Any]) -> Future[None]:
        """Hold later work until the event's latest mark is reached (ggml_backend_event_wait).

        Or until a Future is done. An event never recorded counts as reached. No thread waits.
        """
        self._check_open("Backend.wait")
        if not isinstance(event, Event | Future):
            raise InvalidHandle(f"[Backend.wait] {event!r} is neither an Event nor a Future")
        return self.stream.wait(event)

    def synchronize(self) -> Future[None]:
        """A Future of all that is queued (ggml_backend_synchronize).

        Raises:
            ExceptionGroup: by the Future, of the failures that nobody has seen.
        """
        if self._drained is not None:
            return self._drained
        unseen: list[AggmlError] | None = None  # every await of one Future tells the same

        def report() -> None:
            nonlocal unseen
            if unseen is None:
                unseen = self.stream.failures()
            if unseen:
                raise ExceptionGroup(
                    f"[Backend.synchronize] {self!r}: {len(unseen)} failed unseen", unseen
                )

        return self.stream.mark("synchronize", finish=report)

    # -- back-pressure

    async def ready(self) -> None:
        """Wait until fewer than ``max_queued`` submissions are unfinished or admitted.

        First come, first served. A submission is one call, a whole ``run`` or a whole batch; each
        admission is good for one. (`pending` counts operations: a ``run`` is several.)

        Cancellation: gives the place in the queue up.
        """
        await self._admission.wait()

    # -- end

    def close(self) -> None:
        """Refuse new work; never blocks. What is queued goes on, and keeps what it needs.

        Failures that nobody has seen are logged (logger ``aggml``): now if nothing is queued, else
        when the backend and all of its Futures have gone, or at exit.
        """
        native = self.stream.native
        if self._drained is None and native.alive and not native.closed:
            if native.lost is None:
                (ops,) = submit([(native, [_native.mark("close", ())])])
                self._drained = Future(tuple(ops), None, "close")
            else:  # it refuses work, also a mark; what is queued there fails soon
                self._drained = Stream(self.name, pool=self.stream.pool).wait(self.stream)
            self.stream.close()
        if not self.stream.pending:
            self.stream.tell_failures("Backend.close")

    async def aclose(self) -> None:
        """Close, then wait until all that is queued is done; failures that nobody saw are logged.

        Cancellation: anyio scopes wait for the drain; a native asyncio cancel ends the wait, not
        the close.
        """
        self.close()
        if self._drained is not None:
            with anyio.CancelScope(shield=True):
                await self._drained
        self.stream.tell_failures("Backend.aclose")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.stream.abort()
        await self.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.stream.abort()
        self.close()
        if self._drained is not None and current_task() is None:  # a loop must not be blocked
            self._drained.wait()
            self.stream.tell_failures("Backend.close")
