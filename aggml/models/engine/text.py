"""AnswerText: the bytes of tokens become text that is certain, up to the first stop text.

Here: UTF-8 characters and stop texts that several tokens share. Not here: the tokens that end an
answer (requests.py), bytes of a token (../tokenizers).
"""

from __future__ import annotations

import codecs
import functools
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["AnswerText"]

SMALL: Final = 256  # characters of stop texts whose tree is kept


class AnswerText:
    """The text of an answer while its tokens arrive; ends before the first stop text.

    The first stop text is the one that is complete first; if several end at the same character, the
    longest. So the text does not depend on how tokens divide it. Text that may be the beginning of
    a stop text is held back until more text decides.

    ``answer = AnswerText(vocabulary.bytes_of, ["Question:"])``
    ``for token in tokens: print(answer.add(token), end="")``
    ``print(answer.end())``

    Args:
        bytes_of: the bytes of a token.
        stops: the stop texts.
        min_tokens: a stop text that ends within so many first tokens does not count.
        keeps_stop: the stop text is part of the answer.

    Attributes:
        stop: the stop text that has come; None: none yet.
        begins: for each token, how many characters of the answer came before its text.
        given: how many characters `add` and `end` have returned.
    """

    def __init__(
        self,
        bytes_of: Callable[[int], bytes],
        stops: Iterable[str] = (),
        min_tokens: int = 0,
        *,
        keeps_stop: bool = False,
    ) -> None:
        self._keeps_stop = keeps_stop
        self._bytes_of = bytes_of
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._root = self._at = _tree_of(tuple(dict.fromkeys(stops)))
        self._min_tokens = min_tokens
        self._held = ""
        self.stop: str | None = None
        self.begins: list[int] = []
        self.given: int = 0

    @property
    def stopped(self) -> bool:
        """Whether a stop text has come."""
        return self.stop is not None

    @property
    def holds(self) -> bool:
        """Whether something is held back: part of a character, or what may begin a stop text."""
        return self.stop is None and bool(self._held or self._decoder.getstate()[0])

    def add(self, token: int) -> str:
        """Add a token; returns the text that is now certain and was not returned before.

        After a stop text has come, tokens are ignored.
        """
        if self.stop is not None:
            return ""
        self.begins.append(self.given + len(self._held))
        return self._read(self._decoder.decode(self._bytes_of(token)))

    def end(self) -> str:
        """The rest of the text: no more tokens come.

        Bytes at the end that are no whole character are left out: an answer that is cut by
        ``max_tokens`` does not end with U+FFFD.
        """
        if self.stop is not None:
            return ""
        self._decoder.reset()
        text, self._held = self._held, ""
        self.given += len(text)
        self._at = self._root
        return text

    def _read(self, new: str) -> str:
        """Add characters; returns those that are now certain."""
        text = self._held + new
        at = self._at
        counts = len(self.begins) > self._min_tokens
        if self._root.stops:
            for i, character in enumerate(new, len(self._held) + 1):
                at = at.after(character)
                if counts and at.stop:
                    self.stop = at.stop
                    self._held = ""
                    text = text[: i if self._keeps_stop else i - len(at.stop)]
                    self.given += len(text)
                    return text
        self._at = at
        certain = len(text) - at.length
        self._held = text[certain:]
        self.given += certain
        return text[:certain]


class _Beginning:
    """The beginning of one or more stop texts: a node in the tree of all of them.

    Nodes are made when a text reaches them, because the tree of 64 long stop texts has 60,000.

    Args:
        stops: the stop texts that have this beginning.
        length: its characters.
        shorter: the longest beginning that is an end of this one (Aho and Corasick 1975); None:
            this is the root, which has no characters.

    Attributes:
        stops: the stop texts that have this beginning, and a character more.
        length: characters of this beginning.
        stop: the longest stop text that is an end of this beginning; empty: none is.
    """

    __slots__ = ("_next", "_shorter", "length", "stop", "stops")

    def __init__(
        self, stops: list[str], length: int = 0, shorter: _Beginning | None = None
    ) -> None:
        self.length = length
        self.stops = [x for x in stops if len(x) > length]
        self.stop: str = next((x for x in stops if len(x) == length), "")
        self._next: dict[str, _Beginning | None] = {}
        self._shorter = shorter
        if shorter is not None and not self.stop:
            self.stop = shorter.stop

    def after(self, character: str) -> _Beginning:
        """The longest beginning at the end of this one and a character more."""
        at = self
        while True:
            try:
                found = at._next[character]
            except KeyError:
                found = at._next[character] = at._make(character)
            if found is not None:
                return found
            if at._shorter is None:
                return at
            at = at._shorter

    def _make(self, character: str) -> _Beginning | None:
        """The beginning that is longer by a character; None: no stop text has it."""
        n = self.length
        stops = [x for x in self.stops if x[n] == character]
        if not stops:
            return None
        shorter = self if self._shorter is None else self._shorter.after(character)
        return _Beginning(stops, n + 1, shorter)


def _tree_of(stops: tuple[str, ...]) -> _Beginning:
    """The root of the tree of some stop texts.

    Small trees are kept, because their nodes refer to each other: each one that is given up is left
    to Python's collector. Several threads may make nodes of one tree; if two make the same, either
    will do.
    """
    small = sum(map(len, stops)) <= SMALL
    return _kept_tree(stops) if small else _Beginning([*stops])


@functools.lru_cache(64)
def _kept_tree(stops: tuple[str, ...]) -> _Beginning:
    return _Beginning([*stops])
