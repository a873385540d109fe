"""WordPiece and unigram vocabularies, as of BERT; the library `tokenizers` applies them.

Not here: SentencePiece by scores and byte-level BPE (vocabulary.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from aggml.models.tokenizers.roles import BYTE, NORMAL, UNUSED, USER_DEFINED, special_id
from aggml.models.tokenizers.vocabulary import SILENT, SPACE, GGUFVocabulary, is_utf8, library, utf8

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["LibraryPieces", "Unigram", "WordPiece"]


class LibraryPieces(GGUFVocabulary):
    """What both have in common: the library finds the pieces of a text."""

    def __init__(self, metadata: Mapping[str, Any], *, add_bos: bool, add_eos: bool) -> None:
        super().__init__(metadata, add_bos=add_bos, add_eos=add_eos)
        self._tokenizer = self._build(library(), metadata)

    def _build(self, tokenizers: Any, metadata: Mapping[str, Any]) -> Any:  # noqa: ANN401
        raise NotImplementedError

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def bytes_of(self, token: int) -> bytes:
        """The token's text in UTF-8; nothing for a control token."""
        kind = self.kinds[token]
        if kind in SILENT or token in self._roles.hidden:
            return b""
        if kind == BYTE:
            return bytes([int(self.pieces[token][3:5], 16)])
        piece = self.pieces[token]
        return utf8(piece if kind == USER_DEFINED else piece.replace(SPACE, " "))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens, without the space before the first word."""
        return super().decode(ids).removeprefix(" ")


class WordPiece(LibraryPieces):
    """Cuts each word into the longest pieces of the vocabulary; lower case by default.

    Every text begins and ends with a token, whatever the file says, as in llama.cpp.
    """

    is_wordwise = True
    DEFAULT_IDS: ClassVar[Mapping[str, int]] = {"bos": 101, "unknown": 100}

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        super().__init__(metadata, add_bos=True, add_eos=True)
        cls, sep = special_id(metadata, "cls"), special_id(metadata, "seperator")
        sep = special_id(metadata, "separator") if sep is None else sep
        self.bos: int | None = self.bos if cls is None else cls
        if sep is not None:
            self.eos: int | None = sep
        elif self.eos is None and len(self.pieces) > 102:
            self.eos = 102
        self.add_bos = self.add_eos = True

    @property
    def pair_separator(self) -> int | None:
        """The token between both texts: BERT tells the second one apart by its type."""
        return self.eos

    def _build(self, tokenizers: Any, metadata: Mapping[str, Any]) -> Any:  # noqa: ANN401
        # A file marks the pieces that begin a word; the library marks the others. A piece with the
        # mark alone begins words, too.
        marked: dict[str, int] = {}
        plain = is_utf8(self.pieces)  # a token that is no UTF-8 stands in no text
        for i, piece in enumerate(self.pieces):
            begins = len(piece) > 1 and piece.startswith(SPACE)
            inner = piece[1:] if begins else piece if self.kinds[i] != NORMAL else f"##{piece}"
            marked[inner if plain or is_utf8(inner) else f"\0{i}\0"] = i
        unknown = self.unknown
        name = next((piece for piece, i in marked.items() if i == unknown), "[UNK]")
        built = tokenizers.Tokenizer(
            tokenizers.models.WordPiece(marked, unk_token=name, max_input_chars_per_word=100)
        )
        lower = bool(metadata.get("tokenizer.ggml.normalizer.lowercase", True))
        strips = metadata.get("tokenizer.ggml.normalizer.strip_accents")
        built.normalizer = tokenizers.normalizers.BertNormalizer(
            clean_text=True, handle_chinese_chars=True, lowercase=lower,
            strip_accents=None if strips is None else bool(strips),
        )  # fmt: skip
        built.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
        return built


class Unigram(LibraryPieces):
    """The most probable pieces of a text, by the scores of the vocabulary."""

    DEFAULT_IDS: ClassVar[Mapping[str, int]] = {"eos": 1, "unknown": 2}

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        super().__init__(metadata, add_bos=False, add_eos=True)

    def encode_pair(self, first: str, second: str) -> list[int]:
        """Tokens of two texts as one: begin, the first, end, end, the second, end."""
        ids = super().encode_pair(first, second)
        at = (
            len(ids)
            - len(self._ids_of(self._replace_surrogates(second), special=False, literal=False))
            - 1
        )
        return ids if self.eos is None else [*ids[:at], self.eos, *ids[at:]]

    def _build(self, tokenizers: Any, metadata: Mapping[str, Any]) -> Any:  # noqa: ANN401
        self._prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", False))
        self._merges = bool(metadata.get("tokenizer.ggml.remove_extra_whitespaces", False))
        given = metadata.get("tokenizer.ggml.scores")
        scores = [0.0] * len(self.pieces) if given is None else [float(x) for x in given]
        told = metadata.get("tokenizer.ggml.token_type")
        kinds = self.kinds if told is None else [int(x) for x in told]
        normal = [x for x, kind in zip(scores, kinds, strict=True) if kind == NORMAL]
        worst = min(normal, default=0.0)
        # Tokens that no text may give have texts that do not occur in one, and the worst score:
        # that of unknown text is reckoned from it.
        rows: list[tuple[str, float]] = []
        plain = is_utf8(self.pieces)
        for i, (piece, score, kind) in enumerate(zip(self.pieces, scores, kinds, strict=True)):
            possible = kind in (NORMAL, UNUSED, USER_DEFINED) and (plain or is_utf8(piece))
            if i in self._roles.hidden or not possible:
                rows.append((f"\0{i}\0", worst))
            else:
                rows.append((piece, 0.0 if kind == USER_DEFINED else score))
        charsmap = metadata.get("tokenizer.ggml.precompiled_charsmap")
        self._normalizer = None
        if charsmap is not None and len(charsmap):
            self._normalizer = tokenizers.normalizers.Precompiled(bytes(bytearray(charsmap)))
        return tokenizers.Tokenizer(tokenizers.models.Unigram(rows, self.unknown))

    def _encode(self, text: str) -> list[int]:
        if self._normalizer is not None:
            text = self._normalizer.normalize_str(text)
        if self._merges:
            text = "".join(f" {word}" for word in text.split(" ") if word)
        elif self._prefix:
            word = text.lstrip(" ")
            text = f"{text[: len(text) - len(word)]} {word}" if word else text
        return super()._encode(text.replace(" ", SPACE)) if text else []
