"""Batch: the calls of one thread on a stream, enqueued in one step.

Here: collecting, committing and dropping calls. Not here: the calls themselves (stream.py).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Protocol, Self

from aggml.errors import Aborted, InvalidState
from aggml.stream.observe import submit
from aggml.stream.reactor import current_task

if TYPE_CHECKING:
    from aggml.native import _native
    from aggml.stream.event import Event
    from aggml.stream.future import Future

__all__ = ["Batch", "Collecting"]


class Collecting(Protocol):
    """The part of a stream that a batch uses."""

    name: str
    _batches: dict[int, Batch]

    def _open(self, batch: Batch) -> None:
        """Collect the calls of this thread in ``batch`` from now on."""
        ...


class Batch:
    """Operations of one thread that are enqueued in one step, at the end of a ``with`` block.

    No lock is held during the block. If the body raises, nothing is enqueued and the Futures raise
    Aborted.

    Args:
        stream: the stream whose calls are collected.
        guarded: whether to refuse calls by other tasks of this thread; for blocks that could await.
    """

    def __init__(self, stream: Collecting, *, guarded: bool) -> None:
        self._stream = stream
        self._thread = threading.get_ident()
        self._task = current_task() if guarded else None
        self._guarded = guarded
        self._groups: list[tuple[_native.Stream, list[_native.Desc]]] = []
        self._spans: list[tuple[Future[Any], tuple[int, int, int]]] = []
        self._joins: list[tuple[Future[Any], list[Future[Any]]]] = []
        self.counted = False  # as one submission, for back-pressure
        self.calls = False  # whether functions in Python are among it
        self._events: list[tuple[Event, Future[None], Future[None] | None]] = []

    def check(self) -> None:
        """Refuse a call by another task of this thread: somebody awaited inside the batch.

        Raises:
            InvalidState: another task made the call.
        """
        if self._guarded and current_task() is not self._task:
            raise InvalidState(
                f"[batch] {self._stream!r}: another task of this thread has a batch open; "
                "do not await inside one"
            )

    def add(
        self,
        groups: list[tuple[_native.Stream, list[_native.Desc]]],
        future: Future[Any],
        main: int,
    ) -> None:
        """Collect operations; ``future`` will be the Future of the operations ``groups[main]``."""
        spans = []
        for native, descs in groups:
            if self._groups and self._groups[-1][0] is native:
                last = self._groups[-1][1]
                spans.append((len(self._groups) - 1, len(last), len(descs)))
                last.extend(descs)
            else:
                spans.append((len(self._groups), 0, len(descs)))
                self._groups.append((native, list(descs)))
        self._spans.append((future, spans[main]))

    def join(self, future: Future[Any], parts: list[Future[Any]]) -> None:
        """Make ``future`` stand for all ``parts`` once they are queued."""
        self._joins.append((future, parts))

    def commit(self) -> list[list[_native.Op]]:
        """Enqueue all collected operations, attach them to their Futures; on error `drop` all."""
        if not self._groups:
            return []
        try:
            ops = self._enqueue()
        except BaseException:
            self.drop("its batch could not be enqueued")
            raise
        for future, (group, at, n) in self._spans:
            future._ops = tuple(ops[group][at : at + n])
        for future, parts in self._joins:
            future.join(parts)
        return ops

    def _enqueue(self) -> list[list[_native.Op]]:
        return submit(self._groups)

    def drop(self, why: str) -> None:
        """Abort all Futures; events that were recorded in the batch get their old marks back."""
        for future in [*(f for f, _ in self._spans), *(f for f, _ in self._joins)]:
            problem = Aborted(f"[batch] {future.what}: {why}")
            problem.device, problem.operation = self._stream.name, future.what
            future._problem = problem
        for event, mark, before in self._events:
            if event._mark is mark:
                event._mark = before

    def note_event(self, event: Event, mark: Future[None]) -> None:
        """Remember what ``event`` marked before ``mark``; to be called before it moves."""
        self._events.append((event, mark, event._mark))

    def __enter__(self) -> Self:
        self._stream._open(self)
        return self

    def __exit__(self, raised: object, *_: object) -> None:
        self._stream._batches.pop(self._thread, None)
        if raised is None:
            self.commit()
        else:
            self.drop("the body of its batch raised, so nothing was enqueued")
