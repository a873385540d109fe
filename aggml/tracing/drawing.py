"""Drawings of a timeline: SVG, and a page of HTML that zooms.

Here: lanes, bars, arrows, the legend. Not here: collecting what is drawn (timeline.py), the program
of the page (timeline.html).
"""

from __future__ import annotations

import html
import json
from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aggml.tracing.events import TraceEvent

__all__ = ["COLOURS", "OTHER", "Arrow", "page", "svg"]

#: As that of xml.sax, whose module loads those for HTTP.
escape = partial(html.escape, quote=False)

COLOURS: Final = {
    "set": "#2f8f5b",
    "get": "#c97b22",
    "copy": "#8a63ad",
    "graph_compute": "#3673b5",
}
OTHER: Final = "#7a7f87"
_LEFT, _WIDTH, _ROW, _TOP = 200, 960, 40, 62
_MOST_ARROWS: Final = 400  # more make a picture that nobody can read


class Arrow(NamedTuple):
    """A wait: the operation at ``to`` began because the one at ``begin`` had ended."""

    begin: int
    to: int


def _lanes(events: Sequence[TraceEvent]) -> dict[str, str]:
    """Streams in the order of their first use, and what each of them spends its time on."""
    busy: dict[str, dict[str, float]] = {}
    for e in events:
        row = busy.setdefault(e.stream, {})
        row[e.operation] = row.get(e.operation, 0.0) + e.done - e.started
    return {
        name: ", ".join(sorted(row, key=row.__getitem__, reverse=True)[:3])
        for name, row in busy.items()
    }


def _amount(nbytes: int) -> str:
    """Bytes in the unit in which people read them."""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if nbytes >= 1 << power:
            return f"{nbytes / (1 << power):.1f} {unit}"
    return f"{nbytes} bytes"


def _about(e: TraceEvent) -> list[str]:
    """The lines that stand under the pointer."""
    lines = [f"{e.operation}: {(e.done - e.started) * 1e3:.3f} ms"]
    if e.tensors:
        lines.append("tensors: " + ", ".join(e.tensors))
    if e.nbytes:
        lines.append(_amount(e.nbytes))
    lines.append(f"queued for {(e.started - e.submitted) * 1e3:.3f} ms")
    if e.cause:
        lines.append(f"began after: {e.cause}")
    return lines


def _step(seconds: float) -> float:
    """A round distance of marks, of which some eight fit."""
    size = 1e-9
    while True:
        for factor in (1, 2, 5):
            if seconds / (size * factor) <= 8:
                return size * factor
        size *= 10


def _time(seconds: float, step: float) -> str:
    unit, name = (1e-3, "ms") if step >= 1e-4 else (1e-6, "us")
    return f"{round(seconds / unit, 3):g} {name}"


def svg(events: Sequence[TraceEvent], arrows: Sequence[Arrow] = (), title: str = "") -> str:
    """A picture: a lane for each stream, a bar for each operation, an arrow for each wait."""
    lanes = _lanes(events)
    rows = {name: i for i, name in enumerate(lanes)}
    start, end = min(e.started for e in events), max(e.done for e in events)
    scale = _WIDTH / max(end - start, 1e-9)
    bottom = _TOP + len(lanes) * _ROW
    out = []
    step = _step(end - start)
    for k in range(int((end - start) / step) + 1):
        across = _LEFT + k * step * scale
        out.append(
            f'<path d="M{across:.1f} {_TOP}V{bottom}" stroke="#e4e7eb"/>'
            f'<text x="{across:.1f}" y="{bottom + 18}" text-anchor="middle" fill="#5a6270">'
            f"{_time(k * step, step)}</text>"
        )
    for name, what in lanes.items():
        y = _TOP + rows[name] * _ROW
        out.append(
            f'<text x="{_LEFT - 12}" y="{y + 18}" text-anchor="end" font-weight="bold">'
            f"{escape(name)}</text>"
            f'<text x="{_LEFT - 12}" y="{y + 32}" text-anchor="end" font-size="10" fill="#5a6270">'
            f"{escape(what)}</text>"
            f'<path d="M{_LEFT} {y + _ROW}H{_LEFT + _WIDTH}" stroke="#d5d9df"/>'
        )
    for e in events:
        x, y = _LEFT + (e.started - start) * scale, _TOP + rows[e.stream] * _ROW
        w = max((e.done - e.started) * scale, 0.75)
        out.append(
            f'<rect x="{x:.2f}" y="{y + 7}" width="{w:.2f}" height="26" rx="2" '
            f'fill="{COLOURS.get(e.operation, OTHER)}">'
            f"<title>{escape(chr(10).join(_about(e)))}</title></rect>"
        )
    for arrow in arrows[:_MOST_ARROWS]:
        first, then = events[arrow.begin], events[arrow.to]
        x1, x2 = _LEFT + (first.done - start) * scale, _LEFT + (then.started - start) * scale
        y1, y2 = (_TOP + rows[e.stream] * _ROW + _ROW // 2 for e in (first, then))
        out.append(
            f'<path d="M{x1:.1f} {y1}C{x1 + 9:.1f} {y1} {x2 - 9:.1f} {y2} {x2:.1f} {y2}" '
            'fill="none" stroke="#1d2430" stroke-opacity=".55" marker-end="url(#to)"/>'
        )
    at = _LEFT
    for operation in dict.fromkeys(e.operation for e in events):
        out.append(
            f'<rect x="{at}" y="36" width="12" height="12" rx="2" '
            f'fill="{COLOURS.get(operation, OTHER)}"/>'
            f'<text x="{at + 18}" y="46">{escape(operation)}</text>'
        )
        at += 38 + 7 * len(operation)
    if arrows:
        out.append(f'<text x="{at}" y="46" fill="#5a6270">\N{RIGHTWARDS ARROW} waits for</text>')
    width, height = _LEFT + _WIDTH + 40, bottom + 30
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="sans-serif" font-size="12" fill="#1d2430">'
        '<defs><marker id="to" viewBox="0 0 6 6" refX="5" refY="3" markerWidth="6" '
        'markerHeight="6" orient="auto"><path d="M0 0L6 3L0 6z" fill="#1d2430" '
        'fill-opacity=".7"/></marker></defs><rect width="100%" height="100%" rx="6" fill="white"/>'
        f'<text x="{_LEFT}" y="22" font-size="15">{escape(title)}</text>{"".join(out)}</svg>\n'
    )


def page(events: Sequence[TraceEvent], arrows: Sequence[Arrow] = (), title: str = "") -> str:
    """A page that zooms; it asks no host for anything."""
    lanes = _lanes(events)
    rows = {name: i for i, name in enumerate(lanes)}
    start = min(e.started for e in events)
    data: dict[str, Any] = {
        "lanes": [[name, what] for name, what in lanes.items()],
        "colours": COLOURS,
        "other": OTHER,
        # begin and end in microseconds, lane, operation, lines under the pointer
        "bars": [
            [
                round((e.started - start) * 1e6, 3),
                round((e.done - start) * 1e6, 3),
                rows[e.stream],
                e.operation,
                _about(e),
            ]
            for e in events
        ],
        "arrows": [list(arrow) for arrow in arrows],
    }
    text = files("aggml.tracing").joinpath("timeline.html").read_text(encoding="utf-8")
    # A name may contain "</script>" or the line separators that end a line of JavaScript.
    packed = json.dumps(data).replace("<", "\\u003c")
    return text.replace("{{title}}", escape(title or "timeline")).replace("{{data}}", packed)
