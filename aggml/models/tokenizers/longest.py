"""LongestMatch: RWKV's tokenizer, which always takes the longest token that matches.

Tokens are any bytes, written in the file with escapes as in Python. Not here: BPE and SentencePiece
(vocabulary.py), WordPiece and unigram (pieces.py).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from aggml.models.tokenizers.vocabulary import SILENT, GGUFVocabulary, VocabularyError, utf8

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["LongestMatch", "escape_token", "unescape_token"]

_ESCAPE: Final = re.compile(rb"\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
_NAMED: Final = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}


def escape_token(token: bytes) -> str:
    r"""A token in the form of GGUF files: ASCII, other bytes as ``\xe4``."""
    return repr(token)[2:-1]


def unescape_token(piece: str) -> bytes:
    r"""The reverse of `escape_token`. ``\`` before any other character means that character.

    Raises:
        VocabularyError: a backslash at the end.
    """

    def one(found: re.Match[bytes]) -> bytes:
        told = found[1]
        return bytes([int(told[1:], 16)]) if len(told) == 3 else _NAMED.get(told, told)

    whole = utf8(piece)
    if (len(whole) - len(whole.rstrip(b"\\"))) % 2:
        raise VocabularyError(f"token {piece!r} ends within an escape sequence")
    return _ESCAPE.sub(one, whole)


class LongestMatch(GGUFVocabulary):
    """Goes from left to right and takes the longest token with which the rest begins."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        super().__init__(metadata, add_bos=False)
        self.add_bos = self.add_eos = False  # as in llama.cpp, whatever the file says
        self.bytes_: Sequence[bytes] = [unescape_token(piece) for piece in self.pieces]
        self._ids: dict[bytes, int] = {}
        lengths: dict[bytes, set[int]] = {}
        for i, token in enumerate(self.bytes_):
            if token and i not in self._roles.hidden:
                self._ids[token] = i
                lengths.setdefault(token[:2], set()).add(len(token))
        self._lengths = {begin: sorted(n, reverse=True) for begin, n in lengths.items()}

    def _encode(self, text: str) -> list[int]:
        data = text.encode("utf-8", "replace")
        found: list[int] = []
        at = 0
        while at < len(data):
            for n in self._lengths.get(data[at : at + 2], ()):
                token = self._ids.get(data[at : at + n])
                if token is not None:
                    break
            else:
                n, token = 1, self._ids.get(data[at : at + 1], self.unknown)
            if token is not None:
                found.append(token)
            at += n
        return found

    def bytes_of(self, token: int) -> bytes:
        """Any bytes: a character may be spread over tokens."""
        if self.kinds[token] in SILENT or token in self._roles.hidden:
            return b""
        return self.bytes_[token]
