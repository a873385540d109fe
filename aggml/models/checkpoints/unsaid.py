"""unsaid: the settings of a tokenizer.json for which GGUF has no key.

A GGUF file names a way of tokenizing, and a tokenizer.json describes one: it can say more. A folder
is read by its own file, so nothing is lost (../tokenizers/json_vocabulary.py). A GGUF file that is
written from it has that file in itself if this list is not empty. Not here: the keys
(folder_vocabulary.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from aggml.models.tokenizers.settings import parts_of, type_of_model
from aggml.models.tokenizers.vocabulary import SPACE, is_byte, letters

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["marks_spaces", "unsaid"]

#: Flags of added tokens; GGUF finds their text, wherever it stands.
FLAGS: Final = ("lstrip", "rstrip", "single_word")
BYTES: Final = frozenset(f"<0x{i:02X}>" for i in range(256))
_SPACES: Final = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
_PREPEND: Final = {"type": "Prepend", "prepend": SPACE}
_TEXT: Final = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
_STRIP: Final = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
#: Decoders that do what GGUF's kinds of vocabularies do, by kind; None stands for any.
DECODERS: Final[Mapping[str, tuple[list[dict[str, Any]], ...]]] = {
    "bytes": ([{"type": "ByteLevel"}],),
    "characters": (
        [_TEXT, {"type": "ByteFallback"}, {"type": "Fuse"}],
        [_TEXT, {"type": "ByteFallback"}, {"type": "Fuse"}, _STRIP],
    ),
}


def marks_spaces(told: Mapping[str, Any]) -> bool:
    """Whether a tokenizer's pieces have a mark for spaces, as those of SentencePiece."""
    replaces = any(
        x["type"] == "Replace" and x.get("content") == SPACE
        for x in parts_of(told.get("normalizer"))
    )
    return replaces or any(x["type"] == "Metaspace" for x in parts_of(told.get("pre_tokenizer")))


def unsaid(told: Mapping[str, Any]) -> list[str]:
    """The settings that GGUF's keys cannot say, by name.

    Args:
        told: the contents of a tokenizer.json of a kind that GGUF has.
    """
    kind = type_of_model(told["model"])
    of = {"BPE": _of_bpe, "WordPiece": _of_word_piece, "Unigram": _of_unigram}[str(kind)]
    return [*dict.fromkeys([*_of_added(told), *of(told)])]


def _of_added(told: Mapping[str, Any]) -> Iterator[str]:
    normalizers = [x["type"] for x in parts_of(told.get("normalizer"))]
    for token in told.get("added_tokens") or ():
        for flag in FLAGS:
            if token.get(flag):
                yield f"{flag} of the token {token['content']!r}"
        composes = normalizers == ["NFC"] and token["content"].isascii()  # it stays as it is
        if token.get("normalized") and normalizers and not composes:
            yield f"normalized of the token {token['content']!r}"


def _steps(told: Mapping[str, Any], part: str) -> list[dict[str, Any]]:
    return [dict(x) for x in parts_of(told.get(part))]


def _decoder(told: Mapping[str, Any], kind: str) -> Iterator[str]:
    steps = _steps(told, "decoder")
    if kind == "bytes":
        steps = [{"type": x["type"]} for x in steps]
    if steps not in DECODERS[kind]:
        yield "decoder"


def _of_bpe(told: Mapping[str, Any]) -> Iterator[str]:
    model = told["model"]
    for name in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(name):
            yield f"model.{name}"
    normalizers = _steps(told, "normalizer")
    if marks_spaces(told) and model.get("byte_fallback"):
        yield from _of_characters(told, normalizers)
        return
    if any(x not in model["vocab"] for x in letters()):
        yield "model.vocab, which has no token for some bytes"
    yield from _decoder(told, "bytes")


def _of_characters(told: Mapping[str, Any], normalizers: list[dict[str, Any]]) -> Iterator[str]:
    if normalizers not in ([_PREPEND, _SPACES], [_SPACES]):
        yield "normalizer"
    before = _steps(told, "pre_tokenizer")
    harmless = all(  # there is no space any more
        x["type"] == "Split" and x.get("pattern") == {"String": " "} for x in before
    )
    if not harmless:
        yield "pre_tokenizer"
    model = told["model"]
    vocabulary: dict[str, int] = model["vocab"]
    if not vocabulary.keys() >= BYTES:
        yield "model.vocab, which has no token for some bytes"
    if model.get("ignore_merges"):
        yield "model.ignore_merges"
    if not _are_ranked(vocabulary, model["merges"]):
        yield "model.merges, which are not all ways in which two tokens make another one"
    yield from _decoder(told, "characters")


def _are_ranked(vocabulary: Mapping[str, int], merges: list[Any]) -> bool:
    """Whether merges are what scores of tokens would say: any two tokens that make a third."""
    ends: dict[str, int] = {}  # the last rank of each result so far
    pairs = set()
    for rank, merge in enumerate(merges):
        left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
        whole = left + right
        if whole in ends and ends[whole] != rank - 1:
            return False
        ends[whole] = rank
        pairs.add((left, right))
    for token in vocabulary:
        if is_byte(token):
            continue
        for i in range(1, len(token)):
            left, right = token[:i], token[i:]
            # Scores join any two neighbours, and a character need not be a token.
            joins = all(x in vocabulary or len(x) == 1 for x in (left, right))
            if joins and (left, right) not in pairs:
                return False
    return True


def _of_word_piece(told: Mapping[str, Any]) -> Iterator[str]:
    model = told["model"]
    if model.get("continuing_subword_prefix", "##") != "##":
        yield "model.continuing_subword_prefix"
    if model.get("max_input_chars_per_word", 100) != 100:
        yield "model.max_input_chars_per_word"
    if model.get("unk_token") not in model["vocab"]:
        yield "model.unk_token"
    if any(x.startswith(SPACE) for x in model["vocab"]):
        yield f"model.vocab, which has tokens that begin with {SPACE}"
    normalizers = _steps(told, "normalizer")
    if [x["type"] for x in normalizers] != ["BertNormalizer"]:
        yield "normalizer"
    else:
        for name in ("clean_text", "handle_chinese_chars"):
            if not normalizers[0].get(name, True):
                yield f"normalizer.{name}"
    if [x["type"] for x in _steps(told, "pre_tokenizer")] != ["BertPreTokenizer"]:
        yield "pre_tokenizer"


def _of_unigram(told: Mapping[str, Any]) -> Iterator[str]:
    model = told["model"]
    if model.get("byte_fallback"):
        yield "model.byte_fallback"
    if model.get("unk_id") is None:
        yield "model.unk_id"
    if [x["type"] for x in _steps(told, "normalizer")] != ["Precompiled"]:
        yield "normalizer"
    before = _steps(told, "pre_tokenizer")
    split = [x["type"] for x in before] == ["WhitespaceSplit", "Metaspace"]
    if not split or before[1].get("replacement") != SPACE:
        yield "pre_tokenizer"
    elif before[1].get("prepend_scheme", "always") != "always":
        yield "pre_tokenizer.prepend_scheme"
