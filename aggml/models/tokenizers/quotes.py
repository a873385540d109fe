"""Quotes: names of control tokens that stand in somebody's text, told by private characters.

Not here: making tokens of a text with quotes (vocabulary.py).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Quotes", "quotes_of"]

MARKS: Final = range(0x100000, 0x10FFFE)  # private characters; one that no text has begins a quote
DIGITS: Final = 0xF0000  # private characters from here on say which name is quoted
BASE: Final = 65000


class Quotes:
    """Replaces names in texts by private characters, and private characters by names.

    Args:
        names: what is replaced, the longest first.
        finder: finds them.
        mark: a character that no text has.
    """

    def __init__(self, names: Sequence[str], finder: re.Pattern[str], mark: str) -> None:
        self._names = names
        self._number = {name: i for i, name in enumerate(names)}
        self._finder = finder
        self._mark = mark
        self._quoted = re.compile(re.escape(mark) + "(.)(.)", re.DOTALL)

    def quote(self, text: str) -> str:
        """The text with each name replaced."""
        return self._finder.sub(self._quote, text)

    def _quote(self, found: re.Match[str]) -> str:
        high, low = divmod(self._number[found[0]], BASE)
        return f"{self._mark}{chr(DIGITS + high)}{chr(DIGITS + low)}"

    def unquote(self, text: str) -> str:
        """The text with the names that `quote` replaced."""
        return self._quoted.sub(self._unquote, text)

    def _unquote(self, found: re.Match[str]) -> str:
        at = (ord(found[1]) - DIGITS) * BASE + ord(found[2]) - DIGITS
        return self._names[at] if 0 <= at < len(self._names) else found[0]


def quotes_of(names: Sequence[str], finder: re.Pattern[str], texts: Iterable[str]) -> Quotes | None:
    """Quotes for texts; None if no name stands in any of them."""
    given = list(texts)
    if not any(finder.search(text) for text in given):
        return None
    used = {character for text in given for character in text}
    mark = next(chr(x) for x in MARKS if chr(x) not in used)
    return Quotes(names, finder, mark)
