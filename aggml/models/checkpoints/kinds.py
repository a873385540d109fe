"""Words: a vocabulary that was read from a folder, before it becomes GGUF's keys.

Here: byte-level BPE, BPE of SentencePiece, WordPiece, unigram. Not here: tokenizer.model
(sentencepiece.py), RWKV's file (trie.py), how text is cut into words (cutting.py).
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from aggml.models.checkpoints.config import read_json
from aggml.models.checkpoints.cutting import name_of_cut
from aggml.models.errors import ModelError
from aggml.models.tokenizers.vocabulary import BYTE, CONTROL, SPACE, USER_DEFINED
from aggml.process.extras import install_command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["Words", "of_tokenizer_json", "of_word_list"]

NORMAL: Final = 1
UNKNOWN: Final = 2


@dataclass
class Words:
    """A vocabulary.

    Attributes:
        model: ``tokenizer.ggml.model``.
        tokens, kinds: by id, in GGUF's form.
        pre: ``tokenizer.ggml.pre``.
        scores, merges: None if vocabularies of this kind have none.
        more: further keys under ``tokenizer.ggml.``.
        add_bos, add_eos: whether ``begins`` and ``ends`` are put around a text; None: unknown.
        begins, ends: the tokens that begin and end a text.
        special: ids of special tokens that the file itself gives, by transformers' names.
    """

    model: str
    tokens: dict[int, str]
    kinds: dict[int, int]
    pre: str = "default"
    scores: dict[int, float] | None = None
    merges: list[str] | None = None
    more: dict[str, Any] = field(default_factory=dict)
    add_bos: bool | None = None
    add_eos: bool | None = None
    begins: int | None = None
    ends: int | None = None
    special: dict[str, int] = field(default_factory=dict)

    def add(self, i: int, content: str, kind: int) -> None:
        """Add a token; one that is there already stays as it is."""
        if i not in self.tokens:
            self.tokens[i] = content
            self.kinds[i] = kind

    def spelt(self, content: str) -> str:
        """The form that a token with this content has in ``tokens``."""
        return content


def of_word_list(path: Path, *, lower: bool) -> Words:
    """Read vocab.txt: a piece in each line, with "##" before pieces that continue a word."""
    pieces = path.read_text(encoding="utf-8").splitlines()
    ids = {piece: i for i, piece in enumerate(pieces)}
    special = {i for piece, i in ids.items() if piece.startswith("[") and piece.endswith("]")}
    words = _word_pieces(ids, special, ids.get("[UNK]"))
    words.more["normalizer.lowercase"] = lower
    words.add_bos = words.add_eos = True
    words.begins, words.ends = ids.get("[CLS]"), ids.get("[SEP]")
    return words


def _usual(ids: dict[str, int]) -> dict[str, int]:
    """Ids of BERT's special tokens by transformers' names."""
    names = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]",
             "cls_token": "[CLS]", "mask_token": "[MASK]"}  # fmt: skip
    return {place: ids[name] for place, name in names.items() if name in ids}


def _word_pieces(ids: dict[str, int], special: set[int], unknown: int | None) -> Words:
    """WordPiece in GGUF's form: it marks pieces that begin a word; the folder marks the others."""
    tokens = {
        i: piece if i in special else piece[2:] if piece[:2] == "##" else SPACE + piece
        for piece, i in ids.items()
    }
    kinds = {i: CONTROL if i in special else NORMAL for i in tokens}
    if unknown is not None:
        kinds[unknown] = CONTROL  # so that it adds nothing when tokens become text
    return Words("bert", tokens, kinds, special=_usual(ids))


def of_tokenizer_json(path: Path) -> Words:
    """Read a tokenizer.json of any known kind.

    Raises:
        ModelError: it cannot be read, or is of an unknown kind.
    """
    told = read_json(path)
    model = told.get("model") or {}
    kind = model.get("type") or _guessed(model)
    if kind not in KINDS:
        raise ModelError(
            f"{str(path)!r} has a model of the type {kind!r}; known are {', '.join(KINDS)}"
        )
    special = {x["id"] for x in told.get("added_tokens") or () if x.get("special")}
    words = KINDS[kind](told, special)
    for token in told.get("added_tokens") or ():
        i = token["id"]
        if words.tokens.get(i) != token["content"] and (i not in words.tokens or i in special):
            words.tokens[i] = token["content"]
        if i in special:
            words.kinds[i] = CONTROL if words.kinds.get(i) != UNKNOWN else UNKNOWN
        elif words.kinds.get(i) in (None, NORMAL):
            words.tokens[i], words.kinds[i] = token["content"], USER_DEFINED
    _ends(path, words)
    return words


def _guessed(model: dict[str, Any]) -> str | None:
    """The type of the model, for older files that do not name it."""
    if "merges" in model:
        return "BPE"
    return "Unigram" if isinstance(model.get("vocab"), list) else "WordPiece" if model else None


def _ends(path: Path, words: Words) -> None:
    """Ask the tokenizer itself which tokens it puts around a text."""
    own = _library().Tokenizer.from_file(str(path))
    own.no_padding()
    own.no_truncation()
    inner, whole = (own.encode("a", add_special_tokens=x).ids for x in (False, True))
    at = next((i for i in range(len(whole)) if whole[i : i + len(inner)] == inner), 0)
    before, after = whole[:at], whole[at + len(inner) :]
    if len(before) > 1 or len(after) > 1:
        raise ModelError(
            f"{str(path)!r} puts the tokens {before} before and {after} after each text; "
            "at most one token on each side is supported"
        )
    words.add_bos, words.add_eos = bool(before), bool(after)
    words.begins, words.ends = (before or [None])[0], (after or [None])[0]


def _library() -> Any:  # noqa: ANN401 a module
    try:
        import tokenizers
    except ImportError as error:
        raise ModelError(
            f"the tokenizers package is not installed; get it with: {install_command('models')}"
        ) from error
    return tokenizers


def _steps(part: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    """Yields a normalizer or pre-tokenizer; if it is a sequence, each of its members."""
    if part is None:
        return
    inner = part.get("normalizers") or part.get("pretokenizers")
    if part.get("type") == "Sequence" and inner is not None:
        for x in inner:
            yield from _steps(x)
    else:
        yield part


def _of_bpe(told: dict[str, Any], special: set[int]) -> Words:
    """BPE over bytes; or SentencePiece's BPE over characters, with bytes for unknown ones."""
    model = told["model"]
    ids: dict[str, int] = model["vocab"]
    merges = [x.split(" ", 1) if isinstance(x, str) else list(x) for x in model["merges"]]
    normalizers = list(_steps(told.get("normalizer")))
    before = list(_steps(told.get("pre_tokenizer")))
    spaces = any(x.get("content") == SPACE for x in normalizers if x["type"] == "Replace")
    spaces |= any(x["type"] == "Metaspace" for x in before)
    if spaces and model.get("byte_fallback"):
        return _of_characters(ids, merges, normalizers, before)
    tokens = {i: piece for piece, i in ids.items()}
    words = Words("gpt2", tokens, {i: CONTROL if i in special else NORMAL for i in tokens})
    kinds = [x["type"] for x in normalizers]
    if kinds not in ([], ["NFC"]):
        raise ModelError(
            f"tokenizer.json has the normalizers {kinds}; only NFC, or none, is supported"
        )
    if kinds:
        words.more["normalizer.nfc"] = True
    words.merges = [" ".join(pair) for pair in merges]
    words.pre = name_of_cut(_library(), told, whole=bool(model.get("ignore_merges")))
    return words


def _of_characters(
    ids: dict[str, int], merges: list[list[str]], normalizers: list[Any], before: list[Any]
) -> Words:
    """SentencePiece's BPE: the earlier a pair is merged, the better is its score."""
    tokens = {i: piece for piece, i in ids.items()}
    kinds = {i: BYTE if _is_byte(piece) else NORMAL for piece, i in ids.items()}
    if ids.get("<unk>") is not None:
        kinds[ids["<unk>"]] = UNKNOWN
    scores = dict.fromkeys(tokens, 0.0)
    for rank, pair in reversed(list(enumerate(merges))):
        i = ids.get("".join(pair))
        if i is not None:
            scores[i] = -float(rank + 1)
    prefix = any(x["type"] == "Prepend" for x in normalizers)
    prefix |= any(
        x.get("prepend_scheme", "always") != "never" for x in before if x["type"] == "Metaspace"
    )
    return Words("llama", tokens, kinds, scores=scores, more={"add_space_prefix": prefix})


def _is_byte(piece: str) -> bool:
    return len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">")


def _of_word_piece(told: dict[str, Any], special: set[int]) -> Words:
    model = told["model"]
    words = _word_pieces(model["vocab"], special, model["vocab"].get(model.get("unk_token")))
    lower = [x for x in _steps(told.get("normalizer")) if x["type"] == "BertNormalizer"]
    words.more["normalizer.lowercase"] = bool(lower and lower[0].get("lowercase", True))
    return words


def _of_unigram(told: dict[str, Any], special: set[int]) -> Words:
    vocabulary = told["model"]["vocab"]
    tokens = {i: piece for i, (piece, _) in enumerate(vocabulary)}
    kinds = {i: CONTROL if i in special else NORMAL for i in tokens}
    unknown = told["model"].get("unk_id")
    if unknown is not None:
        kinds[unknown] = UNKNOWN
    words = Words("t5", tokens, kinds)
    words.scores = {i: float(score) for i, (_, score) in enumerate(vocabulary)}
    for step in _steps(told.get("normalizer")):
        if step["type"] == "Precompiled" and step.get("precompiled_charsmap"):
            raw = base64.b64decode(step["precompiled_charsmap"])
            words.more["precompiled_charsmap"] = np.frombuffer(raw, np.uint8)
    before = [x for x in _steps(told.get("pre_tokenizer")) if x["type"] == "Metaspace"]
    scheme = before[0].get("prepend_scheme", "always") if before else "never"
    words.more["add_space_prefix"] = scheme != "never"
    words.more["remove_extra_whitespaces"] = True
    return words


KINDS: Final[dict[str, Callable[[dict[str, Any], set[int]], Words]]] = {
    "BPE": _of_bpe,
    "WordPiece": _of_word_piece,
    "Unigram": _of_unigram,
}
