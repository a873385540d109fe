"""Text to tokens and back, by the vocabulary in a GGUF file: SentencePiece or byte-level BPE.

The `tokenizers` library does byte-level BPE. SentencePiece joins pieces by score, not by a list of
merges; it is short, so it is written here. Not here: other kinds (pieces.py, longest.py), chat
templates (template.py).
"""

from __future__ import annotations

import codecs
import heapq
import itertools
import re
import unicodedata
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final

from aggml.models.errors import ModelError
from aggml.models.tokenizers.cuts import CUTS
from aggml.process.extras import install_command

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tokenizers import Tokenizer

    from aggml.models.tokenizers.cuts import Cut

__all__ = [
    "BYTE",
    "CONTROL",
    "SPACE",
    "USER_DEFINED",
    "ByteLevel",
    "SentencePiece",
    "Vocabulary",
    "VocabularyError",
    "letters",
    "steps_of",
]

CONTROL: Final = 3  # tokenizer.ggml.token_type
USER_DEFINED: Final = 4
BYTE: Final = 6

SPACE: Final = "\u2581"


class VocabularyError(ModelError):
    """The file's vocabulary is missing, or of a kind that cannot be read here."""


class Vocabulary(ABC):
    """What all vocabularies have in common: special tokens, begin and end, incremental text.

    Args:
        metadata: of a GGUF file.
        add_bos: whether a prompt begins with BOS if the file does not say.
    """

    def __init__(self, metadata: Mapping[str, Any], *, add_bos: bool) -> None:
        self.pieces: Sequence[str] = metadata["tokenizer.ggml.tokens"]
        kinds = metadata.get("tokenizer.ggml.token_type")
        self.kinds: Sequence[int] = [1] * len(self.pieces) if kinds is None else list(kinds)
        self.bos: int | None = _token(metadata, "bos")
        self.add_bos = bool(metadata.get("tokenizer.ggml.add_bos_token", add_bos))
        self.add_eos = bool(metadata.get("tokenizer.ggml.add_eos_token", False))
        self.eos: int | None = _token(metadata, "eos")
        ends = {self.eos, _token(metadata, "eot"), _token(metadata, "eom")}
        self.ends = frozenset(x for x in ends if x is not None)
        self.ids = {piece: i for i, piece in enumerate(self.pieces)}
        special = [p for p, kind in zip(self.pieces, self.kinds, strict=True)
                   if kind in (CONTROL, USER_DEFINED) and p]  # fmt: skip
        special.sort(key=len, reverse=True)
        self._special = (
            re.compile("(" + "|".join(map(re.escape, special)) + ")") if special else None
        )

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Tokens of ``text``.

        Args:
            text: any text; names of special tokens in it become these tokens.
            special: put BOS before and EOS after the text, if the model expects them.
        """
        ids = [self.bos] if special and self.add_bos and self.bos is not None else []
        for part in self._special.split(text) if self._special else [text]:
            token = self.ids.get(part) if part else None
            if token is not None and self.kinds[token] in (CONTROL, USER_DEFINED):
                ids.append(token)
            elif part:
                ids += self._encode(part)
        return [*ids, self.eos] if special and self.add_eos and self.eos is not None else ids

    def encode_pair(self, first: str, second: str) -> list[int]:
        """Tokens of two texts as one: begin, the first, end, the second, end."""
        begin = [] if self.bos is None else [self.bos]
        end = [] if self.eos is None else [self.eos]
        return [*begin, *self._encode(first), *end, *self._encode(second), *end]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens; bytes that are no UTF-8 become U+FFFD."""
        return "".join(self.stream(ids))

    def stream(self, ids: Sequence[int] | Iterator[int]) -> Iterator[str]:
        """Yields the text of each token, as far as characters are complete; at the end the rest."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for token in ids:
            yield decoder.decode(self.bytes_of(token))
        yield decoder.decode(b"", final=True)

    @abstractmethod
    def _encode(self, text: str) -> list[int]:
        """Tokens of text in which no special token occurs."""

    @abstractmethod
    def bytes_of(self, token: int) -> bytes:
        """The bytes that a token stands for; none for a control token."""


def _token(metadata: Mapping[str, Any], name: str) -> int | None:
    found = metadata.get(f"tokenizer.ggml.{name}_token_id")
    return None if found is None else int(found)


class SentencePiece(Vocabulary):
    """Joins neighbouring pieces, best score first; text without a token is encoded as bytes."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        super().__init__(metadata, add_bos=True)
        self.scores = [float(x) for x in metadata["tokenizer.ggml.scores"]]
        self.prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
        self.bytes_ = [self.ids.get(f"<0x{i:02X}>") for i in range(256)]

    def _encode(self, text: str) -> list[int]:
        if self.prefix:
            text = " " + text
        parts: list[str] = list(text.replace(" ", SPACE))
        after = [*range(1, len(parts)), -1]
        before = list(range(-1, len(parts) - 1))
        queue: list[tuple[float, int, int, str]] = []

        def offer(left: int, right: int) -> None:
            joined = parts[left] + parts[right]
            token = self.ids.get(joined)
            if token is not None:
                heapq.heappush(queue, (-self.scores[token], left, right, joined))

        for left, right in itertools.pairwise(range(len(parts))):
            offer(left, right)
        while queue:
            _, left, right, joined = heapq.heappop(queue)
            if not parts[left] or not parts[right] or parts[left] + parts[right] != joined:
                continue  # one of the two has been joined with another part meanwhile
            parts[left], parts[right] = joined, ""
            after[left] = next_ = after[right]
            if next_ >= 0:
                before[next_] = left
                offer(left, next_)
            if before[left] >= 0:
                offer(before[left], left)
        ids: list[int] = []
        for part in parts:
            token = self.ids.get(part) if part else None
            if token is not None:
                ids.append(token)
            elif part:
                ids += [x for x in map(self.bytes_.__getitem__, part.encode("utf-8", "replace"))
                        if x is not None]  # fmt: skip
        return ids

    def bytes_of(self, token: int) -> bytes:
        """A single byte, or the token's text in UTF-8; nothing for a control token."""
        kind, piece = self.kinds[token], self.pieces[token]
        if kind == BYTE:
            return bytes([int(piece[3:5], 16)])
        return b"" if kind == CONTROL else piece.replace(SPACE, " ").encode()

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens, without the space that `encode` put at its beginning."""
        text = super().decode(ids)
        return text.removeprefix(" ") if self.prefix else text


class ByteLevel(Vocabulary):
    """BPE over bytes, after the text has been cut into pieces by the model's patterns (cuts.py)."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        pre = metadata.get("tokenizer.ggml.pre", "default")
        if pre not in CUTS:
            known = ", ".join(sorted(CUTS))
            raise VocabularyError(f"tokenizer.ggml.pre is {pre!r}, known are {known}")
        self._cut = CUTS[pre]
        super().__init__(metadata, add_bos=self._cut.add_bos)
        self._tokenizer = _joiner(metadata, self.ids, self._cut)
        self._bytes = _bytes_by_letter()
        self._lower = bool(metadata.get("tokenizer.ggml.normalizer.lowercase", False))
        self._composed = bool(metadata.get("tokenizer.ggml.normalizer.nfc", False))

    def _encode(self, text: str) -> list[int]:
        if self._composed:
            text = unicodedata.normalize("NFC", text)
        if self._cut.words:
            if self._lower:
                text = text.lower()
            return [x for word in text.split() for x in self._tokenizer.encode(word).ids]
        return list(
            self._tokenizer.encode(text if self._cut.bytes else text.replace(" ", SPACE)).ids
        )

    def bytes_of(self, token: int) -> bytes:
        """Any bytes: a character may be spread over tokens."""
        if self.kinds[token] == CONTROL:
            return b""
        piece = self.pieces[token]
        if self.kinds[token] == USER_DEFINED:
            return piece.encode()
        if not self._cut.bytes:
            if self.kinds[token] == BYTE:
                return bytes([int(piece[3:5], 16)])
            return piece.replace(SPACE, " ").encode()
        try:
            return bytes(map(self._bytes.__getitem__, piece))
        except KeyError:  # a letter of no byte, in a file that was damaged or made by hand
            return bytes(self._bytes[x] for x in piece if x in self._bytes)


def letters() -> list[str]:
    """The letter of GPT-2's alphabet for each byte."""
    return [letter for letter, _ in sorted(_bytes_by_letter().items(), key=lambda x: x[1])]


def _bytes_by_letter() -> dict[str, int]:
    """GPT-2's alphabet: printable bytes stand for themselves, others are letters from U+0100 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {chr(x): x for x in printable}
    others = (x for x in range(256) if x not in set(printable))
    return letters | {chr(256 + i): x for i, x in enumerate(others)}


def _joiner(metadata: Mapping[str, Any], ids: dict[str, int], cut: Cut) -> Tokenizer:
    """A tokenizer that cuts a text and joins the parts of each piece."""
    try:
        import tokenizers
        from tokenizers import Tokenizer, models
    except ImportError as error:
        raise VocabularyError(
            f"the tokenizers package is not installed; get it with: {install_command('models')}"
        ) from error
    pairs = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    model = models.BPE(
        vocab=ids, merges=pairs, ignore_merges=cut.whole, byte_fallback=not cut.bytes
    )
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = steps_of(tokenizers, cut)
    return tokenizer


def steps_of(library: Any, cut: Cut) -> Any:  # noqa: ANN401 parts of the module tokenizers
    """The pre-tokenizer of the library `tokenizers` that makes these cuts."""
    of = library.pre_tokenizers
    steps: list[Any] = [of.Split(library.Regex(x), "isolated") for x in cut.patterns]
    if cut.bytes:
        steps.append(of.ByteLevel(add_prefix_space=False, use_regex=False))
    return of.Sequence(steps)
