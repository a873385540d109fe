"""FolderVocabulary: a vocabulary that was read from a folder, before it becomes GGUF's keys.

Here: byte-level BPE, BPE of SentencePiece, WordPiece, unigram. Not here: tokenizer.model
(sentencepiece.py), RWKV's file (trie.py), how text is cut into words (cutting.py).
"""

from __future__ import annotations

import base64
import contextlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from aggml.models.checkpoints.config import read_json
from aggml.models.checkpoints.cutting import name_of_cut
from aggml.models.checkpoints.unsaid import marks_spaces, unsaid
from aggml.models.errors import ModelError
from aggml.models.tokenizers.json_vocabulary import call_library, open_tokenizer
from aggml.models.tokenizers.roles import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED
from aggml.models.tokenizers.settings import parts_of, type_of_model
from aggml.models.tokenizers.vocabulary import SPACE, is_byte, library

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from pathlib import Path

__all__ = [
    "AddedToken",
    "FolderVocabulary",
    "filler",
    "read_tokenizer_json",
    "read_word_list",
    "settings_without_key",
]

#: Ids that a folder may leave out before one of its tokens.
MOST_FILLERS: Final = 10_000


@dataclass
class FolderVocabulary:
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
        whole: the text of the tokenizer.json from which it comes; None for other files.
        unsaid: settings of that file for which GGUF has no key.
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
    whole: str | None = None
    unsaid: list[str] = field(default_factory=list)

    def add(self, i: int, content: str, kind: int) -> None:
        """Add a token; one that is there already stays as it is."""
        if i not in self.tokens:
            self.tokens[i] = content
            self.kinds[i] = kind


def read_word_list(path: Path, *, lower: bool) -> FolderVocabulary:
    """Read vocab.txt: a piece in each line, with "##" before pieces that continue a word."""
    pieces = path.read_text(encoding="utf-8-sig").splitlines()
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


def _word_pieces(ids: dict[str, int], special: set[int], unknown: int | None) -> FolderVocabulary:
    """WordPiece in GGUF's form: it marks pieces that begin a word; the folder marks the others."""
    tokens = {
        i: piece if i in special else piece[2:] if piece[:2] == "##" else SPACE + piece
        for piece, i in ids.items()
    }
    kinds = {i: CONTROL if i in special else NORMAL for i in tokens}
    if unknown is not None:
        kinds[unknown] = CONTROL  # so that it adds nothing when tokens become text
    return FolderVocabulary("bert", tokens, kinds, special=_usual(ids))


def read_tokenizer_json(path: Path, more: Sequence[AddedToken] = ()) -> FolderVocabulary:
    """Read a tokenizer.json of any kind.

    Its tokens are in GGUF's form if there is one. `settings_without_key` says what that form leaves
    out.

    Args:
        path: the file.
        more: tokens that other files of the folder add.

    Raises:
        ModelError: it cannot be read, or has an unknown setting.
    """
    name = str(path)
    told = read_json(path)
    own = open_tokenizer(json.dumps(told, ensure_ascii=False), name)
    if _add_tokens(own, more, name):
        told = json.loads(own.to_str())
    special = {x["id"] for x in told.get("added_tokens") or () if x["special"]}
    kind = str(type_of_model(told["model"]))
    words = _of_any(told, special)
    with contextlib.suppress(ModelError):  # GGUF cannot say it: see `settings_without_key`
        words = KINDS[kind](told, special)
    words.whole = json.dumps(told, ensure_ascii=False)
    for token in told.get("added_tokens") or ():
        i = token["id"]
        if token["content"] == filler(i):
            words.tokens.pop(i, None)
            continue
        if words.tokens.get(i) != token["content"] and (i not in words.tokens or i in special):
            words.tokens[i] = token["content"]
        if i in special:
            words.kinds[i] = CONTROL if words.kinds.get(i) != UNKNOWN else UNKNOWN
        elif words.kinds.get(i) in (None, NORMAL):
            words.tokens[i], words.kinds[i] = token["content"], USER_DEFINED
    _ask_for_ends(own, words)
    return words


def filler(token: int) -> str:
    """The text of a token for an id that a folder leaves out."""
    return f"\0unused {token}\0"


def settings_without_key(
    text: str, control: AbstractSet[int], unknown: AbstractSet[int]
) -> list[str]:
    """The settings of a tokenizer.json that its form in GGUF leaves out.

    Args:
        text: of the file, from `FolderVocabulary.whole`.
        control: ids of the tokens that are control tokens in GGUF's form.
        unknown: those that stand for what is unknown. In GGUF's form a text may name them.

    Raises:
        ModelError: there is no such form at all.
    """
    told = json.loads(text)
    added = told.get("added_tokens") or ()
    special = {x["id"] for x in added if x["special"]}
    words = KINDS[str(type_of_model(told["model"]))](told, special)
    _ask_for_ends(open_tokenizer(text), words)
    ordinary = (control - special) | (unknown - {x["id"] for x in added})
    words.unsaid += [f"the ordinary token {words.tokens.get(i)!r}" for i in ordinary]
    if words.model == "bert" and not (words.add_bos and words.add_eos):
        words.unsaid.append("post_processor: there are always tokens around a text of WordPiece")
    return [*words.unsaid, *unsaid(told)]


@dataclass(frozen=True, slots=True)
class AddedToken:
    """A token that tokenizer_config.json adds; its settings are those of a tokenizer.json.

    Attributes:
        id: None for a token that is only named: it must be in the vocabulary.
    """

    content: str
    special: bool
    id: int | None = None
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False


def _add_tokens(own: Any, more: Sequence[AddedToken], name: str) -> bool:  # noqa: ANN401
    """Add tokens that the library's tokenizer has not; whether there were any.

    The library numbers tokens without gaps, so a gap is filled with tokens that no text has.
    """
    kind = library().AddedToken
    known = {token.content for token in own.get_added_tokens_decoder().values()}
    ids = own.get_vocab(with_added_tokens=True)
    end = max(ids.values(), default=-1) + 1
    changed = False
    for token in more:
        i = ids.get(token.content)
        if token.content in known or (i is None and token.id is None):
            continue
        if i is None and token.id is not None:
            if not end <= token.id < end + MOST_FILLERS:
                raise ModelError(
                    f"{name}: the token {token.content!r} has the id {token.id} in "
                    f"tokenizer_config.json, and {end} is the next that is free"
                )
            own.add_special_tokens([filler(x) for x in range(end, token.id)])
            end = token.id + 1
        own.add_tokens([
            kind(
                token.content, special=token.special, lstrip=token.lstrip, rstrip=token.rstrip,
                single_word=token.single_word, normalized=token.normalized,
            )
        ])  # fmt: skip
        known.add(token.content)
        changed = True
    return changed


def _of_any(told: Mapping[str, Any], special: set[int]) -> FolderVocabulary:
    """Tokens as they are in the file, for a vocabulary of no kind that GGUF has."""
    given = told["model"].get("vocab") or {}
    pairs = given.items() if isinstance(given, dict) else ((x[0], i) for i, x in enumerate(given))
    tokens = {i: piece for piece, i in pairs}
    return FolderVocabulary("", tokens, {i: CONTROL if i in special else NORMAL for i in tokens})


def _ask_for_ends(own: Any, words: FolderVocabulary) -> None:  # noqa: ANN401 a tokenizers.Tokenizer
    """Ask the tokenizer itself which tokens it puts around a text."""
    words.add_bos = words.add_eos = False
    try:
        inner = call_library(lambda: own.encode("a", add_special_tokens=False), "a text").ids
        whole = call_library(lambda: own.encode("a"), "a text").ids
    except ModelError as error:  # it has no token for the text
        words.unsaid.append(f"which tokens are put around a text: {error}")
        return
    at = next((i for i in range(len(whole)) if whole[i : i + len(inner)] == inner), 0)
    before, after = whole[:at], whole[at + len(inner) :]
    if len(before) > 1 or len(after) > 1:
        words.unsaid.append(
            f"the tokens {before} before and {after} after each text; GGUF has one on each side"
        )
    words.add_bos, words.add_eos = bool(before), bool(after)
    words.begins, words.ends = (before or [None])[0], (after or [None])[-1]


def _of_bpe(told: dict[str, Any], special: set[int]) -> FolderVocabulary:
    """BPE over bytes; or SentencePiece's BPE over characters, with bytes for unknown ones."""
    model = told["model"]
    ids: dict[str, int] = model["vocab"]
    merges = [x.split(" ", 1) if isinstance(x, str) else list(x) for x in model["merges"]]
    normalizers = list(parts_of(told.get("normalizer")))
    before = list(parts_of(told.get("pre_tokenizer")))
    if marks_spaces(told) and model.get("byte_fallback"):
        return _of_characters(ids, merges, normalizers, before)
    tokens = {i: piece for piece, i in ids.items()}
    words = FolderVocabulary(
        "gpt2", tokens, {i: CONTROL if i in special else NORMAL for i in tokens}
    )
    kinds = [x["type"] for x in normalizers]
    if kinds not in ([], ["NFC"]):
        raise ModelError(
            f"tokenizer.json has the normalizers {kinds}; only NFC, or none, is supported"
        )
    if kinds:
        words.more["normalizer.nfc"] = True
    words.merges = [" ".join(pair) for pair in merges]
    words.pre, same = name_of_cut(library(), told, whole=bool(model.get("ignore_merges")))
    if not same:
        words.unsaid.append("pre_tokenizer, of which GGUF has no exact name")
    return words


def _of_characters(
    ids: dict[str, int], merges: list[list[str]], normalizers: list[Any], before: list[Any]
) -> FolderVocabulary:
    """SentencePiece's BPE: the earlier a pair is merged, the better is its score."""
    tokens = {i: piece for piece, i in ids.items()}
    kinds = {i: BYTE if is_byte(piece) else NORMAL for piece, i in ids.items()}
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
    return FolderVocabulary(
        "llama", tokens, kinds, scores=scores, more={"add_space_prefix": prefix}
    )


def _of_word_piece(told: dict[str, Any], special: set[int]) -> FolderVocabulary:
    model = told["model"]
    words = _word_pieces(model["vocab"], special, model["vocab"].get(model.get("unk_token")))
    lower = [x for x in parts_of(told.get("normalizer")) if x["type"] == "BertNormalizer"]
    words.more["normalizer.lowercase"] = bool(lower and lower[0].get("lowercase", True))
    if lower and lower[0].get("strip_accents") is not None:
        words.more["normalizer.strip_accents"] = lower[0]["strip_accents"]
    return words


def _of_unigram(told: dict[str, Any], special: set[int]) -> FolderVocabulary:
    vocabulary = told["model"]["vocab"]
    tokens = {i: piece for i, (piece, _) in enumerate(vocabulary)}
    kinds = {i: CONTROL if i in special else NORMAL for i in tokens}
    unknown = told["model"].get("unk_id")
    if unknown is not None:
        kinds[unknown] = UNKNOWN
    words = FolderVocabulary("t5", tokens, kinds)
    words.scores = {i: float(score) for i, (_, score) in enumerate(vocabulary)}
    for step in parts_of(told.get("normalizer")):
        if step["type"] == "Precompiled" and step.get("precompiled_charsmap"):
            raw = base64.b64decode(step["precompiled_charsmap"])
            words.more["precompiled_charsmap"] = np.frombuffer(raw, np.uint8)
    before = [x for x in parts_of(told.get("pre_tokenizer")) if x["type"] == "Metaspace"]
    scheme = before[0].get("prepend_scheme", "always") if before else "never"
    words.more["add_space_prefix"] = scheme != "never"
    words.more["remove_extra_whitespaces"] = True
    return words


def _of_words(told: dict[str, Any], special: set[int]) -> FolderVocabulary:
    raise ModelError("tokenizer.json has a model of the type WordLevel, which GGUF cannot say")


KINDS: Final[dict[str, Callable[[dict[str, Any], set[int]], FolderVocabulary]]] = {
    "BPE": _of_bpe,
    "WordPiece": _of_word_piece,
    "Unigram": _of_unigram,
    "WordLevel": _of_words,
}
