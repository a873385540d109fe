"""read_sentencepiece: the vocabulary in a tokenizer.model, which is a message of protobuf.

Here: the part of that format that the pieces need. Not here: joining pieces (../tokenizers/).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from aggml.models.checkpoints.folder_vocabulary import FolderVocabulary
from aggml.models.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["read_sentencepiece"]

#: Fields of the messages, by number.
PIECES: Final = 1
TRAINER: Final = 2
NORMALIZER: Final = 3
TEXT, SCORE, KIND = 1, 2, 3  # of a piece; GGUF has the same numbers for its kinds
DENORMALIZER: Final = 5
MODEL_TYPE: Final = 3  # of the trainer
BPE: Final = 2
CHARSMAP: Final = 2  # of a normalizer
ADD_PREFIX: Final = 3  # of a normalizer
#: Settings that GGUF cannot say for such a vocabulary: their message, number and name, the value if
#: the file does not say, and the one that is carried out. The other settings of the trainer are
#: about training, those of its tokens stand in the pieces.
OTHERS: Final = (
    (TRAINER, 24, "trainer_spec.treat_whitespace_as_suffix", 0, 0),
    (NORMALIZER, 4, "normalizer_spec.remove_extra_whitespaces", 1, 0),
    (NORMALIZER, 5, "normalizer_spec.escape_whitespaces", 1, 1),
)


def read_sentencepiece(path: Path) -> FolderVocabulary:
    """Read pieces, their scores and kinds.

    Raises:
        ModelError: the file cannot be read, its pieces are not joined by BPE, or it has a setting
            that cannot be carried out.
    """
    try:
        return _read(path.read_bytes())
    except ModelError as error:
        raise ModelError(f"{str(path)!r}: {error}") from error
    except (OSError, ValueError, struct.error, IndexError) as error:
        raise ModelError(f"cannot read {str(path)!r}: {error}") from error


def _read(raw: bytes) -> FolderVocabulary:
    tokens: dict[int, str] = {}
    kinds: dict[int, int] = {}
    scores: dict[int, float] = {}
    model, prefix = 1, True
    values = {(message, field): usual for message, field, _, usual, _ in OTHERS}
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
        elif number in (TRAINER, NORMALIZER, DENORMALIZER) and isinstance(value, bytes):
            for inner, found in _fields(value):
                if (number, inner) in values and isinstance(found, int):
                    values[number, inner] = found
                elif (number, inner) == (TRAINER, MODEL_TYPE) and isinstance(found, int):
                    model = found
                elif (number, inner) == (NORMALIZER, ADD_PREFIX):
                    prefix = bool(found)
                elif number != TRAINER and inner == CHARSMAP and found:
                    name = "normalizer" if number == NORMALIZER else "denormalizer"
                    raise _refusal(f"{name}_spec.precompiled_charsmap, which changes characters")
    if not tokens:
        raise ValueError("it has no tokens")
    if model != BPE:
        raise ModelError(
            "tokenizer.model is not of the type BPE: save the tokenizer with transformers, "
            "which writes tokenizer.json"
        )
    for message, field, name, _, wanted in OTHERS:
        if values[message, field] != wanted:
            raise _refusal(f"{name} {bool(values[message, field])}")
    return FolderVocabulary(
        "llama", tokens, kinds, scores=scores, more={"add_space_prefix": prefix}
    )


def _refusal(what: str) -> ModelError:
    return ModelError(
        f"tokenizer.model has {what}, which cannot be carried out: save the tokenizer with "
        "transformers, which writes tokenizer.json"
    )


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
