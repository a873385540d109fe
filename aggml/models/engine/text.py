"""AnswerText: the bytes of tokens become text that is certain, up to the first stop text.

Here: UTF-8 characters and stop texts that several tokens share. Not here: the tokens that end an
answer (requests.py), bytes of a token (../tokenizers).
"""

from __future__ import annotations

import codecs
import functools
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

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
        self._root = self._at = _stop_tree(stops)
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
        at, root = self._at, self._root
        counts = len(self.begins) > self._min_tokens
        if root.next:
            for i, character in enumerate(new, len(self._held) + 1):
                while character not in at.next and at is not root:
                    at = at.shorter
                at = at.next.get(character, root)
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

    Attributes:
        length: characters of this beginning.
        next: the beginnings that are longer by one character.
        shorter: the longest beginning that is an end of this one. (Aho and Corasick 1975.)
        stop: the longest stop text that is an end of this beginning; empty: none is.
    """

    __slots__ = ("length", "next", "shorter", "stop")

    def __init__(self, length: int) -> None:
        self.length = length
        self.next: dict[str, _Beginning] = {}
        self.shorter = self
        self.stop = ""


def _stop_tree(stops: Iterable[str]) -> _Beginning:
    """The tree of some stop texts.

    Small trees are kept, because their nodes refer to each other: each one that is given up is left
    to Python's collector.
    """
    those = (*stops,)
    small = sum(map(len, those)) <= SMALL
    return _kept_tree(those) if small else _build_tree(those)


def _build_tree(stops: Sequence[str]) -> _Beginning:
    root = _Beginning(0)
    for stop in stops:
        at = root
        for character in stop:
            at = at.next.setdefault(character, _Beginning(at.length + 1))
        at.stop = stop
    waiting = deque([root])
    while waiting:  # shorter beginnings first
        at = waiting.popleft()
        for character, longer in at.next.items():
            shorter = at.shorter
            while character not in shorter.next and shorter is not root:
                shorter = shorter.shorter
            found = shorter.next.get(character, root)
            longer.shorter = root if found is longer else found
            longer.stop = longer.stop or longer.shorter.stop
            waiting.append(longer)
    return root


_kept_tree = functools.lru_cache(64)(_build_tree)
