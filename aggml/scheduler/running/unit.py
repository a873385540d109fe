"""Unit: all operations of one submission, collected and enqueued in one step.

Here: collecting them, and which array each transfer is from or to, so that they can be recorded
(prepared.py). Not here: which operations (run.py).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, TypeAlias

from aggml.errors import InvalidState
from aggml.native import _native
from aggml.stream.batch import StreamBatch
from aggml.stream.future import attach, operations_of
from aggml.stream.observe import submit_in_line

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np

    from aggml.backend import Backend
    from aggml.stream import Stream
    from aggml.stream.future import Future
    from aggml.tensor import Tensor

    Array = np.ndarray[Any, Any]
    #: Whose array: a leaf that is brought, or ("placed", i), ("output", i); None: nobody's.
    Source: TypeAlias = Tensor | tuple[str, int] | None

__all__ = ["Output", "Unit", "check_no_batch"]


class Output:
    """A tensor that a submission reads: ``tensor`` into ``array`` once split ``split`` is done.

    ``split`` is -1 where the value lies in memory that the user placed: read last, by its backend;
    -2 where there is nothing to read.
    """

    __slots__ = ("array", "backend", "split", "tensor")

    def __init__(self, tensor: Tensor, array: Array, split: int, backend: int) -> None:
        self.tensor: Tensor = tensor
        self.array: Array = array
        self.split: int = split
        self.backend: int = backend


def check_no_batch(backends: Iterable[Backend], what: str, own: StreamBatch | None = None) -> None:
    """Refuse a submission within a batch of one of its backends.

    The batch is enqueued at its end, but a submission at once, on several streams: it would come
    before calls that were made earlier.

    Args:
        backends: of the submission.
        what: for messages.
        own: the batch of the submission itself, if there is one already.

    Raises:
        InvalidState: this thread has a batch open.
    """
    for backend in backends:
        batches = backend.stream.open_batches
        batch = batches.get(threading.get_ident()) if batches else None
        if batch is not None and batch is not own:
            raise InvalidState(
                f"[{what}] this thread has a batch open on {backend!r}, which is enqueued later: "
                "submit after it"
            )


class Unit(StreamBatch):
    """All operations of one submission; waits are put in without a Future.

    Attributes:
        parts: Futures of what the hooks of backends enqueued.
        source: whose array the next transfers are from or to; None: nobody's.
        sources: that of each transfer, in the order of operations.
        backends: whose hooks were called, with what their `_repeats` said before.
    """

    def __init__(self, stream: Stream) -> None:
        super().__init__(stream, guarded=False)
        self.parts: list[Future[Any]] = []
        self.source: Source = None
        self.sources: list[Source] = []
        self.backends: dict[Backend, object] = {}
        self._shared: list[Stream] = []
        self._place: tuple[_native.Lineup, _native.Use] | None = None

    @property
    def groups(self) -> list[tuple[_native.Stream, list[_native.Desc]]]:
        """The operations."""
        return self._groups

    def share(self, backend: Backend) -> None:
        """Have calls on the backend's stream by this thread become part of the unit."""
        if backend in self.backends:
            return
        stream = backend.stream
        check_no_batch((backend,), "Scheduler", self)
        self.backends[backend] = backend._repeats()
        if self._thread not in stream.open_batches:
            stream.open_batches[self._thread] = self
            self._shared.append(stream)

    def release(self) -> None:
        """Let go of the streams."""
        for stream in self._shared:
            stream.open_batches.pop(self._thread, None)

    def add(
        self,
        groups: list[tuple[_native.Stream, list[_native.Desc]]],
        future: Future[Any],
        main: int,
    ) -> None:
        """See `StreamBatch.add`."""
        for _, descs in groups:
            self.sources += [self.source for desc in descs if desc.has_array]
        super().add(groups, future, main)

    def push(self, stream: _native.Stream, desc: _native.Desc) -> None:
        """Append one operation that has no Future."""
        groups = self._groups
        if groups and groups[-1][0] is stream:
            groups[-1][1].append(desc)
        else:
            groups.append((stream, [desc]))

    def wait(self, stream: _native.Stream, other: _native.Stream) -> None:
        """Let ``stream`` go on after all that is queued on ``other``."""
        if stream is not other:
            self.push(stream, _native.wait(other, None))

    def send(self, line: _native.Lineup, use: _native.Use, future: Future[Any]) -> None:
        """Enqueue behind what ``use`` has to wait for.

        ``future`` stands for all parts and the last operation.
        """
        self._place = line, use
        ops = self.commit()
        attach(future, [*[op for part in self.parts for op in operations_of(part)], ops[-1][-1]])

    def _enqueue(self) -> list[list[_native.Op]]:
        assert self._place is not None
        return submit_in_line(self._groups, *self._place)
