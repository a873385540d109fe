"""StreamBatch: the calls of one thread on a stream, enqueued in one step.

Here: collecting, committing and dropping calls, with all that they change besides: what others may
see only once the calls are enqueued, and what goes back if they are dropped. Not here: the calls
themselves (stream.py).
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

from aggml.errors import Aborted, InvalidState
from aggml.stream.future import attach, fail
from aggml.stream.observe import submit
from aggml.stream.reactor import current_task
from aggml.tensor.placement import fill

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aggml.native import _native
    from aggml.stream.future import Future
    from aggml.tensor.placement import Placement

__all__ = ["Collecting", "StreamBatch"]


class Collecting(Protocol):
    """The part of a stream that a batch uses."""

    name: str
    open_batches: dict[int, StreamBatch]

    def open_with(self, batch: StreamBatch) -> None:
        """Collect the calls of this thread in ``batch`` from now on."""
        ...


class _Position(NamedTuple):
    """How much a batch had collected at one moment."""

    groups: int
    last: int  # operations of the last group
    spans: int
    joins: int
    undo: int
    hooks: int
    counted: bool
    calls: bool


class StreamBatch:
    """Operations of one thread that are enqueued in one step, at the end of a ``with`` block.

    No lock is held during the block. If the body raises, nothing is enqueued and the Futures raise
    Aborted.

    A call may change more than the queue. If all threads must see the change at the moment at which
    the calls are enqueued, it is made by `once_enqueued`. If this thread needs it earlier, it is
    made at the call, and `on_drop` takes it back. There is no third way: what a dropped call has
    left behind would be found by somebody else's.

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
        self.counted: bool = False  # as one submission, for back-pressure
        self.calls: bool = False  # whether functions in Python are among it
        #: What will be in places of INPUT leafs once the batch is enqueued (see tensor/inputs.py).
        self.states: dict[Placement, int] = {}
        self._undo: list[Callable[[], object]] = []
        self._hooks: list[Callable[[], object]] = []

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

    def has(self, future: Future[Any]) -> bool:
        """Whether a Future is of a call that is collected here."""
        return any(f is future for f, _ in (*self._spans, *self._joins))

    def join(self, future: Future[Any], parts: list[Future[Any]]) -> None:
        """Make ``future`` stand for all ``parts`` once they are queued."""
        self._joins.append((future, parts))

    # -- what calls change besides

    def once_enqueued(self, change: Callable[[], object]) -> None:
        """Call ``change`` when the batch was enqueued; in the order of these calls."""
        self._hooks.append(change)

    def on_drop(self, undo: Callable[[], object]) -> None:
        """Call ``undo`` if this call is dropped; what was done last is undone first."""
        self._undo.append(undo)

    def mark(self, place: Placement, state: int) -> None:
        """Note what a call leaves in a place: EMPTY, KEPT or BROUGHT."""
        states, before = self.states, self.states.get(place)
        states[place] = state
        if before is None:
            self.on_drop(lambda: states.pop(place, None))
        else:
            self.on_drop(lambda: states.update({place: before}))

    # -- the end

    @contextmanager
    def whole(self) -> Iterator[None]:
        """All calls of the block are collected; if the block raises, none of them is."""
        groups = self._groups
        before = _Position(
            len(groups),
            len(groups[-1][1]) if groups else 0,
            len(self._spans),
            len(self._joins),
            len(self._undo),
            len(self._hooks),
            self.counted,
            self.calls,
        )
        try:
            yield
        except BaseException:
            self._back_to(before, "a later part of its call raised, so nothing was enqueued")
            raise

    def _back_to(self, position: _Position, why: str) -> None:
        """Abort the Futures of all later calls, and take back all that these have changed."""
        futures = [f for f, _ in (*self._spans[position.spans :], *self._joins[position.joins :])]
        del self._groups[position.groups :]
        if self._groups:
            del self._groups[-1][1][position.last :]
        del self._spans[position.spans :]
        del self._joins[position.joins :]
        del self._hooks[position.hooks :]
        self.counted, self.calls = position.counted, position.calls
        for future in futures:
            problem = Aborted(f"[batch] {future.what}: {why}")
            problem.device, problem.operation = self._stream.name, future.what
            fail(future, problem)
        while len(self._undo) > position.undo:
            self._undo.pop()()

    def commit(self) -> list[list[_native.Op]]:
        """Enqueue all collected operations, attach them to their Futures; on error `drop` all."""
        if not self._groups:
            self._apply()
            return []
        try:
            ops = self._enqueue()
        except BaseException:
            self.drop("its batch could not be enqueued")
            raise
        for future, (group, at, n) in self._spans:
            attach(future, ops[group][at : at + n])
        for future, parts in self._joins:
            future.join(parts)
        self._apply()
        return ops

    def _enqueue(self) -> list[list[_native.Op]]:
        return submit(self._groups)

    def _apply(self) -> None:
        """Make the changes that wait for the calls to be enqueued; the batch is empty then."""
        states, hooks = self.states, self._hooks
        self.states, self._hooks, self._undo = {}, [], []
        self._groups, self._spans, self._joins = [], [], []
        self.counted = False
        self.calls = False
        for place, state in states.items():
            fill(place, state)
        for change in hooks:
            change()

    def drop(self, why: str) -> None:
        """Abort all Futures, and take back all that their calls have changed."""
        self._back_to(_Position(0, 0, 0, 0, 0, 0, counted=False, calls=False), why)

    def __enter__(self) -> Self:
        self._thread = threading.get_ident()
        self._task = current_task() if self._guarded else None
        self._stream.open_with(self)
        return self

    def __exit__(self, raised: object, *_: object) -> None:
        self._stream.open_batches.pop(self._thread, None)
        if raised is None:
            self.commit()
        else:
            self.drop("the body of its batch raised, so nothing was enqueued")
