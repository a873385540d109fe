"""of_sentencepiece: the vocabulary in a tokenizer.model, which is a message of protobuf.

Here: the part of that format that the pieces need. Not here: joining pieces (../tokenizers/).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from aggml.models.checkpoints.kinds import Words
from aggml.models.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["of_sentencepiece"]

#: Fields of the messages, by number.
PIECES: Final = 1
TRAINER: Final = 2
NORMALIZER: Final = 3
TEXT, SCORE, KIND = 1, 2, 3  # of a piece; GGUF has the same numbers for its kinds
MODEL_TYPE: Final = 3  # of the trainer
ADD_PREFIX: Final = 3  # of the normalizer
BPE: Final = 2


def of_sentencepiece(path: Path) -> Words:
    """Read pieces, their scores and kinds.

    Raises:
        ModelError: the file cannot be read, or its pieces are not joined by BPE.
    """
    try:
        return _read(path.read_bytes())
    except (OSError, ValueError, struct.error, IndexError) as error:
        raise ModelError(f"cannot read {str(path)!r}: {error}") from error


def _read(raw: bytes) -> Words:
    tokens: dict[int, str] = {}
    kinds: dict[int, int] = {}
    scores: dict[int, float] = {}
    model, prefix = 1, True
    for number, value in _fields(raw):
        if number == PIECES and isinstance(value, bytes):
            i = len(tokens)
            tokens[i], scores[i], kinds[i] = "", 0.0, 1
            for inner, found in _fields(value):
                if inner == TEXT and isinstance(found, bytes):
                    tokens[i] = found.decode()
                elif inner == SCORE and isinstance(found, bytes):
                    (scores[i],) = struct.unpack("<f", found)
                elif inner == KIND and isinstance(found, int):
                    kinds[i] = found
        elif number == TRAINER and isinstance(value, bytes):
            model = next(
                (x for n, x in _fields(value) if n == MODEL_TYPE and isinstance(x, int)), 1
            )
        elif number == NORMALIZER and isinstance(value, bytes):
            prefix = all(x for n, x in _fields(value) if n == ADD_PREFIX)
    if not tokens:
        raise ValueError("it has no tokens")
    if model != BPE:
        raise ModelError(
            "tokenizer.model is not of the type BPE: save the tokenizer with transformers, "
            "which writes tokenizer.json"
        )
    return Words("llama", tokens, kinds, scores=scores, more={"add_space_prefix": prefix})


def _fields(raw: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yields number and value of each field: integers, or bytes of strings, messages and floats."""
    at = 0

    def integer() -> int:
        nonlocal at
        found = shift = 0
        while True:
            byte = raw[at]
            at += 1
            found |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return found

    while at < len(raw):
        tag = integer()
        kind = tag & 7
        if kind == 0:
            yield tag >> 3, integer()
            continue
        size = {1: 8, 5: 4}.get(kind)
        if size is None:
            if kind != 2:
                raise ValueError(
                    f"a field at byte {at} has the unknown wire type {kind}: is the file damaged?"
                )
            size = integer()
        if at + size > len(raw):
            raise ValueError(f"a field at byte {at} reaches beyond the end: is the file complete?")
        yield tag >> 3, raw[at : at + size]
        at += size
