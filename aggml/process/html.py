"""Small pieces of HTML for notebooks, of escaped text: what stands in a file never becomes markup.

Here: a table, a text as it is, a bar. Not here: what an object shows of itself (``_repr_html_``).
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["ROWS_MOST", "bar", "plain", "table"]

#: Rows of a table, and lines of a text, that are shown; of the rest their number.
ROWS_MOST: Final = 50
_LONGEST: Final = 200  # characters of a cell


def _cell(value: object) -> str:
    text = str(value)
    return escape(
        text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "\N{HORIZONTAL ELLIPSIS}"
    )


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table with a title above it."""
    lines = list(rows)
    out = [f"<table><caption style='text-align:left'>{_cell(title)}</caption>"]
    if head:
        out.append("<tr>" + "".join(f"<th>{_cell(x)}</th>" for x in head) + "</tr>")
    out += [
        "<tr>" + "".join(f"<td>{_cell(x)}</td>" for x in row) + "</tr>" for row in lines[:ROWS_MOST]
    ]
    if len(lines) > ROWS_MOST:
        out.append(f"<tr><td>and {len(lines) - ROWS_MOST} more</td></tr>")
    return "".join([*out, "</table>"])


def plain(text: str) -> str:
    """A text as it is, with its line breaks."""
    lines = text.splitlines()
    shown = [_cell(line) for line in lines[:ROWS_MOST]]
    if len(lines) > ROWS_MOST:
        shown.append(f"and {len(lines) - ROWS_MOST} more lines")
    return "<pre>" + "\n".join(shown) + "</pre>"


def bar(text: str, done: int, total: int) -> str:
    """A bar of progress, and a text beside it."""
    return f"<progress value='{done:d}' max='{max(total, 1):d}'></progress> {_cell(text)}"
