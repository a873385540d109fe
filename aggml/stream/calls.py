"""Python in a stream: functions that run in its order, on a thread of their own.

Not here: that thread (call_thread.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aggml.errors import InvalidState
from aggml.future import Future
from aggml.native import _native
from aggml.spans import storages_of
from aggml.stream.base import StreamBase
from aggml.watch import submit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aggml.tensor import Tensor

__all__ = ["CallStream"]


class CallStream(StreamBase):
    """The operation of a `Stream` that calls Python."""

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
        """
        box: list[Any] = []

        def run() -> None:
            box.append(function(*args))

        caller = self._call_thread()
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
        batch = self.open_batch()
        if batch is not None:
            batch.check()
            if self.native.closed:
                raise InvalidState(f"[{operation}] {self!r} is closed")
            batch.add([(self.native, [desc])], future, -1)
            batch.note_call(caller, future, run)
            return future
        # The ticket is known only once it is queued, and the thread may ask for it at once: hold
        # the stream meanwhile.
        self.native.hold()
        try:
            (ops,) = submit([(self.native, [desc])])
            caller.functions[ops[0].ticket] = run
        finally:
            self.native.release()
        future._ops = tuple(ops)
        return future
