"""Stream.call: Python functions that run in stream order, on a separate thread.

Not here: that thread (call_thread.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aggml.native import _native
from aggml.stream.base import StreamBase
from aggml.stream.future import Outcome
from aggml.tensor.spans import storages_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aggml.stream.future import Future
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

        self._start_calls()
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
        return self._put([desc], outcome, operation)
