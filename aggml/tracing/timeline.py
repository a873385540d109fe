"""Trace: the operations of each stream, with the start and end times that the streams recorded.

Here: collecting, what each operation waited for, Chrome trace JSON. Not here: the drawings
(drawing.py); times of single operations, which every Future has (`Future.times`).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from aggml.errors import InvalidArgument
from aggml.memory.buffer import find_tensors
from aggml.process import html
from aggml.process.paths import user_path
from aggml.stream.observe import observers
from aggml.tensor.placement import PlacementEpoch
from aggml.tracing.drawing import Arrow, page, svg
from aggml.tracing.events import TraceEvent

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from aggml.native import _native
    from aggml.stream.observe import Groups

__all__ = ["Trace", "TraceEvent", "chrome", "note_work", "trace"]

# Operations that move and compute nothing; they show in the JSON, not in the picture.
_MARKS: Final = frozenset({"wait", "mark", "record", "submit", "synchronize", "close", "accept"})
_MOST_NAMES: Final = 3  # tensors of an operation that are named


class _Traced(NamedTuple):
    """An operation as it was enqueued: its tensors, and the stream and ticket that it waits for."""

    stream: _native.Stream
    name: str
    op: _native.Op
    tensors: tuple[str, ...]
    waits: tuple[int, int | None] | None


class Trace:
    """Records every operation that is enqueued between ``with`` and its end.

    It keeps the slots of the operations, some 300 bytes each, and reads them when asked.
    """

    def __init__(self) -> None:
        self._ops: list[_Traced] = []
        self._last: dict[int, int] = {}  # key of a stream -> the last ticket on it that was seen
        self._known: dict[tuple[int, int], tuple[str, ...]] = {}  # names of tensors at these bytes
        self._epoch = 0  # of placements, in which they are known
        self._names: dict[int, str] = {}
        self._notes: list[TraceEvent] = []

    def __enter__(self) -> Self:
        observers.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        observers.remove(self)

    def before(self, groups: Groups) -> list[list[tuple[Any, ...]]]:
        """See `aggml.stream.observe.Observer`."""
        if self._epoch != PlacementEpoch.value:
            self._epoch = PlacementEpoch.value
            self._known.clear()
        return [[_facts(desc, self._known) for desc in descs] for _, descs in groups]

    def after(self, groups: Groups, ops: list[list[_native.Op]], note: object) -> None:
        """See `aggml.stream.observe.Observer`."""
        facts: Any = note
        for (stream, _), found, operations in zip(groups, ops, facts, strict=True):
            for (name, tensors, waits), op in zip(operations, found, strict=True):
                upto = waits
                if waits is not None and waits[1] is None:
                    upto = (waits[0], self._last.get(waits[0], 0))
                self._ops.append(_Traced(stream, name, op, tensors, upto))
                self._last[stream.key] = op.ticket

    def on_new_memory(self, start: int, end: int, owner: object) -> None:
        """See `aggml.stream.observe.Observer`."""
        self._known.clear()

    def on_done(self, ops: Sequence[_native.Op]) -> None:
        """See `aggml.stream.observe.Observer`."""

    def note(self, event: TraceEvent) -> None:
        """Add work that no stream did, such as a call of a pipeline's stage."""
        self._notes.append(event)

    def _rows(self) -> dict[int, str]:
        """Key of each stream -> its name, made unique, in the order of first use."""
        names: dict[int, str] = {}
        used: dict[str, int] = {}
        for stream, *_ in self._ops:
            if stream.key not in names:
                n = used[stream.name] = used.get(stream.name, 0) + 1
                names[stream.key] = stream.name if n == 1 else f"{stream.name} ({n})"
        return names

    @property
    def events(self) -> list[TraceEvent]:
        """The operations that are done by now as they were enqueued; then other work."""
        return self._read()[0]

    def _read(self) -> tuple[list[TraceEvent], list[Arrow]]:
        """The events, and the waits of one stream for another as pairs of their places."""
        names = self._rows()
        found: list[TraceEvent] = []
        arrows: list[Arrow] = []
        work: dict[int, list[tuple[int, int]]] = {}  # of a stream: tickets and places of its work
        due: dict[int, list[int]] = {}  # of a stream: places of what its next work waits for
        for stream, name, op, tensors, waits in self._ops:
            if waits is not None:
                at = _last_before(work.get(waits[0], []), waits[1])
                if at is not None and waits[0] != stream.key:
                    due.setdefault(stream.key, []).append(at)
            submitted, started, done = op.times()
            if started is None or done is None:
                continue
            cause = ""
            place = len(found)
            if name not in _MARKS:
                own = work.setdefault(stream.key, [])
                others = due.pop(stream.key, [])
                candidates = [*others, *(at for _, at in own[-1:])]
                before = max(candidates, key=lambda i: found[i].done, default=None)
                if before is not None and found[before].done > submitted:
                    first = found[before]
                    cause = f"{first.operation} on {first.stream}"
                    if first.tensors:
                        cause += f" ({', '.join(first.tensors)})"
                    if before in others:
                        arrows.append(Arrow(before, place))
                own.append((op.ticket, place))
            at_row = names[stream.key]
            event = TraceEvent(at_row, name, submitted, started, done, op.moved, tensors, cause)
            found.append(event)
        return found + self._notes, arrows

    @property
    def streams(self) -> list[str]:
        """Names of the streams that were used, then those of the rows of other work."""
        return [*dict.fromkeys([*self._rows().values(), *(x.stream for x in self._notes)])]

    def to_json(self) -> dict[str, Any]:
        """The events in Chrome's trace format."""
        events = self.events
        start = min((e.submitted for e in events), default=0.0)
        return {"traceEvents": chrome(events, start, streams=self.streams), "displayTimeUnit": "ms"}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write Chrome trace JSON, for https://ui.perfetto.dev or chrome://tracing."""
        user_path(path).write_text(json.dumps(self.to_json()))

    def plot(self, path: str | os.PathLike[str], *, title: str = "") -> None:
        """Draw a timeline, a lane for each stream, with an arrow where one waits for another.

        Args:
            path: ends with ``.svg`` or ``.html`` (a page that zooms). Both tell an operation's
                tensors, bytes and cause under the mouse.
            title: above it.

        Raises:
            InvalidArgument: no work was traced, or another suffix.
        """
        suffix = user_path(path).suffix.lower()
        if suffix not in {".html", ".svg"}:
            raise InvalidArgument(f"[Trace.plot] {str(path)!r} ends with neither .svg nor .html")
        events, arrows = self._find_drawn()
        if not events:
            raise InvalidArgument("[Trace.plot] nothing to draw: no work was done while it traced")
        drawn = (page if suffix == ".html" else svg)(events, arrows, title)
        user_path(path).write_text(drawn, encoding="utf-8")

    def _find_drawn(self) -> tuple[list[TraceEvent], list[Arrow]]:
        """What a picture shows: the work, and the waits between it."""
        done, arrows = self._read()
        notes = len(done) - len(self._notes)
        shown = [i for i, e in enumerate(done) if i >= notes or e.operation not in _MARKS]
        place = {i: k for k, i in enumerate(shown)}
        return [done[i] for i in shown], [Arrow(place[a], place[b]) for a, b in arrows]

    def _repr_html_(self) -> str:
        """For notebooks: the timeline."""
        events, arrows = self._find_drawn()
        return svg(events, arrows) if events else html.plain(repr(self))

    def __repr__(self) -> str:
        return f"<Trace of {len(self._ops)} operations on {len(self._rows())} streams>"


def trace() -> Trace:
    """Record what all streams do: ``with aggml.trace() as t: ...``; then ``t.plot``, ``t.save``."""
    return Trace()


def note_work(row: str, name: str, submitted: float, started: float, done: float) -> None:
    """Show work that no stream did in all traces that record now: a call of a pipeline's stage."""
    for observer in observers:
        if isinstance(observer, Trace):
            observer.note(TraceEvent(row, name, submitted, started, done, 0))


def chrome(
    events: Sequence[TraceEvent], start: float, pid: int = 1, *, streams: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Events of one process in Chrome's trace format: a row for each stream.

    Args:
        events: as `Trace.events` has them.
        start: the time that becomes 0.
        pid: number of the process.
        streams: names of the rows in their order; none: as the events have them.
    """
    rows = {name: i for i, name in enumerate(streams)} or _row_numbers(events)
    out: list[dict[str, Any]] = [
        {"ph": "M", "name": "thread_name", "pid": pid, "tid": i, "args": {"name": name}}
        for name, i in rows.items()
    ]
    out += [
        {
            "ph": "X",
            "name": e.operation,
            "cat": "mark" if e.operation in _MARKS else "work",
            "pid": pid,
            "tid": rows[e.stream],
            "ts": (e.started - start) * 1e6,
            "dur": (e.done - e.started) * 1e6,
            "args": {
                "queued_us": (e.started - e.submitted) * 1e6,
                "bytes": e.nbytes,
                "tensors": ", ".join(e.tensors),
                "cause": e.cause,
            },
        }
        for e in events
    ]
    return out


def _facts(
    desc: _native.Desc, known: dict[tuple[int, int], tuple[str, ...]]
) -> tuple[str, tuple[str, ...], tuple[int, int | None] | None]:
    """The name of an operation, its tensors, and the stream and ticket that it waits for.

    ``known`` keeps what was found. Graphs have hundreds of operands, which are not looked for.
    """
    name = desc.operation
    if name == "graph_compute" or name in _MARKS:
        return name, (), desc.waits()
    names: dict[str, None] = {}
    for start, end, _ in desc.ranges():
        found = known.get((start, end))
        if found is None:
            found = known[start, end] = tuple(t.name for t, _ in find_tensors(start, end) if t.name)
        names.update(dict.fromkeys(found))
    return name, tuple(names)[:_MOST_NAMES], None


def _last_before(work: list[tuple[int, int]], ticket: int | None) -> int | None:
    """The place of the last work of a stream up to a ticket."""
    return next((at for its, at in reversed(work) if ticket is None or its <= ticket), None)


def _row_numbers(events: Sequence[TraceEvent]) -> dict[str, int]:
    return {name: i for i, name in enumerate(dict.fromkeys(e.stream for e in events))}
