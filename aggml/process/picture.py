"""A drawing of work in its order: a row for each node, lines from results to those who read them.

Here: SVG of rows of text, lanes, bands of colour. The lanes are those of the history that version
control programs draw beside commits: a result keeps its lane until it is read for the last time.
Not here: what the rows say (Graph.plot, DevicePlan.plot, SchedulePlan.plot), timelines (tracing/).
"""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from aggml.errors import InvalidArgument
from aggml.process.paths import user_path

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

__all__ = ["COLOURS", "DrawnRow", "draw_rows", "save_svg", "xml_text"]

#: Bands, in the order in which they are needed. Dark text is readable on each of them.
COLOURS: Final = ("#dbeafe", "#fef3c7", "#dcfce7", "#fce7f3", "#ede9fe", "#ffedd5", "#cffafe")
_LINES: Final = ("#3673b5", "#c97b22", "#2f8f5b", "#8a63ad", "#b4464b", "#7a7f87")

_ROW, _LANE, _TOP, _LEFT = 22, 14, 44, 14
_LANES_MOST: Final = 40  # results beyond share the last lane: nobody follows more with the eye
_CHARACTER: Final = 7.3  # width of one of 12 px, monospaced
_TEXT_MOST: Final = 160  # characters of a row; the whole text stands under the pointer
# What XML 1.0 cannot contain, not even escaped.
_NO_XML: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class DrawnRow(NamedTuple):
    """A line of the drawing.

    Attributes:
        text: what is written there.
        sources: indices of the earlier rows whose results it reads.
        heading: whether the row only names what follows; it has neither a lane nor sources.
        band: index of the colour behind the row; -1: none.
        about: what stands under the pointer, beside the text.
        copied: those of the sources that are read from a copy; their lines are dashed.
    """

    text: str
    sources: tuple[int, ...] = ()
    heading: bool = False
    band: int = -1
    about: str = ""
    copied: frozenset[int] = frozenset()


def xml_text(text: str) -> str:
    """A text as XML may contain it: escaped, and without the characters that XML excludes."""
    return html.escape(_NO_XML.sub("\N{REPLACEMENT CHARACTER}", text))


def _lanes(rows: Sequence[DrawnRow]) -> list[int]:
    """The lane of each row: the first that is free, so that a chain of nodes is a straight line."""
    last = list(range(len(rows)))  # the last row that reads each row
    for i, row in enumerate(rows):
        for source in row.sources:
            last[source] = i
    taken: list[int] = []  # of each lane: the row until which it is taken
    out = []
    for i, row in enumerate(rows):
        if row.heading:
            out.append(0)
            continue
        lane = next((k for k, until in enumerate(taken) if until <= i), len(taken))
        if lane == len(taken):
            taken.append(i)
        # A result that nobody reads takes its lane for this row alone.
        taken[lane] = max(last[i], i + 1)
        out.append(min(lane, _LANES_MOST - 1))
    return out


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, *, dashed: bool) -> str:
    """From a result down its lane, and across just before the row that reads it."""
    bend = y2 - _ROW * 0.75
    path = f"M{x1:g} {y1:g}V{y2:g}" if x1 == x2 else (
        f"M{x1:g} {y1:g}V{max(bend, y1):g}C{x1:g} {y2:g} {x2:g} {max(bend, y1):g} {x2:g} {y2:g}"
    )  # fmt: skip
    style = ' stroke-dasharray="4 3"' if dashed else ""
    return f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.5"{style}/>'


def draw_rows(title: str, rows: Sequence[DrawnRow], notes: Sequence[str] = ()) -> str:
    """The drawing as SVG.

    Args:
        title: above it.
        rows: from the first to the last.
        notes: lines below it: what signs mean.
    """
    lanes = _lanes(rows)
    wide = _LEFT * 2 + _LANE * (max(lanes, default=0) + 1)
    height = _TOP + _ROW * (len(rows) + len(notes)) + 12
    texts = [
        row.text if len(row.text) <= _TEXT_MOST
        else row.text[: _TEXT_MOST - 1] + "\N{HORIZONTAL ELLIPSIS}"
        for row in rows
    ]  # fmt: skip
    longest = max(map(len, (*texts, *notes, title)), default=0)
    width = round(wide + longest * _CHARACTER + _LEFT)

    def middle(i: int) -> tuple[float, float]:
        return _LEFT + _LANE * (lanes[i] + 0.5), _TOP + _ROW * (i + 0.5)

    bands, lines, marks = [], [], []
    for i, row in enumerate(rows):
        top = _TOP + _ROW * i
        if row.band >= 0:
            bands.append(
                f'<rect y="{top}" width="{width}" height="{_ROW}" '
                f'fill="{COLOURS[row.band % len(COLOURS)]}"/>'
            )
        x, y = middle(i)
        for source in row.sources:
            colour = _LINES[lanes[source] % len(_LINES)]
            lines.append(_line(*middle(source), x, y, colour, dashed=source in row.copied))
        about = xml_text("\n".join(filter(None, (row.text, row.about))))
        weight = ' font-weight="bold"' if row.heading else ""
        dot = "" if row.heading else f'<circle cx="{x:g}" cy="{y:g}" r="4" fill="#1d2430"/>'
        marks.append(
            f'<g><title>{about}</title>{dot}<text x="{wide}" y="{y + 4:g}"{weight} '
            f'xml:space="preserve">{xml_text(texts[i])}</text></g>'
        )
    for k, note in enumerate(notes):
        y = _TOP + _ROW * (len(rows) + k) + 18
        marks.append(f'<text x="{_LEFT}" y="{y}" fill="#5a6270">{xml_text(note)}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="monospace" font-size="12" fill="#1d2430">'
        f'<rect width="100%" height="100%" rx="6" fill="white"/><text x="{_LEFT}" y="26" '
        f'font-size="14">{xml_text(title)}</text>{"".join((*bands, *lines, *marks))}</svg>\n'
    )


def save_svg(path: str | os.PathLike[str], drawn: str, what: str) -> None:
    """Write a drawing.

    Args:
        path: ends with ``.svg``.
        drawn: the SVG.
        what: for messages.

    Raises:
        InvalidArgument: another suffix.
        OSError: the file cannot be written.
    """
    file = user_path(path)
    if file.suffix.lower() != ".svg":
        raise InvalidArgument(f"[{what}] {str(path)!r} does not end with .svg")
    file.write_text(drawn, encoding="utf-8")
