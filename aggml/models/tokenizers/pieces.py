"""WordPiece and unigram vocabularies, as of BERT; the library `tokenizers` applies them.

Not here: SentencePiece by scores and byte-level BPE (vocabulary.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aggml.models.tokenizers.vocabulary import CONTROL, SPACE, Vocabulary, VocabularyError
from aggml.process.extras import install_command

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Unigram", "WordPiece"]


class _Pair(Vocabulary):
    """What both have in common: first and last token around a text, and pairs of texts."""

    def __init__(self, metadata: Mapping[str, Any], *, first: int, last: int) -> None:
        super().__init__(metadata, add_bos=True)
        cls = metadata.get("tokenizer.ggml.cls_token_id", self.bos)
        sep = metadata.get(
            "tokenizer.ggml.seperator_token_id",
            metadata.get("tokenizer.ggml.separator_token_id", self.eos),
        )
        self.bos = first if cls is None else int(cls)
        self.eos = last if sep is None else int(sep)
        self.add_eos = True
        unknown = metadata.get("tokenizer.ggml.unknown_token_id")
        self.unknown = None if unknown is None else int(unknown)
        try:
            import tokenizers
        except ImportError as error:
            raise VocabularyError(
                f"the tokenizers package is not installed; get it with: {install_command('models')}"
            ) from error
        self._tokenizer = self._made(tokenizers, metadata)

    def _made(self, tokenizers: Any, metadata: Mapping[str, Any]) -> Any:  # noqa: ANN401
        raise NotImplementedError

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def bytes_of(self, token: int) -> bytes:
        """The token's text in UTF-8; nothing for a control token."""
        if self.kinds[token] == CONTROL:
            return b""
        return self.pieces[token].replace(SPACE, " ").encode()

    def decode(self, ids: Any) -> str:  # noqa: ANN401 as the base has it
        """The text of tokens, without the space before the first word."""
        return super().decode(ids).removeprefix(" ")


class WordPiece(_Pair):
    """Cuts each word into the longest pieces of the vocabulary; lower case by default."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        super().__init__(metadata, first=101, last=102)

    def _made(self, tokenizers: Any, metadata: Mapping[str, Any]) -> Any:  # noqa: ANN401
        # A file marks the pieces that begin a word; the library marks the others.
        marked = {
            piece.removeprefix(SPACE)
            if piece.startswith(SPACE) or self.kinds[i] != 1
            else f"##{piece}": i
            for i, piece in enumerate(self.pieces)
        }
        unknown = 100 if self.unknown is None else self.unknown
        name = next((piece for piece, i in marked.items() if i == unknown), "[UNK]")
        made = tokenizers.Tokenizer(
            tokenizers.models.WordPiece(marked, unk_token=name, max_input_chars_per_word=100)
        )
        lower = bool(metadata.get("tokenizer.ggml.normalizer.lowercase", True))
        made.normalizer = tokenizers.normalizers.BertNormalizer(
            clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=lower
        )
        made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
        return made


class Unigram(_Pair):
    """The most probable pieces of a text, by the scores of the vocabulary."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        super().__init__(metadata, first=0, last=2)

    def encode_pair(self, first: str, second: str) -> list[int]:
        """Tokens of two texts as one: begin, the first, end, end, the second, end."""
        ids = super().encode_pair(first, second)
        at = 1 + len(self._encode(first))
        return [*ids[: at + 1], ids[at], *ids[at + 1 :]]

    def _made(self, tokenizers: Any, metadata: Mapping[str, Any]) -> Any:  # noqa: ANN401
        scores = [float(x) for x in metadata["tokenizer.ggml.scores"]]
        unknown = 3 if self.unknown is None else self.unknown
        made = tokenizers.Tokenizer(
            tokenizers.models.Unigram(list(zip(self.pieces, scores, strict=True)), unknown)
        )
        steps: list[Any] = []
        charsmap = metadata.get("tokenizer.ggml.precompiled_charsmap")
        if charsmap is not None and len(charsmap):
            steps.append(tokenizers.normalizers.Precompiled(bytes(bytearray(charsmap))))
        if metadata.get("tokenizer.ggml.remove_extra_whitespaces", False):
            steps.append(tokenizers.normalizers.Replace(tokenizers.Regex(" {2,}"), " "))
            steps.append(tokenizers.normalizers.Replace(tokenizers.Regex(r"\A +| +\z"), ""))
        if steps:
            made.normalizer = tokenizers.normalizers.Sequence(steps)
        prefix = metadata.get("tokenizer.ggml.add_space_prefix", True)
        made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(
            replacement=SPACE, prepend_scheme="always" if prefix else "never", split=False
        )
        return made
