"""Trace: the operations of each stream, with the start and end times that the streams recorded.

Here: collecting, Chrome trace JSON, a picture with a row for each stream. Not here: times of single
operations, which every Future has (`Future.times`).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self
from xml.sax.saxutils import escape

from aggml.errors import InvalidArgument
from aggml.process.paths import user_path
from aggml.stream.observe import observers

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from aggml.native import _native
    from aggml.stream.observe import Groups

__all__ = ["Trace", "TraceEvent", "chrome", "note_work", "trace"]

# Operations that move and compute nothing; they show in the JSON, not in the picture.
_MARKS: Final = frozenset({"wait", "mark", "record", "submit", "synchronize", "close", "accept"})
_COLOURS: Final = {
    "set": "#4c9f70",
    "get": "#d08c3f",
    "copy": "#8f6bb3",
    "graph_compute": "#3f7fbf",
}
_OTHER: Final = "#888888"


class TraceEvent(NamedTuple):
    """One operation that is done; times in perf_counter seconds, bytes that it copied or filled."""

    stream: str
    operation: str
    submitted: float
    started: float
    done: float
    nbytes: int


class Trace:
    """Records every operation that is enqueued between ``with`` and its end.

    It keeps the slots of the operations, some 100 bytes each, and reads them when asked.
    """

    def __init__(self) -> None:
        self._ops: list[tuple[_native.Stream, str, _native.Op]] = []
        self._names: dict[int, str] = {}
        self._notes: list[TraceEvent] = []

    def __enter__(self) -> Self:
        observers.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        observers.remove(self)

    def before(self, groups: Groups) -> list[list[str]]:
        """See `aggml.stream.observe.Observer`."""
        return [[desc.operation for desc in descs] for _, descs in groups]

    def after(self, groups: Groups, ops: list[list[_native.Op]], note: object) -> None:
        """See `aggml.stream.observe.Observer`."""
        names: Any = note
        for (stream, _), found, operations in zip(groups, ops, names, strict=True):
            self._ops += [(stream, name, op) for name, op in zip(operations, found, strict=True)]

    def born(self, start: int, end: int, owner: object) -> None:
        """See `aggml.stream.observe.Observer`."""

    def seen(self, ops: Sequence[_native.Op]) -> None:
        """See `aggml.stream.observe.Observer`."""

    def note(self, event: TraceEvent) -> None:
        """Add work that no stream did, such as a call of a pipeline's stage."""
        self._notes.append(event)

    def _rows(self) -> dict[int, str]:
        """Key of each stream -> its name, made unique, in the order of first use."""
        names: dict[int, str] = {}
        used: dict[str, int] = {}
        for stream, _, _ in self._ops:
            if stream.key not in names:
                n = used[stream.name] = used.get(stream.name, 0) + 1
                names[stream.key] = stream.name if n == 1 else f"{stream.name} ({n})"
        return names

    @property
    def events(self) -> list[TraceEvent]:
        """The operations that are done by now as they were enqueued; then other work."""
        names = self._rows()
        found = []
        for stream, name, op in self._ops:
            submitted, started, done = op.times()
            if started is not None and done is not None:
                found.append(
                    TraceEvent(names[stream.key], name, submitted, started, done, op.moved)
                )
        return found + self._notes

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
        """Draw a timeline, a row for each stream.

        Args:
            path: of the SVG; it ends with ``.svg``. A viewer names the operation under the mouse.
            title: above it.

        Raises:
            InvalidArgument: no work was traced, or another suffix.
        """
        file = user_path(path)
        if file.suffix.lower() != ".svg":
            raise InvalidArgument(f"[Trace.plot] {str(path)!r} does not end with .svg")
        done = self.events
        notes = len(done) - len(self._notes)
        events = [e for i, e in enumerate(done) if i >= notes or e.operation not in _MARKS]
        if not events:
            raise InvalidArgument("[Trace.plot] nothing to draw: no work was done while it traced")
        file.write_text(_svg(events, title))

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
            "args": {"queued_us": (e.started - e.submitted) * 1e6, "bytes": e.nbytes},
        }
        for e in events
    ]
    return out


def _row_numbers(events: Sequence[TraceEvent]) -> dict[str, int]:
    return {name: i for i, name in enumerate(dict.fromkeys(e.stream for e in events))}


def _svg(events: Sequence[TraceEvent], title: str) -> str:
    row_of = _row_numbers(events)
    start, end = min(e.started for e in events), max(e.done for e in events)
    left, width, height = 140, 1000, 28
    scale = width / max(end - start, 1e-9)
    top = 30
    rows = []
    for name, i in row_of.items():
        y = top + i * height
        rows.append(
            f'<text x="{left - 8}" y="{y + 18}" text-anchor="end">{escape(name)}</text>'
            f'<line x1="{left}" x2="{left + width}" y1="{y + 25}" y2="{y + 25}" stroke="#ddd"/>'
        )
    for e in events:
        x, y = left + (e.started - start) * scale, top + row_of[e.stream] * height
        w = max((e.done - e.started) * scale, 0.5)
        text = f"{e.operation}: {(e.done - e.started) * 1e3:.3f} ms"
        rows.append(
            f'<rect x="{x:.2f}" y="{y + 3}" width="{w:.2f}" height="20" '
            f'fill="{_COLOURS.get(e.operation, _OTHER)}"><title>{escape(text)}</title></rect>'
        )
    bottom = top + len(row_of) * height
    for k in range(6):
        x = left + width * k / 5
        rows.append(
            f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">'
            f"{(end - start) * k / 5 * 1e3:.1f} ms</text>"
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 40}" '
        f'height="{bottom + 30}" font-family="sans-serif" font-size="12">'
        f'<rect width="100%" height="100%" fill="white"/>'
        f'<text x="{left}" y="18" font-size="14">{escape(title)}</text>{"".join(rows)}</svg>\n'
    )
