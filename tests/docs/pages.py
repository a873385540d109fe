"""The pages of the documentation and the blocks of code in them.

Shared by the tests of this folder. Not here: what is checked.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[2]
#: Pages that tools/ writes from the tables of the package; the tests of ops compare them.
GENERATED: Final = ("docs/ops.md", "docs/cuda-ops.md")
PAGES: Final = sorted(
    str(path.relative_to(ROOT))
    for pattern in ("README.md", "CONTRIBUTING.md", "docs/**/*.md", "examples/**/*.md")
    for path in ROOT.glob(pattern)
    if str(path.relative_to(ROOT)) not in GENERATED
)

_FENCED: Final = re.compile(
    r"^(?:<!-- needs ([\w.]+) -->\n)?```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL
)


class Block(NamedTuple):
    """A block of code, the line of the page on which it begins, the package that it needs."""

    language: str
    code: str
    line: int
    needs: str = ""


def text_of(page: str) -> str:
    """The text of a page."""
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str) -> list[Block]:
    """All blocks of code of a page, in order."""
    text = text_of(page)
    return [
        Block(found[2], found[3], text.count("\n", 0, found.start(2)) + 2, found[1] or "")
        for found in _FENCED.finditer(text)
    ]


def prose(page: str) -> str:
    """A page without its blocks of code."""
    return _FENCED.sub("", text_of(page))
